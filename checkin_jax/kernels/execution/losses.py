"""Any number of losses through kernels of one compiled size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import host

# Losses handled at once (the working set of a block stays in the cache), and the most that a kernel takes. It evaluates
# the blocks in use, so that one size is compiled.
_BLOCK = 32
MOST = 129 * _BLOCK


# What stands for losses where shapes alone count.
NO_LOSSES = np.zeros(MOST)


def padded(loss: np.ndarray) -> np.ndarray:
    """At most MOST losses, the last one repeated until there are MOST."""
    return np.pad(np.asarray(loss, dtype=np.float64), (0, MOST - len(loss)), mode="edge")


def at_losses(kernel: Callable[[Array, Array], Any], loss: np.ndarray) -> Any:
    """kernel(losses [MOST], how many count) for any number of losses."""
    found = []
    for start in range(0, len(loss), MOST):
        some = loss[start : start + MOST]
        values = kernel(host(padded(some)), np.int32(len(some)))  # type: ignore[arg-type]
        found.append(jax.tree.map(lambda part, like=some: np.asarray(part)[: len(like)], values))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)


def in_blocks(evaluate: Callable[[Array], tuple[Array, ...]], loss: Array, count: Array) -> tuple[Array, ...]:
    """evaluate(loss) for the first `count` of MOST losses, block by block; nothing of use after them."""
    parts = jax.eval_shape(evaluate, loss[:_BLOCK])

    def step(i: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        some = evaluate(jax.lax.dynamic_slice(loss, (i * _BLOCK,), (_BLOCK,)))
        return tuple(
            jax.lax.dynamic_update_slice(whole, part, (i * _BLOCK,)) for whole, part in zip(found, some)
        )

    none = tuple(jnp.zeros(loss.shape, part.dtype) for part in parts)
    return jax.lax.fori_loop(0, (count + _BLOCK - 1) // _BLOCK, step, none)
