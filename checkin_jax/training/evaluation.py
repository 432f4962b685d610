"""What is said of a model while it is trained: metrics on the public test set, and norms of what was released."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from checkin_jax.training.model import Dataset, Model
from checkin_jax.training.private.clients import Parameters, Records
from checkin_jax.training.private.performance import Performance
from checkin_jax.training.private.samplers import Mechanism
from checkin_jax.training.reports.recorded import LINE

TEST_RECORDS_AT_ONCE = 100
# parameters -> name -> number
Evaluate = Callable[[Parameters], Mapping[str, Any]]


def tests(
    model: Model, dataset: Dataset, evaluate: Evaluate | None, performance: Performance
) -> Callable[[Parameters], dict[str, float | None]]:
    """Parameters -> means of the metrics over the public test set, and what `evaluate` says."""
    measure, test = model.metrics, None
    if dataset.test is not None and measure is not None:
        test = performance.placed(dataset.test)

        @jax.jit
        def means(parameters: Parameters, test: Records) -> Mapping[str, jax.Array]:
            each = jax.lax.map(
                lambda record: measure(parameters, record), test, batch_size=TEST_RECORDS_AT_ONCE
            )
            return jax.tree.map(lambda values: jnp.mean(values.astype(jnp.float32)), each)

    def tested(parameters: Parameters) -> dict[str, float | None]:
        found: dict[str, Any] = {}
        if test is not None:
            found |= means(parameters, test)
        if evaluate is not None:
            found |= evaluate(parameters)
        for name in found:
            if name in LINE:
                raise ValueError(f"metric {name!r}: expected another name than {', '.join(LINE)}")
        values = {name: float(value) for name, value in found.items()}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    return tested


def norms(mechanism: Mechanism, total: jax.Array | None, check_ins: int, divisor: float) -> dict[str, Any]:
    """The l2 norm of a released update, None if it is not finite, and the norm that its noise is expected to have.

    Args:
      total: the sum of the round; None: nobody checked in, and nothing is said.
      check_ins: messages in it. divisor: by which the sum is divided.
    """
    if total is None:
        return {}
    norm, size = float(jnp.linalg.norm(total)) / divisor, total.size
    noise = mechanism.noise_norm(size) * math.sqrt(check_ins) / divisor
    return {"update_norm": norm if math.isfinite(norm) else None, "noise_norm": noise}
