"""T**: Gaussian messages of shuffled check-in, two laws in place of the join T* of everything that another may send.

T* counts a variance about twice that of any single choice of another client's record. For Gaussian messages all choices
are below mixtures of two laws, near those of clients at the one record and at the other [docs/theory_gaussian.md, 1b].
Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import ClassVar

import numpy as np

from checkin_jax.accounting.bounds.everybody import HiddenGaussian, hidden_gaussian
from checkin_jax.accounting.bounds.messages.hidden import HiddenMessages
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import two_laws
from checkin_jax.numerics import two_laws as laws

# Fewer messages a round than this gain too little.
_LEAST_MESSAGES = 10.0
# The knots' reach in standard deviations, and how much less than delta over the rounds may be cut, as an exponent.
_MOST_REACH, _SPARED = 14.0, 7.0


def gains(num_clients: int, rate: float, mu: float) -> bool:
    """Whether T** is worth its time: a mu that the laws are made for, and some messages a round."""
    return laws.LEAST_MU <= mu <= laws.MOST_MU and rate < 1.0 and num_clients * rate >= _LEAST_MESSAGES


@dataclasses.dataclass(frozen=True)
class TwoLawMessages(HiddenMessages):
    """`HiddenMessages` of Gaussian noise, by T** where that is smaller than T*.

    Made by `TwoLawGaussian`, whose arguments `gains` has approved.
    """

    @property
    def name(self) -> str:
        return "T** (Gaussian messages)"

    @property
    def _mu(self) -> float:
        assert isinstance(self.profile, GaussianProfile)
        return self.profile.mu

    @functools.cached_property
    def reach(self) -> float:
        """Whole standard deviations that the laws' knots reach, so that settings share laws."""
        exponent = max(self.log_inverse_mass - 17.0 + _SPARED, 8.0)
        return min(float(math.ceil(math.sqrt(2.0 * exponent))), _MOST_REACH)

    def hidden(self) -> np.ndarray:
        star = hidden_gaussian(self.num_clients, self.rate, self._mu, self.log_inverse_mass)
        found, losses = star.values, self.losses
        # Where T* is this small nothing matters.
        least = 1e-2 * math.exp(17.0 - self.log_inverse_mass)
        for interval, (low, high) in enumerate(itertools.pairwise(laws.C_NODES)):
            here = (found > least) & (losses >= math.log(low)) & (losses < math.log(high))
            if here.any():
                found = np.minimum(found, self._between(interval, found, here))
        return found

    def _between(self, interval: int, ceiling: np.ndarray, here: np.ndarray) -> np.ndarray:
        """T** where `here`, with the laws of this interval of c; infinity elsewhere."""
        mu, losses = self._mu, self.losses
        both = laws.dominating(mu, self.reach, interval)
        low, high = laws.C_NODES[interval : interval + 2]
        c = np.exp(np.where(here, losses, math.log(low)))[:, None, None]
        share = np.clip((c - low) / (high - low), 0.0, 1.0)
        right, left = ((1.0 - share) * side[0] + share * side[1] for side in (both.right, both.left))
        # T* is the larger of X and Y, at the knots; V is above both.
        right, left = (
            np.concatenate([side, np.max(side, axis=1, keepdims=True)], axis=1) * (1.0 + 1e-12)
            for side in (right, left)
        )
        deviation = self.steps[2]
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
    def _hidden(self) -> TwoLawMessages:
        profile = GaussianProfile(self.mu)
        return TwoLawMessages(self.num_clients, self.rate, profile, self.log_inverse_mass, self._everybody)
