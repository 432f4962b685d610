"""The result of the composition: both ends of epsilon, and their methods."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, Minimum, UnitBound, Witness, upper_sides

NO_WITNESS = "zero (no witness leaks more at this delta)"


@dataclasses.dataclass(frozen=True)
class Bracket:
    """lower <= epsilon <= upper, the methods of the ends, and the numerical part of the upper end's delta.

    bound: name of the bound of the upper end if it is not the units' own; else empty. names: for each unit, the bounds
    without which the upper end would be larger; empty if no unit was followed.
    """

    lower: float
    upper: float
    method: str
    lower_method: str = NO_WITNESS
    optimal_order: float | None = None
    numerical_error: float = 0.0
    bound: str = ""
    names: tuple[str, ...] = ()


def ordered(found: Bracket) -> Bracket:
    """The bracket, its lower end clipped to the upper one if rounding made them cross.

    Raises:
      ArithmeticError: the lower end is above the upper one by more than a relative 1e-6, so one of them is wrong.
    """
    if found.lower > found.upper * (1.0 + 1e-6) + 1e-15:
        raise ArithmeticError(
            f"lower={found.lower!r} is above upper={found.upper!r} ({found.method}): please report these settings"
        )
    return dataclasses.replace(found, lower=min(found.lower, found.upper))


def refine(
    crossed: Callable[[np.ndarray], np.ndarray], top: float, points: int = 32, start: float = 0.0
) -> tuple[float, float]:
    """(last loss not crossed, first crossed) of a monotone test, to a relative 1e-9; crossed(start) is False.

    The result does not depend on `start`. The search begins near a positive `start`, since new evaluations are slow.
    """
    low, high = 0.0, top
    # Blocks have the kernels' size: a larger grid costs more than another pass.
    rungs = np.concatenate([[0.0], top * np.geomspace(1e-13, 1.0, points - 1)])
    first = max(int(np.searchsorted(rungs, start, side="right")) - 1, 0)
    parts = [rungs] if first == 0 else [rungs[first : first + 3], rungs[min(first + 2, points - 1) :]]
    for _ in range(12 + len(parts)):
        grid = np.linspace(low, high, points)
        if parts:
            part = parts.pop(0)
            grid = np.pad(part, (0, points - part.size), mode="edge")
        hit = np.flatnonzero(crossed(grid))
        if hit.size:
            high, low, parts = float(grid[hit[0]]), float(grid[max(hit[0] - 1, 0)]), []
        else:
            low = float(grid[-1])
        if high - low <= 1e-9 * high:
            break
    return low, high


def single(one: UnitBound, delta: float, both: bool) -> Bracket:
    """Bracket of epsilon of one unit at this delta; a lower end of zero unless `both`."""
    # Mass beyond MAX_LOSS is far below any delta.
    top = min(one.largest_loss, MAX_LOSS)
    lower, method = _lower(one, delta, top) if both else (0.0, "")
    # No valid bound is below a witness; `ordered` raises for an invalid one.
    start = 0.99 * lower
    if start == 0.0 and float(one.upper(np.zeros(32))[0]) <= delta:
        return Bracket(0.0, 0.0, "one unit")
    upper = refine(_Crossed(one, delta), top, start=start)[1]
    at = np.full(32, upper)
    if not float(one.upper(at)[0]) <= delta:
        upper = math.inf  # the bound exceeds delta at the largest loss that is followed
    found = Bracket(0.0, upper, "one unit", names=(name_at(one, at),))
    if lower > 0.0:
        found = dataclasses.replace(found, lower=lower, lower_method=method)
    return ordered(found)


class _Crossed:
    """Test whether a bound is at most delta; of a minimum only bounds that may be so below the first crossing.

    Bounds are nonincreasing: one above delta there, in both directions, is above delta at every smaller loss.
    """

    def __init__(self, one: UnitBound, delta: float) -> None:
        self.bounds = one.bounds if isinstance(one, Minimum) else (one,)
        self.delta = delta

    def __call__(self, grid: np.ndarray) -> np.ndarray:
        values = np.stack([np.stack([*map(np.asarray, upper_sides(each, grid))]) for each in self.bounds])
        crossed = np.asarray(values.min(axis=0).max(axis=0) <= self.delta)
        if crossed.any():
            least = values[:, :, int(np.argmax(crossed))].min(axis=1)
            self.bounds = tuple(each for each, value in zip(self.bounds, least) if not value > self.delta)
        return crossed


def name_at(one: UnitBound, at: np.ndarray) -> str:
    """Name of the bound that is smallest at the upper end, in either direction."""
    return one.named(one.smallest(at), at) if isinstance(one, Minimum) else one.name


def _lower(one: UnitBound, delta: float, top: float) -> tuple[float, str]:
    """Largest loss up to which a witness has a divergence above delta, and its name; zero if there is none."""
    best, method = 0.0, ""
    for witness in one.witnesses:
        for side in (0,) if witness.symmetric else (0, 1):
            test = functools.partial(_too_far, witness, side, delta)
            if not test(np.zeros(32))[0]:
                lower = refine(test, top)[0]
                if lower > best:
                    best, method = lower, witness.name
    return best, method


def _too_far(witness: Witness, side: int, delta: float, grid: np.ndarray) -> np.ndarray:
    """True at losses where the witness's event does not show a divergence above delta."""
    difference, far = witness.lower(grid)[side]
    return ~(np.asarray(difference) - np.expm1(grid) * np.asarray(far) > delta)
