"""profile (T2, R3, T2r), hexagon and own-laws in sliding windows of few slots, by the law of their loads.

The bound reveals the client that is drawn in each slot, and the number of others there. The target's message is shown
with weight 1 / (load + 1), and the sum of the weighted steps has its law on a lattice, by a Fourier transform at the
best tilt. Proof: docs/theory.md, 6. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.hexagon import StagedBound
from checkin_jax.accounting.bounds.interface import AsymmetricBound, Witness
from checkin_jax.accounting.bounds.messages.profile_cover_sums import above_place, knots_of
from checkin_jax.accounting.bounds.profiles import GaussianProfile, Profile
from checkin_jax.accounting.bounds.windows.contention import win_prob
from checkin_jax.kernels import FLUSHED, ROUNDING, binomial
from checkin_jax.numerics import convex, step_ratios
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import Steps

# Largest window of which the loads' law is listed, loads that are told apart there, and largest of all windows: of
# Gaussian messages up to this mu, and of others, which hide among labels drawn anew in larger ones (T2d).
MOST_LISTED, _TOLD, MOST_GAUSSIAN, MOST_MU, MOST_SMALL = 9, 3, 1024, 3.0, 400
# Cases of loads are left out where their mass is so much less than the negligible one, as its -log.
_LEFT_OUT = 20.0
# Length of the lattice in standard deviations of the sum, its share below the threshold, and the variance that its
# rounding may add, as a share.
_LENGTH, _BELOW, _ADDED = 28.0, 4, 4e-3
# Losses: so many to 2.4 standard deviations of the sum, then geometrically, or at growing distances if they are near.
_DENSE, _WIDE, _NEAR = 24, 40, 30.0
# Tilts that are tried, in units of one over the standard deviation of the sum.
_TILTS = np.geomspace(0.3, 400.0, 28)
# Smallest mass of a lattice point.
_LEAST = 1e-300
# The table ends at a threshold of so many standard deviations of the sum.
_FARTHEST = 1e4
# -log of the size of a product of transforms that is left out.
_NO_FREQUENCY = 42.0
# Rounding of a transform's value, for each factor and for the transforms themselves.
_ROUNDED = 4e-15


class StepSides(NamedTuple):
    """Stop-loss transforms E(d - k)_+ and E(-d - k)_+ of a step of mean 0, at k >= 0."""

    right: Callable[[np.ndarray], np.ndarray]
    left: Callable[[np.ndarray], np.ndarray]


class SteppedLaw(NamedTuple):
    """Masses at the lattice points from `first` on, above a step in convex order, and E(d - last)_+ beyond the last."""

    first: int
    masses: np.ndarray
    beyond: float


def lattice_law(step: StepSides, weight: float, spacing: float, down: int, up: int) -> SteppedLaw:
    """Law of the weighted step, its mass between two points moved to both of them."""
    ahead = weight * step.right(spacing / weight * np.arange(up + 1.0))
    behind = weight * step.left(spacing / weight * np.arange(down + 1.0))

    def masses(value: np.ndarray) -> np.ndarray:
        return np.append(value[:-2] - 2.0 * value[1:-1] + value[2:], value[-2] - value[-1]) / spacing

    at_zero = 1.0 - (ahead[0] - ahead[1] + behind[0] - behind[1]) / spacing
    every = np.concatenate([masses(behind)[::-1], [at_zero], masses(ahead)])
    # Masses whose tilted values would overflow are taken out, and added.
    kept = np.where(every > _LEAST, every, 0.0) * (1.0 + ROUNDING)
    return SteppedLaw(-down, kept, float(ahead[-1]) + _LEAST * every.size * spacing * up)


class _Sums:
    """Sums of independent lattice steps of a few kinds, so many of each."""

    def __init__(self, laws: list[SteppedLaw], spacing: float, deviation: float, number: int):
        self.laws, self.spacing, self.deviation, self.number = laws, spacing, deviation, number
        self.places = [spacing * (law.first + np.arange(law.masses.size)) for law in laws]
        self.tilts = _TILTS / deviation
        self.logs = np.array(
            [[self._log_moment(kind, tilt) for tilt in self.tilts] for kind in range(len(laws))]
        )

    def _log_moment(self, kind: int, tilt: float) -> float:
        masses = self.laws[kind].masses
        exponents = tilt * self.places[kind]
        top = float(exponents[masses > 0.0].max())
        return top + math.log(float(masses @ np.exp(np.minimum(exponents - top, 0.0))))

    def excess(self, counts: np.ndarray, log_masses: np.ndarray, at: float) -> np.ndarray:
        """Upper bounds on E(S - at)_+, S a sum of counts[i, k] steps of kind k; [len(counts)].

        log_masses: of the counts; the tilt is chosen for those that contribute most.
        """
        spacing, number = self.spacing, self.number
        exponents = counts @ self.logs - self.tilts * at - np.log(self.tilts)
        best = int(np.argmin(exponents[np.argmax(exponents.min(axis=1) + log_masses)]))
        tilt, logs = self.tilts[best], self.logs[:, best]
        start = math.floor(at / spacing) - number // _BELOW
        over = spacing * (start + np.arange(number)) - at
        value = np.where(over > 0.0, over * np.exp(-tilt * np.maximum(over, 0.0)), 0.0)
        turned = np.conj(np.fft.rfft(np.roll(value, start % number)))
        turned[1 : number // 2] *= 2.0
        factors = []
        for kind, law in enumerate(self.laws):
            masses = np.zeros(number)
            index = (law.first + np.arange(law.masses.size)) % number
            tilted = np.where(law.masses > 0.0, tilt * self.places[kind] - logs[kind], 0.0)
            masses[index] = law.masses * np.exp(tilted)
            factors.append(np.fft.rfft(masses))
        # Frequencies at which every product is negligible are left out.
        sizes = counts @ np.log(np.abs(factors) + 1e-300)
        kept = sizes.max(axis=0) > -_NO_FREQUENCY
        total = np.ones((len(counts), int(kept.sum())), dtype=complex)
        for kind, factor in enumerate(factors):
            least, most = int(counts[:, kind].min()), int(counts[:, kind].max())
            powers = np.empty((most - least + 1, total.shape[1]), dtype=complex)
            powers[0], powers[1:] = factor[kept] ** least, factor[kept]
            total *= np.cumprod(powers, axis=0)[counts[:, kind] - least]
        # Not by BLAS, whose threads cost more than so few numbers.
        found = np.real(np.einsum("ij,j->i", total, turned[kept])) / number
        error = _ROUNDED * (counts.sum(axis=1) + 16.0) * math.sqrt(float(value @ value))
        error += math.exp(-_NO_FREQUENCY) * float(value.sum())
        above = self._above(counts, at, float(over[-1]) + spacing)
        # Of steps beyond the lattice.
        above += counts @ [law.beyond for law in self.laws]
        with np.errstate(over="ignore"):
            return (np.maximum(found, 0.0) + error) * np.exp(counts @ logs - tilt * at) + above

    def _above(self, counts: np.ndarray, at: float, reach: float) -> np.ndarray:
        """E (S - at) where S - at >= reach, the end of the lattice, from above: y <= reach e^(tilt (y - reach))."""
        steep = self.tilts * reach >= 1.0
        exponents = counts @ self.logs[:, steep] - self.tilts[steep] * (at + reach)
        with np.errstate(over="ignore"):
            return reach * np.exp(exponents.min(axis=1))


@functools.lru_cache(maxsize=8)
def window_loads(window: int) -> tuple[tuple[tuple[int, ...], float], ...]:
    """(numbers of slots of load 0, 1, ..., and of the last one or more; probability) of a client's sliding window.

    The others throw into windows that begin up to `window` - 1 slots before or after it.
    """
    law = np.zeros((_TOLD,) * window)
    law[(0,) * window] = 1.0
    for away in range(1, window):
        for slots in (range(window - away), range(away, window)):
            thrown = law * (away / window)
            for slot in slots:
                moved = np.moveaxis(law, slot, 0)
                target = np.moveaxis(thrown, slot, 0)
                target[1:] += moved[:-1] / window
                target[-1] += moved[-1] / window
            law = thrown
    loads = np.stack(np.unravel_index(np.arange(law.size), law.shape), axis=1)
    counts = np.stack([(loads == load).sum(axis=1) for load in range(_TOLD)], axis=1)
    kinds, which = np.unique(counts, axis=0, return_inverse=True)
    masses = np.bincount(which.ravel(), law.ravel(), len(kinds)) * (1.0 + 1e-12)
    return tuple((tuple(map(int, kind)), float(mass)) for kind, mass in zip(kinds, masses) if mass > 0.0)


class _Loads(NamedTuple):
    """Numbers of slots of each load, [cases, loads], and their probabilities; `negative`: of a law that is above.

    negative: None if the law is exact. Otherwise a slot is empty or not, the number of empty slots is below this law in
    convex order, and `negative` is E(B - k)_+ - (E B - k)_+, B of this law, for the number k of each case.
    rest: bound on what cases that are left out add to the mean of a function from 0 to 1.
    """

    counts: np.ndarray
    masses: np.ndarray
    negative: np.ndarray | None
    rest: float

    def mean(self, value: np.ndarray) -> float:
        """Upper bound on the mean of a function of the numbers, given from above; without `rest`."""
        plain = float(self.masses @ value)
        if self.negative is None:
            return plain
        # With these added, the function is convex in the number of empty slots. It need not grow: a Gaussian dummy is
        # nearer to a record than another client's message is. Where it is not given, it is zero at least.
        around = np.pad(value, 1)
        bend = np.maximum(2.0 * value - around[2:] - around[:-2], 0.0)
        return plain + float(bend @ self.negative)


@functools.lru_cache(maxsize=32)
def loads_of(window: int, neg_log_tail: float, listed: int = MOST_LISTED) -> _Loads:
    """Loads of a client's sliding window, whose law is listed up to so many slots.

    neg_log_tail: -log of the negligible mass, to which `rest` adds little.
    """
    if window <= listed:
        kinds, masses = zip(*window_loads(window))
        return _Loads(np.array(kinds), np.array(masses), None, 0.0)
    empty = math.exp((window - 1.0) * math.log1p(-1.0 / window))
    number = np.arange(window + 1)
    probs = np.exp(np.asarray(binomial.log_pmf(number.astype(float), float(window), empty))) * (1.0 + 1e-11)
    # E(B - k)_+ and E(k - B)_+; their difference from each other is k - E B.
    over = np.append(np.cumsum(np.cumsum(probs[:0:-1]))[::-1], 0.0)
    under = np.append(0.0, np.cumsum(np.cumsum(probs[:-1])))
    negative = np.where(number >= window * empty, over, under) * (1.0 + 1e-11)
    kept = np.flatnonzero((probs > (least := math.exp(-neg_log_tail - _LEFT_OUT))) | (negative > least))
    first, end = int(kept[0]), int(kept[-1]) + 1
    # A second difference of a function from 0 to 1 is -2 at least.
    out = probs + 2.0 * negative
    rest = float(out[:first].sum() + out[end:].sum()) + FLUSHED
    counts = np.stack([number, window - number], axis=1)[first:end]
    return _Loads(counts, probs[first:end], negative[first:end], rest)


@dataclasses.dataclass(frozen=True)
class _Window:
    """Base of bounds by sums of weighted steps in a client's sliding window.

    Attributes:
      window: m, from 2 to MOST_GAUSSIAN. message: profile of one message; a dummy is one, too, or, if it is Gaussian,
        at most half as far from a record as another record.
    """

    window: int
    message: Profile
    neg_log_tail: float

    name = "profile"

    @property
    def largest_loss(self) -> float:
        return self.message.largest_loss

    @functools.cached_property
    def farthest(self) -> float:
        """The largest likelihood ratio of a message that is followed, less 1."""
        return float(knots_of(self.message, 1e-3 * math.exp(-self.neg_log_tail))[-1])

    @functools.cached_property
    def loads(self) -> _Loads:
        return loads_of(self.window, self.neg_log_tail)

    @functools.cached_property
    def usual(self) -> np.ndarray:
        """Expected numbers of slots of each load."""
        return self.loads.masses @ self.loads.counts

    @functools.cached_property
    def used(self) -> float:
        """Probability that the target's message is used, rounded up."""
        return win_prob(self.window - 1, 1.0 / self.window)

    def sums(self, steps: list[StepSides]) -> _Sums:
        """Sums of steps, one for each load."""
        weights = 1.0 / np.arange(1.0, len(steps) + 1.0)
        places = np.expm1(np.linspace(0.0, math.log1p(self.farthest), 512))
        squares = []
        for step in steps:
            both = step.right(places) + step.left(places)
            squares.append(float(np.sum(np.diff(places) * (both[1:] + both[:-1]))))
        deviation = math.sqrt(float(self.usual @ (weights**2 * squares)))
        spacing = deviation * math.sqrt(_ADDED * 6.0 / self.window)
        # The largest step is a lattice point, with each of the first weights.
        spacing = self.farthest / (6.0 * math.ceil(self.farthest / (6.0 * spacing)))
        number = 1 << math.ceil(math.log2(_LENGTH * deviation / spacing))
        up = min(math.ceil(self.farthest / spacing) + 1, number // 4)
        down = min(math.ceil((1.0 + self.farthest) * self.farthest / spacing) + 1, number // 4)
        laws = [lattice_law(step, float(weight), spacing, down, up) for step, weight in zip(steps, weights)]
        return _Sums(laws, spacing, deviation, number)

    def mean_excess(self, sums: _Sums, at: float) -> float:
        """Upper bound on E(S - at)_+ / m."""
        loads = self.loads
        value = sums.excess(loads.counts, np.log(loads.masses + 1e-300), at) / self.window
        # A divergence is 1 at most.
        return loads.mean(np.minimum(value, 1.0)) + loads.rest

    def losses(self, deviation: float) -> np.ndarray:
        """Losses of the table, for a sum of this standard deviation."""
        end = min(
            deviation * (math.sqrt(2.0 * self.neg_log_tail) + 1.0) / self.window + self.farthest,
            self.farthest,
        )
        near = min(0.1 * deviation / self.window, end / (2.0 * _DENSE)) * np.arange(_DENSE + 1.0)
        ahead = near[-1] + (end - near[-1]) * np.linspace(0.0, 1.0, _WIDE) ** 1.3
        far = ahead if end < _NEAR * near[-1] else np.geomspace(near[-1], end, _WIDE)
        return np.log1p(np.concatenate([near, far[1:]]))

    def table(
        self, deviation: float, excess_at: Callable[[float], tuple[float, float, float]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Losses, and upper bounds there; the last one may stand for all further losses.

        deviation: standard deviation of the sum. excess_at: the bound at a loss, the threshold of the sum, and that
        sum's standard deviation.
        """
        losses = self.losses(deviation)
        value = np.empty(losses.shape)
        for i, loss in enumerate(losses):
            value[i], at, spread = excess_at(float(loss))
            if i and (value[i] < math.exp(-self.neg_log_tail) or at > _FARTHEST * spread):
                losses, value = losses[: i + 1], value[: i + 1]
                break
        return losses, np.minimum.accumulate(value * (1.0 + ROUNDING))

    def held(self, table: tuple[np.ndarray, np.ndarray], loss: np.ndarray) -> np.ndarray:
        """The bound of a table between its losses, and at most that of the message by itself."""
        loss = np.asarray(loss)
        alone = self.used * self.message.delta(loss) * (1.0 + ROUNDING)
        found = np.minimum(convex.held_chords(*table, loss), alone)
        return np.where(loss >= self.message.largest_loss, 0.0, found)


def _of_profile(profile: Profile) -> StepSides:
    """Steps Z - 1 of T2r: the ratio of one message to another of this profile."""

    def left(place: np.ndarray) -> np.ndarray:
        # E(u - Z)_+ is at most u D(1/u); u = 1 - k is rounded up.
        rest = np.maximum(1.0 - place + 4e-16, 0.0)
        return rest * profile.delta(-np.log(np.clip(rest, 1e-300, 1.0)))

    return StepSides(lambda place: profile.delta(np.log1p(place)), left)


def _of_coin(size: float) -> StepSides:
    """A step of +-size, with equal probabilities."""

    def side(place: np.ndarray) -> np.ndarray:
        return 0.5 * np.maximum(size - place, 0.0) * (1.0 + 4e-16)

    return StepSides(side, side)


@dataclasses.dataclass(frozen=True)
class SmallWindow(_Window):
    """T2 and R3 by loads: H_c <= E(1 - c + (1/m) sum d_j / (C_j + 1))_+, d_j = T* - (1 - c). A record is replaced."""

    witnesses: tuple[Witness, ...] = ()

    def _steps(self, loss: float) -> list[StepSides]:
        c, message = math.exp(loss), self.message
        losses = np.array([loss])
        usual = StepSides(
            lambda place: above_place(message, losses, place),
            lambda place: c * message.delta(np.log1p(place / c)),
        )
        alone = usual
        if isinstance(message, GaussianProfile):
            mu = message.mu
            alone = StepSides(
                lambda place: step_ratios.opposite_transform(mu, c, place, False),
                lambda place: step_ratios.opposite_transform(mu, c, place, True),
            )
        return [alone, *[usual] * (self.loads.counts.shape[1] - 1)]

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        def excess_at(loss: float) -> tuple[float, float, float]:
            sums = self.sums(self._steps(loss))
            at = self.window * math.expm1(loss)
            return self.mean_excess(sums, at), at, sums.deviation

        return self.table(self.sums(self._steps(0.0)).deviation, excess_at)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return self.held(self._table, loss)


@dataclasses.dataclass(frozen=True)
class PlayedWindow(StagedBound):
    """hexagon or own-laws by loads: the value of the game with steps d_j / (C_j + 1), in the worst order. Symmetric.

    Attributes:
      window: m, from 2 to MOST_SMALL. steps: laws among which the adversary chooses, dummies' included.
    """

    window: int
    steps: Steps
    neg_log_tail: float

    def _stated(self) -> FewSteps | None:
        if self.steps.idle:
            return None
        loads = loads_of(self.window, self.neg_log_tail)
        weights = tuple(1.0 / np.arange(1.0, loads.counts.shape[1] + 1.0))
        square = float(np.max(loads.counts @ np.square(weights)))
        known = float(self.window), self.steps, self.neg_log_tail, loads.rest
        game = FewSteps(*known, weights, loads.counts.astype(int), loads.mean, square)
        return game if game.affordable else None


@dataclasses.dataclass(frozen=True)
class SmallWindowRemoved(_Window, AsymmetricBound):
    """T2r by loads: a client is added to a sliding window or removed.

    coin: as in `RemovedClient`.
    """

    coin: float = 0.0

    @functools.cached_property
    def _tables(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        message = self.message
        alone = GaussianProfile(0.5 * message.mu) if isinstance(message, GaussianProfile) else message
        empty = _of_coin(self.coin) if self.coin else _of_profile(alone)
        up = [empty, *[_of_profile(message)] * (self.loads.counts.shape[1] - 1)]

        def one_side(backward: bool) -> tuple[np.ndarray, np.ndarray]:
            sums = self.sums([StepSides(step.left, step.right) for step in up] if backward else up)

            def excess_at(loss: float) -> tuple[float, float, float]:
                above, scale = (-math.expm1(-loss), math.exp(loss)) if backward else (math.expm1(loss), 1.0)
                at = self.window * above
                return scale * self.mean_excess(sums, at), at, sums.deviation

            losses, value = self.table(sums.deviation, excess_at)
            return losses, np.minimum(value, 1.0)

        return one_side(False), one_side(True)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        return self.held(self._tables[backward], loss)
