"""Sweeps of brackets, Renyi divergences and published bounds: rate, memory, and the loops they replace.

    python benchmarks/sweeps.py [--settings 1000] [--published 1000000] [--pairs 100000] [--loop 20] [--peers 3]

--settings 0 or --published 0 leaves those sweeps out, as --pairs 0 does those of Renyi divergences.

"first" includes compilation, "others" are other settings of the same kind, "again" the same ones once more. The loops
are timed on the first few settings and scaled up to all; each is given settings it has compiled for. On a GPU nothing
needs to change.
"""

from __future__ import annotations

import functools
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import checkin_jax as cj
from checkin_jax.accounting import published as cj_published
from checkin_jax.sweeps.formulas import DEFAULT_ORDERS

DELTA = 1e-6


def shuffles(count: int, seed: int) -> dict[str, np.ndarray]:
    """One round of plain shuffling: n 1e3..1e8, epsilon0 1/4..8."""
    rng = np.random.default_rng(seed)
    return {
        "num_clients": np.round(10 ** rng.uniform(3, 8, count)).astype(np.int64),
        "check_in_prob": np.ones(count),
        "num_rounds": np.ones(count, dtype=np.int64),
        "epsilon0": np.exp(rng.uniform(np.log(0.25), np.log(8), count)),
        "delta": np.full(count, DELTA),
    }


def check_ins(count: int, seed: int) -> dict[str, np.ndarray]:
    """Shuffled check-in over 1 to 1e5 rounds, otherwise as `shuffles`; rates 1e-3..1."""
    rng = np.random.default_rng(seed)
    return {
        **shuffles(count, seed + 1),
        "check_in_prob": 10 ** rng.uniform(-3, 0, count),
        "num_rounds": np.round(10 ** rng.uniform(0, 5, count)).astype(np.int64),
    }


def closed_forms(count: int, seed: int) -> dict[str, np.ndarray]:
    """Settings of Theorems 2 and 3, by turns."""
    return {**check_ins(count, seed), "bound": np.resize(["theorem-2", "theorem-3"], count)}


def divergences(count: int, seed: int) -> dict[str, np.ndarray]:
    """64 real orders from 1.25 to 256 of each setting, n 1e4..1e12, rates 1e-3..1, epsilon0 1/4..4."""
    rng = np.random.default_rng(seed)
    settings = max(count // 64, 1)
    made = {
        "num_clients": np.round(10 ** rng.uniform(4, 12, settings)).astype(np.int64),
        "check_in_prob": 10 ** rng.uniform(-3, 0, settings),
        "epsilon0": np.exp(rng.uniform(np.log(0.25), np.log(4), settings)),
    }
    rows = {name: np.repeat(values, 64) for name, values in made.items()}
    return {**rows, "order": np.tile(np.geomspace(1.25, 256.0, 64), settings)}


def sums(count: int, seed: int) -> dict[str, np.ndarray]:
    """The same of Gaussian sums, noise multipliers 1/2..8."""
    made = divergences(count, seed)
    noise = np.exp(np.random.default_rng(seed + 1).uniform(np.log(0.5), np.log(8), count // 64 or 1))
    del made["epsilon0"]
    return {
        **made,
        "noise_multiplier": np.repeat(noise, 64),
        "view": np.full(len(made["order"]), "aggregate"),
    }


def curves(count: int, seed: int) -> dict[str, np.ndarray]:
    """As `divergences`, a quarter of the settings at 256 orders each."""
    made = divergences(count, seed)
    rows = {name: np.repeat(values[::256], 256) for name, values in made.items()}
    return {**rows, "order": np.tile(np.geomspace(1.25, 256.0, 256), len(rows["order"]) // 256)}


def theorem_1(count: int, seed: int) -> dict[str, np.ndarray]:
    """Settings of Theorem 1 with its exact sums, n 1e3..1e8; each at 64 whole orders up to 230."""
    made = check_ins(count, seed)
    return {**made, "bound": np.resize(["theorem-1"], count)}


ORDERS = np.unique(np.rint(np.geomspace(2, 256, 90)).astype(int))[:64].tolist()


def renyi(pairs: int) -> None:
    """Prints the table of Renyi divergences: processor seconds too, which other work on the machine changes less."""
    rows = Table(
        "sweep", "rows", "first s", "others s", "others, s of CPU", "microseconds of CPU a pair", "peak MiB"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, make, count, more in (
            ("rdp, 64 orders a setting, to Parquet", divergences, pairs, {"what": "rdp"}),
            ("rdp, 256 orders a setting, to Parquet", curves, pairs, {"what": "rdp"}),
            ("rdp of Gaussian sums, 64 orders, to Parquet", sums, pairs, {"what": "rdp"}),
            ("Theorem 1, 64 orders", theorem_1, pairs // 100, {"what": "published", "orders": ORDERS}),
        ):
            out = Path(folder) / "sweep.parquet"
            timed = []
            for seed in (1, 2):
                before, table = processor(), make(count, seed)
                wall = seconds(functools.partial(cj.sweep_to_file, out, table=table, **more))
                timed.append((wall, processor() - before))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            each = 1e6 * timed[1][1] / (count * (64 if "orders" in more else 1))
            rows.add_row(
                name,
                f"{count:,}",
                f"{timed[0][0]:.1f}",
                f"{timed[1][0]:.1f}",
                f"{timed[1][1]:.1f}",
                f"{each:.0f}",
                f"{peak:.0f}",
            )
    Console(width=140).print(rows)


def processor() -> float:
    """Processor seconds so far of this process and of those that it has begun and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def account_loop(table: dict[str, np.ndarray], count: int) -> float:
    """Seconds a setting of `account`, the first `count` settings, compiled before."""
    runs = [
        cj.ShuffledCheckIn(num_clients=n, check_in_prob=g, num_rounds=t)
        for n, g, t in zip(*(table[name][:count].tolist() for name in list(table)[:3]))
    ]

    def work() -> None:
        for run, epsilon0 in zip(runs, table["epsilon0"].tolist()):
            cj.account(run, cj.PureLDP(epsilon0=epsilon0), delta=DELTA, bounds="fast")

    work()
    return seconds(work) / count


def dp_accounting_loop(table: dict[str, np.ndarray], count: int) -> float:
    """Seconds a setting of Theorem 2 at every order and dp_accounting's conversion to epsilon."""
    from dp_accounting.rdp import rdp_privacy_accountant

    orders = np.array(DEFAULT_ORDERS)

    def work() -> None:
        for n, g, t, epsilon0 in zip(*(table[name][:count].tolist() for name in list(table)[:4])):
            one = cj_published.theorem_2(float(n), g, epsilon0, orders)
            rdp_privacy_accountant.compute_epsilon(orders.tolist(), t * one.value, DELTA)

    work()
    return seconds(work) / count


def self_composed_loop(table: dict[str, np.ndarray], count: int) -> float:
    """Seconds a setting of dp_accounting's privacy loss distributions, given our pair of one round.

    The library has no bound for the shuffle model. Its fixed grid of 1e-4 is too coarse for many of the settings: a
    loop as exact as the sweep takes longer.
    """

    def work() -> None:
        for n, g, t, epsilon0 in zip(*(table[name][:count].tolist() for name in list(table)[:4])):
            run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=g)
            unit = cj.to_pld(
                run, cj.PureLDP(epsilon0=epsilon0), value_discretization_interval=1e-4, bounds="fast"
            )
            unit.self_compose(t).get_epsilon_for_delta(DELTA)

    work()
    return seconds(work) / count


def main(
    settings: int = 1000,
    published: int = 1_000_000,
    pairs: int = 100_000,
    loop: int = 20,
    peers: int = 3,
) -> None:
    """Prints the table.

    Args:
      settings: Settings of the two sweeps of brackets.
      published: Settings of the sweep of closed forms.
      pairs: Settings times orders of Renyi divergences; Theorem 1 gets a hundredth as many settings.
      loop: Settings that a loop of `account` is timed on.
      peers: Settings that loops with dp_accounting are timed on.
    """
    if pairs:
        renyi(pairs)
    sweeps = [
        ("one shuffle, brackets", "bracket", shuffles, settings, self_composed_loop),
        ("composed check-ins, brackets", "bracket", check_ins, settings, self_composed_loop),
        ("Theorems 2 and 3 to epsilon", "published", closed_forms, published, dp_accounting_loop),
    ]
    sweeps = [each for each in sweeps if each[3]]
    if not sweeps:
        return
    timed: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sweep.parquet"
        for name, what, make, count, _ in sweeps:
            tables = [make(count, seed) for seed in (1, 2)]
            # The second table again: whatever it needs is compiled by then.
            timed[name] = [
                seconds(functools.partial(cj.sweep_to_file, out, what=what, table=table))
                for table in (*tables, tables[-1])
            ]
    # Of the sweeps: loops of `account` and of others compile for themselves.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = Table(
        "sweep",
        "settings",
        "first s",
        "others s",
        "again s",
        "a second",
        "loop of account s",
        "dp_accounting s",
    )
    for name, what, make, count, peer in sweeps:
        first, others, again = timed[name]
        ours = account_loop(make(count, 2), loop) * count if what == "bracket" else float("nan")
        theirs = peer(make(count, 2), peers) * count
        times = f"{first:.1f}", f"{others:.2f}", f"{again:.2f}"
        rows.add_row(name, f"{count:,}", *times, f"{count / again:,.0f}", f"{ours:.0f}", f"{theirs:.0f}")
    Console(width=140).print(rows)
    print(
        f"{jax.default_backend()}, {jax.local_device_count()} devices; peak memory of the sweeps {peak:.0f} MiB"
    )


if __name__ == "__main__":
    tyro.cli(main)
