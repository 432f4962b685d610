"""Table 1 of the shuffled check-in paper, measured: how evaluation time grows with the order and with n.

    python accountants/shuffled_check_in_table_1.py --out table_1.csv

Theorem 1's sum over k (O(window x order)), the closed forms of Theorem 2 (O(order)) and 3 (O(1)), and the certified
account, whose cost does not grow with n. Times are of one call, compiled before, the best of five.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import checkin_jax as cj
from checkin_jax import _validate
from checkin_jax._files import in_folder
from checkin_jax.accounting import published
from checkin_jax.cli.programs import program
from checkin_jax.sweeps.tables import check, write_rows


def main(
    out: Path,
    num_clients: tuple[float, ...] = (1e4, 1e6, 1e8, 1e10),
    orders: tuple[int, ...] = (16, 128, 1024),
    check_in_prob: float = 0.01,
    epsilon0: float = 1.0,
) -> None:
    """Times every bound at every size, all whole orders from 2 to the largest at once.

    Args:
      out: CSV or Parquet file to write.
      num_clients: Numbers of clients.
      orders: Largest orders.
      check_in_prob: Check-in probability.
      epsilon0: Local privacy of a message.
    """
    check(out=in_folder(out=out))
    for order in orders:
        _validate.integer(2, orders=order)
    rows = []
    for n in track(num_clients, "timing"):
        run = cj.ShuffledCheckIn(num_clients=int(n), check_in_prob=check_in_prob, num_rounds=1_000)
        account = functools.partial(cj.account, run, cj.PureLDP(epsilon0=epsilon0), delta=1e-6)
        rows.append(_row("account, 1,000 rounds", n, 0, account))
        for largest in orders:
            every = np.arange(2, largest + 1)
            for theorem in (published.theorem_1, published.theorem_2, published.theorem_3):
                call = functools.partial(theorem, n, check_in_prob, epsilon0, every)
                rows.append(_row(theorem.__name__, n, largest, call))
    table = Table("bound", "largest order", *(f"n = {n:.0e}" for n in num_clients), title="milliseconds")
    for name, largest in dict.fromkeys((row["bound"], row["largest_order"]) for row in rows):
        times = [row["seconds"] for row in rows if (row["bound"], row["largest_order"]) == (name, largest)]
        table.add_row(str(name), str(largest or "-"), *(f"{1e3 * float(s):.2f}" for s in times))
    Console().print(table)
    print(write_rows(out, rows))


def _row(bound: str, n: float, largest: int, call: Callable[[], object]) -> dict[str, object]:
    call()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return {"bound": bound, "num_clients": n, "largest_order": largest, "seconds": best}


if __name__ == "__main__":
    program(main)
