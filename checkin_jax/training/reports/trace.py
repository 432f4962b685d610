"""Accuracy against epsilon in every view, over a run: what its evaluations cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checkin_jax._rounding import up
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import VIEWS, Guarantee
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.reports.report import AccountFn, every_view
from checkin_jax.training.run import PrivateRun


@dataclasses.dataclass(frozen=True)
class Point:
    """An evaluated round, and the guarantees of all views over what had begun by then."""

    round: int
    accuracy: float
    guarantees: dict[str, Guarantee]


def points(
    run: PrivateRun,
    metrics: Sequence[Mapping[str, Any]],
    count: int,
    known: Mapping[CheckInProtocol, dict[str, Guarantee]],
    account_fn: AccountFn = account,
) -> list[Point]:
    """A few of the evaluations in the lines of metrics.jsonl, evenly over the rounds, the last among them.

    Every point takes the tight bounds of all views, seconds where a setting is new. Looking at many of a run's models
    costs no more than its last guarantee, which covers them all.

    Args:
      known: `every_view` of what was accounted for already.
      account_fn: the accountant.
    """
    evaluated = [line for line in metrics if "accuracy" in line]
    if not evaluated:
        return []
    out, known = [], dict(known)
    for i in sorted({round(i) for i in np.linspace(0, len(evaluated) - 1, count)}):
        line = evaluated[i]
        protocol = run.schedule.so_far(line["round"])
        if protocol not in known:
            known[protocol] = every_view(run, protocol, account_fn=account_fn)
        out.append(Point(line["round"], line["accuracy"], known[protocol]))
    return out


def table(traced: Sequence[Point]) -> str:
    """The points as lines of text, one each: round, accuracy, and epsilon in every view."""
    head = f"{'round':>9} {'accuracy':>9}" + "".join(f"{'epsilon, ' + view:>20}" for view in VIEWS)
    rows = [
        f"{point.round:>9,} {point.accuracy:>9.2%}"
        + "".join(f"{up(point.guarantees[view].epsilon, 5):>20}" for view in VIEWS)
        for point in traced
    ]
    return "\n".join([head, *rows])
