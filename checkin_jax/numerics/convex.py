"""Convex functions in NumPy float64: hulls, chords, convex profiles, and laws above others in
convex order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkin_jax.kernels.elementary import UNIT

# Relative differences below this are treated as rounding.
_CONVEX = 1e-9
# Numbers in one block; a block fits into the CPU cache.
_IN_CACHE = 1 << 15


def hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the corners of the lower convex hull of the points, from the first to the last."""
    kept: list[int] = []
    u, v = x.tolist(), y.tolist()
    for i in range(len(u)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (v[b] - v[a]) * (u[i] - u[a]) < (v[i] - v[a]) * (u[b] - u[a]):
                break
            kept.pop()
        kept.append(i)
    return np.array(kept)


def highest(at_zero: np.ndarray, slopes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Index of the highest of the lines at_zero - slopes x at each x (any shape); the first one in a tie."""
    places, some = np.ravel(x), max(_IN_CACHE // len(at_zero), 1)
    found = [
        np.argmax(at_zero - here[:, None] * slopes, axis=1)
        for here in (places[start : start + some] for start in range(0, len(places), some))
    ]
    return np.concatenate(found).reshape(np.shape(x))


def best_event(apart: np.ndarray, mass: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P(A) - Q(A), Q(A)) of the event A with the largest P(A) - c Q(A) at c = e^loss, the empty event among them.

    apart, mass: P(A) - Q(A) and Q(A) of the other events; [events]. loss: in nats, any shape, that of both results.
    """
    apart, mass = np.append(apart, 0.0), np.append(mass, 0.0)
    at = highest(apart, mass, np.expm1(loss))
    return apart[at], mass[at]


def chords(losses: np.ndarray, upper: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Values at `loss` >= losses[0] of the function that is linear in e^loss between knots, rounded up.

    Zero from losses[-1] on: evaluate a function that does not vanish there only below that knot.
    """
    right = np.clip(np.searchsorted(losses, loss, side="right"), 1, len(losses) - 1)
    left = right - 1
    # (c_1 - c) / (c_1 - c_0), without rounding c.
    part = np.expm1(loss - losses[right]) / np.expm1(losses[left] - losses[right])
    value = upper[right] + (upper[left] - upper[right]) * np.maximum(part, 0.0)
    return np.where(loss >= losses[-1], 0.0, value * (1.0 + 1e-12))


def held_chords(losses: np.ndarray, upper: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """`chords` of a function that keeps its last value from losses[-1] on."""
    value = chords(losses, upper, np.minimum(loss, losses[-1]))
    return np.where(loss >= losses[-1], upper[-1], value)


def falling(
    x: np.ndarray,
    knots: np.ndarray,
    values: np.ndarray,
    left: float | None = None,
) -> np.ndarray:
    """np.interp of nonnegative decreasing values, rounded up; infinity where np.interp gives NaN.

    The rounding allowance is relative to the left knot's value: where the right one is sixteen orders
    smaller, the inputs' own rounding may leave a value below the right one, or below 0.
    """
    before = values[np.maximum(np.searchsorted(knots, x) - 1, 0)]
    with np.errstate(invalid="ignore"):  # infinite knots
        found = np.interp(x, knots, values, left=left) + 16.0 * UNIT * before
    return np.where(np.isnan(found), math.inf, found)


def lowered(losses: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds on both profiles of a pair, lowered by convexity of the divergences; rounded up.

    H_c(P||Q) is convex in c > 0, and equals 1 - c + c H_{1/c}(Q||P) for c < 1 [docs/theory.md, section 2]:
    chords between any two losses are bounds. The minimum of several theorems need not be convex, and may fall
    faster at c = 1 than the profile of any pair. A loss distribution built from such a minimum would have
    total mass above one.

    Args:
      losses: increasing from 0. forward, backward: upper bounds on H(P||Q) and H(Q||P) at e^losses.

    Returns:
      Both bounds at the same losses; the arguments themselves where convexity gives nothing.
    """
    at_one, above = min(float(forward[0]), float(backward[0])), np.expm1(losses)
    if not _bent(losses, forward, backward, at_one):
        return forward, backward
    # Profiles decrease. Decreasing bounds keep the differences below free of cancellation.
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
    """Value at zero of the chord of two points, rounded up; left < 0 < right, values >= 0."""
    return float((at_right * -left + at_left * right) / (right - left)) * (1.0 + 1e-12)


def _bent(losses: np.ndarray, forward: np.ndarray, backward: np.ndarray, at_one: float) -> bool:
    """True if some chord is below the bounds by more than a relative _CONVEX."""
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
    """Largest convex profile of a symmetric pair below bounds at c = 1 + above: knots c - 1, and values.

    The corners of `lowered` for equal bounds.

    Args:
      above: c - 1, increasing from 0. upper: bounds on the hockey-stick divergence there.
    """
    kept, _, at_one = _both_corners(above, upper, upper)
    return np.append(0.0, above[kept]), np.append(at_one, upper[kept])


def _both_corners(
    above: np.ndarray, forward: np.ndarray, backward: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Corners at c > 1 of the largest convex function below both profiles of a pair, for P||Q and for Q||P.

    A bound f on the profile of Q||P at c gives 1 - 1/c + f(c)/c on that of P||Q at 1/c. The map preserves
    lines.

    Args:
      above: c - 1, increasing from 0. forward, backward: bounds on both profiles there.

    Returns:
      Indices (from 1 on) of the corners of each profile, and the value at c = 1.
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
    """A law on few values that gives every increasing convex function at least its mean under the given law.

    Args:
      values, masses: of the given law, positive. offsets: the new values besides the least and the largest,
        in standard deviations from the mean. single: laws on at most this many values are returned unchanged.
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
    # The mean is rounded up.
    part = np.minimum((values - places[i]) / (places[i + 1] - places[i]) * (1.0 + 1e-12), 1.0)
    lower = np.bincount(i, masses * (1.0 - part), places.size)
    return places, lower + np.bincount(i + 1, masses * part, places.size)
