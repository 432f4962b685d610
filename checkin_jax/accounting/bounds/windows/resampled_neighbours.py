"""allocation in sliding windows with hidden dummies (G9), and two-steps from it (R7). Gaussian messages.

G9 conditions on the target's slot. If it is drawn, its co-occupants are a random part of the clients that could be
there, so they are resampled into other slots; the cost is the divergence of a world without a few clients, by G3. The
target then counts as in an empty slot, with a larger probability. R7 is R2 with G9 there and G3 back. Proof:
docs/theory_allocation.md, 2c. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, AsymmetricBound, UnitBound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    MOST_LATTICE_MU,
    OneOfSlots,
    TwoSteps,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics.counts import chernoff, window_overlap

# The range of slots of a window, and the least mu, at which the bound is worth its time.
_FEWEST_SLOTS, _MOST_SLOTS, _LEAST_MU = 64, 10**6, 1.0
# Tails of the numbers of slots, as -log of their masses.
_TAILS = (0.5, 1.5, 3.0, 5.0, 8.0, 12.0, 18.0)
# log theta, theta the factor by which the world without a few clients is compared.
_FACTORS = np.geomspace(3e-3, 2.5, 40)
# Exponents tried in Chernoff's bound.
_EXPONENTS = np.geomspace(1e-4, 1e3, 400)
# Relative rounding of closed forms, with a wide margin. It is added, or subtracted, on the safe side.
_NEAR = 1e-11


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
        alone = math.exp((m - 1.0) * math.log1p(-1.0 / m))
        short = (
            np.maximum(often * alone * (1.0 + _NEAR) - used * (1.0 - _NEAR), 0.0)
            / (factor - 1.0)
            * co_occupant
        )
        return often, short * (1.0 + ROUNDING)

    @functools.cached_property
    def _levels(self) -> tuple[tuple[float, int, float], ...]:
        """(probability, most empty slots, least mean over the slots of min(1/2, 1/(s + 1))), s the load, by tail."""
        m, mass = self.window, self.neg_log_tail
        tails = np.array([*(each for each in _TAILS if each < mass), mass])
        empty = chernoff.most(
            float(m), math.exp((m - 1.0) * math.log1p(-1.0 / m)) * (1.0 + _NEAR), tails + math.log(2.0)
        )
        sizes, rest = window_overlap.sizes(m, mass)
        chances = np.append(math.exp((m - 1.0) * math.log1p(-1.0 / m)) * (1.0 + _NEAR), sizes)
        part = np.minimum(0.5, 1.0 / (np.arange(chances.size) + 1.0))
        moment = np.exp(-_EXPONENTS[:, None] * part) @ chances + rest
        least = -m * np.log(moment)[:, None] - (tails + math.log(2.0))
        taken = np.maximum(np.max(least / _EXPONENTS[:, None], axis=0), 0.0) / m * (1.0 - 1e-9)
        # Probability between each tail and the one before, rounded up.
        between = -np.diff(np.exp(-tails), prepend=1.0) * (1.0 + 1e-12)
        found = zip(between, empty, taken)
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


def _resampled(unit: Unit) -> ResampledNeighbours | None:
    window, mu, slots = unit.protocol.sliding_window, unit.randomizer.gaussian_mu, unit.slots
    if window is None or mu is None or slots is None or slots.number < _FEWEST_SLOTS:
        return None
    if window > _MOST_SLOTS or not _LEAST_MU <= mu <= MOST_LATTICE_MU:
        return None
    # Sums are a post-processing of the slots.
    return ResampledNeighbours(window, mu, unit.neg_log_tail)


def g9(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a client is added or removed."""
    return None if unit.replaced else _resampled(unit)


def r7(unit: Unit) -> UnitBound | None:
    """Needs: as G9; a record is replaced."""
    pair = _resampled(unit) if unit.replaced else None
    return None if pair is None else TwoSteps(pair)
