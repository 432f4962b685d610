r"""Upper bounds on Renyi moments, at real orders, of mixtures of subsampled Gaussians over a public label.

If H_c <= h(c) at every c >= 1 in both directions, the moment of order lam of either direction is at most

    A(lam) - 1 = int_1^inf F''(c) h(c) dc,    F(c) = (c^lam - c) (1 - c^-lam),    F'' >= 0, F(1) = F'(1) = 0.

H is convex in c, so chords between bounds at nodes c_0 = 1 < ... < c_N are bounds, and

    A(lam) - 1 <= sum_j fall_j (F(c_{j+1}) - F(c_j)) + F'(c_N) h(c_N) + int_{c_N}^inf F''(c) h(c) dc,

where fall_j is the negative slope of a chord. For a label with the ratio R = 1 - q + q z, z lognormal, the
last term is E (F(R) - F(c_N) - F'(c_N) (R - c_N))_{R > c_N} / q. F(R) <= R^lam <= (z c_N / z_N)^lam from
z_N = z(c_N) on, which is a Gaussian tail. All terms are positive and computed as logarithms, so moments
within 1e-16 of one keep their digits, and nothing overflows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from jax import Array

from checkin_jax.kernels import gaussian_profile, require_float64
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import logsumexp, quietly, xp
from checkin_jax.kernels.messages.subsampled_gaussian import stretch

# Rounding errors: relative error of A - 1, whose chords are differences, and absolute error of its logarithm.
_ROUNDING, _RELATIVE = 1e-9, 1e-12
# Spacing of the nodes in standard deviations of the noise up to _NEAR; spacing beyond, where moments are so
# large that only their logarithms count. The chords cost a relative 2e-4 and 1e-3.
_STEP, _NEAR, _FAR_STEP = 0.03, 12.0, 0.08
_MOST, _GRID = 8192, 1024
# Nodes extend this far beyond the noise tilted by an order. Orders share nodes if their tilts differ by less
# than a factor of two.
_BEYOND, _TILT = 9.0, 3.0


class Rare(NamedTuple):
    """Labels with at most this mu and q, by the logarithms of their E[q] and of their mass; [labels]."""

    mu: Array
    rate: Array
    log_weight: Array
    log_mass: Array


class Labels(NamedTuple):
    """A mixture over a public label: q N(mu, 1) + (1 - q) N(0, 1) against N(0, 1), q = 1 / inverse_rate.

    log_weight: log of E[q] in the label; [labels]. rare: labels for which closed forms suffice.
    """

    mu: Array
    inverse_rate: Array
    log_weight: Array
    rare: Rare


@quietly
def log_profile(labels: Labels, losses: Array) -> Array:
    """log of the mixture's profile, without the rare labels, at losses >= 0; [losses]."""
    require_float64(losses)
    mu, inverse_rate, log_weight = (part[:, None] for part in labels[:3])
    value = gaussian_profile.log_delta_ahead(mu, stretch(losses[None, :], inverse_rate))
    return logsumexp(value + log_weight, axis=0)


def tops(labels: Labels, orders: np.ndarray) -> np.ndarray:
    """For each order the largest order that shares its nodes. It does not depend on the other orders."""
    least = _TILT / float(np.max(labels.mu))
    with np.errstate(over="ignore"):
        return least * np.exp2(np.ceil(np.maximum(np.log2(orders / least), 0.0)))


def nodes(labels: Labels, order: float) -> np.ndarray:
    """Losses from 0 on for orders up to this one, spaced by a fraction of the noise of every label."""
    mu, rate = np.asarray(labels.mu)[:, None], 1.0 / np.asarray(labels.inverse_rate)[:, None]
    at = order * mu + _BEYOND
    with np.errstate(divide="ignore"):
        farthest = np.logaddexp(np.log1p(-rate), np.log(rate) + mu * at - 0.5 * mu * mu)
    end = float(np.max(farthest))
    grid = np.append(0.0, np.geomspace(1e-3 * float(np.min(mu * rate)), end, _GRID))
    # dl / dx of the labels that extend this far.
    speed = mu * (rate - (1.0 - rate) * np.expm1(-grid))
    slowest = np.min(np.where(farthest >= grid, speed, np.inf), axis=0)
    slowest = np.where(np.isfinite(slowest), slowest, float(np.max(mu)))
    place = np.append(0.0, np.cumsum(np.diff(grid) * 0.5 * (1.0 / slowest[1:] + 1.0 / slowest[:-1])))
    far, last = float(place[-1]), _STEP * np.ceil(_NEAR / _STEP)
    steps = np.arange(0.0, min(far, last), _STEP)
    if far > last:
        # With too many nodes the spacing is enlarged; the bound remains valid.
        steps = np.append(steps, np.linspace(last, far, min(int((far - last) / _FAR_STEP) + 2, _MOST)))
    return np.append(np.interp(steps, place, grid)[: np.searchsorted(steps, far)], end)


def _log_f(losses: Array, orders: Array) -> Array:
    """log F at e^losses, losses > 0; [orders, losses]."""
    order, loss = orders[:, None], losses[None, :]
    return order * loss + xp.log(-xp.expm1(-(order - 1.0) * loss)) + xp.log(-xp.expm1(-order * loss))


@quietly
def log_moments(labels: Labels, losses: Array, log_values: Array, orders: Array) -> Array:
    """Upper bounds on log A at each order > 1 of a unit with profile at most exp(log_values); nats, [orders].

    Args:
      losses: nodes from 0 on. log_values: logarithms of bounds at the nodes, without the rare labels of the
        mixture. Beyond the last node the mixture's own profile is the bound.
    """
    require_float64(losses, log_values, orders)
    # Profiles decrease: a bound at a node holds at all later nodes.
    log_values = np.minimum.accumulate(log_values)  # type: ignore[assignment]
    change = xp.minimum(log_values[1:] - log_values[:-1], 0.0)
    drop = log_values[:-1] + xp.log(-xp.expm1(change))
    log_fall = drop - losses[:-1] - xp.log(xp.expm1(xp.diff(losses)))
    value = _log_f(losses[1:], orders)
    rise = value + xp.log(
        -xp.expm1(xp.concatenate([xp.full_like(value[:, :1], -xp.inf), value[:, :-1]], axis=1) - value)
    )
    excess = logsumexp(log_fall[None, :] + rise, axis=1)
    end = losses[-1]
    edge = xp.log(orders) + (orders - 1.0) * end + log_values[-1]
    return _put_together(labels, end, orders, xp.logaddexp(excess, edge))


def _of_rare(rare: Rare, order: Array) -> Array:
    """log of the contribution of rare labels; [orders, labels].

    With F = 0 below 1, F is convex and F(z) <= z^lam, so E F(R) <= q E z^lam. It is also at most E R^lam, which by
    Minkowski's inequality is at most (1 - q + q e^{(lam-1) mu^2/2})^lam.
    """
    shift = 0.5 * (order - 1.0) * xp.square(rare.mu)
    norm = xp.logaddexp(log1p(-rare.rate), xp.log(rare.rate) + shift)
    return xp.minimum(rare.log_weight + order * shift, rare.log_mass + order * norm)


def _put_together(labels: Labels, end: Array, orders: Array, excess: Array) -> Array:
    """log A from the logarithm of A - 1 up to `end`, the part beyond, and the rare labels."""
    order = orders[:, None]
    mu, inverse_rate, log_weight = (part[None, :] for part in labels[:3])
    log_z = stretch(end, inverse_rate)
    tail = scipy.special.log_ndtr(order * mu - (log_z / mu + 0.5 * mu))
    beyond = log_weight + xp.log(inverse_rate) + order * (end - log_z) + 0.5 * order * (order - 1.0) * mu * mu
    excess = logsumexp(
        xp.concatenate([excess[:, None], beyond + tail, _of_rare(labels.rare, order)], axis=1), axis=1
    )
    found = xp.logaddexp(0.0, excess + _ROUNDING) * (1.0 + _RELATIVE)
    return xp.where(xp.isnan(found), xp.inf, found)
