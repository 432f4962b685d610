"""Lattice laws above and below a lognormal variable L = e^{mu x - mu^2/2}, x ~ N(0, 1), in convex order.

With `shared`, laws above both e^{mu x/2 - mu^2/8} (half the shift) and (1 + L)/2 (the whole shift with
probability 1/2). Proofs: docs/theory_allocation.md. NumPy float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from checkin_jax.kernels import gaussian_profile
from checkin_jax.kernels.round_off import UNIT
from checkin_jax.numerics import convex

# Relative error of time values and of sums of their differences, with a wide margin, in units of the largest
# value.
_SLACK = 8e-12


def time_value(mu: float, level: np.ndarray, shared: bool = False) -> np.ndarray:
    """E(L - t)_+ for t >= 1 and E(t - L)_+ for 0 <= t < 1, to 1e-12. The maximum is at t = 1.

    shared: the larger value of the two laws of `shared`. Both have mean one, so this is a stop-loss transform
    as well.
    """
    t = np.asarray(level, dtype=np.float64)
    if shared:
        return np.maximum(time_value(0.5 * mu, t), 0.5 * time_value(mu, np.maximum(2.0 * t - 1.0, 0.0)))
    log_value = gaussian_profile.log_profile(mu, np.abs(np.log(np.where(t > 0, t, 1.0))))
    value = np.exp(np.where(np.isnan(log_value), -np.inf, log_value))
    return np.where(t > 0, value * np.minimum(t, 1.0), 0.0)


class LatticeLaw(NamedTuple):
    """A lattice law near that of L: masses at start + i * spacing, i = 0, 1, ...

    below, above: bounds on the mean excess beyond the two ends, from above in `law_upper` and from below in
    `law_lower`.
    slack: the convex order holds after a shift of L by at most this.
    """

    start: float
    spacing: float
    masses: np.ndarray
    below: float
    above: float
    slack: float


def _levels(low: float, high: float, spacing: float) -> tuple[float, np.ndarray]:
    """Spacing and points of a lattice that covers [low, high]. If spacing < 1, the point 1 is on
    the lattice.
    """
    if spacing < 1.0 < high + spacing:
        spacing = 1.0 / math.ceil(1.0 / spacing)
    first, last = max(math.floor(low / spacing), 0), math.ceil(high / spacing)
    return spacing, np.arange(first, max(last, first + 1) + 1) * spacing


def _split(levels: np.ndarray, spacing: float) -> int:
    """Number of intervals on the left, whose values are E(t - L)_+."""
    return int(np.count_nonzero(levels[1:] <= 1.0 + 1e-9 * spacing))


def _masses(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Masses from the slopes of E(t - L)_+ on the left intervals and of -E(L - t)_+ on the right ones."""
    if not left.size:
        return np.append(1.0 - right[0], right - np.append(right[1:], 0.0))
    inner = np.diff(left, prepend=0.0)
    if not right.size:
        return np.append(inner, 1.0 - left[-1])
    return np.concatenate([inner, [1.0 - left[-1] - right[0]], right - np.append(right[1:], 0.0)])


def law_upper(mu: float, low: float, high: float, spacing: float, shared: bool = False) -> LatticeLaw:
    """Law above max(low, min(L, high)) in convex order, up to `slack`: mass between two levels is split
    between both.
    """
    spacing, levels = _levels(low, high, spacing)
    value, split = time_value(mu, levels, shared), _split(levels, spacing)
    left = np.diff(value[: split + 1]) / spacing
    right = value[split:].copy()
    if not split:
        right[0] = 1.0 - levels[0] + value[0] if levels[0] < 1.0 else value[0]
    right = -np.diff(right) / spacing
    # Rounding may disorder nearly equal slopes.
    sorted_left = np.maximum(np.minimum.accumulate(left[::-1])[::-1], 0.0)
    sorted_right = np.maximum(np.maximum.accumulate(right[::-1])[::-1], 0.0)
    moved = spacing * float(np.abs(sorted_left - left).sum() + np.abs(sorted_right - right).sum())
    largest = float(time_value(mu, np.ones(1), shared)[0])
    slack = (_SLACK + 16.0 * UNIT * levels.size) * largest + moved
    masses = np.maximum(_masses(sorted_left, sorted_right), 0.0)
    below = float(value[0]) if levels[0] < 1.0 else 0.0
    return LatticeLaw(
        float(levels[0]), spacing, masses, below if levels[0] > 0 else 0.0, float(value[-1]), slack
    )


def _minorant(values: np.ndarray) -> np.ndarray:
    """Largest convex function below equally spaced points."""
    places = np.arange(values.size, dtype=np.float64)
    kept = convex.hull(places, values)
    return np.interp(places, kept, values[kept])


def law_lower(mu: float, low: float, high: float, spacing: float) -> LatticeLaw | None:
    """Law below max(low, min(L, high)) in convex order, up to `slack`; None if the lattice is too coarse.

    Each interval takes the tangent of the stop-loss transform at its middle (the outer two: at the end). Each
    level takes the lower of two tangents. The law is that of the convex minorant, its ends lowered until the
    shifted transform continues it. A lattice coarser than 1 begins at the mean of L below half a spacing,
    which preserves the mean.
    """
    spacing, levels = _levels(low, high, spacing)
    split = _split(levels, spacing)
    middle = 0.5 * (levels[1:] + levels[:-1])
    if not split:
        z = (math.log(middle[0]) + 0.5 * mu * mu) / mu
        levels = levels - levels[0] + scipy.special.ndtr(z - mu) / scipy.special.ndtr(z)
        middle[1:] = 0.5 * (levels[2:] + levels[1:-1])
    at = middle
    at[-1] = levels[-1]
    if split:
        at[0] = levels[0]
    z = (np.log(np.maximum(at, 1e-300)) + 0.5 * mu * mu) / mu
    is_left = np.arange(at.size) < split
    slope = np.where(is_left, 1.0, -1.0) * scipy.special.ndtr(np.where(is_left, z, -z))
    value = time_value(mu, at) + np.where(is_left, np.maximum(at - 1.0, 0.0), np.maximum(1.0 - at, 0.0))
    from_left, from_right = value + slope * (levels[1:] - at), value + slope * (levels[:-1] - at)
    tangents = np.minimum(np.append(from_right, np.inf), np.append(np.inf, from_left))
    tangents = np.maximum(tangents, 0.0)
    parts = [slice(0, split + 1)] if split else []
    parts += [slice(split, None)] if split < at.size else []
    if split:
        tangents[0] = max(np.min(tangents[parts[0]] - slope[0] * (levels[parts[0]] - levels[0])), 0.0)
    tangents[-1] = max(np.min(tangents[parts[-1]] + slope[-1] * (levels[-1] - levels[parts[-1]])), 0.0)
    slopes = [np.diff(_minorant(tangents[part])) / spacing for part in parts]
    masses = _masses(slopes[0] if split else np.zeros(0), -slopes[-1] if split < at.size else np.zeros(0))
    size = float(time_value(mu, np.ones(1))[0])
    if masses.min() < -1e-12:
        # The two sides are not convex together at 1: one minorant for both.
        whole = tangents + np.where(np.arange(levels.size) <= split, np.maximum(1.0 - levels, 0.0), 0.0)
        masses = _masses(np.zeros(0), -np.diff(_minorant(whole)) / spacing)
        size = max(size, 1.0)
    if not (masses.min() > -1e-12 and masses.max() > 0):
        return None
    # Negative masses due to rounding of slopes.
    clipped = 2.0 * spacing * float(np.maximum(-masses, 0.0).sum()) * levels.size
    slack = (_SLACK + 16.0 * UNIT * levels.size) * size + clipped
    below = float(tangents[0]) if split else 0.0
    above = float(tangents[-1]) + (0.0 if split < at.size else 1.0 - float(levels[-1]))
    masses = np.maximum(masses, 0.0)
    return LatticeLaw(float(levels[0]), spacing, masses / max(float(masses.sum()), 1.0), below, above, slack)
