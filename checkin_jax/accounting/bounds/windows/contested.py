"""T2 in windows whose clients throw independently: the client's message is not drawn in every slot.

Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.clones import Mixture, SlotsPureLDP
from checkin_jax.kernels import binomial, clones, host

# Numbers of slots that are told apart, by the logarithm of what is beyond.
_WON = (0.15, 0.5, 1.2, 2.5, 5.0, 10.0, 20.0)


@dataclasses.dataclass(frozen=True)
class ContestedSlots(SlotsPureLDP):
    """T2 where it counts in how many slots the client would win against the others there [docs/theory.md, section 6].

    Attributes:
      others, pick: clients that may be in each of the slots, independently, each with this probability.
    """

    others: int = 0
    pick: float = 0.0

    @property
    def _won(self) -> float:
        """The probability that the client is the one drawn of its slot, rounded up."""
        rivals = self.others + 1.0
        if not self.others or self.pick <= 0.0:
            return 1.0
        lost = rivals * math.log1p(-self.pick) if self.pick < 1.0 else -math.inf
        return min(-math.expm1(lost) / (rivals * self.pick) * (1.0 + 1e-12), 1.0)

    @property
    def variance(self) -> float:
        return super().variance * self._won

    def won(self) -> tuple[np.ndarray, np.ndarray]:
        """(values, masses) of a law stochastically above the number of slots in which the client would win."""
        share, number = self._won, float(self.slots)
        exponents = np.array(
            [*(each for each in _WON if each < self.log_inverse_mass), self.log_inverse_mass]
        )
        low, high = np.full(exponents.size, number * share), np.full(exponents.size, number)
        for _ in range(80):
            middle = 0.5 * (low + high)
            enough = np.asarray(binomial.log_chernoff(middle, number, min(share, 1.0))) <= -exponents
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        # More than a level with the probability of the next one at most.
        values = np.append(np.minimum(np.ceil(high), number), number)
        survival = np.concatenate([[1.0], np.exp(-exponents), [0.0]])
        return np.maximum(values, 1.0), -np.diff(survival) * (1.0 + 1e-12)

    @functools.cached_property
    def mixture(self) -> Mixture:
        values, masses = self.won()
        parts = (host(values), host(self.used * values / self.slots), host(masses))
        return Mixture(
            clones.slots_law(*parts, host(self.epsilon0), True), self.epsilon0, self.log_inverse_mass
        )
