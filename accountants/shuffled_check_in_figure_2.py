"""Figure 2 of the shuffled check-in paper: epsilon against the number of rounds, at a fixed delta.

    python accountants/shuffled_check_in_figure_2.py --out figure_2.png

Theorem 1 with Lemma 4 by Renyi composition against strong composition of approximate DP, Approach 1 and Theorem 2,
which are no bounds, and the certified bracket.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.progress import track

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax._plot_style import name_ends
from checkin_jax.accounting import published
from checkin_jax.cli.programs import program

ORDERS = np.unique(np.concatenate([np.arange(2, 65), np.geomspace(64, 1024, 60).round()]))
SMALL = np.arange(2, 65)


def main(
    out: Path,
    num_clients: int = 60_000,
    check_in_prob: float = 0.1,
    epsilon0: float = 0.5,
    delta: float = 1e-6,
    points: int = 9,
) -> None:
    """Evaluates every bound over the rounds, writes the picture and a CSV of the same name.

    Args:
      out: Picture to write, .png or .svg.
      num_clients: Number of clients.
      check_in_prob: Check-in probability.
      epsilon0: Local privacy of a message.
      delta: Delta of the run.
      points: Numbers of rounds, from 1 to 10,000.
    """
    plotting.check(out)
    rounds = np.unique(np.geomspace(1, 10_000, points).round())
    setting = (num_clients, check_in_prob, epsilon0)
    run = {"num_rounds": rounds, "delta": delta}
    approach = published.approach_1(*setting, SMALL, shuffle_delta=delta)
    curves = (
        (published.strong_composition(*setting, **run), "-.", "published"),
        (published.epsilon(published.theorem_1(*setting, ORDERS), ORDERS, **run), "-", "published"),
        (published.epsilon(published.theorem_2(*setting, ORDERS), ORDERS, **run), "--", "invalid"),
        (published.epsilon(approach, SMALL, **run), ":", "invalid"),
    )
    drawn, (axis,) = plotting.figure(1, height=4.8)
    drawn.set_figwidth(7.0)
    rows, names = [], []
    for bound, style, validity in curves:
        name = bound.label.rpartition(", ")[2] if validity != "invalid" else f"{bound.label},\nno bound"
        axis.plot(rounds, bound.value, style, color=plotting.COLORS[validity])
        names.append((rounds, bound.value, name, plotting.COLORS[validity]))
        rows += [_row(t, bound.label, validity, "upper", value) for t, value in zip(rounds, bound.value)]
    brackets = [
        cj.account(
            cj.ShuffledCheckIn(num_clients=num_clients, check_in_prob=check_in_prob, num_rounds=int(t)),
            cj.PureLDP(epsilon0=epsilon0),
            delta=delta,
        )
        for t in track(rounds, "accounting")
    ]
    upper = plotting.bracket(axis, rounds, brackets, "", plotting.COLORS["certified"])
    names.append((rounds, upper, "certified:\nboth ends", plotting.COLORS["certified"]))
    for t, g in zip(rounds, brackets):
        rows.append(_row(t, g.method, g.validity, "upper", g.epsilon))
        rows.append(_row(t, g.lower_method, g.validity, "lower", g.lower))
    axis.set(xscale="log", yscale="log", xlabel="rounds", ylabel="$\\varepsilon$ (nats)")
    axis.set_title(
        f"$n$ = {num_clients:,}, $\\gamma$ = {check_in_prob:g}, $\\varepsilon_0$ = {epsilon0:g}, "
        f"$\\delta$ = {delta:g}",
        fontsize=10,
    )
    name_ends(axis, names)
    print(*plotting.save(drawn, out, rows))


def _row(num_rounds: float, bound: str, validity: str, direction: str, epsilon: float) -> dict[str, object]:
    return {
        "num_rounds": int(num_rounds),
        "bound": bound,
        "validity": validity,
        "direction": direction,
        "epsilon": float(epsilon),
    }


if __name__ == "__main__":
    program(main)
