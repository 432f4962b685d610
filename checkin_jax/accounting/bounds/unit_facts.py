"""One unit of a run as theorems see it: facts of its protocol and of its randomizer, and who looks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from checkin_jax.protocols import REPLACE, CheckInProtocol, Cover, Crowd, Slots
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer, pure_profile

# A profile within this of the worst one with the same epsilon0 counts as it.
_WORST = 1e-6


@dataclasses.dataclass(frozen=True)
class Unit:
    """One unit of a run, as a theorem sees it.

    Attributes:
      protocol, randomizer: whose facts are read.
      view, relation: who looks, and which data sets are compared.
      log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
      client_rate: where rates differ, the check-in rate of the client meant at most; the fastest's if None.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str
    relation: str
    log_inverse_mass: float
    client_rate: float | None = None

    @property
    def rate(self) -> float:
        """The probability that the client meant sends a message."""
        return self.protocol.rate_of(self.client_rate)

    @property
    def replaced(self) -> bool:
        """Whether one record is replaced, and the adversary does not see names."""
        return self.relation == REPLACE and self.view != "local"

    @property
    def epsilon0(self) -> float | None:
        """The epsilon0 of a message, if it has one that is small enough to gain anything."""
        largest = self.randomizer.largest_loss
        return largest if largest <= MAX_EPSILON0 else None

    @property
    def cover(self) -> Cover | None:
        """The sample that hides a client whose record is replaced."""
        return self.protocol.cover if self.replaced else None

    @property
    def crowd(self) -> Crowd | None:
        """The clients that hide a client whose record is replaced, where their rates differ."""
        return self.protocol.crowd if self.replaced else None

    @property
    def sums_noise(self) -> bool:
        """Whether Gaussian noise of the whole sample adds up, where G1 is the worst case itself."""
        summed = self.view == "aggregate" and self.protocol.summed
        return summed and self.randomizer.gaussian_mu is not None

    @property
    def slots(self) -> Slots | None:
        """The client's slots, where the adversary does not see names."""
        return None if self.view == "local" else self.protocol.slots_of(self.client_rate)

    @property
    def summed_slots(self) -> bool:
        """Whether nobody sees the message of a single slot, only sums of several."""
        slots = self.slots
        return self.view == "aggregate" and slots is not None and slots.minibatch > 1

    @property
    def alone(self) -> bool:
        """Whether the client's message is seen for what it is: in visible slots that nobody else can be in."""
        slots = self.slots
        return self.replaced and slots is not None and not slots.hidden and slots.others == 0

    @property
    def worst_of_its_kind(self) -> bool:
        """Whether the profile is the worst that an eps0-LDP message can have."""
        epsilon0 = self.randomizer.largest_loss
        if not math.isfinite(epsilon0):
            return False
        losses = epsilon0 * np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
        return bool(
            np.all(self.randomizer.profile(losses) >= pure_profile(epsilon0, losses) * (1.0 - _WORST))
        )
