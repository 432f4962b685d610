"""Search for one end of the bracket: choose a grid and a tilt, evaluate, and repeat until the end is stable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.interface import MAX_LOSS, Values
from checkin_jax.accounting.composition import grids
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.composition.grids import SHRINK, Events, Grid
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import composing, pld
from checkin_jax.kernels.composition.composing import End, Scales

_PASSES = 4
# Factors of the order, tried if the lower end is off the tilt's mean by more than a standard deviation.
_HIGHER = (1.1, 1.2, 1.35)
# Share of delta that may lie beyond the reaches of all units.
ENOUGH = 1e-6
# Shares of the largest loss at which the reach is searched; below, shares of the reach: the first knots (as many as the
# usual step of the ladder has), and even knots for the largest losses.
_REACHES = np.geomspace(1e-12, 1.0, 512)
# Closer knots would turn the rounding of profiles into mass.
COARSE = np.append(0.0, np.geomspace(1e-8, 1.0, 128))
EVEN = np.linspace(0.0, 1.0, 65)

Build = Callable[[Sequence[np.ndarray]], pld.Atoms]
# P||Q and, unless all units are symmetric, Q||P.
BuildBoth = Callable[[Sequence[np.ndarray]], Sequence[pld.Atoms]]


@dataclasses.dataclass(frozen=True)
class Found:
    """An end of the bracket, the numerical part of its delta, and its knots and atoms."""

    epsilon: float
    error: float
    losses: Sequence[np.ndarray]
    atoms: pld.Atoms


class Search:
    """Units and their counts at one delta.

    Attributes:
      counts: units of every event, [events]. tops: largest loss of each; may be infinite.
      reaches: loss up to which each is followed. delta: the target. sharp: True if a finer grid is worth its time.
      kinks: absolute losses of all outcomes of every event, [events] arrays; empty unless all are few.
    """

    counts: Array
    tops: Sequence[float]
    reaches: Sequence[float]
    delta: float
    sharp: bool = False
    kinks: Sequence[np.ndarray] = ()

    @property
    def total(self) -> float:
        return float(np.sum(self.counts))

    def _at_delta(self, atoms: pld.Atoms) -> pld.Tilt:
        """Chernoff's tilt at delta."""
        return pld.chernoff_tilt(atoms, self.counts, host(math.log(self.delta)))

    def _centred(self, atoms: pld.Atoms, epsilon: float) -> pld.Tilt:
        return pld.saddle_tilt(atoms, self.counts, host(epsilon))

    def _tame(self, atoms: pld.Atoms) -> pld.Tilt:
        """Largest tilt at which rare large losses do not dominate the law."""
        return pld.tame_tilt(atoms, self.counts)

    def _scales(self, atoms: pld.Atoms, tilt: pld.Tilt) -> Scales:
        """Scales of the law from which a grid for this tilt is made."""
        log_far = host(math.log(self.delta) - grids.FAR)
        return composing.scales(atoms, self.counts, log_far, tilt.order)

    def _end(self, atoms: pld.Atoms, grid: Grid, tilt: pld.Tilt, upper: bool) -> End:
        return composing.end(*self._on(grid, atoms, tilt, upper), host(self.delta))

    def _on(self, grid: Grid, atoms: pld.Atoms, tilt: pld.Tilt, upper: bool) -> tuple[Any, ...]:
        """Arguments of the kernels that compose the law on this grid, rounded up or down."""
        spacing = host(grid.spacing if upper else grid.spacing * SHRINK)
        filled = grids.filled(atoms, grid.index)
        return *filled, self.counts, spacing, tilt.order, np.int64(grid.first), grid.points, upper

    def _grid(self, scales: Scales, tilt: pld.Tilt, upper: bool) -> Grid | None:
        """Grid for this tilt; None if no grid can serve."""
        events = Events(self.delta, self.total, self.tops, self.reaches, self.sharp, self.kinks)
        return grids.grid(events, scales, tilt, upper)

    def _renyi(self, atoms: pld.Atoms) -> tuple[float, float]:
        """(epsilon, order) by RDP of the same pairs, at delta minus the mass at infinite loss."""
        remaining = self.delta - float(np.asarray(self.counts) @ np.asarray(atoms.infinite))
        if not remaining > 0:
            return math.inf, math.inf
        log_delta = host(math.log(remaining))
        epsilon, order = composing.renyi(atoms, self.counts, log_delta)
        return float(epsilon), float(order)

    def above(self, build: Build, losses: Sequence[np.ndarray]) -> tuple[Bracket, Found]:
        """The upper end, and its knots and atoms; `build` makes laws from above."""
        first = build(losses)
        if float(np.asarray(self.counts) @ _total_variation(first)) <= self.delta:
            return Bracket(0.0, 0.0, "total variation"), Found(0.0, 0.0, losses, first)
        found = self._search(build, losses, first, math.inf, True)
        best = Bracket(0.0, found.epsilon, "PLD", numerical_error=found.error)
        renyi, order = self._renyi(found.atoms)
        if renyi < best.upper:
            best = Bracket(0.0, renyi, "RDP", optimal_order=order)
        pure = float(np.dot(self.counts, self.tops)) * (1.0 + 1e-12)
        if pure < best.upper:
            best = Bracket(0.0, pure, "largest loss")
        return best, found

    def below(self, build: BuildBoth, losses: Sequence[np.ndarray], upper: float) -> float:
        """The lower end: by the composed instances, or by the event that all losses are largest; better direction."""
        corners = build([reach * EVEN for reach in self.reaches])
        best = max(_corner(atoms, np.asarray(self.counts), self.delta) for atoms in corners)
        both = build(losses)
        for side, first in enumerate(both):

            def one(losses: Sequence[np.ndarray], side: int = side) -> pld.Atoms:
                return build(losses)[side]

            found = self._search(one, losses, first, upper, False)
            best = max(best, found.epsilon)
        return best

    def curves(self, build: Build, upper: bool) -> list[pld.Composed]:
        """The profile of the composed law, from above or below, on grids for delta and for the bulk of the law.

        Each is a valid bound at its points. There are none if no grid can serve.
        """
        atoms = build(self.coarse())
        start = self._at_delta(atoms)
        limit = self._tame(atoms)
        bare = float(self._scales(atoms, start).bare_variance)
        bulk = 0.5 / math.sqrt(bare) if bare > 0 else math.inf
        wanted = sorted(min(float(start.order), each) for each in (math.inf, float(limit.order), bulk))
        orders = [order for i, order in enumerate(wanted) if i == 0 or order > 1.3 * wanted[i - 1]]
        found = []
        for order in orders:
            tilt = pld.tilt_at(atoms, self.counts, host(order))
            grid = self._grid(self._scales(atoms, tilt), tilt, upper)
            if grid is None:
                continue
            fine = build(grid.losses)
            found.append(composing.curve(*self._on(grid, fine, tilt, upper)))
        return found

    def coarse(self) -> list[np.ndarray]:
        return [reach * COARSE for reach in self.reaches]

    def _search(
        self, build: Build, losses: Sequence[np.ndarray], atoms: pld.Atoms, guess: float, upper: bool
    ) -> Found:
        """The best end over grids and tilts that converge to it; it is at most `guess`.

        atoms: of `build` on `losses`, the first knots.

        The best tilt is centred at the end. If rare large losses dominate that tilted law, a lower order is tried
        first, and the full tilt only if it fails. Every pass gives a valid bound.
        """
        start = self._at_delta(atoms)
        if guess < float(start.mean):
            start = self._centred(atoms, guess)
        best, off_centre = Found(math.inf if upper else 0.0, 0.0, losses, atoms), 0.0
        for tame in (True, False):
            tilt, capped = start, False
            for _ in range(_PASSES):
                if tame:
                    limit = self._tame(atoms)
                    settled = capped and float(limit.order) > 0.97 * float(tilt.order)
                    capped = float(tilt.order) > float(limit.order)
                    tilt = limit if capped else tilt
                    if settled:
                        break
                grid = self._grid(self._scales(atoms, tilt), tilt, upper)
                if grid is None:
                    break
                atoms = build(grid.losses)
                here = self._end(atoms, grid, tilt, upper)
                epsilon = float(here.epsilon)
                if (epsilon < best.epsilon) if upper else (epsilon >= best.epsilon):
                    best = Found(epsilon, float(here.error), grid.losses, atoms)
                    if epsilon - float(here.mean) > math.sqrt(float(here.variance)):
                        off_centre = float(tilt.order)
                    else:
                        off_centre = 0.0
                if capped:
                    continue
                sd, asked = math.sqrt(float(here.variance)), math.sqrt(float(tilt.variance))
                known = 0 < epsilon < math.inf
                if known and abs(epsilon - float(here.mean)) <= 3.0 * sd and sd > 0.7 * asked:
                    break
                target = epsilon if known else float(here.mean)
                tilt = self._centred(atoms, max(target, grid.spacing))
            if not capped:
                break
            if upper:
                enough = best.epsilon <= self._renyi(atoms)[0]
            else:
                enough = best.epsilon > 0
            if enough:
                break
        if off_centre and not upper:
            best = self._higher(build, best, off_centre)
        return best

    def _higher(self, build: Build, best: Found, order: float) -> Found:
        """The best of this lower end and those at tilts slightly above its own `order`.

        If a tilt's mean is not at the end, rare large losses lie outside the window.
        """
        for more in _HIGHER:
            tilt = pld.tilt_at(best.atoms, self.counts, host(more * order))
            grid = self._grid(self._scales(best.atoms, tilt), tilt, False)
            if grid is None:
                break
            atoms = build(grid.losses)
            here = self._end(atoms, grid, tilt, False)
            if float(here.epsilon) > best.epsilon:
                best = Found(float(here.epsilon), float(here.error), grid.losses, atoms)
        return best


def _total_variation(atoms: pld.Atoms) -> np.ndarray:
    """Total variation of one unit of each event, rounded up; it is additive over units."""
    losses, masses = np.asarray(atoms.losses), np.asarray(atoms.masses)
    positive = np.where(losses > 0.0, -np.expm1(-np.maximum(losses, 0.0)), 0.0)
    return (np.sum(masses * positive, axis=-1) + np.asarray(atoms.infinite)) * (1.0 + 1e-12)


def _corner(atoms: pld.Atoms, counts: np.ndarray, delta: float) -> float:
    """Lower bound log((P - delta) / Q) of epsilon by the outcome in which every unit has its last loss."""
    masses, losses = np.asarray(atoms.masses), np.asarray(atoms.losses)
    last = [int(np.flatnonzero(row > 0)[-1]) for row in masses]
    pick = np.arange(len(last)), last
    log_p = float(counts @ np.log(masses[pick]))
    if log_p <= math.log(delta):
        return 0.0
    # Rounding of K terms of a sum of this size.
    slack = 1e-12 * (abs(log_p) + float(counts @ np.abs(losses[pick])))
    value = float(counts @ losses[pick]) + math.log1p(-math.exp(math.log(delta) - log_p)) - slack
    return max(value, 0.0)


def reach(profile: Callable[[np.ndarray], Values], top: float, enough: float) -> float:
    """Loss up to which a unit is followed: beyond it the profile falls by at most `enough`.

    profile: upper bounds at any 32 losses, nonincreasing up to rounding. top: the largest loss.
    """
    grid = _REACHES * min(top, MAX_LOSS)
    rough = np.asarray(profile(grid[15::16]))
    bound = float(rough[-1]) + enough
    first = min(max(16 * int(np.argmax(rough <= bound)) - 16, 0), grid.size - 32)
    fine = np.asarray(profile(grid[first : first + 32]))
    below = np.flatnonzero(fine <= bound)
    return float(grid[first + below[0]]) if below.size else float(grid[-1])
