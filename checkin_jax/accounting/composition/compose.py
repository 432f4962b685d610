"""Composition of units to a bracket for epsilon: upper ends by bounds, lower ends by witnesses."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import (
    Exact,
    Minimum,
    UnitBound,
    Witness,
    is_asymmetric,
    revealed,
)
from checkin_jax.accounting.composition import local_view, search
from checkin_jax.accounting.composition.bracket import Bracket, ordered, single
from checkin_jax.accounting.composition.search import (
    MOST_LOSSES,
    SHRINK,
    Found,
    Search,
    law_below,
    laws_above,
    laws_of_some,
    side_below,
)
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.composition.composed_contour import Composed
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.counts import chernoff

_MIN_LOSS = 1e-9
# Share of delta that may lie beyond the truncation losses of all units if these then fall to the other share: bounds
# stop being evaluated at e^-12 delta.
_RARE, _FAR_AWAY = 1e-3, 0.05
# Larger shares, which are tried besides if the losses then fall so far: rare losses too large for a grid of all others.
_TRIED_BESIDES = (0.02, 0.1, 0.5, 0.9)
# A bound is not named if its removal changes epsilon by RDP by at most this share.
_UNMOVED = 1e-6
# If the lower end is below this share of the upper one, the number of large losses is tried, too, at _PLACES losses and
# twice _NUMBERS numbers.
_NEAR_ENOUGH, _PLACES, _NUMBERS = 0.8, 64, 24


def truncation_loss(one: UnitBound, num_units: float, delta: float) -> float:
    """Loss up to which a unit is followed; the remaining mass counts at infinite loss.

    The last value of one bound, followed to where another one is smaller, would be a rare and very large loss.
    """
    far = search.truncation_loss(one.upper, one.largest_loss, search.ENOUGH * delta / num_units)
    return _much_nearer(one, far, num_units, delta, (_RARE,)) if isinstance(one, Minimum) else far


def _much_nearer(
    one: UnitBound, far: float, num_units: float, delta: float, shares: Sequence[float] = _TRIED_BESIDES
) -> float:
    """The first truncation loss far below `far`, with at most one of these shares of delta beyond, or `far`."""
    for share in shares:
        nearer = search.truncation_loss(one.upper, one.largest_loss, share * delta / num_units)
        if nearer < _FAR_AWAY * far:
            return nearer
    return far


def _with(atoms: pld.Atoms, event: int, law: pld.Atoms) -> pld.Atoms:
    parts = [np.array(part) for part in atoms]
    for part, new in zip(parts, law):
        part[event] = np.asarray(new)
    return pld.Atoms(*map(host, parts))


def _stack(items: Sequence[pld.Atoms]) -> pld.Atoms:
    """The laws side by side, with atoms of mass zero up to the largest number."""
    size = max(law.losses.size for law in items)
    padded = [[np.pad(part, (0, size - part.size)) for part in (law.losses, law.masses)] for law in items]
    losses, masses = map(np.stack, zip(*padded))
    return pld.Atoms(host(losses), host(masses), host([law.infinite for law in items]))


def merged(units: Sequence[tuple[UnitBound, int]]) -> tuple[list[tuple[UnitBound, int]], list[int]]:
    """Units with their numbers, equal ones joined, and each given unit's place among them."""
    kinds, counts, places = list[UnitBound](), list[int](), list[int]()
    for one, count in units:
        if one not in kinds:
            kinds.append(one)
            counts.append(0)
        places.append(kinds.index(one))
        counts[places[-1]] += count
    return list(zip(kinds, counts)), places


def bracket(
    units: Sequence[tuple[UnitBound, int]], delta: float, local_caps: Sequence[tuple[Exact, int]] = ()
) -> Bracket:
    """Bracket of epsilon of the (adaptive) composition of all units at this delta.

    Args:
      units: (unit, number of units) pairs.
      delta: in [1e-300, 1].
      local_caps: the local-view bounds on the same units, whose upper end caps that of the units; empty if there are
        none.

    Returns:
      Upper end: the smaller of the composition's and the RDP's of the same pairs, rounded up. Asymmetric units
      are composed all as P||Q and all as Q||P; the larger value counts. The local view is exact if the number of
      messages has few values. Lower end: the composed witnesses, in the better direction, rounded down. Never NaN;
      infinite if no bound below the largest float64 loss was found.

    Raises:
      ArithmeticError: the ends cross, a defect of this package.
    """
    return capped(_solve(units, delta, True), local_caps, delta)


def upper_end(
    units: Sequence[tuple[UnitBound, int]], delta: float, local_caps: Sequence[tuple[Exact, int]] = ()
) -> Bracket:
    """`bracket` with a lower end of zero, in half the time."""
    return capped(_solve(units, delta, False), local_caps, delta)


def capped(found: Bracket, local_caps: Sequence[tuple[Exact, int]], delta: float) -> Bracket:
    """The bracket, with the upper end of the local-view bounds if that is smaller.

    Raises:
      ArithmeticError: that end is below the lower one, a defect of this package.
    """
    if not local_caps or found.upper == 0.0:
        return found
    if any(local_view.surely_above(one, count, found.upper, delta) for one, count in local_caps):
        return found
    alone = _solve(local_caps, delta, False)
    if not alone.upper < found.upper:
        return found
    name = " and ".join(dict.fromkeys(one.name for one, _ in local_caps))
    found = dataclasses.replace(alone, lower=found.lower, lower_method=found.lower_method, bound=name)
    return ordered(found)


def _revealing(units: Sequence[tuple[UnitBound, int]], delta: float) -> str:
    """Names of witnesses that reveal the record with probability above delta: epsilon is infinite. Empty without."""
    best = [(max(one.witnesses, key=revealed), count) for one, count in units if one.witnesses]
    best = [(witness, count) for witness, count in best if revealed(witness) > 0.0]
    unseen = math.fsum(count * math.log1p(-revealed(witness)) for witness, count in best)
    if -math.expm1(unseen) * (1.0 - ROUNDING) <= delta:
        return ""
    return " and ".join(dict.fromkeys(witness.name for witness, _ in best))


def _below_grid_bound(witness: Witness) -> bool:
    """True if the witness's `grid_bound` is a proven upper bound on it."""
    return getattr(witness, "below_grid_bound", False)


def _finite_ones(one: UnitBound) -> tuple[Witness, ...]:
    """Witnesses of finite losses, which grids follow: all but those that reveal the record."""
    return tuple(each for each in one.witnesses if revealed(each) == 0.0)


def _solve(units: Sequence[tuple[UnitBound, int]], delta: float, both: bool) -> Bracket:
    """The bracket without caps; a witness that reveals the record is the lower end, infinity, before all others."""
    name = _revealing(units, delta) if both else ""
    with float64():
        found = _bracketed(units, delta, both and not name)
    return ordered(dataclasses.replace(found, lower=math.inf, lower_method=name)) if name else found


def _bracketed(units: Sequence[tuple[UnitBound, int]], delta: float, both: bool) -> Bracket:
    if delta >= 1.0:
        return Bracket(0.0, 0.0, "delta >= 1")
    units = [(one, count) for one, count in units if one.largest_loss > 0 and count > 0]
    if not units:
        return Bracket(0.0, 0.0, "nothing is released")
    # Units with losses too small for the kernels: their largest losses add up (pure differential privacy).
    tiny = math.fsum(one.largest_loss * count for one, count in units if one.largest_loss < _MIN_LOSS) * (
        1.0 + 1e-12
    )
    units = [(one, count) for one, count in units if one.largest_loss >= _MIN_LOSS]
    if not units:
        return Bracket(0.0, tiny, "largest loss")
    total = sum(count for _, count in units)
    if total == 1:
        found = single(units[0][0], delta, both)
        if not math.isfinite(found.upper):
            # A local bound has a closed form beyond the largest loss that is followed.
            found = _counted(units, delta, both) or found
    else:
        found = _counted(units, delta, both) or _composed(units, delta, both)
    return dataclasses.replace(found, upper=found.upper + tiny)


def _counted(units: Sequence[tuple[UnitBound, int]], delta: float, both: bool) -> Bracket | None:
    """The exact bracket of equal units in the local view; None for other units."""
    first = units[0][0]
    if any(one != first for one, _ in units):
        return None
    return local_view.bracket(first, sum(count for _, count in units), delta, both)


class _Composer(Search):
    """Search for the ends of several units with their counts."""

    def __init__(self, units: Sequence[tuple[UnitBound, int]], delta: float) -> None:
        self.units = [one for one, _ in units]
        self.counts = host([count for _, count in units])
        self.delta = delta
        self.orders = 2 if any(map(is_asymmetric, self.units)) else 1
        self.sharp = any(getattr(one, "sharp", False) for one in self.units)
        chi_squares = [getattr(one, "chi_square", math.inf) for one in self.units]
        self.chi_squares = host(chi_squares) if any(map(math.isfinite, chi_squares)) else None
        self.largest_losses = [one.largest_loss for one in self.units]
        self.truncation_losses = [truncation_loss(one, self.total, delta) for one in self.units]

    def uppers(self, losses: Sequence[np.ndarray]) -> list[pld.Atoms]:
        """Atoms of all units as P||Q and, if one is asymmetric, as Q||P."""
        laws = [laws_above(one, at) for one, at in zip(self.units, losses)]
        # A symmetric unit has one law for both orders.
        return [_stack([law[min(i, len(law) - 1)] for law in laws]) for i in range(self.orders)]

    def _upper_side(self, side: int, losses: Sequence[np.ndarray]) -> pld.Atoms:
        return self.uppers(losses)[side]

    def lowers(self, witnesses: Sequence[Witness], losses: Sequence[np.ndarray]) -> list[pld.Atoms]:
        """Atoms of the witnesses as P||Q and, unless all are symmetric, as Q||P, by events between the losses."""
        lines = [one.lower(0.5 * (at[1:] + at[:-1])) for one, at in zip(witnesses, losses)]
        sides = [[side_below(*side) for side in both] for both in lines]
        orders = [0] if all(one.symmetric for one in witnesses) else [0, 1]
        return [_stack([law_below(*both[:: 1 - 2 * i]) for both in sides]) for i in orders]

    def lowers_on_grid(self, witnesses: Sequence[Witness], losses: Sequence[np.ndarray]) -> list[pld.Atoms]:
        """`lowers` whose atoms are the losses, which certificates need."""
        losses = [at * SHRINK for at in losses]
        lines = [one.lower(0.5 * (at[1:] + at[:-1])) for one, at in zip(witnesses, losses)]
        sides = [[pld.side_lower(at, *side) for side in both] for at, both in zip(losses, lines)]
        orders = [0] if all(one.symmetric for one in witnesses) else [0, 1]
        return [
            _stack([pld.join(at, *both[:: 1 - 2 * i], False) for at, both in zip(losses, sides)])
            for i in orders
        ]

    def upper(self) -> tuple[Bracket, Sequence[np.ndarray]]:
        """The upper end and its knots, the smallest of one truncation or three; each is a bound."""
        far = self.truncation_losses
        near = [_much_nearer(one, loss, self.total, self.delta) for one, loss in zip(self.units, far)]
        between = [math.sqrt(first * last) for first, last in zip(near, far)]
        ends = [self._truncated(losses) for losses in ([far] if near == far else [far, between, near])]
        return min(ends, key=lambda each: each[0].upper)

    def _truncated(self, truncation_losses: Sequence[float]) -> tuple[Bracket, Sequence[np.ndarray]]:
        """The upper end, the larger of the two orders', and its knots."""
        followed = copy.copy(self)
        followed.truncation_losses = truncation_losses
        coarse = followed.coarse()
        orders = [followed.above(functools.partial(self._upper_side, i), coarse) for i in range(self.orders)]
        side, (best, found) = max(enumerate(orders), key=lambda each: each[1][0].upper)
        return dataclasses.replace(best, names=self._names(best, found, side)), found.losses

    def _names(self, best: Bracket, found: Found, side: int) -> tuple[str, ...]:
        """For each unit, the bounds without which the upper end would be larger, judged by RDP of the same laws."""
        names = []
        for i, (one, losses) in enumerate(zip(self.units, found.losses)):
            if not isinstance(one, Minimum):
                names.append(one.name)
                continue
            kept = one.smallest(losses)
            if best.method == "largest loss":
                kept = [int(np.argmin([each.largest_loss for each in one.bounds]))]
            elif len(kept) > 1 and math.isfinite(best.upper):
                most = self._renyi(found.atoms)[0] * (1.0 + _UNMOVED)
                for each in reversed(kept):
                    rest = [j for j in kept if j != each]
                    if not rest:
                        break
                    laws = laws_of_some(one, rest, losses)
                    without = _with(found.atoms, i, laws[min(side, len(laws) - 1)])
                    if self._renyi(without)[0] <= most:
                        kept = rest
            names.append(one.named(kept, losses))
        return tuple(names)

    def lower(self, witnesses: Sequence[Witness], losses: Sequence[np.ndarray], upper: float) -> float:
        """The lower end: by the sum of the units' losses, or by the number of large ones."""
        found = self.of(witnesses)
        both = found.below(functools.partial(found.lowers, witnesses), losses)
        best = max(each.epsilon for each in both)
        return best if best > _NEAR_ENOUGH * upper else max(best, self._by_rare_losses(witnesses))

    def _by_rare_losses(self, witnesses: Sequence[Witness]) -> float:
        """Lower end by the number of units whose loss is large: for rare losses, for which no grid is fine enough.

        P(A) - Q(A) of each unit is bounded from below, Q(A) from above by q: the event A, or a coin that raises Q to q,
        has P - Q of at least the bound times 1 - q.
        """
        places = np.geomspace(1e-6, 1.0, _PLACES)
        lines = [
            one.lower(truncation_loss * places)
            for one, truncation_loss in zip(witnesses, self.truncation_losses)
        ]
        counts, best = np.asarray(self.counts), 0.0
        for side in (0, 1):
            apart, mass = (np.stack([np.asarray(each[side][i]) for each in lines]) for i in (0, 1))
            mass = np.minimum(mass * (1.0 + ROUNDING), 1.0)
            shown = np.minimum(apart * (1.0 - ROUNDING) * (1.0 - mass) + mass, 1.0)
            with np.errstate(divide="ignore"):
                first, second = (
                    np.log(-np.expm1(np.sum(counts[:, None] * np.log1p(-part), axis=0)))
                    for part in (shown, mass)
                )
            ends = [_told(first - 1e-12, second, self.delta)]
            # Or more of one kind.
            ends += [_so_many(*kind, self.delta) for kind in zip(counts, shown, mass)]
            best = max(best, *ends)
        return best * (1.0 - 1e-12) - 1e-12

    def of(self, witnesses: Sequence[Witness]) -> _Composer:
        """A copy for these witnesses, with the losses of their outcomes as knots if these are few."""
        found = copy.copy(self)
        loss_support = [getattr(one, "loss_support", np.empty(0)) for one in witnesses]
        if all(0 < len(each) <= MOST_LOSSES for each in loss_support):
            found.loss_support = loss_support
        return found


def _told(log_first: np.ndarray, log_second: np.ndarray, delta: float) -> float:
    """Largest lower end log((P - delta) / Q) of events of these log probabilities; 0 where none exceeds delta."""
    log_delta = math.log(delta)
    known = (log_first > log_delta) & np.isfinite(log_second)
    apart = log_delta - log_first[known]
    return float(np.max(log_first[known] + np.log(-np.expm1(apart)) - log_second[known], initial=0.0))


def _so_many(count: float, shown: np.ndarray, mass: np.ndarray, delta: float) -> float:
    """Lower end by the events that at least so many of `count` units' losses are large, with P and Q of one unit."""
    inside = (mass > 0.0) & (shown < 1.0)
    if not inside.any():
        return 0.0
    mean = count * shown[inside, None]
    deviations = np.linspace(0.0, math.sqrt(-2.0 * math.log(delta)) + 2.0, _NUMBERS)
    least = np.ceil(mean + np.sqrt(mean) * deviations)
    few = np.broadcast_to(np.arange(1.0, _NUMBERS), (mean.size, _NUMBERS - 1))
    least = np.clip(np.concatenate([few, least], axis=1), 1.0, count)
    log_first, _ = chernoff.log_at_least(least, count, shown[inside, None])
    _, log_second = chernoff.log_at_least(least, count, mass[inside, None])
    return _told(log_first, log_second, delta)


def knots(units: Sequence[tuple[UnitBound, int]], delta: float) -> tuple[Bracket, Sequence[np.ndarray]]:
    """The upper end that the profiles of composed units prove by themselves, and the knots of each unit's profile.

    Call inside `float64()`, with two units or more and no largest loss below 1e-9.
    """
    composer = _Composer(units, delta)
    composer.chi_squares = None
    return composer.upper()


def knots_below(units: Sequence[tuple[Witness, int]], delta: float) -> tuple[Found, bool]:
    """The lower end of composed witnesses, with its knots and laws, and whether these are of Q||P.

    Call inside `float64()`. An end of zero has no knots.
    """
    witnesses = [each for each, _ in units]
    composer = _Composer([(each.grid_bound, count) for each, count in units], delta)
    _, losses = composer.upper()
    # Kinks between knots cost more than elsewhere.
    composer.sharp = True
    build = functools.partial(composer.lowers_on_grid, witnesses)
    found = composer.below(build, losses)
    best = max(found, key=lambda each: each.epsilon)
    return best, best is not found[0]


class Directions(NamedTuple):
    """Compositions of P||Q and of Q||P, about a few orders each."""

    forward: list[Composed]
    backward: list[Composed]


def laws(
    units: Sequence[tuple[UnitBound, int]], delta: float, both: bool
) -> tuple[Directions, list[Directions]]:
    """Compositions of two units or more for profiles down to about this delta: from above, and of witnesses from below.

    Call inside `float64()`.
    """
    units, _ = merged(units)
    composer = _Composer(units, delta)
    sides = [composer.laws(functools.partial(composer._upper_side, i), True) for i in range(composer.orders)]
    below = []
    known = [(some, count) for one, count in units if both and (some := _finite_ones(one))]
    for i in range(max((len(witnesses) for witnesses, _ in known), default=0)):
        witnesses = [each[min(i, len(each) - 1)] for each, _ in known]
        scaled = _Composer(
            [(each.grid_bound, count) for each, (_, count) in zip(witnesses, known)], delta
        ).of(witnesses)

        def side(losses: Sequence[np.ndarray], which: int, of=witnesses, by=scaled) -> pld.Atoms:
            return by.lowers(of, losses)[which]

        count = 1 if all(each.symmetric for each in witnesses) else 2
        found = [scaled.laws(functools.partial(side, which=which), False) for which in range(count)]
        below.append(Directions(found[0], found[-1]))
    return Directions(sides[0], sides[-1]), below


def _composed(units: Sequence[tuple[UnitBound, int]], delta: float, both: bool) -> Bracket:
    kinds, places = merged(units)
    found = _composed_kinds(kinds, delta, both)
    return dataclasses.replace(found, names=tuple(found.names[i] for i in places)) if found.names else found


def _composed_kinds(units: Sequence[tuple[UnitBound, int]], delta: float, both: bool) -> Bracket:
    composer = _Composer(units, delta)
    best, losses = composer.upper()
    if not both:
        return best
    # Units without a witness are dropped, as an adversary may do.
    known = [(some, count) for one, count in units if (some := _finite_ones(one))]
    tried: list[tuple[float, _Composer, list[Witness], Sequence[np.ndarray]]] = []
    scaled: dict[tuple[int, ...], tuple[_Composer, Bracket, Sequence[np.ndarray]]] = {}
    for i in range(max((len(witnesses) for witnesses, _ in known), default=0)):
        witnesses = [each[min(i, len(each) - 1)] for each, _ in known]
        if len(known) == len(units) and all(
            map(_same_bound, (each.grid_bound for each in witnesses), composer.units)
        ):
            tried.append((best.upper, composer, witnesses, losses))
        else:
            # The witnesses have grid bounds of their own, which other witnesses may share.
            grid_bounds = [each.grid_bound for each in witnesses]
            place = tuple(map(id, grid_bounds))
            if place not in scaled:
                by = _Composer([(each, count) for each, (_, count) in zip(grid_bounds, known)], delta)
                scaled[place] = by, *by.upper()
            by, above, knots = scaled[place]
            tried.append((above.upper, by, witnesses, knots))
    for upper, by, witnesses, knots in sorted(tried, key=lambda each: -each[0]):
        # Witnesses that cannot exceed the best lower end, by proven upper bounds on them, are skipped.
        if upper <= best.lower and all(map(_below_grid_bound, witnesses)):
            continue
        lower = by.lower(witnesses, knots, upper)
        if lower > best.lower:
            names = " and ".join(dict.fromkeys(each.name for each in witnesses))
            best = dataclasses.replace(best, lower=lower, lower_method=names)
    return ordered(best)


def _same_bound(grid_bound: UnitBound, one: UnitBound) -> bool:
    """True if both are the same bound, apart from their witnesses: a witness's grid bound has none."""
    if isinstance(grid_bound, Minimum) and isinstance(one, Minimum):
        return list(map(id, grid_bound.bounds)) == list(map(id, one.bounds))
    return grid_bound is one
