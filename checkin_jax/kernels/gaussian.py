"""The privacy profile of the Gaussian mechanism, exact in both tails, and its inverse."""

from __future__ import annotations

import math

import numpy as np
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import require_float64
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution import engine
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.execution.engine import hosted, xp

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
# Gauss-Legendre on [0, 1]: the integrand below is entire and nearly linear over steps of at most 1/2.
_NODES, _WEIGHTS = (
    0.5 * (np.polynomial.legendre.leggauss(8)[0] + 1),
    0.5 * np.polynomial.legendre.leggauss(8)[1],
)


def log_cdf(x: Array) -> Array:
    """log of the standard normal distribution function; relative error of the value below 1e-13."""
    return engine.log_ndtr(x)


def _asymptotic_one_minus_x_mills(x: Array) -> Array:
    """1 - x Mills(x) by six terms: relative error below 3e-13 from x = 30 on."""
    v = 1.0 / xp.square(x)
    return v * (1.0 - v * (3.0 - v * (15.0 - v * (105.0 - v * (945.0 - v * 10395.0)))))


def _mills(x: Array) -> Array:
    """Phi(-x) / phi(x), the Mills ratio, for x > -30 or so.

    Not by jax.scipy.special.erfcx, which is 0 between 26.55 and 26.64, where XLA flushes erfc to zero and it does not
    yet use its series, and which jax 0.10.0 does not have.
    """
    direct = math.sqrt(0.5 * math.pi) * engine.erfcx(xp.minimum(x, 30.0) * math.sqrt(0.5))
    far = xp.maximum(x, 30.0)
    return xp.where(x < 30.0, direct, (1.0 - _asymptotic_one_minus_x_mills(far)) / far)


def _one_minus_x_mills(x: Array) -> Array:
    """1 - x Mills(x) > 0; for large x from the asymptotic series, since 1 - x M cancels as x^-2."""
    near = 1.0 - x * _mills(xp.minimum(x, 30.0))
    return xp.where(x < 30.0, near, _asymptotic_one_minus_x_mills(xp.maximum(x, 30.0)))


def hazard_beyond(x: Array) -> Array:
    """phi(x) / Phi(-x) - x for x > -30 or so, by how much the normal law's hazard exceeds x; within 1e-12 of itself."""
    return _one_minus_x_mills(x) / _mills(x)


def log_delta(
    mu: Float64[Array, "*#settings"], epsilon: Float64[Array, "*#settings"]
) -> Float64[Array, "*#settings"]:
    """log H_{e^epsilon}(N(mu, 1) || N(0, 1)), the exact privacy profile: delta_G of docs/theory_allocation.md.

    Args:
      mu: sensitivity over noise standard deviation, > 0 (float64).
      epsilon: any real number (float64); broadcasts with mu.

    Returns:
      log delta, relative error of delta below 1e-12 for mu in [1e-8, 40] down to delta = 1e-300.
      With a = epsilon/mu - mu/2, b = a + mu and M the Mills ratio, delta = phi(a) (M(a) - M(b)); the
      difference is an integral of 1 - x M(x) when mu is small, so that nothing cancels.
    """
    require_float64(mu, epsilon)
    mu, epsilon = xp.broadcast_arrays(mu, epsilon)
    a = epsilon / mu - 0.5 * mu
    b = epsilon / mu + 0.5 * mu
    log_phi = -0.5 * a * a - _LOG_SQRT_2PI
    # Short steps: M(a) - M(b) = mu * mean of (1 - x M(x)) over [a, b].
    short = mu <= 0.5
    step = xp.where(short, mu, 0.5)
    middle = xp.clip(a, -30.0, None)
    mean = sum(w * _one_minus_x_mills(middle + x * step) for x, w in zip(_NODES, _WEIGHTS))
    short_value = log_phi + xp.log(step) + xp.log(mean)
    # Long steps in the right tail: M(b) is well below M(a).
    right = xp.clip(a, 0.0, None)
    long_value = log_phi + xp.log(xp.maximum(_mills(right) - _mills(right + mu), 1e-300))
    # Left of the mode delta is not small and the plain difference is exact.
    log_first = log_cdf(-a)
    left_value = log_first + log1p(-xp.exp(xp.minimum(epsilon + log_cdf(-b) - log_first, -1e-300)))
    value = xp.where(a >= 0, long_value, left_value)
    return xp.where(short & (a > xp.where(mu < 1e-5, -30.0, -8.0)), short_value, value)


# Losses evaluated at a time, whose temporaries stay in the cache.
_BLOCK = 4096


def log_profile(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """`log_delta` of one mu on the host: any shape of epsilon, numpy in and out."""
    flat = np.ravel(np.asarray(epsilon, dtype=np.float64))
    found = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        found[start : start + _BLOCK] = engine.run(log_delta, np.float64(mu), flat[start : start + _BLOCK])
    return found.reshape(np.shape(epsilon))


@hosted(static=("steps",))
def _bisect_log_mu(epsilon: Array, log_target: Array, steps: int = 90) -> Array:
    low = xp.full_like(epsilon, math.log(1e-9))
    high = xp.full_like(epsilon, math.log(1e3))

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        feasible = log_delta(xp.exp(middle), epsilon) <= log_target
        return xp.where(feasible, middle, low), xp.where(feasible, high, middle)

    return xp.exp(engine.fori_loop(0, steps, halve, (low, high))[0])


def largest_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian profile at epsilon is at most delta; the feasible end, rounded down.

    The analytic Gaussian mechanism, never sqrt(2 log(1.25/delta))/epsilon. delta down to 1e-300; mu is
    searched in [1e-9, 1e3], and the end 1e-9 is returned as 0 when even that is infeasible.
    """
    with float64():
        # The profile's own rounding error is below 1e-12; ask for that much less.
        target = xp.float64(math.log(delta) - 1e-11)
        mu = float(_bisect_log_mu(xp.float64(epsilon), target))
        return mu if mu > 1.01e-9 else 0.0
