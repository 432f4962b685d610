"""What a first answer costs, in fresh processes: import, first and later calls, compilations, beside dp_accounting.

    python benchmarks/first_call.py                 # medians of five processes, about five minutes on two idle cores
    python benchmarks/first_call.py --processes 1   # a look

Seconds are from the start of the process to its end: wall clock, and CPU of all threads, which depends less on what
else runs. "before" is what commit a828fe3 took on two cores of the same kind while other programs ran, CPU seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HEADLINE = (
    "cj.account(cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800),"
    " cj.PureLDP(epsilon0=2.0), delta=1e-6"
)
HIDDEN = (
    "cj.account(cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=100),"
    " cj.Gaussian(noise_multiplier=1.42), delta=1e-6"
)
SLOTS = (
    "cj.account(cj.FixedWindow(num_clients=10_000, num_slots=1_000), cj.Gaussian(noise_multiplier=4.0),"
    " delta=1e-6, neighboring_relation='add-or-remove-one'"
)
# A thousand settings of `benchmarks/sweeps.py`.
SWEEP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import sweeps
import checkin_jax as cj
print(len(cj.sweep(table=sweeps.check_ins(1_000, 1), bounds="fast")["epsilon"]))
"""
COMMAND = ["--num-clients", "60000", "--check-in-prob", "0.1", "--num-rounds", "6800", "--epsilon0", "2"]
# The accountant of others on a question of the same kind: 6,800 rounds of a subsampled Gaussian.
THEIRS = """
import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(10.0))
print(PLDAccountant().compose(event, 6_800).get_epsilon(1e-6))
"""
COUNTED = """
import jax.monitoring
asked = []
def listen(name, *_, **__):
    if name == "/jax/core/compile/backend_compile_duration":
        asked.append(name)
jax.monitoring.register_event_duration_secs_listener(listen)
import checkin_jax as cj
{question})
print(len(asked))
"""
WARM = """
import statistics, time
import checkin_jax as cj
def ask():
    started = time.perf_counter()
    {question})
    return time.perf_counter() - started
ask()
print(statistics.median([ask() for _ in range({times})]))
"""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Medians over processes, seconds; and what the last of them printed."""

    wall: float
    cpu: float
    said: str


def python(code: str) -> list[str]:
    """Arguments of a process that runs the code."""
    return [sys.executable, "-c", code]


def costs(arguments: list[str], processes: int, cache: str | None) -> Cost:
    """What a command line costs in fresh processes; cache: a folder that they share, or None: each has its own."""
    walls, cpus, said = [], [], ""
    for _ in range(processes):
        with tempfile.TemporaryDirectory() as empty:
            environment = {**os.environ, "XDG_CACHE_HOME": cache or empty}
            for name in ("CHECKIN_JAX_CACHE", "JAX_COMPILATION_CACHE_DIR"):
                environment.pop(name, None)
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
            walls.append(time.perf_counter() - started)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        said = done.stdout
    return Cost(statistics.median(walls), statistics.median(cpus), said)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=5)
    times = parser.parse_args().processes
    table = Table("", "first, wall s", "CPU s", "wanted", "before, CPU s", "later, wall s", "CPU s", "wanted")

    def row(
        name: str,
        arguments: list[str],
        wanted: tuple[str, str],
        before: str,
        processes: int,
        kept: bool = True,
    ) -> None:
        first = costs(arguments, processes, None)
        numbers = [f"{first.wall:.2f}", f"{first.cpu:.2f}", wanted[0], before]
        if kept:
            with tempfile.TemporaryDirectory() as cache:
                costs(arguments, 1, cache)
                later = costs(arguments, processes, cache)
            numbers += [f"{later.wall:.2f}", f"{later.cpu:.2f}", wanted[1]]
        table.add_row(name, *numbers)

    use = "import checkin_jax as cj\nprint({})"
    # As it is typed: the script, not its function, decides what happens to garbage.
    command = [sys.executable, "-m", "checkin_jax", "epsilon", *COMMAND]
    row("import checkin_jax", python("import checkin_jax"), ("0.6", ""), "0.7", times, False)
    row(
        "the same, and cj.account looked up",
        python("import checkin_jax as cj; cj.account"),
        ("", ""),
        "",
        times,
        False,
    )
    row("headline bracket, Python", python(use.format(f"{HEADLINE})")), ("3", "1.5"), "12.1", times)
    row("headline bracket, command", command, ("3", "1.5"), "14.4", times)
    row("Gaussian messages (T*)", python(use.format(f"{HIDDEN})")), ("6", "2.5"), "24.5", times)
    row("Gaussian slots, add or remove", python(use.format(f"{SLOTS})")), ("5", ""), "3.5", times)
    row("1,000 composed brackets", python(SWEEP), ("", "25"), "56", 1)
    row("dp_accounting, import", python("import dp_accounting"), ("", ""), "", times, False)
    row("dp_accounting, 6,800 rounds", python(THEIRS), ("", ""), "", times, False)
    console = Console(width=150)
    console.print(table)

    table = Table("", "compilations", "wanted", "before", "warm, ms", "wanted", "before")
    for name, question, counts, milliseconds in (
        ("headline bracket", HEADLINE, ("8", "25"), ("", "130")),
        ("headline, bounds='fast'", f"{HEADLINE}, bounds='fast'", ("8", "24"), ("21", "13")),
        ("Gaussian messages (T*)", HIDDEN, ("", "42"), ("", "660")),
        ("Gaussian slots, add or remove", SLOTS, ("", "4"), ("300", "456")),
    ):
        with tempfile.TemporaryDirectory() as cache:
            asked = costs(python(COUNTED.format(question=question)), 1, cache).said.strip()
            warm = float(costs(python(WARM.format(question=question, times=11)), 1, cache).said)
        table.add_row(name, asked, *counts, f"{1e3 * warm:.0f}", *milliseconds)
    console.print(table)


if __name__ == "__main__":
    main()
