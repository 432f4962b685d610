"""Evaluation of a block of settings on accelerators, in this process and in worker processes; each row gets results or
an error.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pyarrow as pa
from loky import ProcessPoolExecutor

from checkin_jax import _validate
from checkin_jax.accounting.account import MIN_DELTA, account
from checkin_jax.accounting.calibration import calibrate
from checkin_jax.accounting.composition.renyi import unit_curve
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.sweeps import brackets, curves, formulas
from checkin_jax.sweeps.results import Question, Results
from checkin_jax.sweeps.settings import Settings

# Rows of one call.
_TOGETHER = 4
# CPU seconds of work per process from which workers are started; a start takes two.
_WORTHWHILE = 4.0
# Seconds after which an idle process ends, and between checks that its parent exists.
_IDLE, _LOOK = 60, 1.0


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Evaluates calls on the host's CPU; use as a context manager.

    The first calls run in this process. If they show that enough work is left, worker processes take the others.
    Worker processes import the package and not the calling script, so
    that the script needs no guard; objects of the script are pickled by value. A call that fails in a worker, for
    any reason, is repeated in this process.

    Args:
      alone: True if other processes share the cores; then no worker is started.

    Attributes:
      blocks_left: number of runs of similar size after the next one.
    """

    def __init__(self, alone: bool = False) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most = 0 if alone else cores
        self._pool: ProcessPoolExecutor | None = None
        self.blocks_left = 0

    def __exit__(self, *exc_info: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)

    def run(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], take: Callable[[int, Any], None]
    ) -> None:
        """Calls take(i, function(*calls[i])) for every i, in any order; `take` runs in this thread.

        Raises:
          Exceptions of `function` in this process.
        """
        started, made = time.process_time(), 0
        while made < len(calls) and self._pool is None:
            take(made, function(*calls[made]))
            made += 1
            each = (time.process_time() - started) / made
            self._begin(each * (len(calls) - made + len(calls) * self.blocks_left))
        pending = dict[concurrent.futures.Future[Any], int]()
        for i in range(made, len(calls)):
            assert self._pool is not None
            try:
                pending[self._pool.submit(function, *calls[i])] = i
            except concurrent.futures.BrokenExecutor:  # a worker was killed
                take(i, function(*calls[i]))
        for future in concurrent.futures.as_completed(pending):
            i = pending.pop(future)
            take(i, function(*calls[i]) if future.exception() else future.result())

    def _begin(self, seconds: float) -> None:
        """Starts worker processes if this many CPU seconds of work are worth it."""
        count = min(self._most, int(seconds / _WORTHWHILE))
        if count < 2:
            return
        try:
            self._pool = ProcessPoolExecutor(
                count, timeout=_IDLE, initializer=_follow, initargs=(os.getpid(),), env=_environment()
            )
        except (OSError, NotImplementedError):  # systems without semaphores
            self._most = 0


def _environment() -> dict[str, str]:
    """Environment of worker processes: no accelerators, and JAX's compilation cache."""
    settings = jax.config.values
    names = "enable_compilation_cache", "compilation_cache_dir", "persistent_cache_min_compile_time_secs"
    kept = {f"JAX_{name.upper()}": str(settings[f"jax_{name}"]) for name in names}
    kept = {name: value for name, value in kept.items() if value != "None"}
    return {"JAX_PLATFORMS": "cpu", **kept}


def _follow(parent: int) -> None:
    """Ends this process with its parent, which alone handles the keyboard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def device_kernels(question: Question, names: Collection[str], devices: Sequence[Any]) -> ModuleType | None:
    """The module whose compiled kernels answer some rows on these devices; None on the host's CPU."""
    if devices[0].platform == "cpu":
        return None
    return next((each for each in (curves, brackets) if each.served(question, names)), None)


def evaluate(
    question: Question, rows: Settings, workers: Workers, devices: Sequence[Any], done: Callable[[int], None]
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
    kernels = device_kernels(question, rows.axes, devices)
    if kernels is not None:
        served = kernels.on_devices(rows.axes, left, devices, results)
        done(len(served))
        left = np.setdiff1d(left, served, assume_unique=True)
    if question.kind.at_orders:
        parts = curves.parts(rows.axes, left)
    elif question.what == "published":
        parts = formulas.parts(rows.axes, left, devices[0].platform)
    else:
        parts = [left[start : start + _TOGETHER] for start in range(0, len(left), _TOGETHER)]

    def take(place: int, found: Results) -> None:
        results.put(parts[place], found)
        done(len(parts[place]))

    calls = [(question, {name: column[part] for name, column in rows.axes.items()}) for part in parts]
    if question.what == "published" and devices[0].platform != "cpu":
        with float64(devices[0]):
            for place, call in enumerate(calls):
                take(place, answers(*call))
    else:
        workers.run(answers, calls, take)
    return results.table(rows.axes)


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
