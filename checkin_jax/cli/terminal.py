"""Output of a command: lines and columns, broken to a terminal's width; progress of long commands; interrupts."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from checkin_jax._rounding import up


def say(*lines: str, to: TextIO | None = None) -> None:
    """Prints lines at once, on standard output by default, wrapped to the width of a terminal."""
    width = terminal_width(to)
    print(*(broken(line, width) for line in lines), sep="\n", flush=True, file=to)


# A last column narrower than this is not wrapped.
_NARROWEST = 16
# Name of a line of a statement, with the space before its text.
_NAMED = re.compile(r"  (?=.{11}\S)(\S+(?: \S+)?  +|randomizer |prior [.\d]+ )")


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal behind the stream (standard output by default); None for a file or a pipe."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def broken(text: str, width: int | None) -> str:
    """Text wrapped between words; continuations of a named line of a statement are aligned with its text.

    width: of the lines at most, as far as words allow; None: the text as it is.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        hang = " " * (len(found[0]) if (found := _NAMED.match(line)) else len(line) - len(line.lstrip(" ")))
        breaks = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": hang}
        lines += textwrap.wrap(line, width, **breaks) if len(line) > width else [line]
    return "\n".join(lines)


def columns(
    rows: Sequence[Sequence[str]], between: str = "  ", least: Sequence[int] = (), width: int | None = None
) -> str:
    """Rows, headings first, in columns as wide as their widest cell; a row of one cell is a full line.

    least: minimum widths of the first columns. width: of the table, beyond which the last column is wrapped.
    """
    cells = zip(*(row for row in rows if len(row) > 1))
    widths = [
        max([wide, *map(len, column)])
        for column, wide in zip(cells, itertools.chain(least, itertools.repeat(0)))
    ]
    before = sum(widths[:-1]) + len(between) * len(widths[:-1])
    room = None if width is None or width - before < _NARROWEST else width - before
    lines = []
    for row in rows:
        if len(row) == 1:
            lines.append(row[0].rstrip())
            continue
        last = [row[-1]] if room is None else textwrap.wrap(row[-1], room) or [""]
        padded = [f"{cell:<{wide}}" for cell, wide in zip(row[:-1], widths)]
        lines.append(between.join([*padded, last[0]]).rstrip())
        lines += [" " * before + more for more in last[1:]]
    return "\n".join(lines)


class _Bar(Progress):
    """Progress bar: steps done, further fields, and the time left; use as a context manager.

    Args:
      unit: name of the counted steps.
      total: number of steps; None if not known yet.
      texts: further columns, with fields by name.
      fields: first values of the fields.
    """

    def __init__(self, unit: str, total: int | None, texts: tuple[str, ...], **fields: Any) -> None:
        console = Console(stderr=True)
        super().__init__(
            TextColumn(unit),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            *(TextColumn(text) for text in texts),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.add_task("", total=total, **fields)


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
        if self.disable and len(fields) > 1:
            told = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "check_ins")
            with contextlib.suppress(OSError):  # a closed stream must not end the run
                print(f"round {line['round']:,} of {self._total:,}: {told}", file=sys.stderr, flush=True)
        self.update(self._task, completed=line["round"], **fields)


class RowBar(_Bar):
    """Progress of a sweep: rows, and rows per second."""

    def __init__(self) -> None:
        super().__init__("settings", None, ("{task.fields[rate]} a second",), rate="-")

    def __call__(self, done: int, total: int) -> None:
        """Shows the number of finished rows."""
        speed = self.tasks[0].speed
        rate = "-" if speed is None else f"{speed:,.0f}"
        self.update(self._task, completed=done, total=total, rate=rate)


_SAID = "interrupted: writing a report of the rounds so far (a second interrupt ends at once, without it)"


class Interrupts:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt while a run goes on; use as a context manager.

    The first signal prints a line at once; a second one ends the process. After a signal, leaving the context prints
    what the run directory contains and exits with code 130 or 143, even if a library's callback swallowed the
    exception.

    Args:
      run_dir: of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._number = run_dir, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Other threads may not set handlers; signals ignored by the parent process stay ignored.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._take)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        sys.unraisablehook = self._hook
        if kind is KeyboardInterrupt or (self._number and kind is None):
            print(_kept(self._run_dir), file=sys.stderr)
            sys.exit(128 + (self._number or signal.SIGINT))

    def watching(self, on_round: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """Wraps a callback on a round's line: it also ends the run if an interrupt was swallowed."""

        def watched(line: dict[str, Any]) -> None:
            on_round(line)
            if self._number:
                raise KeyboardInterrupt

        return watched

    def _swallowed(self, what: sys.UnraisableHookArgs) -> None:
        """Suppresses the traceback of an interrupt swallowed by a callback; its line was printed."""
        if what.exc_type is not KeyboardInterrupt:
            self._hook(what)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        # Not by print, which the signal may have interrupted.
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{_SAID}{os.linesep}".encode())
        raise KeyboardInterrupt


def _kept(run_dir: Path) -> str:
    metrics = run_dir / "metrics.jsonl"
    rounds = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
    if not rounds:
        return f"no round has run: {run_dir} may be used again"
    report = (run_dir / "report.json").exists()
    kept = f"{run_dir} keeps the metrics of {rounds:,} rounds" + (", parameters and report" if report else "")
    if (run_dir / "checkpoints").is_dir():
        return f"{kept}, and checkpoints: the same command with --resume goes on"
    return f"{kept}; without --checkpoint-every it cannot go on"
