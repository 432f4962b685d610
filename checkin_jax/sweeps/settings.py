"""Settings of a sweep: a product of axes, or rows of a table, generated block by block."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import did_you_mean

# Kinds of the arguments of a setting, all of which a sweep may vary.
KINDS: dict[str, type] = {
    name: kind
    for kind, names in {
        int: "num_clients num_rounds num_slots window num_epochs minibatch num_colluding min_reports",
        float: "check_in_prob largest_rate expected_check_ins client_rate drop_out_prob epsilon0 "
        "noise_multiplier delta target_epsilon order",
        str: "view neighboring_relation empty_slots bound",
    }.items()
    for name in names.split()
}
NAMES = tuple(KINDS)
_TYPES = {"int": int, "float": float, "str": str}
MAX_ROWS = 10**9
_MAX_VALUES = 10**7
# Values of long columns that are checked together.
_RUN = 2**16

_RANGE = re.compile(r"([^:,]+):([^:,]+):(log|lin)(\d+)")


def kinds(*classes: type) -> dict[str, type]:
    """int, float or str for every argument that a sweep may vary: `NAMES`, and the classes' own fields."""
    own = {
        field.name: _TYPES[_name(field.type)]
        for each in classes
        for field in dataclasses.fields(each)
        if _name(field.type) in _TYPES
    }
    return {**own, **KINDS}


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


def axis(name: str, given: Any, known: Mapping[str, type] = KINDS) -> np.ndarray:
    """Values of one argument, [values]: int64 if whole numbers are expected and given, else float64 or str.

    Args:
      given: a number, word or sequence; or text such as "1e3:1e9:log25" (25 values, ends included, in
        geometric progression), "0:1:lin11", ".001,.01,.1", or several of these with commas between. Whole
        numbers of a range are rounded to the nearest, without repetitions.
      known: kind of value of each argument.

    Raises:
      ValueError, TypeError: naming the argument and its fault. Legal ranges are not checked here: a setting
        outside them is a row with an error.
    """
    if name not in known:
        raise ValueError(
            f"{name}={_validate.shown(given)}: no argument of a sweep; expected one of {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    if known[name] is str:
        return _words(name, given)
    whole = known[name] is int
    if isinstance(given, str):
        values = np.concatenate([_piece(name, given, piece.strip(), whole) for piece in given.split(",")])
    else:
        values = _numbers(name, given, whole)
    if values.size == 0:
        raise _validate.error("at least one value", **{name: given})
    if whole and values.dtype.kind == "f" and _are_whole(values):
        return values.astype(np.int64)
    return values


def _are_whole(values: np.ndarray) -> bool:
    runs = (values[start : start + _RUN] for start in range(0, len(values), _RUN))
    return all(np.all((np.abs(run) < 2.0**62) & (run == np.floor(run))) for run in runs)


def _words(name: str, given: Any) -> np.ndarray:
    """A NumPy column of words as it is; otherwise the words, split at commas."""
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.size and given.dtype.kind in "UO":
        found = set()
        for start in range(0, given.size, _RUN):
            found.update(given[start : start + _RUN].tolist())
        if all(isinstance(word, str) and "," not in word for word in found):
            return given if given.dtype.kind == "U" else given.astype(np.str_)
    words = np.atleast_1d(np.asarray(given, dtype=object)).tolist()
    words = [part for word in words for part in (word.split(",") if isinstance(word, str) else [word])]
    if not words or not all(isinstance(word, str) for word in words):
        raise _validate.type_error("words", **{name: given})
    return np.array(words, dtype=np.str_)


def cells(name: str, column: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """Numbers of a column of texts, NaN for empty or invalid cells, and errors of the latter by row."""
    numbers, faults = np.full(len(column), np.nan), {}
    for row, cell in enumerate(column.tolist()):
        try:
            numbers[row] = float(cell) if cell else np.nan
        except ValueError:
            faults[row] = f"{name}={_validate.shown(cell)}: expected a number"
    return numbers, faults


def _numbers(name: str, given: Any, whole: bool) -> np.ndarray:
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iuf":
        # Millions of rows would take several times the memory as Python's numbers.
        exact = given.dtype == np.int64 and given.size and max(-int(given.min()), int(given.max())) <= 2**53
        return given if exact and whole else given.astype(np.float64, copy=False)
    found = _validate.array(name, given)
    if found.ndim > 1:
        raise _validate.type_error("one number or a sequence of numbers", **{name: given})
    return found.ravel()


def _piece(name: str, text: str, piece: str, whole: bool) -> np.ndarray:
    try:
        found = _RANGE.fullmatch(piece)
        if found is None:
            return np.array([float(piece)])
        low, high, kind, count = float(found[1]), float(found[2]), found[3], int(found[4])
    except ValueError:
        expected = "numbers, ranges low:high:logK or low:high:linK, commas between"
        raise _validate.error(expected, **{name: text}) from None
    if not (math.isfinite(low) and math.isfinite(high) and 2 <= count <= _MAX_VALUES):
        raise _validate.error(f"finite ends and 2 to {_MAX_VALUES:,} values", **{name: text})
    if kind == "lin":
        values = np.linspace(low, high, count)
    elif min(low, high) > 0 or max(low, high) < 0:
        values = np.geomspace(low, high, count)
    else:
        raise _validate.error("both ends of a logarithmic range on the same side of zero", **{name: text})
    if whole:
        values = np.rint(values)
        # Neighbours made equal by rounding count once; the order stays.
        values = values[np.append(True, np.diff(values) != 0)]
    return values


@dataclasses.dataclass(frozen=True)
class Settings:
    """A table of settings; products of axes are never in memory as a whole.

    Attributes:
      axes: values of each argument, in the order of the columns.
      zipped: True if the axes are columns of one table; else their product, in which the last axis varies
        fastest.
      faults: errors, by row, of cells that are not numbers.
    """

    axes: Mapping[str, np.ndarray]
    zipped: bool
    faults: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        sizes = [len(values) for values in self.axes.values()]
        return sizes[0] if self.zipped else math.prod(sizes)

    def rows(self, start: int, stop: int) -> Settings:
        """Rows from start to stop as a table, in input order."""
        faults = {row - start: text for row, text in self.faults.items() if start <= row < stop}
        if self.zipped:
            return Settings({name: values[start:stop] for name, values in self.axes.items()}, True, faults)
        shape = tuple(len(values) for values in self.axes.values())
        places = np.unravel_index(np.arange(start, stop), shape)
        columns = {name: values[place] for (name, values), place in zip(self.axes.items(), places)}
        return Settings(columns, True, faults)

    def digest(self) -> str:
        """SHA-256 of names, kinds and values, which identifies the table."""
        found = hashlib.sha256(repr((self.zipped, sorted(self.faults.items()))).encode())
        for name, values in self.axes.items():
            found.update(f"{name} {values.dtype.str} {len(values)}\n".encode())
            for start in range(0, len(values), _RUN):
                found.update(values[start : start + _RUN].tobytes())
        return found.hexdigest()


def product(given: Mapping[str, Any], known: Mapping[str, type] = KINDS) -> Settings:
    """Settings of all combinations of the values; the last argument varies fastest."""
    return _checked(Settings({name: axis(name, values, known) for name, values in given.items()}, False))


def zipped(
    given: Mapping[str, Any],
    known: Mapping[str, type] = KINDS,
    faults: Mapping[int, str] | None = None,
    columns: Collection[str] = (),
) -> Settings:
    """Row i has the i-th value of each argument; single values apply to all rows, unless they are `columns` of a table.

    faults: as of `Settings`.

    Raises:
      ValueError: columns of different lengths.
    """
    axes = {name: axis(name, values, known) for name, values in given.items()}
    lengths = {name: len(values) for name, values in axes.items() if len(values) != 1 or name in columns}
    if len(set(lengths.values())) > 1:
        named = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"table: expected columns of one length, but {named}")
    count = max(lengths.values(), default=1)
    full = {
        name: np.broadcast_to(values, count) if len(values) == 1 else values for name, values in axes.items()
    }
    return _checked(Settings(full, True, faults or {}))


def _checked(settings: Settings) -> Settings:
    if not settings.axes:
        raise ValueError("no arguments: expected at least num_clients and epsilon0 or noise_multiplier")
    if len(settings) > MAX_ROWS:
        raise ValueError(f"{len(settings):,} settings: expected at most {MAX_ROWS:,}")
    return settings
