"""Epochs of random allocation: their events, and bounds on their units. Proofs: docs/theory_allocation.md, 6.

With k = 1 under add-or-remove the pair is exactly that of one step of t, of weight q after Poisson sampling with
probability q before the allocation, and of one of s with weight q s / t in an epoch that ends after s of its t steps.
k > 1 are k units of one of t/k steps, and one unit where the record may be in none of the steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import attr
import dp_accounting
import numpy as np
import scipy
from dp_accounting import DpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax.accounting.account import MIN_DELTA
from checkin_jax.accounting.bounds.interface import (
    AsymmetricBound,
    Lines,
    LocalGaussian,
    LocalMessages,
    UnitBound,
    Witness,
    minimum,
)
from checkin_jax.accounting.bounds.profiles import MessageProfile
from checkin_jax.accounting.bounds.windows.mixtures import TwoSteps
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    LEAST_MU,
    MOST_LATTICE_MU,
    RANDOM_ALLOCATION,
    OneOfSlots,
    gaussian_in_slots,
    step_in_slots,
)
from checkin_jax.accounting.composition import privacy_profile
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.interop.central_mechanisms import (
    LEAST_RATE,
    GaussianNoise,
    Noise,
    Opposite,
    Sampled,
    SampledReplaced,
    bound_of,
    noise_of,
    sampled_replaced,
    sampled_sides,
)
from checkin_jax.kernels import ROUNDING, binomial
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.numerics import convex
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.numerics.counts import chernoff
from checkin_jax.protocols import REPLACE
from checkin_jax.randomizers import KnownProfile

# Range of noise_multiplier: noise standard deviation over the largest norm of one record's value.
LEAST_NOISE, MOST_NOISE = 1.0 / MOST_LATTICE_MU, 1.0 / LEAST_MU
# Largest k of an epoch that is not finished, the error of its coins, and the number of their values.
MOST_COUNTED, _COUNTED, _KINDS = 10_000, 1e-9, 16
# Numbers of steps less likely than this count as none in the witness, which has at most so many groups of them.
_RARE, _GROUPS = 1e-4, 16
# Most terms of the convolutions of a number of steps, the largest exponent of what is left out of them, and a bound on
# the relative error of their sums.
_MOST_TERMS, _MOST_EXPONENT, _PMF = 2e8, 600.0, 5e-10
# Largest loss that a given privacy loss distribution may have.
_MOST_LOSS = 600.0


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(DpEvent):
    """Applies `event` to each of num_steps batches; every record is in num_selected of them, uniformly chosen.

    Records choose independently of each other, and only the server sees the choices. This is one epoch of random
    allocation (balls and bins for num_selected = 1). It is NOT sampling of batches of a fixed size, in which records do
    not choose independently.

    Attributes:
      event: one step with a record against the same step without it. GaussianDpEvent or LaplaceDpEvent, on a sum of
        values of norm at most 1; Poisson sampling of one of them; or, without its event,
        dp_accounting's PrivacyLossDistribution, a pessimistic one, or a KnownProfile, symmetric.
      num_selected: k, 1 <= k <= t.
      num_steps: t, at most 1e9.
    """

    event: Any
    num_selected: int
    num_steps: int


@attr.s(frozen=True, slots=True, auto_attribs=True)
class UnfinishedAllocationDpEvent(DpEvent):
    """Applies the first finished_steps steps of `event`, an epoch that stops there whatever the steps show.

    Attributes:
      event: a RandomAllocationDpEvent.
      finished_steps: s, 1 <= s <= t.
    """

    event: RandomAllocationDpEvent
    finished_steps: int


@dataclasses.dataclass(frozen=True)
class AllocatedStep:
    """One step: its pair under add-or-remove, taken with probability `rate` if the record is in it.

    noise: additive noise, or None for a step given by bounds on its pair, `pair`.
    """

    rate: float
    noise: Noise | None
    pair: UnitBound | None = None

    @property
    def sums(self) -> bool:
        """True if the sum of all steps is Gaussian."""
        return isinstance(self.noise, GaussianNoise) and self.rate == 1.0

    @classmethod
    def of(cls, event: Any) -> AllocatedStep:
        """The step of an event.

        Raises:
          TypeError, ValueError: no bound is known for it, or a parameter is outside its range.
        """
        if isinstance(event, PrivacyLossDistribution):
            return cls(1.0, None, GivenLosses(event))
        if isinstance(event, KnownProfile):
            return cls(1.0, None, LocalMessages(1.0, MessageProfile(event)))
        rate = 1.0
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            rate = _validate.real(LEAST_RATE, 1, sampling_probability=event.sampling_probability)
            event = event.event
        if isinstance(event, dp_accounting.GaussianDpEvent):
            noise = _validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=event.noise_multiplier)
            return cls(rate, GaussianNoise(1.0 / noise))
        if isinstance(event, dp_accounting.LaplaceDpEvent):
            return cls(rate, noise_of(event))
        raise ValueError(
            f"random allocation of {type(event).__name__}: expected GaussianDpEvent, LaplaceDpEvent, Poisson sampling "
            "of one of them, a PrivacyLossDistribution or a KnownProfile"
        )

    def one_of(self, steps: int, used: float, mass: float) -> UnitBound:
        """The bound on one uniformly chosen step of `steps`, taken with probability `used`; add-or-remove."""
        used *= self.rate
        if steps == 1 and self.noise is not None:
            plain = used == 1.0 and isinstance(self.noise, GaussianNoise)
            return LocalGaussian(1.0, self.noise.shift) if plain else Sampled(self.noise, used)
        if isinstance(self.noise, GaussianNoise):
            return gaussian_in_slots(steps, used, self.noise.shift, mass, RANDOM_ALLOCATION)
        pair = self.pair if self.noise is None else Sampled(self.noise, 1.0)
        assert pair is not None
        return step_in_slots(steps, used, pair, mass)

    def one_replaced(self, steps: int, used: float, mass: float) -> UnitBound:
        """R2, or a revealed step, under replace-one; the witnesses have a record of zeros, or opposite records."""
        pair = self.one_of(steps, used, mass)
        if self.noise is None:
            return minimum([TwoSteps(pair)], pair.witnesses)  # type: ignore[arg-type]
        used *= self.rate
        if steps == 1 and used < 1.0:
            return sampled_replaced(self.noise, used)
        if used < 1.0:
            revealed = SampledReplaced(self.noise, used)
        elif isinstance(self.noise, GaussianNoise):
            revealed = LocalGaussian(1.0, 2.0 * self.noise.shift)
        else:
            revealed = Sampled(self.noise.times(2.0), 1.0)
        if steps == 1:
            return revealed
        assert isinstance(pair, OneOfSlots)
        witnesses: tuple[Witness, ...] = (pair,)
        if isinstance(self.noise, GaussianNoise):
            shift = self.noise.shift / math.sqrt(steps)
            opposite = Opposite(revealed, GaussianNoise(shift), used)
            witnesses += (LocalGaussian(1.0, 2.0 * shift) if used == 1.0 else opposite,)
        return minimum([TwoSteps(pair), revealed], witnesses)


class Blocks(NamedTuple):
    """`number` independent blocks of `size` steps; the record is in a uniform one of them with probability `prob`."""

    size: int
    prob: float
    number: int


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch of random allocation: k of t steps, of which the first s are applied, with probability q."""

    step: AllocatedStep
    selected: int
    steps: int
    finished: int
    used: float

    @property
    def single(self) -> bool:
        """True if the record is in one of the finished steps at most."""
        return self.selected == 1 or self.finished == 1

    @property
    def number(self) -> int:
        """Number of units."""
        return 1 if self.used < 1.0 else min(self.selected, self.finished)

    def units(self, relation: str, mass: float) -> list[tuple[UnitBound, int]]:
        """(bound, count) pairs whose composition bounds the epoch.

        Args:
          relation: of `protocols.RELATIONS`.
          mass: -log of the negligible mass of a unit, see `neg_log_tail`.
        """
        step, replaced = self.step, relation == REPLACE
        if step.pair is not None and step.pair.largest_loss == 0.0:
            return [(step.pair, 1)]
        one = step.one_replaced if replaced else step.one_of
        if self.single:
            part = 1.0 if self.finished == self.steps else self.selected * self.finished / self.steps
            return [(one(self.finished, self.used * part, mass), 1)]
        if self.used < 1.0:
            pair = SampledEpoch(self, mass)
            bound = TwoSteps(pair) if replaced else pair
            return [(minimum([bound], self.witnesses(pair, mass, replaced)), 1)]
        units = [(one(size, prob, mass), count) for size, prob, count in self.blocks]
        if self.selected == self.steps == self.finished:
            return units
        # The blocks' own pairs are not attained. The sum of all steps is a witness, or a number of steps.
        bare: list[tuple[UnitBound, int]] = [(minimum([unit]), count) for unit, count in units]
        if step.noise is None:
            return bare
        if step.sums and self.finished == self.steps:
            # It is Gaussian with shift k, or 2 k between opposite records; each of the k units has its share.
            apart = (2.0 if replaced else 1.0) * step.noise.shift * math.sqrt(self.selected / self.steps)
            return [(minimum([unit], (LocalGaussian(1.0, apart),)), count) for unit, count in units]
        (first, count), *others = bare
        likewise = [(first, count - 1)] if count > 1 else []
        return [(minimum([first], self.witnesses(None, mass, replaced)), 1), *likewise, *others]

    def witnesses(self, grid_bound: UnitBound | None, mass: float, opposite: bool) -> tuple[Witness, ...]:
        """The witness of the epoch, of noise; `grid_bound`: about that of a Gaussian sum with its shift, if None."""
        if self.step.noise is None:
            return ()
        probs = StepProbs.of(self.step, opposite)
        unit = self.step.noise.shift if self.step.sums else probs.apart
        about = grid_bound or LocalGaussian(1.0, unit * self.number / math.sqrt(self.finished))
        if self.step.sums:
            return (SummedSteps(about, self),)
        counted = CountedSteps(about, self, probs, mass)
        return (counted,) if counted.affordable else ()

    @functools.cached_property
    def blocks(self) -> list[Blocks]:
        """Blocks of the finished steps whose composition bounds the epoch that a record takes part in.

        The number of a record's steps among the finished ones is a sum of independent coins, one for each block. Their
        probabilities are rounded up to few values.
        """
        number = min(self.selected, self.finished)
        short, longer = divmod(self.finished, number)
        if self.finished == self.steps:
            whole = [Blocks(short, 1.0, number - longer), Blocks(short + 1, 1.0, longer)]
            return [each for each in whole if each.number]
        probs = np.sort(coins(self.steps, self.selected, self.finished))
        found: dict[tuple[int, float], int] = {}
        # Rarer coins to shorter blocks.
        for size, some in ((short, probs[: number - longer]), (short + 1, probs[number - longer :])):
            for part in np.array_split(some, _KINDS):
                if part.size and part[-1] > 0.0:
                    key = size, float(part[-1])
                    found[key] = found.get(key, 0) + part.size
        return [Blocks(size, prob, count) for (size, prob), count in found.items()]

    @functools.cached_property
    def chosen(self) -> list[tuple[int, float]]:
        """(number, probability) of the record's steps among the finished ones, hypergeometric; to `_COUNTED`."""
        if self.finished == self.steps:
            return [(self.selected, 1.0)]
        least, total = max(self.selected + self.finished - self.steps, 0), float(self.steps)
        j = np.arange(least, min(self.selected, self.finished) + 1, dtype=np.float64)
        before, k, s = j[:-1], float(self.selected), float(self.finished)
        ratios = np.log((k - before) * (s - before) / ((before + 1.0) * (total - k - s + before + 1.0)))
        mode = int(np.count_nonzero(ratios > 0.0))
        up, down = np.cumsum(ratios[mode:]), np.cumsum(-ratios[:mode][::-1])[::-1]
        weights = np.exp(np.concatenate([down, [0.0], up]))
        weights /= math.fsum(weights.tolist())
        return list(zip(j.astype(int).tolist(), weights.tolist()))

    @property
    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of a record's finished steps above zero, in few groups, and their probabilities, rounded down.

        Numbers are rounded down within a group, rare ones but the likeliest to zero: events of many steps beyond a
        place then tell less.
        """
        likeliest = max(weight for j, weight in self.chosen if j > 0)
        least = min(_RARE, 0.5 * likeliest)
        kept = [(j, weight) for j, weight in self.chosen if j > 0 and weight > least]
        parts = [part for part in np.array_split(np.array(kept), min(_GROUPS, len(kept))) if part.size]
        weights = self.used * (1.0 - _COUNTED) * np.array([part[:, 1].sum() for part in parts])
        return np.array([part[0, 0] for part in parts]), weights


def coins(total: int, selected: int, finished: int) -> np.ndarray:
    """Probabilities of min(k, s) independent coins whose sum is the number of k uniform ones of t among s of these.

    Rounded up. The generating function of this number is a Jacobi polynomial, which has real zeros [VM82]; they are the
    eigenvalues of a Jacobi matrix.
    """
    few, many = sorted((selected, finished))
    if few + many <= total:
        return _jacobi(few, total - few - many, many - few)
    # Of `few` things each is in one of `total - many` other places instead: again such a number.
    fewer, more = sorted((few, total - many))
    rest = 1.0 - _jacobi(fewer, many - few, more - fewer)
    return np.minimum(np.append(rest + 3.0 * _COUNTED, np.ones(few - fewer)), 1.0)


def _jacobi(number: int, alpha: float, beta: float) -> np.ndarray:
    """Zeros in (0, 1) of the Jacobi polynomial of this degree in 2 p - 1, rounded up."""
    if number == 0:
        return np.zeros(0)
    i, both = np.arange(number, dtype=np.float64), float(alpha) + beta
    twice = 2.0 * i + both
    diagonal = (2.0 * i * (i + both + 1.0) + both * (1.0 + beta)) / np.maximum(twice * (twice + 2.0), 1.0)
    diagonal[0] = (1.0 + beta) / (both + 2.0)
    i, twice = i[1:], twice[1:]
    product = i * (i + alpha) / twice * ((i + beta) * (i + both) / twice)
    beside = np.sqrt(product / ((twice - 1.0) * (twice + 1.0)))
    zeros = scipy.linalg.eigvalsh_tridiagonal(diagonal, beside) if number > 1 else diagonal
    return np.clip(zeros + _COUNTED * float(zeros.max()), 0.0, 1.0)


def epoch_of(event: DpEvent) -> Epoch | None:
    """The epoch of an event of random allocation, by itself or after Poisson sampling; None for other events.

    Raises:
      TypeError, ValueError: a parameter outside its range, or a step without a bound.
    """
    inner: Any = event.event if isinstance(event, dp_accounting.PoissonSampledDpEvent) else event
    sums = inner.event if isinstance(inner, UnfinishedAllocationDpEvent) else inner
    if not isinstance(sums, RandomAllocationDpEvent):
        if isinstance(inner, UnfinishedAllocationDpEvent):
            raise _validate.type_error("a RandomAllocationDpEvent", event=sums)
        return None
    used = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        used = _validate.real(LEAST_RATE, 1, sampling_probability=event.sampling_probability)
    step = AllocatedStep.of(sums.event)
    steps = _validate.integer(1, MAX_SLOTS, num_steps=sums.num_steps)
    selected = _validate.integer(1, steps, num_selected=sums.num_selected)
    finished = steps
    if isinstance(inner, UnfinishedAllocationDpEvent):
        finished = _validate.integer(1, steps, finished_steps=inner.finished_steps)
    if finished < steps and selected > MOST_COUNTED:
        raise ValueError(
            f"num_selected={selected}: expected at most {MOST_COUNTED:,} in an epoch that is not finished"
        )
    if used * step.rate < LEAST_RATE:
        raise ValueError(
            f"sampling probabilities of {used!r} and {step.rate!r}: expected a product of at least {LEAST_RATE!r}"
        )
    return Epoch(step, selected, steps, finished, used)


@dataclasses.dataclass(frozen=True)
class GivenLosses(AsymmetricBound):
    """A step's pair, with a record and without it, below dp_accounting's pessimistic privacy loss distribution."""

    distribution: PrivacyLossDistribution

    name = "a privacy loss distribution"

    @functools.cached_property
    def _sides(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(losses, profile) for P||Q and Q||P, linear in e^loss between, exact but for rounding upwards.

        Raises:
          ValueError: an optimistic distribution, one of no losses, or of losses beyond 600.
        """
        found = []
        for pmf in (self.distribution._pmf_remove, self.distribution._pmf_add):
            dense = pmf.to_dense_pmf()
            if not dense._pessimistic_estimate:
                raise ValueError("event: an optimistic privacy loss distribution: expected a pessimistic one")
            gap = float(dense._discretization)
            masses = np.asarray(dense._probs, dtype=np.float64)[max(1 - dense._lower_loss, 0) :]
            first = max(dense._lower_loss, 1)
            losses = gap * np.append(0.0, np.arange(first, first + masses.size))
            if losses[-1] > _MOST_LOSS:
                raise ValueError(f"event: a privacy loss of {losses[-1]!r}: expected at most {_MOST_LOSS!r}")
            # sum_{j > i} masses_j e^{l_i - l_j} from the last to the first; then the profile's falls.
            weights = np.exp(-np.diff(losses))[::-1]
            later = np.zeros(losses.size)
            if masses.size:
                fade = math.exp(-gap)
                later[1:-1] = scipy.signal.lfilter([fade], [1.0, -fade], masses[:0:-1])[::-1]
                later[0] = weights[-1] * (masses[0] + later[1])
            falls = np.expm1(np.diff(losses)) * later[:-1]
            profile = float(dense._infinity_mass) + np.append(np.cumsum(falls[::-1])[::-1], 0.0)
            found.append((losses, np.minimum(profile * (1.0 + 1e-9), 1.0)))
        return found

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        bounded = all(profile[-1] == 0.0 for _, profile in self._sides)
        return max(float(losses[-1]) for losses, _ in self._sides) if bounded else math.inf

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        losses, profile = self._sides[backward]
        loss = np.asarray(loss, dtype=np.float64)
        if losses.size == 1:
            return np.full(loss.shape, profile[0])
        return convex.held_chords(losses, profile, loss)


@dataclasses.dataclass(frozen=True)
class SampledEpoch(AsymmetricBound):
    """P = (1-q) Q + q P', P' the composition of an epoch's blocks; add-or-remove.

    Attributes:
      epoch: with k > 1 and q < 1. neg_log_tail: profiles are followed down to about exp(-neg_log_tail).
    """

    epoch: Epoch
    neg_log_tail: float

    name = "units of one of t/k steps after sampling"

    @functools.cached_property
    def _curve(self) -> privacy_profile.Curve:
        epoch = self.epoch
        delta = min(max(math.exp(-min(self.neg_log_tail, 690.0)), MIN_DELTA), 0.5)
        mass = self.neg_log_tail + math.log(min(epoch.selected, epoch.finished))
        units = [(epoch.step.one_of(size, prob, mass), count) for size, prob, count in epoch.blocks]
        return privacy_profile.curve(units, delta, Bracket(0.0, math.inf, ""), both=False)

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        curve = self._curve

        def side(profile: np.ndarray, at: np.ndarray) -> np.ndarray:
            finite = np.isfinite(at)
            return np.where(finite, convex.held_chords(curve.losses, profile, np.where(finite, at, 0.0)), 0.0)

        ahead, back = (functools.partial(side, each) for each in (curve.upper.forward, curve.upper.backward))
        return sampled_sides(ahead, back, self.epoch.used, loss)


@dataclasses.dataclass(frozen=True)
class SummedSteps:
    """Witness: the sum of the finished Gaussian steps, a mixture of N(j mu / sqrt(s), 1), against N(0, 1)."""

    grid_bound: UnitBound
    epoch: Epoch

    symmetric = False
    name = "the sum of all steps"

    @functools.cached_property
    def _mixture(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Shifts and their weights, rounded down, and the weight of no shift, rounded up."""
        assert self.epoch.step.noise is not None
        numbers, weights = self.epoch.groups
        shifts = self.epoch.step.noise.shift / math.sqrt(self.epoch.finished) * numbers
        return shifts, weights, 1.0 - float(weights.sum())

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        loss = np.asarray(loss, dtype=np.float64)
        shifts, weights, rest = self._mixture

        def log_ratio(x: np.ndarray) -> np.ndarray:
            each = np.log(weights) + shifts * (x[..., None] - 0.5 * shifts)
            return np.logaddexp(math.log(rest), np.logaddexp.reduce(each, axis=-1))

        def place(level: np.ndarray) -> np.ndarray:
            """Place at which the logarithm of the likelihood ratio, which increases, passes the level."""
            low, high = np.full(level.shape, -60.0), np.full(level.shape, 60.0 + shifts[-1])
            return bisected(lambda x: log_ratio(x) <= level, low, high, 60)[1]

        ahead, back = place(loss), place(-loss)
        far, near = scipy.special.ndtr(-ahead), scipy.special.ndtr(shifts - ahead[..., None])
        more = np.sum(weights * (near - far[..., None] - 1e-13 * near), axis=-1)
        # Below a place: the shifts are to the other side.
        none, near = scipy.special.ndtr(back), scipy.special.ndtr(back[..., None] - shifts)
        less = np.sum(weights * (none[..., None] - near - 1e-13 * none[..., None]), axis=-1)
        mass = rest * none + np.sum(weights * near, axis=-1)
        return (np.maximum(more, 0.0), far * (1.0 + ROUNDING)), (
            np.maximum(less, 0.0),
            mass * (1.0 + ROUNDING),
        )


class StepProbs(NamedTuple):
    """Probabilities that a step is beyond a threshold: with the first record in it, with the second, and without."""

    first: float
    second: float
    none: float

    @property
    def apart(self) -> float:
        """The records' difference over the standard deviation without them."""
        return (self.first - self.second) / math.sqrt(self.none * (1.0 - self.none))

    @classmethod
    def of(cls, step: AllocatedStep, opposite: bool) -> StepProbs:
        """At the threshold that tells most of one record among many steps; no second record unless opposite."""
        noise, rate = step.noise, step.rate
        assert noise is not None
        places = np.linspace(0.0, noise.shift + 3.0, 97)

        def beyond(shift: float) -> np.ndarray:
            return rate * noise.tail(places, shift) + (1.0 - rate) * noise.tail(places, 0.0)

        first, none = beyond(noise.shift), beyond(0.0)
        second = beyond(-noise.shift) if opposite else none
        best = int(np.argmax(np.square(first - second) / (none * (1.0 - none))))
        return cls(float(first[best]), float(second[best]), float(none[best]))


@dataclasses.dataclass(frozen=True, eq=False)
class CountedSteps:
    """Witness: the number of finished steps beyond a threshold, a binomial number and one of the record's steps.

    probs: of a step. neg_log_tail: masses up to exp(-neg_log_tail) are negligible.
    """

    grid_bound: UnitBound
    epoch: Epoch
    probs: StepProbs
    neg_log_tail: float

    symmetric = False
    name = "the number of steps beyond a threshold"

    def _windows(self, numbers: np.ndarray, prob: float) -> list[np.ndarray]:
        """Of each number, values outside which Bin(number, prob) is with a probability of at most 2 e^-neg_log_tail."""
        exponent = np.array(self.neg_log_tail)
        least, most = (limit(numbers, prob, exponent) for limit in (chernoff.fewest, chernoff.most))
        return [np.arange(first, last + 1.0) for first, last in zip(least, most)]

    @functools.cached_property
    def affordable(self) -> bool:
        """True if the laws are convolutions of not too many terms."""
        numbers, _ = self.epoch.groups
        deviations = math.sqrt(self.epoch.finished) * math.sqrt(float(numbers[-1]))
        return (
            self.neg_log_tail <= _MOST_EXPONENT
            and numbers.size * deviations * self.neg_log_tail < _MOST_TERMS
        )

    def _sums(self, own: np.ndarray, prob: float) -> list[tuple[int, np.ndarray]]:
        """Least values, and laws, of the number of steps beyond the threshold if so many of them have `prob`."""
        rest, none, found = self.epoch.finished - own, self.probs.none, []
        for some, others, here, there in zip(rest, own, self._windows(rest, none), self._windows(own, prob)):
            without, beyond = (
                np.exp(np.asarray(binomial.log_pmf(window, number, at)))
                for window, number, at in ((here, some, none), (there, others, prob))
            )
            found.append((int(here[0] + there[0]), np.convolve(without, beyond)))
        return found

    @functools.cached_property
    def _laws(self) -> tuple[np.ndarray, np.ndarray]:
        """Laws of the number with the first record and with the second, at the same values, without rare values."""
        numbers, weights = self.epoch.groups
        own, shares = np.append(0.0, numbers), np.append(1.0 - float(weights.sum()), weights)
        sums = [self._sums(own, prob) for prob in (self.probs.first, self.probs.second)]
        least = min(first for side in sums for first, _ in side)
        size = max(first + law.size for side in sums for first, law in side) - least
        found = np.zeros((2, size))
        for side, total in zip(sums, found):
            for (first, law), weight in zip(side, shares):
                total[first - least : first - least + law.size] += weight * law
        return found[0], found[1]

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        loss, (first, second) = np.asarray(loss, dtype=np.float64), self._laws
        return self._lines(first[::-1], second[::-1], loss), self._lines(second, first, loss)

    def _lines(self, near: np.ndarray, far: np.ndarray, loss: np.ndarray) -> Lines:
        """Lines of the events of the first values, up to the last one whose loss exceeds the given one."""
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = np.log(near) - np.log(far)
        # The first values are the most likely under `near`; rounding may disorder those of next to no mass.
        beyond = np.maximum.accumulate(np.nan_to_num(losses, nan=-np.inf)[::-1])
        count = losses.size - np.searchsorted(beyond, loss, side="right")
        lost = 4.0 * math.exp(-self.neg_log_tail)
        masses = [np.append(0.0, np.cumsum(each)) for each in (near, far)]
        mass = np.where(count > 0, masses[1][count] * (1.0 + _PMF) + lost, 0.0)
        return np.maximum(masses[0][count] * (1.0 - _PMF) - mass, 0.0), mass


def units_of(event: DpEvent, relation: str, mass: float = 31.0) -> list[tuple[UnitBound, int]]:
    """(bound, count) pairs whose composition bounds one application of a central event.

    mass: -log of the mass that a unit may drop, see `interface.neg_log_tail`; used by random allocation only.

    Raises:
      ValueError: as `bound_of`.
    """
    epoch = epoch_of(event)
    if epoch is not None:
        return epoch.units(relation, mass)
    return [(bound_of(event, relation), 1)]


def units_in(event: DpEvent) -> int:
    """Number of units of one application of a central event."""
    epoch = epoch_of(event)
    return 1 if epoch is None else epoch.number
