r"""Composition of privacy loss laws by a contour integral: delta at epsilon and both ends of epsilon at delta.

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
C <= 1, for m < 0 C(y) <= e^{s y + sigma^2 s (s + 1) / 2} with any s > t. So either end of delta costs a sum over the
nodes, whatever the number of rounds. Both lose as much as another sigma^2 in the variance of L. The order t moves the
bulk of the law to the answer, so that rounding is relative to it. [Dan87] has contour integrals, [KJH20] composes by
FFT; the tilt and the two-sided use is ours.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import jax
from jax import Array
from jaxtyping import Bool, Float64

from checkin_jax.kernels import FLUSHED, elementary, require_float64, stop_loss
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.elementary import UNIT, angle, complex_exp, cos, log1p, sin
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp

# Nodes; nodes per period, and sigma, in standard deviations of the tilted law.
_NODES, _PER_DEVIATION, _SMOOTHING = 2560, 204.8, 0.005
# Least order, and orders above it for Chernoff's bounds, over the standard deviation; least -log of delta.
_LEAST_ORDER, _HIGHER, _LEAST = 2.0, (0.5, 1.0, 1.4, 2.0, 5.0, 10.0), 0.5
# Share of delta that an upper end leaves free: certificates round the same knots once more.
_FREE = 1e-9
# -log of the share of delta that the periods above a lower end may add.
_FAR_BELOW = 14.0
# Epsilons beside the solution, one of which is proved, and the farthest from the mean, in standard deviations.
_BESIDE, _FARTHEST = (0.0, 1e-9, 1e-6, 1e-4, 1e-2, 0.3), 8.0
# Consecutive multiples of a step whose waves are one factor times others; rows of a product that stays in one thread.
_FEW, _ROWS = 64, 16


class Composed(NamedTuple):
    """The composition of all rounds at the nodes of a contour.

    Attributes:
      tilt: the order, and K and its derivatives there.
      smoothing: the standard deviation of the normal variable that is added.
      frequency, terms: of the nodes, [nodes]; the terms are relative to e^K, with the phase e^{i omega K'}.
      fixed, by_phase: bounds on the error of their sum, at loss 0 and per nat.
      drift: bound on the relative rounding of all masses and tilts.
      higher, log_before: orders above the tilt's, [orders], and logarithms of what the periods below add there.
      after: bound on what the periods above add. infinite: probability of an infinite loss.
    """

    tilt: pld.Tilt
    smoothing: Array
    frequency: Array
    terms: Array
    fixed: Array
    by_phase: Array
    drift: Array
    higher: Array
    log_before: Array
    after: Array
    infinite: Array


@quietly
def order(atoms: pld.Atoms, counts: Float64[Array, " kinds"], log_delta: Float64[Array, ""]) -> Array:
    """Order about the saddle point of delta, where the contour has the least rounding; every order is valid."""

    def nearer(at: pld.Tilt, again: tuple[Array]) -> pld.Tilt:
        # delta is about e^{K(t) - t eps} / (t (t + 1) sd sqrt(2 pi)); at first without the denominator.
        share = again[0] * xp.log(at.order * (at.order + 1.0) * xp.sqrt(2.0 * math.pi * at.variance))
        return pld.chernoff_tilt(atoms, counts, xp.minimum(log_delta + share, -_LEAST))

    one = xp.ones_like(log_delta)
    return backend.scan(nearer, pld.Tilt(one, one, one, one), (xp.stack([0.0 * one, one]),)).order


def _angles(step: Array, count: int, places: Array) -> tuple[Array, Array]:
    """k step places for k = 0, _FEW, 2 _FEW, ... < count, [count / _FEW, places]; and for k < _FEW, [places, _FEW].

    A wave at any k is the product of one of either.
    """
    coarse = _FEW * xp.arange(count // _FEW, dtype=xp.float64)
    fine = xp.arange(_FEW, dtype=xp.float64)
    return coarse[:, None] * (step * places)[None, :], (step * places)[:, None] * fine[None, :]


def _product(rows: Array, columns: Array) -> Array:
    return backend.product(rows.reshape(-1, _ROWS, rows.shape[1]), columns).reshape(len(rows), -1)


def _waves(step: Array, places: Array, weights: Array) -> tuple[Array, Array]:
    """sum_j weights_j cos(k step places_j) for every node k, and of sines."""
    coarse, fine = _angles(step, _NODES, places)
    rows = xp.concatenate([cos(coarse) * weights[None, :], sin(coarse) * weights[None, :]])
    both = _product(rows, xp.concatenate([cos(fine), sin(fine)], axis=1)).reshape(2, -1, 2, _FEW)
    return (both[0, :, 0] - both[1, :, 1]).reshape(_NODES), (both[0, :, 1] + both[1, :, 0]).reshape(_NODES)


@quietly
def compose(
    atoms: pld.Atoms, counts: Float64[Array, " kinds"], order: Float64[Array, ""], upper: Bool[Array, ""]
) -> Composed:
    """The composition of `counts` rounds of each kind, for bounds on delta from above or from below.

    Args:
      atoms: of one round of each kind, from above or from below, [kinds, atoms]; below, of a total mass of at most one.
      counts: [kinds].
      order: of the tilt; raised to where a period's weight is small.
    """
    require_float64(atoms, counts, order)
    near = pld.tilt_at(atoms, counts, order)
    tilt = pld.tilt_at(atoms, counts, xp.maximum(order, _LEAST_ORDER / xp.sqrt(near.variance)))
    order, deviation = tilt.order, xp.sqrt(tilt.variance)
    usual = _NODES / _PER_DEVIATION * deviation
    # For the lower end what the periods above add is far below delta, about e^{K - order K'}.
    least = (order * tilt.mean - tilt.log_mgf + _FAR_BELOW) / order
    period = xp.where(upper, usual, xp.maximum(usual, least))
    sigma = _SMOOTHING * deviation * (period / usual)
    contour = stop_loss.Contour(order, period, sigma)
    theta = stop_loss.nodes(contour, _NODES)
    frequency, variance = xp.imag(theta), xp.square(sigma)

    # Moments of one round of each kind over those at `order`, and their errors; then that of all rounds.
    each, losses = pld.rounds_at(atoms, order), atoms.losses
    weight = xp.exp(xp.log(atoms.masses) + order * losses - each.log_mgf[:, None])
    apart = losses - each.mean[:, None]
    step = 2.0 * math.pi / period
    real, imaginary = backend.vmap(lambda places, weights: _waves(step, places, weights))(apart, weight)
    size = xp.sqrt(xp.square(real) + xp.square(imaginary))
    reach = xp.sum(weight * xp.abs(apart), axis=1)
    off = UNIT * (4.0 * losses.shape[1] + 64.0 + 8.0 * frequency[None, :] * reach[:, None])
    wrong = elementary.of_power(size, off, counts, _NODES)
    log_size = xp.sum(counts[:, None] * xp.log(xp.maximum(size, 1e-300)), axis=0)

    # The kernel of the module's docstring: its exponential's size and phase, and the rest.
    bend, half = xp.where(upper, 0.0, variance), order + 0.5
    height = xp.exp(0.5 * variance * (xp.square(half) - xp.square(frequency)))
    height = height * stop_loss.multiplicity(_NODES) / period
    square = theta * theta + theta
    inverse = xp.exp(-0.125 * variance) / (xp.square(xp.real(square)) + xp.square(xp.imag(square)))
    rest = backend.complex_of(inverse * xp.real(square) - bend, -inverse * xp.imag(square))
    phase = xp.sum(counts[:, None] * angle(imaginary, real), axis=0) + variance * half * frequency
    terms = rest * complex_exp(backend.complex_of(log_size + xp.log(height), phase))
    sizes = height * (1.0 / xp.abs(square) + bend)
    # Beyond the nodes the modulus of 1 / (theta (theta + 1)) is at most 1 / omega^2.
    left_out = xp.exp(0.5 * variance * xp.square(half)) * stop_loss.beyond(contour, _NODES)
    left_out = left_out * (xp.square(0.5 * period / (math.pi * _NODES)) + bend) * 2.0 / period
    fixed = xp.sum(sizes * wrong) + left_out
    sizes = sizes * xp.exp(log_size)
    fixed = fixed + UNIT * (4.0 * _NODES + 256.0) * xp.sum(sizes)
    by_phase = 8.0 * UNIT * xp.sum(sizes * frequency)
    # Relative rounding of masses and tilts, per round.
    drift = xp.sum(counts) * UNIT * (64.0 + 4.0 * order * xp.max(xp.abs(losses)))

    # Orders above this one, and 0.
    beside = xp.concatenate([order + xp.asarray(_HIGHER) / deviation, xp.zeros_like(order)[None]])
    others = pld.tilt_at(atoms, counts, beside)
    higher, plain = (jax.tree.map(operator.itemgetter(part), others) for part in (slice(-1), -1))
    beyond = (higher.order - order) * period
    log_before = higher.log_mgf + 0.5 * variance * higher.order * (higher.order + 1.0)
    log_before = log_before + drift * higher.order / order - beyond - xp.log(-xp.expm1(-beyond))
    # C(x + y) <= y + (x + Y)_+ for y > 0, whose mean is at most this where eps >= 0.
    shrink = xp.exp(-order * period)
    spread = xp.sqrt(plain.variance + variance) + xp.abs(plain.mean) + variance
    after = shrink / (1.0 - shrink) * xp.minimum(1.0, period / (1.0 - shrink) + spread)
    # (f + i)^T - f^T <= (f + i)^T (1 - (1 - i)^T) for f + i >= 1: a law from above may have a total mass above one.
    total = xp.maximum(xp.sum(atoms.masses, axis=1) + atoms.infinite, 1.0)
    infinite = -xp.expm1(xp.sum(counts * log1p(-atoms.infinite))) * xp.exp(xp.sum(counts * xp.log(total)))
    kept = frequency, terms, fixed, by_phase, drift, higher.order, log_before, after, infinite
    return Composed(tilt, sigma, *kept)


def _bound(of: Composed, epsilon: Array, inside: Array, upper: Bool[Array, ""]) -> tuple[Array, Array]:
    """The bound on delta from the real part of the nodes' sum, and the rounding and infinite losses in it."""
    order, drift = of.tilt.order, of.drift
    error = of.fixed + of.by_phase * (xp.abs(epsilon) + xp.abs(of.tilt.mean))
    scale = xp.exp(of.tilt.log_mgf - order * epsilon)
    above = (inside + error) * scale * xp.exp(drift) + of.infinite + FLUSHED
    before = xp.exp(xp.min(of.log_before - of.higher * epsilon[..., None], axis=-1))
    below = (inside - error) * scale * xp.exp(-drift) - (before + of.after) * (1.0 + 1e-6) - FLUSHED
    # NaN, where the tilted law is one loss, is the trivial bound.
    nothing = xp.where(upper, xp.inf, -xp.inf)
    value = xp.where(upper, above, below)
    value = xp.where(xp.isnan(value), nothing, value)
    return value, xp.abs(value - inside * scale)


def farthest(tilt: pld.Tilt) -> Array:
    """The largest epsilon at which an end is searched."""
    return xp.maximum(tilt.mean, 0.0) + _FARTHEST * xp.sqrt(tilt.variance)


@quietly
def end(
    of: Composed, log_delta: Float64[Array, ""], upper: Bool[Array, ""]
) -> tuple[Float64[Array, ""], Float64[Array, ""]]:
    """The upper or lower end of epsilon at delta, and the rounding in its delta; infinity, or 0, if none was found."""
    frequency, terms = of.frequency, of.terms
    deviation, log_target = xp.sqrt(of.tilt.variance), log_delta - xp.where(upper, _FREE, 0.0)

    def inside(epsilon: Array) -> tuple[Array, Array]:
        phase = frequency * (epsilon - of.tilt.mean)
        cosine, sine = cos(phase), sin(phase)
        along, across = xp.real(terms), xp.imag(terms)
        value = xp.sum(along * cosine + across * sine)
        return value, xp.sum(frequency * (across * cosine - along * sine))

    def bound(epsilon: Array) -> tuple[Array, Array]:
        return _bound(of, epsilon, inside(epsilon)[0], upper)

    def missing(at: Array) -> tuple[Array, Array]:
        epsilon = at * deviation
        value, slope = inside(epsilon)
        found, _ = _bound(of, epsilon, value, upper)
        return log_target - xp.log(xp.maximum(found, 1e-320)), (of.tilt.order - slope / value) * deviation

    least = xp.maximum(of.tilt.mean / deviation - _FARTHEST, 0.0)
    about = deviation * backend.crossing(missing, least, farthest(of.tilt) / deviation, 40)
    # The solution is proved, or one beside it.
    beside = xp.where(upper, 1.0, -1.0) * xp.asarray(_BESIDE) * deviation
    tried = xp.concatenate([about + beside, xp.zeros_like(deviation)[None]])
    values, errors = backend.vmap(bound)(tried)
    target, rounding = xp.exp(log_target), UNIT * (8.0 + 2.0 * xp.abs(log_delta))
    shown = xp.where(upper, values <= target * (1.0 - rounding), values > target * (1.0 + rounding))
    candidates = xp.where(shown & (tried >= 0.0), tried, xp.where(upper, xp.inf, 0.0))
    best = xp.where(upper, xp.argmin(candidates), xp.argmax(candidates))
    return candidates[best], errors[best]


@quietly
def on_grid(
    of: Composed, step: Float64[Array, ""], count: int, upper: Bool[Array, ""]
) -> Float64[Array, " points"]:
    """Bounds on delta at the losses 0, step, ..., [count]; `count` is a multiple of 1024."""
    coarse, fine = _angles(step, count, of.frequency)
    coarse = coarse - of.frequency * of.tilt.mean
    cosine, sine, along, across = cos(coarse), sin(coarse), xp.real(of.terms), xp.imag(of.terms)
    rows = xp.concatenate([along * cosine + across * sine, across * cosine - along * sine], axis=1)
    inside = _product(rows, xp.concatenate([cos(fine), sin(fine)])).reshape(count)
    return _bound(of, step * xp.arange(count, dtype=xp.float64), inside, upper)[0]
