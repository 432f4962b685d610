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
from checkin_jax.accounting.interop.central_bounds import LEAST_RATE, noise_of
from checkin_jax.accounting.interop.central_mechanisms import (
    GaussianNoise,
    Noise,
    Opposite,
    Sampled,
    SampledReplaced,
    sampled_sides,
)
from checkin_jax.kernels import ROUNDING
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.numerics import convex
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import REPLACE
from checkin_jax.randomizers import KnownProfile

# Range of noise_multiplier: noise standard deviation over the largest norm of one record's value.
LEAST_NOISE, MOST_NOISE = 1.0 / MOST_LATTICE_MU, 1.0 / LEAST_MU
# Largest k of an epoch that is not finished, the error of its coins, and the number of their values.
MOST_COUNTED, _COUNTED, _KINDS = 10_000, 1e-9, 16
# Numbers of steps less likely than this count as none in the witness, which has at most so many groups of them.
_RARE, _GROUPS = 1e-4, 16
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
    def mu(self) -> float | None:
        return self.noise.shift if isinstance(self.noise, GaussianNoise) else None

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
        if self.mu is not None:
            shift = self.mu / math.sqrt(steps)
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
            return [(minimum([TwoSteps(pair)], pair.witnesses) if replaced else pair, 1)]
        units = [(one(size, prob, mass), count) for size, prob, count in self.blocks]
        if self.selected == self.steps == self.finished:
            return units
        # The blocks' own pairs are not attained. The sum of all steps is a witness.
        bare: list[tuple[UnitBound, int]] = [(minimum([unit]), count) for unit, count in units]
        if step.mu is None or step.rate < 1.0:
            return bare
        if self.finished == self.steps:
            # It is Gaussian with shift k, or 2 k between opposite records; each of the k units has its share.
            apart = (2.0 if replaced else 1.0) * step.mu * math.sqrt(self.selected / self.steps)
            return [(minimum([unit], (LocalGaussian(1.0, apart),)), count) for unit, count in units]
        (first, count), *others = bare
        summed = SummedSteps(LocalGaussian(1.0, step.mu * self.number / math.sqrt(self.finished)), self)
        return [(minimum([first], (summed,)), 1), (first, count - 1), *others]

    @functools.cached_property
    def blocks(self) -> list[Blocks]:
        """Blocks of the finished steps whose composition bounds the epoch that a record takes part in.

        The number of a record's steps among the finished ones is a sum of independent coins, one for each block. Their
        probabilities are rounded up to few values.
        """
        number = min(self.selected, self.finished)
        probs = np.sort(coins(self.steps, self.selected, self.finished))
        short, longer = divmod(self.finished, number)
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


def coins(total: int, selected: int, finished: int) -> np.ndarray:
    """Probabilities of min(k, s) independent coins whose sum is the number of k uniform ones of t among s of these.

    Rounded up. The generating function of this number is a Jacobi polynomial, which has real zeros [VM82]; they are the
    eigenvalues of a Jacobi matrix.
    """
    if finished == total:
        return np.ones(selected)
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

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        step = self.epoch.step
        return (SummedSteps(self, self.epoch),) if step.mu is not None and step.rate == 1.0 else ()


@dataclasses.dataclass(frozen=True)
class SummedSteps:
    """Witness: the sum of the finished Gaussian steps, a mixture of N(j mu / sqrt(s), 1), against N(0, 1)."""

    grid_bound: UnitBound
    epoch: Epoch

    symmetric = False
    name = "the sum of all steps"

    @functools.cached_property
    def _mixture(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Shifts and their weights, rounded down, in few groups; and the weight of no shift, rounded up.

        Numbers are rounded down within a group, rare ones to zero: all events of `lower` then tell less.
        """
        assert self.epoch.step.mu is not None
        kept = [(j, weight) for j, weight in self.epoch.chosen if j > 0 and weight > _RARE]
        groups = [part for part in np.array_split(np.array(kept), min(_GROUPS, len(kept))) if part.size]
        unit = self.epoch.step.mu / math.sqrt(self.epoch.finished)
        shifts = unit * np.array([part[0, 0] for part in groups])
        weights = self.epoch.used * (1.0 - _COUNTED) * np.array([part[:, 1].sum() for part in groups])
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
