"""T**: Gaussian messages of shuffled check-in, two laws in place of the join T* of everything that another may send.

T* counts a variance about twice that of any single choice of another client's record. For Gaussian messages all choices
are below mixtures of two laws, near those of clients at the one record and at the other [docs/theory_gaussian.md, 1b].
Call inside `jax.enable_x64(True)`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from checkin_jax.accounting.bounds.everybody import HiddenGaussian
from checkin_jax.accounting.bounds.hidden import HiddenMessages
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import two_laws
from checkin_jax.numerics import two_laws as laws

# Fewer messages a round than this gain too little.
_LEAST_MESSAGES = 10.0
# The knots' reach in standard deviations, and how much less than delta over the rounds may be cut, as an exponent.
_MOST_REACH, _SPARED = 14.0, 7.0


@dataclasses.dataclass(frozen=True)
class TwoLawMessages(HiddenMessages):
    """`HiddenMessages` of Gaussian noise, by T** where that is smaller."""

    @property
    def name(self) -> str:
        return "T** (Gaussian messages)"

    @functools.cached_property
    def _reach(self) -> float:
        """Whole standard deviations, so that settings share laws."""
        exponent = max(self.log_inverse_mass - 17.0 + _SPARED, 8.0)
        return min(math.ceil(math.sqrt(2.0 * exponent)), _MOST_REACH)

    def hidden(self) -> np.ndarray:
        found, losses = super().hidden(), self._losses
        mu = getattr(self.profile, "mu", math.inf)
        if not laws.LEAST_MU <= mu <= laws.MOST_MU or self.num_clients * self.rate < _LEAST_MESSAGES:
            return found
        # Beyond this T* is below what matters.
        least = 1e-2 * math.exp(17.0 - self.log_inverse_mass)
        wanted = (found > least) & (losses <= math.log(laws.C_NODES[-1]))
        for interval, (low, high) in enumerate(zip(laws.C_NODES, laws.C_NODES[1:])):
            here = wanted & (losses >= math.log(low)) & (losses < math.log(high))
            if here.any():
                found = np.minimum(found, self._between(interval, found, here))
        return found

    def _between(self, interval: int, ceiling: np.ndarray, here: np.ndarray) -> np.ndarray:
        """T** where `here`, with the laws of this interval of c; infinity elsewhere."""
        mu, losses = getattr(self.profile, "mu", math.inf), self._losses
        both = laws.dominating(mu, self._reach, interval)
        low, high = laws.C_NODES[interval : interval + 2]
        c = np.exp(np.where(here, losses, math.log(low)))[:, None, None]
        share = np.clip((c - low) / (high - low), 0.0, 1.0)
        right, left = ((1.0 - share) * side[0] + share * side[1] for side in (both.right, both.left))
        # T* is the larger of X and Y, at the knots; V is above both.
        right, left = (
            np.concatenate([side, np.max(side, axis=1, keepdims=True)], axis=1) * (1.0 + 1e-12)
            for side in (right, left)
        )
        _, knots, deviation = self._steps
        arguments = (self.num_clients, self.rate, deviation, both.knots, losses, ceiling, right, left)
        value = np.asarray(two_laws.profile_upper(*(host(each) for each in arguments)))
        return np.where(here, value + self._rest * self._seldom(losses) * (1.0 + ROUNDING), math.inf)


@dataclasses.dataclass(frozen=True)
class TwoLawGaussian(HiddenGaussian):
    """`HiddenGaussian` with T** in place of T*: one randomizer for all clients, none adaptive within the round."""

    # Names of bounds that are never below this one.
    includes: ClassVar[tuple[str, ...]] = (
        *HiddenGaussian.includes,
        "T* (Gaussian messages)",
        "T* (Gaussian messages) and G2",
    )

    @functools.cached_property
    def _hidden(self) -> HiddenMessages:
        profile = GaussianProfile(self.mu)
        return TwoLawMessages(self.num_clients, self.rate, profile, self.log_inverse_mass, self._everybody)
