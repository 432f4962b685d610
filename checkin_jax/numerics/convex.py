"""Convex functions on the host: below points, between them, and laws that are above others. numpy float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkin_jax.kernels.round_off import UNIT

# Less than this, relatively, is rounding, or not worth a hull.
_CONVEX = 1e-9
# How often all points are looked at before they are one by one.
_PASSES = 8
# Numbers of a block that stays in the cache from one operation to the next.
_IN_CACHE = 1 << 15


def hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the corners of the largest convex function below the points, from the first to the last."""
    # All at once first: a point that is not below the chord of those beside it is no corner.
    left = np.arange(len(x))
    for _ in range(_PASSES):
        u, v = x[left], y[left]
        with np.errstate(invalid="ignore", over="ignore"):
            below = (v[1:-1] - v[:-2]) * (u[2:] - u[:-2]) < (v[2:] - v[:-2]) * (u[1:-1] - u[:-2])
        if below.all():
            return left
        left = left[np.concatenate([[True], below, [True]])]
    kept: list[int] = []
    # Lists: the loop goes point by point.
    u, v = x[left].tolist(), y[left].tolist()
    for i in range(len(u)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (v[b] - v[a]) * (u[i] - u[a]) < (v[i] - v[a]) * (u[b] - u[a]):
                break
            kept.pop()
        kept.append(i)
    return left[kept]


def highest(at_zero: np.ndarray, slopes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Which of the lines at_zero - slopes x is highest at each x, of any shape; the first one where several are."""
    places, some = np.ravel(x), max(_IN_CACHE // len(at_zero), 1)
    found = [
        np.argmax(at_zero - here[:, None] * slopes, axis=1)
        for here in (places[start : start + some] for start in range(0, len(places), some))
    ]
    return np.concatenate(found).reshape(np.shape(x))


def chords(losses: np.ndarray, upper: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Values at any `loss` >= losses[0] of the function that is linear in e^loss between knots, rounded up.

    Zero from the last of `losses` on: for a function that does not vanish there, ask for none beyond.
    """
    right = np.clip(np.searchsorted(losses, loss, side="right"), 1, len(losses) - 1)
    left = right - 1
    # (c_1 - c) / (c_1 - c_0), without the rounding of c.
    part = np.expm1(loss - losses[right]) / np.expm1(losses[left] - losses[right])
    value = upper[right] + (upper[left] - upper[right]) * np.maximum(part, 0.0)
    return np.where(loss >= losses[-1], 0.0, value * (1.0 + 1e-12))


def falling(
    x: np.ndarray,
    knots: np.ndarray,
    values: np.ndarray,
    left: float | None = None,
    right: float | None = None,
) -> np.ndarray:
    """np.interp of nonnegative values that fall, rounded up; infinite where it is not known.

    Its sums are good to a few roundings of the value before: where the next is smaller by sixteen orders it may come
    out below it, or below 0.
    """
    before = values[np.maximum(np.searchsorted(knots, x) - 1, 0)]
    with np.errstate(invalid="ignore"):  # knots that are infinite
        found = np.interp(x, knots, values, left=left, right=right) + 16.0 * UNIT * before
    return np.where(np.isnan(found), math.inf, found)


def lowered(losses: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on both profiles of a pair, lowered to what all of them say together; rounded up.

    H_c(P||Q) is convex in c > 0, and 1 - c + c H_{1/c}(Q||P) at c < 1 [docs/theory.md, section 2]: between any two
    losses chords are bounds. The least of several theorems need not be convex, and may fall faster at c = 1 than any
    pair's: a law made of it would have mass above one, every round again.

    Args:
      losses: increasing from 0. forward, backward: bounds on H(P||Q) and H(Q||P) at e^losses.

    Returns:
      Both at the same losses; the same arrays where they say nothing of each other.
    """
    at_one, above = min(float(forward[0]), float(backward[0])), np.expm1(losses)
    if not _bent(losses, forward, backward, at_one):
        return forward, backward
    # Profiles fall. Nothing cancels below where bounds do, too.
    forward, backward = (np.minimum.accumulate(np.minimum(upper, at_one)) for upper in (forward, backward))
    *corners, value_at_one = _both_corners(above, forward, backward)
    at_one = min(at_one, value_at_one)
    found = []
    for upper, beyond in zip((forward, backward), corners):
        corners = np.append(0, beyond)
        value = np.minimum(upper[corners], at_one)
        inside = np.append(chords(losses[corners], value, losses[:-1]), upper[-1])
        found.append(np.minimum.accumulate(np.minimum(upper, inside)))
    return found[0], found[1]


def _between(left: Any, at_left: Any, right: Any, at_right: Any) -> float:
    """The value at zero of the chord of two points, rounded up; all numbers, left < 0 < right, values >= 0."""
    return float((at_right * -left + at_left * right) / (right - left)) * (1.0 + 1e-12)


def _bent(losses: np.ndarray, forward: np.ndarray, backward: np.ndarray, at_one: float) -> bool:
    """Whether some chord is below these bounds by more than _CONVEX of them."""
    if max(float(forward[0]), float(backward[0])) > at_one * (1.0 + _CONVEX):
        return True
    gaps = np.diff(losses)
    falls = 0.0
    for upper in (forward, backward):
        with np.errstate(divide="ignore"):
            log_slopes = np.log(np.maximum(-np.diff(upper) / np.expm1(gaps), 0.0)) - losses[:-1]
        steepest = np.maximum.accumulate(log_slopes[::-1])[::-1]
        raised = upper[-1] + np.cumsum((np.exp(steepest + losses[:-1]) * np.expm1(gaps))[::-1])[::-1]
        if (raised > upper[:-1] * (1.0 + _CONVEX)).any():
            return True
        falls += (at_one - float(upper[1])) / math.expm1(float(losses[1]))
    return falls + at_one > 1.0 + _CONVEX


def full_hull(above: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest convex profile of a symmetric pair below bounds at c = 1 + above: knots c - 1 from 0 on, and values.

    The case of `lowered` with equal bounds, at its corners alone.

    Args:
      above: c - 1, increasing from 0. upper: bounds on the hockey-stick divergence there.
    """
    kept, _, at_one = _both_corners(above, upper, upper)
    return np.append(0.0, above[kept]), np.append(at_one, upper[kept])


def _both_corners(
    above: np.ndarray, forward: np.ndarray, backward: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """The largest convex function below a pair's profiles at all c > 0: its corners at c > 1, for P||Q and for Q||P.

    A bound f on the profile of Q||P at c is one of 1 - 1/c + f(c)/c on that of P||Q at 1/c, and lines stay lines.

    Args:
      above: c - 1, increasing from 0. forward, backward: bounds on both profiles there.

    Returns:
      The indices from 1 on of either's corners, and the value at c = 1.
    """
    x = np.concatenate([-above[:0:-1] / (1.0 + above[:0:-1]), above])
    mirrored = (above[:0:-1] + backward[:0:-1]) / (1.0 + above[:0:-1])
    y, size = np.concatenate([mirrored, forward]), len(above) - 1
    kept = hull(x, y)
    left, right = kept[kept < size], kept[kept > size]
    at_one = float(y[size])
    if size not in kept:
        at_one = _between(x[left[-1]], y[left[-1]], x[right[0]], y[right[0]])
    return right - size, size - left[::-1], at_one


def spread(
    values: np.ndarray, masses: np.ndarray, offsets: tuple[float, ...] = (), single: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """A law on few values under which no growing convex function has a smaller mean: chords are above it.

    Args:
      values, masses: of the law, positive. offsets: the values besides the least and the largest, in standard
        deviations from the mean. single: so many different values are kept as they are.
    """
    few, which = np.unique(values, return_inverse=True)
    low, high, total = float(few[0]), float(few[-1]), float(masses.sum())
    if few.size <= single:
        return few, np.bincount(which.ravel(), masses, few.size)
    if high - low <= 1e-12 * abs(high):
        return few[-1:], np.array([total])
    mean = float(masses @ values) / total
    deviation = float(np.sqrt(masses @ np.square(values - mean) / total))
    places = np.unique(np.clip(np.append([low, high], mean + deviation * np.array(offsets)), low, high))
    i = np.clip(np.searchsorted(places, values, side="right") - 1, 0, places.size - 2)
    # The mean rounded up.
    part = np.minimum((values - places[i]) / (places[i + 1] - places[i]) * (1.0 + 1e-12), 1.0)
    lower = np.bincount(i, masses * (1.0 - part), places.size)
    return places, lower + np.bincount(i + 1, masses * part, places.size)
