"""Accuracy against epsilon over a run, in every view, at its evaluations."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from checkin_jax._rounding import up
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import AccountFn, every_view
from checkin_jax.training.run import PrivateRun


class SpentEnds(NamedTuple):
    """Lower and upper end of epsilon in one view."""

    lower: float
    epsilon: float


@dataclasses.dataclass(frozen=True)
class Point:
    """An evaluated round, with both ends of epsilon by view, over all rounds begun by then."""

    round: int
    accuracy: float
    spent: dict[str, SpentEnds]


def points(
    run: PrivateRun,
    metrics: Sequence[Mapping[str, Any]],
    count: int,
    known: Mapping[CheckInProtocol, dict[str, Guarantee]],
    account_fn: AccountFn = account,
) -> list[Point]:
    """Evaluations in metrics.jsonl whose lines have the spent epsilon.

    If no line has it, `count` evaluations are accounted for, evenly over the rounds and including the last.
    Each takes the tight bounds of all views, which is seconds for a new setting. Looking at many models of a
    run costs no more than its last guarantee, which covers all of them.

    Args:
      count: number of evaluations to account for.
      known: `every_view` of protocols that were accounted for before.
      account_fn: the accountant.
    """
    evaluated = [line for line in metrics if "accuracy" in line]
    if recorded := [line for line in evaluated if "spent" in line and "spent_lower" in line]:
        return [Point(line["round"], line["accuracy"], _recorded(line)) for line in recorded]
    out, known = [], dict(known)
    few = np.linspace(0, len(evaluated) - 1, count) if evaluated else ()
    for i in sorted({round(i) for i in few}):
        line = evaluated[i]
        protocol = run.schedule.so_far(line["round"])
        if protocol not in known:
            known[protocol] = every_view(run, protocol, account_fn=account_fn)
        spent = {view: SpentEnds(g.lower, g.epsilon) for view, g in known[protocol].items()}
        out.append(Point(line["round"], line["accuracy"], spent))
    return out


def _recorded(line: Mapping[str, Any]) -> dict[str, SpentEnds]:
    """Ends by view; null means infinite."""
    both = {view: (line["spent_lower"][view], line["spent"][view]) for view in VIEWS}
    return {view: SpentEnds(*(np.inf if end is None else end for end in ends)) for view, ends in both.items()}


def table(traced: Sequence[Point]) -> str:
    """One line of text per point: round, accuracy, and epsilon in every view."""
    head = f"{'round':>9} {'accuracy':>9}" + "".join(f"{'epsilon, ' + view:>20}" for view in VIEWS)
    rows = [
        f"{point.round:>9,} {point.accuracy:>9.2%}"
        + "".join(f"{up(point.spent[view].epsilon, 5):>20}" for view in VIEWS)
        for point in traced
    ]
    return "\n".join([head, *rows])


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
    words = [group[0].run.randomizer.words for group in groups]
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
            "lower": line["epsilon_lower"],
            "epsilon": math.inf if line["epsilon"] is None else line["epsilon"],
            "delta": run.run.delta,
            "method": line.get("method"),
        }
        for line in lines
    ]
