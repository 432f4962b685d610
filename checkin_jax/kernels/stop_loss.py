r"""Upper bound on E(x + S)_+ for a sum S of any number of independent steps, by one contour integral.

For every order t > 0 and period L, by Poisson's summation, with M(theta) = E e^{theta S},

    E(x + S)_+  <=  sum_m e^{-t m L} E(x + m L + S)_+  =  (1/L) sum_k e^{theta_k x} M(theta_k) / theta_k^2,
    theta_k = t + 2 pi i k / L,

since all terms in the middle are positive: the trapezoidal rule errs upwards. A centred normal variable is
added to S (upwards as well, by Jensen), which makes the sum over k finite. With t near the saddle point there
is no cancellation, however small the answer, and the cost does not grow with the number of steps. Contour
integrals for stop-loss transforms are classical [Dan87]; the one-sided use of the trapezoidal rule is ours.

A step has mean zero and enters by T(theta) = (E e^{theta d} - 1) / theta^2, which has no cancellation near 0.

Rounding: a step has M = 1 + theta^2 T, and the real part of log M is log1p(|M|^2 - 1) / 2. The error of its
log M(theta) / M(t) is below 128 u |theta|^2 T(t) (1 + |M - 1|) / |M|^2, u = 2^-53, for a log1p within 3 ulp
(`elementary`) and an arctangent within 4 ulp. Errors add up over steps. |M| is raised to 1e-4, which changes at
most 2 (2e-4)^count of M(theta) / M(t). Scalar factors cost 1e-8.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING
from checkin_jax.kernels.elementary import UNIT, angle, complex_exp, cos, log1p, power_series
from checkin_jax.kernels.execution.backend import complex_of, of_jax, quietly, times_each, xp

# Floor of |M| of one step, relative to M(t); its effect is counted.
FLOOR = 1e-4
# Rounding of theta^2 T, of its logarithm and of their sum, in units of |theta|^2 T(t), with a wide margin.
_PER_STEP = 128.0 * UNIT
_SERIES = tuple(1.0 / math.factorial(j + 2) for j in range(19))


class Contour(NamedTuple):
    """Order t, period L and standard deviation of the added normal variable: positive float64, or [...]."""

    order: Array
    period: Array
    smoothing: Array


class ContourSum(NamedTuple):
    """A sum of independent steps at the nodes of a contour, or several sums along leading axes.

    log_mgf: log M(t). log_ratio: log M(theta_k) / M(t), complex [points]. drift: bound on the error of
    log_ratio, [points].
    absolute: bound on any further error of M(theta_k) / M(t).
    """

    log_mgf: Array
    log_ratio: Array
    drift: Array
    absolute: Array


def nodes(contour: Contour, points: int) -> Array:
    """theta_k for k = 0 .. points - 1, complex, [..., points]; negative k are conjugates."""
    frequency = times_each(2.0 * math.pi / contour.period, xp.arange(points, dtype=xp.float64))
    return complex_of(xp.broadcast_to(contour.order[..., None], frequency.shape), frequency)


def multiplicity(points: int) -> Array:
    """Number of frequencies that each node represents: 1 at k = 0, 2 elsewhere."""
    return xp.where(xp.arange(points) == 0, 1.0, 2.0)


def second(z: Array) -> Array:
    """(e^z - 1 - z) / z^2 = int_0^1 (1 - u) e^{u z} du for real or complex z; modulus at most its value at Re z."""
    if of_jax(z):
        near, exp = xp.abs(z) < 1.0, complex_exp if xp.iscomplexobj(z) else xp.exp
        inner, outer = xp.where(near, z, 0.0), xp.where(near, 1.0, z)
        return xp.where(near, power_series(_SERIES, inner), (exp(outer) - 1.0 - outer) / (outer * outer))
    near, found = np.abs(z) < 1.0, np.empty(z.shape, dtype=z.dtype)
    outer = z[~near]
    found[near], found[~near] = (
        power_series(_SERIES, z[near]),
        (np.exp(outer) - 1.0 - outer) / (outer * outer),
    )
    return found  # type: ignore[return-value]


def squared(excess: Array) -> Array:
    """|1 + excess|^2 - 1 for complex excess, with the modulus raised to FLOOR."""
    a, b = xp.real(excess), xp.imag(excess)
    return xp.maximum(2.0 * a + a * a + b * b, FLOOR**2 - 1.0)


def log_one_plus(excess: Array) -> tuple[Array, Array]:
    """(log(1 + excess), |1 + excess|^2) for complex excess, with the modulus raised to FLOOR."""
    size = squared(excess)
    turn = angle(xp.imag(excess), 1.0 + xp.real(excess))
    return complex_of(0.5 * log1p(size), turn), 1.0 + size


def start(contour: Contour, theta: Array) -> ContourSum:
    """The normal variable alone."""
    half = 0.5 * xp.square(contour.smoothing)
    frequency = xp.imag(theta)
    linear = 2.0 * half * contour.order
    ratio = complex_of(-half[..., None] * frequency * frequency, linear[..., None] * frequency)
    nothing = xp.zeros_like(frequency)
    return ContourSum(half * xp.square(contour.order), ratio, nothing, xp.zeros_like(half))


def rounding(theta: Array, excess: Array, real: Array, size: Array) -> Array:
    """Bound on the error of one step's log M(theta) / M(t); real: T(t), size: |M(theta)|^2."""
    return _PER_STEP * real * xp.square(xp.abs(theta)) * (1.0 + xp.abs(excess)) / size


class Repeated(NamedTuple):
    """One step at the nodes of a contour, to be added any number of times; as in `ContourSum`.

    floored: True if |M| was raised at a node.
    """

    log_mgf: Array
    log_ratio: Array
    drift: Array
    floored: Array


def repeated(contour: Contour, theta: Array, excess: Array, real: Array) -> Repeated:
    """A step with theta^2 T(theta) = excess [..., points] and T(t) = real [...]."""
    log_step, size = log_one_plus(excess)
    log_real = log1p(xp.square(contour.order) * real)
    floored = xp.any(size <= 2.0 * FLOOR**2, axis=-1)
    log_ratio = log_step - log_real[..., None].astype(log_step.dtype)
    return Repeated(log_real, log_ratio, rounding(theta, excess, real[..., None], size), floored)


def times(total: ContourSum, step: Repeated, count: Array) -> ContourSum:
    """Adds `count` >= 0 such steps: scalar, or [...]."""
    raised = xp.where(step.floored & (count > 0), 2.0 * xp.exp(count * math.log(2.0 * FLOOR)), 0.0)
    number = xp.asarray(count)[..., None]
    return ContourSum(
        total.log_mgf + count * step.log_mgf,
        total.log_ratio + number.astype(step.log_ratio.dtype) * step.log_ratio,
        total.drift + number * step.drift,
        total.absolute + raised,
    )


def add_excess(
    total: ContourSum, contour: Contour, theta: Array, excess: Array, real: Array, count: Array
) -> ContourSum:
    """Adds `count` >= 0 steps with theta^2 T(theta) = excess [..., points] and T(t) = real [...].

    n clients that take a step with probability gamma each are n steps with gamma T.
    """
    return times(total, repeated(contour, theta, excess, real), count)


def beyond(contour: Contour, points: int) -> Array:
    """Upper bound on sum_{k >= points} |M(theta_k)| / M(t) from the normal variable alone."""
    rate = 0.5 * xp.square(contour.smoothing * 2.0 * math.pi / contour.period)
    return xp.exp(-rate * points**2) / -xp.expm1(-2.0 * rate * points)


def inaccuracy(total: ContourSum) -> Array:
    """Bound on the error of M(theta_k) / M(t), [points]."""
    size = xp.real(total.log_ratio)
    wrong = total.drift + 16.0 * UNIT * (8.0 + xp.abs(size) + xp.abs(xp.imag(total.log_ratio)))
    # |e^a - e^b| <= |a - b| e^max(a, b)
    return wrong * xp.exp(size + wrong) + total.absolute[..., None]


def weights(contour: Contour, theta: Array) -> Array:
    """1 / (L |theta|^2), for each frequency that a node represents."""
    number = xp.where(xp.imag(theta) == 0.0, 1.0, 2.0)
    return number / (contour.period[..., None] * xp.square(xp.abs(theta)))


def last(contour: Contour, points: int) -> Array:
    """Upper bound on what frequencies from 2 pi points / L on add, over M(t), from the normal variable."""
    return 2.0 * beyond(contour, points) * contour.period / xp.square(2.0 * math.pi * points)


def fewer(total: ContourSum, contour: Contour, theta: Array, points: int) -> tuple[ContourSum, Array]:
    """The sum at the first nodes, and its `tail` for `stop_loss`, valid after any further steps.

    The other nodes enter by their moduli relative to M(t), which further steps only lower: a factor E
    e^{theta d} has modulus at most E e^{t d}, the factor of M(t). This also covers two extensions. With a
    binomial number of steps, J of them in `total`, |sum_{K >= J} Pr[K] M^{K-J}| <= sum_{K >= J} Pr[K]
    M(t)^{K-J}, and a phase for each step changes no modulus. With two kinds of steps, the first steps of
    either kind give a bound, so the smaller one holds.
    """
    sizes = xp.exp(xp.real(total.log_ratio)) + inaccuracy(total)
    beyond = xp.sum((weights(contour, theta) * sizes)[..., points:], axis=-1)
    few = total._replace(log_ratio=total.log_ratio[..., :points], drift=total.drift[..., :points])
    return few, beyond + last(contour, theta.shape[-1])


def lasting(
    contour: Contour, theta: Array, excess: Array, real: Array, count: Array, off: Array | float = 0.0
) -> tuple[Array, Array]:
    """Indices of the nodes that matter for sums of at least `count` steps of some laws, and the `tail` of the others.

    excess: [..., laws, points], real: [..., laws]; one set of indices serves all contours. off: error of excess besides
    `rounding`, at least that of its value at t. At other nodes |M(theta) / M(t)|^count is below e^-59 for every law,
    since log r <= r - 1. So it is for mixtures of the laws, for steps of several of them, and after any further steps.
    """
    square, top = xp.square(xp.abs(theta))[..., None, :], xp.square(contour.order)[..., None] * real
    size, at_order = 1.0 + xp.abs(excess), (1.0 + top)[..., None]
    top = (top * (2.0 + top))[..., None]
    wrong = 16.0 * _PER_STEP * real[..., None] * square * size + 2.0 * off * (size + at_order + off)
    above = xp.max((squared(excess) + wrong - top) / (1.0 + top), axis=-2)
    # NaN is kept.
    small = (0.5 * count * above <= -60.0).reshape(-1, theta.shape[-1])
    # Under JAX the number of nodes is known beforehand.
    kept = xp.arange(theta.shape[-1]) if of_jax(theta) else xp.flatnonzero(~xp.all(small, axis=0))
    # All 1 / (L |theta|^2) are at most the first one and an integral.
    every = 1.0 / (contour.period * xp.square(contour.order)) + 0.5 / contour.order
    return kept, math.exp(-59.0) * every + last(contour, theta.shape[-1])


@quietly
def stop_loss(
    total: ContourSum, contour: Contour, theta: Array, x: Array, tail: Array | None = None
) -> Array:
    """Upper bound on E(x + S)_+, every rounding included.

    Args:
      total: S, at the nodes `theta` of `contour`. x: scalar, or one for each of several sums, in the unit of
        the steps. Contours of several sums have one axis for each of theirs. tail: from `fewer` of S or of
        its first steps; None uses the normal variable alone.

    Sharp if t is near the saddle point of e^{t x} M(t) / t^2, t L exceeds about 15, and L is at least a dozen
    standard deviations of S. Valid everywhere; infinity where no bound is known.
    """
    points = theta.shape[-1]
    frequency = xp.imag(theta)
    shift = frequency * x[..., None]
    phase = xp.imag(total.log_ratio) + shift
    size = xp.real(total.log_ratio)
    kernel = weights(contour, theta)
    # e^{i phase} / theta^2, the latter by its argument.
    terms = xp.exp(size) * cos(phase - 2.0 * angle(frequency, contour.order[..., None]))
    error = inaccuracy(total) + UNIT * (points + 16.0 * xp.abs(shift)) * xp.exp(size)
    tail = last(contour, points) if tail is None else tail
    inside = xp.sum(kernel * terms, axis=-1) + xp.sum(kernel * error, axis=-1) + tail
    value = inside * xp.exp(contour.order * x + total.log_mgf) * (1.0 + ROUNDING) + FLUSHED
    return xp.where(xp.isnan(value), math.inf, value)
