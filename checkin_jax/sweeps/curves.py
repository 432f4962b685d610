"""Renyi divergences of a table of settings: the orders of a setting together, on accelerators many settings at once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from checkin_jax import _validate, plotting
from checkin_jax.accounting.bounds import moments
from checkin_jax.accounting.composition.renyi import Curve, GaussianCurve, UnitCurve, rdp
from checkin_jax.accounting.composition.renyi_lower import rdp_lower
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import moments as kernels
from checkin_jax.kernels.execution import batching
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Randomizer
from checkin_jax.sweeps.processes.beside import Portable
from checkin_jax.sweeps.results import Attempt, attempt, refusal

if TYPE_CHECKING:
    from checkin_jax.sweeps.processes.workers import Task, Workers
    from checkin_jax.sweeps.results import Results

# Settings that one task takes on the host; lanes and orders of a call on an accelerator.
_TOGETHER = 8
_LANES, _ORDERS = 256, (4, 16, 64)


def run(
    inputs: Mapping[str, np.ndarray],
    build: Callable[[Mapping[str, Any]], UnitCurve],
    below: Callable[[Mapping[str, Any], np.ndarray], np.ndarray] | None,
    results: Results,
    workers: Workers,
    done: Callable[[int], None],
) -> None:
    """Fills the rows of a block; build makes the run of a setting, or raises what is wrong with it.

    below: lower ends of a setting at some orders, if they are wanted.
    """
    orders = np.asarray(inputs["order"], dtype=np.float64)
    legal = (orders > 1.0) & (orders < np.inf)
    groups: dict[tuple[Any, ...], list[int]] = {}
    names = [name for name in inputs if name != "order"]
    for i, key in enumerate(zip(*(inputs[name].tolist() for name in names))):
        groups.setdefault(key, []).append(i)
    settings: list[_Setting] = []
    for key, members in groups.items():
        index = np.array(members)
        try:
            one = build(dict(zip(names, key)))
        except (TypeError, ValueError) as error:
            results.errors[index] = str(error)
            continue
        for i in index[~legal[index]]:
            results.errors[i] = refusal(functools.partial(_check_order, order=inputs["order"][i].item()))
        if legal[index].any():
            lower = None if below is None else functools.partial(below, dict(zip(names, key)))
            settings.append(_Setting(one, index[legal[index]], lower))
    done(int(np.count_nonzero(results.errors != "")))
    with workers.device(), float64():
        wide = below is None and batching.pays()
        together = [_lanes(one, orders[index]) if wide else None for one, index, _ in settings]
    served = [(*setting[:2], lanes) for setting, lanes in zip(settings, together) if lanes is not None]
    rest = [setting for setting, lanes in zip(settings, together) if lanes is None]
    tasks: list[Task] = [
        _alone(rest[start : start + _TOGETHER], orders, results, done)
        for start in range(0, len(rest), _TOGETHER)
    ]
    if served:
        tasks.append(_at_once(served, orders, results, done))
    workers.run(tasks)


_check_order = functools.partial(_validate.real, 1, np.inf, open_low=True, open_high=True)


class _Setting(NamedTuple):
    """A run, its rows, and its lower ends at some orders, if wanted."""

    one: UnitCurve
    rows: np.ndarray
    below: Callable[[np.ndarray], np.ndarray] | None

    def answer(self, orders: np.ndarray) -> dict[str, Any]:
        above = _answer(self.one.curve(orders))
        return above if self.below is None else {**above, "lower": self.below(orders)}


def _alone(
    settings: Sequence[_Setting],
    orders: np.ndarray,
    results: Results,
    done: Callable[[int], None],
) -> Task:
    def take(answers: Sequence[Attempt]) -> None:
        for setting, answer in zip(settings, answers, strict=True):
            results.take(setting.rows, answer)
            done(len(setting.rows))

    return Portable(_attempts, (settings, [orders[setting.rows] for setting in settings]), take)


def _attempts(settings: Sequence[_Setting], orders: Sequence[np.ndarray]) -> list[Attempt]:
    return [attempt(functools.partial(one.answer, at)) for one, at in zip(settings, orders)]


def _answer(found: Curve) -> dict[str, Any]:
    """Result columns of a setting's rows."""
    method = np.array([f"{name}, RDP" for name in found.names], dtype=object)
    return {"rdp": found.values, "method": method, "validity": "certified"}


# Label of the bound, and what the kernel needs.
_Lane = tuple[str, moments.Plan]


def _lanes(one: UnitCurve, orders: np.ndarray) -> list[_Lane] | None:
    """A lane for each bound and group of orders; None where a bound has no kernel for many settings."""
    if isinstance(one, GaussianCurve):
        return None
    found: list[_Lane] = []
    masses = moments.left_out(orders, one.epsilon0)
    for mass in np.unique(masses):
        where = np.flatnonzero(masses == mass)
        built = one.bounds(float(mass))
        if not built:
            return None
        for label, bound in built:
            mixture = moments.mixture_of(bound)
            if mixture is None:
                return None
            for plan in moments.plans(mixture, orders[where]):
                for start in range(0, len(plan.where), _ORDERS[-1]):
                    stop = start + _ORDERS[-1]
                    lane = plan.lane._replace(orders=plan.lane.orders[start:stop])
                    found.append((label, plan._replace(where=where[plan.where[start:stop]], lane=lane)))
    return found


def _at_once(
    settings: Sequence[tuple[UnitCurve, np.ndarray, list[_Lane]]],
    orders: np.ndarray,
    results: Results,
    done: Callable[[int], None],
) -> Task:
    def task() -> None:
        started = time.perf_counter()
        flat = [lane for *_, lanes in settings for lane in lanes]
        answers = iter(log_moments([plan for _, plan in flat]))
        for one, index, lanes in settings:
            parts = [(name, plan.where, next(answers)) for name, plan in lanes]
            results.fill(index, **_answer(one.joined(orders[index], parts)))
            done(len(index))
        everything = np.concatenate([index for _, index, _ in settings])
        results.seconds[everything] = (time.perf_counter() - started) / len(everything)

    return task


@functools.cache
def _kernel(choice: kernels.Choice) -> Callable[..., Any]:
    return functools.partial(kernels.log_moments, choice=choice)


def log_moments(lanes: Sequence[moments.Plan]) -> list[np.ndarray]:
    """What the kernel finds for every lane, those of one shape in one compiled call; inside `float64()`."""
    groups: dict[Any, list[int]] = {}
    counts = [len(lane.where) for lane in lanes]
    for i, lane in enumerate(lanes):
        size = next(size for size in _ORDERS if size >= counts[i])
        groups.setdefault((lane.choice, size), []).append(i)
    found: list[np.ndarray] = [np.zeros(0)] * len(lanes)
    for (choice, size), members in groups.items():
        for start in range(0, len(members), _LANES):
            some = members[start : start + _LANES]
            padded = [np.pad(lanes[i].lane.orders, (0, size - counts[i]), mode="edge") for i in some]
            full = [lanes[i].lane._replace(orders=host(orders)) for i, orders in zip(some, padded)]
            columns = jax.tree.map(lambda *parts: np.stack(parts), *full)
            values = np.asarray(batching.over(_kernel(choice), (columns,), size=_LANES))
            for i, row in zip(some, values):
                found[i] = row[: counts[i]]
    return found


def draw(
    runs: Mapping[str, tuple[CheckInProtocol, Randomizer, str]], orders: Sequence[float] | np.ndarray
) -> tuple[plotting.Figure, list[dict[str, object]]]:
    """Draws the divergences of runs between both proven ends: `rdp` as a line, and a band down to `rdp_lower`.

    Args:
      runs: protocol, randomizer and view of each, by what the legend calls it.
      orders: as in `rdp`.

    Returns:
      The figure, and its rows for `plotting.save`: run, order, rdp, lower (nats).

    Raises:
      TypeError, ValueError: as `rdp`. ModuleNotFoundError: matplotlib is not installed.
    """
    drawn, (axis,) = plotting.figure()
    rows: list[dict[str, object]] = []
    at = np.sort(np.asarray(orders, dtype=np.float64))
    for color, (name, (protocol, randomizer, view)) in zip(plotting.SERIES * len(runs), runs.items()):
        upper, lower = (call(protocol, randomizer, at, view=view) for call in (rdp, rdp_lower))
        axis.plot(at, upper, color=color, label=name)
        known = np.where(lower > 0, lower, np.nan)
        axis.fill_between(at, known, upper, color=color, alpha=0.25, linewidth=0)
        rows += [
            {"run": name, "order": order, "rdp": above, "lower": below}
            for order, above, below in zip(at.tolist(), upper.tolist(), lower.tolist())
        ]
    axis.set(xscale="log", yscale="log", xlabel="order", ylabel="Renyi divergence (nats)")
    plotting.legend(drawn, 2, axis)
    return drawn, rows
