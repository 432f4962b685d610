"""Epsilon of shuffled check-in against the number of rounds and of clients, bracketed, as a table and a CSV.

    python accountants/rounds_and_clients.py --out rounds_and_clients.csv

For each number of clients the check-in probability is such that the same number of clients checks in each round:
what more clients buy at equal cost to the server.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import checkin_jax as cj
from checkin_jax._files import in_folder
from checkin_jax._rounding import down, up
from checkin_jax.cli.programs import program
from checkin_jax.sweeps.tables import check, write_rows

FIELDS = ("num_clients", "check_in_prob", "num_rounds", "epsilon0", "delta", "lower", "epsilon", "method")


def main(
    out: Path,
    epsilon0: float = 2.0,
    delta: float = 1e-6,
    check_ins: int = 1_000,
    num_clients: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000),
    num_rounds: tuple[int, ...] = (1, 10, 100, 1_000, 10_000),
) -> None:
    """Accounts for every combination and writes the table.

    Args:
      out: CSV or Parquet file to write.
      epsilon0: Local privacy of one message.
      delta: Delta of the guarantees.
      check_ins: Expected number of messages a round.
      num_clients: Numbers of clients.
      num_rounds: Numbers of rounds.
    """
    check(out=in_folder(out=out))
    if check_ins > min(num_clients):
        raise ValueError(f"check_ins={check_ins}: expected at most the fewest clients, {min(num_clients):,}")
    rows = []
    for n, rounds in track([(n, t) for n in num_clients for t in num_rounds], "accounting"):
        run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=check_ins / n, num_rounds=rounds)
        g = cj.account(run, cj.PureLDP(epsilon0=epsilon0), delta=delta)
        rows.append((n, run.check_in_prob, rounds, epsilon0, delta, g.lower, g.epsilon, g.method))

    table = Table(
        "clients",
        *(f"{t:,}" for t in num_rounds),
        title=f"epsilon at delta = {delta:g} by rounds, the lower end below it",
    )
    for n in num_clients:
        table.add_row(f"{n:,}", *(f"{up(row[6], 3)}\n{down(row[5], 3)}" for row in rows if row[0] == n))
    Console().print(table)
    write_rows(out, [dict(zip(FIELDS, row)) for row in rows])


if __name__ == "__main__":
    program(main)
