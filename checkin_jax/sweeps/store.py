"""Finished blocks of a sweep on disk, from which a killed sweep continues."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import parquet

from checkin_jax._files import delete, delete_rest, hold, replacing
from checkin_jax.sweeps.tables import Sweep, check, load, of_arrow

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
            while True:
                try:
                    self._check(plan)
                    break
                except BlockingIOError:  # another joining process is writing the plan
                    if not joins:
                        raise
                    time.sleep(0.01)
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
            with replacing(here) as stream:
                stream.write(json.dumps(plan, indent=2).encode())
            return
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
