"""Figures of the shuffled check-in paper [SCI] and of the random check-ins paper [RCI], by name; figure of a sweep.

They need matplotlib.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from checkin_jax import plotting
from checkin_jax.accounting import published
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.plotting import COLORS, EIGHT, SERIES, name_ends
from checkin_jax.protocols import MAX_CLIENTS, Shuffle
from checkin_jax.sweeps import tables
from checkin_jax.sweeps.results import ANSWERS, KINDS
from checkin_jax.sweeps.sweep import sweep
from checkin_jax.sweeps.tables import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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

        name: in the rows, in one line. end: text at its right end; by default the name, none if empty.
        """
        plotting.band(self.axis, x, y if lower is None else lower, y, style, color=color)
        end = name if end is None else end
        if end:
            self._ends.append((x, y, end, color))
        below = [None] * len(x) if lower is None else np.asarray(lower).tolist()
        for at, low, value in zip(np.asarray(x).tolist(), below, np.asarray(y).tolist()):
            self.rows.append({"curve": " ".join(name.split()), self._x: at, "lower": low, self._y: value})

    def finished(self, **settings: Any) -> list[Row]:
        """Sets scales and limits of the axis, writes the names, and returns the rows."""
        self.axis.set(**settings)
        name_ends(self.axis, cast(Any, self._ends))
        return self.rows


DELTA = 1e-6
# Settings of SCI's figure 1 where they are not swept, and of the fleet of its figure 2; ours, as none are in print.
_FIXED = {"num_clients": 1_000_000, "check_in_prob": 0.01, "epsilon0": 1.0}
_ORDER = 8
FLEET = {"num_clients": 60_000, "check_in_prob": 0.1}
_ORDERS = np.unique(np.concatenate([np.arange(2, 65), np.geomspace(64, 4096, 60).round()]))
SMALL_ORDERS = np.arange(2, 129)
# Numbers of clients in RCI's figure 2.
_CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
_CERTIFIED, _PUBLISHED, _INVALID = (COLORS[name] for name in ("certified", "published", "invalid"))
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = SERIES


def divergence(axis: Axes, points: int, *, swept: str) -> list[Row]:
    """SCI figures 1a to 1c: Renyi divergence of a round against clients, check-in probability or epsilon0.

    Theorem 1 with Lemma 4, Theorem 2, which is no bound, Theorem 3, a lower bound, and the certified divergence.
    """
    values = {
        "num_clients": np.geomspace(1e4, 1e8, points).round().astype(int),
        "check_in_prob": np.geomspace(1e-3, 1.0, points),
        "epsilon0": np.linspace(0.25, 4.0, points),
    }[swept]
    setting = {**_FIXED, swept: values}
    panel = Panel(axis, swept, "rdp")
    for name, theorem, color, style in (
        ("Theorem 2,\nno bound", published.theorem_2, _INVALID, "--"),
        ("Theorem 1", published.theorem_1, _PUBLISHED, "-"),
        ("Theorem 3,\nlower bound", published.theorem_3, _GREEN, ":"),
    ):
        n, rate, epsilon0 = setting.values()
        panel.curve(name, values, theorem(n, rate, epsilon0, [_ORDER]).value[:, 0], color, style)
    panel.curve("certified", values, sweep(what="rdp", order=_ORDER, **setting)["rdp"], _CERTIFIED)
    return panel.finished(yscale="log", xscale="linear" if swept == "epsilon0" else "log")


def rounds(axis: Axes, points: int) -> list[Row]:
    """SCI figure 2: epsilon against the number of rounds at a fixed delta, each bound by its own composition."""
    panel = Panel(axis, "num_rounds", "epsilon")
    clients, rate = FLEET.values()
    shuffled = published.approach_1(clients, rate, 0.5, SMALL_ORDERS, shuffle_delta=DELTA)
    against_rounds(panel, np.geomspace(1, 10_000, points), 0.5, "Approach 1", shuffled)
    return panel.finished(xscale="log", yscale="log")


def against_rounds(
    panel: Panel, rounds: np.ndarray, epsilon0: float, name: str, shuffled: PublishedBound
) -> Sweep:
    """Draws published bounds on a fleet's epsilon over the rounds, and its certified bracket, which is returned.

    shuffled: divergences of one of SCI's approaches, named so, at `SMALL_ORDERS`.
    """
    rounds = np.unique(rounds.round()).astype(int)
    clients, rate = FLEET.values()
    run = {"num_rounds": rounds, "delta": DELTA}
    theorem_1, theorem_2 = (
        published.epsilon(theorem(clients, rate, epsilon0, _ORDERS), _ORDERS, **run)
        for theorem in (published.theorem_1, published.theorem_2)
    )
    strong = published.strong_composition(clients, rate, epsilon0, **run)
    approach = published.epsilon(shuffled, SMALL_ORDERS, **run)
    panel.curve("strong composition", rounds, strong.value, _GREEN, end="strong\ncomposition")
    panel.curve("Theorem 1", rounds, theorem_1.value, _PUBLISHED)
    panel.curve("Theorem 2, no bound", rounds, theorem_2.value, _INVALID, "--", end="Theorem 2,\nno bound")
    panel.curve(f"{name}, no bound", rounds, approach.value, _ORANGE, ":", end=f"{name},\nno bound")
    found = sweep(**FLEET, epsilon0=epsilon0, **run)
    panel.curve(
        "certified", rounds, found["epsilon"], _CERTIFIED, lower=found["lower"], end="certified:\nboth ends"
    )
    return found


def shuffling(axis: Axes, points: int) -> list[Row]:
    """RCI figure 2: epsilon of shuffling against epsilon0, Theorem 5.1 and Theorem 7 of Erlingsson et al. 2019.

    The line epsilon = epsilon0 is of one message by itself.
    """
    # The curves are nearly powers of epsilon0.
    epsilon0 = np.geomspace(0.1, 2.0, points)
    found = sweep(protocol=Shuffle, num_clients=_CLIENTS, epsilon0=epsilon0, delta=DELTA)
    panel = Panel(axis, "epsilon0", "epsilon")
    panel.curve("ε = ε₀", epsilon0, epsilon0, _GREY, "-.", end="")
    for n, color in zip(_CLIENTS, SERIES):
        here = found["num_clients"] == n
        new, old = published.shuffle(n, epsilon0, DELTA), published.shuffle_2019(n, epsilon0, DELTA)
        label = f"n = {n:,}"
        panel.curve(f"Theorem 7, {label}", epsilon0, old.value, color, ":", end="")
        panel.curve(f"Theorem 5.1, {label}", epsilon0, new.value, color, end=label)
        axis.fill_between(epsilon0, found["lower"][here], found["epsilon"][here], color=color, alpha=0.35)
        panel.rows += [
            {"curve": f"certified, {label}", "epsilon0": at, "lower": low, "epsilon": high}
            for at, low, high in zip(
                epsilon0.tolist(), found["lower"][here].tolist(), found["epsilon"][here].tolist()
            )
        ]
    black = "#000000"
    axis.plot([], [], ":", color=black, label="Erlingsson et al., Theorem 7")
    axis.plot([], [], "-.", color=_GREY, label="one message: ε = ε₀")
    axis.plot([], [], "-", color=black, label="Theorem 5.1")
    axis.fill_between([], [], [], color=black, alpha=0.35, label="certified bracket")
    rows = panel.finished(yscale="log")
    plotting.legend(cast("Figure", axis.figure), 2, axis)
    return rows


def fewer_clients(axis: Axes, points: int) -> list[Row]:
    """RCI's text: clients that Theorem 7 of Erlingsson et al. needs for one of Theorem 5.1, at the same epsilon."""
    epsilon0 = np.linspace(0.1, 2.0, points)
    panel = Panel(axis, "epsilon0", "clients_factor")
    for n, color, style in zip(_CLIENTS, SERIES, itertools.cycle(plotting.DASHES)):
        target = published.shuffle(n, epsilon0, DELTA).value
        panel.curve(f"n = {n:,}", epsilon0, _clients_of_theorem_7(epsilon0, target) / n, color, style)
    axis.axhline(10.0, color="#000000", linewidth=0.6)
    return panel.finished()


def _clients_of_theorem_7(epsilon0: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Numbers of clients at which Theorem 7 reaches the targets; its epsilon falls with n."""

    def too_few(log_clients: np.ndarray) -> np.ndarray:
        return published.shuffle_2019(np.floor(np.exp(log_clients)), epsilon0, DELTA).value > target

    none = np.zeros_like(epsilon0)
    return np.exp(bisected(too_few, none, none + math.log(MAX_CLIENTS), 100)[1])


def accuracy(axis: Axes, source: Sequence[Row], *, against: str) -> list[Row]:
    """SCI figures 3a, 3b (against epsilon) and 4 (against rounds): accuracy on the test set of runs of training.

    Runs of a setting are one curve, their mean, with a band from the least to the most accurate.

    Args:
      source: an evaluation a row: setting, run, round, accuracy, view, epsilon, delta.
      against: epsilon or round.

    Raises:
      ValueError: more settings than lines, or more than one view or delta.
    """
    axis.set(xlabel=WORDS[against], ylabel=WORDS["accuracy"])
    settings = {row["setting"]: list[Row]() for row in source}
    for row in source:
        settings[row["setting"]].append(row)
    looks = [*itertools.product(("-", "--", ":"), EIGHT)]
    if len(settings) > len(looks):
        raise ValueError(f"{len(settings)} settings: expected at most {len(looks)} in a figure")
    for (name, rows), (style, color) in zip(settings.items(), looks):
        runs = [[*of_run] for _, of_run in itertools.groupby(rows, lambda row: row["run"])]
        # Runs of a setting are tested after the same rounds, unless one was stopped.
        evaluations = [*zip(*runs)]
        x = [evaluation[0][against] for evaluation in evaluations]
        accuracies = [[row["accuracy"] for row in evaluation] for evaluation in evaluations]
        axis.plot(x, [*map(fmean, accuracies)], style, marker=".", color=color, label=name)
        if len(runs) > 1:
            axis.fill_between(
                x, [*map(min, accuracies)], [*map(max, accuracies)], color=color, alpha=0.2, linewidth=0
            )
    if against == "epsilon":
        seen = {(row["view"], row["delta"]) for row in source}
        if len(seen) > 1:
            raise ValueError("epsilons in several views or at several deltas: expected one of each")
        ((view, delta),) = seen
        plotting.scale(axis, "x", (row["epsilon"] for row in source))
        axis.set(xlabel=f"certified ε (nats) at δ = {_power(delta)}, view {view}")
    plotting.legend(cast("Figure", axis.figure), 2, axis)
    return [*source]


def _power(value: float) -> str:
    """A power of ten as one, other numbers in digits."""
    exponent = round(math.log10(value))
    return f"$10^{{{exponent}}}$" if math.isclose(value, 10.0**exponent) else f"{value:g}"


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


_OF_ROUND = "Renyi divergence of a round against"
FIGURES = {
    "shuffled-check-in-figure-1a": NamedFigure(
        f"{_OF_ROUND} clients", functools.partial(divergence, swept="num_clients"), 3, 13
    ),
    "shuffled-check-in-figure-1b": NamedFigure(
        f"{_OF_ROUND} check-in probability", functools.partial(divergence, swept="check_in_prob"), 2, 13
    ),
    "shuffled-check-in-figure-1c": NamedFigure(
        f"{_OF_ROUND} epsilon0", functools.partial(divergence, swept="epsilon0"), 2, 13
    ),
    "shuffled-check-in-figure-2": NamedFigure(
        "epsilon against rounds: published bounds and the certified bracket", rounds, 5, 9
    ),
    "shuffled-check-in-figure-3": NamedFigure(
        "accuracy against epsilon of runs in --source: 3a of LDP-SGD, 3b of Gaussian messages",
        functools.partial(accuracy, against="epsilon"),
        1,
        source=True,
        height=0.8,
    ),
    "shuffled-check-in-figure-4": NamedFigure(
        "accuracy against rounds of runs in --source",
        functools.partial(accuracy, against="round"),
        1,
        source=True,
        height=0.8,
    ),
    "random-check-ins-figure-2": NamedFigure(
        "epsilon of shuffling against epsilon0: Theorem 5.1, Erlingsson et al., certified",
        shuffling,
        25,
        8,
        height=0.8,
    ),
    "random-check-ins-clients": NamedFigure(
        "clients that Erlingsson et al. need for one of Theorem 5.1", fewer_clients, 1, 39
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
    drawn, (axis,) = plotting.figure()
    for line, color in zip(lines, EIGHT):
        chosen = np.ones(len(axes[along]), dtype=bool)
        for name, value in line.items():
            chosen &= axes[name] == value
        order = np.flatnonzero(chosen)[np.argsort(axes[along][chosen], kind="stable")]
        x, y = axes[along][order], columns[shown][order]
        y = np.where(np.isfinite(y), y, np.nan)
        lower = columns["lower"][order] if KINDS[what].band else y
        look = {"color": color, "label": _said(line), "marker": "." if len(x) < _FEW else None}
        plotting.band(axis, x, np.where(np.isnan(y), np.nan, lower), y, **look)
    axis.set(xlabel=_named(along))
    plotting.scale(axis, "x", _if_positive(axes[along]))
    plotting.scale(axis, "y", _if_positive(columns[shown]))
    axis.set_ylabel(WORDS[shown])
    if len(lines) > 1:
        plotting.legend(drawn, 4 if len(lines[0]) == 1 else 2, axis)
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
