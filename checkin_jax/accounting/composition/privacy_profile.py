"""The privacy profile of a run from both sides: delta as a function of epsilon.

H_c(P||Q), c = e^loss, is the hockey-stick divergence of the view's laws under two neighboring data sets. It is bounded
from above for every pair, in both orders, and from below by concrete pairs. A profile is convex in c and nonincreasing.
So chords between upper bounds are upper bounds, and a lower bound holds at every smaller loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, Exact, UnitBound, Witness, upper_sides
from checkin_jax.accounting.composition import compose, local_view
from checkin_jax.accounting.composition.bracket import Bracket, refine
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import composed_contour
from checkin_jax.kernels.composition.composed_contour import Composed
from checkin_jax.kernels.execution.devices import float64

# Points of the common grid; points at which a single profile is evaluated (a multiple of 32 losses).
_POINTS, _EVALUATED = 16384, 2048
# The grid ends where the profile is below this part of delta.
_FAR = 1e-3
# Units with smaller losses add up, as in `compose`.
_TINY = 1e-9
# Least length of the grid, of profiles that are far below delta at loss 0 already.
_SHORTEST = 1e-9
# Relative rounding, upwards, of the few operations after certified values.
_SLACK = 1e-13


@dataclasses.dataclass(frozen=True)
class Sides:
    """H(P||Q) and H(Q||P) at the grid's losses."""

    forward: np.ndarray
    backward: np.ndarray


@dataclasses.dataclass(frozen=True)
class Curve:
    """A run's privacy profile on a grid.

    Attributes:
      losses: nats, increasing from 0; [points].
      upper: upper bounds for every pair, as P||Q and Q||P, or exchanged; chords in e^loss between points.
      lower: lower bounds of concrete pairs; between points the value at the larger loss.
      largest_loss: largest loss of the composition; may be infinite.
    """

    losses: np.ndarray
    upper: Sides
    lower: tuple[Sides, ...]
    largest_loss: float


def curve(
    units: Sequence[tuple[UnitBound, int]],
    delta: float,
    found: Bracket,
    local_caps: Sequence[tuple[Exact, int]] = (),
    both: bool = True,
) -> Curve:
    """The profile of the composed units, for losses from 0 to where it is far below delta.

    Args:
      units, delta, local_caps: as of `compose.bracket`; delta in [1e-300, 1).
      found: its bracket for them, which becomes part of the curve; at loss 0 it changes nothing.
      both: True to include lower bounds of concrete pairs.
    """
    with float64():
        units = [(one, count) for one, count in units if one.largest_loss > 0 and count > 0]
        tiny = math.fsum(one.largest_loss * count for one, count in units if one.largest_loss < _TINY) * (
            1.0 + 1e-12
        )
        units = [(one, count) for one, count in units if one.largest_loss >= _TINY]
        top = (math.fsum(one.largest_loss * count for one, count in units) + tiny) * (1.0 + 1e-12)
        losses, upper, lower = _evaluated(units, delta, found, both)
        above = [_shifted(losses, each, tiny) for each in (upper.forward, upper.backward)]
        for one, count in local_caps:
            if len(local_caps) == 1 and not local_view.surely_above(one, count, 0.0, float(above[0][0])):
                known = local_view.profile_of(one, count, delta)
                if known is not None:
                    above = [np.minimum(each, _sampled(known.upper, losses)) for each in above]
        above = [np.minimum(each, _pure(top, losses)) for each in above]
        above = [np.where(losses >= found.upper, np.minimum(each, delta), each) for each in above]
        above = [np.minimum.accumulate(np.clip(each * (1.0 + _SLACK), 0.0, 1.0)) for each in above]
        # The lower end: a pair of which one point is known.
        point = np.where(losses <= found.lower, delta if found.lower > 0 else 0.0, 0.0)
        below = (*lower, Sides(point, np.zeros_like(point)))
        return Curve(losses, Sides(*above), tuple(_ordered(each, above) for each in below), top)


def _evaluated(
    units: Sequence[tuple[UnitBound, int]], delta: float, found: Bracket, both: bool
) -> tuple[np.ndarray, Sides, tuple[Sides, ...]]:
    """Grid, upper and lower profiles on it, by the methods of the bracket."""
    if not units:
        losses = np.linspace(0.0, max(found.upper, _SHORTEST), 32)
        zero = np.zeros_like(losses)
        return losses, Sides(zero, zero), ()
    first, total = units[0][0], sum(count for _, count in units)
    if total == 1:
        return _single(first, delta, both)
    if all(one == first for one, _ in units):
        known = local_view.profile_of(first, total, delta)
        if known is not None:
            end = refine(lambda grid: known.upper(grid) <= _FAR * delta, known.largest_loss, 8)[1]
            losses = np.linspace(0.0, min(max(end, _SHORTEST), MAX_LOSS), _EVALUATED)
            above, below = (np.asarray(each(losses)) for each in (known.upper, known.lower))
            return losses, Sides(above, above), (Sides(below, below),)
    above, below = compose.laws(units, delta, both)
    losses = _grid(above, delta, found)

    def side(laws: Sequence[Composed], upper: bool) -> np.ndarray:
        """The best of the bounds, upper or lower, and 1 or 0 at least."""
        best = np.full_like(losses, 1.0 if upper else 0.0)
        for each in laws:
            value = np.asarray(composed_contour.on_grid(each, losses[1], losses.size, np.asarray(upper)))
            best = np.minimum(best, np.maximum(value, 0.0)) if upper else np.maximum(best, value)
        return best

    upper = Sides(*(side(laws, True) for laws in above))
    return losses, upper, tuple(Sides(*(side(laws, False) for laws in each)) for each in below)


def _single(one: UnitBound, delta: float, both: bool) -> tuple[np.ndarray, Sides, tuple[Sides, ...]]:
    end = refine(lambda grid: np.asarray(one.upper(grid)) <= _FAR * delta, min(one.largest_loss, MAX_LOSS))[1]
    end = max(end, min(one.largest_loss, _SHORTEST))
    at, losses = np.linspace(0.0, end, _EVALUATED), np.linspace(0.0, end, _POINTS)
    upper = Sides(*(_chords(at, np.asarray(side, dtype=np.float64), losses) for side in upper_sides(one, at)))
    return losses, upper, tuple(_lines(each, at, losses) for each in one.witnesses if both)


def _lines(witness: Witness, at: np.ndarray, losses: np.ndarray) -> Sides:
    """Lower profile by the events on either side of every loss: P(A) - c Q(A) is below the profile at every c."""
    right = np.clip(np.searchsorted(at, losses, side="left"), 1, at.size - 1)

    def side(difference: np.ndarray, far: np.ndarray) -> np.ndarray:
        lines = [difference[i] - np.expm1(losses) * far[i] for i in (right - 1, right)]
        return np.nan_to_num(np.maximum(*lines), nan=0.0)

    forward, backward = (side(*map(np.asarray, lines)) for lines in witness.lower(at))
    return Sides(forward, backward)


def _grid(above: compose.Directions, delta: float, found: Bracket) -> np.ndarray:
    """Losses from 0 to where all profiles are far below delta, or as far as they are known."""
    target, ends = host(math.log(_FAR * delta)), [0.0]
    for laws in above:
        known = [float(composed_contour.end(each, target, np.asarray(True))[0]) for each in laws]
        farthest = [float(composed_contour.farthest(each.tilt)) for each in laws]
        ends.append(min(filter(math.isfinite, known), default=max(farthest, default=0.0)))
    if math.isfinite(found.upper):
        ends.append(found.upper * (1.0 + 1e-9))
    step = min(max(*ends, _SHORTEST), MAX_LOSS) / (_POINTS - 1)
    return step * np.arange(_POINTS, dtype=np.float64)


def _chords(at: np.ndarray, value: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Interpolation linear in e^loss between the points, constant beyond them."""
    right = np.clip(np.searchsorted(at, losses, side="right"), 1, at.size - 1)
    left = right - 1
    gap = np.maximum(at[right] - at[left], 1e-300)
    inside = np.clip(losses, at[left], at[right]) - at[left]
    share = np.exp(inside - gap) * np.expm1(-inside) / np.expm1(-gap)
    return value[left] + (value[right] - value[left]) * np.clip(share, 0.0, 1.0)


def _sampled(profile: Callable[[np.ndarray], np.ndarray], losses: np.ndarray) -> np.ndarray:
    """Upper bounds at the losses: the profile at some of them, with chords in between."""
    at = np.linspace(0.0, float(losses[-1]), _EVALUATED)
    return _chords(at, np.asarray(profile(at)), losses)


def _pure(top: float, losses: np.ndarray) -> np.ndarray:
    """The profile of randomized response with this largest loss, which is above every profile with it."""
    if top >= MAX_LOSS:
        return np.ones_like(losses)
    return np.maximum(-np.expm1(losses - top), 0.0) / (1.0 + math.exp(-top))


def _shifted(losses: np.ndarray, value: np.ndarray, tiny: float) -> np.ndarray:
    """The profile after adding units with losses of `tiny` in all, which shift it by as much."""
    if tiny == 0.0:
        return value
    return np.where(losses >= tiny, _chords(losses + tiny, value, losses), 1.0)


def _ordered(lower: Sides, upper: Sequence[np.ndarray]) -> Sides:
    """The lower profile made nonincreasing, rounded down, and clipped to the upper one.

    Raises:
      ArithmeticError: it exceeds the upper profile by more than rounding, a defect of this package.
    """
    most = np.maximum(*upper)
    found = []
    for value in (lower.forward, lower.backward):
        value = np.maximum.accumulate(np.maximum(value * (1.0 - _SLACK), 0.0)[::-1])[::-1]
        if np.any(value > most * (1.0 + 1e-6) + 1e-9):
            raise ArithmeticError("a lower profile is above the upper one: please report these settings")
        found.append(np.minimum(value, most))
    return Sides(*found)
