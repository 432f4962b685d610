"""allocation in sliding windows with hidden dummies, a record replaced (R5), by the overlap of windows.

The target displaces one of the group of its co-occupants. The group could have been in any slot of the overlap of its
windows that is empty without it. Groups with a small overlap get a larger part of the threshold. Gaussian messages.
Proof: docs/theory_allocation.md, 2b. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, UnitBound, Witness
from checkin_jax.accounting.bounds.messages.subsampling import sometimes
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.displaced import OppositeRecords
from checkin_jax.accounting.bounds.windows.one_of_slots import MOST_LATTICE_MU
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff, window_overlap

# The fewest slots of a window, and the least mu, at which the bound is worth its time.
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


@dataclasses.dataclass(frozen=True)
class Windows:
    """Laws of a target's window, rounded to the safe side, and thresholds of the groups in its slots.

    The threshold of a group of s others with overlap o is max(1, _NARROW m/o) (c - 1)(s + 1)/2.

    Attributes:
      window: m >= 2, the slots of each client. mu: 2 / noise_multiplier. neg_log_tail: as in `OneOfSlots`.
    """

    window: int
    mu: float
    neg_log_tail: float

    @property
    def _free(self) -> float:
        """Lower bound on the probability that a slot of the overlap is empty, given that another one is."""
        m = self.window
        return math.exp((m - 2.0) * math.log1p(-1.0 / (m - 1.0)) if m > 2 else 0.0) * (1.0 - 1e-12)

    @functools.cached_property
    def groups(self) -> _Groups:
        m = self.window
        sizes, rest = window_overlap.sizes(m, self.neg_log_tail)
        edges = np.unique(np.floor(m * np.geomspace(0.5 * _LEAST_OVERLAP, 1.0, _OVERLAPS)[:-1]))
        edges = np.unique(np.append(0.0, edges))
        others = np.arange(1.0, sizes.size + 1.0)
        share = [np.diff(window_overlap.shares(m, int(s), np.append(edges, m))) for s in others]
        wide = _NARROW * m / np.maximum(edges + 1.0, _LEAST_OVERLAP * m)
        stretch = 0.5 * np.maximum(wide, 1.0)
        return _Groups(others, edges + 1.0, sizes[:, None] * np.array(share), rest, stretch)

    @functools.cached_property
    def tails(self) -> np.ndarray:
        return np.array([*(each for each in _TAILS if each < self.neg_log_tail), self.neg_log_tail])

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
            np.add.at(law[:, column], places, self.between)
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

    @property
    def beyond(self) -> float:
        """Probability beyond the last tail."""
        return math.exp(-self.neg_log_tail)

    @property
    def most(self) -> float:
        """Largest sum of the thresholds of all slots, in units of their scale."""
        return float(self.groups.stretch[0])

    @functools.cached_property
    def between(self) -> np.ndarray:
        """Probability between each tail and the one before, rounded up."""
        return -np.diff(np.exp(-self.tails), prepend=1.0) * (1.0 + 1e-12)


@dataclasses.dataclass(frozen=True)
class OverlapReplace:
    """R5: a record is replaced; all of the target's slot hide among the empty slots of their overlap. Symmetric.

    Attributes:
      windows: of the target.
    """

    windows: Windows
    witnesses: tuple[Witness, ...] = ()

    name = "allocation"
    largest_loss = math.inf

    @functools.cached_property
    def _alone(self) -> tuple[tuple[tuple[float, float, OppositeRecords], ...], tuple[float, float]]:
        """(probability, theta, pair) of the target in place of a dummy; (constant, factor of c - 1) for other tails.

        Where theta < E/m the bound is E/m + (c - 1)(E/m - theta).
        """
        of, found = self.windows, []
        missing_mass, more = of.beyond, of.beyond * (1.0 + of.most)
        for first in range(0, of.tails.size, _STEP):
            last = min(first + _STEP, of.tails.size) - 1
            weight, theta = float(of.between[first : last + 1].sum()), 1.0 - float(of.taken[last])
            share = of.empty[last] / of.window * (1.0 + 1e-15)
            if share < theta:
                pair = OppositeRecords(of.empty[last], share / theta, of.mu, of.neg_log_tail)
                found.append((weight, theta, pair))
            else:
                missing_mass, more = missing_mass + weight * share, more + weight * (share - theta)
        return tuple(found), (missing_mass, more)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        alone, (missing_mass, more) = self._alone
        above = np.expm1(loss)
        total = (
            convex.falling(above * (1.0 - 1e-14), _SCALES, self.windows.displacing)
            + missing_mass
            + more * above
        )
        for weight, theta, pair in alone:
            total = total + weight * theta * pair.upper(loss)
        return np.minimum(total * (1.0 + ROUNDING), 1.0)


def r5(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a record is replaced."""
    window, mu = unit.protocol.sliding_window, unit.randomizer.gaussian_mu
    slots = unit.slots
    if not unit.replaced or window is None or mu is None or slots is None or slots.number < _FEWEST_SLOTS:
        return None
    # Sums are a post-processing of the slots; with larger sums the bound gains only at larger mu.
    size = slots.minibatch if unit.summed_slots else 1
    if not _LEAST_MU * math.sqrt(size) <= mu <= MOST_LATTICE_MU:
        return None
    return OverlapReplace(Windows(window, mu, unit.neg_log_tail))
