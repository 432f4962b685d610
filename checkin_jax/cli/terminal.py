"""Lines of text and tables in aligned columns on a terminal, broken to its width."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO


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
