"""Base of bounds on shuffled messages that are computed at few losses, with chords in between."""

from __future__ import annotations

import abc
import functools

import numpy as np

from checkin_jax.accounting.bounds.interface import UnitBound
from checkin_jax.numerics import convex


class TabulatedMessages(abc.ABC):
    """A symmetric upper bound, convex in e^loss and at most `alone`, the bound on one message."""

    alone: UnitBound

    @property
    def top(self) -> float:
        return self.alone.top

    @abc.abstractmethod
    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Increasing losses and upper bounds there; None if only the profile of one message is known."""

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Losses and values of the lower convex hull of the table."""
        table = self._table()
        if table is None:
            return None
        losses, value = table
        value = np.minimum.accumulate(np.minimum(value, self._alone(losses)))
        kept = convex.hull(np.expm1(losses), value)
        return losses[kept], value[kept]

    def _alone(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(self.alone.upper(losses))

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        alone = self._alone(loss)
        if self._profile is None:
            return alone
        losses, value = self._profile
        chords = convex.chords(losses, value, np.minimum(loss, losses[-1]))
        return np.minimum(np.where(loss >= losses[-1], value[-1], chords), alone)
