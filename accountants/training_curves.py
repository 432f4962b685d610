"""Figures 3a, 3b and 4 of the shuffled check-in paper from run directories: accuracy by epsilon and by rounds.

    python accountants/training_curves.py --runs runs/curves --out curves.png

Reads config.json and metrics.jsonl of every folder under `runs` (see train/mnist_curves.py). Epsilon is certified and
that of the run's report: as the run wrote it in view "messages", accounted for from its configuration in "aggregate".
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.progress import track

from checkin_jax import plotting
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.report import guarantee


def main(runs: Path, out: Path, view: Literal["messages", "aggregate"] = "messages") -> None:
    """Draws every run's curves and writes a CSV of the same name.

    Args:
      runs: Folder with run directories.
      out: Picture to write, .png or .svg.
      view: What the adversary sees.
    """
    plotting.check(out)
    folders = sorted(path.parent for path in runs.glob("*/metrics.jsonl"))
    if not folders:
        raise SystemExit(f"runs={str(runs)!r}: no run directories there")
    drawn, (left, right) = plotting.figure(2, height=4.2)
    rows: list[dict[str, Any]] = []
    colored = [*zip(folders, (color for _ in folders for color in plotting.SERIES))]
    for folder, color in track(colored, "accounting"):
        curve = read(folder, view)
        rows += curve
        accuracy = [row["accuracy"] for row in curve]
        left.plot([row["epsilon"] for row in curve], accuracy, ".-", color=color, label=folder.name)
        right.plot([row["round"] for row in curve], accuracy, ".-", color=color)
    delta = rows[0]["delta"]
    left.set(xscale="log", xlabel=f"certified $\\varepsilon$ (nats) at $\\delta$ = {delta:g}, view {view!r}")
    left.set(ylabel="test accuracy", title="(3a, 3b) privacy and utility")
    right.set(xlabel="round", title="(4) accuracy by round")
    plotting.legend(drawn, 3)
    print(*plotting.save(drawn, out, rows))


def read(folder: Path, view: str) -> list[dict[str, Any]]:
    """One row for each evaluation of a run that has figures of privacy."""
    run = recorded.read(folder)
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
                "run": folder.name,
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
    tyro.cli(main)
