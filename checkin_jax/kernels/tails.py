"""One-sided bounds on the tails of Bin(M, q) above its mean, at a cost that does not grow with M.

`prob` is q, or None for fair signs (q = 1/2), which are cheaper and more accurate. The table in each row has
the pmf from about M q upwards. It is exact if every value fits. Otherwise it has every stride-th value, and
log-concavity of the pmf bounds the sums between: chords of its logarithm from below, tangents from above
(relative gap about (stride / standard deviation)^2 / 12).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jax import Array

from checkin_jax.kernels import binomial
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import quietly, xp


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


def _log_pmf(k: Array, trials: Array, prob: Array | None) -> Array:
    return binomial.log_pmf_half(k, trials) if prob is None else binomial.log_pmf(k, trials, prob)


def _log_odds(prob: Array | None) -> Array | float:
    return 0.0 if prob is None else xp.log(prob) - log1p(-prob)


def _start(trials: Array, prob: Array | None) -> Array:
    """First value of tables, at most the mean for every rounding of M q."""
    if prob is None:
        return xp.ceil(0.5 * trials)
    return xp.maximum(xp.floor(trials * prob) - 1.0, 0.0)


def _run(
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
    return xp.where(known, xp.exp(log_first) * binomial.geometric_sum(slope, length), 0.0)


def tabulate(
    trials: Array, prob: Array | None, neg_log_tail: Array, points: int, exact: bool, upper: bool
) -> Tables:
    """Tables for each of `trials` (whole, >= 0, [rows]); tails from above if `upper`, else from below."""
    m = trials[:, None]
    start = _start(m, prob)
    mean = 0.5 * m if prob is None else m * prob
    radius = xp.sqrt(0.5 * m * neg_log_tail)
    if prob is not None:
        radius = xp.minimum(radius, binomial.bernstein_radius(mean * (1.0 - prob), neg_log_tail))
    # Hoeffding, Bernstein: Pr[Bin > top] <= exp(-neg_log_tail).
    top = xp.minimum(m, xp.ceil(mean + radius) + 1.0)
    outside = xp.where(top < m, xp.exp(-neg_log_tail), 0.0) if upper else xp.zeros_like(m)
    steps = xp.arange(points, dtype=xp.float64)[None, :]
    if exact:
        at = start + steps
        # pmf(x + 1) / pmf(x) = odds (m - x) / (x + 1), zero from x = m on.
        ratios = xp.maximum(m - at[:, :-1], 0.0) / (at[:, :-1] + 1.0) * xp.exp(_log_odds(prob))
        pmf = xp.exp(_log_pmf(start, m, prob)) * xp.concatenate(
            [xp.ones_like(m), xp.cumprod(ratios, axis=1)], axis=1
        )
        beyond = xp.cumsum(pmf[:, :0:-1], axis=1)[:, ::-1]
        beyond = xp.concatenate([beyond, xp.zeros_like(m)], axis=1)
        stride = xp.ones_like(trials)
        return Tables(trials, start[:, 0], stride, xp.log(pmf), beyond + outside)
    stride = xp.maximum(xp.ceil((top - start + 1.0) / (points - 1)), 1.0)
    at = start + stride * steps
    held = xp.minimum(at, m)
    logs = xp.where(at <= m, _log_pmf(held, m, prob), -xp.inf)
    length = xp.broadcast_to(stride, held[:, 1:].shape)
    piece = _run(logs[:, :-1], logs[:, 1:], held[:, :-1], length, m, prob, upper)
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
    log_pmf = _log_pmf(at - 1.0, m, prob)
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
    partial = _run(log_here, xp.where(gap > 0, log_next, 0.0), held, gap, m, prob, upper)
    tail = xp.take_along_axis(tables.beyond, index, axis=1) + xp.where(gap > 0, partial, 0.0)
    # Beyond the table: all mass outside of it (upper), or the first term alone (lower).
    first_only = xp.where(xp.isfinite(log_here), xp.exp(log_here), 0.0)
    tail = xp.where(
        grid < held, xp.take_along_axis(tables.beyond, index, axis=1) if upper else first_only, tail
    )
    return xp.where(inside, xp.exp(log_pmf), 0.0), xp.where(has_tail, tail, 0.0)
