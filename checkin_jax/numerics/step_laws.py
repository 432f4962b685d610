"""The laws of a mechanism's step as the staged game plays them: few laws on a few places, at every loss.

Laws are given by stop-loss transforms on knots. The chords of a transform are above it and belong to a law on the
knots, which is above the given one in convex order; so does the larger of several transforms belong to a law above all
of theirs. Hence every choice that is made here errs upwards.
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

# Relative error allowed in transforms (a caller's duty), and of differences of them.
_MARGIN = 1e-11
# Numbers of laws that the game is compiled for. Further laws are put together.
_LAWS = (3, 6, 12)


def _kept(values: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Transforms [losses, laws, knots] of few laws that are together above these, the widest first."""
    # Twice the integral of a transform is the variance.
    gaps = np.diff(knots[0])
    variance = 0.5 * (values[0, :, 1:] + values[0, :, :-1]) @ gaps
    found: list[np.ndarray] = []
    for law in np.argsort(-variance, kind="stable"):
        one = values[:, law]
        if any(np.all(one <= other) for other in found):
            continue
        if found and np.all(np.any(np.all(one[None] <= np.stack(found), axis=2), axis=0)):
            continue  # below one of them at every loss
        if len(found) < _LAWS[-1]:
            found.append(one)
        else:
            # Put together with the law that is raised least.
            raised = [np.sum(np.maximum(one - other, 0.0) / (other.max() + 1e-300)) for other in found]
            nearest = int(np.argmin(raised))
            found[nearest] = np.maximum(found[nearest], one)
    return np.stack(found, axis=1)


def _placed(values: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places and masses, but for the one at zero, of laws whose transforms are convex and above these.

    Nothing is beyond the first and the last knot. Both sides get the larger of their two means: masses at zero become
    masses elsewhere, which is upwards. Where rounding of slopes makes masses of more than 1 in all, places move
    outwards by that factor t and masses shrink by it, which is upwards as well: (w/t) (t x - k)_+ = w (x - k/t)_+ >=
    w (x - k)_+ at k >= 0, and likewise below zero. So masses are those of a law, whatever the rounding.
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


class StepSet(Protocol):
    """Laws that are together above all steps of a mechanism: `randomizers.step_sets`."""

    def knots(self, above: np.ndarray) -> np.ndarray: ...

    def transforms(self, above: np.ndarray, knots: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True, eq=False)
class OwnSteps:
    """The steps of a mechanism's own laws, for the staged game.

    Attributes:
      epsilon0: nats, in (0, 50]. laws: the step set.
      profile: at most what one message by itself gives away, at losses in nats; relative error below 5e-12.
    """

    epsilon0: float
    laws: StepSet
    profile: Callable[[np.ndarray], np.ndarray]

    @property
    def idle(self) -> bool:
        """False: there is always a game to play."""
        return False

    def _evaluated(self, losses: np.ndarray) -> OwnLaws:
        above = np.expm1(losses)
        knots = np.asarray(self.laws.knots(above))
        values = _kept(np.asarray(self.laws.transforms(above, knots)) * (1.0 + _MARGIN), knots)
        count = next(size for size in _LAWS if size >= values.shape[1])
        # A law that is there twice changes nothing.
        values = np.pad(values, ((0, 0), (0, count - values.shape[1]), (0, 0)), mode="edge")
        values = np.concatenate([values, values.max(axis=1, keepdims=True)], axis=1)
        alone = np.asarray(self.profile(losses)) * (1.0 + _MARGIN)
        places, masses = _placed(values, knots)
        return OwnLaws(host(places / math.expm1(self.epsilon0)), host(masses), host(alone))

    @functools.cached_property
    def _variance(self) -> float:
        message = self.message(host([0.0]))
        return float(self.rules(message).largest_variance(message))

    @property
    def variance(self) -> float:
        """The largest of a step at c = 1, in units of p - 1."""
        return self._variance

    def message(self, losses: Array) -> Message:
        """As the kernels have it, at these losses."""
        return Message(host(self.epsilon0), host(1.0), self._evaluated(np.asarray(losses)))

    def rules(self, message: Message) -> Game:
        """The game of the message."""
        assert message.own is not None
        return own_game(message.own.laws.shape[1] - 1)
