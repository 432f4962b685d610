"""Figures 3a, 3b and 4 of the shuffled check-in paper from run directories: accuracy by epsilon and by rounds.

    python accountants/training_curves.py --runs runs/curves --out curves.png

Reads config.json and metrics.jsonl of every folder under `runs` (see train/mnist_curves.py). Epsilon is certified: as
the run wrote it in view "messages", accounted for from the run's own configuration in view "aggregate".
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import tyro

import checkin_jax as cj
from checkin_jax import plotting

RANDOMIZERS = {"PureLDP": cj.PureLDP, "Gaussian": cj.Gaussian}


def main(runs: Path, out: Path, view: Literal["messages", "aggregate"] = "messages") -> None:
    """Draws every run's curves and writes a CSV of the same name.

    Args:
      runs: Folder with run directories.
      out: Picture to write, .png or .svg.
      view: What the adversary sees.
    """
    folders = sorted(path.parent for path in runs.glob("*/metrics.jsonl"))
    if not folders:
        raise SystemExit(f"runs={str(runs)!r}: no run directories there")
    drawn, (left, right) = plotting.figure(2, height=4.2)
    rows: list[dict[str, Any]] = []
    for folder, color in zip(folders, (color for _ in folders for color in plotting.SERIES)):
        curve = read(folder, view)
        rows += curve
        accuracy = [row["accuracy"] for row in curve]
        left.plot([row["epsilon"] for row in curve], accuracy, ".-", color=color, label=folder.name)
        right.plot([row["round"] for row in curve], accuracy, ".-", color=color)
    delta = rows[0]["delta"]
    left.set(xscale="log", xlabel=f"certified $\\varepsilon$ at $\\delta$ = {delta:g}, view {view!r}")
    left.set(ylabel="test accuracy", title="(3a, 3b) privacy and utility")
    right.set(xlabel="round", title="(4) accuracy by round")
    plotting.legend(drawn, 3)
    print(*plotting.save(drawn, out, rows))


def read(folder: Path, view: str) -> list[dict[str, Any]]:
    """One row for each evaluation of a run."""
    config = json.loads((folder / "config.json").read_text())
    protocol = {key: value for key, value in config["protocol"].items() if key != "kind"}
    randomizer = dict(config["randomizer"])
    noise = RANDOMIZERS[randomizer.pop("kind")](**randomizer)
    rows = []
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        if "accuracy" in line:
            lower, upper = line["epsilon_lower"], line["epsilon"]
            if view == "aggregate":
                run = cj.ShuffledCheckIn(**{**protocol, "num_rounds": line["round"]})
                g = cj.account(run, noise, delta=config["delta"], view=view)
                lower, upper = g.lower, g.epsilon
            rows.append(
                {
                    "run": folder.name,
                    "dataset": config["dataset"],
                    "round": line["round"],
                    "accuracy": line["accuracy"],
                    "view": view,
                    "lower": lower,
                    "epsilon": upper if upper is not None else math.inf,
                    "delta": config["delta"],
                }
            )
    return rows


if __name__ == "__main__":
    tyro.cli(main)
