"""G8, G9 and R7: sliding windows with hidden dummies, others competing; who shares a slot might be in another one.

G8 reveals the loads. G9: those who share the client's slot when it is drawn are a random part of all who might have;
without them the messages look nearly as if they had thrown again. So the client is taken to be in an empty slot, more
often by as much as messages can be missed. R7 is R2 with both. Gaussian messages. Proof: docs/theory_allocation.md,
section 2d. Call inside `devices.float64()`.
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

# The fewest and the most slots of a window that are worth it.
_FEWEST_SLOTS, _MOST_SLOTS = 64, 10**6
# Loads are revealed up to this mu for what a message is missed by, and up to this where it is seen; dummies alone are
# counted from this on.
_MOST_MISSED, _MOST_SEEN, _LEAST_ALONE = 2.0, 1.4, 1.0
# Tails of numbers of slots, as logarithms of inverse masses.
_TAILS = (0.5, 1.5, 3.0, 5.0, 8.0, 12.0, 18.0)
# Logarithms of the factors by which worlds without a few of the clients are exceeded.
_FACTORS = np.geomspace(3e-3, 2.5, 40)
# Exponents of Chernoff's bound that are tried.
_EXPONENTS = np.geomspace(1e-4, 1e3, 400)
# Relative rounding of closed forms, with a wide margin.
_NEAR = 1e-11
_excess = functools.lru_cache(maxsize=64)(allocation_losses.Excess)


def _tails(log_inverse_mass: float) -> np.ndarray:
    return np.array([*(each for each in _TAILS if each < log_inverse_mass), log_inverse_mass])


def _between(tails: np.ndarray) -> np.ndarray:
    """The probability of what lies between one of the tails and the one before."""
    return -np.diff(np.exp(-tails), prepend=1.0) * (1.0 + 1e-12)


@dataclasses.dataclass(frozen=True)
class RevealedLoads(OneSided):
    """G8: a client there or not, in one of so many slots uniformly; loads are revealed, and whom the server would draw.

    Attributes:
      slots, others: how many slots; of others who may be in each at least so many, each with probability 1/window or
        more. mu: 2 / noise_multiplier. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
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
        """Slots that are empty, and others that the client may take, at most, with the probability of no more."""
        tails = _tails(self.log_inverse_mass)
        missed = math.log1p(-1.0 / self.window)
        empty = math.exp(self.others * missed) * (1.0 + _NEAR)
        whole = (self.others + 1.0) / self.window
        won = -math.expm1((self.others + 1.0) * missed) / whole * (1.0 + _NEAR)
        # A third of each tail is for each. Half a term of another client's slot is not below one of an empty slot.
        number, rare = float(self.slots), tails + math.log(3.0)
        most, both = (
            chernoff.most(number, min(prob, 1.0), rare)
            for prob in (empty, 2.0 * won - empty * (1.0 - 2.0 * _NEAR))
        )
        fewest = chernoff.fewest(number, self._surely, rare)
        found = zip(most, np.maximum(both - fewest, 0.0), _between(tails))
        return tuple((int(one), int(other), float(mass)) for one, other, mass in found)

    @property
    def _surely(self) -> float:
        """A slot is empty with this probability at least, whoever else there is."""
        window = self.window
        return (
            math.exp((window - 1.0) * math.log1p(-1.0 / (window - 1.0))) * (1.0 - _NEAR)
            if window > 2
            else 0.0
        )

    @functools.cached_property
    def _sure(self) -> G3Slots:
        return G3Slots(self.slots, 1.0, self.mu, self.log_inverse_mass)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        sure = self._sure.side(loss, backward)
        if self.mu > (_MOST_MISSED if backward else _MOST_SEEN):
            return sure
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
        return np.minimum(found * (1.0 + ROUNDING), sure)


@dataclasses.dataclass(frozen=True)
class ThrownAgain(OneSided):
    """G9, or G8 where that is smaller: a client is added or removed; whoever shares its slot is taken to throw again.

    Attributes:
      window: m. mu: 2 / noise_multiplier. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
    """

    window: int
    mu: float
    log_inverse_mass: float
    instances: tuple[Instance, ...] = ()

    name = "allocation"
    # Nothing that says how it compares is known before it is evaluated.
    light = False
    spread = math.inf

    @functools.cached_property
    def _loads(self) -> RevealedLoads:
        return RevealedLoads(self.window, self.window - 1, self.window, self.mu, self.log_inverse_mass)

    @functools.cached_property
    def _missed(self) -> tuple[np.ndarray, float]:
        """E(1 - theta dP/dQ)_+ at `_FACTORS`, one who shares the client's slot there or not; and what is lost."""
        sizes, rest = window_overlap.sizes(self.window, self.log_inverse_mass)
        # Nobody else is in the client's slot; of those who might be in another one the client and these are missing.
        others = max(self.window - 2 - sizes.size, 0)
        one = RevealedLoads(self.window - 1, others, self.window, self.mu, self.log_inverse_mass)
        return one.side(_FACTORS, True), rest

    @functools.cached_property
    def _ways(self) -> tuple[np.ndarray, np.ndarray]:
        """At `_FACTORS`: how often the client is taken to be in an empty slot, over m; what that may fall short of."""
        m, factor = float(self.window), np.exp(_FACTORS)
        missed, rest = self._missed
        used = -math.expm1(m * math.log1p(-1.0 / m))
        # E theta^S/(S + 1), S others in the client's slot, over the probability of none.
        power = m * np.log1p((factor - 1.0) / m)
        often = np.expm1(power - m * math.log1p(-1.0 / m)) * (1.0 - 1.0 / m) / factor * (1.0 + _NEAR)
        alone = math.exp((m - 1.0) * math.log1p(-1.0 / m))
        short = (
            np.maximum(often * alone * (1.0 + _NEAR) - used * (1.0 - _NEAR), 0.0) / (factor - 1.0) * missed
        )
        return often, (short + rest) * (1.0 + ROUNDING)

    @functools.cached_property
    def _levels(self) -> tuple[tuple[float, int, float], ...]:
        """(probability, most empty slots, least mean of min(1/2, 1/(s + 1))), s the load, for each of the tails."""
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
        """The client in place of a dummy, for each of the tails."""
        return tuple(
            AllocationGaussian(most, 1.0, 0.5 * self.mu, self.log_inverse_mass) for _, most, _ in self._levels
        )

    def _forward(self, loss: np.ndarray) -> np.ndarray:
        often, short = self._ways
        above = np.expm1(loss)[:, None]
        total = short + math.exp(-self.log_inverse_mass) * (1.0 + often)
        for (mass, most, taken), pair in zip(self._levels, self._alone):
            used = often * (most / self.window) * (1.0 + 1e-15)
            rest = above + taken - (used - 0.5 * most / self.window) - 1e-13 * (1.0 + above)
            value = pair.side(np.log1p(np.maximum(rest, 0.0) / used) * (1.0 - 1e-13), False)
            # A sum Y + a with a >= 0 has the positive part E Y_+ + a at most.
            total = total + mass * np.minimum(used * value + np.maximum(-rest, 0.0), 1.0 + often)
        return np.minimum(np.min(total, axis=1) * (1.0 + ROUNDING), 1.0)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        if backward:
            return self._loads.side(loss, True)
        flat = np.minimum(np.ravel(np.asarray(loss, dtype=np.float64)), MAX_LOSS)
        found = self._loads.side(flat, False)
        if self.mu >= _LEAST_ALONE:
            found = np.minimum(found, self._forward(flat))
        return found.reshape(np.shape(loss))


def _thrown(unit: Unit) -> ThrownAgain | None:
    window, mu, slots = unit.protocol.sliding_window, unit.randomizer.gaussian_mu, unit.slots
    if window is None or mu is None or slots is None or slots.number < _FEWEST_SLOTS:
        return None
    if window > _MOST_SLOTS or not 2.0 * LEAST_MU <= mu <= MOST_LATTICE_MU:
        return None
    # Sums say no more than the slots do.
    return ThrownAgain(window, mu, unit.log_inverse_mass)


def g9(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in sliding windows of many slots, dummies hidden; a client is added or removed."""
    return None if unit.replaced else _thrown(unit)


def r7(unit: Unit) -> UnitBound | None:
    """Needs: as G9; a record is replaced."""
    pair = _thrown(unit) if unit.replaced else None
    return None if pair is None else R2TwoSteps(pair)
