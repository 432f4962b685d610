"""Evaluation of a block of settings on CPU cores or accelerators; each row gets results or an error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from checkin_jax import _validate
from checkin_jax.accounting.account import MIN_DELTA, account
from checkin_jax.accounting.calibration import calibrate
from checkin_jax.accounting.composition.renyi import unit_curve
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.sweeps import brackets, curves, formulas
from checkin_jax.sweeps.results import Question, Results
from checkin_jax.sweeps.settings import Rows
from checkin_jax.sweeps.workers import Workers

# Rows of one call.
_TOGETHER = 4


def evaluate(
    question: Question, rows: Rows, workers: Workers, devices: Sequence[Any], done: Callable[[int], None]
) -> pa.Table:
    """Table of results of a block.

    Args:
      workers: processes that evaluate the host's part.
      devices: all of one kind; accelerators evaluate bounds with compiled kernels.
      done: called with the number of newly finished rows.
    """
    results = Results(question, len(rows))
    for place, error in rows.faults.items():
        results.errors[place] = error
    left = np.flatnonzero(results.errors == "")
    done(len(rows) - len(left))
    kernels = next((each for each in (curves, brackets) if each.served(question, rows.inputs)), None)
    if devices[0].platform != "cpu" and kernels is not None:
        served = kernels.on_devices(rows.inputs, left, devices, results)
        done(len(served))
        left = np.setdiff1d(left, served, assume_unique=True)
    if question.kind.at_orders:
        parts = curves.parts(rows.inputs, left)
    elif question.what == "published":
        parts = formulas.parts(rows.inputs, left, devices[0].platform)
    else:
        parts = [left[start : start + _TOGETHER] for start in range(0, len(left), _TOGETHER)]

    def take(place: int, found: Results) -> None:
        results.put(parts[place], found)
        done(len(parts[place]))

    calls = [(question, {name: column[part] for name, column in rows.inputs.items()}) for part in parts]
    if question.what == "published" and devices[0].platform != "cpu":
        with float64(devices[0]):
            for place, call in enumerate(calls):
                take(place, answers(*call))
    else:
        workers.run(answers, calls, take)
    return results.table(question, rows.inputs)


def answers(question: Question, inputs: Mapping[str, np.ndarray]) -> Results:
    """Results of some rows, in this process."""
    results = Results(question, len(next(iter(inputs.values()))))
    if question.kind.at_orders:
        curves.fill(question, inputs, results)
    elif question.what == "published":
        formulas.fill(question, inputs, results)
    else:
        answer = {"bracket": _bracket, "calibration": _calibration, "rdp-epsilon": _by_rdp}[question.what]
        for place, values in enumerate(zip(*(column.tolist() for column in inputs.values()))):
            results.attempt(place, functools.partial(answer, question, dict(zip(inputs, values))))
    return results


def _arguments(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `account` and `calibrate` besides the descriptions."""
    names = ("delta", "view", "neighboring_relation", "client_rate")
    return {name: given[name] for name in names if name in given} | {"bounds": question.bounds}


def _bracket(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    found = account(*question.described(given), **_arguments(question, given))
    return _of(found, "epsilon", "lower", "method", "lower_method", "validity")


def _calibration(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    protocol, randomizer = question.described(given)
    found = calibrate(
        protocol,
        randomizer,
        target_epsilon=given["target_epsilon"],
        free=None if isinstance(randomizer, type) else question.free,
        verbose=False,
        **_arguments(question, given),
    )
    return {"value": found.value, **_of(found.guarantee, "epsilon", "lower", "method", "validity")}


def _by_rdp(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    delta = _validate.real(MIN_DELTA, 1.0, delta=given["delta"])
    epsilon, order, name = unit_curve(*question.described(given), given.get("view", "messages")).best(delta)
    return {"epsilon": epsilon, "optimal_order": order, "method": f"{name}, RDP", "validity": "certified"}


def _of(guarantee: Guarantee, *names: str) -> dict[str, Any]:
    return {name: getattr(guarantee, name) for name in names}
