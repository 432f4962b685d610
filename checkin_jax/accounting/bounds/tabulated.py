"""Bounds on shuffled Gaussian messages that are computed at a few losses; chords in between."""

from __future__ import annotations

import abc
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import LocalGaussian
from checkin_jax.numerics import convex


class TabulatedMessages(abc.ABC):
    """A symmetric bound that is convex in e^loss and never above that of one message by itself.

    Attributes:
      mu: 2 / noise_multiplier of a message.
    """

    mu: float
    top = math.inf

    @abc.abstractmethod
    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Losses, rising, and upper bounds there; None if one message by itself is all that is known."""

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The table made convex."""
        table = self._table()
        if table is None:
            return None
        losses, value = table
        value = np.minimum.accumulate(np.minimum(value, self._alone(losses)))
        kept = convex.hull(np.expm1(losses), value)
        return losses[kept], value[kept]

    def _alone(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(LocalGaussian(1.0, self.mu).upper(losses))

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        alone = self._alone(loss)
        if self._profile is None:
            return alone
        losses, value = self._profile
        chords = convex.chords(losses, value, np.minimum(loss, losses[-1]))
        return np.minimum(np.where(loss >= losses[-1], value[-1], chords), alone)
