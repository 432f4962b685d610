"""Witness for weak noise: the event that the largest message along x - x' exceeds a threshold.

All other clients are at x', the target at x or x'. Likelihood ratios have lognormal tails, so their sum is hardly
better than its largest term, whose event has a closed form. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.accounting.bounds.interface import EventProfile, Lines, UnitBound
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex

# Single messages matter if their losses reach this share of log n.
_SINGLE = 0.5
# Number of thresholds, and the largest: normal tails do not underflow below it.
_PLACES, _FARTHEST = 2048, 37.0
# Upper bound on the relative error of ndtr.
_ACCURACY = 1e-12


@dataclasses.dataclass(frozen=True)
class LargestMessage:
    """Witness: the largest Gaussian message along x - x' exceeds a threshold, all others at x'.

    Attributes:
      num_clients, rate: n and gamma. mu: 2 / noise_multiplier.
    """

    num_clients: int
    rate: float
    mu: float

    name = "the largest Gaussian message, all others at one of the two records"
    symmetric = False
    # The view must show single messages, not sums.
    single: ClassVar[bool] = True

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self)

    @functools.cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """P(A) - Q(A), Q(A) and 1 - P(A) for the events A: some message exceeds a threshold."""
        place = np.linspace(0.0, _FARTHEST, _PLACES)
        near, far = (self.rate * scipy.special.ndtr(at) for at in (-place, self.mu - place))
        others, low, high = self.num_clients - 1.0, 1.0 - _ACCURACY, 1.0 + _ACCURACY
        # log Pr(no other message exceeds the threshold), from below and above. Tails are rounded against the witness.
        least = others * np.log1p(-np.minimum(near * high, 1.0 - 1e-16)) * high
        most = others * np.log1p(-near * low) * low
        gained = np.exp(least) * np.maximum(far * low - near * high, 0.0) * (1.0 - ROUNDING)
        exceeding = -np.expm1(least + np.log1p(-np.minimum(near * high, 1.0 - 1e-16)) * high) * (
            1.0 + ROUNDING
        )
        not_exceeding = np.minimum(np.exp(most) * (1.0 - far * low) * (1.0 + ROUNDING), 1.0)
        return gained, exceeding, not_exceeding

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        difference, exceeding, not_exceeding = self._lines
        return convex.best_event(difference, exceeding, loss), convex.best_event(
            difference, not_exceeding, loss
        )


def largest_witnesses(
    num_clients: int, rate: float, mu: float, exponent: float
) -> tuple[LargestMessage, ...]:
    """The witness, if single messages matter to a delta of exp(-exponent)."""
    if mu * math.sqrt(2.0 * max(exponent, 1.0)) < _SINGLE * math.log(num_clients):
        return ()
    return (LargestMessage(num_clients, rate, mu),)
