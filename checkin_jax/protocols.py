"""Check-in protocols as frozen public descriptions.

A protocol says what everybody may know: how many clients there are, how they choose when to check in, for how
long. Who did check in is sensitive and never a field here.

`repeats` says how many times the protocol's unit (a round, or a whole window) is run. Inputs and randomizers of a unit
may depend on what was seen of earlier ones, the fields here may not. `assumptions` are those without which the
guarantees fail. `observed` and `compared` are the words for what an adversary sees and for neighboring data sets:
statements, pages, audits and JSON take them from here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

from checkin_jax import _validate

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


class _Words(NamedTuple):
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


class _Protocol:
    """What every protocol has: validated fields, and how often its unit is run."""

    # The field that counts the units.
    _unit: ClassVar[str]

    title: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(cast(Any, self)):
            value = _LEGAL[field.name](**{field.name: getattr(self, field.name)})
            object.__setattr__(self, field.name, value)

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
    def _words(self) -> _Words:
        return _Words(_OF_ROUNDS, _ONE_RECORD)

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(_Protocol):
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
    assumptions: ClassVar[tuple[str, ...]] = (
        "every client has the same check-in rate",
        _SAME_RANDOMIZER,
        _UNSEEN,
    )

    @property
    def rate(self) -> float:
        """gamma: the probability that a given client's message arrives in a given round."""
        return self.check_in_prob * (1.0 - self.drop_out_prob)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return f"over {self.num_rounds:,} rounds of check-ins at rate {self.rate:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(_Protocol):
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
    assumptions: ClassVar[tuple[str, ...]] = (
        "every client sends exactly one message a round",
        _SAME_RANDOMIZER,
        "the shuffler is trusted: nobody learns which message is whose",
    )

    @property
    def what(self) -> str:
        """What is run, in words."""
        return f"over {self.num_rounds:,} rounds of shuffling"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Slots(_Protocol):
    """Windows of common slots: clients take part with one probability and pick a slot uniformly."""

    num_clients: int
    num_slots: int
    check_in_prob: float = 1.0
    num_epochs: int = 1

    _unit = "num_epochs"

    @property
    def rate(self) -> float:
        """p_0: the probability that a given client takes part in a given window."""
        return self.check_in_prob


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
    def _words(self) -> _Words:
        gaps = self.empty_slots == "visible"
        return _Words(_of_used_messages(self.minibatch, gaps), _ONE_RECORD if gaps else _ONE_RECORD_OR_CLIENT)

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
class SlidingWindow(_Protocol):
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
    assumptions: ClassVar[tuple[str, ...]] = (
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
    def _words(self) -> _Words:
        return _Words(_of_used_messages(self.minibatch), _ONE_RECORD_OR_CLIENT)

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
    assumptions: ClassVar[tuple[str, ...]] = (
        "every client takes part with the same probability and picks its slot uniformly from the same window",
        _SAME_RANDOMIZER,
        _UNSEEN,
    )

    @property
    def _words(self) -> _Words:
        return _Words(_OF_AVERAGES, _ONE_RECORD)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return (
            f"over {self.num_epochs:,} windows of {self.num_slots:,} slots, all clients of a slot averaged, "
            f"taking part with probability {self.check_in_prob:.6g}"
        )


CheckInProtocol = ShuffledCheckIn | Shuffle | FixedWindow | SlidingWindow | AveragedUpdates
PROTOCOLS = (ShuffledCheckIn, Shuffle, FixedWindow, SlidingWindow, AveragedUpdates)
