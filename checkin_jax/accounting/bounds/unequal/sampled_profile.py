"""profile (T*h) and subsampling (G1h) for unequal check-in rates: messages of a known privacy profile; Gaussian ones.

The adversary sees the messages of a round in random order, or their sum, and their number, or one message of every
occupied slot. In the sum the noise of all messages counts, including that of clients with rate 1. Proof:
docs/theory_rates.md. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.messages.gaussian_cover import TwoLawMixture, serves
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMixture, mixtures
from checkin_jax.accounting.bounds.messages.subsampling import GaussianSum, Subsampled
from checkin_jax.accounting.bounds.profiles import TINY, GaussianProfile, Profile
from checkin_jax.accounting.bounds.unequal.pool_cover import Others, PoolSizes, Runs
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import poisson_binomial

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


# Cuts of the number of messages, in standard deviations from its mean.
_CUTS = (-3.0, -1.2, 0.0, 1.2)
# Relative standard deviation above which there are more cuts, these, and some at shares of the mean.
_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8)
# Share of the target's rate below which sums are left to T*.
_RARE = 1e-2
_VARIES, _MORE = 0.02, (-4.0, -3.0, -2.0, -1.3, -0.7, -0.2, 0.3, 0.8, 1.4, 2.2)


class Counted(NamedTuple):
    """Sums over the observed messages: their masses, their numbers of messages, the target's chance to be there.

    missing: probability, from above, of the sums left out. everybody: upper bound on the probability that the target's
    message and all of its pool's are observed.
    """

    masses: np.ndarray
    numbers: np.ndarray
    chances: np.ndarray
    missing: float
    everybody: float


class HiddenParts(abc.ABC):
    """A mixture, over what is revealed, of sums of T*; one record is replaced. Symmetric.

    Attributes of subclasses:
      rate: g in (0, 1]. profile: of one message.
    """

    rate: float
    profile: Profile
    neg_log_tail: float

    @property
    @abc.abstractmethod
    def _counted(self) -> Counted: ...

    @property
    def name(self) -> str:
        return f"profile ({self.profile.name} messages)"

    @property
    def largest_loss(self) -> float:
        return self.profile.largest_loss

    @functools.cached_property
    def _mixtures(self) -> list[HiddenMixture]:
        return [one for _, one in mixtures(*self._counted[:3], self.profile, self.neg_log_tail)]

    def upper(self, loss: np.ndarray) -> np.ndarray:
        """Upper bounds on the hockey-stick divergence at e^loss, loss >= 0 in nats, in both directions."""
        shape = np.shape(loss)
        losses = np.asarray(loss, dtype=np.float64).ravel()
        value = np.full(losses.shape, self._counted.missing)
        for each in self._mixtures:
            value += each.upper(losses)
        alone = self.profile.delta(losses)
        value = (value + self._counted.everybody * alone) * (1.0 + ROUNDING) + TINY
        value = np.minimum(value, self.rate * alone * (1.0 + ROUNDING))
        return np.where(losses >= self.largest_loss, 0.0, value).reshape(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalHidden(HiddenParts):
    """T*h: one record is replaced; the others form a pool of n' members of rate theta.

    Given k <= n' observed messages, q the probability that the target's is one of them, H_c is at most
    E((1 - q)(1 - c) + (q/k) sum of k T*)_+ = q E((1 - c)/q + mean of k T* - (1 - c))_+. This falls with k (convex
    order). Divided by q it is convex and falls in 1/q, as do the bound by subsampling and the true value. Given n' + 1
    observed messages, H_c <= D(c).

    Attributes:
      rate: g in (0, 1]. theta: in (0, 1). pool: the law of n', stochastically from below.
      profile: of one message. witnesses: concrete pairs.
    """

    rate: float
    theta: float
    pool: PoolSizes
    profile: Profile
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    @functools.cached_property
    def cells(self) -> Cells:
        """The law of k and 1/q over all n', in few groups of k."""
        parts: list[Cells] = []
        missing_mass, least_inverse, odds = 0.0, math.inf, (1.0 - self.rate) / self.rate
        for size, mass in zip(self.pool.sizes.tolist(), self.pool.masses.tolist()):
            if mass == 0.0 or size == 0.0:  # without a pool the target's message is identified
                continue
            others = Others(np.array([self.theta]), np.array([size]))
            counted = UnequalGaussian(self.rate, others, 1.0, False, self.neg_log_tail)
            each = counted.cells
            parts.append(each._replace(weight=mass * each.weight))
            missing_mass += mass * each.missing_mass
            # 1/q = 1 + odds P_k / P_{k-1} at the largest k that is kept.
            most = min(counted.law.last, size) + 1.0
            ratio = (size + 1.0 - most) / most * self.theta / (1.0 - self.theta)
            least_inverse = min(least_inverse, (1.0 + odds * ratio) * (1.0 - 1e-12))
        if not parts:
            return Cells(np.zeros(0), np.zeros(0), np.zeros(0), 0.0)
        least, inverse, weight = (np.concatenate(column) for column in list(zip(*parts))[:3])
        return _grouped(Cells(least, inverse, weight, missing_mass), max(least_inverse, 1.0))

    @functools.cached_property
    def _counted(self) -> Counted:  # type: ignore[override]
        least, inverse, weight, missing = self.cells
        every = self.pool.masses @ np.exp(self.pool.sizes * np.log(self.theta) * (1.0 - 1e-15))
        everybody = self.rate * float(every) * (1.0 + ROUNDING)
        return Counted(weight * inverse, least, 1.0 / inverse, missing, everybody)


@dataclasses.dataclass(frozen=True, eq=False)
class TwoLawUnequal(UnequalHidden):
    """T**h: `UnequalHidden` of Gaussian noise, with T** where that `serves`.

    No message depends on another one of its round. includes: labels of bounds that are never below this one.
    """

    includes: tuple[str, ...] = ()

    name = "gaussian-cover"  # type: ignore[assignment]

    @functools.cached_property
    def _mixtures(self) -> list[HiddenMixture]:
        assert isinstance(self.profile, GaussianProfile)
        mu = self.profile.mu
        return [
            TwoLawMixture(one.masses, one.slots, one.use_probs, one.profile, one.neg_log_tail)
            if serves(one.terms[1], mu) and one.masses.sum() > _RARE * self.rate
            else one
            for one in super()._mixtures
        ]


def _grouped(cells: Cells, least_inverse: float) -> Cells:
    """Cells grouped by k: each group has its least k, and 1/q at the two ends of its range, with the same mean.

    least_inverse: lower bound on 1/q.
    """
    kept = cells.weight > 0
    least, inverse, weight = (column[kept] for column in cells[:3])
    mean = float(weight @ least / weight.sum())
    deviation = float(np.sqrt(weight @ np.square(least - mean) / weight.sum()))
    cuts = mean + deviation * np.asarray(_CUTS)
    if deviation > _VARIES * mean:
        cuts = np.sort(np.append(mean + deviation * np.asarray(_MORE), mean * np.asarray(_SHARES)))
    group = np.searchsorted(cuts, least, side="right")
    found = []
    for mine in (group == which for which in np.unique(group)):
        # Convex and increasing in -1/q.
        ends, weights = convex.spread(-np.maximum(inverse[mine], least_inverse), weight[mine])
        found.append((np.full(ends.size, least[mine].min()), -ends, weights * (1.0 + 1e-14)))
    first, ends, weights = (np.concatenate(column) for column in zip(*found))
    return Cells(first, ends, weights, cells.missing_mass)
