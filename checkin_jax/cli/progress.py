"""A progress bar for a terminal: round, check-ins, accuracy and epsilon so far."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from checkin_jax._rounding import up


class RoundBar:
    """Shows the metrics line of every round on standard error; writes nothing when that is no terminal.

    Args:
      num_rounds: length of the bar.
    """

    def __init__(self, num_rounds: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("check-ins {task.fields[check_ins]}"),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TextColumn("epsilon {task.fields[epsilon]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=num_rounds, check_ins="-", accuracy="-", epsilon="-")

    def __enter__(self) -> RoundBar:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def __call__(self, line: dict[str, Any]) -> None:
        """Takes one metrics line; accuracy and epsilon stay on display until the next evaluation."""
        fields: dict[str, Any] = {"check_ins": f"{line['check_ins']:,}"}
        if "accuracy" in line:
            fields["accuracy"] = f"{line['accuracy']:.1%}"
        if "epsilon" in line:
            epsilon = line["epsilon"]
            fields["epsilon"] = "infinite" if epsilon is None else f"{up(epsilon, 3)} (view {line['view']})"
        self._progress.update(self._task, completed=line["round"], **fields)
