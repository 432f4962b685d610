"""T1+ and B on the host: numbers of early steps, stages and losses. `kernels.messages.staged_games` evaluates
the game.

Proof: docs/evaluation.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import host
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.kernels.messages import staged_games, weighted_clones
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Game, Message
from checkin_jax.kernels.messages.weighted_clones import WeightedSteps
from checkin_jax.numerics import convex
from checkin_jax.numerics.step_laws import OwnSteps

# Number of losses. Their spacing in standard deviations of the loss: _NEAR at zero, growing as e^(x^2/6),
# where chords of a normal law's profile cost least; _TAIL in the tail; _FAR where all masses are far below
# delta.
LOSSES = 52
_NEAR, _TAIL, _FAR = 0.073, 0.2, 0.7
# Masses of exp(-neg_log_tail + 14) are a twentieth of delta.
_BELOW_DELTA = 14.0
# Above this number of steps the contour has more nodes.
_MANY_STEPS = 3e7
# T1 exceeds L1 by the root of the ratio of their variances. Below this ratio the game gains nothing.
_WORTHWHILE = 1.005
# Least number of early steps.
_FEWEST = 16


def _early_steps(num_clients: int, rate: float, needed: float) -> int:
    """Largest J <= n gamma / 2 with Pr[Bin(n, rate) < J] <= exp(-needed) by Chernoff's bound, or 0."""
    mean = num_clients * rate

    def exponent(share: float) -> float:
        rest = num_clients - share * mean
        return share * mean * math.log(share) + rest * math.log(rest / (num_clients - mean))

    if exponent(0.5) >= needed:
        return math.floor(0.5 * mean)
    return math.floor(bisected(lambda share: exponent(share) >= needed, 0.0, 0.5, 50)[0] * mean)


@dataclasses.dataclass(frozen=True)
class AnyMessage:
    """Steps of any eps0-LDP message: the hexagon.

    Attributes: epsilon0: nats, in (0, 50].
    """

    epsilon0: float

    @property
    def variance(self) -> float:
        """Largest variance of a step at c = 1, in units of p - 1."""
        message = self.message(host([0.0]))
        return float(self.rules(message).largest_variance(message))

    @property
    def idle(self) -> bool:
        """True if one dominating law is nearly as good as the game."""
        return 2.0 / (math.expm1(self.epsilon0) + 2.0) < _WORTHWHILE**2 * self.variance

    def narrow(self, number: float) -> bool:
        """False: clones are of the same messages."""
        del number
        return False

    def message(self, losses: Array) -> Message:
        """Parameters of the kernel at these losses."""
        del losses
        return Message(host(self.epsilon0), host(1.0))

    def rules(self, message: Message) -> Game:
        del message
        return HEXAGON


# Laws of one message's step, among which the adversary chooses.
Steps = AnyMessage | OwnSteps


def stages(step_counts: StepCounts, everybody: float, neg_log_tail: float) -> staged_games.Stages | None:
    """Stages over which the number of steps grows evenly on a logarithmic scale; None if there are too few
    steps.
    """
    needed, rate, masses = neg_log_tail + 3.0, float(step_counts.rate), np.asarray(step_counts.masses)
    counts = np.asarray(step_counts.counts)
    mean = rate * float(masses @ counts)
    # The event that every client checks in must be negligible as well.
    if everybody > math.exp(-needed) or not mean > 0.0:
        return None
    if rate < 1.0:
        before = _early_steps(int(counts[0]), rate, needed)
    else:
        before = min(math.floor(0.5 * mean), int(counts[masses > 0].min()))
    if before < _FEWEST:
        return None
    edges = np.rint(np.geomspace(max(4, round(mean / 2000.0)), before, HEXAGON.stages + 1))
    # The share of T1's law falls as the root of the number of steps. An error of this order costs as much.
    return staged_games.Stages(
        *(host(value) for value in (edges[0], np.diff(edges), before, 0.17 / math.sqrt(mean)))
    )


class GameArguments(NamedTuple):
    """The arguments of `staged_games.profile_upper`, and e^loss - 1 at its losses."""

    arguments: tuple[Any, ...]
    above: np.ndarray

    @classmethod
    def of(
        cls,
        value: Callable[..., Array],
        given: Any,
        steps: Steps,
        stages: Any,
        deviation: float,
        mean: float,
        neg_log_tail: float,
    ) -> GameArguments:
        """The problem of about `mean` steps; deviation: of the loss."""
        above = distances(deviation, math.expm1(steps.epsilon0), neg_log_tail, LOSSES)
        losses = host(np.log1p(above))
        message = steps.message(losses)
        return cls((value, given, message, stages, losses, steps.rules(message), nodes_for(mean)), above)

    def profile(self) -> tuple[np.ndarray, np.ndarray]:
        """Losses in nats and proven upper bounds there, convex; the last loss is epsilon0."""
        epsilon0 = float(self.arguments[2].epsilon0)
        upper = np.asarray(staged_games.profile_upper(*self.arguments))
        above, upper = convex.full_hull(np.append(self.above, math.expm1(epsilon0)), np.append(upper, 0.0))
        return np.append(np.log1p(above[:-1]), epsilon0), upper


def problem(
    step_counts: StepCounts, steps: Steps, everybody: float, neg_log_tail: float
) -> GameArguments | None:
    """Problem for any steps and law of the number of messages (binomial if step_counts.rate < 1). None as for
    `profile`.
    """
    chosen = None if steps.idle else stages(step_counts, everybody, neg_log_tail)
    if chosen is None:
        return None
    mean, deviation = scale(step_counts, steps)
    value = staged_games.sampled if float(step_counts.rate) < 1.0 else staged_games.counted
    given = staged_games.RoundSums(step_counts, host(everybody))
    return GameArguments.of(value, given, steps, chosen, deviation, mean, neg_log_tail)


def scale(step_counts: StepCounts, steps: Steps) -> tuple[float, float]:
    """About the mean number of steps, and the standard deviation of the loss."""
    mean = float(step_counts.rate * (step_counts.masses @ step_counts.counts))
    return mean, math.sqrt(mean * steps.variance) * math.expm1(steps.epsilon0) / float(step_counts.clients)


def distances(deviation: float, p_minus_1: float, neg_log_tail: float, number: int) -> np.ndarray:
    """`number` values of c - 1, from 0 on, at which the bound is computed; deviation: of the loss."""
    far = min(deviation * (math.sqrt(2.0 * neg_log_tail) + 1.0), 0.99 * p_minus_1)
    x = np.linspace(0.0, far / deviation, 2001)
    matters = x < math.sqrt(2.0 * max(neg_log_tail - _BELOW_DELTA, 1.0))
    apart = np.minimum(_NEAR * np.exp(np.square(x) / 6.0), np.where(matters, _TAIL, _FAR))
    before = np.append(0.0, np.cumsum(0.5 * (1.0 / apart[1:] + 1.0 / apart[:-1])))
    return deviation * np.interp(np.linspace(0.0, before[-1], number), before, x)


def nodes_for(mean: float) -> int:
    """Number of contour nodes for about `mean` steps."""
    return staged_games.MANY if mean > _MANY_STEPS else staged_games.USUAL


def pool_stages(
    sizes: np.ndarray, masses: np.ndarray, theta: float, neg_log_tail: float
) -> staged_games.Stages | None:
    """Stages for the smallest pool that hides the target; None if there are too few steps."""
    hiding = sizes[(masses > 0) & (sizes >= 1.0)]
    if not hiding.size:
        return None
    number = float(hiding[0]) + 1.0
    least = StepCounts(host(number), host(theta), host([number]), host([1.0]))
    return stages(least, theta ** float(hiding[0]), neg_log_tail)


def pool(
    sizes: np.ndarray, masses: np.ndarray, theta: float, rate: float, steps: Steps, neg_log_tail: float
) -> GameArguments | None:
    """T1h+ for unequal check-in rates: the problem of a target hidden in a pool. None as for `profile`.

    Args:
      sizes, masses: of n', whole and increasing, [parts]. theta: rate of the pool, in (0, 1).
      rate: g, the target's rate, in (0, 1]. There is no proof, and the result is None, if g > theta.
      neg_log_tail: masses up to exp(-neg_log_tail) are negligible, in [1, 1e4].
    """
    kept, chosen = (masses > 0) & (sizes >= 1.0), pool_stages(sizes, masses, theta, neg_log_tail)
    if rate > theta or chosen is None or steps.idle:
        return None
    number, parts = sizes[kept] + 1.0, masses[kept]
    everybody = np.exp(sizes[kept] * math.log(theta))
    mean = theta * float(number[-1])
    deviation = rate * math.sqrt(steps.variance / mean) * math.expm1(steps.epsilon0)
    lost = rate * float(parts @ everybody + masses[~kept].sum()) * (1.0 + 1e-9)
    given = staged_games.Pool(*map(host, (number, parts, theta, rate, lost)))
    return GameArguments.of(staged_games.pooled, given, steps, chosen, deviation, mean, neg_log_tail)


def weighted(
    step_counts: WeightedSteps, steps: Steps, neg_log_tail: float, fair_dummies: bool = False
) -> GameArguments | None:
    """T2+, T2++ or T2d for slots of two weights: the problem to evaluate; None if a kind with a game has too few slots.

    Args:
      fair_dummies: steps of weight one are those of fair bits.
      step_counts: parts with fewer steps than the stages have count as one message alone, or as its shares.
      neg_log_tail: masses up to exp(-neg_log_tail) are negligible, in [1, 1e4].
    """
    # A level without steps is one message alone, however large its mass.
    usual = (step_counts.masses > 4.0 * math.exp(-neg_log_tail)) & (step_counts.whole > 0.0)
    clients = float(step_counts.masses @ step_counts.clients) / float(step_counts.masses.sum())
    plans, squares = [], 0.0
    kinds = [(step_counts.whole, 1.0), (step_counts.part, step_counts.weight)]
    if fair_dummies:
        plans.append(None)
        squares += fair_share(steps) * float(step_counts.masses @ step_counts.whole)
        kinds = kinds[1:]
    for counts, weight in kinds:
        kept = host(np.where(usual, step_counts.masses, 0.0))
        plan = stages(StepCounts(host(clients), host(1.0), host(counts), kept), 0.0, neg_log_tail)
        if plan is None:
            return None
        plans.append(plan)
        squares += weight**2 * float(step_counts.masses @ counts)
    deviation = math.sqrt(squares * steps.variance) * math.expm1(steps.epsilon0) / clients
    mean = float(step_counts.masses @ (step_counts.whole + step_counts.part))
    return GameArguments.of(
        weighted_clones.weighted, step_counts, steps, tuple(plans), deviation, mean, neg_log_tail
    )


def fair_share(steps: Steps) -> float:
    """Variance of a fair bit's step over the largest of all steps."""
    return (2.0 / (math.expm1(steps.epsilon0) + 2.0)) ** 2 / steps.variance


def parts(step_counts: StepCounts, steps: Steps, lost: float, neg_log_tail: float) -> GameArguments | None:
    """T2++ and T2'h: known numbers of steps of each part, which begins at its own place; None if steps are too few.

    Args:
      step_counts: clients is an array, [parts]; rate is 1. lost: upper bound on the mass of one message alone.
      neg_log_tail: as in `weighted`.
    """
    chosen = stages(step_counts, 0.0, neg_log_tail)
    if chosen is None:
        return None
    share = step_counts.masses / step_counts.masses.sum()
    mean, middle = float(share @ step_counts.counts), float(share @ step_counts.clients)
    deviation = math.sqrt(mean * steps.variance) * math.expm1(steps.epsilon0) / middle
    given = staged_games.RoundSums(step_counts, host(lost))
    return GameArguments.of(staged_games.counted, given, steps, chosen, deviation, mean, neg_log_tail)
