"""Elementary functions in place of XLA's, which are too inaccurate or too slow for bounds; round-off of transforms.

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
from checkin_jax.kernels.execution.backend import xp


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


# pi / 2 in three parts; the first two have 27 binary digits, so that their products with whole numbers below 2^26 are
# exact.
_QUARTER = (1.570796325802803, 9.920935739593517e-10, 5.721188726109832e-18)
# Coefficients of the library fdlibm: of sin r / r - 1 and cos r - 1 + r^2 / 2 for |r| <= pi / 4, and of
# arctan t / t - 1 for |t| <= 7 / 16, by powers of the square.
_SINE = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COSINE = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
_ARCTANGENT = (
    -3.33333333333329318027e-01,
    1.99999999998764832476e-01,
    -1.42857142725034663711e-01,
    1.11111104054623557880e-01,
    -9.09088713343650656196e-02,
    7.69187620504482999495e-02,
    -6.66107313738753120669e-02,
    5.83357013379057348645e-02,
    -4.97687799461593236017e-02,
    3.65315727442169155270e-02,
    -1.62858201153657823623e-02,
)


def power_series(coefficients: tuple[float, ...], x: Array) -> Array:
    """The polynomial with these coefficients, the constant one first, by Horner's rule."""
    found = backend.xp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        found = found * x + coefficient
    return found


def _sin_cos(x: Array) -> tuple[Array, Array]:
    """(sin x, cos x), a tenth of the time of XLA's on a CPU, which calls a library number by number."""
    turns = jnp.round(x * (2.0 / math.pi))
    rest = x
    for part in _QUARTER:
        rest = rest - turns * part
    # Beyond 2^26 quarters the rest may be longer than a quarter.
    rest = jnp.clip(rest, -1.0, 1.0)
    square = rest * rest
    sine = rest + rest * (square * power_series(_SINE, square))
    cosine = 1.0 - 0.5 * square + square * (square * power_series(_COSINE, square))
    quarter = turns - 4.0 * jnp.floor(0.25 * turns)
    odd = (quarter == 1.0) | (quarter == 3.0)
    first, second = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    return (
        jnp.where(quarter >= 2.0, -first, first),
        jnp.where((quarter == 1.0) | (quarter == 2.0), -second, second),
    )


def sin(x: Array) -> Array:
    """sin x in float64, within 2 ulp up to a million turns; beyond 1e8 off by up to |x| roundings."""
    return _sin_cos(x)[0] if backend.of_jax(x) else np.sin(x)  # type: ignore[return-value]


def cos(x: Array) -> Array:
    """cos x, as accurate as `sin`."""
    return _sin_cos(x)[1] if backend.of_jax(x) else np.cos(x)  # type: ignore[return-value]


def complex_exp(z: Array) -> Array:
    """e^z for complex z, as accurate as `sin` at its imaginary part."""
    if not backend.of_jax(z):
        return np.exp(z)  # type: ignore[return-value]
    size = jnp.exp(jnp.real(z))
    sine, cosine = _sin_cos(jnp.imag(z))
    return backend.complex_of(size * cosine, size * sine)


def angle(y: Array, x: Array) -> Array:
    """The angle of (x, y) in float64, within 4 ulp, in [-pi, pi]."""
    if not backend.of_jax(y, x):
        return np.arctan2(y, x)  # type: ignore[return-value]
    steep = jnp.abs(y) > jnp.abs(x)
    low = jnp.where(steep, jnp.abs(x), jnp.abs(y))
    high = jnp.where(steep, jnp.abs(y), jnp.abs(x))
    # arctan(low / high), or its distance from pi / 4.
    wide = low > (math.sqrt(2.0) - 1.0) * high
    ratio = jnp.where(wide, low - high, low) / jnp.where(wide, low + high, jnp.where(high > 0, high, 1.0))
    square = ratio * ratio
    found = ratio + ratio * (square * power_series(_ARCTANGENT, square))
    found = jnp.where(wide, 0.25 * math.pi + found, found)
    found = jnp.where(steep, 0.5 * math.pi - found, found)
    found = jnp.where(x < 0, math.pi - found, found)
    return jnp.where(y < 0, -found, found)


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
    return power_series(coefficients, (x - _CENTRE) / (x + _CENTRE))


def _coefficients(scaled: Callable[[np.ndarray], Any]) -> tuple[float, ...]:
    """Coefficients of the polynomial near scaled(x), x >= 0."""
    chebyshev = np.polynomial.chebyshev
    found = chebyshev.chebinterpolate(lambda at: scaled(_CENTRE * (1.0 + at) / (1.0 - at)), _DEGREE)
    return tuple(chebyshev.cheb2poly(found).tolist())


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


# Unit round-off; and twice the constant of FFTs in use: for M = 2^k points the relative error in the 2-norm
# is below 7 u log2 M, as for radix 2 in [Hig02], Theorem 24.2. docs/accounting.md counts the radices of real
# libraries.
UNIT = 2.0**-53
_FFT = 14.0


def of_fft(points: int) -> float:
    """Bound on the relative error of a transform of `points` values, a product of 2, 3 and 5, either way.

    It holds for all outputs together in the 2-norm, and for every single output against the 1-norm of the
    inputs, each of which reaches it on one path of log2(points) butterflies. So the error of an output is at
    most this times the smaller of the inputs' 1-norm and sqrt(points) times their 2-norm.
    """
    return _FFT * UNIT * math.log2(points)


def of_power(size: Any, off: Any, counts: Any, points: int) -> Any:
    """Bound on the error of prod_i phi_i^counts_i at each frequency, and of a transform of up to `points`.

    If |phi| has error at most a in the supremum norm, |phi^T - computed| <= T a (|phi| + a)^(T-1).

    Args:
      size: |phi_i| as computed by a real transform, [events, frequencies]. off: a, [events, 1] or a number.
      counts: T_i, [events]. points: of the transform, static.
    """
    padded = size + off
    log_padded = xp.log(padded)

    def summed(values: Any) -> Any:
        # No matrix product: BLAS starts threads for it.
        return xp.sum(counts[:, None] * values, axis=0)

    relative = summed(off / padded + 8.0 * UNIT * (4.0 + xp.abs(log_padded))) + of_fft(points)
    return xp.exp(summed(log_padded)) * relative
