"""Search for one end of the bracket: choose a grid and a tilt, evaluate, and repeat until the end is stable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.interface import MAX_LOSS, Values
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.composition import composed_law, pld
from checkin_jax.kernels.composition.composed_law import Scales

_PASSES = 4
# Factors of the order, tried if the lower end is off the tilt's mean by more than a standard deviation.
_HIGHER = (1.1, 1.2, 1.35)
# Share of delta that may lie beyond the truncation losses of all units.
ENOUGH = 1e-6
# Shares of the largest loss at which the truncation loss is searched; below, shares of it: the first knots (as many as
# the usual step of the ladder has), and even knots for the largest losses.
_SHARES_TRIED = np.geomspace(1e-12, 1.0, 512)
# Closer knots would turn the rounding of profiles into mass.
COARSE = np.append(0.0, np.geomspace(1e-8, 1.0, 128))
EVEN = np.linspace(0.0, 1.0, 65)

Build = Callable[[Sequence[np.ndarray]], pld.Atoms]
# P||Q and, unless all units are symmetric, Q||P.
BuildBoth = Callable[[Sequence[np.ndarray]], Sequence[pld.Atoms]]

# Sizes of the transform.
_POINTS = tuple(2**k for k in (13, 15, 17, 19, 21))
# Grid points per standard deviation of one unit: discretization adds (1/15)^2 / 6 to its variance. For sharp bounds
# _FINER times as many, up to _FINER_POINTS in the transform.
_POINTS_PER_ROUND_SD = 15.0
_FINER, _FINER_POINTS = 4.0, 2**19
# The same factor and size for laws of few outcomes, with knots beside their losses alone; and the most outcomes.
_BESIDE, _BESIDE_POINTS, MOST_LOSSES = 64.0, 2**17, 170
_WINDOW_SDS = 9.0
# The probability of a positive loss differs by less between laws of the same unit on other knots.
_ABOUT = 1.1
# Windows end where Chernoff's bound is e^-16 delta.
FAR = 16.0
_TAIL_KNOTS = 256
# Sizes of the knots; the truncation loss of most units is 70 to 130 grid points.
_KNOT_LADDER = (16, 64, 128, 512, 1024, 4096)
# Numbers of atoms of the composed laws.
_ATOMS = tuple(2 * size + 1 for size in _KNOT_LADDER if size >= 512)
# Factor of the spacing for lower bounds: an atom at the largest loss then stays above its knot, for any rounding of its
# two masses.
SHRINK = 1.0 - 4.0 * ROUNDING


@dataclasses.dataclass(frozen=True)
class Found:
    """An end of the bracket, the numerical part of its delta, and its knots and atoms."""

    epsilon: float
    error: float
    losses: Sequence[np.ndarray]
    atoms: pld.Atoms


@dataclasses.dataclass(frozen=True)
class Grid:
    """Knots of every event on one spacing, their signed indices, and the FFT's window."""

    spacing: float
    losses: list[np.ndarray]
    index: np.ndarray
    first: int
    points: int


class Search:
    """Units and their counts at one delta.

    Attributes:
      counts: units of every event, [events]. largest_losses: of each; may be infinite.
      truncation_losses: loss up to which each is followed. delta: the target.
      sharp: True if a finer grid is worth its time.
      loss_support: absolute losses of all outcomes of every event, [events] arrays; empty unless all are few.
    """

    counts: Array
    largest_losses: Sequence[float]
    truncation_losses: Sequence[float]
    delta: float
    sharp: bool = False
    loss_support: Sequence[np.ndarray] = ()

    @property
    def total(self) -> float:
        return float(np.sum(self.counts))

    def _scales(self, atoms: pld.Atoms, tilt: pld.Tilt) -> Scales:
        """Scales of the law from which a grid for this tilt is made."""
        log_far = host(math.log(self.delta) - FAR)
        return composed_law.scales(atoms, self.counts, log_far, tilt.order)

    def _composed(
        self, grid: Grid, atoms: pld.Atoms, tilt: pld.Tilt, upper: bool
    ) -> tuple[pld.Composed, pld.Tilt]:
        """The profile of the law composed on this grid, rounded up or down, and the law's tilt of the same order."""
        spacing = host(grid.spacing if upper else grid.spacing * SHRINK)
        atoms, index = _filled(atoms, grid.index)
        tilt, first = pld.tilt_at(atoms, self.counts, tilt.order), np.int64(grid.first)
        return pld.compose(atoms, index, self.counts, spacing, tilt, first, grid.points, upper), tilt

    def _end(self, grid: Grid, atoms: pld.Atoms, tilt: pld.Tilt, upper: bool) -> tuple[Found, pld.Tilt]:
        """The end at delta on this grid, rounded outwards, and the law's tilt."""
        composed, tilt = self._composed(grid, atoms, tilt, upper)
        epsilon, error = (composed_law.smallest if upper else composed_law.largest)(
            composed, host(self.delta)
        )
        return Found(float(epsilon), float(error), grid.losses, atoms), tilt

    def _grid(self, atoms: pld.Atoms, tilt: pld.Tilt, upper: bool) -> Grid | None:
        """The grid of a window up to where Chernoff's bound is 1e-7 delta, resolved on the scale of one unit.

        The scale is that of the law or of the tilted law, whichever is finer: heavy tails widen the tilted law, bounded
        losses narrow it. None if the loss is constant, or if the grid would extend beyond the largest float64 loss.
        """
        scales = self._scales(atoms, tilt)
        high = (float(scales.far_log_mgf) - math.log(self.delta) + FAR) / float(scales.far_order)
        plain_sd, sd = math.sqrt(float(scales.bare_variance)), math.sqrt(float(tilt.variance))
        # P[L <= -x] <= e^-x Q[L <= -x], so there is less mass below -high than above high.
        low = float(tilt.mean) - _WINDOW_SDS * sd
        if sd < 1.5 * plain_sd:
            high = max(high, float(tilt.mean) + (4.0 if upper else _WINDOW_SDS) * sd)
        low = max(low, -high)
        scale = max(min(sd, plain_sd), 0.05 * plain_sd)
        wanted = (high - low) / max(scale, 1e-300) * _POINTS_PER_ROUND_SD * math.sqrt(self.total)
        if not (scale > 0 and 0 < wanted < math.inf):
            return None
        loss_support = () if upper else self.loss_support
        if loss_support:
            wanted = max(wanted, min(_BESIDE * wanted, _BESIDE_POINTS - 2.0))
        elif self.sharp:
            wanted = max(wanted, min(_FINER * wanted, _FINER_POINTS - 2.0))
        # Few sizes, since each compiles once; a longer window costs little.
        points = next((p for p in _POINTS if p >= wanted + 2), _POINTS[-1])
        spacing = (high - low) / min(wanted, points - 2)
        farthest = max(self.truncation_losses)
        if not spacing > 1e-13 * farthest:
            return None
        largest = max(filter(math.isfinite, self.largest_losses), default=math.inf)
        if math.isfinite(largest):
            # An atom at the largest loss is then on the grid; rounded so that the window does not shrink.
            spacing = largest / max(math.floor(largest / spacing), 1)
        if loss_support:
            beside = [_beside(spacing * SHRINK, each) for each in loss_support]
            size = next(s for s in _KNOT_LADDER if s >= max(map(len, beside)))
            # Padding: the profile is zero beyond the largest loss.
            rows = [np.append(row, row[-1] + 1 + np.arange(size + 1 - len(row))) for row in beside]
            return _placed(rows, spacing, low, points)
        uniform = 0
        for mean, variance, bare in zip(scales.means, scales.variances, scales.bare_variances):
            width = math.sqrt(min(float(variance), 2.0 * float(bare)))
            uniform = max(uniform, math.ceil((max(float(mean), 0.0) + 9.0 * width) / spacing) + 8)
        # At most one knot for each multiple of the spacing below the largest truncation loss.
        knots = min(uniform + _TAIL_KNOTS, math.ceil(farthest / spacing))
        size = next((s for s in _KNOT_LADDER if s >= knots), _KNOT_LADDER[-1])
        if size * spacing > MAX_LOSS + 10.0:
            return None
        uniform = max(min(uniform, size - _TAIL_KNOTS), 1)
        rows = [_knots(spacing, uniform, truncation_loss, size) for truncation_loss in self.truncation_losses]
        return _placed(rows, spacing, low, points)

    def _renyi(self, atoms: pld.Atoms) -> tuple[float, float]:
        """(epsilon, order) by RDP of the same pairs, at delta minus the mass at infinite loss."""
        remaining = self.delta - float(np.asarray(self.counts) @ np.asarray(atoms.infinite))
        if not remaining > 0:
            return math.inf, math.inf
        log_delta = host(math.log(remaining))
        epsilon, order = composed_law.renyi(atoms, self.counts, log_delta)
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
        pure = float(np.dot(self.counts, self.largest_losses)) * (1.0 + 1e-12)
        if pure < best.upper:
            best = Bracket(0.0, pure, "largest loss")
        return best, found

    def below(self, build: BuildBoth, losses: Sequence[np.ndarray], upper: float) -> float:
        """The lower end: by the composed witnesses, or by the event that all losses are largest; better direction."""
        both, best, counts = build(losses), 0.0, np.asarray(self.counts)
        if any(_all_positive(atoms, counts, self.delta) for atoms in both):
            corners = build([truncation_loss * EVEN for truncation_loss in self.truncation_losses])
            best = max(_corner(atoms, counts, self.delta) for atoms in corners)
        return max(best, *(found.epsilon for found in self.composed_below(build, both, losses, upper)))

    def composed_below(
        self, build: BuildBoth, both: Sequence[pld.Atoms], losses: Sequence[np.ndarray], upper: float
    ) -> list[Found]:
        """The composition of the witnesses with the largest lower end, in each direction.

        both: the laws that `build` gives at these losses.
        """

        def searched(side: int, first: pld.Atoms) -> Found:
            return self._search(lambda losses: build(losses)[side], losses, first, upper, False)

        return [searched(side, first) for side, first in enumerate(both)]

    def curves(self, build: Build, upper: bool) -> list[pld.Composed]:
        """The profile of the composed law, from above or below, on grids for delta and for the bulk of the law.

        Each is a valid bound at its points. There are none if no grid can serve.
        """
        atoms = build(self.coarse())
        start = pld.chernoff_tilt(atoms, self.counts, host(math.log(self.delta)))
        limit = pld.tame_tilt(atoms, self.counts)
        bare = float(self._scales(atoms, start).bare_variance)
        bulk = 0.5 / math.sqrt(bare) if bare > 0 else math.inf
        wanted = sorted(min(float(start.order), each) for each in (math.inf, float(limit.order), bulk))
        orders = [order for i, order in enumerate(wanted) if i == 0 or order > 1.3 * wanted[i - 1]]
        found = []
        for order in orders:
            tilt = pld.tilt_at(atoms, self.counts, host(order))
            grid = self._grid(atoms, tilt, upper)
            if grid is None:
                continue
            found.append(self._composed(grid, build(grid.losses), tilt, upper)[0])
        return found

    def coarse(self) -> list[np.ndarray]:
        return [truncation_loss * COARSE for truncation_loss in self.truncation_losses]

    def _search(
        self, build: Build, losses: Sequence[np.ndarray], atoms: pld.Atoms, guess: float, upper: bool
    ) -> Found:
        """The best end over grids and tilts that converge to it; it is at most `guess`.

        atoms: of `build` on `losses`, the first knots.

        The best tilt is centred at the end. If rare large losses dominate that tilted law, a lower order is tried
        first, and the full tilt only if it fails. Every pass gives a valid bound.
        """
        start = pld.chernoff_tilt(atoms, self.counts, host(math.log(self.delta)))
        if guess < float(start.mean):
            start = pld.saddle_tilt(atoms, self.counts, host(guess))
        best, off_centre = Found(math.inf if upper else 0.0, 0.0, losses, atoms), 0.0
        for tame in (True, False):
            tilt, capped = start, False
            for _ in range(_PASSES):
                if tame:
                    limit = pld.tame_tilt(atoms, self.counts)
                    settled = capped and float(limit.order) > 0.97 * float(tilt.order)
                    capped = float(tilt.order) > float(limit.order)
                    tilt = limit if capped else tilt
                    if settled:
                        break
                grid = self._grid(atoms, tilt, upper)
                if grid is None:
                    break
                atoms = build(grid.losses)
                here, law = self._end(grid, atoms, tilt, upper)
                epsilon, mean, sd = here.epsilon, float(law.mean), math.sqrt(float(law.variance))
                if (epsilon < best.epsilon) if upper else (epsilon >= best.epsilon):
                    best, off_centre = here, float(tilt.order) if epsilon - mean > sd else 0.0
                if capped:
                    continue
                known = 0 < epsilon < math.inf
                if known and abs(epsilon - mean) <= 3.0 * sd and sd > 0.7 * math.sqrt(float(tilt.variance)):
                    break
                target = epsilon if known else mean
                tilt = pld.saddle_tilt(atoms, self.counts, host(max(target, grid.spacing)))
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
            grid = self._grid(best.atoms, tilt, False)
            if grid is None:
                break
            here, _ = self._end(grid, build(grid.losses), tilt, False)
            if here.epsilon > best.epsilon:
                best = here
        return best


def _total_variation(atoms: pld.Atoms) -> np.ndarray:
    """Total variation of one unit of each event, rounded up; it is additive over units."""
    losses, masses = np.asarray(atoms.losses), np.asarray(atoms.masses)
    positive = np.where(losses > 0.0, -np.expm1(-np.maximum(losses, 0.0)), 0.0)
    return (np.sum(masses * positive, axis=-1) + np.asarray(atoms.infinite)) * (1.0 + 1e-12)


def _all_positive(atoms: pld.Atoms, counts: np.ndarray, delta: float) -> bool:
    """True if all losses may be positive, as the corner's are, with a probability above delta."""
    losses, masses = np.asarray(atoms.losses), np.asarray(atoms.masses)
    positive = np.sum(np.where(losses > 0.0, masses, 0.0), axis=-1)
    return bool(counts @ np.log(np.clip(_ABOUT * positive, 1e-300, 1.0)) > math.log(delta))


def _corner(atoms: pld.Atoms, counts: np.ndarray, delta: float) -> float:
    """Lower bound log((P - delta) / Q) of epsilon by the outcome in which every unit has its last loss."""
    masses, losses = np.asarray(atoms.masses), np.asarray(atoms.losses)
    last = [int(np.flatnonzero(row > 0)[-1]) for row in masses]
    at = np.arange(len(last)), last
    log_p = float(counts @ np.log(masses[at]))
    if log_p <= math.log(delta):
        return 0.0
    # Rounding of K terms of a sum of this size.
    slack = 1e-12 * (abs(log_p) + float(counts @ np.abs(losses[at])))
    value = float(counts @ losses[at]) + math.log1p(-math.exp(math.log(delta) - log_p)) - slack
    return max(value, 0.0)


def truncation_loss(profile: Callable[[np.ndarray], Values], top: float, enough: float) -> float:
    """Loss up to which a unit is followed: beyond it the profile falls by at most `enough`.

    profile: upper bounds at any 32 losses, nonincreasing up to rounding. top: the largest loss.
    """
    grid = _SHARES_TRIED * min(top, MAX_LOSS)
    rough = np.asarray(profile(grid[15::16]))
    bound = float(rough[-1]) + enough
    first = min(max(16 * int(np.argmax(rough <= bound)) - 16, 0), grid.size - 32)
    fine = np.asarray(profile(grid[first : first + 32]))
    below = np.flatnonzero(fine <= bound)
    return float(grid[first + below[0]]) if below.size else float(grid[-1])


def _filled(atoms: pld.Atoms, index: np.ndarray) -> tuple[pld.Atoms, np.ndarray]:
    """Atoms padded to few sizes with mass zero at loss zero, since each size compiles with every length of the FFT."""
    size = next(size for size in _ATOMS if size >= index.shape[1])
    losses, masses, index = (
        np.pad(np.asarray(part), ((0, 0), (0, size - index.shape[1])))
        for part in (atoms.losses, atoms.masses, index)
    )
    return pld.Atoms(host(losses), host(masses), atoms.infinite), index


def _placed(rows: Sequence[np.ndarray], spacing: float, low: float, points: int) -> Grid:
    """The grid with these multiples of the spacing as knots, event by event."""
    index = np.stack(rows)
    both = np.concatenate([-index[:, :0:-1], index], axis=1)
    return Grid(spacing, [row * spacing for row in index], both, math.floor(low / spacing), points)


def _beside(spacing: float, loss_support: np.ndarray) -> np.ndarray:
    """Multiples of the spacing, increasing: 0, 1, and for every kink two below and one above."""
    below = np.floor(loss_support / spacing).astype(np.int64)
    # All values are lowered by the last positive one: the second knot below the largest loss makes that small.
    return np.unique(np.concatenate([[0, 1], np.maximum(below - 1, 0), below, below + 1]))


def _knots(spacing: float, uniform: int, truncation_loss: float, size: int) -> np.ndarray:
    """size + 1 multiples of the spacing: all up to `uniform`, then geometric ones up to `truncation_loss`."""
    last = math.ceil(truncation_loss / spacing - 1e-9)
    if last <= size:
        return np.arange(size + 1)
    uniform = min(uniform, size - 1)
    growth = np.rint(np.geomspace(uniform, last, size - uniform + 1))[1:]
    # Strictly increasing, even if the geometric steps are below one.
    tail = np.maximum(growth, uniform + 1.0 + np.arange(growth.size))
    return np.concatenate([np.arange(uniform + 1), tail]).astype(np.int64)
