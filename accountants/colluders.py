"""Epsilon against the share of clients who collude with the adversary, for each protocol: a figure and its CSV.

    python accountants/colluders.py --out colluders.svg

Behind a shuffler colluders are no cover, and that is all; in windows whose empty slots show dummies a known message
that is missing tells that somebody else was there, and a few colluders cost what many do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import track

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax._plot_style import name_ends
from checkin_jax.cli.programs import program


def main(
    out: Path,
    num_clients: int = 60_000,
    epsilon0: float = 1.0,
    delta: float = 1e-6,
    shares: tuple[float, ...] = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99),
) -> None:
    """Draws the figure and writes its numbers beside it.

    Args:
      out: Figure to write, .svg or .png; the CSV gets its name.
      num_clients: Number of clients.
      epsilon0: Local privacy of one message.
      delta: Delta of the guarantees.
      shares: Shares of clients who collude.
    """
    plotting.check(out)
    rows = []
    for share in track(shares, "accounting"):
        colluding: dict[str, Any] = {"num_clients": num_clients, "num_colluding": int(share * num_clients)}
        for run in (
            cj.ShuffledCheckIn(check_in_prob=0.1, num_rounds=100, **colluding),
            cj.AveragedUpdates(num_slots=100, num_epochs=3, **colluding),
            cj.FixedWindow(num_slots=1_000, num_epochs=10, **colluding),
            cj.SlidingWindow(window=min(1_000, num_clients), num_epochs=10, **colluding),
        ):
            g = cj.account(run, cj.PureLDP(epsilon0=epsilon0), delta=delta, bounds="fast")
            name = type(run).__name__
            rows.append({"protocol": name, "share": share, "lower": g.lower, "epsilon": g.epsilon})
    drawn, (axis,) = plotting.figure()
    drawn.set_figwidth(6.4)
    curves = []
    for name, color in zip(dict.fromkeys(row["protocol"] for row in rows), plotting.SERIES):
        mine = [row for row in rows if row["protocol"] == name]
        curves.append(([row["share"] for row in mine], [row["epsilon"] for row in mine], name, color))
        axis.plot(*curves[-1][:2], marker=".", color=color)
    axis.set(xlabel="share of clients who collude", ylabel=f"$\\varepsilon$ at $\\delta$ = {delta:g} (nats)")
    axis.set(yscale="log")
    name_ends(axis, curves)
    print(*plotting.save(drawn, out, rows))


if __name__ == "__main__":
    program(main)
