"""One axis with curves that are named at their ends, and the numbers that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from checkin_jax._plot_style import name_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = np.ndarray | Sequence[float]
Row = dict[str, Any]

# Words of columns, on axes.
WORDS = {
    "num_clients": "clients",
    "check_in_prob": "check-in probability",
    "drop_out_prob": "drop-out probability",
    "num_rounds": "rounds",
    "num_slots": "slots",
    "num_epochs": "windows",
    "round": "rounds",
    "epsilon0": "local privacy ε₀",
    "epsilon": "ε (nats)",
    "target_epsilon": "target ε",
    "delta": "δ",
    "rdp": "Rényi divergence (nats)",
    "value": "value that meets the target",
    "colluding_share": "share of clients who collude",
    "clients_factor": "clients: Theorem 7 / Theorem 5.1",
    "accuracy": "test accuracy",
}


class Panel:
    """An axis, its curves, and the rows of their numbers.

    Args:
      axis: to draw on.
      x, y: columns of the rows; their words label the axis.
    """

    def __init__(self, axis: Axes, x: str, y: str) -> None:
        self.axis, self.rows = axis, list[Row]()
        self._x, self._y = x, y
        self._ends: list[tuple[Values, Values, str, str]] = []
        axis.set(xlabel=WORDS[x], ylabel=WORDS[y])

    def curve(
        self,
        name: str,
        x: Values,
        y: Values,
        color: str,
        style: str = "-",
        *,
        lower: Values | None = None,
        end: str | None = None,
    ) -> None:
        """Draws a curve, with a band down to `lower`, and keeps its numbers.

        name: in the rows. end: text at its right end; by default the name, none if empty.
        """
        if lower is not None:
            self.axis.fill_between(x, lower, y, color=color, alpha=0.25, linewidth=0)
        self.axis.plot(x, y, style, color=color)
        end = name if end is None else end
        if end:
            self._ends.append((x, y, end, color))
        below = [None] * len(x) if lower is None else np.asarray(lower).tolist()
        for at, low, value in zip(np.asarray(x).tolist(), below, np.asarray(y).tolist()):
            self.rows.append({"curve": name, self._x: at, "lower": low, self._y: value})

    def finished(self, **settings: Any) -> list[Row]:
        """Sets scales and limits of the axis, writes the names, and returns the rows."""
        self.axis.set(**settings)
        name_ends(self.axis, cast(Any, self._ends))
        return self.rows
