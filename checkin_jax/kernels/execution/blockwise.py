"""Evaluation of kernels in blocks: at any number of losses on the host, of any number of lanes on devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkin_jax.kernels import host
from checkin_jax.kernels.execution.backend import quietly

# Losses per block, whose working set fits into the CPU cache.
_BLOCK = 64


@quietly
def at_losses(kernel: Callable[[Array], Any], loss: np.ndarray) -> Any:
    """kernel(losses) in NumPy, for any number of losses; its values, or pairs of values, end in the axis of losses."""
    starts = range(0, max(len(loss), 1), _BLOCK)
    return np.concatenate([kernel(host(loss[start : start + _BLOCK])) for start in starts], axis=-1)


def shared(devices: Sequence[Any]) -> NamedSharding:
    """The arrangement of a block of lanes, as many on each of the devices."""
    return NamedSharding(Mesh(np.array(devices), ("lanes",)), PartitionSpec("lanes"))


def by_shares(function: Callable[..., Any], devices: Sequence[Any]) -> Any:
    """The program of blocks of lanes that evaluates each device's lanes there, and no device waits for another.

    function: of one lane. Loops end on each device when its own lanes have ended.
    """
    lanes = shared(devices)
    split = jax.shard_map(
        jax.vmap(function), mesh=lanes.mesh, in_specs=lanes.spec, out_specs=lanes.spec, check_vma=False
    )
    return jax.jit(split, in_shardings=lanes, out_shardings=lanes)


def on_lanes(
    program: Callable[[Any], Array], lanes: Any, devices: Sequence[Any], most: int
) -> Callable[[], np.ndarray]:
    """Starts a compiled program on all lanes, and returns a function that waits for its results; [lanes, ...].

    program: of a block of lanes. most: lanes of a call on each device.
    """
    count, size = len(jax.tree.leaves(lanes)[0]), len(devices) * most
    found = []
    for start in range(0, count, size):
        some = np.minimum(np.arange(start, start + size), count - 1)
        columns = jax.tree.map(lambda column, some=some: np.take(column, some, axis=0), lanes)
        found.append(program(jax.device_put(columns, shared(devices))))
    return lambda: np.concatenate([np.asarray(part) for part in found])[:count]
