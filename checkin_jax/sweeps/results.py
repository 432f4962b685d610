"""The question that a sweep evaluates for every setting, and the columns of its results."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.select import BEST
from checkin_jax.protocols import REPLACE, CheckInProtocol
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer
from checkin_jax.rates import RateLimits
from checkin_jax.sweeps.tables import arrow


class Kind(NamedTuple):
    """A kind of question.

    numbers, words: result columns; figures show the first number. wants: arguments besides those of the
    descriptions.
    left_out: optional ones with their defaults, which files state too. block_rows: rows per block: seconds of
    work, so that a kill costs little, and enough rows to be alike.
    """

    numbers: tuple[str, ...]
    words: tuple[str, ...]
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
    [name for kind in KINDS.values() for name in (*kind.numbers, *kind.words)]
    + ["protocol", "bounds", "seconds", "version", "error"]
)
# Fields of `RateLimits`, instead of check_in_prob.
LIMITS = ("largest_rate", "expected_check_ins")

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
        """Arguments of the protocol, with True for required ones."""
        return _fields(self.protocol)

    @property
    def randomizers(self) -> dict[str, bool]:
        """Arguments of the randomizer, with True for required ones; without a class, one of two
        is required.
        """
        if self.randomizer is None:
            return {"epsilon0": False, "noise_multiplier": False}
        own = self.randomizer.variable
        return {
            name: needed
            for name, needed in _fields(self.randomizer).items()
            if own is None or name != self.free
        }

    def described(self, given: Mapping[str, Any]) -> tuple[CheckInProtocol, Any]:
        """Protocol and randomizer of a setting. Raises TypeError, ValueError: as the constructors do."""
        arguments = {name: given[name] for name in self.fields if name in given}
        if LIMITS[0] in given:
            arguments["check_in_prob"] = RateLimits(given[LIMITS[0]], given[LIMITS[1]])
        return self.protocol(**arguments), self.built(given)

    def built(self, given: Mapping[str, Any]) -> Randomizer | type[Randomizer]:
        """Randomizer of a setting, or its class if its free variable is the only argument."""
        if self.randomizer is not None:
            arguments = {name: given[name] for name in self.randomizers if name in given}
            own = self.randomizer.variable
            if own is None or own.name != self.free:
                return self.randomizer(**arguments)
            # An initial value for the search.
            return self.randomizer(**arguments, **{own.name: 1.0}) if arguments else self.randomizer
        if "epsilon0" in given:
            return PureLDP(epsilon0=given["epsilon0"])
        if "noise_multiplier" in given:
            return Gaussian(noise_multiplier=given["noise_multiplier"])
        return {"epsilon0": PureLDP, "noise_multiplier": Gaussian}[self.free or ""]


def _fields(kind: type) -> dict[str, bool]:
    """Arguments of a description, with True for required ones."""
    missing = dataclasses.MISSING
    return {field.name: field.default is missing for field in dataclasses.fields(kind)}


def check(question: Question, names: Sequence[str]) -> None:
    """Raises ValueError if the names of the arguments do not fit the question."""
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
    if question.what == "published":
        # Published formulas are for coins of all clients, none of whom colludes.
        allowed = [name for name in allowed if name not in _HONEST]
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
    free_ones = [*(name for name in fields if name not in _HONEST), *searched]
    if free is not None and free not in free_ones:
        raise ValueError(f"free={_validate.shown(free)}: expected one of {', '.join(free_ones)}")


def refusal(check: Callable[[], object]) -> str:
    """Error of a check that is known to fail."""
    try:
        check()
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError(f"{check!r} refused nothing")


class Results:
    """Result columns of some rows, filled as results arrive.

    Attributes:
      numbers, words: by name, [rows]. seconds: of each row, its share of a joint evaluation. errors: texts.
    """

    def __init__(self, question: Question, count: int) -> None:
        self.numbers = {name: np.full(count, np.nan) for name in question.kind.numbers}
        self.words = {name: np.full(count, "", dtype=object) for name in question.kind.words}
        self.seconds = np.zeros(count)
        self.errors = np.full(count, "", dtype=object)

    def put(self, index: np.ndarray, found: Results) -> None:
        """Copies the results of the rows `index`."""
        for mine, theirs in ((self.numbers, found.numbers), (self.words, found.words)):
            for name, column in theirs.items():
                mine[name][index] = column
        self.seconds[index], self.errors[index] = found.seconds, found.errors

    def attempt(self, index: Any, answer: Callable[[], Mapping[str, Any]]) -> None:
        """Fills the rows `index` with a result, or with the error of a refused setting."""
        started = time.perf_counter()
        try:
            for name, value in answer().items():
                (self.numbers if name in self.numbers else self.words)[name][index] = value
        except (TypeError, ValueError, ArithmeticError) as error:
            self.errors[index] = str(error)
        self.seconds[index] = (time.perf_counter() - started) / np.size(index)

    def table(self, question: Question, inputs: Mapping[str, np.ndarray]) -> pa.Table:
        """Inputs and results, one row each; a row without result or error gets an error that says so."""
        for name, column in self.numbers.items():
            self.errors[np.isnan(column) & (self.errors == "")] = f"{name}: the evaluation gave no number"
        bad = self.errors != ""
        for column in self.numbers.values():
            column[bad] = np.nan
        for column in self.words.values():
            column[bad] = ""
        bounds = question.bounds if isinstance(question.bounds, str) else ",".join(question.bounds)
        left_out = {name: value for name, value in question.kind.left_out.items() if name not in inputs}
        return arrow(
            {
                **inputs,
                **left_out,
                **self.numbers,
                **self.words,
                "protocol": question.protocol.__name__,
                "bounds": bounds,
                "seconds": self.seconds,
                "version": __version__,
                "error": self.errors,
            },
            len(bad),
        )
