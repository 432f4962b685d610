"""Cover of a target among clients of unequal check-in rates (T1h, S): a pool of n' others [docs/theory_rates.md].

The target's rate is at most g. Of the others all rates are known, or only an upper bound on each and a lower bound on
their sum. A coin of rate x is, with probability w = min(x / theta, (1-x) / (1-theta)), a coin of rate theta; otherwise
the client is surely absent or surely present (splitting lemma). The pool consists of the clients of the first case. A
stochastic lower bound on their number n' gives an upper bound on the divergence. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax.kernels import binomial, clones, host
from checkin_jax.kernels.messages import equal_steps, one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import few_steps, staged_clones
from checkin_jax.numerics.counts import chernoff, poisson_binomial
from checkin_jax.numerics.counts.poisson_binomial import SumLaw
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import GameArguments, Steps

# Values of n' besides 0 and the least that matters, in standard deviations from the mean; more where they cost little.
PLACES, FINER = (-3.1, -1.9, -1.1, -0.4, 0.3, 1.2), tuple(np.linspace(-4.0, 4.0, 41).tolist())
# Factor that rounds computed weights down.
_DOWN = 1.0 - 1e-15


class PoolSizes(NamedTuple):
    """Values of n' and their probabilities, or a law stochastically below n'; [values]."""

    sizes: np.ndarray
    masses: np.ndarray

    @property
    def mean(self) -> float:
        """Mean of the law."""
        return float(self.sizes @ self.masses)


def weights(rates: np.ndarray, theta: float) -> np.ndarray:
    """Probability that a client of each rate is in the pool, rounded down."""
    members = np.where(rates <= theta, rates / theta, (1.0 - rates) / (1.0 - theta))
    return np.where(rates == theta, 1.0, np.clip(members * _DOWN, 0.0, 1.0))


def sum_of(
    members: np.ndarray,
    counts: np.ndarray | None,
    neg_log_tail: float,
    places: Sequence[float] = PLACES,
) -> PoolSizes:
    """Lower law of the number of independent events that occur, with these probabilities, `counts` times
    each.
    """
    of = poisson_binomial.trials(members, counts)
    if of.number == 0:
        return certain(of.sure)
    return cut(poisson_binomial.law(of, neg_log_tail), of.mean, of.variance, places=places)


def certain(size: float) -> PoolSizes:
    """Point mass of n' at `size`."""
    return PoolSizes(np.array([float(size)]), np.ones(1))


def limited(weight: float, neg_log_tail: float, places: Sequence[float] = PLACES) -> PoolSizes:
    """Law below n' if only a lower bound `weight` on the sum of the others' weights w_j is known.

    n' is stochastically at least min(Poisson(weight), floor(weight)) [Hoeffding 1956, Theorem 4].
    """
    weight = weight * _DOWN
    if weight < 1.0:
        return certain(0.0)
    law = poisson_binomial.poisson_law(weight, neg_log_tail)
    return cut(law, weight, weight, math.floor(weight), places)


def cut(
    law: SumLaw,
    mean: float,
    variance: float,
    most: float = math.inf,
    places: Sequence[float] = PLACES,
) -> PoolSizes:
    """Law on few values stochastically below the given one: every value moves to the next lower selected value.

    places: of the values selected, in standard deviations from the mean.
    """
    index = np.arange(law.values.size)
    usable = index[law.values <= most]
    if usable.size == 0:
        return certain(0.0)
    if usable.size < len(places) + 2 and law.stride == 1.0:
        kept = usable
    else:
        wanted = mean + math.sqrt(variance) * np.asarray(places)
        at = np.searchsorted(law.values[usable], wanted)
        kept = np.unique(np.concatenate([[0], np.clip(at, 0, usable.size - 1)]))
    # Pr[n' < value], rounded up; the top run of the law is not needed.
    under = np.concatenate([[law.below], law.below + np.cumsum(law.run_upper)])[kept]
    under = np.minimum(np.append(under, 1.0), 1.0)
    under[-1] = 1.0
    sizes = np.concatenate([[0.0], law.values[kept]])
    masses = np.diff(np.concatenate([[0.0], np.maximum.accumulate(under)]))
    return PoolSizes(sizes, masses)


class Runs:
    """A law cut into runs of values, with bounds on their masses and on those of the runs shifted down by
    one.

    first, last: values of the sum plus one, [runs]. lower, upper: of the sum in [first - 1, last - 1].
    next_upper, next_lower: of the sum in [first, last].
    """

    def __init__(self, law: SumLaw, buckets: int) -> None:
        size, stride = law.lower.size, law.stride
        mean = float(law.run_upper @ np.arange(float(size)))
        deviation = np.sqrt(max(float(law.run_upper @ np.square(np.arange(float(size)) - mean)), 1e-300))
        ends = binomial.edges(host(0.0), host(size - 1.0), host(mean), host(deviation), buckets)
        start, stop = (np.asarray(end).astype(np.int64) for end in ends)
        kept = (stop >= start) & (start < size)
        start, stop = start[kept], np.minimum(stop[kept], size - 1)
        self._start = start
        self.lower = np.add.reduceat(law.run_lower, start)
        self.upper = np.add.reduceat(law.run_upper, start)
        self.first = law.first + stride * start + 1.0
        self.last = np.append(self.first[1:] - 1.0, law.last + 1.0)
        # Shifted by one: the value after the last enters, the first leaves.
        entering = np.append(law.upper[start[1:]], law.above)
        self.next_upper = np.maximum(self.upper + entering - law.lower[start], 0.0)
        entering = np.append(law.lower[start[1:]], 0.0)
        self.next_lower = np.maximum(self.lower + entering - law.upper[start], 0.0)

    def ratios(self, law: SumLaw) -> tuple[np.ndarray, np.ndarray]:
        """Bounds (above, below) on Pr[T = k] / Pr[T = k-1] for all k of each run; infinity and 0 if unknown.

        The ratio decreases in k (Newton): it is at most its value at the first k and at least that at the
        last one, which chords bound.
        """
        start, after = self._start, np.append(self._start[1:], law.lower.size)
        low, high = np.append(law.lower, 0.0), np.append(law.upper, math.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            if law.stride == 1.0:
                above, below = high[start + 1] / low[start], low[after] / high[after - 1]
                # Zero beyond the last value.
                above = np.where(start + 1 < law.lower.size, above, math.inf if law.above else 0.0)
                below = np.where(after < law.lower.size, below, 0.0)
            else:
                above = np.where(start > 0, (high[start] / low[start - 1]) ** (1.0 / law.stride), math.inf)
                beyond = np.minimum(after + 1, law.lower.size)
                below = np.where(
                    beyond < law.lower.size, (low[beyond] / high[np.minimum(after, law.lower.size)]), 0.0
                )
                below = below ** (1.0 / law.stride)
        return np.where(np.isnan(above), math.inf, above), np.where(np.isnan(below), 0.0, below)


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
      size: law of n', `accounting.bounds.unequal.pool_cover`; at theta = 1 of J.
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

    def clones(self, epsilon0: float, neg_log_tail: float, upper: bool) -> clones.MixtureLaw:
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

    def messages(self, epsilon0: float, neg_log_tail: float, buckets: int = RUNS) -> clones.BinaryMessages:
        assert self.others is not None
        law = poisson_binomial.law(self.others.trials, neg_log_tail)
        return binary_messages(law, self.rate, epsilon0, RUNS)


def filled(values: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
    """Values padded to `size` entries, so that one size is compiled."""
    return np.pad(values, (0, size - values.size), constant_values=value)


def binary_messages(
    law: poisson_binomial.SumLaw, rate: float, epsilon0: float, buckets: int
) -> clones.BinaryMessages:
    """L1h, binary randomized response, all others at x': a mixture over the number of messages, for lower bounds.

    law: of the number of others that check in. rate: g in (0, 1]. The target is one of k messages with probability
    q_k = g Pr[S = k-1] / Pr[K = k], kappa = (1 - 1/p) q_k / k. In a run of k its mean serves (Jensen), rounded down.
    """
    runs = Runs(law, buckets)
    most = (1.0 - rate) * runs.next_upper + rate * runs.upper
    share = np.where(most > 0, rate * runs.lower / np.where(most > 0, most, 1.0), 0.0)
    kappa = -np.expm1(-epsilon0) * np.minimum(share, 1.0) / runs.last * (1.0 - 1e-14)
    weight = ((1.0 - rate) * runs.next_lower + rate * runs.lower) * (1.0 - 1e-14)
    kappa = np.where(kappa > 0, kappa, 1e-300)
    return clones.BinaryMessages(
        host(filled(runs.first, buckets, 1.0)),
        host(filled(weight, buckets)),
        host(filled(kappa, buckets, 1e-300)),
    )
