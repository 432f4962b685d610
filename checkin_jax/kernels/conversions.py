"""Conversions between Renyi differential privacy, (epsilon, delta) and pure differential privacy."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float64

from checkin_jax.kernels import float64_arrays, require_float64
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import quietly, xp


@quietly
def epsilon_from_log_moments(
    orders: Float64[Array, "*rows orders"],
    log_moments: Float64[Array, "*rows orders"],
    log_delta: Float64[Array, "*once"],
) -> Float64[Array, "*rows orders"]:
    """epsilon at each order from log moments log E_P e^{t L}, t = order - 1 > 0; rounded up.

    [CKS20], Proposition 12 of arXiv 2004.00010 v4, as [SCI] Lemma 2: with rdp = log moment / t, epsilon = rdp +
    (log(1/delta) + t log(1 - 1/order) - log order) / t, and at least 0. A moment that is not finite gives infinity,
    never NaN.

    Args:
      orders: t + 1, real, > 1.
      log_moments: nats, same shape; of a run, order - 1 times its Renyi divergence.
      log_delta: scalar < 0.
    """
    require_float64(orders, log_moments, log_delta)
    t = orders - 1.0
    epsilon = (log_moments - log_delta + t * log1p(-1.0 / orders) - xp.log(orders)) / t
    epsilon = xp.where(xp.isfinite(log_moments) & xp.isfinite(epsilon), epsilon, xp.inf)
    return xp.maximum(epsilon, 0.0) * (1.0 + 1e-12)


def log_expm1(x: Array) -> Array:
    """log(e^x - 1) for x >= 0; -inf at 0."""
    return x + jnp.log(-jnp.expm1(-x))


def pure_excess(epsilon: Array, orders: Array) -> Array:
    """log(A - 1) of binary randomized response, whose moments A are the largest of any epsilon-DP pair; orders > 1.

    A - 1 = (e^{lam e} - 1)(1 - e^{(1-lam) e}) / (1 + e^e), without cancellation.
    """
    e = epsilon
    return log_expm1(orders * e) + jnp.log(-jnp.expm1((1.0 - orders) * e)) - jnp.logaddexp(0.0, e)


def rdp_of_pure_dp(epsilon: ArrayLike, orders: ArrayLike) -> Array:
    """Renyi divergence of any epsilon-DP mechanism, nats, rounded up by a relative 1e-12; attained.

    Args:
      epsilon: 0 to 690, float64.
      orders: real, 1 < order <= 1e9, float64; broadcast against epsilon.

    Raises:
      RuntimeError: JAX computes in float32.
    """
    epsilon, orders = float64_arrays(epsilon, orders)
    private = epsilon > 0
    log_excess = pure_excess(jnp.where(private, epsilon, 1.0), orders)
    return jnp.where(private, jnp.logaddexp(0.0, log_excess) / (orders - 1.0) * (1.0 + 1e-12), 0.0)
