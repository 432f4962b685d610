"""Brackets of eps0-LDP messages and of Gaussian sums by batched kernels: the numbers of `account`, many at a time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from checkin_jax.accounting.bounds.clones import FEW_OUTCOMES, Binary, ShuffledPureLDP, Ternary
from checkin_jax.accounting.bounds.unit import LocalGaussian, LocalPureLDP, ShuffledGaussian
from checkin_jax.accounting.composition import composer
from checkin_jax.accounting.composition.bracket import Bracket, ordered
from checkin_jax.kernels.composition import invert_profile
from checkin_jax.kernels.execution import batching
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.sweeps.brackets import batched_composition
from checkin_jax.sweeps.brackets.requests import Asking, drive
from checkin_jax.sweeps.brackets.static_shapes import Cuts, cuts, guess

if TYPE_CHECKING:
    from checkin_jax.sweeps.processes.workers import Task, Workers
    from checkin_jax.sweeps.results import Results

# Settings in one kernel call on a CPU, where lanes run one by one, and on an accelerator.
_LANES, _WIDE_LANES = 32, 512
# Composed settings that are searched side by side, in units of these.
_CROWD = 2


@dataclasses.dataclass(frozen=True)
class Setting:
    """Row `index` of a block: `repeats` of the unit at delta."""

    index: int
    unit: ShuffledPureLDP | ShuffledGaussian
    repeats: int
    delta: float


# By the name of the end: which kernel finds it.
_STAGES: dict[str, tuple[Callable[[Cuts], Any], Callable[[Any], Callable[..., Any]]]] = {
    "upper": (lambda each: each.upper, invert_profile.upper_end),
    Ternary.name: (lambda each: each.ternary, invert_profile.ternary_end),
    Binary.name: (lambda each: each.binary, lambda cut: invert_profile.binary_end(*cut)),
}


def _lanes() -> int:
    return _LANES if batching.looped() else _WIDE_LANES


class _Singles:
    """One round each: the ends of all settings, stage by stage, before they are put together."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = settings
        units = [one.unit for one in settings if isinstance(one.unit, ShuffledPureLDP)]
        # Tasks write to places of their own, so that the order in which they end is of no account.
        self.ends = {name: np.zeros(len(settings)) for name in _STAGES}
        self.seconds = {name: np.zeros(len(settings)) for name in _STAGES}
        self.chosen = [cuts(unit) for unit in units]
        self.columns = np.array(
            [
                (
                    float(unit.num_clients),
                    unit.rate,
                    unit.epsilon0,
                    unit.log_inverse_mass,
                    one.delta,
                    guess(unit, one.delta),
                )
                for one, unit in zip(settings, units, strict=True)
            ]
        ).T

    def tasks(self) -> list[Task]:
        """A task for each block of settings whose kernels have one shape."""
        found: list[Task] = []
        size = _lanes()
        for name, (choose, kernel) in _STAGES.items():
            groups: dict[Any, list[int]] = {}
            for i, each in enumerate(self.chosen):
                cut = choose(each)
                if cut is not None:
                    groups.setdefault(cut, []).append(i)
            for cut, members in groups.items():
                for start in range(0, len(members), size):
                    found.append(self._task(kernel(cut), np.array(members[start : start + size]), name, size))
        return found

    def _task(self, kernel: Callable, index: np.ndarray, name: str, size: int) -> Task:
        def run() -> None:
            started = time.perf_counter()
            columns = invert_profile.Lane(*(column[index] for column in self.columns))
            self.ends[name][index] = np.asarray(batching.over(kernel, (columns,), size=size))[: len(index)]
            self.seconds[name][index] = (time.perf_counter() - started) / len(index)

        return run

    def finish(self, results: Results) -> None:
        """Puts the ends together as `single` does: 3-ary first, then binary where it leaks more."""
        for i, one in enumerate(self.settings):
            upper = float(self.ends["upper"][i])
            found = Bracket(0.0, upper, "profile")
            for name in (Ternary.name, Binary.name) if upper > 0 else ():
                if self.ends[name][i] > found.lower:
                    found = dataclasses.replace(found, lower=float(self.ends[name][i]), lower_method=name)
            seconds = sum(float(each[i]) for each in self.seconds.values())
            try:
                _write(results, one, ordered(found), seconds)
            except ArithmeticError as error:
                _write(results, one, str(error), seconds)


def _write(results: Results, one: Setting, found: Bracket | str, seconds: float) -> None:
    results.seconds[one.index] = seconds
    if not isinstance(found, str):
        unit = one.unit
        pure = isinstance(unit, ShuffledPureLDP)
        alone = LocalPureLDP(unit.rate, unit.epsilon0) if pure else LocalGaussian(unit.rate, unit.mu)
        try:
            found = composer.capped(found, [(alone, one.repeats)], one.delta)
        except ArithmeticError as error:
            found = str(error)
    if isinstance(found, str):
        results.errors[one.index] = found
        return
    results.fill(
        one.index,
        epsilon=found.upper,
        lower=found.lower,
        method=f"{found.bound or one.unit.name}, {found.method}",
        lower_method=found.lower_method,
        validity="certified",
    )


def _composed(settings: Sequence[Setting], results: Results, done: Callable[[int], None], size: int) -> Task:
    def run() -> None:
        started = time.perf_counter()
        found = drive([_caught(one) for one in settings], size)
        seconds = (time.perf_counter() - started) / len(settings)
        for one, answer in zip(settings, found):
            _write(results, one, answer, seconds)
        done(len(settings))

    return run


def _caught(one: Setting) -> Asking[Bracket | str]:
    """The bracket, or the text of what is wrong with this one setting."""
    try:
        return (yield from batched_composition.bracket(one.unit, one.repeats, one.delta))
    except (ArithmeticError, ValueError) as error:
        return str(error)


def serves(unit: object, repeats: int, delta: float) -> TypeGuard[ShuffledPureLDP | ShuffledGaussian]:
    """Whether the batched kernels have this setting; the others are `account`'s."""
    if isinstance(unit, ShuffledGaussian):
        return unit.summed and repeats > 1 and delta < 1.0
    if not isinstance(unit, ShuffledPureLDP) or unit.epsilon0 < composer._MIN_LOSS:
        return False
    # Composed laws of few outcomes have knots of their own.
    few = repeats > 1 and unit.rate == 1.0 and unit.num_clients < FEW_OUTCOMES
    return delta < 1.0 and not few


def _likeness(one: Setting) -> tuple[Any, ...]:
    """What makes kernels have the same shapes, and searches the same length."""
    unit = one.unit
    if isinstance(unit, ShuffledPureLDP):
        return str(cuts(unit)), one.repeats, unit.epsilon0, one.index
    return f"sums, {unit.arguments()[-1]}", one.repeats, unit.mu, one.index


def run(
    settings: Sequence[Setting],
    others: Sequence[Task],
    results: Results,
    workers: Workers,
    done: Callable[[int], None],
) -> None:
    """Fills the rows of the settings, all of which are served, and runs other tasks beside."""
    singles = _Singles([one for one in settings if one.repeats == 1])
    composed = [one for one in settings if one.repeats > 1]
    # Alike settings side by side: their kernels have the same shapes, their searches the same length.
    composed.sort(key=_likeness)
    with workers.device(), float64():
        size = _lanes()
        tasks = singles.tasks()
    crowd = _CROWD * size
    tasks += [
        _composed(composed[start : start + crowd], results, done, size)
        for start in range(0, len(composed), crowd)
    ]
    workers.run([*tasks, *others])
    singles.finish(results)
    done(len(singles.settings))
