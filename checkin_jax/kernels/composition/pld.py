"""Laws of the privacy loss on a few knots, above or below a pair's profiles, their moments, and conversions of these.

A pair (P, Q) is given by two convex profiles, H_c(P||Q) and H_c(Q||P) for c >= 1. `side_upper` and `side_lower` convert
one of them to masses at chosen losses, whose profile is above, or below, the given one everywhere. Both errors are of
second order in the spacing. `composed_contour` composes such laws.

With K(t) = sum_i T_i log E_{P_i} e^{t L} the composed law is reweighted by e^{t L - K(t)}, which moves its bulk to the
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, float64_arrays, require_float64
from checkin_jax.kernels.elementary import UNIT, log1p
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import logsumexp, quietly, xp

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


# Below this, (order + 3) |e^l - 1| is small enough for two Taylor terms and a bound on the remainder.
_SMALL_POWER = 1e-2
# Rounding error of three terms.
_THREE_TERMS = 1e-15


@quietly
def log_moments_lower(atoms: Atoms, orders: Array) -> Array:
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
    apart = apart - _THREE_TERMS * (1.0 + xp.exp(-unit) * (1.0 + order * xp.abs(w)) + xp.abs(power))
    small = xp.abs((order + 3.0) * w) < _SMALL_POWER
    series = 1.0 + (order - 2.0) * w / 3.0 - xp.square((order + 3.0) * w) / 6.0
    value = xp.where(small, 0.5 * order * (order - 1.0) * w * w * series * (1.0 - _THREE_TERMS), apart)
    log_phi = xp.log(xp.maximum(value, 0.0)) + xp.where(small, 0.0, unit)
    log_far = xp.log(atoms.masses)[None, :] - loss
    excess = logsumexp(xp.where(value > 0, log_phi + log_far, -xp.inf), axis=1) - 1e-12
    found = xp.where(excess < 30.0, log1p(xp.exp(xp.minimum(excess, 30.0))), excess)
    return xp.maximum(found * (1.0 - 1e-12), 0.0)


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


@quietly
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


@quietly
def saddle_tilt(atoms: Atoms, counts: Array, epsilon: Array) -> Tilt:
    """The order t > 0 whose tilted mean K'(t) is epsilon, or nearest to it."""
    return _solve(atoms, counts, lambda at: (at.mean, at.order * at.variance), epsilon)


@quietly
def tame_tilt(atoms: Atoms, counts: Array) -> Tilt:
    """Largest order at which the tilted variance is between a tenth of the plain variance and twice it.

    Beyond it rare large losses dominate the tilted law, or it concentrates at its largest loss.
    """
    plain = tilt_at(atoms, counts, xp.zeros(())).variance

    def tame(log_order: Array) -> Array:
        variance = tilt_at(atoms, counts, xp.exp(log_order)).variance
        return (variance < 2.0 * plain) & (variance > 0.1 * plain)

    # Not monotone; an order within 2e-6 suffices.
    low, high = backend.bisected(tame, *_log_orders(atoms), 24)
    return tilt_at(atoms, counts, xp.exp(0.5 * (low + high)))


_AROUND = np.geomspace(0.25, 4.0, 65)


@quietly
def log_moments_within(
    atoms: Atoms, chi_squares: Float64[Array, " events"], orders: Float64[Array, " orders"]
) -> Float64[Array, "orders events"]:
    """Upper bounds on log E_P e^{t L} of the pairs below each law whose chi-square divergence is bounded, too;
    [orders, events].

    Args:
      atoms: of `join(..., upper=True)`, [events, atoms]. chi_squares: bounds on E_Q (P/Q - 1)^2, [events], or infinity.
      orders: t >= 1; infinity at smaller ones.

    The moment exceeds one by an integral of (t + 1) t k^{t - 1} times E_Q (P/Q - k)_+ or (k - P/Q)_+. That weight grows
    with k, and half the chi-square divergence is the integral without it [docs/evaluation.md].
    """
    require_float64(atoms, chi_squares, orders)
    t, loss = orders[:, None], atoms.losses
    under_q, excess = atoms.masses * xp.exp(-loss), xp.expm1(loss)
    right, left = (atoms.masses > 0.0) & (loss > 0.0), (atoms.masses > 0.0) & (loss < 0.0)
    rises, moves = xp.expm1((t + 1.0)[..., None] * loss), (t + 1.0)[..., None] * excess
    # rises - moves loses digits where both are small.
    terms = under_q * (xp.maximum(rises - moves, 0.0) + 8.0 * UNIT * (xp.abs(rises) + xp.abs(moves)))
    above, below = (xp.sum(xp.where(side, terms, 0.0), axis=-1) for side in (right, left))
    known = xp.sum(xp.where(right, under_q * xp.square(excess), 0.0), axis=-1) * (1.0 - 1e-12)
    remaining = 0.5 * t * (t + 1.0) * (chi_squares - known)
    # With `below`, which lacks mass beyond the last loss, the sum is no smaller than the plain moment.
    beyond = atoms.infinite * (t + 1.0) * xp.expm1(t * xp.max(loss, axis=-1))
    value = (above + beyond) * (1.0 + 1e-12) + xp.minimum(below * (1.0 + 1e-12), remaining)
    return xp.where((t >= 1.0) & (value >= 0.0) & (value < xp.inf), log1p(xp.maximum(value, 0.0)), xp.inf)


@quietly
def renyi(
    atoms: Atoms, counts: Array, log_delta: Array, chi_squares: Array | None = None
) -> tuple[Array, Array]:
    """(epsilon, order) by RDP of the pairs.

    Args:
      log_delta: log of delta minus the mass at infinite loss. chi_squares: as in `log_moments_within`.
    """
    orders = chernoff_tilt(atoms, counts, log_delta).order * _AROUND
    each = rounds_at(atoms, orders).log_mgf
    if chi_squares is not None:
        each = xp.minimum(each, log_moments_within(atoms, chi_squares, orders))
    moments = each @ counts
    epsilon = epsilon_from_log_moments(orders + 1.0, moments, log_delta)
    epsilon = epsilon + 64.0 * UNIT * xp.sum(counts) / orders  # rounding of one log moment per round
    best = xp.argmin(epsilon)
    return epsilon[best], orders[best] + 1.0


@quietly
def epsilon_from_log_moments(
    orders: Float64[Array, "*rows orders"],
    log_moments: Float64[Array, "*rows orders"],
    log_delta: Float64[Array, "*once"],
) -> Float64[Array, "*rows orders"]:
    """epsilon at each order from log moments log E_P e^{t L}, t = order - 1 > 0; rounded up.

    [CKS20], Proposition 12 of arXiv 2004.00010 v4, as [SCI] Lemma 2: with rdp = log moment / t, epsilon = rdp +
    (log(1/delta) + t log(1 - 1/order) - log order) / t, and at least 0. A moment that is not finite gives infinity,
    never NaN.

    Args:
      orders: t + 1, real, > 1.
      log_moments: nats, same shape; of a run, order - 1 times its Renyi divergence.
      log_delta: scalar < 0.
    """
    require_float64(orders, log_moments, log_delta)
    t = orders - 1.0
    epsilon = (log_moments - log_delta + t * log1p(-1.0 / orders) - xp.log(orders)) / t
    epsilon = xp.where(xp.isfinite(log_moments) & xp.isfinite(epsilon), epsilon, xp.inf)
    return xp.maximum(epsilon, 0.0) * (1.0 + 1e-12)


def log_expm1(x: Array) -> Array:
    """log(e^x - 1) for x >= 0; -inf at 0."""
    return x + jnp.log(-jnp.expm1(-x))


def pure_excess(epsilon: Array, orders: Array) -> Array:
    """log(A - 1) of binary randomized response, whose moments A are the largest of any epsilon-DP pair; orders > 1.

    A - 1 = (e^{lam e} - 1)(1 - e^{(1-lam) e}) / (1 + e^e), without cancellation.
    """
    e = epsilon
    return log_expm1(orders * e) + jnp.log(-jnp.expm1((1.0 - orders) * e)) - jnp.logaddexp(0.0, e)


def rdp_of_pure_dp(epsilon: ArrayLike, orders: ArrayLike) -> Array:
    """Renyi divergence of any epsilon-DP mechanism, nats, rounded up by a relative 1e-12; attained.

    Args:
      epsilon: 0, or from 1e-150 to 690, float64; squares of smaller ones underflow to 0.
      orders: real, 1 < order <= 1e9, float64; broadcast against epsilon.

    Raises:
      RuntimeError: JAX computes in float32.
    """
    epsilon, orders = float64_arrays(epsilon, orders)
    private = epsilon > 0
    log_excess = pure_excess(jnp.where(private, epsilon, 1.0), orders)
    return jnp.where(private, jnp.logaddexp(0.0, log_excess) / (orders - 1.0) * (1.0 + 1e-12), 0.0)
