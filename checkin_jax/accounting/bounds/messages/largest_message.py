"""A lower end where noise is weak: is one of the messages further out than any of the others' is likely to be?

All other clients are at x', the target at x or x'. The sum of likelihood ratios, whose tails are those of a lognormal
law, says little more there than its largest term does; this event is worth its closed form. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.accounting.bounds.interface import Lines, OfEvents, UnitBound
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex

# Single messages matter where this share of log n is within reach of their losses.
_SINGLE = 0.5
# Places that are tried, and how far out: normal tails are numbers up to there.
_PLACES, _FARTHEST = 2048, 37.0
# ndtr is accurate to this, relatively, and more.
_ACCURACY = 1e-12


@dataclasses.dataclass(frozen=True)
class LargestMessage:
    """Whether the largest Gaussian message along x - x' is beyond a place; all others at x'.

    Attributes:
      num_clients, rate: n and gamma. mu: 2 / noise_multiplier.
    """

    num_clients: int
    rate: float
    mu: float

    name = "the largest Gaussian message, all others at one of the two records"
    symmetric = False
    # Single messages must be seen, not sums of them.
    single: ClassVar[bool] = True

    @property
    def scale(self) -> UnitBound:
        return OfEvents(self)

    @functools.cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """P(A) - Q(A), Q(A) and 1 - P(A); A: some message is beyond a place."""
        place = np.linspace(0.0, _FARTHEST, _PLACES)
        near, far = (self.rate * scipy.special.ndtr(at) for at in (-place, self.mu - place))
        others, low, high = self.num_clients - 1.0, 1.0 - _ACCURACY, 1.0 + _ACCURACY
        # Logarithms of no other one's being beyond it, from below and above. Tails are rounded against the instance.
        least = others * np.log1p(-np.minimum(near * high, 1.0 - 1e-16)) * high
        most = others * np.log1p(-near * low) * low
        gained = np.exp(least) * np.maximum(far * low - near * high, 0.0) * (1.0 - ROUNDING)
        seen = -np.expm1(least + np.log1p(-np.minimum(near * high, 1.0 - 1e-16)) * high) * (1.0 + ROUNDING)
        unseen = np.minimum(np.exp(most) * (1.0 - far * low) * (1.0 + ROUNDING), 1.0)
        # No place at all is an event, too.
        return np.append(gained, 0.0), np.append(seen, 0.0), np.append(unseen, 0.0)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        difference, seen, unseen = self._lines
        above = np.expm1(np.asarray(loss))

        def best(mass: np.ndarray) -> Lines:
            at = convex.highest(difference, mass, above)
            return difference[at], mass[at]

        return best(seen), best(unseen)


def largest_instances(
    num_clients: int, rate: float, mu: float, exponent: float
) -> tuple[LargestMessage, ...]:
    """The instance, where single messages matter to a delta of exp(-exponent); else none."""
    if mu * math.sqrt(2.0 * max(exponent, 1.0)) < _SINGLE * math.log(num_clients):
        return ()
    return (LargestMessage(num_clients, rate, mu),)
