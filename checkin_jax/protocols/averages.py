"""Averaged updates [RCI]: windows of slots, all clients of a slot averaged."""

from __future__ import annotations

import dataclasses

from checkin_jax._rounding import counted
from checkin_jax.protocols.facts import Cover, SlotChoices, UnequalCover, UnequalSlotChoices
from checkin_jax.protocols.protocol import OF_ROUNDS, ONE_RECORD, SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, Words
from checkin_jax.protocols.windows import CommonSlots

_OF_AVERAGES = {
    "local": OF_ROUNDS["local"],
    "messages": "somebody who sees every privatised message of every slot, shuffled within the slot, without names "
    "(an untrusted aggregator behind a trusted shuffler)",
    "aggregate": "somebody who sees only the average of the messages of each slot, and how many they are "
    "(a trusted server or secure aggregation)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragedUpdates(CommonSlots):
    """Averaged updates, A_avg [RCI]: each client picks one of m slots; all clients of a slot are averaged.

    Empty slots are skipped. Later slots may depend on earlier outputs. Since loads do not depend on the data, this is
    adaptive shuffling of all clients, so the guarantee does not depend on the number of slots.

    Attributes:
      num_clients: number of clients (n), from 1 to 1e12. A lower bound is safe.
      num_slots: number of slots (m), from 1 to 1e12.
      check_in_prob: p_0, in (0, 1], the probability that a client's message arrives, the same for all clients; or
        `Rates`, `RateLimits` if it differs. An upper bound is safe, except for averages of Gaussian messages (view
        "aggregate"), whose noise adds up.
      num_epochs: number of repetitions of the window, with new random slots; from 1 to 1e9.
      num_colluding: number of clients that collude with the adversary, from 0 to num_clients - 1; an upper bound is
        safe.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    title = "random check-ins with averaged updates (A_avg)"

    @property
    def cover(self) -> Cover | None:
        """Sample of all clients, each with the probability of taking part; loads do not matter."""
        return Cover(self.honest, self.rate) if self.unequal_rates is None else None

    @property
    def unequal_cover(self) -> UnequalCover | None:
        """Sample of all clients, each with its own probability of taking part."""
        return None if self.unequal_rates is None else UnequalCover(self.num_clients, self.unequal_rates, 1.0)

    @property
    def averaged_slot_choices(self) -> SlotChoices | None:
        """Independent uniform choices of slots of the window by all clients."""
        return self._slot_choices

    @property
    def unequal_averaged_slot_choices(self) -> UnequalSlotChoices | None:
        """Independent uniform choices of slots of the window by all clients."""
        return self._unequal_slot_choices

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""
        return (*self._chance, SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, *self.trusting)

    @property
    def _words(self) -> Words:
        return Words(_OF_AVERAGES, ONE_RECORD)

    @property
    def description(self) -> str:
        """The run in words."""
        return (
            f"over {counted(self.num_epochs, 'window')} of {self.num_slots:,} slots, "
            f"all clients of a slot averaged, {self._taking_part}"
        )
