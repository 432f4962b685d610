"""Messages that an adversary chooses step by step among laws: of any eps0-LDP message, or a mechanism's own.

T1+ and T1h+ here, T2+ and T2++ in `windows`, where `numerics.staged_clones` has a bound. With a mechanism's own laws in
place of the hexagon's all of them are "own laws" [docs/theory_mechanisms.md, section 6]. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import largest_loss
from checkin_jax.accounting.bounds.interface import Instance, Values
from checkin_jax.accounting.bounds.messages.cover import Hiding
from checkin_jax.kernels.execution import devices
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.counts.pools import Pool
from checkin_jax.numerics.staged_clones import AnyMessage, Steps


# The name of bounds by a mechanism's own laws.
class Staged(abc.ABC):
    """A game of messages, stage by stage.

    Attributes of subclasses:
      steps: the laws among which an adversary chooses. log_inverse_mass: masses up to exp(-log_inverse_mass) do not
        matter.
    """

    steps: Steps
    log_inverse_mass: float
    instances: tuple[Instance, ...] = ()

    @abc.abstractmethod
    def _stated(self) -> staged_clones.Problem | None:
        """What is to be evaluated."""

    @functools.cached_property
    def _problem(self) -> staged_clones.Problem | None:
        return self._stated()

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self._problem is None else self._problem.profile()

    @property
    def name(self) -> str:
        return "hexagon" if isinstance(self.steps, AnyMessage) else "own-laws"

    @property
    def sharp(self) -> bool:
        """A mechanism's own laws are near what it leaks."""
        return not isinstance(self.steps, AnyMessage)

    @property
    def gains(self) -> bool:
        """Whether there is such a bound."""
        return self._problem is not None

    @property
    def _seen(self) -> float:
        """The largest probability that the client's message is seen at all."""
        return 1.0

    @property
    def top(self) -> float:
        return largest_loss(self.steps.epsilon0, self._seen) if self._seen < 1.0 else self.steps.epsilon0

    def upper(self, loss: np.ndarray) -> Values:
        if self._profile is None:
            return np.ones(np.shape(loss))
        return np.where(np.asarray(loss) >= self.top, 0.0, convex.chords(*self._profile, loss))


@dataclasses.dataclass(frozen=True)
class StagedClones(Staged):
    """T1+, or own laws: messages that hide among others of the same weight, such as those of shuffled check-in."""

    hiding: Hiding
    steps: Steps
    log_inverse_mass: float

    @property
    def _seen(self) -> float:
        return self.hiding.used

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        return _evaluated(self, devices.in_use())

    def _stated(self) -> staged_clones.Problem | None:
        mass = self.log_inverse_mass
        return staged_clones.problem(self.hiding.sums(mass), self.steps, self.hiding.everybody, mass)


@functools.lru_cache(maxsize=4)
def _evaluated(bound: StagedClones, device: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Its profile: who sees the messages' sum, too, is bounded by that of who sees the messages."""
    del device  # another one rounds otherwise
    return None if bound._problem is None else bound._problem.profile()


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalStaged(Staged):
    """T1h+, or own laws: a pool of others stands in for a client of rate g.

    Attributes: rate: g in (0, 1]. theta: the pool's rate, in (0, 1). pool: law of n', `numerics.counts.pools`.
    """

    rate: float
    theta: float
    pool: Pool
    steps: Steps
    log_inverse_mass: float

    @property
    def variance(self) -> float:
        """Of the loss under T1h, which this exceeds nowhere by much."""
        return self.rate**2 / (self.theta * (self.pool.mean + 1.0))

    def _stated(self) -> staged_clones.Problem | None:
        pool = self.pool
        return staged_clones.pool(
            pool.sizes, pool.masses, self.theta, self.rate, self.steps, self.log_inverse_mass
        )
