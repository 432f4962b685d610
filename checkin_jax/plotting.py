"""One look for every figure, and the numbers beside it: a picture and a CSV of the same name. Needs matplotlib."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By validity: what is proven is dark, what is only published lighter, what is no bound at all red.
COLORS = {"certified": "#123a6b", "published": "#5a9bd5", "estimate": "#8c8c8c", "invalid": "#c0392b"}
# Told apart by eye and in grey, for curves of one kind.
SERIES = ("#123a6b", "#d9822b", "#3a8f5c", "#8e5ea2", "#7f7f7f")
SUFFIXES = (".png", ".svg", ".pdf")


def _matplotlib() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "figures need matplotlib: install checkin-jax[plots]", name=error.name
        ) from error
    return Figure


def check(out: Path) -> Path:
    """Returns a name that `save` will take, so that it can be refused before any work.

    Raises:
      ValueError: out does not end in .png, .svg or .pdf.
      ModuleNotFoundError: matplotlib is not installed; install checkin-jax[plots].
    """
    if out.suffix not in SUFFIXES:
        raise ValueError(f"out={str(out)!r}: expected a name ending in {', '.join(SUFFIXES)}")
    _matplotlib()
    return out


def figure(panels: int = 1, *, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, not attached to any window.

    Raises:
      ModuleNotFoundError: matplotlib is not installed; install checkin-jax[plots].
    """
    Figure = _matplotlib()
    width = 5.2 if panels == 1 else 4.3 * panels
    drawn = Figure(figsize=(width, height), layout="constrained")
    axes = [drawn.add_subplot(1, panels, 1 + panel) for panel in range(panels)]
    for axis in axes:
        axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return drawn, axes


def bracket(
    axis: Axes,
    x: Sequence[float] | np.ndarray,
    lower: Sequence[float],
    upper: Sequence[float],
    label: str,
    color: str,
) -> None:
    """The band between proven ends; its upper end is the guarantee and drawn."""
    axis.fill_between(x, lower, upper, color=color, alpha=0.25, linewidth=0)
    axis.plot(x, upper, color=color, label=label)


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """The rows as CSV with a header, floats in full.

    Raises:
      ValueError: no rows.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("rows=[]: expected at least one row")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def save(drawn: Figure, out: Path, rows: Iterable[Mapping[str, object]]) -> tuple[Path, Path]:
    """Writes the picture to `out` and the numbers to the CSV of the same name; returns both paths.

    Raises:
      ValueError: out does not end in .png, .svg or .pdf, or no rows.
    """
    check(out)
    table = write_csv(out.with_suffix(".csv"), rows)
    drawn.savefig(out, dpi=200)
    return out, table


class Compared(Protocol):
    """What `comparison` draws of a bound; `checkin_jax.accounting.compare.ComparedBound` is one."""

    @property
    def method(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def direction(self) -> str: ...
    @property
    def validity(self) -> str: ...


def comparison(rows: Sequence[Compared]) -> Figure:
    """Every bound on one run on a logarithmic axis of epsilon, coloured by validity; lower bounds point right.

    Bounds of zero or infinity have no place on the axis and are named with their value at its edge.
    """
    drawn, (axis,) = figure(height=1.4 + 0.3 * len(rows))
    drawn.set_figwidth(8.0)
    values = [row.epsilon for row in rows if 0 < row.epsilon < np.inf]
    low, high = (min(values) / 2, max(values) * 4) if values else (0.1, 10.0)
    for place, row in enumerate(rows):
        color = COLORS[row.validity]
        shown = min(max(row.epsilon, low), high)
        axis.plot([low, shown], [place, place], color=color, linewidth=1, alpha=0.35)
        axis.plot(shown, place, ">" if row.direction == "lower" else "o", color=color)
        axis.annotate(f"{row.epsilon:.3g}", (shown, place), (7, -3), textcoords="offset points", fontsize=8)
    names = [row.method if row.validity != "invalid" else f"{row.method} (no bound)" for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.set(xscale="log", xlim=(low, high * 2), ylim=(len(rows) - 0.5, -0.5), xlabel="$\\varepsilon$ (nats)")
    kinds = [kind for kind in COLORS if any(row.validity == kind for row in rows)]
    for kind in kinds:
        axis.plot([], [], "o", color=COLORS[kind], label=kind)
    drawn.legend(loc="outside lower center", ncols=len(kinds), fontsize=8, frameon=False)
    return drawn
