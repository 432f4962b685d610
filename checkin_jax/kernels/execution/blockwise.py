"""Evaluation of kernels at any number of losses, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from checkin_jax.kernels import host
from checkin_jax.kernels.execution.backend import quietly

# Losses per block, whose working set fits into the CPU cache.
_BLOCK = 64


@quietly
def at_losses(kernel: Callable[[Array], Any], loss: np.ndarray) -> Any:
    """kernel(losses) in NumPy, for any number of losses; its values, or pairs of values, end in the axis of losses."""
    starts = range(0, max(len(loss), 1), _BLOCK)
    return np.concatenate([kernel(host(loss[start : start + _BLOCK])) for start in starts], axis=-1)
