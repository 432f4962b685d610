r"""G1: shuffled check-in of Gaussian messages, by subsampling; in the aggregate view their noise adds up.

Given that k of n clients check in, the differing client is one of them with probability q = k / n, and

    H_c <= E_k[ q delta_G(mu_k, log(1 + (c - 1) / q)) ],    mu_k = mu (messages) or mu / sqrt(k) (aggregate),

by [BBG18] for each k, with the k other participants revealed. In the aggregate with all other clients at one
record, the round IS the pair ((1-q) N(0,1) + q N(mu_k,1), N(0,1)) with k visible, so the same law gives the
lower bound. E_k[q ...] is gamma times a mean over a binomial law of k - 1, cut into buckets by
`binomial.cells`. For fixed mu the term is gamma f(1 + (c - 1) r) with r = n / k and f convex and
nonincreasing.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, gaussian_profile
from checkin_jax.kernels.elementary import UNIT, log1p
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp
from checkin_jax.kernels.execution.devices import at_losses


class GaussianBuckets(NamedTuple):
    """A round as a mixture over a public label: q N(mu) + (1-q) N(0) against N(0), r = 1/q.

    mu, inverse_rate, weight: shape [labels]; weight is E[q] in the label. tail: E[q] outside the window.
    """

    mu: Array
    inverse_rate: Array
    weight: Array
    tail: Array


def _runs(
    num_clients: Array, rate: Array, neg_log_tail: Array, buckets: int
) -> tuple[binomial.BinomialCells, Array, Array]:
    cut = binomial.cells(num_clients - 1.0, rate, neg_log_tail, buckets)
    limit = num_clients - 1.0
    return cut, xp.minimum(cut.first, limit) + 1.0, xp.minimum(cut.last, limit) + 1.0


def _mu(mu: Array, count: Array, summed: bool) -> Array:
    return mu / xp.sqrt(count) if summed else xp.broadcast_to(mu, count.shape)


@quietly
def buckets_upper(
    num_clients: Array, rate: Array, mu: Array, neg_log_tail: Array, buckets: int, summed: bool
) -> GaussianBuckets:
    """A mixture whose profile is at least that of G1 for c >= 1; shape [2 * buckets].

    Each bucket uses the mu of its first k, and spreads r over its ends with (a lower bound on) the mean of r
    preserved.
    `summed`: the aggregate view. The weight outside is returned as `tail`, to be counted at infinite loss.
    """
    cut, first, last = _runs(num_clients, rate, neg_log_tail, buckets)
    high, low = num_clients / first, num_clients / last
    mean = xp.clip(num_clients / (cut.mean_upper + 1.0), low, high)
    wide = high > low
    share = xp.where(wide, (mean - low) / xp.where(wide, high - low, 1.0), 0.0)
    inverse_rate = xp.stack([low, high])
    weight = rate * cut.mass_upper[None, :] * xp.stack([1.0 - share, share])
    mu_first = xp.broadcast_to(_mu(mu, first, summed)[None, :], inverse_rate.shape)
    return GaussianBuckets(mu_first.ravel(), inverse_rate.ravel(), weight.ravel(), rate * cut.tail)


@quietly
def buckets_lower(
    num_clients: Array, rate: Array, mu: Array, neg_log_tail: Array, buckets: int, summed: bool
) -> GaussianBuckets:
    """A mixture of subsampled Gaussians that the round dominates, in both directions; shape [buckets].

    Each bucket uses the mu of its last k (more noise) and hides k; both are post-processings. Its r is the
    mean, rounded up.
    """
    cut, first, last = _runs(num_clients, rate, neg_log_tail, buckets)
    inverse = binomial.mean_inverse(first, last, xp.clip(cut.mean_lower + 1.0, first, last))
    return GaussianBuckets(
        _mu(mu, last, summed), num_clients * inverse, rate * cut.mass_lower, xp.zeros_like(rate)
    )


def stretch(loss: Array, inverse_rate: Array) -> Array:
    """log(1 + (e^loss - 1) r) for r >= 1, without overflow; -inf where the argument is not positive."""
    small = xp.maximum(xp.expm1(xp.minimum(loss, 30.0)) * inverse_rate, -1.0)
    if backend.holds(loss <= 30.0):
        return log1p(small)
    # r c (1 + (1/r - 1) / c)
    rest = (1.0 / inverse_rate - 1.0) * xp.exp(-xp.maximum(loss, 30.0))
    return xp.where(loss > 30.0, loss + xp.log(inverse_rate) + log1p(rest), log1p(small))


def profile_upper(mix: GaussianBuckets, loss: np.ndarray) -> np.ndarray:
    """Upper bound on H at e^loss for one round, both directions, at any number of losses >= 0; [losses]."""
    return at_losses(functools.partial(profile_at, mix), loss)


def profile_at(mix: GaussianBuckets, loss: Array) -> Array:
    """`profile_upper` at a few losses."""
    delta = gaussian_profile.delta_ahead(mix.mu[:, None], stretch(loss[None, :], mix.inverse_rate[:, None]))
    return xp.sum(mix.weight[:, None] * delta, axis=0) * (1.0 + ROUNDING) + mix.tail + FLUSHED


def lines_lower(
    mix: GaussianBuckets, loss: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(P(A) - Q(A), Q(A)) for A = {loss of P||Q > loss}, rounded down and up; any number of losses.

    The second pair exchanges P and Q, for A = {loss of P||Q < -loss}.
    """
    forward, backward = (
        at_losses(functools.partial(lines_at, mix, reverse=reverse), loss) for reverse in (False, True)
    )
    return forward, backward


def lines_at(mix: GaussianBuckets, loss: Array, reverse: Array | bool) -> tuple[Array, Array]:
    """`lines_lower` in one direction, at a few losses.

    On a label, with s = log(1 + (c - 1) r), the set is {x > x0} or {x < x0} with e^{mu x - mu^2/2} = e^s: a
    tail of both normal laws, |s| / mu - mu/2 from one mean and |s| / mu + mu/2 from the other.
    """
    mu, r, weight = mix.mu[:, None], mix.inverse_rate[:, None], mix.weight[:, None]
    # One code path for both directions: each copy would be compiled.
    s = stretch((xp.where(reverse, -1.0, 1.0) * loss)[None, :], r)
    reachable = xp.isfinite(s)
    far, apart = gaussian_profile.tails_ahead(mu, xp.abs(xp.where(reachable, s, 0.0)) / mu)
    far, apart = (xp.where(reachable, part, 0.0) for part in (far, apart))
    difference = xp.sum(weight * apart, axis=0)
    # In reverse, (1 - q) N(0) + q N(mu) is computed from its parts, since r near - apart would cancel at
    # large losses. r - 1 has the rounding error of r.
    second = xp.where(reverse, (r - 1.0 + 4.0 * UNIT) * (far + apart) + far, r * far)
    return difference * (1.0 - ROUNDING), xp.sum(weight * second, axis=0) * (1.0 + ROUNDING) + FLUSHED
