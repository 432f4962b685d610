"""Figures 3a, 3b and 4 of the shuffled check-in paper from run directories: accuracy by epsilon and by rounds.

    python accountants/training_curves.py --runs runs/curves --out curves.png

Reads config.json and metrics.jsonl of every folder under `runs` (see train/mnist_curves.py); runs of equal settings are
one curve, their mean, with a band from the least to the most accurate. Epsilon is certified and that of the run's
report: as the run wrote it in view "messages", accounted for from its configuration in "aggregate".
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.progress import track

from checkin_jax import plotting
from checkin_jax.cli.programs import program
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import guarantee


def main(runs: Path, out: Path, view: Literal["messages", "aggregate"] = "messages") -> None:
    """Draws every run's curves and writes a CSV of the same name.

    Args:
      runs: Folder with run directories.
      out: Picture to write, .png or .svg.
      view: What the adversary sees.
    """
    plotting.check(out)
    found = [recorded.read(path.parent) for path in sorted(runs.glob("*/metrics.jsonl"))]
    if not found:
        raise SystemExit(f"runs={str(runs)!r}: no run directories there")
    drawn, (left, right) = plotting.figure(2, height=4.2)
    rows: list[dict[str, Any]] = []
    groups = recorded.of_equal_settings(found)
    looks = itertools.product(("-", "--", ":"), plotting.SERIES)
    for (name, group), (dashes, color) in track([*zip(groups.items(), looks)], "accounting"):
        curves = [curve(run, view) for run in group]
        rows += itertools.chain(*curves)
        # Runs of equal settings are tested after the same rounds, unless one was stopped.
        points = [*zip(*curves)]
        accuracies = [[row["accuracy"] for row in point] for point in points]
        for panel, what in ((left, "epsilon"), (right, "round")):
            x = [point[0][what] for point in points]
            panel.plot(
                x,
                [*map(fmean, accuracies)],
                dashes,
                marker=".",
                color=color,
                label=name if panel is left else None,
            )
            if len(group) > 1:
                panel.fill_between(
                    x, [*map(min, accuracies)], [*map(max, accuracies)], color=color, alpha=0.2, linewidth=0
                )
    delta = rows[0]["delta"]
    plotting.scale(left, "x", (row["epsilon"] for row in rows))
    left.set(xlabel=f"certified $\\varepsilon$ (nats) at $\\delta$ = {delta:g}, view {view!r}")
    left.set(ylabel="test accuracy", title="(3a, 3b) privacy and utility")
    right.set(xlabel="round", title="(4) accuracy by round")
    plotting.legend(drawn, 3)
    print(*plotting.save(drawn, out, rows))


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
