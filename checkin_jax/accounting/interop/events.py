"""Our units in dp_accounting's language: DpEvents whose fields are public information only.

The rules of dp_accounting hold: the meaning of an event never changes; a new meaning gets a new class.
"""

from __future__ import annotations

from typing import NamedTuple

import attr
from dp_accounting import DpEvent, SelfComposedDpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.dispatch import check_protocol, check_randomizer
from checkin_jax.accounting.guarantee import VIEWS
from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
)
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PureLdpDpEvent(DpEvent):
    """A message of a randomizer with pure local differential privacy epsilon0 (replace-one)."""

    epsilon0: float


@attr.s(frozen=True, slots=True, auto_attribs=True)
class GaussianMessageDpEvent(DpEvent):
    """A message clip_C(g) + N(0, (noise_multiplier C)^2 I): under replace-one, mu = 2 / noise_multiplier."""

    noise_multiplier: float


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ShuffledCheckInDpEvent(DpEvent):
    """One round of shuffled check-in; of plain shuffling where check_in_prob is 1.

    Attributes:
      num_clients: how many clients flip the coin.
      check_in_prob: probability that a given client's message arrives, drop-out included.
      message: PureLdpDpEvent or GaussianMessageDpEvent: what each participant sends.
      view: "local", "messages" or "aggregate": what the adversary sees of the round.
    """

    num_clients: int
    check_in_prob: float
    message: DpEvent
    view: str = "messages"


@attr.s(frozen=True, slots=True, auto_attribs=True)
class FixedWindowDpEvent(DpEvent):
    """One window of random check-ins, A_fix: all num_slots slots. Fields as in `FixedWindow`."""

    num_clients: int
    num_slots: int
    check_in_prob: float
    message: DpEvent
    empty_slots: str = "dummy"
    view: str = "messages"
    minibatch: int = 1


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SlidingWindowDpEvent(DpEvent):
    """One pass of random check-ins with sliding windows, A_sldw. Fields as in `SlidingWindow`."""

    num_clients: int
    window: int
    message: DpEvent
    view: str = "messages"
    minibatch: int = 1


@attr.s(frozen=True, slots=True, auto_attribs=True)
class AveragedUpdatesDpEvent(DpEvent):
    """One window of averaged updates, A_avg: all num_slots slots. Fields as in `AveragedUpdates`."""

    num_clients: int
    num_slots: int
    check_in_prob: float
    message: DpEvent
    view: str = "messages"


UnitDpEvent = ShuffledCheckInDpEvent | FixedWindowDpEvent | SlidingWindowDpEvent | AveragedUpdatesDpEvent


class Unit(NamedTuple):
    """One unit of a protocol, what its messages are, and who looks."""

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str


def to_event(protocol: CheckInProtocol, randomizer: Randomizer, *, view: str = "messages") -> DpEvent:
    """The event of a whole run: one unit, composed with itself as often as the protocol repeats it.

    Raises:
      TypeError, ValueError: not a protocol or randomizer of ours, or no such view.
    """
    check_protocol(protocol)
    check_randomizer(randomizer)
    _validate.choice(VIEWS, view=view)
    return SelfComposedDpEvent(unit_event(Unit(protocol, randomizer, view)), protocol.repeats)


def unit_event(unit: Unit) -> UnitDpEvent:
    """The event of one unit; how often the protocol repeats it is ignored."""
    protocol, randomizer, view = unit
    message: DpEvent
    if isinstance(randomizer, Gaussian):
        message = GaussianMessageDpEvent(randomizer.noise_multiplier)
    else:
        message = PureLdpDpEvent(randomizer.epsilon0)
    if isinstance(protocol, FixedWindow):
        return FixedWindowDpEvent(
            protocol.num_clients,
            protocol.num_slots,
            protocol.check_in_prob,
            message,
            protocol.empty_slots,
            view,
            protocol.minibatch,
        )
    if isinstance(protocol, SlidingWindow):
        return SlidingWindowDpEvent(protocol.num_clients, protocol.window, message, view, protocol.minibatch)
    if isinstance(protocol, AveragedUpdates):
        return AveragedUpdatesDpEvent(
            protocol.num_clients, protocol.num_slots, protocol.check_in_prob, message, view
        )
    return ShuffledCheckInDpEvent(protocol.num_clients, protocol.rate, message, view)


def to_unit(event: UnitDpEvent) -> Unit:
    """The unit behind an event.

    Raises:
      TypeError, ValueError: a field outside the range that the protocol or randomizer allows.
    """
    protocol: CheckInProtocol
    if isinstance(event, FixedWindowDpEvent):
        protocol = FixedWindow(
            num_clients=event.num_clients,
            num_slots=event.num_slots,
            check_in_prob=event.check_in_prob,
            empty_slots=event.empty_slots,
            minibatch=event.minibatch,
        )
    elif isinstance(event, SlidingWindowDpEvent):
        protocol = SlidingWindow(
            num_clients=event.num_clients, window=event.window, minibatch=event.minibatch
        )
    elif isinstance(event, AveragedUpdatesDpEvent):
        protocol = AveragedUpdates(
            num_clients=event.num_clients, num_slots=event.num_slots, check_in_prob=event.check_in_prob
        )
    elif event.check_in_prob == 1:
        protocol = Shuffle(num_clients=event.num_clients)
    else:
        protocol = ShuffledCheckIn(num_clients=event.num_clients, check_in_prob=event.check_in_prob)
    return Unit(protocol, to_randomizer(event.message), _validate.choice(VIEWS, view=event.view))


def to_randomizer(message: DpEvent) -> Randomizer:
    """The randomizer behind a message event.

    Raises:
      ValueError: the event is not one of ours.
    """
    if isinstance(message, PureLdpDpEvent):
        return PureLDP(epsilon0=message.epsilon0)
    if isinstance(message, GaussianMessageDpEvent):
        return Gaussian(noise_multiplier=message.noise_multiplier)
    raise ValueError(
        f"message={_validate.shown(message)}: expected a PureLdpDpEvent or a GaussianMessageDpEvent"
    )
