"""Tables of texts: on a terminal in aligned columns, and in Markdown for a page that somebody else writes."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Sequence

# A last column that would be narrower is not broken.
_NARROWEST = 16


def terminal_width() -> int | None:
    """The columns of the terminal that is printed to; None where it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def columns(
    rows: Sequence[Sequence[str]], between: str = "  ", least: Sequence[int] = (), width: int | None = None
) -> str:
    """Rows, the first of them heads, in columns of their widest cell; a row of one cell is a line of its own.

    least: widths that the first columns have at least. width: of the table, beyond which the last column goes on below.
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


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of Markdown; a row of one cell stands in the first column."""
    head, *below = rows
    filled = [head, ["---"] * len(head), *([*row, *[""] * (len(head) - len(row))] for row in below)]
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in filled)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)
