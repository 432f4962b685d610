"""G6 and R5: sliding windows with hidden dummies; all who are in the client's slot hide among the empty slots with it.

The client takes the place of one of a group of others, who might all have been in any slot of the overlap of their
windows that is empty without them. Groups with a small overlap get a larger part of the threshold. Gaussian messages.
Proof: docs/theory_allocation.md, section 2b. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, Directed, Instance, UnitBound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.allocated_sums import (
    MOST_LATTICE_MU,
    AllocationGaussian,
    R1Subsampling,
)
from checkin_jax.accounting.bounds.windows.displaced import OppositeRecords
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff, window_overlap

# The fewest slots of a window, and the least mu, that are worth it.
_FEWEST_SLOTS, _LEAST_MU = 256, 1.5
# What a replaced record's thresholds grow by as overlaps shrink.
_NARROW = 0.17
# Overlaps below this share of the window are not told apart; how many others are.
_LEAST_OVERLAP, _OVERLAPS = 0.005, 22
# Tails of the numbers of empty slots, and of what the thresholds add up to, as logarithms of inverse masses.
_TAILS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0)
# Of these every so many is a number of empty slots of its own where each costs a lattice.
_STEP = 4
# Numbers of empty slots in an overlap: each so much below the next, or more.
_LEVELS = np.unique(np.floor(1.24 ** np.arange(112.0)))
# Scales of the thresholds, and parts of the threshold that they take.
_SCALES = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 480)])
_PARTS = np.linspace(0.04, 1.0, 25)
# Pairs are followed to masses that count as much as others', but for this as a logarithm; and to e^-`_LEAST_MASS`.
_MARGIN, _LEAST_MASS = 2.0, 6.0
# And to multiples of this, so that calls for other deltas share them.
_ALIKE = 4.0
# Exponents of Chernoff's bound that are tried.
_EXPONENTS = np.geomspace(1e-6, 1e3, 400)


class _Groups(NamedTuple):
    """Groups of s others in a slot with the client by s and by overlap, [sizes, overlaps]; overlaps rounded down.

    chance: the number of slots with such a group, on average, over m, from above. rest: of larger ones.
    stretch: what of the threshold's scale such a slot takes, times m; [overlaps].
    """

    others: np.ndarray
    overlap: np.ndarray
    chance: np.ndarray
    rest: float
    stretch: np.ndarray


@functools.lru_cache(maxsize=512)
def _pair(slots: int, mu: float, log_inverse_mass: float) -> UnitBound:
    """Opposite records in one of so many slots; in a single one nothing hides them."""
    if slots == 1:
        return R1Subsampling(1.0, mu)
    return OppositeRecords(slots, 1.0, mu, log_inverse_mass)


@dataclasses.dataclass(frozen=True)
class Windows:
    """What is known of a client's window, from the side that is safe, and of the thresholds of the groups in its slots.

    Attributes:
      window: m >= 2, the slots of each client. mu: 2 / noise_multiplier. log_inverse_mass: as in `AllocationGaussian`.
      least: the threshold of a group of s others is at least so many (s + 2)/2 scales.
      narrow: and so many (s + 2)/2 scales m/o, o the overlap.
    """

    window: int
    mu: float
    log_inverse_mass: float
    least: float
    narrow: float

    @property
    def _free(self) -> float:
        """A slot that is in all their windows is empty with this probability at least, where another one is."""
        m = self.window
        return math.exp((m - 2.0) * math.log1p(-1.0 / (m - 1.0)) if m > 2 else 0.0) * (1.0 - 1e-12)

    @functools.cached_property
    def groups(self) -> _Groups:
        m = self.window
        sizes, rest = window_overlap.sizes(m, self.log_inverse_mass)
        edges = np.unique(np.floor(m * np.geomspace(0.5 * _LEAST_OVERLAP, 1.0, _OVERLAPS)[:-1]))
        edges = np.unique(np.append(0.0, edges))
        others = np.arange(1.0, sizes.size + 1.0)
        share = [np.diff(window_overlap.shares(m, int(s), np.append(edges, m))) for s in others]
        wide = self.narrow * m / np.maximum(edges + 1.0, _LEAST_OVERLAP * m)
        stretch = 0.5 * np.maximum(wide, self.least)
        return _Groups(others, edges + 1.0, sizes[:, None] * np.array(share), rest, stretch)

    @functools.cached_property
    def tails(self) -> np.ndarray:
        return np.array([*(each for each in _TAILS if each < self.log_inverse_mass), self.log_inverse_mass])

    @functools.cached_property
    def taken(self) -> np.ndarray:
        """What the thresholds of all slots add up to, in units of their scale, but for each of the tails."""
        groups, m = self.groups, self.window
        mass = groups.chance.sum(axis=0)
        # Beyond e^600 a moment is too large to matter as it is.
        moments = np.expm1(np.minimum(_EXPONENTS[:, None] * groups.stretch, 600.0))
        log_moment = m * (moments @ mass + groups.rest * moments[:, 0])
        # Half of each tail is for the number of empty slots.
        least = np.min((log_moment[:, None] + self.tails + math.log(2.0)) / _EXPONENTS[:, None], axis=0)
        return least / m * (1.0 + 1e-9)

    @functools.cached_property
    def empty(self) -> tuple[int, ...]:
        """No more slots of the window are empty, but for each of the tails; a few numbers only."""
        m = self.window
        filled = -math.expm1((m - 1.0) * math.log1p(-1.0 / m)) * (1.0 - 1e-12)
        fewest = chernoff.fewest(np.array(float(m)), filled, self.tails + math.log(2.0))
        at = np.minimum((np.arange(fewest.size) // _STEP + 1) * _STEP, fewest.size) - 1
        return tuple(max(m - int(each), 1) for each in fewest[at])

    @functools.cached_property
    def hidden(self) -> tuple[tuple[int, UnitBound, np.ndarray], ...]:
        """So many empty slots, their pair, and the probability of no more than these by overlap; [overlaps]."""
        groups = self.groups
        fewest = 1.0 + chernoff.fewest(groups.overlap[:, None] - 1.0, self._free, self.tails)
        reached = np.exp(-self.tails)
        # The same ones for all windows, but for the first.
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
                # What counts little is not followed as far.
                mass = max(
                    self.log_inverse_mass + min(math.log(max(share @ row, 1e-300)) + _MARGIN, 0.0),
                    _LEAST_MASS,
                )
                pair = _pair(int(level), self.mu, _ALIKE * math.ceil(mass / _ALIKE))
                found.append((int(level), pair, row))
        return tuple(found)

    @functools.cached_property
    def displacing(self) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds, in both directions, on what the groups add, at each of `_SCALES`."""
        groups = self.groups
        used = groups.chance / (groups.others + 1.0)[:, None]
        lost = groups.rest / (groups.others.size + 2.0)
        ahead, back = np.full(_SCALES.size, lost), np.full(_SCALES.size, lost)
        for _, pair, law in self.hidden:
            here = law > 0.0
            apart = _SCALES[:, None, None] * ((groups.others + 1.0)[:, None] * groups.stretch[here])
            weight = used[:, here] * law[here]
            ahead += np.sum(weight * pair.upper(np.log1p(apart) * (1.0 - 1e-14)), axis=(1, 2))
            left = np.maximum(1.0 - apart * (1.0 - 1e-15), 0.0)
            loss = -np.log(np.maximum(left, 1e-300)) * (1.0 - 1e-14)
            back += np.sum(weight * left * pair.upper(loss), axis=(1, 2))
        return ahead * (1.0 + ROUNDING), back * (1.0 + ROUNDING)

    @property
    def beyond(self) -> float:
        """The probability of what is beyond the last of the tails."""
        return math.exp(-self.log_inverse_mass)

    @property
    def most(self) -> float:
        """What the thresholds of all slots add up to at most, in units of their scale."""
        return float(self.groups.stretch[0])

    @functools.cached_property
    def between(self) -> np.ndarray:
        """The probability of what lies between one of the tails and the one before."""
        return -np.diff(np.exp(-self.tails), prepend=1.0) * (1.0 + 1e-12)


@dataclasses.dataclass(frozen=True)
class SlidingAmongDummies(Directed):
    """G6: a client is added or removed; all in its slot are hidden among the empty slots that all of them could be in.

    Attributes:
      windows: the client's, with thresholds of any scale.
    """

    windows: Windows
    instances: tuple[Instance, ...] = ()

    name = "allocation"

    @functools.cached_property
    def _alone(self) -> tuple[AllocationGaussian, ...]:
        """The client in place of a dummy, for each of the tails."""
        of = self.windows
        made = {
            e: AllocationGaussian(
                e, min(e / of.window * (1.0 + 1e-15), 1.0), 0.5 * of.mu, of.log_inverse_mass
            )
            for e in set(of.empty)
        }
        return tuple(made[e] for e in of.empty)

    def _shared(self, above: np.ndarray, values: np.ndarray, reverse: bool) -> np.ndarray:
        """E (sum - above)_+ for the best part of `above` that the groups take; [above].

        values: of the groups at `_SCALES`.
        """
        of = self.windows
        scale = above[:, None] * _PARTS / of.taken[of.tails.size // 2]
        # Between scales the bound is convex; beyond the last it falls.
        total = convex.falling(scale, _SCALES, values) + of.beyond * (1.0 + scale * of.most)
        for weight, taken, pair in zip(of.between, of.taken, self._alone):
            rest = above[:, None] - scale * taken * (1.0 + 1e-14)
            inside = np.maximum(rest, 0.0)
            if reverse:
                loss = -np.log1p(-np.minimum(inside, 1.0 - 1e-16)) * (1.0 - 1e-12)
                value = np.exp(-loss) * pair.side(loss, True)
            else:
                value = pair.side(np.log1p(inside) * (1.0 - 1e-12), False)
            # A sum Y + a with a >= 0 has the positive part E Y_+ + a at most.
            total += weight * np.where(rest >= 0.0, value, pair.used - rest)
        return np.minimum(np.min(total, axis=1) * (1.0 + ROUNDING), 1.0)

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flat = np.minimum(np.ravel(np.asarray(loss, dtype=np.float64)), MAX_LOSS)
        ahead, back = self.windows.displacing
        forward = self._shared(np.expm1(flat), ahead, False)
        backward = np.minimum(np.exp(flat) * self._shared(-np.expm1(-flat), back, True), 1.0)
        return forward.reshape(np.shape(loss)), backward.reshape(np.shape(loss))


@dataclasses.dataclass(frozen=True)
class RecordsSliding:
    """R5: a client's record is replaced; both records, and all in the client's slot, are hidden as in G6. Symmetric.

    Attributes:
      windows: the client's, with thresholds of the scale c - 1 and `least` 1.
    """

    windows: Windows
    instances: tuple[Instance, ...] = ()

    name = "allocation"
    top = math.inf

    @functools.cached_property
    def _alone(self) -> tuple[tuple[tuple[float, float, OppositeRecords], ...], tuple[float, float]]:
        """(probability, theta, pair) of the client in place of a dummy; and what is lost where theta is too small.

        There a sum of mean zero plus E/m + (c - 1)(E/m - theta): (constant, factor of c - 1).
        """
        of, found = self.windows, []
        lost, more = of.beyond, of.beyond * (1.0 + of.most)
        for first in range(0, of.tails.size, _STEP):
            last = min(first + _STEP, of.tails.size) - 1
            weight, theta = float(of.between[first : last + 1].sum()), 1.0 - float(of.taken[last])
            share = of.empty[last] / of.window * (1.0 + 1e-15)
            if share < theta:
                pair = OppositeRecords(of.empty[last], share / theta, of.mu, of.log_inverse_mass)
                found.append((weight, theta, pair))
            else:
                lost, more = lost + weight * share, more + weight * (share - theta)
        return tuple(found), (lost, more)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        alone, (lost, more) = self._alone
        above = np.expm1(loss)
        total = (
            convex.falling(above * (1.0 - 1e-14), _SCALES, self.windows.displacing[0]) + lost + more * above
        )
        for weight, theta, pair in alone:
            total = total + weight * theta * pair.upper(loss)
        return np.minimum(total * (1.0 + ROUNDING), 1.0)


def _windows(unit: Unit, least: float, narrow: float) -> Windows | None:
    window, mu = unit.protocol.sliding_window, unit.randomizer.gaussian_mu
    slots = unit.slots
    if window is None or mu is None or slots is None or slots.number < _FEWEST_SLOTS:
        return None
    # Sums say no more than the slots do, and have less to hide where they are of many.
    size = slots.minibatch if unit.summed_slots else 1
    if not _LEAST_MU * math.sqrt(size) <= mu <= MOST_LATTICE_MU:
        return None
    return Windows(window, mu, unit.log_inverse_mass, least, narrow)


def g6(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a client is added or removed."""
    windows = None if unit.replaced else _windows(unit, 0.0, 1.0)
    return None if windows is None else SlidingAmongDummies(windows)


def r5(unit: Unit) -> UnitBound | None:
    """Needs: as G6; a record is replaced."""
    windows = _windows(unit, 1.0, _NARROW) if unit.replaced else None
    return None if windows is None else RecordsSliding(windows)
