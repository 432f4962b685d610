"""Units as dp_accounting's DpEvents, whose fields are public information only.

As in dp_accounting, the meaning of an event never changes; a new meaning gets a new class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attr
from dp_accounting import DpEvent, SelfComposedDpEvent

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.bounds.select import check_protocol, check_randomizer, has_identical_units
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.protocols.availability import AvailableCheckIn
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
