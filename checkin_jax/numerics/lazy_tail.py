"""Stop-loss transforms of sums of lattice steps, made only where they are asked for: one FFT for each tilt in use.

Host code, numpy float64; proofs in docs/theory_allocation.md.
"""

from __future__ import annotations

import math

import numpy as np

from checkin_jax.numerics import convex
from checkin_jax.numerics.tilted_sums import Sum, Window, stretch_of


class TailWhereAsked:
    """E(s - x)_+ from above on a stretch, tilts made as values are asked for; what `at` gives does not depend on order.

    Args:
      total, ends, most: the sum, the stretch, and the most points of a lattice. far: of large
        terms, `heavy` in `stretch_of`; then all tilts serve everywhere, else the two around each x.
      slack, beyond: the bound is that of s at x - slack, plus beyond.
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
        """By one of the tilts."""
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
        """The bound at x >= 0 of the stretch, any number of them."""
        moved, tilts = x - self._slack, self._within.centres
        after = np.searchsorted(tilts, moved)
        value = np.full(np.shape(x), math.inf)
        for index in range(len(tilts)):
            here = (after == index) | (after == index + 1) if self._near else np.ones(np.shape(x), dtype=bool)
            if here.any():
                value[here] = np.minimum(value[here], self._at(index, moved[here]))
        return value + self._beyond
