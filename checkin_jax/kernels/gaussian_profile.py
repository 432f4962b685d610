"""The privacy profile of the Gaussian mechanism, accurate in both tails, and its inverse."""

from __future__ import annotations

import math

import numpy as np
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import require_float64
from checkin_jax.kernels.elementary import scaled_tail, scaled_tail_fall
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp


def hazard_beyond(x: Array) -> Array:
    """phi(x) / Phi(-x) - x for x > -30 or so: the normal hazard rate minus x, with relative error 1e-13."""
    near = math.sqrt(0.5 / math.pi) - x * scaled_tail(x)
    return xp.where(x < 2.0, near, scaled_tail_fall(xp.maximum(x, 2.0))) / scaled_tail(x)


@quietly
def log_delta(
    mu: Float64[Array, "*#settings"], epsilon: Float64[Array, "*#settings"]
) -> Float64[Array, "*#settings"]:
    """log H_{e^epsilon}(N(mu, 1) || N(0, 1)), the exact profile: delta_G of docs/theory_allocation.md.

    Args:
      mu: sensitivity over noise standard deviation, > 0 (float64).
      epsilon: any real number in nats (float64); broadcasts with mu.

    Returns:
      log delta, relative error of delta below 2e-12 for mu in [1e-8, 40] down to delta = 1e-300.
    """
    require_float64(mu, epsilon)
    ahead, least = log_delta_ahead(mu, xp.abs(epsilon)), xp.minimum(epsilon, 0.0)
    # H_c = 1 - c + c H_{1/c}, as the pair is symmetric.
    return xp.where(epsilon < 0, xp.log(xp.exp(least + ahead) - xp.expm1(least)), ahead)


# Below this step in standard deviations (relative to the hazard) few terms of a Taylor series suffice;
# differences over longer steps are accurate.
_SHORT = 0.15
# From here on the leading terms of the derivatives suffice.
_FAR = 100.0


def _ratio_ahead(mu: Array, x: Array) -> Array:
    """H_{e^loss}(N(mu, 1) || N(0, 1)) at losses x mu, x >= 0, over exp(-a^2/2) if a = x - mu/2 >= 0.

    If a < 0, the profile itself. Relative error below 2e-12 for mu >= 1e-8. With m(x) = e^{x^2/2} Phi(-x),
    the value is m(a) - m(a + mu), over short steps mu times the mean of -m'.
    """
    half = 0.5 * mu
    a, b = x - half, x + half
    if backend.holds(mu < _SHORT):
        return _short(mu, x) * xp.where(a < 0, xp.exp(-0.5 * a * a), 1.0)
    near = scaled_tail(xp.abs(a))
    density = xp.exp(-0.5 * a * a)
    # e^{a^2/2} overflows where mu is large.
    long = xp.where(a < 0, 1.0 - density * (near + scaled_tail(b)), near - scaled_tail(b))
    if backend.holds(~(mu < _SHORT)):
        return long
    return xp.where(mu < _SHORT, _short(mu, x) * xp.where(a < 0, density, 1.0), long)


def _short(mu: Array, x: Array) -> Array:
    """m(x - mu/2) - m(x + mu/2) for mu < _SHORT, x >= 0: mu times the mean of f = -m', from
    derivatives at x.

    f' = x f - m, and f^(k+1) = x f^(k) + (k+1) f^(k-1) for k >= 1. The eighth derivative is at most 385 f.
    """
    near, square, f = x < _FAR, mu * mu, scaled_tail_fall(x)
    at = xp.where(near, x, 1.0)
    here = xp.where(near, f, 1.0)
    first = at * here - scaled_tail(at)
    second = at * first + 2.0 * here
    third = at * second + 3.0 * first
    fourth = at * third + 4.0 * second
    sixth = at * (at * fourth + 5.0 * third) + 6.0 * fourth
    more = square / 24.0 * (second + square / 80.0 * (fourth + square / 168.0 * sixth))
    # f'' is about (6 - 42 / x^2) f / x^2.
    inverse = 1.0 / xp.square(xp.maximum(x, _FAR))
    return mu * (f + xp.where(near, more, f * square * inverse * (0.25 - 1.75 * inverse)))


def delta_ahead(mu: Array, loss: Array) -> Array:
    """`exp(log_delta)` for losses >= 0, in a tenth of the time; values below 1e-307 may be zero."""
    x = loss / mu
    a = x - 0.5 * mu
    return _ratio_ahead(mu, x) * xp.where(a < 0, 1.0, xp.exp(-0.5 * a * a))


def tails_ahead(mu: Array, x: Array) -> tuple[Array, Array]:
    """Phi(-b) and Phi(-a) - Phi(-b), a = x - mu/2, b = x + mu/2, x >= 0; relative errors below 2e-12."""
    half = 0.5 * mu
    a, b = x - half, x + half
    far = xp.exp(-0.5 * b * b) * scaled_tail(b)
    short = mu * xp.maximum(x, 1.0) < 0.2
    if backend.holds(short):
        return far, _mass_between(mu, x)
    tail = xp.exp(-0.5 * a * a) * scaled_tail(xp.abs(a))
    long = xp.where(a < 0, 1.0 - tail, tail) - far
    if backend.holds(~short):
        return far, long
    return far, xp.where(short, _mass_between(xp.where(short, mu, 0.0), xp.where(short, x, 0.0)), long)


def _mass_between(mu: Array, x: Array) -> Array:
    """Phi(mu/2 - x) - Phi(-mu/2 - x) for mu max(x, 1) < 0.2: mu times the mean density, by a series in mu.

    The terms are Hermite polynomials h^2k He_2k(x) / (2k + 1)!, h = mu/2, in powers of (h x)^2.
    """
    h = xp.square(0.5 * mu)
    y = h * xp.square(x)
    first = 1.0 / 6.0 - h * (1.0 / 20.0 - h * (1.0 / 112.0 - h / 864.0))
    second = 1.0 / 120.0 - h * (1.0 / 336.0 - h / 1728.0)
    third = 1.0 / 5040.0 - h / 12960.0
    mean = first + y * (second + y * (third + y * (1.0 / 362880.0)))
    mean = y * mean + (1.0 - h * (1.0 / 6.0 - h * (1.0 / 40.0 - h * (1.0 / 336.0 - h / 3456.0))))
    return mu * (1.0 / math.sqrt(2.0 * math.pi)) * xp.exp(-0.5 * xp.square(x)) * mean


def log_delta_ahead(mu: Array, loss: Array) -> Array:
    """`log_delta` for losses >= 0."""
    x = loss / mu
    return xp.log(_ratio_ahead(mu, x)) - 0.5 * xp.square(xp.maximum(x - 0.5 * mu, 0.0))


def log_profile(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """`log_delta` of one mu in NumPy, for any shape of epsilon."""
    return np.asarray(log_delta(np.float64(mu), np.asarray(epsilon, dtype=np.float64)))  # type: ignore[arg-type]


@quietly
def profile_ahead(mu: float, loss: np.ndarray) -> np.ndarray:
    """`delta_ahead` of one mu in NumPy, for losses >= 0 of any shape."""
    return np.asarray(delta_ahead(np.float64(mu), np.asarray(loss, dtype=np.float64)))  # type: ignore[arg-type]


def largest_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose Gaussian profile at epsilon is at most delta, rounded down to a feasible value.

    This is the analytic Gaussian mechanism, not sqrt(2 log(1.25/delta))/epsilon. delta may be as small as
    1e-300. mu is searched in [1e-9, 1e3]; 0 is returned if 1e-9 is infeasible.
    """
    # The profile's rounding error is below 2e-12; this margin covers it.
    target = math.log(delta) - 1e-11

    def feasible(log_mu: float) -> bool:
        return float(log_profile(math.exp(log_mu), np.array(epsilon))) <= target

    mu = float(np.exp(backend.bisected(feasible, math.log(1e-9), math.log(1e3), 90)[0]))
    return mu if mu > 1.01e-9 else 0.0
