"""What the subcommands have in common: numbers as people write them, and protocols from options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
)
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer

Job = Callable[[], None]
View = Literal["local", "messages", "aggregate"]
Relation = Literal["replace-one", "add-or-remove-one"]

# A whole number that may be written 1e7.
Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: _count(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]

PROTOCOLS: dict[str, Callable[..., CheckInProtocol]] = {
    "shuffled-check-in": ShuffledCheckIn,
    "shuffle": Shuffle,
    "fixed-window": FixedWindow,
    "sliding-window": SlidingWindow,
    "averaged-updates": AveragedUpdates,
}
_FIELDS = (
    "num_clients",
    "check_in_prob",
    "num_rounds",
    "drop_out_prob",
    "num_slots",
    "window",
    "num_epochs",
    "empty_slots",
    "minibatch",
)


class UsageError(ValueError):
    """Arguments that are fine one by one but not together."""


@dataclasses.dataclass(kw_only=True)
class ProtocolOptions:
    """A protocol and its messages."""

    num_clients: Count
    """How many clients there are (n)."""
    protocol: Literal[
        "shuffled-check-in", "shuffle", "fixed-window", "sliding-window", "averaged-updates"
    ] = "shuffled-check-in"
    """How clients check in; fixed-window is A_fix, sliding-window A_sldw, averaged-updates A_avg."""
    check_in_prob: float | None = None
    """Probability that a client checks in: each round, or (p_0) each window."""
    num_rounds: Count | None = None
    """Number of rounds (T) of shuffled-check-in and shuffle; 1 when left out."""
    drop_out_prob: float | None = None
    """Probability that a client that checked in drops out before sending (shuffled-check-in)."""
    num_slots: Count | None = None
    """Number of slots (m) of fixed-window and averaged-updates."""
    window: Count | None = None
    """Length of each client's window (m) of sliding-window."""
    num_epochs: Count | None = None
    """How many times the whole window is run; 1 when left out."""
    empty_slots: Literal["dummy", "visible"] | None = None
    """Whether empty slots of fixed-window send a dummy that cannot be recognised (default), or are seen."""
    minibatch: Count | None = None
    """Successive slots of fixed-window and sliding-window whose messages the server sums; 1 when left out."""
    epsilon0: float | None = None
    """Messages are epsilon0-LDP. Give this or --noise-multiplier."""
    noise_multiplier: float | None = None
    """Messages carry Gaussian noise of this many clip norms per coordinate."""

    def build_protocol(self, **start: float) -> CheckInProtocol:
        """The protocol; `start` has values for fields that were left out.

        Raises:
          ValueError, TypeError: an option is missing, not one of the protocol's, or outside its range.
        """
        kind: Any = PROTOCOLS[self.protocol]
        fields = {field.name: field for field in dataclasses.fields(kind)}
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        for name in given:
            if name not in fields:
                raise UsageError(f"--{name.replace('_', '-')} is not an option of --protocol {self.protocol}")
        given = {name: value for name, value in start.items() if name in fields} | given
        for name, field in fields.items():
            if field.default is dataclasses.MISSING and name not in given:
                raise UsageError(f"--protocol {self.protocol} needs --{name.replace('_', '-')}")
        return kind(**given)


def randomizer_of(epsilon0: float | None, noise_multiplier: float | None) -> Randomizer:
    """The randomizer that exactly one of the two options names; UsageError otherwise."""
    if epsilon0 is not None and noise_multiplier is None:
        return PureLDP(epsilon0=epsilon0)
    if noise_multiplier is not None and epsilon0 is None:
        return Gaussian(noise_multiplier=noise_multiplier)
    raise UsageError("give exactly one of --epsilon0 and --noise-multiplier")


def _count(word: str) -> int:
    """A whole number, also in the notation of floats: 1e7."""
    try:
        return int(word)
    except ValueError:
        number = float(word)
        if not number.is_integer():
            raise ValueError(f"{word} is not a whole number") from None
        return int(number)
