"""Sweeps of certified brackets beside the loop of `account` that they replace, kind by kind, in CPU seconds a setting.

    python benchmarks/loops.py [--settings 20] [--kinds "G1 aggregate" "T1+"] [--first]

Each kind is warmed up by settings of its own; then a loop and a sweep get the same others, and neither finds what the
other has kept. Processor seconds of the process, all threads: other work on the machine hardly changes them. "1,000 on
two cores" is what a sweep of so many would take when both are busy throughout. With --first each is also begun in
processes of its own, import included: with no programs kept on the disk, and once more with those that are kept then.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import checkin_jax as cj

DELTA = 1e-6


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of sweep: its settings by count and seed, and what is asked of each."""

    protocol: type[cj.CheckInProtocol]
    randomizer: type[cj.Randomizer]
    columns: Callable[[int, np.random.Generator], dict[str, np.ndarray]]
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


def crowds(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Shuffled check-ins: n 1e3..1e7, rates .01...3, 1 to 1e4 rounds."""
    return {
        "num_clients": np.round(10 ** rng.uniform(3, 7, count)).astype(np.int64),
        "check_in_prob": 10 ** rng.uniform(-2, -0.5, count),
        "num_rounds": np.round(10 ** rng.uniform(0, 4, count)).astype(np.int64),
    }


def slots(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Fixed windows: m 1e2..1e5 slots, coins .1..1, 1 to 100 epochs."""
    return {
        "num_clients": np.round(10 ** rng.uniform(4, 7, count)).astype(np.int64),
        "num_slots": np.round(10 ** rng.uniform(2, 5, count)).astype(np.int64),
        "check_in_prob": 10 ** rng.uniform(-1, 0, count),
        "num_epochs": np.round(10 ** rng.uniform(0, 2, count)).astype(np.int64),
    }


def _with(name: str, low: float, high: float, make: Any) -> Any:
    """Settings with one more column, log-uniform."""

    def made(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {**make(count, rng), name: np.exp(rng.uniform(np.log(low), np.log(high), count))}

    return made


NOISE, MESSAGES = _with("noise_multiplier", 0.5, 8.0, crowds), _with("epsilon0", 0.25, 4.0, crowds)
KINDS = {
    "G1 aggregate": Kind(cj.ShuffledCheckIn, cj.Gaussian, NOISE, {"view": "aggregate"}),
    "A_fix, eps0-LDP": Kind(cj.FixedWindow, cj.PureLDP, _with("epsilon0", 0.25, 4.0, slots)),
    "T1+": Kind(cj.ShuffledCheckIn, cj.PureLDP, MESSAGES),
    "T*": Kind(cj.ShuffledCheckIn, cj.Gaussian, NOISE, {"bounds": "T*"}),
    "T**": Kind(cj.ShuffledCheckIn, cj.Gaussian, NOISE),
    "A_fix, Gaussian": Kind(cj.FixedWindow, cj.Gaussian, _with("noise_multiplier", 0.5, 8.0, slots)),
    "calibration": Kind(
        cj.ShuffledCheckIn,
        cj.Gaussian,
        _with("target_epsilon", 0.3, 8.0, crowds),
        {"view": "aggregate", "free": "noise_multiplier", "what": "calibration"},
    ),
}


def swept(kind: Kind, count: int, seed: int) -> cj.Sweep:
    """The kind's settings as one sweep."""
    columns = kind.columns(count, np.random.default_rng(seed))
    more = {name: value for name, value in kind.more.items() if name != "view"}
    table = {**columns, "delta": np.full(count, DELTA)}
    if "view" in kind.more:
        table["view"] = np.full(count, kind.more["view"])
    return cj.sweep(protocol=kind.protocol, randomizer=kind.randomizer, table=table, **more)


def looped(kind: Kind, count: int, seed: int) -> list[Any]:
    """The same by `account` or `calibrate`, one after the other."""
    columns = kind.columns(count, np.random.default_rng(seed))
    found = []
    for values in zip(*(column.tolist() for column in columns.values())):
        given = dict(zip(columns, values))
        more = {name: value for name, value in kind.more.items() if name != "what"}
        if "target_epsilon" in given:
            target = given.pop("target_epsilon")
            run = kind.protocol(**given)
            found.append(cj.calibrate(run, kind.randomizer, target_epsilon=target, delta=DELTA, **more))
            continue
        own = {name: given.pop(name) for name in ("epsilon0", "noise_multiplier") if name in given}
        randomizer = kind.randomizer(**own)
        found.append(cj.account(kind.protocol(**given), randomizer, delta=DELTA, **more))
    return found


def cpu(work: Callable[[], object]) -> float:
    """Processor seconds of all threads, with nothing kept of earlier settings."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.__module__.startswith(
            "checkin_jax.accounting"
        ):
            each.cache_clear()
    before = time.process_time()
    work()
    return time.process_time() - before


def begun(name: str, how: str, settings: int, folder: str) -> float:
    """Processor seconds of a process that does this and nothing else, programs kept in the folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"import loops; loops.{how}(loops.KINDS[{name!r}], {settings}, 1)"
    known = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    place = Path(__file__).parent
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=place, env={**known, "CHECKIN_JAX_CACHE": folder}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(settings: int = 20, kinds: tuple[str, ...] = tuple(KINDS), first: bool = False) -> None:
    """Prints the table.

    Args:
      settings: Settings of each sweep and of each loop.
      kinds: Which kinds of sweeps.
      first: Also the first ones of a process, before and after programs are kept.
    """
    if first:
        for name in kinds:
            for how in ("looped", "swept"):
                with tempfile.TemporaryDirectory() as folder:
                    ever, kept = (begun(name, how, settings, folder) for _ in range(2))
                print(f"{name}, {how}: first ever {ever:.1f} s, programs kept {kept:.1f} s", flush=True)
    rows = Table(
        "kind", "sweep, first s", "loop, warm s", "sweep, warm s", "loop / sweep", "1,000 on two cores s"
    )
    for name in kinds:
        kind = KINDS[name]
        begin = cpu(lambda kind=kind: swept(kind, settings, 1)) / settings
        looped(kind, settings, 1)
        loop = cpu(lambda kind=kind: looped(kind, settings, 2)) / settings
        sweep = cpu(lambda kind=kind: swept(kind, settings, 2)) / settings
        rows.add_row(
            name,
            *(f"{each:.3f}" for each in (begin, loop, sweep)),
            f"{loop / sweep:.2f}",
            f"{500 * sweep:.0f}",
        )
        print(f"{name}: loop {loop:.3f}, sweep {sweep:.3f}", flush=True)
    Console(width=140).print(rows)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    tyro.cli(main)
