"""Rounds of training under any check-in protocol: how many there are, who is in each, what its sum is divided by.

A round is one update of the model. Under ShuffledCheckIn and Shuffle it is a unit of the protocol. Where clients pick
slots, a unit is a whole window (for SlidingWindow a whole pass over the clients), and a round takes the messages of
`minibatch` consecutive slots of it (a field of the protocol); under AveragedUpdates it takes one slot.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
)
from checkin_jax.training.schedules import draws
from checkin_jax.training.schedules.draws import DUMMY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The public description of a run's rounds.

    Attributes:
      protocol: who checks in, and how often its unit is repeated; how many slots make one update of FixedWindow and
        SlidingWindow. The last round of a window takes the slots that are left.
    """

    protocol: CheckInProtocol

    @property
    def minibatch(self) -> int:
        """Slots whose messages make one update."""
        protocol = self.protocol
        return protocol.minibatch if isinstance(protocol, FixedWindow | SlidingWindow) else 1

    @property
    def slots_per_unit(self) -> int:
        """Slots whose messages are used in one unit of the protocol."""
        protocol = self.protocol
        if isinstance(protocol, ShuffledCheckIn | Shuffle):
            return 1
        if isinstance(protocol, AveragedUpdates):
            return protocol.num_slots
        return protocol.slots_shown

    @property
    def rounds_per_unit(self) -> int:
        """Updates in one unit of the protocol."""
        return -(-self.slots_per_unit // self.minibatch)

    @property
    def num_rounds(self) -> int:
        """Updates in the whole run."""
        return self.rounds_per_unit * self.protocol.repeats

    def units(self, rounds: int) -> int:
        """Units begun once so many rounds have begun: a window counts as a whole from its first slot on."""
        return -(-rounds // self.rounds_per_unit)

    def so_far(self, rounds: int) -> CheckInProtocol:
        """The protocol to account for once `rounds` >= 1 rounds have begun."""
        return self.protocol.repeated(self.units(rounds))

    @property
    def check_ins(self) -> tuple[int, float]:
        """(N, q): the messages of a round number at most N, and follow Binomial(N, q) or are N of them for sure."""
        protocol = self.protocol
        if isinstance(protocol, AveragedUpdates):
            return protocol.num_clients, protocol.check_in_prob / protocol.num_slots
        if isinstance(protocol, ShuffledCheckIn | Shuffle):
            return protocol.num_clients, protocol.rate
        return self.minibatch, 1.0

    @property
    def drawn_at_once(self) -> float:
        """Numbers that `Draw` is expected to hold at once: clients of a round, or clients and slots of a window."""
        protocol = self.protocol
        if isinstance(protocol, FixedWindow):
            return protocol.num_slots
        if isinstance(protocol, AveragedUpdates):
            return protocol.num_clients * protocol.check_in_prob + protocol.num_slots
        if isinstance(protocol, SlidingWindow):
            return draws.sliding_block(protocol)
        return protocol.num_clients * protocol.rate

    def divisor(self, messages: int) -> float:
        """What turns the sum of a round into an update; only what the protocol makes public is used.

        The expected number of check-ins (ShuffledCheckIn, Shuffle), `minibatch` (FixedWindow, SlidingWindow), or under
        AveragedUpdates, where loads are public, the realised number `messages`. A window's last round may have fewer
        slots than `minibatch`: dividing by their number would give a few messages, noise and all, the weight of many.
        """
        if isinstance(self.protocol, ShuffledCheckIn | Shuffle):
            return self.protocol.num_clients * self.protocol.rate
        if isinstance(self.protocol, AveragedUpdates):
            return float(messages)
        return float(self.minibatch)

    def slots(self, place: int) -> tuple[int, int]:
        """The slots [low, high) of a unit that its round number `place` takes, counted from 0."""
        low = place * self.minibatch
        return low, min(low + self.minibatch, self.slots_per_unit)

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
        draw = Draw(self, entropy)
        return (draw.clients(index) for index in range(self.num_rounds))


class Draw:
    """The realised participants of a run, round by round: sensitive.

    Args:
      plan: public description.
      entropy: the run's entropy. Rounds depend on it, on the plan and on their index only; they can be drawn in any
        order, which is cheap in increasing order: the window last drawn is kept.
    """

    def __init__(self, plan: Plan, entropy: int) -> None:
        self._plan = plan
        self._entropy = entropy
        # A round may straddle two blocks of a sliding window.
        kept = 2 if isinstance(plan.protocol, SlidingWindow) else 1
        self._unit = functools.lru_cache(maxsize=kept)(self._draw_unit)

    def clients(self, index: int) -> np.ndarray:
        """(k,) int64: the clients whose messages make round `index`; -1 is a dummy's. Empty: no message, no step.

        Of FixedWindow with visible empty slots and of AveragedUpdates the empty slots are left out.
        """
        plan, protocol = self._plan, self._plan.protocol
        if isinstance(protocol, ShuffledCheckIn | Shuffle):
            return draws.participants(self._entropy, protocol, index)
        unit, place = divmod(index, plan.rounds_per_unit)
        low, high = plan.slots(place)
        if isinstance(protocol, AveragedUpdates):
            clients, ends = self._unit(unit, 0)
            return clients[ends[low - 1] if low else 0 : ends[low]]
        if isinstance(protocol, FixedWindow):
            used = self._unit(unit, 0)[0][low:high]
            return used if protocol.empty_slots == "dummy" else used[used != DUMMY]
        length, skipped = draws.sliding_block(protocol), protocol.window - 1
        low, high = low + skipped, high + skipped
        parts = []
        for block in range(low // length, (high - 1) // length + 1):
            first = max(block * length, skipped)
            parts.append(self._unit(unit, block)[0][max(0, low - first) : high - first])
        return np.concatenate(parts)

    def _draw_unit(self, unit: int, block: int) -> tuple[np.ndarray, ...]:
        protocol = self._plan.protocol
        if isinstance(protocol, AveragedUpdates):
            return draws.averaged_updates(self._entropy, protocol, unit)
        if isinstance(protocol, FixedWindow):
            return (draws.fixed_window(self._entropy, protocol, unit),)
        if isinstance(protocol, SlidingWindow):
            return (draws.sliding_window(self._entropy, protocol, unit, block),)
        raise TypeError(f"protocol={protocol!r}: it has no windows")
