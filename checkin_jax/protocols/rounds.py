"""Protocols whose unit is a round: a random sample of the clients, or all of them, send through a shuffler."""

from __future__ import annotations

import dataclasses

from checkin_jax import _validate
from checkin_jax._rounding import counted
from checkin_jax.protocols.protocol import (
    PROB,
    ROUNDS,
    SAME_RANDOMIZER,
    TRUSTED,
    UNSEEN_BUT_COUNTED,
    CheckInProtocol,
    Cover,
    UnequalCover,
    differing,
    highest,
    lost,
)
from checkin_jax.randomizers.randomizer import FreeVariable
from checkin_jax.rates import CheckInRates, RateLimits, Rates


def batch(min_reports: int) -> tuple[str, ...]:
    """Assumptions about batches of at least so many honest messages."""
    return (
        f"in each round in which a client reports, its batch holds at least {counted(min_reports, 'honest message')}, "
        "its own included",
        "a client reports by a fresh coin, with at most the probability that is stated; which others report may be "
        "known, or the adversary's choice, but depends on nobody's data and on no message of the same round",
        *SAME_RANDOMIZER,
        TRUSTED,
    )


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
      drop_out_prob: probability in [0, 1) that a client whose coin says yes drops out before sending: the same for all,
        by fresh chance each time.
      num_colluding: how many clients may be in league with the adversary, or kept from sending by it, in a round, from
        0 to num_clients - 1; an upper bound is safe.
      min_reports: how many honest messages each batch holds at least, where other clients' coins are not relied on:
        the client's own and those of any others, who may be kept from sending at any time; from 1 to the number of
        honest clients. 0: not known, and others' coins hide a client.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    check_in_prob: float | Rates | RateLimits
    num_rounds: int = 1
    drop_out_prob: float = 0.0
    num_colluding: int = 0
    min_reports: int = 0

    _unit = "num_rounds"
    title = "shuffled check-in"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(0, self.honest, min_reports=self.min_reports)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions under which the guarantees are true, a sentence each."""
        if self.min_reports:
            return batch(self.min_reports)
        unequal = self.unequal_rates
        rates = "every client has the same check-in rate" if unequal is None else unequal.description
        # Of a client that always checks in everybody knows that it did.
        known = (TRUSTED,) if highest(self.check_in_prob) == 1.0 else ()
        return (rates, *self._coins, *SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, *known, *self.trusting)

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        if isinstance(self.check_in_prob, CheckInRates):
            return (ROUNDS,)
        return (PROB, ROUNDS) if self.min_reports else (PROB, ROUNDS, self._clients)

    @property
    def unequal_rates(self) -> CheckInRates | None:
        return differing(self.check_in_prob)

    @property
    def rate(self) -> float:
        """Probability gamma that a given client's message arrives in a given round; the largest one if rates differ."""
        return highest(self.check_in_prob) * self.arrival_prob

    @property
    def cover(self) -> Cover | None:
        """The sample that hides a client: all clients, at the rate of the round."""
        return Cover(self.honest, self.rate) if self.unequal_rates is None and not self.min_reports else None

    @property
    def unequal_cover(self) -> UnequalCover | None:
        """The sample that hides a client: all clients, at their own rates."""
        if self.unequal_rates is None or self.min_reports:
            return None
        return UnequalCover(self.num_clients, self.unequal_rates, self.arrival_prob)

    @property
    def reported(self) -> Shuffle | None:
        """The batch of a client that reports, where a floor of batches is known."""
        return Shuffle(num_clients=self.min_reports) if self.min_reports else None

    @property
    def description(self) -> str:
        """The run in words."""
        rates = (
            f"rate {self.check_in_prob:.6g}"
            if self.unequal_rates is None
            else f"rates {self.unequal_rates.span}"
        )
        floor = f", each in a batch of at least {self.min_reports:,}" if self.min_reports else ""
        return f"over {counted(self.num_rounds, 'round')} of check-ins at {rates}{lost(self.drop_out_prob)}{floor}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(CheckInProtocol):
    """Plain shuffling: in each round every one of the n clients sends one message through the shuffler.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound is safe.
      num_rounds: number of rounds (T), from 1 to 1e9.
      num_colluding: how many clients may be in league with the adversary, or kept from sending by it, in a round, from
        0 to num_clients - 1; an upper bound is safe.

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
            *SAME_RANDOMIZER,
            TRUSTED,
            *self.trusting,
        )

    summed = True

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (ROUNDS, self._clients)

    @property
    def all_send(self) -> bool:
        return True

    @property
    def cover(self) -> Cover:
        """Sample that hides a client: all clients, in every round."""
        return Cover(self.honest, 1.0)

    @property
    def description(self) -> str:
        """The run in words."""
        return f"over {counted(self.num_rounds, 'round')} of shuffling"
