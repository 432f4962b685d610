"""Figures 1a to 1c of the shuffled check-in paper: Renyi divergence of a round against n, gamma and epsilon0.

    python accountants/shuffled_check_in_figure_1.py --out figure_1.png

Upper: Theorem 1 with Lemma 4, and Theorem 2, which is not a bound. Lower: Theorem 3. Added: the certified divergence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.progress import track

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax.accounting import published
from checkin_jax.cli.programs import program

CURVES = (
    ("Theorem 2 (no bound)", published.theorem_2, "--", plotting.COLORS["invalid"]),
    ("Theorem 1 with Lemma 4", published.theorem_1, "-", plotting.COLORS["published"]),
    ("Theorem 3 (lower)", published.theorem_3, ":", plotting.COLORS["published"]),
)


def main(
    out: Path,
    num_clients: float = 1e6,
    check_in_prob: float = 0.01,
    epsilon0: float = 1.0,
    order: int = 8,
    points: int = 13,
) -> None:
    """Evaluates the three sweeps, writes the picture and a CSV of the same name.

    Args:
      out: Picture to write, .png or .svg.
      num_clients: Number of clients where it is not swept.
      check_in_prob: Check-in probability where it is not swept.
      epsilon0: Local privacy of a message where it is not swept.
      order: Renyi order.
      points: Points of each sweep.
    """
    plotting.check(out)
    fixed = {"num_clients": num_clients, "rate": check_in_prob, "epsilon0": epsilon0}
    sweeps = (
        ("num_clients", "number of clients $n$", np.geomspace(1e4, 1e8, points).round()),
        ("rate", "check-in probability $\\gamma$", np.geomspace(1e-3, 1.0, points)),
        ("epsilon0", "local privacy $\\varepsilon_0$", np.linspace(0.25, 4.0, points)),
    )
    drawn, axes = plotting.figure(3, height=4.2)
    rows = []
    for axis, panel, (name, title, values) in track([*zip(axes, "abc", sweeps)], "accounting"):
        setting = {**fixed, name: values}
        curves = [
            (label, theorem(**setting, orders=[order]), style, color)
            for label, theorem, style, color in CURVES
        ]
        columns = np.broadcast_arrays(*setting.values())
        certified = [_certified(int(n), gamma, e0, order) for n, gamma, e0 in zip(*columns)]
        for label, bound, style, color in curves:
            axis.plot(values, bound.value[:, 0], style, color=color, label=label)
            for x, value in zip(values, bound.value[:, 0]):
                rows.append(_row(panel, name, x, bound.label, bound.validity, bound.direction, value))
        axis.plot(values, certified, color=plotting.COLORS["certified"], label="certified (T1)")
        for x, value in zip(values, certified):
            rows.append(_row(panel, name, x, "T1", "certified", "upper", value))
        axis.set(yscale="log", xlabel=title, title=f"({panel})")
        axis.set_xscale("linear" if name == "epsilon0" else "log")
    axes[0].set_ylabel(f"Renyi divergence of a round, order {order} (nats)")
    drawn.suptitle(
        f"$n$ = {num_clients:,.0f}, $\\gamma$ = {check_in_prob:g}, $\\varepsilon_0$ = {epsilon0:g} where not swept",
        fontsize=10,
    )
    plotting.legend(drawn, 4, axes[0])
    print(*plotting.save(drawn, out, rows))


def _certified(n: int, gamma: float, epsilon0: float, order: int) -> float:
    run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=gamma)
    return float(cj.rdp(run, cj.PureLDP(epsilon0=epsilon0), [order])[0])


def _row(
    panel: str, name: str, x: float, bound: str, validity: str, direction: str, value: float
) -> dict[str, object]:
    return {
        "panel": panel,
        "swept": name,
        "at": float(x),
        "bound": bound,
        "validity": validity,
        "direction": direction,
        "renyi_divergence": float(value),
    }


if __name__ == "__main__":
    program(main)
