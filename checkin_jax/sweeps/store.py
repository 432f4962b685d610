"""Finished blocks of a sweep on the disk, so that a killed sweep goes on where it was."""

from __future__ import annotations

import contextlib
import json
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from checkin_jax._files import delete, delete_rest, hold, replacing, share
from checkin_jax.sweeps.table import Columns, Sweep, check, joined, load

_SCHEMA = 1
_LOCK = ".lock"
# No column has this name.
_NAMES = "names of columns"


def folder_of(out: Path) -> Path:
    """The folder of finished blocks of the file that a sweep will be."""
    return out.with_name(f"{out.name}.blocks")


class Store:
    """The folder `NAME.blocks` beside the file that a sweep will be: plan.json and one .npz for each block.

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
        if not here.exists() and not any(self.folder.glob("*.npz")):
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
        return self.folder / f"{block:08d}.npz"

    def has(self, block: int) -> bool:
        """Whether the block is finished."""
        return self._path(block).exists()

    def write(self, block: int, columns: Columns) -> None:
        """Keeps a finished block."""
        words = {name: column for name, column in columns.items() if column.dtype.kind == "O"}
        numbers = {name: column for name, column in columns.items() if name not in words}
        # Words as one JSON text each: an array of them would be as wide as the longest.
        texts = {f"words {name}": np.array(json.dumps(column.tolist())) for name, column in words.items()}
        names = {_NAMES: np.array(json.dumps(list(columns)))}
        with replacing(self._path(block)) as stream:
            np.savez(stream, allow_pickle=False, **names, **texts, **numbers)

    def errors(self, block: int) -> list[str]:
        """The texts of the rows without a result."""
        with _opened(self._path(block)) as columns:
            return [text for text in columns["error"] if text]

    def blocks(self, count: int) -> Iterator[Mapping[str, np.ndarray]]:
        """All blocks, in order; a block's columns are read when they are asked for, until the next block is.

        Raises:
          ValueError: one is damaged; it is named.
        """
        for block in range(count):
            with _opened(self._path(block)) as columns:
                yield columns

    def remove(self) -> None:
        """Deletes the folder, once the sweep is a file; a kill meanwhile leaves no blocks under its name."""
        delete(self.folder)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Columns]:
    with path.open("rb") as file:
        with _reading(path):
            held = np.load(file, allow_pickle=False)
        with held:
            yield _Columns(held, path)


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
    for each in sorted(folder.glob("[0-9]*.npz")):
        # Once the last block is there the folder becomes the file.
        with contextlib.suppress(FileNotFoundError), _opened(each) as columns:
            parts.append(dict(columns))
    if not folder.exists():
        return load(path)
    if not parts:
        raise ValueError(f"{str(folder)!r}: no block is finished yet")
    return joined(iter(parts))


class _Columns(Mapping[str, np.ndarray]):
    """The columns of an open block."""

    def __init__(self, held: Mapping[str, np.ndarray], path: Path) -> None:
        self._held, self._path = held, path
        with _reading(path):
            self._names: list[str] = json.loads(str(held[_NAMES]))

    def __getitem__(self, name: str) -> np.ndarray:
        with _reading(self._path):
            if name in self._held:
                return self._held[name]
            return np.array(json.loads(str(self._held[f"words {name}"])), dtype=object)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{str(path)!r}: a damaged block ({error}); remove it and resume") from error
