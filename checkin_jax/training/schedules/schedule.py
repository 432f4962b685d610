"""Rounds of training under a check-in protocol, one registered schedule per class of protocols.

A round is one update of the model. Under ShuffledCheckIn and Shuffle it is a unit of the protocol. If clients
choose slots, a unit is a whole window (for SlidingWindow a whole pass over the clients), and a round takes
the messages of `minibatch` consecutive slots (a field of the protocol), or of one slot under AveragedUpdates.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from checkin_jax import _validate
from checkin_jax.rates import RateLimits, Rates
from checkin_jax.training.registry import Registry
from checkin_jax.training.schedules.draws import Fleet

# Clients whose messages make round 0, 1, ...: see `Schedule.draw`.
Clients = Callable[[int], np.ndarray]
# Stand-ins for the audit: the fewest clients that can hide each other, half of whom check in.
FEW_CLIENTS, FEW_SLOTS, LEAST_RATE = 3, 2, 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(abc.ABC):
    """The rounds of one kind of protocol; subclass and register with `register_schedule`.

    Attributes:
      protocol: the public description: who checks in, and how often its unit is repeated.
    """

    protocol: Any

    @property
    @abc.abstractmethod
    def check_ins(self) -> tuple[int, float]:
        """(N, q): a round has at most N messages, and q N on average.

        Their number is Binomial(N, q), has a smaller variance if check-in rates differ, and is N if q is 1.
        If rounds differ, N is that of the largest, and q N the average over the rounds.
        """

    @abc.abstractmethod
    def draw(self, entropy: int) -> Clients:
        """Draws the participants of a run, which are sensitive.

        Args:
          entropy: the run's. The draw depends on it, on the protocol and on the number of the round only.

        Returns:
          Function from a round's number 0, 1, ... to (k,) int64, the clients 0..n-1 of that round's messages,
          in an order independent of them; -1 is a dummy's. Empty: no message, no step. Rounds can be drawn in
          any order, and are cheap in increasing order.
        """

    @functools.cached_property
    def fleet(self) -> Fleet | None:
        """The clients with their rates; None if all rates are equal."""
        unequal_rates = self.protocol.unequal_rates
        if not isinstance(unequal_rates, Rates):
            return None
        return Fleet(unequal_rates.thinned(self.protocol.arrival_prob))

    @property
    def rounds_per_unit(self) -> int:
        """Updates in one unit of the protocol; the default is 1."""
        return 1

    @property
    def has_windows(self) -> bool:
        """True if metrics number the units beside the rounds."""
        return self.rounds_per_unit > 1

    def divisor(self, messages: int) -> float:
        """Public number by which the sum of a round is divided.

        The default is the expected number of messages, independent of the realised number `messages`.
        """
        number, rate = self.check_ins
        return number * rate

    @property
    def drawn_at_once(self) -> float:
        """Expected count of numbers in memory while a round is drawn; the default is one per message."""
        number, rate = self.check_ins
        return number * rate

    @property
    def description(self) -> str:
        """Describes the number of messages of a round, for the report."""
        number, rate = self.check_ins
        return f"about {number * rate:,.6g} messages a round"

    @property
    def dummies(self) -> float:
        """Probability that a message is a dummy's; the default is 0."""
        return 0.0

    def exposure(self, client: int) -> np.ndarray:
        """Probability that a given message of a round is this client's, given their number; [rounds of a
        unit].

        For the audit, whose attacks are sharpest with the true probabilities and sound with any. Its test of
        placement compares the schedule with the ratios between the rounds of a unit, which must be true. The
        default is proportional to rates and equal in all rounds.
        """
        fleet = self.fleet
        share = 1.0 / self.protocol.num_clients if fleet is None else fleet.rate_of(client) / fleet.expected
        return np.full(self.rounds_per_unit, (1.0 - self.dummies) * share)

    def fewer_clients(self) -> Any:
        """A protocol of this kind with one unit and a few clients and slots, so leaks are large.

        At least half of the clients check in. Unequal rates are represented, in proportion, by the slowest, the median
        and the fastest client.
        """
        protocol = self.protocol.repeated(1)
        fields = {field.name for field in dataclasses.fields(protocol)}
        fewer: dict[str, Any] = {"num_clients": self._few}
        for name in fields & {"num_slots", "minibatch"}:
            fewer[name] = min(FEW_SLOTS, getattr(protocol, name))
        if "check_in_prob" in fields:
            rates = protocol.check_in_prob
            if isinstance(rates, Rates):
                few = np.asarray(rates.quantiles(self._few))
                fewer["check_in_prob"] = Rates(few * max(1.0, LEAST_RATE / few.max()))
            else:
                fewer["check_in_prob"] = max(LEAST_RATE, rates)
        return dataclasses.replace(protocol, **fewer)

    @property
    def num_rounds(self) -> int:
        """Updates in the whole run."""
        return self.rounds_per_unit * self.protocol.num_units

    def units(self, rounds: int) -> int:
        """Number of units begun after `rounds` rounds; a window counts whole from its first slot on."""
        return -(-rounds // self.rounds_per_unit)

    def so_far(self, rounds: int) -> Any:
        """Protocol to account for once `rounds` >= 1 rounds have begun."""
        return self.protocol.repeated(self.units(rounds))

    @property
    def _few(self) -> int:
        return min(FEW_CLIENTS, self.protocol.num_clients)


_Kind = TypeVar("_Kind", bound=type[Schedule])
_SCHEDULES = Registry(Schedule, "protocol")


def register_schedule(*protocols: type) -> Callable[[_Kind], _Kind]:
    """Registers the decorated `Schedule` for these classes of protocols, without subclasses.

    Raises:
      TypeError: one of `protocols` is not a class, or the decorated object is not a subclass of Schedule.
      ValueError: another schedule is registered for one of them.
    """
    return lambda kind: _SCHEDULES.add(kind, *protocols)


def schedule_of(protocol: Any) -> Schedule:
    """Schedule of a protocol.

    Raises:
      TypeError: no schedule is registered for its class. ValueError: limits instead of check-in rates,
        colluders, or a floor of batches.
    """
    if isinstance(rates := getattr(protocol, "check_in_prob", None), RateLimits):
        raise ValueError(
            f"check_in_prob={_validate.shown(rates)}: expected a number in (0, 1] or Rates for training: limits do not "
            "say how often each client comes"
        )
    if colluding := getattr(protocol, "num_colluding", 0):
        raise _validate.error("0 for training; account for colluding clients apart", num_colluding=colluding)
    if floor := getattr(protocol, "min_reports", 0):
        raise _validate.error("0 for training; account for batches of a fleet apart", min_reports=floor)
    return _SCHEDULES.of(protocol)(protocol=protocol)
