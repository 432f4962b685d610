"""Random allocation: each record is used in k of t noisy sums, uniformly chosen; trusted server, central noise.

Under add-or-remove with k = 1 the pair is exactly `AllocationGaussian` with mu = 1 / noise_multiplier, as in G3. The
bounds for k > 1 and for replaced records are in docs/theory_allocation.md, 8.
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
from checkin_jax.accounting.bounds.interface import (
    LocalGaussian,
    UnitBound,
    least,
    log_inverse_mass,
)
from checkin_jax.accounting.bounds.windows.allocated_sums import (
    LEAST_MU,
    MOST_LATTICE_MU,
    AllocationGaussian,
    R2TwoSteps,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.accounting.interop.dp_accounting_pld import grid_of, pld_of
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import MAX_ROUNDS, REPLACE

# Range of noise_multiplier: noise standard deviation over the largest norm of one record's value.
LEAST_NOISE, MOST_NOISE = 1.0 / MOST_LATTICE_MU, 1.0 / LEAST_MU


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


def units_of(event: RandomAllocationDpEvent, relation: str, mass: float) -> list[tuple[UnitBound, int]]:
    """(bound, count) pairs whose composition bounds one application.

    Args:
      event: the event.
      relation: of `protocols.RELATIONS`.
      mass: -log of the negligible mass, see `log_inverse_mass`.

    Raises:
      ValueError, TypeError: a parameter outside its range, or k > 1 under replacement, for which nothing is proved.
    """
    if not isinstance(event.event, dp_accounting.GaussianDpEvent):
        raise ValueError(f"random allocation of {type(event.event).__name__}: expected GaussianDpEvent")
    noise = _validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=event.event.noise_multiplier)
    steps = _validate.integer(1, MAX_SLOTS, num_steps=event.num_steps)
    selected = _validate.integer(1, steps, num_selected=event.num_selected)
    mu = 1.0 / noise
    if relation == REPLACE:
        if selected > 1:
            raise ValueError(
                f"num_selected={selected}: expected 1 under {REPLACE!r}; for more a bound is proved where records are "
                "added or removed"
            )
        return [(_replaced(steps, mu, mass), 1)]
    if selected == 1:
        return [(_one_of(steps, mu, mass), 1)]
    # Instance: the sum of all steps is Gaussian with shift k, of which each of the k units has its share.
    sums = (LocalGaussian(1.0, mu * math.sqrt(selected / steps)),)
    short, longer = divmod(steps, selected)
    blocks = [(short, selected - longer), (short + 1, longer)]
    return [(least([_one_of(size, mu, mass)], sums), count) for size, count in blocks if count]


def _one_of(steps: int, mu: float, mass: float) -> UnitBound:
    """The exact bound on one uniformly chosen step of `steps`, under add-or-remove."""
    return LocalGaussian(1.0, mu) if steps == 1 else AllocationGaussian(steps, 1.0, mu, mass)


def _replaced(steps: int, mu: float, mass: float) -> UnitBound:
    """R2, or no gain, under replace-one; the instances have a record of zeros, or opposite records."""
    if steps == 1:
        return LocalGaussian(1.0, 2.0 * mu)
    pair = AllocationGaussian(steps, 1.0, mu, mass)
    return least(
        [R2TwoSteps(pair), LocalGaussian(1.0, 2.0 * mu)],
        (pair, LocalGaussian(1.0, 2.0 * mu / math.sqrt(steps))),
    )


@dataclasses.dataclass(frozen=True)
class AllocationGuarantee:
    """The result of `random_allocation`: a bracket of epsilon.

    Attributes:
      epsilon: certified upper end in nats, rounded up.
      lower: lower end in nats, rounded down; no valid bound is below it.
      delta: the delta of both ends.
      neighboring_relation: "add-or-remove-one" or "replace-one".
      event: one epoch.
      num_epochs: number of epochs composed.
      method, lower_method: methods of the two ends.
    """

    epsilon: float
    lower: float
    delta: float
    neighboring_relation: str
    event: RandomAllocationDpEvent
    num_epochs: int
    method: str
    lower_method: str

    validity = "certified"

    def _units(self) -> list[tuple[UnitBound, int]]:
        return _epochs(self.event, self.num_epochs, self.neighboring_relation, self.delta)

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
            units = _epochs(self.event, self.num_epochs, self.neighboring_relation, tail_mass)
            share = tail_mass / sum(count for _, count in units)
            parts = [
                pld_of(one, spacing=spacing, tail_mass=share).self_compose(count) for one, count in units
            ]
        return functools.reduce(lambda one, other: one.compose(other), parts)

    def __str__(self) -> str:
        noise: Any = self.event.event
        return "\n".join(
            [
                f"({up(self.epsilon)}, {self.delta!r})-differential privacy, {self.validity}",
                f"  mechanism  Gaussian noise of {noise.noise_multiplier!r} on each of {self.event.num_steps:,} sums, "
                f"a record in {self.event.num_selected:,} of them, {self.num_epochs:,} epochs",
                f"  adjacency  {self.neighboring_relation}",
                f"  bracket    {down(self.lower)} <= epsilon <= {up(self.epsilon)}",
                f"  upper end  {self.method}",
                f"  lower end  {self.lower_method}",
            ]
        )


def _epochs(
    event: RandomAllocationDpEvent, num_epochs: int, relation: str, delta: float
) -> list[tuple[UnitBound, int]]:
    mass = log_inverse_mass(float(num_epochs) * event.num_selected, delta)
    return [(one, count * num_epochs) for one, count in units_of(event, relation, mass)]


@named
def random_allocation(
    noise_multiplier: float,
    num_steps: int,
    *,
    delta: float,
    neighboring_relation: str | NeighboringRelation,
    num_selected: int = 1,
    num_epochs: int = 1,
) -> AllocationGuarantee:
    """Certified bracket for sampling by random allocation (balls and bins) with central Gaussian noise.

    In each epoch every record is in `num_selected` of `num_steps` sums, uniformly chosen, independently of the others.
    A trusted server adds noise to each sum and publishes it. Values may depend on all earlier sums.

    Theorem: under add-or-remove with num_selected = 1 the pair P = (1/t) sum_i N(mu e_i, I), Q = N(0, I) is attained,
    so the ends differ by rounding and lattices only. num_selected = k > 1 is at most k units of one of t/k steps
    [Feldman, Shenfeld 2025; proof for adaptive values in docs/theory_allocation.md, 8]. Under replace-one with
    num_selected = 1: two-steps (R2).

    Args:
      noise_multiplier: noise standard deviation over the largest norm of a record's value, in [1/12, 1e6].
      num_steps: t, 1 to 1e9.
      delta: in [1e-300, 1].
      neighboring_relation: "add-or-remove-one" or "replace-one", or dp_accounting's; no default.
      num_selected: k, 1 to t; 1 under "replace-one".
      num_epochs: number of epochs.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.

    Examples:
      >>> import checkin_jax as cj
      >>> g = cj.random_allocation(1.0, 1_000, delta=1e-6, neighboring_relation="add-or-remove-one", num_epochs=10)
      >>> print(f"{g.lower:.3f} <= epsilon <= {g.epsilon:.3f}")
      0.540 <= epsilon <= 0.541
    """
    delta = _validate.real(MIN_DELTA, 1, delta=delta)
    num_epochs = _validate.integer(1, MAX_ROUNDS, num_epochs=num_epochs)
    relation = relation_of(neighboring_relation)
    noise = _validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=noise_multiplier)
    steps = _validate.integer(1, MAX_SLOTS, num_steps=num_steps)
    selected = _validate.integer(1, steps, num_selected=num_selected)
    if selected * num_epochs > MAX_ROUNDS:
        raise ValueError(
            f"num_selected * num_epochs = {selected * num_epochs}: expected at most {MAX_ROUNDS}"
        )
    event = RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(noise), selected, steps)
    with float64():
        units = _epochs(event, num_epochs, relation, delta)
    found = compose.bracket(units, delta)
    if relation == REPLACE:
        name = "R2: out of the record's place, and into it"
    else:
        name = "the pair of random allocation" if selected == 1 else f"{selected} units of one of t/k steps"
    below = (
        "the sum of all steps"
        if found.lower_method == LocalGaussian.name
        else "the pair of random allocation"
    )
    return AllocationGuarantee(
        found.upper, found.lower, delta, relation, event, num_epochs, f"{name}, {found.method}", below
    )
