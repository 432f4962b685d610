"""clones and own-laws for unequal check-in rates (A, t_k, B0h): messages of which more than epsilon0 is known.

A and t_k are T1h with the dominating step of a total variation, or of k-ary randomized response. B0h is for messages of
one bit and public coins: each other client has the worse of two laws [docs/theory_rates.md, 3]. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.messages.total_variation import (
    DominatingSteps,
    losses_of,
    most_total_variation,
    total_variation_law,
)
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import equal_steps, one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics.counts.pools import PoolSizes


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalSteps(DominatingSteps):
    """T1h with the dominating step `law`. Certified; both directions, adaptive within the round.

    Attributes:
      rate: upper bound on the target's rate g, in (0, 1]. theta, pool: as of `UnequalPureLDP`. epsilon0: nats, in (0,
        50].
      law: the step. neg_log_tail: -log of the negligible mass.
    """

    rate: float
    theta: float
    pool: PoolSizes
    epsilon0: float
    law: equal_steps.StepLaw
    neg_log_tail: float
    name: str
    witnesses: tuple[Witness, ...] = ()

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    def evaluated(self) -> tuple[np.ndarray, np.ndarray]:
        one, number = np.ones(1), self.pool.mean + 1.0
        # The range of losses is about that of n members at rate theta whose steps are beta times as large.
        like = equal_steps.StepCounts(
            host(number * self.theta / self.rate), host(self.theta), host(number * one), host(one)
        )
        losses = losses_of(self.law, like, self.epsilon0, self.neg_log_tail)
        found = equal_steps.pooled_upper(self.law, self.steps, host(self.epsilon0), host(losses))
        return losses, np.asarray(found)

    @property
    def steps(self) -> equal_steps.PoolSteps:
        """The pool as kernels take it."""
        parts = host(self.pool.sizes), host(self.pool.masses)
        return equal_steps.PoolSteps(*parts, host(self.theta), host(self.rate))


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalOneBit(UnequalSteps):
    """B0h: one-bit messages, none depending on another of its round. Certified; both directions.

    Attributes: those of `UnequalSteps`; law: t*_beta, beta `differ` times the largest total variation. differ: as of
    `OneBitCheckIn`.
    """

    differ: float = 1.0

    @classmethod
    def of(
        cls, rate: float, theta: float, pool: PoolSizes, epsilon0: float, differ: float, neg_log_tail: float
    ) -> UnequalOneBit:
        """The bound with the step t*_beta for epsilon0 and differ."""
        law = total_variation_law(epsilon0, differ * most_total_variation(epsilon0))
        return cls(rate, theta, pool, epsilon0, law, neg_log_tail, "own-laws (one bit)", (), differ)

    def evaluated(self) -> tuple[np.ndarray, np.ndarray]:
        losses, plain = super().evaluated()
        value = one_bit_profile.pooled_upper(
            self.steps, Message(host(self.epsilon0), host(self.differ)), host(losses)
        )
        return losses, np.minimum(plain, np.asarray(value))
