"""The question that a sweep evaluates for every setting, and the columns of its results."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.select import BEST
from checkin_jax.protocols import REPLACE, CheckInProtocol
from checkin_jax.protocols.protocol import FIRST_VALUES
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer
from checkin_jax.rates import RateLimits
from checkin_jax.sweeps.tables import arrow


class Kind(NamedTuple):
    """A kind of question.

    numbers, text_columns: result columns; figures show the first number. wants: arguments besides those of the
    descriptions. left_out: optional ones with their defaults, which files state too. block_rows: rows per block:
    seconds of work, so that a kill costs little, and enough rows to be alike.
    """

    numbers: tuple[str, ...]
    text_columns: tuple[str, ...]
    wants: tuple[str, ...]
    left_out: Mapping[str, str]
    block_rows: int

    @property
    def at_orders(self) -> bool:
        """True for Renyi divergences at orders, whose settings have no delta."""
        return "order" in self.wants

    @property
    def band(self) -> bool:
        """True if the second number is a lower end of the first."""
        return self.numbers[1:2] == ("lower",)


_SAID = ("method", "validity")
_VIEW = {"view": "messages"}
_SEEN = {**_VIEW, "neighboring_relation": REPLACE}
KINDS = {
    "bracket": Kind(("epsilon", "lower"), ("method", "lower_method", "validity"), ("delta",), _SEEN, 2048),
    "rdp": Kind(("rdp",), _SAID, ("order",), _VIEW, 16_384),
    "rdp-bracket": Kind(("rdp", "lower"), _SAID, ("order",), _VIEW, 4096),
    "rdp-epsilon": Kind(("epsilon", "optimal_order"), _SAID, ("delta",), _VIEW, 1024),
    "published": Kind(("epsilon", "optimal_order"), _SAID, ("delta", "bound"), {}, 65_536),
    "calibration": Kind(("value", "epsilon", "lower"), _SAID, ("delta", "target_epsilon"), _SEEN, 256),
}
# All columns that are not arguments of a setting.
ANSWERS = frozenset(
    [name for kind in KINDS.values() for name in (*kind.numbers, *kind.text_columns)]
    + ["protocol", "randomizer", "free", "bounds", "seconds", "version", "error"]
)
# Fields of `RateLimits`, instead of check_in_prob.
LIMITS = ("largest_rate", "expected_check_ins")
# Randomizers by the argument that stands for them where no class is given.
_USUAL: dict[str, type[Randomizer]] = {"epsilon0": PureLDP, "noise_multiplier": Gaussian}

# Fields that say how many are honest.
_HONEST = ("num_colluding", "min_reports")


@dataclasses.dataclass(frozen=True)
class Question:
    """The question that is evaluated for every setting.

    Attributes:
      what: one of `KINDS`.
      protocol: class of the protocol. randomizer: class of the randomizer; None: PureLDP or Gaussian, by the
        arguments.
      bounds: as in `account`. free: as in `calibrate`. orders: Renyi orders tried by "published".
    """

    what: str
    protocol: type[CheckInProtocol]
    randomizer: type[Randomizer] | None = None
    bounds: str | tuple[str, ...] = BEST
    free: str | None = None
    orders: tuple[int, ...] = ()

    @property
    def kind(self) -> Kind:
        """Kind of the question."""
        return KINDS[self.what]

    @property
    def fields(self) -> dict[str, bool]:
        """Arguments of the protocol, with True for required ones; without the variable that is searched."""
        searched = self.free if self.free in FIRST_VALUES else None
        return {name: needed for name, needed in _fields(self.protocol).items() if name != searched}

    def constants(self, names: Collection[str]) -> dict[str, str]:
        """Columns that are equal in all rows of settings with arguments of these names."""
        return {
            "protocol": self.protocol.__name__,
            "randomizer": self.kind_of_randomizer(names).__name__,
            "bounds": self.bounds if isinstance(self.bounds, str) else ",".join(self.bounds),
        }

    @property
    def randomizers(self) -> dict[str, bool]:
        """Arguments of the randomizer, with True for required ones; without a class, one of two
        is required.
        """
        if self.randomizer is None:
            return dict.fromkeys(_USUAL, False)
        own = self.randomizer.variable
        return {
            name: needed
            for name, needed in _fields(self.randomizer).items()
            if own is None or name != self.free
        }

    def described(self, given: Mapping[str, Any]) -> tuple[CheckInProtocol, Any]:
        """Protocol and randomizer of a setting. Raises TypeError, ValueError: as the constructors do."""
        arguments = {name: given[name] for name in self.fields if name in given}
        if self.free in FIRST_VALUES:
            arguments[self.free] = FIRST_VALUES[self.free]
        if LIMITS[0] in given:
            arguments["check_in_prob"] = RateLimits(given[LIMITS[0]], given[LIMITS[1]])
        return self.protocol(**arguments), self.built(given)

    def kind_of_randomizer(self, names: Collection[str]) -> type[Randomizer]:
        """Class of the randomizer of settings with arguments of these names."""
        usual = (kind for name, kind in _USUAL.items() if name in names or name == self.free)
        return self.randomizer or next(usual)

    def built(self, given: Mapping[str, Any]) -> Randomizer | type[Randomizer]:
        """Randomizer of a setting, or its class if its free variable is the only argument."""
        kind = self.kind_of_randomizer(given)
        arguments = {name: given[name] for name in _fields(kind) if name in given}
        own = kind.variable
        if own is None or own.name != self.free:
            return kind(**arguments)
        # An initial value for the search.
        return kind(**arguments, **{own.name: 1.0}) if arguments else kind


def _fields(kind: type) -> dict[str, bool]:
    """Arguments of a description, with True for required ones."""
    missing = dataclasses.MISSING
    return {field.name: field.default is missing for field in dataclasses.fields(kind)}


def check(question: Question, names: Sequence[str]) -> None:
    """Raises ValueError if the names of the arguments do not fit the question."""
    # Arguments that are accepted, with True for required ones.
    accepted = {**question.fields, **question.randomizers}
    if LIMITS[0] in names or LIMITS[1] in names:
        if "check_in_prob" not in accepted or "check_in_prob" in names or question.what == "published":
            raise ValueError(f"{LIMITS[0]}: expected where check_in_prob is an argument, in its place")
        del accepted["check_in_prob"]
        accepted |= {**dict.fromkeys(LIMITS, True), "client_rate": False}
    if question.what == "published" and question.randomizer is None:
        del accepted["noise_multiplier"]
        accepted["epsilon0"] = True
    if question.what == "published" and question.randomizer not in (None, PureLDP):
        expected = f"none, or PureLDP, with what={question.what!r}"
        raise ValueError(f"randomizer={question.randomizer.__name__}: expected {expected}")
    if question.what == "published":
        # Published formulas are for coins of all clients, none of whom colludes.
        accepted = {name: needed for name, needed in accepted.items() if name not in _HONEST}
    accepted |= dict.fromkeys(question.kind.wants, True) | dict.fromkeys(question.kind.left_out, False)
    free = question.free
    if (question.what == "calibration") != (free is not None):
        raise _validate.error("the name of a variable, for what='calibration' alone", free=free)
    kinds = _USUAL.values() if question.randomizer is None else [question.randomizer]
    searched = [kind.variable.name for kind in kinds if kind.variable is not None]
    given = ("epsilon0" in names) + ("noise_multiplier" in names)
    if question.randomizer is None and free in searched and given:
        raise _validate.error("neither epsilon0 nor noise_multiplier beside it", free=free)
    if question.randomizer is None and free not in searched and not accepted["epsilon0"] and given != 1:
        shown = "..." if given else None
        raise ValueError(f"epsilon0={shown}: expected exactly one of epsilon0 and noise_multiplier")
    about = f"what={question.what!r} with protocol {question.protocol.__name__}"
    for name, required in accepted.items():
        if required and name not in names:
            raise ValueError(f"{name}=None: expected a value, which {about} needs")
    if free is not None and free in names and free in FIRST_VALUES:
        raise _validate.error(f"no {free} beside it", free=free)
    for name in names:
        if name not in accepted:
            raise ValueError(f"{name}: no argument of {about}; expected one of {', '.join(accepted)}")
    free_ones = [*(name for name in _fields(question.protocol) if name not in _HONEST), *searched]
    if free is not None and free not in free_ones:
        raise _validate.error(f"one of {', '.join(free_ones)}", free=free)


def refusal(check: Callable[[], object]) -> str:
    """Error of a check that is known to fail."""
    try:
        check()
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError(f"{check!r} refused nothing")


class Results:
    """Columns of results of some rows, filled as results arrive.

    Attributes:
      question: of the rows.
      columns: by name, [rows]: numbers, NaN at first, and words, empty at first. Among them `seconds` of each row,
        its share of a joint evaluation, and `error`.
    """

    def __init__(self, question: Question, count: int) -> None:
        self.question = question
        self.columns = {name: np.full(count, np.nan) for name in question.kind.numbers}
        self.columns |= {
            name: np.full(count, "", dtype=object) for name in (*question.kind.text_columns, "error")
        }
        self.columns["seconds"] = np.zeros(count)

    @property
    def errors(self) -> np.ndarray:
        """Errors of the rows, empty for those without one."""
        return self.columns["error"]

    def put(self, index: np.ndarray, found: Results) -> None:
        """Copies the results of the rows `index`."""
        for name, column in found.columns.items():
            self.columns[name][index] = column

    def attempt(self, index: Any, answer: Callable[[], Mapping[str, Any]]) -> None:
        """Fills the rows `index` with a result, or with the error of a refused setting."""
        started = time.perf_counter()
        try:
            for name, value in answer().items():
                self.columns[name][index] = value
        except (TypeError, ValueError, ArithmeticError) as error:
            self.errors[index] = str(error)
        self.columns["seconds"][index] = (time.perf_counter() - started) / np.size(index)

    def table(self, inputs: Mapping[str, np.ndarray]) -> pa.Table:
        """Inputs and results, one row each; a row without result or error gets an error that says so."""
        question, kind = self.question, self.question.kind
        for name in kind.numbers:
            lacking = np.isnan(self.columns[name]) & (self.errors == "")
            self.errors[lacking] = f"{name}: the evaluation gave no number"
        failed = self.errors != ""
        for name in (*kind.numbers, *kind.text_columns):
            self.columns[name][failed] = np.nan if name in kind.numbers else ""
        return arrow(
            {
                **inputs,
                **{name: value for name, value in kind.left_out.items() if name not in inputs},
                **({} if question.free is None else {"free": question.free}),
                **{name: self.columns[name] for name in (*kind.numbers, *kind.text_columns)},
                **question.constants(inputs),
                "seconds": self.columns["seconds"],
                "version": __version__,
                "error": self.errors,
            },
            len(failed),
        )
