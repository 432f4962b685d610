"""Privacy profiles of one message, from which the bound "profile" (T*) is made.

`delta(loss)` is the largest hockey-stick divergence at e^loss, loss >= 0, between the laws of a message at two inputs,
in either order. It is nonincreasing, convex in e^loss, and at most 1. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import MAX_LOSS, LocalGaussian, LocalMessages
from checkin_jax.accounting.bounds.interface import Profile as Profile
from checkin_jax.kernels import gaussian_profile
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import summed_noise
from checkin_jax.numerics.counts.summed_noise import MOST_SCALES, laplace_sum
from checkin_jax.randomizers import LabelLaws, Randomizer

TINY = 1e-304
# The largest mu at which T* gains.
MOST_HIDDEN_MU = 16.0


# Bits of a smaller epsilon0 tell hardly less in sums than in messages.
_WEAK_BIT = 0.1
# Losses of the table of `WithoutDummies`, and the number of s.
_NEAREST, _FARTHEST, _PLACES, _CUTS = 1e-3, MAX_LOSS, 2400, 40
# The largest mu of a Gaussian profile.
MOST_SHIFT = 40.0


@dataclasses.dataclass(frozen=True)
class GaussianProfile:
    """Profile of Gaussian noise; mu = 2 clip norms / standard deviation of the noise."""

    mu: float

    name = "Gaussian"
    largest_loss = math.inf

    def __post_init__(self) -> None:
        _validate.real(0.0, MOST_SHIFT, "(]", mu=self.mu)

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return gaussian_profile.profile_ahead(self.mu, loss) + TINY


@dataclasses.dataclass(frozen=True)
class MessageProfile:
    """Profile that a randomizer declares for one message."""

    randomizer: Randomizer

    @property
    def name(self) -> str:
        return type(self.randomizer).__name__

    @property
    def largest_loss(self) -> float:
        return self.randomizer.largest_loss

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return np.asarray(self.randomizer.profile(loss), dtype=np.float64) + TINY


@dataclasses.dataclass(frozen=True, eq=False)
class LabelProfile:
    """Profile of a concrete pair of records, observed through labels."""

    laws: LabelLaws

    name = "labelled"

    @functools.cached_property
    def _sides(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(target - other, other) over labels where it is positive, and (other - target, target) likewise."""
        target, other = (np.asarray(part, dtype=np.float64) for part in self.laws[:2])
        apart = self.laws.difference
        up, down = apart > 0.0, apart < 0.0
        return (apart[up], other[up]), (-apart[down], target[down])

    @property
    def largest_loss(self) -> float:
        """Largest privacy loss, rounded up; infinite if a label has mass zero under one record only."""
        with np.errstate(divide="ignore"):
            ratios = [float(np.max(apart / mass, initial=0.0)) for apart, mass in self._sides]
        return math.log1p(max(ratios)) * (1.0 + 1e-12)

    def delta(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        above = np.expm1(np.minimum(loss, MAX_LOSS)).ravel()[:, None]
        found = [
            np.sum(np.maximum(apart - above * mass, 0.0), axis=1, initial=0.0) for apart, mass in self._sides
        ]
        return np.minimum(np.maximum(*found), 1.0).reshape(loss.shape) + TINY


@dataclasses.dataclass(frozen=True)
class SummedMessages:
    """Profile of a sum of messages, linear in e^loss between the losses of a table.

    Attributes:
      table: (losses, upper bounds at them) of given arguments, the first of which is the number of messages.
    """

    name: str
    largest_loss: float
    table: Callable[..., tuple[np.ndarray, np.ndarray]]
    arguments: tuple[float, ...]

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return convex.chords(*self.table(*self.arguments), np.asarray(loss, dtype=np.float64)) + TINY


@dataclasses.dataclass(frozen=True)
class WithoutDummies:
    """Profile of messages without their dummies: the least of the chords of bounds at a table of losses.

    With b the share of dummies, which are draws of one law, cut down to s_A times each client's, b' = b / (1 - r), r
    the mass cut off, D_0 a bound on the divergence of that law from a message, and any 1 <= s <= s_A, c >= 1,

        D(1 + (c - 1) (1 - s b')) / (1 - b) + (c - 1) b' D_0(s) / (1 - b) ,

    without the second term at s_A [docs/theory_shuffle.md, 3].

    Attributes:
      profile, dummy: D and D_0. share: b. dense: b'. most: s_A < 1/b'.
    """

    profile: Profile
    dummy: Profile
    share: float
    dense: float
    most: float

    largest_loss = math.inf

    @property
    def name(self) -> str:
        return self.profile.name

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        losses = np.concatenate([[0.0], np.geomspace(_NEAREST, _FARTHEST, _PLACES)])
        above, value = np.expm1(losses), np.full(losses.shape, math.inf)
        for s in np.geomspace(1.0, self.most, _CUTS):
            found = self.profile.delta(np.log1p(above * (1.0 - s * self.dense)) * (1.0 - 1e-14))
            if s < self.most * (1.0 - 1e-9):
                found = found + above * self.dense * self.dummy.delta(np.log(np.array([s])))
            value = np.minimum(value, found)
        value = np.minimum(value / (1.0 - self.share) * (1.0 + 1e-11), 1.0)
        kept = convex.hull(above, np.minimum.accumulate(value))
        return losses[kept], value[kept]

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return convex.held_chords(*self._table, np.asarray(loss, dtype=np.float64))


def dummy_profile(profile: Profile) -> Profile:
    """Bound on the divergence of a dummy's law from a message's: that of noise alone if Gaussian, else of a record."""
    return GaussianProfile(0.5 * profile.mu) if isinstance(profile, GaussianProfile) else profile


def mean_loss(profile: Profile) -> float:
    """Mean privacy loss of a message in nats, approximate: the integral of D(loss) (1 + e^-loss)."""
    losses = np.concatenate([[0.0], np.geomspace(_NEAREST, _FARTHEST, _PLACES)])
    return float(np.trapezoid(profile.delta(losses) * (1.0 + np.exp(-losses)), losses))


def without_dummies(profile: Profile, clients: int, share: float) -> WithoutDummies | None:
    """Profile of messages without a share of dummies; None if they do not leave half of some message."""
    dummy = dummy_profile(profile)
    most = np.geomspace(1.01, 1e12, 2000)
    cut = (clients + 1.0) * dummy.delta(np.log(most) * (1.0 - 1e-14)) * (1.0 + 1e-12)
    dense = share / np.where(cut < 0.9, 1.0 - cut, 1e-200) * (1.0 + 1e-12)
    best = int(np.argmin(most * dense))
    if most[best] * dense[best] > 0.5:
        return None
    return WithoutDummies(profile, dummy, share, float(dense[best]), float(most[best]))


def counted_bits(number: int, epsilon0: float, neg_log_tail: float) -> SummedMessages:
    """Profile of the sum of so many messages, each of independent bits, in two of which any two records differ."""
    facts = number, epsilon0, neg_log_tail
    return SummedMessages("counts of bits", 2.0 * epsilon0, summed_noise.two_counts, facts)


def summed_laplace(number: int, epsilon0: float) -> SummedMessages:
    """Profile of the sum of so many Laplace messages of an interval; epsilon0: its length in scales of the noise."""
    return SummedMessages("sums of Laplace messages", epsilon0, laplace_sum, (number, epsilon0))


def profile_of(randomizer: Randomizer) -> Profile:
    """Privacy profile of one message of the randomizer."""
    mu = randomizer.gaussian_mu
    return MessageProfile(randomizer) if mu is None else GaussianProfile(mu)


def one_message(randomizer: Randomizer, rate: float = 1.0) -> LocalGaussian | LocalMessages:
    """Bound on one message of the randomizer by itself, sent with probability `rate`; exact for Gaussian noise."""
    mu = randomizer.gaussian_mu
    return LocalMessages(rate, MessageProfile(randomizer)) if mu is None else LocalGaussian(rate, mu)


def of_sums(randomizer: Randomizer, neg_log_tail: float) -> Callable[[int], Profile] | None:
    """Profile of a sum of k messages as a function of k: noise, or bits; None if sums tell hardly less."""
    mu, epsilon0, scales = randomizer.gaussian_mu, randomizer.bit_epsilon0, randomizer.laplace_scales
    if mu is not None:
        return lambda number: GaussianProfile(mu / math.sqrt(number))
    if scales is not None and scales <= MOST_SCALES:
        return lambda number: summed_laplace(number, scales)
    if epsilon0 is None or epsilon0 < _WEAK_BIT:
        return None
    return lambda number: counted_bits(number, epsilon0, neg_log_tail)
