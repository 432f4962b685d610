"""The table of figures by name, and their files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from checkin_jax import plotting
from checkin_jax.sweeps import tables
from checkin_jax.sweeps.figures import paper_figures
from checkin_jax.sweeps.figures.panel import Row

# Inches of a column, and points of its letters.
WIDTH, TEXT = 3.3, 7.0


class NamedFigure(NamedTuple):
    """A figure that can be asked for.

    description: one line about it. draw: draws on an axis, given points or source, and returns the rows that it shows.
    seconds: rough time on two cores, compiled before. points: values along each curve; 0: not a choice. source: it
    shows runs of training. height: over the width.
    """

    description: str
    draw: Callable[..., list[Row]]
    seconds: int
    points: int = 0
    source: bool = False
    height: float = 0.65


def _divergence(swept: str) -> Callable[..., list[Row]]:
    return functools.partial(paper_figures.divergence, swept=swept)


def _accuracy(against: str) -> Callable[..., list[Row]]:
    return functools.partial(paper_figures.accuracy, against=against)


_OF_ROUND = "Renyi divergence of a round against"
FIGURES = {
    "shuffled-check-in-figure-1a": NamedFigure(f"{_OF_ROUND} clients", _divergence("num_clients"), 3, 13),
    "shuffled-check-in-figure-1b": NamedFigure(
        f"{_OF_ROUND} check-in probability", _divergence("check_in_prob"), 2, 13
    ),
    "shuffled-check-in-figure-1c": NamedFigure(f"{_OF_ROUND} epsilon0", _divergence("epsilon0"), 2, 13),
    "shuffled-check-in-figure-2": NamedFigure(
        "epsilon against rounds: published bounds and the certified bracket", paper_figures.rounds, 5, 9
    ),
    "shuffled-check-in-figure-3": NamedFigure(
        "accuracy against epsilon of runs in --source: 3a of LDP-SGD, 3b of Gaussian messages",
        _accuracy("epsilon"),
        1,
        source=True,
        height=0.8,
    ),
    "shuffled-check-in-figure-4": NamedFigure(
        "accuracy against rounds of runs in --source", _accuracy("round"), 1, source=True, height=0.8
    ),
    "random-check-ins-figure-2": NamedFigure(
        "epsilon of shuffling against epsilon0: Theorem 5.1, Erlingsson et al., certified",
        paper_figures.shuffling,
        25,
        8,
        height=0.8,
    ),
    "random-check-ins-clients": NamedFigure(
        "clients that Erlingsson et al. need for one of Theorem 5.1", paper_figures.fewer_clients, 1, 39
    ),
}


def write(
    chosen: NamedFigure,
    out: Path,
    data: Path | None = None,
    *,
    width: float = WIDTH,
    text: float = TEXT,
    **given: Any,
) -> None:
    """Draws a figure into a file, and writes the numbers that it shows.

    Args:
      chosen: the figure.
      out: .pdf, .svg or .png.
      data: .csv for the numbers.
      width: inches.
      text: points of all letters.
      **given: points or source, as the figure takes it.
    """
    import matplotlib

    scale = text / TEXT
    sizes = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")
    lines = {"axes.linewidth": 0.5, "lines.linewidth": 1.0, "lines.markersize": 3.0, "patch.linewidth": 0.7}
    ticks = {"major.width": 0.5, "minor.width": 0.4, "major.size": 2.5, "minor.size": 1.5}
    lines |= {f"{axis}tick.{name}": points for axis in "xy" for name, points in ticks.items()}
    style: Any = {
        **dict.fromkeys(sizes, text),
        **{name: points * scale for name, points in lines.items()},
        # Letters stay letters, in an SVG and as journals want it in a PDF; equal figures are equal files.
        "svg.fonttype": "none",
        "svg.hashsalt": "checkin-jax",
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(style):
        drawn, (axis,) = plotting.figure()
        drawn.set_size_inches(width, chosen.height * width)
        rows = chosen.draw(axis, **given)
        plotting.write(drawn, out)
    if data is not None:
        tables.write_rows(data, rows)
