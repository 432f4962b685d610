"""Binomial probabilities, accurate up to n = 1e12, and certified sums of them over long windows and of their tails.

Tails above the mean cost no more for larger n. `prob` is q, or None for fair signs (q = 1/2), which are cheaper and
more accurate. The table in each row has the pmf from about M q upwards. It is exact if every value fits. Otherwise it
has every stride-th value, and log-concavity of the pmf bounds the sums between: chords of its logarithm from below,
tangents from above (relative gap about (stride / standard deviation)^2 / 12).
"""

from __future__ import annotations

import decimal
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp

_LOG_2PI = math.log(2.0 * math.pi)


def _stirling_error_table(size: int) -> tuple[float, ...]:
    """log(n!) - log(sqrt(2 pi n) (n/e)^n) for n < size, correctly rounded; 0 at n = 0 (never used)."""
    with decimal.localcontext() as context:
        context.prec = 40
        half_log_2pi = decimal.Decimal("0.9189385332046727417803297364056176398614")
        values = [0.0]
        for n in range(1, size):
            log_n = decimal.Decimal(n).ln()
            log_factorial = decimal.Decimal(math.factorial(n)).ln()
            values.append(float(log_factorial - (n + decimal.Decimal("0.5")) * log_n + n - half_log_2pi))
    return tuple(values)


_STIRLING_ERROR = _stirling_error_table(16)


def stirling_error(n: Array) -> Array:
    """log(n!) minus Stirling's formula, for whole n >= 1; absolute error below 1e-17 [Loa00].

    A table for n below 16; else six terms of the asymptotic series (the seventh is below 2e-18).
    """
    table = xp.asarray(_STIRLING_ERROR, dtype=n.dtype)
    small = xp.take(table, xp.clip(n, 0, len(_STIRLING_ERROR) - 1).astype(xp.int32), mode="clip")
    large = xp.maximum(n, 16.0)
    inv2 = 1.0 / (large * large)
    series = 1 / 1188 - inv2 * (691 / 360360)
    for coefficient in (1 / 1680, 1 / 1260, 1 / 360, 1 / 12):
        series = coefficient - inv2 * series
    return xp.where(n < len(_STIRLING_ERROR), small, series / large)


def deviance(x: Array, mean: Array, diff: Array) -> Array:
    """x log(x/mean) + mean - x for x, mean > 0; diff: x - mean to full precision."""
    v = diff / (x + mean)
    near = xp.abs(v) < 0.1
    w = xp.where(near, v, 0.0)
    w2 = w * w
    series = xp.zeros_like(w)
    for j in range(9, 0, -1):
        series = w2 * (1.0 / (2 * j + 1) + series)
    close = diff * w + 2.0 * x * w * series
    return xp.where(near, close, x * xp.log(x / mean) - diff)


def _minus_product(x: Array, n: Array, p: Array) -> Array:
    """x - n p without the rounding of n p: whole n below 2^42, p in [0, 1]; exact to one rounding."""
    n_high = xp.floor(n / 2.0**21) * 2.0**21
    n_low = n - n_high
    p_high = backend.leading_bits(p)
    p_low = p - p_high
    return (((x - n_high * p_high) - n_low * p_high) - n_high * p_low) - n_low * p_low


@quietly
def log_pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """log Pr[Bin(n, p) = k] by Loader's saddle point.

    Args:
      k, n: whole numbers in float64, 0 <= k <= n <= 2^42; broadcast against each other and p.
      p: success probability in [0, 1].

    Returns:
      Natural logarithm, -inf where the probability is zero. Error below 1e-13 max(1, |value|) against 50-digit
      references for n up to 1e12 (tests/bounds/test_binomial.py). A difference of log-gammas would have an error of
      4e-6 at n = 1e9. JAX differentiates it in n, as a real number, and in p.
    """
    k, n, p = xp.broadcast_arrays(*(xp.asarray(v, dtype=xp.float64) for v in (k, n, p)))
    return (_differentiable_log_pmf if backend.of_jax(k) else _log_pmf)(k, n, p)


def _log_pmf(k: Array, n: Array, p: Array) -> Array:
    inside = (k > 0) & (k < n) & (p > 0) & (p < 1)
    # Harmless values where the formula does not apply, so that no NaN arises.
    ks, ns, ps = xp.where(inside, k, 1.0), xp.where(inside, n, 2.0), xp.where(inside, p, 0.5)
    rest = ns - ks
    diff = _minus_product(ks, ns, ps)
    # Each function once, since copies would be compiled one by one.
    wrong, here_wrong, rest_wrong = stirling_error(xp.stack([ns, ks, rest]))
    here_apart, rest_apart = deviance(
        xp.stack([ks, rest]), xp.stack([ns * ps, ns * (1.0 - ps)]), xp.stack([diff, -diff])
    )
    saddle = wrong - here_wrong - rest_wrong - (here_apart + rest_apart)
    interior = saddle + 0.5 * (xp.log(ns / ks / rest) - _LOG_2PI)
    at_zero = n * log1p(-p)
    at_n = n * xp.log(p)
    # 0 * log 0: a certain event, not NaN.
    at_zero = xp.where(n == 0, 0.0, at_zero)
    at_n = xp.where(n == 0, 0.0, at_n)
    edge = xp.where(k == 0, at_zero, xp.where(k == n, at_n, -xp.inf))
    return xp.where(inside, interior, edge)


_differentiable_log_pmf = jax.custom_jvp(_log_pmf)


def _slope_in_n(tangent: Array, _: Array, k: Array, n: Array, p: Array) -> Array:
    """digamma(n + 1) - digamma(n - k + 1) + log(1 - p), times the tangent; 0 for p = 1."""
    rest, certain = jnp.maximum(n - k, 0.0), p >= 1
    p = jnp.where(certain, 0.5, p)

    def beyond_log(y: Array) -> Array:
        """digamma(y + 1/2) - log(y) for y >= 16."""
        inverse = 1.0 / (y * y)
        return inverse * (1 / 24 - inverse * (7 / 960 - inverse * (31 / 8064)))

    # A difference of two digammas would lose the digits that nearly cancel at large n.
    ratio = (_minus_product(k, n, p) - 0.5 * p) / (rest + 0.5)
    large = jnp.where(rest < 16.0, 0.0, ratio)
    far = log1p(large) + beyond_log(jnp.maximum(n, 16.0) + 0.5) - beyond_log(jnp.maximum(rest, 16.0) + 0.5)
    digamma = jax.scipy.special.digamma
    near = digamma(n + 1.0) - digamma(jnp.minimum(rest, 16.0) + 1.0) + log1p(-p)
    return tangent * jnp.where(certain, 0.0, jnp.where(rest < 16.0, near, far))


def _slope_in_p(tangent: Array, _: Array, k: Array, n: Array, p: Array) -> Array:
    """(k - n p) / (p (1 - p)) times the tangent; at p = 0 and 1 of the outcome that is certain."""
    inside = (p > 0) & (p < 1)
    safe = jnp.where(inside, p, 0.5)
    certain = jnp.where(p >= 1, jnp.where(k == n, n, 0.0), jnp.where(k == 0, -n, 0.0))
    return tangent * jnp.where(inside, _minus_product(k, n, safe) / (safe * (1.0 - safe)), certain)


_differentiable_log_pmf.defjvps(None, _slope_in_n, _slope_in_p)


@quietly
def log_chernoff(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Chernoff's upper bound on log Pr[Bin(n, p) is at k or beyond, on k's side of the mean], rounded up.

    Args as in `log_pmf`; -inf where k is negative.
    """
    k, n, p = xp.broadcast_arrays(*(xp.asarray(v, dtype=xp.float64) for v in (k, n, p)))
    # At 0 and n Chernoff's bound is the probability itself.
    within = (k > 0) & (k < n) & (p > 0) & (p < 1)
    ks, ns, ps = xp.where(within, k, 1.0), xp.where(within, n, 2.0), xp.where(within, p, 0.5)
    diff = _minus_product(ks, ns, ps)
    inside = -(deviance(ks, ns * ps, diff) + deviance(ns - ks, ns * (1.0 - ps), -diff))
    everywhere = backend.holds(within)
    value = inside if everywhere else xp.where(within, inside, log_pmf(xp.maximum(k, 0.0), n, p))
    return xp.where(k < 0, -xp.inf, xp.minimum(value * (1.0 - 1e-12) + 1e-12, 0.0))


def log_pmf_half(k: Array, n: Array) -> Array:
    """log Pr[Bin(n, 1/2) = k], float64 whole numbers 0 <= k <= n; error below 1e-13 max(1, |value|)."""
    inside = (k > 0) & (k < n)
    ks, ns = xp.where(inside, k, 1.0), xp.where(inside, n, 2.0)
    rest = ns - ks
    u = (ks - rest) / ns
    # sum_j u^2j / (2j (2j - 1)) near the middle, where the logarithms would cancel.
    near = xp.abs(u) < 0.1
    u2 = xp.where(near, u * u, 0.0)
    series = xp.zeros_like(u2)
    for j in range(8, 0, -1):
        series = u2 * (1.0 / (2 * j * (2 * j - 1)) + series)
    log_more, log_less = log1p(u), log1p(-u)
    deviance = ns * xp.where(near, series, 0.5 * ((1.0 + u) * log_more + (1.0 - u) * log_less))
    wrong, here_wrong, rest_wrong = stirling_error(xp.stack([ns, ks, rest]))
    saddle = wrong - here_wrong - rest_wrong - deviance
    # n / (k (n - k)) = 4 / (n (1 - u^2))
    interior = saddle - 0.5 * (xp.log(ns) + log_more + log_less) + 0.5 * (math.log(4.0) - _LOG_2PI)
    return xp.where(inside, interior, -n * math.log(2.0))


class BinomialCells(NamedTuple):
    """A window of a binomial law cut into buckets, with certified masses.

    Attributes (each [buckets], except for `tail`):
      first, last: first and last value in the bucket (float64 whole numbers; empty buckets have mass 0).
      mass_upper, mass_lower: bounds on the probability of the bucket.
      mean_upper, mean_lower: bounds on the mean value in the bucket under the masses of `mass_upper`, respectively
        `mass_lower`.
      tail: upper bound on the probability outside the window.
    """

    first: Array
    last: Array
    mass_upper: Array
    mass_lower: Array
    mean_upper: Array
    mean_lower: Array
    tail: Array


_PARTS = 4


def geometric_sum(log_ratio: Array, length: Array) -> Array:
    """sum_{t=0}^{length-1} exp(t log_ratio), stable at log_ratio = 0; 0 for length 0."""
    flat = xp.abs(log_ratio * length) < 1e-9
    safe = xp.where(flat, 1.0, log_ratio)
    return xp.where(
        flat, length * (1.0 + 0.5 * (length - 1.0) * log_ratio), xp.expm1(length * safe) / xp.expm1(safe)
    )


def bernstein_radius(variance: Array, neg_log_tail: Array) -> Array:
    """t with Pr[|X - E X| > t] <= 2 exp(-neg_log_tail) for any sum of independent {0,1} variables."""
    third = neg_log_tail / 3.0
    radius = third + xp.sqrt(third * third + 2.0 * variance * neg_log_tail)
    return xp.where(variance > 0, radius, 0.0)


def edges(low: Array, high: Array, mean: Array, deviation: Array, buckets: int) -> tuple[Array, Array]:
    """First and last value of each bucket: single values if these fit, else narrower in the middle than in the tails.

    The error of a bucket increases with its mass times its width. In the middle, widths are proportional to the density
    to the power -1/4, which is nearly optimal. 3/16 of the buckets cover each tail evenly, at any length.
    """
    single = low + xp.arange(buckets + 1, dtype=xp.float64)
    side = 3 * buckets // 16
    middle = buckets - 2 * side
    steps = xp.arange(1, middle, dtype=xp.float64) / middle
    inner = mean + 2.0 * deviation * backend.ndtri(steps)
    share = xp.arange(side + 1, dtype=xp.float64) / (side + 1)
    # One additional bucket on either side of the middle ends where the even ones begin.
    below = low + (xp.maximum(inner[0], low) - low) * share
    above = high + 1.0 - (high + 1.0 - xp.minimum(inner[-1], high + 1.0)) * share[::-1]
    spread = xp.round(xp.concatenate([below, xp.clip(inner, low, high + 1.0), above]))
    ends = xp.minimum(xp.where(high - low + 1.0 <= buckets, single, spread), high + 1.0)
    return ends[:-1], ends[1:] - 1.0


@quietly
def cells(n: Array, p: Array, neg_log_tail: Array, buckets: int) -> BinomialCells:
    """Cuts the relevant window of Bin(n, p) into `buckets` runs of values.

    The window contains all but 2 exp(-neg_log_tail) of the law (Bernstein). A bucket of up to four values is summed
    term by term. A longer one is summed in four parts by the log-concavity of the law: tangents of log pmf give the
    upper sum, chords the lower one. So the cost does not grow with n. Their relative gap is about (part / standard
    deviation)^2 / 8.

    Args:
      n, p: scalars, n >= 0 whole as float64, p in [0, 1].
      neg_log_tail: scalar, -log of the allowed mass outside the window.
      buckets: static number of buckets.
    """
    mean = n * p
    radius = bernstein_radius(mean * (1.0 - p), neg_log_tail)
    low = xp.maximum(0.0, xp.floor(mean - radius))
    high = xp.minimum(n, xp.ceil(mean + radius))
    first, last = edges(low, high, mean, xp.sqrt(mean * (1.0 - p)), buckets)
    part = xp.ceil((last - first + 1.0) / _PARTS)[:, None]
    starts = first[:, None] + part * xp.arange(_PARTS, dtype=xp.float64)[None, :]
    length = xp.clip(last[:, None] + 1.0 - starts, 0.0, part)
    starts = xp.minimum(starts, n)
    before = xp.maximum(xp.floor(0.5 * (length - 1.0)), 0.0)
    middle = xp.minimum(starts + before, n)
    ends = xp.clip(starts + length - 1.0, 0.0, n)

    log_middle, log_first, log_last = log_pmf(xp.stack([middle, starts, ends]), n, p)
    odds = xp.log(p) - log1p(-p)
    # log pmf(x + 1) - log pmf(x), decreasing in x: the tangent at the middle bounds the part from above.
    at_end = middle >= n
    slope = xp.where(at_end, 0.0, xp.log(xp.where(at_end, 1.0, n - middle) / (middle + 1.0)) + odds)
    single = length <= 1.0
    slope = xp.where(single | ~xp.isfinite(slope), 0.0, slope)
    upper = xp.exp(log_middle - before * slope) * geometric_sum(slope, length)

    chord = xp.where(single, 0.0, (log_last - log_first) / xp.maximum(length - 1.0, 1.0))
    chord = xp.where(xp.isfinite(chord), chord, 0.0)
    lower = xp.exp(log_first) * geometric_sum(chord, length)

    # The mean under exp(slope t) lies within |slope| (length^2 - 1) / 12 of the centre, on the slope's side.
    centre = starts + 0.5 * (length - 1.0)
    mean_part = centre + xp.maximum(slope, 0.0) * (length * length - 1.0) / 12.0
    mass_upper = xp.sum(upper, axis=1)
    mean_upper = xp.sum(upper * mean_part, axis=1) / xp.where(mass_upper > 0, mass_upper, 1.0)
    mean_upper = xp.clip(xp.where(mass_upper > 0, mean_upper, last), first, xp.maximum(first, last))
    mass_lower = xp.sum(lower, axis=1)
    mean_lower = xp.sum(lower * starts, axis=1) / xp.where(mass_lower > 0, mass_lower, 1.0)
    mean_lower = xp.clip(mean_lower, first, xp.maximum(first, last))
    tail = xp.where((low <= 0) & (high >= n), 0.0, 2.0 * xp.exp(-neg_log_tail))
    return BinomialCells(first, xp.maximum(first, last), mass_upper, mass_lower, mean_upper, mean_lower, tail)


def mean_inverse(first: Array, last: Array, mean: Array) -> Array:
    """Upper bound on E[1/X] for X in [first, last] with at least this mean, since 1/x is below its chord."""
    return (first + last - mean) / (first * last)


class BinomialRuns(NamedTuple):
    """Runs of values of K ~ Bin(n, p) that cover 1..n, each array of shape [runs].

    Attributes:
      first, last: float64 whole numbers, 0 <= first <= last <= n.
      log_upper, log_lower: bounds on the log probability of the run; equal for single values. The tails' lower bound is
        -inf.
    """

    first: Array
    last: Array
    log_upper: Array
    log_lower: Array


# A window of runs holds all but 2 e^-60 of the law; the runs of the two tails hold the rest.
LOG_INVERSE_MASS = 60.0
_TAIL_RUNS = 128


def runs(n: Array, p: Array, size: int) -> BinomialRuns:
    """`size` runs for the window, single values if these fit, then 128 for each tail; n >= 1, p in (0, 1], scalars.

    Tangents of the concave log pmf bound the probability of a run from above, its chords from below. K = 0 may be
    missing.
    """
    mean = n * p
    variance = mean * (1.0 - p)
    radius = bernstein_radius(variance, jnp.asarray(LOG_INVERSE_MASS))
    low, high = jnp.maximum(jnp.floor(mean - radius), 0.0), jnp.minimum(n, jnp.ceil(mean + radius))
    first, last = edges(low, high, mean, jnp.sqrt(variance), size)
    length = last - first + 1.0
    first, last = jnp.minimum(first, n), jnp.minimum(jnp.maximum(first, last), n)
    log_first = log_pmf(first, n, p)
    single = length <= 1.0
    before = jnp.maximum(jnp.floor(0.5 * (length - 1.0)), 0.0)
    middle = first + before
    # log pmf(x + 1) - log pmf(x), decreasing in x.
    bent = ~single & (middle < n) & (p < 1)
    odds = jnp.where(bent, (n - middle) / (middle + 1.0) * p / jnp.where(bent, 1.0 - p, 1.0), 1.0)
    slope = jnp.log(odds)
    chord = jnp.where(single, 0.0, (log_pmf(last, n, p) - log_first) / jnp.maximum(length - 1.0, 1.0))
    chord = jnp.where(jnp.isfinite(chord), chord, 0.0)
    count = jnp.maximum(length, 1.0)
    upper = log_pmf(middle, n, p) - before * slope + jnp.log(geometric_sum(slope, count))
    lower = log_first + jnp.log(geometric_sum(chord, count))
    upper, lower = (jnp.where(length < 1.0, -jnp.inf, part) for part in (upper, lower))
    tails = _below(n, p, low - 1.0), _above(n, p, high + 1.0)
    return BinomialRuns(*(jnp.concatenate(parts) for parts in zip((first, last, upper, lower), *tails)))


def _tail(low: Array, high: Array) -> tuple[Array, Array]:
    """First and last values of runs from low to high in geometric progression; some may be empty."""
    steps = jnp.arange(_TAIL_RUNS + 1, dtype=jnp.float64) / _TAIL_RUNS
    ends = jnp.round(low * ((high + 1.0) / low) ** steps).at[0].set(low).at[-1].set(high + 1.0)
    return ends[:-1], ends[1:] - 1.0


def _of_tail(
    first: Array, last: Array, at: Array, ratio: Array, n: Array, p: Array, some: Array
) -> BinomialRuns:
    """Runs whose pmf falls by `ratio` or faster from `at` outwards: P <= pmf(at) / (1 - ratio), by log-concavity."""
    some = some & (last >= first)
    log_mass = log_pmf(at, n, p) - log1p(-jnp.where(some, ratio, 0.0))
    log_mass = jnp.where(some, log_mass, -jnp.inf)
    return BinomialRuns(first, jnp.maximum(first, last), log_mass, jnp.full_like(log_mass, -jnp.inf))


def _above(n: Array, p: Array, start: Array) -> BinomialRuns:
    """Runs from start, beyond the mode, to n."""
    first, last = _tail(jnp.minimum(start, n), n)
    ratio = (n - first) / (first + 1.0) * p / jnp.where(p < 1, 1.0 - p, 1.0)
    return _of_tail(first, last, first, ratio, n, p, start <= n)


def _below(n: Array, p: Array, end: Array) -> BinomialRuns:
    """Runs from 1 to end, before the mode."""
    first, last = _tail(jnp.ones_like(end), jnp.maximum(end, 1.0))
    ratio = last / (n - last + 1.0) * (1.0 - p) / p
    return _of_tail(first, last, jnp.maximum(last, 0.0), ratio, n, p, end >= 1)


class Tables(NamedTuple):
    """Rows of `points` values from `start` in steps of `stride`: log pmf, and the tail strictly beyond."""

    trials: Array
    start: Array
    stride: Array
    log_pmf: Array
    beyond: Array


# Sizes of exact tables, and the size for any number of trials.
POINTS = (128, 512)
STRIDED = (256, False)


def table_size(largest_number: float, neg_log_tail: float, prob: float = 0.5) -> tuple[int, bool]:
    """(points, exact): a static table size for up to this many trials, from a short ladder."""
    radius = math.sqrt(0.5 * largest_number * neg_log_tail) + 4.0
    for points in POINTS:
        if points >= min(radius, (1.0 - prob) * largest_number + 4.0):
            return points, True
    return STRIDED


def _log_pmf_of(k: Array, trials: Array, prob: Array | None) -> Array:
    return log_pmf_half(k, trials) if prob is None else log_pmf(k, trials, prob)


def _log_odds(prob: Array | None) -> Array | float:
    return 0.0 if prob is None else xp.log(prob) - log1p(-prob)


def _start(trials: Array, prob: Array | None) -> Array:
    """First value of tables, at most the mean for every rounding of M q."""
    if prob is None:
        return xp.ceil(0.5 * trials)
    return xp.maximum(xp.floor(trials * prob) - 1.0, 0.0)


def _run_of_tail(
    log_first: Array,
    log_next: Array,
    first: Array,
    length: Array,
    trials: Array,
    prob: Array | None,
    upper: bool,
) -> Array:
    """One-sided bound on the sum of the pmf over `length` values from `first`.

    Lower: the chord of log pmf from `first` to the value after the run, log_next. Upper: the tangent at
    `first`.
    """
    if upper:
        at_end = first >= trials
        step = xp.log(xp.where(at_end, 1.0, trials - first) / (first + 1.0)) + _log_odds(prob)
        slope = xp.where(at_end, 0.0, step)
        length = xp.where(at_end, xp.minimum(length, 1.0), length)
    else:
        # A run beyond the last value has an infinite chord; its first term alone remains.
        finite = xp.isfinite(log_next)
        slope = xp.where(finite, (log_next - log_first) / xp.maximum(length, 1.0), 0.0)
        length = xp.where(finite, length, xp.minimum(length, 1.0))
    slope = xp.where(length > 1.0, slope, 0.0)
    known = xp.isfinite(log_first)
    return xp.where(known, xp.exp(log_first) * geometric_sum(slope, length), 0.0)


def tabulate(
    trials: Array, prob: Array | None, neg_log_tail: Array, points: int, exact: bool, upper: bool
) -> Tables:
    """Tables for each of `trials` (whole, >= 0, [rows]); tails from above if `upper`, else from below."""
    m = trials[:, None]
    start = _start(m, prob)
    mean = 0.5 * m if prob is None else m * prob
    radius = xp.sqrt(0.5 * m * neg_log_tail)
    if prob is not None:
        radius = xp.minimum(radius, bernstein_radius(mean * (1.0 - prob), neg_log_tail))
    # Hoeffding, Bernstein: Pr[Bin > top] <= exp(-neg_log_tail).
    top = xp.minimum(m, xp.ceil(mean + radius) + 1.0)
    outside = xp.where(top < m, xp.exp(-neg_log_tail), 0.0) if upper else xp.zeros_like(m)
    steps = xp.arange(points, dtype=xp.float64)[None, :]
    if exact:
        at = start + steps
        # pmf(x + 1) / pmf(x) = odds (m - x) / (x + 1), zero from x = m on.
        ratios = xp.maximum(m - at[:, :-1], 0.0) / (at[:, :-1] + 1.0) * xp.exp(_log_odds(prob))
        pmf = xp.exp(_log_pmf_of(start, m, prob)) * xp.concatenate(
            [xp.ones_like(m), xp.cumprod(ratios, axis=1)], axis=1
        )
        beyond = xp.cumsum(pmf[:, :0:-1], axis=1)[:, ::-1]
        beyond = xp.concatenate([beyond, xp.zeros_like(m)], axis=1)
        stride = xp.ones_like(trials)
        return Tables(trials, start[:, 0], stride, xp.log(pmf), beyond + outside)
    stride = xp.maximum(xp.ceil((top - start + 1.0) / (points - 1)), 1.0)
    at = start + stride * steps
    held = xp.minimum(at, m)
    logs = xp.where(at <= m, _log_pmf_of(held, m, prob), -xp.inf)
    length = xp.broadcast_to(stride, held[:, 1:].shape)
    piece = _run_of_tail(logs[:, :-1], logs[:, 1:], held[:, :-1], length, m, prob, upper)
    from_here = xp.cumsum(piece[:, ::-1], axis=1)[:, ::-1]
    tail = xp.concatenate([from_here, xp.zeros_like(m)], axis=1) + outside
    return Tables(trials, start[:, 0], stride[:, 0], logs, tail)


@quietly
def look_up(tables: Tables, prob: Array | None, a: Array, exact: bool, upper: bool) -> tuple[Array, Array]:
    """(Pr[Bin = a - 1], Pr[Bin >= a]) for whole a with a - 1 >= trials prob - 1, [rows, queries].

    The tail is bounded on the side of the tables (`upper`). The pmf is exact, except beyond the end of an
    exact table, where its error has the opposite direction: a pmf from above with a lower tail, zero with an
    upper tail.
    """
    m, start = tables.trials[:, None], tables.start[:, None]
    if exact:
        last = tables.log_pmf.shape[1] - 1
        offset = a - 1.0 - start
        index = xp.clip(offset, 0, last).astype(xp.int32)
        pmf = xp.exp(xp.take_along_axis(tables.log_pmf, index, axis=1))
        tail = xp.take_along_axis(tables.beyond, index, axis=1)
        past = offset > last
        return xp.where(past & upper, 0.0, pmf), xp.where(past & (not upper), 0.0, tail)
    inside = a <= m + 1.0
    at = xp.where(inside, a, m + 1.0)
    log_pmf = _log_pmf_of(at - 1.0, m, prob)
    has_tail = at <= m
    held = xp.minimum(at, m)
    # pmf(a) / pmf(a - 1) = odds (m - a + 1) / a
    log_here = xp.where(has_tail, log_pmf + xp.log((m - held + 1.0) / held) + _log_odds(prob), -xp.inf)
    stride, last = tables.stride[:, None], tables.log_pmf.shape[1] - 1
    k = xp.clip(xp.ceil((held - start) / stride), 0, last)
    grid = start + k * stride
    gap = xp.maximum(grid - held, 0.0)
    index = k.astype(xp.int32)
    log_next = xp.take_along_axis(tables.log_pmf, index, axis=1)
    partial = _run_of_tail(log_here, xp.where(gap > 0, log_next, 0.0), held, gap, m, prob, upper)
    tail = xp.take_along_axis(tables.beyond, index, axis=1) + xp.where(gap > 0, partial, 0.0)
    # Beyond the table: all mass outside of it (upper), or the first term alone (lower).
    first_only = xp.where(xp.isfinite(log_here), xp.exp(log_here), 0.0)
    tail = xp.where(
        grid < held, xp.take_along_axis(tables.beyond, index, axis=1) if upper else first_only, tail
    )
    return xp.where(inside, xp.exp(log_pmf), 0.0), xp.where(has_tail, tail, 0.0)
