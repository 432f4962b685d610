"""The table that a sweep returns, and tables in files: finished ones, and the blocks of a sweep that was killed."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import html
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from checkin_jax import _files
from checkin_jax._files import delete, delete_rest, ending, hold, replacing
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
        texts = [
            [name, *(_shown(name, value) for value in self.columns[name][:_SHOWN].tolist())]
            for name in self._telling
        ]
        widths = [max(map(len, column)) for column in texts]
        lines = ["  ".join(f"{text:>{width}}" for text, width in zip(row, widths)) for row in zip(*texts)]
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
        return f"<pre>{html.escape(str(self))}</pre>"

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


_SCHEMA = 2
_LOCK = ".lock"


def folder_of(out: Path) -> Path:
    """Folder of finished blocks for this output file."""
    return out.with_name(f"{out.name}.blocks")


class Store(contextlib.AbstractContextManager["Store"]):
    """The folder `NAME.blocks` beside the output file: plan.json and one .parquet for each block.

    Files are written atomically. The folder is locked until the end, by one process or by all that join; use
    as a context manager.

    Args:
      out: the output file.
      plan: identity of the sweep: version, settings and options; classes stand for their names.
      resume: continue with existing blocks; a missing folder is created.
      joins: True for one of several processes that share the folder; `resume` is then ignored.

    Raises:
      ValueError: the folder exists without `resume`, or belongs to another sweep.
      BlockingIOError: another sweep into this file is running.
      FileNotFoundError: with joins, the file exists and the folder does not.
      OSError: it cannot be written.
    """

    def __init__(self, out: Path, plan: Mapping[str, Any], *, resume: bool, joins: bool = False) -> None:
        self.folder = folder_of(out)
        text = json.dumps({"schema": _SCHEMA, **plan}, allow_nan=False, default=lambda kind: kind.__name__)
        plan = json.loads(text)
        self._lock = self._shared(out) if joins else self._locked(out, resume)
        try:
            self._check(plan)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._lock.close()

    def _locked(self, out: Path, resume: bool) -> IO[bytes]:
        """Lock of the folder, which is created if missing."""
        while True:
            try:
                self.folder.mkdir(parents=True)  # of two simultaneous processes one creates it
                found = False
            except FileExistsError:
                found = True
            try:
                lock = hold(self.folder / _LOCK, f"out={str(out)!r}")
            except FileNotFoundError:
                continue  # the sweep that held it is finished
            if found and not resume:
                lock.close()
                raise ValueError(
                    f"{str(self.folder)!r} holds the finished blocks of a sweep that was stopped: "
                    "resume it, or remove the folder"
                )
            delete_rest(self.folder)
            return lock

    def _shared(self, out: Path) -> IO[bytes]:
        """Lock of the folder, shared with other joining processes."""
        if not out.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
        # A file without a folder means a finished sweep: FileNotFoundError.
        return hold(self.folder / _LOCK, f"out={str(out)!r}", shared=True)

    def _check(self, plan: Mapping[str, Any]) -> None:
        """Writes the plan of a new sweep; compares the plan of a continued one."""
        here = self.folder / "plan.json"
        # A sweep killed before its plan was written has no blocks either.
        if not here.exists() and not any(self.folder.glob("*.parquet")):
            with contextlib.suppress(FileExistsError), replacing(here, _files.PATIENCE) as stream:
                if here.exists():  # another joining process was first
                    raise FileExistsError
                stream.write(json.dumps(plan, indent=2).encode())
        try:
            found = json.loads(here.read_text())
        except (ValueError, FileNotFoundError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{str(here)!r}: not the plan of a sweep; remove the folder to begin anew")
        for name in dict.fromkeys([*plan, *found]):
            if found.get(name) != plan.get(name):
                # Settings are there by their digest.
                was = f"was {found.get(name)!r} and is {plan.get(name)!r}" if name != "settings" else "differ"
                raise ValueError(f"cannot resume: {name} {was}; remove {str(self.folder)!r} to begin anew")

    def _path(self, block: int) -> Path:
        return self.folder / f"{block:08d}.parquet"

    def has(self, block: int) -> bool:
        """True if the block is finished."""
        return self._path(block).exists()

    def write(self, block: int, evaluated: Callable[[], pa.Table]) -> bool:
        """Stores the block unless it is finished; False if another process is at it.

        The claim is the lock on the block's incomplete file, which a killed process loses.
        """
        if self.has(block):
            return True
        try:
            with replacing(self._path(block)) as stream:
                if self.has(block):  # finished in the meantime
                    raise FileExistsError
                parquet.write_table(evaluated(), stream, write_page_checksum=True)
        except FileExistsError:
            return True
        except BlockingIOError:
            return False
        return True

    def errors(self, block: int) -> list[str]:
        """Error texts of the rows without a result."""
        return [text for text in _read(self._path(block), ["error"])["error"].to_pylist() if text]

    def blocks(self, count: int) -> Iterator[pa.Table]:
        """Finished blocks in order.

        Raises:
          ValueError: one is damaged; the message names it.
        """
        return (_read(self._path(block)) for block in range(count))

    def remove(self) -> None:
        """Deletes the folder of a finished sweep; a kill meanwhile leaves no blocks under its name."""
        delete(self.folder)


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    with path.open("rb") as file:
        try:
            return parquet.ParquetFile(file, page_checksum_verification=True).read(columns)
        except (ValueError, OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{str(path)!r}: a damaged block ({error}); remove it and resume") from error


def finished_rows(out: str | Path) -> Sweep:
    """Finished rows of a sweep into a file, while it runs or after it was stopped.

    Rows are complete and in input order. No lock is taken and nothing is written.

    Args:
      out: the output file, as passed to `sweep_to_file`; if it exists, it is read.

    Raises:
      FileNotFoundError: there is neither the file nor a folder of blocks. ValueError: no block is finished
        yet, or one is damaged.
    """
    path = check(out=out)
    folder = folder_of(path)
    parts = []
    for each in sorted(folder.glob("[0-9]*.parquet")):
        # After the last block the folder becomes the file.
        with contextlib.suppress(FileNotFoundError):
            parts.append(_read(each))
    if not folder.exists():
        return load(path)
    if not parts:
        raise ValueError(f"{str(folder)!r}: no block is finished yet")
    return of_arrow(pa.concat_tables(parts))
