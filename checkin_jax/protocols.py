"""Check-in protocols as frozen public descriptions.

A protocol says what everybody may know: how many clients there are, how they choose when to check in, for how
long. Who did check in is sensitive and never a field here.

`repeats` says how many times the protocol's unit (a round, or a whole window) is run; units compose adaptively.
`assumptions` are those without which the guarantees fail.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self, cast

from checkin_jax import _validate

MAX_CLIENTS = 10**12
MAX_ROUNDS = 10**9
EMPTY_SLOTS = ("dummy", "visible")

_SAME_RANDOMIZER = (
    "all clients of a round use the same randomizer and keep no state of their own between rounds"
)
_UNSEEN = (
    "dropping out does not depend on the data, and nobody learns who checked in (how many did may be known)"
)


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


def _summed(minibatch: int) -> str:
    """How the messages of the slots leave the server, in words."""
    return "" if minibatch == 1 else f", the messages of {minibatch:,} successive slots summed"


class _Protocol:
    """What every protocol has: validated fields, and how often its unit is run."""

    # The field that counts the units.
    _unit: ClassVar[str]

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

    assumptions: ClassVar[tuple[str, ...]] = (
        "every client takes part with the same probability and picks its slot uniformly from the same window",
        _SAME_RANDOMIZER,
        _UNSEEN,
    )

    @property
    def what(self) -> str:
        """What is run, in words."""
        return (
            f"over {self.num_epochs:,} windows of {self.num_slots:,} slots, all clients of a slot averaged, "
            f"taking part with probability {self.check_in_prob:.6g}"
        )


CheckInProtocol = ShuffledCheckIn | Shuffle | FixedWindow | SlidingWindow | AveragedUpdates
PROTOCOLS = (ShuffledCheckIn, Shuffle, FixedWindow, SlidingWindow, AveragedUpdates)
