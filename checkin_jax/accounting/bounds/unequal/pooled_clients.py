"""clones for unequal check-in rates (T1h, S), with the witnesses L1h; eps0-LDP messages [docs/theory_rates.md].

The target's rate is at most g. Of the others all rates are known, or only an upper bound on each and a lower bound on
their sum. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import Binary, Mixture, tried
from checkin_jax.accounting.bounds.interface import Lines, UnitBound, Values, Witness
from checkin_jax.kernels import binary_response, clones, host, mixture_profiles, tails
from checkin_jax.kernels.execution.blockwise import at_losses
from checkin_jax.numerics.counts import poisson_binomial, pools
from checkin_jax.numerics.counts.pools import PoolSizes
from checkin_jax.randomizers import TERNARY

# Runs of the number of labels, and of messages, in witnesses.
_RUNS = 128
# Buckets of the number of labels for each value of n', and the least spread of the absent that is resolved then.
_FINEST = 64
_SPREAD = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class Others:
    """Check-in rates of all clients but the target: in (0, 1], each `counts` times."""

    rates: np.ndarray
    counts: np.ndarray

    @functools.cached_property
    def trials(self) -> poisson_binomial.Indicators:
        return poisson_binomial.trials(self.rates, self.counts)

    @property
    def number(self) -> float:
        return float(self.counts.sum())


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalPureLDP:
    """T1h: eps0-LDP messages behind a shuffler; a pool of n' others of check-in rate theta hides the target.

    At theta = 1 (S) the participants are revealed: H_c <= g E Psi_{J+1,J+1}(c), J a stochastic lower bound on the
    number of other participants.

    Attributes:
      rate: g, the largest rate of a target, in (0, 1]. theta: in (0, 1].
      pool: law of n', `numerics.counts.pools`; at theta = 1 of J.
      others: all others' rates; None if unknown: then there are no witnesses.
    """

    rate: float
    theta: float
    pool: PoolSizes
    epsilon0: float
    neg_log_tail: float
    others: Others | None = None

    name = "clones"

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    @property
    def variance(self) -> float:
        """Variance of the loss, up to a factor common to bounds at the same epsilon0."""
        if self.theta == 1.0:
            return self.rate / (self.pool.mean + 1.0)
        return self.rate**2 / (self.theta * (self.pool.mean + 1.0))

    @property
    def mixture(self) -> Mixture | None:
        """The mixture of a hidden target, whose moments are known."""
        return None if self.theta == 1.0 else self._above

    @functools.cached_property
    def _above(self) -> Mixture:
        if self.theta == 1.0:
            number = self.pool.sizes + 1.0
            parts = host(number), host(np.ones_like(number)), host(self.rate * self.pool.masses)
            law = clones.slots_law(*parts, host(self.epsilon0), True)
            return Mixture(law, self.epsilon0, self.neg_log_tail)
        law = clones.pool_law(
            host(self.pool.sizes), host(self.pool.masses), *map(host, (self.theta, self.rate, self.epsilon0))
        )
        # Relative contribution of the absent to the spread; gamma (1 - gamma) / n if all rates are equal.
        spread = self.theta / (1.0 - self.theta) * (1.0 - self.rate) ** 2 / (self.pool.mean + 1.0)
        if self.pool.sizes.size == 1:
            return Mixture(law, self.epsilon0, self.neg_log_tail, spread)
        # Finer buckets gain nothing: the values of n' differ by more.
        spread = spread if spread > _SPREAD else 0.0
        return Mixture(law, self.epsilon0, self.neg_log_tail, spread, _FINEST)

    def upper(self, loss: np.ndarray) -> Values:
        return self._above.upper(loss)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found

    def binary(self) -> tuple[Witness, ...]:
        """Witness of binary randomized response, for mechanisms that attain no other."""
        if self.others is None:
            return ()
        return (unequal_binary(self, self.rate, self.others, self.epsilon0, self.neg_log_tail),)

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        if self.others is None:
            return ()
        messages = float(self.others.trials.mean) + self.rate
        found: list[Witness] = []
        ternary, binary = tried(messages, self.epsilon0)
        if ternary:
            found.append(UnequalTernary(self, self.rate, self.others, self.epsilon0, self.neg_log_tail))
        if binary:
            found += self.binary()
        return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalTernary:
    """Witness: 3-ary randomized response, all other clients at a third record, with unequal rates. Symmetric."""

    grid_bound: UnitBound
    rate: float
    others: Others
    epsilon0: float
    neg_log_tail: float

    name = "3-ary randomized response, all others at a third record"
    needs, single = TERNARY, True
    symmetric = True

    @functools.cached_property
    def _below(self) -> tuple[mixture_profiles.Buckets, tails.Tables, bool]:
        special = 2.0 * math.exp(-self.epsilon0) / (1.0 + 2.0 * math.exp(-self.epsilon0))
        law = poisson_binomial.law(self.others.trials.scaled(special), self.neg_log_tail)
        mix = ternary_buckets(law, special, self.rate, self.epsilon0, _RUNS)
        table = tails.table_size(float(np.asarray(mix.number).max()), self.neg_log_tail)
        tables = clones.signs(mix, host(self.neg_log_tail), table, True)
        return mix, tables, table[1]

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        mix, tables, exact = self._below
        epsilon0 = host(self.epsilon0)
        lines = at_losses(lambda some: clones.lines_lower(mix, tables, some, epsilon0, exact), loss)
        return lines, lines


def unequal_binary(
    grid_bound: UnitBound, rate: float, others: Others, epsilon0: float, neg_log_tail: float
) -> Binary:
    """Witness: binary randomized response, all other clients at one of the two records, with unequal rates."""
    law = poisson_binomial.law(others.trials, neg_log_tail)
    messages = binary_messages(law, rate, epsilon0, _RUNS)
    return Binary(grid_bound, messages, epsilon0, neg_log_tail)


def _filled(values: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
    """Values padded to `size` entries, so that one size is compiled."""
    return np.pad(values, (0, size - values.size), constant_values=value)


def ternary_buckets(
    law: poisson_binomial.SumLaw, special: float, rate: float, epsilon0: float, buckets: int
) -> mixture_profiles.Buckets:
    """L1h, 3-ary randomized response, all others at a third record: a mixture for lower bounds, one ratio a label.

    law: of the number of others that show one of the two special labels. special: 2 / (p + 2). rate: g in (0, 1].

    N - 1 has that law, with weight g special Pr[T = N-1]; y has mean ((1-g)/g + (1-special)/p) / special times
    Pr[T = N] / Pr[T = N-1], since sum_j r_j/(1 + r_j (z-1)) G(z) = G'(z) for indicators of probabilities r_j.
    """
    runs = pools.Runs(law, buckets)
    per_step = ((1.0 - rate) / rate + (1.0 - special) * np.exp(-epsilon0)) / special * (1.0 + 1e-14)
    positive = runs.lower > 0
    ratio = np.where(positive, per_step * runs.next_upper / np.where(positive, runs.lower, 1.0), 0.0)
    weight = np.where(np.isfinite(ratio), rate * special * runs.lower * (1.0 - 1e-14), 0.0)
    ratio = np.where(weight > 0, ratio, 0.0)
    return mixture_profiles.Buckets(
        host(_filled(runs.last, buckets, 1.0)),
        host(_filled(ratio, buckets)[:, None]),
        host(_filled(weight, buckets)[:, None]),
        host(0.0),
    )


def binary_messages(
    law: poisson_binomial.SumLaw, rate: float, epsilon0: float, buckets: int
) -> binary_response.Messages:
    """L1h, binary randomized response, all others at x': a mixture over the number of messages, for lower bounds.

    law: of the number of others that check in. rate: g in (0, 1]. The target is one of k messages with probability
    q_k = g Pr[S = k-1] / Pr[K = k], kappa = (1 - 1/p) q_k / k. In a run of k its mean serves (Jensen), rounded down.
    """
    runs = pools.Runs(law, buckets)
    most = (1.0 - rate) * runs.next_upper + rate * runs.upper
    share = np.where(most > 0, rate * runs.lower / np.where(most > 0, most, 1.0), 0.0)
    kappa = -np.expm1(-epsilon0) * np.minimum(share, 1.0) / runs.last * (1.0 - 1e-14)
    weight = ((1.0 - rate) * runs.next_lower + rate * runs.lower) * (1.0 - 1e-14)
    kappa = np.where(kappa > 0, kappa, 1e-300)
    return binary_response.Messages(
        host(_filled(runs.first, buckets, 1.0)),
        host(_filled(weight, buckets)),
        host(_filled(kappa, buckets, 1e-300)),
    )
