"""Brackets of many rounds: the search of `accounting.composer` for one pair, as a generator of kernel requests.

The same grids, tilts and stopping rules, and the same kernels behind the same error bounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from checkin_jax.accounting import composer
from checkin_jax.accounting.brackets import Bracket, ordered
from checkin_jax.accounting.pure_rounds import Binary, ShuffledPureLDP, Ternary
from checkin_jax.accounting.rounds import MAX_LOSS
from checkin_jax.kernels import composing, crossing, host, lattice
from checkin_jax.sweeps.cuts import cuts
from checkin_jax.sweeps.requests import Asking, Held, Request

_REACHES = np.geomspace(1e-12, 1.0, 512)
_COARSE = np.append(0.0, np.geomspace(1e-12, 1.0, composer._COARSE_KNOTS))
_EVEN = np.linspace(0.0, 1.0, 65)

Build = Callable[[np.ndarray], Asking[lattice.Atoms]]


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Knots in nats, signed whole multiples of the spacing, and the FFT's window."""

    spacing: float
    losses: np.ndarray
    index: np.ndarray
    first: int
    points: int


@dataclasses.dataclass(frozen=True)
class _Found:
    epsilon: float
    error: float
    losses: np.ndarray
    atoms: lattice.Atoms


class _Run:
    """`repeats` rounds of one unit at delta, repeats > 1."""

    def __init__(self, unit: ShuffledPureLDP, repeats: int, delta: float) -> None:
        self.unit, self.repeats, self.delta = unit, float(repeats), delta
        self.log_delta = math.log(delta)
        self.cuts = cuts(unit)
        self.top = min(unit.top, MAX_LOSS)
        self.reach = self.top

    def bracket(self) -> Asking[Bracket]:
        """Both ends."""
        unit = self.unit
        held = yield self._parts(composing.parts(self.cuts.upper, True))
        exact = self.cuts.upper.plan[1]
        enough = 1e-6 * self.delta / self.repeats
        grid = self.top * _REACHES
        self.reach = float((yield Request(composing.reach(exact), (unit.epsilon0, grid, enough), held)))

        def above(losses: np.ndarray) -> Asking[lattice.Atoms]:
            return (yield Request(composing.upper_atoms(exact), (losses, unit.epsilon0), held))

        coarse = self.reach * _COARSE
        found = yield from self._search(above, (yield from above(coarse)), coarse, math.inf, True)
        best = Bracket(0.0, found.epsilon, "PLD", numerical_error=found.error)
        renyi, order = yield from self._renyi(found.atoms)
        if renyi < best.upper:
            best = Bracket(0.0, renyi, "RDP", optimal_order=order)
        pure = self.repeats * unit.top * (1.0 + 1e-12)
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
        self, kernel: Callable[..., Any], held: Held, losses: np.ndarray, upper: float
    ) -> Asking[float]:
        """The better of the composed instance's directions, and of all rounds at their largest loss."""

        def all_below(losses: np.ndarray) -> Asking[tuple[lattice.Atoms, ...]]:
            columns = losses * composer._SHRINK, self.unit.epsilon0
            # `lattice.side_lower` looks at every line at every knot.
            return (yield Request(kernel, columns, held, floats=len(losses) ** 2))

        corners = yield from all_below(self.reach * _EVEN)
        best = max(self._corner(atoms) for atoms in corners)
        for side, atoms in enumerate((yield from all_below(losses))):

            def below(losses: np.ndarray, side: int = side) -> Asking[lattice.Atoms]:
                return (yield from all_below(losses))[side]

            found = yield from self._search(below, atoms, losses, upper, False)
            best = max(best, found.epsilon)
        return best

    def _search(
        self, build: Build, atoms: lattice.Atoms, losses: np.ndarray, guess: float, upper: bool
    ) -> Asking[_Found]:
        """`composer._Composer.search`, from the atoms of the first knots."""
        start = yield Request(composing.chernoff, (atoms, self.repeats, self.log_delta))
        if guess < start.mean:
            start = yield Request(composing.saddle, (atoms, self.repeats, guess))
        best = _Found(math.inf if upper else 0.0, 0.0, losses, atoms)
        for tame in (True, False):
            tilt, capped = start, False
            for _ in range(composer._PASSES):
                if tame:
                    limit = yield Request(composing.tame, (atoms, self.repeats))
                    settled = capped and limit.order > 0.97 * tilt.order
                    capped = bool(tilt.order > limit.order)
                    tilt = limit if capped else tilt
                    if settled:
                        break
                grid = yield from self._grid(atoms, tilt, upper)
                if grid is None:
                    break
                atoms = yield from build(grid.losses)
                spacing = grid.spacing if upper else grid.spacing * composer._SHRINK
                place = (grid.index, self.repeats, spacing, tilt.order, np.int64(grid.first), self.delta)
                kernel = composing.end(grid.points, upper)
                here = yield Request(kernel, (atoms, *place), floats=grid.points)
                epsilon = float(here.epsilon)
                if (epsilon < best.epsilon) if upper else (epsilon >= best.epsilon):
                    best = _Found(epsilon, float(here.error), grid.losses, atoms)
                if capped:
                    continue
                sd, asked = math.sqrt(here.variance), math.sqrt(tilt.variance)
                known = 0 < epsilon < math.inf
                if known and abs(epsilon - here.mean) <= 3.0 * sd and sd > 0.7 * asked:
                    break
                target = max(epsilon if known else float(here.mean), grid.spacing)
                tilt = yield Request(composing.saddle, (atoms, self.repeats, target))
            if not capped:
                break
            if upper:
                enough = best.epsilon <= (yield from self._renyi(atoms))[0]
            else:
                enough = best.epsilon > 0
            if enough:
                break
        return best

    def _grid(
        self, atoms: lattice.Atoms, tilt: lattice.Tilt, upper: bool
    ) -> Generator[Request, Any, _Grid | None]:
        """`composer._Composer.grid` of one pair."""
        far = yield Request(composing.scales, (atoms, self.repeats, self.log_delta, tilt.order))
        high = (float(far.far_log_mgf) - self.log_delta + 16.0) / float(far.far_order)
        plain_sd, sd = math.sqrt(self.repeats * float(far.bare_variance)), math.sqrt(float(tilt.variance))
        low = float(tilt.mean) - composer._WINDOW_SDS * sd
        if sd < 1.5 * plain_sd:
            high = max(high, float(tilt.mean) + (4.0 if upper else composer._WINDOW_SDS) * sd)
        low = max(low, -high)
        scale = max(min(sd, plain_sd), 0.05 * plain_sd)
        wanted = (high - low) / max(scale, 1e-300) * composer._POINTS_PER_ROUND_SD * math.sqrt(self.repeats)
        if not (scale > 0 and 0 < wanted < math.inf):
            return None
        points = next((p for p in composer._POINTS if p >= wanted + 2), composer._POINTS[-1])
        spacing = (high - low) / min(wanted, points - 2)
        if not spacing > 1e-13 * self.reach:
            return None
        spacing = self.unit.top / max(math.floor(self.unit.top / spacing), 1)
        width = math.sqrt(min(float(far.variance), 2.0 * float(far.bare_variance)))
        uniform = math.ceil((max(float(far.mean), 0.0) + 9.0 * width) / spacing) + 8
        knots = min(uniform + composer._TAIL_KNOTS, math.ceil(self.reach / spacing))
        size = next((s for s in composer._KNOT_LADDER if s >= knots), composer._KNOT_LADDER[-1])
        if size * spacing > MAX_LOSS + 10.0:
            return None
        uniform = max(min(uniform, size - composer._TAIL_KNOTS), 1)
        index = composer._knots(spacing, uniform, self.reach, size)
        both = np.concatenate([-index[:0:-1], index])
        return _Grid(spacing, index * spacing, both, math.floor(low / spacing), points)

    def _corner(self, atoms: lattice.Atoms) -> float:
        """`composer._Composer.corner` of one pair."""
        last = int(np.flatnonzero(atoms.masses > 0)[-1])
        log_p = self.repeats * math.log(atoms.masses[last])
        if log_p <= self.log_delta:
            return 0.0
        total = self.repeats * float(atoms.losses[last])
        slack = 1e-12 * (abs(log_p) + abs(total))
        return max(total + math.log1p(-math.exp(self.log_delta - log_p)) - slack, 0.0)

    def _renyi(self, atoms: lattice.Atoms) -> Asking[tuple[float, float]]:
        """(epsilon, order) by RDP; what may be lost at infinite loss is taken off delta first."""
        remaining = self.delta - self.repeats * float(atoms.infinite)
        if not remaining > 0:
            return math.inf, math.inf
        epsilon, order = yield Request(composing.renyi, (atoms, self.repeats, math.log(remaining)))
        return float(epsilon), float(order)


def bracket(unit: ShuffledPureLDP, repeats: int, delta: float) -> Asking[Bracket]:
    """The bracket of more than one round at delta < 1, eps0 at least `composer`'s smallest loss."""
    return _Run(unit, repeats, delta).bracket()
