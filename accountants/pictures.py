"""The pictures of README.md and of the pages, drawn from what the library computes today: `make pictures`.

python accountants/pictures.py --out docs/pictures
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.progress import track
from scheme import views

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax._plot_style import adaptive, name_ends
from checkin_jax._rounding import down, up
from checkin_jax.accounting import published
from checkin_jax.cli.programs import program

# Of README.md and the pages.
RUN, MESSAGES, DELTA = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800), 2.0, 1e-6
ORDERS = np.unique(np.concatenate([np.arange(2, 65), np.geomspace(64, 4096, 60).round()]))
CERTIFIED, PUBLISHED, INVALID = (plotting.COLORS[name] for name in ("certified", "published", "invalid"))


def main(out: Path, points: int = 13) -> None:
    """Draws every picture into a folder, as SVG with its text as text; each turns dark with the page around it.

    Args:
      out: Folder to write to; made if it is not there.
      points: Values along the axis of a curve.
    """
    out.mkdir(parents=True, exist_ok=True)
    # The same bytes whenever the same is drawn.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "checkin-jax"}):
        for draw in track((bracket, profile, amplification, colluders, views), "drawing"):
            picture = out / f"{draw.__name__}.svg"
            draw(points).savefig(picture, metadata={"Date": None})
            picture.write_text(adaptive(picture.read_text(encoding="utf-8")), encoding="utf-8")


def bracket(points: int) -> Figure:
    """Epsilon against rounds: the bracket, what is published, and what is published and no bound."""
    rounds = np.unique(np.append(np.geomspace(1, 100_000, points).round(), RUN.num_rounds))
    setting = RUN.num_clients, RUN.rate, MESSAGES
    run = {"num_rounds": rounds, "delta": DELTA}
    small = ORDERS[ORDERS <= 128]
    curves = (
        ("strong composition", published.strong_composition(*setting, **run)),
        ("Theorem 1", published.epsilon(published.theorem_1(*setting, ORDERS), ORDERS, **run)),
        ("Theorem 2, no bound", published.epsilon(published.theorem_2(*setting, ORDERS), ORDERS, **run)),
        (
            "Approach 2, no bound",
            published.epsilon(published.approach_2(*setting, small, shuffle_delta=DELTA), small, **run),
        ),
    )
    drawn, axis = _axis("rounds", "ε (nats)")
    names: list[Any] = []
    for name, bound in curves:
        wrong = bound.validity == "invalid"
        color = INVALID if wrong else PUBLISHED
        axis.plot(rounds, bound.value, "--" if wrong else "-", color=color)
        names.append((rounds, bound.value, name, color))
    ends = [cj.account(RUN.repeated(int(t)), cj.PureLDP(epsilon0=MESSAGES), delta=DELTA) for t in rounds]
    upper = plotting.bracket(axis, rounds, ends, "", CERTIFIED)
    names.append((rounds, upper, "this package:\nboth ends", CERTIFIED))
    here = ends[rounds.tolist().index(RUN.num_rounds)]
    axis.plot(RUN.num_rounds, here.epsilon, "o", color=CERTIFIED, markersize=5)
    axis.annotate(
        f"{RUN.num_rounds:,} rounds:\n{down(here.lower, 4)} ≤ ε ≤ {up(here.epsilon, 4)}",
        (RUN.num_rounds, here.lower),
        (0, -64),
        textcoords="offset points",
        ha="center",
        color=CERTIFIED,
        arrowprops={"arrowstyle": "-", "color": CERTIFIED, "linewidth": 0.6},
    )
    axis.set(xscale="log", yscale="log")
    name_ends(axis, names)
    return drawn


def profile(points: int) -> Figure:
    """Delta against epsilon: both ends of one run, and where its statement stands."""
    deltas = np.unique(np.append(np.geomspace(1e-12, 0.1, 2 * points), DELTA))
    ends = [cj.account(RUN, cj.PureLDP(epsilon0=MESSAGES), delta=d) for d in deltas]
    lower, upper = [g.lower for g in ends], [g.epsilon for g in ends]
    drawn, axis = _axis("ε (nats)", "δ")
    axis.fill_betweenx(deltas, lower, upper, color=CERTIFIED, alpha=0.25, linewidth=0)
    axis.plot(upper, deltas, color=CERTIFIED)
    axis.plot(lower, deltas, color=CERTIFIED, linestyle=":")
    here = ends[deltas.tolist().index(DELTA)]
    axis.plot([here.lower, here.epsilon], [DELTA, DELTA], "o", color=CERTIFIED, markersize=5)
    words: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": CERTIFIED}
    axis.annotate(f"the statement:\nε = {up(here.epsilon, 4)}", (here.epsilon, DELTA), (10, 8), **words)
    axis.annotate(down(here.lower, 4), (here.lower, DELTA), (-8, -8), ha="right", **words)
    middle = len(deltas) // 4
    axis.annotate("proven: nobody\ndoes better", (upper[middle], deltas[middle]), (12, 6), **words)
    axis.annotate(
        "shown: somebody\ndoes this well", (lower[middle], deltas[middle]), (-12, -4), ha="right", **words
    )
    axis.set(yscale="log", xlim=(0, 2.6))
    return drawn


def amplification(points: int) -> Figure:
    """Epsilon against clients: ten 1-LDP messages a client under each protocol, and with the client's name on them."""
    clients = np.unique(np.geomspace(3_000, 10_000_000, points).round()).astype(int)
    blue, orange, green, _, grey = plotting.SERIES
    drawn, axis = _axis("clients", "ε (nats)")
    names: list[Any] = []
    for name, color, view, run in (
        ("names on messages\n(view local)", grey, "local", _shuffle),
        ("SlidingWindow", orange, "messages", _sliding_window),
        ("ShuffledCheckIn\nShuffle\nAveragedUpdates", blue, "messages", _shuffled_check_in),
        ("FixedWindow", green, "messages", _fixed_window),
    ):
        randomizer = cj.PureLDP(epsilon0=1.0)
        ends = [cj.account(run(int(n)), randomizer, delta=DELTA, view=view) for n in clients]
        names.append((clients, plotting.bracket(axis, clients, ends, "", color), name, color))
    axis.set(xscale="log", yscale="log", ylim=(None, 30))
    name_ends(axis, names)
    return drawn


def colluders(points: int) -> Figure:
    """Epsilon against the share of clients who collude, by the figures of accountants/colluders.py."""
    shares = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    blue, orange, green, purple, _ = plotting.SERIES
    drawn, axis = _axis("share of clients who collude", "ε (nats)")
    names: list[Any] = []
    runs: dict[str, tuple[str, Any]] = {
        "SlidingWindow": (orange, lambda **of: cj.SlidingWindow(window=1_000, num_epochs=10, **of)),
        "FixedWindow": (green, lambda **of: cj.FixedWindow(num_slots=1_000, num_epochs=10, **of)),
        "ShuffledCheckIn": (
            blue,
            lambda **of: cj.ShuffledCheckIn(check_in_prob=0.1, num_rounds=100, **of),
        ),
        "AveragedUpdates": (purple, lambda **of: cj.AveragedUpdates(num_slots=100, num_epochs=3, **of)),
    }
    for name, (color, run) in runs.items():
        upper = [
            cj.account(
                run(num_clients=60_000, num_colluding=int(share * 60_000)),
                cj.PureLDP(epsilon0=1.0),
                delta=DELTA,
                bounds="fast",
            ).epsilon
            for share in shares
        ]
        axis.plot(shares, upper, ".-", color=color)
        names.append((shares, upper, name, color))
    axis.set(yscale="log")
    name_ends(axis, names)
    return drawn


# Ten messages a client, as expected; windows of 1,000 slots.


def _shuffle(num_clients: int) -> cj.Shuffle:
    return cj.Shuffle(num_clients=num_clients, num_rounds=10)


def _shuffled_check_in(num_clients: int) -> cj.ShuffledCheckIn:
    return cj.ShuffledCheckIn(num_clients=num_clients, check_in_prob=0.01, num_rounds=1_000)


def _fixed_window(num_clients: int) -> cj.FixedWindow:
    return cj.FixedWindow(num_clients=num_clients, num_slots=1_000, num_epochs=10)


def _sliding_window(num_clients: int) -> cj.SlidingWindow:
    return cj.SlidingWindow(num_clients=num_clients, window=1_000, num_epochs=10)


def _axis(x: str, y: str) -> tuple[Figure, Axes]:
    drawn, (axis,) = plotting.figure(height=3.9)
    drawn.set_figwidth(7.0)
    axis.set(xlabel=x, ylabel=y)
    return drawn, axis


if __name__ == "__main__":
    program(main)
