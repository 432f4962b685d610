"""Units of Gaussian messages as mixtures over a public label whose Renyi moments are finite: G1, G4 and R1.

Bounds leave out masses that may be lost altogether; here they keep a loss that is finite at every order. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import math

import numpy as np

from checkin_jax.accounting.bounds.full_participation import AveragedGaussian
from checkin_jax.accounting.bounds.interface import ShuffledGaussian
from checkin_jax.accounting.bounds.windows.allocated_sums import R1Subsampling
from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, host
from checkin_jax.kernels.messages.gaussian_moments import Labels, Rare
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets

# Runs of the counts of messages above and below the window: more of them near it.
_ABOVE, _BELOW = 12, 128


def _labels(mix: GaussianBuckets, more: list[tuple[float, ...]], rare: list[tuple[float, ...]]) -> Labels:
    """The buckets, further labels (mu, 1/q, log weight) and rare ones, as `Rare` has them."""
    mu, inverse_rate, weight = (np.asarray(part, dtype=np.float64) for part in mix[:3])
    # Buckets that are single numbers, or empty, come more than once.
    kinds, place = np.unique(np.stack([mu, inverse_rate]), axis=1, return_inverse=True)
    mu, inverse_rate = kinds
    weight = np.bincount(place.ravel(), weight * (1.0 + ROUNDING) + FLUSHED)
    log_weight = np.log(weight)
    extra = np.array(more).reshape(-1, 3)
    seldom = np.array(rare).reshape(-1, 4)
    parts = (np.append(first, second) for first, second in zip((mu, inverse_rate, log_weight), extra.T))
    of_labels, of_rare = map(host, parts), map(host, seldom.T)
    return Labels(next(of_labels), next(of_labels), next(of_labels), Rare(*of_rare))


def of_shuffled(bound: ShuffledGaussian) -> Labels:
    """G1, with runs of the numbers of messages k that are outside the window: all numbers count.

    Above it each run has the largest k / n and the least k's noise. Below it, where noise adds up, runs are rare labels
    at the least k's noise; else all have the window's least k / n.
    """
    mix = bound._mixture
    n, rate, mu = float(bound.num_clients), bound.rate, bound.mu
    # Of a window whose buckets are single numbers the last may be empty: then that number counts below.
    most, least = (np.rint(n / float(pick(mix.inverse_rate))) for pick in (np.min, np.max))
    more: list[tuple[float, ...]] = []
    rare: list[tuple[float, ...]] = []
    if rate < 1.0 and most < n:
        ends = np.unique(np.rint(most * (n / most) ** (np.arange(_ABOVE + 1.0) / _ABOVE) ** 2))
        first, last = ends[:-1], ends[1:]
        log_weight = np.asarray(binomial.log_chernoff(first - 1.0, n - 1.0, rate)) + math.log(rate)
        here = mu / np.sqrt(first) if bound.summed else np.full_like(first, mu)
        more += zip(here, n / last, log_weight)
    if rate < 1.0 and least > 1.0:
        ends = np.unique(np.rint(least ** (np.arange(_BELOW + 1.0) / _BELOW)))
        log_weight = np.asarray(binomial.log_chernoff(ends[1:] - 1.0, n - 1.0, rate)) + math.log(rate)
        if bound.summed:
            first, last = ends[:-1], ends[1:]
            rare += zip(mu / np.sqrt(first), last / n, log_weight, log_weight + np.log(n / first))
        else:
            more.append((mu, n / least, float(log_weight[-1])))
    return _labels(mix, more, rare)


def _by_itself(mu: float, mass: float) -> tuple[float, ...]:
    """A rare label in which the message is seen for what it is."""
    return mu, 1.0, math.log(mass + FLUSHED), math.log(mass + FLUSHED)


def labels_of(bound: object, mu: float) -> Labels | None:
    """The labels of a bound on messages of this mu that is one mixture; None for any other."""
    if isinstance(bound, ShuffledGaussian):
        return of_shuffled(bound)
    if isinstance(bound, AveragedGaussian) and bound.sharing is None:
        mix = bound._mixture
        # Whatever is outside the window leaks as if nobody shared the slot.
        return _labels(mix, [], [_by_itself(mu, float(mix.tail))])
    if isinstance(bound, R1Subsampling):
        one = GaussianBuckets(host([bound.mu]), host([1.0 / bound.used]), host([bound.used]), host(0.0))
        # In the public event that is left a message leaks no more than by itself.
        return _labels(one, [], [_by_itself(mu, bound.rest)])
    return None
