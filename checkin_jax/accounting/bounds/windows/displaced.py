"""allocation in FixedWindow with hidden dummies (G5 add-or-remove, R4 replace): the displaced client is hidden, too.

If the target is drawn instead of client j, j's message is not sent; otherwise the target fills a slot that would have
held a dummy. So the worlds differ in one or two messages in place of dummies, whose record is half as far as another
client's may be. Gaussian messages. Proof: docs/theory_allocation.md, 2a. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, AsymmetricBound, UnitBound, Witness
from checkin_jax.accounting.bounds.messages.profile_cover import OneInSlots
from checkin_jax.accounting.bounds.profiles import TINY, GaussianProfile, Profile
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    LEAST_MU,
    MOST_LATTICE_MU,
    gaussian_in_slots,
)
from checkin_jax.accounting.bounds.windows.public_mixture import PublicMixture, TwoKinds
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import hidden_messages
from checkin_jax.numerics import opposite_pair
from checkin_jax.numerics.counts import occupancy

# The least mean number of empty slots at which the bound is worth its time.
_FEWEST_EMPTY = 8.0
# Numbers of occupied slots with probability below e^_SELDOM times the negligible mass count in full.
_SELDOM = 5.0
# The rounding of transforms matters below this mu.
_LEAST_MU = 1e-3


@dataclasses.dataclass(frozen=True)
class _OppositeStep:
    """E(d - k)_+ at c = 1 and k = e^loss - 1, for a term d of `OppositeRecords`."""

    mu: float

    name = "Gaussian"
    largest_loss = math.inf

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return opposite_pair.transform(self.mu, 1.0, np.expm1(loss), False) + TINY


@dataclasses.dataclass(frozen=True)
class OppositeRecords(OneInSlots):
    """A message at one of two opposite records in a uniform one of `slots` slots, dummies in the others. Symmetric.

    Upper bounds for P = (1 - rho) F + (rho/m) sum_i N(mu/2 e_i, I) and Q with -mu/2, F = N(0, I).

    Attributes:
      slots: m >= 1. use_prob: rho in (0, 1]. mu: distance of the two records. neg_log_tail: as in `HiddenSlots`.
    """

    slots: int
    use_prob: float
    mu: float
    neg_log_tail: float
    profile: Profile = dataclasses.field(init=False)
    witnesses: tuple[Witness, ...] = ()

    name = "allocation"
    # The law changes little with c.
    apart: ClassVar[float] = 0.4
    share: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", _OppositeStep(self.mu))

    @property
    def _alone(self) -> Profile:
        return GaussianProfile(self.mu)

    @property
    def _rest(self) -> float:
        return 0.0

    def _law(self, losses: np.ndarray) -> hidden_messages.StepTransforms:
        knots, c = self.steps[0], np.exp(losses)[:, None]
        right = np.broadcast_to(knots, (len(losses), knots.size))
        left = c * knots
        values = (
            opposite_pair.transform(self.mu, c, at, below) for at, below in ((right, False), (left, True))
        )
        right_value, left_value = values
        return hidden_messages.StepTransforms(
            *(host(each) for each in (right, right_value, left, left_value))
        )


@dataclasses.dataclass(frozen=True)
class _Displacing(AsymmetricBound):
    """The pair (1 - r) Q + r P against Q, with P and Q of `OppositeRecords` at rho = 1.

    With probability r = `use_prob` the target is in a uniform slot, in place of the other client under Q.
    """

    pair: OppositeRecords
    use_prob: float

    name = "allocation"

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        above, used = np.expm1(loss), self.use_prob
        if not backward:
            return used * self.pair.upper(np.log1p(above / used) * (1.0 - 1e-14)) * (1.0 + ROUNDING)
        # ((1 - c (1 - r)) Q - c r P)_+, the weight of Q rounded up.
        left = np.maximum(used - above * (1.0 - used), 0.0) + 1e-15 * (1.0 + above)
        ratio = np.maximum(loss + np.log(used) - np.log(left), 0.0)
        return np.minimum(left, 1.0) * self.pair.upper(ratio * (1.0 - 1e-14)) * (1.0 + ROUNDING)


class _Level(NamedTuple):
    """Slots in which the target may be, the probability that it is in one, and the probability of this level."""

    slots: int
    use_prob: float
    weight: float


@dataclasses.dataclass(frozen=True)
class _Common:
    """n clients, the target included, in m common slots with hidden dummies; p_0; mu = 2 / noise_multiplier."""

    num_clients: int
    slots: int
    prob: float
    mu: float
    neg_log_tail: float

    def _levels(self, empty: bool) -> tuple[tuple[_Level, ...], float]:
        """Levels of the target in place of a dummy (`empty`) or of a client; and the probability of no level."""
        n, m, prob = self.num_clients, self.slots, self.prob
        least, missing_mass = occupancy.fewest(n - 1.0, prob, self.neg_log_tail)
        found, rare = occupancy.levels(n - 1, m, prob, self.neg_log_tail - _SELDOM, not empty)
        levels = []
        for filled, mass in found:
            if empty:
                free, used = m - filled, prob * (m - filled) / m
            else:
                free = m - filled + 1
                used = prob * filled / m * occupancy.taken(max(least, filled), filled)
            if used > 0.0:
                levels.append(_Level(free, min(used, 1.0), mass))
        return tuple(levels), missing_mass + rare

    @functools.cached_property
    def empty(self) -> tuple[tuple[_Level, ...], float]:
        return self._levels(True)

    @functools.cached_property
    def filled(self) -> tuple[tuple[_Level, ...], float]:
        return self._levels(False)

    @functools.cached_property
    def displacing(self) -> tuple[tuple[float, _Displacing], ...]:
        levels, _ = self.filled
        mu, mass = self.mu, self.neg_log_tail
        return tuple(
            (each.weight, _Displacing(OppositeRecords(each.slots, 1.0, mu, mass), each.use_prob))
            for each in levels
        )


@dataclasses.dataclass(frozen=True)
class DisplacedAddRemove(AsymmetricBound):
    """G5: add-or-remove; the displaced client is hidden among the dummies, as is the target.

    Attributes:
      common: clients and slots.
    """

    common: _Common

    name = "allocation"

    @functools.cached_property
    def _both(self) -> tuple[AsymmetricBound, float]:
        (empty, few), (_, many), common = self.common.empty, self.common.filled, self.common
        alone = tuple(
            (each.weight, gaussian_in_slots(each.slots, each.use_prob, 0.5 * common.mu, common.neg_log_tail))
            for each in empty
        )
        return TwoKinds(PublicMixture(alone), PublicMixture(common.displacing)), few + many

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both, missing_mass = self._both
        forward, backward = both.upper_sides(loss)
        return forward + missing_mass, backward + missing_mass


@dataclasses.dataclass(frozen=True)
class DisplacedReplace:
    """R4: a record is replaced; the displaced client is hidden among the dummies, as is the target. Symmetric.

    Attributes as in `DisplacedAddRemove`.
    """

    common: _Common
    witnesses: tuple[Witness, ...] = ()

    name = "allocation"
    largest_loss = math.inf

    @functools.cached_property
    def _parts(self) -> tuple[float, tuple[tuple[float, OppositeRecords], ...], float]:
        """theta; (probability, pair) of the target in place of a dummy; and the probability that counts in full."""
        (empty, few), (filled, many), common = self.common.empty, self.common.filled, self.common
        most = max((each.use_prob for each in filled), default=0.0)
        usual = max(empty, key=lambda each: each.weight).use_prob if empty else 0.0
        share = min(usual / (usual + most) if usual > 0.0 else 0.0, 1.0 - most)
        missing_mass, kept = few + many, []
        for each in empty:
            if each.use_prob > share:
                missing_mass += each.weight
            else:
                pair = OppositeRecords(each.slots, each.use_prob / share, common.mu, common.neg_log_tail)
                kept.append((each.weight, pair))
        return share, tuple(kept), missing_mass

    def upper(self, loss: np.ndarray) -> np.ndarray:
        share, alone, missing_mass = self._parts
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        total = np.full(loss.shape, missing_mass)
        for weight, pair in alone:
            total = total + share * weight * pair.upper(loss)
        above = (1.0 - share) * np.expm1(loss)
        for weight, other in self.common.displacing:
            stretched = np.log1p(above / other.use_prob) * (1.0 - 1e-14)
            total = total + weight * other.use_prob * other.pair.upper(stretched)
        return total * (1.0 + ROUNDING)


def _common(unit: Unit) -> _Common | None:
    choices, slots, mu = unit.protocol.used_slot_choices, unit.slots, unit.randomizer.gaussian_mu
    if choices is None or slots is None or mu is None or not slots.hidden or choices.num_clients == 1:
        return None
    if not _LEAST_MU <= mu <= MOST_LATTICE_MU or 0.5 * mu < LEAST_MU:
        return None
    filled, _ = occupancy.moments(choices.num_clients - 1.0, float(choices.num_slots), choices.prob)
    if choices.num_slots - filled < _FEWEST_EMPTY:
        return None
    # Sums are a post-processing of the slots.
    return _Common(*choices, mu, unit.neg_log_tail)


def g5(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in common slots, some of them empty, dummies hidden. A record replaced: R4."""
    common = _common(unit)
    if common is None:
        return None
    return DisplacedReplace(common) if unit.replaced else DisplacedAddRemove(common)
