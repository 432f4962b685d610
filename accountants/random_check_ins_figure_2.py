"""Figure 2 of the random check-ins paper: amplification by shuffling, Theorem 5.1 against Erlingsson et al. 2019.

    python accountants/random_check_ins_figure_2.py --out figure_2.png

Left: epsilon against epsilon0 for n = 1e3 to 1e6. Right: the clients Theorem 7 needs for one that Theorem 5.1 needs, at
the same epsilon. On the left the line epsilon = epsilon0, of one message by itself; added: the certified bracket.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.progress import track

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax._plot_style import COLORS, name_ends
from checkin_jax.accounting import published
from checkin_jax.cli.programs import program
from checkin_jax.protocols import MAX_CLIENTS


def main(
    out: Path,
    delta: float = 1e-6,
    num_clients: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000),
    points: int = 39,
) -> None:
    """Evaluates the bounds, writes the picture and a CSV of the same name.

    Args:
      out: Picture to write, .png or .svg.
      delta: Delta of the guarantee.
      num_clients: Numbers of clients.
      points: Values of epsilon0, from 0.1 to 2.
    """
    plotting.check(out)
    epsilons = np.linspace(0.1, 2.0, points)
    drawn, (left, right) = plotting.figure(2, height=4.0)
    rows, shown, factors = [], [], []
    for n, color in track([*zip(num_clients, plotting.SERIES)], "accounting"):
        new, old = published.shuffle(n, epsilons, delta), published.shuffle_2019(n, epsilons, delta)
        left.plot(epsilons, new.value, color=color)
        shown.append((epsilons, new.value, f"n = {n:,}", color))
        left.plot(epsilons, old.value, ":", color=color)
        found = [cj.account(cj.Shuffle(num_clients=n), cj.PureLDP(epsilon0=e), delta=delta) for e in epsilons]
        left.fill_between(
            epsilons, [g.lower for g in found], [g.epsilon for g in found], color=color, alpha=0.35
        )
        factor = np.array([_more_clients(float(e), float(v), delta) for e, v in zip(epsilons, new.value)]) / n
        right.plot(epsilons, factor, color=color)
        factors.append((epsilons, factor, f"n = {n:,}", color))
        for i, e in enumerate(epsilons):
            rows.append(
                {
                    "num_clients": n,
                    "epsilon0": float(e),
                    "theorem_5_1": float(new.value[i]),
                    "erlingsson_theorem_7": float(old.value[i]),
                    "certified": found[i].epsilon,
                    "lower": found[i].lower,
                    "clients_factor": float(factor[i]),
                }
            )
    left.plot(epsilons, epsilons, color=COLORS["estimate"], label="$\\varepsilon$ = $\\varepsilon_0$")
    left.plot([], [], ":", color="black", label="Erlingsson et al., Theorem 7")
    left.plot([], [], "-", color="black", label="Theorem 5.1")
    left.fill_between([], [], [], color="black", alpha=0.35, label="certified bracket")
    left.set(
        yscale="log", xlabel="$\\varepsilon_0$", ylabel=f"$\\varepsilon$ at $\\delta$ = {delta:g} (nats)"
    )
    left.legend(fontsize=8, frameon=False)
    name_ends(left, shown)
    right.set(xlabel="$\\varepsilon_0$", ylabel="clients of Theorem 7 / of Theorem 5.1")
    right.axhline(10.0, color="black", linewidth=0.8, linestyle="--")
    right.set_title("at the same $\\varepsilon$; dashed: an order of magnitude", fontsize=10)
    name_ends(right, factors)
    print(*plotting.save(drawn, out, rows))


def _more_clients(epsilon0: float, target: float, delta: float) -> float:
    """The number of clients at which Theorem 7 reaches the target; epsilon falls with n."""
    low, high = 1.0, MAX_CLIENTS
    for _ in range(100):
        middle = np.sqrt(low * high)
        enough = published.shuffle_2019(np.floor(middle), epsilon0, delta).value <= target
        low, high = (low, middle) if enough else (middle, high)
    return high


if __name__ == "__main__":
    program(main)
