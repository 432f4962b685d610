"""Rounds of training under a check-in protocol, by registration: one schedule a class of protocols.

A round is one update of the model. Under ShuffledCheckIn and Shuffle it is a unit of the protocol. Where clients pick
slots, a unit is a whole window (for SlidingWindow a whole pass over the clients), and a round takes the messages of
`minibatch` consecutive slots of it (a field of the protocol); under AveragedUpdates it takes one slot.
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
from checkin_jax.protocols import (
    AveragedUpdates,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
    highest,
)
from checkin_jax.rates import CheckInRates
from checkin_jax.training.schedules import draws
from checkin_jax.training.schedules.draws import DUMMY

# The clients whose messages make round 0, 1, ...: see `Schedule.draw`.
Clients = Callable[[int], np.ndarray]
# Stand-ins for the audit: as few clients as can hide each other, half of whom check in.
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
        """(N, q): the messages of a round number at most N, and follow Binomial(N, q) or are N of them for sure."""

    @abc.abstractmethod
    def draw(self, entropy: int) -> Clients:
        """Who takes part in a run: sensitive.

        Args:
          entropy: the run's. What is drawn depends on it, on the protocol and on the number of the round only.

        Returns:
          A function of a round's number 0, 1, ... that returns (k,) int64, the clients 0..n-1 whose messages make that
          round, in an order that tells nothing; -1 is a dummy's. Empty: no message, no step. Rounds can be drawn in any
          order, and are cheap in increasing order.
        """

    @property
    def rounds_per_unit(self) -> int:
        """Updates in one unit of the protocol; here 1."""
        return 1

    @property
    def has_windows(self) -> bool:
        """True if metrics number the units beside the rounds."""
        return self.rounds_per_unit > 1

    def divisor(self, messages: int) -> float:
        """The public number by which the sum of a round is divided.

        Here the expected number of messages, whatever the realised one, `messages`.
        """
        number, rate = self.check_ins
        return number * rate

    @property
    def drawn_at_once(self) -> float:
        """Numbers that are expected to be held at once when a round is drawn; here its messages."""
        number, rate = self.check_ins
        return number * rate

    @property
    def words(self) -> str:
        """Describes the number of messages of a round, for the report."""
        number, rate = self.check_ins
        return f"about {number * rate:,.6g} messages a round"

    @property
    def dummies(self) -> float:
        """The chance that a message is a dummy's; here 0."""
        return 0.0

    def exposure(self, client: int) -> np.ndarray:
        """(rounds of a unit,): the chance that a given message of a round is this client's, given their number.

        For the audit, which is sharpest with the true chances, and sound with any. Here equal for all clients.
        """
        return np.full(self.rounds_per_unit, (1.0 - self.dummies) / self.protocol.num_clients)

    def fewer_clients(self) -> Any:
        """A protocol of the same kind with one unit and few clients who check in often, in which leaks are large."""
        return dataclasses.replace(self.protocol.repeated(1), num_clients=self._few)

    @property
    def num_rounds(self) -> int:
        """Updates in the whole run."""
        return self.rounds_per_unit * self.protocol.repeats

    def units(self, rounds: int) -> int:
        """Units begun once so many rounds have begun: a window counts as a whole from its first slot on."""
        return -(-rounds // self.rounds_per_unit)

    def so_far(self, rounds: int) -> Any:
        """The protocol to account for once `rounds` >= 1 rounds have begun."""
        return self.protocol.repeated(self.units(rounds))

    def batch_iterator(self, num_examples: int, entropy: int) -> Iterator[np.ndarray]:
        """The rounds as arrays of clients, in the manner of jax_privacy's BatchSelectionStrategy.

        Yields:
          Client indices of one round after another, with -1 for a dummy; of varying length.

        Raises:
          ValueError: num_examples is not the protocol's number of clients.
        """
        if num_examples != self.protocol.num_clients:
            raise ValueError(
                f"num_examples={num_examples!r}: expected {self.protocol.num_clients}, one a client"
            )
        return map(self.draw(entropy), range(self.num_rounds))

    @property
    def _few(self) -> int:
        return min(FEW_CLIENTS, self.protocol.num_clients)


_Kind = TypeVar("_Kind", bound=type[Schedule])
_SCHEDULES: dict[type, type[Schedule]] = {}


def register_schedule(*protocols: type) -> Callable[[_Kind], _Kind]:
    """Registers the decorated `Schedule` as that of these classes of protocols, and of no subclass of them.

    Raises:
      TypeError: one of `protocols` is no class, or what is decorated no subclass of Schedule.
      ValueError: another schedule is registered for one of them.
    """

    def register(kind: _Kind) -> _Kind:
        for protocol in protocols:
            if not (isinstance(protocol, type) and isinstance(kind, type) and issubclass(kind, Schedule)):
                raise TypeError(
                    f"protocol={_validate.shown(protocol)}: expected a class of protocols, and a Schedule for it"
                )
            if _SCHEDULES.setdefault(protocol, kind) is not kind:
                known = _SCHEDULES[protocol].__name__
                raise ValueError(f"register_schedule({protocol.__name__}): {known} is registered already")
        return kind

    return register


def schedule_of(protocol: Any) -> Schedule:
    """The rounds of a protocol.

    Raises:
      TypeError: nothing is registered for its very class. ValueError: check-in rates that differ, or colluders.
    """
    if isinstance(coins := getattr(protocol, "check_in_prob", None), CheckInRates):
        raise ValueError(f"check_in_prob={_validate.shown(coins)}: expected a number in (0, 1] for training")
    if colluding := getattr(protocol, "num_colluding", 0):
        raise ValueError(
            f"num_colluding={colluding!r}: expected 0 for training; account for colluding clients apart"
        )
    kind = _SCHEDULES.get(type(protocol))
    if kind is None:
        raise TypeError(
            f"protocol={_validate.shown(protocol)}: no schedule is registered for {type(protocol).__name__}; expected "
            f"{', '.join(sorted(known.__name__ for known in _SCHEDULES))}, or register a subclass of Schedule with "
            f"@register_schedule({type(protocol).__name__})"
        )
    return kind(protocol=protocol)


@register_schedule(ShuffledCheckIn, Shuffle)
class Rounds(Schedule):
    """Everybody who checks in makes the round; the sum is divided by the expected number."""

    protocol: ShuffledCheckIn | Shuffle

    @property
    def check_ins(self) -> tuple[int, float]:
        """All clients, at the protocol's rate."""
        return self.protocol.num_clients, self.protocol.rate

    def draw(self, entropy: int) -> Clients:
        """See `draws.participants`."""
        return functools.partial(draws.participants, entropy, self.protocol)

    @property
    def words(self) -> str:
        """Rate and expected number."""
        number, rate = self.check_ins
        return f"checking in at rate {rate:.6g}: about {number * rate:,.0f} a round"

    def fewer_clients(self) -> ShuffledCheckIn | Shuffle:
        """Few clients of whom at least half check in."""
        fewer = super().fewer_clients()
        return _more_often(fewer) if type(fewer) is ShuffledCheckIn else fewer


class _OneASlot(Schedule):
    """Windows whose slots show one client's message each; sums are divided by `minibatch`, however few slots are left.

    A window's last round may have fewer slots: dividing by their number would give a few messages, noise and all, the
    weight of many.
    """

    @property
    def check_ins(self) -> tuple[int, float]:
        """One message a slot."""
        return self.protocol.minibatch, 1.0

    @property
    def rounds_per_unit(self) -> int:
        """By `minibatch` slots each, the last one of those that are left."""
        return -(-self.protocol.slots_shown // self.protocol.minibatch)

    @property
    def has_windows(self) -> bool:
        """Where a window has more than one slot."""
        return self.protocol.slots_shown > 1

    @property
    def words(self) -> str:
        """Slots of a window and of a round."""
        slots, minibatch = self.protocol.slots_shown, self.protocol.minibatch
        return f"one client a slot, {slots:,} slots, {minibatch:,} of them a round"

    def slots(self, place: int) -> tuple[int, int]:
        """The slots [low, high) of a unit that its round number `place` takes, counted from 0."""
        low = place * self.protocol.minibatch
        return low, min(low + self.protocol.minibatch, self.protocol.slots_shown)


@register_schedule(FixedWindow)
class FixedWindowRounds(_OneASlot):
    """A_fix: with visible empty slots they are left out of the round, else a dummy stands in them."""

    protocol: FixedWindow

    def draw(self, entropy: int) -> Clients:
        """See `draws.fixed_window`; the window last drawn is kept."""
        protocol = self.protocol
        window = functools.lru_cache(maxsize=1)(functools.partial(draws.fixed_window, entropy, protocol))

        def clients(index: int) -> np.ndarray:
            unit, place = divmod(index, self.rounds_per_unit)
            low, high = self.slots(place)
            used = window(unit)[low:high]
            return used if protocol.empty_slots == "dummy" else used[used != DUMMY]

        return clients

    @property
    def drawn_at_once(self) -> float:
        """The slots of a window."""
        return self.protocol.num_slots

    @property
    def dummies(self) -> float:
        """Empty slots, where they are hidden."""
        protocol = self.protocol
        if protocol.empty_slots == "visible":
            return 0.0
        return math.pow(1.0 - protocol.rate / protocol.num_slots, protocol.num_clients)

    def fewer_clients(self) -> FixedWindow:
        """Few clients and slots, at least half of the clients in a window."""
        slots = min(FEW_SLOTS, self.protocol.num_slots)
        fewer = dataclasses.replace(
            self.protocol.repeated(1), num_slots=slots, minibatch=min(self.protocol.minibatch, slots)
        )
        return _more_often(dataclasses.replace(fewer, num_clients=self._few))


@register_schedule(SlidingWindow)
class SlidingWindowRounds(_OneASlot):
    """A_sldw: rounds are made of the slots from the window-th to the n-th, a dummy in the empty ones."""

    protocol: SlidingWindow

    def draw(self, entropy: int) -> Clients:
        """See `draws.sliding_window`; the two blocks last drawn are kept, since a round may straddle them."""
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
        """The slots of a block."""
        return draws.sliding_block(self.protocol)

    @property
    def dummies(self) -> float:
        """Empty slots."""
        return math.pow(1.0 - 1.0 / self.protocol.window, self.protocol.window)

    def exposure(self, client: int) -> np.ndarray:
        """By the part of the client's window, over all slots of the pass, that falls into each round."""
        protocol = self.protocol
        slots = np.arange(protocol.slots_shown) + protocol.window - 1
        inside = (slots >= client) & (slots < client + protocol.window)
        starts = np.arange(self.rounds_per_unit) * protocol.minibatch
        shares = np.add.reduceat(inside, starts) / np.diff(np.append(starts, protocol.slots_shown))
        return shares * (1.0 - self.dummies) / protocol.window

    def fewer_clients(self) -> SlidingWindow:
        """Few clients, one more than elsewhere, and short windows."""
        protocol = self.protocol
        fewer = SlidingWindow(
            num_clients=min(self._few + 1, protocol.num_clients), window=min(FEW_SLOTS, protocol.window)
        )
        return dataclasses.replace(fewer, minibatch=min(protocol.minibatch, fewer.slots_shown))


@register_schedule(AveragedUpdates)
class AveragedUpdatesRounds(Schedule):
    """A_avg: all clients of one slot make the round; the sum is divided by their number, which is public here."""

    protocol: AveragedUpdates

    @property
    def check_ins(self) -> tuple[int, float]:
        """Those who pick one of the slots."""
        return self.protocol.num_clients, self.protocol.rate / self.protocol.num_slots

    @property
    def rounds_per_unit(self) -> int:
        """One a slot."""
        return self.protocol.num_slots

    @property
    def drawn_at_once(self) -> float:
        """Clients and slots of a window."""
        return self.protocol.num_clients * self.protocol.rate + self.protocol.num_slots

    def divisor(self, messages: int) -> float:
        """The realised number of messages."""
        return float(messages)

    @property
    def words(self) -> str:
        """Slots and expected number."""
        number, rate = self.check_ins
        slots = self.protocol.num_slots
        return f"all of a slot averaged, {slots:,} slots: about {number * rate:,.6g} clients a round"

    def draw(self, entropy: int) -> Clients:
        """See `draws.averaged_updates`; the window last drawn is kept."""
        window = functools.lru_cache(maxsize=1)(
            functools.partial(draws.averaged_updates, entropy, self.protocol)
        )

        def clients(index: int) -> np.ndarray:
            unit, slot = divmod(index, self.rounds_per_unit)
            everybody, ends = window(unit)
            return everybody[ends[slot - 1] if slot else 0 : ends[slot]]

        return clients

    def fewer_clients(self) -> AveragedUpdates:
        """Few clients and slots, at least half of the clients in a window."""
        slots = min(FEW_SLOTS, self.protocol.num_slots)
        fewer = dataclasses.replace(self.protocol.repeated(1), num_slots=slots, num_clients=self._few)
        return _more_often(fewer)


_Sparse = TypeVar("_Sparse", ShuffledCheckIn, FixedWindow, AveragedUpdates)


def _more_often(protocol: _Sparse) -> _Sparse:
    """At least half of the clients check in."""
    return dataclasses.replace(protocol, check_in_prob=max(LEAST_RATE, highest(protocol.check_in_prob)))
