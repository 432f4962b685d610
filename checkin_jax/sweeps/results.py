"""What a sweep asks of every setting, and the columns in which the answers are gathered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkin_jax._version import __version__
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.sweeps.table import Columns

# Result columns of each kind: numbers first, then words.
RESULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bracket": (("epsilon", "lower"), ("method", "lower_method", "validity")),
    "rdp": (("rdp",), ("method", "validity")),
    "published": (("epsilon", "optimal_order"), ("method", "validity")),
    "calibration": (("value", "epsilon", "lower"), ("method", "validity")),
}
# Every column that is no argument of a setting.
ANSWERS = frozenset(
    [name for numbers, words in RESULTS.values() for name in (*numbers, *words)]
    + ["seconds", "version", "error"]
)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of every setting.

    Attributes:
      what: "bracket", "rdp", "published" or "calibration".
      protocol: class of the protocol.
      tight: as in `account`. free: as in `calibrate`. orders: Renyi orders tried by "published".
    """

    what: str
    protocol: type[CheckInProtocol]
    tight: bool = False
    free: str | None = None
    orders: tuple[int, ...] = ()

    @property
    def fields(self) -> dict[str, bool]:
        """The protocol's arguments, and whether each must be given."""
        missing = dataclasses.MISSING
        return {field.name: field.default is missing for field in dataclasses.fields(self.protocol)}


class Results:
    """Result columns of a block, filled as rows finish. `columns` turns a row that was never filled into an error."""

    def __init__(self, question: Question, count: int) -> None:
        numbers, words = RESULTS[question.what]
        self.numbers = {name: np.full(count, np.nan) for name in numbers}
        self.words = {name: np.full(count, "", dtype=object) for name in words}
        self.seconds = np.zeros(count)
        self.errors = np.full(count, "", dtype=object)

    def fill(self, index: Any, **values: Any) -> None:
        """Results of the rows `index`."""
        for name, value in values.items():
            (self.numbers if name in self.numbers else self.words)[name][index] = value

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
        return {
            **{n: c.astype(object) if c.dtype.kind == "U" else c for n, c in inputs.items()},
            **self.numbers,
            **self.words,
            "seconds": self.seconds,
            "version": np.full(count, __version__, dtype=object),
            "error": self.errors,
        }
