"""Check-in protocols as frozen public descriptions.

A protocol says what everybody may know: how many clients there are, how they choose when to check in, for how
long. Who did check in is sensitive and never a field here.

`repeats` says how many times the protocol's unit (a round, or a whole window) is run. Inputs and randomizers of a unit
may depend on what was seen of earlier ones, the fields here may not. `assumptions` are those without which the
guarantees fail. `observed` and `compared` are the words for what an adversary sees and for neighboring data sets:
statements, pages, audits and JSON take them from here.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

from checkin_jax import _validate
from checkin_jax._variables import FreeVariable
from checkin_jax.numerics import occupancy

MAX_CLIENTS = 10**12
MAX_ROUNDS = 10**9
EMPTY_SLOTS = ("dummy", "visible")
VIEWS = ("local", "messages", "aggregate")
REPLACE, ADD_OR_REMOVE = RELATIONS = ("replace-one", "add-or-remove-one")

_SAME_RANDOMIZER = (
    "all clients of a round use the same randomizer and keep no state of their own between rounds"
)
_UNSEEN = (
    "dropping out does not depend on the data, and nobody learns who checked in (how many did may be known)"
)


class Words(NamedTuple):
    """What the adversary of each view sees, and what each neighboring relation compares."""

    observed: Mapping[str, str]
    compared: Mapping[str, str]


_OF_ROUNDS = {
    "local": "somebody who sees every message of the client together with its name",
    "messages": "somebody who sees every privatised message of every round, shuffled, without names "
    "(an untrusted aggregator behind a trusted shuffler)",
    "aggregate": "somebody who sees only the sum of the messages of each round "
    "(a trusted server or secure aggregation)",
}
_OF_AVERAGES = {
    "local": _OF_ROUNDS["local"],
    "messages": "somebody who sees every privatised message of every slot, shuffled within the slot, without names "
    "(an untrusted aggregator behind a trusted shuffler)",
    "aggregate": "somebody who sees only the average of the messages of each slot, and how many they are "
    "(a trusted server or secure aggregation)",
}


_ONE_RECORD = {REPLACE: "data sets that differ in one client's record"}
_ONE_RECORD_OR_CLIENT = {
    **_ONE_RECORD,
    ADD_OR_REMOVE: "one client is there or not; without it its slot shows another client's message or the dummy, and "
    "the number of slots and the windows of the others stay",
}


# The legal range of every field, whichever protocol has it.
_LEGAL: dict[str, Callable[..., Any]] = {
    "num_clients": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "num_slots": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "window": functools.partial(_validate.integer, 1, MAX_CLIENTS),
    "num_rounds": functools.partial(_validate.integer, 1, MAX_ROUNDS),
    "num_epochs": functools.partial(_validate.integer, 1, MAX_ROUNDS),
    "check_in_prob": functools.partial(_validate.real, 0, 1, open_low=True),
    "drop_out_prob": functools.partial(_validate.real, 0, 1, open_high=True),
    "empty_slots": functools.partial(_validate.choice, EMPTY_SLOTS),
    "minibatch": functools.partial(_validate.integer, 1, MAX_CLIENTS),
}


def _of_used_messages(minibatch: int, gaps: bool = False) -> dict[str, str]:
    """What is seen of windows whose slots use one message each; which are empty, too, where there are gaps."""
    seen = "which slots are empty and " if gaps else ""
    if minibatch == 1:
        made = f"somebody who sees {seen}what is made of the messages used in the slots, and no other message"
    else:
        made = (
            f"somebody who sees {seen}the sums of the messages used in {minibatch:,} successive slots each, and no "
            "single message"
        )
    return {
        "local": _OF_ROUNDS["local"],
        "messages": f"somebody who sees {seen}the message used in each slot, in the order of the slots and without "
        "names, and no other message",
        "aggregate": made,
    }


def _summed(minibatch: int) -> str:
    """How the messages of the slots leave the server, in words."""
    return "" if minibatch == 1 else f", the messages of {minibatch:,} successive slots summed"


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


class Throws(NamedTuple):
    """Clients who throw into common slots, each with probability `prob` and uniformly."""

    num_clients: int
    num_slots: int
    prob: float


class CheckInProtocol(abc.ABC):
    """How devices check in: subclass it to account for another protocol.

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

    def __post_init__(self) -> None:
        for field in dataclasses.fields(cast(Any, self)):
            if field.name in _LEGAL:
                value = _LEGAL[field.name](**{field.name: getattr(self, field.name)})
                object.__setattr__(self, field.name, value)

    @property
    @abc.abstractmethod
    def what(self) -> str:
        """What is run, in words that go on after "one client's record among 1,000"."""

    @property
    @abc.abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees to be true."""

    def assumed(self, view: str) -> tuple[str, ...]:
        """What must hold for the guarantees in this view to be true."""
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
        """The same protocol with `count` units."""
        return dataclasses.replace(cast(Any, self), **{self._unit: count})

    @property
    def rate(self) -> float:
        """The probability that a given client sends a message in a given unit."""
        return 1.0

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        """Fields that `calibrate` may search."""
        return ()

    @property
    def cover(self) -> Cover | None:
        """The sample of clients whose messages a unit shows, if it is one."""
        return None

    @property
    def slots(self) -> Slots | None:
        """The slots that a client's message may be in, if each shows one message."""
        return None

    @property
    def used_throws(self) -> Throws | None:
        """Common slots of which each shows one of the clients who chose it, drawn uniformly."""
        return None

    @property
    def averaged_throws(self) -> Throws | None:
        """Common slots of which each shows all clients who chose it: their sum, in the view "aggregate"."""
        return None

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        """Why there is no guarantee for this neighboring relation in this view; None if there is one."""
        if neighboring_relation == REPLACE:
            return None
        return f"no bound is known for {type(self).__name__}, whose number of messages may be seen"

    @property
    def _words(self) -> Words:
        return Words(_OF_ROUNDS, _ONE_RECORD)

    def observed(self, view: str) -> str:
        """The adversary of a view in words: somebody who sees what.

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


_SEEN_BY_NAME = "who sees names sees whether a client takes part"
_ROUNDS = FreeVariable("num_rounds", 1, MAX_ROUNDS, 0.55, True)
_EPOCHS = FreeVariable("num_epochs", 1, MAX_ROUNDS, 0.55, True)
_CLIENTS = FreeVariable("num_clients", 1, MAX_CLIENTS, -0.7, True)
_PROB = FreeVariable("check_in_prob", 1e-12, 1.0, 0.7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(CheckInProtocol):
    """Shuffled check-in [SCI]: each round every client flips a coin, privatises and sends to a shuffler.

    Assumes (the guarantee fails without them): every client has the same check-in rate; every client of
    a round uses the same randomizer and keeps no state of its own; dropping out does not depend on the
    data; nobody but the client learns WHO checked in (how many did may be public).

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound on the true number is safe.
      check_in_prob: the coin, in (0, 1], one for all clients. An upper bound on that common rate is safe; rates that
        differ between clients are not covered by their maximum.
      num_rounds: T, from 1 to 1e9.
      drop_out_prob: probability in [0, 1) that a client whose coin says yes drops out before sending.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    check_in_prob: float
    num_rounds: int = 1
    drop_out_prob: float = 0.0

    _unit = "num_rounds"
    title = "shuffled check-in"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees to be true."""
        return (
            "every client has the same check-in rate",
            _SAME_RANDOMIZER,
            _UNSEEN,
        )

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (_PROB, _ROUNDS, _CLIENTS)

    @property
    def rate(self) -> float:
        """gamma: the probability that a given client's message arrives in a given round."""
        return self.check_in_prob * (1.0 - self.drop_out_prob)

    @property
    def cover(self) -> Cover:
        """All clients, at the rate of the round."""
        return Cover(self.num_clients, self.rate)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return f"over {self.num_rounds:,} rounds of check-ins at rate {self.rate:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(CheckInProtocol):
    """Plain shuffling: each round every one of the n clients sends one message through the shuffler.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound on the true number is safe.
      num_rounds: T, from 1 to 1e9.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    num_rounds: int = 1

    _unit = "num_rounds"
    title = "shuffling"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees to be true."""
        return (
            "every client sends exactly one message a round",
            _SAME_RANDOMIZER,
            "the shuffler is trusted: nobody learns which message is whose",
        )

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (_ROUNDS, _CLIENTS)

    @property
    def cover(self) -> Cover:
        """All clients, every round."""
        return Cover(self.num_clients, 1.0)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return f"over {self.num_rounds:,} rounds of shuffling"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Slots(CheckInProtocol):
    """Windows of common slots: clients take part with one probability and pick a slot uniformly."""

    num_clients: int
    num_slots: int
    check_in_prob: float = 1.0
    num_epochs: int = 1

    _unit = "num_epochs"

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        # Not num_slots: epsilon falls with it where slots are many and grows where clients are.
        return (_PROB, _EPOCHS, _CLIENTS)

    @property
    def rate(self) -> float:
        """p_0: the probability that a given client takes part in a given window."""
        return self.check_in_prob

    @property
    def _throws(self) -> Throws:
        return Throws(self.num_clients, self.num_slots, self.check_in_prob)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedWindow(_Slots):
    """Random check-ins with a fixed window, A_fix [RCI]: each client picks one of m slots; a slot uses one client.

    A client takes part with probability `check_in_prob` and picks one of the `num_slots` slots uniformly. In each slot
    the server uses the message of one uniformly drawn client of that slot; later slots may depend on earlier outputs.
    What it makes of the messages of several slots is post-processing.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound on the true number is safe.
      num_slots: m, from 1 to 1e12.
      check_in_prob: p_0, in (0, 1], one for all clients; drop-out independent of the data included.
      num_epochs: how many times the whole window is run, each client throwing anew; from 1 to 1e9.
      empty_slots: "dummy" (default): an empty slot outputs R(0), drawn by the same randomizer, which nobody can
        tell from a client's message; "visible": which slots were empty may be seen (skipped slots are seen).
      minibatch: b, from 1 to num_slots: the server sums the messages of b successive slots, and nobody sees a single
        one. Matters in the view "aggregate" alone. The last sum of a window has the slots that are left.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    empty_slots: str = "dummy"
    minibatch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(1, self.slots_shown, minibatch=self.minibatch)

    @property
    def slots_shown(self) -> int:
        """Number of slots of one window whose messages the server uses: all of them."""
        return self.num_slots

    title = "random check-ins with a fixed window (A_fix)"

    @property
    def used_throws(self) -> Throws:
        """All clients, into the slots of the window."""
        return self._throws

    @property
    def slots(self) -> Slots:
        """All slots of the window."""
        n, m, prob = self._throws
        mean, _ = occupancy.moments(float(n), float(m), prob)
        seen = min(mean / n * (1.0 - 1e-12), prob)
        return Slots(m, prob, seen, n - 1, prob / m, 1.0, self.empty_slots == "dummy", m, self.minibatch)

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        if neighboring_relation == REPLACE:
            return None
        if view == "local":
            return _SEEN_BY_NAME
        if self.empty_slots == "visible":
            return "a client that is alone in its slot is missed where empty slots are visible"
        return None

    @property
    def _words(self) -> Words:
        gaps = self.empty_slots == "visible"
        return Words(_of_used_messages(self.minibatch, gaps), _ONE_RECORD if gaps else _ONE_RECORD_OR_CLIENT)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees to be true."""
        common = (
            "every client takes part with the same probability and picks its slot uniformly from the same window",
            _SAME_RANDOMIZER,
            _UNSEEN,
        )
        if self.empty_slots == "visible":
            return common
        return (
            *common,
            "an empty slot's dummy update is drawn by the same randomizer and cannot be recognised",
        )

    @property
    def what(self) -> str:
        """What is run, in words."""
        return (
            f"over {self.num_epochs:,} windows of {self.num_slots:,} slots, "
            f"one client used per slot{_summed(self.minibatch)}, "
            f"taking part with probability {self.check_in_prob:.6g}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlidingWindow(CheckInProtocol):
    """Random check-ins with sliding windows, A_sldw [RCI]: client j picks a slot from {j, ..., j + window - 1}.

    The server uses one uniformly drawn client of each slot from the window-th to the n-th: n - window + 1 updates. An
    empty slot outputs R(0), drawn by the same randomizer and not recognisable.

    Attributes:
      num_clients: n, from 1 to 1e12. An upper bound on the true number is safe, a lower one is not.
      window: length m of each client's window, from 1 to num_clients.
      num_epochs: how many times the whole pass over the clients is run; from 1 to 1e9.
      minibatch: b, from 1 to n - window + 1: the server sums the messages of b successive slots, and nobody sees a
        single one. Matters in the view "aggregate" alone. The last sum of a pass has the slots that are left.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    window: int
    num_epochs: int = 1
    minibatch: int = 1

    _unit = "num_epochs"
    title = "random check-ins with sliding windows (A_sldw)"

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        # Not num_clients: more of them fill more of a window, so epsilon grows with them. One sum must be left.
        longest = self.num_clients - self.minibatch + 1
        return (_EPOCHS, FreeVariable("window", 1, longest, -0.6, True))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees to be true."""
        return (
            "every client picks its slot uniformly from its own window",
            _SAME_RANDOMIZER,
            _UNSEEN,
            "an empty slot's dummy update is drawn by the same randomizer and cannot be recognised",
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(1, self.num_clients, window=self.window)
        _validate.integer(1, self.slots_shown, minibatch=self.minibatch)

    @property
    def slots_shown(self) -> int:
        """Number of slots of one pass whose messages the server uses, from the window-th to the n-th."""
        return self.num_clients - self.window + 1

    @property
    def slots(self) -> Slots:
        """The slots of one client's window that the server outputs: all of them for most clients if n >= 2 m - 1."""
        window, total = self.window, self.slots_shown
        number = min(window, total)
        used = number / window
        # A slot's other clients are Bin(m - 1, 1/m) in number.
        alone = -math.expm1(window * math.log1p(-1.0 / window)) if window > 1 else 1.0
        seen = used * alone * (1.0 - 1e-12)
        return Slots(number, used, seen, window - 1, 1.0 / window, used, True, total, self.minibatch)

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        return _SEEN_BY_NAME if neighboring_relation != REPLACE and view == "local" else None

    @property
    def _words(self) -> Words:
        return Words(_of_used_messages(self.minibatch), _ONE_RECORD_OR_CLIENT)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return (
            f"over {self.num_epochs:,} passes of {self.slots_shown:,} slots "
            f"with sliding windows of {self.window:,}, one client used per slot{_summed(self.minibatch)}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragedUpdates(_Slots):
    """Averaged updates, A_avg [RCI]: each client picks one of m slots; all clients of a slot are averaged.

    Empty slots are skipped. Later slots may depend on earlier outputs. The guarantee does not depend on the number of
    slots: with loads that do not depend on the data this is adaptive shuffling of all clients.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound on the true number is safe.
      num_slots: m, from 1 to 1e12.
      check_in_prob: p_0, in (0, 1], one for all clients; drop-out independent of the data included.
      num_epochs: how many times the whole window is run, each client throwing anew; from 1 to 1e9.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    title = "random check-ins with averaged updates (A_avg)"

    @property
    def cover(self) -> Cover:
        """All clients, at the probability of taking part: their loads do not depend on the data."""
        return Cover(self.num_clients, self.check_in_prob)

    @property
    def averaged_throws(self) -> Throws:
        """All clients, into the slots of the window."""
        return self._throws

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees to be true."""
        return (
            "every client takes part with the same probability and picks its slot uniformly from the same window",
            _SAME_RANDOMIZER,
            _UNSEEN,
        )

    @property
    def _words(self) -> Words:
        return Words(_OF_AVERAGES, _ONE_RECORD)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return (
            f"over {self.num_epochs:,} windows of {self.num_slots:,} slots, all clients of a slot averaged, "
            f"taking part with probability {self.check_in_prob:.6g}"
        )


PROTOCOLS = (ShuffledCheckIn, Shuffle, FixedWindow, SlidingWindow, AveragedUpdates)
