"""A run's folder: config.json, metrics.jsonl (a line per round), parameters.npz, report.json, report.txt.

All files except metrics.jsonl are written atomically. The folder has no secrets: no entropy, no names of
participants, no loss of a single record. (Checkpoints, if requested, have their own folder and do contain the
entropy, see `checkpoints`.) A process that writes to the folder holds a lock on its file `.lock`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checkin_jax._files import delete, delete_rest, hold, naming, read_object, replacing

LOCK = ".lock"
METRICS = "metrics.jsonl"
CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
# The first one marks a run as complete.
_RESULTS = ("report.json", "report.txt", "parameters.npz")
_INTERRUPTED = "interrupted"


class ResumeError(ValueError):
    """A run that cannot be resumed, or could not be resumed if it were killed; the message says why."""


class FinishedError(ResumeError):
    """A run to be resumed that has already finished."""


class RunDirectory(contextlib.AbstractContextManager["RunDirectory"]):
    """Creates the folder of one run, or continues it, and writes to it; use as a context manager.

    Args:
      path: must not exist yet, be an empty folder or that of a run that has not begun, unless `resume`.
      resume: the folder may also be that of a run that has begun; its content stays.

    Raises:
      FileExistsError: the folder is not empty and `resume` is False, or it is not a run directory.
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
            self._logged, self._repeated = os.fstat(self._metrics.fileno()).st_size, list[str]()
            self._digest = hashlib.sha256()
        except OSError:
            self._unlock()
            raise

    def __exit__(self, *exc_info: object) -> None:
        try:
            with naming(self.path / METRICS):
                self._metrics.close()
        finally:
            self._unlock()

    @property
    def has_begun(self) -> bool:
        """True if a round of this run was logged: its results may have been observed."""
        return os.fstat(self._metrics.fileno()).st_size > 0

    @property
    def is_complete(self) -> bool:
        """True if there is a report."""
        return (self.path / _RESULTS[0]).exists()

    @property
    def stopped(self) -> str | None:
        """Reason for an end before the last round; None if all rounds ran, or the report is unreadable."""
        try:
            return read_object(self.path / _RESULTS[0]).get("stopped")
        except (OSError, ValueError):
            return None

    @property
    def logged(self) -> dict[str, Any]:
        """Length in bytes and SHA-256 of metrics.jsonl up to the last logged line; repeated lines
        come later.
        """
        return {"bytes": self._logged, "sha256": self._digest.hexdigest()}

    def set_results_aside(self) -> None:
        """Moves report and parameters of a continued run to the folder `interrupted`: they cover fewer
        rounds.
        """
        for name in _RESULTS:
            if (self.path / name).exists():
                (self.path / _INTERRUPTED).mkdir(exist_ok=True)
                os.replace(self.path / name, self.path / _INTERRUPTED / name)

    def write_results(
        self, report: Mapping[str, Any], statement: str, parameters: Mapping[str, np.ndarray]
    ) -> None:
        """Writes parameters and report, the file that marks the run complete last; deletes `interrupted`."""
        with replacing(self.path / "parameters.npz") as stream:
            np.savez(stream, allow_pickle=False, **parameters)
        self.write_text("report.txt", statement)
        aside = self.path / _INTERRUPTED
        (delete if aside.is_dir() else delete_rest)(aside)
        self.write_json(_RESULTS[0], report)

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to metrics.jsonl and flushes it, so that it survives a kill.

        Raises:
          ResumeError: the line of a repeated round differs from the existing one.
        """
        line = json.dumps(record, allow_nan=False) + "\n"
        if self._repeated and line != self._repeated.pop(0):
            raise ResumeError(
                f"run_dir={str(self.path)!r}: a repeated round did not give what was logged before "
                f"(now {line.strip()}): this machine does not repeat a run bit for bit; begin another run in "
                "another folder and account for both"
            )
        with naming(self.path / METRICS):
            if self._logged == os.fstat(self._metrics.fileno()).st_size:
                self._metrics.write(line)
                self._metrics.flush()
        self._logged += len(line.encode())
        self._digest.update(line.encode())

    def sync_metrics(self) -> None:
        """Returns once the logged lines would survive a power cut."""
        with naming(self.path / METRICS):
            os.fsync(self._metrics.fileno())

    def repeat_after(self, logged: Mapping[str, Any]) -> None:
        """Returns to the state `logged`: rounds in later lines of metrics.jsonl will be repeated.

        Those lines stay, since their rounds may have been observed; `log` compares them. An incomplete last
        line is dropped.

        Raises:
          ValueError: there are fewer bytes.
          ResumeError: the bytes differ.
        """
        content, size = (self.path / METRICS).read_bytes(), logged["bytes"]
        if len(content) < size:
            raise ValueError(f"{METRICS} has {len(content)} bytes, expected at least {size}")
        digest = hashlib.sha256(content[:size])
        if digest.hexdigest() != logged["sha256"]:
            raise ResumeError(
                f"{str(self.path / METRICS)!r}: its first {size} bytes are not those that were logged, as if lines "
                "were changed or swapped; restore them, or begin another run in another folder and account for both"
            )
        self._logged, self._digest, self._repeated = size, digest, []
        for line in content[size:].splitlines(keepends=True):
            try:
                whole = line.endswith(b"\n") and isinstance(json.loads(line), dict)
            except ValueError:
                whole = False
            if not whole:
                break
            self._repeated.append(line.decode())
        self._metrics.truncate(size + sum(len(line.encode()) for line in self._repeated))

    def config(self) -> dict[str, Any]:
        """Content of config.json.

        Raises:
          ResumeError: there is none, or it is damaged.
        """
        try:
            return read_object(self.path / CONFIG)
        except (OSError, ValueError) as error:
            raise ResumeError(f"cannot be read: {error}") from error

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes one JSON file; NaN and infinities raise."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes one UTF-8 text file."""
        with replacing(self.path / name) as stream:
            stream.write(text.encode())

    def _check(self, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"run_dir={str(self.path)!r}: a file, and not empty; name another")
        held = {file.name for file in self.path.iterdir()} - {LOCK} if self.path.is_dir() else set()
        metrics = self.path / METRICS
        begun = (metrics.is_file() and metrics.stat().st_size) or held - {METRICS, CONFIG, f".{CONFIG}.tmp"}
        if held and not resume and (begun or METRICS not in held):
            raise FileExistsError(f"run_dir={str(self.path)!r}: already there and not empty; name another")
        if CONFIG in held and METRICS not in held:
            raise FileExistsError(
                f"run_dir={str(self.path)!r}: {METRICS} of this run is gone; restore it, or name another folder"
            )
        if held and METRICS not in held:
            raise FileExistsError(f"run_dir={str(self.path)!r}: no {METRICS} in it: not the folder of a run")

    def _unlock(self) -> None:
        (self.path / LOCK).unlink(missing_ok=True)
        self._lock.close()
