"""clones (T2) and hexagon (T2+, T2++, T2d) in slots with contention: the target would not be drawn in every slot.

The others choose slots independently [docs/theory.md, 6; docs/theory_hexagon.md, 2, 3, 5].
Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.hexagon import StagedBound
from checkin_jax.accounting.bounds.interface import LocalMessages, UnitBound
from checkin_jax.accounting.bounds.messages.cover import UniformSlot
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.messages.profile_cover_sums import ALWAYS, WeightLaw
from checkin_jax.accounting.bounds.profiles import Profile
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture
from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.kernels.messages.weighted_clones import WeightedSteps
from checkin_jax.numerics import staged_clones
from checkin_jax.numerics.counts import chernoff, redrawn
from checkin_jax.numerics.staged_clones import Steps

# Numbers of loads that are told apart; larger loads count as this number.
LOADS = (2, 4)
# -log of the probability that independent weights are too small, and levels of the loads.
_SMALLER = np.array([3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 9.0])
_LOADED = (1.4, 3.2, 9.0)
# Levels of the numbers of slots, as -log of the mass beyond.
_WON = (0.15, 0.5, 1.2, 2.5, 5.0, 10.0, 20.0)
# Factor of the variance below which weights of labels drawn anew are smaller in the tail, too.
CLEARLY_LESS = 0.95
_BOTH = (0.8, 1.1, 1.6, 2.5, 4.0, 6.5, 11.0, 20.0)


def win_prob(num_rivals: int, rival_prob: float) -> float:
    """E 1/(C + 1), C ~ Bin(num_rivals, rival_prob), rounded up."""
    contenders = num_rivals + 1.0
    if not num_rivals or rival_prob <= 0.0:
        return 1.0
    missing_mass = contenders * math.log1p(-rival_prob) if rival_prob < 1.0 else -math.inf
    return min(-math.expm1(missing_mass) / (contenders * rival_prob) * (1.0 + 1e-12), 1.0)


def slots_won(
    slots: int, num_rivals: int, rival_prob: float, neg_log_tail: float
) -> tuple[np.ndarray, np.ndarray]:
    """(values, masses) of a law stochastically above the number of slots in which the target would win."""
    high, beyond = chernoff.exceeded(
        slots, win_prob(num_rivals, rival_prob), chernoff.levels(_WON, neg_log_tail)
    )
    # Pr(more than a level) is at most the mass beyond it.
    values = np.append(high, float(slots))
    survival = np.concatenate([[1.0], beyond, [0.0]])
    return np.maximum(values, 1.0), -np.diff(survival) * (1.0 + 1e-12)


class RivalEvent(NamedTuple):
    """Upper bound on the mass of an event, number of steps in it, and the law of their independent weights.

    number: 0 if the bound is that of one message. use: factor of the probability that the target's message is used.
    order: of the steps of T2r where the dummies' own law counts: -1 if they fall with the load, 1 if they grow; else 0.
    """

    mass: float
    number: float
    weights: WeightLaw
    use: float = 1.0
    order: int = 0

    @property
    def variance(self) -> float:
        """That of the sum of the steps, up to a common factor."""
        return self.mass * self.number * self.weights.square * self.use**2


def rivalled(
    slots: int, num_rivals: int, rival_prob: float, neg_log_tail: float, window: int | None = None
) -> tuple[RivalEvent, ...]:
    """Events whose bounds add up: so many slots won for sure, or independent weights in all slots.

    Args:
      window: length of the sliding windows of all clients, for a record that is replaced.
    """
    numbers, masses = slots_won(slots, num_rivals, rival_prob, neg_log_tail)
    won = [
        RivalEvent(float(mass), float(number), ALWAYS) for number, mass in zip(numbers, masses) if mass > 0.0
    ]
    ways = [
        won,
        *(independent_weights(slots, num_rivals, rival_prob, neg_log_tail, loads) for loads in LOADS),
    ]
    least = min(ways, key=_variance)
    levels = None if window is None else redrawn.redrawn(slots, window, neg_log_tail)
    if levels is not None:
        drawn = redrawn_weights(slots, levels)
        # Rare levels have much larger weights.
        least = drawn if _variance(drawn) < CLEARLY_LESS * _variance(least) else least
    return tuple(least)


def _variance(parts: list[RivalEvent]) -> float:
    return sum(part.variance for part in parts)


def independent_weights(
    slots: int, num_rivals: int, rival_prob: float, neg_log_tail: float, loads: int
) -> list[RivalEvent]:
    """Events in which the weights 1/(C + 1), in order of size, are below independent ones [docs/theory.md, 6].

    Independent weights are large enough but for a probability eta, and the mass of their event is divided by 1 - eta.
    """
    told = np.minimum(np.arange(float(loads)), num_rivals)
    probs = np.exp(np.asarray(binomial.log_pmf(told, float(num_rivals), rival_prob))) * (1.0 + 1e-12)
    return _by_levels(slots, np.cumsum(probs), neg_log_tail)


def occupied_slots(slots: int, num_rivals: int, rival_prob: float, neg_log_tail: float) -> list[RivalEvent]:
    """Events of the number of occupied slots, of weight 1; an empty slot has weight 1/2."""
    occupied = 1.0 - _empty_prob(num_rivals, rival_prob) * (1.0 - 1e-12)
    return _by_levels(slots, np.array([occupied]), neg_log_tail)


def _empty_prob(num_rivals: int, rival_prob: float) -> float:
    """Probability that no rival is in a slot."""
    return math.exp(num_rivals * math.log1p(-rival_prob)) if rival_prob < 1.0 else 0.0


def _by_levels(slots: int, probs: np.ndarray, neg_log_tail: float) -> list[RivalEvent]:
    """Events of how many slots are of one kind or an earlier one; probs: that a slot is, for each kind but the last."""
    exponents = chernoff.levels(_LOADED, neg_log_tail)
    found = [chernoff.exceeded(slots, min(float(prob), 1.0), exponents) for prob in probs]
    most = np.maximum.accumulate(np.stack([number for number, _ in found], axis=1), axis=1)
    beyond = np.minimum(np.sum([each for _, each in found], axis=0), 1.0)
    masses = -np.diff(np.concatenate([[1.0], beyond])) * (1.0 + 1e-12)
    parts = [_independent(float(mass), slots, each) for mass, each in zip(masses, most) if mass > 0.0]
    # An infinite bound of an event that never happens would be no number.
    return [*parts, RivalEvent(float(beyond[-1]), float(slots), ALWAYS)] if beyond[-1] > 0.0 else parts


def redrawn_weights(slots: int, levels: redrawn.Redrawn) -> list[RivalEvent]:
    """Levels of T2d [docs/theory_hexagon.md, 5] with independent weights as in `independent_weights`."""
    parts = []
    for mass, total, values, numbers in zip(levels.masses, levels.totals, levels.values, levels.numbers):
        there = (values > 0.0) & (numbers > 0.0)
        values, most = values[there], np.minimum(np.cumsum(numbers[there]), slots)
        use, whole = float(values[0] * (1.0 + 1e-15) / total), float(mass * total * (1.0 + 1e-12))
        parts.append(_independent(whole, int(most[-1]), most[:-1], values / values[0], use))
    return [*parts, RivalEvent(levels.lost, 0.0, ALWAYS)]


def _independent(
    mass: float, slots: int, most: np.ndarray, values: np.ndarray | None = None, use: float = 1.0
) -> RivalEvent:
    """Independent weights of which, but for eta, at least most[k] are values[k], 1/(k + 1), or more, for every k."""
    values = 1.0 / np.arange(1.0, most.size + 2.0) if values is None else values
    parts = []
    for exponent, within in zip(_SMALLER, chernoff.enough(most, float(slots), _SMALLER)):
        probs = np.diff(np.concatenate([[0.0], within, [1.0]]))
        weights = WeightLaw(values, probs * (1.0 + 1e-12))
        parts.append(RivalEvent(mass / (1.0 - most.size * math.exp(-exponent)), float(slots), weights, use))
    return min(parts, key=lambda part: part.variance)


@dataclasses.dataclass(frozen=True, eq=False)
class RivalledSlots(HiddenSlots):
    """R3 with independent weights of the target's message in the slots."""

    weights: WeightLaw = ALWAYS

    @property
    def step_weights(self) -> WeightLaw:
        return self.weights


def in_weighted_slots(
    slots: int, use_prob: float, events: Iterable[RivalEvent], profile: Profile, neg_log_tail: float
) -> PublicMixture:
    """R3 of these events; slots, use_prob: as in `HiddenSlots`, before the others are considered."""
    parts: list[tuple[float, UnitBound]] = []
    for event in events:
        if not event.number:
            parts.append((event.mass, LocalMessages(1.0, profile)))
            continue
        number = int(event.number)
        used = use_prob * event.use * number / slots
        parts.append((event.mass, RivalledSlots(number, used, profile, neg_log_tail, weights=event.weights)))
    return PublicMixture(tuple(parts))


@dataclasses.dataclass(frozen=True)
class Contested(UniformSlot):
    """T2 with the number of slots in which the target would win against the others there [docs/theory.md, 6].

    Attributes:
      num_rivals, rival_prob: number of other clients that may be in each slot, and their probability, independently.
    """

    num_rivals: int
    rival_prob: float

    def sums(self, neg_log_tail: float) -> equal_steps.StepCounts:
        clients = super().sums(neg_log_tail).clients
        values, masses = slots_won(self.slots, self.num_rivals, self.rival_prob, neg_log_tail)
        return equal_steps.StepCounts(clients, host(1.0), host(values), host(masses))

    def _shown(self, neg_log_tail: float, upper: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not upper:
            return super()._shown(neg_log_tail, upper)
        values, masses = slots_won(self.slots, self.num_rivals, self.rival_prob, neg_log_tail)
        return values, self.use_prob * values / self.slots, masses


@dataclasses.dataclass(frozen=True)
class WeightedSlots(StagedBound):
    """T2+, T2d, or own-laws: slots of two weights.

    In T2+ the target has weight 1 in a slot of its own, weight 1/2 or 0 in a shared one: with C others in its slot it
    wins with probability 1/(C + 1), and has weight 1/2 with probability 2/(C + 1). In T2d nearly all slots have the
    weight that the target has on average.

    Attributes:
      slots, use_prob: as in T2. num_rivals, rival_prob: as in `Contested`, for T2+.
      window: length of the sliding windows of all clients, for T2d; None for T2+, and for common slots.
      fair_dummies: as in `LabelledSlots`, for T2+.
      colluding: number of clients that may collude, for T2d; those in no slot of the target's hide nobody either. In
        common slots T2d is for colluders, and num_rivals, all of whom may be in each slot, are honest.
    """

    slots: int
    use_prob: float
    steps: Steps
    neg_log_tail: float
    num_rivals: int = 0
    rival_prob: float = 0.0
    window: int | None = None
    colluding: int = 0
    fair_dummies: bool = False

    @property
    def _observed_prob(self) -> float:
        # The number of messages in colluders' slots may tell that the target's is among them.
        return 1.0 if self.colluding else self.use_prob

    @functools.cached_property
    def weights(self) -> WeightedSteps | None:
        """The weights of T2+ or of T2d; None if there is no such bound."""
        return self._revealed() if self.window is None and not self.colluding else self._redrawn()

    @property
    def variance(self) -> float:
        """That of the loss, up to a common factor."""
        if self.weights is None:
            return math.inf
        share = staged_clones.fair_share(self.steps) if self._fair else 1.0
        return self.weights._replace(whole=share * self.weights.whole).variance

    @property
    def _fair(self) -> bool:
        """True if slots of weight one have fair bits: in T2+ they have no other client."""
        return self.fair_dummies and self.window is None and not self.colluding

    def _redrawn(self) -> WeightedSteps | None:
        """T2d: labels of the own slot are drawn anew.

        A level has steps of two weights, `heavy` and its share. These are at most r times smaller ones of weights 1 and
        b, b the ratio of the first level's, from a start that is 1/r times as far.
        """
        if self.window is None:
            facts = self.num_rivals, self.slots, self.use_prob, self.neg_log_tail, self.colluding
            levels = redrawn.in_common_slots(*facts)
        elif self.colluding:
            levels = redrawn.beside_colluders(self.slots, self.window, self.neg_log_tail, self.colluding)
        else:
            levels = redrawn.redrawn(self.slots, self.window, self.neg_log_tail)
        if levels is None:
            return None
        (heavy, light), (whole, part) = (each.T for each in levels.two_kinds)
        weight = float(light[0] / heavy[0])
        larger = np.maximum(heavy, light / weight) * (1.0 + 1e-15)
        # The labels at no level are a last one, with the message alone.
        found = (
            self.slots / self.use_prob * (1.0 - 1e-13) / np.append(larger, 1.0),
            np.append(levels.totals, 1.0),
            np.append(whole, 0.0),
            np.append(part, 0.0),
            np.append(levels.masses * (1.0 + 1e-12), levels.lost),
            weight,
        )
        return WeightedSteps(*map(host, found))

    def _revealed(self) -> WeightedSteps:
        """Numbers of slots of weight 1 and of weight 1/2, with masses: an upper bound for any joint law of the two."""
        exponents = chernoff.levels(_BOTH, self.neg_log_tail)
        alone = _empty_prob(self.num_rivals, self.rival_prob) * (1.0 + 1e-12)
        own, more_alone = chernoff.exceeded(self.slots, min(alone, 1.0), exponents)
        # Probability of any weight: 1 if the target is alone, else 2/(C + 1).
        any_share = min(2.0 * win_prob(self.num_rivals, self.rival_prob) - alone * (1.0 - 1e-12), 1.0) * (
            1.0 + 1e-12
        )
        either, more_won = chernoff.exceeded(self.slots, min(any_share, 1.0), exponents)
        either = np.maximum(either, own)
        # Either number may exceed its level.
        beyond, least = more_alone + more_won, own
        if self._fair:
            # A fair bit may count less than half a step that is chosen: empty slots are bounded from below, too.
            occupied, more_occupied = chernoff.exceeded(self.slots, 1.0 - alone * (1.0 - 3e-12), exponents)
            beyond, least = beyond + more_occupied, np.minimum(own, self.slots - occupied)
        beyond = np.minimum(beyond, 1.0)
        survival = np.concatenate([[1.0], beyond, [0.0]])
        # The last level has no halves: where fair bits have the whole weight, it is one message alone.
        whole, part = np.append(own, float(self.slots)), np.append(either - least, 0.0)
        masses = -np.diff(survival) * (1.0 + 1e-12)
        clients, totals = np.full(masses.shape, self.slots / self.use_prob), np.ones(masses.size)
        return WeightedSteps(*map(host, (clients, totals, whole, part, masses, 0.5)))

    def _stated(self) -> staged_clones.GameArguments | None:
        if self.weights is None:
            return None
        return staged_clones.weighted(self.weights, self.steps, self.neg_log_tail, self._fair)


@dataclasses.dataclass(frozen=True)
class LabelledSlots(StagedBound):
    """T2++, or own-laws: n clients in m common slots with hidden dummies; either relation.

    Attributes:
      num_clients, slots, prob: n > 1, m and p_0.
      fair_dummies: True for one-bit messages whose dummies are fair bits.
    """

    num_clients: int
    slots: int
    prob: float
    steps: Steps
    neg_log_tail: float
    fair_dummies: bool = False

    @property
    def includes(self) -> tuple[str, ...]:
        """T2+, which `select` drops if this bound exceeds it by rounding and ranges of occupied slots at most."""
        return ("T2+",) if redrawn.counted(self.num_clients, self.slots) else ()

    @property
    def _observed_prob(self) -> float:
        return self.prob

    @functools.cached_property
    def shares(self) -> redrawn.LabelledShares | None:
        """Upper bounds on the weight of the target's message in every slot, part by part; None if there are none."""
        return redrawn.labelled(self.num_clients, self.slots, self.prob, self.neg_log_tail)

    def _stated(self) -> staged_clones.GameArguments | None:
        if self.shares is None:
            return None
        if self.fair_dummies and (found := self._beside_dummies(self.shares)) is not None:
            return found
        numbers = np.full(self.shares.masses.shape, float(self.slots))
        sums = equal_steps.StepCounts(
            host(self.shares.clients), host(1.0), host(numbers), host(self.shares.masses)
        )
        return staged_clones.parts(sums, self.steps, self.shares.lost, self.neg_log_tail)

    def _beside_dummies(self, shares: redrawn.LabelledShares) -> staged_clones.GameArguments | None:
        """The steps of named slots, and fair bits in the others; None if few slots are named."""
        # The labels in no part are a last one, with the message alone.
        found = (
            np.append(shares.clients, self.slots / self.prob),
            np.ones(shares.named.size + 1),
            np.append(self.slots - shares.named, 0.0),
            np.append(shares.named, 0.0),
            np.append(shares.masses, shares.lost),
            1.0,
        )
        return staged_clones.weighted(WeightedSteps(*map(host, found)), self.steps, self.neg_log_tail, True)
