"""Renyi divergences of a table of settings, with all orders of a setting, or of many on accelerators."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkin_jax import _validate
from checkin_jax.accounting.bounds import renyi_bounds
from checkin_jax.accounting.composition.renyi import GaussianCurve, RenyiCurve, UnitCurve, unit_curve
from checkin_jax.accounting.composition.renyi_lower import rdp_lower
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import moments as kernels
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.sweeps.results import Question, Results, refusal

# Settings per call on the host.
_TOGETHER = 8
# Settings and orders per call on an accelerator; its kernels are compiled for these sizes.
_LANES, _ORDERS = 256, 64
_BUCKETS, _NODES = (64, 256), (160, 640, 1280)


def _settings(inputs: Mapping[str, np.ndarray], index: np.ndarray) -> list[tuple[dict[str, Any], np.ndarray]]:
    """Settings among the rows `index`, which differ by more than their order: arguments and rows of each."""
    names = [name for name in inputs if name != "order"]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, key in zip(index.tolist(), zip(*(inputs[name][index].tolist() for name in names))):
        groups.setdefault(key, []).append(place)
    return [(dict(zip(names, key)), np.array(rows)) for key, rows in groups.items()]


def parts(inputs: Mapping[str, np.ndarray], index: np.ndarray) -> list[np.ndarray]:
    """The rows `index`, grouped into some settings with all of their orders."""
    rows = [rows for _, rows in _settings(inputs, index)]
    return [np.concatenate(rows[start : start + _TOGETHER]) for start in range(0, len(rows), _TOGETHER)]


def fill(question: Question, inputs: Mapping[str, np.ndarray], results: Results) -> None:
    """Fills in the divergences of the rows of some settings, in NumPy."""
    for given, rows in _settings(inputs, np.arange(len(results.errors))):
        rows = _legal(inputs, rows, results)
        if rows.size:
            results.attempt(rows, functools.partial(_answer, question, given, inputs["order"][rows]))


def _legal(inputs: Mapping[str, np.ndarray], rows: np.ndarray, results: Results) -> np.ndarray:
    """Rows with a legal order; the other rows get their errors."""
    orders = np.asarray(inputs["order"], dtype=np.float64)[rows]
    legal = (orders > 1.0) & (orders < np.inf)
    for row in rows[~legal]:
        check = functools.partial(_validate.real, 1, np.inf, "()")
        results.errors[row] = refusal(functools.partial(check, order=inputs["order"][row].item()))
    return rows[legal]


def _answer(question: Question, given: Mapping[str, Any], orders: np.ndarray) -> dict[str, Any]:
    protocol, randomizer = question.described(given)
    view, orders = given.get("view", "messages"), np.asarray(orders, dtype=np.float64)
    found = _columns(unit_curve(protocol, randomizer, view).curve(orders))
    if question.kind.band:
        found["lower"] = rdp_lower(protocol, randomizer, orders, view=view)
    return found


def _columns(found: RenyiCurve) -> dict[str, Any]:
    method = np.array([f"{name}, RDP" for name in found.names], dtype=object)
    return {"rdp": found.values, "method": method, "validity": "certified"}


def on_devices(
    question: Question,
    inputs: Mapping[str, np.ndarray],
    index: np.ndarray,
    devices: Sequence[Any],
    results: Results,
) -> np.ndarray:
    """Fills in the rows among `index` whose bounds have a compiled kernel, and returns these rows."""
    started = time.perf_counter()
    orders = np.asarray(inputs["order"], dtype=np.float64)
    served: list[tuple[UnitCurve, np.ndarray, list[tuple[str, renyi_bounds.SharedNodes]]]] = []
    with jax.default_device(devices[0]), float64():
        for given, rows in _settings(inputs, index):
            try:
                one = unit_curve(*question.described(given), given.get("view", "messages"))
            except (TypeError, ValueError):
                continue
            rows = rows[(orders[rows] > 1.0) & (orders[rows] < np.inf)]
            lanes = _lanes(one, orders[rows]) if rows.size else None
            if lanes is not None:
                served.append((one, rows, lanes))
        answers = iter(log_moments([plan for *_, lanes in served for _, plan in lanes], devices))
    for one, rows, lanes in served:
        found = one.joined(orders[rows], [(label, plan.where, next(answers)) for label, plan in lanes])
        results.attempt(rows, functools.partial(_columns, found))
    every = np.concatenate([rows for _, rows, _ in served]) if served else np.zeros(0, dtype=np.int64)
    results.columns["seconds"][every] = (time.perf_counter() - started) / max(len(every), 1)
    return every


def _lanes(one: UnitCurve, orders: np.ndarray) -> list[tuple[str, renyi_bounds.SharedNodes]] | None:
    """A label of a bound, and what the kernel needs, for some orders each; None where a bound has no such kernel."""
    if isinstance(one, GaussianCurve):
        return None
    found: list[tuple[str, renyi_bounds.SharedNodes]] = []
    masses = renyi_bounds.left_out(orders, one.epsilon0)
    for mass in np.unique(masses):
        where = np.flatnonzero(masses == mass)
        built = one.bounds(float(mass))
        if not built:
            return None
        for label, bound in built:
            mixture = renyi_bounds.mixture_of(bound)
            if mixture is None:
                return None
            for plan in renyi_bounds.plans(mixture, orders[where]):
                for start in range(0, len(plan.where), _ORDERS):
                    some = slice(start, start + _ORDERS)
                    lane = plan.lane._replace(orders=plan.lane.orders[some])
                    found.append((label, plan._replace(where=where[plan.where[some]], lane=lane)))
    return found


def _compiled_for(choice: kernels.Discretization) -> kernels.Discretization:
    """Sizes with which a lane of this choice is computed: more buckets and nodes also give a bound."""
    if choice.buckets == 0:
        return choice
    buckets = next(size for size in _BUCKETS if size >= choice.buckets)
    return choice._replace(buckets=buckets, nodes=next(size for size in _NODES if size >= choice.nodes))


@functools.cache
def _program(choice: kernels.Discretization, side_by_side: bool) -> Callable[[kernels.Lane], jax.Array]:
    kernel = functools.partial(kernels.log_moments, choice=choice)
    return jax.jit(jax.vmap(kernel) if side_by_side else functools.partial(jax.lax.map, kernel))


def log_moments(
    lanes: Sequence[renyi_bounds.SharedNodes], devices: Sequence[Any], size: int = _LANES
) -> list[np.ndarray]:
    """Upper bounds on log A of every lane at its orders, one compiled call for equal sizes; in
    `float64()`.

    Args:
      devices: share the lanes of a call in parallel, on a CPU one after the other.
      size: lanes per call.
    """
    groups: dict[kernels.Discretization, list[int]] = {}
    for i, lane in enumerate(lanes):
        groups.setdefault(_compiled_for(lane.choice), []).append(i)
    shared = NamedSharding(Mesh(np.array(devices), ("lanes",)), PartitionSpec("lanes"))
    size = -(-size // len(devices)) * len(devices)
    found: list[np.ndarray] = [np.zeros(0)] * len(lanes)
    for choice, members in groups.items():
        program = _program(choice, devices[0].platform != "cpu")
        for start in range(0, len(members), size):
            some = members[start : start + size]
            orders = [lanes[i].lane.orders for i in some]
            padded = [np.pad(each, (0, _ORDERS - len(each)), mode="edge") for each in orders]
            full = [lanes[i].lane._replace(orders=host(each)) for i, each in zip(some, padded)]
            full += [full[0]] * (size - len(full))
            columns = jax.tree.map(lambda *each: np.stack(each), *full)
            values = np.asarray(program(jax.device_put(columns, shared)))
            for i, row in zip(some, values):
                found[i] = row[: len(lanes[i].where)]
    return found
