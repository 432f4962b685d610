"""How much privacy costs a training step: every way of drawing a round's sum, and other libraries where installed.

    python benchmarks/training.py [--clients 256 1000 6000] [--repeats 7] [--no-peers] [--rounds 30]
        [--peak-flops 6.7e13 --peak-bytes 4.8e12] [--markdown]

The yardstick is the non-private gradient of the mean loss over the same clients written the obvious way, with XLA's
own convolutions and pooling, all at once. Variants run in turn within one process, over and over, and "ratio" is the
median over these sweeps of a variant's time over the yardstick's in the same sweep, so that it means something on a
busy machine; "price" is that over the fastest of the plain rows, so what privacy costs whoever would otherwise run
the best plain gradient of the same network. "CPU ms" is the least processor time of a call, all threads together,
which other programs disturb least, and "times ours" that over the CPU time of the row of Gaussian sums. The first call
includes compilation. Memory is XLA's temporary buffers
for one compiled call. FLOP and bytes are what XLA's cost analysis counts for the program that ran (of a conditional,
the branch that costs more, which for the exact l2 mechanism hardly ever runs); with the peaks of a device given, they
are shown as shares of them, too.
"network" is how fast the gradient itself comes, whoever computes it: the multiplications and additions of the network's
matrix products, forwards and backwards, a second, and "of matmul" that over the faster of two large float32 matrix
products, which run in the same sweeps. What clips, adds noise, or pads a microbatch counts as time, not as work.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import training_peers
from rich.console import Console
from rich.table import Table

from checkin_jax.cli.programs import program
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, L2Mechanism
from checkin_jax.training.examples import data, networks
from checkin_jax.training.examples.networks import ImageTraining, train
from checkin_jax.training.private import step
from checkin_jax.training.private.mechanism import mechanism_of
from checkin_jax.training.private.step import Performance
from checkin_jax.training.run import PrivateRun

GAUSSIAN, L2 = Gaussian(noise_multiplier=2.0), L2Mechanism(epsilon0=2.0)
VARIANTS = {
    "Gaussian, aggregate, general gradients": (GAUSSIAN, "aggregate", "general"),
    "Gaussian, aggregate": (GAUSSIAN, "aggregate", "layers"),
    "Gaussian, messages": (GAUSSIAN, "messages", "layers"),
    "l2 mechanism, aggregate (exact)": (L2, "aggregate", "layers"),
    "l2 mechanism, messages": (L2, "messages", "layers"),
}
# Records differentiated at a time without privacy: as many as the private step takes on a CPU, and more.
MICROBATCHES = (40, 200)
# Sides of the square matrices whose product says what the machine can do.
MATMULS = (1_024, 2_048)
# Places at which a record's layers multiply by their kernel, and how many products of that size its gradient takes:
# forwards, for the kernel, and for what the layer reads, which nobody needs of images.
LAYERS = {"conv1": (14 * 14, 2), "conv2": (5 * 5, 3), "dense1": (1, 3), "dense2": (1, 3)}
OURS = "Gaussian, aggregate"  # what the others' processor time is compared with
HEADS = (
    "variant",
    "first call, s",
    "min ms",
    "median ms",
    "CPU ms",
    "ratio",
    "price",
    "times ours",
    "network",
)
HEADS += ("of matmul", "temp MiB", "GFLOP/s", "GB/s")
SLOW_SECONDS = 2.0  # what takes longer than this a call is timed twice


def plain_logits(parameters: Any, images: jax.Array) -> jax.Array:
    """The 28x28 network on a batch, with `lax.conv_general_dilated` and `lax.reduce_window`."""

    def convolve(x: jax.Array, layer: Any, padding: str) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x, layer["kernel"][...], (2, 2), padding, dimension_numbers=dimensions
        )
        x = jnp.tanh(x + layer["bias"][...])
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")

    x = convolve(images, parameters["conv1"], "SAME")
    x = convolve(x, parameters["conv2"], "VALID").reshape(len(images), -1)
    x = jnp.tanh(x @ parameters["dense1"]["kernel"][...] + parameters["dense1"]["bias"][...])
    return x @ parameters["dense2"]["kernel"][...] + parameters["dense2"]["bias"][...]


def scaled(images: jax.Array) -> jax.Array:
    """What the network is shown."""
    return images.astype(jnp.float32)[..., None] * (1 / data.DIGITS_MAX)


def plain_loss(parameters: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    """The loss of one record by `plain_logits`."""
    return networks.cross_entropy(plain_logits(parameters, scaled(image)[None])[0], label.astype(jnp.int32))


@functools.partial(jax.jit, static_argnums=0)
def mean_gradient(
    logits: Callable[..., jax.Array], parameters: Any, images: jax.Array, labels: jax.Array
) -> Any:
    """The non-private gradient of the mean loss, the whole batch at once."""

    def loss(parameters: Any) -> jax.Array:
        losses = jax.vmap(networks.cross_entropy)(
            logits(parameters, scaled(images)), labels.astype(jnp.int32)
        )
        return jnp.mean(losses)

    return jax.grad(loss)(parameters)


@functools.partial(jax.jit, static_argnums=(0, 1))
def microbatched_gradient(
    logits: Callable[..., jax.Array], size: int, parameters: Any, images: jax.Array, labels: jax.Array
) -> Any:
    """The same a microbatch of `size` records at a time, as the private step does it, but without clip and noise."""
    count = len(labels)
    index = jnp.arange(-(-count // size) * size).reshape(-1, size)

    def loss(parameters: Any, at: jax.Array) -> jax.Array:
        kept = at % count
        shown = logits(parameters, scaled(images[kept]))
        losses = jax.vmap(networks.cross_entropy)(shown, labels[kept].astype(jnp.int32))
        return jnp.sum(jnp.where(at < count, losses, 0.0))

    def add(total: Any, at: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, jax.grad(loss)(parameters, at)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, parameters), index)
    return jax.tree.map(lambda each: each / count, total)


@dataclasses.dataclass
class Variant:
    """A row of the table; `program` compiles what `call` runs, whose loop body runs `trips` times."""

    call: Callable[[], Any]
    program: Callable[[], Any] | None = None
    trips: int = 1
    first: float = math.nan
    times: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)

    def run(self) -> tuple[float, float]:
        """Seconds of one call, and processor seconds."""
        start = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.call())
        return time.perf_counter() - start[0], time.process_time() - start[1]


def sweep(variants: dict[str, Variant], repeats: int) -> None:
    """Times all variants in turn, `num_units` times after the first call."""
    for variant in variants.values():
        variant.first, _ = variant.run()
    for i in range(repeats):
        for variant in variants.values():
            if i < 2 or variant.times[0] < SLOW_SECONDS:
                seconds, processor = variant.run()
                variant.times.append(seconds)
                variant.processor.append(processor)


def network_flops(parameters: Any) -> int:
    """Multiplications and additions in the matrix products of one record's gradient."""
    return sum(
        2 * products * places * parameters[name]["kernel"][...].size
        for name, (places, products) in LAYERS.items()
    )


def matmuls() -> dict[str, tuple[Variant, int]]:
    """Products of large matrices, and their multiplications and additions."""
    found = {}
    for side in MATMULS:
        matrix = jax.random.normal(jax.random.key(side), (side, side))
        call = functools.partial(jax.jit(jnp.matmul), matrix, matrix)
        found[f"product of {side:,} x {side:,}"] = Variant(call), 2 * side**3
    return found


def enlarged_digits() -> data.LabelledImages:
    """The embedded digits blown up to 28x28."""

    def enlarge(images: np.ndarray) -> np.ndarray:
        return np.pad(np.kron(images, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))

    digits = data.digits()
    return dataclasses.replace(
        digits, train_images=enlarge(digits.train_images), test_images=enlarge(digits.test_images)
    )


def variants(count: int, peers: bool) -> dict[str, Variant]:
    """All rows for this many clients, the yardstick first."""
    digits = enlarged_digits()
    images, labels = jnp.asarray(digits.train_images), jnp.asarray(digits.train_labels)
    parameters, apply = networks.functional(networks.build(28, jax.random.key(0)))

    def loss(parameters: Any, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = record
        return networks.cross_entropy(apply(parameters, scaled(image)), label.astype(jnp.int32))

    # Whole permutations, one after the other: neighbours are different records.
    rng = np.random.default_rng(0)
    records = np.concatenate([rng.permutation(len(labels)) for _ in range(1 + count // len(labels))])
    records = records[:count].astype(np.int32)
    batch = images[records], labels[records]
    out = {}
    for name, logits in (("plain, obvious network", plain_logits), ("plain, our network", apply)):
        arguments = logits, parameters, *batch
        out[name] = Variant(
            functools.partial(mean_gradient, *arguments),
            functools.partial(compiled, mean_gradient, *arguments),
        )
    for size in MICROBATCHES:
        arguments = apply, size, parameters, *batch
        out[f"plain, our network, microbatches of {size}"] = Variant(
            functools.partial(microbatched_gradient, *arguments),
            functools.partial(compiled, microbatched_gradient, *arguments),
            -(-count // size),
        )
    for name, (randomizer, simulate, gradients) in VARIANTS.items():
        mechanism = mechanism_of(randomizer, clip_norm=training_peers.CLIP_NORM, simulate=simulate)
        performance = Performance(gradients=gradients)
        arguments = parameters, (images, labels)
        key, size = jax.random.key(1), performance.clients_at_once
        microbatches = -(-count // size)
        call = functools.partial(
            step.round_sum,
            mechanism,
            loss,
            *arguments,
            records,
            key,
            capacity=microbatches * size,
            performance=performance,
        )
        buffer, place = np.zeros((microbatches * size, 1), np.int32), np.zeros((2,), np.int32)
        given = step._Pass(*arguments, buffer, place, key, key)
        program = functools.partial(compiled, step._sum_messages, mechanism, performance, loss, given)
        out[name] = Variant(call, program, microbatches)
    if peers:
        calls = training_peers.jax_calls(plain_loss, lambda p, *record: loss(p, record), parameters, *batch)
        calls |= training_peers.torch_calls(
            digits.train_images[records].astype(np.float32) / data.DIGITS_MAX, digits.train_labels[records]
        )
        out |= {name: Variant(call) for name, call in calls.items()}
    return out


def compiled(function: Any, *arguments: Any) -> Any:
    """The program of a jitted function for these arguments."""
    return function.lower(*arguments).compile()


def costs(variant: Variant, peaks: tuple[float, float]) -> tuple[str, ...]:
    """Temporary MiB, GFLOP/s and GB/s (with shares of the peaks), by the median time."""
    if variant.program is None:
        return "", "", ""
    program = variant.program()
    memory, analysis = program.memory_analysis(), program.cost_analysis()
    seconds = statistics.median(variant.times)
    rates = [analysis[name] * variant.trips / seconds for name in ("flops", "bytes accessed")]
    shown = [
        f"{rate / 1e9:.0f}" + (f" ({rate / peak:.0%})" if peak else "") for rate, peak in zip(rates, peaks)
    ]
    return f"{memory.temp_size_in_bytes / 2**20:.0f}", *shown


def shown_times(variant: Variant) -> tuple[str, ...]:
    """Seconds of the first call; milliseconds: least, median, and least of the processor."""
    numbers = min(variant.times), statistics.median(variant.times), min(variant.processor)
    return f"{variant.first:.2f}", *(f"{1e3 * number:.1f}" for number in numbers)


def rounds_per_second(count: int, rounds: int) -> float:
    """Of the whole training loop, sampling and bookkeeping included, with this many clients a round expected."""
    protocol = ShuffledCheckIn(num_clients=10 * count, check_in_prob=0.1, num_rounds=rounds + 5)
    run = PrivateRun(protocol=protocol, randomizer=GAUSSIAN)
    config = ImageTraining(run=run, eval_every=protocol.num_rounds, seed=0)
    times = {}

    def note(line: dict[str, Any]) -> None:
        # The first rounds compile, the last one evaluates and accounts.
        if line["round"] in (4, 4 + rounds):
            jax.block_until_ready(jax.live_arrays())
            times[line["round"]] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        train(config, enlarged_digits(), Path(folder) / "run", note)
    return rounds / (times[4 + rounds] - times[4])


def main(
    clients: tuple[int, ...] = (256, 1_000, 6_000),
    repeats: int = 7,
    peers: bool = True,
    rounds: int = 30,
    peak_flops: float = 0.0,
    peak_bytes: float = 0.0,
    markdown: bool = False,
) -> None:
    """Prints one table for every number of clients, and how fast the whole loop runs.

    Args:
      clients: Numbers of clients a round.
      repeats: Timed calls of each variant after the first.
      peers: Whether to time other libraries, too, where they are installed.
      rounds: Rounds of the whole loop to time.
      peak_flops: What the device can do a second, to show the share of it; 0 where unknown.
      peak_bytes: Bytes a second of the device's memory, likewise.
      markdown: Prints tables as docs/results.md shows them.
    """
    console = Console(width=190)
    device = jax.devices()[0]
    console.print(f"{device.device_kind}, {jax.device_count()} device(s), jax {jax.__version__}")
    for count in clients:
        rows, products = variants(count, peers), matmuls()
        sweep({**rows, **{name: variant for name, (variant, _) in products.items()}}, repeats)
        yardstick, ours = next(iter(rows.values())).times, min(rows[OURS].processor)
        best = min(
            (row.times for name, row in rows.items() if name.startswith("plain")), key=statistics.median
        )
        work = count * network_flops(networks.functional(networks.build(28, jax.random.key(0)))[0])
        # Of the same sweep: the best that the machine did just then.
        peak = [max(rates) for rates in zip(*([w / t for t in v.times] for v, w in products.values()))]
        lines = []
        for name, row in rows.items():
            ratio, price = (
                statistics.median(one / other for one, other in zip(row.times, others))
                for others in (yardstick, best)
            )
            share = statistics.median(work / one / most for one, most in zip(row.times, peak))
            rate = f"{work / statistics.median(row.times) / 1e9:.0f} GFLOP/s"
            lines.append(
                (
                    name,
                    *shown_times(row),
                    f"{ratio:.2f}",
                    f"{price:.2f}",
                    f"{min(row.processor) / ours:.2f}",
                    rate,
                    f"{share:.0%}",
                    *costs(row, (peak_flops, peak_bytes)),
                )
            )
        for name, (product, flops) in products.items():
            rate = f"{flops / statistics.median(product.times) / 1e9:.0f} GFLOP/s"
            lines.append((name, *shown_times(product), "", "", "", rate, "", "", "", ""))
        title = f"{count:,} clients a round, least and median of {repeats} sweeps"
        if markdown:
            print(f"\n{title}\n\n| " + " | ".join(HEADS) + " |\n" + "| --- " * len(HEADS) + "|")
            print(*("| " + " | ".join(line) + " |" for line in lines), sep="\n")
        else:
            table = Table(*HEADS, title=title)
            for line in lines:
                table.add_row(*line)
            console.print(table)
        if rounds:
            speed = rounds_per_second(count, rounds)
            step_ms = 1e3 * statistics.median(rows[OURS].times)
            console.print(
                f"whole loop: {speed:.2f} rounds a second, {1e3 / speed:.1f} ms each ({step_ms:.1f} the step)"
            )


if __name__ == "__main__":
    program(main)
