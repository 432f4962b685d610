"""Draws who sees what, from the clients past the shuffler to the sum: a picture of pictures.py, nothing is computed."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from checkin_jax import plotting


def views(points: int) -> Figure:
    """Who sees what, from the clients past the shuffler to the sum. Nothing is computed."""
    drawn = Figure(figsize=(7.0, 3.4))
    axis = drawn.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set(xlim=(0, 100), ylim=(0, 48))
    axis.axis("off")
    blue, orange, green, _, grey = plotting.SERIES
    # Clients from the top; None stays at home. Where a message comes out of the shuffler.
    clients = {"A": 2, "B": None, "C": 0, "D": 1}
    text: dict[str, Any] = {"ha": "center", "va": "center"}
    arrow = {"arrowstyle": "->", "color": grey}
    box: dict[str, Any] = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": blue}
    for place, (name, order) in enumerate(clients.items()):
        y = 40 - 7 * place
        there = order is not None
        axis.text(8, y, f"client {name}", color=blue if there else grey, **text)
        if not there:
            axis.text(16, y, "its coin says: stay away", color=grey, va="center")
            continue
        axis.annotate("", (22, y), (14, y), arrowprops=arrow)
        axis.text(30, y, f"{name}: message", bbox=box, fontsize=9, **text)
        axis.annotate("", (45.5, y), (37.5, y), arrowprops=arrow)
        out = 40 - 10.5 * order
        axis.annotate("", (60, out), (52.5, out), arrowprops=arrow)
        axis.text(66, out, "message", bbox=box, fontsize=9, **text)
        axis.annotate("", (82.5, 29.5), (72, out), arrowprops=arrow)
    axis.add_patch(FancyBboxPatch((47.2, 17), 3.6, 25, boxstyle="round", facecolor="white", edgecolor=blue))
    axis.text(49, 29.5, "shuffler", rotation=90, **text)
    axis.text(90, 29.5, "sum of\nthe round", bbox=box, fontsize=9, **text)
    for x, color, view, trusted in (
        (30, orange, "local", "sees whose message is whose;\nnobody is trusted"),
        (66, green, "messages", "sees all, without names;\nthe shuffler is trusted"),
        (90, blue, "aggregate", "sees sums only;\nthe server is trusted"),
    ):
        axis.plot([x, x], [14, 11], color=color)
        axis.text(x, 8.5, f"view {view}", color=color, weight="bold", **text)
        axis.text(x, 3.5, trusted, color=color, fontsize=8, **text)
    return drawn
