"""moments of Gaussian messages: mixtures over a public label with finite Renyi moments, for G1, G4 and R1.

The mass that a bound counts at infinite loss has a finite loss here [docs/evaluation.md]. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import math

import numpy as np

from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian, SubsampledGaussian
from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, host
from checkin_jax.kernels.messages.gaussian_moments import Labels, Rare
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets

# Runs of the number of messages above and below the window.
_ABOVE, _BELOW = 12, 128


def _labels(mix: GaussianBuckets, more: list[tuple[float, ...]], rare: list[tuple[float, ...]]) -> Labels:
    """Labels from buckets, from `more` labels (mu, 1/q, log weight), and from `rare` ones with the fields of `Rare`."""
    mu, inverse_rate, weight = (np.asarray(part, dtype=np.float64) for part in mix[:3])
    # Buckets of single numbers, and empty ones, occur repeatedly.
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
    """Labels of G1, with runs of the numbers of messages k outside the window.

    Above the window each run has its largest k / n and the noise of its least k. Below the window, where noise adds up,
    runs are rare labels with the noise of their least k; otherwise they have the window's least k / n.
    """
    mix = bound.mixture
    n, rate, mu = float(bound.num_clients), bound.rate, bound.mu
    # With buckets of single numbers the last may be empty: that number then counts as below the window.
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


def labels_of(bound: object, mu: float) -> Labels | None:
    """Labels of a bound on messages of this mu; None unless it is one mixture."""
    if isinstance(bound, ShuffledGaussian):
        return of_shuffled(bound)
    if isinstance(bound, SubsampledGaussian):
        # A rare label under which the message is identified.
        log_mass = math.log(float(bound.mixture.tail) + FLUSHED)
        return _labels(bound.mixture, [], [(mu, 1.0, log_mass, log_mass)])
    return None
