"""hexagon and own-laws: an adversary chooses, message by message, the worst law of likelihood ratios.

hexagon takes the laws of any eps0-LDP message: T1+ and T1h+ here, T2+, T2++ and T2d in `windows` [docs/theory.md, 7;
docs/theory_hexagon.md]. own-laws takes those of one mechanism [docs/theory_mechanisms.md, 6].
`numerics.staged_clones` evaluates both, and `numerics.few_steps` where few messages hide the target. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import UnitBound, Values, Witness
from checkin_jax.accounting.bounds.messages.cover import StepCover, largest_loss
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import AnyMessage, Steps


class StagedBound(abc.ABC):
    """A bound by staged domination, one message a stage.

    Attributes of subclasses:
      steps: laws among which the adversary chooses.
      neg_log_tail: -log of the negligible mass.
    """

    steps: Steps
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    @abc.abstractmethod
    def _stated(self) -> staged_clones.GameArguments | FewSteps | None:
        """The problem to evaluate; None if there is no such bound."""

    @functools.cached_property
    def _problem(self) -> staged_clones.GameArguments | FewSteps | None:
        return self._stated()

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self._problem is None else self._problem.profile()

    @property
    def name(self) -> str:
        return "hexagon" if isinstance(self.steps, AnyMessage) else "own-laws"

    @property
    def sharp(self) -> bool:
        """True for a mechanism's own laws, which are near its leakage."""
        return not isinstance(self.steps, AnyMessage)

    @property
    def gains(self) -> bool:
        """True if there is such a bound."""
        return self._problem is not None

    @property
    def _observed_prob(self) -> float:
        """Largest probability that the target's message is observed."""
        return 1.0

    @property
    def largest_loss(self) -> float:
        return largest_loss(self.steps.epsilon0, self._observed_prob)

    def upper(self, loss: np.ndarray) -> Values:
        if self._profile is None:
            return np.ones(np.shape(loss))
        return np.where(np.asarray(loss) >= self.largest_loss, 0.0, convex.chords(*self._profile, loss))


@dataclasses.dataclass(frozen=True)
class StagedClones(StagedBound):
    """T1+, T1h+, or own-laws: all messages have the same weight, as in shuffled check-in."""

    step_cover: StepCover
    steps: Steps
    neg_log_tail: float

    @property
    def includes(self) -> tuple[str, ...]:
        """A, for many messages of a mechanism whose own laws vary less than the one law of A."""
        return ("A",) if self.steps.narrow(self.step_cover.number) else ()

    @property
    def _observed_prob(self) -> float:
        return self.step_cover.use_prob

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        return _evaluated(self)

    def _stated(self) -> staged_clones.GameArguments | FewSteps | None:
        return self.step_cover.game(self.steps, self.neg_log_tail)


@functools.lru_cache(maxsize=4)
def _evaluated(bound: StagedClones) -> tuple[np.ndarray, np.ndarray] | None:
    """Profile of the bound, cached; it serves sums of the messages, too, which are a post-processing."""
    return None if bound._problem is None else bound._problem.profile()


@dataclasses.dataclass(frozen=True, eq=False)
class CutRatios:
    """Td: (eps0, delta0)-LDP messages, from a bound on eps0-LDP messages that uses the hexagon's laws only.

    The likelihood ratios of the target's message are cut to the hexagon. With p = e^eps0 this costs at most
    (1 + min(c, p)) (2 + 1/p) delta0 times the probability that the message is used; other messages cost nothing
    [docs/theory_hexagon.md, 4].

    Attributes:
      pure: the bound on eps0-LDP messages. epsilon0: in nats.
      delta0: delta of one message at epsilon0, from above.
      use_prob: probability that the target's message is used, from above.
    """

    pure: UnitBound
    epsilon0: float
    delta0: float
    use_prob: float
    witnesses: tuple[Witness, ...] = ()

    largest_loss = math.inf

    @property
    def name(self) -> str:
        return self.pure.name

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        each = (2.0 + math.exp(-self.epsilon0)) * self.delta0
        cost = (1.0 + np.exp(np.minimum(loss, self.epsilon0))) * each * self.use_prob
        return (np.asarray(self.pure.upper(loss)) + cost) * (1.0 + ROUNDING)
