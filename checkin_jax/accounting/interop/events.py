"""Our units in dp_accounting's language: a DpEvent whose fields are public information only.

The rules of dp_accounting hold: the meaning of an event never changes; a new meaning gets a new class.
"""

from __future__ import annotations

from typing import NamedTuple

import attr
from dp_accounting import DpEvent, SelfComposedDpEvent

from checkin_jax import _validate
from checkin_jax._names import named
from checkin_jax.accounting.bounds.choice import check_alike, check_protocol, check_randomizer
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer


@attr.s(frozen=True, slots=True, auto_attribs=True)
class CheckInDpEvent(DpEvent):
    """One unit of a check-in protocol: a round, or a whole window.

    Attributes:
      protocol: what is run; how often it repeats its unit is not part of the event (1 unit).
      randomizer: what each client applies to its update before sending it.
      view: "local", "messages" or "aggregate": what the adversary sees of the unit.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str = "messages"


class Unit(NamedTuple):
    """One unit of a protocol, what its messages are, and who looks."""

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str


@named
def to_event(protocol: CheckInProtocol, randomizer: Randomizer, *, view: str = "messages") -> DpEvent:
    """Returns the event of a whole run: one unit, composed with itself as often as the protocol repeats it.

    Raises:
      TypeError, ValueError: not a protocol or a randomizer, or no such view.
    """
    return SelfComposedDpEvent(unit_event(protocol, randomizer, view), check_protocol(protocol).repeats)


def unit_event(protocol: CheckInProtocol, randomizer: Randomizer, view: str = "messages") -> CheckInDpEvent:
    """The event of one unit; how often the protocol repeats it is ignored.

    Raises:
      TypeError, ValueError: not a protocol or a randomizer, or no such view.
    """
    check_alike(check_protocol(protocol))
    check_randomizer(randomizer)
    return CheckInDpEvent(protocol.repeated(1), randomizer, _validate.choice(VIEWS, view=view))


def to_unit(event: CheckInDpEvent) -> Unit:
    """The unit behind an event.

    Raises:
      TypeError, ValueError: a field that is no protocol of one unit, no randomizer or no view.
    """
    if check_protocol(event.protocol).repeats != 1:
        raise ValueError(
            f"protocol={_validate.shown(event.protocol)}: expected one unit, composed as often as it repeats"
        )
    check_randomizer(event.randomizer)
    return Unit(event.protocol, event.randomizer, _validate.choice(VIEWS, view=event.view))
