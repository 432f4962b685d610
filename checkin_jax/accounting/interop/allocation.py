"""Random allocation: each record is used in k of t noisy sums, uniformly chosen; trusted server, central noise.

Under add-or-remove with k = 1 the pair is exactly `AllocationGaussian` with mu = 1 / noise_multiplier, as in G3. The
same pair, with weight q, covers Poisson sampling with probability q before the allocation, and, with weight s / t, an
epoch that ends after s of its t sums. Proofs, and bounds for k > 1 and replaced records: docs/theory_allocation.md, 6.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._suggest import named
from checkin_jax.accounting.account import MIN_DELTA
from checkin_jax.accounting.attack import AttackTerms, attack_terms
from checkin_jax.accounting.bounds.interface import LocalGaussian, UnitBound, minimum, neg_log_tail
from checkin_jax.accounting.bounds.windows.allocated_sums import (
    LEAST_MU,
    MOST_LATTICE_MU,
    AllocationGaussian,
    R2TwoSteps,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.accounting.interop.central_mechanisms import (
    GaussianNoise,
    Opposite,
    Sampled,
    SampledReplaced,
)
from checkin_jax.accounting.interop.dp_accounting_pld import composed_pld, grid_of
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import MAX_ROUNDS, REPLACE

# Range of noise_multiplier: noise standard deviation over the largest norm of one record's value.
LEAST_NOISE, MOST_NOISE = 1.0 / MOST_LATTICE_MU, 1.0 / LEAST_MU
_LEAST_PROB = 1e-9


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(DpEvent):
    """Applies `event` to each of num_steps batches; every record is in num_selected of them, uniformly chosen.

    Records choose independently of each other, and only the server sees the choices. This is one epoch of random
    allocation (balls and bins for num_selected = 1). It is NOT sampling of batches of a fixed size, in which records do
    not choose independently.

    Attributes:
      event: a GaussianDpEvent on the sum of values of norm at most 1.
      num_selected: k, 1 <= k <= t.
      num_steps: t, at most 1e9.
    """

    event: DpEvent
    num_selected: int
    num_steps: int


def allocated(event: DpEvent) -> RandomAllocationDpEvent | None:
    """The random allocation of an event, by itself or after Poisson sampling; None for other events."""
    inner = event.event if isinstance(event, dp_accounting.PoissonSampledDpEvent) else event
    return inner if isinstance(inner, RandomAllocationDpEvent) else None


def units_in(event: DpEvent) -> int:
    """Number of units of one application of an event of a trusted server."""
    sums = allocated(event)
    return 1 if sums is None else sums.num_selected


def units_of(event: DpEvent, relation: str, mass: float) -> list[tuple[UnitBound, int]]:
    """(bound, count) pairs whose composition bounds one application.

    Args:
      event: an event for which `allocated` is not None.
      relation: of `protocols.RELATIONS`.
      mass: -log of the negligible mass, see `neg_log_tail`.

    Raises:
      ValueError, TypeError: a parameter outside its range, or k > 1 after sampling, for which nothing is proved.
    """
    sums = allocated(event)
    assert sums is not None
    used = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        used = _validate.real(_LEAST_PROB, 1, sampling_probability=event.sampling_probability)
    if not isinstance(sums.event, dp_accounting.GaussianDpEvent):
        raise ValueError(f"random allocation of {type(sums.event).__name__}: expected GaussianDpEvent")
    noise = _validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=sums.event.noise_multiplier)
    steps = _validate.integer(1, MAX_SLOTS, num_steps=sums.num_steps)
    selected = _validate.integer(1, steps, num_selected=sums.num_selected)
    mu = 1.0 / noise
    if selected > 1 and used < 1.0:
        raise ValueError(
            f"num_selected={selected}: expected 1 after Poisson sampling, and in an unfinished epoch"
        )
    replaced = relation == REPLACE
    one = _replaced if replaced else _one_of
    if selected == 1:
        return [(one(steps, used, mu, mass), 1)]
    # Witness: the sum of all steps is Gaussian with shift k, or 2 k between opposite records, of which each of the k
    # units has its share.
    witnesses = (LocalGaussian(1.0, (2.0 if replaced else 1.0) * mu * math.sqrt(selected / steps)),)
    short, longer = divmod(steps, selected)
    blocks = [(short, selected - longer), (short + 1, longer)]
    return [(minimum([one(size, 1.0, mu, mass)], witnesses), count) for size, count in blocks if count]


def _one_of(steps: int, used: float, mu: float, mass: float) -> UnitBound:
    """The exact bound on one uniformly chosen step of `steps`, taken with probability `use_prob`; add-or-remove."""
    if steps > 1:
        return AllocationGaussian(steps, used, mu, mass)
    return LocalGaussian(1.0, mu) if used == 1.0 else Sampled(GaussianNoise(mu), used)


def _replaced(steps: int, used: float, mu: float, mass: float) -> UnitBound:
    """R2, or a revealed step, under replace-one; the witnesses have a record of zeros, or opposite records."""
    revealed = LocalGaussian(1.0, 2.0 * mu) if used == 1.0 else SampledReplaced(GaussianNoise(mu), used)
    if steps == 1:
        return revealed
    pair = AllocationGaussian(steps, used, mu, mass)
    shift = mu / math.sqrt(steps)
    opposite = (
        LocalGaussian(1.0, 2.0 * shift) if used == 1.0 else Opposite(revealed, GaussianNoise(shift), used)
    )
    return minimum([R2TwoSteps(pair), revealed], (pair, opposite))


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


def _words(event: DpEvent) -> str:
    sums: Any = allocated(event)
    selected = f"in {sums.num_selected:,} of them"
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        selected += f" with probability {event.sampling_probability:.6g}, else in none"
    return f"Gaussian noise of {sums.event.noise_multiplier!r} on each of {sums.num_steps:,} sums, a record {selected}"


def _units(
    events: tuple[tuple[DpEvent, int], ...], relation: str, delta: float
) -> list[tuple[UnitBound, int]]:
    number = sum(count * units_in(event) for event, count in events)
    mass = neg_log_tail(float(number), delta)
    return [(one, times * count) for event, count in events for one, times in units_of(event, relation, mass)]


@named
def random_allocation(
    noise_multiplier: float,
    num_steps: int,
    *,
    delta: float,
    neighboring_relation: str | NeighboringRelation,
    num_selected: int = 1,
    num_epochs: int = 1,
    unfinished_steps: int = 0,
    sampling_prob: float = 1.0,
) -> AllocationGuarantee:
    """Certified bracket for sampling by random allocation (balls and bins) with central Gaussian noise.

    In each epoch every record is in `num_selected` of `num_steps` sums, uniformly chosen, independently of the others.
    A trusted server adds noise to each sum and publishes it. Values may depend on all earlier sums.

    Theorem: under add-or-remove with num_selected = 1 the pair P = (1-q) Q + (q/t) sum_i N(mu e_i, I), Q = N(0, I) is
    attained, so the ends differ by rounding and lattices only. num_selected = k > 1 is at most k units of one of t/k
    steps [Feldman, Shenfeld 2025; proof for adaptive values in docs/theory_allocation.md, 6]. Under replace-one each
    unit is bounded by two-steps (R2).

    Args:
      noise_multiplier: noise standard deviation over the largest norm of a record's value, in [1/12, 1e6].
      num_steps: t, 1 to 1e9.
      delta: in [1e-300, 1].
      neighboring_relation: "add-or-remove-one" or "replace-one", or dp_accounting's; no default.
      num_selected: k, 1 to t.
      num_epochs: number of finished epochs; 0 only before an unfinished one.
      unfinished_steps: s, 0 to t - 1: sums of one more epoch, of a run that stops inside it. The bound is that of one
        of s steps after sampling with probability q s / t. The stop must not depend on the sums.
      sampling_prob: q in [1e-9, 1], the probability that a record takes part in an epoch, drawn anew in each (Poisson
        sampling before the allocation). num_selected is 1 below q = 1 and with unfinished steps.

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
    noise = _validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=noise_multiplier)
    steps = _validate.integer(1, MAX_SLOTS, num_steps=num_steps)
    selected = _validate.integer(1, steps, num_selected=num_selected)
    unfinished = _validate.integer(0, steps - 1, unfinished_steps=unfinished_steps)
    num_epochs = _validate.integer(0 if unfinished else 1, MAX_ROUNDS, num_epochs=num_epochs)
    prob = _validate.real(_LEAST_PROB, 1, sampling_prob=sampling_prob)
    if selected * num_epochs > MAX_ROUNDS:
        raise ValueError(
            f"num_selected * num_epochs = {selected * num_epochs}: expected at most {MAX_ROUNDS}"
        )
    events = [(_event(noise, selected, steps, prob), num_epochs)] if num_epochs else []
    if unfinished:
        events.append((_event(noise, selected, unfinished, prob * unfinished / steps), 1))
    with float64():
        units = _units(tuple(events), relation, delta)
    found = compose.bracket(units, delta)
    if relation == REPLACE:
        name = "R2: out of the record's place, and into it"
    else:
        name = "the pair of random allocation"
    if selected > 1:
        name = f"{selected} units of one of t/k steps" + (f", each by {name}" if relation == REPLACE else "")
    by_pair = AllocationGaussian.name in found.lower_method
    below = "the pair of random allocation" if by_pair else "the sum of all steps"
    return AllocationGuarantee(
        found.upper, found.lower, delta, relation, tuple(events), f"{name}, {found.method}", below
    )


def _event(noise: float, selected: int, steps: int, prob: float) -> DpEvent:
    sums = RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(noise), selected, steps)
    return sums if prob == 1.0 else dp_accounting.PoissonSampledDpEvent(prob, sums)
