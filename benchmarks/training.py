"""How much privacy costs a training step: every way of drawing a round's sum against the plain gradient.

    python benchmarks/training.py [--clients 256 1000 6000] [--repeats 5]

The yardstick is the ordinary non-private gradient of the mean loss over the same clients, with XLA's own
convolutions and pooling. All variants run in turn within one process, so that the ratios mean something on
a busy machine; times are medians in milliseconds. Memory is XLA's temporary buffers for one compiled call.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from checkin_jax.randomizers import Gaussian, PureLDP
from checkin_jax.training import data, networks, step

VARIANTS = {
    "Gaussian, aggregate": (Gaussian(noise_multiplier=2.0), "aggregate"),
    "Gaussian, messages": (Gaussian(noise_multiplier=2.0), "messages"),
    "l2 mechanism, aggregate": (PureLDP(epsilon0=2.0), "aggregate"),
    "l2 mechanism, messages": (PureLDP(epsilon0=2.0), "messages"),
    "l2 mechanism, central-limit": (PureLDP(epsilon0=2.0), "central-limit"),
}


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


@jax.jit
def plain_gradient(parameters: Any, images: jax.Array, labels: jax.Array, records: jax.Array) -> Any:
    """The non-private yardstick: gradient of the mean loss of the given records."""

    def loss(parameters: Any) -> jax.Array:
        logits = plain_logits(parameters, images[records].astype(jnp.float32)[..., None] * (1 / 16))
        return jnp.mean(jax.vmap(networks.cross_entropy)(logits, labels[records].astype(jnp.int32)))

    return jax.grad(loss)(parameters)


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds of the first call (compilation included) and median milliseconds of the others."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return times[0], 1e3 * statistics.median(times[1:])


def main(clients: tuple[int, ...] = (256, 1_000, 6_000), repeats: int = 5) -> None:
    """Prints one table.

    Args:
      clients: Numbers of clients a round.
      repeats: Timed calls of each variant after the first.
    """
    digits = data.digits()
    enlarged = np.pad(np.kron(digits.train_images, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))
    images, labels = jnp.asarray(enlarged), jnp.asarray(digits.train_labels)
    parameters, apply = networks.functional(networks.build(28, jax.random.key(0)))

    def loss(parameters: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        logits = apply(parameters, image.astype(jnp.float32)[..., None] * (1 / 16))
        return networks.cross_entropy(logits, label.astype(jnp.int32))

    table = Table("variant", "clients", "first call, s", "ms a step", "ratio", "temporary MiB")
    for count in clients:
        # Whole permutations, one after the other: neighbours are different records.
        rng = np.random.default_rng(0)
        records = np.concatenate([rng.permutation(len(labels)) for _ in range(1 + count // len(labels))])
        records = records[:count].astype(np.int32)
        key, capacity = jax.random.key(1), -(-count // 40) * 40
        plain = functools.partial(plain_gradient, parameters, images, labels, records)
        first, yardstick = timed(plain, repeats)
        compiled = plain_gradient.lower(parameters, images, labels, records).compile()
        rows = [("plain gradient, not private", first, yardstick, compiled)]
        for name, (randomizer, simulate) in VARIANTS.items():
            mechanism = step.Mechanism(clip_norm=0.1, randomizer=randomizer, simulate=simulate)
            call = functools.partial(
                step.round_sum, mechanism, loss, parameters, images, labels, records, key, capacity=capacity
            )
            first, milliseconds = timed(call, repeats)
            buffer = np.zeros((capacity,), np.int32)
            arguments = (jnp.zeros(26_010), parameters, images, labels, buffer, np.int32(0), np.int32(0), key)
            compiled = step._add_messages.lower(mechanism, loss, *arguments).compile()
            rows.append((name, first, milliseconds, compiled))
        for name, first, milliseconds, compiled in rows:
            analysis = compiled.memory_analysis()
            memory = f"{analysis.temp_size_in_bytes / 2**20:.0f}" if analysis else "unknown"
            table.add_row(
                name,
                f"{count:,}",
                f"{first:.2f}",
                f"{milliseconds:.1f}",
                f"{milliseconds / yardstick:.2f}",
                memory,
            )
        table.add_section()
    Console(width=110).print(table)


if __name__ == "__main__":
    tyro.cli(main)
