r"""One round of messages whose terms are all bounded by the same dominating step, for any number of messages.

With p = e^eps0 and c = e^l in [1, p) the round's hockey-stick divergence is at most

    sum_i mass_i (1/n) E( (n - K_i)(1 - c) + sum_{j <= K_i} t_j )_+ ,

where the t_j are independent: each has the dominating law with probability `rate`, else it is 1 - c. The law
puts mass `pair` on p - c and on 1 - cp each, `high` on p (1 - c), `low` on 0 and the rest on 1 - c
[docs/theory_mechanisms.md: t*_beta of a total variation beta, t_k of k-ary randomized response; t* of T1 has
beta = (p-1)/(p+1)]. Centred, in units of p - 1, these places are 1, -c, -(c - 1), (c - 1)/(p - 1) and 0.
E(x + S)_+ is a contour integral (`stop_loss`) whose order is chosen for each c. Every choice gives a bound,
and the cost does not grow with the number of messages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, require_float64, stop_loss
from checkin_jax.kernels.elementary import log1p

# Nodes of the contour; its period in standard deviations of the tilted sum, over the order, and in jumps; and
# the standard deviation of the added normal variable over the period. The last frequency times that deviation
# is 5.5.
NODES = 1536
_DEVIATIONS, _LEAST_TURNS, _JUMPS = 11.0, 16.0, 3.0
SMOOTHING = 5.5 / (2.0 * math.pi * NODES)
# Number of orders tried first; finer ones between them are tried next.
_ORDERS = 48
_MOST_ORDER = 150.0


class StepLaw(NamedTuple):
    """Probabilities of the dominating step, under which (z, z') has mean (1, 1): float64 scalars.

    pair: of (z, z') = (p, 1), and of (1, p). high: of (p, p). low: of (0, 0). The rest is at (1, 1).
    """

    pair: Array
    high: Array
    low: Array


class StepCounts(NamedTuple):
    """Numbers of steps whose sums bound a unit: n > 0 real, rate, counts K_i and their masses; [parts]."""

    clients: Array
    rate: Array
    counts: Array
    masses: Array


def places(c_minus_1: Array, epsilon0: Array) -> Array:
    """Places of the step at (p, 1), (1, p), (p, p), (0, 0), centred, in units of p - 1; [4]."""
    one = jnp.ones_like(c_minus_1)
    return jnp.stack([one, -(1.0 + c_minus_1), -c_minus_1, c_minus_1 / jnp.expm1(epsilon0)])


def moment(at: Array, weights: Array, theta: Array) -> Array:
    """T(theta) = (E e^{theta d} - 1) / theta^2 of a centred law; [nodes]."""
    squares = (weights * jnp.square(at)).astype(theta.dtype)
    return stop_loss.second(theta[:, None] * at.astype(theta.dtype)[None, :]) @ squares


def saddle(at: Array, weights: Array, count: Array, x: Array) -> tuple[Array, Array]:
    """Approximate saddle point of e^{t x} M(t) / t^2, and the standard deviation of the sum tilted there.

    at, weights: [laws, atoms]; the maximum over the laws is used. Every order is valid.
    """

    def height(orders: Array) -> Array:
        excess = jnp.square(orders)[:, None] * real_moment(at, weights, orders)
        return orders * x + jnp.max(count * log1p(excess), axis=1) - 2.0 * jnp.log(orders)

    deviation = jnp.sqrt(count * jnp.max(jnp.sum(weights * jnp.square(at), axis=1)))
    low = jnp.minimum(jnp.log(0.3 / (deviation - x)), 0.0)
    high = jnp.log(jnp.asarray(_MOST_ORDER)) + 0.0 * low

    def best(low: Array, high: Array) -> Array:
        logs = jnp.linspace(low, high, _ORDERS)
        value = height(jnp.exp(logs))
        return logs[jnp.argmin(jnp.where(jnp.isnan(value), jnp.inf, value))]

    rough, step = best(low, high), (high - low) / (_ORDERS - 1.0)
    order = jnp.exp(best(rough - step, rough + step))
    tilted = weights * jnp.exp(order * at)
    total = 1.0 + jnp.square(order) * real_moment(at, weights, order[None])[0]
    mean = jnp.sum(tilted * at, axis=1) / total
    variance = jnp.sum(tilted * jnp.square(at), axis=1) / total - jnp.square(mean)
    return order, jnp.sqrt(count * jnp.maximum(jnp.max(variance), 0.0))


def real_moment(at: Array, weights: Array, orders: Array) -> Array:
    """T at real orders for several laws [laws, atoms]: [orders, laws]."""
    z = orders[:, None, None] * at[None]
    return jnp.sum(weights[None] * jnp.square(at)[None] * _second(z), axis=-1)


def _second(z: Array) -> Array:
    return jnp.real(stop_loss.second(jax.lax.complex(z, jnp.zeros_like(z))))


def contour(order: Array, deviation: Array, jump: Array) -> stop_loss.Contour:
    """Contour of this order for sums of this standard deviation whose steps are at most about `jump`."""
    period = jnp.maximum(_DEVIATIONS * deviation, _LEAST_TURNS / order) + _JUMPS * jump
    return stop_loss.Contour(order, period, SMOOTHING * period)


class _SumContour(NamedTuple):
    """A contour for sums of one law, its nodes, and the law's T there and at the order."""

    path: stop_loss.Contour
    theta: Array
    step: Array
    real: Array

    def value(self, count: Array, x: Array) -> Array:
        """Upper bound on E(x + S)_+ for a sum S of `count` steps."""
        total = stop_loss.start(self.path, self.theta)
        total = stop_loss.add(total, self.path, self.theta, self.step, self.real, count)
        return stop_loss.stop_loss(total, self.path, self.theta, x)


def _sum_contour(at: Array, weights: Array, count: Array, x: Array, jump: Array) -> _SumContour:
    """A good contour for `count` steps of the law (at, weights), at most about `jump` each; each one is
    valid.
    """
    order, deviation = saddle(at[None], weights[None], count, x)
    path = contour(order, deviation, jump)
    theta = stop_loss.nodes(path, NODES)
    return _SumContour(
        path, theta, moment(at, weights, theta), real_moment(at[None], weights[None], order[None])[0, 0]
    )


def _of_parts(value: Callable[[Array], Array], counts: Array, masses: Array) -> Array:
    """`value` at the counts of positive mass, zero at others, which are padding and not evaluated; [parts]."""

    def at(part: tuple[Array, Array]) -> Array:
        count, mass = part
        return jax.lax.cond(mass > 0, value, jnp.zeros_like, count)

    return jax.lax.map(at, (counts, masses))


def _alone(law: StepLaw, epsilon0: Array, loss: Array) -> Array:
    """Upper bound on the divergence of one message."""
    return jnp.maximum(jnp.exp(loss) * jnp.expm1(epsilon0 - loss), 0.0) * law.pair


class PoolSteps(NamedTuple):
    """Pool of one client (T1h): n' other members with their masses, [parts]; theta; the client's rate g."""

    sizes: Array
    masses: Array
    theta: Array
    rate: Array


# Relative: rounding of places moves the mean of a step by less, for up to 1e12 steps.
PLACED = 1e-9


def stretched(at: Array, pool: PoolSteps, shift: Array) -> Array:
    """Places of a step times beta, at 1 - c, and last the absent client's alpha (1 - c); shift: of 1 - c."""
    alpha, beta = (1.0 - pool.rate) / (1.0 - pool.theta), pool.rate / pool.theta
    at = beta * jnp.append(at, 0.0) - (beta - 1.0) * shift
    return jnp.append(at, (1.0 - alpha) * shift)


def _pooled(law: StepLaw, pool: PoolSteps, epsilon0: Array, loss: Array) -> Array:
    """E over n = n' + 1 of (1/n) E( sum_{j <= n} t_j )_+ (T1h): t_j is alpha (1 - c), or beta
    times a step.
    """
    c_minus_1, unit = jnp.expm1(loss), jnp.expm1(epsilon0)
    shift, beta = c_minus_1 / unit, pool.rate / pool.theta
    at = stretched(places(c_minus_1, epsilon0), pool, shift)
    plain = jnp.maximum(1.0 - 2.0 * law.pair - law.high - law.low, 0.0)
    shown = pool.theta * jnp.stack([law.pair, law.pair, law.high, law.low, plain])
    weights = jnp.append(shown, 1.0 - pool.theta)

    # x grows with the number of steps, so the saddle point hardly depends on that number: one contour serves
    # all parts.
    counts = pool.sizes + 1.0
    most = jnp.max(jnp.where(pool.masses > 0, counts, 1.0))
    way = _sum_contour(at, weights, most, -most * shift, beta)
    values = _of_parts(lambda count: way.value(count, -count * shift) / count, counts, pool.masses)
    alone = pool.rate * _alone(law, epsilon0, loss) * (1.0 + ROUNDING) + FLUSHED
    value = (pool.masses @ values) * unit * (1.0 + PLACED) + FLUSHED
    return jnp.where(jnp.isfinite(value), jnp.minimum(value, alone), alone)


@jax.jit
def pooled_upper(
    law: StepLaw, pool: PoolSteps, epsilon0: Float64[Array, ""], losses: Float64[Array, " losses"]
) -> Float64[Array, " losses"]:
    """Upper bounds on H at e^losses for clients of unequal rates, 0 <= losses < epsilon0; [losses]."""
    require_float64(law, pool, epsilon0, losses)
    return jax.lax.map(functools.partial(_pooled, law, pool, epsilon0), losses)


def _one(law: StepLaw, step_counts: StepCounts, epsilon0: Array, loss: Array) -> Array:
    c_minus_1, unit = jnp.expm1(loss), jnp.expm1(epsilon0)
    at = places(c_minus_1, epsilon0)
    weights = step_counts.rate * jnp.stack([law.pair, law.pair, law.high, law.low])
    x = -step_counts.clients * c_minus_1 / unit
    most = jnp.max(jnp.where(step_counts.masses > 0, step_counts.counts, 0.0))
    way = _sum_contour(at, weights, most, x, jnp.ones_like(x))
    values = _of_parts(lambda count: way.value(count, x), step_counts.counts, step_counts.masses)
    alone = _alone(law, epsilon0, loss)
    value = (step_counts.masses @ values) * unit / step_counts.clients * (1.0 + ROUNDING) + FLUSHED
    return jnp.where(jnp.isfinite(value), jnp.minimum(value, alone + FLUSHED), alone + FLUSHED)


@jax.jit
def profile_upper(
    law: StepLaw, step_counts: StepCounts, epsilon0: Float64[Array, ""], losses: Float64[Array, " losses"]
) -> Float64[Array, " losses"]:
    """Upper bounds on the round's H at e^losses, both directions, 0 <= losses < epsilon0; [losses]."""
    require_float64(law, step_counts, epsilon0, losses)
    return jax.lax.map(functools.partial(_one, law, step_counts, epsilon0), losses)
