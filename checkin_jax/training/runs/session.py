"""A run on disk: begun or taken up again, logged, checkpointed, finished; what survives a kill and what does not."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax._src import distributed  # its barrier alone waits for longer than half a minute

from checkin_jax._files import delete_rest
from checkin_jax._version import __version__
from checkin_jax.training.model import Dataset
from checkin_jax.training.reports.report import OPERATING_SYSTEM, SEED, Report
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.runs.run_directory import CONFIG, FinishedError, ResumeError, RunDirectory
from checkin_jax.training.schedules import draws
from checkin_jax.training.schedules.draws import EntropySource
from checkin_jax.training.server import State

if TYPE_CHECKING:
    from checkin_jax.training.runs.checkpoints import Checkpoints

CHECKPOINTS = "checkpoints"
PATIENCE = 600  # seconds that processes wait for each other before a run begins
_RUNS = itertools.count(1)
INTERRUPTED = "interrupted"


class Session:
    """The state of a run beside the model, and its folder; use as a context manager.

    With several processes the first one alone has a folder, and all use its entropy.

    Args:
      run, dataset, run_dir: of the run.
      settings: what else was chosen, by name, as plain values; "seed" among them.
      program: called for what tells the computation apart from another one, see `checkpoints.describe`.
      every: rounds between checkpoints; 0: none.
      keep: number of checkpoints kept.
      resume: go on with the run in `run_dir`, if one has begun.
      mesh: devices of the run; a resumed run needs the same.
      source: where entropy comes from if there is no seed; None: the operating system.

    Attributes:
      entropy: of the run, sensitive; set by `begin`.
      source: what that came from, in words.
      rounds: rounds that have begun.
      tested: (round, metrics) of the last evaluation.

    Raises:
      ResumeError, ValueError, OSError: see `loop.train`.
    """

    def __init__(
        self,
        run: PrivateRun,
        settings: Mapping[str, Any],
        dataset: Dataset,
        run_dir: str | Path,
        *,
        program: Callable[[], str],
        every: int,
        keep: int,
        resume: bool,
        mesh: jax.sharding.Mesh | None,
        source: EntropySource | None = None,
    ) -> None:
        if jax.process_count() > 1 and (every or resume):
            raise ResumeError("checkpoint_every, resume: several processes cannot be resumed; use one")
        self._run, self._every, self._seed = run, every, settings["seed"]
        config = {**run.as_dict(), **settings, "version": __version__}
        self._public = {**config, "dataset": dataset.name, "jax": jax.__version__}
        self._draw = draws.fresh_entropy if source is None else functools.partial(draws.drawn_entropy, source)
        self.source = OPERATING_SYSTEM if source is None else draws.source_name(source)
        if self._seed is not None:
            self.source = SEED
        self.entropy, self.rounds = 0, 0
        self.tested: tuple[int, dict[str, float | None]] = (0, {})
        self._checkpoints: Checkpoints | None = None
        self._folder: RunDirectory | None = None
        self._started, self._seconds_before = time.perf_counter(), 0.0
        _await_all()  # before there is a folder
        with contextlib.ExitStack() as opened:
            if jax.process_index() == 0:
                self._folder = opened.enter_context(RunDirectory(run_dir, resume=resume))
                kept = self._folder.path / CHECKPOINTS
                delete_rest(kept)
                found = kept.is_dir()
                if self._folder.is_complete and not found:
                    raise self._ended(self._folder)
                if every or found:
                    # Orbax takes a third of a second to load.
                    from checkin_jax.training.runs import checkpoints

                    about = checkpoints.describe(config, dataset, program(), mesh)
                    self._checkpoints = opened.enter_context(checkpoints.Checkpoints(kept, about, keep=keep))
            self._opened = opened.pop_all()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, earlier parts of it included."""
        return self._seconds_before + time.perf_counter() - self._started

    def begin(self, like: State) -> State | None:
        """Takes up the run that is there and returns its last state; None where there is none, and one begins.

        Args:
          like: a state of the right shapes.

        Raises:
          ResumeError: the run that is there cannot be taken up, and says why.
        """
        if self._checkpoints is not None and self._folder is not None:
            for saved in self._checkpoints.newest_first(like, self._take_up):
                self.entropy, self.rounds = int(saved.progress["entropy"], 16), saved.round
                self.source = saved.progress["source"]
                self.tested = saved.progress["tested"][0], saved.progress["tested"][1]
                self._seconds_before = saved.progress["seconds"]
                self._folder.set_results_aside()  # of an interrupted run: they cover fewer rounds than will have run
                return saved.state
        unusable = self._checkpoints is not None and self._checkpoints.rounds
        if self._folder is not None and (self._folder.has_begun or unusable):
            raise ResumeError(
                f"run_dir={str(self._folder.path)!r}: rounds of this run were logged but no checkpoint of it can "
                "be used, so it cannot go on; nothing was deleted. Restore what is damaged, or begin another run "
                "elsewhere and account for both"
            )
        self.entropy = _shared(self._draw() if self._seed is None else self._seed)
        if self._folder is not None:
            self._folder.write_json(CONFIG, {**self._public, "entropy": self.source})
        return None

    def reached(self, target: float | None) -> bool:
        """True if the last round was evaluated and met the target accuracy."""
        if target is None or self.tested[0] != self.rounds or not self.rounds:
            return False
        accuracy = self.tested[1].get("accuracy")
        return accuracy is not None and accuracy >= target

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a round's line to metrics.jsonl."""
        if self._folder is not None:
            self._folder.log(line)

    def checkpoint(self, state: State) -> None:
        """Saves the state if it is time to, in the background, except before the first round.

        What was not saved before its results could be seen could not be repeated: so the first one is waited for.

        Raises:
          OSError: it, or the one before, could not be written.
        """
        due = self._every and self.rounds % self._every == 0 and self.rounds < self._run.schedule.num_rounds
        if self._folder is None or self._checkpoints is None or not due:
            return
        self._folder.sync_metrics()
        progress = {
            "entropy": f"{self.entropy:x}",
            "source": self.source,
            "tested": self.tested,
            "seconds": self.seconds,
            "metrics": self._folder.logged,
            "units": self._run.schedule.units(self.rounds),
        }
        self._checkpoints.save(self.rounds, state, progress, wait=not self.rounds)

    def finish(self, report: Report, parameters: Mapping[str, np.ndarray]) -> None:
        """Writes parameters and report; deletes the checkpoints, with the entropy in them, unless interrupted."""
        if self._folder is None:
            return
        self._folder.write_results(report.as_dict(), str(report), parameters)
        if self._checkpoints is not None and report.stopped != INTERRUPTED:
            self._checkpoints.delete_all()

    def _take_up(self, progress: Mapping[str, Any]) -> None:
        """Goes on with the folder as it was at a checkpoint.

        Raises:
          ResumeError: config.json is not that of this run. ValueError: metrics.jsonl lacks lines.
        """
        if self._folder is None:
            return
        self._check_config(self._folder)
        self._folder.repeat_after(progress["metrics"])

    def _check_config(self, folder: RunDirectory, *, but: tuple[str, ...] = ()) -> None:
        """Raises ResumeError where config.json is not that of this run, but for these names."""
        found, public = folder.config(), json.loads(json.dumps(self._public))
        differing = [name for name in public if name not in but and found.get(name) != public[name]]
        if differing:
            raise ResumeError(
                f"{str(folder.path / CONFIG)!r}: not that of the run to be resumed: {', '.join(differing)} differ"
            )

    def _ended(self, folder: RunDirectory) -> ResumeError:
        """The error for a run that has ended and kept no checkpoints: the same run has finished, or was interrupted."""
        self._check_config(folder, but=("version", "jax"))
        if folder.stopped == INTERRUPTED:
            return ResumeError(
                f"run_dir={str(folder.path)!r}: this run was interrupted and kept no checkpoints, so it cannot go on; "
                "its report covers the rounds that were logged"
            )
        return FinishedError(
            f"run_dir={str(folder.path)!r}: this run has finished; there is nothing to resume"
        )


def _await_all() -> None:
    """Returns once every process has come: some take minutes longer to load their data than collectives would wait.

    Raises:
      TimeoutError: one has not come.
    """
    if jax.process_count() == 1:
        return
    client = distributed.global_state.client
    if client is None:
        return
    try:
        client.wait_at_barrier(f"checkin-jax run {next(_RUNS)}", 1_000 * PATIENCE)
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(
            f"another process has not come within {PATIENCE} s, or has failed: {error}"
        ) from error


def _shared(entropy: int) -> int:
    """The first process's entropy.

    Raises:
      ConnectionError: another process has failed.
    """
    if jax.process_count() == 1:
        return entropy
    from jax.experimental import multihost_utils

    words = np.array([(entropy >> shift) & 0xFFFFFFFF for shift in range(0, 128, 32)], np.uint32)
    try:
        words = np.asarray(multihost_utils.broadcast_one_to_all(words))
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"another process failed before the first round: {error}") from error
    return sum(int(word) << shift for word, shift in zip(words, range(0, 128, 32)))
