"""Kernels of one setting run over many: lane by lane in a compiled loop on a CPU, side by side on an accelerator.

On a CPU a lane's working set stays in the cache, its numbers do not depend on the other lanes, and lanes that are not
wanted cost nothing. Either way one size of block is compiled, however many lanes are in use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels.execution.devices import in_use


@functools.partial(jax.jit, static_argnames=("kernel", "one_by_one"))
def _lanes(
    count: Array, held: Any, place: Array, columns: Any, kernel: Callable[..., Any], one_by_one: bool
) -> Any:
    def lane(i: Array | int) -> Any:
        mine = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, i, keepdims=False), columns)
        at = jax.lax.dynamic_index_in_dim(place, i, keepdims=False)
        theirs = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, at, keepdims=False), held)
        return kernel(*theirs, *mine)

    if not one_by_one:
        return jax.vmap(lane)(jnp.arange(place.shape[0]))
    shapes = jax.eval_shape(lambda: lane(0))
    out = jax.tree.map(lambda leaf: jnp.zeros((place.shape[0], *leaf.shape), leaf.dtype), shapes)

    def step(i: Array, out: Any) -> Any:
        return jax.tree.map(
            lambda whole, part: jax.lax.dynamic_update_index_in_dim(whole, part, i, 0), out, lane(i)
        )

    return jax.lax.fori_loop(0, count, step, out)


def looped() -> bool:
    """True if the device in use takes lanes one by one."""
    return in_use().platform == "cpu"


def pays() -> bool:
    """Whether many settings are worth a compiled program on the device in use.

    On a CPU NumPy takes about as long for a setting, and compiles nothing.
    """
    return not looped()


def over(kernel: Callable[..., Any], columns: Any, held: Any = (), place: Any = None, *, size: int) -> Any:
    """Runs the kernel on every lane; [size, ...]. Entries beyond the number of lanes given are undefined.

    Args:
      kernel: a function of the arrays of one lane, `held`'s first; of a module, or one of a family.
      columns: tuple of pytrees of arrays [lanes, ...], lanes <= size.
      held: tuple of pytrees of arrays [any number, ...], lane i's are at place[i]; results of this function, say.
      size: static number of lanes, the same in as many calls as can be.
    """
    count = jax.tree.leaves(columns)[0].shape[0]
    full = jax.tree.map(lambda column: _filled(np.asarray(column), size), columns)
    at = np.zeros(size, dtype=np.int32)
    if place is not None:
        at[:count] = place
    return _lanes(np.int32(count), held, at, full, kernel=kernel, one_by_one=looped())


def _filled(values: np.ndarray, size: int) -> np.ndarray:
    """The column made `size` long with its first value."""
    return np.concatenate([values, np.repeat(values[:1], size - len(values), axis=0)])
