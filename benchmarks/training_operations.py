"""How near the private step is to what the machine can do, operation by operation.

    python benchmarks/training_operations.py [--repeats 30]

Every operation of one microbatch of the 28x28 network is timed alone: the matrix products of its layers as the private
step writes them, beside other calls for the same product (operands the other way round, NumPy's BLAS, torch where it
is installed), and what only moves or maps numbers beside adding one to as many numbers. All are called in turn, over
and over, and the least times count, so that the shares mean something on a busy machine. The last lines add up: one
microbatch within the private step, its products as they are and by the fastest call found for each, and the rest.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import training
from rich.console import Console
from rich.table import Table

from checkin_jax.cli.programs import program
from checkin_jax.training.examples import networks
from checkin_jax.training.private.step import CPU_MICROBATCH

CALLS = 8  # of an operation at a time, so that starting one counts for little
STEP_CLIENTS = 12 * CPU_MICROBATCH
# Rows that a layer multiplies a record, features read, features written.
LAYERS = {"conv1": (196, 64, 16), "conv2": (25, 256, 32), "dense1": (1, 512, 32), "dense2": (1, 32, 10)}
Operation = tuple[Callable[..., Any], tuple[Any, ...]]


def products() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Name: how the step writes it as an einsum, and its two operands."""
    clients, found = CPU_MICROBATCH, {}
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    for name, (rows, read, written) in LAYERS.items():
        x, kernel, back = (
            numbers(clients * rows, read),
            numbers(read, written),
            numbers(clients * rows, written),
        )
        found[f"{name}, forwards"] = "np,pq->nq", (x, kernel)
        if name != "conv1":
            found[f"{name}, back to its input"] = "nq,pq->np", (back, kernel)
        if rows == 1:
            found[f"{name}, summed kernels"] = "np,nq->pq", (x, back)
        else:
            by_client = back.reshape(clients, rows, -1), x.reshape(clients, rows, -1)
            found[f"{name}, a kernel a client"] = "mtq,mtp->mqp", by_client
    return found


def ways(written: str, operands: tuple[Any, ...]) -> dict[str, Operation]:
    """By name: calls for the same product, the step's own first."""
    inputs, output = written.split("->")
    first, second = inputs.split(",")
    turned = f"{second},{first}->{output[:-2]}{output[-1]}{output[-2]}"
    on_device = tuple(map(jnp.asarray, operands))
    found: dict[str, Operation] = {
        "step": (jax.jit(functools.partial(jnp.einsum, written)), on_device),
        "turned": (jax.jit(functools.partial(jnp.einsum, turned)), on_device[::-1]),
        "NumPy": (np.matmul, _matrices(written, operands)),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch  # pyright: ignore[reportMissingImports]

        found["torch"] = torch.matmul, tuple(map(torch.from_numpy, _matrices(written, operands)))
    return found


def _matrices(written: str, operands: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The operands as NumPy multiplies them."""
    first, second = operands
    if written == "np,pq->nq":
        return first, second
    return (first, second.T) if written == "nq,pq->np" else (np.swapaxes(first, -1, -2), second)


def streams() -> dict[str, tuple[Operation, int]]:
    """By name: what moves or maps numbers, forwards and backwards, and the bytes that it must read and write."""
    clients, found = CPU_MICROBATCH, {}

    def note(name: str, function: Callable[..., Any], *shape: int) -> None:
        x = jax.random.normal(jax.random.key(0), (clients, *shape))
        y = function(x)
        found[f"{name}, forwards"] = (jax.jit(function), (x,)), x.nbytes + y.nbytes
        found[f"{name}, backwards"] = (
            (jax.jit(lambda x, y: jax.vjp(function, x)[1](y)), (x, y)),
            2 * x.nbytes + y.nbytes,
        )

    note("tanh after conv1", networks.tanh, 14, 14, 16)
    note("tanh after conv2", networks.tanh, 5, 5, 32)
    note("pooling after conv1", networks.max_pool, 14, 14, 16)
    note("pooling after conv2", networks.max_pool, 5, 5, 32)
    return found


def timed(operations: dict[Any, Operation], repeats: int) -> dict[Any, float]:
    """Least seconds of one call of each."""

    def calls(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return [function(*arguments) for _ in range(CALLS)]

    variants = {name: training.Variant(functools.partial(calls, *one)) for name, one in operations.items()}
    training.sweep(variants, repeats)
    return {name: min(variant.times) / CALLS for name, variant in variants.items()}


def main(repeats: int = 30) -> None:
    """Prints the two tables and the sum.

    Args:
      repeats: Sweeps over all operations.
    """
    console = Console(width=120)
    step = training.variants(STEP_CLIENTS, peers=False)["Gaussian, aggregate"]
    multiplied, moved = products(), streams()
    operations: dict[Any, Operation] = {
        (name, way): call for name, one in multiplied.items() for way, call in ways(*one).items()
    }
    operations |= {(name, "step"): call for name, (call, _) in moved.items()}
    plain = jnp.zeros((CPU_MICROBATCH * 14 * 14 * 16,), jnp.float32)
    operations["add one"] = jax.jit(lambda x: x + 1.0), (plain,)
    side = training.MATMULS[-1]
    large = jax.random.normal(jax.random.key(0), (side, side))
    operations["large"] = jax.jit(jnp.matmul), (large, large)
    operations["step"] = step.call, ()
    least = timed(operations, repeats)
    whole = least["step"] * CPU_MICROBATCH / STEP_CLIENTS
    rate = 2 * side**3 / least["large"] / 1e9
    pace = 2 * plain.nbytes / least["add one"]
    console.print(
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}: a product of {side:,} x {side:,} reaches {rate:.0f} "
        f"GFLOP/s, adding one {pace / 1e9:.0f} GB/s"
    )

    table = Table("product", "MFLOP", "step, us", "GFLOP/s", "fastest call", "GFLOP/s", "step's share of it")
    as_is = at_best = 0.0
    for name, (written, operands) in multiplied.items():
        sizes = dict(zip(written.replace(",", "").split("->")[0], (n for x in operands for n in x.shape)))
        flops = 2 * np.prod(list(sizes.values()), dtype=float)
        times = {way: least[name, way] for way in ways(written, operands)}
        best = min(times, key=times.__getitem__)
        as_is, at_best = as_is + times["step"], at_best + times[best]
        rates = f"{flops / times['step'] / 1e9:.0f}", best, f"{flops / times[best] / 1e9:.0f}"
        table.add_row(
            name,
            f"{flops / 1e6:.2f}",
            f"{1e6 * times['step']:.0f}",
            *rates,
            f"{times[best] / times['step']:.0%}",
        )
    console.print(table)

    table = Table("moved or mapped", "MB", "us", "GB/s", "of adding one")
    for name, (_, size) in moved.items():
        seconds = least[name, "step"]
        shown = f"{size / 1e6:.2f}", f"{1e6 * seconds:.0f}", f"{size / seconds / 1e9:.0f}"
        table.add_row(name, *shown, f"{size / seconds / pace:.0%}")
    console.print(table)
    console.print(
        f"A microbatch of {CPU_MICROBATCH} within the private step takes {1e6 * whole:.0f} us. Its products alone take "
        f"{1e6 * as_is:.0f} us, {as_is / whole:.0%} of it, and {1e6 * at_best:.0f} us by the fastest call for each: no "
        f"other call would make the step more than {whole / (whole - as_is + at_best):.2f} times as fast."
    )


if __name__ == "__main__":
    program(main)
