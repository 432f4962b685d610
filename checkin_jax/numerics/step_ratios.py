"""Likelihood ratios L of one step under the law without the record, and lattice laws near them in convex order.

L has mean one. Probability of the law with the record where the law without it has none counts as the limit of a mass
delta / M at M. Proofs: docs/theory_allocation.md. NumPy float64.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import scipy

from checkin_jax.kernels import gaussian_profile
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.numerics import convex

# Relative error of excesses and of sums of their differences, with a wide margin, in units of the largest value.
_SLACK = 8e-12
# Most times that a lower law's transform is lowered at 1.
_LOWERED = 40
# Negative masses beyond this are not due to rounding.
_NOT_CONVEX = 1e-9
# Largest mu of a Gaussian step that is not heavy.
_MOST_LIGHT_MU = 1.2
# Losses at which a given pair is evaluated for the spread of L, and the largest loss that is followed.
_PLACES, _FARTHEST = 4096, 690.0


def _gaussian_excess(mu: float, level: np.ndarray) -> np.ndarray:
    t = np.asarray(level, dtype=np.float64)
    log_value = gaussian_profile.log_profile(mu, np.abs(np.log(np.where(t > 0, t, 1.0))))
    value = np.exp(np.where(np.isnan(log_value), -np.inf, log_value))
    return np.where(t > 0, value * np.minimum(t, 1.0), 0.0)


def _gaussian_ends(mu: float, neg_log_tail: float) -> tuple[float, float]:
    spread = mu * math.sqrt(2.0 * (neg_log_tail + 7.0)) + 0.5 * mu * mu
    return math.exp(-spread), math.exp(min(spread, 600.0))


def gaussian_sd(mu: float, high: float) -> float:
    """Approximate standard deviation of min(L, high), L with shift mu."""
    full = math.sqrt(math.expm1(min(mu * mu, 600.0)))
    if mu < 0.3:
        return full
    z = math.log(high) / mu
    inside, above = scipy.special.ndtr(z - 0.5 * mu), scipy.special.ndtr(-z - 0.5 * mu)
    square = math.exp(min(mu * mu, 600.0)) * scipy.special.ndtr(z - 1.5 * mu) + high * high * above
    mean = inside + high * above
    return min(math.sqrt(max(square - mean * mean, 1e-12 * square)), full)


@dataclasses.dataclass(frozen=True)
class _Shifted:
    """Base of laws of a Gaussian step of shift mu."""

    mu: float

    # Lattice spacing in standard deviations of L: finer where transforms have kinks.
    resolution: ClassVar[float] = 0.1
    # True if L may have a largest value, near which the bound without other slots is smaller.
    bounded: ClassVar[bool] = False

    @property
    def heavy(self) -> bool:
        """True if rare large L have most of the variance; it affects sharpness only."""
        return self.mu > _MOST_LIGHT_MU


@dataclasses.dataclass(frozen=True)
class Lognormal(_Shifted):
    """L = e^{mu x - mu^2/2}, x ~ N(0, 1): N(mu, 1) against N(0, 1)."""

    def ends(self, neg_log_tail: float) -> tuple[float, float]:
        """(least, most): levels beyond which the mean excess of L is below exp(-neg_log_tail - 7), or constant."""
        return _gaussian_ends(self.mu, neg_log_tail)

    def sd(self, high: float) -> float:
        """Approximate standard deviation of min(L, high)."""
        return gaussian_sd(self.mu, high)

    def excess(self, level: np.ndarray) -> np.ndarray:
        """E(L - t)_+ for t >= 1 and E(t - L)_+ for 0 <= t < 1, exact or rounded up. The maximum is at t = 1."""
        return _gaussian_excess(self.mu, level)

    def lines(self, at: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(value, slope) at each place of a line below E(t - L)_+ where `left`, and below E(L - t)_+ elsewhere."""
        z = (np.log(np.maximum(at, 1e-300)) + 0.5 * self.mu * self.mu) / self.mu
        slope = np.where(left, 1.0, -1.0) * scipy.special.ndtr(np.where(left, z, -z))
        other = np.where(left, np.maximum(at - 1.0, 0.0), np.maximum(1.0 - at, 0.0))
        return self.excess(at) + other, slope

    def mean_below(self, level: float) -> float:
        """Mean of L given that it is at most `level`; NaN if it is not known exactly."""
        z = (math.log(level) + 0.5 * self.mu * self.mu) / self.mu
        return float(scipy.special.ndtr(z - self.mu) / scipy.special.ndtr(z))

    def beyond(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(P - Q, Q) of the event that log L > loss, loss >= 0, to 1e-10."""
        place = loss / self.mu + 0.5 * self.mu
        far, near = scipy.special.ndtr(-place), scipy.special.ndtr(self.mu - place)
        return near - far, far


@dataclasses.dataclass(frozen=True)
class SharedLognormal(_Shifted):
    """A law above both e^{mu x/2 - mu^2/8} (half the shift) and (1 + L)/2 (the whole shift with probability 1/2)."""

    def ends(self, neg_log_tail: float) -> tuple[float, float]:
        return _gaussian_ends(0.5 * self.mu, neg_log_tail)[0], _gaussian_ends(self.mu, neg_log_tail)[1]

    def sd(self, high: float) -> float:
        half = gaussian_sd(0.5 * self.mu, high)
        return max(half, 0.5 * gaussian_sd(self.mu, max(2.0 * high - 1.0, 0.5 * high)))

    def excess(self, level: np.ndarray) -> np.ndarray:
        # Both laws have mean one, so the larger value is a stop-loss transform as well.
        t = np.asarray(level, dtype=np.float64)
        whole = _gaussian_excess(self.mu, np.maximum(2.0 * t - 1.0, 0.0))
        return np.maximum(_gaussian_excess(0.5 * self.mu, t), 0.5 * whole)


class GivenPair(Protocol):
    """Bounds on a step's pair, P with the record and Q without it: `accounting.bounds.interface`."""

    @property
    def largest_loss(self) -> float: ...

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def lower(
        self, loss: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]: ...


@dataclasses.dataclass(frozen=True)
class GivenRatio:
    """L with E(L - t)_+ = H_t(P||Q) for t >= 1 and E(t - L)_+ = t H_{1/t}(Q||P) for t < 1, of a pair with these bounds.

    Two upper bounds need not belong to one pair: the law made of them is above that of every pair below both.
    """

    pair: GivenPair

    resolution: ClassVar[float] = 0.02
    bounded: ClassVar[bool] = True

    @functools.cached_property
    def _sampled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses, and both profiles."""
        end = min(self.pair.largest_loss, _FARTHEST)
        losses = np.append(0.0, np.geomspace(1e-9 * end, end, _PLACES))
        forward, backward = self.pair.upper_sides(losses)
        return losses, np.asarray(forward), np.asarray(backward)

    @functools.cached_property
    def _squares(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Losses; E(min(L, t) - 1)_+^2 at t = e^loss; E(1 - L)_+^2."""
        losses, forward, backward = self._sampled
        with np.errstate(over="ignore"):
            gaps = np.diff(np.exp(losses))
            whole = np.append(0.0, np.cumsum((forward[1:] + forward[:-1]) * gaps))
            above = np.maximum(whole - 2.0 * np.expm1(losses) * forward, 0.0)
        below = np.exp(-losses) * backward
        left = float(np.sum((below[1:] + below[:-1]) * -np.diff(np.exp(-losses))))
        return losses, np.maximum.accumulate(above), left

    def ends(self, neg_log_tail: float) -> tuple[float, float]:
        losses, forward, backward = self._sampled
        small = math.exp(-neg_log_tail - 7.0)
        far, near = (
            float(losses[np.flatnonzero(side <= side[-1] + small)[0]]) for side in (forward, backward)
        )
        # A mass of Q that P does not have is at L = 0.
        least = 0.0 if backward[-1] > small else math.exp(-near)
        return least, math.exp(min(far, 600.0))

    def sd(self, high: float) -> float:
        losses, above, left = self._squares
        return math.sqrt(max(left + float(np.interp(math.log(max(high, 1.0)), losses, above)), 1e-300))

    @property
    def heavy(self) -> bool:
        return self.sd(math.exp(_FARTHEST)) ** 2 > math.expm1(_MOST_LIGHT_MU**2)

    def excess(self, level: np.ndarray) -> np.ndarray:
        t = np.asarray(level, dtype=np.float64)
        loss = np.log(np.where(t > 0, t, 1.0))
        # Losses rounded down, which raises profiles.
        forward, backward = self.pair.upper_sides(np.minimum(np.abs(loss) * (1.0 - 4.0 * UNIT), _FARTHEST))
        forward, backward = np.asarray(forward), np.asarray(backward)
        both = np.where(t == 1.0, np.maximum(forward, backward), forward)
        return np.where(t >= 1.0, both, np.where(t > 0, t * backward, 0.0))

    def lines(self, at: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        loss = np.log(np.maximum(at, 1e-300))
        (apart, far), (back_apart, back_far) = self.pair.lower(np.minimum(np.abs(loss), _FARTHEST))
        # Lines below E(L - t)_+ by events of P||Q, below E(t - L)_+ by those of Q||P; they differ by 1 - t.
        right_value, right_slope = np.asarray(apart) - (at - 1.0) * far, -np.asarray(far)
        left_value, left_slope = at * back_apart - (1.0 - at) * back_far, np.asarray(back_apart) + back_far
        value = np.where(at >= 1.0, right_value, left_value)
        slope = np.where(at >= 1.0, right_slope, left_slope)
        moved = np.where(left & (at >= 1.0), 1.0, np.where(~left & (at < 1.0), -1.0, 0.0))
        return value + moved * (at - 1.0), slope + moved

    def mean_below(self, level: float) -> float:
        return math.nan

    def beyond(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        apart, far = self.pair.lower(np.minimum(loss, _FARTHEST))[0]
        return np.asarray(apart), np.asarray(far)

    def below(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Q - P, P) of the event that log L < -loss, loss >= 0, to 1e-10."""
        apart, near = self.pair.lower(np.minimum(loss, _FARTHEST))[1]
        return np.asarray(apart), np.asarray(near)


# Laws of L, and those of concrete pairs, which have lower bounds; methods as of `Lognormal`.
StepRatio = Lognormal | SharedLognormal | GivenRatio
LowerRatio = Lognormal | GivenRatio


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


def law_upper(ratio: StepRatio, low: float, high: float, spacing: float) -> LatticeLaw:
    """Law above max(low, min(L, high)) in convex order, up to `slack`: mass between two levels is split
    between both.
    """
    spacing, levels = _levels(low, high, spacing)
    value, split = ratio.excess(levels), _split(levels, spacing)
    left = np.diff(value[: split + 1]) / spacing
    right = value[split:].copy()
    if not split:
        right[0] = 1.0 - levels[0] + value[0] if levels[0] < 1.0 else value[0]
    right = -np.diff(right) / spacing
    # Rounding may disorder nearly equal slopes.
    sorted_left = np.maximum(np.minimum.accumulate(left[::-1])[::-1], 0.0)
    sorted_right = np.maximum(np.maximum.accumulate(right[::-1])[::-1], 0.0)
    moved = spacing * float(np.abs(sorted_left - left).sum() + np.abs(sorted_right - right).sum())
    largest = float(ratio.excess(np.ones(1))[0])
    slack = (_SLACK + 16.0 * UNIT * levels.size) * largest + moved
    masses = _masses(sorted_left, sorted_right)
    if masses.min() < -_NOT_CONVEX:
        # Bounds on the two sides are not convex together at 1: the largest convex function below both.
        whole = value + np.where(np.arange(levels.size) <= split, np.maximum(1.0 - levels, 0.0), 0.0)
        masses = _masses(np.zeros(0), -np.diff(_minorant(whole)) / spacing)
        slack = (_SLACK + 16.0 * UNIT * levels.size) * max(largest, 1.0)
    masses = np.maximum(masses, 0.0)
    below = float(value[0]) if levels[0] < 1.0 else 0.0
    return LatticeLaw(
        float(levels[0]), spacing, masses, below if levels[0] > 0 else 0.0, float(value[-1]), slack
    )


def _minorant(values: np.ndarray) -> np.ndarray:
    """Largest convex function below equally spaced points."""
    places = np.arange(values.size, dtype=np.float64)
    kept = convex.hull(places, values)
    return np.interp(places, kept, values[kept])


def law_lower(ratio: LowerRatio, low: float, high: float, spacing: float) -> LatticeLaw | None:
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
        mean = ratio.mean_below(float(middle[0]))
        if math.isnan(mean):
            return None
        levels = levels - levels[0] + mean
        middle[1:] = 0.5 * (levels[2:] + levels[1:-1])
    at = middle
    at[-1] = levels[-1]
    if split:
        at[0] = levels[0]
    is_left = np.arange(at.size) < split

    def ends(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tangents at one place of each interval, at the interval's ends."""
        value, slope = ratio.lines(place, is_left)
        return value + slope * (levels[:-1] - place), value + slope * (levels[1:] - place)

    first, last = ends(at)
    # A tangent below zero at one end, raised to zero there, would not be below the transform between the ends.
    below_zero = np.minimum(first, last) < 0.0
    if below_zero.any():
        place = np.where(below_zero, np.where(is_left, levels[:-1], levels[1:]), at)
        first, last = (np.maximum(each, 0.0) for each in ends(place))
    rise, fall = (
        (after - before) / spacing for before, after in ((first[0], last[0]), (first[-1], last[-1]))
    )
    tangents = np.minimum(np.append(first, np.inf), np.append(np.inf, last))
    parts = [slice(0, split + 1)] if split else []
    parts += [slice(split, None)] if split < at.size else []

    def masses_of(values: np.ndarray) -> np.ndarray:
        """Masses of the convex minorants of both sides; the ends of the values are lowered."""
        if split:
            values[0] = max(np.min(values[parts[0]] - rise * (levels[parts[0]] - levels[0])), 0.0)
        values[-1] = max(np.min(values[parts[-1]] + fall * (levels[-1] - levels[parts[-1]])), 0.0)
        slopes = [np.diff(_minorant(values[part])) / spacing for part in parts]
        return _masses(slopes[0] if split else np.zeros(0), -slopes[-1] if split < at.size else np.zeros(0))

    masses = masses_of(tangents)
    step = spacing * float(masses[split])
    for _ in range(_LOWERED if len(parts) == 2 else 0):
        if masses[split] >= -1e-12:
            break
        # The two sides are not convex together at 1: a smaller value there has smaller slopes on both. By secants.
        before = masses[split]
        tangents[split] += step
        masses = masses_of(tangents)
        step *= 1.001 * -float(masses[split]) / max(float(masses[split] - before), 1e-300)
    if not (masses.min() > -1e-12 and masses.max() > 0):
        return None
    size = float(ratio.excess(np.ones(1))[0])
    # Negative masses due to rounding of slopes.
    clipped = 2.0 * spacing * float(np.maximum(-masses, 0.0).sum()) * levels.size
    slack = (_SLACK + 16.0 * UNIT * levels.size) * size + clipped
    below = float(tangents[0]) if split else 0.0
    above = float(tangents[-1]) + (0.0 if split < at.size else 1.0 - float(levels[-1]))
    masses = np.maximum(masses, 0.0)
    return LatticeLaw(float(levels[0]), spacing, masses / max(float(masses.sum()), 1.0), below, above, slack)


# Relative error of ndtr, of the rounding of its argument, and of the level as a sum (relative to its parts).
_NDTR, _ARGUMENT, _LEVEL = 2e-14, 1e-15, 4e-16


def opposite_transform(mu: float, c: np.ndarray | float, k: np.ndarray, below: bool) -> np.ndarray:
    """Upper bound on E(d - k)_+, or on E(-d - k)_+ if `below`, for d = (a - 1) - c (b - 1) and k >= 0.

    a and b are likelihood ratios of two opposite Gaussian records over zero: with nu = mu/2 and W standard normal, a =
    e^{nu W - nu^2/2} and b = e^{-nu W - nu^2/2}. The records are mu apart, each mu/2 from the dummy that they replace.
    This pair is the worst one in the ball [docs/theory_allocation.md, section 2a].

    Args:
      mu: > 0. c: >= 1, broadcast against k.
    """
    nu, level = 0.5 * mu, (1.0 - c - k) if below else (1.0 - c + k)
    # a - c b = level at W = at, from the positive root u = e^{nu W} of u^2 - q u - c.
    q = level * np.exp(0.5 * nu * nu)
    root = np.sqrt(q * q + 4.0 * c)
    positive = 0.5 * (np.abs(q) + root)
    at = np.log(np.where(q >= 0.0, positive, c / positive)) / nu
    side = -1.0 if below else 1.0
    beyond = scipy.special.ndtr(-side * at)
    terms = (
        scipy.special.ndtr(side * (nu - at)),
        -c * scipy.special.ndtr(side * (-nu - at)),
        -level * beyond,
    )
    wrong = (_NDTR + _ARGUMENT * np.square(np.abs(at) + nu)) * sum(np.abs(term) for term in terms)
    wrong += _LEVEL * (c + k) * beyond
    return np.maximum(side * sum(terms), 0.0) + wrong
