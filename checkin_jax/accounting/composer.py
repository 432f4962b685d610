"""From rounds to a bracket: chooses grids and orders on the host, leaves the numbers to the kernels."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import cast

import jax
import numpy as np
from jax import Array

from checkin_jax.accounting.brackets import Bracket, ordered
from checkin_jax.accounting.rounds import MAX_LOSS, Directed, Instance, Round, upper_sides
from checkin_jax.accounting.single import single
from checkin_jax.kernels import conversions, host, lattice
from checkin_jax.kernels.check_in import ROUNDING

_COARSE_KNOTS = 384
_MIN_LOSS = 1e-9
_POINTS = tuple(2**k for k in (13, 15, 17, 19, 21))
# Grid points per standard deviation of one round: discretisation adds (1/15)^2 / 6 to its variance.
_POINTS_PER_ROUND_SD = 15.0
_WINDOW_SDS = 9.0
_PASSES = 4
# The lower bound's grid is finer by this: an atom at the largest loss then stays above its knot, whatever the
# rounding of its two masses.
_SHRINK = 1.0 - 4.0 * ROUNDING
_TAIL_KNOTS = 256
_KNOT_LADDER = (16, 64, 512, 1024, 4096)


def log_inverse_mass(num_rounds: float, delta: float) -> float:
    """How small the mass left out of a round must be: num_rounds times it is below 1e-7 delta."""
    return math.log(num_rounds) - math.log(delta) + 17.0


def reach(one: Round, num_rounds: float, delta: float) -> float:
    """The loss up to which a round is followed; the little beyond it is put at infinite loss."""
    top = min(one.top, MAX_LOSS)
    grid = np.geomspace(1e-12, 1.0, 512) * top
    profile = np.asarray(one.upper(grid))
    enough = np.flatnonzero(profile <= float(profile[-1]) + 1e-6 * delta / num_rounds)
    return float(grid[enough[0]]) if enough.size else top


def _stack(items: Sequence[lattice.Atoms]) -> lattice.Atoms:
    return lattice.Atoms(*(host(np.stack([np.asarray(part) for part in parts])) for parts in zip(*items)))


def _knots(spacing: float, uniform: int, reach: float, size: int) -> np.ndarray:
    """size + 1 whole multiples of the spacing: every one up to `uniform`, then geometrically on to `reach`."""
    last = math.ceil(reach / spacing - 1e-9)
    if last <= size:
        return np.arange(size + 1)
    uniform = min(uniform, size - 1)
    growth = np.rint(np.geomspace(uniform, last, size - uniform + 1))[1:]
    # Strictly increasing even where the geometric steps are below one.
    tail = np.maximum(growth, uniform + 1.0 + np.arange(growth.size))
    return np.concatenate([np.arange(uniform + 1), tail]).astype(np.int64)


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


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Knots of every event on one spacing, their signed indices, and the FFT's window."""

    spacing: float
    losses: list[np.ndarray]
    index: np.ndarray
    first: int
    points: int


@dataclasses.dataclass(frozen=True)
class _Found:
    """An end of the bracket, the numerical part of its delta, and the knots and atoms it was found on."""

    epsilon: float
    error: float
    losses: Sequence[np.ndarray]
    atoms: lattice.Atoms


class _Composer:
    """Several rounds with their counts, and the grids on which their composition is evaluated."""

    def __init__(self, rounds: Sequence[tuple[Round, int]], delta: float) -> None:
        self.rounds = [one for one, _ in rounds]
        self.total = float(sum(count for _, count in rounds))
        self.counts = host([count for _, count in rounds])
        self.delta = delta
        self.orders = 2 if any(isinstance(one, Directed) for one in self.rounds) else 1
        self.reaches = [reach(one, self.total, delta) for one in self.rounds]

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

    def _upper_side(self, side: int, losses: Sequence[np.ndarray]) -> lattice.Atoms:
        return self.uppers(losses)[side]

    def lowers(self, instances: Sequence[Instance], losses: Sequence[np.ndarray]) -> list[lattice.Atoms]:
        """The concrete instances P||Q and, unless all are symmetric, Q||P."""
        losses = [at * _SHRINK for at in losses]
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

    def coarse(self) -> list[np.ndarray]:
        return [np.append(0.0, reach * np.geomspace(1e-12, 1.0, _COARSE_KNOTS)) for reach in self.reaches]

    def grid(self, atoms: lattice.Atoms, tilt: lattice.Tilt, upper: bool) -> _Grid | None:
        """A window up to where Chernoff leaves 1e-7 delta, resolved on the scale of a single round.

        The scale is that of the law itself or of the tilted one, whichever is finer: heavy tails widen the tilted
        law, bounded losses narrow it. None where no grid can serve: a law without spread, or steps as large as the
        largest float64 loss.
        """
        far = lattice.chernoff_tilt(atoms, self.counts, host(math.log(self.delta) - 16.0))
        high = (float(far.log_mgf) - math.log(self.delta) + 16.0) / float(far.order)
        plain = lattice.tilt_at(atoms, self.counts, host(0.0))
        plain_sd, sd = math.sqrt(float(plain.variance)), math.sqrt(float(tilt.variance))
        # Below -high there is less than above high: P[L <= -x] is at most e^-x Q[L <= -x].
        low = float(tilt.mean) - _WINDOW_SDS * sd
        if sd < 1.5 * plain_sd:
            high = max(high, float(tilt.mean) + (4.0 if upper else _WINDOW_SDS) * sd)
        low = max(low, -high)
        scale = max(min(sd, plain_sd), 0.05 * plain_sd)
        wanted = (high - low) / max(scale, 1e-300) * _POINTS_PER_ROUND_SD * math.sqrt(self.total)
        if not (scale > 0 and 0 < wanted < math.inf):
            return None
        # Few sizes, since each compiles once; a longer window than wanted costs little.
        points = next((p for p in _POINTS if p >= wanted + 2), _POINTS[-1])
        spacing = (high - low) / min(wanted, points - 2)
        if not spacing > 1e-13 * max(self.reaches):
            return None
        largest = max((one.top for one in self.rounds if math.isfinite(one.top)), default=math.inf)
        if math.isfinite(largest):
            # An atom at the largest loss then sits on the grid; rounded so that the window does not shrink.
            spacing = largest / max(math.floor(largest / spacing), 1)
        uniform = 0
        for i in range(len(self.rounds)):
            event = lattice.Atoms(*(part[i : i + 1] for part in atoms))
            one, bare = (lattice.tilt_at(event, host([1.0]), t.order) for t in (tilt, plain))
            width = math.sqrt(min(float(one.variance), 2.0 * float(bare.variance)))
            uniform = max(uniform, math.ceil((max(float(one.mean), 0.0) + 9.0 * width) / spacing) + 8)
        # Never more knots than there are multiples below the largest reach.
        knots = min(uniform + _TAIL_KNOTS, math.ceil(max(self.reaches) / spacing))
        size = next((s for s in _KNOT_LADDER if s >= knots), _KNOT_LADDER[-1])
        if size * spacing > MAX_LOSS + 10.0:
            return None
        uniform = max(min(uniform, size - _TAIL_KNOTS), 1)
        index = np.stack([_knots(spacing, uniform, reach, size) for reach in self.reaches])
        both = np.concatenate([-index[:, :0:-1], index], axis=1)
        return _Grid(spacing, [row * spacing for row in index], both, math.floor(low / spacing), points)

    def compose(self, atoms: lattice.Atoms, grid: _Grid, tilt: lattice.Tilt, upper: bool) -> lattice.Composed:
        first = cast(Array, np.int64(grid.first))
        spacing = host(grid.spacing if upper else grid.spacing * _SHRINK)
        return lattice.compose(atoms, grid.index, self.counts, spacing, tilt, first, grid.points, upper)

    def search(
        self,
        build: Callable[[Sequence[np.ndarray]], lattice.Atoms],
        losses: Sequence[np.ndarray],
        guess: float,
        upper: bool,
    ) -> _Found:
        """Composes what `build` makes of knots, on grids and tilts that close in on the answer, at most `guess`.

        The best tilt is centred at the answer; but where rare large losses rule the law so tilted, an order below
        that serves, and only if it does not is the full tilt tried. Every pass gives a valid bound; the best
        is kept.
        """
        atoms = build(losses)
        start = lattice.chernoff_tilt(atoms, self.counts, host(math.log(self.delta)))
        if guess < float(start.mean):
            start = lattice.saddle_tilt(atoms, self.counts, host(guess))
        best = _Found(math.inf if upper else 0.0, 0.0, losses, atoms)
        for tame in (True, False):
            tilt, capped = start, False
            for _ in range(_PASSES):
                if tame:
                    limit = lattice.tame_tilt(atoms, self.counts)
                    settled = capped and float(limit.order) > 0.97 * float(tilt.order)
                    capped = float(tilt.order) > float(limit.order)
                    tilt = limit if capped else tilt
                    if settled:
                        break
                grid = self.grid(atoms, tilt, upper)
                if grid is None:
                    break
                atoms = build(grid.losses)
                here = lattice.tilt_at(atoms, self.counts, tilt.order)
                composed = self.compose(atoms, grid, here, upper)
                ends = (
                    _epsilon_upper(composed, self.delta)
                    if upper
                    else (_epsilon_lower(composed, self.delta), 0.0)
                )
                found = _Found(*ends, grid.losses, atoms)
                if (found.epsilon < best.epsilon) if upper else (found.epsilon >= best.epsilon):
                    best = found
                if capped:
                    continue
                sd, asked = math.sqrt(float(here.variance)), math.sqrt(float(tilt.variance))
                known = 0 < found.epsilon < math.inf
                if known and abs(found.epsilon - float(here.mean)) <= 3.0 * sd and sd > 0.7 * asked:
                    break
                target = found.epsilon if known else float(here.mean)
                tilt = lattice.saddle_tilt(atoms, self.counts, host(max(target, grid.spacing)))
            if not capped or (best.epsilon <= self.renyi(atoms)[0] if upper else best.epsilon > 0):
                break
        return best

    def upper(self) -> tuple[Bracket, Sequence[np.ndarray]]:
        """The upper end, the larger of both orders', and the knots it was found on."""
        coarse = self.coarse()
        orders = [self._upper(functools.partial(self._upper_side, i), coarse) for i in range(self.orders)]
        return max(orders, key=lambda found: found[0].upper)

    def _upper(
        self, build: Callable[[Sequence[np.ndarray]], lattice.Atoms], coarse: Sequence[np.ndarray]
    ) -> tuple[Bracket, Sequence[np.ndarray]]:
        found = self.search(build, coarse, math.inf, True)
        best = Bracket(0.0, found.epsilon, "PLD", numerical_error=found.error)
        renyi, order = self.renyi(found.atoms)
        if renyi < best.upper:
            best = Bracket(0.0, renyi, "RDP", optimal_order=order)
        pure = float(np.dot(self.counts, [one.top for one in self.rounds]))
        pure *= 1.0 + 1e-12
        if pure < best.upper:
            best = Bracket(0.0, pure, "largest loss")
        return best, found.losses

    def lower(self, instances: Sequence[Instance], losses: Sequence[np.ndarray], upper: float) -> float:
        """The better of the composed instances, and of all rounds at their largest loss."""
        even = [reach * np.linspace(0.0, 1.0, 65) for reach in self.reaches]
        corners = self.lowers(instances, even)
        best = max(self.corner(atoms) for atoms in corners)
        for i in range(len(corners)):
            build = functools.partial(self._lower_side, instances, i)
            best = max(best, self.search(build, losses, upper, False).epsilon)
        return best

    def _lower_side(
        self, instances: Sequence[Instance], side: int, losses: Sequence[np.ndarray]
    ) -> lattice.Atoms:
        return self.lowers(instances, losses)[side]

    def corner(self, atoms: lattice.Atoms) -> float:
        """epsilon of the one outcome in which every round is at its last loss: log((P - delta) / Q)."""
        masses, losses, counts = np.asarray(atoms.masses), np.asarray(atoms.losses), self.counts
        last = [int(np.flatnonzero(row > 0)[-1]) for row in masses]
        pick = np.arange(len(last)), last
        log_p = float(counts @ np.log(masses[pick]))
        if log_p <= math.log(self.delta):
            return 0.0
        # Rounding of K terms of a sum of this size.
        slack = 1e-12 * (abs(log_p) + float(counts @ np.abs(losses[pick])))
        value = float(counts @ losses[pick]) + math.log1p(-math.exp(math.log(self.delta) - log_p)) - slack
        return max(value, 0.0)

    def renyi(self, atoms: lattice.Atoms) -> tuple[float, float]:
        """(epsilon, order) by RDP of the same pairs; what may be lost at infinite loss is taken off delta first."""
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
