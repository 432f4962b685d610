"""clones, hexagon, own-laws and profile for unequal rates, in common slots that use one client each (T2'h, T*h).

J of the pool and the target take part; J and the pool's size n' are revealed. K occupied slots show one of them each.
Proof: docs/theory_rates.md, 3. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import Binary, Clones, Mixture, OfMixture
from checkin_jax.accounting.bounds.hexagon import StagedBound
from checkin_jax.accounting.bounds.interface import LocalPureLDP, Witness
from checkin_jax.accounting.bounds.messages.cover import UniformSlot
from checkin_jax.accounting.bounds.profiles import Profile
from checkin_jax.accounting.bounds.unequal.pool_cover import PoolSizes
from checkin_jax.accounting.bounds.unequal.sampled_profile import Counted, HiddenParts
from checkin_jax.kernels import clones, host
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.numerics import convex, few_steps, staged_clones
from checkin_jax.numerics.counts import occupancy, poisson_binomial
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import GameArguments, Steps

# Cuts of J and K, in standard deviations from their means: the law of K is made for each value of J, of which more than
# _MANY clients need few. Up to _SINGLE values are kept one by one.
_MANY, _FEW_PARTICIPANTS = 30_000.0, np.array([-1.0, 0.0, 1.0, 2.5])
_PARTICIPANTS = np.array([-2.5, -1.6, -1.0, -0.5, 0.0, 0.5, 1.0, 1.6, 2.5, 4.0])
_USED = np.concatenate([np.linspace(-2.4, 2.4, 13), [3.2, 4.2, 6.0]])
_SINGLE, _SINGLE_SHARES = 24, 12
# Cuts of K and points of the share for sums of T*, of which there are few; single values of K.
_GROUPS, _LARGE, _SINGLE_GROUPS = np.array([0.3, 3.0]), (4.0,), 3
# Points of the share of one client, in standard deviations, and buckets of the number of labels.
_SHARES = (-1.5, 1.5)
_FINEST = 64


class _Atoms(NamedTuple):
    """Parts of a mixture: J from above, the share of one message, and mass; and the mass that leaks a whole message."""

    participants: np.ndarray
    share: np.ndarray
    mass: np.ndarray
    missing_mass: float


class OccupiedShares:
    """Law of the number of occupied slots that show the pool's or the target's messages, and of the target's share.

    Attributes of subclasses: rate, theta, pool, slots and neg_log_tail, as in `UnequalOccupied`.
    """

    rate: float
    theta: float
    pool: PoolSizes
    slots: int
    neg_log_tail: float

    def _given(self, pool: float, mass: float) -> _Atoms:
        """J and the shares, given n' = `pool` with probability `mass`."""
        g, theta, number = self.rate, self.theta, pool + 1.0
        if theta == 1.0:
            return _Atoms(np.array([number]), np.array([1.0 / number]), np.array([mass * g]), 0.0)
        if pool == 0.0:
            return _Atoms(np.zeros(0), np.zeros(0), np.zeros(0), mass * g)
        rho = g * (1.0 - theta) / ((1.0 - g) * theta) if g < 1.0 else math.inf
        members = poisson_binomial.trials(np.array([theta]), np.array([pool]))
        law = poisson_binomial.law(members, self.neg_log_tail)
        first = law.values
        last = np.minimum(np.append(first[1:] - 1.0, law.last), pool)
        # J is S with probability 1 - g, S + 1 with probability g.
        low, high = np.concatenate([first, first + 1.0]), np.concatenate([last, last + 1.0])
        chance = mass * np.concatenate([(1.0 - g) * law.run_upper, g * law.run_upper])
        with np.errstate(divide="ignore", invalid="ignore"):
            # s = rho / (n - J + rho J), at the end of the run where it is largest.
            j = high if rho <= 1.0 else low
            share = 1.0 / ((number - j) / rho + j) * (1.0 + 1e-14)
        kept = (high > 0.0) & (chance > 0.0)
        return _Atoms(high[kept], share[kept], chance[kept], mass * (law.below + law.above))

    @functools.cached_property
    def _atoms(self) -> _Atoms:
        found = [
            self._given(size, mass)
            for size, mass in zip(self.pool.sizes.tolist(), self.pool.masses.tolist())
            if mass > 0.0
        ]
        participants, share, mass = (np.concatenate(part) for part in list(zip(*found))[:3])
        return _Atoms(participants, share, mass, math.fsum(each.missing_mass for each in found))

    @functools.cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Occupied slots, probability that the target is used there, weight; the mass that leaks a whole message."""
        participants, share, mass, missing_mass = self._atoms
        if not participants.size:
            return np.ones(1), np.ones(1), np.zeros(1), missing_mass
        many = float(mass @ participants) > _MANY
        end = _cells(participants, mass, _FEW_PARTICIPANTS if many else _PARTICIPANTS)
        used, shares, masses = [], [], []
        for j in np.unique(end):
            here = end == j
            values, chances = occupancy.law(int(j), self.slots, 1.0, self.neg_log_tail, True)
            kept = (chances > 0.0) & (values > 0.0)
            used.append(np.repeat(values[kept], here.sum()))
            shares.append(np.tile(share[here], kept.sum()))
            masses.append(np.outer(chances[kept], mass[here]).ravel())
        number, share, mass = (np.concatenate(part) for part in (used, shares, masses))
        cell = _cells(number, mass, _USED)
        certain = cell * share > 1.0
        parts = [
            (np.full(at.size, k), k * at, weight)
            for k in np.unique(cell[~certain]).tolist()
            for here in [~certain & (cell == k)]
            for at, weight in [convex.spread(share[here], mass[here], _SHARES, _SINGLE_SHARES)]
        ]
        if certain.any():
            fewer = _fewer(share[certain], mass[certain])
            parts.append((fewer, np.ones(fewer.size), mass[certain]))
        counts, chance, weight = (np.concatenate(part) for part in zip(*parts))
        return *_merged(counts, chance, weight * (1.0 + 1e-12)), missing_mass

    @functools.cached_property
    def _shown_sums(self) -> Counted:
        number, chance, weight, missing = self._parts
        seen = weight > 0.0
        number, share, weight = number[seen], chance[seen] / number[seen], weight[seen]
        cell = _cells(number, weight, _GROUPS, _SINGLE_GROUPS)
        certain = cell * share > 1.0
        fewer = _fewer(share[certain], weight[certain]) if certain.any() else cell[certain]
        parts = [(weight[certain], fewer, np.ones(fewer.size))]
        for most in np.unique(cell[~certain]):
            here = ~certain & (cell == most)
            at, mass = convex.spread(share[here], weight[here], _LARGE)
            parts.append((mass, np.full(at.size, most), np.minimum(most * at, 1.0)))
        mass, number, chance = (np.concatenate(part) for part in zip(*parts))
        number, chance, mass = _merged(number, chance, mass)
        counted = mass > math.exp(-self.neg_log_tail)
        missing += float(mass[~counted].sum()) * (1.0 + 1e-12)
        sizes, masses = (part.tolist() for part in self.pool)
        apart = [occupancy.all_apart(int(size) + 1, self.slots, self.theta)[1] for size in sizes]
        everybody = self.rate / self.theta * float(np.dot(apart, masses)) * (1.0 + 1e-12)
        return Counted(mass[counted], number[counted], chance[counted], missing, everybody)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalOccupied(OccupiedShares):
    """T2'h: eps0-LDP messages of the clients used in `slots` common slots. Adaptive; empty slots are visible or hidden.

    Given J, the target takes part with probability q, and each of the K occupied slots shows its message with
    probability s = q/J: H_c <= E(1 - c + s sum_{i<=K} (t* - (1 - c)))_+. This grows with s and K (convex order), and is
    convex in s.

    Attributes:
      rate: upper bound on the target's rate g, in (0, 1]. theta: in (0, 1); at 1 the participants are revealed.
      pool: the law of n', stochastically from below: members of rate theta; at theta = 1 the participants.
      slots: m. shown_slots: as from `populations.slots_shown`, for the witnesses.
    """

    rate: float
    theta: float
    pool: PoolSizes
    slots: int
    shown_slots: tuple[int, float]
    epsilon0: float
    neg_log_tail: float

    name = "clones"

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    @functools.cached_property
    def _above(self) -> Mixture:
        slots, used, weight, _ = self._parts
        law = clones.slots_law(*map(host, (slots, used, weight, self.epsilon0)), True)
        return Mixture(law, self.epsilon0, self.neg_log_tail, 0.0, _FINEST)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        alone = LocalPureLDP(1.0, self.epsilon0).upper(np.asarray(loss))
        return self._above.upper(loss) + self._parts[3] * np.asarray(alone) * (1.0 + 1e-12)

    @functools.cached_property
    def _shown(self) -> Clones:
        number, used = self.shown_slots
        return Clones(UniformSlot(number, self.rate, used), self.epsilon0, self.neg_log_tail)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        return tuple(dataclasses.replace(each, grid_bound=self) for each in self._shown.witnesses)  # type: ignore[type-var]

    def ternary(self) -> OfMixture:
        """Witness of 3-ary randomized response."""
        return dataclasses.replace(self._shown.ternary(), grid_bound=self)

    def binary(self) -> Binary:
        """Witness of binary randomized response, for mechanisms that attain no other."""
        return dataclasses.replace(self._shown.binary(), grid_bound=self)


@dataclasses.dataclass(frozen=True, eq=False)
class OccupiedGame(OccupiedShares, StagedBound):
    """T2'h of the hexagon, or own-laws: as `UnequalOccupied`, with steps that an adversary chooses for t*.

    If the target and all of its pool are used, H_c is at most that of one message.

    Attributes:
      rate, theta, pool, slots: as there. steps: laws among which the adversary chooses.
    """

    rate: float
    theta: float
    pool: PoolSizes
    slots: int
    steps: Steps
    neg_log_tail: float

    def _stated(self) -> GameArguments | FewSteps | None:
        masses, number, chance, missing, everybody = self._shown_sums
        # A rare part, which may be of few steps, is one message alone.
        usual = masses > 4.0 * math.exp(-self.neg_log_tail)
        if not usual.any():
            return None
        lost = missing + everybody + float(masses[~usual].sum()) * (1.0 + 1e-12)
        # Rounded down: the bound grows with the share of one message.
        clients = number[usual] / chance[usual] * (1.0 - 1e-15)
        sums = StepCounts(host(clients), host(1.0), host(number[usual]), host(masses[usual]))
        given = self.steps, lost, self.neg_log_tail
        few = few_steps.problem(sums, *given)
        return few_steps.played_or_staged(few, lambda: staged_clones.parts(sums, *given))


@dataclasses.dataclass(frozen=True, eq=False)
class OccupiedHidden(OccupiedShares, HiddenParts):
    """T*h in common slots: as `UnequalOccupied`, with T* of any privacy profile for t*.

    If the target and all of its pool are used, H_c <= D(c).

    Attributes:
      rate, theta, pool, slots: as there. profile: of one message.
    """

    rate: float
    theta: float
    pool: PoolSizes
    slots: int
    profile: Profile
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    @property
    def _counted(self) -> Counted:
        return self._shown_sums


def _cells(values: np.ndarray, mass: np.ndarray, places: np.ndarray, single: int = _SINGLE) -> np.ndarray:
    """Values rounded up to the ends of their cells; unchanged if there are at most `single`."""
    found = np.unique(values)
    if found.size <= single:
        return values
    total = mass.sum()
    mean = float(mass @ values / total)
    deviation = math.sqrt(float(mass @ np.square(values - mean) / total))
    ends = np.unique(np.clip(np.ceil(mean + deviation * places), found[0], found[-1]))
    ends = np.unique(np.append(ends, found[-1]))
    return ends[np.searchsorted(ends, values)]


def _fewer(share: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Number of terms of an average that is above the sum of K terms of these shares in convex order.

    K <= J <= 1 / share: there are at most as many terms as the number, of at most its inverse as weight. An average of
    fewer terms is larger.
    """
    return -_cells(-np.floor(1.0 / share * (1.0 + 1e-12)), mass, _USED)


def _merged(
    counts: np.ndarray, chance: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (places, which) = np.unique(np.stack([counts, chance]), axis=1, return_inverse=True)
    return places[0], places[1], np.bincount(which.ravel(), weight, places.shape[1])
