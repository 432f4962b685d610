"""own-laws for one-bit messages with public coins: B0, for shuffled check-in [docs/theory_mechanisms.md].

Given public randomness whose law does not depend on the record, a message is (a post-processing of) one eps0-LDP bit.
Examples are the l2 mechanism of LDP-SGD and binary randomized response. One record is replaced. The adversary sees the
messages of a round in random order, and their number. All clients use the same randomizer. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.clones_bounds import Binary, Mixture, OfMixture
from checkin_jax.accounting.bounds.interface import UnitBound, Witness, binary_laws
from checkin_jax.accounting.bounds.messages.cover import Shuffled, StepCover, equal_draws
from checkin_jax.accounting.bounds.messages.total_variation import (
    HiddenSteps,
    most_total_variation,
    total_variation_law,
)
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.kernels import clones, host
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.kernels.messages.likelihood_polytopes import Message

FAIR_BITS = "one bit (in one dimension, say), all others and dummies at zero updates"
# Fewest buckets of the number of messages in `fair_bits`.
_BUCKETS = 256


def fair_bits(
    grid_bound: UnitBound, step_cover: StepCover, epsilon0: float, neg_log_tail: float
) -> OfMixture:
    """Witness: opposite records among zero updates, whose messages, like dummies, are fair bits. Symmetric.

    The likelihood ratio depends on the sum of the bits only, which is observed even where the number of messages is
    not.
    """
    # Shares of the base law in units of the rarer bit's: e^epsilon0, 1, and 1 / (2 rare) for absent clients.
    draws, rare = step_cover.draws(neg_log_tail), 1.0 / (1.0 + math.exp(epsilon0))
    assert draws is not None
    ones = np.ones_like(draws.number)
    law = clones.MixtureLaw(
        host(draws.number),
        host(draws.rate * ones),
        host(ones),
        host(0.0 * ones),
        host(draws.number * (1.0 - draws.use_prob) / draws.use_prob / (2.0 * rare)),
        host(draws.use_prob * (2.0 * rare)),
        host(draws.weight),
        host(0.5 / rare * ones),
    )
    mixture = Mixture(law, epsilon0, neg_log_tail, coarsest=_BUCKETS)
    labels = equal_draws(step_cover, binary_laws(epsilon0, np.full(2, 0.5)), neg_log_tail)
    return OfMixture(grid_bound, mixture, FAIR_BITS, equal_draws=labels)


@dataclasses.dataclass(frozen=True)
class OneBitCheckIn(HiddenSteps):
    """B0: one-bit messages in shuffled check-in at a rate below one. Certified, in both directions.

    A message may depend on messages of earlier rounds, not on other messages of its own round. Where A is smaller, at
    the bits' total variation, it is A.

    Args:
      step_cover: shuffled check-in, or a pool (B0h). epsilon0: nats, in (0, 50].
      neg_log_tail: -log of the negligible mass, in [1, 1e4].
      differ: upper bound on the probability, over the public coins, that the bits of two records differ; in (0, 1].
        Below 1 (B_nu) there are no witnesses.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    step_cover: StepCover
    epsilon0: float
    neg_log_tail: float
    differ: float = 1.0

    name = "own-laws (one bit)"

    def __post_init__(self) -> None:
        _validate.real(0.0, 50.0, "(]", epsilon0=self.epsilon0)
        _validate.real(1.0, 1e4, neg_log_tail=self.neg_log_tail)
        _validate.real(0.0, 1.0, "(]", differ=self.differ)
        if not isinstance(self.step_cover, ClientPool):
            cover = _validate.instance(Shuffled, step_cover=self.step_cover)
            _validate.real(0.0, 1.0, "()", rate=cover.rate)

    @property
    def law(self) -> equal_steps.StepLaw:
        """The dominating step of A."""
        return total_variation_law(self.epsilon0, self.differ * most_total_variation(self.epsilon0))

    @property
    def chi_square(self) -> float:
        variance = self.differ * math.exp(-self.epsilon0)
        return self.step_cover.chi_square(self.epsilon0, variance, self.neg_log_tail)

    def evaluated(self) -> tuple[np.ndarray, np.ndarray]:
        losses, plain = super().evaluated()
        message = Message(host(self.epsilon0), host(self.differ))
        assert isinstance(self.step_cover, Shuffled | ClientPool)
        value = self.step_cover.of_bits(message, losses, plain, self.neg_log_tail)
        return losses, np.minimum(plain, value)

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        if self.differ < 1.0:
            return ()
        messages = self.step_cover.messages(self.epsilon0, self.neg_log_tail)
        labels = equal_draws(self.step_cover, binary_laws(self.epsilon0), self.neg_log_tail)
        return (Binary(self, messages, self.epsilon0, self.neg_log_tail, equal_draws=labels),)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found
