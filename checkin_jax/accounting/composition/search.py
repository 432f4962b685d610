"""One end of the bracket: knots of the units' laws on the scale of their losses, and the laws' composition."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.interface import (
    MAX_LOSS,
    Minimum,
    UnitBound,
    Values,
    is_asymmetric,
    upper_sides,
)
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.composition import composed_contour, pld
from checkin_jax.kernels.composition.composed_contour import Composed
from checkin_jax.numerics import convex

# Laws are built anew on finer knots while their deviation is below this share of the one that the knots are made for.
_PASSES, _NARROWER = 4, 0.7
# Beyond this factor of the plain variance rare large losses dominate a tilted law.
_WIDER = 2.0
# Smaller orders of a lower end, relative to the usual one.
_SMALLER = (0.25, 0.06)
# Share of delta that may lie beyond the truncation losses of all units.
ENOUGH = 1e-6
# Shares of the largest loss at which the truncation loss is searched; below, shares of it: the first knots, as many as
# the usual step of the ladder has.
_SHARES_TRIED = np.geomspace(1e-12, 1.0, 512)
# Closer knots would turn the rounding of profiles into mass.
COARSE = np.append(0.0, np.geomspace(1e-8, 1.0, 128))

Build = Callable[[Sequence[np.ndarray]], pld.Atoms]
# P||Q and, unless all units are symmetric, Q||P.
BuildBoth = Callable[[Sequence[np.ndarray]], Sequence[pld.Atoms]]

# Knots per standard deviation of one unit: discretization adds (1/20)^2 / 6 to its variance. For sharp bounds _FINER
# times as many, while _SPAN standard deviations of all units have at most _MOST_PLACES.
_PER_DEVIATION, _FINER, _SPAN, _MOST_PLACES = 20.0, 3.0, 20.0, 2.0**19
# Most outcomes of a law whose losses are the knots.
MOST_LOSSES = 170
# Fewer units are as sharp: what a kink between knots costs does not average out.
_FEW_UNITS = 16
_TAIL_KNOTS = 256
# Sizes of the knots; the truncation loss of most units is 70 to 130 grid points.
_KNOT_LADDER = (16, 64, 128, 512, 1024, 4096)
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


class Search:
    """Units and their counts at one delta.

    Attributes:
      counts: units of every event, [events]. largest_losses: of each; may be infinite.
      truncation_losses: loss up to which each is followed. delta: the target.
      sharp: True if a finer grid is worth its time.
      chi_squares: bounds on the chi-square divergence of a unit of every event, or infinity; None: there are none.
      loss_support: absolute losses of all outcomes of every event, [events] arrays; empty unless all are few.
    """

    counts: Array
    largest_losses: Sequence[float]
    truncation_losses: Sequence[float]
    delta: float
    sharp: bool = False
    chi_squares: Array | None = None
    loss_support: Sequence[np.ndarray] = ()

    @property
    def total(self) -> float:
        return float(np.sum(self.counts))

    def _composed(self, atoms: pld.Atoms, order: Array, upper: bool) -> Composed:
        return composed_contour.compose(atoms, self.counts, order, np.asarray(upper))

    def _end(self, losses: Sequence[np.ndarray], atoms: pld.Atoms, upper: bool) -> tuple[Found, Array]:
        """The end at delta of the composed laws, rounded outwards, and the order about which they were composed.

        Where it is far from the tilted law's mean, or rare large losses dominate that law, the order at its own place
        is tried besides; where none was found, the largest tame one and, for a lower end, whose losses may be so many
        that their rounding hides it, smaller ones.
        """

        def at(order: Array) -> tuple[Found, Composed]:
            composed = self._composed(atoms, order, upper)
            epsilon, error = composed_contour.end(composed, log_delta, np.asarray(upper))
            return Found(float(epsilon), float(error), losses, atoms), composed

        log_delta = host(math.log(self.delta))
        order = composed_contour.order(atoms, self.counts, log_delta)
        first, composed = at(order)
        mean, variance = float(composed.tilt.mean), float(composed.tilt.variance)
        if not 0.0 < first.epsilon < math.inf:
            orders = [pld.tame_tilt(atoms, self.counts).order]
            if not upper:
                orders += [share * order for share in _SMALLER]
        elif (first.epsilon - mean) ** 2 > variance or variance > _WIDER * self._plain(atoms):
            orders = [pld.saddle_tilt(atoms, self.counts, host(first.epsilon)).order]
        else:
            return first, order
        found = [first, *(at(each)[0] for each in orders)]
        best = min(found, key=lambda each: each.epsilon if upper else -each.epsilon)
        return best, orders[0]

    def _plain(self, atoms: pld.Atoms) -> float:
        """Variance of the loss of all units."""
        return float(pld.tilt_at(atoms, self.counts, host(0.0)).variance)

    def _scale(self, atoms: pld.Atoms, order: Array) -> float:
        """Standard deviation of all units: of the law or of the tilted law, whichever is finer.

        Heavy tails widen the tilted law, bounded losses narrow it.
        """
        plain = math.sqrt(self._plain(atoms))
        tilted = math.sqrt(max(float(pld.tilt_at(atoms, self.counts, order).variance), 0.0))
        return max(min(tilted, plain), 0.05 * plain)

    def _knots(self, atoms: pld.Atoms, order: Array, upper: bool) -> list[np.ndarray] | None:
        """Knots of every event, multiples of one spacing, that resolve the scale of one unit.

        None if the loss is constant, or if the knots would extend beyond the largest float64 loss.
        """
        if self.loss_support and not upper:
            size = max(map(len, self.loss_support))
            kinks = [np.sort(np.append(each, 0.0)) for each in self.loss_support]
            return [np.append(each, np.full(size + 1 - len(each), each[-1])) for each in kinks]
        scale, farthest = self._scale(atoms, order), max(self.truncation_losses)
        spacing = scale / (_PER_DEVIATION * math.sqrt(self.total))
        if not 1e-13 * farthest < spacing < math.inf:
            return None
        if self.sharp or self.total < _FEW_UNITS:
            spacing = min(spacing, max(spacing / _FINER, scale * _SPAN / _MOST_PLACES))
        largest = max(filter(math.isfinite, self.largest_losses), default=math.inf)
        if math.isfinite(largest):
            # The largest loss is then a knot.
            spacing = largest / max(math.floor(largest / spacing), 1)
        each, uniform = pld.rounds_at(atoms, host([0.0, float(order)])), 0
        for bare, variance, mean in zip(*each.variance, each.mean[1]):
            width = math.sqrt(min(float(variance), 2.0 * float(bare)))
            uniform = max(uniform, math.ceil((max(float(mean), 0.0) + 9.0 * width) / spacing) + 8)
        # At most one knot for each multiple of the spacing below the largest truncation loss.
        knots = min(uniform + _TAIL_KNOTS, math.ceil(farthest / spacing))
        size = next((s for s in _KNOT_LADDER if s >= knots), _KNOT_LADDER[-1])
        if size * spacing > MAX_LOSS + 10.0:
            return None
        uniform = max(min(uniform, size - _TAIL_KNOTS), 1)
        return [spacing * _multiples(spacing, uniform, each, size) for each in self.truncation_losses]

    def _renyi(self, atoms: pld.Atoms) -> tuple[float, float]:
        """(epsilon, order) by RDP of the same pairs, at delta minus the mass at infinite loss."""
        remaining = self.delta - float(np.asarray(self.counts) @ np.asarray(atoms.infinite))
        if not remaining > 0:
            return math.inf, math.inf
        log_delta = host(math.log(remaining))
        epsilon, order = pld.renyi(atoms, self.counts, log_delta, self.chi_squares)
        return float(epsilon), float(order)

    def above(self, build: Build, losses: Sequence[np.ndarray]) -> tuple[Bracket, Found]:
        """The upper end, and its knots and atoms; `build` makes laws from above."""
        first = build(losses)
        if float(np.asarray(self.counts) @ _total_variation(first)) <= self.delta:
            return Bracket(0.0, 0.0, "total variation"), Found(0.0, 0.0, losses, first)
        found = self._search(build, losses, first, True)
        best = Bracket(0.0, found.epsilon, "PLD", numerical_error=found.error)
        renyi, order = self._renyi(found.atoms)
        if renyi < best.upper:
            best = Bracket(0.0, renyi, "RDP", optimal_order=order)
        pure = float(np.dot(self.counts, self.largest_losses)) * (1.0 + 1e-12)
        if pure < best.upper:
            best = Bracket(0.0, pure, "largest loss")
        return best, found

    def below(self, build: BuildBoth, losses: Sequence[np.ndarray]) -> list[Found]:
        """The composition of the witnesses with the largest lower end, in each direction."""

        def searched(side: int, first: pld.Atoms) -> Found:
            return self._search(lambda losses: build(losses)[side], losses, first, False)

        return [searched(side, first) for side, first in enumerate(build(losses))]

    def laws(self, build: Build, upper: bool) -> list[Composed]:
        """The composition, from above or below, about orders for delta and for the bulk of the law.

        Each gives valid bounds. There are none if no knots can serve.
        """
        atoms = build(self.coarse())
        start = pld.chernoff_tilt(atoms, self.counts, host(math.log(self.delta)))
        limit, bare = pld.tame_tilt(atoms, self.counts), self._plain(atoms)
        bulk = 0.5 / math.sqrt(bare) if bare > 0 else math.inf
        wanted = sorted(min(float(start.order), each) for each in (math.inf, float(limit.order), bulk))
        orders = [host(order) for i, order in enumerate(wanted) if i == 0 or order > 1.3 * wanted[i - 1]]
        knots = [(order, self._knots(atoms, order, upper)) for order in orders]
        return [self._composed(build(at), order, upper) for order, at in knots if at is not None]

    def coarse(self) -> list[np.ndarray]:
        return [truncation_loss * COARSE for truncation_loss in self.truncation_losses]

    def _search(self, build: Build, losses: Sequence[np.ndarray], atoms: pld.Atoms, upper: bool) -> Found:
        """The best end of laws on finer and finer knots; atoms: of `build` on `losses`, the first knots."""
        best = Found(math.inf if upper else 0.0, 0.0, losses, atoms)
        order = composed_contour.order(atoms, self.counts, host(math.log(self.delta)))
        for _ in range(_PASSES):
            before, knots = self._scale(atoms, order), self._knots(atoms, order, upper)
            if knots is None:
                break
            atoms = build(knots)
            here, order = self._end(knots, atoms, upper)
            if (here.epsilon < best.epsilon) if upper else (here.epsilon >= best.epsilon):
                best = here
            if not self._scale(atoms, order) < _NARROWER * before:
                break
        return best


def _total_variation(atoms: pld.Atoms) -> np.ndarray:
    """Total variation of one unit of each event, rounded up; it is additive over units."""
    losses, masses = np.asarray(atoms.losses), np.asarray(atoms.masses)
    positive = np.where(losses > 0.0, -np.expm1(-np.maximum(losses, 0.0)), 0.0)
    return (np.sum(masses * positive, axis=-1) + np.asarray(atoms.infinite)) * (1.0 + 1e-12)


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


def _multiples(spacing: float, uniform: int, truncation_loss: float, size: int) -> np.ndarray:
    """Of the spacing, size + 1: all up to `uniform`, then geometric ones up to `truncation_loss`."""
    last = math.ceil(truncation_loss / spacing - 1e-9)
    if last <= size:
        return np.arange(size + 1)
    uniform = min(uniform, size - 1)
    growth = np.rint(np.geomspace(uniform, last, size - uniform + 1))[1:]
    # Strictly increasing, even if the geometric steps are below one.
    tail = np.maximum(growth, uniform + 1.0 + np.arange(growth.size))
    return np.concatenate([np.arange(uniform + 1), tail]).astype(np.int64)


# Events of less mass count with this one.
_LEAST_MASS = 1e-300


def sides_above(one: UnitBound, losses: np.ndarray) -> tuple[pld.Side, pld.Side]:
    """Sides of P||Q and Q||P on knots 0 = l_0 < l_1 < ..., lowered by each other; one object if undirected."""
    return _sides(losses, *upper_sides(one, losses))


def _sides(losses: np.ndarray, forward: Values, backward: Values) -> tuple[pld.Side, pld.Side]:
    symmetric = backward is forward
    forward, backward = convex.lowered(losses, np.asarray(forward), np.asarray(backward))
    plus = pld.side_upper(host(losses), host(forward))
    return plus, plus if symmetric else pld.side_upper(host(losses), host(backward))


def laws_above(one: UnitBound, losses: np.ndarray) -> list[pld.Atoms]:
    """Laws of the loss as P||Q and, if `one` is asymmetric, as Q||P."""
    return _laws(losses, sides_above(one, losses), is_asymmetric(one))


def laws_of_some(one: Minimum, which: Sequence[int], losses: np.ndarray) -> list[pld.Atoms]:
    """`laws_above` by some of the bounds of a `Minimum`."""
    values = one.values(losses)[list(which)].min(axis=0)
    return _laws(losses, _sides(losses, values[0], values[-1]), one.asymmetric)


def _laws(losses: np.ndarray, sides: tuple[pld.Side, pld.Side], asymmetric: bool) -> list[pld.Atoms]:
    orders = [sides, sides[::-1]] if asymmetric else [sides]
    return [pld.join(host(losses), *each, True) for each in orders]


def side_below(difference: Values, far_mass: Values) -> tuple[Array, pld.Side]:
    """Losses and the side of the highest of the lines P(A) - c Q(A) at every c >= 1; A: events.

    difference, far_mass: P(A) - Q(A), rounded down, and Q(A), rounded up, [events].
    """
    apart, mass = np.asarray(difference), np.maximum(np.asarray(far_mass), _LEAST_MASS)
    known = apart > 0.0
    order = np.lexsort((apart[known], mass[known]))
    apart, mass = (np.append(0.0, part[known][order]) for part in (apart, mass))
    # Events of more mass that are less apart are below others everywhere, and so are all within the hull.
    rising = np.append(True, apart[1:] > np.maximum.accumulate(apart)[:-1])
    apart, mass = apart[rising], mass[rising]
    last = np.append(mass[1:] > mass[:-1], True)
    apart, mass = apart[last], mass[last]
    corners = convex.hull(mass, -apart)
    gained, far = np.diff(apart[corners])[::-1], np.diff(mass[corners])[::-1]
    losses = np.append(0.0, np.log1p(gained / far))
    return host(losses), pld.Side(host(gained + far), host(far), host(apart[-1]), host(0.0))


def law_below(ahead: tuple[Array, pld.Side], behind: tuple[Array, pld.Side]) -> pld.Atoms:
    """Law of the loss under P from `side_below` of P||Q and of Q||P."""
    return pld.join(ahead[0], ahead[1], behind[1], False, behind[0])
