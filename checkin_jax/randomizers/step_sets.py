"""Step sets: the laws of one message's likelihood ratios over another record, for all records of a mechanism.

z and z' are the likelihood ratios of a message at the target's two records over the record y of another client. At c =
e^loss >= 1 a step is d = z - c z' + c - 1, which has mean zero under y (docs/theory_mechanisms.md, section 6). A step
set holds laws such that every step of the mechanism, for every y and every ordered pair of the target's records, is
below a mixture of them in convex order. The laws are given by their stop-loss transforms.
"""

from __future__ import annotations

import abc
import dataclasses
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
