"""Laws of a mechanism's step for the staged game: few laws on few places, at every loss.

A law is given by its stop-loss transform on knots. Chords of the transform belong to a law on the knots that
is above the given law in convex order. The pointwise maximum of several transforms belongs to a law above all
of theirs. So every approximation made here errs upwards.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from jax import Array

from checkin_jax.kernels import host
from checkin_jax.kernels.messages.likelihood_polytopes import Game, Message, OwnLaws, own_game

# Relative error of transforms (ensured by the caller) and of their differences.
_MARGIN = 1e-11
# Ratio of variances from which the law of a total variation gives no smaller bound than a mechanism's own laws.
_NARROW = 1.05
# Number of large steps from which variances decide.
_MANY = 200.0
# Numbers of laws for which the game is compiled. Further laws are merged.
_LAWS = (3, 6, 12)


def _kept(values: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Transforms [losses, laws, knots] of few laws that dominate the given ones, by decreasing variance."""
    # Twice the integral of a transform is the variance.
    gaps = np.diff(knots[0])
    variance = 0.5 * (values[0, :, 1:] + values[0, :, :-1]) @ gaps
    found: list[np.ndarray] = []
    for law in np.argsort(-variance, kind="stable"):
        one = values[:, law]
        if any(np.all(one <= other) for other in found):
            continue
        if found and np.all(np.any(np.all(one[None] <= np.stack(found), axis=2), axis=0)):
            continue  # dominated at every loss by one law or another
        if len(found) < _LAWS[-1]:
            found.append(one)
        else:
            # Merged with the law that has to be raised least.
            raised = [np.sum(np.maximum(one - other, 0.0) / (other.max() + 1e-300)) for other in found]
            nearest = int(np.argmin(raised))
            found[nearest] = np.maximum(found[nearest], one)
    return np.stack(found, axis=1)


def _placed(values: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places and masses, without the atom at zero, of laws with convex transforms above the given values.

    No mass lies beyond the first and the last knot. The side with the smaller mean is raised to the larger
    one, which moves mass from zero outwards: an error upwards. If rounding makes the total mass t > 1, places
    are multiplied and masses divided by t, again upwards: (w/t) (t x - k)_+ = w (x - k/t)_+ >= w (x - k)_+ at
    k >= 0, and likewise below zero. So the masses always are those of a law.
    """
    at = knots[:, None, :]
    gaps = np.diff(at, axis=-1)
    right = np.where((at >= 0.0) & (at < at[..., -1:]), values, 0.0)
    left = np.where((at <= 0.0) & (at > at[..., :1]), values, 0.0)
    safe = np.where(gaps > 0.0, gaps, 1.0)
    falls = np.where(gaps > 0.0, np.maximum(right[..., :-1] - right[..., 1:], 0.0) / safe, 0.0)
    rises = np.where(gaps > 0.0, np.maximum(left[..., 1:] - left[..., :-1], 0.0) / safe, 0.0)
    falls = np.maximum.accumulate(falls[..., ::-1], axis=-1)[..., ::-1]
    rises = np.maximum.accumulate(rises, axis=-1)
    none = np.zeros_like(falls[..., :1])
    high = np.concatenate([none, falls], axis=-1) - np.concatenate([falls, none], axis=-1)
    low = np.concatenate([rises, none], axis=-1) - np.concatenate([none, rises], axis=-1)
    high, low = np.where(at > 0.0, high, 0.0), np.where(at < 0.0, low, 0.0)
    above, below = np.sum(high * at, axis=-1, keepdims=True), -np.sum(low * at, axis=-1, keepdims=True)
    most = np.maximum(above, below)
    masses = high * (most / above) + low * (most / below)
    whole = np.maximum(np.sum(masses, axis=-1, keepdims=True) * (1.0 + 1e-14), 1.0)
    return knots * np.max(whole, axis=1), masses / whole


def left_epsilon0(epsilon0: float, share: float) -> float:
    """epsilon0 of eps0-LDP messages without this share of them, dummies of any law that is a record's; share < 1/p."""
    p_minus_1 = math.expm1(epsilon0)
    return math.log1p(p_minus_1 / (1.0 - share * (1.0 + p_minus_1))) * (1.0 + 1e-15)


def fair_bit_epsilon0(epsilon0: float, share: float) -> float:
    """The same for one eps0-LDP bit, dummies being fair; share < 2/(p + 1)."""
    p_minus_1 = math.expm1(epsilon0)
    return math.log1p(p_minus_1 / (1.0 - share * (1.0 + 0.5 * p_minus_1))) * (1.0 + 1e-15)


class DominatingLaws(Protocol):
    """Laws that together dominate all steps of a mechanism: `randomizers.step_sets`."""

    def knots(self, above: np.ndarray) -> np.ndarray: ...

    def transforms(self, above: np.ndarray, knots: np.ndarray) -> np.ndarray: ...

    def without(self, share: float) -> DominatingLaws: ...


@dataclasses.dataclass(frozen=True, eq=False)
class OwnSteps:
    """Steps of a mechanism with its own laws, for the staged game.

    Attributes:
      epsilon0: nats, in (0, 50]. laws: the step set.
      profile: upper bound on the divergence of one message at losses in nats, with relative error below
        5e-12.
    """

    epsilon0: float
    laws: DominatingLaws
    profile: Callable[[np.ndarray], np.ndarray]

    @property
    def idle(self) -> bool:
        """False: the game is always played."""
        return False

    def without(self, share: float) -> OwnSteps:
        """Steps of messages of which this share are dummies, which are left out; share < 1/p.

        A dummy is a message of the target's first or second record, equally likely [docs/theory_shuffle.md].
        """

        def profile(losses: np.ndarray) -> np.ndarray:
            half = 0.5 * share * np.expm1(losses)
            inner = np.log1p((np.expm1(losses) - 2.0 * half) / (1.0 + half))
            return (1.0 + half) / (1.0 - share) * np.asarray(self.profile(inner))

        return OwnSteps(left_epsilon0(self.epsilon0, share), self.laws.without(share), profile)

    def narrow(self, number: float) -> bool:
        """True if steps vary less than the law A of their total variation, the largest of which are many."""
        often = float(self.profile(np.zeros(1))[0]) / math.expm1(self.epsilon0)
        return 2.0 * often > _NARROW * self.variance and number * often > _MANY

    def _evaluated(self, losses: np.ndarray) -> OwnLaws:
        above = np.expm1(losses)
        knots = np.asarray(self.laws.knots(above))
        values = _kept(np.asarray(self.laws.transforms(above, knots)) * (1.0 + _MARGIN), knots)
        count = next(size for size in _LAWS if size >= values.shape[1])
        # Repeated laws change nothing.
        values = np.pad(values, ((0, 0), (0, count - values.shape[1]), (0, 0)), mode="edge")
        values = np.concatenate([values, values.max(axis=1, keepdims=True)], axis=1)
        alone = np.asarray(self.profile(losses)) * (1.0 + _MARGIN)
        places, masses = _placed(values, knots)
        places = places / math.expm1(self.epsilon0)
        return OwnLaws(host(places), host(masses), host(alone))

    @functools.cached_property
    def merged(self) -> bool:
        """True if the laws are so many that those of several losses are merged."""
        message = self.message(host([0.0]))
        return len(self.rules(message).candidates[0]) > _LAWS[0]

    @functools.cached_property
    def variance(self) -> float:
        """Largest variance of a step at c = 1, in units of p - 1."""
        message = self.message(host([0.0]))
        return float(self.rules(message).largest_variance(message))

    def message(self, losses: Array) -> Message:
        """Parameters of the kernel at these losses."""
        return Message(host(self.epsilon0), host(1.0), self._evaluated(np.asarray(losses)))

    def rules(self, message: Message) -> Game:
        assert message.own is not None
        return own_game(message.own.laws.shape[1] - 1)
