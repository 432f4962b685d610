r"""Sums of independent indicators with unequal probabilities: masses with two-sided bounds, at a cost
independent of n.

A sum T of few indicators is convolved term by term, with positive terms and no cancellation. Otherwise, for a
tilt t,

    Pr[T = k] = e^{K(t) - t k} (1/M) sum_f phi_t(w_f) e^{-i k w_f},    w_f = 2 pi f / M,

up to the tilted mass at distance M or more from k. Here K = log E e^{tT}, and phi_t is the characteristic
function of the tilted law. As |phi_t(w)| <= exp(-2 V_t sin^2(w/2)), some twenty frequencies suffice for any
number of terms. A dozen tilts, one near every k of interest, keep the error relative to the answer far out in
the tails. Many different probabilities are binned, each bin with its central moments: with
v = (e^z - 1) / (1 + c (e^z - 1)),

    log(1 + q (e^z - 1)) = log(1 + c (e^z - 1)) + sum_r (-1)^{r+1} (q - c)^r v^r / r,

and the remainder of the series is bounded. The law of T is log-concave (Newton). So between stored points its
logarithm lies above chords and below their extensions. NumPy float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.numerics.counts.occupancy import deviation

# Most indicators that are convolved; most stored points of a law. More than _GROUPS groups are binned, with
# this width in the logit, at most _BINS bins, and _MOMENTS central moments each.
_FEW, _POINTS = 1024, 8192
_GROUPS, _WIDTH, _BINS, _MOMENTS = 256, 0.02, 1024, 8
# Distance of tilts in standard deviations: values between are within a factor of 3 of the largest.
_APART = 3.0
# Neglected mass of a tilted law: e^-_DEEP.
_DEEP = 46.0
_TINY = 1e-290


class Indicators(NamedTuple):
    """Independent indicators in groups of nearly equal probability q, in (0, 1).

    centre, spread (the largest |q - centre|): [groups]. moments: sum (q - centre)^r for r = 0.._MOMENTS,
    [_MOMENTS + 1, groups]; row 0 is the number of indicators. sure: number of further indicators that are
    certain.
    """

    centre: np.ndarray
    spread: np.ndarray
    moments: np.ndarray
    sure: float

    @property
    def number(self) -> float:
        """Number of indicators that are not certain."""
        return float(self.moments[0].sum())

    @property
    def mean(self) -> float:
        """Mean of the sum."""
        return self.sure + float(self.moments[0] @ self.centre + self.moments[1].sum())

    @property
    def variance(self) -> float:
        """Variance of the sum."""
        first, second = self.moments[1], self.moments[2]
        rest = self.moments[0] @ (self.centre * (1.0 - self.centre)) + first @ (1.0 - 2.0 * self.centre)
        return max(float(rest - second.sum()), 0.0)


def trials(probs: np.ndarray, counts: np.ndarray | None = None) -> Indicators:
    """Groups of indicators with these probabilities in [0, 1], each `counts` times (whole numbers, default
    1).
    """
    probs = np.asarray(probs, dtype=np.float64)
    counts = np.ones_like(probs) if counts is None else np.asarray(counts, dtype=np.float64)
    sure = float(counts[probs >= 1.0].sum())
    kept = (probs > 0) & (probs < 1.0) & (counts > 0)
    if not kept.all():
        probs, counts = probs[kept], counts[kept]
    if probs.size <= _GROUPS:
        moments = np.zeros((_MOMENTS + 1, probs.size))
        moments[0] = counts
        return Indicators(probs, np.zeros_like(probs), moments, sure)
    logit = np.log(probs) - np.log1p(-probs)
    low, high = float(logit.min()), float(logit.max())
    bins = min(math.ceil((high - low) / _WIDTH) + 1, _BINS)
    place = np.minimum(((logit - low) * (bins / max(high - low, 1e-300))).astype(np.int64), bins - 1)
    size = np.bincount(place, counts, bins)
    centre = np.bincount(place, counts * probs, bins) / np.where(size > 0, size, 1.0)
    away = probs - centre[place]
    spread = np.zeros(bins)
    np.maximum.at(spread, place, np.abs(away))
    moments = np.empty((_MOMENTS + 1, bins))
    power = counts
    for r in range(_MOMENTS + 1):
        moments[r] = np.bincount(place, power, bins)
        power = power * away
    seen = size > 0
    return Indicators(centre[seen], spread[seen], moments[:, seen], sure)


class SumLaw(NamedTuple):
    """Two-sided bounds on the masses of a sum at first + stride i, and of the runs between these points;
    [points].

    lower, upper: of single values. run_lower, run_upper: of the values first + stride i .. first + stride
    (i+1) - 1 (the last run ends at `last`). below, above: upper bounds on the probabilities of less than
    `first` and more than `last`.
    """

    first: float
    last: float
    stride: float
    lower: np.ndarray
    upper: np.ndarray
    run_lower: np.ndarray
    run_upper: np.ndarray
    below: float
    above: float

    @property
    def values(self) -> np.ndarray:
        """First values of the runs."""
        return self.first + self.stride * np.arange(self.lower.size)


def law(of: Indicators, neg_log_tail: float) -> SumLaw:
    """Law of the sum, without at most exp(-neg_log_tail) on either side.

    Each value has a proven error, relative errors near 1e-11. Masses below 1e-290 are not resolved.
    """
    total = of.number
    if total <= _FEW and not of.spread.any():
        return _convolved(of, neg_log_tail)
    mean, variance = of.mean - of.sure, of.variance * (1.0 + 1e-9)
    radius = deviation(variance, neg_log_tail) + 1e-12 * mean + 1.0
    first, last = max(math.floor(mean - radius), 0.0), min(math.ceil(mean + radius), total)
    stride = float(math.ceil((last - first + 1.0) / _POINTS))
    at = first + stride * np.arange(math.floor((last - first) / stride) + 1.0)
    lower, upper = pmf(of, at)
    left = math.exp(-neg_log_tail) if first > 0 else 0.0
    right = math.exp(-neg_log_tail) if last < total else 0.0
    runs = _runs(lower, upper, stride, last - at[-1] + 1.0)
    return SumLaw(first + of.sure, last + of.sure, stride, lower, upper, *runs, left, right)


def _convolved(of: Indicators, neg_log_tail: float) -> SumLaw:
    pmf = np.ones(1)
    for prob, count in zip(of.centre.tolist(), of.moments[0].tolist()):
        for _ in range(int(count)):
            pmf = np.append(pmf * (1.0 - prob), 0.0) + np.append(0.0, pmf * prob)
    # Three roundings per term, and underflow.
    slack = 4.0 * UNIT * (of.number + 4.0)
    upper = pmf * (1.0 + slack) + _TINY
    lower = np.maximum(pmf * (1.0 - slack) - _TINY, 0.0)
    return SumLaw(of.sure, of.sure + of.number, 1.0, lower, upper, lower, upper, 0.0, 0.0)


def _runs(lower: np.ndarray, upper: np.ndarray, stride: float, rest: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the masses of the runs from those at the points, by log-concavity."""
    if stride == 1.0:
        return lower, upper
    size = lower.size
    low, high = np.log(np.maximum(lower, _TINY)), np.log(np.maximum(upper, _TINY))
    steps = np.arange(stride)[None, :]
    length = np.full(size, stride)
    length[-1] = rest
    inside = steps < length[:, None]
    chord = np.append((low[1:] - low[:-1]) / stride, 0.0)
    below = np.where(inside, np.exp(low[:, None] + chord[:, None] * steps), 0.0)
    # The last run has no next point: its first value alone is the lower bound.
    below[-1, 1:] = 0.0
    before = np.append(math.inf, (high[1:] - low[:-1]) / stride)
    after = np.append((low[1:] - high[:-1]) / stride, -math.inf)
    # log p(x) <= log p(x_i) + (x - x_i) slope(i-1, i), and <= log p(x_{i+1}) - (x_{i+1} - x) slope(i+1, i+2).
    with np.errstate(over="ignore", invalid="ignore"):
        from_left = high[:, None] + np.where(steps > 0, before[:, None] * steps, 0.0)
        next_slope = np.append(after[1:], -math.inf)
        from_right = np.append(high[1:], math.inf)[:, None] - (stride - steps) * next_slope[:, None]
    ceiling = np.minimum(np.minimum(from_left, from_right), 0.0)
    above = np.where(inside, np.exp(ceiling), 0.0)
    known = lower > 10.0 * _TINY
    slack = 1e-13 * stride
    return np.where(known, below.sum(axis=1) * (1.0 - slack), 0.0), above.sum(axis=1) * (1.0 + slack)


def _tilted(of: Indicators, tilts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the tilted sum, from the bins' centres; [tilts]."""
    c, size = of.centre[None, :], of.moments[0]
    z = np.exp(tilts)[:, None]
    a = c * z / (1.0 - c + c * z)
    return a @ size, (a * (1.0 - a)) @ size


def _tilts(of: Indicators, targets: np.ndarray) -> np.ndarray:
    """Tilts with approximately these means; every tilt is valid."""
    low, high = np.full(targets.size, -60.0), np.full(targets.size, 60.0)
    t = np.zeros(targets.size)
    for _ in range(60):
        mean, variance = _tilted(of, t)
        high, low = np.where(mean >= targets, t, high), np.where(mean < targets, t, low)
        off = targets - mean
        if (np.abs(off) <= 0.01 * np.sqrt(variance) + 1e-3).all():
            break
        step = t + off / np.maximum(variance, 1e-300)
        t = np.where((step > low) & (step < high), step, 0.5 * (low + high))
    return t


def pmf(of: Indicators, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the probabilities of these values, from tilts a few standard deviations apart."""
    deviation = math.sqrt(max(of.variance, 1.0))
    span = float(at[-1] - at[0])
    number = max(math.ceil(span / (_APART * deviation)), 1)
    total = of.number
    targets = at[0] + span * (np.arange(number) + 0.5) / number
    tilts = _tilts(of, np.clip(targets, 0.25, max(total - 0.25, 0.25)))
    owner = np.minimum(((at - at[0]) * (number / max(span, 1e-300))).astype(np.int64), number - 1)
    lower, upper = np.empty(at.size), np.empty(at.size)
    for i, tilt in enumerate(tilts.tolist()):
        mine = owner == i
        if mine.any():
            lower[mine], upper[mine] = _at_tilt(of, tilt, at[mine])
    return lower, np.minimum(upper, 1.0)


def _at_tilt(of: Indicators, tilt: float, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    c, size, z = of.centre, of.moments[0], math.exp(tilt)
    bottom = 1.0 - c + c * z
    a = c * z / bottom
    # v at w = 0, and bounds on the first-order error of the bins and on their variance.
    v = math.expm1(tilt) / bottom
    real_x = of.spread * abs(v)
    if (real_x >= 0.5).any():
        raise ArithmeticError("bins of probabilities too wide for this tilt")
    slope = z / np.square(bottom)
    mean = float(a @ size + slope @ of.moments[1])
    mean_error = float((size * slope * of.spread) @ (real_x / (1.0 - real_x))) + 1e-12 * mean
    # A shift of the logit by `wide` changes the variance a (1 - a) by at most this factor.
    wide = of.spread / np.maximum(np.minimum(c, 1.0 - c) - of.spread, 1e-300)
    factor = np.where(of.spread > 0, np.exp(2.0 * np.minimum(wide, 100.0)), 1.0)
    most, least = float((a * (1.0 - a) * factor) @ size), float((a * (1.0 - a) / factor) @ size)
    radius = deviation(most, _DEEP)
    away = float(np.abs(at - mean).max()) + mean_error
    modulus = 2 * math.ceil(0.5 * (radius + away) + 1.0) + 1
    half = (modulus - 1) // 2
    # Frequencies at which the transform is not negligible.
    share = min(math.sqrt(0.5 * _DEEP / max(least, 1e-300)), 1.0)
    kept = min(math.ceil(modulus * math.asin(share) / math.pi) + 1, half)
    beyond = 0.0
    if kept < half:
        beyond = 2.0 * half * math.exp(-2.0 * least * math.sin(math.pi * (kept + 1) / modulus) ** 2)
    w = 2.0 * math.pi / modulus * np.arange(kept + 1.0)[:, None]
    s, sine = np.square(np.sin(0.5 * w)), np.sin(w)
    log_size = 0.5 * np.log1p(-4.0 * (a * (1.0 - a))[None, :] * s)
    angle = np.arctan2(a[None, :] * sine, 1.0 - 2.0 * a[None, :] * s)
    total_size, total_angle = log_size @ size, angle @ size
    wrong = 8.0 * UNIT * (np.abs(log_size) @ size + np.abs(angle) @ size)
    logs = np.log1p(c * math.expm1(tilt))
    log_m, log_m_size = float(size @ logs), float(size @ np.abs(logs))
    if of.spread.any():
        # e^z - 1 at z = tilt + i w, without cancellation.
        turn = z * (-2.0 * s + 1j * sine) + math.expm1(tilt)
        v_w = turn / (1.0 + c[None, :] * turn)
        x = np.abs(v_w) * of.spread[None, :]
        if (x >= 0.5).any():
            raise ArithmeticError("bins of probabilities too wide for this tilt")
        power, real_power = np.ones_like(v_w), np.ones_like(v)
        for r in range(1, _MOMENTS + 1):
            power, real_power = power * v_w, real_power * v
            sign = (1.0 if r % 2 else -1.0) / r
            here, real_here = power @ of.moments[r], float(real_power @ of.moments[r])
            total_size += sign * (here.real - real_here)
            total_angle += sign * here.imag
            log_m += sign * real_here
            wrong += 8.0 * UNIT * (np.abs(power) @ np.abs(of.moments[r]))
        left = (x ** (_MOMENTS + 1) / (1.0 - x)) @ size / (_MOMENTS + 1)
        wrong += 2.0 * left
        log_m_size += float(left.max()) / (8.0 * UNIT)
    phi = np.exp(total_size)
    phase = total_angle[:, None] - w * at[None, :]
    # Rounding of two sums of this size, and of the product k w.
    off = phi * np.expm1(np.minimum(wrong, 30.0)) + phi * 8.0 * UNIT * (
        w[:, 0] * float(at[-1]) + np.abs(total_angle) + 4.0
    )
    twice = np.where(np.arange(kept + 1) == 0, 1.0, 2.0)
    value = ((twice * phi) @ np.cos(phase)) / modulus
    error = (float(twice @ off) + beyond) / modulus + 4.0 * math.exp(-_DEEP)
    log_scale = log_m - tilt * at
    slack = 16.0 * UNIT * (log_m_size + abs(tilt) * at + 4.0)
    scale = np.exp(np.minimum(log_scale, 700.0))
    high = np.where(log_scale <= 700.0, (value + error) * scale * np.exp(slack), 1.0) + _TINY
    low = np.maximum((value - error) * scale * np.exp(-slack) - _TINY, 0.0)
    return np.where(log_scale <= 700.0, low, 0.0), high


def poisson_law(mean: float, neg_log_tail: float) -> SumLaw:
    """Poisson law with this mean, as returned by `law`; relative errors below 1e-10 for means up to 2^42."""
    radius = deviation(mean, neg_log_tail) + 1.0
    first, last = max(math.floor(mean - radius), 0.0), float(math.ceil(mean + radius))
    stride = float(math.ceil((last - first + 1.0) / _POINTS))
    at = first + stride * np.arange(math.floor((last - first) / stride) + 1.0)
    k = np.maximum(at, 1.0)
    log_pmf = -binomial.stirling_error(host(k)) - binomial.deviance(host(k), host(mean), host(k - mean))
    pmf = np.where(at > 0, np.exp(log_pmf) / np.sqrt(2.0 * np.pi * k), math.exp(-mean))
    lower, upper = np.maximum(pmf * (1.0 - 1e-10) - _TINY, 0.0), pmf * (1.0 + 1e-10) + _TINY
    outside = math.exp(-neg_log_tail)
    runs = _runs(lower, upper, stride, last - at[-1] + 1.0)
    return SumLaw(first, last, stride, lower, upper, *runs, outside if first > 0 else 0.0, outside)
