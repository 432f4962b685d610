"""Epochs of random allocation: their event, and bounds on their units. Proofs: docs/theory_allocation.md, 6.

With k = 1 under add-or-remove the pair is exactly that of one step of t, of weight q after Poisson sampling with
probability q before the allocation. k > 1 are k units of one of t/k steps.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import LocalGaussian, UnitBound, Witness, minimum
from checkin_jax.accounting.bounds.windows.allocated_sums import (
    LEAST_MU,
    MOST_LATTICE_MU,
    AllocatedPair,
    AllocationGaussian,
    R2TwoSteps,
)
from checkin_jax.accounting.interop.central_bounds import LEAST_RATE, noise_of
from checkin_jax.accounting.interop.central_mechanisms import (
    GaussianNoise,
    Noise,
    Opposite,
    Sampled,
    SampledReplaced,
)
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import REPLACE

# Range of noise_multiplier: noise standard deviation over the largest norm of one record's value.
LEAST_NOISE, MOST_NOISE = 1.0 / MOST_LATTICE_MU, 1.0 / LEAST_MU


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(DpEvent):
    """Applies `event` to each of num_steps batches; every record is in num_selected of them, uniformly chosen.

    Records choose independently of each other, and only the server sees the choices. This is one epoch of random
    allocation (balls and bins for num_selected = 1). It is NOT sampling of batches of a fixed size, in which records do
    not choose independently.

    Attributes:
      event: one step: GaussianDpEvent or LaplaceDpEvent, on a sum of values of norm at most 1; or Poisson sampling of
        one of them.
      num_selected: k, 1 <= k <= t.
      num_steps: t, at most 1e9.
    """

    event: DpEvent
    num_selected: int
    num_steps: int


@dataclasses.dataclass(frozen=True)
class AllocatedStep:
    """One step: additive noise, and the probability that a record of the step is in its sum."""

    rate: float
    noise: Noise

    @property
    def mu(self) -> float | None:
        return self.noise.shift if isinstance(self.noise, GaussianNoise) else None

    @classmethod
    def of(cls, event: DpEvent) -> AllocatedStep:
        """The step of an event.

        Raises:
          TypeError, ValueError: no bound is known for it, or a parameter is outside its range.
        """
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
            f"random allocation of {type(event).__name__}: expected GaussianDpEvent, LaplaceDpEvent, or Poisson "
            "sampling of one of them"
        )

    def one_of(self, steps: int, used: float, mass: float) -> UnitBound:
        """The bound on one uniformly chosen step of `steps`, taken with probability `used`; add-or-remove."""
        used *= self.rate
        gaussian = isinstance(self.noise, GaussianNoise)
        if steps == 1:
            plain = used == 1.0 and gaussian
            return LocalGaussian(1.0, self.noise.shift) if plain else Sampled(self.noise, used)
        if gaussian:
            return AllocationGaussian(steps, used, self.noise.shift, mass)
        return AllocatedPair(steps, used, Sampled(self.noise, 1.0), mass)

    def one_replaced(self, steps: int, used: float, mass: float) -> UnitBound:
        """R2, or a revealed step, under replace-one; the witnesses have a record of zeros, or opposite records."""
        pair = self.one_of(steps, used, mass)
        used *= self.rate
        if used < 1.0:
            revealed = SampledReplaced(self.noise, used)
        elif isinstance(self.noise, GaussianNoise):
            revealed = LocalGaussian(1.0, 2.0 * self.noise.shift)
        else:
            revealed = Sampled(self.noise.times(2.0), 1.0)
        if steps == 1:
            return revealed
        assert isinstance(pair, AllocationGaussian | AllocatedPair)
        witnesses: tuple[Witness, ...] = (pair,)
        if isinstance(pair, AllocationGaussian):
            shift = pair.mu / math.sqrt(steps)
            opposite = Opposite(revealed, GaussianNoise(shift), used)
            witnesses += (LocalGaussian(1.0, 2.0 * shift) if used == 1.0 else opposite,)
        return minimum([R2TwoSteps(pair), revealed], witnesses)


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch of random allocation: k of t steps; with k = 1 the record takes part with probability `used`."""

    step: AllocatedStep
    selected: int
    steps: int
    used: float

    def units(self, relation: str, mass: float) -> list[tuple[UnitBound, int]]:
        """(bound, count) pairs whose composition bounds the epoch.

        Args:
          relation: of `protocols.RELATIONS`.
          mass: -log of the negligible mass of a unit, see `neg_log_tail`.
        """
        step, replaced = self.step, relation == REPLACE
        one = step.one_replaced if replaced else step.one_of
        short, longer = divmod(self.steps, self.selected)
        sizes = ((short, self.selected - longer), (short + 1, longer))
        units = [(one(size, self.used, mass), count) for size, count in sizes if count]
        if self.selected in (1, self.steps):
            return units
        # The blocks' own pairs are not attained. The sum of all steps is a witness.
        if step.mu is None or step.rate < 1.0:
            return [(minimum([unit]), count) for unit, count in units]
        # It is Gaussian with shift k, or 2 k between opposite records; each of the k units has its share.
        apart = (2.0 if replaced else 1.0) * step.mu * math.sqrt(self.selected / self.steps)
        return [(minimum([unit], (LocalGaussian(1.0, apart),)), count) for unit, count in units]


def epoch_of(event: DpEvent) -> Epoch | None:
    """The epoch of an event of random allocation, by itself or after Poisson sampling; None for other events.

    Raises:
      TypeError, ValueError: a parameter outside its range, or a step without a bound.
    """
    sampled = isinstance(event, dp_accounting.PoissonSampledDpEvent)
    sums: Any = event.event if sampled else event
    if not isinstance(sums, RandomAllocationDpEvent):
        return None
    used = 1.0
    if sampled:
        used = _validate.real(LEAST_RATE, 1, sampling_probability=event.sampling_probability)
    step = AllocatedStep.of(sums.event)
    steps = _validate.integer(1, MAX_SLOTS, num_steps=sums.num_steps)
    selected = _validate.integer(1, steps, num_selected=sums.num_selected)
    if used < 1.0 and selected > 1:
        raise _validate.error("1 after Poisson sampling", num_selected=selected)
    if used * step.rate < LEAST_RATE:
        raise ValueError(
            f"sampling probabilities of {used!r} and {step.rate!r}: expected a product of at least {LEAST_RATE!r}"
        )
    return Epoch(step, selected, steps, used)
