"""allocation in sliding windows with hidden dummies: R5 by the overlap of windows, G9 and R7 by throwing clients anew.

R5 (a record replaced): the target displaces one of the group of its co-occupants. The group could have been in any slot
of the overlap of its windows that is empty without it. Groups with a small overlap get a larger part of the threshold.

G9 (add-or-remove): if the target is drawn, its co-occupants are a random part of the clients that could be there, so
they are thrown into other slots; the cost is the divergence of a world without a few clients, by G3. The target then
counts as in an empty slot, with a larger probability. R7 is R2 with G9 there and G3 back.

Sums are a post-processing of the slots. Gaussian messages. Proofs: docs/theory_allocation.md, 2b and 2c. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, AsymmetricBound, UnitBound, Witness
from checkin_jax.accounting.bounds.messages.subsampling import sometimes
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.mixtures import ReplacedShares, Share, TwoSteps
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    MOST_LATTICE_MU,
    OneOfSlots,
    OppositeRecords,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff, occupancy

# R5: the fewest slots of a window, and the least mu, at which it is worth its time.
_FEWEST_SLOTS, _LEAST_MU = 256, 1.5
# Factor of m/overlap in the thresholds.
_NARROW = 0.17
# Overlaps below this share of the window have the same threshold; number of classes of overlaps.
_LEAST_OVERLAP, _OVERLAPS = 0.005, 22
# Tails of the numbers of empty slots, and of the sum of the thresholds, as -log of their masses.
_TAILS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0)
# Every _STEP-th tail has its own number of empty slots, since each costs a lattice.
_STEP = 4
# Numbers of empty slots in an overlap, in a ratio of about 1.24.
_LEVELS = np.unique(np.floor(1.24 ** np.arange(112.0)))
# Values of c - 1 at which the groups' contribution is evaluated.
_SCALES = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 480)])
# neg_log_tail of a pair: reduced by its log probability, plus _MARGIN, and at least _LEAST_MASS.
_MARGIN, _LEAST_MASS = 2.0, 6.0
# It is rounded up to a multiple of this, so that calls with other deltas share pairs.
_ALIKE = 4.0
# Exponents tried in Chernoff's bound.
_EXPONENTS = np.geomspace(1e-6, 1e3, 400)
# G9, R7: the range of slots of a window, and the least mu, at which they are worth their time.
_FEWEST_ANEW, _MOST_ANEW, _LEAST_MU_ANEW = 64, 10**6, 1.0
# Tails of the numbers of slots, as -log of their masses, and exponents tried in Chernoff's bound.
_TAILS_ANEW, _EXPONENTS_ANEW = (0.5, 1.5, 3.0, 5.0, 8.0, 12.0, 18.0), np.geomspace(1e-4, 1e3, 400)
# log theta, theta the factor by which the world without a few clients is compared.
_FACTORS = np.geomspace(3e-3, 2.5, 40)
# Relative rounding of closed forms, with a wide margin. It is added, or subtracted, on the safe side.
_NEAR = 1e-11


class _Groups(NamedTuple):
    """Groups of s co-occupants of the target's slot, by s and by overlap (rounded down), [sizes, overlaps].

    chance: mean share of slots with such a group, from above. rest: the same for larger groups. stretch: m times the
    part of the threshold's scale that such a slot takes; [overlaps].
    """

    others: np.ndarray
    overlap: np.ndarray
    chance: np.ndarray
    rest: float
    stretch: np.ndarray


@functools.lru_cache(maxsize=512)
def _pair(slots: int, mu: float, neg_log_tail: float) -> UnitBound:
    """The pair of opposite records in one of `slots` slots; a single slot hides nothing."""
    if slots == 1:
        return sometimes(1.0, mu)
    return OppositeRecords(slots, 1.0, mu, neg_log_tail)


def _between(tails: np.ndarray) -> np.ndarray:
    """Probability between each tail and the one before, rounded up."""
    return -np.diff(np.exp(-tails), prepend=1.0) * (1.0 + 1e-12)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Laws of a target's window, rounded to the safe side, and thresholds of the groups in its slots, for R5.

    The threshold of a group of s others with overlap o is max(1, _NARROW m/o) (c - 1)(s + 1)/2. As a bound it is the
    contribution of the groups, and of tails with more empty slots than their part of the threshold allows.

    Attributes:
      window: m >= 2, the slots of each client. mu: 2 / noise_multiplier. neg_log_tail: as in `OneOfSlots`.
    """

    window: int
    mu: float
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    name = "allocation"
    largest_loss = math.inf

    @property
    def _free(self) -> float:
        """Lower bound on the probability that a slot of the overlap is empty, given that another one is."""
        m = self.window
        return math.exp((m - 2.0) * math.log1p(-1.0 / (m - 1.0)) if m > 2 else 0.0) * (1.0 - 1e-12)

    @functools.cached_property
    def groups(self) -> _Groups:
        m = self.window
        sizes, rest = occupancy.overlap_sizes(m, self.neg_log_tail)
        edges = np.unique(np.floor(m * np.geomspace(0.5 * _LEAST_OVERLAP, 1.0, _OVERLAPS)[:-1]))
        edges = np.unique(np.append(0.0, edges))
        others = np.arange(1.0, sizes.size + 1.0)
        share = [np.diff(occupancy.overlap_shares(m, int(s), np.append(edges, m))) for s in others]
        wide = _NARROW * m / np.maximum(edges + 1.0, _LEAST_OVERLAP * m)
        stretch = 0.5 * np.maximum(wide, 1.0)
        return _Groups(others, edges + 1.0, sizes[:, None] * np.array(share), rest, stretch)

    @functools.cached_property
    def tails(self) -> np.ndarray:
        return chernoff.levels(_TAILS, self.neg_log_tail)

    @functools.cached_property
    def taken(self) -> np.ndarray:
        """Upper bounds on the sum of the thresholds of all slots, in units of their scale, by tail."""
        groups, m = self.groups, self.window
        mass = groups.chance.sum(axis=0)
        # Moments beyond e^600 are useless.
        moments = np.expm1(np.minimum(_EXPONENTS[:, None] * groups.stretch, 600.0))
        log_moment = m * (moments @ mass + groups.rest * moments[:, 0])
        # Half of each tail is for the number of empty slots.
        least = np.min((log_moment[:, None] + self.tails + math.log(2.0)) / _EXPONENTS[:, None], axis=0)
        return least / m * (1.0 + 1e-9)

    @functools.cached_property
    def empty(self) -> tuple[int, ...]:
        """Upper bounds on the number of empty slots of the window, by tail; few distinct values."""
        m = self.window
        filled = -math.expm1((m - 1.0) * math.log1p(-1.0 / m)) * (1.0 - 1e-12)
        fewest = chernoff.fewest(np.array(float(m)), filled, self.tails + math.log(2.0))
        at = np.minimum((np.arange(fewest.size) // _STEP + 1) * _STEP, fewest.size) - 1
        return tuple(max(m - int(each), 1) for each in fewest[at])

    @functools.cached_property
    def hidden(self) -> tuple[tuple[int, UnitBound, np.ndarray], ...]:
        """(empty slots, their pair, probability by overlap) of a law stochastically below that of empty slots."""
        groups = self.groups
        fewest = 1.0 + chernoff.fewest(groups.overlap[:, None] - 1.0, self._free, self.tails)
        reached = np.exp(-self.tails)
        # All windows share the levels, except for the largest.
        first = float(fewest.max())
        levels = np.append(_LEVELS[np.less(_LEVELS, 0.98 * first)], first)
        at = np.searchsorted(levels, fewest, side="right") - 1
        law = np.zeros((levels.size, groups.overlap.size))
        for column, places in enumerate(at):
            np.add.at(law[:, column], places, _between(self.tails))
        law[0] += reached[-1]
        share = np.sum(groups.chance / (groups.others + 1.0)[:, None], axis=0)
        found = []
        for level, row in zip(levels, law):
            if row.any():
                # A level of small probability needs less accuracy.
                mass = max(
                    self.neg_log_tail + min(math.log(max(share @ row, 1e-300)) + _MARGIN, 0.0), _LEAST_MASS
                )
                pair = _pair(int(level), self.mu, _ALIKE * math.ceil(mass / _ALIKE))
                found.append((int(level), pair, row))
        return tuple(found)

    @functools.cached_property
    def displacing(self) -> np.ndarray:
        """Upper bounds on the groups' contribution at each of `_SCALES`."""
        groups = self.groups
        used = groups.chance / (groups.others + 1.0)[:, None]
        total = np.full(_SCALES.size, groups.rest / (groups.others.size + 2.0))
        for _, pair, law in self.hidden:
            here = law > 0.0
            apart = _SCALES[:, None, None] * ((groups.others + 1.0)[:, None] * groups.stretch[here])
            weight = used[:, here] * law[here]
            total += np.sum(weight * pair.upper(np.log1p(apart) * (1.0 - 1e-14)), axis=(1, 2))
        return total * (1.0 + ROUNDING)

    @functools.cached_property
    def alone(self) -> tuple[list[Share], float, float]:
        """Shares of the target in place of a dummy; and constant and factor of c - 1 for the other tails.

        Where theta < E/m the bound is E/m + (c - 1)(E/m - theta).
        """
        # Beyond the last tail thresholds add up to at most that of all slots.
        beyond, shares = math.exp(-self.neg_log_tail), []
        missing_mass, more = beyond, beyond * (1.0 + float(self.groups.stretch[0]))
        between = _between(self.tails)
        for first in range(0, self.tails.size, _STEP):
            last = min(first + _STEP, self.tails.size) - 1
            weight, theta = float(between[first : last + 1].sum()), 1.0 - float(self.taken[last])
            share = self.empty[last] / self.window * (1.0 + 1e-15)
            if share < theta:
                pair = OppositeRecords(self.empty[last], share / theta, self.mu, self.neg_log_tail)
                shares.append(Share(weight * theta, pair))
            else:
                missing_mass, more = missing_mass + weight * share, more + weight * (share - theta)
        return shares, missing_mass, more

    def upper(self, loss: np.ndarray) -> np.ndarray:
        above = np.expm1(loss)
        _, missing_mass, more = self.alone
        return convex.falling(above * (1.0 - 1e-14), _SCALES, self.displacing) + missing_mass + more * above


def overlapping(windows: Windows) -> ReplacedShares:
    """R5: a record is replaced; all of the target's slot hide among the empty slots of their overlap."""
    shares, _, _ = windows.alone
    return ReplacedShares((Share(1.0, windows), *shares), 0.0)


@dataclasses.dataclass(frozen=True)
class ResampledNeighbours(AsymmetricBound):
    """G9: add-or-remove; co-occupants of the target's slot are resampled. Backward, G3.

    Attributes:
      window: m. mu: 2 / noise_multiplier. neg_log_tail: -log of the negligible mass.
    """

    window: int
    mu: float
    neg_log_tail: float

    name = "allocation"

    def _g3(self, slots: int) -> OneOfSlots:
        return gaussian_among_others(slots, 1.0, self.mu, self.neg_log_tail)

    @property
    def _nobody(self) -> float:
        """Probability that a slot is empty without the target, to 1e-12."""
        return math.exp((self.window - 1.0) * math.log1p(-1.0 / self.window))

    @functools.cached_property
    def _empty_weights(self) -> tuple[np.ndarray, np.ndarray]:
        """W at `_FACTORS`, W/m the weight of the target in each empty slot; and the divergence to be added."""
        m, factor = float(self.window), np.exp(_FACTORS)
        # E(1 - theta dP/dQ)_+ for one co-occupant present or absent, in m - 1 slots.
        co_occupant = self._g3(self.window - 1).side(_FACTORS, True)
        used = -math.expm1(m * math.log1p(-1.0 / m))
        # W = E theta^S/(S + 1) / Pr(S = 0), S the number of others in the target's slot.
        power = m * np.log1p((factor - 1.0) / m)
        often = np.expm1(power - m * math.log1p(-1.0 / m)) * (1.0 - 1.0 / m) / factor * (1.0 + _NEAR)
        missed = np.maximum(often * self._nobody * (1.0 + _NEAR) - used * (1.0 - _NEAR), 0.0)
        return often, missed / (factor - 1.0) * co_occupant * (1.0 + ROUNDING)

    @functools.cached_property
    def _levels(self) -> tuple[tuple[float, int, float], ...]:
        """(probability, most empty slots, least mean over the slots of min(1/2, 1/(s + 1))), s the load, by tail."""
        m = self.window
        tails = chernoff.levels(_TAILS_ANEW, self.neg_log_tail)
        # Half of each tail is for the number of empty slots.
        halves = tails + math.log(2.0)
        nobody = self._nobody * (1.0 + _NEAR)
        empty = chernoff.most(float(m), nobody, halves)
        sizes, rest = occupancy.overlap_sizes(m, self.neg_log_tail)
        chances = np.append(nobody, sizes)
        part = np.minimum(0.5, 1.0 / (np.arange(chances.size) + 1.0))
        moment = np.exp(-_EXPONENTS_ANEW[:, None] * part) @ chances + rest
        least = -m * np.log(moment)[:, None] - halves
        taken = np.maximum(np.max(least / _EXPONENTS_ANEW[:, None], axis=0), 0.0) / m * (1.0 - 1e-9)
        found = zip(_between(tails), empty, taken)
        return tuple((float(mass), max(int(most), 1), float(part)) for mass, most, part in found)

    @functools.cached_property
    def _alone(self) -> tuple[OneOfSlots, ...]:
        """Pairs of the target in place of a dummy, by tail."""
        return tuple(
            gaussian_in_slots(most, 1.0, 0.5 * self.mu, self.neg_log_tail) for _, most, _ in self._levels
        )

    def _forward(self, loss: np.ndarray) -> np.ndarray:
        often, short = self._empty_weights
        above = np.expm1(loss)[:, None]
        total = short + math.exp(-self.neg_log_tail) * (1.0 + often)
        for (mass, most, taken), pair in zip(self._levels, self._alone):
            used = often * (most / self.window) * (1.0 + 1e-15)
            rest = above + taken - (used - 0.5 * most / self.window) - 1e-13 * (1.0 + above)
            value = pair.side(np.log1p(np.maximum(rest, 0.0) / used) * (1.0 - 1e-13), False)
            # E(Y + a)_+ <= E Y_+ + a for a >= 0.
            total = total + mass * np.minimum(used * value + np.maximum(-rest, 0.0), 1.0 + often)
        return np.minimum(np.min(total, axis=1) * (1.0 + ROUNDING), 1.0)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        by_g3 = self._g3(self.window).side(loss, backward)
        if backward:
            return by_g3
        flat = np.minimum(np.ravel(np.asarray(loss, dtype=np.float64)), MAX_LOSS)
        return np.minimum(by_g3, self._forward(flat).reshape(np.shape(loss)))


def r5(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a record is replaced."""
    window, mu, slots = unit.protocol.sliding_window, unit.randomizer.gaussian_mu, unit.slots
    if not unit.replaced or window is None or mu is None or slots is None or slots.number < _FEWEST_SLOTS:
        return None
    # With larger sums the bound gains only at larger mu.
    if not _LEAST_MU * math.sqrt(unit.sum_size) <= mu <= MOST_LATTICE_MU:
        return None
    return overlapping(Windows(window, mu, unit.neg_log_tail))


def _resampled(unit: Unit) -> ResampledNeighbours | None:
    window, mu, slots = unit.protocol.sliding_window, unit.randomizer.gaussian_mu, unit.slots
    if window is None or mu is None or slots is None or slots.number < _FEWEST_ANEW:
        return None
    if window > _MOST_ANEW or not _LEAST_MU_ANEW <= mu <= MOST_LATTICE_MU:
        return None
    return ResampledNeighbours(window, mu, unit.neg_log_tail)


def g9(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a client is added or removed."""
    return None if unit.replaced else _resampled(unit)


def r7(unit: Unit) -> UnitBound | None:
    """Needs: as G9; a record is replaced."""
    pair = _resampled(unit) if unit.replaced else None
    return None if pair is None else TwoSteps(pair)
