"""Protocols whose unit is a round: a random sample of the clients, or all of them, send through a shuffler."""

from __future__ import annotations

import dataclasses

from checkin_jax._rounding import counted
from checkin_jax._variables import FreeVariable
from checkin_jax.protocols.facts import Cover, UnequalCover
from checkin_jax.protocols.protocol import (
    CLIENTS,
    FRESH,
    PROB,
    ROUNDS,
    SAME_RANDOMIZER,
    UNSEEN_BUT_COUNTED,
    CheckInProtocol,
    differing,
    highest,
)
from checkin_jax.rates import CheckInRates, RateLimits, Rates


def lost(drop_out_prob: float) -> str:
    """Share of check-ins that drop out, in words; empty if it is zero."""
    return f", a share {drop_out_prob:.6g} of check-ins dropping out" if drop_out_prob else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(CheckInProtocol):
    """Shuffled check-in [SCI]: in each round every client checks in at random, and sends its message to a shuffler.

    Assumptions, all of them necessary: the rates are as stated; every client of a round uses the same randomizer and
    keeps no state of its own; dropping out does not depend on the data; nobody except the client learns WHETHER it
    checked in (the number of messages may be public).

    Attributes:
      num_clients: number of clients (n), from 1 to 1e12. A lower bound is safe; with `Rates`, the number of rates.
      check_in_prob: probability in (0, 1] that a client checks in, in each round or (p_0) each window. One number for
        all clients: an upper bound is safe, except for sums of Gaussian messages (view "aggregate"), whose noise adds
        up. `Rates` or `RateLimits` if rates differ: the largest rate alone does not cover them.
      num_rounds: number of rounds (T), from 1 to 1e9.
      drop_out_prob: probability in [0, 1) that a client that has checked in drops out before sending.
      num_colluding: number of clients that collude with the adversary, from 0 to num_clients - 1; an upper bound is
        safe.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    check_in_prob: float | Rates | RateLimits
    num_rounds: int = 1
    drop_out_prob: float = 0.0
    num_colluding: int = 0

    _unit = "num_rounds"
    title = "shuffled check-in"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""
        rates = (
            ("every client has the same check-in rate",) if self.coins is None else (self.coins.words, FRESH)
        )
        return (*rates, SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, *self.trusting)

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (ROUNDS,) if isinstance(self.check_in_prob, CheckInRates) else (PROB, ROUNDS, CLIENTS)

    @property
    def coins(self) -> CheckInRates | None:
        return differing(self.check_in_prob)

    @property
    def kept(self) -> float:
        return 1.0 - self.drop_out_prob

    @property
    def rate(self) -> float:
        """Probability gamma that a given client's message arrives in a given round; the largest one if rates differ."""
        return highest(self.check_in_prob) * self.kept

    @property
    def cover(self) -> Cover | None:
        """Sample of all clients, each with the rate of the round."""
        return Cover(self.honest, self.rate) if self.coins is None else None

    @property
    def unequal_cover(self) -> UnequalCover | None:
        """Sample of all clients, each with its own rate."""
        return None if self.coins is None else UnequalCover(self.num_clients, self.coins, self.kept)

    @property
    def what(self) -> str:
        """The run in words."""
        if self.coins is not None:
            rates = f"rates {self.coins.span}{lost(self.drop_out_prob)}"
            return f"over {counted(self.num_rounds, 'round')} of check-ins at {rates}"
        return f"over {counted(self.num_rounds, 'round')} of check-ins at rate {self.rate:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(CheckInProtocol):
    """Plain shuffling: in each round every one of the n clients sends one message through the shuffler.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound is safe.
      num_rounds: number of rounds (T), from 1 to 1e9.
      num_colluding: number of clients that collude with the adversary, from 0 to num_clients - 1; an upper bound is
        safe.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    num_rounds: int = 1
    num_colluding: int = 0

    _unit = "num_rounds"
    title = "shuffling"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""
        return (
            "every client sends exactly one message a round",
            SAME_RANDOMIZER,
            "the shuffler is trusted: nobody learns which message is whose",
            *self.trusting,
        )

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (ROUNDS, CLIENTS)

    @property
    def cover(self) -> Cover:
        """Sample of all clients, in every round."""
        return Cover(self.honest, 1.0)

    @property
    def what(self) -> str:
        """The run in words."""
        return f"over {counted(self.num_rounds, 'round')} of shuffling"
