"""The bound "profile" (T*): messages of a randomizer with a known profile D, or subsampling where that is smaller.

`HiddenMessages` is for the `messages` view of shuffled check-in, `HiddenSlots` (R3) for slots with hidden dummies or
displaced clients. One record is replaced; the others' records are arbitrary. Proofs: docs/theory_gaussian.md, 1, and
docs/theory_allocation.md, 3. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import EqualDraws, UnitBound, Witness
from checkin_jax.accounting.bounds.messages.equal_records import hidden_witnesses
from checkin_jax.accounting.bounds.messages.profile_cover_sums import HiddenSum
from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian, SubsampledMessages
from checkin_jax.accounting.bounds.profiles import GaussianProfile, Profile
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.randomizers import LabelLaws

# A share of the negligible mass below which an event is not evaluated.
_SELDOM = 1e-9
# Numbers of slots up to this factor apart share contours.
_SIMILAR = 1.5


@dataclasses.dataclass(frozen=True)
class HiddenMessages(HiddenSum):
    """T* for shuffled check-in, `messages` view, or subsampling (G1) where that is smaller. Certified, both directions.

    The adversary sees the messages of a round in random order, and their number. One record is replaced. All clients
    have the same rate and the same randomizer. Values are upper bounds, numerical errors included. The witnesses are
    Gaussian messages and their sum, all other clients at one record.

    Args:
      num_clients: n, whole, in [1, 2^42]. rate: gamma, in (0, 1]; at 1 only subsampling is left.
      profile: of one message. neg_log_tail: -log of the negligible mass, in [1, 1e4].
      everybody: a bound for the event that all clients take part; None: the profile of one message.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    num_clients: int
    rate: float
    profile: Profile
    neg_log_tail: float
    everybody: UnitBound | None = None

    # Theorems that are never below this one, so that `select` drops them.
    includes: ClassVar[tuple[str, ...]] = ("G1",)

    def __post_init__(self) -> None:
        _validate.integer(1, 2.0**42, num_clients=self.num_clients)
        _validate.real(0.0, 1.0, "(]", rate=self.rate)
        _validate.real(1.0, 1e4, neg_log_tail=self.neg_log_tail)

    @property
    def name(self) -> str:
        return f"profile ({self.profile.name} messages)"

    @functools.cached_property
    def _witnesses(self) -> tuple[Witness, ...]:
        if not isinstance(self.profile, GaussianProfile):
            return ()
        n, rate, mu, mass = self.num_clients, self.rate, self.profile.mu, self.neg_log_tail
        summed = ShuffledGaussian(n, rate, mu, False, mass).witnesses
        return (*hidden_witnesses(self, self), *summed)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._witnesses

    @property
    def terms(self) -> tuple[float, float, float]:
        return float(self.num_clients), float(self.num_clients), self.rate

    def labelled(self, laws: LabelLaws) -> EqualDraws:
        return EqualDraws(int(self.num_clients), self.rate, 1.0, laws)

    @property
    def _rest(self) -> float:
        return math.exp(self.num_clients * math.log(self.rate))

    def hidden(self) -> np.ndarray:
        return np.full(self.losses.shape, math.inf) if self.rate >= 1.0 else super().hidden()

    def _seldom(self, losses: np.ndarray) -> np.ndarray:
        alone = super()._seldom(losses)
        # If the event is rare, a sharper bound than the profile of one message is not worth its evaluation.
        if self.everybody is None or self._rest <= _SELDOM * math.exp(-self.neg_log_tail):
            return alone
        return np.minimum(alone, np.asarray(self.everybody.upper(losses)))

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        counted = ShuffledGaussian(self.num_clients, self.rate, 1.0, False, self.neg_log_tail)
        return SubsampledMessages(counted, self.rate, lambda number: self.profile).upper(losses)


def in_a_sample(profile: Profile, use_prob: np.ndarray | float, losses: np.ndarray) -> np.ndarray:
    """Profile at these losses of a message that is sent with probability `use_prob`; broadcasts."""
    stretched = np.asarray(subsampled_gaussian.stretch(host(losses), host(1.0 / use_prob)))
    return use_prob * profile.delta(stretched * (1.0 - 1e-15))


class OneInSlots(HiddenSum):
    """Each of m >= 1 slots shows a message; the target is in a uniform one of them with probability `use_prob`."""

    slots: int
    use_prob: float

    @property
    def terms(self) -> tuple[float, float, float]:
        # Rounded down, since the bound grows with rho.
        return self.slots / self.use_prob * (1.0 - 1e-15), float(self.slots), 1.0

    @property
    def _alone(self) -> Profile:
        """Profile of the target's message if its slot is revealed."""
        return self.profile

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        value = in_a_sample(self._alone, self.use_prob, losses)
        return (value + self._rest * self._alone.delta(losses)) * (1.0 + ROUNDING)


@dataclasses.dataclass(frozen=True)
class HiddenSlots(OneInSlots):
    """R3: T* for the message of every slot; one record is replaced. Symmetric.

    Either the target may be in no slot (hidden dummies), or it displaces one of the other used clients: then
    use_prob = slots / n, in common windows with slots < n, and dummies may be visible.

    Attributes:
      slots: m. use_prob: rho in (0, 1]. profile: of one message.
      failure_prob: probability of a public event in which the bound is the profile of one message.
    """

    slots: int
    use_prob: float
    profile: Profile
    neg_log_tail: float
    failure_prob: float = 0.0
    witnesses: tuple[Witness, ...] = ()

    name = "profile"

    def labelled(self, laws: LabelLaws) -> EqualDraws:
        return EqualDraws(int(self.slots), 1.0, self.use_prob, laws)

    @property
    def _rest(self) -> float:
        return self.failure_prob


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenMixture(HiddenSum):
    """A mixture of `HiddenSlots` whose numbers of slots are near each other, so that they share contours. Symmetric.

    Attributes:
      masses, slots, use_probs: of the parts, [parts]. profile: of one message.
    """

    masses: np.ndarray
    slots: np.ndarray
    use_probs: np.ndarray
    profile: Profile
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    name = "profile"

    @property
    def sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Rounded down as in `OneInSlots`.
        return self.masses, self.slots / self.use_probs * (1.0 - 1e-15), self.slots

    @property
    def terms(self) -> tuple[float, float, float]:
        _, clients, count = self.sums
        share = self.masses / self.masses.sum()
        return float(share @ clients), float(share @ count), 1.0

    def ceilings(self, losses: np.ndarray) -> np.ndarray:
        return in_a_sample(self.profile, self.use_probs, losses[..., None]) * (1.0 + ROUNDING)

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        return self.ceilings(losses) @ self.masses * (1.0 + ROUNDING)


def mixtures(
    masses: np.ndarray, slots: np.ndarray, use_probs: np.ndarray, profile: Profile, neg_log_tail: float
) -> list[tuple[np.ndarray, HiddenMixture]]:
    """Indices of sums with similar numbers of slots and similar thresholds, and their mixture, for all sums."""
    found, left = [], np.argsort(slots, kind="stable")
    while left.size:
        alike = slots[left] <= _SIMILAR * slots[left[0]]
        away = np.abs(np.log(use_probs[left] / slots[left] * (slots[left[0]] / use_probs[left[0]])))
        alike &= away <= math.log(_SIMILAR)
        here, left = left[alike], left[~alike]
        one = HiddenMixture(masses[here], slots[here], use_probs[here], profile, neg_log_tail)
        found.append((here, one))
    return found
