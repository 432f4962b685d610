"""Units in dp_accounting's terms: `DpEvent`s, whose fields are public information only, and loss distributions.

As in dp_accounting, the meaning of an event never changes; a new meaning gets a new class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import attr
import numpy as np
from dp_accounting import DpEvent, NeighboringRelation, SelfComposedDpEvent
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
    has_identical_units,
    unit_bound,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.search import laws_above
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.protocols.rounds import AvailableCheckIn
from checkin_jax.randomizers import Randomizer


@attr.s(frozen=True, slots=True, auto_attribs=True)
class CheckInDpEvent(DpEvent):
    """One unit of a check-in protocol: a round, or a whole window; or all rounds of an availability log.

    Attributes:
      protocol: the protocol, with one unit. Rounds with different bounds (`AvailableCheckIn`) are one event together.
      randomizer: the randomizer that each client applies to its update before sending it.
      view: "local", "messages" or "aggregate": the adversary's view of the unit.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str = "messages"


class ProtocolUnit(NamedTuple):
    """One unit of a protocol, its randomizer, and the view."""

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str


@named
def to_event(protocol: CheckInProtocol, randomizer: Randomizer, *, view: str = "messages") -> DpEvent:
    """Event of a whole run: one unit, self-composed by the protocol's number of units.

    A run of `AvailableCheckIn`, whose rounds differ, is one event with its whole log.

    Args:
      protocol: the protocol, with its number of units.
      randomizer: the randomizer that each client applies to its update before sending it.
      view: the adversary, as in `account`.

    Raises:
      TypeError, ValueError: not a protocol or a randomizer, or no such view.
    """
    count = protocol.num_units if has_identical_units(check_protocol(protocol)) else 1
    return SelfComposedDpEvent(unit_event(protocol, randomizer, view), count)


def unit_event(protocol: CheckInProtocol, randomizer: Randomizer, view: str = "messages") -> CheckInDpEvent:
    """The event of one unit; the protocol's number of units is ignored if all have the same bound.

    Raises:
      TypeError, ValueError: not a protocol or a randomizer, or no such view.
    """
    unit = protocol.repeated(1) if has_identical_units(check_protocol(protocol)) else protocol
    check_randomizer(randomizer)
    return CheckInDpEvent(unit, randomizer, _validate.choice(VIEWS, view=view))


def to_unit(event: CheckInDpEvent) -> ProtocolUnit:
    """The unit of an event.

    Raises:
      TypeError, ValueError: a field that is no protocol of one unit, no randomizer or no view.
    """
    if check_protocol(event.protocol).num_units != 1 and has_identical_units(event.protocol):
        raise _validate.error("one unit, composed as often as it repeats", protocol=event.protocol)
    check_randomizer(event.randomizer)
    return ProtocolUnit(event.protocol, event.randomizer, _validate.choice(VIEWS, view=event.view))


def joined(counts: Mapping[CheckInDpEvent, int]) -> list[tuple[ProtocolUnit, int]]:
    """Units and their counts; availability logs with the same count are joined into one log.

    So the rounds of a year that was composed month by month are grouped as those of the year.
    """
    logs: dict[tuple, list[AvailableCheckIn]] = {}
    out = []
    for event, count in counts.items():
        unit = to_unit(event)
        if isinstance(unit.protocol, AvailableCheckIn):
            key = unit.protocol.terms, unit.randomizer, unit.view, count
            logs.setdefault(key, []).append(unit.protocol)
        else:
            out.append((unit, count))
    for (_, randomizer, view, count), runs in logs.items():
        out.append((ProtocolUnit(runs[0].followed_by(runs[1:]), randomizer, view), count))
    return out


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
