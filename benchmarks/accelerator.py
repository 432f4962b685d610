"""The worth of an accelerator: figures against the CPU's, sweeps, the private step, a run; in one table.

    python benchmarks/accelerator.py [--small] [--mnist FOLDER] [--out TABLE.json]

Below nine minutes on a GPU; `--small` is the same on a CPU in less than one. The device's own limits come first, from
two probes: float32 matrix products, and a copy of a long array. FLOP and bytes of the private step are what XLA's cost
analysis counts for the program that ran. The program ends with an error if a figure on the device is not that of the
CPU, or if a part fails.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sweeps as kinds
import training as steps

import checkin_jax as cj
from checkin_jax.cli.programs import program
from checkin_jax.sweeps.brackets import on_devices
from checkin_jax.sweeps.results import Question, Results
from checkin_jax.training.examples import data
from checkin_jax.training.examples.networks import ImageTraining, train
from checkin_jax.training.run import PrivateRun

DELTA = 1e-6
# Learning rate on MNIST, tuned on it.
RATE = 4.0
SAME, WRONG = "as on the CPU", "NOT as on the CPU"
# Shares by which divergences of a device may be below the host's, for finer nodes, and above, for another rounding.
BELOW, ABOVE = 0.2, 1e-9
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


def answers(small: bool) -> Row:
    """Brackets where JAX prefers the device, against those where it prefers the CPU: the same to the last bit."""
    chosen = SETTINGS[:1] if small else SETTINGS
    found: list[list[tuple[float, float]]] = []

    def brackets() -> None:
        bounds = "fast" if small else "best"
        ends = (cj.account(*one, delta=DELTA, bounds=bounds) for one in chosen)
        found.append([(one.lower, one.epsilon) for one in ends])

    first, again = seconds(brackets), seconds(brackets)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        brackets()
    told = SAME if found[0] == found[1] == found[2] else WRONG
    return Row(f"{len(chosen)} brackets, host", first, again, told)


def on_the_device(small: bool) -> Row:
    """RDP of random settings by the device's kernel against `rdp`: below it only at orders of rare events."""
    table, start = kinds.divergences(64 * (2 if small else 200), seed=3), time.perf_counter()
    found = cj.sweep(what="rdp", table=table)["rdp"]
    spent = time.perf_counter() - start
    columns = zip(*(table[name][::64].tolist() for name in ("num_clients", "check_in_prob", "epsilon0")))
    right = [
        cj.rdp(
            cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate),
            cj.PureLDP(epsilon0=epsilon0),
            table["order"][:64],
        )
        for n, rate, epsilon0 in columns
    ]
    ratio = found / np.concatenate(right)
    told = SAME if ratio.min() >= 1.0 - BELOW and ratio.max() <= 1.0 + ABOVE else WRONG
    return Row(
        f"RDP, {len(right)} settings", spent, spent, f"{told}: {ratio.min():.4f} to {ratio.max():.12f} of it"
    )


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
    counts = (2, 2) if small else (1_000, 10_000)
    for count in counts:
        first, again = (seconds(functools.partial(divergences, count)) for _ in range(2))
        rows.append(_swept(count, "the device", first, again))
    host = subprocess.run(
        [sys.executable, "-c", HOST, str(Path(__file__).parent), str(counts[0])],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
    )
    return [*rows, _swept(counts[0], "the host's cores", *map(float, host.stdout.split()))]


def _swept(count: int, where: str, first: float, again: float) -> Row:
    rate = 64 * count / again
    return Row(
        f"RDP sweep, {count:,} settings, 64 orders, {where}",
        first,
        again,
        f"{rate:,.0f} divergences a second",
    )


def theorem_1(small: bool) -> Row:
    """Theorem 1 of [SCI] in one compiled program, n to 1e8, 64 orders a setting."""
    made = kinds.theorem_1(16 if small else 4_096, seed=1)
    columns = [np.asarray(made[name], np.float64) for name in ("num_clients", "check_in_prob", "epsilon0")]
    # As many settings at a time as the device computes side by side.
    together = 8 if jax.default_backend() == "cpu" else 512
    program = jax.jit(functools.partial(jax.lax.map, theorem_1_at, batch_size=together))
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


def loop(small: bool) -> Row:
    """Rounds of the whole training loop, sampling and bookkeeping included."""
    clients, rounds = (40, 3) if small else (6_000, 200)
    start = time.perf_counter()
    rate = steps.rounds_per_second(clients, rounds)
    spent = time.perf_counter() - start
    return Row(
        f"{rounds} rounds of {clients:,} clients, the whole loop",
        spent,
        rounds / rate,
        f"{rate:.0f} a second",
    )


def whole_run(small: bool, mnist: Path | None) -> list[Row]:
    """A private run until so many of the test images are recognised: MNIST, or the embedded digits."""
    images = data.digits() if mnist is None else data.mnist(mnist)
    clients = 200_000 if mnist is None else 60_000
    wanted = (0.9,) if mnist is None else (0.9, 0.95, 0.97)
    protocol = cj.ShuffledCheckIn(
        num_clients=clients, check_in_prob=0.01 if mnist is None else 0.1, num_rounds=1 if small else 5_000
    )
    # Noise for sums of thousands of messages: single ones would say nearly all.
    run = PrivateRun(protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=0.1))
    rate = 6.0 if mnist is None else RATE
    config = ImageTraining(
        run=run, eval_every=1 if small else 25, target_accuracy=wanted[-1], learning_rate=rate
    )
    tested: list[tuple[float, dict[str, Any]]] = []
    start = time.perf_counter()

    def take(line: dict[str, Any]) -> None:
        if "accuracy" in line:
            tested.append((time.perf_counter() - start, line))

    # A figure for the table, not a promise: the quick bounds leave the time to the training.
    quick = functools.partial(cj.account, bounds="fast")
    with tempfile.TemporaryDirectory() as folder:
        train(config, images, Path(folder) / "run", take, account_fn=quick)
    rows = []
    for accuracy in wanted:
        reached = [one for one in tested if one[1]["accuracy"] >= accuracy]
        spent, line = (reached or tested[-1:])[0]
        so_far = dataclasses.replace(protocol, num_rounds=line["round"])
        epsilon = cj.account(so_far, run.randomizer, delta=DELTA, view="aggregate").epsilon
        result = f"{line['accuracy']:.1%} after {line['round']} rounds, epsilon <= {epsilon:.2f} (sums)"
        rows.append(Row(f"{images.name} to {accuracy:.0%}", spent, spent, result))
    return rows


def brackets_on_the_host(small: bool) -> Row:
    """Composed brackets a second, which the host's cores evaluate on every machine."""
    count = 4 if small else 1_000
    spent = seconds(lambda: cj.sweep(what="bracket", table=kinds.check_ins(count, seed=1)))
    return Row(f"{count:,} composed brackets, host's cores", spent, spent, f"{count / spent:.0f} a second")


def brackets_on_the_device(small: bool) -> list[Row]:
    """Brackets a second by the device's kernels, the host's share included; and some against `account`."""
    return [row for randomizer in (cj.PureLDP, cj.L2Mechanism) for row in brackets_of(randomizer, small)]


def brackets_of(randomizer: type[cj.PureLDP | cj.L2Mechanism], small: bool) -> list[Row]:
    """Rows of one randomizer."""
    table = kinds.check_ins(8 if small else 50_000, seed=2)
    every, devices = np.arange(len(table["delta"])), jax.local_devices()
    results = Results(Question("bracket", cj.ShuffledCheckIn, randomizer), len(every))
    first, again = (seconds(lambda: on_devices(table, every, devices, results)) for _ in range(2))
    answered = np.flatnonzero(np.isfinite(results.columns["epsilon"]))
    others = f"the other {len(every) - len(answered):,} rows are the host's"
    result = f"{len(answered) / again:.0f} a second, after {first - again:.0f} s of compiling; {others}"
    compared, start = answered[: 2 if small else 100].tolist(), time.perf_counter()
    right = [
        cj.account(
            cj.ShuffledCheckIn(
                **{name: table[name][i].item() for name in ("num_clients", "check_in_prob", "num_rounds")}
            ),
            randomizer(epsilon0=table["epsilon0"][i].item()),
            delta=table["delta"][i].item(),
        )
        for i in compared
    ]
    spent = time.perf_counter() - start
    upper, lower = (results.columns[name][compared] for name in ("epsilon", "lower"))
    ends = np.array([[one.epsilon, one.lower] for one in right])
    told = SAME if (upper >= ends[:, 1]).all() and (lower <= ends[:, 0]).all() else WRONG
    ratios = [f"{ratio.min():.4f} to {ratio.max():.4f}" for ratio in (upper / ends[:, 0], lower / ends[:, 1])]
    agreed = f"{told}: upper ends {ratios[0]} of it, lower ones {ratios[1]}"
    what = "" if randomizer is cj.PureLDP else f" of {randomizer.__name__}"
    return [
        Row(f"{len(answered):,} composed brackets{what}, the device", first, again, result),
        Row(f"{len(compared)} of them{what} by account", spent, spent, agreed),
    ]


def brackets_of_a_sweep(small: bool) -> list[Row]:
    """All rows of a sweep, those of the host's cores included; nothing where there is no accelerator."""
    if jax.default_backend() == "cpu":
        return []
    table = kinds.check_ins(8 if small else 50_000, seed=4)
    spent = seconds(lambda: cj.sweep(what="bracket", table=table))
    count = len(table["delta"])
    return [Row(f"{count:,} composed brackets, one sweep", spent, spent, f"{count / spent:.0f} a second")]


def main(small: bool = False, mnist: Path | None = None, out: Path | None = None) -> None:
    """Prints the table, each part when it is measured; a part that fails leaves the others their time.

    Args:
      small: Few and small settings, for a CPU.
      mnist: Folder with the four IDX files; the embedded digits are taken without it.
      out: JSON file for the device and the rows, besides.
    """
    begun = time.perf_counter()
    device = jax.devices()[0]
    peaks = probe(small)
    title = (
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}: "
        f"{peaks[0] / 1e9:,.0f} GFLOP/s in float32 products, {peaks[1] / 1e9:,.0f} GB/s"
    )
    print(
        title,
        "",
        "| what | first, s | again, s | result |",
        "| --- | --- | --- | --- |",
        sep="\n",
        flush=True,
    )
    wrong, measured = [], []
    parts: dict[str, Callable[[], list[Row]]] = {
        "brackets": lambda: [answers(small)],
        "divergences": lambda: [on_the_device(small)],
        "steps": lambda: private_steps(small, peaks),
        "Theorem 1": lambda: [theorem_1(small)],
        "brackets of the device": lambda: brackets_on_the_device(small),
        "brackets of a sweep": lambda: brackets_of_a_sweep(small),
        "brackets of the host": lambda: [brackets_on_the_host(small)],
        "loop": lambda: [loop(small)],
        "run": lambda: whole_run(small, mnist),
        "RDP": lambda: sweeps(small),
    }
    for name, part in parts.items():
        try:
            rows = part()
        except Exception:
            traceback.print_exc()
            wrong.append(f"{name}: failed, see above")
            continue
        for row in rows:
            print(f"| {row.what} | {row.first:.2f} | {row.again:.3g} | {row.result} |", flush=True)
            shown = row._replace(first=round(row.first, 2), again=float(f"{row.again:.3g}"))
            measured.append(shown._asdict())
            if WRONG in row.result:
                wrong.append(f"{row.what}: {row.result}")
        if out is not None:
            out.write_text(json.dumps({"device": title, "rows": measured}, indent=1) + "\n", encoding="utf-8")
    print(f"\n{time.perf_counter() - begun:.0f} s in all")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    program(main)
