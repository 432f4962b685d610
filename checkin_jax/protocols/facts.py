"""Properties that a protocol declares. A theorem applies if the properties that it needs are declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from checkin_jax.rates import CheckInRates


class Cover(NamedTuple):
    """A unit that shows the messages of a sample of clients in uniformly random order, and their number.

    num_clients: n; each client is in the sample with probability `rate`, independently of everything else.
    """

    num_clients: int
    rate: float


class Slots(NamedTuple):
    """Public facts about the slots of one client, each of which shows one message.

    Attributes:
      number: number of slots in which the client's message may be shown, with equal probabilities.
      use_prob: upper bound on the probability that the message is used if no other client competes for the slot.
      use_prob_lower: lower bound on the probability that the message is used, over all behaviour of the others.
      num_rivals, rival_prob: number of other clients that may be in the client's slot, and the probability of each.
      shown: probability that the server outputs the slot that a client picks.
      hidden: True if an empty slot shows a dummy that is indistinguishable from a message.
      total: number of slots that a unit shows. minibatch: number of successive slots summed in the view "aggregate".
      contested: True if exactly `num_rivals` clients may be in each slot, independently and each with probability
        exactly `rival_prob`, and the slot shows a uniformly drawn one of its clients.
      empty_prob: upper bound on the probability that the others leave a slot empty, for a behaviour for which
        `use_prob_lower` is a bound, too; below 1 only if they choose their slots independently.
    """

    number: int
    use_prob: float
    use_prob_lower: float
    num_rivals: int
    rival_prob: float
    shown: float
    hidden: bool
    total: int
    minibatch: int
    contested: bool = False
    empty_prob: float = 1.0


class KnownSlots(NamedTuple):
    """Slots some of which may hold a colluding client's message; an empty slot shows a dummy, as in `Slots`.

    number, use_prob: as in `Slots`. colluding: upper bound on the number of slots with a colluding client.
    """

    number: int
    use_prob: float
    colluding: int


class SlotChoices(NamedTuple):
    """Clients that each choose one of `num_slots` common slots uniformly, with probability `prob`, independently."""

    num_clients: int
    num_slots: int
    prob: float


class UnequalCover(NamedTuple):
    """As `Cover`, for unequal check-in rates; a message arrives with probability `arrival_prob`."""

    num_clients: int
    unequal_rates: CheckInRates
    arrival_prob: float


class UnequalSlotChoices(NamedTuple):
    """As `SlotChoices`, for unequal check-in rates."""

    num_clients: int
    num_slots: int
    unequal_rates: CheckInRates


class Analysis(NamedTuple):
    """A published analysis: its name in `accounting.compare.PUBLISHED`, and its parameters by name."""

    name: str
    setting: Mapping[str, Any]
