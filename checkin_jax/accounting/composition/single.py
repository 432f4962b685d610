"""Brackets of one unit, which needs no composition: its profile is solved for epsilon."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from checkin_jax.accounting.bounds.unit import MAX_LOSS, Instance, UnitBound
from checkin_jax.accounting.composition.bracket import Bracket, ordered


def refine(crossed: Callable[[np.ndarray], np.ndarray], top: float, points: int = 32) -> tuple[float, float]:
    """(last loss not crossed, first crossed) of a monotone test, to 1e-9 of the answer; crossed(0) is False."""
    low, high = 0.0, top
    # Blocks of the kernels' size: a larger grid would cost more than another pass.
    grid = np.concatenate([[0.0], top * np.geomspace(1e-13, 1.0, points - 1)])
    for _ in range(12):
        hit = np.flatnonzero(crossed(grid))
        if hit.size:
            high, low = float(grid[hit[0]]), float(grid[max(hit[0] - 1, 0)])
        else:
            low = float(grid[-1])
        if high - low <= 1e-9 * high:
            break
        grid = np.linspace(low, high, points)
    return low, high


def single(one: UnitBound, delta: float, both: bool) -> Bracket:
    """One unit needs no composition: the profile itself is solved for epsilon."""
    # Followed far enough that nothing of this delta is beyond.
    top = min(one.top, MAX_LOSS)
    if float(one.upper(np.zeros(32))[0]) <= delta:
        return Bracket(0.0, 0.0, "profile")
    upper = refine(lambda grid: np.asarray(one.upper(grid)) <= delta, top)[1]
    if not float(one.upper(np.full(32, upper))[0]) <= delta:
        upper = math.inf  # not even the largest loss that is followed
    found = Bracket(0.0, upper, "profile")
    for instance in one.instances if both else ():
        for side in (0,) if instance.symmetric else (0, 1):
            test = functools.partial(_too_far, instance, side, delta)
            if not test(np.zeros(32))[0]:
                lower = refine(test, top)[0]
                if lower > found.lower:
                    found = dataclasses.replace(found, lower=lower, lower_method=instance.name)
    return ordered(found)


def _too_far(instance: Instance, side: int, delta: float, grid: np.ndarray) -> np.ndarray:
    """Whether the instance's line at each loss does not prove more than delta."""
    difference, far = instance.lower(grid)[side]
    return ~(np.asarray(difference) - np.expm1(grid) * np.asarray(far) > delta)
