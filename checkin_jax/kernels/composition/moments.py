r"""Upper bounds on Renyi moments of the pairs of `kernels.clones`, at real orders, at a cost independent of n.

Given N and y (see `clones`) the two densities are a (1 + x) and a (1 - x) at N0 - N1 = s N, with a = (p + 1)/2 + y and
x = tanh(theta) = (p - 1) s / (2 a); s and -s are equally likely. So for an order lam > 1

    A(lam) - 1 = E[ a (f(x) - 1) ],    f - 1 = 2 sinh(lam theta) sinh((lam - 1) theta) / cosh(theta),

a sum of positive terms, so moments within 1e-16 of one keep their digits. Three facts give upper bounds:

* f is the even part of g = (1 + x)^lam (1 - x)^(1 - lam), whose Taylor coefficients obey (k + 1) g_{k+1} = (2 lam - 1)
  g_k + (k - 2) g_{k-1} with g_0 = 1 and g_1 = 2 lam - 1, so 2 g_2 = g_1^2 - 1 and none
  is negative: f is convex and increasing in x^2. Mass between two nodes moves to them, with the mean of x^2 preserved.
* The law of N0 is log-concave: between two nodes the tangent of its logarithm at the middle gives a geometric sum.
* A(lam) is an f-divergence, so like hockey-stick divergences it is nonincreasing in y and in N. The mixtures of
  `clones.buckets_upper` give upper bounds, and their missing mass counts at its worst place.

Unless N is small the coefficients serve by themselves, with the moments of s: after K terms the rest of f - 1 is at
most (x / X)^2K (f(X) - 1), X = tanh(epsilon0 / 2) the largest x.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, clones, require_float64
from checkin_jax.kernels.clones import Buckets, MixtureLaw
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import binned, holds, logsumexp, nonzero, quietly, states, xp

# Number of geometric nodes beyond the even ones, and largest share of the range of theta that the even ones cover.
_FAR, _MOST = 48, 0.9
# Levels in which numbers of labels below the mixture's range are counted.
_LEVELS = 32
# e^-33 of a moment is below its rounding.
_NEXT_TO_NOTHING = 33.0
# Terms of the recurrence for moments of sums of signs; the rest is below 1e-10 of the first for k <= N.
_SIGNS = 8


class Discretization(NamedTuple):
    """Static choices: buckets (0: the law itself, absent counts below `absences`), offsets, and nodes or terms.

    terms: of the series, which needs no nodes; 0 with nodes.
    """

    buckets: int
    absences: int
    offsets: tuple[float, ...]
    nodes: int
    terms: int = 0


class Lane(NamedTuple):
    """One unit and some orders.

    law: [parts]. epsilon0, neg_log_tail: scalars. deviations: range of s with even nodes, in standard deviations.
    fine: range of theta with even nodes. orders: [orders], > 1.
    """

    law: MixtureLaw
    epsilon0: Array
    neg_log_tail: Array
    deviations: Array
    fine: Array
    orders: Array


def _whole(y: Array, epsilon0: Array) -> Array:
    """2 a / p."""
    return 1.0 + xp.exp(-epsilon0) * (1.0 + 2.0 * y)


def _sides(s: Array, rest: Array, y: Array, epsilon0: Array) -> tuple[Array, Array]:
    """x and 1 - x at s, rest = 1 - s."""
    drop, whole = -xp.expm1(-epsilon0), _whole(y, epsilon0)
    return drop * s / whole, (2.0 * xp.exp(-epsilon0) * (1.0 + y) + drop * rest) / whole


def _spaced(fine: Array, end: Array | float, count: int) -> Array:
    """Points from 0 evenly to `fine` [..., 1], then geometrically to `end`; [..., count + _FAR + 1]."""
    shape = (1,) * (fine.ndim - 1) + (-1,)
    even = fine * (xp.arange(count + 1, dtype=xp.float64) / count).reshape(shape)
    far = fine * (end / fine) ** (xp.arange(1, _FAR, dtype=xp.float64) / _FAR).reshape(shape)
    return xp.concatenate([even, far, xp.zeros_like(fine) + end], axis=-1)


def _place(value: Array, fine: Array, end: Array, count: int) -> Array:
    """Index of the last of `_spaced` that is not above a value in [0, end)."""
    near = xp.floor(value / fine * count)
    far = count + xp.floor(xp.log(xp.maximum(value / fine, 1.0)) / xp.log(end / fine) * _FAR)
    return xp.clip(xp.where(value < fine, xp.minimum(near, count - 1.0), far), 0, count + _FAR - 1).astype(
        xp.int32
    )


def _at_edges(n: Array, edges: Array) -> Array:
    """Masses at edges of s [labels, edges] in [0, 1] that dominate Bin(n, 1/2) on 0 < s <= 1; n: [labels, 1]."""
    upto = xp.clip(xp.floor(0.5 * n * (1.0 + edges)), xp.floor(0.5 * n), n)
    first, length = upto[:, :-1] + 1.0, xp.diff(upto)
    empty = length < 1.0
    first, length = xp.where(empty, n, first), xp.where(empty, 1.0, length)
    before = xp.floor(0.5 * (length - 1.0))
    middle = first + before
    at_end = middle >= n
    # log pmf(k) - log pmf(k + 1), increasing in k and nonnegative beyond n / 2.
    fall = xp.log((middle + 1.0) / xp.where(at_end, 1.0, n - middle))
    fall = xp.where(at_end | (length <= 1.0), 0.0, xp.maximum(fall, 0.0))
    mass = xp.exp(
        binomial.log_pmf_half(middle, n) + before * fall + xp.log(binomial.geometric_sum(-fall, length))
    )
    # Upper bounds on the mean and variance of a geometric law on the run: by series, or those of an infinite run.
    square = length * length
    series = fall * (square - 1.0) / 12.0 - fall**3 * (square * square - 1.0) / 720.0
    mean, variance = 0.5 * (length - 1.0) - xp.maximum(series, 0.0), (square - 1.0) / 12.0
    endless = 1.0 / xp.where(fall > 0, xp.expm1(fall), 1.0)
    mean = xp.where(fall > 0, xp.minimum(mean, endless), mean)
    variance = xp.where(fall > 0, xp.minimum(variance, endless * (endless + 1.0)), variance)
    s = ((2.0 * first - n) + 2.0 * mean) / n
    low, high = xp.square(edges[:, :-1]), xp.square(edges[:, 1:])
    share = (s * s + 4.0 * variance / (n * n) - low) / (high - low)
    share = xp.clip(share, 0.0, 1.0)
    mass = xp.where(empty, 0.0, mass)
    none = xp.zeros_like(n)
    return xp.concatenate([mass * (1.0 - share), none], axis=1) + xp.concatenate([none, mass * share], axis=1)


def _on_nodes(
    number: Array, ratio: Array, weight: Array, theta: Array, lane: Lane, choice: Discretization
) -> Array:
    """Masses times 2 a / p at the nodes, [nodes], that dominate the labels', weighted.

    Each mass moves to the nodes beside it, with the mean of x^2 preserved. number: [labels]. ratio, weight: [labels,
    ratios].
    """
    epsilon0, n, count = lane.epsilon0, number[:, None], choice.nodes
    edges = _spaced(xp.minimum(lane.deviations / xp.sqrt(n), _MOST), 1.0, count)
    masses = _at_edges(n, edges)
    label, edge = nonzero(masses)
    s, y = edges[label, edge][:, None], ratio[label]
    x, below = _sides(s, 1.0 - s, y, epsilon0)
    place = _place(0.5 * log1p(2.0 * x / below), theta[count], theta[-1], count)
    low, high = theta[:-1], theta[1:]
    # Distance of x^2 from its value at the lower node; far from zero computed from 1 - x.
    small = x * x - xp.square(xp.tanh(low))[place]
    large = xp.square(1.0 / xp.cosh(low))[place] - below * (1.0 + x)
    gap = xp.sinh(high - low) * xp.sinh(high + low) / xp.square(xp.cosh(high) * xp.cosh(low))
    part = xp.where(low[place] < 0.5, small, large) / gap[place]
    share = xp.clip(part * (1.0 + 1e-12), 0.0, 1.0)
    mass = masses[label, edge][:, None] * weight[label] * _whole(y, epsilon0)
    nodes = theta.shape[0]
    return binned(place, mass * (1.0 - share), nodes) + binned(place + 1, mass * share, nodes)


def _left_out(lane: Lane, mix: Buckets) -> tuple[Array, Array]:
    """(N, log weight) of the mass missing in the mixture, at its worst place y = 0.

    Mass above the mixture's range of N, or with y below its ends, counts at the least N. Mass below the range counts
    level by level, at the least N of the level, by Chernoff's bound.
    """
    law = lane.law
    least = xp.min(mix.number)
    # Four exponentially small masses, and the numbers that XLA flushes to zero.
    rest = 4.0 * xp.exp(-lane.neg_log_tail) * (law.weight @ (law.scale * law.special)) + FLUSHED
    if law.n.shape[0] > 1:  # several parts: the worst case is a single label
        return xp.ones_like(rest)[None], xp.log(rest)[None]
    trials, special, most = law.n - 1.0, law.special, least - 1.0
    steps = xp.arange(_LEVELS, dtype=xp.float64) / _LEVELS
    ends = xp.where(most > 0, xp.floor(xp.maximum(most, 1.0) ** (1.0 - steps) * (1.0 + 1e-12)), 0.0)
    starts = xp.concatenate([ends[1:], xp.zeros_like(trials)])
    # N - 1 is binomial; at most end - 1.
    count, mean = xp.maximum(ends - 1.0, 0.0), trials * special
    inside = (count > 0) & (count < mean)
    c = xp.where(inside, count, 0.5 * mean)
    far = c * xp.log(c / mean) + (trials - c) * log1p((mean - c) / (trials - mean))
    log_mass = -xp.where(count > 0, xp.where(inside, far, 0.0), -trials * log1p(-special)) * (1.0 - 1e-9)
    log_weight = xp.where(ends > starts, log_mass, -xp.inf) + xp.log(law.scale * special)
    return xp.concatenate([starts + 1.0, least[None]]), xp.concatenate([log_weight, xp.log(rest)[None]])


def _outcomes(lane: Lane, choice: Discretization) -> tuple[Array, Array]:
    """(theta, mass times 2 a / p) of every outcome s > 0 of a law of few draws."""
    mix = clones.buckets_exact(lane.law, choice.absences)
    n, y = mix.number[:, None, None], mix.ratio[:, :, None]
    k = xp.floor(0.5 * n) + xp.arange(1.0, clones.SMALL // 2 + 1.0)[None, None, :]
    valid = k <= n
    k = xp.minimum(k, n)
    x, below = _sides((2.0 * k - n) / n, 2.0 * (n - k) / n, y, lane.epsilon0)
    mass = mix.weight[:, :, None] * _whole(y, lane.epsilon0) * xp.exp(binomial.log_pmf_half(k, n))
    return 0.5 * log1p(2.0 * x / below).ravel(), xp.where(valid, mass, 0.0).ravel()


def _log_excess(theta: Array, mass: Array, lane: Lane) -> Array:
    """log(A(lam) - 1) of masses times 2 a / p at theta, [orders]."""
    # Weights flushed to zero count at the largest loss.
    theta = xp.concatenate([theta, 0.5 * lane.epsilon0[None]])
    mass = xp.concatenate([mass, xp.asarray([FLUSHED])])
    # 2 sinh(lam h) sinh(t h) / cosh h = e^{2 t h} (1 - e^{-2 lam h}) (1 - e^{-2 t h}) / (1 + e^{-2 h}), t = lam - 1.
    base = xp.where(mass > 0, xp.log(mass), -xp.inf) - log1p(xp.exp(-2.0 * theta)) + lane.epsilon0
    base, theta, order = base[None, :], theta[None, :], lane.orders[:, None]
    size = base + 2.0 * (order - 1.0) * theta
    peak = xp.max(size, axis=1, keepdims=True)
    near = xp.expm1(-2.0 * order * theta) * xp.expm1(-2.0 * (order - 1.0) * theta)
    return peak[:, 0] + xp.log(xp.sum(xp.exp(size - peak) * near, axis=1))


def _log_coefficients(orders: Array, terms: int) -> Array:
    """log g_2k at each order, k = 1, ..., terms; [orders, terms]."""
    odd = 2.0 * orders - 1.0

    def step(state: tuple[Array, Array], row: tuple[Array]) -> tuple[Array, Array]:
        (ratio, value), (k,) = state, row
        # Successive ratios are those of positive terms: (k + 1) g_{k+1} / g_k = 2 lam - 1 + (k - 2) g_{k-1} / g_k.
        first = (odd + (k - 2.0) / ratio) / (k + 1.0)
        second = (odd + (k - 1.0) / first) / (k + 2.0)
        return second, value + xp.log(first * second)

    start = xp.ones_like(odd), xp.log(2.0 * orders) + xp.log(orders - 1.0)
    later = states(step, start, (xp.arange(2.0, 2.0 * terms, 2.0),))[1]
    return xp.concatenate([start[1][None], later]).T


def _relative_moments(number: Array, terms: int) -> Array:
    """E S^2k of a sum S of N signs over (2k - 1)!! N^k, that of a normal law; [labels, terms], rounded up.

    With cosh(t)^N = sum a_k t^2k, k a_k = sum_j (j N - k + j) a_{k-j} / (2j)!; up to k = N all terms are positive, and
    those beyond `_SIGNS` are rounding. S^2k is at most N^2k, and the quotient falls in k: for the sum S' of the other
    signs E S g(S) = N E (g(S' + 1) - g(S' - 1)) / 2, a mean of g', which is convex if g is an odd power.
    """
    n, j = number[None, :, None], np.arange(1.0, _SIGNS + 1.0)[None, None, :]
    k = np.arange(1.0, terms + 1.0)[:, None, None]
    falling = np.cumprod(np.maximum(k + 1.0 - j, 0.0), axis=2) * (1.0 + 1e-10) / k
    shares = (2.0 / n) ** j / scipy.special.factorial(2.0 * j) * falling * (j * n + j - k)
    most = xp.cumprod(n / (2.0 * k - 1.0), axis=0)
    serve = (k <= n)[:, :, 0]

    def step(before: Array, row: tuple[Array, Array, Array]) -> Array:
        share, limit, serves = row
        here = xp.where(serves[:, None], (share * before).sum(axis=1, keepdims=True), 1.0)
        here = xp.minimum(here, xp.minimum(before[:, :1], limit))
        return xp.concatenate([here, before[:, :-1]], axis=1)

    # Quotients of k, k - 1, ...
    start = xp.eye(1, _SIGNS) + xp.zeros_like(n[0])
    return states(step, start, (shares, most, serve))[:, :, 0].T


def _by_series(lane: Lane, terms: int, mix: Buckets) -> Array:
    """`_log_excess` of a mixture, and of its missing mass, by the coefficients of f and the moments of s."""
    power = xp.arange(1.0, terms + 1.0)[None, :]
    least, missing = _left_out(lane, mix)
    ratio = xp.concatenate([mix.ratio, xp.zeros((least.shape[0], mix.ratio.shape[1]))])
    # What is missing counts at the first ratio, zero.
    alone = xp.where(xp.arange(mix.ratio.shape[1])[None, :] == 0, missing[:, None], -xp.inf)
    whole = _whole(ratio, lane.epsilon0)
    log_weight = xp.concatenate([xp.log(mix.weight), alone]) + xp.log(whole)
    # E x^2k is the power k of these, times (2k - 1)!! and a relative moment.
    number = xp.concatenate([mix.number, least])
    log_square = 2.0 * xp.log(-xp.expm1(-lane.epsilon0) / whole) - xp.log(number)[:, None]
    by_label = logsumexp(log_weight[:, :, None] + power[None] * log_square[:, :, None], axis=1)
    double = xp.cumsum(xp.log(2.0 * power - 1.0), axis=1)
    # Powers of s are at most 1: enough for what is missing.
    relative = xp.log(_relative_moments(mix.number, terms))
    of_missing = xp.minimum(power * xp.log(least)[:, None] - double, 0.0)
    log_moment = logsumexp(by_label + xp.concatenate([relative, of_missing]), axis=0)[None, :]
    log_moment = log_moment + double + (lane.epsilon0 - math.log(2.0))
    log_terms = _log_coefficients(lane.orders, terms) + log_moment
    rest = log_moment[:, -1] + _log_rest(lane, terms)
    return logsumexp(xp.concatenate([log_terms, rest[:, None]], axis=1), axis=1)


def _log_rest(lane: Lane, terms: int) -> Array:
    """log of a bound on all terms beyond the last, over its moment: (f(X) - 1) / X^(2 terms); [orders]."""
    half = 0.5 * lane.epsilon0
    # `_log_excess` of a mass of one at theta is p (f - 1) there.
    most = _log_excess(half[None], xp.ones_like(half)[None], lane) - lane.epsilon0
    return most - 2.0 * terms * xp.log(xp.tanh(half))


def _mixed(lane: Lane, choice: Discretization, mix: Buckets) -> Array:
    """`_log_excess` of a mixture and of its missing mass."""
    half = 0.5 * lane.epsilon0
    theta = _spaced(xp.minimum(lane.fine, _MOST * half)[None], half, choice.nodes)
    masses = _on_nodes(mix.number, mix.ratio, mix.weight, theta, lane, choice)
    number, log_weight = _left_out(lane, mix)
    weight = xp.exp(log_weight)
    plain = _log_excess(theta, masses, lane)
    # If negligible, all mass counts at the largest loss.
    most = xp.log(xp.sum(weight) * _whole(xp.zeros_like(lane.epsilon0), lane.epsilon0))
    most = most + lane.orders * lane.epsilon0
    little, most = most < plain - _NEXT_TO_NOTHING, xp.logaddexp(plain, most)
    if holds(little):
        return most
    ratio = xp.zeros_like(number)[:, None]
    masses = masses + _on_nodes(number, ratio, weight[:, None], theta, lane, choice)
    # The result at an order must not depend on the other orders.
    return xp.where(little, most, _log_excess(theta, masses, lane))


@quietly
def log_moments(lane: Lane, choice: Discretization, mix: Buckets | None = None) -> Array:
    """Upper bounds on log A(lam) of one unit at each order; [orders], nats; infinity if no bound is known.

    mix: the mixture of the lane's law; None: it is computed.
    """
    require_float64(lane)
    if choice.buckets == 0:
        excess = _log_excess(*_outcomes(lane, choice), lane)
    else:
        own = lane.law, lane.neg_log_tail, choice.buckets, choice.offsets
        known = clones.buckets_upper(*own) if mix is None else mix
        excess = _by_series(lane, choice.terms, known) if choice.terms else _mixed(lane, choice, known)
    # Rounding of exponents of this size.
    excess = excess + ROUNDING + 1e-15 * lane.orders * lane.epsilon0
    found = xp.logaddexp(0.0, excess) * (1.0 + 1e-12)
    return xp.where(xp.isnan(found), xp.inf, found)
