"""Figure of a sweep: results against one axis, a line for each combination of the others. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from checkin_jax.plotting import EIGHT, figure, legend, scale
from checkin_jax.sweeps.figures import WORDS
from checkin_jax.sweeps.results import ANSWERS, KINDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = list[dict[str, object]]

# Lines of fewer points show them.
_FEW = 8


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
        told = ", ".join(f"{len(values)} of {name}" for name, values in others.items())
        raise ValueError(
            f"more than {len(EIGHT)} lines ({told}): give fewer values, or leave the picture out, and draw "
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
        axis.plot(x, y, color=color, label=_said(line), marker="." if len(x) < _FEW else None)
    axis.set(xlabel=_named(along))
    scale(axis, "x", _if_positive(axes[along]))
    scale(axis, "y", _if_positive(columns[shown]))
    axis.set_ylabel(WORDS[shown])
    if len(lines) > 1:
        legend(drawn, 4 if len(lines[0]) == 1 else 2, axis)
    return drawn


def _if_positive(values: np.ndarray) -> list[float]:
    """The finite values if all are positive, else none: a logarithmic axis would leave some out."""
    finite = values[np.isfinite(values)]
    return finite.tolist() if np.all(finite > 0) else []


def _named(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _said(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{_named(name)} = {f'{value:.4g}' if isinstance(value, int | float) else value}"
        for name, value in values.items()
    )
