"""What a sweep asks of every setting, and the columns in which the answers are gathered."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.choice import BEST
from checkin_jax.protocols import REPLACE, CheckInProtocol
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer
from checkin_jax.sweeps.table import Columns


class Kind(NamedTuple):
    """What may be asked of settings.

    numbers, words: result columns; the first number is what pictures show. wants: arguments beside the descriptions'.
    left_out: those that need not be given, and what then holds, which files say, too. block_rows: rows of a block: some
    seconds of work, so that a kill costs little, and enough of them to be alike.
    """

    numbers: tuple[str, ...]
    words: tuple[str, ...]
    wants: tuple[str, ...]
    left_out: Mapping[str, str]
    block_rows: int

    @property
    def at_orders(self) -> bool:
        """Whether Renyi divergences at orders are asked for, so that settings have no delta."""
        return "order" in self.wants

    @property
    def band(self) -> bool:
        """Whether the second number is a lower end of the first."""
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
# Of the whole sweep, the same in every row.
SAID = ("protocol", "bounds")
# Every column that is no argument of a setting.
ANSWERS = frozenset(
    [name for kind in KINDS.values() for name in (*kind.numbers, *kind.words)]
    + [*SAID, "seconds", "version", "error"]
)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of every setting.

    Attributes:
      what: one of `KINDS`.
      protocol: class of the protocol. randomizer: class of the randomizer; None: PureLDP or Gaussian, by the arguments.
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
        """What is asked, in more than a word."""
        return KINDS[self.what]

    @property
    def fields(self) -> dict[str, bool]:
        """The protocol's arguments, and whether each must be given."""
        return _fields(self.protocol)

    @property
    def randomizers(self) -> dict[str, bool]:
        """The randomizer's arguments, and whether each must be given; one of two where no class is named."""
        if self.randomizer is None:
            return {"epsilon0": False, "noise_multiplier": False}
        own = self.randomizer.variable
        return {
            name: needed
            for name, needed in _fields(self.randomizer).items()
            if own is None or name != self.free
        }

    def built(self, given: Mapping[str, Any]) -> Randomizer | type[Randomizer]:
        """The randomizer of a setting, or its class where its variable is free and there is no other argument."""
        if self.randomizer is not None:
            arguments = {name: given[name] for name in self.randomizers if name in given}
            own = self.randomizer.variable
            if own is None or own.name != self.free:
                return self.randomizer(**arguments)
            # The search begins somewhere.
            return self.randomizer(**arguments, **{own.name: 1.0}) if arguments else self.randomizer
        if "epsilon0" in given:
            return PureLDP(epsilon0=given["epsilon0"])
        if "noise_multiplier" in given:
            return Gaussian(noise_multiplier=given["noise_multiplier"])
        return {"epsilon0": PureLDP, "noise_multiplier": Gaussian}[self.free or ""]


def _fields(kind: type) -> dict[str, bool]:
    """A description's arguments, and whether each must be given."""
    missing = dataclasses.MISSING
    return {field.name: field.default is missing for field in dataclasses.fields(kind)}


def refusal(check: Callable[[], object]) -> str:
    """What is said by a check that is known to refuse something."""
    try:
        check()
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError(f"{check!r} refused nothing")


class Attempt(NamedTuple):
    """Results of a row or of several by name, or the error's text; and the seconds that it took."""

    values: Mapping[str, Any]
    error: str
    seconds: float


def attempt(answer: Callable[[], Mapping[str, Any]]) -> Attempt:
    """The answer, or what is wrong with the setting."""
    started = time.perf_counter()
    try:
        values, error = answer(), ""
    except (TypeError, ValueError, ArithmeticError) as refused:
        values, error = {}, str(refused)
    return Attempt(values, error, time.perf_counter() - started)


class Results:
    """Result columns of a block, filled as rows finish. `columns` turns a row that was never filled into an error."""

    def __init__(self, question: Question, count: int) -> None:
        self.numbers = {name: np.full(count, np.nan) for name in question.kind.numbers}
        self.words = {name: np.full(count, "", dtype=object) for name in question.kind.words}
        self.seconds = np.zeros(count)
        self.errors = np.full(count, "", dtype=object)
        bounds = question.bounds if isinstance(question.bounds, str) else ",".join(question.bounds)
        self.said = {"protocol": question.protocol.__name__, "bounds": bounds}
        self.left_out = question.kind.left_out

    def fill(self, index: Any, **values: Any) -> None:
        """Results of the rows `index`."""
        for name, value in values.items():
            (self.numbers if name in self.numbers else self.words)[name][index] = value

    def take(self, index: Any, found: Attempt) -> None:
        """Fills the rows `index`, and shares out among them how long that took."""
        self.fill(index, **found.values)
        if found.error:
            self.errors[index] = found.error
        self.seconds[index] = found.seconds / np.size(index)

    def attempt(self, index: Any, answer: Callable[[], Mapping[str, Any]]) -> None:
        """Fills the rows `index` with an answer, or its error."""
        self.take(index, attempt(answer))

    def columns(self, inputs: Mapping[str, np.ndarray]) -> Columns:
        """Inputs and results, a row each; a row with neither result nor error has an error that says so."""
        for name, column in self.numbers.items():
            self.errors[np.isnan(column) & (self.errors == "")] = f"{name}: the evaluation gave no number"
        good = self.errors == ""
        for column in self.numbers.values():
            column[~good] = np.nan
        for column in self.words.values():
            column[~good] = ""
        count = len(self.errors)
        left_out = {name: value for name, value in self.left_out.items() if name not in inputs}
        return {
            **{n: c.astype(object) if c.dtype.kind == "U" else c for n, c in inputs.items()},
            **{name: np.full(count, value, dtype=object) for name, value in left_out.items()},
            **self.numbers,
            **self.words,
            **{name: np.full(count, value, dtype=object) for name, value in self.said.items()},
            "seconds": self.seconds,
            "version": np.full(count, __version__, dtype=object),
            "error": self.errors,
        }
