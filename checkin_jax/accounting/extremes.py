"""Upper ends at extreme settings: each theorem composed separately, and Renyi moments.

`account` composes the pointwise minimum of all bounds, on knots for all of them. At deltas near the end of float64, at
epsilons near zero, and beyond the largest loss that is followed, knots for a single bound may be better; and moments
are, but not at epsilons near zero.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Protocol

from checkin_jax.accounting.bounds.select import BEST, Chosen, WholeRun, applying
from checkin_jax.accounting.composition import compose, renyi
from checkin_jax.accounting.composition.bracket import Bracket, ordered
from checkin_jax.protocols import REPLACE

# Below these, deltas and epsilons are extreme.
_DELTA, _EPSILON = 1e-100, 1e-5


class Alone(Protocol):
    """A run by some rows of the table only."""

    def __call__(self, *, bounds: str | tuple[str, ...]) -> WholeRun: ...


def extreme(found: Bracket, delta: float) -> bool:
    """True if the composed minimum of all bounds may be above a single bound by more than rounding."""
    if found.lower == math.inf:
        return False
    return delta < _DELTA or not math.isfinite(found.upper) or 0.0 < found.upper < _EPSILON


def smallest(
    found: Bracket, run: WholeRun, delta: float, bounds: str | tuple[str, ...], alone: Alone
) -> tuple[Bracket, list[Chosen]]:
    """The bracket with the smallest upper end, and the bounds behind it if it is not `found`.

    Args:
      found: the bracket by the minimum of all bounds; it is returned unless it is extreme and these are the best.
      run: the run of `found`. bounds: as in `account`. alone: the same run by some rows of the table only.

    Raises:
      ArithmeticError: an upper end is below the lower one, a defect of this package.
    """
    rests: list[Chosen] = []
    if bounds != BEST or not extreme(found, delta):
        return found, rests
    others = _one_by_one(run, delta, alone)
    if delta < _DELTA or not found.upper < _EPSILON:
        others = itertools.chain(others, _by_moments(run, delta))
    for other, chosen in others:
        if other.upper < found.upper:
            found = ordered(dataclasses.replace(other, lower=found.lower, lower_method=found.lower_method))
            rests = chosen
    return found, rests


def _one_by_one(run: WholeRun, delta: float, alone: Alone) -> Iterator[tuple[Bracket, list[Chosen]]]:
    """Upper ends by each row of the table that applies to all units."""
    for row in applying(each.unit for kinds in run.chosen for each in kinds):
        one = alone(bounds=row.labels[:1] or (row.word,))
        chosen = [each for kinds in one.chosen for each in kinds]
        yield compose.upper_end(one.units, delta, one.local_caps), chosen


def _by_moments(run: WholeRun, delta: float) -> Iterator[tuple[Bracket, list[Chosen]]]:
    """The upper end by Renyi moments of a run of equal units, if any are known."""
    first = run.chosen[0][0]
    single = len(run.units) == 1 and first.unit.protocol.num_units == run.units[0][1]
    if not single or first.unit.relation != REPLACE:
        return
    try:
        curve = renyi.unit_curve(first.unit.protocol, first.unit.randomizer, first.unit.view)
    except TypeError:  # no moments are known of such messages
        return
    epsilon, order, name = curve.best(delta)
    rows = tuple(row for row in applying([first.unit]) if row.word in name.split())
    found = Bracket(0.0, epsilon, "RDP", optimal_order=order, bound="" if rows else name, names=(name,))
    yield found, [first._replace(rows=rows)]
