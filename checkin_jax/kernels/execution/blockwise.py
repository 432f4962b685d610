"""Evaluation of kernels at any number of losses, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import host
from checkin_jax.kernels.execution import backend

# Losses per block, whose working set fits into the CPU cache.
_BLOCK = 32


def at_losses(kernel: Callable[[Array, Any], Any], loss: np.ndarray) -> Any:
    """kernel(losses, count) in NumPy, for any number of losses."""
    return kernel(host(loss), np.int32(len(loss)))


def in_blocks(evaluate: Callable[[Array], tuple[Array, ...]], loss: Array, count: Array) -> tuple[Array, ...]:
    """evaluate(loss) for the first `count` losses, a multiple of _BLOCK if compiled; later entries are meaningless."""
    if not backend.of_jax(loss):
        parts = [evaluate(loss[start : start + _BLOCK]) for start in range(0, int(count), _BLOCK)]
        if len(parts) == 1:
            return parts[0]
        return tuple(backend.xp.concatenate(blocks) for blocks in zip(*parts))
    shapes = jax.eval_shape(evaluate, loss[:_BLOCK])

    def step(i: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        some = evaluate(jax.lax.dynamic_slice(loss, (i * _BLOCK,), (_BLOCK,)))
        return tuple(
            jax.lax.dynamic_update_slice(whole, part, (i * _BLOCK,)) for whole, part in zip(found, some)
        )

    none = tuple(jnp.zeros(loss.shape, part.dtype) for part in shapes)
    return jax.lax.fori_loop(0, (count + _BLOCK - 1) // _BLOCK, step, none)
