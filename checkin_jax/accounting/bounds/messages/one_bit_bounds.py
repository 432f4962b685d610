"""own-laws for one-bit messages with public coins: B0, for shuffled check-in [docs/theory_mechanisms.md].

Given public randomness whose law does not depend on the record, a message is (a post-processing of) one eps0-LDP bit.
Examples are the l2 mechanism of LDP-SGD and binary randomized response. One record is replaced. The adversary sees the
messages of a round in random order, and their number. All clients use the same randomizer. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.clones_bounds import Binary, Mixture, largest_loss
from checkin_jax.accounting.bounds.interface import Instance, Lines, UnitBound
from checkin_jax.accounting.bounds.messages.cover import Shuffled, StepCover
from checkin_jax.accounting.bounds.messages.total_variation import (
    losses_of,
    most_total_variation,
    total_variation_law,
)
from checkin_jax.kernels import host, mixture_profiles
from checkin_jax.kernels.messages import equal_steps, one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import convex

# Fewest buckets of the number of messages in `FairBits`.
_BUCKETS = 256


@dataclasses.dataclass(frozen=True, eq=False)
class FairBits:
    """Instance: opposite records among zero updates, whose messages, like dummies, are fair bits. Symmetric.

    The likelihood ratio depends on the sum of the bits only, which is observed even where the number of messages is
    not.
    """

    scale: UnitBound
    step_cover: StepCover
    epsilon0: float
    log_inverse_mass: float

    name = "one bit (in one dimension, say), all others and dummies at zero updates"
    symmetric = True

    @functools.cached_property
    def _mixture(self) -> Mixture:
        # Shares of the base law in units of the rarer bit's: e^epsilon0, 1, and 1 / (2 rare) for absent clients.
        draws, rare = self.step_cover.draws(self.log_inverse_mass), 1.0 / (1.0 + math.exp(self.epsilon0))
        ones = np.ones_like(draws.number)
        law = mixture_profiles.Law(
            host(draws.number),
            host(draws.rate * ones),
            host(ones),
            host(0.0 * ones),
            host(draws.number * (1.0 - draws.used) / draws.used / (2.0 * rare)),
            host(draws.used * (2.0 * rare)),
            host(draws.weight),
            host(0.5 / rare * ones),
        )
        return Mixture(law, self.epsilon0, self.log_inverse_mass, coarsest=_BUCKETS)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        lines = self._mixture.lower(loss)
        return lines, lines


@dataclasses.dataclass(frozen=True)
class _OneBit(abc.ABC):
    """Base of bounds on one-bit messages: the smaller of A, at their total variation, and `below`."""

    step_cover: StepCover
    epsilon0: float
    log_inverse_mass: float
    differ: float = 1.0

    sharp = True

    def __post_init__(self) -> None:
        _validate.real(0.0, 50.0, open_low=True, epsilon0=self.epsilon0)
        _validate.real(1.0, 1e4, log_inverse_mass=self.log_inverse_mass)
        _validate.real(0.0, 1.0, open_low=True, differ=self.differ)

    @property
    def top(self) -> float:
        return largest_loss(self.epsilon0, self.step_cover.used)

    @property
    def message(self) -> Message:
        """The message as kernels take it."""
        return Message(host(self.epsilon0), host(self.differ))

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Word of the bound, for `method` and statements."""

    @abc.abstractmethod
    def below(self, losses: np.ndarray, plain: np.ndarray) -> np.ndarray:
        """Upper bounds at these losses; values above `plain` need not be sharp."""

    @functools.cached_property
    def profile(self) -> tuple[np.ndarray, np.ndarray]:
        """(losses, upper bounds) of a symmetric pair's profile, linear in e^loss between losses."""
        law = total_variation_law(self.epsilon0, self.differ * most_total_variation(self.epsilon0))
        step_counts = self.step_cover.sums(self.log_inverse_mass)
        losses = losses_of(law, step_counts, self.epsilon0, self.log_inverse_mass)
        plain = np.asarray(equal_steps.profile_upper(law, step_counts, host(self.epsilon0), host(losses)))
        value = np.minimum(plain, self.below(losses, plain))
        value = np.where(losses >= self.epsilon0, 0.0, np.minimum.accumulate(value))
        above, value = convex.full_hull(np.expm1(losses), value)
        return np.log1p(above), value

    def upper(self, loss: np.ndarray) -> np.ndarray:
        """Upper bounds on the hockey-stick divergence at e^loss, loss >= 0 in nats, in both directions."""
        return np.where(np.asarray(loss) >= self.top, 0.0, convex.chords(*self.profile, np.asarray(loss)))

    @functools.cached_property
    def _found(self) -> tuple[Instance, ...]:
        if self.differ < 1.0:
            return ()
        messages = self.step_cover.messages(self.epsilon0, self.log_inverse_mass)
        return (Binary(self, messages, self.epsilon0, self.log_inverse_mass),)

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self._found


@dataclasses.dataclass(frozen=True)
class OneBitCheckIn(_OneBit):
    """B0: one-bit messages in shuffled check-in at a rate below one; T1 at rate one. Certified.

    A message may depend on messages of earlier rounds, not on other messages of its own round.

    Args:
      step_cover: shuffled check-in. epsilon0: nats, in (0, 50].
      log_inverse_mass: -log of the negligible mass, in [1, 1e4].
      differ: upper bound on the probability, over the public coins, that the bits of two records differ; in (0, 1].
        Below 1 (B_nu) there are no instances.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.instance(Shuffled, step_cover=self.step_cover)

    @property
    def name(self) -> str:
        return "own-laws (one bit)" if self.step_cover.everybody < 1.0 else "clones"

    def below(self, losses: np.ndarray, plain: np.ndarray) -> np.ndarray:
        step_counts = self.step_cover.sums(self.log_inverse_mass)
        if float(step_counts.rate) >= 1.0:
            return plain
        arguments = step_counts.clients, step_counts.rate, self.message, host(losses), host(plain)
        return np.asarray(one_bit_profile.profile_upper(*arguments))
