"""Schedules of the protocols: rounds that are units, and rounds of windows.

A_fix and A_sldw use one message per slot; A_avg averages all messages of a slot.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.protocols import AveragedUpdates, FixedWindow, Shuffle, ShuffledCheckIn, SlidingWindow
from checkin_jax.protocols.availability import AvailabilityLog, AvailableCheckIn
from checkin_jax.training.schedules import draws
from checkin_jax.training.schedules.draws import DUMMY
from checkin_jax.training.schedules.schedule import (
    FEW_CLIENTS,
    FEW_SLOTS,
    LEAST_RATE,
    Clients,
    Schedule,
    register_schedule,
)

# Rounds of the log in the audit's stand-in.
_FEW_ROUNDS = 16


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
        number, rate = self.check_ins
        unequal_rates = self.protocol.unequal_rates
        how = f"rate {rate:.6g}"
        if unequal_rates is not None:
            how = f"rates {unequal_rates.span}, each client its own"
        return f"checking in at {how}: about {number * rate:,.0f} a round"


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
        log = self._log
        number, rate = self.check_ins
        return (
            f"{int(log.available.min()):,} to {int(log.available.max()):,} of them available: about "
            f"{number * rate:,.0f} a round"
        )

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
        number, rate = self.check_ins
        return (number * rate + 1.0) * self.protocol.num_slots

    def divisor(self, messages: int) -> float:
        """Realised number of messages."""
        return float(messages)

    @property
    def description(self) -> str:
        """Slots and expected number of messages."""
        number, rate = self.check_ins
        slots = self.protocol.num_slots
        return f"all of a slot averaged, {slots:,} slots: about {number * rate:,.6g} clients a round"

    def draw(self, entropy: int) -> Clients:
        """See `draws.averaged_updates`; the last window is cached."""
        drawn = functools.partial(draws.averaged_updates, entropy, self.protocol, fleet=self.fleet)
        window = functools.lru_cache(maxsize=1)(drawn)

        def clients(index: int) -> np.ndarray:
            unit, slot = divmod(index, self.rounds_per_unit)
            everybody, ends = window(unit)
            return everybody[ends[slot - 1] if slot else 0 : ends[slot]]

        return clients
