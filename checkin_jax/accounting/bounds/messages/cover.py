"""Where one message hides among others: behind a shuffler, in slots, or in the slots that are occupied.

Each says of which sums of independent steps [kernels.equal_steps] a unit of its protocol consists, what may be seen at
most, and how much of it the concrete instances show. One record is replaced. Call inside `devices.float64()`.
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
    """What instances show: numbers of draws and the probabilities that the client's is one, weights, [parts].

    rate: with which each draw sends a message.
    """

    number: np.ndarray
    used: np.ndarray
    weight: np.ndarray
    rate: float


class Hiding(Protocol):
    """What a bound needs to know of one unit of a protocol."""

    @property
    def used(self) -> float:
        """The largest probability that the client's message is seen at all."""
        ...

    @property
    def everybody(self) -> float:
        """At most the probability that nobody is left who could have been there instead of the client."""
        ...

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        """The sums of steps."""
        ...

    def draws(self, log_inverse_mass: float) -> Draws:
        """For instances, rounded to the safe side."""
        ...

    def messages(self, epsilon0: float, log_inverse_mass: float) -> binary_response.Messages:
        """For the instance of binary randomized response."""
        ...


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Shuffled check-in (T1; rate 1 is shuffling), or averaged updates (T3) at the probability of taking part.

    Args:
      num_clients: n, whole, in [1, 2^42]. rate: gamma, in (0, 1].
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
    """Draws that all send a message."""

    @abc.abstractmethod
    def draws(self, log_inverse_mass: float) -> Draws: ...

    def messages(self, epsilon0: float, log_inverse_mass: float) -> binary_response.Messages:
        number, used, weight, _ = self.draws(log_inverse_mass)
        return binary_response.slot_messages(host(number), host(used), host(weight), host(epsilon0))


@dataclasses.dataclass(frozen=True)
class Slots(_InSlots):
    """T2: the message is in one of `slots` slots, uniform, with probability `used`; one message a slot, dummies hidden.

    Args:
      slots: m, whole, in [1, 2^42]. used: rho, in (0, 1]. seen: the probability that the message is there after all
        when all others do their worst, at most rho.
    """

    slots: int
    used: float
    seen: float

    everybody = 0.0

    def __post_init__(self) -> None:
        _validate.integer(1, 2**42, slots=self.slots)
        _validate.real(0.0, 1.0, open_low=True, used=self.used)
        _validate.real(0.0, self.used, open_low=True, seen=self.seen)

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        m = float(self.slots)
        # Rounded down: the bound grows with rho.
        return equal_steps.StepCounts(host(m / self.used * (1.0 - 1e-15)), host(1.0), host([m]), host([1.0]))

    def draws(self, log_inverse_mass: float) -> Draws:
        return Draws(np.asarray([float(self.slots)]), np.asarray([self.seen]), np.ones(1), 1.0)


@dataclasses.dataclass(frozen=True)
class Occupied(_InSlots):
    """T2': each of n clients throws with probability `prob` into one of m common slots; one of a slot's is used.

    Args:
      num_clients: n, num_slots: m, whole, in [1, 2^42]. prob: p0, in (0, 1].
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
        # Everybody throws, and no two into the same slot: (1 - 1/m) ... (1 - (n-1)/m).
        return min(math.exp(n * math.log(self.prob) - 0.5 * n * (n - 1.0) / m) * (1.0 + 1e-9), 1.0)

    def _law(self, log_inverse_mass: float, upper: bool) -> tuple[np.ndarray, np.ndarray]:
        values, masses = occupancy.law(self.num_clients, self.num_slots, self.prob, log_inverse_mass, upper)
        # No slot occupied: nothing is seen.
        return np.maximum(values, 1.0), np.where(values > 0, masses, 0.0)

    def sums(self, log_inverse_mass: float) -> equal_steps.StepCounts:
        values, masses = self._law(log_inverse_mass, True)
        return equal_steps.StepCounts(host(self.num_clients), host(1.0), host(values), host(masses))

    def draws(self, log_inverse_mass: float) -> Draws:
        values, masses = self._law(log_inverse_mass, False)
        return Draws(values, values / self.num_clients, masses, 1.0)
