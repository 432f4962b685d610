"""allocation in common slots with hidden dummies (G7), empty and occupied slots in one sum.

The target has weight p_0 / m in an empty slot, in place of a dummy, and p_0 / m times its chance to be drawn in an
occupied one, in place of another client. Gaussian messages. Proof: docs/theory_allocation.md, 2.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, AsymmetricBound, UnitBound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.one_of_slots import LEAST_MU, MOST_LATTICE_MU
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import allocation_losses
from checkin_jax.numerics.counts import occupancy

# Ends of ranges of the number of occupied slots, in standard deviations from its mean; one range beyond _COUNTED
# clients or slots.
_EDGES = np.array([-6.0, -2.5, -1.2, -0.4, 0.4, 1.2, 2.5, 6.0])
_COUNTED = 5_000
# The range in which the bound is worth its time: mean number of empty slots (G3' serves below), slots, and mu.
_FEWEST_EMPTY, _FEWEST, _MOST, _MOST_MU = 0.02, 32, 10**6, 1.7
# The rounding of transforms matters below this mu.
_LEAST_MU = 1e-3
# neg_log_tail of sums is rounded up to a multiple of this, so that calls with other deltas share them.
_ALIKE = 8.0
_excess = functools.lru_cache(maxsize=128)(allocation_losses.Excess)


@dataclasses.dataclass(frozen=True)
class CompetingClients(AsymmetricBound):
    """G7: n clients, one of which is added or removed, in m common slots with hidden dummies.

    Attributes:
      num_clients, slots, prob: n > 1, m and p_0. mu: 2 / noise_multiplier.
      neg_log_tail: -log of the negligible mass.
    """

    num_clients: int
    slots: int
    prob: float
    mu: float
    neg_log_tail: float

    name = "allocation"

    def _kinds(self, fewest: int, most: int, participants: int) -> tuple[allocation_losses.EqualTerms, ...]:
        """Terms, in units of p_0/m, if at least `participants` others occupy from `fewest` to `most` slots."""
        kinds = []
        if fewest < self.slots:
            kinds.append(allocation_losses.EqualTerms(self.slots - fewest, 0.5 * self.mu, 1.0))
        if most > 0:
            kinds.append(
                allocation_losses.EqualTerms(most, self.mu, occupancy.taken(max(participants, most), most))
            )
        return tuple(kinds)

    @functools.cached_property
    def _cells(self) -> tuple[tuple[tuple[int, int, float], ...], float]:
        """(fewest, most, probability) of ranges of occupied slots; and the probability of the rest. Both rounded up."""
        n, m, mass = self.num_clients, self.slots, self.neg_log_tail
        most = min(n - 1, m)
        mean, variance = occupancy.moments(n - 1.0, float(m), self.prob)
        if n <= _COUNTED and m <= _COUNTED:
            law = occupancy.exact(n - 1, m, self.prob)
            edges = np.unique(np.clip(np.rint(mean + math.sqrt(variance) * _EDGES), -1, most))
            edges = np.unique(np.append(edges, [-1.0, float(most)])).astype(int)
            cells = [
                (int(low) + 1, int(high), float(law[low + 1 : high + 1].sum()) * (1.0 + 1e-9))
                for low, high in itertools.pairwise(edges)
            ]
            return tuple(each for each in cells if each[2] > 0.0), 0.0
        # One range, narrow for so many slots, holds all but negligible mass.
        away = occupancy.deviation(variance, mass)
        ends = max(math.ceil(mean - away), 0), min(math.floor(mean + away), most)
        return ((*ends, 1.0),), 2.0 * math.exp(-mass)

    @functools.cached_property
    def _sums(
        self,
    ) -> tuple[tuple[tuple[float, allocation_losses.Excess, allocation_losses.Excess], ...], float]:
        """(probability, forward sum, backward sum) of each range; and the probability that counts in full."""
        cells, missing_mass = self._cells
        followed = _ALIKE * math.ceil(self.neg_log_tail / _ALIKE)
        participants, few = occupancy.fewest(self.num_clients - 1.0, self.prob, self.neg_log_tail)
        found, missing_mass = [], missing_mass + few
        for fewest, most, weight in cells:
            if weight < math.exp(-self.neg_log_tail):
                missing_mass += weight
                continue
            kinds = self._kinds(fewest, most, participants)
            sides = (_excess(kinds, followed, reverse) for reverse in (False, True))
            found.append((weight, *sides))
        return tuple(found), missing_mass

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        unit = self.prob / self.slots
        at = (-np.expm1(-loss) if backward else np.expm1(loss)) / unit * (1.0 - 1e-14)
        scale = unit * np.exp(loss) if backward else unit
        sums, missing_mass = self._sums
        found = np.full(loss.shape, missing_mass)
        for weight, *sides in sums:
            found = found + weight * np.minimum(scale * sides[backward].at(at), 1.0)
        return found * (1.0 + ROUNDING)


def g7(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in common slots, some of them empty, dummies hidden; a client is added or removed."""
    choices, slots, mu = unit.protocol.used_slot_choices, unit.slots, unit.randomizer.gaussian_mu
    if unit.replaced or choices is None or slots is None or mu is None or not slots.hidden:
        return None
    if choices.num_clients == 1:
        return None
    if not max(_LEAST_MU, 2.0 * LEAST_MU) <= mu <= min(_MOST_MU, MOST_LATTICE_MU):
        return None
    filled, _ = occupancy.moments(choices.num_clients - 1.0, float(choices.num_slots), choices.prob)
    if not _FEWEST <= choices.num_slots <= _MOST or choices.num_slots - filled < _FEWEST_EMPTY:
        return None
    # Sums are a post-processing of the slots.
    return CompetingClients(*choices, mu, unit.neg_log_tail)
