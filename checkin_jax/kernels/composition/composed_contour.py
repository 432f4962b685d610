r"""Ends of epsilon of many rounds of one pair by a contour integral, in as many operations for every setting.

With M(theta) = E_P e^{theta L} for the loss L of all rounds, delta(eps) = E_P (1 - e^{eps - L})_+. Let `sigma` > 0, and
let C(x) be the mean of (1 - e^{-x-Y})_+ for a normal Y of variance sigma^2 and mean sigma^2 / 2, the loss of a Gaussian
mechanism. Then

    (1 - e^{-x})_+  <=  C(x)  <=  (1 - e^{-x})_+ + sigma e^{-x/2} phi(x / sigma):

on the left a Gaussian mechanism is composed with the rounds; on the right e^x C(x) is the price of an option in
sigma, whose slope in sigma is e^{x/2 - sigma^2/8} phi(x / sigma), phi the standard normal density. Both sides are
integrals over theta = t + i omega, t > 0, of e^{theta x} times

    e^{sigma^2 (theta + 1/2)^2 / 2} (e^{-sigma^2/8} / (theta (theta + 1)) - b sigma^2),

b = 0 for C and b = 1 for C without the last term. By Poisson's summation the trapezoidal rule with period p gives
sum_m e^{-t m p} C(x + m p) instead of C(x): too much, by terms that are bounded for the lower end. For m > 0 they have
C <= 1, for m < 0 C(y) <= e^{s y + sigma^2 s (s + 1) / 2} with any s > t. So either end of delta costs a sum over a few
hundred nodes. Both lose as much as another sigma^2 in the variance of L. [Dan87] has contour integrals; the two-sided
use is ours.
"""

from __future__ import annotations

import math
import operator

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float64

from checkin_jax.kernels import FLUSHED, require_float64, round_off, stop_loss
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.elementary import angle, complex_exp, cos, log1p, sin
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.round_off import UNIT

# Nodes; nodes per period, and sigma, in standard deviations of the tilted law.
_NODES, _PER_DEVIATION, _SMOOTHING = 640, 51.2, 0.02
# Least order, and orders above it for Chernoff's bounds, over the standard deviation; least -log of delta.
_LEAST_ORDER, _HIGHER, _LEAST = 2.0, (2.0, 5.0, 10.0), 0.5
# Epsilons beside the solution, one of which is proved, and the farthest from the mean, in standard deviations.
_BESIDE, _FARTHEST = (0.0, 1e-9, 1e-6, 1e-4, 1e-2, 0.3), 8.0


def _tilt(atoms: pld.Atoms, counts: Array, log_delta: Array) -> pld.Tilt:
    """About the saddle point of delta; every order is valid."""

    def nearer(at: pld.Tilt, again: tuple[Array]) -> pld.Tilt:
        # delta is about e^{K(t) - t eps} / (t (t + 1) sd sqrt(2 pi)); at first without the denominator.
        share = again[0] * jnp.log(at.order * (at.order + 1.0) * jnp.sqrt(2.0 * math.pi * at.variance))
        return pld.chernoff_tilt(atoms, counts, jnp.minimum(log_delta + share, -_LEAST))

    one = jnp.ones(())
    near = backend.scan(nearer, pld.Tilt(one, one, one, one), (jnp.asarray([0.0, 1.0]),))
    return pld.tilt_at(atoms, counts, jnp.maximum(near.order, _LEAST_ORDER / jnp.sqrt(near.variance)))


def end(
    atoms: pld.Atoms,
    counts: Float64[Array, " one"],
    log_delta: Float64[Array, ""],
    upper: Bool[Array, ""],
) -> Float64[Array, ""]:
    """The upper or the lower end of epsilon at delta of `counts` rounds; infinity, or 0, where none was found.

    Args:
      atoms: of one round, from above or from below, [1, atoms]. counts: [1].
    """
    require_float64(atoms, counts, log_delta)
    tilt, rounds = _tilt(atoms, counts, log_delta), counts[0]
    order, deviation = tilt.order, jnp.sqrt(tilt.variance)
    period, sigma = _NODES / _PER_DEVIATION * deviation, _SMOOTHING * deviation
    contour = stop_loss.Contour(order, period, sigma)
    theta = stop_loss.nodes(contour, _NODES)
    frequency, variance = jnp.imag(theta), jnp.square(sigma)

    # One round's moment over its value at `order`, and its error; then that of all rounds.
    losses, masses = atoms.losses[0], atoms.masses[0]
    weight = jnp.exp(jnp.log(masses) + order * losses - tilt.log_mgf / rounds)
    apart = losses - tilt.mean / rounds
    turn = frequency[:, None] * apart[None, :]
    real, imaginary = cos(turn) @ weight, sin(turn) @ weight
    size = jnp.sqrt(jnp.square(real) + jnp.square(imaginary))
    off = UNIT * (2.0 * losses.size + 64.0 + 8.0 * frequency * (weight @ jnp.abs(apart)))
    wrong = round_off.of_power(size[None, :], off[None, :], counts, _NODES)
    log_size = rounds * jnp.log(jnp.maximum(size, 1e-300))

    # The kernel of the module's docstring: its exponential's size and phase, and the rest.
    bend, half = jnp.where(upper, 0.0, variance), order + 0.5
    height = jnp.exp(0.5 * variance * (jnp.square(half) - jnp.square(frequency)))
    height = height * stop_loss.multiplicity(_NODES) / period
    square = theta * theta + theta
    inverse = jnp.exp(-0.125 * variance) / (jnp.square(jnp.real(square)) + jnp.square(jnp.imag(square)))
    rest = backend.complex_of(inverse * jnp.real(square) - bend, -inverse * jnp.imag(square))
    phase = rounds * angle(imaginary, real) + variance * half * frequency
    terms = rest * complex_exp(backend.complex_of(log_size + jnp.log(height), phase))
    sizes = height * (1.0 / jnp.abs(square) + bend)
    # Beyond the nodes the modulus of 1 / (theta (theta + 1)) is at most 1 / omega^2.
    left_out = jnp.exp(0.5 * variance * jnp.square(half)) * stop_loss.beyond(contour, _NODES)
    left_out = left_out * (jnp.square(0.5 * period / (math.pi * _NODES)) + bend) * 2.0 / period
    fixed = sizes @ wrong + left_out
    sizes = sizes * jnp.exp(log_size)
    fixed = fixed + UNIT * (_NODES + 256.0) * jnp.sum(sizes)
    by_phase = 8.0 * UNIT * (sizes @ frequency)
    # Relative rounding of masses and tilts, per round, as in `pld.compose`.
    drift = rounds * UNIT * (64.0 + 4.0 * order * jnp.max(jnp.abs(losses)))

    # Orders above this one, and 0.
    others = pld.tilt_at(atoms, counts, jnp.append(order + jnp.asarray(_HIGHER) / deviation, 0.0))
    higher, plain = (jax.tree.map(operator.itemgetter(part), others) for part in (slice(-1), -1))
    beyond = (higher.order - order) * period
    log_before = higher.log_mgf + 0.5 * variance * higher.order * (higher.order + 1.0)
    log_before = log_before + drift * higher.order / order - beyond - jnp.log(-jnp.expm1(-beyond))
    # C(x + y) <= y + (x + Y)_+ for y > 0, whose mean is at most this where eps >= 0.
    shrink = jnp.exp(-order * period)
    reach = jnp.sqrt(plain.variance + variance) + jnp.abs(plain.mean) + variance
    after = shrink / (1.0 - shrink) * jnp.minimum(1.0, period / (1.0 - shrink) + reach)
    infinite = -jnp.expm1(rounds * log1p(-atoms.infinite[0]))

    def delta(epsilon: Array) -> tuple[Array, Array]:
        """The bound on delta, and about its slope over itself."""
        phase = frequency * (epsilon - tilt.mean)
        cosine, sine = cos(phase), sin(phase)
        inside = jnp.real(terms) @ cosine + jnp.imag(terms) @ sine
        slope = (jnp.imag(terms) * frequency) @ cosine - (jnp.real(terms) * frequency) @ sine
        error = fixed + by_phase * (jnp.abs(epsilon) + jnp.abs(tilt.mean))
        scale = jnp.exp(tilt.log_mgf - order * epsilon)
        above = (inside + error) * scale * jnp.exp(drift) + infinite + FLUSHED
        before = jnp.exp(jnp.min(log_before - higher.order * epsilon))
        below = (inside - error) * scale * jnp.exp(-drift) - (before + after) * (1.0 + 1e-6) - FLUSHED
        return jnp.where(upper, above, below), slope / inside - order

    def missing(epsilon: Array) -> tuple[Array, Array]:
        value, slope = delta(epsilon * deviation)
        return log_delta - jnp.log(jnp.maximum(value, 1e-320)), -slope * deviation

    middle = tilt.mean / deviation
    about = deviation * backend.crossing(
        missing, jnp.maximum(middle - _FARTHEST, 0.0), jnp.maximum(middle, 0.0) + _FARTHEST, 40
    )
    # The solution is proved, or one beside it.
    tried = jnp.append(about + jnp.where(upper, 1.0, -1.0) * jnp.asarray(_BESIDE) * deviation, 0.0)
    values = backend.vmap(lambda at: delta(at)[0])(tried)
    target, rounding = jnp.exp(log_delta), UNIT * (8.0 + 2.0 * jnp.abs(log_delta))
    least = jnp.min(jnp.where(values <= target * (1.0 - rounding), tried, jnp.inf))
    largest = jnp.max(jnp.where(values > target * (1.0 + rounding), tried, 0.0))
    return jnp.where(upper, least, jnp.maximum(largest, 0.0))
