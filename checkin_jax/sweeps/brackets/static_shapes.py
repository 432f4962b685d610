"""Static choices for the kernels of one round of shuffled eps0-LDP messages, as `bounds.clones` makes them."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy

from checkin_jax.accounting.bounds import clones
from checkin_jax.kernels.clones import Cut
from checkin_jax.numerics.counts import occupancy


@dataclasses.dataclass(frozen=True)
class Cuts:
    """For the upper end, 3-ary (None: not worth trying) and binary randomized response (likewise: buckets, table)."""

    upper: Cut
    ternary: Cut | None
    binary: tuple[int, tuple[int, bool]] | None


def cuts(unit: clones.ShuffledPureLDP) -> Cuts:
    """The choices for one unit."""
    n, rate, epsilon0, mass = float(unit.num_clients), unit.rate, unit.epsilon0, unit.log_inverse_mass
    p, drift = math.exp(epsilon0), rate * (1.0 - rate) / n

    def cut(labels: float, upper: bool) -> Cut:
        mean = n * 2.0 * rate / (p + labels)
        return clones.cut(n, mean, mass, drift, upper, absent=True)

    few = 2.0 * unit.messages() < clones.FEW_MESSAGES * (1.0 + p)
    ternary = binary = None
    if few or epsilon0 >= clones.TERNARY_FROM:
        ternary = cut(2.0, False)
    if epsilon0 <= (clones.BINARY_UP_TO_IF_FEW if few else clones.BINARY_UP_TO):
        known = rate == 1.0
        buckets = clones.KNOWN_BUCKETS if known else clones.MESSAGE_BUCKETS
        # The last bucket's first value is below this; a larger table than need be is as exact.
        most = n if known else min(n, n * rate + occupancy.deviation(n * rate * (1.0 - rate), mass) + 2.0)
        binary = (buckets, clones.binary_table(most, epsilon0, mass))
    return Cuts(cut(1.0, True), ternary, binary)


@functools.cache
def _normal() -> tuple[np.ndarray, np.ndarray]:
    """a and log E(Z - a)_+ of a standard normal Z, from large a to small."""
    a = np.linspace(0.0, 38.0, 2001)[::-1]
    log_density = -0.5 * a * a - 0.5 * math.log(2.0 * math.pi)
    # E(Z - a)_+ = density (1 - a Mills ratio)
    mills = math.sqrt(0.5 * math.pi) * scipy.special.erfcx(a / math.sqrt(2.0))
    return a, log_density + np.log1p(-np.minimum(a * mills, 1.0 - 1e-9))


def guess(unit: clones.ShuffledPureLDP, delta: float) -> float:
    """Epsilon of one round by the normal approximation, within (0, epsilon0): where to look first."""
    p = math.exp(unit.epsilon0)
    spread = math.sqrt(2.0 * unit.rate / ((p + 1.0) * unit.num_clients)) * (p - 1.0)
    a, log_loss = _normal()
    steps = float(np.interp(math.log(delta) - math.log(max(spread, 1e-300)), log_loss, a))
    return min(max(spread * steps, 1e-6 * unit.epsilon0), 0.5 * unit.epsilon0)
