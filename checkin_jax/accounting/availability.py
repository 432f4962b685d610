"""Rounds with changing numbers of available clients: a log, grouped into few units that are composed.

Availability that does not depend on the data may be revealed; given it, round t is one of shuffled check-in among the
n_t clients that are available, each of whom throws a fresh coin. Rounds are put together whose n_t are nearly the same:
a bound takes the fewest clients of the group and its largest coin, a lower instance the most clients and the smallest
coin, so that either end stays on its side (docs/theory.md, section 9; docs/theory_rates.md).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from checkin_jax import _validate

# Numbers of clients in one group differ by this factor at most, coins by the other.
RATIO, COIN_RATIO = 1.03, 1.005
_MOST_CLIENTS = 2.0**42


class Group(NamedTuple):
    """Rounds that are alike: at least `least` and at most `most` clients available, coins in [slowest, fastest]."""

    least: int
    most: int
    slowest: float
    fastest: float
    num_rounds: int


class Log(NamedTuple):
    """One line a round: how many clients were available, and with what probability each of them checked in."""

    available: np.ndarray
    coin: np.ndarray


def log(available: Sequence[int] | np.ndarray, coin: float | Sequence[float] | np.ndarray) -> Log:
    """A checked log.

    Args:
      available: clients available in each round, at least; whole, in [1, 2^42], [rounds].
      coin: check-in probability of the available, in (0, 1]: one number, or one for each round.

    Raises:
      ValueError, TypeError: no rounds; a number outside its range, with its row (from 1); lengths that differ.
    """
    counts = _numbers("available", available)
    if counts.size == 0:
        raise ValueError("available=[]: expected one round at least")
    whole = (counts >= 1) & (counts <= _MOST_CLIENTS) & (counts == np.floor(counts))
    _rows("available", counts, whole, "a whole number in [1, 2^42]")
    coins = (
        np.broadcast_to(_numbers("coin", coin), counts.shape)
        if np.ndim(coin) == 0
        else _numbers("coin", coin)
    )
    if coins.shape != counts.shape:
        raise ValueError(f"coin={coins.size} numbers: expected one for each of the {counts.size} rounds")
    _rows("coin", coins, (coins > 0) & (coins <= 1), "a number in (0, 1]")
    return Log(counts, np.asarray(coins))


def grouped(rounds: Log, ratio: float = RATIO) -> tuple[Group, ...]:
    """Groups of rounds whose numbers of clients differ by a factor of `ratio` at most, and coins by 0.5%.

    Args:
      ratio: in (1, 2]; epsilon moves by about a quarter of what it is above 1.

    Returns:
      The groups, by size and coin; their num_rounds add up to the number of rounds. Cost: n log n for n rounds.
    """
    ratio = _validate.real(1.0, 2.0, open_low=True, ratio=ratio)
    size = np.floor(np.log(rounds.available) / math.log(ratio)).astype(np.int64)
    coin = np.floor(np.log(rounds.coin) / math.log(COIN_RATIO)).astype(np.int64)
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


def read(path: str | Path) -> Log:
    """The log in a CSV file with the columns `available` and `coin`, one line a round, in any order.

    Raises:
      ValueError: a column that is missing, a line that is not two numbers in their ranges, with its number in the file
        (the header is line 1); no rounds.
      OSError: the file cannot be read.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        for name in ("available", "coin"):
            if name not in header:
                raise ValueError(
                    f"{path}: line 1 has the columns {', '.join(header) or 'none'}: expected {name}"
                )
        places = [header.index("available"), header.index("coin")]
        found = [_line(path, number, row, places) for number, row in enumerate(rows, start=2) if row]
    if not found:
        raise ValueError(f"{path}: expected one round at least")
    table = np.asarray(found)
    return Log(table[:, 0], table[:, 1])


def _line(path: str | Path, number: int, row: list[str], places: Iterable[int]) -> tuple[float, float]:
    """One row of the file, checked."""
    try:
        available, coin = (float(row[place]) for place in places)
    except (ValueError, IndexError):
        raise ValueError(
            f"{path}: line {number}: {_validate.shown(','.join(row))}: expected two numbers"
        ) from None
    if not (1 <= available <= _MOST_CLIENTS and available.is_integer()):
        raise ValueError(
            f"{path}: line {number}: available={available!r}: expected a whole number in [1, 2^42]"
        )
    if not 0 < coin <= 1:
        raise ValueError(f"{path}: line {number}: coin={coin!r}: expected a number in (0, 1]")
    return available, coin


def _numbers(name: str, values: object) -> np.ndarray:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={_validate.shown(values)}: expected numbers") from None
    if found.ndim > 1:
        raise ValueError(f"{name} of shape {found.shape}: expected one number a round")
    return found


def _rows(name: str, found: np.ndarray, fine: np.ndarray, expected: str) -> None:
    wrong = np.flatnonzero(~fine)
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(f"{name}, row {i + 1}: {float(found[i])!r}: expected {expected}")
