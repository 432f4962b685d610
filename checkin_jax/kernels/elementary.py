"""Elementary functions in place of XLA's, which are too inaccurate or too slow for bounds.

tests/bounds/test_xla.py checks their errors. `jnp.log1p` is used nowhere else in this package.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.typing import ArrayLike

from checkin_jax.kernels.execution import backend


def log1p(x: ArrayLike) -> Array:
    """log(1 + x) in float64, within 3 ulp for every x > -1; -inf at -1, NaN below.

    XLA's `log-plus-one` on the CPU has errors up to 129 ulp for x in about [-0.53, -0.28] (jax-ml/jax#39707). Below
    -1/4 log(1 + x) is used, whose one rounding contributes at most 1.7 ulp.
    """
    if not backend.of_jax(x):
        return np.log1p(x)  # type: ignore[return-value]
    # Each branch gets arguments at which its derivative is finite too.
    low = jnp.less(x, -0.25)
    return jnp.where(low, jnp.log(jnp.where(low, jnp.add(1.0, x), 1.0)), jnp.log1p(jnp.where(low, 0.0, x)))


# The variable of the normal tail's polynomials is (x - _CENTRE) / (x + _CENTRE) for x >= 0. Of the degrees 20 to 28
# this is the most accurate.
_CENTRE, _DEGREE = 3.0, 24


def scaled_tail(x: Array) -> Array:
    """e^{x^2/2} Phi(-x) for x >= 0, relative error below 1e-14."""
    if not backend.of_jax(x):
        return 0.5 * scipy.special.erfcx(np.sqrt(0.5) * x)
    return _polynomial(_tail_coefficients(), x) / (1.0 + x)


def scaled_tail_fall(x: Array) -> Array:
    """Negative slope of `scaled_tail` at x >= 0: 1 / sqrt(2 pi) - x e^{x^2/2} Phi(-x), relative error below 2e-14."""
    if backend.holds(x < 2.0):
        # Little cancellation.
        return math.sqrt(0.5 / math.pi) - x * scaled_tail(x)
    root = 1.0 + x
    return _polynomial(_fall_coefficients(), x) / (root * root)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    at = (x - _CENTRE) / (x + _CENTRE)
    found = at * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        found = found * at + coefficient
    return found


def _coefficients(scaled: Callable[[np.ndarray], Any]) -> tuple[float, ...]:
    """Coefficients of the polynomial near scaled(x), x >= 0, from the highest power down."""
    chebyshev = np.polynomial.chebyshev
    found = chebyshev.chebinterpolate(lambda at: scaled(_CENTRE * (1.0 + at) / (1.0 - at)), _DEGREE)
    return tuple(chebyshev.cheb2poly(found)[::-1].tolist())


@functools.cache
def _tail_coefficients() -> tuple[float, ...]:
    """Coefficients for (1 + x) e^{x^2/2} Phi(-x)."""
    return _coefficients(lambda x: 0.5 * (1.0 + x) * scipy.special.erfcx(np.sqrt(0.5) * x))


@functools.cache
def _fall_coefficients() -> tuple[float, ...]:
    """Coefficients for (1 + x)^2 (1 / sqrt(2 pi) - x e^{x^2/2} Phi(-x)).

    This is the integral of t e^{-t x / (1 + x) - t^2 / 2 (1 + x)^2}, whose terms are positive: nothing cancels.
    """
    nodes, weights = np.polynomial.legendre.leggauss(16)
    starts = np.arange(0.0, 64.0, 0.5)
    t = (starts[:, None] + 0.25 * (nodes + 1.0)).ravel()
    weights = np.tile(0.25 * weights, len(starts)) * t / np.sqrt(2.0 * np.pi)

    def scaled(x: np.ndarray) -> np.ndarray:
        u = t / (1.0 + x[:, None])
        return np.exp(-u * x[:, None] - 0.5 * u * u) @ weights

    return _coefficients(scaled)
