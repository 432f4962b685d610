"""allocation in common slots that other clients nearly fill (G3'): Gaussian messages; the empty slots are revealed.

Add-or-remove, hidden dummies. Proof: docs/theory_allocation.md, 2.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import AsymmetricBound
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    LEAST_MU,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.accounting.bounds.windows.public_mixture import TwoKinds
from checkin_jax.numerics.counts import occupancy

# Levels of empty slots: used if their mean share is below _MOST_EMPTY; from _BELOW standard deviations below the mean
# on, _STEP standard deviations apart.
_MOST_EMPTY, _STEP, _BELOW = 0.2, 1.5, 3.0
# Most levels: each costs two transforms at every loss, and 16 levels gain less than 1%.
_LEVELS = 5
# For more empty slots the tail probabilities, one for each number, take too long.
_FEW = 1e5


def some_empty(num_clients: int, slots: int, prob: float) -> float:
    """Upper bound on the probability that n - 1 clients leave at least one slot empty."""
    return many_empty(num_clients, slots, prob, 1)


def many_empty(num_clients: int, slots: int, prob: float, least: int) -> float:
    """Upper bound on the probability that n - 1 clients leave at least `least` slots empty.

    j given slots are empty with probability (1 - p_0 j / m)^(n-1), and `least` slots have binomial(least, j) sets of j.
    """
    others, taken = num_clients - 1.0, np.arange(1.0, least + 1.0)
    share = np.minimum(prob * taken / slots, 1.0)
    if others > 0:
        with np.errstate(divide="ignore"):
            log_none = others * np.log1p(-share)
    else:
        log_none = np.zeros_like(share)
    # log of binomial(m, j) / binomial(least, j).
    log_sets = np.cumsum(np.log(slots + 1.0 - taken) - np.log(least + 1.0 - taken))
    return math.exp(min(float(np.min(log_sets + log_none)) + 1e-9, 0.0))


@dataclasses.dataclass(frozen=True)
class OccupiedAllocationGaussian(AsymmetricBound):
    """G3': G3 with n - 1 other clients competing for the slots; sharper for n p_0 >> m. Add-or-remove, hidden dummies.

    Let at least N_0 others take part and leave e slots empty, for any N_0. The target is in each empty slot with
    probability p_0 / m, in place of a dummy, and in each other slot with probability at most p_0 / (N_0 + 1). The bound
    grows with e. G3 serves if e is too large or fewer than N_0 take part. Windows must be common (A_fix).

    Attributes:
      num_clients: n, the target included. slots, prob: m and p_0. mu, neg_log_tail: as in `OneOfSlots`.
      sums: number of observed sums of equally many slots; None: the slots themselves are observed.
    """

    num_clients: int
    slots: int
    prob: float
    mu: float
    neg_log_tail: float
    sums: int | None = None

    name = "allocation"

    @functools.cached_property
    def _parts(self) -> tuple[tuple[AsymmetricBound, float], ...]:
        """Bounds for more and more empty slots, each with the probability that it or a later one is needed."""
        number = self.slots if self.sums is None else self.sums
        every = gaussian_among_others(number, self.prob, self.mu, self.neg_log_tail)
        others = float(self.num_clients - 1)
        if others == 0:
            return ((every, 1.0),)
        least, few = occupancy.fewest(others, self.prob, self.neg_log_tail)
        used = min(self.prob, self.prob * self.slots / (least + 1.0))
        if used == self.prob or few >= 1.0:
            return ((every, 1.0),)
        pair = gaussian_in_slots(number, used, self.mu, self.neg_log_tail)
        parts: list[tuple[AsymmetricBound, float]] = []
        needed = 1.0
        for empty in self._levels:
            alone = self.prob * empty / self.slots
            dummies = gaussian_in_slots(max(empty, 1), alone, 0.5 * self.mu, self.neg_log_tail)
            parts.append((TwoKinds(dummies, pair) if empty else pair, needed))
            # G3, which is above every part, serves if fewer than N_0 take part.
            needed = min(many_empty(self.num_clients, self.slots, self.prob, empty + 1) + few, 1.0)
        last = min(needed * (1.0 + 1e-9), 1.0)
        return (*parts, (every, last)) if last < 1.0 else ((every, 1.0),)

    @property
    def _levels(self) -> list[int]:
        """Increasing numbers of empty slots for which bounds are made."""
        filled, variance = occupancy.moments(self.num_clients - 1.0, float(self.slots), self.prob)
        mean, deviation = self.slots - filled, math.sqrt(variance)
        if (
            mean > min(_MOST_EMPTY * self.slots, _FEW)
            or self.sums not in (None, self.slots)
            or 0.5 * self.mu < LEAST_MU
        ):
            return [0]
        found = [max(math.floor(mean - _BELOW * deviation), 0)]
        while len(found) < _LEVELS and found[-1] + 1 < self.slots:
            if many_empty(self.num_clients, self.slots, self.prob, found[-1] + 1) < math.exp(
                -self.neg_log_tail
            ):
                break
            found.append(min(found[-1] + max(math.ceil(_STEP * deviation), 1), self.slots - 1))
        return found

    @property
    def gains(self) -> bool:
        """True if the bound differs from G3."""
        return len(self._parts) > 1

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        every, _ = self._parts[-1]
        always = every.upper_sides(loss)
        worst = total = np.zeros((2, *np.shape(loss)))
        for part, needed in self._parts:
            # A negligible event counts in full. G3 holds for any number of empty slots.
            rare = needed < math.exp(-self.neg_log_tail)
            sides = np.ones_like(worst) if rare else np.minimum(part.upper_sides(loss), always)
            more = np.maximum(sides, worst)
            total = total + needed * (more - worst)
            worst = more
        forward, backward = total * (1.0 + 1e-12)
        return forward, backward
