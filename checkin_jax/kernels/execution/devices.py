"""The device that computes certified numbers: the host's CPU; for sweeps also an accelerator with IEEE 754 float64.

Kernels are evaluated in blocks: at any number of losses on the host, of any number of lanes on devices.

CUDA and ROCm have it. A TPU has no complex128 FFT and emulates float64 by pairs of float32; Metal has no float64. Error
counts hold for neither. Whatever device JAX prefers, an answer of the accountant is that of the CPU, to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkin_jax._compiled import keep_compiled
from checkin_jax.kernels import host
from checkin_jax.kernels.execution.backend import quietly

IEEE_754 = frozenset({"cpu", "gpu", "cuda", "rocm"})
_chosen: ContextVar[Any] = ContextVar("device of float64()", default=None)


def in_use() -> Any:
    """Device of arrays that are not placed explicitly."""
    config: Any = jax.config  # its attributes have no types
    chosen = config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def host_cpu() -> Any:
    """The process's first CPU; where JAX_PLATFORMS excludes it, the process's first device with IEEE float64.

    Raises:
      RuntimeError: there is neither.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        first = jax.local_devices()[0]
        if first.platform.lower() in IEEE_754:
            return first
        raise RuntimeError(
            f"{first.platform} has no IEEE float64, and this process no CPU to account on: "
            f"expected JAX_PLATFORMS to name cpu too, as in {first.platform.lower()},cpu"
        ) from error


def certified(device: Any) -> Any:
    """`device` if its float64 is IEEE 754, else `host_cpu()`."""
    return device if device.platform.lower() in IEEE_754 else host_cpu()


@contextlib.contextmanager
def float64(device: Any = None) -> Iterator[None]:
    """Context with float64 on a certified device; None: that of an enclosing context, else `host_cpu()`."""
    keep_compiled()
    with contextlib.ExitStack() as entered:
        chosen = device or _chosen.get() or host_cpu()
        token = _chosen.set(chosen)
        entered.callback(_chosen.reset, token)
        # JAX compiles anew if the default device is set explicitly, so it is set only if it differs.
        if chosen != in_use():
            entered.enter_context(jax.default_device(chosen))
        entered.enter_context(jax.enable_x64(True))
        yield


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
