"""Style of figures: distinguishable colours, their dark variants, and names at the ends of curves.

Functions that take a figure need matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    import numpy as np

    size = min(8.5, matplotlib.rcParams["font.size"])
    ends = []
    for x, y, name, color in curves:
        last = int(np.flatnonzero(np.isfinite(np.asarray(y, float)))[-1])
        ends.append((float(axis.transData.transform((x[last], y[last]))[1]), x[last], y[last], name, color))
    ends.sort(key=lambda end: end[0])
    # Heights in points from the bottom; a name of several lines needs that many heights.
    dpi = axis.figure.dpi
    wanted = [end[0] * 72 / dpi for end in ends]
    heights = [1.35 * size * (1 + end[3].count("\n")) for end in ends]
    placed = list(wanted)
    for _ in range(200):
        for i in range(1, len(ends)):
            overlap = 0.5 * (heights[i - 1] + heights[i]) - (placed[i] - placed[i - 1])
            if overlap > 0:
                placed[i - 1] -= 0.5 * overlap
                placed[i] += 0.5 * overlap
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
