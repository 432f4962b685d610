"""One block of settings: every row gets its results, or the text of its error."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.account import MIN_DELTA, account
from checkin_jax.accounting.bounds.choice import BEST, built_bounds, unit_bound
from checkin_jax.accounting.bounds.facts import Unit
from checkin_jax.accounting.bounds.unit import UnitBound, log_inverse_mass
from checkin_jax.accounting.calibration import calibrate
from checkin_jax.accounting.composition.renyi import unit_curve
from checkin_jax.accounting.composition.renyi_lower import rdp_lower
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.kernels.execution import batching
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import RELATIONS, REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer
from checkin_jax.rates import RateLimits
from checkin_jax.sweeps import curves, published
from checkin_jax.sweeps.brackets import batched
from checkin_jax.sweeps.processes import beside
from checkin_jax.sweeps.processes.workers import Task, Workers
from checkin_jax.sweeps.results import Attempt, Question, Results, attempt
from checkin_jax.sweeps.table import Columns

# In place of check_in_prob: what `RateLimits` has.
LIMITS = ("largest_rate", "expected_check_ins")
# Rows that one task of the slower kinds takes.
_ROWS_PER_TASK = 4


def evaluate(
    question: Question, inputs: Mapping[str, np.ndarray], workers: Workers, done: Callable[[int], None]
) -> Columns:
    """The block's columns; done is told how many more rows are ready, from any thread."""
    count = len(next(iter(inputs.values())))
    results = Results(question, count)
    if question.what == "published":
        published.run_published(question, inputs, results, workers, done)
    elif question.kind.at_orders:
        curves.run(
            inputs,
            lambda given: unit_curve(*_described(question, given), _view(given)),
            functools.partial(_rdp_below, question) if question.kind.band else None,
            results,
            workers,
            done,
        )
    else:
        _by_rows(question, inputs, results, workers, done)
    return results.columns(inputs)


def _by_rows(
    question: Question,
    inputs: Mapping[str, np.ndarray],
    results: Results,
    workers: Workers,
    done: Callable[[int], None],
) -> None:
    """Kinds whose settings are objects: on accelerators those that batched kernels serve together, the rest in runs."""
    names, together, rest = list(inputs), [], []
    with workers.device():
        wide = question.what == "bracket" and batching.pays()
    for i, values in enumerate(zip(*(column.tolist() for column in inputs.values()))):
        given = dict(zip(names, values))
        try:
            row = _row(question, given)
            unit = _unit(question, row) if wide else None
        except (TypeError, ValueError) as error:
            results.errors[i] = str(error)
            continue
        if batched.serves(unit, row.protocol.repeats, row.delta):
            together.append(batched.Setting(i, unit, row.protocol.repeats, row.delta))
        else:
            rest.append((i, row))
    done(int(np.count_nonzero(results.errors != "")))
    tasks = [
        _task(question, rest[start : start + _ROWS_PER_TASK], results, done)
        for start in range(0, len(rest), _ROWS_PER_TASK)
    ]
    batched.run(together, tasks, results, workers, done)


def _task(
    question: Question, rows: Sequence[tuple[int, Row]], results: Results, done: Callable[[int], None]
) -> Task:
    def take(answers: Sequence[Attempt]) -> None:
        for (i, _), answer in zip(rows, answers, strict=True):
            results.take(i, answer)
            done(1)

    return beside.Portable(_attempts, (question, [row for _, row in rows]), take)


def _attempts(question: Question, rows: Sequence[Row]) -> list[Attempt]:
    answer = {"bracket": _bracket, "calibration": _calibration, "rdp-epsilon": _by_rdp}[question.what]
    return [attempt(functools.partial(answer, question, row)) for row in rows]


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting that passed all checks."""

    protocol: CheckInProtocol
    randomizer: Any
    delta: float
    view: str
    relation: str
    target: float
    client_rate: float | None = None


def _described(question: Question, given: Mapping[str, Any]) -> tuple[CheckInProtocol, Any]:
    """Protocol and randomizer of a setting. Raises TypeError, ValueError: as the constructors do."""
    # A whole number in a column that has others too came as a float.
    arguments = {name: given[name] for name in question.fields if name in given}
    if LIMITS[0] in given:
        arguments["check_in_prob"] = RateLimits(given[LIMITS[0]], given[LIMITS[1]])
    return question.protocol(**arguments), question.built(given)


def _view(given: Mapping[str, Any]) -> str:
    return _validate.choice(VIEWS, view=given.get("view", "messages"))


def _row(question: Question, given: Mapping[str, Any]) -> Row:
    """Raises TypeError, ValueError: as the constructors do."""
    protocol, randomizer = _described(question, given)
    delta = _validate.real(MIN_DELTA, 1.0, delta=given["delta"])
    target = given["target_epsilon"] if question.what == "calibration" else 0.0
    view = _view(given)
    relation = _validate.choice(RELATIONS, neighboring_relation=given.get("neighboring_relation", REPLACE))
    return Row(protocol, randomizer, delta, view, relation, target, given.get("client_rate"))


def _unit(question: Question, row: Row) -> UnitBound | None:
    """What batched kernels might compose; None where they have nothing to do with the row."""
    protocol, randomizer, bounds = row.protocol, row.randomizer, question.bounds
    if row.view == "local" or row.relation != REPLACE or protocol.cover is None:
        return None
    sums = isinstance(randomizer, Gaussian) and row.view == "aggregate" and protocol.summed
    if sums and protocol.alike(False)[0].above is protocol:
        return _only(protocol, randomizer, row.view, row.delta, bounds)
    if sums or bounds == BEST or not isinstance(randomizer, Randomizer):
        return None
    return unit_bound(protocol, randomizer, row.view, protocol.repeats, row.delta, bounds=bounds).bound


def _only(
    protocol: CheckInProtocol, randomizer: Randomizer, view: str, delta: float, bounds: str | tuple[str, ...]
) -> UnitBound | None:
    """The bound on a unit where only one is known."""
    with float64():
        mass = log_inverse_mass(protocol.repeats, delta)
        found = built_bounds(Unit(protocol, randomizer, view, REPLACE, mass), bounds)
    return found[0][1] if len(found) == 1 else None


def _bracket(question: Question, row: Row) -> dict[str, Any]:
    g = account(
        row.protocol,
        row.randomizer,
        delta=row.delta,
        view=row.view,
        bounds=question.bounds,
        neighboring_relation=row.relation,
        client_rate=row.client_rate,
    )
    return _of(g, "epsilon", "lower", "method", "lower_method", "validity")


def _calibration(question: Question, row: Row) -> dict[str, Any]:
    found = calibrate(
        row.protocol,
        row.randomizer,
        target_epsilon=row.target,
        delta=row.delta,
        view=row.view,
        free=None if isinstance(row.randomizer, type) else question.free,
        bounds=question.bounds,
        neighboring_relation=row.relation,
        client_rate=row.client_rate,
        verbose=False,
    )
    return {"value": found.value, **_of(found.guarantee, "epsilon", "lower", "method", "validity")}


def _by_rdp(question: Question, row: Row) -> dict[str, Any]:
    epsilon, order, name = unit_curve(row.protocol, row.randomizer, row.view).best(row.delta)
    return {"epsilon": epsilon, "optimal_order": order, "method": f"{name}, RDP", "validity": "certified"}


def _rdp_below(question: Question, given: Mapping[str, Any], orders: np.ndarray) -> np.ndarray:
    return rdp_lower(*_described(question, given), orders, view=_view(given))


def _of(guarantee: Guarantee, *names: str) -> dict[str, Any]:
    return {name: getattr(guarantee, name) for name in names}


def check(question: Question, names: Sequence[str]) -> None:
    """Raises ValueError where the arguments as such do not fit the question, whatever their values."""
    fields = question.fields
    wanted = [name for name, required in fields.items() if required]
    own = question.randomizers
    allowed = [*fields, *own]
    wanted += [name for name, needed in own.items() if needed]
    if LIMITS[0] in names or LIMITS[1] in names:
        if "check_in_prob" not in fields or "check_in_prob" in names or question.what == "published":
            raise ValueError(f"{LIMITS[0]}: expected where check_in_prob is an argument, in its place")
        wanted = [name for name in wanted if name != "check_in_prob"] + list(LIMITS)
        allowed += ["client_rate"]
    wanted += question.kind.wants
    allowed += question.kind.left_out
    if question.what == "published" and question.randomizer is None:
        wanted, allowed = [*wanted, "epsilon0"], [*fields, "epsilon0"]
    free = question.free
    if (question.what == "calibration") != (free is not None):
        raise ValueError(
            f"free={_validate.shown(free)}: expected the name of a variable, for what='calibration' alone"
        )
    variables = (
        [question.randomizer.variable] if question.randomizer else [PureLDP.variable, Gaussian.variable]
    )
    searched = [variable.name for variable in variables if variable is not None]
    if free in searched:
        if question.randomizer is None and ("epsilon0" in names or "noise_multiplier" in names):
            raise ValueError(f"free={free!r}: expected neither epsilon0 nor noise_multiplier beside it")
    elif (
        question.randomizer is None
        and ("epsilon0" in names) == ("noise_multiplier" in names)
        and "epsilon0" not in wanted
    ):
        raise ValueError("expected exactly one of epsilon0 and noise_multiplier")
    kind = f"what={question.what!r} with protocol {question.protocol.__name__}"
    for name in wanted:
        if name not in names:
            raise ValueError(f"{kind} needs {name}")
    known = dict.fromkeys([*wanted, *allowed])
    for name in names:
        if name not in known:
            raise ValueError(f"{name}: no argument of {kind}; expected one of {', '.join(known)}")
    free_ones = [*(name for name in fields if name != "num_colluding"), *searched]
    if free is not None and free not in free_ones:
        raise ValueError(f"free={_validate.shown(free)}: expected one of {', '.join(free_ones)}")
