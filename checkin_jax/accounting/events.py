"""Our rounds in dp_accounting's language: DpEvents whose fields are public information only.

The rules of dp_accounting hold: the meaning of an event never changes; a new meaning gets a new class.
"""

from __future__ import annotations

import attr
from dp_accounting import DpEvent, SelfComposedDpEvent

from checkin_jax import _validate
from checkin_jax.accounting.account import check_randomizer
from checkin_jax.accounting.guarantee import VIEWS
from checkin_jax.protocols import ShuffledCheckIn
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
    """One round of shuffled check-in.

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


def to_event(protocol: ShuffledCheckIn, randomizer: Randomizer, *, view: str = "messages") -> DpEvent:
    """The event of a whole run: one round, composed with itself num_rounds times.

    Raises:
      TypeError, ValueError: not a protocol or randomizer of ours, or no such view.
    """
    check_randomizer(randomizer)
    _validate.choice(VIEWS, view=view)
    if isinstance(randomizer, Gaussian):
        message: DpEvent = GaussianMessageDpEvent(randomizer.noise_multiplier)
    else:
        message = PureLdpDpEvent(randomizer.epsilon0)
    one = ShuffledCheckInDpEvent(protocol.num_clients, protocol.rate, message, view)
    return SelfComposedDpEvent(one, protocol.num_rounds)


def to_randomizer(message: DpEvent) -> Randomizer | None:
    """The randomizer behind a message event; None if the event is not one of ours."""
    if isinstance(message, PureLdpDpEvent):
        return PureLDP(epsilon0=message.epsilon0)
    if isinstance(message, GaussianMessageDpEvent):
        return Gaussian(noise_multiplier=message.noise_multiplier)
    return None
