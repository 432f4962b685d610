"""What clients leak whose check-in rates differ, or who are there by a log: the figures wanted, and those of `account`.

    python benchmarks/fleets.py

epsilon0 = 2, delta = 1e-6. `tests/system/test_unequal_rates_figures.py` asks the same of every line. Minutes, most of
them for programs that are compiled once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import checkin_jax as cj

DELTA, MESSAGES = 1e-6, cj.PureLDP(epsilon0=2.0)
LOW, HIGH, OTHERS = 0.02, 0.3, 60_000
# Rates of the others, evenly by logarithm.
FLEET = LOW * (HIGH / LOW) ** ((np.arange(OTHERS) + 0.5) / OTHERS)


class Figure(NamedTuple):
    """A bracket that is wanted: the upper end at most `upper`, the lower one at least `lower`.

    run: rounds. rate: of the client meant. bounds: as of `account`.
    """

    what: str
    run: cj.CheckInProtocol
    rate: float | None
    upper: float
    lower: float = 0.0
    bounds: str = "best"

    def found(self) -> cj.Guarantee:
        """As `account` has it."""
        return cj.account(self.run, MESSAGES, delta=DELTA, client_rate=self.rate, bounds=self.bounds)

    def met(self, found: cj.Guarantee) -> bool:
        """Whether both ends are as wanted."""
        return self.lower <= found.lower <= found.epsilon <= self.upper


def beside(
    rate: float, values: np.ndarray | list[float], counts: list[int] | None = None, num_rounds: int = 6800
) -> cj.ShuffledCheckIn:
    """One client of this rate beside the others."""
    rates = cj.Rates(np.append(values, rate), None if counts is None else [*counts, 1])
    return cj.ShuffledCheckIn(num_clients=rates.num_clients, check_in_prob=rates, num_rounds=num_rounds)


def figures() -> Iterator[Figure]:
    """All that are wanted of rates that differ."""
    limits = cj.RateLimits(largest=HIGH, expected_check_ins=float(FLEET.sum()))
    limited = cj.ShuffledCheckIn(num_clients=OTHERS + 1, check_in_prob=limits, num_rounds=6800)
    for rate, upper, lower in ((0.3, 4.80, 4.45), (0.10339, 1.475, 1.37), (0.02, 0.2535, 0.0)):
        yield Figure(f"rates .02 to .3, client {rate:g}", beside(rate, FLEET), rate, upper, lower)
        yield Figure(f"largest rate and sum alone, client {rate:g}", limited, rate, 1.003 * upper)
    for rate, upper in ((0.05, 0.0789), (0.95, 1.859)):
        run = beside(rate, [0.05, 0.95], [10_000, 10_000], 200)
        yield Figure(f"half at .05, half at .95, client {rate:g}", run, rate, upper)
    always = beside(0.1, [0.1, 1.0], [10_000, 10_000], 200)
    # Wanted in three digits.
    yield Figure("half at .1, half always, client .1", always, 0.1, 0.1585)
    yield Figure("the same by clones alone", always, 0.1, 0.5675, bounds="clones")


def diurnal() -> tuple[cj.CheckInProtocol, cj.CheckInProtocol]:
    """A day's log of 5,000 to 60,000 who are available, coin .1, 6,792 rounds; and all rounds as in its trough."""
    hours = 2.0 * math.pi * np.arange(6792) / 24.0
    available = np.rint(32_500.0 - 27_500.0 * np.cos(hours)).astype(int)
    log = cj.from_availability(available.tolist(), coin=0.1)
    return log, cj.ShuffledCheckIn(num_clients=5000, check_in_prob=0.1, num_rounds=6792)


def main() -> None:
    """Prints the table."""
    table = Table("fleet", "wanted", "from below", "epsilon", "of the lower end", "met")
    log, trough = diurnal()
    # The trough alone is what the log improves upon.
    logs = [
        Figure("5,000 to 60,000 available by a log", log, None, 2.95, bounds="fast"),
        Figure("all rounds as in the trough", trough, None, 5.76, bounds="clones"),
    ]
    for each in (*figures(), *logs):
        found = each.found()
        wanted = f"{f'{each.lower:g} .. ' if each.lower else ''}{each.upper:.4g}"
        ratio = f"{found.epsilon / found.lower:.4f}"
        met = "yes" if each.met(found) else "no"
        table.add_row(each.what, wanted, f"{found.lower:.5g}", f"{found.epsilon:.5g}", ratio, met)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
