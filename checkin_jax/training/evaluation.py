"""Metrics on the public test set, and of a user's own evaluation, that are logged during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import _validate
from checkin_jax.training.model import Dataset, Model, given, one_of
from checkin_jax.training.private.clients import Parameters, Records
from checkin_jax.training.private.performance import Performance
from checkin_jax.training.reports.recorded import LINE

TEST_RECORDS_AT_ONCE = 100
# parameters -> name -> number
Evaluate = Callable[[Parameters], Mapping[str, Any]]


def metric_names(model: Model, dataset: Dataset, parameters: Any) -> set[str]:
    """Names of the metrics on the test set, checked before any round runs.

    Args:
      parameters: their shapes.

    Raises:
      ValueError, TypeError: `model.metrics` does not return names and scalars, or uses a name reserved for
        the run's lines.
    """
    if dataset.test is None or model.metrics is None:
        return set()
    record = one_of(dataset.test)
    with given("the metrics of one record of the test set", record):
        found = jax.eval_shape(model.metrics, parameters, record)
    if not isinstance(found, Mapping) or any(getattr(x, "shape", None) != () for x in found.values()):
        raise TypeError(f"the metrics of one record are {found}: expected names and a scalar for each")
    _check_names(found)
    return set(found)


def _check_names(found: Mapping[str, Any]) -> None:
    for name in found:
        if name in LINE:
            raise ValueError(f"metric {name!r}: expected another name than {', '.join(LINE)}")


def own_metrics(evaluate: Evaluate, parameters: Parameters) -> dict[str, float]:
    """Results of a user's own evaluation, by name.

    Raises:
      TypeError: the result has another form. ValueError: a name reserved for the run's lines.
    """
    found = evaluate(parameters)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"evaluate returned {_validate.shown(found)}: expected names and a number for each")
    _check_names(found)
    values = {}
    for name, value in found.items():
        try:
            if np.ndim(value) or isinstance(value, str):
                raise TypeError
            values[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"evaluate returned {name}={_validate.shown(value)}: expected a number") from None
    return values


def tests(
    model: Model, dataset: Dataset, evaluate: Evaluate | None, performance: Performance
) -> Callable[[Parameters], dict[str, float | None]]:
    """Function from parameters to means of the metrics over the public test set and results of `evaluate`."""
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
            found |= own_metrics(evaluate, parameters)
        values = {name: float(value) for name, value in found.items()}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    return tested
