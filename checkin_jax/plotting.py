"""Figures of one style. Needs matplotlib."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from checkin_jax._files import ending, in_folder, replacing
from checkin_jax._suggest import how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Distinguish lines if colours have another meaning, or do not suffice.
DASHES = ("-", "--", ":", "-.")

SUFFIXES = (".png", ".svg", ".pdf")


def _matplotlib() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"figures need matplotlib: {how_to_install('plots')}", name="matplotlib"
        ) from error
    return Figure


def available() -> bool:
    """True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check(**file: Path) -> Path:
    """The one keyword's path, if `write` accepts it; checked before any work.

    Raises:
      ValueError: it does not end in .png, .svg or .pdf, or its folder does not exist.
      ModuleNotFoundError: matplotlib is not installed, which the extra `plots` installs.
    """
    ending(SUFFIXES, **file)
    _matplotlib()
    return in_folder(**file)


def figure(
    rows: int = 1, columns: int = 1, *, height: float = 3.6, **layout: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with panels in a grid, not attached to any window; layout: as of `Figure.subplots`.

    Raises:
      ModuleNotFoundError: matplotlib is not installed, which the extra `plots` installs.
    """
    Figure = _matplotlib()
    drawn = Figure(figsize=(5.2, height), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False, **layout).ravel().tolist()
    for axis in axes:
        axis.grid(True, which="major", color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return drawn, axes


def legend(drawn: Figure, columns: int, keys: Axes | None = None) -> None:
    """Legend below the panels, of one panel's curves or of all, in at most `columns` columns that fit.

    Letters have 8 points at most. If it does not fit, the figure is widened, since anything outside of the canvas is
    cut off.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    size = min(8, matplotlib.rcParams["font.size"])
    renderer = FigureCanvasAgg(drawn).get_renderer()
    shown = () if keys is None else keys.get_legend_handles_labels()
    for count in range(columns, 0, -1):
        key = drawn.legend(*shown, loc="outside lower center", ncols=count, fontsize=size, frameon=False)
        wanted = key.get_window_extent(renderer).width / drawn.dpi
        if wanted <= drawn.get_figwidth() or count == 1:
            drawn.set_figwidth(max(wanted, drawn.get_figwidth()))
            return
        key.remove()


def scale(axis: Axes, which: Literal["x", "y"], values: Iterable[float]) -> None:
    """Makes an axis logarithmic for values that span more than a decade; otherwise it begins at zero.

    Only positive and finite `values` count. Over few decades the labels are at 1, 2 and 5, since matplotlib's 2 to 6
    are long and overlap.
    """
    shown = [value for value in values if 0 < value < math.inf]
    if (ratio := max(shown, default=1.0) / min(shown, default=1.0)) > 10:
        axis.set(**{f"{which}scale": "log"})
        labels = axis.xaxis if which == "x" else axis.yaxis
        if ratio <= 1000:
            from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

            labels.set_minor_formatter(NullFormatter())
            labels.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            labels.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set(**{f"{which}lim": (0, None)})


def band(
    axis: Axes, x: Any, lower: Any, upper: Any, style: str = "-", *, sideways: bool = False, **look: Any
) -> None:
    """Draws a curve of upper ends and a band down to the lower ends; sideways: x upwards. look: as of `Axes.plot`."""
    fill = axis.fill_betweenx if sideways else axis.fill_between
    fill(x, lower, upper, color=look["color"], alpha=0.25, linewidth=0)
    axis.plot(*((upper, x) if sideways else (x, upper)), style, **look)


def write(drawn: Figure, out: Path) -> None:
    """Writes a picture atomically, without its date. An SVG follows the page's theme."""
    made = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(out.suffix)
    drawn.savefig(held := io.BytesIO(), format=out.suffix[1:], dpi=300, metadata=made)
    with replacing(out) as stream:
        stream.write(adaptive(held.getvalue().decode()).encode() if out.suffix == ".svg" else held.getvalue())


# By validity: proven is dark, published lighter, invalid red (and dashed).
COLORS = {"certified": "#123a6b", "published": "#5a9bd5", "estimate": "#8c8c8c", "invalid": "#c0392b"}
# For curves of one kind: colours of Okabe and Ito, distinguishable with all colour vision, and by brightness
# in grey.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f")
# For more than five curves.
EIGHT = (*SERIES, "#6b5b00", "#b03a5b", "#17a2b8")
GRID = "#dddddd"
# Dark variants.
DARK = {
    "#ffffff": "#1e2129",
    "#000000": "#e6e6e6",
    GRID: "#3b404c",
    "#123a6b": "#a8c7fa",
    "#5a9bd5": "#4f86c0",
    "#8c8c8c": "#9a9a9a",
    "#c0392b": "#ff8a75",
    "#0072b2": "#56b4e9",
    "#d55e00": "#ff9a4d",
    "#d9822b": "#ffab5c",
    "#009e73": "#43cfa3",
    "#cc79a7": "#e9a6c9",
    "#7f7f7f": "#a6a6a6",
    "#17a2b8": "#5fd3e4",
    "#b03a5b": "#f0839f",
    "#6b5b00": "#cdb84a",
}


def adaptive(svg: str) -> str:
    """An SVG by matplotlib that switches to dark colours if the viewer prefers them."""
    rules = [
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    ]
    rules += [
        f'text:not([style*="fill:"]){{fill:{DARK["#000000"]}}}',
        f'[id^="text_"]{{fill:{DARK["#000000"]}}}',
    ]
    style = "<style>@media (prefers-color-scheme: dark){" + "".join(rules) + "}</style>"
    return re.sub(r"<defs>", lambda _: style + "\n <defs>", svg, count=1)


def name_ends(axis: Axes, curves: Iterable[tuple[Sequence[float], Sequence[float], str, str]]) -> None:
    """Names curves at their right ends, in their colours, moved apart where they would touch.

    curves: x, y, name and colour of each. Scales and limits of the axis are set before. Letters have 8.5 points at
    most.
    """
    import matplotlib
    from scipy.optimize import isotonic_regression

    size = min(8.5, matplotlib.rcParams["font.size"])
    ends = []
    for x, y, name, color in curves:
        last = int(np.flatnonzero(np.isfinite(np.asarray(y, float)))[-1])
        ends.append((float(axis.transData.transform((x[last], y[last]))[1]), x[last], y[last], name, color))
    ends.sort(key=lambda end: end[0])
    # Heights in points from the bottom; a name of several lines needs that many heights.
    dpi = axis.figure.dpi
    wanted = np.array([end[0] * 72 / dpi for end in ends])
    half = np.array([0.675 * size * (1 + end[3].count("\n")) for end in ends])
    # Heights at which all names touch; what is beyond them must not decrease.
    touching = np.cumsum(half + np.append(0.0, half[:-1]))
    placed = touching + isotonic_regression(wanted - touching).x
    for end, was, now in zip(ends, wanted, placed):
        axis.annotate(
            end[3],
            (end[1], end[2]),
            (6, now - was),
            textcoords="offset points",
            va="center",
            color=end[4],
            fontsize=size,
            linespacing=1.25,
            annotation_clip=False,
        )
