"""Privacy loss distributions of units, as dp_accounting's objects."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.bounds.interface import UnitBound
from checkin_jax.accounting.bounds.select import (
    BEST,
    check_bounds,
    check_protocol,
    check_randomizer,
    unit_bound,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.laws import laws_above
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer

_MAX_KNOTS = 2_000_000


@named
def to_pld(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str = "messages",
    *,
    value_discretization_interval: float = 1e-4,
    tail_mass: float = 1e-15,
    bounds: str | Sequence[str] = BEST,
    neighboring_relation: str | NeighboringRelation = REPLACE,
) -> PrivacyLossDistribution:
    """Returns the privacy loss distribution of ONE unit of the protocol (a round, or a window), to be composed.

    Pessimistic: a pair on a grid whose profile is at least the unit's in both directions (connect the dots). Every
    epsilon or delta computed from it is an upper bound, up to dp_accounting's own FFT round-off.

    Args:
      protocol: as in `account`; its number of units is ignored.
      randomizer: as in `account`.
      view: as in `account`.
      value_discretization_interval: spacing of the grid, nats, in (0, 500].
      tail_mass: mass of the unit that counts at infinite loss, in (0, 1).
      bounds: as in `account`.
      neighboring_relation: as in `account`; under add-or-remove-one the two directions differ.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range; or a grid of more than 2e6 points.
    """
    check_protocol(protocol)
    check_randomizer(randomizer)
    _validate.choice(VIEWS, view=view)
    relation = relation_of(neighboring_relation)
    spacing, tail_mass = grid_of(value_discretization_interval, tail_mass)
    with float64():
        wanted = check_bounds(bounds)
        one = unit_bound(protocol, randomizer, view, 1.0, tail_mass, bounds=wanted, relation=relation).bound
        return pld_of(one, spacing=spacing, tail_mass=tail_mass)


def grid_of(value_discretization_interval: float, tail_mass: float) -> tuple[float, float]:
    """Both arguments, checked.

    Raises:
      TypeError, ValueError: an argument outside its range.
    """
    spacing = _validate.real(0, 500, "(]", value_discretization_interval=value_discretization_interval)
    return spacing, _validate.real(0, 1, "()", tail_mass=tail_mass)


def pld_of(one: UnitBound, *, spacing: float, tail_mass: float) -> PrivacyLossDistribution:
    """`to_pld` of a bound on a unit; call inside `float64()`.

    Raises:
      ValueError: a grid of more than 2e6 points.
    """
    farthest = compose.truncation_loss(one, 1.0, tail_mass)
    size = max(math.ceil(farthest / spacing * (1.0 - 1e-12)), 1)
    if size > _MAX_KNOTS:
        raise ValueError(
            f"value_discretization_interval={spacing!r}: expected at least {farthest / _MAX_KNOTS:.3g}, "
            f"losses extend to {farthest:.3g}"
        )
    losses = spacing * np.arange(size + 1)
    return PrivacyLossDistribution(*(_pmf(law, spacing) for law in laws_above(one, losses)))


def composed_pld(
    units: Sequence[tuple[UnitBound, int]], *, spacing: float, tail_mass: float
) -> PrivacyLossDistribution:
    """`pld_of` of all units with their numbers; tail_mass: of each unit. Call inside `float64()`."""
    parts = (pld_of(one, spacing=spacing, tail_mass=tail_mass).self_compose(count) for one, count in units)
    return functools.reduce(lambda one, other: one.compose(other), parts)


def _pmf(atoms: pld.Atoms, spacing: float) -> DensePLDPmf:
    masses = np.asarray(atoms.masses)
    return DensePLDPmf(
        discretization=spacing,
        lower_loss=-(masses.size // 2),
        probs=masses.copy(),
        infinity_mass=float(atoms.infinite),
        pessimistic_estimate=True,
    )
