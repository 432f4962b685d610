"""The same privacy loss distribution composed by us, by dp_accounting and by PLD_accounting (where installed).

    python benchmarks/peers.py [--allocation]

What the peers are given is one round of shuffled check-in as T1 has it (`cj.to_pld`, a grid pair from above): none
of them has a bound for the protocol. "excess" is over our certified T1 upper end.

A second table is about random allocation, k of t noisy sums, added or removed: `cj.random_allocation` against
PLD_accounting's own bounds (where installed), which are adaptive up to upper / lower of about 1.1, and Monte Carlo: the
epsilon at which delta is estimated from draws of the losses, where few draws still show delta; no bound.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import checkin_jax as cj

INTERVALS = (1e-4, 1e-5)


class Setting(NamedTuple):
    """A run of shuffled check-in with eps0-LDP messages, and the delta it is accounted at."""

    num_clients: int
    rate: float
    num_rounds: int
    epsilon0: float
    delta: float

    @property
    def run(self) -> tuple[cj.ShuffledCheckIn, cj.PureLDP]:
        """Protocol and randomizer."""
        n, rate, rounds = self.num_clients, self.rate, self.num_rounds
        protocol = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds)
        return protocol, cj.PureLDP(epsilon0=self.epsilon0)


SETTINGS = [
    Setting(60_000, 0.1, 6_800, 2.0, 1e-6),
    Setting(60_000, 0.1, 6_800, 0.69, 1e-6),
    Setting(10**9, 6e-6, 6_800, 2.0, 1e-6),
    Setting(60_000, 0.1, 1_000, 2.0, 1e-12),
]


def ours(setting: Setting, tight: bool) -> float:
    """The certified upper end."""
    return cj.account(*setting.run, delta=setting.delta, bounds="best" if tight else "fast").epsilon


def by_dp_accounting(setting: Setting, interval: float) -> float:
    """dp_accounting's self-composition of our unit."""
    unit = cj.to_pld(*setting.run, value_discretization_interval=interval, tail_mass=1e-20, bounds="fast")
    return unit.self_compose(setting.num_rounds).get_epsilon_for_delta(setting.delta)


def by_pld_accounting(setting: Setting, interval: float) -> float:
    """PLD_accounting's self-convolution of our unit."""
    from PLD_accounting import dp_accounting_support  # pyright: ignore[reportMissingImports]
    from PLD_accounting.fft_convolution import fft_self_convolve  # pyright: ignore[reportMissingImports]
    from PLD_accounting.types import BoundType  # pyright: ignore[reportMissingImports]

    unit = cj.to_pld(*setting.run, value_discretization_interval=interval, tail_mass=1e-20, bounds="fast")
    one = dp_accounting_support.dp_accounting_pmf_to_pld_realization(pmf=unit._pmf_remove)
    upper = BoundType.DOMINATES
    many = fft_self_convolve(
        dist=one,
        num_convolutions=setting.num_rounds,
        tail_truncation=1e-3 * setting.delta,
        bound_type=upper,
        use_direct=True,
    )
    composed = dp_accounting_support.linear_dist_to_dp_accounting_pmf(dist=many, bound_type=upper)
    return composed.get_epsilon_for_delta(setting.delta)


def rows(setting: Setting) -> list[tuple[str, Callable[[], float]]]:
    """Name and computation of every competitor."""
    found = [
        ("checkin-jax, clones", functools.partial(ours, setting, False)),
        ("checkin-jax, best", functools.partial(ours, setting, True)),
    ]
    for interval in INTERVALS:
        found.append(
            (f"dp_accounting at {interval:g}", functools.partial(by_dp_accounting, setting, interval))
        )
        if importlib.util.find_spec("PLD_accounting") is not None:
            found.append(
                (f"PLD_accounting at {interval:g}", functools.partial(by_pld_accounting, setting, interval))
            )
    return found


class Allocation(NamedTuple):
    """Epochs in which a record is in k of t sums; noise over sensitivity."""

    noise: float
    steps: int
    selected: int = 1
    epochs: int = 1
    delta: float = 1e-6


ALLOCATIONS = [
    Allocation(1.0, 10),
    Allocation(1.0, 100),
    Allocation(1.0, 100, 1, 10),
    Allocation(1.0, 100, 1, 10, 1e-3),
    Allocation(2.0, 100),
    Allocation(2.0, 100, 10),
    Allocation(2.0, 100, 10, 1, 1e-3),
    Allocation(0.5, 10_000, 1, 10),
    Allocation(4.0, 10_000, 1, 10),
    Allocation(4.0, 1_000_000),
]
# PLD_accounting takes minutes for more: steps times selected times epochs.
PEERS_UP_TO = 100
# Losses are drawn only where so many of them show delta.
DRAWS, LEAST_DELTA = 400_000, 1e-3
ADDED = "add-or-remove-one"


def our_allocation(one: Allocation) -> tuple[float, float]:
    """Certified lower and upper end, the larger of both directions."""
    found = cj.random_allocation(
        one.noise,
        one.steps,
        num_selected=one.selected,
        num_epochs=one.epochs,
        delta=one.delta,
        neighboring_relation=ADDED,
    )
    return found.lower, found.epsilon


def their_allocation(one: Allocation) -> tuple[float, float]:
    """PLD_accounting's lower and upper end."""
    from PLD_accounting import random_allocation_api  # pyright: ignore[reportMissingImports]

    upper, lower = random_allocation_api.gaussian_allocation_epsilon_range(
        delta=one.delta,
        sigma=one.noise,
        num_steps=one.steps,
        num_selected=one.selected,
        num_epochs=one.epochs,
    )
    return lower, upper


def drawn_allocation(one: Allocation) -> tuple[float, float]:
    """Epsilon by losses drawn with the record, and three standard errors of delta either way: no bound."""
    rng = np.random.default_rng(0)
    losses = np.zeros(DRAWS)
    for _ in range(one.epochs):
        # e_k of the steps' likelihood ratios, which is symmetric: the record may be in the first k.
        sums = np.zeros((one.selected + 1, DRAWS))
        sums[0] = 1.0
        for step in range(one.steps):
            y = rng.standard_normal(DRAWS) + (1.0 / one.noise if step < one.selected else 0.0)
            sums[1:] += sums[:-1] * np.exp(y / one.noise - 0.5 / one.noise**2)
        losses += np.log(sums[-1] / math.comb(one.steps, one.selected))

    def crossing(errors: float) -> float:
        low, high = 0.0, float(np.max(losses))
        for _ in range(40):
            middle = 0.5 * (low + high)
            lost = np.maximum(-np.expm1(middle - losses), 0.0)
            delta = np.mean(lost) + errors * np.std(lost) / math.sqrt(DRAWS)
            low, high = (middle, high) if delta > one.delta else (low, middle)
        return high

    return crossing(-3.0), crossing(3.0)


def allocations(console: Console, peer: bool) -> None:
    """Prints the table of random allocation."""
    table = Table("noise, t, k, epochs, delta", "tool", "lower", "upper", "upper/lower", "first s", "again s")
    for one in ALLOCATIONS:
        tools = [("checkin-jax", our_allocation)]
        if peer and one.steps * one.selected * one.epochs <= PEERS_UP_TO:
            tools.append(("PLD_accounting", their_allocation))
        if one.delta >= LEAST_DELTA:
            tools.append(("Monte Carlo", drawn_allocation))
        for name, compute in tools:
            seconds, ends = [], (float("nan"), float("nan"))
            for _ in range(2):
                started = time.perf_counter()
                ends = compute(one)
                seconds.append(time.perf_counter() - started)
            numbers = (f"{ends[0]:.5g}", f"{ends[1]:.5g}", f"{ends[1] / ends[0]:.4f}")
            table.add_row(
                str(tuple(one)),
                name,
                *numbers,
                *(f"{s:.2f}" for s in seconds),
                end_section=(name, compute) == tools[-1],
            )
    console.print(table)


def main() -> None:
    """Prints a table for each setting, and one of random allocation."""
    peer = importlib.util.find_spec("PLD_accounting") is not None
    allocations(Console(width=110), peer)
    if "--allocation" in sys.argv[1:]:
        return
    for setting in SETTINGS:
        base = ours(setting, False)
        table = Table("tool", "epsilon", "excess over T1", "first s", "again s", title=str(setting))
        for name, compute in rows(setting):
            seconds, value = [], float("nan")
            try:
                for _ in range(2):
                    started = time.perf_counter()
                    value = compute()
                    seconds.append(time.perf_counter() - started)
            except (ValueError, MemoryError, RuntimeError) as error:
                table.add_row(name, "-", str(error).splitlines()[0][:60], "", "")
                continue
            numbers = (f"{value:.5g}", f"{value / base - 1:+.2%}", f"{seconds[0]:.2f}", f"{seconds[1]:.3f}")
            table.add_row(name, *numbers)
        Console(width=110).print(table)
    if not peer:
        print("PLD_accounting is not installed: pip install PLD-accounting")


if __name__ == "__main__":
    main()
