r"""Lower bounds on Renyi moments, from laws of privacy loss that a concrete pair dominates."""

from __future__ import annotations

from jax import Array

from checkin_jax.kernels import require_float64
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import logsumexp, quietly, xp

# Below this, (order + 3) |e^l - 1| is small enough for two Taylor terms and a bound on the remainder.
_SMALL = 1e-2
# Rounding error of three terms.
_ROUNDING = 1e-15


@quietly
def log_moments(atoms: pld.Atoms, orders: Array) -> Array:
    """Lower bounds on log E_Q (P/Q)^lam at orders lam > 1, from `pld.join(..., upper=False)`;
    nats, [orders].

    A - 1 = E_Q phi(P/Q) with phi(r) = r^lam - 1 - lam (r - 1) >= 0, so mass under Q alone and mass at loss 0
    is left out.

    Args:
      atoms: one law, [atoms].
    """
    require_float64(atoms, orders)
    order, loss = orders[:, None], atoms.losses[None, :]
    w = xp.expm1(loss)
    power = order * loss
    # In units of e^{lam l} above loss 0, where that is large.
    unit = xp.maximum(power, 0.0)
    apart = xp.exp(power - unit) - xp.exp(-unit) * (1.0 + order * w)
    apart = apart - _ROUNDING * (1.0 + xp.exp(-unit) * (1.0 + order * xp.abs(w)) + xp.abs(power))
    small = xp.abs((order + 3.0) * w) < _SMALL
    series = 1.0 + (order - 2.0) * w / 3.0 - xp.square((order + 3.0) * w) / 6.0
    value = xp.where(small, 0.5 * order * (order - 1.0) * w * w * series * (1.0 - _ROUNDING), apart)
    log_phi = xp.log(xp.maximum(value, 0.0)) + xp.where(small, 0.0, unit)
    log_far = xp.log(atoms.masses)[None, :] - loss
    excess = logsumexp(xp.where(value > 0, log_phi + log_far, -xp.inf), axis=1) - 1e-12
    found = xp.where(excess < 30.0, log1p(xp.exp(xp.minimum(excess, 30.0))), excess)
    return xp.maximum(found * (1.0 - 1e-12), 0.0)
