"""Figures of README.md and of the documentation, computed now and drawn into docs/pictures.

python benchmarks/pictures.py [bracket profile amplification colluders views] [--folder docs/pictures]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from checkin_jax._rounding import down, up
from checkin_jax.accounting import published
from checkin_jax.plotting import COLORS, SERIES
from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
)
from checkin_jax.sweeps.figures import (
    DELTA,
    FLEET,
    SMALL_ORDERS,
    NamedFigure,
    Panel,
    Row,
    against_rounds,
    write,
)
from checkin_jax.sweeps.sweep import sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The run of README.md.
_ROUNDS, _EPSILON0 = 6_800, 2.0
_CERTIFIED = COLORS["certified"]
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = SERIES


def bracket(axis: Axes, points: int) -> list[Row]:
    """Epsilon against rounds: the bracket, published bounds, and two that are none."""
    panel = Panel(axis, "num_rounds", "epsilon")
    clients, rate = FLEET.values()
    shuffled = published.approach_2(clients, rate, _EPSILON0, SMALL_ORDERS, shuffle_delta=DELTA)
    rounds = np.append(np.geomspace(1, 100_000, points), _ROUNDS)
    found = against_rounds(panel, rounds, _EPSILON0, "Approach 2", shuffled)
    (here,) = np.flatnonzero(found["num_rounds"] == _ROUNDS)
    lower, upper = found["lower"][here], found["epsilon"][here]
    axis.plot(_ROUNDS, upper, "o", color=_CERTIFIED)
    axis.annotate(
        f"{_ROUNDS:,} rounds:\n{down(lower, 4)} ≤ ε ≤ {up(upper, 4)}",
        (_ROUNDS, lower),
        (0.55, 0.12),
        textcoords="axes fraction",
        ha="center",
        color=_CERTIFIED,
        arrowprops={"arrowstyle": "-", "color": _CERTIFIED, "linewidth": 0.6},
    )
    return panel.finished(xscale="log", yscale="log")


def profile(axis: Axes, points: int) -> list[Row]:
    """Delta against epsilon: both ends of one run, and its statement."""
    deltas = np.unique(np.append(np.geomspace(1e-12, 0.1, points), DELTA))
    found = sweep(**FLEET, num_rounds=_ROUNDS, epsilon0=_EPSILON0, delta=deltas)
    lower, upper = found["lower"], found["epsilon"]
    axis.fill_betweenx(deltas, lower, upper, color=_CERTIFIED, alpha=0.25, linewidth=0)
    axis.plot(upper, deltas, color=_CERTIFIED)
    axis.plot(lower, deltas, color=_CERTIFIED, linestyle=":")
    (here,) = np.flatnonzero(deltas == DELTA)
    axis.plot([lower[here], upper[here]], [DELTA, DELTA], "o", color=_CERTIFIED)
    words: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": _CERTIFIED}
    axis.annotate(f"the statement:\nε = {up(upper[here], 4)}", (upper[here], DELTA), (8, 6), **words)
    axis.annotate(down(lower[here], 4), (lower[here], DELTA), (-6, -6), ha="right", **words)
    middle = len(deltas) // 4
    axis.annotate("proven: nobody\ndoes better", (upper[middle], deltas[middle]), (10, 6), **words)
    words["ha"] = "right"
    axis.annotate("shown: somebody\ndoes this well", (lower[middle], deltas[middle]), (-10, -4), **words)
    axis.set(yscale="log", xlim=(0, 2.6), xlabel="ε (nats)", ylabel="δ")
    return [
        {"delta": delta, "lower": low, "epsilon": high}
        for delta, low, high in zip(deltas.tolist(), lower.tolist(), upper.tolist())
    ]


def amplification(axis: Axes, points: int) -> list[Row]:
    """Epsilon against clients: ten 1-LDP messages a client as expected, under each protocol, with and without names."""
    clients = np.unique(np.geomspace(3_000, 10_000_000, points).round()).astype(int)
    panel = Panel(axis, "num_clients", "epsilon")
    runs: dict[str, tuple[type[CheckInProtocol], dict[str, Any]]] = {
        "names on messages": (Shuffle, {"num_rounds": 10, "view": "local"}),
        "sliding windows": (SlidingWindow, {"window": 1_000, "num_epochs": 10}),
        "shuffled check-in": (ShuffledCheckIn, {"check_in_prob": 0.01, "num_rounds": 1_000}),
        "fixed window": (FixedWindow, {"num_slots": 1_000, "num_epochs": 10}),
    }
    # Three protocols have one curve.
    ends = {"shuffled check-in": "shuffled check-in,\nshuffling,\naveraged updates"}
    for (name, (protocol, setting)), color in zip(runs.items(), (_GREY, _ORANGE, _BLUE, _GREEN)):
        found = sweep(protocol=protocol, num_clients=clients, epsilon0=1.0, delta=DELTA, **setting)
        end = ends.get(name, name.replace(" ", "\n", 1))
        panel.curve(name, clients, found["epsilon"], color, lower=found["lower"], end=end)
    return panel.finished(xscale="log", yscale="log", ylim=(None, 30))


def colluders(axis: Axes, points: int) -> list[Row]:
    """Epsilon against the share of clients who collude with the adversary, for each protocol.

    Behind a shuffler colluders are no cover, and that is all. In windows whose empty slots show dummies a known message
    that is missing tells that somebody else was there: as many colluders as there are slots cost all of the cover.
    """
    shares = np.unique(np.concatenate([[0.0, 1e-3, 0.01], np.linspace(0.1, 0.9, points), [0.99]]))
    clients = FLEET["num_clients"]
    panel = Panel(axis, "colluding_share", "epsilon")
    runs: dict[str, tuple[type[CheckInProtocol], dict[str, Any]]] = {
        "sliding windows": (SlidingWindow, {"window": 1_000, "num_epochs": 10}),
        "shuffled check-in": (ShuffledCheckIn, {"check_in_prob": 0.1, "num_rounds": 100}),
        "fixed window": (FixedWindow, {"num_slots": 1_000, "num_epochs": 10}),
        "averaged updates": (AveragedUpdates, {"num_slots": 100, "num_epochs": 3}),
    }
    fleet = {"num_clients": clients, "num_colluding": np.rint(shares * clients).astype(int)}
    for (name, (protocol, setting)), color in zip(runs.items(), (_ORANGE, _BLUE, _GREEN, _PURPLE)):
        found = sweep(protocol=protocol, **fleet, epsilon0=1.0, delta=DELTA, **setting)
        end = name.replace(" ", "\n", 1)
        panel.curve(name, shares, found["epsilon"], color, ".-", lower=found["lower"], end=end)
    return panel.finished(yscale="log")


def views(axis: Axes) -> list[Row]:
    """Clients, shuffler and sum of a round, and the adversary of each view. Nothing is computed."""
    from matplotlib.patches import FancyBboxPatch

    axis.set_position((0.0, 0.0, 1.0, 1.0))
    axis.set(xlim=(0, 100), ylim=(0, 62))
    axis.axis("off")
    # Clients from the top, and the places of their messages behind the shuffler; None stays away.
    clients = {"A": 2, "B": None, "C": 0, "D": 1}
    text: dict[str, Any] = {"ha": "center", "va": "center"}
    arrow = {"arrowstyle": "->", "color": _GREY, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
    box: dict[str, Any] = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": _BLUE}
    for place, (name, order) in enumerate(clients.items()):
        y = 56 - 9 * place
        color = _GREY if order is None else _BLUE
        axis.text(7, y, f"client {name}", color=color, **text)
        if order is None:
            axis.text(16.5, y, "stays away", color=_GREY, va="center")
            continue
        axis.annotate("", (16.6, y), (13.4, y), arrowprops=arrow)
        axis.text(27, y, f"{name}: message", bbox=box, **text)
        axis.annotate("", (41.2, y), (37.7, y), arrowprops=arrow)
        out = 56 - 13.5 * order
        axis.annotate("", (50.3, out), (46.8, out), arrowprops=arrow)
        axis.text(58.5, out, "message", bbox=box, **text)
        axis.annotate("", (81, 42.5), (67, out), arrowprops=arrow)
    axis.add_patch(FancyBboxPatch((42.5, 27.5), 3, 30, boxstyle="round", facecolor="white", edgecolor=_BLUE))
    axis.text(44, 42.5, "shuffler", rotation=90, **text)
    axis.text(86.5, 42.5, "sum", bbox=box, **text)
    for x, color, view, trusted in (
        (27, _ORANGE, "local", "sees whose\nmessage is whose;\nnobody is trusted"),
        (58.5, _GREEN, "messages", "sees all,\nwithout names; the\nshuffler is trusted"),
        (86.5, _BLUE, "aggregate", "sees sums\nonly; the server\nis trusted"),
    ):
        axis.plot([x, x], [24, 21], color=color)
        axis.text(x, 17.5, f"view {view}", color=color, weight="bold", **text)
        axis.text(x, 8, trusted, color=color, **text)
    return []


PICTURES = {
    "bracket": NamedFigure("epsilon against rounds, with published bounds", bracket, 9, 13),
    "profile": NamedFigure("delta against epsilon, both ends", profile, 4, 26),
    "amplification": NamedFigure("epsilon against clients by protocol", amplification, 10, 13),
    "colluders": NamedFigure("epsilon against the share of clients who collude", colluders, 3, 5),
    "views": NamedFigure("clients, shuffler and sum, and the adversary of each view", views, 1),
}


def main() -> None:
    """Draws the pictures that are named, by default all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*PICTURES])
    parser.add_argument("--folder", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args()
    for name in options.names:
        chosen = PICTURES[name]
        points: dict[str, Any] = {"points": chosen.points} if chosen.points else {}
        write(chosen, options.folder / f"{name}.svg", width=6.0, text=10.0, **points)


if __name__ == "__main__":
    main()
