"""Random allocation: each record is used in k of t noisy steps, uniformly chosen; trusted server, central noise."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._suggest import named
from checkin_jax.accounting.account import MIN_DELTA
from checkin_jax.accounting.attack import AttackTerms, attack_terms
from checkin_jax.accounting.bounds.interface import LocalGaussian, UnitBound, neg_log_tail
from checkin_jax.accounting.bounds.windows.one_of_slots import OTHERS_ALIKE, RANDOM_ALLOCATION
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.accounting.interop.allocated_epochs import (
    LEAST_NOISE,
    MOST_NOISE,
    Epoch,
    RandomAllocationDpEvent,
    SummedSteps,
    UnfinishedAllocationDpEvent,
    epoch_of,
)
from checkin_jax.accounting.interop.central_bounds import LEAST_RATE
from checkin_jax.accounting.interop.dp_accounting_pld import composed_pld, grid_of
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import MAX_ROUNDS, REPLACE
from checkin_jax.randomizers import KnownProfile

# Names of witnesses of random allocation that are attained, and of sums of all steps.
_PAIRS, _SUMS = (OTHERS_ALIKE, RANDOM_ALLOCATION), (LocalGaussian.name, SummedSteps.name)


@dataclasses.dataclass(frozen=True)
class AllocationGuarantee:
    """The result of `random_allocation`: a bracket of epsilon.

    Attributes:
      epsilon: certified upper end in nats, rounded up.
      lower: lower end in nats, rounded down; no valid bound is below it.
      delta: the delta of both ends.
      neighboring_relation: "add-or-remove-one" or "replace-one".
      events: (event, count): the epochs, and the unfinished one, if any.
      method, lower_method: methods of the two ends.
    """

    epsilon: float
    lower: float
    delta: float
    neighboring_relation: str
    events: tuple[tuple[DpEvent, int], ...]
    method: str
    lower_method: str

    validity = "certified"

    def _units(self) -> list[tuple[UnitBound, int]]:
        return _units(self.events, self.neighboring_relation, self.delta)

    @functools.cached_property
    def attack(self) -> AttackTerms:
        """Attack terms with both ends certified."""
        with float64():
            units = self._units()
        return attack_terms(units, self.delta, Bracket(self.lower, self.epsilon, self.method), [])

    def to_pld(
        self, *, value_discretization_interval: float = 1e-4, tail_mass: float = 1e-15
    ) -> PrivacyLossDistribution:
        """Returns dp_accounting's privacy loss distribution of all epochs, pessimistic, see `checkin_jax.to_pld`.

        Raises:
          TypeError, ValueError: an argument outside its range.
        """
        spacing, tail_mass = grid_of(value_discretization_interval, tail_mass)
        with float64():
            units = _units(self.events, self.neighboring_relation, tail_mass)
            share = tail_mass / sum(count for _, count in units)
            return composed_pld(units, spacing=spacing, tail_mass=share)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"({up(self.epsilon)}, {self.delta!r})-differential privacy, {self.validity}",
                *(f"  mechanism  {_words(event)}, {count:,} times" for event, count in self.events),
                f"  adjacency  {self.neighboring_relation}",
                f"  bracket    {down(self.lower)} <= epsilon <= {up(self.epsilon)}",
                f"  upper end  {self.method}",
                f"  lower end  {self.lower_method}",
            ]
        )


def _epoch(event: DpEvent) -> Epoch:
    epoch = epoch_of(event)
    assert epoch is not None
    return epoch


def _words(event: DpEvent) -> str:
    epoch, inner = _epoch(event), event
    while not isinstance(inner, RandomAllocationDpEvent):
        inner = inner.event  # type: ignore[attr-defined]
    step: Any = inner.event
    known = isinstance(step, dp_accounting.GaussianDpEvent)
    what = f"Gaussian noise of {step.noise_multiplier!r} on each" if known else f"{_name(step)} as each"
    selected = f"in {epoch.selected:,} of them"
    if epoch.used < 1.0:
        selected += f" with probability {epoch.used:.6g}, else in none"
    shown = f", of which the first {epoch.finished:,} are shown" if epoch.finished < epoch.steps else ""
    return f"{what} of {epoch.steps:,} {'sums' if known else 'steps'}, a record {selected}{shown}"


def _name(step: Any) -> str:
    if isinstance(step, PrivacyLossDistribution):
        return "a given privacy loss distribution"
    return step.name if isinstance(step, KnownProfile) else repr(step)


def _units(
    events: tuple[tuple[DpEvent, int], ...], relation: str, delta: float
) -> list[tuple[UnitBound, int]]:
    number = sum(count * _epoch(event).number for event, count in events)
    mass = neg_log_tail(float(number), delta)
    return [
        (one, times * count) for event, count in events for one, times in _epoch(event).units(relation, mass)
    ]


@named
def random_allocation(
    noise_multiplier: float | DpEvent | PrivacyLossDistribution | KnownProfile,
    num_steps: int,
    *,
    delta: float,
    neighboring_relation: str | NeighboringRelation,
    num_selected: int = 1,
    num_epochs: int = 1,
    unfinished_steps: int = 0,
    sampling_prob: float = 1.0,
) -> AllocationGuarantee:
    """Certified bracket for sampling by random allocation (balls and bins) with central noise.

    In each epoch every record is in `num_selected` of `num_steps` steps, uniformly chosen, independently of the others.
    A trusted server publishes each step: by default a sum with Gaussian noise. Steps may depend on all earlier ones.

    Theorem: under add-or-remove with num_selected = 1 and a step's pair (P, Q) the epoch's pair is (1-q) Q^t + (q/t)
    sum_i (P in step i) against Q^t [Feldman, Shenfeld 2026], attained if the step's pair is. num_selected = k > 1 is at
    most k units of one of t/k steps [Feldman, Shenfeld 2025; proof for adaptive steps in docs/theory_allocation.md, 6].
    Under replace-one each unit is bounded by two-steps (R2).

    Args:
      noise_multiplier: noise standard deviation over the largest norm of a record's value, in [1/12, 1e6]; or another
        step, as `event` of `RandomAllocationDpEvent`.
      num_steps: t, 1 to 1e9.
      delta: in [1e-300, 1].
      neighboring_relation: "add-or-remove-one" or "replace-one", or dp_accounting's; no default.
      num_selected: k, 1 to t.
      num_epochs: number of finished epochs; 0 only before an unfinished one.
      unfinished_steps: s, 0 to t - 1: steps of one more epoch, of a run that stops inside it. The stop must not depend
        on what the steps show. num_selected is then at most 10,000.
      sampling_prob: q in [1e-9, 1], the probability that a record takes part in an epoch, drawn anew in each (Poisson
        sampling before the allocation).

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.

    Examples:
      >>> import checkin_jax as cj
      >>> g = cj.random_allocation(1.0, 1_000, delta=1e-6, neighboring_relation="add-or-remove-one", num_epochs=10)
      >>> print(f"{g.lower:.3f} <= epsilon <= {g.epsilon:.3f}")
      0.540 <= epsilon <= 0.541
    """
    delta = _validate.real(MIN_DELTA, 1, delta=delta)
    relation = relation_of(neighboring_relation)
    step: Any = noise_multiplier
    if not isinstance(step, DpEvent | PrivacyLossDistribution | KnownProfile):
        step = dp_accounting.GaussianDpEvent(_validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=step))
    steps = _validate.integer(1, MAX_SLOTS, num_steps=num_steps)
    selected = _validate.integer(1, steps, num_selected=num_selected)
    unfinished = _validate.integer(0, steps - 1, unfinished_steps=unfinished_steps)
    num_epochs = _validate.integer(0 if unfinished else 1, MAX_ROUNDS, num_epochs=num_epochs)
    prob = _validate.real(LEAST_RATE, 1, sampling_prob=sampling_prob)
    if selected * num_epochs > MAX_ROUNDS:
        raise ValueError(
            f"num_selected * num_epochs = {selected * num_epochs}: expected at most {MAX_ROUNDS}"
        )
    sums = RandomAllocationDpEvent(step, selected, steps)
    events = [(_sampled(sums, prob), num_epochs)] if num_epochs else []
    if unfinished and selected == 1:
        some = RandomAllocationDpEvent(step, 1, unfinished)
        events.append((_sampled(some, prob * unfinished / steps), 1))
    elif unfinished:
        events.append((_sampled(UnfinishedAllocationDpEvent(sums, unfinished), prob), 1))
    with float64():
        units = _units(tuple(events), relation, delta)
    found = compose.bracket(units, delta)
    names = dict.fromkeys(_theorem(_epoch(event), relation == REPLACE) for event, _ in events)
    below = found.lower_method
    for kinds, words in ((_PAIRS, RANDOM_ALLOCATION), (_SUMS, "the sum of all steps")):
        below = words if any(kind in below for kind in kinds) else below
    return AllocationGuarantee(
        found.upper,
        found.lower,
        delta,
        relation,
        tuple(events),
        f"{' and '.join(names)}, {found.method}",
        below,
    )


def _theorem(epoch: Epoch, replaced: bool) -> str:
    name = "R2: out of the record's place, and into it" if replaced else RANDOM_ALLOCATION
    if epoch.single:
        return name
    units = f"{min(epoch.selected, epoch.finished)} units of one of t/k steps"
    units += " after sampling" if epoch.used < 1.0 else ""
    return f"{units}, each by {name}" if replaced else units


def _sampled(event: DpEvent, prob: float) -> DpEvent:
    return event if prob == 1.0 else dp_accounting.PoissonSampledDpEvent(prob, event)
