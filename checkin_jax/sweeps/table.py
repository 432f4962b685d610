"""The table that a sweep returns, and its three file formats; all of them also written block by block."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import html
import io
import itertools
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np

from checkin_jax._extras import how_to_install
from checkin_jax._files import replacing
from checkin_jax._rounding import down, up
from checkin_jax._tables import markdown

SUFFIXES = (".csv", ".npz", ".parquet")
Columns = dict[str, np.ndarray]


@runtime_checkable
class Frame(Protocol):
    """A table by Arrow's stream: a data frame of pandas or polars, a table of pyarrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# Makes the blocks of a table, afresh at each call: files that hold a column after the other need several passes.
Blocks = Callable[[], Iterator[Mapping[str, np.ndarray]]]


# Rows of a table on a screen; columns left out there; upper ends, and lower ones.
_SHOWN = 10
_SILENT = ("method", "lower_method", "validity", "protocol", "bounds", "seconds", "version")
# The first column of results, whatever was asked.
_FIRST_RESULTS = ("epsilon", "rdp", "value")
_ENDS = {"epsilon": up, "rdp": up, "lower": down}
# Words that are read together.
_TOGETHER = 2**16


def _shown(name: str, value: Any) -> str:
    """A cell for readers: an end of a bracket rounded to its own side, other numbers to ten digits."""
    if not isinstance(value, float):
        return " ".join(str(value).split())
    if math.isnan(value):
        return ""
    return _ENDS[name](value, 5) if name in _ENDS else f"{value:.10g}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A table of results with one row a setting, in input order.

    Attributes:
      columns: name to array, all of one length. The inputs come first, view and neighboring relation among them also
        where they were left out, then results, `method`, `validity`, `protocol`, `bounds`, `seconds` (of a row: its
        share of its group's time), `version` and `error`. Where `error` is not empty the numbers of the
        row's result are NaN (empty or null in files); nowhere else.
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

    def to_markdown(self, columns: Sequence[str] | None = None) -> str:
        """Writes a table in Markdown; upper ends rounded up and lower ends down, to five digits.

        Args:
          columns: names, in this order; when left out the inputs that vary, the results, and errors if there are any.

        Raises:
          ValueError: no such column.
        """
        names, cells = self._cells(len(self), columns)
        return markdown([names, *cells])

    def _cells(self, rows: int, columns: Sequence[str] | None = None) -> tuple[list[str], list[list[str]]]:
        """Names of columns, and the texts of the first rows."""
        names = list(self._telling if columns is None else columns)
        for name in names:
            if name not in self.columns:
                raise ValueError(f"columns={name!r}: expected names out of {', '.join(self.columns)}")
        texts = [[_shown(name, value) for value in self.columns[name][:rows].tolist()] for name in names]
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
        names, cells = self._cells(_SHOWN)
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
        names, cells = self._cells(_SHOWN)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in cells
        )
        return f"<table><tr>{head}</tr>{body}</table><p>{html.escape(self._summary + self._same)}</p>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The table as a stream of Arrow's, without a result a null: `polars.DataFrame(found)`, `pyarrow.table(found)`.

        Raises:
          ModuleNotFoundError: without pyarrow.
        """
        return _arrow(_pyarrow(), self.columns).__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        """The table by the dataframe interchange protocol, as pandas reads it; errors as of Arrow's stream."""
        return _arrow(_pyarrow(), self.columns).__dataframe__(nan_as_null, allow_copy)

    def to_xarray(self) -> Any:
        """The table as an `xarray.Dataset` (extra `xarray`): results over the inputs that vary.

        A product of axes has a dimension for each of them, in the order of the columns; any other table has the
        dimension "setting", along which the inputs are coordinates. Inputs of one value are coordinates without a
        dimension. A row without a result is NaN, and its words are empty.

        Raises:
          ModuleNotFoundError: without xarray.
        """
        try:
            import xarray  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"to_xarray needs xarray: {how_to_install('xarray')}", name=error.name
            ) from error
        inputs = list(itertools.takewhile(lambda name: name not in _FIRST_RESULTS, self.columns))
        values = {name: list(dict.fromkeys(self.columns[name].tolist())) for name in inputs}
        fixed = {name: found[0] for name, found in values.items() if len(found) == 1}
        axes = {name: found for name, found in values.items() if len(found) > 1}
        every = itertools.product(*axes.values())
        if math.prod(map(len, axes.values())) == len(self) and all(
            row == here for row, here in zip(every, zip(*(self.columns[name].tolist() for name in axes)))
        ):
            dims, shape, coords = list(axes), [len(found) for found in axes.values()], axes
        else:
            dims, shape = ["setting"], [len(self)]
            coords = {name: ("setting", self.columns[name]) for name in axes}
        results = {
            name: (dims, column.reshape(shape)) for name, column in self.columns.items() if name not in inputs
        }
        return xarray.Dataset(results, {**fixed, **coords})

    def save(self, path: str | Path) -> Path:
        """Writes .csv, .npz or .parquet, by the name's ending; whole or not at all.

        Raises:
          ValueError: another ending. ModuleNotFoundError: .parquet without pyarrow. OSError: it cannot be written, or
            another process is writing it.
        """
        return write(check(Path(path)), lambda: iter([dict(self.columns)]))


def check(path: Path) -> Path:
    """The path, if its ending is one that can be written here.

    Raises:
      ValueError: another ending. ModuleNotFoundError: .parquet without pyarrow.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{str(path)!r}: expected a name ending in {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _pyarrow()
    return path


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Parquet needs pyarrow: {how_to_install('sweep')}", name=error.name
        ) from error
    return pyarrow


def write(path: Path, blocks: Blocks) -> Path:
    """Joins the blocks into one file, which appears whole or not at all; memory for a block or two."""
    writer = {".csv": _write_csv, ".npz": _write_npz, ".parquet": _write_parquet}[path.suffix]
    with replacing(path) as stream:
        writer(stream, blocks)
    return path


def _write_csv(stream: IO[bytes], blocks: Blocks) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    for i, block in enumerate(blocks()):
        if i == 0:
            writer.writerow(block)
        writer.writerows(zip(*(_cells(column) for column in block.values())))
    text.flush()
    text.detach()


def _cells(column: np.ndarray) -> Sequence[Any]:
    """Python's shortest exact notation of floats; NaN as an empty cell."""
    values = column.tolist()
    if column.dtype.kind != "f":
        return values
    return ["" if value != value else value for value in values]


def _write_npz(stream: IO[bytes], blocks: Blocks) -> None:
    """As np.savez_compressed writes it, a column after the other; words in the width of the longest."""
    kinds: dict[str, np.dtype] = {}
    widths: dict[str, int] = {}
    total = 0
    for block in blocks():
        total += len(next(iter(block.values())))
        for name, column in block.items():
            kinds[name] = column.dtype
            if column.dtype.kind in "OU":
                longest = max(map(len, set(column.tolist())))
                widths[name] = max(widths.get(name, 1), longest)
    # A fixed date: the same table is the same file.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, kind in kinds.items():
            kind = np.dtype(f"<U{widths[name]}") if name in widths else kind
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                header = {
                    "descr": np.lib.format.dtype_to_descr(kind),
                    "fortran_order": False,
                    "shape": (total,),
                }
                np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
                for block in blocks():
                    member.write(block[name].astype(kind).tobytes())


def _write_parquet(stream: IO[bytes], blocks: Blocks) -> None:
    pyarrow = _pyarrow()
    writer = None
    try:
        for block in blocks():
            made = _arrow(pyarrow, block)
            writer = writer or pyarrow.parquet.ParquetWriter(stream, made.schema)
            writer.write_table(made)
    finally:
        if writer is not None:
            writer.close()


def _arrow(pyarrow: Any, columns: Mapping[str, np.ndarray]) -> Any:
    """A table of Arrow's; NaN, which stands for a row without a result, becomes null."""
    return pyarrow.table({name: pyarrow.array(column, from_pandas=True) for name, column in columns.items()})


def load(path: str | Path) -> Sweep:
    """Reads what `Sweep.save` wrote (or any CSV with a header, NPZ of columns, or Parquet file of numbers and words).

    Raises:
      ValueError: another ending, no rows, or no table. OSError: it cannot be read.
    """
    path = check(Path(path))
    try:
        columns = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}[path.suffix](path)
    except (OSError, ModuleNotFoundError):
        raise
    except Exception as error:  # pyarrow and zipfile have errors of their own
        raise ValueError(f"{str(path)!r}: not a table that can be read ({error})") from error
    if not columns or not len(next(iter(columns.values()))):
        raise ValueError(f"{str(path)!r}: a table without rows")
    return Sweep(columns)


def _read_csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a mark
        reader = csv.reader(file, skipinitialspace=True)
        names = [name.strip() for name in next(reader, [])]
        if len(set(names)) != len(names):
            raise ValueError("two columns have one name")
        rows = [row for row in reader if row]
    for row in rows:
        if len(row) != len(names):
            raise ValueError(f"a row of {len(row)} cells under a header of {len(names)}")
    return {name: _guessed(cells) for name, cells in zip(names, zip(*rows))}


def _guessed(cells: Sequence[str]) -> np.ndarray:
    """int64 if all cells are whole numbers, float64 with NaN for empty cells if all are numbers, else words."""
    with contextlib.suppress(ValueError, OverflowError):
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    if any(cells):
        with contextlib.suppress(ValueError):
            return np.array([float(cell) if cell else np.nan for cell in cells])
    return np.array(cells, dtype=object)


def numbers(column: np.ndarray) -> np.ndarray:
    """The column as numbers, NaN where a cell is none: the row will have an error."""
    if column.dtype.kind in "if":
        return column

    def number(cell: object) -> float:
        try:
            return float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return np.nan

    return np.array([number(cell) for cell in column])


def _read_npz(path: Path) -> Columns:
    with np.load(path, allow_pickle=False) as held:
        columns = {name: held[name] for name in held.files}
    if any(column.ndim != 1 for column in columns.values()) or len({len(c) for c in columns.values()}) > 1:
        raise ValueError("expected arrays of one axis and one length")
    return {name: _shared(c, np.ndarray.tolist) if c.dtype.kind == "U" else c for name, c in columns.items()}


def _read_parquet(path: Path) -> Columns:
    return of_frame(_pyarrow().parquet.read_table(path))


def of_frame(given: Frame) -> Columns:
    """Columns of a data frame of pandas or polars, or of a table of pyarrow.

    Raises:
      ModuleNotFoundError: without pyarrow.
    """
    pyarrow = _pyarrow()
    held, kinds = pyarrow.table(given), pyarrow.types

    def column(values: Any) -> np.ndarray:
        if any(
            words(values.type) for words in (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
        ):
            return _shared(values, pyarrow.ChunkedArray.to_pylist)
        return _plain(values.to_numpy())

    return {name: column(held.column(name)) for name in held.column_names}


def _plain(column: np.ndarray) -> np.ndarray:
    return column if column.dtype.kind in "ifO" else column.astype(object)


def _shared(column: Any, listed: Callable[[Any], list[str]]) -> np.ndarray:
    """A column of words as objects, equal ones one object: millions of them take the memory of their addresses."""
    known: dict[str, str] = {}
    found = np.empty(len(column), dtype=object)
    for start, stop in batched(len(column), _TOGETHER) if len(column) else ():
        found[start:stop] = [known.setdefault(word, word) for word in listed(column[start:stop])]
    return found


def joined(blocks: Iterator[Columns]) -> Sweep:
    """The blocks as one table in memory."""
    parts = [dict(block) for block in blocks]
    # What is joined is let go.
    return Sweep({name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])})


def batched(count: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of runs of at most `size`."""
    edges = [*range(0, count, size), count]
    return list(itertools.pairwise(edges))
