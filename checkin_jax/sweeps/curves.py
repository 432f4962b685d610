"""Renyi divergences of a table of settings: with all orders of a setting on the host, of many on accelerators."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.composition import renyi
from checkin_jax.accounting.composition.renyi import (
    MIN_EPSILON0,
    RenyiCurve,
    alike,
    least,
    local,
    rdp_lower,
    unit_curve,
)
from checkin_jax.kernels import clones
from checkin_jax.kernels.composition import moments as kernels
from checkin_jax.kernels.execution.devices import by_shares, float64, on_lanes
from checkin_jax.protocols import Shuffle, ShuffledCheckIn
from checkin_jax.randomizers import PureLDP
from checkin_jax.sweeps.formulas import OneRate
from checkin_jax.sweeps.results import Question, Results, refusal

# Settings per call on the host.
_TOGETHER = 8
# Lanes and orders per call on an accelerator, and masses that a call places: a gigabyte or two of memory.
_LANES, _ORDERS, _PLACED = 256, 64, 2**24
_BUCKETS, _NODES, _TERMS = (64, 256), (160, 640, 1280), (0, 128, 256)


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
    methods = {name: f"{name}, RDP" for name in set(found.names)}
    if len(methods) == 1:
        (method,) = methods.values()
    else:
        method = np.array([methods[name] for name in found.names], dtype=object)
    return {"rdp": found.values, "method": method, "validity": "certified"}


def any_pure(question: Question, names: Collection[str]) -> bool:
    """True if the messages are any eps0-LDP ones."""
    return question.randomizer is PureLDP or (question.randomizer is None and "epsilon0" in names)


def at_one_rate(question: Question, names: Collection[str], more: Collection[str]) -> bool:
    """True if the arguments describe messages by epsilon0, clients at one rate, and `more` besides."""
    clients = question.protocol in (ShuffledCheckIn, Shuffle)
    return clients and {*OneRate._fields, "view", *more}.issuperset(names)


def served(question: Question, names: Collection[str]) -> bool:
    """True if accelerators have a kernel for Renyi divergences at these arguments."""
    return question.what == "rdp" and any_pure(question, names) and at_one_rate(question, names, ("order",))


def on_devices(
    inputs: Mapping[str, np.ndarray], index: np.ndarray, devices: Sequence[Any], results: Results
) -> np.ndarray:
    """Fills in those rows among `index`, of a question that is `served`, that the kernel takes; returns them."""
    started = time.perf_counter()
    given, orders = OneRate.of(inputs), np.asarray(inputs["order"], dtype=np.float64)
    kept = (
        given.legal
        & (given.num_clients > 1)
        & (given.epsilon0 >= MIN_EPSILON0)
        & (orders > 1)
        & (orders < np.inf)
    )
    if "view" in inputs:
        kept &= inputs["view"] == "messages"
    rows = index[kept[index]]
    if not rows.size:
        return rows
    first, count, order = alike(np.stack(given)[:, rows])
    rows, setting = rows[order], np.repeat(np.arange(len(first)), count)
    given, orders = OneRate(*(column[rows] for column in given)), orders[rows]
    one = OneRate(*(column[first] for column in given))
    law = clones.upper_law(one.num_clients, one.rate, one.epsilon0)
    drift = one.rate * (1.0 - one.rate) / one.num_clients
    lanes = renyi.lanes(law, one.epsilon0, drift, setting, orders, _ORDERS)
    found = np.empty(len(rows))
    with float64(devices[0]):
        for where, values in log_moments(lanes, devices):
            found[where] = values
    alone = local(orders, given.epsilon0) * given.num_rounds
    curve = least(alone, given.num_rounds, orders, [(Clones.name, np.arange(len(rows)), found)])
    results.attempt(rows, functools.partial(_columns, curve))
    results.columns["seconds"][rows] = (time.perf_counter() - started) / len(rows)
    return rows


@functools.cache
def _program(choice: kernels.Discretization, devices: tuple[Any, ...]) -> Callable[[kernels.Lane], jax.Array]:
    return by_shares(functools.partial(kernels.log_moments, choice=choice), devices)


def log_moments(
    groups: Sequence[renyi.Lanes], devices: Sequence[Any], most: int = _LANES
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Indices of orders and upper bounds on log A there, [lanes, orders] each; in `float64(device)`.

    Args:
      groups: lanes by discretization; more buckets and nodes also give a bound, so that few programs are compiled.
      devices: share the lanes of a call.
      most: lanes of a call on each device.
    """
    under_way = []
    for choice, lanes, where in _few(groups):
        placed = max(choice.buckets, 1) * (2 * len(choice.offsets) + 3) * (choice.nodes + choice.terms)
        fitting = max(min(most, _PLACED // placed), 1)
        under_way.append((where, on_lanes(_program(choice, tuple(devices)), lanes, devices, fitting)))
    # Every call is under way before the first result is waited for.
    return [(where, values()) for where, values in under_way]


def _few(groups: Sequence[renyi.Lanes]) -> list[renyi.Lanes]:
    """The same lanes with discretizations among a few, and `_ORDERS` orders each."""
    members_of: dict[kernels.Discretization, list[renyi.Lanes]] = {}
    for choice, lane, where in groups:
        if choice.buckets:
            buckets = next(size for size in _BUCKETS if size >= choice.buckets)
            nodes = 0 if choice.terms else next(size for size in _NODES if size >= choice.nodes)
            terms = next(size for size in _TERMS if size >= choice.terms)
            choice = choice._replace(buckets=buckets, nodes=nodes, terms=terms)
        wide = np.minimum(np.arange(_ORDERS), where.shape[1] - 1)
        lane = lane._replace(orders=lane.orders[:, wide])
        members_of.setdefault(choice, []).append(renyi.Lanes(choice, lane, where[:, wide]))
    return [
        renyi.Lanes(
            choice,
            jax.tree.map(lambda *parts: np.concatenate(parts), *(each.lane for each in members)),
            np.concatenate([each.where for each in members]),
        )
        for choice, members in members_of.items()
    ]
