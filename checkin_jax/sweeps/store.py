"""Finished blocks of a sweep on the disk, so that a killed sweep goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checkin_jax._files import replacing
from checkin_jax.sweeps.table import Columns

_SCHEMA = 1
# No column is called so.
_NAMES = "names of columns"


class Store:
    """The folder `NAME.blocks` beside the file that a sweep will be: plan.json and one .npz for each block.

    Files appear whole or not at all. Several processes may share the folder if each writes blocks of its own.

    Args:
      out: the file that the sweep will be.
      plan: what the sweep is; another version, other settings or options make another plan.
      resume: go on with what is there; a folder that is not there is made.

    Raises:
      ValueError: the folder is there and resume is not asked for, or it is of another sweep.
      OSError: it cannot be written.
    """

    def __init__(self, out: Path, plan: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = out.with_name(f"{out.name}.blocks")
        plan = {"schema": _SCHEMA, **plan}
        here = self.folder / "plan.json"
        try:
            self.folder.mkdir(parents=True)  # of two that begin together one makes it
        except FileExistsError:
            if not resume:
                raise ValueError(
                    f"{str(self.folder)!r} holds the finished blocks of a sweep that was stopped or goes on: "
                    "resume it, or remove the folder"
                ) from None
        # A sweep that was killed before its plan was written has no blocks either.
        if not here.exists() and not any(self.folder.glob("*.npz")):
            with replacing(here, shared=True) as stream:
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
        with replacing(self._path(block), shared=True) as stream:
            np.savez(stream, allow_pickle=False, **names, **texts, **numbers)

    def errors(self, block: int) -> list[str]:
        """The texts of the rows without a result."""
        with np.load(self._path(block), allow_pickle=False) as held:
            return [text for text in json.loads(str(held["words error"])) if text]

    def blocks(self, count: int) -> Iterator[Mapping[str, np.ndarray]]:
        """All blocks, in order; a block's columns are read when they are asked for, until the next block is."""
        for block in range(count):
            with np.load(self._path(block), allow_pickle=False) as held:
                yield _Columns(held)

    def remove(self) -> None:
        """Deletes the folder, once the sweep is a file; a kill meanwhile leaves no blocks under its name."""
        gone = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.gone")
        os.replace(self.folder, gone)
        shutil.rmtree(gone)


class _Columns(Mapping[str, np.ndarray]):
    """The columns of an open block."""

    def __init__(self, held: Mapping[str, np.ndarray]) -> None:
        self._held = held
        self._names: list[str] = json.loads(str(held[_NAMES]))

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._held:
            return self._held[name]
        return np.array(json.loads(str(self._held[f"words {name}"])), dtype=object)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
