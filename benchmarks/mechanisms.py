"""What concrete mechanisms leak beside the worst one: a table, from `account` [docs/theory_mechanisms.md].

    python benchmarks/mechanisms.py

n = 60,000, rate .1, 6,800 rounds, delta = 1e-6, or the setting given by options. Times are those of one unit's profile
in seconds of CPU, programs compiled and nothing kept: the least of three.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import checkin_jax as cj
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.kernels.execution.devices import float64

EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
VALUES = (3, 10, 100)


def seconds(run: cj.CheckInProtocol, randomizer: cj.Randomizer, delta: float, label: str) -> float:
    """CPU seconds of the profile of one unit by one theorem, for a setting that was not asked for before."""
    found = []
    for extra in range(1, 4):
        other = type(run)(**{**vars(run), "num_clients": run.num_clients + extra})
        started = time.process_time()
        bound = unit_bound(other, randomizer, "messages", run.num_units, delta, bounds=(label,)).bound
        with float64():
            bound.upper(np.array([0.1 * bound.largest_loss]))
        found.append(time.process_time() - started)
    return min(found)


def main() -> None:
    """Prints the table and the times."""
    parser = argparse.ArgumentParser(description="What concrete mechanisms leak beside the worst one.")
    parser.add_argument("--num-clients", type=int, default=60_000)
    parser.add_argument("--check-in-prob", type=float, default=0.1)
    parser.add_argument("--num-rounds", type=int, default=6_800)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--epsilon0", type=float, nargs="+", default=EPSILONS)
    options = parser.parse_args()
    n, rate, rounds = options.num_clients, options.check_in_prob, options.num_rounds
    run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds)
    slots = cj.AveragedUpdates(num_clients=n, num_slots=10, check_in_prob=rate, num_epochs=rounds)

    def ends(protocol: cj.CheckInProtocol, randomizer: cj.Randomizer, bounds: str = "best") -> cj.Guarantee:
        return cj.account(protocol, randomizer, delta=options.delta, bounds=bounds)

    kinds = [f"{k}-ary, over lower" for k in VALUES]
    table = Table("eps0", "clones", "any message", *kinds, "l2", "l2 averaged", "l2 below", "l2 over lower")
    for epsilon0 in options.epsilon0:
        worst, l2 = cj.PureLDP(epsilon0=epsilon0), cj.L2Mechanism(epsilon0=epsilon0)
        kary = [ends(run, cj.KaryResponse(epsilon0=epsilon0, num_values=k)) for k in VALUES]
        one, averaged = ends(run, l2), ends(slots, l2)
        table.add_row(
            f"{epsilon0:g}",
            f"{ends(run, worst, bounds='clones').epsilon:.5f}",
            f"{ends(run, worst).epsilon:.5f}",
            *(f"{g.epsilon:.5f} {g.epsilon / g.lower:.5f}" for g in kary),
            f"{one.epsilon:.5f}",
            f"{averaged.epsilon:.5f}",
            f"{one.lower:.5f}",
            f"{one.epsilon / one.lower:.4f}",
        )
    Console(width=150).print(table)

    table = Table("clients", "A, ms", "t_k, ms", "B0, ms", title="one unit's profile, CPU time")
    for number in (10**4, 10**9):
        big = cj.ShuffledCheckIn(num_clients=number, check_in_prob=rate, num_rounds=rounds)
        asked = (
            ("A", cj.HadamardResponse(epsilon0=2.0)),
            ("t_k", cj.KaryResponse(epsilon0=2.0, num_values=10)),
            ("B0", cj.L2Mechanism(epsilon0=2.0)),
        )
        times = [seconds(big, randomizer, options.delta, label) for label, randomizer in asked]
        table.add_row(f"{number:.0e}", *(f"{1e3 * each:.0f}" for each in times))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
