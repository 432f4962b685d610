r"""Shuffled check-in of Gaussian messages: G1, by subsampling and, in the aggregate, by noise that adds up.

Given that k of n clients check in, the differing client is one of them with probability q = k / n, and

    H_c <= E_k[ q delta_G(mu_k, log(1 + (c - 1) / q)) ],    mu_k = mu (messages) or mu / sqrt(k) (aggregate),

[BBG18] for each k, with the k other participants revealed. In the aggregate, with all other clients at one
record, the round IS the pair ((1-q) N(0,1) + q N(mu_k,1), N(0,1)) with k visible, so the same law gives the lower
bound. E_k[q ...] is gamma times a mean over a binomial law of k - 1, cut into buckets by `binomial.cells`:
for fixed mu the term is gamma f(1 + (c - 1) r) with r = n / k and f convex and nonincreasing.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, gaussian
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.round_off import UNIT


class GaussianBuckets(NamedTuple):
    """A round as a mixture over a public label: q N(mu) + (1-q) N(0) against N(0), r = 1/q.

    mu, inverse_rate, weight: shape [labels]; weight is E[q] in the label. tail: E[q] outside the window.
    """

    mu: Array
    inverse_rate: Array
    weight: Array
    tail: Array


def _runs(
    num_clients: Array, rate: Array, log_inverse_mass: Array, buckets: int
) -> tuple[binomial.Cells, Array, Array]:
    cut = binomial.cells(num_clients - 1.0, rate, log_inverse_mass, buckets)
    limit = num_clients - 1.0
    return cut, jnp.minimum(cut.first, limit) + 1.0, jnp.minimum(cut.last, limit) + 1.0


def _mu(mu: Array, count: Array, summed: bool) -> Array:
    return mu / jnp.sqrt(count) if summed else jnp.broadcast_to(mu, count.shape)


@functools.partial(jax.jit, static_argnames=("buckets", "summed"))
def buckets_upper(
    num_clients: Array, rate: Array, mu: Array, log_inverse_mass: Array, buckets: int, summed: bool
) -> GaussianBuckets:
    """A mixture whose profile is at least that of G1 for c >= 1; shape [2 * buckets].

    Each bucket takes the mu of its first k and spreads r over its ends with (a lower bound on) its mean kept.
    `summed`: the aggregate view. The weight outside is returned as `tail` and may be lost altogether.
    """
    cut, first, last = _runs(num_clients, rate, log_inverse_mass, buckets)
    high, low = num_clients / first, num_clients / last
    mean = jnp.clip(num_clients / (cut.mean_upper + 1.0), low, high)
    wide = high > low
    share = jnp.where(wide, (mean - low) / jnp.where(wide, high - low, 1.0), 0.0)
    inverse_rate = jnp.stack([low, high])
    weight = rate * cut.mass_upper[None, :] * jnp.stack([1.0 - share, share])
    mu_first = jnp.broadcast_to(_mu(mu, first, summed)[None, :], inverse_rate.shape)
    return GaussianBuckets(mu_first.ravel(), inverse_rate.ravel(), weight.ravel(), rate * cut.tail)


@functools.partial(jax.jit, static_argnames=("buckets", "summed"))
def buckets_lower(
    num_clients: Array, rate: Array, mu: Array, log_inverse_mass: Array, buckets: int, summed: bool
) -> GaussianBuckets:
    """A mixture of subsampled Gaussians that the round dominates, both ways; shape [buckets].

    Each bucket takes the mu of its last k (more noise) and forgets which k it was, both post-processings; its r is then
    the mean, rounded up.
    """
    cut, first, last = _runs(num_clients, rate, log_inverse_mass, buckets)
    inverse = binomial.mean_inverse(first, last, jnp.clip(cut.mean_lower + 1.0, first, last))
    return GaussianBuckets(
        _mu(mu, last, summed), num_clients * inverse, rate * cut.mass_lower, jnp.zeros_like(rate)
    )


def _stretch(loss: Array, inverse_rate: Array) -> Array:
    """log(1 + (e^loss - 1) r) for r >= 1, without overflow; -inf where the argument is not positive."""
    small = jnp.maximum(jnp.expm1(jnp.minimum(loss, 30.0)) * inverse_rate, -1.0)
    # r c (1 + (1/r - 1) / c)
    rest = (1.0 / inverse_rate - 1.0) * jnp.exp(-jnp.maximum(loss, 30.0))
    return jnp.where(loss > 30.0, loss + jnp.log(inverse_rate) + log1p(rest), log1p(small))


@jax.jit
def profile_upper(mix: GaussianBuckets, loss: Array) -> Array:
    """Upper bound on H at e^loss for one round, shape [losses], loss >= 0; both directions."""
    delta = jnp.exp(gaussian.log_delta(mix.mu[:, None], _stretch(loss[None, :], mix.inverse_rate[:, None])))
    return jnp.sum(mix.weight[:, None] * delta, axis=0) * (1.0 + ROUNDING) + mix.tail + FLUSHED


@functools.partial(jax.jit, static_argnames="reverse")
def lines_lower(mix: GaussianBuckets, loss: Array, reverse: bool) -> tuple[Array, Array]:
    """(P(A) - Q(A), Q(A)) for A = {loss of P||Q > loss}, shape [losses]; rounded down and up.

    reverse: the roles of P and Q exchanged, that is A = {loss of P||Q < -loss}.

    On a label, with s = log(1 + (c - 1) r), the set is {x > x0} or {x < x0} with e^{mu x - mu^2/2} = e^s, and the
    profile of the Gaussian pair at s gives the difference of its two probabilities without cancellation.
    """
    mu, r, weight = mix.mu[:, None], mix.inverse_rate[:, None], mix.weight[:, None]
    s = _stretch((-loss if reverse else loss)[None, :], r)
    reachable = jnp.isfinite(s)
    s = jnp.where(reachable, s, 0.0)
    sign = -1.0 if reverse else 1.0
    still = jnp.exp(gaussian.log_cdf(sign * (-0.5 * mu - s / mu)))
    profile = jnp.exp(gaussian.log_delta(jnp.broadcast_to(mu, s.shape), sign * s))
    # N(mu)'s mass minus N(0)'s, or the reverse: both terms are positive.
    apart = jnp.exp(s) * profile - jnp.expm1(s) * still if reverse else profile + jnp.expm1(s) * still
    moved = jnp.exp(gaussian.log_cdf(sign * (0.5 * mu - s / mu)))
    still, apart, moved = (jnp.where(reachable, part, 0.0) for part in (still, apart, moved))
    # e^s still may overflow where still has vanished; such a line is worth nothing.
    apart = jnp.where(jnp.isfinite(apart), apart, 0.0)
    difference = jnp.sum(weight * apart, axis=0)
    # (1 - q) N(0) + q N(mu) in the reverse direction, by its parts: r still - apart would cancel at large losses.
    # Nor is r - 1 known to more than the rounding of r.
    second = jnp.sum(weight * ((r - 1.0 + 4.0 * UNIT) * still + moved if reverse else r * still), axis=0)
    return difference * (1.0 - ROUNDING), second * (1.0 + ROUNDING) + FLUSHED
