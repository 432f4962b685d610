"""Step sets: the laws of one message's likelihood ratios over another record, for all records of a mechanism.

z and z' are the likelihood ratios of a message at the target's two records over the record y of another client. At c =
e^loss >= 1 a step is d = z - c z' + c - 1, which has mean zero under y (docs/theory_mechanisms.md, section 6). A step
set holds laws such that every step of the mechanism, for every y and every ordered pair of the target's records, is
below a mixture of them in convex order. The laws are given by their stop-loss transforms.

Laplace noise on an interval: records on a grid, and a proven remainder for all records between. The density of a record
between two neighbouring records of the grid, at distance eta, is a mixture of their densities up to a remainder of mass
at most 1 - 1/cosh(eta/2) [docs/evaluation.md]. So the stop-loss transform of every step is below a mixture of the
transforms of triples of grid records, plus remainders. The transforms of triples are sums of exponentials in closed
form.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

# Sizes of the common places of a step set; laws with more places are spread (in convex order) onto the largest size.
_KNOTS = (16, 32)
# Relative error of a place: expm1, conversion, leaving dummies out, a product, a difference, and the division by
# expm1(epsilon0).
_ROUNDING = 16.0 * 2.0**-53
# Places closer than this share of their span count as one place.
_TWINS = 1e-9


class StepSet(abc.ABC):
    """Laws that together dominate all steps of a mechanism in convex order."""

    @abc.abstractmethod
    def knots(self, above: np.ndarray) -> np.ndarray:
        """Places at c - 1 = above [losses], increasing, zero among them; [losses, knots].

        The first is below all steps and the last is above all steps. Repetitions of the last place are padding.
        """

    @abc.abstractmethod
    def transforms(self, above: np.ndarray, knots: np.ndarray) -> np.ndarray:
        """Upper bounds on E(d - k)_+ at k >= 0, and on E(k - d)_+ at k < 0; [losses, laws, knots]."""

    @abc.abstractmethod
    def without(self, share: float) -> StepSet:
        """Steps of what is left of the messages without the dummies, which are `share` of them, a number below 1/p.

        A dummy is a message of the target's first or second record, equally likely [docs/theory_shuffle.md].
        """


@dataclasses.dataclass(frozen=True, eq=False)
class FiniteSteps(StepSet):
    """Step laws with finitely many places.

    Attributes:
      apart: z - z'. other: z' - 1. masses: probabilities under y. All [laws, atoms], relative errors of two roundings.
    """

    apart: np.ndarray
    other: np.ndarray
    masses: np.ndarray

    def _steps(self, above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places and bounds on their errors, [losses, laws, atoms]."""
        moved = above[:, None, None] * self.other
        return self.apart - moved, _ROUNDING * (np.abs(self.apart) + np.abs(moved))

    def knots(self, above: np.ndarray) -> np.ndarray:
        """Places of the laws: all of them if they are few, else the denser the more the transforms bend."""
        steps, errors = self._steps(above)
        with_mass = self.masses > 0.0
        weights = self.masses[with_mass]
        found = [
            _spread(row[with_mass], weights, float(error.max()))
            for row, error in zip(steps, errors, strict=True)
        ]
        size = next(size for size in _KNOTS if size >= max(row.size for row in found))
        return np.stack([np.pad(row, (0, size - row.size), mode="edge") for row in found])

    def transforms(self, above: np.ndarray, knots: np.ndarray) -> np.ndarray:
        steps, errors = self._steps(above)
        found = np.zeros((above.size, len(self.masses), knots.shape[1]))
        side = np.where(knots < 0.0, -1.0, 1.0)[:, None, :]
        for atom in range(self.masses.shape[1]):
            beyond = side * (steps[:, :, atom, None] - knots[:, None, :])
            error = errors[:, :, atom, None]
            part = np.where(beyond > -error, np.maximum(beyond, 0.0) + error, 0.0)
            found += self.masses[None, :, atom, None] * part
        return found

    def without(self, share: float) -> FiniteSteps:
        # 1 - share (z + z') / 2
        left = 1.0 - share * (1.0 + self.other + 0.5 * self.apart)
        return FiniteSteps(self.apart / left, self.other / left, self.masses * left / (1.0 - share))


def steps_of(*laws: Sequence[tuple[float, float, float]]) -> FiniteSteps:
    """Step laws from (log z, log z', probability under y) of their atoms."""
    size = max(map(len, laws))
    table = np.array([[*law, *[(0.0, 0.0, 0.0)] * (size - len(law))] for law in laws])
    first, second, masses = np.moveaxis(table, -1, 0)
    return FiniteSteps(np.exp(second) * np.expm1(first - second), np.expm1(second), masses)


def one_bit_steps(epsilon0: float, differ: float = 1.0) -> FiniteSteps:
    """Steps of one eps0-LDP bit with public coins, if two records' bits differ with probability at most `differ`.

    X is the step if y is the second of the target's records, Y if y is the first. If the bits are equal, both have the
    same step [docs/theory_mechanisms.md, section 4].
    """
    rare, usual = 1.0 / (1.0 + math.exp(epsilon0)), 1.0 / (1.0 + math.exp(-epsilon0))
    same = [(epsilon0, epsilon0, (1.0 - differ) * rare), (-epsilon0, -epsilon0, (1.0 - differ) * usual)]
    return steps_of(
        [(epsilon0, 0.0, differ * rare), (-epsilon0, 0.0, differ * usual), *same],
        [(0.0, epsilon0, differ * rare), (0.0, -epsilon0, differ * usual), *same],
    )


def _distinct(places: np.ndarray) -> np.ndarray:
    """Sorted places and zero, without places within `_TWINS` of the span of another one.

    Equal places computed in two ways differ by rounding, and a slope between them would be rounding only. The ends and
    zero are kept. Chords between fewer knots are larger, so the result is an upper bound.
    """
    places = np.unique(np.append(places, 0.0))
    apart = _TWINS * (places[-1] - places[0])
    kept = [places[0]]
    for place in places[1:]:
        stays = place in (0.0, places[-1])
        while stays and len(kept) > 1 and kept[-1] != 0.0 and place - kept[-1] <= apart:
            kept.pop()
        if stays or place - kept[-1] > apart:
            kept.append(place)
    return np.array(kept)


def _spread(places: np.ndarray, weights: np.ndarray, error: float) -> np.ndarray:
    """At most `_KNOTS[-1]` of these places, with zero; the ends are moved outwards by `error`."""
    knots = _distinct(places)
    at = np.minimum(np.searchsorted(knots, places), knots.size - 1)
    places = knots
    most = _KNOTS[-1]
    if places.size > most:
        # The chords' error is least if the density of knots is proportional to the cube root of the second derivative.
        mass, gaps = np.bincount(at, weights, places.size), np.diff(places)
        bend = np.cbrt(0.5 * (mass[1:] + mass[:-1]) * np.square(gaps))
        number = np.append(0.0, np.cumsum(bend + 1e-9 * bend.max()))
        nearest = np.searchsorted(number, np.linspace(0.0, number[-1], most - 1) * (1.0 - 1e-12))
        nearest[-1] = places.size - 1
        places = places[np.unique(np.append(nearest, np.searchsorted(places, 0.0)))]
    places[0], places[-1] = places[0] - error, places[-1] + error
    return places


# Range of lengths of the interval: below it rounding is too large, above it remainders are too large.
SHORTEST, LONGEST = 0.05, 6.5
# Number of cells of the grid, of which the two at the ends are half cells; for intervals from _LONG on.
CELLS, _LONG, _MORE_CELLS = 15, 3.3, 31
# Numbers of places on either side of zero.
_RIGHT, _LEFT = 15, 16
# Values of c - 1 at which transforms are computed, as shares of p - 1; chords between them are upper bounds.
_ABOVE = np.concatenate([[0.0], np.geomspace(4e-4, 1.0, 12)])
# Listed laws: the target's records are the two ends, the other client's is at an end or one of _BETWEEN between; or the
# target's are one end and a record between, at one of the shares _NEARER, the other client's at the far end. On long
# intervals such records are so far apart.
_BETWEEN, _NEARER = 6, (0.4, 0.7)
_BETWEEN_APART, _NEARER_APART = 0.3, 0.5
# Additional shares of the two ends' laws, for rare large steps.
_ENDS = (0.0, 0.01, 0.03, 0.1)
_STRETCHED = (1.0, 1.003, 1.006, 1.01, 1.015, 1.02, 1.03, 1.045, 1.07, 1.1, 1.15, 1.2, 1.3, 1.5)
# Rounding error of integrals, relative to the sum of the absolute weights.
_OF_INTEGRALS = 64.0 * 2.0**-53
# Relative amount by which the extreme places of steps are moved outwards.
_OUTWARDS = 1e-13


def positive_part(records: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Upper bound on the integral of (sum_i w_i m_i)_+, m_i the density of Laplace noise of scale one around record
    r_i.

    Args:
      records: [3, ...]. weights: of any sign, broadcast against them.
    """
    order = np.argsort(records, axis=0)
    at = np.take_along_axis(records, order, 0)
    size = np.take_along_axis(
        np.broadcast_to(weights, np.broadcast_shapes(at.shape, weights.shape)), order, 0
    )
    rising, falling = 0.5 * size * np.exp(-at), 0.5 * size * np.exp(at)
    found = np.maximum(rising.sum(axis=0), 0.0) * np.exp(at[0])
    found += np.maximum(falling.sum(axis=0), 0.0) * np.exp(-at[-1])
    for i in range(2):
        # a e^u + b e^-u between two records.
        a, b = rising[i + 1 :].sum(axis=0), falling[: i + 1].sum(axis=0)
        low, high = np.exp(at[i]), np.exp(at[i + 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.clip(np.sqrt(np.maximum(-b / a, 0.0)), low, high)
        mixed = a * b < 0.0
        first = np.where(mixed & (a > 0.0), root, low)
        last = np.where(mixed & (a < 0.0), root, high)
        # (a first last + b) (last - first) / (first last), the integral between their logarithms.
        value = (a + b / (first * last)) * (last - first)
        found += np.where(mixed | (a + b > 0.0), np.maximum(value, 0.0), 0.0)
    return found + _OF_INTEGRALS * np.abs(size).sum(axis=0)


@dataclasses.dataclass(frozen=True)
class LaplaceSteps(StepSet):
    """Steps of Laplace noise of scale one, records in [0, epsilon0].

    Attributes:
      epsilon0: nats, in [SHORTEST, LONGEST]. cells: of the grid, at least 3.
      dummies: share of dummies that is left out, as in `StepSet.without`.
    """

    epsilon0: float
    cells: int
    dummies: float = 0.0

    def without(self, share: float) -> LaplaceSteps:
        return dataclasses.replace(self, dummies=share)

    @property
    def _most(self) -> float:
        """The largest likelihood ratio, less one."""
        p_minus_1 = math.expm1(self.epsilon0)
        return p_minus_1 / (1.0 - self.dummies * (1.0 + p_minus_1)) * (1.0 + _OUTWARDS)

    @property
    def _width(self) -> float:
        """Width of an inner cell."""
        return self.epsilon0 / (self.cells - 1)

    @property
    def remainder(self) -> float:
        """Upper bound on the mass of a record's density beyond the mixture of its neighbours' densities."""
        # 1 - 1/cosh(x) = 2 sinh(x/2)^2 / cosh(x), where x is half the width of an inner cell, or the width of an end
        # cell.
        half = 0.5 * self._width
        return 2.0 * math.sinh(0.5 * half) ** 2 / math.cosh(half) * (1.0 + 1e-12)

    @functools.cached_property
    def _triples(self) -> tuple[np.ndarray, np.ndarray]:
        """Records (x, x', y) of the grid with x <= x', and flags of those at the ends; [triples, 3].

        Triples with x > x' are mirror images of these.
        """
        grid = np.concatenate([[0.0], (np.arange(self.cells - 1) + 0.5) * self._width, [self.epsilon0]])
        last = grid.size - 1
        index = np.stack(np.meshgrid(*[np.arange(last + 1)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
        index = index[index[:, 0] <= index[:, 1]]
        return grid[index], (index == 0) | (index == last)

    @functools.cached_property
    def _listed(self) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Triples that are listed laws, the two ends' first; and pairs of these whose mixtures are tried."""
        between, nearer = np.arange(1.0, _BETWEEN + 1.0) / (_BETWEEN + 1.0), np.array(_NEARER)
        if self.epsilon0 >= _LONG:
            between, nearer = (
                np.arange(1.0, parts) / parts
                for parts in (math.ceil(self.epsilon0 / apart) for apart in (_BETWEEN_APART, _NEARER_APART))
            )
        records = [
            (0.0, 1.0, 0.0),
            (0.0, 1.0, 1.0),
            *((0.0, 1.0, share) for share in between),
            *((0.0, share, 1.0) for share in nearer),
            *((1.0 - share, 1.0, 0.0) for share in nearer),
        ]
        inner = range(2, 2 + len(between))
        near, far = (range(start, start + len(nearer)) for start in (inner.stop, inner.stop + len(nearer)))
        # Laws next to each other in a row are alike.
        rows = (0, *inner, 1), (1, *reversed(near)), (0, *reversed(far)), (0, 1)
        wanted = self.epsilon0 * np.array(records)[:, None, :]
        places = np.argmin(np.abs(self._triples[0] - wanted).sum(axis=-1), axis=1)
        return places, [pair for row in rows for pair in itertools.pairwise(row)]

    def _values(self, c: float, knots: np.ndarray) -> np.ndarray:
        """Upper bounds on the transforms of all triples, remainders included; [triples, knots]."""
        records, ends = self._triples
        rest = self.remainder
        x, other, y = np.where(ends, 1.0, 1.0 - rest).T[:, :, None]
        inside = ~ends.T[:, :, None]
        kappa = knots + 1.0 - c
        # a - c b + (c - 1) h - k h, where of a, b and h the dummies are left out; the rest has mass 1 - dummies.
        half = 0.5 * self.dummies * knots
        first, second = 1.0 + half, c - half
        side = np.where(knots < 0.0, -1.0, 1.0)
        weights = np.stack(np.broadcast_arrays(side * first * x, -side * second * other, -side * kappa * y))
        found = positive_part(records.T[:, :, None], weights)
        # Every term with a positive sign gets its remainder.
        signed = [(side * first, inside[0]), (-side * second, inside[1]), (-side * kappa, inside[2])]
        for weight, cell in signed:
            found += rest * cell * np.maximum(weight, 0.0)
        found /= 1.0 - self.dummies
        # Bounds the steps of all records within one cell.
        apart = np.abs(records[:, :2] - records[:, 2:]) + 2.0 * self._width
        (most, other_most), (least, other_least) = (np.exp(sign * apart).T[..., None] for sign in (1.0, -1.0))
        high = np.maximum(first * most, first * least) - np.minimum(second * other_least, second * other_most)
        low = np.minimum(first * most, first * least) - np.maximum(second * other_least, second * other_most)
        found = np.where(np.where(knots < 0.0, low > kappa, high < kappa), 0.0, found)
        found[:, [0, -1]] = 0.0
        return found

    def _places(self, c: float) -> np.ndarray:
        """Knots from -c to 1 times `_most` at which chords of the two ends' laws are close; [knots]."""
        top, rest = self._most, -math.expm1(-self.epsilon0)
        records = np.array([[0.0, 0.0], [self.epsilon0, self.epsilon0], [0.0, self.epsilon0]])[:, :, None]

        def side(sign: float, far: float, atom: float, count: int) -> np.ndarray:
            fine = far * np.square(np.linspace(0.0, 1.0, 513))
            weights = np.stack(np.broadcast_arrays(1.0, -c, c - 1.0 - sign * fine))
            value = positive_part(records, sign * weights[:, None, :]).sum(axis=0)
            bend = np.maximum(np.diff(np.diff(value) / np.diff(fine)), 0.0)
            # The chords' error is least if the density of knots is proportional to the cube root of the second
            # derivative.
            dense = np.cbrt(bend * np.square(fine[2:] - fine[:-2]))
            number = np.concatenate([[0.0, 0.0], np.cumsum(dense + 1e-3 * dense.max())])
            found = np.interp(np.linspace(0.0, number[-1], count + 1), number, fine)[1:]
            found[-1] = far
            # An atom with half the mass of each law: noise on the far side of both records.
            found[np.argmin(np.abs(found[:-1] - atom))] = atom
            return found

        left, right = side(-1.0, c * top, rest, _LEFT), side(1.0, top, c * rest, _RIGHT)
        return np.concatenate([-left[::-1], [0.0], right])

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(c - 1, knots, transforms) of laws above all triples; [nodes], [nodes, knots], [nodes, laws, knots]."""
        above = self._most * _ABOVE
        knots = np.stack([self._places(1.0 + each) for each in above])
        values = np.stack([self._values(1.0 + each, at) for each, at in zip(above, knots, strict=True)])
        listed, pairs = self._listed
        laws = values[:, listed]
        for law in np.moveaxis(laws, 1, 0):
            values = values[:, ~np.all(values <= law[:, None, :], axis=(0, 2))]
        return above, knots, _above(values, laws, knots, pairs)

    def _at(self, above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Knots and laws at c - 1 = above, by chords in c: [losses, knots] and [losses, laws, knots]."""
        nodes, knots, laws = self._table
        right = np.clip(np.searchsorted(nodes, above, side="right"), 1, len(nodes) - 1)
        share = np.clip((above - nodes[right - 1]) / (nodes[right] - nodes[right - 1]), 0.0, 1.0)
        at, found = (
            (1.0 - part) * table[right - 1] + part * table[right]
            for part, table in ((share[:, None], knots), (share[:, None, None], laws))
        )
        return at, found

    def knots(self, above: np.ndarray) -> np.ndarray:
        return self._at(above)[0]

    def transforms(self, above: np.ndarray, knots: np.ndarray) -> np.ndarray:
        del knots  # those of `knots`
        return self._at(above)[1]


def _stretched(laws: np.ndarray, knots: np.ndarray, factor: float) -> np.ndarray:
    """Upper bounds on transforms, the places of all laws except the first two multiplied; [nodes, laws, knots]."""
    found = laws.copy()
    for node, at in enumerate(knots):
        for law in range(2, laws.shape[1]):
            # Chords are upper bounds.
            found[node, law, 1:-1] = factor * np.interp(at[1:-1] / factor, at, laws[node, law])
    return found


def _above(
    values: np.ndarray, laws: np.ndarray, knots: np.ndarray, pairs: list[tuple[int, int]]
) -> np.ndarray:
    """The laws, stretched until every value is below one mixture of them, the same at both ends of an interval of c.

    values, laws: transforms, [nodes, laws, knots]. pairs: of laws, whose mixtures are tried. A stretched law dominates
    the law itself.
    """
    candidates = [_stretched(laws, knots, factor) for factor in _STRETCHED]
    needed, remain, factor = [], [], 0
    for interval in range(len(knots) - 1):
        both = slice(interval, interval + 2)
        left = _not_below(values[both], candidates[factor][both], pairs)
        # Larger c needs a larger factor.
        while left.shape[1] and factor + 1 < len(candidates):
            factor += 1
            left = _not_below(left, candidates[factor][both], pairs)
        needed.append(factor)
        remain.append(left)
    at_node = np.maximum(np.append(needed, 0), np.append(0, needed))
    found = np.stack([candidates[factor][node] for node, factor in enumerate(at_node)])
    for interval, left in enumerate(remain):
        if left.shape[1]:
            # One law that dominates all remaining ones.
            both = slice(interval, interval + 2)
            found[both, 2] = np.maximum(found[both, 2], left.max(axis=1))
    return found


def _not_below(values: np.ndarray, laws: np.ndarray, pairs: list[tuple[int, int]]) -> np.ndarray:
    """The values that are below none of the mixtures tried at all nodes; [nodes, values, knots]."""
    ends = 0.5 * (laws[:, 0] + laws[:, 1])
    for both, (i, j) in itertools.product(_ENDS, pairs):
        if not values.shape[1]:
            break
        one, other = ((both * ends + (1.0 - both) * laws[:, law])[:, None, :] for law in (i, j))
        # The shares of `one` that serve at all knots, if any do, of which the middle one is tried.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (values - other) / (one - other)
        least = np.max(np.where(one > other, share, 0.0), axis=(0, 2), initial=0.0)
        most = np.min(np.where(one < other, share, 1.0), axis=(0, 2), initial=1.0)
        tried = np.clip(0.5 * (least + most), 0.0, 1.0)[:, None]
        values = values[:, ~np.all(values <= tried * one + (1.0 - tried) * other, axis=(0, 2))]
    return values


@functools.lru_cache(maxsize=16)
def laplace_steps(epsilon0: float) -> LaplaceSteps:
    """`LaplaceSteps` of an interval of epsilon0 scales, cached."""
    return LaplaceSteps(epsilon0, _MORE_CELLS if epsilon0 >= _LONG else CELLS)
