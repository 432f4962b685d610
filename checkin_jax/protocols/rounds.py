"""Protocols whose unit is a round: a random part of all clients, or all of them, through a shuffler."""

from __future__ import annotations

import dataclasses

from checkin_jax._rounding import counted
from checkin_jax._variables import FreeVariable
from checkin_jax.protocols.facts import Cover, Crowd
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
    """How many of those who check in drop out, in words behind them; nothing where none does."""
    return f", a share {drop_out_prob:.6g} of check-ins dropping out" if drop_out_prob else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(CheckInProtocol):
    """Shuffled check-in [SCI]: each round every client flips a coin, privatises and sends to a shuffler.

    Assumes (the guarantee fails without them): the rates are as stated; every client of a round uses the same
    randomizer and keeps no state of its own; dropping out does not depend on the data; nobody but the client learns
    WHO checked in (how many messages arrive may be public).

    Attributes:
      num_clients: how many clients there are (n), from 1 to 1e12. A lower bound on the true number is safe; with
        `Rates` as many as there are.
      check_in_prob: probability in (0, 1] that a client checks in, each round or (p_0) each window. One for all
        clients, an upper bound on which is safe, but for sums of Gaussian messages (view "aggregate"), whose noise adds
        up; or, where rates differ, `Rates` or `RateLimits`: the maximum of different rates does not cover them.
      num_rounds: number of rounds (T), from 1 to 1e9.
      drop_out_prob: probability in [0, 1) that a client whose coin says yes drops out before sending.
      num_colluding: how many clients may be in league with the adversary, from 0 to num_clients - 1; an upper bound
        is safe.

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
        """Assumptions under which the guarantees are true, a sentence each."""
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
        """Probability gamma that a given client's message arrives in a given round; the fastest's, if rates differ."""
        return highest(self.check_in_prob) * self.kept

    @property
    def cover(self) -> Cover | None:
        """The sample that hides a client: all clients, at the rate of the round."""
        return Cover(self.honest, self.rate) if self.coins is None else None

    @property
    def crowd(self) -> Crowd | None:
        """The sample that hides a client: all clients, at their own rates."""
        return None if self.coins is None else Crowd(self.num_clients, self.coins, self.kept)

    @property
    def what(self) -> str:
        """The run in words."""
        if self.coins is not None:
            rates = f"rates {self.coins.span}{lost(self.drop_out_prob)}"
            return f"over {counted(self.num_rounds, 'round')} of check-ins at {rates}"
        return f"over {counted(self.num_rounds, 'round')} of check-ins at rate {self.rate:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(CheckInProtocol):
    """Plain shuffling: each round every one of the n clients sends one message through the shuffler.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound on the true number is safe.
      num_rounds: number of rounds (T), from 1 to 1e9.
      num_colluding: how many clients may be in league with the adversary, from 0 to num_clients - 1; an upper bound
        is safe.

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
        """Assumptions under which the guarantees are true, a sentence each."""
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
        """The sample that hides a client: all clients, every round."""
        return Cover(self.honest, 1.0)

    @property
    def what(self) -> str:
        """The run in words."""
        return f"over {counted(self.num_rounds, 'round')} of shuffling"
