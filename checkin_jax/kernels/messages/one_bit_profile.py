r"""B0: one round of shuffled check-in of one-bit messages with public coins, not adaptive within the round.

With p = e^eps0, c = e^l in [1, p), n clients and a rate gamma < 1 the round's hockey-stick divergence is at
most [docs/theory_mechanisms.md]

    gamma^n (p - c)/(p + 1) + (1/n) max_{0 <= m <= n-1} E( Y_1 + ... + Y_m + X_{m+1} + ... + X_{n-1} + t* )_+ ,

with independent terms, each with probability gamma, else 1 - c. X is p - c with probability 1/(p + 1), else
1/p - c (the other clients hold x'). Y is 1 - c p or 1 - c/p (they hold x). Centred, in units of p - 1, X = xi
and Y = -c xi with xi = 1 or -1/p. If bits differ only with probability nu, a term is X or Y with probability
nu, else -(c - 1) xi.

On one contour (`stop_loss`) the sum is g(m) = sum_k weight_k e^{U_k m}, U_k = log M_Y - log M_X at the k-th
node, on any branch of the logarithm, since only whole m matter. For real m, |g''| <= Q(m) = sum_k |weight_k|
|U_k|^2 e^{m Re U_k}, which is convex. So on [a, b] with q = max(Q(a), Q(b)), g lies below its chord plus q
(m - a)(b - m)/2. The maximum of that is at an end of [a, b] unless |g(b) - g(a)| < q (b - a)^2 / 2. Intervals
are halved until the maximum is known to 1e-4, or until there are _MOST. Every choice gives a bound, and the
cost does not grow with the number of clients.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, require_float64, stop_loss
from checkin_jax.kernels.elementary import angle, cos
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import placed, xp
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.kernels.messages.likelihood_polytopes import Message, one_bit_laws, one_bit_places
from checkin_jax.kernels.round_off import UNIT

NODES = 1024
# First and largest number of intervals of m; halving ends at this relative excess over the largest value
# found.
_FIRST, _MOST, _ENOUGH = 8, 96, 1e-4


class StopLossCurve(NamedTuple):
    """g on the whole range of m, by its values at the nodes.

    base, slope: logarithm of M(theta)/M(t) at m = 0, and per m. kernel: |weight| at modulus one. drift: bound
    on the error of the logarithm. height, tilt: log of e^{t x} M(t) at m = 0, and per m.
    """

    base: Array
    slope: Array
    kernel: Array
    turn: Array
    drift: Array
    height: Array
    tilt: Array


def value_at(curve: StopLossCurve, m: Array) -> tuple[Array, Array]:
    """(g, Q) at one m, rounded up."""
    size = xp.real(curve.base) + m * xp.real(curve.slope)
    phase = xp.imag(curve.base) + m * xp.imag(curve.slope) + curve.turn
    modulus = curve.kernel * xp.exp(size)
    wrong = curve.drift + 16.0 * UNIT * (8.0 + xp.abs(size) + xp.abs(phase))
    error = modulus * wrong * xp.exp(wrong)
    bend = xp.square(xp.abs(curve.slope + curve.tilt.astype(curve.slope.dtype)))
    scale = xp.exp(curve.height + m * curve.tilt) * (1.0 + ROUNDING)
    value = xp.sum(modulus * cos(phase)) + xp.sum(error) + UNIT * modulus.size * xp.sum(modulus)
    return scale * value, scale * xp.sum((modulus + error) * bend)


class _Intervals(NamedTuple):
    """Left ends, widths, values and Q at both ends, bounds, [most] each; their number; the largest value."""

    left: Array
    width: Array
    value: tuple[Array, Array]
    bend: tuple[Array, Array]
    bound: Array
    number: Array
    best: Array


def _highest(width: Array, value: tuple[Array, Array], bend: tuple[Array, Array]) -> Array:
    """Largest value between two points of a function with these end values and |g''| <= max Q."""
    q = xp.square(width) * xp.maximum(*bend)
    apart = xp.abs(value[1] - value[0])
    inside = 0.5 * (value[0] + value[1]) + 0.125 * q
    inside = inside + 0.5 * xp.square(apart) / xp.where(q > 0, q, 1.0)
    inside = inside + 1e-14 * (xp.abs(value[0]) + xp.abs(value[1]) + q)
    return xp.where(2.0 * apart >= q, xp.maximum(*value), inside)


def largest(curve: StopLossCurve, others: Array, ceiling: Array) -> Array:
    """Upper bound on g over [0, others]; not refined above `ceiling`."""
    points = others * xp.linspace(0.0, 1.0, _FIRST + 1)
    value, bend = backend.vmap(functools.partial(value_at, curve))(points)
    pad = _MOST - _FIRST

    def padded(part: Array, fill: float) -> Array:
        return xp.pad(part, (0, pad), constant_values=fill)

    width = others / _FIRST + xp.zeros(_FIRST)
    ends, bends = (value[:-1], value[1:]), (bend[:-1], bend[1:])
    state = _Intervals(
        padded(points[:-1], 0.0),
        padded(width, 0.0),
        (padded(ends[0], 0.0), padded(ends[1], 0.0)),
        (padded(bends[0], 0.0), padded(bends[1], 0.0)),
        padded(_highest(width, ends, bends), -math.inf),
        xp.asarray(_FIRST),
        xp.max(value),
    )

    def unsure(state: _Intervals) -> Array:
        rough = xp.max(state.bound) > state.best * (1.0 + _ENOUGH)
        return rough & (state.number < _MOST) & (state.best < ceiling)

    def halve(state: _Intervals) -> _Intervals:
        i, j = xp.argmax(state.bound), state.number
        half = 0.5 * state.width[i]
        middle = state.left[i] + half
        value, bend = value_at(curve, middle)
        first = (state.value[0][i], value), (state.bend[0][i], bend)
        second = (value, state.value[1][i]), (bend, state.bend[1][i])

        def of(part: Array, left: Array, right: Array) -> Array:
            return placed(placed(part, i, left), j, right)

        return _Intervals(
            placed(state.left, j, middle),
            of(state.width, half, half),
            (placed(state.value[0], j, value), of(state.value[1], value, second[0][1])),
            (placed(state.bend[0], j, bend), of(state.bend[1], bend, second[1][1])),
            of(state.bound, _highest(half, *first), _highest(half, *second)),
            j + 1,
            xp.maximum(state.best, value),
        )

    return xp.max(backend.while_loop(unsure, halve, state).bound)


def curve_between(
    path: stop_loss.Contour,
    theta: Array,
    begun: stop_loss.ContourSum,
    first: stop_loss.ContourSum,
    second: stop_loss.ContourSum,
    others: Array,
    x: Array,
) -> tuple[StopLossCurve, Array]:
    """g(m) for a sum of `begun`, m steps `second` and others - m steps `first`, and a bound on
    its deficit.

    begun includes the normal variable; first and second are one step each. The deficit consists of
    frequencies beyond the nodes and of moduli raised to the floor.
    """
    frequency, points = xp.imag(theta), theta.size
    slope = second.log_ratio - first.log_ratio
    many = others.astype(theta.dtype)
    drift = begun.drift + others * (
        xp.maximum(first.drift, second.drift)
        + 16.0 * UNIT * (xp.abs(first.log_ratio) + xp.abs(second.log_ratio))
    )
    curve = StopLossCurve(
        begun.log_ratio + many * first.log_ratio,
        slope,
        stop_loss.multiplicity(points) / (path.period * xp.square(xp.abs(theta))),
        frequency * x - 2.0 * angle(frequency, path.order),
        drift + 16.0 * UNIT * xp.abs(frequency * x),
        path.order * x + begun.log_mgf + others * first.log_mgf,
        second.log_mgf - first.log_mgf,
    )
    # If the floor changes the modulus of one step, the sum has at least one such step at every whole m
    # concerned.
    floor = math.log(2.0 * stop_loss.FLOOR)

    def held(mine: stop_loss.ContourSum, other: stop_loss.ContourSum) -> Array:
        size = xp.real(mine.log_ratio) + mine.log_mgf
        rest = xp.maximum(others - 1.0, 0.0) * xp.maximum(xp.real(other.log_ratio), floor)
        return xp.where((size <= floor) & (others > 0), 2.0 * xp.exp(floor + rest), 0.0)

    absolute = begun.absolute + held(first, second) + held(second, first)
    tail = 2.0 * stop_loss.beyond(path, points) * path.period / xp.square(2.0 * math.pi * points)
    rest = tail + xp.sum(curve.kernel * absolute)
    top = xp.exp(curve.height + xp.maximum(others * curve.tilt, 0.0))

    return curve, rest * top


class _Path(NamedTuple):
    """A contour for sums of X's and Y's with one t*: its nodes, the normal variable with t*, one X, one Y."""

    contour: stop_loss.Contour
    theta: Array
    begun: stop_loss.ContourSum
    steps: tuple[stop_loss.ContourSum, stop_loss.ContourSum]

    def curve(self, others: Array, x: Array) -> tuple[StopLossCurve, Array]:
        """g for `others` clients, and its deficit: frequencies beyond the nodes, moduli raised to
        the floor.
        """
        return curve_between(self.contour, self.theta, self.begun, *self.steps, others, x)


def _path(at: Array, weights: Array, count: Array, x: Array, jump: Array) -> _Path:
    """A good contour for `count` steps; at: centred values. weights: of X, Y and t*, [3, values]."""
    both = xp.broadcast_to(at, (2, at.size))
    order, deviation = equal_steps.saddle(both, weights[:2], count, x)
    path = equal_steps.contour(order, deviation, jump)
    theta = stop_loss.nodes(path, NODES)
    squares = xp.square(at).astype(theta.dtype)
    steps = weights.astype(theta.dtype) @ (
        squares[:, None] * stop_loss.second(theta[None, :] * at.astype(theta.dtype)[:, None])
    )
    real = equal_steps.real_moment(xp.broadcast_to(at, weights.shape), weights, order[None])[0]

    one = xp.ones_like(order)
    begun = stop_loss.start(path, theta)
    alone = begun._replace(log_mgf=0.0 * begun.log_mgf, log_ratio=0.0 * begun.log_ratio)
    begun = stop_loss.add(begun, path, theta, steps[2], real[2], one)
    first, second = (stop_loss.add(alone, path, theta, steps[i], real[i], one) for i in range(2))
    return _Path(path, theta, begun, (first, second))


def curve_of(clients: Array, rate: Array, message: Message, loss: Array) -> tuple[StopLossCurve, Array]:
    """g at this loss, and an upper bound on its deficit at any m."""
    c_minus_1, unit = xp.expm1(loss), xp.expm1(message.epsilon0)
    at, weights = one_bit_places(c_minus_1, message), rate * one_bit_laws(message)
    x = -clients * c_minus_1 / unit
    return _path(at, weights, clients, x, xp.ones_like(x)).curve(clients - 1.0, x)


def _alone(message: Message, loss: Array) -> Array:
    """Upper bound on the divergence of one message."""
    room = xp.maximum(xp.exp(loss) * xp.expm1(message.epsilon0 - loss), 0.0)
    return room * message.differ / (xp.expm1(message.epsilon0) + 2.0)


def _one(clients: Array, rate: Array, message: Message, ceiling_at: tuple[Array, Array]) -> Array:
    loss, ceiling = ceiling_at
    curve, rest = curve_of(clients, rate, message, loss)
    unit = xp.expm1(message.epsilon0)
    alone = _alone(message, loss)
    value = largest(curve, clients - 1.0, ceiling * clients / unit) + rest
    value = value * unit / clients + xp.exp(clients * xp.log(rate)) * alone
    value = value * (1.0 + ROUNDING) + FLUSHED
    return xp.where(xp.isfinite(value), xp.minimum(value, alone + FLUSHED), alone + FLUSHED)


@jax.jit
def profile_upper(
    clients: Float64[Array, ""],
    rate: Float64[Array, ""],
    message: Message,
    losses: Float64[Array, " losses"],
    ceilings: Float64[Array, " losses"],
) -> Float64[Array, " losses"]:
    """Upper bounds on the round's H at e^losses, both directions, 0 <= losses < epsilon0; [losses].

    ceilings: other upper bounds; the maximum over m is not refined above them.
    """
    require_float64(clients, rate, message, losses, ceilings)
    one = functools.partial(_one, clients, rate, message)
    return jax.lax.map(one, (losses, ceilings))


def _pooled(pool: equal_steps.PoolSteps, message: Message, loss: Array) -> Array:
    """E over n' of g theta^n' (p - c)/(p + 1) + (1/n) max over m; terms: alpha (1 - c), or beta
    times a step.
    """
    c_minus_1, unit = xp.expm1(loss), xp.expm1(message.epsilon0)
    shift, beta = c_minus_1 / unit, pool.rate / pool.theta
    at = equal_steps.stretched(one_bit_places(c_minus_1, message), pool, shift)
    laws = one_bit_laws(message)
    rest = xp.maximum(1.0 - xp.sum(laws, axis=1, keepdims=True), 0.0)
    away = xp.broadcast_to(1.0 - pool.theta, rest.shape)
    weights = xp.concatenate([pool.theta * laws, pool.theta * rest, away], axis=1)
    most = xp.max(xp.where(pool.masses > 0, pool.sizes + 1.0, 1.0))
    path, alone = _path(at, weights, most, -most * shift, beta), pool.rate * _alone(message, loss)

    def part(size: Array) -> Array:
        n = size + 1.0
        curve, rest = path.curve(size, -n * shift)
        value = (largest(curve, size, xp.full_like(n, math.inf)) + rest) * unit / n
        value = value * (1.0 + equal_steps.PLACED) + xp.exp(size * xp.log(pool.theta)) * alone
        return xp.where(xp.isfinite(value), xp.minimum(value, alone), alone)

    values = xp.where(pool.masses > 0, jax.lax.map(part, pool.sizes), 0.0)
    return (pool.masses @ values) * (1.0 + ROUNDING) + FLUSHED


@jax.jit
def pooled_upper(
    pool: equal_steps.PoolSteps, message: Message, losses: Float64[Array, " losses"]
) -> Float64[Array, " losses"]:
    """Upper bounds on the round's H at e^losses at unequal rates (B0h), 0 <= losses < epsilon0; [losses]."""
    require_float64(pool, message, losses)
    return jax.lax.map(functools.partial(_pooled, pool, message), losses)
