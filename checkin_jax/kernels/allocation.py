r"""Sums of m lognormal variables on lattices: the two profiles of a random allocation of one Gaussian message.

With L_i = e^{mu x_i - mu^2/2} for x ~ N(0, I_m), mean one each, S = sum_i (L_i - 1) and Y = 1 + (rho/m) S,

    H_c(P||Q) = (rho/m) E(S - x)_+ ,    x = m (c - 1)/rho,            P = (1-rho) Q + (rho/m) sum_i N(mu e_i, I),
    H_c(Q||P) = (c rho/m) E(-S - x)_+ , x = m (1 - 1/c)/rho,          Q = N(0, I).

L is replaced by a law on a lattice that is above it in convex order (mass moved to both neighbours, the mean kept) or
below it (a convex function below its stop-loss transform delta_G). The sum comes from one FFT for each of a few
exponential tilts, every error bounded and counted on its side; heavy tails by a ladder of lattices, since

    E(S - x)_+ = E(sum_i min(L_i, B) - m - x)_+ + m E(L - B)_+    for x + m <= B  ("<=" for every B),

and -S > x forces every L_i below m - x. docs/theory_allocation.md has the proofs. Host code, numpy float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np
import scipy.special

from checkin_jax.kernels import gaussian, host
from checkin_jax.kernels.check_in import ROUNDING
from checkin_jax.kernels.lattice import UNIT

_LOG_DELTA = jax.jit(gaussian.log_delta)
# Relative error of a time value, and of the sums of differences of them, with a wide margin; in units of the largest.
_SLACK = 8e-12
# Higham (2002), Theorem 24.2, doubled, as in `lattice`.
FFT_CONSTANT = 14.0
# Lattice spacing in standard deviations of one step; it shrinks where there are few steps, grows where there are many.
_STEP, _FEW, _MANY = 0.1, 100.0, 1e4
_MAX_POINTS, _MAX_POINTS_FAR = 2**20, 2**15
_WINDOW_SDS, _JUMPS = 10.0, 3.5
_TILT_SDS, _MAX_TILTS = 3.0, 32
_RATIO = 4.0
_FAR_CENTRES = (0.004, 0.04, 0.3)
_MAX_SCALES = 200
_BLOCK = 512
_HEAVY, _MAX_LEVELS = 1.2, 2**16
# More slots than this are treated as this many: H falls with m, so that this only loosens the upper end.
MAX_SLOTS = 10**9


def time_value(mu: float, level: np.ndarray) -> np.ndarray:
    """E(L - t)_+ for t >= 1 and E(t - L)_+ for t < 1, to 1e-12; t >= 0. The largest value is at t = 1."""
    t = np.asarray(level, dtype=np.float64)
    # In blocks of one size, since each compiles once.
    padded = np.ones(-(-t.size // _BLOCK) * _BLOCK)
    padded[: t.size] = np.where(t > 0, t, 1.0)
    blocks = [
        np.asarray(_LOG_DELTA(host(mu), host(each))) for each in np.abs(np.log(padded)).reshape(-1, _BLOCK)
    ]
    log_value = np.concatenate(blocks)[: t.size]
    value = np.exp(np.where(np.isnan(log_value), -np.inf, log_value))
    return np.where(t > 0, value * np.minimum(t, 1.0), 0.0)


class Law(NamedTuple):
    """A lattice law near that of L: masses at the levels start + i * spacing, i = 0, 1, ...

    below, above: E of what reaches beyond the two ends, at least (upper) or at most (lower). slack: L may be moved by
    this much for the order to hold.
    """

    start: float
    spacing: float
    masses: np.ndarray
    below: float
    above: float
    slack: float


def _levels(low: float, high: float, spacing: float) -> tuple[float, np.ndarray]:
    """Spacing and points of a lattice over [low, high]; 1 is one of them where it is between them and spacing < 1."""
    if spacing < 1.0 < high + spacing:
        spacing = 1.0 / math.ceil(1.0 / spacing)
    first, last = max(math.floor(low / spacing), 0), math.ceil(high / spacing)
    return spacing, np.arange(first, max(last, first + 1) + 1) * spacing


def _split(levels: np.ndarray, spacing: float) -> int:
    """Number of intervals at the left whose values are E(t - L)_+."""
    return int(np.count_nonzero(levels[1:] <= 1.0 + 1e-9 * spacing))


def _masses(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Masses from the slopes of E(t - L)_+ on the left intervals and of -E(L - t)_+ on the right ones."""
    if not left.size:
        return np.append(1.0 - right[0], right - np.append(right[1:], 0.0))
    inner = np.diff(left, prepend=0.0)
    if not right.size:
        return np.append(inner, 1.0 - left[-1])
    return np.concatenate([inner, [1.0 - left[-1] - right[0]], right - np.append(right[1:], 0.0)])


def law_upper(mu: float, low: float, high: float, spacing: float) -> Law:
    """Above max(low, min(L, high)) in convex order, but for `slack`: what L has between two levels goes to both."""
    spacing, levels = _levels(low, high, spacing)
    value, split = time_value(mu, levels), _split(levels, spacing)
    left = np.diff(value[: split + 1]) / spacing
    right = value[split:].copy()
    if not split:
        right[0] = 1.0 - levels[0] + value[0] if levels[0] < 1.0 else value[0]
    right = -np.diff(right) / spacing
    # Rounding may have disordered slopes that are nearly equal.
    sorted_left = np.maximum(np.minimum.accumulate(left[::-1])[::-1], 0.0)
    sorted_right = np.maximum(np.maximum.accumulate(right[::-1])[::-1], 0.0)
    moved = spacing * float(np.abs(sorted_left - left).sum() + np.abs(sorted_right - right).sum())
    largest = float(time_value(mu, np.ones(1))[0])
    slack = (_SLACK + 16.0 * UNIT * levels.size) * largest + moved
    masses = np.maximum(_masses(sorted_left, sorted_right), 0.0)
    below = float(value[0]) if levels[0] < 1.0 else 0.0
    return Law(float(levels[0]), spacing, masses, below if levels[0] > 0 else 0.0, float(value[-1]), slack)


def _hull(values: np.ndarray) -> np.ndarray:
    """Largest convex minorant of points at equal distances (monotone chain)."""
    kept: list[int] = []
    v = values.tolist()
    for i in range(len(v)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (v[b] - v[a]) * (i - b) < (v[i] - v[b]) * (b - a):
                break
            kept.pop()
        kept.append(i)
    return np.interp(np.arange(len(v)), kept, values[kept])


def law_lower(mu: float, low: float, high: float, spacing: float) -> Law | None:
    """Below max(low, min(L, high)) in convex order, but for `slack`; None where the lattice is too coarse.

    On each interval the tangent of the stop-loss transform at its middle (at the ends for the outer two), at each level
    the lower of two tangents, then the convex minorant. The ends are lowered until the transform itself, moved down,
    continues it. A lattice coarser than 1 begins at the mean of L below half a spacing, which keeps the mean.
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
    slopes = [np.diff(_hull(tangents[part])) / spacing for part in parts]
    masses = _masses(slopes[0] if split else np.zeros(0), -slopes[-1] if split < at.size else np.zeros(0))
    size = float(time_value(mu, np.ones(1))[0])
    if masses.min() < -1e-12:
        # Too coarse for the two sides to be convex together at 1: one minorant for both.
        whole = tangents + np.where(np.arange(levels.size) <= split, np.maximum(1.0 - levels, 0.0), 0.0)
        masses = _masses(np.zeros(0), -np.diff(_hull(whole)) / spacing)
        size = max(size, 1.0)
    if not (masses.min() > -1e-12 and masses.max() > 0):
        return None
    # Slopes that differ by rounding only.
    clipped = 2.0 * spacing * float(np.maximum(-masses, 0.0).sum()) * levels.size
    slack = (_SLACK + 16.0 * UNIT * levels.size) * size + clipped
    below = float(tangents[0]) if split else 0.0
    above = float(tangents[-1]) + (0.0 if split < at.size else 1.0 - float(levels[-1]))
    masses = np.maximum(masses, 0.0)
    return Law(float(levels[0]), spacing, masses / max(float(masses.sum()), 1.0), below, above, slack)


class Tail(NamedTuple):
    """E(s - x)_+ at x = start + i spacing for a sum s, from one side; of a lower law Pr[s > x] too, both ways."""

    start: float
    spacing: float
    value: np.ndarray
    mass_lower: np.ndarray
    mass_upper: np.ndarray


class _Steps(NamedTuple):
    """Masses at start + j spacing: L or -L, less its mean where that is kept."""

    start: float
    spacing: float
    masses: np.ndarray

    def log_moment(self, order: float) -> float:
        exponent = order * self.at
        peak = float(exponent[self.masses > 0].max())
        # Under the masses that are zero the exponent may be anything.
        return peak + math.log(float(self.masses @ np.exp(np.minimum(exponent - peak, 0.0))))

    @property
    def at(self) -> np.ndarray:
        return self.start + self.spacing * np.arange(self.masses.size)


def _steps(law: Law, reverse: bool, centred: bool) -> _Steps:
    mean = 1.0 if centred else 0.0
    if reverse:
        return _Steps(mean - law.start - (law.masses.size - 1) * law.spacing, law.spacing, law.masses[::-1])
    return _Steps(law.start - mean, law.spacing, law.masses)


def _grouped(steps: _Steps) -> tuple[np.ndarray, np.ndarray]:
    """Masses and places of a few hundred groups, single points near the mean, wider ones away from it."""
    size = steps.masses.size
    if size <= 1024:
        return steps.masses, steps.at
    centre = round(float(steps.masses @ np.arange(size)))
    away = np.unique(np.append(np.arange(256), np.rint(np.geomspace(256, size, 256)))).astype(np.int64)
    edges = np.unique(np.clip(np.concatenate([centre - away, centre + away]), 0, size - 1))
    masses = np.add.reduceat(steps.masses, edges)
    sums = np.add.reduceat(steps.masses * steps.at, edges)
    return masses, np.where(masses > 0, sums / np.where(masses > 0, masses, 1.0), steps.at[edges])


def _order(steps: _Steps, target: float) -> float:
    """About the order >= 0 whose tilted mean step is `target`; any order is valid."""
    masses, at = _grouped(steps)

    def mean(order: float) -> float:
        weight = masses * np.exp(order * (at - at[-1]))
        total = float(weight.sum())
        return float(weight @ at) / total if total > 0 else math.inf

    spread = float(at[-1] - at[0])
    low, high = math.log(1e-9 / spread), math.log(700.0 / spread)
    if mean(math.exp(low)) >= target:
        return 0.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if mean(math.exp(middle)) < target else (low, middle)
    return math.exp(low)


class _Window(NamedTuple):
    """Values for the window's points, in its order; the first point's index."""

    first: int
    value: np.ndarray
    mass_lower: np.ndarray
    mass_upper: np.ndarray


def _tilted(
    steps: _Steps, number: float, centre: float, least: float, most: int, jumps: float, upper: bool
) -> _Window:
    """One FFT, tilted so that the sum of `number` steps is centred near `centre`; for x >= least.

    Errors, as in `lattice.compose`: FFT round-off by Parseval and Cauchy-Schwarz, Chernoff's bounds for what wraps
    around or lies beyond, relative rounding of masses and tilts once per step.
    """
    order = _order(steps, centre / number)
    at, h = steps.at, steps.spacing
    log_total = steps.log_moment(order)
    weight = steps.masses * np.exp(order * at - log_total)
    mean = float(weight @ at)
    sd = math.sqrt(max(number * float(weight @ np.square(at - mean)), h * h))
    base, last = number * steps.start, number * (steps.masses.size - 1.0)
    low = max(math.floor((min(number * mean, centre) - _WINDOW_SDS * sd - base) / h), 0)
    wide = max(_WINDOW_SDS * sd, jumps * float(at[-1]))
    top = min(math.ceil((max(number * mean, centre) + wide - base) / h), last)
    points = 16
    while points < min(top - low + 1, most):
        points *= 2

    dense = np.bincount(np.arange(weight.size) % points, weight, points)
    phi = np.fft.rfft(dense)
    size = np.abs(phi)
    with np.errstate(divide="ignore"):
        log_size = np.maximum(np.log(size), -1e4)
    power = np.exp(number * log_size) * np.exp(1j * (number * np.angle(phi)))
    levels = math.log2(points)
    # Each input reaches each output on one path of `levels` butterflies.
    sup_error = FFT_CONSTANT * UNIT * levels * float(dense.sum())
    padded = size + sup_error
    relative = number * (sup_error / padded + 8.0 * UNIT * (4.0 + np.abs(np.log(padded))))
    relative += FFT_CONSTANT * UNIT * levels
    twice = np.where(np.arange(points // 2 + 1) % (points // 2) == 0, 1.0, 2.0)
    wrong = np.exp(number * np.log(padded)) * relative
    noise = math.sqrt(float(twice @ np.square(wrong)) / points)
    prob = np.roll(np.fft.irfft(power, points), -(low % points))

    x = base + h * (low + np.arange(points, dtype=np.float64))
    skip = int(np.searchsorted(x, least - h))
    x, prob, low = x[skip:], prob[skip:], low + skip
    if not x.size:
        return _Window(low, x, x, x)
    log_scale = number * log_total - order * x
    scale = np.exp(np.minimum(log_scale, 50.0))

    def beyond(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mass = np.append(np.cumsum(q[:0:-1])[::-1], 0.0)
        return mass, h * np.cumsum(mass[::-1])[::-1]

    mass, value = beyond(scale * prob)
    mass_size, value_size = beyond(scale * np.abs(prob))
    drift = math.expm1(number * UNIT * (64.0 + 4.0 * order * float(np.abs(at).max()))) + 8.0 * points * UNIT
    away = h * np.arange(1.0, points + 1)
    fade = np.exp(-order * away)
    value_error = drift * value_size + scale * noise * float(np.linalg.norm(away * fade))
    mass_error = drift * mass_size + scale * noise * float(np.linalg.norm(fade))
    # Beyond the window: by Chernoff, plain and tilted, at about the best orders.
    end, begin = float(x[-1]), float(x[0]) - h * (skip + 1.0)
    above = max(_order(steps, end / number), order + 0.05 / sd) * np.asarray([1.0, 1.0 + 1e-3])
    plain = [(u, number * steps.log_moment(u) - u * end) for u in above.tolist()]
    steps_down = np.asarray([0.1, 0.3, 1.0, 3.0, 10.0, 20.0]) / sd
    covers_top, covers_low = low + x.size - 1 >= last, low - skip <= 0
    known = log_scale <= 40.0
    if upper:
        extra = np.zeros(x.size)
        if not covers_top:
            extra = np.min([(end - x + 1.0 / u) * math.exp(min(log, 200.0)) for u, log in plain], axis=0)
        value = value + value_error + extra * (1.0 + 1e-9)
        return _Window(low, np.where(known, value, np.inf), np.zeros(0), np.zeros(0))
    log_plain = min(log for _, log in plain)
    outside = 0.0
    if not covers_top:
        outside += math.exp(min(log_plain + order * end - number * log_total, 0.0))
    if not covers_low:
        down = [number * (steps.log_moment(order - u) - log_total) + u * begin for u in steps_down]
        outside += math.exp(min(min(down), 0.0))
    value_error = value_error + scale * outside * min(
        1.0 / (math.e * order) if order > 0 else math.inf, h * points
    )
    mass_error = mass_error + scale * outside
    past = 0.0 if covers_top else math.exp(min(log_plain, 0.0))
    return _Window(
        low,
        np.where(known, value - value_error, -np.inf),
        np.where(known, mass - mass_error, 0.0),
        np.where(known, mass + mass_error + past, 1.0),
    )


def _centres(steps: _Steps, number: float, ends: tuple[float, float]) -> list[float]:
    """Centres of tilts from one end to the other, as far apart as the laws so tilted are wide."""

    def width(centre: float) -> float:
        order = _order(steps, centre / number)
        weight = steps.masses * np.exp(order * steps.at - steps.log_moment(order))
        mean = float(weight @ steps.at)
        return _TILT_SDS * math.sqrt(number * float(weight @ np.square(steps.at - mean)))

    # Not the plain law alone: without a tilt the round-off of the whole window counts alike.
    centres = [ends[0], ends[0] + width(ends[0]) / _TILT_SDS]
    while len(centres) < _MAX_TILTS and centres[-1] < ends[1]:
        step = width(centres[-1])
        for _ in range(3):
            step = min(step, width(centres[-1] + step))
        centres.append(min(centres[-1] + max(step, (ends[1] - ends[0]) / _MAX_TILTS), ends[1]))
    return centres


def _tail(
    steps: _Steps,
    number: float,
    ends: tuple[float, float],
    centres: np.ndarray | None,
    most: int,
    upper: bool,
) -> Tail:
    """The best of several tilts at every lattice point of [ends]."""
    base, h = number * steps.start, steps.spacing
    first = math.floor((ends[0] - base) / h) - 1  # the slack shifts it
    size = math.ceil((ends[1] - base) / h) - first + 1
    at_end = float(steps.at[-1])
    # Where the largest terms matter, sums of three of them must not wrap around.
    jumps = _JUMPS if ends[0] > 0 or at_end <= 3.0 * (ends[1] - ends[0]) else 0.0
    best = Tail(
        base + h * first, h, np.full(size, math.inf if upper else -math.inf), np.zeros(size), np.ones(size)
    )
    for centre in _centres(steps, number, ends) if centres is None else centres:
        found = _tilted(steps, number, float(centre), base + h * first, most, jumps, upper)
        begin = max(found.first - first, 0)
        skip = begin + first - found.first
        count = max(min(size - begin, found.value.size - skip), 0)
        here, there = slice(begin, begin + count), slice(skip, skip + count)
        better = found.value[there] < best.value[here] if upper else found.value[there] > best.value[here]
        for ours, theirs in zip(best[2:3] if upper else best[2:], found[1:]):
            ours[here][better] = theirs[there][better]
    return best


def _step_sd(mu: float, high: float) -> float:
    """About the standard deviation of min(L, high)."""
    full = math.sqrt(math.expm1(min(mu * mu, 600.0)))
    if mu < 0.3:
        return full
    z = math.log(high) / mu
    inside, above = scipy.special.ndtr(z - 0.5 * mu), scipy.special.ndtr(-z - 0.5 * mu)
    square = math.exp(min(mu * mu, 600.0)) * scipy.special.ndtr(z - 1.5 * mu) + high * high * above
    mean = inside + high * above
    return min(math.sqrt(max(square - mean * mean, 1e-12 * square)), full)


def _outweighs(steps: _Steps, number: float, end: float, high: float, sd: float) -> float:
    """Lower bound on the probability that a sum is above number + end, given that one L is at least `high`."""
    if high >= number + end:
        return 1.0
    # The others, less their means, would be below this.
    lack = end + 1.0 - high
    orders = np.asarray([0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) / sd
    logs = [(number - 1.0) * steps.log_moment(-u) + u * lack for u in orders.tolist()]
    return max(1.0 - math.exp(min(min(logs), 0.0)) * (1.0 + 1e-6), 0.0)


class Profile(NamedTuple):
    """Tails on a ladder of scales, each good as far as its end: the largest x, or the least sum if `reverse`.

    number: how many terms the sum has. At a sum of k the tails are read at k - number, or at shift - k if `reverse`.
    """

    number: float
    reverse: bool
    ends: list[float]
    shifts: list[float]
    tails: list[Tail]


def profile(mu: float, number: int, log_inverse_mass: float, reverse: bool, upper: bool) -> Profile:
    """E(S - x)_+, or E(-S - x)_+ if reverse, for x >= 0, down to about `number` exp(-log_inverse_mass).

    Args:
      mu: shift over noise standard deviation, in [1e-6, 100].
      number: m, how many L there are. If more than MAX_SLOTS: `upper` takes that many, in the average; nothing below.
    """
    m = float(min(number, MAX_SLOTS))
    found = Profile(m, reverse, [], [], [])
    if number > MAX_SLOTS and not upper:
        return found
    spread = mu * math.sqrt(2.0 * (log_inverse_mass + 7.0)) + 0.5 * mu * mu
    # Beyond these L has mean excess below exp(-log_inverse_mass - 7).
    least, most = math.exp(-spread), math.exp(min(spread, 600.0))
    least = least if least > 0.3 else 0.0
    width = math.sqrt(2.0 * log_inverse_mass) + 1.0
    small = math.exp(-log_inverse_mass) * m
    reached = 0.0
    for _ in range(30):
        reached = width * math.sqrt(m) * _step_sd(mu, min(most, m if reverse else m + reached))
    # One scale: the x from start to end, or the sums from start down to end.
    start, end = (m, max(m - reached, 0.25 * m)) if reverse else (0.0, reached)
    for scale in range(_MAX_SCALES):
        high = min(most, start if reverse else m + end)
        if not reverse:
            # One such term outweighs what the others may lack, so that little is lost by cutting there.
            high = min(high, 1.0 + 2.5 * end)
        step = _step_sd(mu, high)
        sd = math.sqrt(m) * step
        spacing = _STEP * step * min(1.0, math.sqrt(m / _FEW)) * max(m / _MANY, 1.0) ** 0.125
        points = _MAX_POINTS if scale == 0 else _MAX_POINTS_FAR
        if scale > 0:
            spacing = max(spacing, (start if reverse else end + 10.0 * min(sd, m)) / (0.125 * points))
        if not upper and mu > _HEAVY and (reverse or scale == 0):
            # The law below has little under one spacing.
            finest = max(0.02 * (start / m if reverse else 1.0), (high - least) / _MAX_LEVELS)
            spacing = min(spacing, finest)
        spacing = max(
            spacing, 24.0 * sd / points, (high - least) / (_MAX_POINTS if upper else 2.0 * _MAX_LEVELS)
        )
        spacing = min(spacing, 0.1 * (high - least))
        law = (law_upper if upper else law_lower)(mu, least, high, spacing)
        if law is None:
            break
        ends = ((-start, -end) if scale else (0.0, m - end)) if reverse else (start, end)
        centred = scale == 0 or not reverse
        # Far out single large terms rule; tilts that make more than one of them likely only cost accuracy.
        centres = None if reverse or scale == 0 else start * np.asarray(_FAR_CENTRES)
        steps = _steps(law, reverse, centred)
        tail = _tail(steps, m, ends, centres, points, upper)
        if upper:
            shift, extra = m * law.slack, m * (law.below if reverse else law.above)
        elif reverse:
            shift, extra = -m * law.slack, 0.0 if high >= start else -m * law.above
        else:
            shift, extra = -m * law.slack, m * (law.above * _outweighs(steps, m, end, high, sd) - law.below)
        found.tails.append(tail._replace(start=tail.start + shift, value=tail.value + extra))
        found.shifts.append(m if centred else 0.0)
        found.ends.append(end)
        if found.tails[-1].value[-1] <= small or (not reverse and end > m * most):
            break
        start, end = end, end / _RATIO if reverse else _RATIO * end
        if not 1e-290 < end < 1e290:
            break
    return found


def _sums(number: float, used: float, loss: np.ndarray, reverse: bool) -> np.ndarray:
    """x of the forward direction, or the sum k of the reverse one, at losses >= 0."""
    if not reverse:
        with np.errstate(over="ignore"):
            return np.minimum(number * np.expm1(np.minimum(loss, 700.0)) / used, 1e300)
    return number * np.exp(-loss) if used == 1.0 else number * (1.0 + np.expm1(-loss) / used)


def _margin(number: float, used: float, reverse: bool) -> tuple[float, float]:
    """Relative and absolute error of a sum so computed, with a wide margin."""
    return 16.0 * UNIT, (16.0 * UNIT * number / used if reverse and used < 1.0 else 0.0)


def profile_upper(above: Profile, mu: float, used: float, loss: np.ndarray) -> np.ndarray:
    """Upper bound on H_c(P||Q), or on H_c(Q||P) if above.reverse, at c = e^loss, loss >= 0 in nats.

    The smaller of the sum's and rho delta_G(mu, log(1 + (c - 1)/rho)), which counts no gain from the other slots.
    """
    m, reverse = above.number, above.reverse
    sums = _sums(m, used, loss, reverse)
    relative, absolute = _margin(m, used, reverse)
    sums = np.maximum(sums * (1.0 + relative) + absolute, 0.0) if reverse else sums * (1.0 - relative)
    value = np.full(sums.shape, math.inf)
    left = np.ones(sums.shape, dtype=bool)
    last = len(above.ends) - 1
    for i, (end, shift, tail) in enumerate(zip(above.ends, above.shifts, above.tails)):
        here = left & ((sums >= end) if reverse else (sums <= end)) if i < last else left
        # The values fall with x: beyond the last scale its last one serves.
        at = shift - np.maximum(sums[here], end) if reverse else np.minimum(sums[here], end)
        grid = tail.start + tail.spacing * np.arange(tail.value.size)
        with np.errstate(invalid="ignore"):
            value[here] = np.interp(at, grid, tail.value, left=math.inf)
        left &= ~here
    value = np.where(np.isnan(value), math.inf, value / m)
    alone = time_value(mu, sums / m if reverse else 1.0 + sums / m)
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.log(used) + (loss if reverse else 0.0)
        bound = np.exp(scale + np.log(np.minimum(value, alone)))
    return np.where(sums > 0, bound, 0.0 if reverse else bound) * (1.0 + ROUNDING)


def lines_lower(below: Profile, used: float, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P(A) - Q(A), Q(A)), or the same with P and Q exchanged if below.reverse, of a set near {its loss > loss}.

    The first rounded down, the second up; zeros where nothing is known.
    """
    m, reverse = below.number, below.reverse
    sums = _sums(m, used, loss, reverse)
    difference, far = np.zeros(sums.shape), np.zeros(sums.shape)
    left = np.ones(sums.shape, dtype=bool)
    for end, shift, tail in zip(below.ends, below.shifts, below.tails):
        here = left & ((sums >= end) if reverse else (sums <= end))
        at = shift - sums[here] if reverse else sums[here]
        index = np.clip(np.floor((at - tail.start) / tail.spacing), 0, tail.value.size - 1).astype(np.int64)
        x = tail.start + tail.spacing * index
        value, low, high = tail.value[index], tail.mass_lower[index], tail.mass_upper[index]
        known = value > 0
        value = np.where(known, value, 0.0)
        if reverse:
            share = 1.0 - (shift - x) / m
            apart = used * (np.where(share > 0, low, high) * share + value / m)
            away = high * (1.0 - used) + (used / m) * (high * (shift - x) - value)
        else:
            apart, away = (used / m) * (value + np.where(x > 0, low, high) * x), high
        good = known & (apart > 0)
        difference[here] = np.where(good, apart, 0.0) * (1.0 - ROUNDING)
        far[here] = np.where(good, np.maximum(away, 0.0), 0.0) * (1.0 + ROUNDING)
        left &= ~here
    return difference, far
