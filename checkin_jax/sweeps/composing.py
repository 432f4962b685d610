"""Brackets of many rounds of one unit: `accounting.search`, its kernels asked for many settings at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checkin_jax.accounting.brackets import Bracket, ordered
from checkin_jax.accounting.pure_rounds import Binary, ShuffledPureLDP, Ternary
from checkin_jax.accounting.rounds import MAX_LOSS
from checkin_jax.accounting.search import EVEN, REACHES, SHRINK, Grid, Scales, Search, corner
from checkin_jax.kernels import composing, crossing, host, lattice
from checkin_jax.sweeps.cuts import cuts
from checkin_jax.sweeps.requests import Asking, Held, Request


class _Run(Search):
    """`repeats` rounds of one unit at delta, repeats > 1."""

    def __init__(self, unit: ShuffledPureLDP, repeats: int, delta: float) -> None:
        self.unit, self.total, self.delta = unit, float(repeats), delta
        self.log_delta = math.log(delta)
        self.cuts = cuts(unit)
        self.largest = unit.top
        self.reaches = [min(unit.top, MAX_LOSS)]

    def bracket(self) -> Asking[Bracket]:
        """Both ends."""
        unit = self.unit
        held = yield self._parts(composing.parts(self.cuts.upper, True))
        exact = self.cuts.upper.plan[1]
        enough = 1e-6 * self.delta / self.total
        grid = self.reaches[0] * REACHES
        reach = float((yield Request(composing.reach(exact), (unit.epsilon0, grid, enough), held)))
        self.reaches = [reach]

        def above(losses: Sequence[np.ndarray]) -> Asking[lattice.Atoms]:
            return (yield Request(composing.upper_atoms(exact), (losses[0], unit.epsilon0), held))

        found = yield from self.search(above, self.coarse(), math.inf, True)
        best = Bracket(0.0, found.epsilon, "PLD", numerical_error=found.error)
        renyi, order = yield from self.renyi(found.atoms)
        if renyi < best.upper:
            best = Bracket(0.0, renyi, "RDP", optimal_order=order)
        pure = self.total * unit.top * (1.0 + 1e-12)
        if pure < best.upper:
            best = Bracket(0.0, pure, "largest loss")
        for name, kernel, parts in self._instances():
            held = yield self._parts(parts)
            lower = yield from self._lower(kernel, held, found.losses, best.upper)
            if lower > best.lower:
                best = dataclasses.replace(best, lower=lower, lower_method=name)
        return ordered(best)

    def _parts(self, kernel: Callable[..., Any]) -> Request:
        unit = self.unit
        numbers = (unit.num_clients, unit.rate, unit.epsilon0, unit.log_inverse_mass, self.delta, 0.0)
        return Request(kernel, (crossing.Lane(*map(host, numbers)),), keep=True)

    def _instances(self) -> list[tuple[str, Callable[..., Any], Callable[..., Any]]]:
        found = []
        if self.cuts.ternary is not None:
            cut = self.cuts.ternary
            found.append((Ternary.name, composing.ternary_atoms(cut.plan[1]), composing.parts(cut, False)))
        if self.cuts.binary is not None:
            buckets, plans = self.cuts.binary
            exact = plans[0][1], plans[1][1]
            found.append((Binary.name, composing.binary_atoms(exact), composing.binary_parts(buckets, plans)))
        return found

    def _lower(
        self, kernel: Callable[..., Any], held: Held, losses: Sequence[np.ndarray], upper: float
    ) -> Asking[float]:
        """The better of the composed instance's directions, and of all rounds at their largest loss."""

        def all_below(losses: Sequence[np.ndarray]) -> Asking[tuple[lattice.Atoms, ...]]:
            columns = losses[0] * SHRINK, self.unit.epsilon0
            # `lattice.side_lower` looks at every line at every knot.
            return (yield Request(kernel, columns, held, floats=len(losses[0]) ** 2))

        corners = yield from all_below([self.reaches[0] * EVEN])
        counts = np.array([self.total])
        best = max(
            corner(np.asarray(each.masses)[None], np.asarray(each.losses)[None], counts, self.delta)
            for each in corners
        )
        for side in range(len(corners)):

            def below(losses: Sequence[np.ndarray], side: int = side) -> Asking[lattice.Atoms]:
                return (yield from all_below(losses))[side]

            found = yield from self.search(below, losses, upper, False)
            best = max(best, found.epsilon)
        return best

    def at_delta(self, atoms: lattice.Atoms) -> Asking[lattice.Tilt]:
        return (yield Request(composing.chernoff, (atoms, self.total, self.log_delta)))

    def centred(self, atoms: lattice.Atoms, epsilon: float) -> Asking[lattice.Tilt]:
        return (yield Request(composing.saddle, (atoms, self.total, epsilon)))

    def tame(self, atoms: lattice.Atoms) -> Asking[lattice.Tilt]:
        return (yield Request(composing.tame, (atoms, self.total)))

    def scales(self, atoms: lattice.Atoms, tilt: lattice.Tilt) -> Asking[Scales]:
        far = yield Request(composing.scales, (atoms, self.total, self.log_delta, tilt.order))
        return Scales(
            far.far_order,
            far.far_log_mgf,
            self.total * far.bare_variance,
            [far.mean],
            [far.variance],
            [far.bare_variance],
        )

    def end(self, atoms: lattice.Atoms, grid: Grid, tilt: lattice.Tilt, upper: bool) -> Asking[composing.End]:
        spacing = grid.spacing if upper else grid.spacing * SHRINK
        place = (grid.index[0], self.total, spacing, tilt.order, np.int64(grid.first), self.delta)
        kernel = composing.end(grid.points, upper)
        return (yield Request(kernel, (atoms, *place), floats=grid.points))

    def renyi(self, atoms: lattice.Atoms) -> Asking[tuple[float, float]]:
        """What may be lost at infinite loss is taken off delta first."""
        remaining = self.delta - self.total * float(atoms.infinite)
        if not remaining > 0:
            return math.inf, math.inf
        epsilon, order = yield Request(composing.renyi, (atoms, self.total, math.log(remaining)))
        return float(epsilon), float(order)


def bracket(unit: ShuffledPureLDP, repeats: int, delta: float) -> Asking[Bracket]:
    """The bracket of more than one round at delta < 1, eps0 at least `composer`'s smallest loss."""
    return _Run(unit, repeats, delta).bracket()
