"""allocation in common slots with hidden dummies: other clients compete (G3', G7), or hide who is displaced (G5, R4).

K of the m slots hold other clients, the rest is empty. The client takes a dummy's place in an empty slot, and another
client's, whose record may be twice as far, in an occupied one. Every bound is made of laws of one of several slots,
over levels of K. Sums are a post-processing of the slots. Gaussian messages. Proofs: docs/theory_allocation.md, 2 and
2a. Call inside `devices.float64()`.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import AsymmetricBound, UnitBound
from checkin_jax.accounting.bounds.unequal.populations import choosing_population
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.mixtures import (
    NestedEvents,
    PublicMixture,
    ReplacedShares,
    Share,
    TwoKinds,
)
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    LEAST_MU,
    MOST_LATTICE_MU,
    Displacing,
    OppositeRecords,
    UnequalSlots,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.numerics.allocation_losses import EqualTerms
from checkin_jax.numerics.counts import occupancy

# The rounding of transforms matters below this mu.
_LEAST_MU = 1e-3
# G3': numbers of empty slots are told apart if their mean share is below _MOST_EMPTY; from _BELOW standard deviations
# below the mean on, _STEP standard deviations apart.
_MOST_EMPTY, _STEP, _BELOW = 0.2, 1.5, 3.0
# Most numbers: each costs two transforms at every loss, and 16 gain less than 1%.
_LEVELS = 5
# For more empty slots the tail probabilities, one for each number, take too long.
_FEW = 1e5
# G5, R4: the least mean number of empty slots at which they are worth their time.
_HIDING = 8.0
# Numbers of occupied slots with probability below e^_SELDOM times the negligible mass count in full.
_SELDOM = 5.0
# G7: ends of ranges of the number of occupied slots, in standard deviations from its mean; one range beyond _COUNTED
# clients or slots.
_EDGES = np.array([-6.0, -2.5, -1.2, -0.4, 0.4, 1.2, 2.5, 6.0])
_COUNTED = 5_000
# The range in which G7 is worth its time: mean number of empty slots (G3' serves below), slots, and mu.
_FEWEST_EMPTY, _FEWEST, _MOST, _MOST_MU = 0.02, 32, 10**6, 1.7


class CommonWindow(NamedTuple):
    """n > 1 clients, the target included, in m common slots with hidden dummies.

    num_clients, slots, prob: n, m and p_0, at unequal rates the target's. mu: 2 / noise_multiplier. neg_log_tail: as in
    `OneOfSlots`. sums: at unequal rates, a lower and an upper bound on the sum of the others' rates.
    """

    num_clients: int
    slots: int
    prob: float
    mu: float
    neg_log_tail: float
    sums: tuple[float, float] | None = None

    @property
    def others(self) -> int:
        return self.num_clients - 1

    @property
    def _between(self) -> tuple[int, int]:
        """Numbers of the others, at unequal rates, of which fewer (Chernoff) or more (Bernstein) rarely take part."""
        assert self.sums is not None
        (low, high), mass = self.sums, self.neg_log_tail
        fewest = max(math.floor(low - math.sqrt(2.0 * low * mass)), 0)
        return fewest, min(math.ceil(high + occupancy.deviation(high, mass)), self.others)

    @property
    def participants(self) -> tuple[int, float]:
        """(N_0, probability that fewer of the others take part)."""
        if self.sums is None:
            return occupancy.fewest(float(self.others), self.prob, self.neg_log_tail)
        return self._between[0], math.exp(-self.neg_log_tail)

    def _senders(self, upper: bool) -> tuple[int, float]:
        """Others, and their rate; at unequal rates a number rarely exceeded if `upper`, else rarely undercut."""
        return (self.others, self.prob) if self.sums is None else (self._between[upper], 1.0)

    def filled(self, upper: bool) -> tuple[list[tuple[int, float]], float]:
        """Levels of a law stochastically above K if `upper`, else below K given N >= N_0; and the mass of no level."""
        (number, prob), mass = self._senders(upper), self.neg_log_tail
        # More who take part fill more slots.
        found, rare = occupancy.levels(number, self.slots, prob, mass - _SELDOM, upper)
        return found, rare + (math.exp(-mass) if upper and self.sums is not None else 0.0)

    @property
    def occupied(self) -> tuple[float, float]:
        """Mean of K, and an upper bound on its variance; at unequal rates if as many take part as rarely do."""
        number, prob = self._senders(True)
        return occupancy.moments(float(number), float(self.slots), prob)


def _common(unit: Unit) -> CommonWindow | None:
    """Common slots of a unit with Gaussian messages, hidden dummies, and at least one other client."""
    choices, slots, mu = unit.protocol.used_slot_choices, unit.slots, unit.randomizer.gaussian_mu
    if slots is None or mu is None or not slots.hidden:
        return None
    if choices is None:
        return _at_unequal_rates(unit, mu)
    return CommonWindow(*choices, mu, unit.neg_log_tail) if choices.num_clients > 1 else None


def _at_unequal_rates(unit: Unit, mu: float) -> CommonWindow | None:
    """The same for a target of the unit's rate, and for slower ones, whose others send more often."""
    choices, found = unit.protocol.unequal_used_slot_choices, choosing_population(unit)
    if choices is None or found is None:
        return None
    if found.limits is None:
        least = float(found.others.values @ found.others.counts) * (1.0 - 1e-12)
    else:
        least = found.limits.expected_check_ins
    sums = least, found.expected(choices.num_clients)
    return CommonWindow(choices.num_clients, choices.num_slots, found.rate, mu, unit.neg_log_tail, sums)


def few_empty(common: CommonWindow, number: int | None = None) -> NestedEvents:
    """G3': add-or-remove among others that occupy nearly all slots; sharper than G3 for n p_0 >> m.

    Let at least N_0 others take part and leave e slots empty, for any N_0. The target is in each empty slot with
    probability p_0 / m, in place of a dummy, and in each other slot with probability at most p_0 / (N_0 + 1). The bound
    grows with e. G3 serves if e is too large or fewer than N_0 take part.

    Args:
      number: number of observed sums of equally many slots; None: the slots themselves are observed.
    """
    number = common.slots if number is None else number
    prob, mu, mass = common.prob, common.mu, common.neg_log_tail
    every = gaussian_among_others(number, prob, mu, mass)
    least, few = common.participants
    used = min(prob, prob * common.slots / (least + 1.0))
    if used == prob or few >= 1.0:
        return NestedEvents(((every, 1.0),), mass)
    displacing = gaussian_in_slots(number, used, mu, mass)
    parts: list[tuple[AsymmetricBound, float]] = []
    needed = 1.0
    for empty in _numbers_empty(common) if number == common.slots else [0]:
        alone = gaussian_in_slots(max(empty, 1), prob * empty / common.slots, 0.5 * mu, mass)
        parts.append((TwoKinds(alone, displacing) if empty else displacing, needed))
        # G3, which is above every part, serves if fewer than N_0 take part.
        needed = min(occupancy.many_empty(common.others, common.slots, prob, empty + 1) + few, 1.0)
    last = min(needed * (1.0 + 1e-9), 1.0)
    return NestedEvents((*parts, (every, last)) if last < 1.0 else ((every, 1.0),), mass)


def _numbers_empty(common: CommonWindow) -> list[int]:
    """Increasing numbers of empty slots for which bounds are made."""
    filled, variance = common.occupied
    mean, deviation = common.slots - filled, math.sqrt(variance)
    if mean > min(_MOST_EMPTY * common.slots, _FEW) or 0.5 * common.mu < LEAST_MU:
        return [0]
    many_empty = functools.partial(occupancy.many_empty, common.others, common.slots, common.prob)
    found = [max(math.floor(mean - _BELOW * deviation), 0)]
    while len(found) < _LEVELS and found[-1] + 1 < common.slots:
        if many_empty(found[-1] + 1) < math.exp(-common.neg_log_tail):
            break
        found.append(min(found[-1] + max(math.ceil(_STEP * deviation), 1), common.slots - 1))
    return found


class _Level(NamedTuple):
    """Slots in which the target may be, the probability that it is in one, and the probability of this level."""

    slots: int
    use_prob: float
    weight: float


def _levels(common: CommonWindow, empty: bool) -> tuple[list[_Level], float]:
    """Levels of the target in place of a dummy (`empty`) or of a client; and the probability of no level."""
    m, prob = common.slots, common.prob
    least, missing_mass = common.participants
    found, rare = common.filled(not empty)
    levels = []
    for filled, mass in found:
        if empty:
            free, used = m - filled, prob * (m - filled) / m
        else:
            free = m - filled + 1
            used = prob * filled / m * occupancy.taken(max(least, filled), filled)
        if used > 0.0:
            levels.append(_Level(free, min(used, 1.0), mass))
    return levels, missing_mass + rare


def displaced_added(common: CommonWindow) -> TwoKinds:
    """G5: add-or-remove; the displaced client is hidden among the dummies, as is the target."""
    mu, mass = common.mu, common.neg_log_tail
    (empty, few), (filled, many) = _levels(common, True), _levels(common, False)
    alone = PublicMixture(
        tuple((each.weight, gaussian_in_slots(each.slots, each.use_prob, 0.5 * mu, mass)) for each in empty)
    )
    displacing = PublicMixture(
        tuple(
            (each.weight, Displacing(OppositeRecords(each.slots, 1.0, mu, mass), each.use_prob))
            for each in filled
        )
    )
    return TwoKinds(alone, displacing, few + many)


def displaced_replaced(common: CommonWindow) -> ReplacedShares:
    """R4: a record is replaced; the displaced client is hidden among the dummies, as is the target."""
    mu, mass = common.mu, common.neg_log_tail
    (empty, few), (filled, many) = _levels(common, True), _levels(common, False)
    most = max((each.use_prob for each in filled), default=0.0)
    usual = max(empty, key=lambda each: each.weight).use_prob if empty else 0.0
    theta = min(usual / (usual + most) if usual > 0.0 else 0.0, 1.0 - most)
    missing_mass, shares = few + many, []
    for each in empty:
        if each.use_prob > theta:
            missing_mass += each.weight
        else:
            alone = OppositeRecords(each.slots, each.use_prob / theta, mu, mass)
            shares.append(Share(theta * each.weight, alone))
    for each in filled:
        displacing = OppositeRecords(each.slots, 1.0, mu, mass)
        shares.append(Share(each.weight, displacing, 1.0 - theta, each.use_prob))
    return ReplacedShares(tuple(shares), missing_mass)


def competing(common: CommonWindow) -> PublicMixture:
    """G7: add-or-remove, empty and occupied slots in one sum."""
    ranges, missing_mass = _ranges(common)
    participants, few = common.participants
    missing_mass, parts = missing_mass + few, []
    for fewest, most, weight in ranges:
        if weight < math.exp(-common.neg_log_tail):
            missing_mass += weight
            continue
        kinds = []
        if fewest < common.slots:
            kinds.append(EqualTerms(common.slots - fewest, 0.5 * common.mu, 1.0))
        if most > 0:
            kinds.append(EqualTerms(most, common.mu, occupancy.taken(max(participants, most), most)))
        parts.append((weight, UnequalSlots(tuple(kinds), common.prob / common.slots, common.neg_log_tail)))
    return PublicMixture(tuple(parts), missing_mass)


def _ranges(common: CommonWindow) -> tuple[list[tuple[int, int, float]], float]:
    """(fewest, most, probability) of ranges of occupied slots; and the probability of the rest. Both rounded up."""
    most = min(common.others, common.slots)
    mean, variance = common.occupied
    if common.num_clients <= _COUNTED and common.slots <= _COUNTED:
        law = occupancy.exact(common.others, common.slots, common.prob)
        edges = np.unique(np.clip(np.rint(mean + math.sqrt(variance) * _EDGES), -1, most))
        edges = np.unique(np.append(edges, [-1.0, float(most)])).astype(int)
        ranges = [
            (int(low) + 1, int(high), float(law[low + 1 : high + 1].sum()) * (1.0 + 1e-9))
            for low, high in itertools.pairwise(edges)
        ]
        return [each for each in ranges if each[2] > 0.0], 0.0
    # One range, narrow for so many slots, holds all but negligible mass.
    away = occupancy.deviation(variance, common.neg_log_tail)
    ends = max(math.ceil(mean - away), 0), min(math.floor(mean + away), most)
    return [(*ends, 1.0)], 2.0 * math.exp(-common.neg_log_tail)


def g5(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in common slots, some of them empty, dummies hidden. A record replaced: R4."""
    common = _common(unit)
    if common is None or not max(_LEAST_MU, 2.0 * LEAST_MU) <= common.mu <= MOST_LATTICE_MU:
        return None
    if common.slots - common.occupied[0] < _HIDING:
        return None
    return displaced_replaced(common) if unit.replaced else displaced_added(common)


def g7(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in common slots, some of them empty, dummies hidden; a client is added or removed."""
    common = _common(unit)
    if unit.replaced or common is None:
        return None
    if not max(_LEAST_MU, 2.0 * LEAST_MU) <= common.mu <= min(_MOST_MU, MOST_LATTICE_MU):
        return None
    filled, _ = common.occupied
    if not _FEWEST <= common.slots <= _MOST or common.slots - filled < _FEWEST_EMPTY:
        return None
    return competing(common)
