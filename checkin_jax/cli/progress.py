"""Progress on standard error: a bar on a terminal, else one line per evaluation."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from checkin_jax._rounding import up


class _Bar:
    """Progress bar: steps done, further fields, and the time left; use as a context manager.

    Args:
      unit: name of the counted steps.
      total: number of steps; None if not known yet.
      texts: further columns, with fields by name.
      fields: first values of the fields.
    """

    def __init__(self, unit: str, total: int | None, texts: tuple[str, ...], **fields: Any) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn(unit),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            *(TextColumn(text) for text in texts),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, **fields)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()


class RoundBar(_Bar):
    """Progress of a training run: round, check-ins, accuracy, and epsilon so far, rounded up.

    Args:
      num_rounds: length of the bar.
    """

    def __init__(self, num_rounds: int) -> None:
        names = "check-ins", "accuracy", "epsilon"
        texts = tuple(f"{name} {{task.fields[{name.replace('-', '_')}]}}" for name in names)
        self._total = num_rounds
        super().__init__("round", num_rounds, texts, check_ins="-", accuracy="-", epsilon="-")

    def __call__(self, line: dict[str, Any]) -> None:
        """Shows one metrics line; accuracy and epsilon remain until the next evaluation."""
        fields: dict[str, Any] = {"check_ins": f"{line['check_ins']:,}"}
        if line.get("accuracy") is not None:
            fields["accuracy"] = f"{line['accuracy']:.1%}"
        if "epsilon" in line:
            epsilon = line["epsilon"]
            fields["epsilon"] = "infinite" if epsilon is None else f"{up(epsilon, 3)} (view {line['view']})"
        if self._progress.disable and len(fields) > 1:
            told = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "check_ins")
            with contextlib.suppress(OSError):  # a closed stream must not end the run
                print(f"round {line['round']:,} of {self._total:,}: {told}", file=sys.stderr, flush=True)
        self._progress.update(self._task, completed=line["round"], **fields)


class RowBar(_Bar):
    """Progress of a sweep: rows, and rows per second."""

    def __init__(self) -> None:
        super().__init__("settings", None, ("{task.fields[rate]} a second",), rate="-")

    def __call__(self, done: int, total: int) -> None:
        """Shows the number of finished rows."""
        speed = self._progress.tasks[0].speed
        rate = "-" if speed is None else f"{speed:,.0f}"
        self._progress.update(self._task, completed=done, total=total, rate=rate)
