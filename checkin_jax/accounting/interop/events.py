"""Units in dp_accounting's terms: `DpEvent`s, whose fields are public information only, and loss distributions.

As in dp_accounting, the meaning of an event never changes; a new meaning gets a new class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attr
import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.bounds.interface import UnitBound
from checkin_jax.accounting.bounds.select import (
    check_protocol,
    check_randomizer,
    has_identical_units,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.search import laws_above
from checkin_jax.kernels.composition import pld
from checkin_jax.protocols import VIEWS, CheckInProtocol
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


def to_unit(event: CheckInDpEvent) -> CheckInDpEvent:
    """The event itself, a unit.

    Raises:
      TypeError, ValueError: a field that is no protocol of one unit, no randomizer or no view.
    """
    if check_protocol(event.protocol).num_units != 1 and has_identical_units(event.protocol):
        raise _validate.error("one unit, composed as often as it repeats", protocol=event.protocol)
    check_randomizer(event.randomizer)
    _validate.choice(VIEWS, view=event.view)
    return event


def joined(counts: Mapping[CheckInDpEvent, int]) -> list[tuple[CheckInDpEvent, int]]:
    """Events and their counts; availability logs with the same count are joined into one log.

    So the rounds of a year that was composed month by month are grouped as those of the year.
    """
    logs: dict[tuple, list[AvailableCheckIn]] = {}
    out = []
    for event, count in counts.items():
        if isinstance(event.protocol, AvailableCheckIn):
            key = event.protocol.terms, event.randomizer, event.view, count
            logs.setdefault(key, []).append(event.protocol)
        else:
            out.append((event, count))
    for (_, randomizer, view, count), runs in logs.items():
        out.append((CheckInDpEvent(runs[0].followed_by(runs[1:]), randomizer, view), count))
    return out


_MAX_KNOTS = 2_000_000


def pld_of(one: UnitBound, *, spacing: float, tail_mass: float) -> PrivacyLossDistribution:
    """Privacy loss distribution of a bound on a unit; call inside `float64()`.

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


def _pmf(atoms: pld.Atoms, spacing: float) -> DensePLDPmf:
    masses = np.asarray(atoms.masses)
    return DensePLDPmf(
        discretization=spacing,
        lower_loss=-(masses.size // 2),
        probs=masses.copy(),
        infinity_mass=float(atoms.infinite),
        pessimistic_estimate=True,
    )
