"""Conversion of Renyi differential privacy to (epsilon, delta)."""

from __future__ import annotations

from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import require_float64
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
      orders: t + 1, real, > 1; log_moments: nats, same shape; log_delta: scalar < 0.
    """
    require_float64(orders, log_moments, log_delta)
    t = orders - 1.0
    epsilon = (log_moments - log_delta + t * log1p(-1.0 / orders) - xp.log(orders)) / t
    epsilon = xp.where(xp.isfinite(log_moments) & xp.isfinite(epsilon), epsilon, xp.inf)
    return xp.maximum(epsilon, 0.0) * (1.0 + 1e-12)
