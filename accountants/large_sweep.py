"""Many settings of shuffled check-in: where Theorem 2 of [SCI] is within a factor of two of Theorem 3's floor.

    python accountants/large_sweep.py --out large_sweep.parquet

Clients from 1e3 to 1e9, rates, local epsilons and rounds on fine grids; one Parquet or CSV file of all rows, and a
table by number of clients. Rows are evaluated in blocks; a run that was stopped goes on with --resume.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import checkin_jax as cj
from checkin_jax import _validate
from checkin_jax.cli.programs import program


def main(out: Path, steps: int = 18, delta: float = 1e-6, resume: bool = False) -> None:
    """Sweeps and prints the table.

    Args:
      out: File to write: .parquet or .csv.
      steps: Values of each of four axes; 26 give about a million rows with both bounds.
      delta: Delta of every run.
      resume: Go on with the finished blocks of a run that was stopped.
    """
    _validate.real(0, 1, "()", delta=delta)
    with Progress() as bar:
        task = bar.add_task("settings", total=None)
        cj.sweep_to_file(
            out,
            resume=resume,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            what="published",
            num_clients=f"1e3:1e9:log{steps}",
            check_in_prob=f"1e-4:1:log{steps}",
            num_rounds=f"1:1e5:log{steps}",
            epsilon0=f"0.1:8:log{steps}",
            delta=delta,
            bound="theorem-2,theorem-3",
        )
    rows = cj.finished_rows(out).columns
    second, third = (rows["epsilon"][rows["bound"] == bound] for bound in ("theorem-2", "theorem-3"))
    clients = rows["num_clients"][rows["bound"] == "theorem-2"]
    table = Table("clients", "within a factor of two", "median ratio", title="Theorem 2 over Theorem 3")
    for n in np.unique(clients):
        here = (clients == n) & np.isfinite(second) & (third > 0.0)
        if not here.any():
            table.add_row(f"{n:,}", "-", "-")
            continue
        ratio = second[here] / third[here]
        table.add_row(f"{n:,}", f"{np.mean(ratio <= 2):.0%}", f"{np.median(ratio):.3g}")
    Console().print(table)


if __name__ == "__main__":
    program(main)
