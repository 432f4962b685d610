"""One unit of a run as theorems see it: facts of protocol and randomizer, view, and neighboring relation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from checkin_jax.protocols import REPLACE, AveragedUpdates, CheckInProtocol, Cover, Slots, UnequalCover
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer, pure_profile

# A profile within this relative distance of the worst for its epsilon0 counts as the worst.
_WORST = 1e-6


@dataclasses.dataclass(frozen=True)
class Unit:
    """One unit of a run, as theorems read it.

    Attributes:
      protocol, randomizer: descriptions whose facts are read.
      view, relation: of `protocols.VIEWS` and `protocols.RELATIONS`.
      neg_log_tail: -log of the negligible mass.
      client_rate: where rates differ, an upper bound on the target client's rate; None: the largest rate.
      least_used: a lower bound on the probability that the target's message is used; 0: that of the protocol.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str
    relation: str
    neg_log_tail: float
    client_rate: float | None = None
    least_used: float = 0.0

    @property
    def rate(self) -> float:
        """Probability that the target client sends a message."""
        return self.protocol.rate_of(self.client_rate)

    @property
    def replaced(self) -> bool:
        """True if one record is replaced and the view is not local."""
        return self.relation == REPLACE and self.view != "local"

    @property
    def epsilon0(self) -> float | None:
        """epsilon0 of a message; None if it exceeds MAX_EPSILON0, beyond which nothing is gained."""
        largest = self.randomizer.largest_loss
        return largest if largest <= MAX_EPSILON0 else None

    @property
    def cover(self) -> Cover | None:
        """Sample of equal rates that hides the target under replacement."""
        return self.protocol.cover if self.replaced else None

    @property
    def unequal_cover(self) -> UnequalCover | None:
        """Clients of unequal rates that hide the target under replacement."""
        return self.protocol.unequal_cover if self.replaced else None

    @property
    def sums_noise(self) -> bool:
        """True if only the sum, with the Gaussian noise of the whole sample, is observed. G1 is then exact."""
        summed = self.view == "aggregate" and self.protocol.summed
        return summed and self.randomizer.gaussian_mu is not None

    @property
    def slots(self) -> Slots | None:
        """Slots of the target; None in the local view."""
        shown = None if self.view == "local" else self.protocol.slots_of(self.client_rate)
        if shown is None or self.least_used <= shown.use_prob_lower:
            return shown
        return shown._replace(use_prob_lower=self.least_used)

    @property
    def averaged(self) -> Unit | None:
        """The unit that shows all messages of each common slot, of which this one is a post-processing.

        None in windows of other kinds, where dummies hide more than other messages do, and where several clients share
        a slot, since a bound that counts used messages is then smaller.
        """
        equal, unequal = self.protocol.used_slot_choices, self.protocol.unequal_used_slot_choices
        slots = self.slots
        if not self.replaced or (slots is not None and slots.hidden):
            return None
        if equal is not None:
            clients, number, rates = equal
            if clients * rates > number:
                return None
        elif unequal is not None:
            clients, number, rates = unequal
        else:
            return None
        shown = AveragedUpdates(num_clients=clients, num_slots=number, check_in_prob=rates)  # type: ignore[arg-type]
        return dataclasses.replace(self, protocol=shown, view="messages")

    @property
    def summed_slots(self) -> bool:
        """True if only sums of several slots are observed."""
        return self.sum_size > 1

    @property
    def sum_size(self) -> int:
        """Number of successive slots in an observed sum; 1 if single slots are observed."""
        slots = self.slots
        return slots.minibatch if slots is not None and self.view == "aggregate" else 1

    @property
    def observed_slots(self) -> int:
        """Number of slots whose messages the view shows: the target's, and those that are summed with them."""
        slots = self.slots
        if slots is None:
            return 0
        return min(-(-slots.number // self.sum_size) * self.sum_size, slots.total)

    @property
    def common_slots(self) -> bool:
        """True if all clients have the same slots."""
        protocol = self.protocol
        return protocol.used_slot_choices is not None or protocol.unequal_used_slot_choices is not None

    @property
    def alone(self) -> bool:
        """True if the target's message is identified: its slots are visible and no other client can be in them."""
        slots = self.slots
        return self.replaced and slots is not None and not slots.hidden and slots.num_rivals == 0

    @property
    def worst_of_its_kind(self) -> bool:
        """True if the profile is, at six losses, that of the worst eps0-LDP message."""
        epsilon0 = self.randomizer.largest_loss
        if not math.isfinite(epsilon0):
            return False
        losses = epsilon0 * np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
        return bool(
            np.all(self.randomizer.profile(losses) >= pure_profile(epsilon0, losses) * (1.0 - _WORST))
        )
