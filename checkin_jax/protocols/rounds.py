"""Protocols whose unit is a round: a random part of all clients, or all of them, through a shuffler."""

from __future__ import annotations

import dataclasses

from checkin_jax._variables import FreeVariable
from checkin_jax.protocols.protocol import (
    CLIENTS,
    PROB,
    ROUNDS,
    SAME_RANDOMIZER,
    UNSEEN,
    CheckInProtocol,
    Cover,
)


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
            SAME_RANDOMIZER,
            UNSEEN,
        )

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (PROB, ROUNDS, CLIENTS)

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
            SAME_RANDOMIZER,
            "the shuffler is trusted: nobody learns which message is whose",
        )

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (ROUNDS, CLIENTS)

    @property
    def cover(self) -> Cover:
        """All clients, every round."""
        return Cover(self.num_clients, 1.0)

    @property
    def what(self) -> str:
        """What is run, in words."""
        return f"over {self.num_rounds:,} rounds of shuffling"
