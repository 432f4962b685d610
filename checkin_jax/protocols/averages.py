"""Averaged updates [RCI]: windows of slots, all clients of a slot averaged."""

from __future__ import annotations

import dataclasses

from checkin_jax._rounding import counted
from checkin_jax.protocols.facts import Cover, Crowd, CrowdThrows, Throws
from checkin_jax.protocols.protocol import (
    OF_ROUNDS,
    ONE_RECORD,
    SAME_RANDOMIZER,
    UNSEEN_BUT_COUNTED,
    Words,
)
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

    Empty slots are skipped. Later slots may depend on earlier outputs. The guarantee does not depend on the number of
    slots: with loads that do not depend on the data this is adaptive shuffling of all clients.

    Attributes:
      num_clients: how many clients there are (n), from 1 to 1e12. A lower bound on the true number is safe.
      num_slots: number of slots (m), from 1 to 1e12.
      check_in_prob: p_0, in (0, 1], one for all clients; or `Rates`, `RateLimits` where they differ; drop-out
        independent of the data included. For averages of Gaussian messages (view "aggregate"), whose noise adds up, p_0
        itself.
      num_epochs: how many times the whole window is run, each client throwing anew; from 1 to 1e9.
      num_colluding: how many clients may be in league with the adversary, from 0 to num_clients - 1; an upper bound
        is safe.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    title = "random check-ins with averaged updates (A_avg)"

    @property
    def cover(self) -> Cover | None:
        """The sample that hides a client: all clients, at the probability of taking part, whatever the loads."""
        return Cover(self.honest, self.rate) if self.coins is None else None

    @property
    def crowd(self) -> Crowd | None:
        """The sample that hides a client: all clients, at their own probabilities of taking part."""
        return None if self.coins is None else Crowd(self.num_clients, self.coins, 1.0)

    @property
    def averaged_throws(self) -> Throws | None:
        """Throws of all clients into the slots of the window."""
        return self._throws

    @property
    def averaged_crowd(self) -> CrowdThrows | None:
        """Throws of all clients into the slots of the window."""
        return self._crowd_throws

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions under which the guarantees are true, a sentence each."""
        return (*self._chance, SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, *self.trusting)

    @property
    def _words(self) -> Words:
        return Words(_OF_AVERAGES, ONE_RECORD)

    @property
    def what(self) -> str:
        """The run in words."""
        return (
            f"over {counted(self.num_epochs, 'window')} of {self.num_slots:,} slots, "
            f"all clients of a slot averaged, {self._taking_part}"
        )
