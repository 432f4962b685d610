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

from checkin_jax.kernels.ahead import QUICK
from checkin_jax.kernels.devices import in_use


@functools.cache
def _compiled(kernel: Callable[..., Any], looped: bool) -> Callable[..., Any]:
    def lane(i: Array | int, held: Any, place: Array, columns: Any) -> Any:
        mine = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, i, keepdims=False), columns)
        at = jax.lax.dynamic_index_in_dim(place, i, keepdims=False)
        theirs = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, at, keepdims=False), held)
        return kernel(*theirs, *mine)

    def side_by_side(count: Array, held: Any, place: Array, columns: Any) -> Any:
        return jax.vmap(lambda i: lane(i, held, place, columns))(jnp.arange(place.shape[0]))

    def loop(count: Array, held: Any, place: Array, columns: Any) -> Any:
        shapes = jax.eval_shape(lambda: lane(0, held, place, columns))
        out = jax.tree.map(lambda leaf: jnp.zeros((place.shape[0], *leaf.shape), leaf.dtype), shapes)

        def step(i: Array, out: Any) -> Any:
            return jax.tree.map(
                lambda whole, part: jax.lax.dynamic_update_index_in_dim(whole, part, i, 0),
                out,
                lane(i, held, place, columns),
            )

        return jax.lax.fori_loop(0, count, step, out)

    # Half the time to compile, and as fast; `ahead` says what it is.
    return jax.jit(loop, compiler_options=QUICK) if looped else jax.jit(side_by_side)


def looped() -> bool:
    """True if the device in use takes lanes one by one."""
    return in_use().platform == "cpu"


def over(kernel: Callable[..., Any], columns: Any, held: Any = (), place: Any = None, *, size: int) -> Any:
    """Runs the kernel on every lane; [size, ...]. Entries beyond the number of lanes given are undefined.

    Args:
      kernel: a function of the arrays of one lane, `held`'s first; kept by the caller, since each is compiled once.
      columns: tuple of pytrees of arrays [lanes, ...], lanes <= size.
      held: tuple of pytrees of arrays [any number, ...], lane i's are at place[i]; results of this function, say.
      size: static number of lanes, the same in as many calls as can be.
    """
    count = jax.tree.leaves(columns)[0].shape[0]
    full = jax.tree.map(lambda column: _filled(np.asarray(column), size), columns)
    at = np.zeros(size, dtype=np.int32)
    if place is not None:
        at[:count] = place
    return _compiled(kernel, looped())(np.int32(count), held, at, full)


def _filled(values: np.ndarray, size: int) -> np.ndarray:
    """The column made `size` long with its first value."""
    return np.concatenate([values, np.repeat(values[:1], size - len(values), axis=0)])
