"""Protocols whose unit is a round: a random sample of the clients, or all of them, send through a shuffler.

The sample may be of clients who are available, by a public log of rounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import counted
from checkin_jax._serialize import Columns
from checkin_jax._suggest import named
from checkin_jax.protocols.protocol import (
    PROB,
    REPLACE,
    ROUNDS,
    SAME_RANDOMIZER,
    STATELESS,
    TRUSTED,
    UNSEEN_BUT_COUNTED,
    CheckInProtocol,
    Cover,
    UnequalCover,
    UnitGroup,
    dropped,
    highest,
    lost,
)
from checkin_jax.randomizers.randomizer import FreeVariable
from checkin_jax.rates import CheckInRates, RateLimits, Rates, check_columns, read_columns


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


# Largest ratios, within one group, of numbers of clients and of check-in probabilities, unless groups are too many.
RATIO, COIN_RATIO = 1.03, 1.005
# Largest numbers of groups: of bounds that cost half a second a group, and of bounds that cost many.
MANY_GROUPS, FEW_GROUPS = 32, 18
# Factor by which the exponent of these ratios grows until groups are few enough.
_WIDER = 1.1
FRESH_AMONG_AVAILABLE = (
    "being available (such as charging, on Wi-Fi) does not depend on anybody's data and may be known; in every round "
    "each available client draws a new random number to decide whether it checks in, independently of everything that "
    "persists; being plugged in all night does not count as that random choice"
)
# Most rounds to which `calibrate` extends a log: a century of hours.
MAX_LOG_ROUNDS = 1_000_000


def _span(least: str, most: str) -> str:
    """Both ends in words, or one if they are equal."""
    return least if least == most else f"{least} to {most}"


class Group(NamedTuple):
    """Similar rounds: from `least` to `most` available clients, check-in probabilities in [slowest, fastest]."""

    least: int
    most: int
    slowest: float
    fastest: float
    num_rounds: int


@dataclasses.dataclass(frozen=True, eq=False)
class AvailabilityLog(Columns):
    """For each round, the number of available clients and their check-in probability."""

    available: np.ndarray
    coin: np.ndarray

    def __post_init__(self) -> None:
        self._keep(available=self.available, coin=self.coin)

    def __repr__(self) -> str:
        least, most = self.available.min(), self.available.max()
        return f"AvailabilityLog({self.available.size} rounds, {least:g} to {most:g} available)"


def log(available: Sequence[int] | np.ndarray, coin: float | Sequence[float] | np.ndarray) -> AvailabilityLog:
    """Checks and builds a log.

    Args:
      available: lower bounds on the numbers of available clients; whole, in [1, 2^42], [rounds].
      coin: check-in probability of each available client, in (0, 1]: one number, or one for each round.

    Raises:
      ValueError, TypeError: no rounds; a number outside its range, with its place; lengths that differ.
    """
    counts = _validate.column("available", available)
    if counts.size == 0:
        raise ValueError("available=[]: expected at least one round")
    coins = _validate.column("coin", coin, or_number=True)
    if coins.ndim == 0:
        coins = np.full(counts.shape, coins)
    if coins.shape != counts.shape:
        raise ValueError(f"coin={coins.size} numbers: expected one for each of the {counts.size} rounds")
    check_columns(available=counts, coin=coins)
    return AvailabilityLog(counts, coins)


def grouped(rounds: AvailabilityLog, wider: float = 1.0) -> tuple[Group, ...]:
    """Groups of rounds whose numbers of clients differ by a factor of at most `RATIO`, and coins by `COIN_RATIO`.

    Args:
      wider: at least 1: exponent of the ratio of clients, its square that of coins. Epsilon changes by a relative
        amount of about .0075 times it.

    Returns:
      Groups, ordered by size and coin; their num_rounds add up to the number of rounds. Cost: n log n for n rounds.
    """
    wider = _validate.real(1.0, math.inf, "[)", wider=wider)
    size = np.floor(np.log(rounds.available) / (wider * math.log(RATIO))).astype(np.int64)
    coin = np.floor(np.log(rounds.coin) / (wider**2 * math.log(COIN_RATIO))).astype(np.int64)
    order = np.lexsort((coin, size))
    size, coin = size[order], coin[order]
    changed = (np.diff(size) != 0) | (np.diff(coin) != 0)
    starts = np.flatnonzero(np.concatenate([[True], changed]))
    columns = rounds.available[order], rounds.coin[order]
    least, slowest = (np.minimum.reduceat(column, starts) for column in columns)
    most, fastest = (np.maximum.reduceat(column, starts) for column in columns)
    counts = np.diff(np.append(starts, size.size))
    return tuple(
        Group(int(a), int(b), float(c), float(d), int(n))
        for a, b, c, d, n in zip(least, most, slowest, fastest, counts)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AvailableCheckIn(CheckInProtocol):
    """Shuffled check-in among available clients: in round t of a log each of n_t clients flips the round's coin.

    Assumes: `FRESH_AMONG_AVAILABLE`, and the same coin for all available clients of a round. The guarantee covers
    clients that are available in any rounds, even in all.

    Attributes:
      log: lower bounds on n_t, upper bounds on the coins; see `from_availability`.
      num_rounds: the first so many rounds of it; None: all.
      drop_out_prob: as of `ShuffledCheckIn`.
      num_colluding: how many of the available may be in league with the adversary, or kept from sending by it, in a
        round; less than the fewest available.
      min_reports: how many honest messages each batch holds at least, as of `ShuffledCheckIn`; the numbers of
        available clients are not relied on then. At most the most available.
      num_clients: the most that were available; from the log.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    log: AvailabilityLog
    num_rounds: int = cast(Any, None)
    drop_out_prob: float = 0.0
    num_colluding: int = 0
    min_reports: int = 0
    num_clients: int = cast(Any, None)

    _unit = "num_rounds"
    title = "shuffled check-in among those available"
    summed = True

    def __post_init__(self) -> None:
        known = log(self.log.available, self.log.coin)
        most = known.available.size
        if self.num_rounds is None:
            object.__setattr__(self, "num_rounds", most)
        largest = int(known.available.max())
        if self.num_clients is None:
            object.__setattr__(self, "num_clients", largest)
        super().__post_init__()
        if self.num_rounds > most:
            raise _validate.error(f"at most {most}, the rounds of the log", num_rounds=self.num_rounds)
        if self.num_clients != largest:
            raise _validate.error(f"{largest}, the most in the log", num_clients=self.num_clients)
        fewest = int(known.available.min())
        if self.num_colluding >= fewest and self.num_colluding:
            raise ValueError(
                f"num_colluding={self.num_colluding!r}: expected at most {fewest - 1}, all but one of the fewest in "
                "the log"
            )
        _validate.integer(0, self.honest, min_reports=self.min_reports)

    def repeated(self, count: int) -> Self:
        """Protocol of `count` rounds; after its end the log starts again from the beginning.

        Raises:
          ValueError, TypeError: `count` is not in [1, 1e6], or the log's length if that is larger.
        """
        size = self.log.available.size
        if count <= size:
            return dataclasses.replace(self, num_rounds=count)
        _validate.integer(1, MAX_LOG_ROUNDS, num_rounds=count)
        longer = AvailabilityLog(np.resize(self.log.available, count), np.resize(self.log.coin, count))
        return dataclasses.replace(self, log=longer, num_rounds=count)

    def varied(self, name: str, value: float) -> Self:
        if name == "cycles":
            return self.followed_by(()).repeated(int(value) * self.num_rounds)
        if name == "check_in_prob":
            coins = self.log.coin * (value / self.check_in_prob)
            scaled = AvailabilityLog(self.log.available, np.minimum(coins, value))
            return dataclasses.replace(self, log=scaled)
        return super().varied(name, value)

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        return (
            FreeVariable("num_rounds", 1.0, float(MAX_LOG_ROUNDS), 0.5, whole=True),
            FreeVariable("cycles", 1.0, float(max(MAX_LOG_ROUNDS // self.num_rounds, 1)), 0.5, whole=True),
            FreeVariable("check_in_prob", 1e-9, 1.0, 1.0),
        )

    @property
    def cycles(self) -> int:
        """1: number of repetitions of the log. `calibrate` may search it."""
        return 1

    @property
    def check_in_prob(self) -> float:
        """Largest coin of the log; `calibrate` scales all coins with it."""
        return float(self.log.coin.max())

    def followed_by(self, others: Sequence[AvailableCheckIn]) -> Self:
        """Returns the run whose log is this one and, after it, those of other runs on the same `terms`."""
        runs = [self, *others]
        columns = (
            np.concatenate([getattr(run.log, name)[: run.num_rounds] for run in runs])
            for name in ("available", "coin")
        )
        return dataclasses.replace(
            self, log=AvailabilityLog(*columns), num_rounds=cast(Any, None), num_clients=cast(Any, None)
        )

    @property
    def terms(self) -> tuple[float, int, int]:
        """The fields that hold of all rounds of the log."""
        return self.drop_out_prob, self.num_colluding, self.min_reports

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions under which the guarantees are true, a sentence each."""
        if self.min_reports:
            return (FRESH_AMONG_AVAILABLE, *batch(self.min_reports))
        return (
            FRESH_AMONG_AVAILABLE,
            "in every round at least as many clients are available as logged, all with the same check-in probability, "
            "which is at most the logged one (exactly the logged one for sums whose noise adds up)",
            *dropped(self.drop_out_prob),
            *SAME_RANDOMIZER,
            UNSEEN_BUT_COUNTED,
            *self.trusting,
        )

    def assumed(self, view: str, neighboring_relation: str = REPLACE) -> tuple[str, ...]:
        if view == "local":
            coins = (FRESH_AMONG_AVAILABLE, "no check-in probability is above the logged one")
            return (*coins, *dropped(self.drop_out_prob), STATELESS)
        return self.assumptions

    @property
    def rate(self) -> float:
        """Mean probability, over rounds, that a client that is always available sends a message."""
        return float(self.log.coin[: self.num_rounds].mean()) * self.arrival_prob

    @property
    def description(self) -> str:
        """The run in words."""
        rounds, coins = self.log.available[: self.num_rounds], self.log.coin[: self.num_rounds]
        coin = _span(*(f"{end:.6g}" for end in (coins.min(), coins.max())))
        available = _span(*(f"{int(end):,}" for end in (rounds.min(), rounds.max())))
        floor = f", each in a batch of at least {self.min_reports:,}" if self.min_reports else ""
        return (
            f"over {counted(self.num_rounds, 'round')} of check-ins by coins of {coin} among {available} available"
            f"{lost(self.drop_out_prob)}{floor}"
        )

    @property
    def in_words(self) -> str:
        """The run in words, with the clients that are available; how many there are in all is not in a log."""
        return self.description

    def unit_groups(self, finest: bool) -> tuple[UnitGroup, ...]:
        """Groups of rounds with similar numbers of available clients and similar coins."""
        rounds = AvailabilityLog(self.log.available[: self.num_rounds], self.log.coin[: self.num_rounds])
        most, wider = MANY_GROUPS if finest else FEW_GROUPS, 1.0
        while len(groups := grouped(rounds, wider)) > most:
            wider *= _WIDER

        def one(clients: int, coin: float) -> ShuffledCheckIn:
            return ShuffledCheckIn(
                num_clients=max(clients, self.min_reports + self.num_colluding),
                check_in_prob=coin,
                drop_out_prob=self.drop_out_prob,
                num_colluding=self.num_colluding,
                min_reports=self.min_reports,
            )

        return tuple(
            UnitGroup(one(each.least, each.fastest), one(each.most, each.slowest), each.num_rounds)
            for each in groups
        )


@named
def from_availability(
    available: Sequence[int] | np.ndarray | str | Path,
    coin: float | Sequence[float] | np.ndarray | None = None,
    *,
    drop_out_prob: float = 0.0,
    num_colluding: int = 0,
    min_reports: int = 0,
    cycles: int = 1,
) -> AvailableCheckIn:
    """Shuffled check-in in rounds with changing numbers of available clients, from a log.

    Args:
      available: lower bounds on the numbers of available clients, [rounds]; or the path of a CSV file with the columns
        `available` and `coin`, one line per round, see `read`.
      coin: upper bound in (0, 1] on the check-in probability of each available client: one number, or one per round.
        None with a path.
      drop_out_prob: as of `ShuffledCheckIn`.
      num_colluding: as of `AvailableCheckIn`.
      min_reports: as of `AvailableCheckIn`.
      cycles: number of times that the log is run, one after the other; at most 1e6 rounds in all.

    Returns:
      A protocol for `account`: one bracket for the whole run.

    Raises:
      ValueError, TypeError: an empty log, or a number outside its range, with its place. OSError: no such file.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.from_availability([5_000, 60_000, 20_000], coin=0.1)
      >>> cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6).epsilon < 0.2
      True
    """
    if isinstance(available, str | Path):
        if coin is not None:
            raise _validate.error("None with a file, which has its own", coin=coin)
        rounds = read(available)
    elif coin is None:
        raise TypeError("coin=None: expected a number, or one for each round")
    else:
        rounds = log(available, coin)
    run = AvailableCheckIn(
        log=rounds, drop_out_prob=drop_out_prob, num_colluding=num_colluding, min_reports=min_reports
    )
    most = max(MAX_LOG_ROUNDS // run.num_rounds, 1)
    return run.varied("cycles", _validate.integer(1, most, cycles=cycles))


def read(path: str | Path) -> AvailabilityLog:
    """Reads a log from a CSV file with the columns `available` and `coin`, in any order, one line per round.

    Raises:
      ValueError: a missing column, a line that is empty or not two numbers in their ranges (named by its number, the
        header being line 1), or no rounds.
      OSError: the file cannot be read.
    """
    return AvailabilityLog(*read_columns(path, ("available", "coin")))
