"""Sweeps of certified brackets beside the loop of `account` that they replace, kind by kind, in CPU seconds a setting.

    python benchmarks/loops.py [--settings 20] [--loop 8] [--kinds "sums" "hexagon"] [--first]

Each kind is warmed up by settings of its own; then a sweep gets others, and a loop every so-many-th of these, which a
sweep of their own gets, too: "loop" and "same" are paired. None finds what another has kept in memory, nor tables of
another on the disk. Processor seconds of the process and of those that it begins, all threads: other work on the
machine hardly changes them. "1,000, s" is measured on --settings and scaled: by the clock, which wants an idle machine,
and by the processor on two cores that are busy throughout. "wanted" is what the project has set itself on two idle
cores. With --first each is also begun in processes of its own, import included: with no programs kept on the disk, and
once more with those that are kept then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import checkin_jax as cj
from checkin_jax.cli.programs import program

DELTA = 1e-6


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of sweep: its settings by count and seed, seconds wanted for 1,000, and what is asked of each."""

    protocol: type[cj.CheckInProtocol]
    randomizer: type[cj.Randomizer]
    columns: Callable[[int, np.random.Generator], dict[str, np.ndarray]]
    wanted: float
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
    "sums": Kind(cj.ShuffledCheckIn, cj.Gaussian, NOISE, 20.0, {"view": "aggregate"}),
    "A_fix, eps0-LDP": Kind(cj.FixedWindow, cj.PureLDP, _with("epsilon0", 0.25, 4.0, slots), 30.0),
    "hexagon": Kind(cj.ShuffledCheckIn, cj.PureLDP, MESSAGES, 60.0),
    "profile": Kind(cj.ShuffledCheckIn, cj.Gaussian, NOISE, 60.0, {"bounds": "profile"}),
    "gaussian-cover": Kind(cj.ShuffledCheckIn, cj.Gaussian, NOISE, math.nan),
    "A_fix, Gaussian": Kind(cj.FixedWindow, cj.Gaussian, _with("noise_multiplier", 0.5, 8.0, slots), 60.0),
    "calibration": Kind(
        cj.ShuffledCheckIn,
        cj.Gaussian,
        _with("target_epsilon", 0.3, 8.0, crowds),
        120.0,
        {"view": "aggregate", "free": "noise_multiplier", "what": "calibration"},
    ),
}


def settings_of(kind: Kind, count: int, seed: int, few: int = 0) -> dict[str, np.ndarray]:
    """The kind's settings, or `few` of them, evenly spread."""
    columns = kind.columns(count, np.random.default_rng(seed))
    some = np.linspace(0, count - 1, few or count).round().astype(np.int64)
    return {name: column[some] for name, column in columns.items()}


def swept(kind: Kind, count: int, seed: int, few: int = 0) -> cj.Sweep:
    """Some of the kind's settings as one sweep."""
    columns = settings_of(kind, count, seed, few)
    rows = few or count
    more = {name: value for name, value in kind.more.items() if name != "view"}
    table = {**columns, "delta": np.full(rows, DELTA)}
    if "view" in kind.more:
        table["view"] = np.full(rows, kind.more["view"])
    return cj.sweep(protocol=kind.protocol, randomizer=kind.randomizer, table=table, **more)


def looped(kind: Kind, count: int, seed: int, few: int = 0) -> list[Any]:
    """The same by `account` or `calibrate`, one after the other."""
    columns = settings_of(kind, count, seed, few)
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


def processor() -> float:
    """Processor seconds so far of this process and of those that it has begun and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def cpu(work: Callable[[], object], warm: str) -> tuple[float, float]:
    """Processor seconds and seconds by the clock, with nothing kept of earlier settings but this folder's programs."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(warm, folder, dirs_exist_ok=True)
        with _keeping_in(folder):
            return _measured(work)


@contextlib.contextmanager
def _keeping_in(folder: str) -> Iterator[None]:
    """Programs and tables are kept there, also by processes that are begun."""
    before = os.environ.get("CHECKIN_JAX_CACHE")
    os.environ["CHECKIN_JAX_CACHE"] = folder
    try:
        yield
    finally:
        del os.environ["CHECKIN_JAX_CACHE"]
        if before is not None:
            os.environ["CHECKIN_JAX_CACHE"] = before


def _measured(work: Callable[[], object]) -> tuple[float, float]:
    """The same in the folder that is in use."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.__module__.startswith(
            ("checkin_jax.accounting", "checkin_jax.numerics.two_point_laws")
        ):
            each.cache_clear()
    before, started = processor(), time.perf_counter()
    work()
    return processor() - before, time.perf_counter() - started


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


def main(
    settings: int = 20, loop: int = 8, kinds: tuple[str, ...] = tuple(KINDS), first: bool = False
) -> None:
    """Prints the table.

    Args:
      settings: Settings of each sweep.
      loop: Settings of each loop, and of a kind's first sweep.
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
        "kind",
        "first, CPU s each",
        "loop, CPU s each",
        "same, CPU s each",
        "sweep, CPU s each",
        "sweep, clock s each",
        "1,000, s, clock",
        "by CPU",
        "wanted",
    )
    for name in kinds:
        kind = KINDS[name]
        few = min(settings, loop)
        with tempfile.TemporaryDirectory() as warm:
            with _keeping_in(warm):
                begin = _measured(lambda kind=kind, few=few: swept(kind, few, 1))[0] / few
                looped(kind, few, 1)
            one = cpu(lambda kind=kind, few=few: looped(kind, settings, 2, few), warm)[0] / few
            same = cpu(lambda kind=kind, few=few: swept(kind, settings, 2, few), warm)[0] / few
            whole = cpu(lambda kind=kind: swept(kind, settings, 2), warm)
        each, clock = (value / settings for value in whole)
        seconds = f"{1000 * clock:.0f}", f"{500 * each:.0f}", f"{kind.wanted:.0f}"
        rows.add_row(name, *(f"{value:.3f}" for value in (begin, one, same, each, clock)), *seconds)
        print(
            f"{name}: loop {one:.3f}, same swept {same:.3f}, sweep {each:.3f} CPU s, {clock:.3f} s",
            flush=True,
        )
    Console(width=140).print(rows)
    peaks = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print("peak memory {:.0f} MiB, of a process begun {:.0f} MiB".format(*peaks))


if __name__ == "__main__":
    program(main)
