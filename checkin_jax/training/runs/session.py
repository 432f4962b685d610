"""A run on disk: begun or resumed, logged, checkpointed, finished; and the data that survive a kill."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from checkin_jax._files import delete_rest
from checkin_jax._version import __version__
from checkin_jax.training import draws
from checkin_jax.training.draws import EntropySource
from checkin_jax.training.model import Dataset
from checkin_jax.training.reports.report import OPERATING_SYSTEM, SEED, Report
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.runs.processes import gathered, of_first, say
from checkin_jax.training.runs.run_directory import (
    CHECKPOINTS,
    CONFIG,
    FinishedError,
    ResumeError,
    RunDirectory,
)
from checkin_jax.training.server import State

if TYPE_CHECKING:
    from checkin_jax.training.runs.checkpoints import Checkpoints

INTERRUPTED = "interrupted"


class Session(contextlib.AbstractContextManager["Session"]):
    """The state of a run beside the model, and its folder; use as a context manager.

    With several processes only the first one has a folder, and all use its entropy.

    Args:
      run, dataset, run_dir: of the run.
      settings: all other settings, by name, as plain values; "seed" among them.
      program: called for the identity of the computation, see `checkpoints.describe`.
      every: rounds between checkpoints; 0: none.
      keep: number of checkpoints on disk.
      resume: continue the run in `run_dir`, if one has begun.
      mesh: devices of the run; a resumed run needs the same.
      source: source of entropy if there is no seed; None: the operating system.

    Attributes:
      entropy: of the run, sensitive; set by `begin`.
      source: name of the source of the entropy.
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

        def checkpoints() -> Any:
            from checkin_jax.training.runs import checkpoints  # Orbax takes a third of a second to import

            return checkpoints

        def about() -> dict[str, Any]:
            return checkpoints().describe(config, dataset, program(), mesh)

        together = jax.process_count() > 1
        told = gathered(json.dumps(about() if together and (every or resume) else None))
        # All processes have arrived before the folder is created.
        with contextlib.ExitStack() as opened, self._heard_by_all():
            if jax.process_index() == 0:
                self._folder = opened.enter_context(RunDirectory(run_dir, resume=resume))
                kept = self._folder.path / CHECKPOINTS
                delete_rest(kept)
                found = kept.is_dir()
                if self._folder.is_complete and not found:
                    raise self._ended(self._folder)
                if every or found:
                    of_all = checkpoints().of_all([json.loads(one) for one in told]) if together else about()
                    self._checkpoints = opened.enter_context(
                        checkpoints().Checkpoints(kept, of_all, keep=keep)
                    )
            self._opened = opened.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, earlier parts included."""
        return self._seconds_before + time.perf_counter() - self._started

    def begin(self, like: State) -> State | None:
        """Resumes the existing run and returns its last state; None if there is none, and a new run begins.

        Args:
          like: a state of the right shapes.

        Raises:
          ResumeError: the existing run cannot be resumed; the message gives the reason.
        """
        if jax.process_count() > 1:
            like = jax.tree.map(np.asarray, like)
        with self._heard_by_all():
            state = self._begun(like)
        news: dict[str, Any] = {"round": None if state is None else self.rounds, **self._carried()}
        news = json.loads(gathered(json.dumps(news))[0])
        if jax.process_index() > 0:
            if "error" in news:
                raise (FinishedError if news["finished"] else ResumeError)(news["error"])
            self._carry(news)
            self.rounds = news["round"] or 0
        # Also for a new run: from here on the processes are connected, and may compile for minutes.
        state = of_first(like if state is None else state)
        return None if news["round"] is None else state

    def _begun(self, like: State) -> State | None:
        """`begin` in the first process; None in the others."""
        if self._folder is None:
            return None
        saved, unusable = (
            (None, []) if self._checkpoints is None else self._checkpoints.newest(like, self._take_up)
        )
        if saved is not None:
            for one in unusable:
                say(
                    f"the checkpoint of round {one.round} cannot be used ({one.why}): it is kept as "
                    f"{self._folder.path / CHECKPOINTS / one.name}, and the run is resumed from round {saved.round}"
                )
            self.rounds = saved.round
            self._carry(saved.progress)
            self._folder.set_results_aside()  # an interrupted run's results cover fewer rounds
            return saved.state
        if self._folder.has_begun or unusable:
            why = "; ".join(f"round {one.round}: {one.why}" for one in unusable) or "there is none"
            raise ResumeError(
                f"run_dir={str(self._folder.path)!r}: rounds of this run were logged, but none of its checkpoints "
                f"can be used ({why}), so it cannot be resumed; nothing was deleted. Restore the damaged files, or "
                "begin another run in another folder and account for both"
            )
        self.entropy = self._draw() if self._seed is None else self._seed
        self._folder.write_json(CONFIG, {**self._public, "entropy": self.source})
        return None

    def _carried(self) -> dict[str, Any]:
        """Data of a resumed run that all its processes need; sensitive."""
        return {
            "entropy": f"{self.entropy:x}",
            "source": self.source,
            "tested": self.tested,
            "seconds": self.seconds,
        }

    def _carry(self, carried: Mapping[str, Any]) -> None:
        """Restores the data returned by `_carried`."""
        self.entropy, self.source = int(carried["entropy"], 16), carried["source"]
        self.tested = carried["tested"][0], carried["tested"][1]
        self._seconds_before = carried["seconds"]

    @contextlib.contextmanager
    def _heard_by_all(self) -> Iterator[None]:
        """Context in which an exception of the first process ends the other processes likewise."""
        try:
            yield
        except BaseException as error:
            if jax.process_index() == 0:
                told = str(error) or type(error).__name__
                gathered(json.dumps({"error": told, "finished": isinstance(error, FinishedError)}))
            raise

    def reached(self, target: float | None) -> bool:
        """True if the last round was evaluated and met the target accuracy."""
        if target is None or self.tested[0] != self.rounds or not self.rounds:
            return False
        accuracy = self.tested[1].get("accuracy")
        return accuracy is not None and accuracy >= target

    def log(self, line: Mapping[str, Any]) -> None:
        if self._folder is not None:
            self._folder.log(line)

    def checkpoint(self, state: State) -> None:
        """Saves the state if due, before any later round is observed.

        Raises:
          OSError: the checkpoint could not be written.
        """
        due = self._every and self.rounds % self._every == 0 and self.rounds < self._run.schedule.num_rounds
        if self._folder is None or self._checkpoints is None or not due:
            return
        self._folder.sync_metrics()
        progress = {
            **self._carried(),
            "metrics": self._folder.logged,
            "units": self._run.schedule.units(self.rounds),
        }
        if jax.process_count() > 1:
            state = jax.tree.map(np.asarray, state)  # equal in all processes
        self._checkpoints.save(self.rounds, state, progress)

    def finish(self, report: Report, parameters: Mapping[str, np.ndarray]) -> None:
        """Writes parameters and report; deletes checkpoints and the entropy in them, unless interrupted."""
        if self._folder is None:
            return
        self._folder.write_results(report.as_dict(), str(report), parameters)
        if self._checkpoints is not None and report.stopped != INTERRUPTED:
            self._checkpoints.delete_all()

    def _take_up(self, progress: Mapping[str, Any]) -> None:
        """Returns the folder to its state at a checkpoint.

        Raises:
          ResumeError: config.json is not that of this run, or lines of metrics.jsonl were changed.
          ValueError: metrics.jsonl lacks lines.
        """
        if self._folder is None:
            return
        self._check_config(self._folder)
        self._folder.repeat_after(progress["metrics"])

    def _check_config(self, folder: RunDirectory, *, but: tuple[str, ...] = ()) -> None:
        """Raises ResumeError if config.json is not that of this run, except for the names `but`."""
        found, public = folder.config(), json.loads(json.dumps(self._public))
        differing = [name for name in public if name not in but and found.get(name) != public[name]]
        if differing:
            raise ResumeError(
                f"{str(folder.path / CONFIG)!r}: not that of the run to be resumed: {', '.join(differing)} differ"
            )

    def _ended(self, folder: RunDirectory) -> ResumeError:
        """Error for an ended run without checkpoints: it has finished, or was interrupted."""
        self._check_config(folder, but=("version", "jax"))
        if folder.stopped == INTERRUPTED:
            return ResumeError(
                f"run_dir={str(folder.path)!r}: this run was interrupted and has no checkpoints, so it cannot be "
                "resumed; its report covers the rounds that were logged"
            )
        return FinishedError(
            f"run_dir={str(folder.path)!r}: this run has finished; there is nothing to resume"
        )
