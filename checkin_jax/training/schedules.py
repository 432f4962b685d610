"""Rounds of training under a check-in protocol, one registered schedule per class of protocols.

A round is one update of the model. Under ShuffledCheckIn and Shuffle it is a unit of the protocol. If clients
choose slots, a unit is a whole window (for SlidingWindow a whole pass over the clients), and a round takes
the messages of `minibatch` consecutive slots (a field of the protocol), or of one slot under AveragedUpdates.
A_fix and A_sldw use one message per slot; A_avg averages all messages of a slot.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import how_to_install
from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
)
from checkin_jax.protocols.rounds import AvailabilityLog, AvailableCheckIn
from checkin_jax.rates import RateLimits, Rates
from checkin_jax.training import draws
from checkin_jax.training.draws import DUMMY, ENTROPY_BYTES, Fleet
from checkin_jax.training.registry import Registry

# Clients whose messages make round 0, 1, ...: see `Schedule.draw`.
Clients = Callable[[int], np.ndarray]
# Stand-ins for the audit: the fewest clients that can hide each other, half of whom check in.
FEW_CLIENTS, FEW_SLOTS, LEAST_RATE = 3, 2, 0.5
# Rounds of the log in the audit's stand-in.
_FEW_ROUNDS = 16


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

    @property
    def expected_messages(self) -> float:
        """Expected number of messages of a round, q N."""
        return math.prod(self.check_ins)

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
        return self.expected_messages

    @property
    def drawn_at_once(self) -> float:
        """Expected count of numbers in memory while a round is drawn; the default is one per message."""
        return self.expected_messages

    @property
    def description(self) -> str:
        """Describes the number of messages of a round, for the report."""
        return f"about {self.expected_messages:,.6g} messages a round"

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
    """Registers the decorated `Schedule` for classes of protocols.

    Args:
      *protocols: the classes; their subclasses are not meant.

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


@register_schedule(ShuffledCheckIn, Shuffle)
class Rounds(Schedule):
    """Rounds of all clients who check in; the sum is divided by the expected number."""

    protocol: ShuffledCheckIn | Shuffle

    @property
    def check_ins(self) -> tuple[int, float]:
        """Number of clients, and the protocol's rate or the mean of the rates."""
        number = self.protocol.num_clients
        return number, self.protocol.rate if self.fleet is None else self.fleet.expected / number

    def draw(self, entropy: int) -> Clients:
        """See `draws.participants`."""
        return functools.partial(draws.participants, entropy, self.protocol, fleet=self.fleet)

    @property
    def description(self) -> str:
        """Rates and expected number of messages."""
        unequal_rates = self.protocol.unequal_rates
        how = f"rate {self.protocol.rate:.6g}"
        if unequal_rates is not None:
            how = f"rates {unequal_rates.span}, each client its own"
        return f"checking in at {how}: about {self.expected_messages:,.0f} a round"


@register_schedule(AvailableCheckIn)
class AvailableRounds(Schedule):
    """Rounds t of those of the first n_t clients who check in; sums are divided by their mean number.

    So client 0 is available in every round, like the client of the guarantee, and the last one only in the
    largest rounds. With a divisor per round the few messages of a small round would have more weight than
    others.
    """

    protocol: AvailableCheckIn

    @property
    def _log(self) -> AvailabilityLog:
        rounds = self.protocol.num_rounds
        log = self.protocol.log
        return AvailabilityLog(log.available[:rounds], log.coin[:rounds] * self.protocol.arrival_prob)

    @property
    def check_ins(self) -> tuple[int, float]:
        """Largest number of available clients, and a client's mean rate over these clients and the log."""
        number = self.protocol.num_clients
        return number, float(np.mean(self._log.available * self._log.coin)) / number

    def draw(self, entropy: int) -> Clients:
        """See `draws.participants_of`: the available clients follow from their number, which is public."""
        log = self._log

        def clients(index: int) -> np.ndarray:
            number, coin = int(log.available[index]), float(log.coin[index])
            return draws.participants_of(entropy, number, coin, index)

        return clients

    @property
    def drawn_at_once(self) -> float:
        """Messages of the largest round."""
        return float(np.max(self._log.available * self._log.coin))

    @property
    def description(self) -> str:
        """Number of available clients, and expected numbers of messages."""
        least, most = int(self._log.available.min()), int(self._log.available.max())
        return f"{least:,} to {most:,} of them available: about {self.expected_messages:,.0f} a round"

    def exposure(self, client: int) -> np.ndarray:
        """Share of rounds in which this client is available, over their mean number of available clients."""
        there = self._log.available[self._log.available > client]
        return np.array([there.size / self._log.available.size / there.mean()])

    def fewer_clients(self) -> AvailableCheckIn:
        """A few clients, some of them unavailable at times, with rates of at least one half."""
        log = self.protocol.log
        some = np.unique(np.linspace(0, log.available.size - 1, _FEW_ROUNDS).astype(int))
        available = np.maximum(np.rint(FEW_CLIENTS * log.available[some] / log.available.max()), 1.0)
        coin = np.minimum(log.coin[some] * max(1.0, LEAST_RATE / log.coin.max()), 1.0)
        return AvailableCheckIn(
            log=AvailabilityLog(available, coin), num_rounds=1, drop_out_prob=self.protocol.drop_out_prob
        )


class _OneASlot(Schedule):
    """Windows with one message per slot; sums are divided by `minibatch`, even in a round of fewer slots.

    A window's last round may have fewer slots. With their number as the divisor its few messages, noise
    included, would have the weight of many.
    """

    @property
    def check_ins(self) -> tuple[int, float]:
        """One message per slot."""
        return self.protocol.minibatch, 1.0

    @property
    def rounds_per_unit(self) -> int:
        """Slots of a window over `minibatch`, rounded up."""
        return -(-self.protocol.slots_shown // self.protocol.minibatch)

    @property
    def has_windows(self) -> bool:
        """True if a window has more than one slot."""
        return self.protocol.slots_shown > 1

    @property
    def description(self) -> str:
        """Slots of a window and of a round."""
        slots, minibatch = self.protocol.slots_shown, self.protocol.minibatch
        return f"one client a slot, {slots:,} slots, {minibatch:,} of them a round"

    def slots(self, place: int) -> tuple[int, int]:
        """Slots [low, high) of round number `place` of a unit, counted from 0."""
        low = place * self.protocol.minibatch
        return low, min(low + self.protocol.minibatch, self.protocol.slots_shown)


@register_schedule(FixedWindow)
class FixedWindowRounds(_OneASlot):
    """A_fix: visible empty slots are left out of the round; hidden ones have a dummy."""

    protocol: FixedWindow

    def draw(self, entropy: int) -> Clients:
        """See `draws.fixed_window`; the last window is cached."""
        protocol = self.protocol
        drawn = functools.partial(draws.fixed_window, entropy, protocol, fleet=self.fleet)
        window = functools.lru_cache(maxsize=1)(drawn)

        def clients(index: int) -> np.ndarray:
            unit, place = divmod(index, self.rounds_per_unit)
            low, high = self.slots(place)
            used = window(unit)[low:high]
            return used if protocol.empty_slots == "dummy" else used[used != DUMMY]

        return clients

    @property
    def drawn_at_once(self) -> float:
        """Slots of a window, and with unequal rates its clients."""
        return self.protocol.num_slots + (0.0 if self.fleet is None else self.fleet.expected)

    @property
    def dummies(self) -> float:
        """Probability of an empty slot if empty slots are hidden, else 0."""
        protocol = self.protocol
        if protocol.empty_slots == "visible":
            return 0.0
        if self.fleet is not None:
            return self.fleet.all_absent(1.0 / protocol.num_slots)
        return math.pow(1.0 - protocol.rate / protocol.num_slots, protocol.num_clients)


@register_schedule(SlidingWindow)
class SlidingWindowRounds(_OneASlot):
    """A_sldw: rounds consist of the slots from the window-th to the n-th, with a dummy in the empty ones."""

    protocol: SlidingWindow

    def draw(self, entropy: int) -> Clients:
        """See `draws.sliding_window`; the last two blocks are cached, since a round may straddle them."""
        protocol = self.protocol
        block_of = functools.lru_cache(maxsize=2)(functools.partial(draws.sliding_window, entropy, protocol))
        length, skipped = draws.sliding_block(protocol), protocol.window - 1

        def clients(index: int) -> np.ndarray:
            unit, place = divmod(index, self.rounds_per_unit)
            low, high = (slot + skipped for slot in self.slots(place))
            parts = []
            for block in range(low // length, (high - 1) // length + 1):
                first = max(block * length, skipped)
                parts.append(block_of(unit, block)[max(0, low - first) : high - first])
            return np.concatenate(parts)

        return clients

    @property
    def drawn_at_once(self) -> float:
        """Slots of a block."""
        return draws.sliding_block(self.protocol)

    @property
    def dummies(self) -> float:
        """Probability of an empty slot."""
        return math.pow(1.0 - 1.0 / self.protocol.window, self.protocol.window)

    def exposure(self, client: int) -> np.ndarray:
        """Share of each round's slots that lie in the client's window, times Pr[slot not empty] / window."""
        protocol = self.protocol
        slots = np.arange(protocol.slots_shown) + protocol.window - 1
        inside = (slots >= client) & (slots < client + protocol.window)
        starts = np.arange(self.rounds_per_unit) * protocol.minibatch
        shares = np.add.reduceat(inside, starts) / np.diff(np.append(starts, protocol.slots_shown))
        return shares * (1.0 - self.dummies) / protocol.window

    def fewer_clients(self) -> SlidingWindow:
        """A few clients, one more than for other protocols, and short windows."""
        protocol = self.protocol
        fewer = SlidingWindow(
            num_clients=min(self._few + 1, protocol.num_clients), window=min(FEW_SLOTS, protocol.window)
        )
        return dataclasses.replace(fewer, minibatch=min(protocol.minibatch, fewer.slots_shown))


@register_schedule(AveragedUpdates)
class AveragedUpdatesRounds(Schedule):
    """A_avg: all clients of one slot are a round; the sum is divided by their number, public here."""

    protocol: AveragedUpdates

    @property
    def check_ins(self) -> tuple[int, float]:
        """Clients who choose one given slot."""
        number = self.protocol.num_clients
        rate = self.protocol.rate if self.fleet is None else self.fleet.expected / number
        return number, rate / self.protocol.num_slots

    @property
    def rounds_per_unit(self) -> int:
        """One round per slot."""
        return self.protocol.num_slots

    @property
    def drawn_at_once(self) -> float:
        """Clients and slots of a window."""
        return (self.expected_messages + 1.0) * self.protocol.num_slots

    def divisor(self, messages: int) -> float:
        """Realised number of messages."""
        return float(messages)

    @property
    def description(self) -> str:
        """Slots and expected number of messages."""
        about = f"about {self.expected_messages:,.6g} clients a round"
        return f"all of a slot averaged, {self.protocol.num_slots:,} slots: {about}"

    def draw(self, entropy: int) -> Clients:
        """See `draws.averaged_updates`; the last window is cached."""
        drawn = functools.partial(draws.averaged_updates, entropy, self.protocol, fleet=self.fleet)
        window = functools.lru_cache(maxsize=1)(drawn)

        def clients(index: int) -> np.ndarray:
            unit, slot = divmod(index, self.rounds_per_unit)
            everybody, ends = window(unit)
            return everybody[ends[slot - 1] if slot else 0 : ends[slot]]

        return clients


def batch_selection(protocol: CheckInProtocol) -> Any:
    """Rounds of a protocol as a jax_privacy `BatchSelectionStrategy`, with the same law as in the trainer.

    Formal guarantees of its `batch_iterator`: batch r holds, in random order, the distinct clients of round r
    of the protocol, as described by `Schedule.draw`. Batches have no dummies and may be empty. Records are
    clients: num_examples has to be the protocol's num_clients.

    A schedule does not determine the noise. With jax_privacy's noise, which a server adds to each sum, rounds
    of ShuffledCheckIn are Poisson-sampled (`PoissonSampledDpEvent(rate, ...)`), and windows of
    AveragedUpdates with full participation are a `RandomAllocationDpEvent`. `account` is about messages with
    the clients' own noise.

    Args:
      protocol: one that can be trained; its fields are public.

    Raises:
      ImportError: jax_privacy is not installed. TypeError, ValueError: no schedule is known for the protocol.
    """
    schedule_of(protocol)
    return _kind()(protocol)


@functools.cache
def _kind() -> type:
    """The class, created on first use, since it needs jax_privacy."""
    try:
        from jax_privacy import batch_selection as theirs  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"jax_privacy is not installed: {how_to_install('jax-privacy')}") from error

    @dataclasses.dataclass(frozen=True)
    class CheckInSelection(theirs.BatchSelectionStrategy):
        """Rounds of a check-in protocol, see `batch_selection`.

        Attributes:
          protocol: public.
        """

        protocol: Any

        def batch_iterator(
            self, num_examples: int, rng: np.random.Generator | int | None = None
        ) -> Iterator[np.ndarray]:
            """Yields the clients of each round, 1D; sensitive.

            rng: secret; None draws from the operating system.

            Raises:
              ValueError: num_examples is not the protocol's number of clients.
            """
            if num_examples != self.protocol.num_clients:
                raise ValueError(
                    f"num_examples={num_examples!r}: expected {self.protocol.num_clients}, one a client"
                )
            secret = np.random.default_rng(rng).bytes(ENTROPY_BYTES)
            schedule = schedule_of(self.protocol)
            rounds = map(schedule.draw(int.from_bytes(secret, "big")), range(schedule.num_rounds))
            dtype = np.min_scalar_type(-num_examples)
            return (clients[clients != DUMMY].astype(dtype) for clients in rounds)

    return CheckInSelection
