"""Theorems 2 and 3 of [SCI]: epsilon of thousands of settings at once, in float64.

Moments are sums of positive terms in plain numbers, not logarithms, so that all orders are one matrix
product.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from checkin_jax.kernels import conversions
from checkin_jax.kernels.elementary import log1p

# Weights are capped at e^CAP. Orders that use a capped weight give no bound; orders up to MAX_ORDER do not
# overflow.
CAP = 300.0
MAX_ORDER = 512


def _power(log_base: Array, degrees: Array, log_factor: Array) -> Array:
    """e^log_factor base^degree, [settings, degrees], at most e^CAP."""
    return jnp.exp(jnp.minimum(log_base[:, None] * degrees[None, :] + log_factor, CAP))


def _best(moments: Array, orders: Array, num_rounds: Array, log_delta: Array) -> tuple[Array, Array]:
    """Epsilon of all rounds at the best order, and that order; moments are E (P/Q)^order - 1, [settings,
    orders].
    """
    logs = num_rounds[:, None] * log1p(moments)
    shape = logs.shape
    epsilon = conversions.epsilon_from_log_moments(
        jnp.broadcast_to(orders, shape), logs, jnp.broadcast_to(log_delta[:, None], shape)
    )
    epsilon = jax.lax.optimization_barrier(epsilon)
    best = jnp.argmin(epsilon, axis=1)
    return jnp.take_along_axis(epsilon, best[:, None], axis=1)[:, 0], orders[best]


@jax.jit
def theorem_2(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    num_rounds: Array,
    log_delta: Array,
    orders: Array,
    binomials: Array,
    log_gamma: Array,
) -> tuple[Array, Array]:
    """Epsilon of Theorem 2 (appendix form, spread 1/2) and the best order, [settings]; rounded to nearest.

    Args:
      n, gamma, epsilon0, num_rounds, log_delta: [settings]; epsilon0 > 0.
      orders: whole, 2 to MAX_ORDER. binomials: C(order, j), [orders, degrees]; log_gamma: log(j Gamma(j/2)),
        [degrees]; degrees j = 2, 3, ....
    """
    degrees = jnp.arange(2.0, 2.0 + log_gamma.shape[0])
    big, mean = jnp.exp(epsilon0), n * gamma
    chernoff = -0.125 * mean
    least = jnp.floor(0.25 * mean / big) + 1.0
    log_x = jnp.log(gamma) + 2.0 * epsilon0 + jnp.log(-jnp.expm1(-2.0 * epsilon0)) - epsilon0
    log_a = log_x + 0.5 * jnp.log(2.0)
    fixed = _power(log_a, degrees, log_gamma[None, :] + chernoff[:, None])
    falling = _power(log_a - 0.5 * jnp.log(least), degrees, jnp.broadcast_to(log_gamma, fixed.shape))
    square = 4.0 * jnp.square(gamma * jnp.expm1(epsilon0)) / big
    second = square * (jnp.exp(chernoff) + 1.0 / least)
    main = jnp.concatenate([second[:, None], (fixed + falling)[:, 1:]], axis=1)
    rest = jnp.exp(chernoff) + jnp.exp(-mean / (16.0 * big))
    weights = main + _power(log_x, degrees, jnp.log(rest)[:, None])
    # Orders with a capped weight give no bound.
    largest = weights >= jnp.exp(CAP)
    first_cut = jnp.min(jnp.where(largest, degrees[None, :], jnp.inf), axis=1)
    moments = jnp.minimum(weights, jnp.exp(CAP)) @ binomials.T
    moments = jnp.where(orders[None, :] >= first_cut[:, None], jnp.inf, moments)
    return _best(moments, orders, num_rounds, log_delta)


@functools.partial(jax.jit, static_argnames="sharper")
def theorem_3(
    n: Array, gamma: Array, epsilon0: Array, num_rounds: Array, log_delta: Array, orders: Array, sharper: bool
) -> tuple[Array, Array]:
    """Divergences of Theorem 3 (spread 1/2), or its sharper form, converted to epsilon like upper bounds.

    Returns as `theorem_2`. No accountant by Renyi divergences with these orders and this conversion can give
    less.
    """
    if sharper:
        share = gamma / n
    else:
        share = -jnp.expm1(-0.1 * n * gamma) * gamma / (1.5 * n)
    pairs = 0.5 * orders * (orders - 1.0)
    # The barrier prevents XLA from recomputing the setting's part for every order.
    scale = jax.lax.optimization_barrier(share * jnp.square(jnp.expm1(epsilon0)) * jnp.exp(-epsilon0))
    return _best(scale[:, None] * pairs[None, :], orders, num_rounds, log_delta)
