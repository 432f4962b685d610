"""Runs read back from their folders: settings, metrics, parameters, and evaluations of accuracy and epsilon."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from checkin_jax import _validate
from checkin_jax._files import object_of, read_object, undamaged
from checkin_jax._serialize import from_plain
from checkin_jax._validate import optional
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer
from checkin_jax.reports import declarations
from checkin_jax.reports.declarations import Deployment
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.runs.processes import say
from checkin_jax.training.runs.run_directory import CHECKPOINTS

if TYPE_CHECKING:
    from checkin_jax.training.model import Model
    from checkin_jax.training.private.clients import Parameters


# Numbers of an evaluation that do not come from the model's own metrics.
LINE = (
    "round",
    "check_ins",
    "window",
    "epsilon",
    "epsilon_lower",
    "view",
    "method",
    "spent",
    "spent_lower",
)

# Settings in which runs of equal settings may differ.
OWN = ("seed", "entropy")
# Settings that an audit must share with its run.
AUDITED = ("protocol", "randomizer", "clip_norm", "simulate")


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """Contents of a run directory, for a run that has ended, was killed or is under way.

    Attributes:
      path: the folder.
      run: the settings that determine its privacy.
      about: config.json as stored: other settings, the data set's name and versions, beside the run.
      metrics: lines of metrics.jsonl, one per round, without an incomplete last line.
      report: report.json; None if the run has not ended.
      statement: report.txt; None if the run has not ended.
      checkpointed: rounds of the newest checkpoint, usable or not; 0 if there is none.
    """

    path: Path
    run: PrivateRun
    about: dict[str, Any]
    metrics: list[dict[str, Any]]
    report: dict[str, Any] | None
    statement: str | None
    checkpointed: int = 0

    @property
    def rounds(self) -> int:
        """Rounds that are accounted for: at least those that were logged, and those of the newest checkpoint."""
        return max(self.report["rounds"] if self.report else 0, len(self.metrics), self.checkpointed)

    @property
    def rounds_within_budget(self) -> int:
        """Rounds to be run: all, or the number that fits into the budget."""
        return self.about.get("rounds_within_budget", self.run.schedule.num_rounds)

    @property
    def deployment(self) -> Deployment:
        """Declarations of the deployer, from deployment.toml; empty if there is no such file."""
        declared_there = self.path / declarations.FILE
        return declarations.read(declared_there) if declared_there.is_file() else Deployment()

    @property
    def audit(self) -> dict[str, Any] | None:
        """Last audit of the run, from audit.json; None: there was none.

        Raises:
          ValueError: the file is damaged, or belongs to another run. OSError: it cannot be read.
        """
        found = declarations.audit_of(self.path)
        if found is None:
            return None
        mine = json.loads(json.dumps(self.run.as_dict()))
        for name in AUDITED:
            if found.get(name) != mine[name]:
                raise ValueError(f"{self.path / declarations.AUDIT}: of another run: {name} differs")
        return found

    @property
    def spent(self) -> tuple[tuple[CheckInProtocol, Randomizer], ...]:
        """Ledger of all runs on the clients' records up to now, in the form of `PrivateRun.before`.

        A run that has ended counts with all rounds that were to be run: an early end may be due to a result.
        """
        counted = self.rounds if self.report is None else self.rounds_within_budget
        if not counted:
            return self.run.before
        return (*self.run.before, (self.run.schedule.so_far(counted), self.run.randomizer))


def of_equal_settings(runs: Iterable[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Groups runs that differ in their entropy only, under the common part of `NAME_1`, `NAME_2` ....

    Returns:
      Groups in the order of their first runs; a group of one run has its folder's name.
    """
    groups: dict[str, list[RecordedRun]] = collections.defaultdict(list)
    for run in runs:
        settings = {name: value for name, value in run.about.items() if name not in OWN}
        groups[json.dumps(settings, sort_keys=True)].append(run)
    named = {}
    for group in groups.values():
        first = group[0].path.name
        common = first if len(group) == 1 else first.rpartition("_")[0]
        named[first if not common or common in named else common] = group
    return named


def read(run_dir: str | Path) -> RecordedRun:
    """Reads a run directory.

    Args:
      run_dir: the folder. If metrics.jsonl lacks lines of rounds that ran, standard error has one line of warning.

    Raises:
      FileNotFoundError: no such folder, or no config.json in it.
      ValueError: a file in it is damaged, or of a version with other fields; or metrics.jsonl of a run that has not
        ended is gone.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise FileNotFoundError(f"run_dir={str(run_dir)!r}: no such folder")
    about = _json(path / "config.json")
    fields = {field.name for field in dataclasses.fields(PrivateRun)}
    values = {name: value for name, value in about.items() if name in fields}
    try:
        if "minibatch" in about:
            raise _validate.error("in the protocol", minibatch=about["minibatch"])
        for name, base in (("protocol", CheckInProtocol), ("randomizer", Randomizer)):
            values[name] = from_plain(values[name], base, complete=False)
        values["before"] = [
            (
                from_plain(pair["protocol"], CheckInProtocol, complete=False),
                from_plain(pair["randomizer"], Randomizer, complete=False),
            )
            for pair in values.get("before", [])
        ]
        run = PrivateRun(**values)
        if "rounds_within_budget" in about:
            most = run.schedule.num_rounds
            _validate.integer(1, most, rounds_within_budget=about["rounds_within_budget"])
    except (KeyError, TypeError, ValueError) as error:
        version = about.get("version", "unknown")
        raise ValueError(
            f"{path / 'config.json'}: not a config of this version of checkin-jax (written by {version}): {error}"
        ) from error
    metrics, report, text = path / "metrics.jsonl", path / "report.json", path / "report.txt"
    planned = run.schedule.num_rounds
    if not metrics.is_file() and not report.is_file():
        raise ValueError(f"{metrics}: gone, so that nobody knows how many rounds ran; restore it")
    found = RecordedRun(
        path,
        run,
        about,
        _lines(metrics, planned) if metrics.is_file() else [],
        _report(report, planned) if report.is_file() else None,
        _text(text) if text.is_file() else None,
        min(_checkpointed(path / CHECKPOINTS), planned),
    )
    if len(found.metrics) < found.rounds:
        say(
            f"{metrics}: lines of {len(found.metrics):,} of {found.rounds:,} rounds are there; epsilon counts all "
            "rounds, curves and counts of check-ins lack the others"
        )
    return found


def load(run_dir: str | Path, model: Model | None = None) -> Parameters:
    """Reads the parameters of a run, in the structure of the model's own, as `model.loss` takes them.

    Args:
      run_dir: folder of a run that has ended, or was interrupted.
      model: the trained model; `init` is not run, only its shapes are used. None: NumPy arrays in
        dictionaries, by the names on their paths.

    Raises:
      FileNotFoundError: no such folder, or no parameters in it.
      ValueError: the file is damaged, or of another model.
    """
    file = Path(run_dir) / "parameters.npz"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; has the run ended?")
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file}: damaged: {error}") from error
    if model is None:
        return _nested(arrays)
    from checkin_jax.training.model import from_named_arrays  # a caller with a model has already imported it

    try:
        return from_named_arrays(jax.eval_shape(model.init, jax.random.key(0)), arrays)
    except ValueError as error:
        raise ValueError(f"{file}: of another model: {error}") from error


def predictor(run_dir: str | Path, model: Model) -> Callable[..., Any]:
    """`model.apply` with the parameters of a run.

    Args:
      run_dir: folder of a run that has ended, or was interrupted.
      model: the trained model, with its `apply`.

    Returns:
      input ... -> output, compiled at its first call; using it costs no privacy.

    Raises:
      ValueError: the model has no `apply`; and as `load`.
    """
    if model.apply is None:
        raise _validate.error("one with `apply`, which is None", model=model.name)
    return jax.jit(functools.partial(model.apply, load(run_dir, model)))


def _nested(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Nested dictionaries from arrays by paths such as "conv1/kernel"."""
    out: dict[str, Any] = {}
    for path, array in arrays.items():
        *folders, name = path.split("/")
        inner = out
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = array
    return out


def _checkpointed(folder: Path) -> int:
    """The largest round in the names of checkpoints: whole, half-written or moved aside; 0 if there is none."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    found = (re.match(r"(?:unused-)?(\d+)(?:[.-]|$)", name) for name in names)
    return max((int(each[1]) for each in found if each), default=0)


def _text(file: Path) -> str:
    with undamaged(file):
        return file.read_text(encoding="utf-8")


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; is this the folder of a run?")
    return read_object(file)


def _report(file: Path, planned: int) -> dict[str, Any]:
    report = _json(file)
    notes = report.get("notes")
    with undamaged(file):
        _validate.integer(1, planned, rounds=report.get("rounds"))  # type: ignore[arg-type]
        optional(_validate.real, 0, 1, accuracy=report["accuracy"])
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise _validate.error("texts", notes=notes)
    return report


def _lines(file: Path, planned: int) -> list[dict[str, Any]]:
    """Consecutive rounds from the first on, without an incomplete last line."""
    lines = _text(file).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    with undamaged(file):
        found = [object_of(line) for line in lines]
        if len(found) > planned:
            raise ValueError(f"{len(found)} rounds: expected at most {planned}")
        for i, line in enumerate(found, 1):
            _validate.integer(i, i, round=line.get("round"))  # type: ignore[arg-type]
            _validate.integer(0, check_ins=line.get("check_ins"))  # type: ignore[arg-type]
            optional(_validate.real, 0, 1, accuracy=line.get("accuracy"))
            for name in ("spent", "spent_lower"):
                for view in VIEWS if name in line else ():
                    optional(_validate.real, 0, math.inf, "[)", **{name: line[name][view]})
    return found


def evaluations(runs: Path) -> list[dict[str, Any]]:
    """Evaluations with figures of privacy of every run directory in a folder, as the runs wrote them.

    Returns:
      A row an evaluation, runs of equal settings together: setting (in words, no two settings alike), run, dataset,
      round, accuracy, view, lower, epsilon (infinite where null), delta, method.

    Raises:
      ValueError: no run with such an evaluation there, or a damaged file. OSError: one cannot be read.
    """
    found = [read(path.parent) for path in sorted(runs.glob("*/metrics.jsonl"))]
    groups = [*of_equal_settings(found).values()]
    told = [
        {"setting": words, **evaluation}
        for words, group in zip(_in_words(groups), groups)
        for run in group
        for evaluation in _of_one(run)
    ]
    if not told:
        raise ValueError(f"{runs}: expected run directories that evaluated accuracy and epsilon")
    return told


def _in_words(groups: Sequence[Sequence[RecordedRun]]) -> list[str]:
    """Words for each setting: its messages, then its clients, then a number, where these tell it from others."""
    words = [group[0].run.randomizer.description for group in groups]
    for more in (
        lambda i: f"{groups[i][0].run.protocol.num_clients:,} clients",
        lambda i: f"setting {i + 1}",
    ):
        count = collections.Counter(words)
        words = [f"{each}, {more(i)}" if count[each] > 1 else each for i, each in enumerate(words)]
    return words


def _of_one(run: RecordedRun) -> list[dict[str, Any]]:
    lines = [line for line in run.metrics if "epsilon" in line and "accuracy" in line]
    return [
        {
            "run": run.path.name,
            "dataset": run.about.get("dataset"),
            "round": line["round"],
            "accuracy": line["accuracy"],
            "view": line.get("view", "messages"),
            **{
                end: math.inf if line[name] is None else line[name]
                for end, name in (("lower", "epsilon_lower"), ("epsilon", "epsilon"))
            },
            "delta": run.run.delta,
            "method": line.get("method"),
        }
        for line in lines
    ]
