"""From rounds to a bracket: chooses grids and orders on the host, leaves the numbers to the kernels."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np
from jax import Array

from checkin_jax.accounting.brackets import Bracket, ordered
from checkin_jax.accounting.rounds import MAX_LOSS, Directed, Instance, Round, upper_sides
from checkin_jax.accounting.search import (
    EVEN,
    REACHES,
    SHRINK,
    Build,
    Grid,
    Scales,
    Search,
    at_once,
    corner,
    finish,
)
from checkin_jax.accounting.single import single
from checkin_jax.kernels import conversions, host, lattice
from checkin_jax.kernels.composing import End

_MIN_LOSS = 1e-9


def log_inverse_mass(num_rounds: float, delta: float) -> float:
    """How small the mass left out of a round must be: num_rounds times it is below 1e-7 delta."""
    return math.log(num_rounds) - math.log(delta) + 17.0


def reach(one: Round, num_rounds: float, delta: float) -> float:
    """The loss up to which a round is followed; the little beyond it is put at infinite loss."""
    top = min(one.top, MAX_LOSS)
    grid = REACHES * top
    profile = np.asarray(one.upper(grid))
    enough = np.flatnonzero(profile <= float(profile[-1]) + 1e-6 * delta / num_rounds)
    return float(grid[enough[0]]) if enough.size else top


def _stack(items: Sequence[lattice.Atoms]) -> lattice.Atoms:
    return lattice.Atoms(*(host(np.stack([np.asarray(part) for part in parts])) for parts in zip(*items)))


def _first_below(values: np.ndarray, target: float) -> int:
    """Index of the first value from which on all are at most target; len(values) if there is none."""
    above = np.flatnonzero(~(values <= target))
    return int(above[-1]) + 1 if above.size else 0


def _epsilon_upper(composed: lattice.Composed, delta: float) -> tuple[float, float]:
    """Smallest epsilon of the grid's piecewise linear (in e^epsilon) delta that meets the target, and its error."""
    epsilon, value, error = (np.asarray(v) for v in composed)
    i = _first_below(value, delta)
    if i == len(value) or (i == 0 and epsilon[0] > 0):
        return math.inf, 0.0
    if i == 0:
        return 0.0, float(error[0])
    share = (delta - value[i]) / (value[i - 1] - value[i])
    back = math.log1p(share * math.expm1(epsilon[i - 1] - epsilon[i]))
    return max(float(epsilon[i] + back), 0.0), float(error[i])


def _epsilon_lower(composed: lattice.Composed, delta: float) -> float:
    """Largest grid epsilon at which even the lower delta exceeds the target; 0 if there is none."""
    epsilon, value, _ = (np.asarray(v) for v in composed)
    above = np.flatnonzero(value > delta)
    return max(float(epsilon[above[-1]]), 0.0) if above.size else 0.0


def bracket(rounds: Sequence[tuple[Round, int]], delta: float) -> Bracket:
    """Bounds the epsilon of all rounds composed (adaptively) at this delta.

    Args:
      rounds: (one round, how many times) pairs.
      delta: in [1e-300, 1].

    Returns:
      Upper end: the smaller of the tilted FFT composition and the RDP of the same pairs; directed rounds all as P||Q
      and all as Q||P, whichever is larger. Lower end: the composed concrete instances, the better of the two
      directions. Never NaN; infinity where no bound below the largest float64 loss was found.

    Raises:
      ArithmeticError: the ends crossed, which would be a defect of this package.
    """
    return _solve(rounds, delta, True)


def upper_end(rounds: Sequence[tuple[Round, int]], delta: float) -> Bracket:
    """The upper end of `bracket` alone, in half the time; `lower` is zero."""
    return _solve(rounds, delta, False)


def _solve(rounds: Sequence[tuple[Round, int]], delta: float, both: bool) -> Bracket:
    with jax.enable_x64(True):
        if delta >= 1.0:
            return Bracket(0.0, 0.0, "delta >= 1")
        rounds = [(one, count) for one, count in rounds if one.top > 0 and count > 0]
        if not rounds:
            return Bracket(0.0, 0.0, "nothing is released")
        # Losses too small for the kernels simply add up, as pure differential privacy does.
        tiny = math.fsum(one.top * count for one, count in rounds if one.top < _MIN_LOSS) * (1.0 + 1e-12)
        rounds = [(one, count) for one, count in rounds if one.top >= _MIN_LOSS]
        if not rounds:
            return Bracket(0.0, tiny, "largest loss")
        total = sum(count for _, count in rounds)
        found = single(rounds[0][0], delta, both) if total == 1 else _composed(rounds, delta, both)
        return dataclasses.replace(found, upper=found.upper + tiny)


class _Composer(Search):
    """Several rounds with their counts; kernels answer at once."""

    def __init__(self, rounds: Sequence[tuple[Round, int]], delta: float) -> None:
        self.rounds = [one for one, _ in rounds]
        self.total = float(sum(count for _, count in rounds))
        self.counts = host([count for _, count in rounds])
        self.delta = delta
        self.orders = 2 if any(isinstance(one, Directed) for one in self.rounds) else 1
        self.reaches = [reach(one, self.total, delta) for one in self.rounds]
        self.largest = max((one.top for one in self.rounds if math.isfinite(one.top)), default=math.inf)

    def uppers(self, losses: Sequence[np.ndarray]) -> list[lattice.Atoms]:
        """The rounds as P||Q and, unless no round is directed, as Q||P: all of them in the same order."""
        sides = []
        for one, at in zip(self.rounds, losses):
            forward, backward = upper_sides(one, at)
            plus = lattice.side_upper(at, forward)
            sides.append((plus, plus if backward is forward else lattice.side_upper(at, backward)))
        forward = _stack([lattice.join(at, plus, minus, True) for at, (plus, minus) in zip(losses, sides)])
        if self.orders == 1:
            return [forward]
        return [
            forward,
            _stack([lattice.join(at, minus, plus, True) for at, (plus, minus) in zip(losses, sides)]),
        ]

    @at_once
    def _upper_side(self, side: int, losses: Sequence[np.ndarray]) -> lattice.Atoms:
        return self.uppers(losses)[side]

    def lowers(self, instances: Sequence[Instance], losses: Sequence[np.ndarray]) -> list[lattice.Atoms]:
        """The concrete instances P||Q and, unless all are symmetric, Q||P."""
        losses = [at * SHRINK for at in losses]
        lines = [one.lower(0.5 * (at[1:] + at[:-1])) for one, at in zip(instances, losses)]
        sides = [
            (lattice.side_lower(at, *p), lattice.side_lower(at, *m)) for at, (p, m) in zip(losses, lines)
        ]
        forward = _stack([lattice.join(at, plus, minus, False) for at, (plus, minus) in zip(losses, sides)])
        if all(one.symmetric for one in instances):
            return [forward]
        return [
            forward,
            _stack([lattice.join(at, minus, plus, False) for at, (plus, minus) in zip(losses, sides)]),
        ]

    @at_once
    def at_delta(self, atoms: lattice.Atoms) -> lattice.Tilt:
        return lattice.chernoff_tilt(atoms, self.counts, host(math.log(self.delta)))

    @at_once
    def centred(self, atoms: lattice.Atoms, epsilon: float) -> lattice.Tilt:
        return lattice.saddle_tilt(atoms, self.counts, host(epsilon))

    @at_once
    def tame(self, atoms: lattice.Atoms) -> lattice.Tilt:
        return lattice.tame_tilt(atoms, self.counts)

    @at_once
    def scales(self, atoms: lattice.Atoms, tilt: lattice.Tilt) -> Scales:
        far = lattice.chernoff_tilt(atoms, self.counts, host(math.log(self.delta) - 16.0))
        plain = lattice.tilt_at(atoms, self.counts, host(0.0))
        events = [lattice.Atoms(*(part[i : i + 1] for part in atoms)) for i in range(len(self.rounds))]
        one, bare = (
            [lattice.tilt_at(event, host([1.0]), order) for event in events]
            for order in (tilt.order, plain.order)
        )
        return Scales(
            float(far.order),
            float(far.log_mgf),
            float(plain.variance),
            [float(each.mean) for each in one],
            [float(each.variance) for each in one],
            [float(each.variance) for each in bare],
        )

    @at_once
    def end(self, atoms: lattice.Atoms, grid: Grid, tilt: lattice.Tilt, upper: bool) -> End:
        here = lattice.tilt_at(atoms, self.counts, tilt.order)
        first = cast(Array, np.int64(grid.first))
        spacing = host(grid.spacing if upper else grid.spacing * SHRINK)
        composed = lattice.compose(atoms, grid.index, self.counts, spacing, here, first, grid.points, upper)
        epsilon, error = (
            _epsilon_upper(composed, self.delta) if upper else (_epsilon_lower(composed, self.delta), 0.0)
        )
        return End(epsilon, error, float(here.mean), float(here.variance))

    def upper(self) -> tuple[Bracket, Sequence[np.ndarray]]:
        """The upper end, the larger of both orders', and the knots it was found on."""
        coarse = self.coarse()
        orders = [self._upper(functools.partial(self._upper_side, i), coarse) for i in range(self.orders)]
        return max(orders, key=lambda found: found[0].upper)

    def _upper(self, build: Build, coarse: Sequence[np.ndarray]) -> tuple[Bracket, Sequence[np.ndarray]]:
        found = finish(self.search(build, coarse, math.inf, True))
        best = Bracket(0.0, found.epsilon, "PLD", numerical_error=found.error)
        renyi, order = finish(self.renyi(found.atoms))
        if renyi < best.upper:
            best = Bracket(0.0, renyi, "RDP", optimal_order=order)
        pure = float(np.dot(self.counts, [one.top for one in self.rounds]))
        pure *= 1.0 + 1e-12
        if pure < best.upper:
            best = Bracket(0.0, pure, "largest loss")
        return best, found.losses

    def lower(self, instances: Sequence[Instance], losses: Sequence[np.ndarray], upper: float) -> float:
        """The better of the composed instances, and of all rounds at their largest loss."""
        corners = self.lowers(instances, [reach * EVEN for reach in self.reaches])
        best = max(
            corner(np.asarray(atoms.masses), np.asarray(atoms.losses), np.asarray(self.counts), self.delta)
            for atoms in corners
        )
        for i in range(len(corners)):
            build = functools.partial(self._lower_side, instances, i)
            best = max(best, finish(self.search(build, losses, upper, False)).epsilon)
        return best

    @at_once
    def _lower_side(
        self, instances: Sequence[Instance], side: int, losses: Sequence[np.ndarray]
    ) -> lattice.Atoms:
        return self.lowers(instances, losses)[side]

    @at_once
    def renyi(self, atoms: lattice.Atoms) -> tuple[float, float]:
        """What may be lost at infinite loss is taken off delta first."""
        remaining = self.delta - float(self.counts @ np.asarray(atoms.infinite))
        if not remaining > 0:
            return math.inf, math.inf
        log_delta = host(math.log(remaining))
        best = lattice.chernoff_tilt(atoms, self.counts, log_delta)
        orders = float(best.order) * np.geomspace(0.25, 4.0, 65)
        moments = lattice.log_moments(atoms, self.counts, orders)
        epsilon = np.asarray(conversions.epsilon_from_log_moments(orders + 1.0, moments, log_delta))
        epsilon = epsilon + 64.0 * lattice.UNIT * self.total / orders  # rounding of a log moment, each round
        i = int(np.argmin(epsilon))
        return float(epsilon[i]), float(orders[i] + 1.0)


def _composed(rounds: Sequence[tuple[Round, int]], delta: float, both: bool) -> Bracket:
    composer = _Composer(rounds, delta)
    best, losses = composer.upper()
    if not both:
        return best
    # Rounds without an instance are left out, as an adversary may do.
    known = [(one.instances, count) for one, count in rounds if one.instances]
    for i in range(max((len(instances) for instances, _ in known), default=0)):
        instances = [each[min(i, len(each) - 1)] for each, _ in known]
        if [id(each.scale) for each in instances] == [id(one) for one, _ in rounds]:
            lower = composer.lower(instances, losses, best.upper)
        else:
            # The instances have a scale of their own.
            scaled = _Composer([(each.scale, count) for each, (_, count) in zip(instances, known)], delta)
            above, knots = scaled.upper()
            lower = scaled.lower(instances, knots, above.upper)
        if lower > best.lower:
            names = " and ".join(dict.fromkeys(each.name for each in instances))
            best = dataclasses.replace(best, lower=lower, lower_method=names)
    return ordered(best)
