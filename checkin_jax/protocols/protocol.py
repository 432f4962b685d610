"""What every check-in protocol says of itself: facts, from which the theorems that apply are found, and words."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

from checkin_jax import _validate
from checkin_jax._suggest import ByName
from checkin_jax._variables import FreeVariable
from checkin_jax.protocols.facts import Analysis, Cover, Crowd, CrowdThrows, KnownSlots, Slots, Throws
from checkin_jax.rates import CheckInRates

MAX_CLIENTS = 10**12
MAX_ROUNDS = 10**9

EMPTY_SLOTS = ("dummy", "visible")
VIEWS = ("local", "messages", "aggregate")

REPLACE, ADD_OR_REMOVE = RELATIONS = ("replace-one", "add-or-remove-one")

SAME_RANDOMIZER = (
    "all clients of a round use the same randomizer and keep no state of their own between rounds"
)

_UNSEEN = "dropping out does not depend on the data, and nobody learns who checked in"
# Given the number of messages, the bounds of samples and of occupied slots hold as they stand.
UNSEEN_BUT_COUNTED = f"{_UNSEEN} (how many messages arrive may be known)"
# Among hidden dummies a client is there with its rate; given the number of check-ins, with another probability.
UNSEEN_UNCOUNTED = f"{_UNSEEN}, nor how many did"


class Words(NamedTuple):
    """What the adversary of each view sees, and what each neighboring relation compares."""

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
CLIENTS = FreeVariable("num_clients", 1, MAX_CLIENTS, -0.7, True)
PROB = FreeVariable("check_in_prob", 1e-12, 1.0, 0.7)

FRESH = (
    "a client checks in with its rate whatever it did before and whatever the others do: a device that is plugged in "
    "all night is no fresh coin; rates are those given everything that persists"
)


def check_in_prob(check_in_prob: Any) -> float | CheckInRates:
    """A number in (0, 1], one for all clients, or a description of rates.

    Raises:
      ValueError, TypeError: anything else.
    """
    if isinstance(check_in_prob, CheckInRates):
        return check_in_prob
    return _validate.real(0, 1, open_low=True, check_in_prob=check_in_prob)


def differing(prob: float | CheckInRates) -> CheckInRates | None:
    """The description of rates, where they differ."""
    return prob if isinstance(prob, CheckInRates) and prob.common is None else None


def highest(prob: float | CheckInRates) -> float:
    """The rate of all clients, or of the fastest."""
    return prob.fastest() if isinstance(prob, CheckInRates) else prob


# The legal range of every field, whichever protocol has it.
_LEGAL: dict[str, Callable[..., Any]] = {
    "num_clients": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "num_slots": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "window": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "num_rounds": functools.partial(_validate.integer, 1, MAX_ROUNDS),
    "num_epochs": functools.partial(_validate.integer, 1, MAX_ROUNDS),
    "check_in_prob": check_in_prob,
    "drop_out_prob": functools.partial(_validate.real, 0, 1, open_high=True),
    "empty_slots": functools.partial(_validate.choice, EMPTY_SLOTS),
    "minibatch": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "num_colluding": functools.partial(_validate.integer, 0, MAX_CLIENTS),
    "min_reports": functools.partial(_validate.integer, 0, MAX_CLIENTS),
}


class Alike(NamedTuple):
    """`num_units` units nearly alike: bounds on `above` hold for each, and each leaks at least as much as `below`.

    `below` is a post-processing of every unit, and every unit of `above` (clients are added, messages thinned).
    """

    above: CheckInProtocol
    below: CheckInProtocol
    num_units: int


class CheckInProtocol(ByName, abc.ABC):
    """A check-in protocol, which says how devices take part: subclass it to account for another one.

    Subclasses are frozen dataclasses with a field `num_clients` and one that counts units, named in `_unit`. They state
    facts (`cover`, `slots`, `used_throws`, `averaged_throws`), from which the theorems that apply are found, and words
    (`title`, `what`, `assumptions`, `observed`, `compared`), from which statements, pages, audits and commands are
    made. A protocol without facts has the local bound only.
    """

    # The field that counts the units.
    _unit: ClassVar[str]
    title: ClassVar[str]
    # Whether the view "aggregate" shows nothing but the sum of the messages of all who are in a unit's sample.
    summed: ClassVar[bool] = False
    num_clients: int
    # How many of them may be in league with the adversary, where a protocol has such a field.
    num_colluding: int = 0
    # How many honest messages each batch holds at least, where a protocol has such a field; 0: not known.
    min_reports: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(cast(Any, self)):
            if field.name in _LEGAL:
                value = _LEGAL[field.name](**{field.name: getattr(self, field.name)})
                object.__setattr__(self, field.name, value)
                if isinstance(value, CheckInRates):
                    value.check_clients(self.num_clients)
        if self.num_colluding and self.num_colluding >= self.num_clients:
            raise ValueError(
                f"num_colluding={self.num_colluding!r}: expected at most {self.num_clients - 1}, all clients but one"
            )
        if self.num_colluding and isinstance(getattr(self, "check_in_prob", None), CheckInRates):
            raise ValueError(
                f"num_colluding={self.num_colluding!r}: expected 0 with rates that differ: "
                "leave the colluding clients out of num_clients and of the rates"
            )

    @property
    def honest(self) -> int:
        """Number of clients who are not in league with the adversary."""
        return self.num_clients - self.num_colluding

    @property
    def trusting(self) -> tuple[str, ...]:
        """Assumptions about clients who collude, a sentence each; none where nobody does."""
        if not self.num_colluding:
            return ()
        return (
            f"at most {self.num_colluding:,} clients collude with the adversary, who knows when they come and what "
            "they send; when they come does not depend on others' data, choices or messages",
            "a client that is kept from sending counts as one who colludes in that round, and who colludes is settled "
            "before a round's coins",
        )

    @property
    @abc.abstractmethod
    def what(self) -> str:
        """The run in words, which go on after "one client's record among 1,000"."""

    @property
    @abc.abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions under which the guarantees are true, a sentence each."""

    def assumed(self, view: str) -> tuple[str, ...]:
        """Assumptions under which the guarantees in this view are true, a sentence each."""
        if view == "local":
            return ("when a client checks in does not depend on anybody's data",)
        if view == "aggregate" and self.slots is not None and self.slots.minibatch > 1:
            size = self.slots.minibatch
            return (
                *self.assumptions,
                f"the messages of {size:,} successive slots are summed before anybody sees them",
            )
        return self.assumptions

    @property
    def repeats(self) -> int:
        """Number of units: rounds, or whole windows."""
        return getattr(self, self._unit)

    def repeated(self, count: int) -> Self:
        """Returns the same protocol with `count` units."""
        return dataclasses.replace(cast(Any, self), **{self._unit: count})

    def varied(self, name: str, value: float) -> Self:
        """Returns the same protocol with another value of one of its `variables`."""
        whole = next(each.whole for each in self.variables if each.name == name)
        if name == self._unit:
            return self.repeated(int(value))
        return dataclasses.replace(cast(Any, self), **{name: int(value) if whole else value})

    def alike(self, finest: bool) -> tuple[Alike, ...]:
        """Groups the units by kind, here one; finest: cut into as many kinds as is of use, else into few."""
        return (Alike(self, self, self.repeats),)

    @property
    def rate(self) -> float:
        """The probability that a given client, or the fastest of them, sends a message in a given unit."""
        return 1.0

    @property
    def coins(self) -> CheckInRates | None:
        """The check-in rates of the clients, where they differ."""
        return None

    @property
    def kept(self) -> float:
        """The probability that the message of a client that checks in arrives."""
        return 1.0

    def rate_of(self, client_rate: float | None) -> float:
        """Returns the probability that a client of this check-in rate sends a message; the fastest when left out.

        Raises:
          ValueError, TypeError: no client has such a rate, or all have the same.
        """
        if client_rate is None:
            return self.rate
        if self.coins is None:
            raise ValueError(
                f"client_rate={_validate.shown(client_rate)}: expected none, since all clients have the same rate"
            )
        return self.coins.fastest(client_rate) * self.kept

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        """Fields that `calibrate` may search."""
        return ()

    @property
    def cover(self) -> Cover | None:
        """The sample of clients whose messages a unit shows, if it is one."""
        return None

    @property
    def crowd(self) -> Crowd | None:
        """The clients whose messages a unit shows, in place of `cover` where their rates differ."""
        return None

    @property
    def reported(self) -> CheckInProtocol | None:
        """The unit as it is if the client reports, which is known then; None if the coin hides the client, too."""
        return None

    @property
    def slots(self) -> Slots | None:
        """The slots that a client's message may be in, if each shows one message; of the fastest where rates differ."""
        return None

    def slots_of(self, client_rate: float | None) -> Slots | None:
        """Returns the slots of a client of this check-in rate; of the fastest when left out.

        Here as if the others were the same for all: a protocol in which they compete for slots has its own.
        """
        slots = self.slots
        if slots is None or client_rate is None:
            return slots
        share = self.rate_of(client_rate) / self.rate
        return slots._replace(used=slots.used * share, seen=slots.seen * share)

    @property
    def known_slots(self) -> KnownSlots | None:
        """The slots where clients collude and dummies are hidden; `slots` is None then."""
        return None

    @property
    def used_throws(self) -> Throws | None:
        """Common slots of which each shows one of the clients who chose it, drawn uniformly."""
        return None

    @property
    def sliding_window(self) -> int | None:
        """The length m of windows where each client j of all throws uniformly into the slots j .. j + m - 1.

        The slots from the m-th to the n-th show one of their clients each, drawn uniformly, or a hidden dummy.
        """
        return None

    @property
    def averaged_throws(self) -> Throws | None:
        """Common slots of which each shows all clients who chose it: their sum, in the view "aggregate"."""
        return None

    @property
    def used_crowd(self) -> CrowdThrows | None:
        """Common slots of which each shows one client, where check-in rates differ; `used_throws` is None then."""
        return None

    @property
    def averaged_crowd(self) -> CrowdThrows | None:
        """Common slots of which each shows all who chose it, where rates differ; `averaged_throws` is None then."""
        return None

    @property
    def published(self) -> tuple[Analysis, ...]:
        """The analyses of the papers whose hypotheses hold of one unit, for `compare`; here by the facts above."""
        found: list[Analysis] = []
        if self.cover is not None and self.averaged_throws is None:
            found.append(Analysis("shuffled check-in", self.cover._asdict()))
            if self.cover.rate == 1.0:
                found.append(Analysis("shuffling", {"num_clients": self.cover.num_clients}))
        if self.used_throws is not None:
            found.append(Analysis("fixed window", self.used_throws._asdict()))
        if self.averaged_throws is not None and self.averaged_throws.prob == 1.0:
            num_clients, num_slots, _ = self.averaged_throws
            found.append(Analysis("averaged updates", {"num_clients": num_clients, "num_slots": num_slots}))
        return tuple(found)

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        """Says why this neighboring relation has no guarantee in this view; None if it has one."""
        if neighboring_relation == REPLACE:
            return None
        return f"no bound is known for {type(self).__name__}, whose number of messages may be seen"

    @property
    def _words(self) -> Words:
        return Words(OF_ROUNDS, ONE_RECORD)

    def observed(self, view: str) -> str:
        """Describes the adversary of a view, in words that begin with "somebody who sees".

        Raises:
          ValueError: `view` is none of VIEWS.
        """
        return self._words.observed[_validate.choice(VIEWS, view=view)]

    def compared(self, neighboring_relation: str) -> str:
        """Describes neighboring data sets in words.

        Raises:
          ValueError: the relation is none of RELATIONS, or one that has no meaning for this protocol.
        """
        words = self._words.compared
        return words[_validate.choice(tuple(words), neighboring_relation=neighboring_relation)]
