"""Tables of texts: on a terminal in aligned columns, and in Markdown for a page that somebody else writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], between: str = "  ", least: Sequence[int] = ()) -> str:
    """Rows, the first of them heads, in columns of their widest cell; a row of one cell is a line of its own.

    least: widths that the first columns have at least.
    """
    cells = zip(*(row for row in rows if len(row) > 1))
    widths = [
        max([wide, *map(len, column)])
        for column, wide in zip(cells, itertools.chain(least, itertools.repeat(0)))
    ]
    lines = (
        between.join(f"{cell:<{width}}" for cell, width in zip(row, widths)) for row in rows if len(row) > 1
    )
    return "\n".join((next(lines) if len(row) > 1 else row[0]).rstrip() for row in rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of Markdown; a row of one cell stands in the first column."""
    head, *below = rows
    filled = [head, ["---"] * len(head), *([*row, *[""] * (len(head) - len(row))] for row in below)]
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in filled)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)
