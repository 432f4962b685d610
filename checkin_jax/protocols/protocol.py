"""`CheckInProtocol`, the base of protocols: facts, which select the theorems that apply, and words for statements."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

from checkin_jax import _validate
from checkin_jax._rounding import counted, up
from checkin_jax._suggest import ByName, legal
from checkin_jax.randomizers.randomizer import FreeVariable
from checkin_jax.rates import CheckInRates, Rates


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
      contested: True if the others choose their slots independently, each in one at most, and a slot shows a uniformly
        drawn one of its clients.
      empty_prob: upper bound on the probability that the others leave a slot empty, for a behaviour for which
        `use_prob_lower` is a bound, too; below 1 only if they choose their slots independently.
      fewest: (N, q), where contested: the others in a slot are stochastically at least Bin(N, q); None: that of exactly
        `num_rivals` clients, each with probability exactly `rival_prob`.
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
    fewest: tuple[int, float] | None = None

    @property
    def loads(self) -> tuple[int, float]:
        """N and q of a law Bin(N, q) stochastically below the number of others in a slot; (0, 0): none is known."""
        if not self.contested:
            return 0, 0.0
        return (self.num_rivals, self.rival_prob) if self.fewest is None else self.fewest


class KnownSlots(NamedTuple):
    """Slots some of which may hold a colluding client's message; an empty slot shows a dummy, as in `Slots`.

    number, use_prob: as in `Slots`. colluding: number of colluding clients, from above; each is in one slot at most.
    others: number of honest clients besides the target that may be in each of the slots, if these are common slots.
    """

    number: int
    use_prob: float
    colluding: int
    others: int = 0


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


MAX_CLIENTS = 10**12
MAX_ROUNDS = 10**9

EMPTY_SLOTS = ("dummy", "visible")
VIEWS = ("local", "messages", "aggregate")

REPLACE, ADD_OR_REMOVE = RELATIONS = ("replace-one", "add-or-remove-one")

STATELESS = "clients keep no state of their own between rounds"
SAME_RANDOMIZER = ("all clients of a round use the same randomizer", STATELESS)
TRUSTED = "the shuffler or aggregator is trusted: nobody learns which message is whose"

_UNSEEN = "dropping out does not depend on the data, and nobody learns who checked in"
# Bounds for samples and for occupied slots also hold given the number of messages.
UNSEEN_BUT_COUNTED = f"{_UNSEEN} (how many messages arrive may be known)"
# With hidden dummies, the number of check-ins would change the probability that a given client is present.
UNCOUNTED = "nobody learns who checked in, nor how many did"
UNSEEN_UNCOUNTED = f"dropping out does not depend on the data, and {UNCOUNTED}"


class Words(NamedTuple):
    """Descriptions by view of the adversary, and by neighboring relation of the data sets."""

    observed: Mapping[str, str]
    compared: Mapping[str, str]


OF_ROUNDS = {
    "local": "somebody who sees every message of the client together with its name",
    "messages": "somebody who sees every privatised message of every round, shuffled, without names "
    "(an untrusted aggregator behind a trusted shuffler)",
    "aggregate": "somebody who sees only the sum of the messages of each round, and how many they are "
    "(a trusted server or secure aggregation)",
}

ONE_RECORD = {REPLACE: "data sets that differ in one client's record"}

ROUNDS = FreeVariable("num_rounds", 1, MAX_ROUNDS, 0.55, True)
EPOCHS = FreeVariable("num_epochs", 1, MAX_ROUNDS, 0.55, True)
PROB = FreeVariable("check_in_prob", 1e-12, 1.0, 0.7)
# First values of the searches for a protocol's variables.
FIRST_VALUES = {"num_clients": 10**9, "check_in_prob": 0.1, "num_rounds": 100, "num_epochs": 1, "window": 1}

FRESH = (
    "each client checks in with its rate by a fresh coin, independent of the other clients and of everything that "
    "persists: being plugged in all night is no coin"
)


def lost(drop_out_prob: float) -> str:
    """Share of check-ins that drop out, in words; empty if it is zero."""
    return f", a share {drop_out_prob:.6g} of check-ins dropping out" if drop_out_prob else ""


def dropped(drop_out_prob: float) -> tuple[str, ...]:
    """Assumption about drop-outs; none without any."""
    if not drop_out_prob:
        return ()
    return (
        f"every client that checks in drops out with probability {up(drop_out_prob)}, by fresh chance each time: no "
        "client is more reliable than another, and one that is sends more often than was accounted for",
    )


def check_in_prob(check_in_prob: Any) -> float | CheckInRates:
    """Checks a probability in (0, 1], the same for all clients, or a description of rates.

    Raises:
      ValueError, TypeError: anything else.
    """
    if isinstance(check_in_prob, CheckInRates):
        return check_in_prob
    try:
        return _validate.real(0, 1, "(]", check_in_prob=check_in_prob)
    except TypeError:
        meant = "a real number in (0, 1], Rates or RateLimits"
        raise _validate.type_error(meant, check_in_prob=check_in_prob) from None


def differing(prob: float | CheckInRates) -> CheckInRates | None:
    """The description of rates if they differ; else None."""
    if isinstance(prob, Rates) and prob.common is not None:
        return None
    return prob if isinstance(prob, CheckInRates) else None


def highest(prob: float | CheckInRates) -> float:
    """The largest rate of any client."""
    return prob.fastest() if isinstance(prob, CheckInRates) else prob


class UnitGroup(NamedTuple):
    """A group of `num_units` similar units: bounds on `above` hold for each, and each leaks at least as much as
    `below`.

    `below` is a post-processing of every unit, and every unit is one of `above` (by adding clients, or thinning
    messages).
    """

    above: CheckInProtocol
    below: CheckInProtocol
    num_units: int


class CheckInProtocol(ByName, abc.ABC):
    """A check-in protocol: the law by which devices take part. Subclass it to account for another one.

    Subclasses are frozen dataclasses with a field `num_clients` and a field that counts units, named in `_unit`. Their
    facts (`cover`, `slots`, `used_slot_choices`, `averaged_slot_choices`) select the theorems that apply. Their texts
    (`title`, `description`, `assumptions`, `observed`, `compared`) appear in statements, pages, audits and commands.
    Without facts only the local-view bound applies.
    """

    # Name of the field that counts units.
    _unit: ClassVar[str]
    title: ClassVar[str]
    # True if the view "aggregate" shows only the sum of the messages of a unit's sample.
    summed: ClassVar[bool] = False
    num_clients: int
    # Number of clients that collude with the adversary, for protocols with this field.
    num_colluding: int = 0
    # Probability that a client that checks in drops out before sending, likewise.
    drop_out_prob: float = 0.0
    # How many honest messages each batch holds at least, where a protocol has such a field; 0: not known.
    min_reports: int = 0

    # Of every field, for all protocols.
    _legal = legal(
        num_clients=(_validate.integer, 1, MAX_CLIENTS),
        num_slots=(_validate.integer, 1, MAX_CLIENTS),
        window=(_validate.integer, 1, MAX_CLIENTS),
        num_rounds=(_validate.integer, 1, MAX_ROUNDS),
        num_epochs=(_validate.integer, 1, MAX_ROUNDS),
        check_in_prob=(check_in_prob,),
        drop_out_prob=(_validate.real, 0, 1, "[)"),
        empty_slots=(_validate.choice, EMPTY_SLOTS),
        minibatch=(_validate.integer, 1, MAX_CLIENTS),
        num_colluding=(_validate.integer, 0, MAX_CLIENTS),
        min_reports=(_validate.integer, 0, MAX_CLIENTS),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        unequal = isinstance(rates := getattr(self, "check_in_prob", None), CheckInRates)
        if unequal:
            rates.check_clients(self.num_clients)
        if self.num_colluding and self.num_colluding >= self.num_clients:
            raise ValueError(
                f"num_colluding={self.num_colluding!r}: expected at most {self.num_clients - 1}, all clients but one"
            )
        if self.num_colluding and unequal:
            # Hidden dummies hide less beside colluders; the bound of visible empty slots covers them.
            hidden = getattr(self, "empty_slots", None) == "dummy"
            raise ValueError(
                f"num_colluding={self.num_colluding!r}: expected 0 with rates that differ: leave the colluding clients "
                f"out of num_clients and of the rates{', with empty_slots=visible' if hidden else ''}"
            )

    @property
    def honest(self) -> int:
        """Number of clients that do not collude with the adversary."""
        return self.num_clients - self.num_colluding

    @property
    def trusting(self) -> tuple[str, ...]:
        """Assumptions about colluding clients, one sentence each; empty if no client colludes."""
        if not self.num_colluding:
            return ()
        return (
            f"at most {self.num_colluding:,} clients collude with the adversary, who knows, or decides beforehand, "
            "when they check in and what they send; their check-ins do not depend on other clients' data, choices or "
            "messages",
            "a client that is kept from sending counts as one who colludes in that round, and who colludes is settled "
            "before a round's coins",
        )

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The run in words that continue "one client's record among 1,000 clients, "."""

    @property
    def in_words(self) -> str:
        """Clients and run in words."""
        return f"{counted(self.num_clients, 'client')}, {self.description}"

    @property
    @abc.abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""

    @property
    def _coins(self) -> tuple[str, ...]:
        """Assumptions about the coins of check-ins, and of dropping out; empty where every client checks in."""
        coins = (FRESH,) if self.rate < 1.0 or self.unequal_rates is not None else ()
        return (*coins, *dropped(self.drop_out_prob))

    def assumed(self, view: str, neighboring_relation: str = REPLACE) -> tuple[str, ...]:
        """Assumptions of the guarantees in this view, under this neighboring relation, one sentence each."""
        if view == "local":
            return (*self._coins, "the check-ins of a client do not depend on anybody's data", STATELESS)
        found = self.assumptions
        if self.all_send and neighboring_relation == REPLACE:
            found = tuple(text for text in found if text != UNCOUNTED)
        if view == "aggregate" and self.slots is not None and self.slots.minibatch > 1:
            size = self.slots.minibatch
            return (*found, f"the messages of {size:,} successive slots are summed before anybody sees them")
        return found

    @property
    def all_send(self) -> bool:
        """True if `assumptions` say that every client sends in every unit, so that the number of messages is public."""
        return False

    @property
    def num_units(self) -> int:
        """Number of units: rounds, or whole windows."""
        return getattr(self, self._unit)

    def repeated(self, count: int) -> Self:
        """This protocol with `count` units."""
        return dataclasses.replace(cast(Any, self), **{self._unit: count})

    def varied(self, name: str, value: float) -> Self:
        """This protocol with another value of one of its `variables`."""
        whole = next(each.whole for each in self.variables if each.name == name)
        if name == self._unit:
            return self.repeated(int(value))
        return dataclasses.replace(cast(Any, self), **{name: int(value) if whole else value})

    def unit_groups(self, finest: bool) -> tuple[UnitGroup, ...]:
        """Groups of similar units; one group by default. finest: as many groups as improve bounds; else few."""
        return (UnitGroup(self, self, self.num_units),)

    @property
    def rate(self) -> float:
        """Probability that a given client sends a message in a given unit; the largest one if rates differ."""
        return 1.0

    @property
    def unequal_rates(self) -> CheckInRates | None:
        """The clients' check-in rates if they differ; else None."""
        return differing(getattr(self, "check_in_prob", 1.0))

    @property
    def arrival_prob(self) -> float:
        """Probability that the message of a client that checks in arrives."""
        return 1.0 - self.drop_out_prob

    def rate_of(self, client_rate: float | None) -> float:
        """Probability that a client of this check-in rate sends a message; None: the largest rate.

        Raises:
          ValueError, TypeError: no client has such a rate, or all have the same.
        """
        if client_rate is None:
            return self.rate
        if self.unequal_rates is None:
            raise _validate.error("none, since all clients have the same rate", client_rate=client_rate)
        return self.unequal_rates.fastest(client_rate) * self.arrival_prob

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        """Fields that `calibrate` may search."""
        return ()

    @property
    def _clients(self) -> FreeVariable:
        """The number of clients as a variable, all of which but one may collude."""
        return FreeVariable("num_clients", self.num_colluding + 1, MAX_CLIENTS, -0.7, True)

    @property
    def cover(self) -> Cover | None:
        """The sample of clients whose messages a unit shows; None if it shows no such sample."""
        return None

    @property
    def unequal_cover(self) -> UnequalCover | None:
        """Replaces `cover` if rates differ."""
        return None

    @property
    def reported(self) -> CheckInProtocol | None:
        """The unit as it is if the client reports, which is known then; None if the coin hides the client, too."""
        return None

    @property
    def slots(self) -> Slots | None:
        """Slots of a client's message if each slot shows one message; for the largest rate if rates differ."""
        return None

    def slots_of(self, client_rate: float | None) -> Slots | None:
        """Slots of a client of this check-in rate; None: the largest rate.

        By default the same slots for all rates; a protocol in which clients compete for slots overrides this.
        """
        slots = self.slots
        if slots is None or client_rate is None:
            return slots
        share = self.rate_of(client_rate) / self.rate
        return slots._replace(use_prob=slots.use_prob * share, use_prob_lower=slots.use_prob_lower * share)

    @property
    def known_slots(self) -> KnownSlots | None:
        """Replaces `slots` if clients collude and dummies are hidden."""
        return None

    @property
    def used_slot_choices(self) -> SlotChoices | None:
        """Common slots; each shows a uniformly drawn one of the clients that chose it."""
        return None

    @property
    def sliding_window(self) -> int | None:
        """Length m of sliding windows: each client j chooses one of the slots j .. j + m - 1 uniformly.

        The slots from the m-th to the n-th each show a uniformly drawn one of their clients, or a hidden dummy.
        """
        return None

    @property
    def averaged_slot_choices(self) -> SlotChoices | None:
        """Common slots; each shows all clients that chose it, or their sum in the view "aggregate"."""
        return None

    @property
    def unequal_used_slot_choices(self) -> UnequalSlotChoices | None:
        """Replaces `used_slot_choices` if rates differ."""
        return None

    @property
    def unequal_averaged_slot_choices(self) -> UnequalSlotChoices | None:
        """Replaces `averaged_slot_choices` if rates differ."""
        return None

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        """Reason why this neighboring relation has no guarantee in this view; None if it has one."""
        if neighboring_relation == REPLACE:
            return None
        return f"no bound is known for {type(self).__name__}, since its number of messages may be seen"

    @property
    def _words(self) -> Words:
        return Words(OF_ROUNDS, ONE_RECORD)

    def observed(self, view: str) -> str:
        """The adversary of a view in words that begin with "somebody who sees".

        Raises:
          ValueError: `view` is none of VIEWS.
        """
        return self._words.observed[_validate.choice(VIEWS, view=view)]

    def compared(self, neighboring_relation: str) -> str:
        """Neighboring data sets in words.

        Raises:
          ValueError: the relation is none of RELATIONS, or one that has no meaning for this protocol.
        """
        words = self._words.compared
        return words[_validate.choice(tuple(words), neighboring_relation=neighboring_relation)]
