"""A run's folder: config.json, metrics.jsonl (a line a round), parameters.npz, report.json and report.txt.

Files other than metrics.jsonl are written whole or not at all. Nothing secret is stored here: no entropy, no names of
participants, no loss on anybody's record. (Checkpoints, where asked for, lie in a folder of their own and do hold the
entropy, see `checkpoints`.) While a process writes to the folder it holds a lock on the file `.lock` in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checkin_jax._files import hold, naming, replacing

LOCK = ".lock"
METRICS = "metrics.jsonl"


class ResumeError(ValueError):
    """A run that cannot be taken up, or could not be taken up if it were killed; says why."""


class RunDirectory:
    """Creates the folder of one run, or goes on with it, and writes to it; use as a context manager.

    Args:
      path: must not exist yet or be an empty folder, unless `resume`.
      resume: the folder may also be that of a run that has begun; what is in it is kept.

    Raises:
      FileExistsError: the folder is not empty and `resume` is False, or it is no run directory.
      BlockingIOError: another process is writing to it.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        self._check(resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = hold(self.path / LOCK, f"run_dir={str(self.path)!r}")
        try:
            self._check(resume)  # again: another process may have begun and ended in between
            self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
        except OSError:
            self._unlock()
            raise

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            with naming(self.path / METRICS):
                self._metrics.close()
        finally:
            self._unlock()

    @property
    def has_begun(self) -> bool:
        """Whether a round of this run was logged: its results may have been seen."""
        return self.metrics_size() > 0

    @property
    def is_complete(self) -> bool:
        """Whether there is a report."""
        return (self.path / "report.json").exists()

    def remove_report(self) -> None:
        """Deletes report and parameters, of a run that goes on."""
        for name in ("report.json", "report.txt", "parameters.npz"):
            (self.path / name).unlink(missing_ok=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to metrics.jsonl and flushes it, so that a killed run keeps it."""
        with naming(self.path / METRICS):
            self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
            self._metrics.flush()

    def metrics_size(self) -> int:
        """Length of metrics.jsonl in bytes."""
        return os.fstat(self._metrics.fileno()).st_size

    def sync_metrics(self) -> None:
        """Returns once the lines logged so far would survive a power cut."""
        with naming(self.path / METRICS):
            os.fsync(self._metrics.fileno())

    def cut_metrics(self, size: int) -> None:
        """Drops what was logged beyond the first `size` bytes.

        Raises:
          ValueError: there are fewer.
        """
        if self.metrics_size() < size:
            raise ValueError(f"{METRICS} has {self.metrics_size()} bytes, expected at least {size}")
        self._metrics.truncate(size)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes one JSON file; NaN and infinities are refused, not written."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes one UTF-8 text file."""
        with replacing(self.path / name) as stream:
            stream.write(text.encode())

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes one .npz file of named arrays."""
        with replacing(self.path / name) as stream:
            np.savez(stream, allow_pickle=False, **arrays)

    def _check(self, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"run_dir={str(self.path)!r}: a file, and not empty; name another")
        held = {file.name for file in self.path.iterdir()} - {LOCK} if self.path.is_dir() else set()
        if held and not resume:
            raise FileExistsError(f"run_dir={str(self.path)!r}: already there and not empty; name another")
        if held and METRICS not in held:
            raise FileExistsError(f"run_dir={str(self.path)!r}: no {METRICS} in it: not the folder of a run")

    def _unlock(self) -> None:
        (self.path / LOCK).unlink(missing_ok=True)
        self._lock.close()
