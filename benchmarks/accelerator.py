"""What an accelerator is worth: certified ends against the CPU's, sweeps, the private step, a run; in one table.

    python benchmarks/accelerator.py [--small] [--mnist FOLDER] [--out TABLE.md]

Below nine minutes on a GPU; `--small` is the same on a CPU in less than one. The device's own limits come first, from
two probes: float32 matrix products, and a copy of a long array. FLOP and bytes of the private step are what XLA's cost
analysis counts for the program that ran. The program ends with an error where a certified end on the device contradicts
one on the CPU, or differs by more than a millionth of itself.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sweeps as kinds
import training as steps
from rich.console import Console
from rich.table import Table

import checkin_jax as cj
from checkin_jax.cli.programs import program
from checkin_jax.training.examples import data
from checkin_jax.training.examples.images import ImageTraining, train
from checkin_jax.training.run import PrivateRun

DELTA, FAR = 1e-6, 1e-6
SETTINGS = (
    (cj.Shuffle(num_clients=1000), cj.PureLDP(epsilon0=1.0)),
    (cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800), cj.PureLDP(epsilon0=2.0)),
    (cj.Shuffle(num_clients=10**6, num_rounds=100), cj.PureLDP(epsilon0=2.0)),
    (cj.FixedWindow(num_clients=10**5, num_slots=10**4), cj.PureLDP(epsilon0=1.0)),
    (
        cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=100),
        cj.Gaussian(noise_multiplier=1.42),
    ),
)


class Row(NamedTuple):
    """A line of the table: what, its first time and the best of later ones in seconds, and what came out."""

    what: str
    first: float
    again: float
    result: str


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of one call, until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start


def probe(small: bool) -> tuple[float, float]:
    """FLOP a second of float32 matrix products and bytes a second of a copy, the best of some."""
    side, length = (512, 2**20) if small else (8192, 2**28)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST))
    a, x = jnp.ones((side, side), jnp.float32), jnp.ones(length, jnp.float32)
    copy = jax.jit(lambda x: x * 1.5)
    flops = 2.0 * side**3 / min(seconds(lambda: product(a, a)) for _ in range(6))
    return flops, 8.0 * length / min(seconds(lambda: copy(x)) for _ in range(6))


def ends(small: bool) -> tuple[Row, bool]:
    """Brackets on the device against those on the CPU, and whether they agree."""
    chosen = SETTINGS[:1] if small else SETTINGS
    cpu = jax.local_devices(backend="cpu")[0]

    def brackets() -> list[cj.Guarantee]:
        return [cj.account(*one, delta=DELTA, bounds="fast" if small else "best") for one in chosen]

    start = time.perf_counter()
    found = brackets()
    first = time.perf_counter() - start
    again = seconds(brackets)
    with jax.default_device(cpu):
        reference = brackets()
    sound = all(
        one.lower <= other.epsilon and other.lower <= one.epsilon for one, other in zip(found, reference)
    )
    apart = max(
        abs(a - b) / max(b, DELTA)
        for one, other in zip(found, reference)
        for a, b in ((one.lower, other.lower), (one.epsilon, other.epsilon))
    )
    good = sound and apart <= FAR
    told = "as on the CPU" if good else "NOT as on the CPU"
    return Row(f"{len(chosen)} brackets", first, again, f"{told}: {apart:.1e} apart"), good


def divergences(count: int) -> cj.Sweep:
    """RDP of one round at so many settings, 64 orders each."""
    return cj.sweep(what="rdp", table=kinds.divergences(64 * count, seed=1))


# The same on the cores of the host, in a process that sees no accelerator: its first time, and again.
HOST = """
import sys
sys.path.insert(0, sys.argv[1])
import accelerator
print(*(accelerator.seconds(lambda: accelerator.divergences(int(sys.argv[2]))) for _ in range(2)))
"""


def sweeps(small: bool) -> list[Row]:
    """RDP sweeps on the device, and on the host's cores alone."""
    rows = []
    for count in (2,) if small else (1_000, 10_000):
        first, again = (seconds(functools.partial(divergences, count)) for _ in range(2))
        host = subprocess.run(
            [sys.executable, "-c", HOST, str(Path(__file__).parent), str(count)],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            check=True,
            capture_output=True,
            text=True,
        )
        name, times = f"RDP sweep, {count:,} settings, 64 orders", tuple(map(float, host.stdout.split()))
        for where, one, other in (("", first, again), (", host's cores", *times)):
            rows.append(Row(name + where, one, other, f"{count / other:.0f} settings a second"))
    return rows


def theorem_1(small: bool) -> Row:
    """Theorem 1 of [SCI] in one compiled program, n to 1e8, 64 orders a setting."""
    made = kinds.theorem_1(16 if small else 4_096, seed=1)
    columns = [np.asarray(made[name], np.float64) for name in ("num_clients", "check_in_prob", "epsilon0")]
    program = jax.jit(functools.partial(jax.lax.map, theorem_1_at))
    with jax.enable_x64(True):
        first, again = (seconds(lambda: program(tuple(columns))) for _ in range(2))
    rate = 64 * len(columns[0]) / again
    return Row(f"Theorem 1, {len(columns[0]):,} settings", first, again, f"{rate:,.0f} divergences a second")


def theorem_1_at(one: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """Divergences of one setting."""
    return cj.numerics.theorem_1_rdp(*one, kinds.ORDERS)


def private_steps(small: bool, peaks: tuple[float, float]) -> list[Row]:
    """The private step of the 28x28 network, with its shares of what the device can do."""
    rows, names = [], ("Gaussian, aggregate", "l2 mechanism, messages")
    for count in (40,) if small else (256, 1_000, 6_000):
        known = steps.variants(count, peers=False)
        chosen = {name: known[name] for name in (names[:1] if small else names)}
        steps.sweep(chosen, 2 if small else 7)
        for name, row in chosen.items():
            memory, flops, moved = steps.costs(row, peaks)
            result = f"{flops} GFLOP/s, {moved} GB/s, {memory} MiB"
            rows.append(Row(f"step, {count:,} clients: {name}", row.first, min(row.times), result))
    return rows


def whole_run(small: bool, mnist: Path | None) -> Row:
    """A private run until nine tenths of the test images are recognised: MNIST, or the embedded digits."""
    images = data.digits() if mnist is None else data.mnist(mnist)
    clients = 200_000 if mnist is None else 60_000
    protocol = cj.ShuffledCheckIn(
        num_clients=clients, check_in_prob=0.01 if mnist is None else 0.1, num_rounds=1 if small else 3_000
    )
    run = PrivateRun(protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=2.0))
    config = ImageTraining(run=run, eval_every=1 if small else 25, target_accuracy=0.9)
    if mnist is None:
        config = dataclasses.replace(config, learning_rate=6.0)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        bounds = "fast" if small else "best"
        report = train(
            config, images, Path(folder) / "run", account_fn=functools.partial(cj.account, bounds=bounds)
        )
        spent = time.perf_counter() - start
    epsilon = report.guarantees["messages"].epsilon
    result = f"{report.accuracy or 0:.1%} after {report.rounds} rounds, epsilon <= {epsilon:.2f} (messages)"
    return Row(f"{images.name} to 90%", spent, report.seconds, result)


def main(small: bool = False, mnist: Path | None = None, out: Path | None = None) -> None:
    """Prints the table.

    Args:
      small: Few and small settings, for a CPU.
      mnist: Folder with the four IDX files; the embedded digits are taken without it.
      out: File for the table, as Markdown, besides.
    """
    begun = time.perf_counter()
    device = jax.devices()[0]
    peaks = probe(small)
    title = (
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}: "
        f"{peaks[0] / 1e9:,.0f} GFLOP/s in float32 products, {peaks[1] / 1e9:,.0f} GB/s"
    )
    compared, good = ends(small)
    rows = [compared, *sweeps(small), theorem_1(small), *private_steps(small, peaks), whole_run(small, mnist)]
    table = Table("what", "first, s", "again, s", "result", title=title)
    lines = [title, "", "| what | first, s | again, s | result |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = row.what, f"{row.first:.2f}", f"{row.again:.3g}", row.result
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    Console(width=150).print(table)
    print(f"{time.perf_counter() - begun:.0f} s in all")
    if out is not None:
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not good:
        sys.exit("a certified end on this device contradicts the CPU's, or is too far from it")


if __name__ == "__main__":
    program(main)
