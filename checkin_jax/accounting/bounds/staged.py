"""eps0-LDP messages with the likelihood constraints from below, stage by stage: T1+, T1h+ and, in slots, T2+ and T2++.

Where `numerics.staged_clones` has a bound below T1's. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools

import numpy as np

from checkin_jax.accounting.bounds.unit import Instance, Values
from checkin_jax.kernels.execution import devices
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.counts.pools import Pool


class Staged(abc.ABC):
    """A game of eps0-LDP messages, stage by stage.

    Attributes of subclasses:
      epsilon0: nats. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
    """

    epsilon0: float
    log_inverse_mass: float
    instances: tuple[Instance, ...] = ()

    @abc.abstractmethod
    def _stated(self) -> staged_clones.Problem | None:
        """What is to be evaluated, for epsilon0 > 0."""

    @functools.cached_property
    def _problem(self) -> staged_clones.Problem | None:
        return None if self.epsilon0 == 0.0 else self._stated()

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self._problem is None else self._problem.profile()

    @property
    def gains(self) -> bool:
        """Whether there is such a bound."""
        return self._problem is not None

    @property
    def top(self) -> float:
        return self.epsilon0

    def upper(self, loss: np.ndarray) -> Values:
        if self._profile is None:
            return np.ones(np.shape(loss))
        return convex.chords(*self._profile, loss)


@dataclasses.dataclass(frozen=True)
class StagedClones(Staged):
    """T1+: shuffled check-in of eps0-LDP messages of n clients at one rate."""

    num_clients: int
    rate: float
    epsilon0: float
    log_inverse_mass: float

    name = "T1+"

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        return _evaluated(self, devices.in_use())

    def _stated(self) -> staged_clones.Problem | None:
        return staged_clones.check_in(self.num_clients, self.rate, self.epsilon0, self.log_inverse_mass)


@functools.lru_cache(maxsize=4)
def _evaluated(bound: StagedClones, device: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Its profile: who sees the messages' sum, too, is bounded by that of who sees the messages."""
    del device  # another one rounds otherwise
    return None if bound._problem is None else bound._problem.profile()


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalStaged(Staged):
    """T1h+: a pool of others stands in for a client of rate g.

    Attributes: rate: g in (0, 1]. theta: the pool's rate, in (0, 1). pool: law of n', `numerics.counts.pools`.
    """

    rate: float
    theta: float
    pool: Pool
    epsilon0: float
    log_inverse_mass: float

    name = "T1h+"

    @property
    def variance(self) -> float:
        """Of the loss under T1h, which this exceeds nowhere by much."""
        return self.rate**2 / (self.theta * (self.pool.mean + 1.0))

    def _stated(self) -> staged_clones.Problem | None:
        pool, mass = self.pool, self.log_inverse_mass
        return staged_clones.pool(pool.sizes, pool.masses, self.theta, self.rate, self.epsilon0, mass)
