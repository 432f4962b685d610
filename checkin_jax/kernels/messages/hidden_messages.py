r"""T*: shuffled messages of any randomizer with a known privacy profile D, as a sum of independent steps.

With D(c) the largest hockey-stick divergence between two inputs' laws, the round's divergence at c >= 1 is at
most gamma^n D(c) + (1/n) E(-n (c - 1) + S)_+. S is the sum of n steps of mean zero, each present with
probability gamma, with [docs/theory_gaussian.md]

    E(d - k)_+ = (c - k) D(c / (c - k)),  0 <= k <= c - 1;    D(1 + k),  k >= c - 1,
    E(-d - k)_+ = c D(1 + k / c),  k >= 0.

Chords over knots replace both functions, which moves mass outwards (a finite law, above in convex order).
Mass beyond the last knots is cut off, at a cost of at most the functions' values there times the expected
number of steps: E f(d) changes by no more, for every convex f with slopes between 0 and 1 that vanishes at
-infinity. So rare huge steps (a Gaussian randomizer has lognormal steps, without exponential moments) are cut
off where they matter less than the answer. E(x + S)_+ is a contour integral (`stop_loss`), with order, period
and cut chosen for each c. Every choice gives a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import numpy as np
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, require_float64, stop_loss
from checkin_jax.kernels.elementary import UNIT, cos, log1p, sin
from checkin_jax.kernels.execution.backend import (
    complex_of,
    largest_from_here,
    of_jax,
    product,
    quietly,
    vmap,
    xp,
)

# Frequencies are 32 a + b: cosines and sines of both parts give all frequencies by one matrix product.
SIDE = 32
NODES = SIDE * SIDE
# Standard deviation of the added normal variable over the period; times the last frequency it is 6.5.
SMOOTHING = 6.5 / (2.0 * math.pi * NODES)
# Orders tried for each c: _WINDOW of them from _LEAST / (-x + deviation) on. First every _EVERY-th cut at
# every _APART-th order, then the neighbours of the best.
_LEAST, _RATIO, _WINDOW, _EVERY, _APART = 0.3, 1.12, 56, 4, 3
# Periods in standard deviations of the sum and in -x; the longer one is used.
_PERIODS = ((20.0, 0.0), (20.0, 2.5), (20.0, 10.0))
# Approximate rounding relative to e^{t x} M(t) / t^2; only choices depend on it.
_PRECISION = 1e-12
# Relative error allowed in the values of D (ensured by the caller), and relative error of the law's slopes
# and mean: a few hundred roundings.
MARGIN = 1e-11
_MEAN = 1e-12


class StepTransforms(NamedTuple):
    """A step for each c, by its two stop-loss transforms on increasing knots from 0, all [..., c, knots].

    right: knots k; right_value: E(d - k)_+. left, left_value: knots k and E(-d - k)_+.
    """

    right: Array
    right_value: Array
    left: Array
    left_value: Array


class ChordLaw(NamedTuple):
    """A law for one c, or [...]: knots, negative chord slopes, values at the knots and at the
    last left knot.
    """

    right: Array
    fall: Array
    left: Array
    left_weights: Array
    left_mean: Array
    beyond: Array
    left_beyond: Array


class ContourChoice(NamedTuple):
    """A contour: its order, the knot at which laws are cut, and its period; scalars or [...]."""

    order: Array
    cut: Array
    period: Array


def _falls(knots: Array, value: Array) -> Array:
    """Negative slopes of the smallest convex nonincreasing majorant, relative to its last value."""
    gaps = xp.diff(knots)
    falls = xp.where(gaps > 0, (value[..., :-1] - value[..., 1:]) / xp.where(gaps > 0, gaps, 1.0), 0.0)
    return largest_from_here(xp.maximum(falls, 0.0))


def _drops(falls: Array) -> Array:
    """Point masses: differences of successive slopes."""
    return falls - xp.concatenate([falls[..., 1:], xp.zeros_like(falls[..., :1])], axis=-1)


def steps_of(law: StepTransforms) -> ChordLaw:
    fall = _falls(law.right, law.right_value * (1.0 + MARGIN))
    weights = _drops(_falls(law.left, law.left_value * (1.0 + MARGIN)))
    return ChordLaw(
        law.right,
        fall,
        law.left[..., 1:],
        weights,
        xp.sum(weights * law.left[..., 1:], axis=-1),
        law.right_value * (1.0 + MARGIN),
        law.left_value[..., -1] * (1.0 + MARGIN),
    )


def cut_at(steps: ChordLaw, cut: Array) -> tuple[Array, Array]:
    """Places and weights of the finite law without mass right of knot `cut`; mean zero up to `_MEAN`."""
    right = steps.right[..., 1:]
    weights = _drops(xp.where(xp.arange(right.shape[-1]) < cut[..., None], steps.fall, 0.0))
    mean = xp.sum(weights * right, axis=-1)
    most = xp.maximum(mean, steps.left_mean)
    # Places without weight must not overflow when tilted.
    at = xp.concatenate([xp.where(weights > 0, right, 0.0), -steps.left], axis=-1)
    left_weights = steps.left_weights * (most / steps.left_mean)[..., None]
    return at, xp.concatenate([weights * (most / mean)[..., None], left_weights], axis=-1)


def of_a_law(at: Array, weights: Array, rate: Array) -> tuple[Array, Array]:
    """Places and weights of sum at most 1/rate that dominate the given ones in convex order.

    Weights of a sum s > 1/rate, which margins make, become w / s', their places s' a, s' = rate s: (s' a - k)_+ is at
    least s' (a - k)_+ for k >= 0. The mean stays zero.
    """
    total = rate * xp.sum(weights, axis=-1, keepdims=True)
    excess = xp.where(total > 1.0, total * (1.0 + 1e-12), 1.0)
    return at * excess, weights / excess


class Paths(NamedTuple):
    """Data for the choice of contours: orders, log M at each order for every cut, and mass lost
    by every cut.

    orders: [orders], a geometric sequence of ratio _RATIO. log_m: [orders, cuts], entry j is for cut j + 1.
    lost: [cuts].
    """

    orders: Array
    log_m: Array
    lost: Array


def orders(near: float, far: float, deviation: float) -> np.ndarray:
    """Orders of contours for sums of this deviation at places x with near <= -x <= far."""
    least, most = _LEAST / (far + deviation), _LEAST / (near + deviation)
    return least * _RATIO ** np.arange(math.ceil(math.log(most / least) / math.log(_RATIO)) + _WINDOW)


def _second(z: Array) -> Array:
    """`stop_loss.second` of real z, accurate to 1e-12, in a fifth of the time."""
    near = xp.abs(z) < 1e-3
    far = xp.where(near, 1.0, z)
    series = 0.5 + z * (1.0 / 6.0 + z * (1.0 / 24.0 + z * (1.0 / 120.0)))
    return xp.where(near, series, (xp.expm1(far) - far) / xp.square(far))


def paths(steps: ChordLaw, count: Array, rate: Array, orders: Array) -> Paths:
    knots = steps.right[1:]
    part = xp.square(knots)[None, :] * _second(orders[:, None] * knots[None, :])
    falls, weights = steps.fall, _drops(steps.fall)
    before = xp.cumsum(weights[None, :] * part, axis=1) - weights[None, :] * part
    scale = steps.left_mean / xp.cumsum(falls * xp.diff(steps.right))
    right = (before + falls[None, :] * part) * xp.maximum(scale, 1.0)[None, :]
    part = _second(-orders[:, None] * steps.left[None, :])
    left = np.vecdot(part, steps.left_weights * xp.square(steps.left))
    log_m = count * log1p(rate * xp.square(orders)[:, None] * (right + left[:, None]))
    # Overflow gives no bound.
    log_m = xp.where(xp.isnan(log_m), math.inf, log_m)
    return Paths(orders, log_m, count * rate * xp.maximum(steps.beyond[1:], steps.left_beyond))


@quietly
def paths_of(
    rate: Float64[Array, ""],
    count: Float64[Array, ""],
    orders: Float64[Array, " orders"],
    laws: StepTransforms,
) -> Paths:
    """Paths for sums of `count` steps of the first law, each present with probability `rate`; one cut for
    all.
    """
    require_float64(rate, count, orders, laws)
    steps = [steps_of(StepTransforms(*(part[i] for part in laws))) for i in range(laws.right.shape[0])]
    beyond = xp.max(xp.stack([law.beyond for law in steps]), axis=0)
    left_beyond = xp.max(xp.stack([law.left_beyond for law in steps]))
    return paths(steps[0]._replace(beyond=beyond, left_beyond=left_beyond), count, rate, orders)


@quietly
def choose(paths: Paths, x: Array, deviation: Array) -> ContourChoice:
    """Order, cut and period of least expected error (images, rounding, smoothing and cut); [...].

    First the best of every few cuts, then the best of its neighbours. x: scalar or [...].
    """
    x = xp.asarray(x)
    far = -x
    first = xp.searchsorted(paths.orders, _LEAST / (far + deviation) * (1.0 - 1e-9))
    # The first axis is that of orders.
    steps = xp.arange(_WINDOW, dtype=first.dtype).reshape(-1, *(1,) * x.ndim)
    window = xp.minimum(first, paths.orders.size - _WINDOW)[None] + steps
    orders = paths.orders[window]
    periods = xp.stack(
        [xp.maximum(deviations * deviation, share * far) for deviations, share in _PERIODS], axis=-1
    )

    def best(orders: Array, log_m: Array, lost: Array) -> tuple[Array, Array, Array]:
        """Indices of the cheapest period, order (without the last one) and cut."""
        height = (orders * x[None])[..., None, None] + log_m[..., None, :]
        turns = periods[None] * orders[..., None]
        further = largest_from_here(turns[..., None] - height, axis=0)[1:]
        orders, turns = orders[:-1, ..., None], turns[:-1]
        spread = 0.1 * xp.square(turns * SMOOTHING) / orders
        noise = _PRECISION * (0.5 + 1.0 / turns) / orders
        # Exponentials that underflow are a hundred times as slow.
        images = xp.exp(xp.maximum(turns[..., None] - further, -600.0)) / orders[..., None]
        cost = images + xp.exp(xp.maximum(height[:-1], -600.0)) * (spread + noise)[..., None]
        cost = cost + (periods[None] * xp.exp(-turns))[..., None] + lost[..., None, :][None]
        # NaN is never chosen.
        cost = xp.fmin(cost, math.inf).reshape(*orders.shape[:-1], -1)
        least = xp.argmin(xp.min(cost, axis=0), axis=-1)
        row = xp.argmin(xp.take_along_axis(cost, least[None, ..., None], axis=-1)[..., 0], axis=0)
        return least // lost.shape[-1], row, least % lost.shape[-1]

    def at(values: Array, index: Array) -> Array:
        return xp.take_along_axis(values, xp.asarray(index)[..., None], axis=-1)[..., 0]

    some = paths.log_m[:, ::-_EVERY][window[::_APART]]
    lost = xp.broadcast_to(paths.lost[::-_EVERY], (*x.shape, some.shape[-1]))
    _, _, column = best(orders[::_APART], some, lost)
    cuts = paths.lost.size
    start = xp.clip(cuts - 1 - _EVERY * column - _EVERY, 0, max(cuts - 2 * _EVERY, 0))
    few = xp.asarray(start)[..., None] + xp.arange(min(2 * _EVERY, cuts))
    some = paths.log_m[window[..., None], few[None].astype(window.dtype)]
    period, row, column = best(orders, some, paths.lost[few])
    return ContourChoice(at(xp.moveaxis(orders, 0, -1), row), start + column + 1, at(periods, period))


def _turn(phase: Array) -> Array:
    """e^{i phase} - 1 without cancellation."""
    return complex_of(-2.0 * xp.square(sin(0.5 * phase)), sin(phase))


def powers(turn: Array, last: int) -> Array:
    """(1 + turn)^k - 1, k = 0 .. last, a power of two, within 30 roundings of k |turn|;
    [last + 1, places].
    """
    found = np.zeros((last + 1, turn.size), dtype=turn.dtype)
    size = 1
    while size < last:
        rows, more = found[:size], found[size : 2 * size]
        np.add(np.multiply(rows, turn, out=more), turn, out=more)
        np.add(more, rows, out=more)
        turn, size = turn + (turn + turn * turn), 2 * size
    found[last] = turn
    return found  # type: ignore[return-value]


def _row(at: Array, base: Array, tilted: Array) -> Array:
    """`transform` of one row of places: at [places], base scalar, tilted [kinds, places].

    k = SIDE a + b with |b| <= SIDE / 2. The products of cosines and sines are real, and the same for b and
    -b.
    """
    counted = xp.any(tilted != 0.0, axis=0)
    at, tilted = at[counted], tilted[:, counted]
    phase, half = base * at, SIDE // 2
    fast, slow = powers(_turn(SIDE * phase), SIDE), powers(_turn(phase), half)
    slow = xp.concatenate([xp.real(slow), xp.imag(slow)])
    alone = product(tilted, slow.T)[:, None]
    whole = xp.concatenate([1.0 + slow[: half + 1], slow[half + 1 :]])[None] * tilted[:, None]
    both = product(whole, xp.concatenate([xp.real(fast), xp.imag(fast)]).T[None])
    (even, over), (up, odd) = (
        (xp.swapaxes(part[..., : SIDE + 1], -1, -2), xp.swapaxes(part[..., SIDE + 1 :], -1, -2))
        for part in (both[:, : half + 1], both[:, half + 1 :])
    )
    even, up = even + alone[..., : half + 1], up + alone[..., half + 1 :]

    def in_order(middle: Array, apart: Array) -> Array:
        """middle - apart for b < 0 and middle + apart for other b, ordered by k from 0 on."""
        before = (middle - apart)[..., half - 1 : 0 : -1]
        every = xp.concatenate([before, middle + apart], axis=-1).reshape(middle.shape[0], -1)
        return every[:, half - 1 : half - 1 + NODES]

    return complex_of(in_order(even, -odd), in_order(over, up))


def transform(at: Array, base: Array, tilted: Array) -> Array:
    """sum_i tilted_i (e^{i k base at_i} - 1) at k = 0 .. NODES - 1; [..., kinds, NODES].

    at: [..., places]. base: [...]. tilted: [..., kinds, places]. Rows are treated one by one, so that each
    fits into the CPU cache.
    """
    if of_jax(at, base, tilted):
        return _transform_traced(at, base, tilted)
    before, (kinds, places) = at.shape[:-1], tilted.shape[-2:]
    base = xp.broadcast_to(base, before).reshape(-1)
    rows = vmap(_row)(at.reshape(-1, places), base, tilted.reshape(-1, kinds, places))
    return rows.reshape(*before, kinds, NODES)


def _transform_traced(at: Array, base: Array, tilted: Array) -> Array:
    """`transform` for JAX arrays, a node after the other: no array holds all places at all nodes."""
    phase = base[..., None] * at

    def node(k: Array) -> Array:
        turn = _turn(k * phase)[..., None, :]
        return complex_of(xp.sum(tilted * xp.real(turn), axis=-1), xp.sum(tilted * xp.imag(turn), axis=-1))

    found = jax.lax.map(node, xp.arange(NODES, dtype=phase.dtype), batch_size=SIDE)
    return xp.moveaxis(found, 0, -1)


def along(values: Array, base: Array, x: Array) -> Array:
    """Real part of sum_k values_k e^{-i k base x_j} over the first nodes, whose number is a multiple of SIDE.

    values: [..., sums, nodes]; base [...], x [..., places]. Returns [..., sums, places].
    """
    small = (base[..., None] * x)[..., None] * xp.arange(SIDE, dtype=xp.float64).reshape(*(1,) * x.ndim, -1)
    slow = complex_of(cos(small), -sin(small))
    large = SIDE * small[..., : values.shape[-1] // SIDE]
    fast = complex_of(cos(large), -sin(large))
    table = values.reshape(*values.shape[:-2], -1, SIDE)
    both = product(slow, xp.swapaxes(table, -1, -2)).reshape(*x.shape, -1, large.shape[-1])
    return xp.swapaxes(xp.sum(xp.real(fast[..., None, :] * both), axis=-1), -1, -2)


class Step(NamedTuple):
    """A step of a finite law on a contour: theta^2 T at the nodes, T(t), and error bounds.

    excess: [..., nodes]; the rest [...]. moved: error per unit of theta, since the mean is not exactly zero.
    tilt, terms: rounding of theta^2 T, and its rounding per unit of frequency.
    """

    excess: Array
    real: Array
    moved: Array
    tilt: Array
    terms: Array

    def off(self, theta: Array) -> Array:
        """Bound on the error of theta^2 T at the nodes, besides `stop_loss.rounding`."""
        moved, tilt, terms = (part[..., None] for part in self[2:])
        return moved * xp.abs(theta) + tilt + terms * xp.imag(theta)


def step_on(contour: stop_loss.Contour, at: Array, weights: Array, rate: Array) -> Step:
    """The finite law (at, weights) of `cut_at`, each step present with probability `rate`."""
    order = contour.order[..., None]
    tilted = weights * xp.exp(order * at)
    squares = weights * xp.square(at) * stop_loss.second(order * at)
    real = rate * xp.sum(squares, axis=-1)
    square = xp.square(contour.order)
    excess = transform(at, 2.0 * math.pi / contour.period, tilted[..., None, :])[..., 0, :]
    # The mean is not exactly zero: a shift of all values by this much covers it.
    moved = 2.0 * rate * _MEAN * xp.sum(xp.abs(at) * weights, axis=-1) * (1.0 + square * real / rate)
    # e^{t k} has an error of some roundings of t k, each factor of the matrix product one of some roundings
    # of |phase|. The phase has two parts, at most 2 and 1 times |phase|. A term of the product is at most
    # sqrt(2) times a factor of each part, in any order.
    exponents = xp.abs(order * at)
    tilt = 4.0 * UNIT * square * rate * xp.sum(squares * exponents, axis=-1)
    terms = tilted * xp.abs(at) * (at.shape[-1] + 40.0 + 2.0 * exponents)
    terms = 4.0 * UNIT * rate * xp.sum(terms, axis=-1)
    excess = rate.astype(excess.dtype) * excess + (square * real)[..., None].astype(excess.dtype)
    return Step(excess, real, moved, tilt, terms)


def shares(losses: Array) -> tuple[Array, Array]:
    """Weights of the first and the last of increasing losses in c = e^loss between them; [..., losses] each.

    Each weight has a small relative error, and so has a mixture of two laws by these weights.
    """
    first, last = losses[..., :1], losses[..., -1:]
    width = xp.expm1(last - first)
    apart = width > 0
    whole = xp.where(apart, width, 1.0)
    near = xp.exp(losses - first) * xp.expm1(last - losses) / whole
    return xp.where(apart, near, 1.0), xp.expm1(losses - first) / whole


def mixed(ends: Sequence[Step], weights: tuple[Array, Array]) -> Step:
    """Steps of mixtures of two laws with these weights [losses]; or of one law."""
    if len(ends) == 1:
        return Step(ends[0].excess[None], ends[0].real[None], *ends[0][2:])
    (first, last), (near, far) = ends, weights
    kind = first.excess.dtype
    excess = near[..., None].astype(kind) * first.excess + far[..., None].astype(kind) * last.excess
    errors = (xp.maximum(*both) for both in zip(first[2:], last[2:]))
    return Step(excess, near * first.real + far * last.real, *errors)


def add(
    total: stop_loss.ContourSum, contour: stop_loss.Contour, theta: Array, step: Step, count: Array
) -> stop_loss.ContourSum:
    """The sum with `count` more steps: scalar, or [...]."""
    total = stop_loss.add_excess(total, contour, theta, step.excess, step.real, count)
    size = xp.sqrt(1.0 + stop_loss.squared(step.excess))
    return total._replace(
        log_mgf=total.log_mgf + count * (step.moved * contour.order + step.tilt),
        drift=total.drift + 2.0 * xp.asarray(count)[..., None] * step.off(theta) / size,
    )


@quietly
def hidden_upper(
    masses: Float64[Array, " sums"],
    clients: Float64[Array, " sums"],
    counts: Float64[Array, " sums"],
    rate: Float64[Array, ""],
    deviation: Float64[Array, ""],
    paths: Paths,
    losses: Float64[Array, "groups losses"],
    law: StepTransforms,
    ceilings: Float64[Array, "groups losses sums"],
) -> Float64[Array, "groups losses"]:
    """Upper bounds on sum_i mass_i (1/n_i) E(-n_i (c - 1) + S_i)_+ at c = e^losses >= 1; [groups, losses].

    Each group is on one contour.

    Args:
      masses, clients: mass_i and n_i. counts, rate: S_i has counts_i steps (whole), each present with probability
        `rate`.
      deviation: approximate standard deviation of a sum without its rare large steps. paths: of a law near these.
        Only sharpness depends on both.
      losses: increasing within each group, near each other.
      law: of a step, at the first and last loss of each group, or at its only one, [groups, ends, knots].
        Values may be too small by a relative MARGIN at most, and are convex in c between.
      ceilings: other upper bounds on the terms that are multiplied by mass_i.

    Infinity where no bound is proved.
    """
    require_float64(masses, clients, counts, rate, deviation, paths, losses, law, ceilings)
    groups, number = losses.shape
    chex.assert_tree_shape_prefix(law, (groups, min(number, 2)))
    x = -clients * xp.expm1(losses)[..., None]
    middle = x[:, number // 2] @ (masses / xp.sum(masses))
    choice = choose(paths, middle, xp.maximum(deviation, 1e-300))
    path = stop_loss.Contour(choice.order, choice.period, SMOOTHING * choice.period)
    theta, cut = stop_loss.nodes(path, NODES), choice.cut[:, None]
    steps = steps_of(law)
    at, weights = of_a_law(*cut_at(steps, cut), rate)
    step = step_on(stop_loss.Contour(*(part[:, None] for part in path)), at, weights, rate)
    off = step.off(theta[:, None])
    kept, tail = stop_loss.lasting(path, theta, step.excess, step.real, xp.min(counts), off)
    step = step._replace(excess=step.excess[..., kept])
    if number > 1:
        step = mixed([Step(*(part[:, end, None] for part in step)) for end in (0, 1)], shares(losses))
    # One axis for the losses, and one for the sums.
    contour = stop_loss.Contour(*(part[:, None, None] for part in path))
    theta, step = theta[:, None, None, kept], Step(*(part[:, :, None] for part in step))
    total = add(stop_loss.start(contour, theta), contour, theta, step, counts)
    value = stop_loss.stop_loss(total, contour, theta, x, tail[:, None, None])
    beyond = xp.take_along_axis(
        steps.beyond, xp.broadcast_to(cut[..., None], (*steps.beyond.shape[:2], 1)), axis=-1
    )
    lost = xp.max(xp.maximum(beyond[..., 0], steps.left_beyond), axis=1)[:, None, None]
    value = (value / clients + counts * rate / clients * lost) * (1.0 + ROUNDING) + FLUSHED
    value = xp.minimum(xp.where(xp.isfinite(value), value, math.inf), ceilings) @ masses
    return value * (1.0 + ROUNDING)
