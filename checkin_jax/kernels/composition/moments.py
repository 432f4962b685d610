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
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, clones, require_float64
from checkin_jax.kernels.clones import Buckets, MixtureLaw
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import binned, holds, nonzero, quietly, xp

# Number of geometric nodes beyond the even ones, and largest share of the range of theta that the even ones cover.
_FAR, _MOST = 48, 0.9
# Levels in which numbers of labels below the mixture's range are counted.
_LEVELS = 32
# e^-33 of a moment is below its rounding.
_NEXT_TO_NOTHING = 33.0


class Discretization(NamedTuple):
    """Static choices: buckets (0: the law itself, absent counts below `absences`), offsets, and number of nodes."""

    buckets: int
    absences: int
    offsets: tuple[float, ...]
    nodes: int


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
    """(N, weight) of the mass missing in the mixture, at its worst place y = 0.

    Mass above the mixture's range of N, or with y below its ends, counts at the least N. Mass below the range counts
    level by level, at the least N of the level, by Chernoff's bound.
    """
    law = lane.law
    least = xp.min(mix.number)
    # Four exponentially small masses, and the numbers that XLA flushes to zero.
    rest = 4.0 * xp.exp(-lane.neg_log_tail) * (law.weight @ (law.scale * law.special)) + FLUSHED
    if law.n.shape[0] > 1:  # several parts: the worst case is a single label
        return xp.ones_like(rest)[None], rest[None]
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
    weight = xp.where(ends > starts, xp.exp(log_mass), 0.0) * (law.scale * special)
    return xp.concatenate([starts + 1.0, least[None]]), xp.concatenate([weight, rest[None]])


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


def _mixed(lane: Lane, choice: Discretization, mix: Buckets) -> Array:
    """`_log_excess` of a mixture and of its missing mass."""
    half = 0.5 * lane.epsilon0
    theta = _spaced(xp.minimum(lane.fine, _MOST * half)[None], half, choice.nodes)
    masses = _on_nodes(mix.number, mix.ratio, mix.weight, theta, lane, choice)
    number, weight = _left_out(lane, mix)
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
        excess = _mixed(lane, choice, clones.buckets_upper(*own) if mix is None else mix)
    # Rounding of exponents of this size.
    excess = excess + ROUNDING + 1e-15 * lane.orders * lane.epsilon0
    found = xp.logaddexp(0.0, excess) * (1.0 + 1e-12)
    return xp.where(xp.isnan(found), xp.inf, found)
