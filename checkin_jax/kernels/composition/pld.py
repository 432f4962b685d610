r"""Privacy loss distributions on a grid, composed by a tilted FFT; every error is bounded and one-sided.

A pair (P, Q) is given by two convex profiles, H_c(P||Q) and H_c(Q||P) for c >= 1. `side_upper` and `side_lower` convert
one of them to masses at chosen losses, whose profile is above, or below, the given one everywhere. Both errors are of
second order in the spacing. `compose` convolves any numbers of rounds of several pairs.

Exponential tilting: with K(t) = sum_i T_i log E_{P_i} e^{t L} the composed law is reweighted by e^{t L - K(t)}, which
moves its bulk to the answer. Then FFT noise is small relative to the answer at every delta, and Chernoff's bound under
the tilted law bounds the mass outside the window. Composition by FFT is [KJH20]; the tilting and the error bound are
ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import chex
import numpy as np
from jax import Array
from jaxtyping import Float64, Int

from checkin_jax.kernels import FLUSHED, require_float64, round_off
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp
from checkin_jax.kernels.round_off import UNIT

# Relative distance of knots that would otherwise coincide.
_APART = 1e-10


class Side(NamedTuple):
    """One direction of a pair: masses at losses[1:], all > 0.

    near: masses under the first measure at those losses. far: masses under the second, near e^-loss. at_one: the
    profile at c = 1. lost: mass of the first measure at infinite loss (upper), or dropped (lower).
    """

    near: Float64[Array, " intervals"]
    far: Float64[Array, " intervals"]
    at_one: Float64[Array, ""]
    lost: Float64[Array, ""]


@quietly
def side_upper(losses: Float64[Array, " knots"], profile: Float64[Array, " knots"]) -> Side:
    """Connect the dots: a convex piecewise linear profile above every pair with H <= profile.

    Args:
      losses: knots 0 = l_0 < l_1 < ..., shape [knots].
      profile: upper bounds on H at e^losses, nonincreasing up to rounding, shape [knots]. The value at the last knot is
        put at infinite loss.
    """
    require_float64(losses, profile)
    chex.assert_equal_shape([losses, profile])
    # Slopes of the chords times e^loss, which neither overflow nor underflow for large e^loss.
    gaps = xp.diff(losses)
    scaled = xp.maximum((profile[:-1] - profile[1:]) / xp.expm1(gaps), 0.0)
    log_slopes = xp.log(scaled) - losses[:-1]
    convex = backend.largest_from_here(log_slopes)
    scaled = xp.where(convex > log_slopes, xp.exp(convex + losses[:-1]), scaled)
    near = xp.maximum(scaled * xp.exp(gaps) - xp.concatenate([scaled[1:], xp.zeros_like(scaled[:1])]), 0.0)
    lost = profile[-1] + 2.0 * FLUSHED
    return Side(near, near * xp.exp(-losses[1:]), lost + xp.sum(scaled * xp.expm1(gaps)), lost)


@quietly
def side_lower(
    losses: Float64[Array, " knots"],
    difference: Float64[Array, " knots-1"],
    far_mass: Float64[Array, " knots-1"],
    capped: bool = False,
) -> Side:
    """A convex piecewise linear profile with kinks at the knots, below H everywhere.

    Args:
      losses: knots 0 = l_0 < l_1 < ..., shape [knots].
      difference, far_mass: P(A) - Q(A) (rounded down) and Q(A) (rounded up) of any set A for each interval, shape
        [knots - 1]. The line P(A) - c Q(A) is below H at every c. A good choice is A = {loss > middle of the interval}.
      capped: True to limit the slope to that of the first line, which only lowers the profile. It is needed if H has
        few kinks, none of them at a knot: otherwise the lowered values give masses near loss zero that exceed those of
        the pair.

    Each knot takes the lower of the two neighbouring lines, so each chord is below a line. All values are lowered by
    the last positive one, so that zero beyond it is a chord as well. The result is the convex minorant, by its
    supporting slopes.
    """
    require_float64(losses, difference, far_mass)
    chex.assert_shape([difference, far_mass], (losses.size - 1,))
    above = xp.expm1(losses)
    left = difference - above[1:] * far_mass
    right = difference - above[:-1] * far_mass
    value = xp.concatenate([right[:1], xp.minimum(left[:-1], right[1:]), left[-1:]])
    kept = xp.cumprod(xp.where(value >= 0, 1.0, 0.0)) > 0
    lost = xp.min(xp.where(kept, value, xp.inf))
    lost = xp.where(xp.isfinite(lost), lost, 0.0)
    value = xp.where(kept, value - lost, 0.0)
    c = xp.exp(losses)
    steps = c[:-1] * xp.expm1(xp.diff(losses))
    steepest = xp.minimum(far_mass[0], 1.0) if capped else 1.0
    chords = xp.clip((value[:-1] - value[1:]) / steps, 0.0, steepest)

    def beside(chords: Array) -> Array:
        return xp.min(value[None, :] + chords[:, None] * c[None, :], axis=1)

    intercept = backend.by_rows(beside, (chords,), c.size)

    def lines(c: Array) -> Array:
        return intercept[None, :] - chords[None, :] * c[:, None]

    hull = xp.maximum(backend.by_rows(lambda c: xp.max(lines(c), axis=1), (c,), chords.size), 0.0)
    drops = hull[:-1] - hull[1:]

    # Where the minorant falls by less than rounding, its slope is that of the flattest line that supports it at the end
    # of the interval. Then nonincreasing slopes from the first on repair the remaining rounding.
    def flattest(c: Array, hull: Array) -> Array:
        supports = lines(c) >= hull[:, None] * (1.0 - 1e-12)
        return xp.minimum(xp.min(xp.where(supports, chords[None, :], xp.inf), axis=1), 1.0)

    level = drops < 1e-9 * hull[:-1]
    flat = backend.by_rows(flattest, (c[1:], hull[1:]), chords.size, level)
    slopes = xp.where(level, flat, xp.maximum(drops, 0.0) / steps)
    slopes = -backend.largest_from_here(-(xp.minimum(slopes, steepest) if capped else slopes)[::-1])[::-1]
    far = slopes - xp.concatenate([slopes[1:], xp.zeros_like(slopes[:1])])
    return Side(far * c[1:], far, xp.sum(slopes * steps), lost)


@quietly
def shells(
    difference: Float64[Array, " events"], far_mass: Float64[Array, " events"]
) -> tuple[Float64[Array, " events+1"], Side]:
    """Knots where the lines of neighbouring events cross, and `side_lower` on them, which then loses nothing.

    difference, far_mass: as in `side_lower`, of events at increasing losses.
    """
    nothing = xp.zeros_like(difference[:1])
    apart, mass = (-xp.diff(xp.concatenate([part, nothing])) for part in (difference, far_mass))
    crossed = xp.where(mass > 0, log1p(xp.maximum(apart / mass, 0.0)), 0.0)
    # Increasing, even where rounding or a bucket is in the way; the last line is positive up to the last knot.
    crossed, count = backend.largest_from_here(crossed[::-1])[::-1], crossed.size
    steps = _APART * xp.arange(1.0, count + 1.0)
    crossed = crossed * (1.0 - _APART * (count + 1.0)) + crossed[-1] * steps
    losses = xp.concatenate([nothing, crossed])
    return losses, side_lower(losses, difference, far_mass)


class Atoms(NamedTuple):
    """A finite law of the privacy loss under P: losses and masses [atoms], and the mass at infinite loss."""

    losses: Float64[Array, "*events atoms"]
    masses: Float64[Array, "*events atoms"]
    infinite: Float64[Array, "*events"]


@quietly
def join(
    losses: Float64[Array, " knots"], plus: Side, minus: Side, upper: bool, behind: Array | None = None
) -> Atoms:
    """Law of the loss under P from the sides P||Q (plus) and Q||P (minus); [2 knots - 1].

    losses: knots of both sides, or of `plus` alone if those of `minus` are given as `behind`.

    For c < 1 the joined profile is p - c q + c H_{1/c}(Q||P) with p, q the total masses. It is on the right side of the
    pair's profile if p is at least (upper) or at most (lower) both 1 and q. So the plus side is scaled until the
    profiles at c = 1 are ordered, and the mass at loss zero makes the total one.
    """
    require_float64(losses, plus, minus)
    # A side on other knots would broadcast, or be paired with the wrong losses.
    behind = losses if behind is None else behind
    chex.assert_shape([plus.near, plus.far], (losses.size - 1,))
    chex.assert_shape([minus.near, minus.far], (behind.size - 1,))
    ratio = minus.at_one / xp.where(plus.at_one > 0, plus.at_one, 1.0)
    scale = xp.maximum(ratio, 1.0) if upper else xp.minimum(ratio, 1.0)
    scale = xp.where(plus.at_one > 0, scale, 1.0)
    infinite = xp.minimum(plus.lost * scale, 1.0) if upper else xp.zeros_like(plus.lost)
    near = plus.near * scale
    centre = xp.maximum(1.0 - xp.sum(near) - xp.sum(minus.far) - infinite, 0.0)
    masses = xp.concatenate([minus.far[::-1], centre[None], near])
    if not upper:
        masses = masses / xp.maximum(xp.sum(masses), 1.0)
    return Atoms(xp.concatenate([-behind[:0:-1], losses]), masses, infinite)


@quietly
def symmetric_log_moments(
    losses: Float64[Array, " knots"], side: Side, orders: Float64[Array, " orders"]
) -> Float64[Array, " orders"]:
    """log E_P e^{t L} at each t > 0 of `orders`, for a pair with `side` in both directions and no mass at infinity.

    E_P e^{t L} - 1 = sum_j far_j (e^{t l} - 1) (e^l - e^{-t l}): all terms are positive, so moments within 1e-16 of one
    keep their digits. The sum uses near_j = far_j e^l, which does not underflow where far_j does. The remaining mass is
    at loss zero.
    """

    def one(t: Array) -> Array:
        l = losses[1:]
        terms = xp.log(side.near) + t * l + xp.log(-xp.expm1(-t * l)) + xp.log(-xp.expm1(-(t + 1.0) * l))
        return xp.logaddexp(xp.zeros(()), backend.logsumexp(terms, axis=-1))

    return backend.vmap(one)(orders)


class Tilt(NamedTuple):
    """Tilting order, and K, K', K'' of the composed law there (nats); scalars."""

    order: Array
    log_mgf: Array
    mean: Array
    variance: Array


class Cumulants(NamedTuple):
    """K, K', K'' of one round of every event (nats); [..., events]."""

    log_mgf: Array
    mean: Array
    variance: Array


def rounds_at(atoms: Atoms, order: Float64[Array, "*orders"]) -> Cumulants:
    """K and its derivatives of each event at any `order`; atoms are stacked [events, atoms]."""
    losses, masses = (part[(None,) * order.ndim] for part in (atoms.losses, atoms.masses))
    log_mass = xp.log(masses) + order[..., None, None] * losses
    peak = xp.max(log_mass, axis=-1, keepdims=True)
    weight = xp.exp(log_mass - peak)
    total = xp.sum(weight, axis=-1)
    mean = xp.sum(weight * losses, axis=-1) / total
    variance = xp.sum(weight * xp.square(losses - mean[..., None]), axis=-1) / total
    return Cumulants(xp.log(total) + peak[..., 0], mean, variance)


@quietly
def tilt_at(atoms: Atoms, counts: Float64[Array, " events"], order: Float64[Array, "*orders"]) -> Tilt:
    """K and its derivatives at any `order`; atoms are stacked [events, atoms], counts [events]."""
    return Tilt(order, *(part @ counts for part in rounds_at(atoms, order)))


@quietly
def log_moments(
    atoms: Atoms, counts: Float64[Array, " events"], orders: Float64[Array, " orders"]
) -> Float64[Array, " orders"]:
    """K(t) = sum over events of counts log E_P e^{t L} at each t > 0 of `orders`; the RDP of order t + 1 is K(t) / t.

    It is an upper bound if the atoms come from `join(..., upper=True)` and have no mass at infinite loss.
    """
    return tilt_at(atoms, counts, orders).log_mgf


def _log_orders(atoms: Atoms) -> tuple[Array, Array]:
    """Logarithms of the smallest and the largest useful order."""
    top = xp.max(xp.where(atoms.masses > 0, atoms.losses, 0.0))
    scale = 1.0 / xp.maximum(top, 1e-300)
    return xp.log(1e-9 * scale), xp.log(1e5 * scale)


def _solve(
    atoms: Atoms, counts: Array, reached: Callable[[Tilt], tuple[Array, Array]], target: Array
) -> Tilt:
    """The order at which `reached`, an increasing function with its slope in log order, equals a positive target."""

    def value(log_order: Array) -> tuple[Array, Array]:
        # Nearly linear, so that few steps suffice.
        amount, slope = reached(tilt_at(atoms, counts, xp.exp(log_order)))
        return xp.log(xp.maximum(amount, 1e-300) / target), xp.where(amount > 0, slope / amount, xp.nan)

    return tilt_at(atoms, counts, xp.exp(backend.crossing(value, *_log_orders(atoms), 40)))


@quietly
def chernoff_tilt(atoms: Atoms, counts: Array, log_delta: Array) -> Tilt:
    """The order t that minimises (K(t) - log delta) / t, by t K'(t) - K(t) = -log delta."""

    def reached(at: Tilt) -> tuple[Array, Array]:
        return at.order * at.mean - at.log_mgf, xp.square(at.order) * at.variance

    return _solve(atoms, counts, reached, -log_delta)


def _with_mean(atoms: Atoms, counts: Array, mean: Array) -> Tilt:
    return _solve(atoms, counts, lambda at: (at.mean, at.order * at.variance), mean)


@quietly
def saddle_tilt(atoms: Atoms, counts: Array, epsilon: Array) -> Tilt:
    """The order t > 0 whose tilted mean K'(t) is epsilon, or nearest to it."""
    return _with_mean(atoms, counts, epsilon)


@quietly
def tame_tilt(atoms: Atoms, counts: Array) -> Tilt:
    """Largest order at which the tilted variance is between a tenth of the plain variance and twice it.

    Beyond it rare large losses dominate the tilted law, or it concentrates at its largest loss.
    """
    plain = tilt_at(atoms, counts, xp.zeros(())).variance

    def wild(log_orders: Array) -> Array:
        variance = tilt_at(atoms, counts, xp.exp(log_orders)).variance
        return ~((variance < 2.0 * plain) & (variance > 0.1 * plain))

    # Not monotone; an order within 2e-6 suffices.
    return tilt_at(atoms, counts, xp.exp(backend.halved(wild, *_log_orders(atoms), 24)))


class Composed(NamedTuple):
    """delta as a function of epsilon on a grid: epsilon [points], and one-sided bounds on delta [points].

    error: bound on truncation and round-off, part of delta at each point.
    """

    epsilon: Array
    delta: Array
    error: Array


def _outside(atoms: Atoms, counts: Array, tilt: Tilt, low: Array, high: Array) -> tuple[Array, Array]:
    """Logarithms of Chernoff's bounds on the tilted mass below `low` and above `high`."""
    scale = 1.0 / xp.sqrt(xp.maximum(tilt.variance, 1e-300))
    steps = scale * xp.asarray([0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0])
    down = tilt_at(atoms, counts, tilt.order - steps).log_mgf - tilt.log_mgf
    best = _with_mean(atoms, counts, high)
    best = tilt_at(atoms, counts, xp.maximum(best.order, tilt.order))
    above = best.log_mgf - tilt.log_mgf - (best.order - tilt.order) * high
    return xp.minimum(xp.min(down + steps * low), 0.0), xp.minimum(above, 0.0)


def _beyond(values: Array, rate: Array) -> Array:
    """sum_{j>i} values[j] e^{-(j-i) rate} for each i; the number of values is a power of two."""
    return xp.exp(-rate) * _later(values, rate)


def _later(values: Array, rate: Array) -> Array:
    """sum_{j>i} values[j] e^{-(j-i-1) rate}, by rows, as small matrix products without overflow."""
    size = values.shape[0]
    columns = min(size, 64)
    table, place = values.reshape(size // columns, columns), xp.arange(columns)
    steps = place[:, None] - place[None, :]
    discount = xp.exp(-rate * (xp.maximum(steps, 1) - 1).astype(rate.dtype))
    within = backend.product(table, xp.where(steps > 0, discount, 0.0))
    if size == columns:
        return within.reshape(size)
    # Not a matrix product, since OpenBLAS would use threads for larger tables.
    rows = _later(np.vecdot(table, xp.exp(-rate * place.astype(rate.dtype))), rate * columns)
    back = xp.exp(-rate * (columns - 1 - place).astype(rate.dtype))
    return (within + rows[:, None] * back[None, :]).reshape(size)


@quietly
def compose(
    atoms: Atoms,
    index: Int[Array, "events atoms"],
    counts: Float64[Array, " events"],
    spacing: Float64[Array, ""],
    tilt: Tilt,
    first: Int[Array, ""],
    points: int,
    upper: bool,
) -> Composed:
    """delta(epsilon) of the composition of `counts` rounds of each pair.

    Args:
      atoms: stacked [events, atoms]; index: the same losses in units of `spacing`, whole numbers.
      counts: rounds of each event, shape [events], float64 whole numbers.
      spacing: of the grid, nats. points: static, a power of two.
      tilt: any order > 0 is valid; one whose mean is near the answer is accurate.
      first: index of the first grid point.
      upper: direction of every rounding.

    Returns:
      The profile on the grid. Delta includes all error terms: infinite losses, tilted mass beyond the window,
      wrap-around, and FFT round-off (`kernels.round_off`, by Cauchy-Schwarz with the weights of delta).
    """
    require_float64(atoms, counts, spacing, tilt)
    chex.assert_shape([atoms.losses, atoms.masses], (counts.size, index.shape[1]))
    order = tilt.order
    log_weight = xp.log(atoms.masses) + order * atoms.losses
    log_total = backend.logsumexp(log_weight, axis=1, keepdims=True)
    weight = xp.exp(log_weight - log_total)
    dense = np.stack([np.bincount(i, w, minlength=points) for i, w in zip(np.mod(index, points), weight)])
    phi = np.fft.rfft(dense, axis=-1)
    size = xp.abs(phi)
    # Modulus and angle separately: a complex logarithm takes twice as long.
    log_size = xp.where(size > 0, xp.log(xp.where(size > 0, size, 1.0)), -1e4)
    modulus, angle = (xp.sum(counts[:, None] * part, axis=0) for part in (log_size, xp.angle(phi)))
    modulus = xp.exp(modulus)
    power = backend.complex_of(modulus * xp.cos(angle), modulus * xp.sin(angle))

    off = round_off.of_fft(points) * xp.sqrt(points * xp.sum(xp.square(dense), axis=1))[:, None]
    noise = round_off.of_powers(size, off, counts, points)

    probability = backend.irfft(power, points)
    place = first + xp.arange(points, dtype=index.dtype)
    probability = xp.roll(probability, -xp.mod(first, points))
    epsilon = place.astype(xp.float64) * spacing
    low, high = epsilon[0] - 0.5 * spacing, epsilon[-1] + 0.5 * spacing
    log_below, log_beyond = _outside(atoms, counts, tilt, low, high)

    # delta = sum_{j>i} w_j (1 - e^{-(j-i) h}) with w = e^{-order (x - centre)} probability.
    centre = tilt.mean
    log_scale = tilt.log_mgf - order * centre
    log_weights = log_scale - order * (epsilon - centre)
    # Beyond e^40 the round-off below exceeds one, so capping loses nothing.
    tilted = xp.exp(xp.minimum(log_weights, 40.0)) * probability
    tail, discounted = _beyond(tilted, xp.zeros_like(spacing)), _beyond(tilted, spacing)
    raw = tail - discounted

    weights = xp.exp(log_weights)
    wrong = weights * noise / xp.sqrt(-xp.expm1(-2.0 * order * spacing))
    # Relative rounding of masses, tilts and sums, per round.
    drift = xp.sum(counts) * UNIT * (64.0 + 4.0 * order * xp.max(xp.abs(atoms.losses)))
    wrong = wrong + (
        xp.abs(raw) * xp.expm1(drift) + xp.abs(tail) * (4.0 * points * UNIT) + FLUSHED * (points / 4000 + 1)
    )
    # An overflowing tilt gives the trivial bound.
    if upper:
        infinite = -xp.expm1(counts @ log1p(-atoms.infinite))
        error = wrong + infinite + xp.exp(log_scale - order * (high - centre) + log_beyond)
        delta = raw + error
        return Composed(epsilon, xp.where(xp.isnan(delta), xp.inf, delta), error)
    error = wrong + weights * (xp.exp(log_below) + xp.exp(log_beyond))
    delta = raw - error
    return Composed(epsilon, xp.where(xp.isnan(delta), -xp.inf, delta), error)
