"""clones for unequal check-in rates (T1h, S), among clients of rate 1 (T1m); profile for slots with colluders (R3c).

The target's rate is at most g. Of the others all rates are known, or only an upper bound on each and a lower bound on
their sum. Proofs: docs/theory_rates.md, 2 and 3. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import Clones, Mixture, tried
from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import Profile
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.kernels import ROUNDING, clones, host
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import occupancy, poisson_binomial


@dataclasses.dataclass(frozen=True)
class PooledClones(Clones):
    """T1h and S: eps0-LDP messages behind a shuffler, hidden by a pool. Its witness is binary (L1h)."""

    cover: ClientPool

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        known = self.cover.others is not None
        return (self.binary(),) if known and tried(self.cover.number, self.epsilon0)[1] else ()


# Ends of the runs of k, and points of the share of pool members, in standard deviations.
_RUNS = (-3.2, -2.2, -1.5, -1.0, -0.6, -0.2, 0.2, 0.6, 1.0, 1.5, 2.2, 3.2)
_PLACES = (-2.5, -1.3, -0.5, 0.2, 0.9, 1.8, 3.0)
# Indices of values of n', each of which stands for all up to the next.
_SIZES = (0, 1, 2, 4)
# Buckets of the number of labels for each part.
_FINEST = 64


@dataclasses.dataclass(frozen=True, eq=False)
class AlwaysPresentOthers(PooledClones):
    """T1m: a pool of n' others of rate theta, and M others of rate 1; one randomizer, not adaptive within a round.

    Rounds may adapt. Given K' = k the target is one of the k messages of pool members with probability q_k. The
    owners of all positions are revealed, except in a sample of N0 positions, X of them the pool's. Runs of k take the
    least k (fewer messages) and the largest q. X is replaced by a binomial (larger in convex order), and that by a
    law on few points with the same mean.

    Attributes: those of `PooledClones`, theta < 1; always_present: lower bound on M >= 1.
    """

    always_present: float = 1.0

    @functools.cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Slots, used and weight of every part; and the probability that counts in full."""
        found, missing_mass = [], 0.0
        there = self.cover.size.masses > 0.0
        sizes, masses = self.cover.size.sizes[there], self.cover.size.masses[there]
        starts = list(_SIZES) if sizes.size > len(_SIZES) else list(range(sizes.size))
        for size, mass in zip(sizes[starts].tolist(), np.add.reduceat(masses, starts).tolist()):
            if size < 1.0:
                missing_mass += mass * self.cover.rate
            elif mass > 0.0:
                *parts, more = self._given(size)
                found.append((*parts[:2], mass * parts[2]))
                missing_mass += mass * more
        if not found:
            return np.ones(1), np.ones(1), np.zeros(1), missing_mass
        return *(np.concatenate(part) for part in zip(*found)), missing_mass  # type: ignore[return-value]

    def _given(self, pool: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """`_parts` given n' = `pool`."""
        g, n = self.cover.rate, pool + 1.0
        rho = g * (1.0 - self.cover.theta) / ((1.0 - g) * self.cover.theta) if g < 1.0 else math.inf
        members = poisson_binomial.trials(np.asarray([self.cover.theta]), np.asarray([pool]))
        law = poisson_binomial.law(members, self.neg_log_tail)
        k, masses = law.values, law.run_upper
        if law.stride > 1:
            # A run is named by its first value; the target itself adds one.
            ends = np.append(k[1:] - 1.0, law.last)
        else:
            ends = k
        mean, deviation = members.mean, math.sqrt(members.variance)
        starts = np.unique(np.searchsorted(k, mean + deviation * np.asarray(_RUNS)))
        starts = np.unique(np.concatenate([[0], starts[starts < k.size]]))
        if k.size <= len(_RUNS):
            starts = np.arange(k.size)
        # K' is S with probability 1-g, S + 1 with probability g; no pool message is observed at K' = 0.
        low, high = np.concatenate([k, k + 1.0]), np.minimum(np.concatenate([ends, ends + 1.0]), pool)
        chance = np.concatenate([(1.0 - g) * masses, g * masses])
        kept = (low <= pool) & (high >= 1.0) & (chance > 0.0)
        low, high, chance = np.maximum(low[kept], 1.0), high[kept], chance[kept]
        q = rho * high / (n - high + rho * high) if math.isfinite(rho) else np.ones(high.size)
        run = np.searchsorted(k[starts], low, side="right")
        missing_mass = law.below + law.above
        slots, used, weight = [], [], []
        for which in np.unique(run):
            here = run == which
            points, shares, drawn, outside = self._shares(float(low[here].min()))
            # Convex and increasing in q: points with the same mean serve.
            for share, part in zip(*convex.spread(q[here], chance[here])):
                missing_mass += part * share * (drawn + outside)
                total = 1.0 - share + share * points
                slots.append(np.full(points.size, low[here].min() + self.always_present))
                used.append(np.minimum(share * points / np.where(total > 0, total, 1.0), 1.0))
                weight.append(part * shares * total)
        everybody = g * math.exp(pool * math.log(self.cover.theta))
        slots.append(np.asarray([n + self.always_present]))
        used.append(np.ones(1))
        weight.append(np.asarray([everybody]))
        kept = np.concatenate(used) > 0
        found = (np.concatenate(part)[kept] for part in (slots, used, weight))
        return *found, missing_mass  # type: ignore[return-value]

    def _shares(self, k: float) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Points and masses of W at k; the probability of fewer than N0 positions, and the mass of W outside."""
        length, share = k + self.always_present, k / (k + self.always_present)
        per_p = math.exp(-self.epsilon0)
        mean = length * per_p
        drawn = math.floor(mean - occupancy.deviation(mean * (1.0 - per_p), self.neg_log_tail))
        short = math.exp(-self.neg_log_tail)
        if drawn < 1:
            drawn, short = 1, math.exp(length * math.log1p(-per_p)) if per_p < 1 else 0.0
        # Few enough that every value of X is stored separately.
        widest = 6e6 / self.neg_log_tail / (share * (1.0 - share))
        drawn = max(min(drawn, math.floor(widest)), 1)
        law = poisson_binomial.law(
            poisson_binomial.trials(np.asarray([share]), np.asarray([float(drawn)])), self.neg_log_tail
        )
        centre, deviation = drawn * share, math.sqrt(drawn * share * (1.0 - share))
        places = np.clip(centre + deviation * np.asarray(_PLACES), law.first, law.last)
        places = np.unique(np.concatenate([[law.first], places, [law.last]]))
        masses = np.zeros(places.size)
        # A convex function is below its chords.
        i = np.clip(np.searchsorted(places, law.values, side="right") - 1, 0, max(places.size - 2, 0))
        j = np.minimum(i + 1, places.size - 1)
        gap = places[j] - places[i]
        part = np.where(gap > 0, (law.values - places[i]) / np.where(gap > 0, gap, 1.0), 0.0)
        np.add.at(masses, i, law.run_upper * (1.0 - part))
        np.add.at(masses, j, law.run_upper * part)
        outside = (law.below + law.above) / share
        return places / (drawn * share), masses, min(1.0, drawn / k) * short, outside

    @functools.cached_property
    def mixture(self) -> Mixture:
        slots, used, weight, _ = self._parts
        size = 16 * math.ceil(slots.size / 16)
        pad = size - slots.size
        parts = (
            np.pad(slots, (0, pad), mode="edge"),
            np.pad(used, (0, pad), mode="edge"),
            np.pad(weight, (0, pad)),
        )
        law = clones.slots_law(*map(host, parts), host(self.epsilon0), True)
        return Mixture(law, self.epsilon0, self.neg_log_tail, 0.0, _FINEST)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        missing_mass = (
            self._parts[3]
            * np.maximum(-np.expm1(np.asarray(loss) - self.epsilon0), 0.0)
            * math.exp(self.epsilon0)
        )
        return self.mixture.upper(loss) + missing_mass * (1.0 + 1e-12)


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenWithColluders:
    """R3c: hidden dummies, and `colluding` clients at most, each in one slot at most. Symmetric.

    Messages have the privacy profile D. A slot that a colluder is in shows the target's message at most half of the
    time. With y such slots and k = 1 - rho y/(2 m), H_c is at most

        (rho y/(2 m)) D(c) + E(k (1 - c) + (rho/m) sum over m-y slots of (T* - (1 - c)))_+ ,

    whose largest value over y <= x is bounded range by range of y.
    """

    slots: int
    use_prob: float
    colluding: int
    profile: Profile
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    name = "profile"

    @property
    def largest_loss(self) -> float:
        return self.profile.largest_loss

    @functools.cached_property
    def _ranges(self) -> list[tuple[float, float, HiddenSlots | None]]:
        """(coefficient of D, k, sum over the other slots) of ranges of y, which are longer far from both ends."""
        every = most = min(self.colluding, self.slots)
        found = []
        while most >= 0:
            least = max(2 * most - every, (most + 1) // 2)
            met = 0.5 * self.use_prob * most / self.slots
            others, kept = self.slots - least, 1.0 - met
            # May exceed 1, since its factors are those of different y.
            chance = self.use_prob * others / (self.slots * kept) * (1.0 + 1e-14)
            hidden = HiddenSlots(others, chance, self.profile, self.neg_log_tail) if others else None
            found.append((met, kept, hidden))
            most = least - 1
        return found

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss)
        alone, worst = self.profile.delta(loss), np.zeros(loss.shape)
        for met, kept, hidden in self._ranges:
            value = met * alone
            if hidden is not None:
                value = value + kept * np.asarray(hidden.upper(loss))
            worst = np.maximum(worst, value)
        return np.minimum(worst, self.use_prob * alone) * (1.0 + ROUNDING)
