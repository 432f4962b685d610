"""The table that a sweep returns, and tables in files, as Arrow tables."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from checkin_jax._files import ending, replacing
from checkin_jax._rounding import down, up

SUFFIXES = (".csv", ".parquet")


# Rows shown on a screen; columns omitted there; upper ends, and lower ones.
_SHOWN = 10
_SILENT = ("method", "lower_method", "validity", "protocol", "randomizer", "bounds", "seconds", "version")
# The first column of results of each kind of question.
_FIRST_RESULTS = ("epsilon", "rdp", "value")
_ENDS = {"epsilon": up, "rdp": up, "lower": down}


def _shown(name: str, value: Any) -> str:
    """Text of a cell: an end of a bracket rounded outwards, other numbers to ten digits."""
    if not isinstance(value, float):
        return " ".join(str(value).split())
    if math.isnan(value):
        return ""
    return _ENDS[name](value, 5) if name in _ENDS else f"{value:.10g}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A table of results with one row per setting, in input order.

    Attributes:
      columns: name to array, all of one length. The inputs come first, including view and neighboring
        relation by default, then `free` of calibrations, results, `method`, `validity`, `protocol`, `randomizer`,
        `bounds`, `seconds` (a row's share of its group's time), `version` and `error`. In rows with a nonempty
        `error`, and only there, the numbers of the result are NaN (empty or null in files).
    """

    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def failed(self) -> np.ndarray:
        """Mask of the rows that have an error instead of a result, bool [rows]."""
        return self.columns["error"] != ""

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Names of the columns on a screen, and the texts of the first rows."""
        names = self._telling
        texts = [[_shown(name, value) for value in self.columns[name][:_SHOWN].tolist()] for name in names]
        return names, [list(row) for row in zip(*texts)]

    @property
    def _telling(self) -> list[str]:
        """Inputs that vary, results, and errors if there are any."""
        told = []
        for name, column in self.columns.items():
            if name in _SILENT or (name == "error" and not self.failed.any()):
                continue
            varies = len(self) == 1 or any(value != column[0] for value in column[1:].tolist())
            if varies or name in _ENDS:
                told.append(name)
        return told

    def __str__(self) -> str:
        names, cells = self._cells()
        widths = [max(map(len, column)) for column in zip(names, *cells)]
        lines = ["  ".join(f"{text:>{width}}" for text, width in zip(row, widths)) for row in (names, *cells)]
        return "\n".join([*lines, self._summary + self._same])

    @property
    def _same(self) -> str:
        """Inputs that do not vary, with their values."""
        if not len(self):
            return ""
        shown = {*self._telling, *_SILENT, "error"}
        inputs = itertools.takewhile(lambda name: name not in _FIRST_RESULTS, self.columns)
        told = [f"{name} {_shown(name, self[name][:1].tolist()[0])}" for name in inputs if name not in shown]
        return f"; all with {', '.join(told)}" if told else ""

    @property
    def _summary(self) -> str:
        more = f", of which {_SHOWN} are shown" if len(self) > _SHOWN else ""
        failed = int(self.failed.sum()) if "error" in self.columns else 0
        return f"{len(self):,} settings{more}" + (f", {failed:,} with an error" if failed else "")

    def __repr__(self) -> str:
        return f"<Sweep: {self._summary}, columns {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        names, cells = self._cells()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in cells
        )
        return f"<table><tr>{head}</tr>{body}</table><p>{html.escape(self._summary + self._same)}</p>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow stream, missing results null, for `polars.DataFrame(found)` or `pyarrow.table(found)`."""
        return arrow(self.columns, len(self)).__arrow_c_stream__(requested_schema)

    def save(self, path: str | Path) -> Path:
        """Writes .csv or .parquet, by the name's ending; whole or not at all.

        Raises:
          ValueError: another ending. OSError: it cannot be written, or another process is writing it.
        """
        return write(check(path=path), iter([arrow(self.columns, len(self))]))


def check(**file: str | Path) -> Path:
    """The one keyword's path, if its name ends in .csv or .parquet; ValueError otherwise."""
    return ending(SUFFIXES, **file)


def arrow(columns: Mapping[str, np.ndarray | str], count: int) -> pa.Table:
    """Arrow table from columns, or from words that are equal in all rows; NaN becomes null."""
    made = {}
    for name, column in columns.items():
        if isinstance(column, str):
            made[name] = pa.repeat(column, count)
        else:
            made[name] = pa.array(
                column.astype(object) if column.dtype.kind == "U" else column, from_pandas=True
            )
    return pa.table(made)


def of_arrow(table: pa.Table) -> Sweep:
    """The table in memory: null numbers become NaN, null words empty, other types their text."""
    return Sweep({name: _column(table.column(name)) for name in table.column_names})


def _column(column: pa.ChunkedArray) -> np.ndarray:
    kinds = pa.types
    if kinds.is_integer(column.type) or kinds.is_floating(column.type):
        return column.to_numpy()
    # Equal words are one object, so that millions of them take the memory of their addresses.
    words = compute.fill_null(column.cast(pa.large_string()), "").combine_chunks().dictionary_encode()
    return np.array(words.dictionary.to_pylist(), dtype=object)[words.indices.to_numpy()]


def write(path: Path, blocks: Iterator[pa.Table]) -> Path:
    """Joins the blocks into one file atomically, with memory for a block or two."""
    with replacing(path) as stream:
        (_write_csv if path.suffix == ".csv" else _write_parquet)(stream, blocks)
    return path


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows of one kind, at least one, to .csv or .parquet."""
    return write(path, iter([pa.Table.from_pylist(list(map(dict, rows)))]))


def _write_csv(stream: IO[bytes], blocks: Iterator[pa.Table]) -> None:
    """Uses Python's writer: Arrow's omits the point of whole floats, which are then read as whole numbers."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    for i, block in enumerate(blocks):
        if i == 0:
            writer.writerow(block.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in block.columns)))
    text.flush()
    text.detach()


def _write_parquet(stream: IO[bytes], blocks: Iterator[pa.Table]) -> None:
    first = next(blocks)
    with parquet.ParquetWriter(stream, first.schema) as writer:
        for block in itertools.chain([first], blocks):
            writer.write_table(block)


def load(path: str | Path) -> Sweep:
    """Reads a file of `Sweep.save`, or any CSV with a header or Parquet file of numbers and words.

    Raises:
      ValueError: another ending, no rows, or no table. OSError: it cannot be read.
    """
    path = check(table=path)
    with path.open("rb") as file:
        try:
            table = _read_csv(file) if path.suffix == ".csv" else parquet.read_table(file)
        except (ValueError, OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{path}: not a table that can be read ({error})") from error
    if not table.num_columns or not table.num_rows:
        raise ValueError(f"{path}: a table without rows")
    return of_arrow(table)


def _read_csv(file: IO[bytes]) -> pa.Table:
    table = arrow_csv.read_csv(
        file,
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(null_values=[""]),
    )
    names = [name.strip() for name in table.column_names]
    if len(names) == 1 and ";" in names[0]:
        raise ValueError(f"a header {names[0]!r}: expected commas between the columns")
    if len(set(names)) != len(names):
        raise ValueError("two columns have one name")
    return pa.table(
        [
            compute.call_function("utf8_trim_whitespace", [column])
            if pa.types.is_string(column.type)
            else column
            for column in table.columns
        ],
        names=names,
    )
