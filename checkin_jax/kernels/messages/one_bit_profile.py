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

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, host, stop_loss
from checkin_jax.kernels.elementary import UNIT, angle, cos
from checkin_jax.kernels.execution.backend import by_rows, of_jax, quietly, xp
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.kernels.messages.likelihood_polytopes import Message, one_bit_laws, one_bit_places

NODES = 1024
# First and largest number of intervals of m; halving ends at this relative excess over the largest value
# found.
_FIRST, _MOST, _ENOUGH = 8, 96, 1e-4
# Numbers per loss.
_ACROSS = 2 * NODES


class StopLossCurve(NamedTuple):
    """g on the whole range of m at each loss, by its values at the nodes: [losses, nodes], and [losses] below.

    size, phase: log of the modulus of the k-th term over its weight and M(t), and its angle, at m = 0.
    more, turn: both per m. kernel: |weight| at modulus one. drift: bound on the error of the logarithm.
    bend: |U_k|^2. height, tilt: log of e^{t x} M(t) at m = 0, and per m.
    """

    size: Array
    more: Array
    phase: Array
    turn: Array
    kernel: Array
    drift: Array
    bend: Array
    height: Array
    tilt: Array

    def at(self, losses: np.ndarray) -> StopLossCurve:
        """g at some of the losses."""
        return StopLossCurve(*(part[losses] for part in self))


def value_at(curve: StopLossCurve, m: Array) -> tuple[Array, Array]:
    """(g, Q) at one m for each loss, rounded up; [losses]."""
    m_each = m[:, None]
    size = curve.size + m_each * curve.more
    phase = curve.phase + m_each * curve.turn
    modulus = curve.kernel * xp.exp(size)
    wrong = curve.drift + 16.0 * UNIT * (8.0 + xp.abs(size) + xp.abs(phase))
    error = modulus * wrong * xp.exp(wrong)
    scale = xp.exp(curve.height + m * curve.tilt) * (1.0 + ROUNDING)
    rounded = UNIT * modulus.shape[-1] * xp.sum(modulus, axis=-1)
    value = xp.sum(modulus * cos(phase), axis=-1) + xp.sum(error, axis=-1) + rounded
    return scale * value, scale * xp.sum((modulus + error) * curve.bend, axis=-1)


def _highest(width: Any, low: Any, high: Any, *bends: Any) -> Any:
    """Largest value between two points of a function with values low and high there and |g''| <= max Q."""
    q = xp.square(width) * xp.maximum(*bends)
    apart = xp.abs(high - low)
    inside = 0.5 * (low + high) + 0.125 * q + 0.5 * xp.square(apart) / xp.where(q > 0, q, 1.0)
    inside += 1e-14 * (xp.abs(low) + xp.abs(high) + q)
    return xp.where(2.0 * apart >= q, xp.maximum(low, high), inside)


def largest(curve: StopLossCurve, others: Array, ceilings: Array) -> Array:
    """Upper bounds on g over [0, others]; not refined above `ceilings`; [losses]."""
    count = len(curve.height)
    points = others * np.linspace(0.0, 1.0, _FIRST + 1)
    ends = [value_at(curve, xp.full_like(curve.height, 1.0) * m) for m in points]
    value, bend = (xp.stack(part, axis=-1) for part in zip(*ends))
    best = xp.max(value, axis=-1)
    if of_jax(value):
        return _largest_traced(curve, points, value, bend, ceilings)
    # Intervals: left end, width, g at both ends, Q at both ends; and bounds on g inside.
    intervals, bound = np.zeros((6, count, _MOST)), np.full((count, _MOST), -math.inf)
    first = points[:-1], points[1:] - points[:-1], value[:, :-1], value[:, 1:], bend[:, :-1], bend[:, 1:]
    for part, values in zip(intervals, first):
        part[:, :_FIRST] = values
    bound[:, :_FIRST] = _highest(*intervals[1:, :, :_FIRST])
    for number in range(_FIRST, _MOST):
        rough = np.max(bound, axis=-1) > best * (1.0 + _ENOUGH)
        rows = np.flatnonzero(rough & (best < np.asarray(ceilings)))
        if not rows.size:
            break
        highest = np.argmax(bound[rows], axis=-1)
        left, width, low, high, *bends = intervals[:, rows, highest]
        half, middle = 0.5 * width, left + 0.5 * width
        value, bend = map(np.asarray, value_at(curve.at(rows), host(middle)))
        best[rows] = np.maximum(best[rows], value)
        halves = (left, half, low, value, bends[0], bend), (middle, half, value, high, bend, bends[1])
        for place, each in zip((highest, number), halves):
            intervals[:, rows, place] = each
            bound[rows, place] = _highest(*each[1:])
    return host(np.max(bound, axis=-1))


def _largest_traced(curve: StopLossCurve, points: Array, value: Array, bend: Array, ceilings: Array) -> Array:
    """`largest` for JAX arrays, from g and Q at the first points, [losses, points]."""
    count, unused = len(value), ((0, 0), (0, _MOST - _FIRST))
    left, width = (
        jnp.broadcast_to(part, (count, _FIRST)) for part in (points[:-1], points[1:] - points[:-1])
    )
    first = left, width, value[:, :-1], value[:, 1:], bend[:, :-1], bend[:, 1:]
    intervals = jnp.stack([jnp.pad(part, unused) for part in first])
    bound = jnp.pad(_highest(*first[1:]), unused, constant_values=-math.inf)
    every = jnp.arange(count)

    def rough(bound: Array, best: Array) -> Array:
        return (jnp.max(bound, axis=-1) > best * (1.0 + _ENOUGH)) & (best < ceilings)

    def halved(state: tuple[Array, ...]) -> tuple[Array, ...]:
        intervals, bound, best, number = state
        now = rough(bound, best)
        highest = jnp.argmax(bound, axis=-1)
        left, width, low, high, *bends = intervals[:, every, highest]
        half, middle = 0.5 * width, left + 0.5 * width
        value, bend = value_at(curve, middle)
        halves = (left, half, low, value, bends[0], bend), (middle, half, value, high, bend, bends[1])
        for place, each in zip((highest, jnp.full(count, number)), halves):
            intervals = intervals.at[:, every, place].set(
                jnp.where(now, jnp.stack(each), intervals[:, every, place])
            )
            bound = bound.at[every, place].set(jnp.where(now, _highest(*each[1:]), bound[every, place]))
        return intervals, bound, jnp.where(now, jnp.maximum(best, value), best), number + 1

    start = intervals, bound, jnp.max(value, axis=-1), jnp.asarray(_FIRST)
    found = jax.lax.while_loop(
        lambda state: (state[3] < _MOST) & jnp.any(rough(state[1], state[2])), halved, start
    )
    return jnp.max(found[1], axis=-1)


def curve_between(
    path: stop_loss.Contour,
    theta: Array,
    begun: stop_loss.ContourSum,
    first: stop_loss.ContourSum | stop_loss.Repeated,
    second: stop_loss.ContourSum | stop_loss.Repeated,
    others: Array,
    x: Array,
    tail: Array,
) -> tuple[StopLossCurve, Array]:
    """g(m) for a sum of `begun`, m steps `second` and others - m steps `first`, and a bound on
    its deficit, [losses].

    begun includes the normal variable; first and second are one step each. The deficit consists of
    the `tail` of nodes that are left out and of moduli raised to the floor. All may have an axis for the losses; x
    has one.
    """
    frequency, slope = xp.imag(theta), second.log_ratio - first.log_ratio
    base = begun.log_ratio + others.astype(theta.dtype) * first.log_ratio
    shift = frequency * x[:, None]
    drift = begun.drift + others * (
        xp.maximum(first.drift, second.drift)
        + 16.0 * UNIT * (xp.abs(first.log_ratio) + xp.abs(second.log_ratio))
    )
    height = path.order * x + begun.log_mgf + others * first.log_mgf
    tilt = second.log_mgf - first.log_mgf
    more, turn = xp.real(slope), xp.imag(slope)
    nodes = (
        xp.real(base),
        more,
        xp.imag(base) + shift - 2.0 * angle(frequency, path.order[..., None]),
        turn,
        stop_loss.weights(path, theta),
        drift + 16.0 * UNIT * xp.abs(shift),
        xp.square(more + tilt[..., None]) + xp.square(turn),
    )
    each = (xp.broadcast_to(part, shift.shape) for part in nodes)
    curve = StopLossCurve(*each, *(xp.broadcast_to(part, x.shape) for part in (height, tilt)))
    # If the floor changes the modulus of one step, the sum has at least one such step at every whole m
    # concerned.
    floor = math.log(2.0 * stop_loss.FLOOR)

    def held(
        mine: stop_loss.ContourSum | stop_loss.Repeated, other: stop_loss.ContourSum | stop_loss.Repeated
    ) -> Array:
        size = xp.real(mine.log_ratio) + mine.log_mgf[..., None]
        rest = xp.maximum(others - 1.0, 0.0) * xp.maximum(xp.real(other.log_ratio), floor)
        return xp.where((size <= floor) & (others > 0), 2.0 * xp.exp(floor + rest), 0.0)

    absolute = begun.absolute[..., None] + held(first, second) + held(second, first)
    rest = tail + xp.sum(curve.kernel * absolute, axis=-1)
    return curve, rest * xp.exp(curve.height + xp.maximum(others * curve.tilt, 0.0))


class _BitSums(NamedTuple):
    """The normal variable with one t*, one X and one Y, at those nodes of a good contour that matter."""

    on: equal_steps.SumContour
    begun: stop_loss.ContourSum
    first: stop_loss.Repeated
    second: stop_loss.Repeated

    def curve(self, others: Array, x: Array) -> tuple[StopLossCurve, Array]:
        """g for `others` clients, and its deficit: nodes that are left out, moduli raised to the floor."""
        path, theta, tail, *_ = self.on
        return curve_between(path, theta, self.begun, self.first, self.second, others, x, tail)


def _steps(at: Array, weights: Array, least: Array, most: Array, x: Array, jump: Array) -> _BitSums:
    """X, Y and t* on a good contour for `most` steps, where `least` of them matter; weights: [3, values]."""
    weights = xp.broadcast_to(weights, (*at.shape[:-1], *weights.shape))
    path = equal_steps.contour(
        *equal_steps.saddle(equal_steps.CentredLaws(at, weights[..., :2, :]), most, x), jump
    )
    on = equal_steps.on_nodes(path, equal_steps.CentredLaws(at, weights), 2, least, NODES)
    first, second, star = (on.step(law) for law in range(3))
    begun = stop_loss.times(stop_loss.start(path, on.theta), star, xp.ones_like(x))
    return _BitSums(on, begun, first, second)


def curve_of(clients: Array, rate: Array, message: Message, losses: Array) -> tuple[StopLossCurve, Array]:
    """g at these losses, and upper bounds on its deficit at any m."""
    c_minus_1, others = xp.expm1(losses), clients - 1.0
    at, weights = one_bit_places(c_minus_1, message), rate * one_bit_laws(message)
    x = -clients * c_minus_1 / xp.expm1(message.epsilon0)
    return _steps(at, weights, others, clients, x, xp.ones_like(rate)).curve(others, x)


def _alone(message: Message, losses: Array) -> Array:
    """Upper bound on the divergence of one message."""
    room = xp.maximum(xp.exp(losses) * xp.expm1(message.epsilon0 - losses), 0.0)
    return room * message.differ / (xp.expm1(message.epsilon0) + 2.0)


@quietly
def profile_upper(
    clients: Float64[Array, ""],
    rate: Float64[Array, ""],
    message: Message,
    losses: Float64[Array, " losses"],
    ceilings: Float64[Array, " losses"],
    everybody: Float64[Array, ""] | None = None,
) -> Float64[Array, " losses"]:
    """Upper bounds on the round's H at e^losses, both directions, 0 <= losses < epsilon0; [losses].

    ceilings: other upper bounds; the maximum over m is not refined above them. everybody: probability that all clients
    send, which counts as one message alone; None: rate^clients.
    """
    unit = xp.expm1(message.epsilon0)

    def stop_losses(losses: Array, ceilings: Array) -> Array:
        curve, rest = curve_of(clients, rate, message, losses)
        return largest(curve, clients - 1.0, ceilings * clients / unit) + rest

    alone = _alone(message, losses)
    value = by_rows(stop_losses, (losses, ceilings), _ACROSS) * unit / clients
    all_send = xp.exp(clients * xp.log(rate)) if everybody is None else everybody
    value = (value + all_send * alone) * (1.0 + ROUNDING) + FLUSHED
    return xp.where(xp.isfinite(value), xp.minimum(value, alone + FLUSHED), alone + FLUSHED)


@quietly
def pooled_upper(
    pool: equal_steps.PoolSteps, message: Message, losses: Float64[Array, " losses"]
) -> Float64[Array, " losses"]:
    """Upper bounds on the round's H at e^losses at unequal rates (B0h), 0 <= losses < epsilon0; [losses].

    E over n' of g theta^n' (p - c)/(p + 1) + (1/n) max over m; terms: alpha (1 - c), or beta times a step.
    """
    sizes, masses, nobody = pool.others()
    unit, laws = xp.expm1(message.epsilon0), one_bit_laws(message)
    rest = xp.maximum(1.0 - xp.sum(laws, axis=1, keepdims=True), 0.0)
    away = xp.full_like(rest, 1.0 - pool.theta)
    weights = xp.concatenate([pool.theta * laws, pool.theta * rest, away], axis=1)

    def divergence(losses: Array) -> Array:
        c_minus_1 = xp.expm1(losses)
        shift, alone = c_minus_1 / unit, pool.rate * _alone(message, losses)
        at = equal_steps.stretched(one_bit_places(c_minus_1, message), pool, shift)
        if not sizes.size:
            return nobody * alone
        most = xp.max(sizes) + 1.0
        steps = _steps(at, weights, xp.min(sizes), most, -most * shift, pool.rate / pool.theta)
        total = nobody * alone
        for size, mass in zip(sizes, masses):
            n = size + 1.0
            curve, rest = steps.curve(size, -n * shift)
            value = (largest(curve, size, xp.full_like(shift, math.inf)) + rest) * unit / n
            value = value * (1.0 + equal_steps.PLACED) + xp.exp(size * xp.log(pool.theta)) * alone
            total = total + mass * xp.where(xp.isfinite(value), xp.minimum(value, alone), alone)
        return total

    return by_rows(divergence, (losses,), _ACROSS) * (1.0 + ROUNDING) + FLUSHED
