"""Epsilon of shuffled check-in in a fleet that sleeps: by the log, by its trough, and by its mean, a mistake.

    python accountants/availability.py --log diurnal.csv
    checkin epsilon --availability diurnal.csv --epsilon0 2

Between 5,000 and 60,000 clients are available, a day of 24 rounds long; each of them checks in with probability 0.1.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from rich.progress import track

import checkin_jax as cj
from checkin_jax import _validate
from checkin_jax.cli.programs import program


def main(
    log: Path, rounds: int = 6_792, epsilon0: float = 2.0, coin: float = 0.1, delta: float = 1e-6
) -> None:
    """Writes the log and accounts for it.

    Args:
      log: CSV file to write.
      rounds: Number of rounds.
      epsilon0: Local privacy of one message.
      coin: Check-in probability of the available.
      delta: Delta of the guarantees.
    """
    _validate.integer(1, rounds=rounds)
    available = np.rint(32_500 - 27_500 * np.cos(2 * np.pi * np.arange(rounds) / 24)).astype(int)
    with log.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["round", "available", "coin"])
        table.writerows((t, n, coin) for t, n in enumerate(available.tolist()))
    randomizer = cj.PureLDP(epsilon0=epsilon0)
    runs = {
        "the log": cj.from_availability(log),
        "its trough": cj.from_availability(np.full(rounds, available.min()), coin),
        "its mean, no bound": cj.from_availability(np.full(rounds, int(available.mean())), coin),
    }
    ends = {name: cj.account(run, randomizer, delta=delta) for name, run in track(runs.items(), "accounting")}
    for name, found in ends.items():
        print(f"{name:<20} {found:.4}  {found.method}")


if __name__ == "__main__":
    program(main)
