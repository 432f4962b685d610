"""A run's folder: config.json, metrics.jsonl (a line a round), parameters.npz, report.json and report.txt.

Files other than metrics.jsonl are written whole or not at all. Nothing secret is stored: no entropy, no
names of participants, no loss on anybody's record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np


class RunDirectory:
    """Creates the folder of one run and writes to it; use as a context manager.

    Args:
      path: must not exist yet, or be an empty folder.

    Raises:
      FileExistsError: it exists and is not an empty folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise FileExistsError(f"run_dir={str(path)!r}: already there and not empty; name another")
        self.path.mkdir(parents=True, exist_ok=True)
        self._metrics = (self.path / "metrics.jsonl").open("w", encoding="utf-8")

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._metrics.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to metrics.jsonl and flushes it, so that a killed run keeps it."""
        self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self._metrics.flush()

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes one JSON file; NaN and infinities are refused, not written."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes one UTF-8 text file."""
        self._replace(name, lambda stream: stream.write(text.encode()))

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes one .npz file of named arrays."""
        self._replace(name, lambda stream: np.savez(stream, allow_pickle=False, **arrays))

    def _replace(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        temporary = self.path / f".{name}.tmp"
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, self.path / name)
