"""The facts that protocols state of themselves, each a value of its own; from them theorems that apply are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from checkin_jax.rates import CheckInRates


class Cover(NamedTuple):
    """What hides a client: a unit shows the messages of a uniformly ordered sample of the clients, and its size.

    num_clients: n, of whom each is in the sample with probability `rate`, independently of everything.
    """

    num_clients: int
    rate: float


class Slots(NamedTuple):
    """Slots of which each shows one message: what is public about the slots of one client.

    Attributes:
      number: how many slots the client's message may be shown in, each as likely.
      used: the probability that it is in one of them, if others did not compete; from above.
      seen: the probability that it is shown after all when all others do their worst; from below.
      others, pick: how many others may be in the client's slot, and the probability of each.
      shown: the probability that the slot that a client picks is shown at all.
      hidden: whether an empty slot shows a dummy that cannot be told from a message.
      total: how many slots a unit shows. minibatch: how many successive ones the view "aggregate" shows the sum of.
      contested: whether exactly `others` clients may be in each of the slots, all throwing independently, into each
        with probability `pick` exactly, and one of a slot's clients is shown, uniformly drawn.
    """

    number: int
    used: float
    seen: float
    others: int
    pick: float
    shown: float
    hidden: bool
    total: int
    minibatch: int
    contested: bool = False


class KnownSlots(NamedTuple):
    """Slots some of which may hold the message of a client who colludes; an empty one shows a dummy, as in `Slots`.

    number, used: as in `Slots`. colluding: in how many of them, at most.
    """

    number: int
    used: float
    colluding: int


class Throws(NamedTuple):
    """Clients who throw into common slots, each with probability `prob` and uniformly."""

    num_clients: int
    num_slots: int
    prob: float


class Crowd(NamedTuple):
    """As `Cover`, of clients whose check-in rates differ; their messages arrive with probability `kept`."""

    num_clients: int
    coins: CheckInRates
    kept: float


class CrowdThrows(NamedTuple):
    """As `Throws`, of clients whose check-in rates differ."""

    num_clients: int
    num_slots: int
    coins: CheckInRates


class Analysis(NamedTuple):
    """A setting that a paper has analysed: its name in `accounting.compare.PUBLISHED`, and its numbers by name."""

    name: str
    setting: Mapping[str, Any]
