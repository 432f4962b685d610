"""own-laws for k-ary randomized response (t_k), with all others at a third record as the witness.

One record is replaced. The adversary sees the messages of a round in random order, or slot by slot, and their number.
All clients use the same randomizer [docs/theory_mechanisms.md]. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.clones_bounds import Binary, Mixture, OfMixture, third_record_laws
from checkin_jax.accounting.bounds.interface import Witness, binary_laws
from checkin_jax.accounting.bounds.messages.cover import StepCover, equal_draws
from checkin_jax.accounting.bounds.messages.total_variation import HiddenSteps
from checkin_jax.kernels import clones, host
from checkin_jax.kernels.messages import equal_steps

# Fewest buckets of the number of messages that show one of the two records.
_BUCKETS = 256


@dataclasses.dataclass(frozen=True)
class KaryBound(HiddenSteps):
    """t_k: messages of k-ary randomized response, whose labels may be permuted adaptively within the round.

    Certified, in both directions, at any rate up to 1.

    Args:
      step_cover: cover of the unit. epsilon0: nats, in (0, 50]. num_values: k, whole, in [2, 2^42].
      neg_log_tail: -log of the negligible mass, in [1, 1e4].

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    step_cover: StepCover
    epsilon0: float
    num_values: int
    neg_log_tail: float

    name = "own-laws (k-ary randomized response)"

    def __post_init__(self) -> None:
        _validate.real(0.0, 50.0, "(]", epsilon0=self.epsilon0)
        _validate.integer(2, 2**42, num_values=self.num_values)
        _validate.real(1.0, 1e4, neg_log_tail=self.neg_log_tail)

    @property
    def law(self) -> equal_steps.StepLaw:
        """The dominating step t_k."""
        p_minus_1 = math.expm1(self.epsilon0)
        each = 1.0 / (p_minus_1 + self.num_values)
        return equal_steps.StepLaw(host(each), host(0.0), host(p_minus_1 * each))

    @property
    def chi_square(self) -> float:
        # With all others at a third record, or at one of the two records.
        each = 1.0 / (math.expm1(self.epsilon0) + self.num_values)
        variance = each * (2.0 if self.num_values > 2 else 1.0 + math.exp(-self.epsilon0))
        return self.step_cover.chi_square(self.epsilon0, variance, self.neg_log_tail)

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        mass, draws = self.neg_log_tail, self.step_cover.draws(self.neg_log_tail)
        if draws is None:
            return ()
        if self.num_values == 2:
            labels = equal_draws(self.step_cover, binary_laws(self.epsilon0), mass)
            messages = self.step_cover.messages(self.epsilon0, mass)
            return (Binary(self, messages, self.epsilon0, mass, equal_draws=labels),)
        p = math.exp(self.epsilon0)
        each = 1.0 / (math.expm1(self.epsilon0) + self.num_values)
        present, away = draws.rate * (1.0 - 2.0 * each), 1.0 - draws.rate
        ones = np.ones_like(draws.number)
        law = clones.MixtureLaw(
            host(draws.number),
            host(2.0 * draws.rate * each * ones),
            host(away / (away + present) * ones),
            host((self.num_values - 2.0) / (p + self.num_values - 3.0) * ones),
            host(draws.number * (1.0 - draws.use_prob) / draws.use_prob),
            host(draws.use_prob),
            host(draws.weight),
            host(ones),
        )
        mixture = Mixture(law, self.epsilon0, mass, coarsest=_BUCKETS)
        name = "k-ary randomized response, all others at a third record"
        labels = equal_draws(self.step_cover, third_record_laws(self.epsilon0, self.num_values), mass)
        return (OfMixture(self, mixture, name, equal_draws=labels),)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found
