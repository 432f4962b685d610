"""Covers: the sums of independent, equal steps that hide one message, behind a shuffler or in slots.

A cover gives the step counts of one unit for upper bounds (`kernels.messages.equal_steps`), the law of its clones, and
the numbers of draws for witnesses. Of every cover, `use_prob` is the largest probability that the target's message is
observed, `everybody` an upper bound on the probability that the messages of all clients are observed, `number` the
approximate number of messages, `known` True if that is fixed, and `drift` the contribution of absent clients to the
clones' spread. One record is replaced. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import EqualDraws
from checkin_jax.accounting.bounds.unequal.pool_cover import LISTED, ClientPool
from checkin_jax.kernels import binomial, clones, host
from checkin_jax.kernels.messages import equal_steps, one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import few_steps, staged_clones
from checkin_jax.numerics.counts import chernoff, occupancy
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import GameArguments, Steps
from checkin_jax.randomizers import LabelLaws

# Buckets of the number of messages in the binary witness, if it is random and if it is fixed.
BUCKETS, _KNOWN_BUCKETS = 256, 16
_occupied = functools.lru_cache(maxsize=16)(occupancy.law)


class Draws(NamedTuple):
    """Draws of a witness, [parts]: their number, the probability that the target's is one of them, the part's weight.

    rate: probability that a draw sends a message.
    """

    number: np.ndarray
    use_prob: np.ndarray
    weight: np.ndarray
    rate: float


def largest_loss(epsilon0: float, used: float) -> float:
    """log(1 - rho + rho e^epsilon0), rounded up: the loss when every slot shows the label that x favours."""
    return epsilon0 if used == 1.0 else math.log1p(used * math.expm1(epsilon0)) * (1.0 + 1e-15)


class _OneRate(abc.ABC):
    """Base of covers by clients of one rate."""

    # Most buckets of the number of labels of the clones.
    finest = 256

    @property
    @abc.abstractmethod
    def everybody(self) -> float: ...

    @abc.abstractmethod
    def sums(self, neg_log_tail: float) -> equal_steps.StepCounts:
        """Sums of steps, rounded for upper bounds."""

    def of_step(
        self, law: equal_steps.StepLaw, epsilon0: float, losses: np.ndarray, neg_log_tail: float
    ) -> np.ndarray:
        """Upper bounds on the divergence, at losses below epsilon0, of messages with this dominating step."""
        sums = self.sums(neg_log_tail)
        return np.asarray(equal_steps.profile_upper(law, sums, host(epsilon0), host(losses)))

    def chi_square(self, epsilon0: float, variance: float, neg_log_tail: float) -> float:
        """Upper bound on E_Q (P/Q - 1)^2 of one round, in both directions [docs/evaluation.md].

        variance: the largest variance of a step at c = 1, in units of e^epsilon0 - 1.
        """
        sums, p = self.sums(neg_log_tail), math.exp(epsilon0)
        clients, rate = float(sums.clients), float(sums.rate)
        numbers, masses = np.asarray(sums.counts), np.asarray(sums.masses)
        if rate < 1.0:
            # More messages than this are rare; the messages of all clients are counted apart.
            most = min(float(chernoff.most(clients, rate, np.array(neg_log_tail))), clients - 1.0)
            numbers, masses = np.array([most]), np.array([clients * rate / max(most, 1.0)])
            if most <= LISTED:
                numbers = np.arange(most + 1.0)
                masses = np.exp(np.asarray(binomial.log_pmf(numbers, clients, rate)))
            if most < clients - 1.0:
                numbers, masses = np.append(numbers, clients), np.append(masses, math.exp(-neg_log_tail))
        # k / (1 - (k/n)(1 - 1/p)), where nothing cancels; n may be rounded to less than k.
        each = numbers * clients / (np.maximum(clients - numbers, 0.0) + numbers / p)
        found = variance * (p - 1.0) ** 2 / clients**2 * float(masses @ each)
        return (found + self.everybody * (p - 1.0) ** 2 / p) * (1.0 + 1e-9)

    def many(self, neg_log_tail: float) -> bool:
        """True if there are enough messages for a staged game."""
        return staged_clones.stages(self.sums(neg_log_tail), self.everybody, neg_log_tail) is not None

    def game(self, steps: Steps, neg_log_tail: float) -> GameArguments | FewSteps | None:
        """The game of these steps; None if there is no such bound."""
        known = self.sums(neg_log_tail), steps, self.everybody, neg_log_tail
        few = few_steps.problem(*known)
        return few_steps.played_or_staged(few, lambda: staged_clones.problem(*known))


@dataclasses.dataclass(frozen=True)
class Shuffled(_OneRate):
    """Shuffled check-in (T1; rate 1 is shuffling), or averaged updates (T3).

    Args:
      num_clients: n, whole, in [1, 2^42]. rate: gamma, the probability of taking part, in (0, 1].
    """

    num_clients: int
    rate: float

    use_prob = 1.0

    @property
    def number(self) -> float:
        return self.num_clients * self.rate

    @property
    def drift(self) -> float:
        # Proportional to gamma (1 - gamma) / n.
        return self.rate * (1.0 - self.rate) / self.num_clients

    @property
    def known(self) -> bool:
        return self.rate == 1.0

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, num_clients=self.num_clients)
        _validate.real(0.0, 1.0, "(]", rate=self.rate)

    @property
    def everybody(self) -> float:
        return min(math.exp(self.num_clients * math.log(self.rate)) * (1.0 + 1e-9), 1.0)

    def sums(self, neg_log_tail: float) -> equal_steps.StepCounts:
        n = float(self.num_clients)
        return equal_steps.StepCounts(host(n), host(self.rate), host([n]), host([1.0]))

    def draws(self, neg_log_tail: float) -> Draws:
        """Draws of witnesses, rounded for lower bounds."""
        return Draws(np.asarray([float(self.num_clients)]), np.ones(1), np.ones(1), self.rate)

    def of_bits(
        self, message: Message, losses: np.ndarray, ceilings: np.ndarray, neg_log_tail: float
    ) -> np.ndarray:
        """B0 at these losses; above the ceilings the values need not be sharp."""
        sums = self.sums(neg_log_tail)
        arguments = sums.clients, sums.rate, message, host(losses), host(ceilings), host(self.everybody)
        return np.asarray(one_bit_profile.profile_upper(*arguments))

    def messages(self, epsilon0: float, neg_log_tail: float, buckets: int = BUCKETS) -> clones.BinaryMessages:
        """Messages of the witness of binary randomized response; buckets: of their number, if it is random."""
        numbers = (host(v) for v in (self.num_clients, self.rate, epsilon0, neg_log_tail))
        return clones.check_in_messages(*numbers, _KNOWN_BUCKETS if self.known else buckets)

    def clones(self, epsilon0: float, neg_log_tail: float, upper: bool) -> clones.MixtureLaw:
        """Law of the clones of any eps0-LDP message, or of 3-ary randomized response from below."""
        law = clones.upper_law if upper else clones.lower_law
        return law(host(self.num_clients), host(self.rate), host(epsilon0))


@dataclasses.dataclass(frozen=True)
class NotAll(Shuffled):
    """`Shuffled` in the event that not all clients take part; the rest is counted apart."""

    @property
    def everybody(self) -> float:
        return 0.0


class _InSlots(_OneRate):
    """Base of covers all of whose draws send a message."""

    drift = 0.0

    @abc.abstractmethod
    def _shown(self, neg_log_tail: float, upper: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Messages, the probability that the target's is one of them, and weight, [parts], rounded to one side."""

    def draws(self, neg_log_tail: float) -> Draws:
        return Draws(*self._shown(neg_log_tail, False), 1.0)

    def messages(self, epsilon0: float, neg_log_tail: float, buckets: int = BUCKETS) -> clones.BinaryMessages:
        del buckets
        return clones.slot_messages(*map(host, self._shown(neg_log_tail, False)), host(epsilon0))

    def clones(self, epsilon0: float, neg_log_tail: float, upper: bool) -> clones.MixtureLaw:
        return clones.slots_law(*map(host, self._shown(neg_log_tail, upper)), host(epsilon0), upper)


@dataclasses.dataclass(frozen=True)
class UniformSlot(_InSlots):
    """T2: the message is in a uniform one of `slots` slots with probability `use_prob`; dummies hidden.

    Args:
      slots: m, whole, in [1, 2^42]. use_prob: rho, in (0, 1].
      use_prob_lower: lower bound on the probability that the message is used, whatever the others do; in (0, rho].
    """

    slots: int
    use_prob: float
    use_prob_lower: float

    known = True

    @property
    def everybody(self) -> float:
        return 0.0

    @property
    def number(self) -> float:
        return float(self.slots)

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, slots=self.slots)
        _validate.real(0.0, 1.0, "(]", use_prob=self.use_prob)
        _validate.real(0.0, self.use_prob, "(]", use_prob_lower=self.use_prob_lower)

    def sums(self, neg_log_tail: float) -> equal_steps.StepCounts:
        m = float(self.slots)
        # Rounded down: the bound grows with rho.
        return equal_steps.StepCounts(
            host(m / self.use_prob * (1.0 - 1e-15)), host(1.0), host([m]), host([1.0])
        )

    def _shown(self, neg_log_tail: float, upper: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        used = self.use_prob if upper else self.use_prob_lower
        return np.asarray([float(self.slots)]), np.asarray([used]), np.ones(1)


@dataclasses.dataclass(frozen=True)
class Occupied(_InSlots):
    """T2': n clients each choose one of m common slots with probability `prob`; each slot uses one of its clients.

    Args:
      num_clients: n, num_slots: m, whole, in [1, 2^42]. prob: p_0, in (0, 1].
    """

    num_clients: int
    num_slots: int
    prob: float

    known = False

    @property
    def number(self) -> float:
        return float(min(self.num_clients, self.num_slots))

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, num_clients=self.num_clients)
        _validate.integer(1, 2**42, num_slots=self.num_slots)
        _validate.real(0.0, 1.0, "(]", prob=self.prob)

    @property
    def use_prob(self) -> float:
        return min(self.num_slots, self.num_clients) / self.num_clients

    @property
    def everybody(self) -> float:
        n, m = self.num_clients, self.num_slots
        if m < n:
            return 0.0
        # All clients take part, no two in the same slot: p_0^n (1 - 1/m) ... (1 - (n-1)/m).
        return min(math.exp(n * math.log(self.prob) - 0.5 * n * (n - 1.0) / m) * (1.0 + 1e-9), 1.0)

    def _shown(self, neg_log_tail: float, upper: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values, masses = _occupied(self.num_clients, self.num_slots, self.prob, neg_log_tail, upper)
        # No message is observed if no slot is occupied.
        number = np.maximum(values, 1.0)
        return number, number / self.num_clients, np.where(values > 0, masses, 0.0)

    def sums(self, neg_log_tail: float) -> equal_steps.StepCounts:
        values, _, masses = self._shown(neg_log_tail, True)
        return equal_steps.StepCounts(host(self.num_clients), host(1.0), host(values), host(masses))


StepCover = Shuffled | UniformSlot | Occupied | ClientPool


def equal_draws(cover: StepCover, laws: LabelLaws, neg_log_tail: float) -> EqualDraws | None:
    """Draws of a witness, with labels of these laws; None unless their number is fixed and their rate is one."""
    draws = cover.draws(neg_log_tail)
    if draws is None or draws.weight.size > 1 or draws.weight[0] < 1.0:
        return None
    return EqualDraws(int(draws.number[0]), draws.rate, float(draws.use_prob[0]), laws)
