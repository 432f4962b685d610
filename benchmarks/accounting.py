"""Time, memory and tightness of certified brackets.

    python benchmarks/accounting.py

"first" includes compilation of what no earlier row has compiled, "again" is the median of five further calls.
"""

from __future__ import annotations

import resource
import statistics
import time

from rich.console import Console
from rich.table import Table

import checkin_jax as cj

RUNS = [
    (60_000, 0.1, 6_800, cj.PureLDP(epsilon0=2.0), 1e-6, "messages"),
    (60_000, 0.1, 6_800, cj.PureLDP(epsilon0=0.5), 1e-6, "messages"),
    (10_000, 0.6, 6_800, cj.PureLDP(epsilon0=2.0), 1e-6, "messages"),
    (10**9, 6e-6, 6_800, cj.PureLDP(epsilon0=2.0), 1e-6, "messages"),
    (10**6, 1.0, 1, cj.PureLDP(epsilon0=2.0), 1e-6, "messages"),
    (10**8, 1.0, 1, cj.PureLDP(epsilon0=4.0), 1e-6, "messages"),
    (60_000, 0.1, 5_540, cj.Gaussian(noise_multiplier=4.9682), 1e-5, "aggregate"),
    (10**7, 1e-4, 2_000, cj.Gaussian(noise_multiplier=1.70834), 1e-7, "aggregate"),
    (10**7, 1e-4, 2_000, cj.Gaussian(noise_multiplier=1.70834), 1e-7, "messages"),
]


def ours(run: cj.ShuffledCheckIn, randomizer: cj.PureLDP | cj.Gaussian, delta: float, view: str):
    """The guarantee, seconds of the first call, and the median of five more."""
    started = time.perf_counter()
    guarantee = cj.account(run, randomizer, delta=delta, view=view, bounds="fast")
    first = time.perf_counter() - started
    again = []
    for _ in range(5):
        started = time.perf_counter()
        cj.account(run, randomizer, delta=delta, view=view, bounds="fast")
        again.append(time.perf_counter() - started)
    return guarantee, first, statistics.median(again)


def main() -> None:
    """Prints the table."""
    table = Table("n", "rate", "rounds", "randomizer", "view", "lower", "epsilon", "first s", "again ms")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n, rate, rounds, randomizer, delta, view in RUNS:
        run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds)
        g, first, again = ours(run, randomizer, delta, view)
        numbers = (f"{g.lower:.5g}", f"{g.epsilon:.5g}", f"{first:.2f}", f"{1e3 * again:.1f}")
        what = str(randomizer).replace("epsilon0", "eps0").replace("noise_multiplier", "z")
        table.add_row(f"{n:.0e}", f"{rate:g}", f"{rounds}", what, view, *numbers)
    Console(width=150).print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory above the import: {(peak - before) / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
