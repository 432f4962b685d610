"""Figures 3a, 3b and 4 of the shuffled check-in paper from run directories: accuracy by epsilon and by rounds.

    python accountants/training_curves.py --runs runs/curves --out curves.png
    python accountants/training_curves.py --runs curves.csv --out curves.svg

Reads config.json and metrics.jsonl of every folder under `runs` (see train/mnist_curves.py), or the CSV beside such a
picture; runs of equal settings are one curve, their mean, with a band from the least to the most accurate. Epsilon is
certified and that of the run's report: as the run wrote it in view "messages", accounted for from its configuration in
"aggregate".
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.progress import track

from checkin_jax import plotting
from checkin_jax._plot_style import EIGHT
from checkin_jax.cli.programs import program
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import guarantee

# Settings of the programs in train/ by their folders' names; a number stands for {}.
NAMES = {
    r"ldp_sgd(?:_epsilon0)?_([\d.]+)": "LDP-SGD, $\\varepsilon_0$ = {}",
    r"gaussian(?:_epsilon0)?_([\d.]+)": "Gaussian, local $\\varepsilon$ = {}",
    r"gaussian_([\d.]+)_of_1e7": "Gaussian, local $\\varepsilon$ = {}, $10^7$ clients",
}
COLUMNS = {"run", "round", "accuracy", "view", "epsilon", "delta"}


def main(runs: Path, out: Path, view: Literal["messages", "aggregate"] = "messages") -> None:
    """Draws every run's curves and writes a CSV of the same name.

    Args:
      runs: Folder with run directories, or a CSV file that this program wrote.
      out: Picture to write, .png, .svg or .pdf.
      view: What the adversary sees.
    """
    plotting.check(out)
    groups = _of_table(runs, view) if runs.suffix == ".csv" else _of_folders(runs, view)
    drawn, (left, right) = plotting.figure(2, height=4.2)
    looks = itertools.product(("-", "--", ":"), EIGHT)
    for (name, curves), (dashes, color) in zip(groups.items(), looks):
        # Runs of equal settings are tested after the same rounds, unless one was stopped.
        points = [*zip(*curves)]
        accuracies = [[row["accuracy"] for row in point] for point in points]
        for panel, what in ((left, "epsilon"), (right, "round")):
            x = [point[0][what] for point in points]
            label = label_of(name) if panel is left else None
            panel.plot(x, [*map(fmean, accuracies)], dashes, marker=".", color=color, label=label)
            if len(curves) > 1:
                ends = [*map(min, accuracies)], [*map(max, accuracies)]
                panel.fill_between(x, *ends, color=color, alpha=0.2, linewidth=0)
    rows = [row for curves in groups.values() for curve in curves for row in curve]
    plotting.scale(left, "x", (row["epsilon"] for row in rows))
    left.set(
        xlabel=f"certified $\\varepsilon$ (nats) at $\\delta$ = {_power(rows[0]['delta'])}, view {view!r}"
    )
    left.set(ylabel="test accuracy", title="privacy and utility")
    right.set(xlabel="round", title="accuracy by round")
    plotting.legend(drawn, 3)
    print(*plotting.save(drawn, out, rows))


def label_of(name: str) -> str:
    """The name of a setting in a legend: words and a number for the settings of train/, else the folder's name."""
    for pattern, words in NAMES.items():
        found = re.fullmatch(pattern, name)
        if found:
            return words.format(f"{float(found[1]):g}")
    return name


def _power(value: float) -> str:
    """A power of ten as one, other numbers in digits."""
    exponent = round(math.log10(value))
    return f"$10^{{{exponent}}}$" if math.isclose(value, 10.0**exponent) else f"{value:g}"


def _of_folders(runs: Path, view: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Curves of the run directories in a folder, by their settings' names."""
    found = [recorded.read(path.parent) for path in sorted(runs.glob("*/metrics.jsonl"))]
    if not found:
        raise SystemExit(f"runs={str(runs)!r}: no run directories there")
    groups = recorded.of_equal_settings(found)
    return {
        name: [curve(run, view) for run in group] for name, group in track([*groups.items()], "accounting")
    }


def _of_table(path: Path, view: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Curves of a table that this program wrote, by their settings' names; RUN_1, RUN_2 ... are one setting."""
    with open(path, newline="", encoding="utf-8") as file:
        lines: Sequence[Mapping[str, Any]] = [*csv.DictReader(file)]
    if not lines or not set(lines[0]) >= COLUMNS or {line["view"] for line in lines} != {view}:
        raise SystemExit(f"runs={str(path)!r}: no table of curves in view {view!r}")
    rows = [
        {
            **line,
            "round": int(line["round"]),
            **{name: float(line[name]) for name in ("accuracy", "lower", "epsilon", "delta")},
        }
        for line in lines
    ]
    groups: dict[str, list[list[dict[str, Any]]]] = {}
    for run, points in itertools.groupby(rows, lambda row: row["run"]):
        groups.setdefault(re.sub(r"_\d$", "", run), []).append([*points])
    return groups


def curve(run: RecordedRun, view: str) -> list[dict[str, Any]]:
    """One row for each evaluation of a run that has figures of privacy."""
    rows = []
    for line in run.metrics:
        if "epsilon" not in line:
            continue
        lower, upper, method = line["epsilon_lower"], line["epsilon"], line.get("method")
        if line.get("view") != view:
            g = guarantee(run.run, run.run.schedule.so_far(line["round"]), view)
            lower, upper, method = g.lower, g.epsilon, g.method
        rows.append(
            {
                "run": run.path.name,
                "dataset": run.about["dataset"],
                "round": line["round"],
                "accuracy": line["accuracy"],
                "view": view,
                "lower": lower,
                "epsilon": upper if upper is not None else math.inf,
                "delta": run.run.delta,
                "method": method,
            }
        )
    return rows


if __name__ == "__main__":
    program(main)
