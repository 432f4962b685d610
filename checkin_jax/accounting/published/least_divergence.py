"""[SCI] Lemma 3: the least Renyi divergence of pairs with (epsilon, delta), printed as a conversion to Renyi."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import host
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.devices import float64

NOT_A_BOUND = (
    "Lemma 3 is the MINIMUM Renyi divergence of pairs with this (epsilon, delta), not a bound on all of them: "
    "a (0, delta)-DP mechanism can have infinite Renyi divergence"
)
_GOLDEN = 0.5 * (5.0**0.5 - 1.0)
# The width of the search, at most 700 nats, times 0.618^90 is below 1e-15.
_STEPS = 90


def _log_divergence_term(log_ratio: Array, order: Array) -> Array:
    """log(t^lam - 1 - lam (t - 1)) for t = e^log_ratio; by a series where the difference cancels."""
    v = jnp.expm1(log_ratio)
    y = order * log_ratio
    near = jnp.abs(order * v) < 1e-4
    series_ = 0.5 * order * (order - 1.0) * v * v
    series_ = series_ * (1.0 + (order - 2.0) * v / 3.0 * (1.0 + 0.25 * (order - 3.0) * v))
    large = y > 30.0
    middle = jnp.expm1(jnp.minimum(y, 30.0)) - order * jnp.minimum(v, 1e30)
    # For large y: (1 + lam v) e^-y with v = e^log_ratio - 1.
    tail = (1.0 - order) * jnp.exp(-y) + order * jnp.exp(log_ratio - y)
    value = jnp.log(jnp.where(near, series_, jnp.where(large | (middle <= 0), 1.0, middle)))
    return jnp.where(large, y + log1p(-jnp.where(large, tail, 0.0)), value)


@jax.jit
def log_least_excess(epsilon: Array, delta: Array, orders: Array) -> Array:
    """log(A - 1) of Lemma 3's minimum, at broadcast scalars; -inf at delta = 0, inf at delta >= 1.

    The minimum over pairs P = (r, 1-r), Q = (q, 1-q) with r - e^eps q = delta, convex in r, by golden section in
    log(r - delta). A - 1 is a sum of two nonnegative terms, so nothing cancels.
    """
    epsilon, delta, orders = jnp.broadcast_arrays(epsilon, delta, orders)
    proper = (delta > 0) & (delta < 1)
    d = jnp.where(proper, delta, 0.5)

    def excess(u: Array) -> Array:
        s = jnp.exp(u)
        q_rest = 1.0 - s * jnp.exp(-epsilon)
        gap = (d - s * jnp.expm1(-epsilon)) / q_rest
        up = u - epsilon + _log_divergence_term(log1p(d / s) + epsilon, orders)
        down = jnp.log(q_rest) + _log_divergence_term(log1p(-jnp.minimum(gap, 1.0)), orders)
        return jnp.logaddexp(up, jnp.where(jnp.isnan(down), -jnp.inf, down))

    # (lam - 1) delta is the minimum of the first term alone; the second falls with r.
    low = jnp.log(d) - 1.0
    high = log1p(-d)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)

    def halve(_: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, left, right, at_left, at_right = state
        go_left = at_left <= at_right
        low, high = jnp.where(go_left, low, left), jnp.where(go_left, right, high)
        probe = jnp.where(go_left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_probe = excess(probe)
        kept, at_kept = jnp.where(go_left, left, right), jnp.where(go_left, at_left, at_right)
        return (
            low,
            high,
            jnp.where(go_left, probe, kept),
            jnp.where(go_left, kept, probe),
            jnp.where(go_left, at_probe, at_kept),
            jnp.where(go_left, at_kept, at_probe),
        )

    at_left, at_right = jax.vmap(excess)(jnp.stack([left, right]))
    state = (low, high, left, right, at_left, at_right)
    state = jax.lax.fori_loop(0, _STEPS, halve, state)
    value = jnp.minimum(state[4], state[5])
    return jnp.where(proper, value, jnp.where(delta >= 1.0, jnp.inf, -jnp.inf))


def lemma_3(epsilon: ArrayLike, delta: ArrayLike, orders: ArrayLike) -> PublishedBound:
    """[SCI] Lemma 3: the least Renyi divergence of pairs with (epsilon, delta), printed as if it were the largest.

    epsilon + log(min_{delta<r<1} r^lam (r-delta)^(1-lam) + (1-r)^lam (e^eps - r + delta)^(1-lam)) / (lam - 1). Not a
    valid conversion. Relative error below 1e-11.

    Args:
      epsilon: 0 to 690 nats. delta: in [0, 1). orders: real orders in [2, 4096], shape [orders].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    e, d = formula.reals(0, 690, epsilon=epsilon), formula.reals(0, 1, "[)", delta=delta)
    e, d = formula.arguments(epsilon=e, inner_delta=d)
    lam = formula.real_orders(2.0, formula.MAX_ORDER, orders)
    with float64():
        log_excess = np.asarray(log_least_excess(host(e[..., None]), host(d[..., None]), host(lam)))
    value = np.logaddexp(0.0, log_excess) / (lam - 1)
    return PublishedBound(
        value=value,
        label="Lemma 3",
        source=formula.SCI,
        quantity="Renyi divergence, nats",
        validity="invalid",
        reason=NOT_A_BOUND,
    )
