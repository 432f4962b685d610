"""Accuracy and epsilon of trained runs as a table in Markdown, runs of equal settings in one line with their spread.

    python train/mnist_curves.py --runs runs/curves --data-dir FOLDER_WITH_IDX_FILES --repeats 3
    python accountants/training_table.py --runs runs/curves

Reads config.json, metrics.jsonl and report.json of every folder under `runs`; one whose run has not ended is left out,
and named. Epsilons are upper ends from the reports, of all planned rounds where a run ended early.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from checkin_jax import _validate
from checkin_jax._rounding import up
from checkin_jax.cli.programs import program
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.recorded import RecordedRun

HEAD = (
    "runs of",
    "clients",
    "messages a round",
    "rounds",
    "runs",
    "accuracy: mean (least to most)",
    "epsilon, messages",
    "epsilon, aggregate",
)


def main(runs: Path) -> None:
    """Prints the table.

    Args:
      runs: Folder with run directories.
    """
    found = [recorded.read(path.parent) for path in sorted(runs.glob("*/config.json"))]
    equal = recorded.of_equal_settings(run for run in found if run.report is not None)
    if not equal:
        raise _validate.error("a folder with runs that have ended", runs=str(runs))
    print("| " + " | ".join(HEAD) + " |")
    print("| --- " * len(HEAD) + "|")
    for name, group in equal.items():
        print("| " + " | ".join(line(name, group)) + " |")
    for run in found:
        if run.report is None:
            print(f"\n{run.path.name} has not ended, after {run.rounds:,} rounds.")


def line(name: str, group: list[RecordedRun]) -> list[str]:
    """One line, of runs of equal settings."""
    reports = [run.report or {} for run in group]
    arrived = statistics.fmean(line["check_ins"] for run in group for line in run.metrics)
    rounds = sorted({run.rounds for run in group})
    accuracies = [report["accuracy"] for report in reports]
    accuracy = f"{statistics.fmean(accuracies):.1%}"
    if len(group) > 1:
        accuracy += f" ({min(accuracies):.1%} to {max(accuracies):.1%})"
    return [
        name,
        f"{group[0].run.protocol.num_clients:,}",
        f"{arrived:,.0f}",
        f"{rounds[0]:,}" + (f" to {rounds[-1]:,}" if len(rounds) > 1 else ""),
        str(len(group)),
        accuracy,
        *(up(most([report["epsilon"][view] for report in reports])) for view in ("messages", "aggregate")),
    ]


def most(epsilons: list[Any]) -> float:
    """The largest; one that JSON cannot hold is infinite."""
    return max(math.inf if epsilon is None else epsilon for epsilon in epsilons)


if __name__ == "__main__":
    program(main)
