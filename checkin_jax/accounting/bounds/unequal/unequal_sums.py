"""Sums of Gaussian messages of clients with check-in rates of their own: G1h (docs/theory_rates.md).

The adversary sees the sum of a round's messages and how many there are. The noise of everybody counts, of clients that
always come too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import Instance, Lines, UnitBound
from checkin_jax.accounting.bounds.messages.subsampling import Subsampled
from checkin_jax.accounting.bounds.unequal.pooled_clients import Others
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.numerics.counts.pools import Pool, Runs

# Runs of the number of messages.
_RUNS = 128


class Cells(NamedTuple):
    """For every F that falls with k, and with 1/q, in which it is convex: sum_k g P_{k-1} F(k, 1/q_k) <= that of these.

    [cells]. least: k. inverse: 1/q. weight: g P_{k-1}. lost: weight of what is left out, where F <= 1.
    """

    least: np.ndarray
    inverse: np.ndarray
    weight: np.ndarray
    lost: float


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalGaussian(Subsampled):
    """G1h: H_c <= sum_k g P_{k-1} D_k(1 + (c-1)/q_k), P the law of how many others come; all rates are known.

    q_k = g P_{k-1} / (g P_{k-1} + (1-g) P_k). Attributes: rate: g in (0, 1]. mu: 2 / noise_multiplier. summed: the
    aggregate view, D_k that of mu / sqrt(k); else messages, D_k that of mu.
    """

    rate: float
    others: Others
    mu: float
    summed: bool
    log_inverse_mass: float

    @property
    def name(self) -> str:
        return "subsampling (noise of the sum)" if self.summed else "subsampling"

    @functools.cached_property
    def law(self) -> poisson_binomial.Law:
        return poisson_binomial.law(self.others.trials, self.log_inverse_mass)

    def spread(self, count: np.ndarray) -> np.ndarray:
        """mu of a sum of so many messages."""
        return self.mu / np.sqrt(count) if self.summed else np.full(count.shape, self.mu)

    @functools.cached_property
    def cells(self) -> Cells:
        """The law of k and 1/q, from above: by runs of k."""
        law, g = self.law, self.rate
        runs = Runs(law, _RUNS)
        odds = (1.0 - g) / g
        # 1 / q = 1 + odds P_k / P_{k-1}; the ratio falls (Newton), so that a run's lies between those at its ends.
        most, least = runs.ratios(law)
        seen = runs.upper > 0
        mean = np.where(seen, runs.next_lower / np.where(seen, runs.upper, 1.0), 0.0)
        known = np.isfinite(most)
        most = np.where(known, most, 1.0)
        least, mean = np.minimum(least, most), np.clip(mean, np.minimum(least, most), most)
        gap = most - least
        share = np.where(gap > 0, (mean - least) / np.where(gap > 0, gap, 1.0), 0.0)
        inverse = 1.0 + odds * np.stack([least, most])
        weight = g * np.where(known, runs.upper, 0.0) * np.stack([1.0 - share, share])
        first = np.broadcast_to(runs.first, inverse.shape)
        lost = g * (law.below + law.above + float(np.where(known, 0.0, runs.upper).sum()))
        return Cells(first.ravel(), inverse.ravel(), weight.ravel(), lost)

    @functools.cached_property
    def mixture(self) -> GaussianBuckets:  # type: ignore[override]
        cells = self.cells
        pad = (0, 2 * _RUNS - cells.inverse.size)
        return GaussianBuckets(
            host(np.pad(self.spread(cells.least), pad, mode="edge")),
            host(np.pad(cells.inverse, pad, mode="edge")),
            host(np.pad(cells.weight, pad)),
            host(cells.lost),
        )

    def alone(self) -> GaussianBuckets:
        """Nobody else can come."""
        first, none = np.full(2 * _RUNS, self.mu), np.zeros(2 * _RUNS)
        none[0] = self.rate
        return GaussianBuckets(host(first), host(np.ones(2 * _RUNS)), host(none), host(0.0))

    @property
    def instances(self) -> tuple[Instance, ...]:
        summed = self if self.summed else dataclasses.replace(self, summed=True)
        return (UnequalGaussianSum(summed, summed),)


@dataclasses.dataclass(frozen=True, eq=False)
class PooledGaussian(Subsampled):
    """G1h from limits alone: the others' kinds revealed, n' members of rate theta are left (fewer, less noise).

    Attributes: within: a fleet within the limits, for the instances. theta: in (0, 1). pool: law of n', from below.
    """

    within: UnequalGaussian
    theta: float
    pool: Pool

    @property
    def name(self) -> str:
        return self.within.name

    @functools.cached_property
    def mixture(self) -> GaussianBuckets:  # type: ignore[override]
        parts, lost = [], 0.0
        for size, mass in zip(self.pool.sizes.tolist(), self.pool.masses.tolist()):
            if mass == 0.0:
                continue
            one = dataclasses.replace(self.within, others=Others(np.array([self.theta]), np.array([size])))
            mix = one.mixture if size > 0 else one.alone()
            parts.append((mix.mu, mix.inverse_rate, mass * np.asarray(mix.weight)))
            lost += mass * float(mix.tail)
        columns = [np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts)]
        size = 2 * _RUNS * self.pool.sizes.size
        mu, inverse = (np.pad(column, (0, size - column.size), mode="edge") for column in columns[:2])
        weight = np.pad(columns[2], (0, size - columns[2].size))
        return GaussianBuckets(host(mu), host(inverse), host(weight), host(lost))

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self.within.instances


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalGaussianSum:
    """The sum of Gaussian messages with all other clients at one record, each with its own rate."""

    scale: UnitBound
    messages: UnequalGaussian

    name = "subsampled Gaussian sum, all others at one record"
    symmetric = False

    @functools.cached_property
    def _below(self) -> GaussianBuckets:
        law, g = self.messages.law, self.messages.rate
        runs = Runs(law, _RUNS)
        seen = runs.lower > 0
        mean = np.where(seen, runs.next_upper / np.where(seen, runs.lower, 1.0), 0.0)
        weight = g * np.where(seen, runs.lower, 0.0)
        pad = (0, _RUNS - mean.size)
        return GaussianBuckets(
            host(np.pad(self.messages.spread(runs.last), pad, mode="edge")),
            host(np.pad(1.0 + (1.0 - g) / g * mean, pad, mode="edge")),
            host(np.pad(weight, pad)),
            host(0.0),
        )

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        return subsampled_gaussian.lines_lower(self._below, loss)
