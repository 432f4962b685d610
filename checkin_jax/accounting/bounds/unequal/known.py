"""Messages of which more is known than their epsilon0, of clients with check-in rates of their own (A, t_k by T1h).

T1h with another dominating step: of a known total variation, or of k-ary randomized response [docs/theory_rates.md,
section 3]. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from checkin_jax.accounting.bounds.messages.total_variation import DominatingSteps, losses_of
from checkin_jax.accounting.bounds.unit import Instance
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.numerics.pools import Pool


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalSteps(DominatingSteps):
    """T1h with a dominating step of one's own. Certified; both directions, adaptive within the round.

    Attributes:
      rate: g in (0, 1], the client's, at most. theta, pool: as of `UnequalPureLDP`. epsilon0: nats, in (0, 50].
      law: the step. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
    """

    rate: float
    theta: float
    pool: Pool
    epsilon0: float
    law: equal_steps.Law
    log_inverse_mass: float
    name: str
    instances: tuple[Instance, ...] = ()

    @property
    def top(self) -> float:
        return self.epsilon0

    def evaluated(self) -> tuple[np.ndarray, np.ndarray]:
        one, number = np.ones(1), self.pool.mean + 1.0
        # Where there is something to see: about as among n members at rate theta, beta times as much each.
        like = equal_steps.StepCounts(
            host(number * self.theta / self.rate), host(self.theta), host(number * one), host(one)
        )
        losses = losses_of(self.law, like, self.epsilon0, self.log_inverse_mass)
        pool = equal_steps.PoolSteps(
            host(self.pool.sizes), host(self.pool.masses), host(self.theta), host(self.rate)
        )
        return losses, np.asarray(equal_steps.pooled_upper(self.law, pool, host(self.epsilon0), host(losses)))
