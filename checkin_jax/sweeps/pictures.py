"""Figure of a sweep: results against one axis, a line for each combination of the others. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from checkin_jax._plot_style import EIGHT
from checkin_jax.plotting import figure, legend
from checkin_jax.sweeps.results import ANSWERS, KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = list[dict[str, object]]


def axis_and_lines(axes: Mapping[str, np.ndarray], along: str | None = None) -> tuple[str, Lines]:
    """(axis, lines): `along`, or by default the numeric axis with the most values; and all values of the others.

    Raises:
      ValueError: it is not a varying number, or the others have more combinations than there are colours.
    """
    several = {name: np.unique(column) for name, column in axes.items()}
    several = {name: values for name, values in several.items() if len(values) > 1}
    numbers = [name for name, values in several.items() if values.dtype.kind in "if"]
    if not numbers:
        raise ValueError("nothing to draw along: expected an axis of numbers with more than one value")
    along = max(numbers, key=lambda name: len(several[name])) if along is None else along.replace("-", "_")
    if along not in numbers:
        raise ValueError(f"plot axis {along!r}: expected a number that varies, one of {', '.join(numbers)}")
    others = {name: values.tolist() for name, values in several.items() if name != along}
    for name, values in others.items():
        if any(value != value for value in values):
            raise ValueError(f"{name} has a value that is no number, which tells no lines apart")
    lines = [
        dict(zip(others, values))
        for values in itertools.islice(itertools.product(*others.values()), len(EIGHT) + 1)
    ]
    if len(lines) > len(EIGHT):
        told = ", ".join(f"{name} {len(values)}" for name, values in others.items())
        raise ValueError(
            f"more than {len(EIGHT)} lines ({told} values): give fewer values, or leave the picture out, and draw "
            "parts of the table"
        )
    return along, lines


def picture(columns: Mapping[str, np.ndarray], what: str, along: str | None = None) -> Figure:
    """Figure of a sweep's results against one axis; the others as colours.

    Brackets are bands between both proven ends; rows without a finite result are gaps.

    Raises:
      ValueError: as `axis_and_lines`. ModuleNotFoundError: matplotlib is not installed.
    """
    axes = {name: column for name, column in columns.items() if name not in ANSWERS}
    along, lines = axis_and_lines(axes, along)
    shown = KINDS[what].numbers[0]
    if np.asarray(columns[shown]).dtype.kind not in "if":  # a column of empty cells in a file
        raise ValueError("nothing to draw: no setting has a result")
    drawn, (axis,) = figure()
    for line, color in zip(lines, EIGHT):
        chosen = np.ones(len(axes[along]), dtype=bool)
        for name, value in line.items():
            chosen &= axes[name] == value
        order = np.flatnonzero(chosen)[np.argsort(axes[along][chosen], kind="stable")]
        x, y = axes[along][order], columns[shown][order]
        y = np.where(np.isfinite(y), y, np.nan)
        if KINDS[what].band:
            lower = np.where(np.isnan(y), np.nan, columns["lower"][order])
            axis.fill_between(x, lower, y, color=color, alpha=0.25, linewidth=0)
        axis.plot(x, y, color=color, label=_said(line), marker="." if len(x) < 30 else None)
    axis.set(xlabel=along.replace("_", " "))
    _scale(axis, axes[along], columns[shown])
    names = {"rdp": "Renyi divergence (nats)", "value": "value that meets the target"}
    axis.set_ylabel(names.get(shown, "$\\varepsilon$ (nats)"))
    if len(lines) > 1:
        legend(drawn, 4 if len(lines[0]) == 1 else 2, axis)
    return drawn


def _said(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, int | float) else value}"
        for name, value in values.items()
    )


def _scale(axis: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Makes axes logarithmic whose values are positive and span more than a factor of ten."""
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
