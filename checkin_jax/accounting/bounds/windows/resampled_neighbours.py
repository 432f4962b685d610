"""allocation in sliding windows with hidden dummies (G8, G9), and two-steps from it (R7). Gaussian messages.

G8 reveals the loads. G9 conditions on the target's slot. If it is drawn, its co-occupants are a random part of the
clients that could be there, so they are resampled into other slots; the cost is the divergence of a world without a few
clients. The target then counts as in an empty slot, with a larger probability. R7 is R2 with both. Proof:
docs/theory_allocation.md, 2d. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, Instance, OneSided, UnitBound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.allocated_sums import (
    LEAST_MU,
    MOST_LATTICE_MU,
    AllocationGaussian,
    G3Slots,
    R2TwoSteps,
)
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import allocation_losses
from checkin_jax.numerics.counts import chernoff, window_overlap

# The range of slots of a window in which the bound is worth its time.
_FEWEST_SLOTS, _MOST_SLOTS = 64, 10**6
# Largest mu at which G8 serves backward, largest at which it serves forward, and least at which G9 is tried.
_MOST_BACKWARD, _MOST_FORWARD, _LEAST_G9_MU = 2.0, 1.4, 1.0
# Tails of the numbers of slots, as -log of their masses.
_TAILS = (0.5, 1.5, 3.0, 5.0, 8.0, 12.0, 18.0)
# log theta, theta the factor by which the world without a few clients is compared.
_FACTORS = np.geomspace(3e-3, 2.5, 40)
# Exponents tried in Chernoff's bound.
_EXPONENTS = np.geomspace(1e-4, 1e3, 400)
# Relative rounding of closed forms, with a wide margin. It is added, or subtracted, on the safe side.
_NEAR = 1e-11
_excess = functools.lru_cache(maxsize=64)(allocation_losses.Excess)


def _tails(log_inverse_mass: float) -> np.ndarray:
    return np.array([*(each for each in _TAILS if each < log_inverse_mass), log_inverse_mass])


def _between(tails: np.ndarray) -> np.ndarray:
    """Probability between each tail and the one before, rounded up."""
    return -np.diff(np.exp(-tails), prepend=1.0) * (1.0 + 1e-12)


@dataclasses.dataclass(frozen=True)
class RevealedLoads(OneSided):
    """G8: the target is in a uniform slot, or absent; loads, and the client that each slot draws, are revealed.

    Attributes:
      slots, others: number of slots; least number of others that may be in each, each with probability >= 1/window.
      mu: 2 / noise_multiplier. log_inverse_mass: -log of the negligible mass.
    """

    slots: int
    others: int
    window: int
    mu: float
    log_inverse_mass: float
    instances: tuple[Instance, ...] = ()

    name = "allocation"

    @functools.cached_property
    def _numbers(self) -> tuple[tuple[int, int, float], ...]:
        """For each tail: most empty slots, most others that the target may win, and the probability up to the tail."""
        tails = _tails(self.log_inverse_mass)
        co_occupant = math.log1p(-1.0 / self.window)
        empty = math.exp(self.others * co_occupant) * (1.0 + _NEAR)
        whole = (self.others + 1.0) / self.window
        won = -math.expm1((self.others + 1.0) * co_occupant) / whole * (1.0 + _NEAR)
        # Each of the three counts gets a third of the tail. `most` empty slots must not be subtracted from `both`: half
        # a term of an occupied slot is not below a term of an empty one.
        number, rare = float(self.slots), tails + math.log(3.0)
        most, both = (
            chernoff.most(number, min(prob, 1.0), rare)
            for prob in (empty, 2.0 * won - empty * (1.0 - 2.0 * _NEAR))
        )
        fewest = chernoff.fewest(number, self._least_empty_prob, rare)
        found = zip(most, np.maximum(both - fewest, 0.0), _between(tails))
        return tuple((int(one), int(other), float(mass)) for one, other, mass in found)

    @property
    def _least_empty_prob(self) -> float:
        """Lower bound on the probability that a slot is empty, for any number of others."""
        window = self.window
        return (
            math.exp((window - 1.0) * math.log1p(-1.0 / (window - 1.0))) * (1.0 - _NEAR)
            if window > 2
            else 0.0
        )

    @functools.cached_property
    def _g3(self) -> G3Slots:
        return G3Slots(self.slots, 1.0, self.mu, self.log_inverse_mass)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        by_g3 = self._g3.side(loss, backward)
        if self.mu > (_MOST_BACKWARD if backward else _MOST_FORWARD):
            return by_g3
        unit = 1.0 / self.slots
        at = (-np.expm1(-loss) if backward else np.expm1(loss)) / unit * (1.0 - 1e-14)
        scale = unit * np.exp(loss) if backward else unit
        found = np.full(loss.shape, math.exp(-self.log_inverse_mass))
        for empty, taken, mass in self._numbers:
            kinds = tuple(
                allocation_losses.Kind(number, mu, weight)
                for number, mu, weight in ((empty, 0.5 * self.mu, 1.0), (taken, self.mu, 0.5))
                if number
            )
            total = _excess(kinds, self.log_inverse_mass, backward)
            found = found + mass * np.minimum(scale * total.at(at), 1.0)
        return np.minimum(found * (1.0 + ROUNDING), by_g3)


@dataclasses.dataclass(frozen=True)
class ResampledNeighbours(OneSided):
    """G9, or G8 where that is smaller: add-or-remove; co-occupants of the target's slot are resampled.

    Attributes:
      window: m. mu: 2 / noise_multiplier. log_inverse_mass: -log of the negligible mass.
    """

    window: int
    mu: float
    log_inverse_mass: float
    instances: tuple[Instance, ...] = ()

    name = "allocation"
    # The spread is not known before the evaluation.
    light = False
    spread = math.inf

    @functools.cached_property
    def _loads(self) -> RevealedLoads:
        return RevealedLoads(self.window, self.window - 1, self.window, self.mu, self.log_inverse_mass)

    @functools.cached_property
    def _co_occupant(self) -> tuple[np.ndarray, float]:
        """Bounds on E(1 - theta dP/dQ)_+ at `_FACTORS`, for one co-occupant present or absent; and the missing mass."""
        sizes, rest = window_overlap.sizes(self.window, self.log_inverse_mass)
        # The target's slot has no other client; in every other slot the target and the co-occupants are missing.
        others = max(self.window - 2 - sizes.size, 0)
        one = RevealedLoads(self.window - 1, others, self.window, self.mu, self.log_inverse_mass)
        return one.side(_FACTORS, True), rest

    @functools.cached_property
    def _empty_weights(self) -> tuple[np.ndarray, np.ndarray]:
        """W at `_FACTORS`, W/m the weight of the target in each empty slot; and the divergence to be added."""
        m, factor = float(self.window), np.exp(_FACTORS)
        co_occupant, rest = self._co_occupant
        used = -math.expm1(m * math.log1p(-1.0 / m))
        # W = E theta^S/(S + 1) / Pr(S = 0), S the number of others in the target's slot.
        power = m * np.log1p((factor - 1.0) / m)
        often = np.expm1(power - m * math.log1p(-1.0 / m)) * (1.0 - 1.0 / m) / factor * (1.0 + _NEAR)
        alone = math.exp((m - 1.0) * math.log1p(-1.0 / m))
        short = (
            np.maximum(often * alone * (1.0 + _NEAR) - used * (1.0 - _NEAR), 0.0)
            / (factor - 1.0)
            * co_occupant
        )
        return often, (short + rest) * (1.0 + ROUNDING)

    @functools.cached_property
    def _levels(self) -> tuple[tuple[float, int, float], ...]:
        """(probability, most empty slots, least mean over the slots of min(1/2, 1/(s + 1))), s the load, by tail."""
        m, tails = self.window, _tails(self.log_inverse_mass)
        empty = chernoff.most(
            float(m), math.exp((m - 1.0) * math.log1p(-1.0 / m)) * (1.0 + _NEAR), tails + math.log(2.0)
        )
        sizes, rest = window_overlap.sizes(m, self.log_inverse_mass)
        chances = np.append(math.exp((m - 1.0) * math.log1p(-1.0 / m)) * (1.0 + _NEAR), sizes)
        part = np.minimum(0.5, 1.0 / (np.arange(chances.size) + 1.0))
        moment = np.exp(-_EXPONENTS[:, None] * part) @ chances + rest
        least = -m * np.log(moment)[:, None] - (tails + math.log(2.0))
        taken = np.maximum(np.max(least / _EXPONENTS[:, None], axis=0), 0.0) / m * (1.0 - 1e-9)
        found = zip(_between(tails), empty, taken)
        return tuple((float(mass), max(int(most), 1), float(part)) for mass, most, part in found)

    @functools.cached_property
    def _alone(self) -> tuple[AllocationGaussian, ...]:
        """Pairs of the target in place of a dummy, by tail."""
        return tuple(
            AllocationGaussian(most, 1.0, 0.5 * self.mu, self.log_inverse_mass) for _, most, _ in self._levels
        )

    def _forward(self, loss: np.ndarray) -> np.ndarray:
        often, short = self._empty_weights
        above = np.expm1(loss)[:, None]
        total = short + math.exp(-self.log_inverse_mass) * (1.0 + often)
        for (mass, most, taken), pair in zip(self._levels, self._alone):
            used = often * (most / self.window) * (1.0 + 1e-15)
            rest = above + taken - (used - 0.5 * most / self.window) - 1e-13 * (1.0 + above)
            value = pair.side(np.log1p(np.maximum(rest, 0.0) / used) * (1.0 - 1e-13), False)
            # E(Y + a)_+ <= E Y_+ + a for a >= 0.
            total = total + mass * np.minimum(used * value + np.maximum(-rest, 0.0), 1.0 + often)
        return np.minimum(np.min(total, axis=1) * (1.0 + ROUNDING), 1.0)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        if backward:
            return self._loads.side(loss, True)
        flat = np.minimum(np.ravel(np.asarray(loss, dtype=np.float64)), MAX_LOSS)
        found = self._loads.side(flat, False)
        if self.mu >= _LEAST_G9_MU:
            found = np.minimum(found, self._forward(flat))
        return found.reshape(np.shape(loss))


def _resampled(unit: Unit) -> ResampledNeighbours | None:
    window, mu, slots = unit.protocol.sliding_window, unit.randomizer.gaussian_mu, unit.slots
    if window is None or mu is None or slots is None or slots.number < _FEWEST_SLOTS:
        return None
    if window > _MOST_SLOTS or not 2.0 * LEAST_MU <= mu <= MOST_LATTICE_MU:
        return None
    # Sums are a post-processing of the slots.
    return ResampledNeighbours(window, mu, unit.log_inverse_mass)


def g9(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a client is added or removed."""
    return None if unit.replaced else _resampled(unit)


def r7(unit: Unit) -> UnitBound | None:
    """Needs: as G9; a record is replaced."""
    pair = _resampled(unit) if unit.replaced else None
    return None if pair is None else R2TwoSteps(pair)
