"""Table 1 of the random check-ins paper as numbers: what each protocol costs in privacy, updates and dummies.

    python accountants/random_check_ins_table_1.py --out table_1.csv

One pass over n clients: A_fix with every client in one of m slots and with p_0 = m/n, A_sldw, A_avg, shuffling. For
each the published epsilon, the certified bracket, the number of updates and of expected dummies among them.
"""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import checkin_jax as cj
from checkin_jax._files import in_folder
from checkin_jax._rounding import down, up
from checkin_jax.accounting import published
from checkin_jax.cli.programs import program
from checkin_jax.sweeps.tables import check, write_rows


def main(
    out: Path, num_clients: int = 100_000, num_slots: int = 10_000, epsilon0: float = 1.0, delta: float = 1e-6
) -> None:
    """Evaluates the table and writes it.

    Args:
      out: CSV or Parquet file to write.
      num_clients: Number of clients n.
      num_slots: Number of slots m, or length of the sliding window; at most n.
      epsilon0: Local privacy of a message.
      delta: Delta of the guarantees.
    """
    check(out=in_folder(out=out))
    n, m, e0 = num_clients, num_slots, epsilon0
    half = 0.5 * delta
    entries = [
        (
            "A_fix, p_0 = 1",
            cj.FixedWindow(num_clients=n, num_slots=m),
            published.fixed_window(m, e0, delta),
            m,
            published.fixed_window_dummies(n, m).value,
        ),
        (
            "A_fix, p_0 = m/n",
            cj.FixedWindow(num_clients=n, num_slots=m, check_in_prob=m / n),
            published.fixed_window(m, e0, delta, check_in_prob=m / n),
            m,
            published.fixed_window_dummies(n, m, m / n).value,
        ),
        (
            "A_sldw",
            cj.SlidingWindow(num_clients=n, window=m),
            published.sliding_window(m, e0, delta),
            n - m + 1,
            published.sliding_window_dummies(n, m).value,
        ),
        (
            "A_avg",
            cj.AveragedUpdates(num_clients=n, num_slots=m),
            published.averaged_updates(n, m, e0, half, half),
            m,
            0.0,
        ),
        ("shuffling", cj.Shuffle(num_clients=n), published.shuffle(n, e0, delta), n, 0.0),
    ]
    heads = ("protocol", "published", "by", "epsilon", "lower", "updates", "dummies")
    title = f"{n:,} clients, {e0:g}-LDP messages, delta = {delta:g}"
    table = Table(*heads, box=box.SIMPLE, collapse_padding=True, title=title)
    rows = []
    for name, protocol, bound, updates, dummies in track(entries, "accounting"):
        g = cj.account(protocol, cj.PureLDP(epsilon0=e0), delta=delta)
        rows.append(
            {
                "protocol": name,
                "num_clients": n,
                "num_slots": m,
                "epsilon0": e0,
                "delta": delta,
                "theorem": bound.label,
                "published": float(bound.value),
                "lower": g.lower,
                "epsilon": g.epsilon,
                "method": g.method,
                "updates": updates,
                "expected_dummies": float(dummies),
            }
        )
        table.add_row(
            name,
            up(float(bound.value), 4),
            bound.label.removeprefix("Theorem "),
            up(g.epsilon, 4),
            down(g.lower, 4),
            f"{updates:,}",
            f"{float(dummies):,.0f}",
        )
    Console().print(table)
    print(write_rows(out, rows))


if __name__ == "__main__":
    program(main)
