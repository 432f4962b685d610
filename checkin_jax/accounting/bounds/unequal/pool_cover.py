"""Cover of a target among clients of unequal check-in rates (T1h, S): a pool of others [docs/theory_rates.md].

The target's rate is at most g. Of the others all rates are known, or only an upper bound on each and a lower bound on
their sum. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.kernels import binary_response, binomial, clones, host, mixture_profiles
from checkin_jax.kernels.messages import equal_steps, one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import few_steps, staged_clones
from checkin_jax.numerics.counts import chernoff, poisson_binomial, pools
from checkin_jax.numerics.counts.pools import PoolSizes
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import GameArguments, Steps

# Runs of the number of labels, and of messages, in witnesses.
RUNS = 128
# Most numbers of messages that are listed for the chi-square divergence.
LISTED = 1 << 12
# Buckets of the number of labels for each value of n', and for one value; least spread of the absent that is resolved.
_FINEST, _ALL = 64, 256
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
class ClientPool:
    """T1h: a pool of n' others of check-in rate theta hides the target.

    At theta = 1 (S) the participants are revealed: H_c <= g E Psi_{J+1,J+1}(c), J a stochastic lower bound on the
    number of other participants.

    Attributes:
      rate: g, the largest rate of a target, in (0, 1]. theta: in (0, 1].
      size: law of n', `numerics.counts.pools`; at theta = 1 of J.
      others: all others' rates, for witnesses; None: there are none.
    """

    rate: float
    theta: float
    size: PoolSizes
    others: Others | None = None

    use_prob, known = 1.0, False

    @property
    def number(self) -> float:
        assert self.others is not None
        return float(self.others.trials.mean) + self.rate

    @property
    def drift(self) -> float:
        if self.theta == 1.0:
            return 0.0
        # gamma (1 - gamma) / n if all rates are equal.
        spread = self.theta / (1.0 - self.theta) * (1.0 - self.rate) ** 2 / (self.size.mean + 1.0)
        return spread if spread > _SPREAD or self.size.sizes.size == 1 else 0.0

    @property
    def finest(self) -> int:
        # Finer buckets gain nothing: the values of n' differ by more.
        return _ALL if self.theta == 1.0 or self.size.sizes.size == 1 else _FINEST

    def clones(self, epsilon0: float, neg_log_tail: float, upper: bool) -> mixture_profiles.MixtureLaw:
        assert upper, "witnesses have laws of their own"
        sizes, masses = self.size
        if self.theta == 1.0:
            parts = host(sizes + 1.0), host(np.ones_like(sizes)), host(self.rate * masses)
            return clones.slots_law(*parts, host(epsilon0), True)
        return clones.pool_law(host(sizes), host(masses), *map(host, (self.theta, self.rate, epsilon0)))

    def chi_square(self, epsilon0: float, variance: float, neg_log_tail: float) -> float:
        """As for covers of one rate; infinity for many messages."""
        sizes, masses = self.size
        largest = float(sizes.max())
        if self.theta == 1.0 or largest < 1.0:
            return math.inf
        most = float(chernoff.most(largest, self.theta, np.array(neg_log_tail)))
        if most > LISTED:
            return math.inf
        unit, numbers = math.expm1(epsilon0), np.arange(1.0, min(most + 1.0, largest) + 1.0)
        # The probability of k messages, the target's among them, times q/k / (1 - q (1 - 1/p)).
        others = np.where(numbers <= sizes[:, None], numbers - 1.0, 0.0)
        chances = np.exp(np.asarray(binomial.log_pmf(others, sizes[:, None], self.theta)))
        absent = (1.0 - self.rate) * self.theta / ((1.0 - self.theta) * self.rate)
        left = np.maximum(sizes[:, None] + 1.0 - numbers, 0.0) * absent + numbers / (unit + 1.0)
        each = np.where(numbers <= sizes[:, None], self.rate * chances / left, 0.0)
        alone = self.rate * (float(masses @ self.theta**sizes) + math.exp(-neg_log_tail))
        found = variance * unit**2 * float(masses @ each.sum(axis=1))
        return (found + alone * unit**2 / (unit + 1.0)) * (1.0 + 1e-9)

    def sums(self, neg_log_tail: float) -> equal_steps.StepCounts:
        """Sums of n members at rate theta, whose range of losses is about that of steps beta times as large."""
        number = self.size.mean + 1.0
        clients = number * self.theta / self.rate
        return equal_steps.StepCounts(host(clients), host(self.theta), host([number]), host([1.0]))

    @property
    def _steps(self) -> equal_steps.PoolSteps:
        parts = host(self.size.sizes), host(self.size.masses)
        return equal_steps.PoolSteps(*parts, host(self.theta), host(self.rate))

    def of_step(
        self, law: equal_steps.StepLaw, epsilon0: float, losses: np.ndarray, neg_log_tail: float
    ) -> np.ndarray:
        return np.asarray(equal_steps.pooled_upper(law, self._steps, host(epsilon0), host(losses)))

    def of_bits(
        self, message: Message, losses: np.ndarray, ceilings: np.ndarray, neg_log_tail: float
    ) -> np.ndarray:
        """B0h at these losses."""
        return np.asarray(one_bit_profile.pooled_upper(self._steps, message, host(losses)))

    def many(self, neg_log_tail: float) -> bool:
        """True if there are enough messages for a staged game, in a pool of the mean size."""
        usual = np.floor([self.size.mean])
        return staged_clones.pool_stages(usual, np.ones(1), self.theta, neg_log_tail) is not None

    def game(self, steps: Steps, neg_log_tail: float) -> GameArguments | FewSteps | None:
        """The game of these steps; None if there is no such bound."""
        known = self.size.sizes, self.size.masses, self.theta, self.rate, steps, neg_log_tail
        few = few_steps.pool(*known)
        return few_steps.played_or_staged(few, lambda: staged_clones.pool(*known))

    def draws(self, neg_log_tail: float) -> None:
        """None: the others' draws are not of one rate."""

    def messages(self, epsilon0: float, neg_log_tail: float, buckets: int = RUNS) -> binary_response.Messages:
        assert self.others is not None
        law = poisson_binomial.law(self.others.trials, neg_log_tail)
        return binary_messages(law, self.rate, epsilon0, RUNS)


def filled(values: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
    """Values padded to `size` entries, so that one size is compiled."""
    return np.pad(values, (0, size - values.size), constant_values=value)


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
        host(filled(runs.first, buckets, 1.0)),
        host(filled(weight, buckets)),
        host(filled(kappa, buckets, 1e-300)),
    )
