"""Finished blocks of a sweep on the disk, so that a killed sweep goes on where it was."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from checkin_jax._files import delete, delete_rest, hold, replacing, share
from checkin_jax.sweeps.tables import Sweep, check, load, of_arrow

_SCHEMA = 2
_LOCK = ".lock"


def folder_of(out: Path) -> Path:
    """The folder of finished blocks of the file that a sweep will be."""
    return out.with_name(f"{out.name}.blocks")


class Store:
    """The folder `NAME.blocks` beside the file that a sweep will be: plan.json and one .parquet for each block.

    Files appear whole or not at all. Several processes may share the folder if each writes blocks of its own and one
    of them leads, which holds a lock on the folder until the end; use as a context manager.

    Args:
      out: the file that the sweep will be.
      plan: what the sweep is; another version, other settings or options make another plan.
      resume: go on with what is there; a folder that is not there is made.
      leads: False for a process that joins one that leads.
      joins: one of several that share the folder, and that none leads; then resume is of no account.

    Raises:
      ValueError: the folder is there and resume is not asked for, or it is of another sweep.
      BlockingIOError: another sweep into this file goes on.
      FileNotFoundError: with joins, the file is there and the folder is not.
      OSError: it cannot be written.
    """

    def __init__(
        self, out: Path, plan: Mapping[str, Any], *, resume: bool, leads: bool = True, joins: bool = False
    ) -> None:
        self.folder = folder_of(out)
        plan = {"schema": _SCHEMA, **plan}
        self._lock = self._shared(out) if joins else self._locked(out, resume) if leads else None
        try:
            while True:
                try:
                    self._check(plan)
                    break
                except BlockingIOError:  # another that joins is writing the plan
                    if not joins:
                        raise
                    time.sleep(0.01)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _locked(self, out: Path, resume: bool) -> IO[bytes]:
        """The lock of the folder, which is made if it is not there."""
        while True:
            try:
                self.folder.mkdir(parents=True)  # of two that begin together one makes it
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
        """The lock of the folder, shared with others that join the sweep."""
        if not out.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
        # Where a file is and no folder, the sweep is finished: FileNotFoundError says so.
        return share(self.folder / _LOCK, f"out={str(out)!r}")

    def _check(self, plan: Mapping[str, Any]) -> None:
        """Writes the plan of a sweep that begins; compares that of one that goes on."""
        here = self.folder / "plan.json"
        # A sweep that was killed before its plan was written has no blocks either.
        if not here.exists() and not any(self.folder.glob("*.parquet")):
            with replacing(here) as stream:
                stream.write(json.dumps(plan, indent=2, allow_nan=False).encode())
            return
        try:
            found = json.loads(here.read_text())
        except (ValueError, FileNotFoundError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{str(here)!r}: not the plan of a sweep; remove the folder to begin anew")
        for name in dict.fromkeys([*plan, *found]):
            if found.get(name) != plan.get(name):
                raise ValueError(
                    f"cannot resume: {name} was {found.get(name)!r} and is {plan.get(name)!r}; "
                    f"remove {str(self.folder)!r} to begin anew"
                )

    def _path(self, block: int) -> Path:
        return self.folder / f"{block:08d}.parquet"

    def has(self, block: int) -> bool:
        """Whether the block is finished."""
        return self._path(block).exists()

    def write(self, block: int, table: pa.Table) -> None:
        """Keeps a finished block."""
        with replacing(self._path(block)) as stream:
            pa.parquet.write_table(table, stream, write_page_checksum=True)

    def errors(self, block: int) -> list[str]:
        """The texts of the rows without a result."""
        return [text for text in _read(self._path(block), ["error"])["error"].to_pylist() if text]

    def blocks(self, count: int) -> Iterator[pa.Table]:
        """All blocks, in order.

        Raises:
          ValueError: one is damaged; it is named.
        """
        return (_read(self._path(block)) for block in range(count))

    def remove(self) -> None:
        """Deletes the folder, once the sweep is a file; a kill meanwhile leaves no blocks under its name."""
        delete(self.folder)


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    with path.open("rb") as file:
        try:
            return pa.parquet.ParquetFile(file, page_checksum_verification=True).read(columns)
        except (ValueError, OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{str(path)!r}: a damaged block ({error}); remove it and resume") from error


def finished_rows(out: str | Path) -> Sweep:
    """Reads the rows of a sweep into a file that are finished so far, while it runs or after it was stopped.

    A row is whole or not there, in input order. No lock is taken and nothing is written.

    Args:
      out: the file that the sweep will be, as `sweep_to_file` was given it; once it is there, it is read.

    Raises:
      FileNotFoundError: there is neither the file nor a folder of blocks. ValueError: no block is finished yet, or one
        is damaged.
    """
    path = check(Path(out))
    folder = folder_of(path)
    parts = []
    for each in sorted(folder.glob("[0-9]*.parquet")):
        # Once the last block is there the folder becomes the file.
        with contextlib.suppress(FileNotFoundError):
            parts.append(_read(each))
    if not folder.exists():
        return load(path)
    if not parts:
        raise ValueError(f"{str(folder)!r}: no block is finished yet")
    return of_arrow(pa.concat_tables(parts))
