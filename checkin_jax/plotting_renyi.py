"""A figure of Renyi divergences against their order, with both ends (extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from checkin_jax import plotting
from checkin_jax.accounting.composition.renyi import rdp
from checkin_jax.accounting.composition.renyi_lower import rdp_lower
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Randomizer


def renyi(
    runs: Mapping[str, tuple[CheckInProtocol, Randomizer, str]], orders: Sequence[float] | np.ndarray
) -> tuple[plotting.Figure, list[dict[str, object]]]:
    """Draws the divergences of runs between both proven ends: `rdp` as a line, and a band down to `rdp_lower`.

    Args:
      runs: protocol, randomizer and view of each, by what the legend calls it.
      orders: as in `rdp`.

    Returns:
      The figure, and its rows for `plotting.save`: run, order, rdp, lower (nats).

    Raises:
      TypeError, ValueError: as `rdp`. ModuleNotFoundError: matplotlib is not installed.
    """
    drawn, (axis,) = plotting.figure()
    rows: list[dict[str, object]] = []
    at = np.sort(np.asarray(orders, dtype=np.float64))
    for color, (name, (protocol, randomizer, view)) in zip(plotting.SERIES * len(runs), runs.items()):
        upper, lower = (call(protocol, randomizer, at, view=view) for call in (rdp, rdp_lower))
        axis.plot(at, upper, color=color, label=name)
        known = np.where(lower > 0, lower, np.nan)
        axis.fill_between(at, known, upper, color=color, alpha=0.25, linewidth=0)
        rows += [
            {"run": name, "order": order, "rdp": above, "lower": below}
            for order, above, below in zip(at.tolist(), upper.tolist(), lower.tolist())
        ]
    axis.set(xscale="log", yscale="log", xlabel="order", ylabel="Renyi divergence (nats)")
    plotting.legend(drawn, 2, axis)
    return drawn, rows
