"""Evaluations of runs: accuracy, and epsilon as the runs recorded it."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.recorded import RecordedRun


def rows(runs: Path) -> list[dict[str, Any]]:
    """Evaluations with figures of privacy of every run directory in a folder, as the runs wrote them.

    Returns:
      A row an evaluation, runs of equal settings together: setting (in words, no two settings alike), run, dataset,
      round, accuracy, view, lower, epsilon (infinite where null), delta, method.

    Raises:
      ValueError: no run with such an evaluation there, or a damaged file. OSError: one cannot be read.
    """
    found = [recorded.read(path.parent) for path in sorted(runs.glob("*/metrics.jsonl"))]
    groups = [*recorded.of_equal_settings(found).values()]
    told = [
        {"setting": words, **evaluation}
        for words, group in zip(_in_words(groups), groups)
        for run in group
        for evaluation in _evaluations(run)
    ]
    if not told:
        raise ValueError(f"{runs}: expected run directories that evaluated accuracy and epsilon")
    return told


def _in_words(groups: Sequence[Sequence[RecordedRun]]) -> list[str]:
    """Words for each setting: its messages, then its clients, then a number, where these tell it from others."""
    words = [group[0].run.randomizer.description for group in groups]
    for more in (
        lambda i: f"{groups[i][0].run.protocol.num_clients:,} clients",
        lambda i: f"setting {i + 1}",
    ):
        count = collections.Counter(words)
        words = [f"{each}, {more(i)}" if count[each] > 1 else each for i, each in enumerate(words)]
    return words


def _evaluations(run: RecordedRun) -> list[dict[str, Any]]:
    lines = [line for line in run.metrics if "epsilon" in line and "accuracy" in line]
    return [
        {
            "run": run.path.name,
            "dataset": run.about.get("dataset"),
            "round": line["round"],
            "accuracy": line["accuracy"],
            "view": line.get("view", "messages"),
            **{
                end: math.inf if line[name] is None else line[name]
                for end, name in (("lower", "epsilon_lower"), ("epsilon", "epsilon"))
            },
            "delta": run.run.delta,
            "method": line.get("method"),
        }
        for line in lines
    ]
