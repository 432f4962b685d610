"""E(s - x)_+ for sums s of many lattice steps of one kind or a few, from either side: one FFT for each of a few tilts.

Every error is bounded and counted on its side. Host code, numpy float64; proofs in docs/theory_allocation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
import scipy

from checkin_jax.kernels import round_off
from checkin_jax.kernels.round_off import UNIT
from checkin_jax.numerics.lognormal import Law

_WINDOW_SDS, _JUMPS = 10.0, 3.5
_TILT_SDS, _MAX_TILTS = 3.0, 32


class Tail(NamedTuple):
    """E(s - x)_+ at x = start + i spacing for a sum s, from one side; of a lower law Pr[s > x] too, both ways."""

    start: float
    spacing: float
    value: np.ndarray
    mass_lower: np.ndarray
    mass_upper: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """Masses at start + j spacing: L or -L, less its mean where that is kept."""

    start: float
    spacing: float
    masses: np.ndarray

    def tilted(self, order: float) -> tuple[np.ndarray, float]:
        """Masses times e^{order at}, over e^peak; and the peak, of all that have mass."""
        exponent = order * self.at
        peak = float(exponent[self._ends[0 if order < 0 else 1]])
        # Under the masses that are zero the exponent may be anything.
        exponent -= peak
        np.minimum(exponent, 0.0, out=exponent)
        return np.multiply(self.masses, np.exp(exponent, out=exponent), out=exponent), peak

    def log_moment(self, order: float) -> float:
        weight, peak = self.tilted(order)
        return peak + math.log(float(weight.sum()))

    @functools.cached_property
    def at(self) -> np.ndarray:
        return self.start + self.spacing * np.arange(self.masses.size)

    @functools.cached_property
    def _ends(self) -> tuple[int, int]:
        """The first and the last that have mass."""
        known = np.flatnonzero(self.masses > 0)
        return int(known[0]), int(known[-1])

    @functools.cached_property
    def grouped(self) -> tuple[np.ndarray, np.ndarray]:
        """Masses and places of a few hundred groups, single points near the mean, wider ones away from it."""
        size = self.masses.size
        if size <= 1024:
            return self.masses, self.at
        centre = round(_dot(self.masses, np.arange(size)))
        away = np.unique(np.append(np.arange(256), np.rint(np.geomspace(256, size, 256)))).astype(np.int64)
        edges = np.unique(np.clip(np.concatenate([centre - away, centre + away]), 0, size - 1))
        masses = np.add.reduceat(self.masses, edges)
        sums = np.add.reduceat(self.masses * self.at, edges)
        return masses, np.where(masses > 0, sums / np.where(masses > 0, masses, 1.0), self.at[edges])


def steps_of(law: Law, reverse: bool, centred: bool) -> Steps:
    mean = 1.0 if centred else 0.0
    if reverse:
        return Steps(mean - law.start - (law.masses.size - 1) * law.spacing, law.spacing, law.masses[::-1])
    return Steps(law.start - mean, law.spacing, law.masses)


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    """A sum of independent steps, so many of each kind; all kinds have the same spacing."""

    kinds: tuple[tuple[Steps, float], ...]

    @property
    def spacing(self) -> float:
        return self.kinds[0][0].spacing

    @property
    def number(self) -> float:
        return math.fsum(number for _, number in self.kinds)

    @property
    def least(self) -> float:
        """The smallest value."""
        return math.fsum(number * steps.start for steps, number in self.kinds)

    @property
    def last(self) -> float:
        """Index of the largest value, counted from the smallest."""
        return math.fsum(number * (steps.masses.size - 1.0) for steps, number in self.kinds)

    @functools.cached_property
    def jump(self) -> float:
        """The largest value of one step."""
        return max(float(steps.at[-1]) for steps, _ in self.kinds)

    @functools.cached_property
    def farthest(self) -> float:
        return max(float(np.abs(steps.at).max()) for steps, _ in self.kinds)

    def log_moment(self, order: float) -> float:
        return math.fsum(number * steps.log_moment(order) for steps, number in self.kinds)

    @functools.cached_property
    def _orders(self) -> dict[float, float]:
        return {}

    def order(self, target: float) -> float:
        """About the order >= 0 whose tilted mean is `target`; any order is valid."""
        if target not in self._orders:
            self._orders[target] = self._order(target)
        return self._orders[target]

    def _order(self, target: float) -> float:
        def mean(order: float) -> float:
            total = 0.0
            for steps, number in self.kinds:
                masses, at = steps.grouped
                weight = masses * np.exp(order * (at - at[-1]))
                size = float(weight.sum())
                total += number * _dot(weight, at) / size if size > 0 else math.inf
            return total

        spread = max(float(steps.at[-1] - steps.at[0]) for steps, _ in self.kinds)
        low, high = math.log(1e-9 / spread), math.log(700.0 / spread)
        if mean(math.exp(low)) >= target:
            return 0.0
        # Within a thousandth: a tilt's place hardly matters.
        while high - low > 1e-3:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if mean(math.exp(middle)) < target else (low, middle)
        return math.exp(low)


def _dot(first: np.ndarray, second: np.ndarray) -> float:
    """Not by BLAS, which starts threads for it."""
    return float((first * second).sum())


def _wrapped(values: np.ndarray, points: int) -> np.ndarray:
    """Added up at distances of `points`; as they are where there are no more of them."""
    return values if values.size <= points else np.bincount(np.arange(values.size) % points, values, points)


def _faded(rate: float, points: int) -> tuple[float, float]:
    """Euclidean norms of e^{-rate j} and of j e^{-rate j}, j = 1 .. points, a power of two."""
    few = 1 << (points.bit_length() // 2)
    # j = i + few k, and every term is positive.
    i, k = np.arange(1.0, few + 1.0), few * np.arange(float(points // few))
    near, far = np.exp(-2.0 * rate * i), np.exp(-2.0 * rate * k)
    none = near.sum() * far.sum()
    both = _dot(near, i * i) * far.sum() + 2.0 * _dot(near, i) * _dot(far, k) + near.sum() * _dot(far, k * k)
    return math.sqrt(none), math.sqrt(both)


class Window(NamedTuple):
    """Values for the window's points, in its order; the first point's index."""

    first: int
    value: np.ndarray
    mass_lower: np.ndarray
    mass_upper: np.ndarray


def _tilted(total: Sum, centre: float, least: float, most: int, jumps: float, upper: bool) -> Window:
    """One FFT, tilted so that the sum is centred near `centre`; for x >= least.

    Errors: FFT round-off (`kernels.round_off`) by Cauchy-Schwarz, Chernoff's bounds for what wraps around or lies
    beyond, relative rounding of masses and tilts once per step.
    """
    order, h = total.order(centre), total.spacing
    log_total = mean = variance = 0.0
    weights = []
    for steps, number in total.kinds:
        weight, peak = steps.tilted(order)
        size = float(weight.sum())
        log_total += number * (peak + math.log(size))
        weights.append(weight / size)
    for weight, (steps, number) in zip(weights, total.kinds):
        middle = _dot(weight, steps.at)
        mean += number * middle
        variance += number * _dot(weight, np.square(steps.at - middle))
    sd = math.sqrt(max(variance, h * h))
    base, last = total.least, total.last
    low = max(math.floor((min(mean, centre) - _WINDOW_SDS * sd - base) / h), 0)
    wide = max(_WINDOW_SDS * sd, jumps * total.jump)
    top = min(math.ceil((max(mean, centre) + wide - base) / h), last)
    points = 16
    while points < min(top - low + 1, most):
        points *= 2

    phi = np.stack([np.fft.rfft(_wrapped(each, points), points) for each in weights])
    numbers = np.asarray([[number] for _, number in total.kinds])
    size = np.abs(phi)
    with np.errstate(divide="ignore"):
        log_size = np.maximum(np.log(size), -1e4)
    # Not by BLAS, as in `_dot`.
    turned, modulus = np.sum(numbers * np.angle(phi), axis=0), np.exp(np.sum(numbers * log_size, axis=0))
    power = np.empty_like(phi[0])
    np.multiply(modulus, np.cos(turned), out=power.real)
    np.multiply(modulus, np.sin(turned), out=power.imag)
    off = round_off.of_fft(points) * np.asarray([[float(each.sum())] for each in weights])
    noise = float(round_off.of_powers(size, off, numbers[:, 0], points))
    prob = np.roll(np.fft.irfft(power, points), -(low % points))

    x = base + h * (low + np.arange(points, dtype=np.float64))
    skip = int(np.searchsorted(x, least - h))
    x, prob, low = x[skip:], prob[skip:], low + skip
    if not x.size:
        return Window(low, x, x, x)
    log_scale = log_total - order * x
    scale = np.exp(np.minimum(log_scale, 50.0))

    def beyond(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mass = np.zeros(q.size)
        np.cumsum(q[:0:-1], out=mass[-2::-1])
        return mass, h * np.cumsum(mass[::-1])[::-1]

    found = scale * prob
    (mass, value), (mass_size, value_size) = beyond(found), beyond(np.abs(found))
    drift = math.expm1(total.number * UNIT * (64.0 + 4.0 * order * total.farthest)) + 8.0 * points * UNIT
    # Of e^{-order h j}, and of h j e^{-order h j}, j = 1 .. points.
    fade, away = _faded(order * h, points)
    value_error = drift * value_size + scale * (noise * h * away)
    mass_error = drift * mass_size + scale * (noise * fade)
    # Beyond the window: by Chernoff, plain and tilted, at about the best orders.
    end, begin = float(x[-1]), float(x[0]) - h * (skip + 1.0)
    above = max(total.order(end), order + 0.05 / sd) * np.asarray([1.0, 1.0 + 1e-3])
    plain = [(u, total.log_moment(u) - u * end) for u in above.tolist()]
    steps_down = np.asarray([0.1, 0.3, 1.0, 3.0, 10.0, 20.0]) / sd
    covers_top, covers_low = low + x.size - 1 >= last, low - skip <= 0
    known = log_scale <= 40.0
    if upper:
        extra = np.zeros(x.size)
        if not covers_top:
            extra = np.min([(end - x + 1.0 / u) * math.exp(min(log, 200.0)) for u, log in plain], axis=0)
        value = value + value_error + extra * (1.0 + 1e-9)
        return Window(low, np.where(known, value, np.inf), np.zeros(0), np.zeros(0))
    log_plain = min(log for _, log in plain)
    outside = 0.0
    if not covers_top:
        outside += math.exp(min(log_plain + order * end - log_total, 0.0))
    if not covers_low:
        down = [total.log_moment(order - u) - log_total + u * begin for u in steps_down]
        outside += math.exp(min(min(down), 0.0))
    value_error = value_error + scale * outside * min(
        1.0 / (math.e * order) if order > 0 else math.inf, h * points
    )
    mass_error = mass_error + scale * outside
    past = 0.0 if covers_top else math.exp(min(log_plain, 0.0))
    return Window(
        low,
        np.where(known, value - value_error, -np.inf),
        np.where(known, mass - mass_error, 0.0),
        np.where(known, mass + mass_error + past, 1.0),
    )


def _centres(total: Sum, ends: tuple[float, float]) -> list[float]:
    """Centres of tilts from one end to the other, as far apart as the laws so tilted are wide."""

    def width(centre: float) -> float:
        # Of the groups: where the next tilt is centred is a choice.
        order, variance = total.order(centre), 0.0
        for steps, number in total.kinds:
            masses, at = steps.grouped
            weight = masses * np.exp(order * (at - at[-1]))
            size = float(weight.sum())
            if size > 0:
                variance += number * _dot(weight, np.square(at - _dot(weight, at) / size)) / size
        return _TILT_SDS * math.sqrt(variance)

    # Not the plain law alone: without a tilt the round-off of the whole window counts alike.
    centres = [ends[0], ends[0] + width(ends[0]) / _TILT_SDS]
    while len(centres) < _MAX_TILTS and centres[-1] < ends[1]:
        step = width(centres[-1])
        for _ in range(3):
            step = min(step, width(centres[-1] + step))
        centres.append(min(centres[-1] + max(step, (ends[1] - ends[0]) / _MAX_TILTS), ends[1]))
    return centres


@dataclasses.dataclass(frozen=True, eq=False)
class Stretch:
    """The lattice of a sum from one place to another, and the tilts that serve there."""

    total: Sum
    ends: tuple[float, float]
    centres: tuple[float, ...]
    most: int
    upper: bool

    @property
    def first(self) -> int:
        """Index of the lattice point before the stretch; the slack shifts it."""
        return math.floor((self.ends[0] - self.total.least) / self.total.spacing) - 1

    @property
    def start(self) -> float:
        return self.total.least + self.total.spacing * self.first

    @functools.cached_property
    def _jumps(self) -> float:
        # Where the largest terms matter, sums of three of them must not wrap around.
        start, end = self.ends
        return _JUMPS if start > 0 or self.total.jump <= 3.0 * (end - start) else 0.0

    def tilted(self, centre: float) -> Window:
        return _tilted(self.total, centre, self.start, self.most, self._jumps, self.upper)


def stretch_of(
    total: Sum, ends: tuple[float, float], centres: np.ndarray | None, most: int, upper: bool
) -> Stretch:
    """With tilts centred at `centres`, or where they are needed."""
    found = _centres(total, ends) if centres is None else centres.tolist()
    return Stretch(total, ends, tuple(found), most, upper)


def tail_of(
    total: Sum, ends: tuple[float, float], centres: np.ndarray | None, most: int, upper: bool
) -> Tail:
    """The best of several tilts at every lattice point of [ends]."""
    within = stretch_of(total, ends, centres, most, upper)
    first, h = within.first, total.spacing
    size = math.ceil((ends[1] - total.least) / h) - first + 1
    best = Tail(
        within.start, h, np.full(size, math.inf if upper else -math.inf), np.zeros(size), np.ones(size)
    )
    for centre in within.centres:
        found = within.tilted(centre)
        begin = max(found.first - first, 0)
        skip = begin + first - found.first
        count = max(min(size - begin, found.value.size - skip), 0)
        here, there = slice(begin, begin + count), slice(skip, skip + count)
        better = found.value[there] < best.value[here] if upper else found.value[there] > best.value[here]
        for ours, theirs in zip(best[2:3] if upper else best[2:], found[1:]):
            ours[here][better] = theirs[there][better]
    return best


def step_sd(mu: float, high: float) -> float:
    """About the standard deviation of min(L, high)."""
    full = math.sqrt(math.expm1(min(mu * mu, 600.0)))
    if mu < 0.3:
        return full
    z = math.log(high) / mu
    inside, above = scipy.special.ndtr(z - 0.5 * mu), scipy.special.ndtr(-z - 0.5 * mu)
    square = math.exp(min(mu * mu, 600.0)) * scipy.special.ndtr(z - 1.5 * mu) + high * high * above
    mean = inside + high * above
    return min(math.sqrt(max(square - mean * mean, 1e-12 * square)), full)


def outweighs(steps: Steps, number: float, end: float, high: float, sd: float) -> float:
    """Lower bound on the probability that a sum is above number + end, given that one L is at least `high`."""
    if high >= number + end:
        return 1.0
    # The others, less their means, would be below this.
    lack = end + 1.0 - high
    orders = np.asarray([0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) / sd
    logs = [(number - 1.0) * steps.log_moment(-u) + u * lack for u in orders.tolist()]
    return max(1.0 - math.exp(min(min(logs), 0.0)) * (1.0 + 1e-6), 0.0)
