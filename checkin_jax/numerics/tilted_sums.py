"""E(s - x)_+ for sums s of many independent lattice steps, from above or below: one FFT per tilt.

Every error is bounded and counted on the side of the bound. Proofs: docs/evaluation.md. NumPy float64.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.kernels import FLUSHED, elementary
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.numerics import convex
from checkin_jax.numerics.step_ratios import LatticeLaw

# Distance of tilts in standard deviations, up to _FEW steps and above, where round-off is larger. Most tilts.
_TILT_SDS, _TILT_SDS_MANY, _FEW, _MAX_TILTS = 5.0, 3.0, 1e7, 32
# The FFT window leaves out e^-_BEYOND of the tilted law on either side, by Chernoff's bound at orders _STEPS
# over the standard deviation. Weights decay to e^-_FADES within one period. Mass below the mean is counted in
# _CELLS cells.
_BEYOND, _STEPS = 25.0, np.asarray([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 12.0])
_FADES, _CELLS = 20.0, 9
# Powers of transforms below e^-_LEFT_OUT are not computed.
_LEFT_OUT = 36.0
# One large term dominates if the tilt to _FAR of the interval's end has a deviation above _FAR_SDS times that
# place.
_FAR, _FAR_SDS = 0.1, 2.0
# Spacing of evaluated points, in units of 1 / order of the tilt, and the fewest points of an interval.
_FINE, _FEWEST = 0.1, 256.0


class Tail(NamedTuple):
    """One-sided bounds on E(s - x)_+ at x = start + i spacing; lower ones with two-sided bounds
    on Pr[s > x].
    """

    start: float
    spacing: float
    value: np.ndarray
    mass_lower: np.ndarray
    mass_upper: np.ndarray

    def above(self, x: np.ndarray) -> np.ndarray:
        """Upper bound at each x, any shape, by chords; infinity before the first point, the last value beyond all."""
        grid = self.start + self.spacing * np.arange(self.value.size)
        return convex.falling(x, grid, self.value, left=math.inf)


@dataclasses.dataclass(frozen=True, eq=False)
class LatticeSteps:
    """Masses at start + j spacing of L or -L, minus its mean if centred."""

    start: float
    spacing: float
    masses: np.ndarray

    def tilted(self, order: float) -> tuple[np.ndarray, float]:
        """(masses times e^{order at - peak}, peak), where peak is the largest exponent with positive mass."""
        exponent = order * self.at
        peak = float(exponent[self._ends[0 if order < 0 else 1]])
        # Exponents at zero masses are arbitrary.
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
        """Indices of the first and the last positive mass."""
        known = np.flatnonzero(self.masses > 0)
        return int(known[0]), int(known[-1])

    @functools.cached_property
    def grouped(self) -> tuple[np.ndarray, np.ndarray]:
        """Masses and means of a few hundred groups: single points near the mean, wider groups elsewhere."""
        size = self.masses.size
        if size <= 1024:
            return self.masses, self.at
        centre = round(_dot(self.masses, np.arange(size)))
        away = np.unique(np.append(np.arange(256), np.rint(np.geomspace(256, size, 256)))).astype(np.int64)
        edges = np.unique(np.clip(np.concatenate([centre - away, centre + away]), 0, size - 1))
        masses = np.add.reduceat(self.masses, edges)
        sums = np.add.reduceat(self.masses * self.at, edges)
        return masses, np.where(masses > 0, sums / np.where(masses > 0, masses, 1.0), self.at[edges])


def steps_of(law: LatticeLaw, reverse: bool, centred: bool) -> LatticeSteps:
    mean = 1.0 if centred else 0.0
    if reverse:
        return LatticeSteps(
            mean - law.start - (law.masses.size - 1) * law.spacing, law.spacing, law.masses[::-1]
        )
    return LatticeSteps(law.start - mean, law.spacing, law.masses)


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    """A sum of independent steps of several kinds on lattices of equal spacing: (steps, number) of each."""

    kinds: tuple[tuple[LatticeSteps, float], ...]

    @property
    def spacing(self) -> float:
        return self.kinds[0][0].spacing

    @property
    def number(self) -> float:
        return math.fsum(number for _, number in self.kinds)

    @property
    def least(self) -> float:
        """Smallest value of the sum."""
        return math.fsum(number * steps.start for steps, number in self.kinds)

    @property
    def last(self) -> float:
        """Index of the largest value, counted from the smallest."""
        return math.fsum(number * (steps.masses.size - 1.0) for steps, number in self.kinds)

    @functools.cached_property
    def farthest(self) -> float:
        return max(float(np.abs(steps.at).max()) for steps, _ in self.kinds)

    def log_moment(self, order: float) -> float:
        return math.fsum(number * steps.log_moment(order) for steps, number in self.kinds)

    def log_moments(self, orders: np.ndarray) -> np.ndarray:
        """Approximate `log_moment` at many orders."""
        found = np.zeros(orders.size)
        for steps, number in self.kinds:
            masses, at = steps.grouped
            exponent = orders[:, None] * at
            peak = np.max(exponent, axis=1)
            weight = np.sum(masses * np.exp(exponent - peak[:, None]), axis=1)
            found += number * (peak + np.log(np.maximum(weight, 1e-300)))
        return found

    def about(self, order: float) -> tuple[float, float]:
        """Approximate mean and standard deviation of the law tilted by e^{order s}."""
        mean = variance = 0.0
        for steps, number in self.kinds:
            masses, at = steps.grouped
            weight = masses * np.exp(order * (at - at[-1]))
            size = float(weight.sum())
            if not size > 0:
                return math.inf, 0.0
            middle = _dot(weight, at) / size
            mean += number * middle
            variance += number * _dot(weight, np.square(at - middle)) / size
        return mean, math.sqrt(variance)

    @property
    def strongest(self) -> float:
        """Largest order that is tried."""
        return 700.0 / max(float(steps.at[-1] - steps.at[0]) for steps, _ in self.kinds)

    def order(self, target: float) -> float:
        """Approximate order >= 0 whose tilted mean is `target`; every order is valid."""
        low, high = math.log(self.strongest / 7e11), math.log(self.strongest)
        if self.about(math.exp(low))[0] >= target:
            return 0.0
        # A relative error of 1e-3 hardly changes a tilt.
        while high - low > 1e-3:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.about(math.exp(middle))[0] < target else (low, middle)
        return math.exp(low)


def _dot(first: np.ndarray, second: np.ndarray) -> float:
    """Inner product without BLAS, which would start threads."""
    return float((first * second).sum())


def _wrapped(values: np.ndarray, points: int) -> np.ndarray:
    """Values folded modulo `points`; unchanged if there are at most `points` of them."""
    return values if values.size <= points else np.bincount(np.arange(values.size) % points, values, points)


class Window(NamedTuple):
    """Values at some lattice points from index `first` on, counted from the least sum."""

    first: int
    value: np.ndarray
    mass_lower: np.ndarray
    mass_upper: np.ndarray


class _Tilt(NamedTuple):
    """A sum's law tilted by e^{order s}: laws of its steps, log E e^{order s}, mean, standard deviation."""

    order: float
    weights: list[np.ndarray]
    log_total: float
    mean: float
    sd: float

    @classmethod
    def of(cls, total: Sum, order: float) -> _Tilt:
        log_total = mean = variance = 0.0
        weights = []
        for steps, number in total.kinds:
            weight, peak = steps.tilted(order)
            size = float(weight.sum())
            log_total += number * (peak + math.log(size))
            weight /= size
            middle = _dot(weight, steps.at)
            mean += number * middle
            variance += number * _dot(weight, np.square(steps.at - middle))
            weights.append(weight)
        return cls(order, weights, log_total, mean, math.sqrt(max(variance, total.spacing**2)))


class _Span(NamedTuple):
    """The circular FFT window; it holds all but e^-_BEYOND on either side of a tilted law.

    first: index of the first point, a multiple of the stride. points: a power of two. down, up: distances
    from the tilt's order to nearly optimal orders of Chernoff's bounds below and above the window.
    """

    first: int
    points: int
    down: float
    up: float

    @classmethod
    def of(cls, total: Sum, tilt: _Tilt, most: int, stride: int) -> _Span:
        h, order = total.spacing, tilt.order
        steps = np.append(_STEPS / tilt.sd, order)
        logs = total.log_moments(np.concatenate([[order], order - steps, order + steps]))
        below, above = logs[1 : 1 + steps.size] - logs[0], logs[1 + steps.size :] - logs[0]
        low = math.floor((float(np.max((-_BEYOND - below) / steps)) - total.least) / h)
        low = max(low, 0) // stride * stride
        top = min(math.ceil((float(np.min((above + _BEYOND) / steps)) - total.least) / h), total.last)
        points = 16 * stride
        while points < min(top - low + 1, most):
            points *= 2
        # Weights must decay to e^-_FADES within one period.
        while order * points * h < _FADES:
            points *= 2
        begin = total.least + h * low
        down, up = np.argmin(below + steps * begin), np.argmin(above - steps * (begin + points * h))
        return cls(low, points, float(steps[down]), float(steps[up]))


class _Spectrum(NamedTuple):
    """DFT of a law on `points` places, at frequencies where it is not negligible.

    kept: frequencies up to points / 2; the modulus at all others is below `left_out`. wrong: bounds on the
    error of `value` and of its inverse transform.
    """

    points: int
    kept: np.ndarray
    value: np.ndarray
    wrong: np.ndarray
    left_out: float


def _spectrum(total: Sum, tilt: _Tilt, points: int) -> _Spectrum:
    """DFT of the tilted law, folded modulo `points`."""
    phi = np.stack([np.fft.rfft(_wrapped(each, points), points) for each in tilt.weights])
    numbers = np.asarray([[number] for _, number in total.kinds])
    off = elementary.of_fft(points) * np.asarray([[float(each.sum())] for each in tilt.weights])
    size, floor = np.abs(phi), np.exp(-_LEFT_OUT / numbers)
    kept = np.flatnonzero(np.all(size > floor, axis=0))
    # One factor is below its floor; the others are at most 1.
    left_out = np.max(numbers * np.log(floor + off)) + np.sum(numbers * np.log1p(2.0 * off))
    phi, size = phi[:, kept], size[:, kept]
    # Without BLAS, as in `_dot`.
    turned, modulus = np.sum(numbers * np.angle(phi), axis=0), np.exp(np.sum(numbers * np.log(size), axis=0))
    power = modulus * np.cos(turned) + 1j * (modulus * np.sin(turned))
    wrong = np.asarray(elementary.of_power(size, off, numbers[:, 0], points))
    return _Spectrum(points, kept, power, wrong, math.exp(left_out))


def _faded(rate: float, spectrum: _Spectrum) -> tuple[np.ndarray, np.ndarray]:
    """sum_j w^j and sum_j j w^j, j = 1, 2, ..., for w = e^{-rate + i turn} at the computed frequencies."""
    turn, fade = (2.0 * math.pi / spectrum.points) * spectrum.kept, math.exp(-rate)
    across = fade * np.sin(turn)
    w = fade * np.cos(turn) + 1j * across
    # 1 - w without cancellation.
    rest = -math.expm1(-rate) + 2.0 * fade * np.square(np.sin(0.5 * turn)) - 1j * across
    mass = w / rest
    return mass, mass / rest


def _summed(
    spectrum: _Spectrum, weights: np.ndarray, most: float, low: int, stride: int
) -> tuple[np.ndarray, float]:
    """(values, error): circular sums sum_j g_j q_{i+j} at every `stride`-th i from `low` on; error bound.

    weights: conjugate DFT of g at the computed frequencies. most: its largest modulus at any frequency.
    """
    points, kept, few = spectrum.points, spectrum.kept, spectrum.points // stride
    found = spectrum.value * weights
    folded = np.zeros(few // 2 + 1, dtype=np.complex128)
    if kept[-1] < len(folded) - 1:
        folded[kept] = found
    else:
        # At every stride-th point, frequencies congruent modulo `few` coincide. Frequency k stands for -k as
        # well.
        inner = (kept > 0) & (2 * kept < points)
        place = np.concatenate([kept % few, -kept[inner] % few])
        real, imaginary = np.real(found), np.imag(found)
        parts = (real, real[inner]), (imaginary, -imaginary[inner])
        real, imaginary = (np.bincount(place, np.concatenate(part), few)[: folded.size] for part in parts)
        folded = real + 1j * imaginary
    value = np.roll(np.fft.irfft(folded, few), -(low // stride % few)) / stride
    twice = np.where((kept == 0) | (2 * kept == points), 1.0, 2.0)
    # Rounding of weights, products, and sums of coinciding frequencies.
    wrong = spectrum.wrong + (64.0 + stride) * UNIT * np.abs(spectrum.value)
    return value, _dot(twice * np.abs(weights), wrong) / points + spectrum.left_out * most


def _tilted(total: Sum, order: float, first: int, most: int, stride: int, upper: bool) -> Window:
    """Tail bounds from one FFT of the law tilted by e^{order s}, at every `stride`-th point from
    `first` on.

    The tail is a circular convolution of the law (known by its DFT) with decaying weights. Wrap-around only
    adds mass, so the result errs upwards. Round-off is counted per frequency (`kernels.elementary`), relative
    rounding of masses and tilts once per step. A lower bound subtracts Chernoff's bound on the added mass.
    """
    h = total.spacing
    # A smaller order would need a window of more than about `most` points.
    order = max(order, _FADES / (4.0 * most * h))
    tilt = _Tilt.of(total, order)
    span = _Span.of(total, tilt, most, stride)
    low, points = span.first, span.points
    skip = max(-((low - first) // stride), 0)
    x = total.least + h * (low + stride * np.arange(skip, points // stride, dtype=np.float64))
    begin = low + skip * stride
    if not x.size:
        return Window(begin, x, x, x)
    spectrum = _spectrum(total, tilt, points)
    log_scale = tilt.log_total - order * x
    scale, known = np.exp(np.minimum(log_scale, 50.0)), log_scale <= 40.0
    by_mass, by_value = _faded(order * h, spectrum)
    turns = max(each.size for each in tilt.weights) / points
    drift = math.expm1(total.number * UNIT * (64.0 + turns + 16.0 * order * total.farthest))
    once = -math.expm1(-order * h)

    def tail(weights: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
        value, wrong = _summed(spectrum, weights, largest, low, stride)
        value = value[skip:]
        return value, (1.0 + drift) * wrong + drift * np.abs(value)

    value, error = tail(h * by_value, h / once**2)
    if upper:
        value = np.where(known, scale * (value + error) * (1.0 + 1e-12) + FLUSHED, np.inf)
        return Window(begin, value, np.zeros(0), np.zeros(0))
    over_mass, over_value = _elsewhere(total, tilt, span, x)
    mass, mass_error = tail(by_mass, 1.0 / once)
    return Window(
        begin,
        np.where(known, scale * (value - error - over_value), -np.inf),
        np.where(known, scale * (mass - mass_error - over_mass), 0.0),
        np.where(known, scale * (mass + mass_error) + FLUSHED, 1.0),
    )


def _elsewhere(total: Sum, tilt: _Tilt, span: _Span, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds on the wrap-around error at each x, for the weights e^{-order d} and d e^{-order d}.

    Mass outside the window is charged the largest weight. Mass inside the window is charged the weight one
    period later, in cells below the mean.
    """
    order, h = tilt.order, total.spacing
    around = span.points * h
    low = total.least + h * span.first
    end = low + around
    down, up = (total.log_moment(u) - tilt.log_total for u in (order - span.down, order + span.up))
    beside = 0.0
    if span.first > 0:
        beside += math.exp(min(down + span.down * low, 0.0))
    if span.first + span.points <= total.last:
        beside += math.exp(min(up - span.up * end, 0.0))
    # Geometric sums over the second and all later periods.
    more = math.exp(-order * around)
    once_more = 1.0 / (1.0 - more)
    further = around * more * once_more**2
    mass = np.full(x.size, beside * once_more)
    value = np.full(x.size, beside / (math.e * order) + (beside + _CELLS) * further)
    starts = np.linspace(low, max(tilt.mean, low), _CELLS)
    shares = np.append(np.exp(np.minimum(down + span.down * starts[1:], 0.0)), 1.0)
    for start, share in zip(starts.tolist(), shares.tolist()):
        away = around + start - x
        mass += share * np.exp(-order * away) * once_more
        away = np.maximum(away, 1.0 / order)
        value += share * away * np.exp(-order * away)
    return mass * (1.0 + 1e-4), value * (1.0 + 1e-4)


def _orders(total: Sum, ends: tuple[float, float]) -> list[float]:
    """Orders of tilts that together cover the interval.

    The product of the differences of orders and of means of neighbours is about the square of their distance
    in standard deviations. No point of the interval is farther than half of that distance from the nearest
    tilt.
    """
    apart = _TILT_SDS if total.number <= _FEW else _TILT_SDS_MANY
    order, mean, last = total.order(ends[0]), ends[0], total.order(ends[1])
    sd, orders = total.about(order)[1], []
    away = 0.5 * apart
    while len(orders) < _MAX_TILTS:
        step = away / max(sd, total.spacing)
        while (total.about(order + step)[0] - mean) * step > 2.0 * away**2:
            step *= 0.5
        order += step
        orders.append(order)
        mean, sd = total.about(order)
        away = apart
        if order >= last or (last - order) * (ends[1] - mean) <= (0.5 * apart) ** 2:
            break
    return orders


def tail_of(total: Sum, ends: tuple[float, float], heavy: bool, most: int, upper: bool) -> Tail:
    """Best bound of several tilts at lattice points of the interval `ends`.

    heavy: one large term may dominate; then one tilt may suffice.
    """
    place, spacing = _FAR * (ends[0] or ends[1]), total.spacing
    order = total.order(place) if heavy else 0.0
    alone = order > 0.0 and total.about(order)[1] > _FAR_SDS * place
    orders = [order] if alone else _orders(total, ends)
    # Upper bounds use chords between evaluated points, which exceed the tail by little; lower bounds use points alone.
    wide = min(_FINE / max(orders), (ends[1] - ends[0]) / _FEWEST) * (1.0 if upper else 0.25)
    stride = 1 << max(math.floor(math.log2(max(wide / spacing, 1.0))), 0)
    # The point before the interval, a multiple of the stride; slack shifts the interval.
    first = (math.floor((ends[0] - total.least) / spacing) - 1) // stride * stride
    start, h = total.least + spacing * first, spacing * stride
    size = math.ceil((ends[1] - start) / h) + 1
    best = Tail(start, h, np.full(size, math.inf if upper else -math.inf), np.zeros(size), np.ones(size))
    for order in orders:
        found = _tilted(total, order, first, most, stride, upper)
        ahead = (found.first - first) // stride
        begin = max(ahead, 0)
        skip = begin - ahead
        count = max(min(size - begin, found.value.size - skip), 0)
        here, there = slice(begin, begin + count), slice(skip, skip + count)
        better = found.value[there] < best.value[here] if upper else found.value[there] > best.value[here]
        for ours, theirs in zip(best[2:3] if upper else best[2:], found[1:]):
            ours[here][better] = theirs[there][better]
    return best


def outweighs(steps: LatticeSteps, number: float, end: float, high: float, sd: float) -> float:
    """Lower bound on the probability that a sum exceeds number + end, given that one L is at least `high`."""
    if high >= number + end:
        return 1.0
    # Deficit: the sum of the other terms, minus their means, would have to be below -lack.
    lack = end + 1.0 - high
    orders = np.asarray([0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) / sd
    logs = [(number - 1.0) * steps.log_moment(-u) + u * lack for u in orders.tolist()]
    return max(1.0 - math.exp(min(min(logs), 0.0)) * (1.0 + 1e-6), 0.0)
