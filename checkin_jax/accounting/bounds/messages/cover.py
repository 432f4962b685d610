"""Covers: the sums of independent, equal steps that hide one message, behind a shuffler or in slots.

A cover gives the step counts of one unit for upper bounds (`kernels.messages.equal_steps`), and the numbers of draws
for instances. One record is replaced. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import NamedTuple, Protocol

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.clones_bounds import KNOWN_BUCKETS
from checkin_jax.kernels import binary_response, host
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.numerics.counts import occupancy

# Buckets of the number of messages in the binary instance.
_BUCKETS = 256


class Draws(NamedTuple):
    """Draws of an instance, [parts]: their number, the probability that the target's is one of them, the part's weight.

    rate: probability that a draw sends a message.
    """

    number: np.ndarray
    used: np.ndarray
    weight: np.ndarray
    rate: float


class StepCover(Protocol):
    """The cover of one unit of a protocol."""

    @property
    def used(self) -> float:
        """Largest probability that the target's message is observed."""
        ...

    @property
    def everybody(self) -> float:
        """Upper bound on the probability that the messages of all clients are observed, so that no client is absent."""
        ...

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        """Sums of steps, rounded for upper bounds."""
        ...

    def draws(self, log_inverse_mass: float) -> Draws:
        """Draws of instances, rounded for lower bounds."""
        ...

    def messages(self, epsilon0: float, log_inverse_mass: float) -> binary_response.Messages:
        """Messages of the instance of binary randomized response."""
        ...


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Shuffled check-in (T1; rate 1 is shuffling), or averaged updates (T3).

    Args:
      num_clients: n, whole, in [1, 2^42]. rate: gamma, the probability of taking part, in (0, 1].
    """

    num_clients: int
    rate: float

    used = 1.0

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, num_clients=self.num_clients)
        _validate.real(0.0, 1.0, open_low=True, rate=self.rate)

    @property
    def everybody(self) -> float:
        return min(math.exp(self.num_clients * math.log(self.rate)) * (1.0 + 1e-9), 1.0)

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        n = float(self.num_clients)
        return equal_steps.StepCounts(host(n), host(self.rate), host([n]), host([1.0]))

    def draws(self, log_inverse_mass: float) -> Draws:
        return Draws(np.asarray([float(self.num_clients)]), np.ones(1), np.ones(1), self.rate)

    def messages(self, epsilon0: float, log_inverse_mass: float) -> binary_response.Messages:
        buckets = KNOWN_BUCKETS if self.rate == 1.0 else _BUCKETS
        numbers = (host(v) for v in (self.num_clients, self.rate, epsilon0, log_inverse_mass))
        return binary_response.check_in_messages(*numbers, buckets)


class _InSlots(abc.ABC):
    """Base of covers all of whose draws send a message."""

    @abc.abstractmethod
    def draws(self, log_inverse_mass: float) -> Draws: ...

    def messages(self, epsilon0: float, log_inverse_mass: float) -> binary_response.Messages:
        number, used, weight, _ = self.draws(log_inverse_mass)
        return binary_response.slot_messages(host(number), host(used), host(weight), host(epsilon0))


@dataclasses.dataclass(frozen=True)
class Slots(_InSlots):
    """T2: the message is in a uniform one of `slots` slots with probability `used`; dummies hidden.

    Args:
      slots: m, whole, in [1, 2^42]. used: rho, in (0, 1].
      used_lower: lower bound on the probability that the message is used, whatever the others do; in (0, rho].
    """

    slots: int
    used: float
    used_lower: float

    everybody = 0.0

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, slots=self.slots)
        _validate.real(0.0, 1.0, open_low=True, used=self.used)
        _validate.real(0.0, self.used, open_low=True, used_lower=self.used_lower)

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        m = float(self.slots)
        # Rounded down: the bound grows with rho.
        return equal_steps.StepCounts(host(m / self.used * (1.0 - 1e-15)), host(1.0), host([m]), host([1.0]))

    def draws(self, log_inverse_mass: float) -> Draws:
        return Draws(np.asarray([float(self.slots)]), np.asarray([self.used_lower]), np.ones(1), 1.0)


@dataclasses.dataclass(frozen=True)
class Occupied(_InSlots):
    """T2': n clients each choose one of m common slots with probability `prob`; each slot uses one of its clients.

    Args:
      num_clients: n, num_slots: m, whole, in [1, 2^42]. prob: p_0, in (0, 1].
    """

    num_clients: int
    num_slots: int
    prob: float

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, num_clients=self.num_clients)
        _validate.integer(1, 2**42, num_slots=self.num_slots)
        _validate.real(0.0, 1.0, open_low=True, prob=self.prob)

    @property
    def used(self) -> float:
        return min(self.num_slots, self.num_clients) / self.num_clients

    @property
    def everybody(self) -> float:
        n, m = self.num_clients, self.num_slots
        if m < n:
            return 0.0
        # All clients take part, no two in the same slot: p_0^n (1 - 1/m) ... (1 - (n-1)/m).
        return min(math.exp(n * math.log(self.prob) - 0.5 * n * (n - 1.0) / m) * (1.0 + 1e-9), 1.0)

    def _law(self, log_inverse_mass: float, upper: bool) -> tuple[np.ndarray, np.ndarray]:
        values, masses = occupancy.law(self.num_clients, self.num_slots, self.prob, log_inverse_mass, upper)
        # No message is observed if no slot is occupied.
        return np.maximum(values, 1.0), np.where(values > 0, masses, 0.0)

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        values, masses = self._law(log_inverse_mass, True)
        return equal_steps.StepCounts(host(self.num_clients), host(1.0), host(values), host(masses))

    def draws(self, log_inverse_mass: float) -> Draws:
        values, masses = self._law(log_inverse_mass, False)
        return Draws(values, values / self.num_clients, masses, 1.0)
