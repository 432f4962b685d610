"""A run read back from its folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from checkin_jax import protocols, randomizers
from checkin_jax.training.config import TrainingConfig

_KINDS = {
    "protocol": {kind.__name__: kind for kind in protocols.PROTOCOLS},
    "randomizer": {kind.__name__: kind for kind in (randomizers.Gaussian, randomizers.PureLDP)},
}


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """What a run directory holds, of a run that has ended, was killed or goes on.

    Attributes:
      path: the folder.
      config: what was run.
      about: config.json as it is: the data set's name and versions beside the config.
      metrics: lines of metrics.jsonl, one a round; a last line cut short by a kill is left out.
      report: report.json, None where the run has not ended.
      statement: report.txt, None likewise.
    """

    path: Path
    config: TrainingConfig
    about: dict[str, Any]
    metrics: list[dict[str, Any]]
    report: dict[str, Any] | None
    statement: str | None

    @property
    def rounds(self) -> int:
        """Rounds that are accounted for: at least those that were logged."""
        return max(self.report["rounds"] if self.report else 0, len(self.metrics))


def read(run_dir: str | Path) -> RecordedRun:
    """Reads a run directory.

    Raises:
      FileNotFoundError: no such folder, or no config.json in it.
      ValueError: a file in it is damaged, or of a version that wrote other fields.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise FileNotFoundError(f"run_dir={str(run_dir)!r}: no such folder")
    about = _json(path / "config.json")
    fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    values = {name: value for name, value in about.items() if name in fields}
    try:
        for name, kinds in _KINDS.items():
            arguments = dict(values[name])
            values[name] = kinds[arguments.pop("kind")](**arguments)
        config = TrainingConfig(**values)
    except (KeyError, TypeError, ValueError) as error:
        version = about.get("version", "unknown")
        raise ValueError(
            f"{path / 'config.json'}: not a config of this version of checkin-jax (written by {version}): {error}"
        ) from error
    text = path / "report.txt"
    return RecordedRun(
        path,
        config,
        about,
        _lines(path / "metrics.jsonl"),
        _json(path / "report.json") if (path / "report.json").is_file() else None,
        text.read_text(encoding="utf-8") if text.is_file() else None,
    )


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; is this the folder of a run?")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file}: damaged: expected an object")
    return value


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise ValueError(f"{file}: damaged: {error}") from error
