"""subsampling for unequal check-in rates (G1h): Gaussian messages, or their sum. Proof: docs/theory_rates.md.

The adversary sees the messages of a round, or their sum, and their number. In the sum the noise of all messages counts,
including that of clients with rate 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.messages.subsampling import GaussianSum, Subsampled
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.kernels import host
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.numerics.counts.pools import PoolSizes, Runs

# Runs of the number of messages.
_RUNS = 128


class Cells(NamedTuple):
    """Few cells that bound sums over the number k of messages, all [cells].

    For every F that is nonincreasing in k, and nonincreasing and convex in 1/q, sum_k g P_{k-1} F(k, 1/q_k) <= sum over
    cells of weight F(least, inverse), plus missing_mass if F <= 1.
    """

    least: np.ndarray
    inverse: np.ndarray
    weight: np.ndarray
    missing_mass: float


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalGaussian(Subsampled):
    """G1h if all rates are known: H_c <= sum_k g P_{k-1} D_k(1 + (c-1)/q_k), P the law of the number of other messages.

    Given k messages, the target's is one of them with probability q_k = g P_{k-1} / (g P_{k-1} + (1-g) P_k).

    Attributes:
      rate: g in (0, 1]. others: rates of all others. mu: 2 / noise_multiplier.
      summed: True for the view "aggregate", with D_k the Gaussian profile of mu / sqrt(k). Else D_k is that of mu.
    """

    rate: float
    others: Others
    mu: float
    summed: bool
    neg_log_tail: float

    @property
    def name(self) -> str:
        return "subsampling (noise of the sum)" if self.summed else "subsampling"

    @functools.cached_property
    def law(self) -> poisson_binomial.SumLaw:
        return poisson_binomial.law(self.others.trials, self.neg_log_tail)

    def spread(self, count: np.ndarray) -> np.ndarray:
        """mu of an observed sum of `count` messages, or of one message."""
        return self.mu / np.sqrt(count) if self.summed else np.full(count.shape, self.mu)

    @functools.cached_property
    def cells(self) -> Cells:
        """Cells from runs of k, for upper bounds."""
        law, g = self.law, self.rate
        runs = Runs(law, _RUNS)
        odds = (1.0 - g) / g
        # 1/q = 1 + odds P_k / P_{k-1}. The ratio decreases in k (Newton), so the ratios at the ends of a run bound it.
        most, least = runs.ratios(law)
        positive = runs.upper > 0
        mean = np.where(positive, runs.next_lower / np.where(positive, runs.upper, 1.0), 0.0)
        known = np.isfinite(most)
        most = np.where(known, most, 1.0)
        least, mean = np.minimum(least, most), np.clip(mean, np.minimum(least, most), most)
        gap = most - least
        share = np.where(gap > 0, (mean - least) / np.where(gap > 0, gap, 1.0), 0.0)
        inverse = 1.0 + odds * np.stack([least, most])
        weight = g * np.where(known, runs.upper, 0.0) * np.stack([1.0 - share, share])
        first = np.broadcast_to(runs.first, inverse.shape)
        missing_mass = g * (law.below + law.above + float(np.where(known, 0.0, runs.upper).sum()))
        return Cells(first.ravel(), inverse.ravel(), weight.ravel(), missing_mass)

    @functools.cached_property
    def mixture(self) -> GaussianBuckets:  # type: ignore[override]
        cells = self.cells
        pad = (0, 2 * _RUNS - cells.inverse.size)
        return GaussianBuckets(
            host(np.pad(self.spread(cells.least), pad, mode="edge")),
            host(np.pad(cells.inverse, pad, mode="edge")),
            host(np.pad(cells.weight, pad)),
            host(cells.missing_mass),
        )

    @functools.cached_property
    def mixture_below(self) -> GaussianBuckets:
        """Mixture that the sum dominates, for lower bounds."""
        law, g = self.law, self.rate
        runs = Runs(law, _RUNS)
        positive = runs.lower > 0
        mean = np.where(positive, runs.next_upper / np.where(positive, runs.lower, 1.0), 0.0)
        weight = g * np.where(positive, runs.lower, 0.0)
        pad = (0, _RUNS - mean.size)
        return GaussianBuckets(
            host(np.pad(self.spread(runs.last), pad, mode="edge")),
            host(np.pad(1.0 + (1.0 - g) / g * mean, pad, mode="edge")),
            host(np.pad(weight, pad)),
            host(0.0),
        )

    def alone(self) -> GaussianBuckets:
        """Mixture without other clients: the message is identified."""
        first, none = np.full(2 * _RUNS, self.mu), np.zeros(2 * _RUNS)
        none[0] = self.rate
        return GaussianBuckets(host(first), host(np.ones(2 * _RUNS)), host(none), host(0.0))

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        summed = self if self.summed else dataclasses.replace(self, summed=True)
        return (GaussianSum(summed, summed),)


@dataclasses.dataclass(frozen=True, eq=False)
class PooledGaussian(Subsampled):
    """G1h if only limits of the rates are known: a pool of n' other clients of rate theta.

    Membership in the pool is revealed. The messages of other clients are not counted, so there is less noise.

    Attributes:
      within: bound for one fleet within the limits, for its witnesses. theta: in (0, 1).
      pool: law of n', stochastically from below.
    """

    within: UnequalGaussian
    theta: float
    pool: PoolSizes

    @property
    def name(self) -> str:
        return self.within.name

    @functools.cached_property
    def mixture(self) -> GaussianBuckets:  # type: ignore[override]
        parts, missing_mass = [], 0.0
        for size, mass in zip(self.pool.sizes.tolist(), self.pool.masses.tolist()):
            if mass == 0.0:
                continue
            one = dataclasses.replace(self.within, others=Others(np.array([self.theta]), np.array([size])))
            mix = one.mixture if size > 0 else one.alone()
            parts.append((mix.mu, mix.inverse_rate, mass * np.asarray(mix.weight)))
            missing_mass += mass * float(mix.tail)
        columns = [np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts)]
        size = 2 * _RUNS * self.pool.sizes.size
        mu, inverse = (np.pad(column, (0, size - column.size), mode="edge") for column in columns[:2])
        weight = np.pad(columns[2], (0, size - columns[2].size))
        return GaussianBuckets(host(mu), host(inverse), host(weight), host(missing_mass))

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self.within.witnesses
