"""Stop-loss transforms of sums of lattice steps, evaluated on demand: one FFT for each tilt in use.

Proofs: docs/evaluation.md. NumPy float64.
"""

from __future__ import annotations

import math

import numpy as np

from checkin_jax.numerics import convex
from checkin_jax.numerics.tilted_sums import Sum, Window, stretch_of


class LazyTail:
    """Upper bound on E(s - x)_+ on an interval. Tilts are computed on first use; values do not depend on the
    order of calls.

    Args:
      total, ends, most: the sum, the interval, and the most lattice points.
      far: `heavy` of `stretch_of`. If true, every tilt is used at every x, else the two nearest.
      slack, beyond: the bound at x is that of s at x - slack, plus beyond.
    """

    def __init__(
        self,
        total: Sum,
        ends: tuple[float, float],
        far: bool,
        most: int,
        slack: float,
        beyond: float,
    ) -> None:
        self._within = stretch_of(total, ends, far, most, True)
        self._near, self._slack, self._beyond = not far, slack, beyond
        self._made: dict[int, Window] = {}

    def _at(self, index: int, x: np.ndarray) -> np.ndarray:
        if index not in self._made:
            self._made[index] = self._within.tilted(self._within.orders[index])
        window, total = self._made[index], self._within.total
        if not window.value.size:
            return np.full(np.shape(x), math.inf)
        grid = total.least + total.spacing * (
            window.first + self._within.stride * np.arange(window.value.size)
        )
        return convex.falling(x, grid, window.value, left=math.inf, right=math.inf)

    def at(self, x: np.ndarray) -> np.ndarray:
        """Upper bound at each x >= 0 of the interval, any shape."""
        moved, tilts = x - self._slack, self._within.centres
        after = np.searchsorted(tilts, moved)
        value = np.full(np.shape(x), math.inf)
        for index in range(len(tilts)):
            here = (after == index) | (after == index + 1) if self._near else np.ones(np.shape(x), dtype=bool)
            if here.any():
                value[here] = np.minimum(value[here], self._at(index, moved[here]))
        return value + self._beyond
