"""Figures of a sweep: results against one axis, others as colours, dashes and panels. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from checkin_jax._plot_style import EIGHT
from checkin_jax.plotting import DASHES, figure, legend
from checkin_jax.sweeps.results import ANSWERS, KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LINES, _MAX_PANELS = 8, 4


def axis_along(axes: Mapping[str, np.ndarray], along: str | None = None) -> str:
    """Axis of the figure: `along`, or by default the numeric axis with the most values.

    Raises:
      ValueError: it is not a varying number, or the others have more values than lines and panels can show.
    """
    several = {name: len(np.unique(column)) for name, column in axes.items()}
    several = {name: count for name, count in several.items() if count > 1}
    numbers = [name for name in several if np.asarray(axes[name]).dtype.kind in "if"]
    if not numbers:
        raise ValueError("nothing to draw along: expected an axis of numbers with more than one value")
    along = max(numbers, key=lambda name: several[name]) if along is None else along.replace("-", "_")
    if along not in numbers:
        raise ValueError(f"plot axis {along!r}: expected a number that varies, one of {', '.join(numbers)}")
    for name in several:
        column = np.asarray(axes[name])
        if name != along and column.dtype.kind == "f" and np.isnan(column).any():
            raise ValueError(f"{name} has a value that is no number, which tells no lines apart")
    _groups({name: count for name, count in several.items() if name != along})
    return along


def _groups(others: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """(lines, panels): axes told apart by lines and by panels; axes with few values become panels."""
    lines: list[str] = []
    panels: list[str] = []
    room = {True: _MAX_LINES, False: _MAX_PANELS}
    for name, count in sorted(others.items(), key=lambda item: -item[1]):
        in_lines = count <= room[True]
        if not in_lines and count > room[False]:
            raise ValueError(
                f"{name} has {count} values: too many for {_MAX_LINES} lines and {_MAX_PANELS} panels together with "
                f"the other axes ({', '.join(f'{other} {n}' for other, n in others.items())}); give fewer values, or "
                "leave the picture out, and draw parts of the table"
            )
        room[in_lines] //= count
        (lines if in_lines else panels).append(name)
    return lines, panels


def picture(columns: Mapping[str, np.ndarray], what: str, along: str | None = None) -> Figure:
    """Figure of a sweep's results against one axis; the others as colours, dashes and panels.

    Brackets are bands between both proven ends; rows without a finite result are gaps.

    Raises:
      ValueError: as `axis_along`. ModuleNotFoundError: matplotlib is not installed.
    """
    axes = {name: column for name, column in columns.items() if name not in ANSWERS}
    along = axis_along(axes, along)
    several = {name: len(np.unique(column)) for name, column in axes.items() if name != along}
    lines, panels = _groups({name: count for name, count in several.items() if count > 1})
    shown = KINDS[what].numbers[0]
    if np.asarray(columns[shown]).dtype.kind not in "if":  # a column of empty cells in a file
        raise ValueError("nothing to draw: no setting has a result")
    drawn, places = figure(len(_values(axes, panels)))
    for axis, panel in zip(places, _values(axes, panels)):
        for line in _values(axes, lines):
            chosen = np.ones(len(axes[along]), dtype=bool)
            for name, value in {**panel, **line}.items():
                chosen &= axes[name] == value
            order = np.flatnonzero(chosen)[np.argsort(axes[along][chosen], kind="stable")]
            x, y = axes[along][order], columns[shown][order]
            y = np.where(np.isfinite(y), y, np.nan)
            color, dashes = _look(axes, line)
            if KINDS[what].band:
                lower = np.where(np.isnan(y), np.nan, columns["lower"][order])
                axis.fill_between(x, lower, y, color=color, alpha=0.25, linewidth=0)
            mark = "." if len(x) < 30 else None
            axis.plot(x, y, color=color, linestyle=dashes, label=_said(line), marker=mark)
        axis.set(xlabel=along.replace("_", " "))
        axis.set_title(_said(panel), fontsize=10)
        _scale(axis, axes[along], columns[shown])
    names = {"rdp": "Renyi divergence (nats)", "value": "value that meets the target"}
    places[0].set_ylabel(names.get(shown, "$\\varepsilon$ (nats)"))
    if lines:
        legend(drawn, 4 if len(lines) == 1 else 2, places[0])
    return drawn


def _look(axes: Mapping[str, np.ndarray], line: Mapping[str, object]) -> tuple[str, str]:
    """Colour of the first axis's value and dashes of the others'; colours alone if dashes do not suffice."""
    places = [np.unique(axes[name]).tolist().index(value) for name, value in line.items()]
    sizes = [len(np.unique(axes[name])) for name in line]
    first, rest = (places[0], sizes[0]) if places else (0, 1), (0, 1)
    for place, size in zip(places[1:], sizes[1:]):
        rest = rest[0] * size + place, rest[1] * size
    if rest[1] > len(DASHES):
        return EIGHT[first[0] * rest[1] + rest[0]], "-"
    return EIGHT[first[0]], DASHES[rest[0]]


def _values(axes: Mapping[str, np.ndarray], names: Sequence[str]) -> list[dict[str, object]]:
    """All combinations of the values of these axes; one empty combination without axes."""
    every = itertools.product(*(np.unique(axes[name]).tolist() for name in names))
    return [dict(zip(names, values)) for values in every]


def _said(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, int | float) else value}"
        for name, value in values.items()
    )


def _scale(axis: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Equal limits in every panel; logarithmic if values are positive and span more than a factor of ten."""
    if np.min(x) > 0 and np.max(x) > 10 * np.min(x):
        axis.set_xscale("log")
        _few_ticks(axis, float(np.max(x) / np.min(x)))
    y = y[np.isfinite(y)]
    if not y.size:
        return
    low, high = float(np.min(y)), float(np.max(y))
    if low > 0 and high > 10 * low:
        axis.set(yscale="log", ylim=(low / 1.5, high * 1.5))
    else:
        low = min(0.0, low)
        margin = 0.05 * (high - low) or 1.0
        axis.set_ylim(low - margin, high + margin)


def _few_ticks(axis: Axes, ratio: float) -> None:
    """Labels at 1, 2 and 5 on a logarithmic axis of few decades, instead of matplotlib's 2 to 6 long ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.xaxis.set_minor_formatter(NullFormatter())
    if ratio <= 1000:
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
