"""Static choices for the kernels of one round of shuffled eps0-LDP messages, as `pure_rounds` makes them, in numpy."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy.special

from checkin_jax.accounting import pure_rounds
from checkin_jax.accounting.rounds import bucket_count
from checkin_jax.kernels import check_in, occupancy, tails
from checkin_jax.kernels.crossing import Cut


@dataclasses.dataclass(frozen=True)
class Cuts:
    """For the upper end, 3-ary (None: not worth trying) and binary randomized response (likewise: buckets, plans)."""

    upper: Cut
    ternary: Cut | None
    binary: tuple[int, tuple[tuple[int, bool], tuple[int, bool]]] | None


def _cut(n: float, special: float, drift: float, mass: float, upper: bool) -> Cut:
    mean = n * special
    plan = tails.plan(pure_rounds.largest(mean, n, mass), mass)
    if n <= check_in.SMALL:
        return Cut(0, (), (0, True), plan)
    offsets: tuple[float, ...] = ()
    if upper:
        offsets = next((points for least, points in pure_rounds.SPREADS if drift > least), ())
    spread = tails.plan(n, mass) if offsets else (0, True)
    return Cut(bucket_count(mean), offsets, spread, plan)


def cuts(unit: pure_rounds.ShuffledPureLDP) -> Cuts:
    """The choices for one unit."""
    n, rate, epsilon0, mass = float(unit.num_clients), unit.rate, unit.epsilon0, unit.log_inverse_mass
    p, drift = math.exp(epsilon0), rate * (1.0 - rate) / n
    few = 2.0 * unit.messages() < pure_rounds.FEW_MESSAGES * (1.0 + p)
    ternary = binary = None
    if few or epsilon0 >= pure_rounds.TERNARY_FROM:
        ternary = _cut(n, 2.0 * rate / (p + 2.0), drift, mass, False)
    if epsilon0 <= (pure_rounds.BINARY_UP_TO_IF_FEW if few else pure_rounds.BINARY_UP_TO):
        known = rate == 1.0
        buckets = pure_rounds.KNOWN_BUCKETS if known else pure_rounds.MESSAGE_BUCKETS
        # The last bucket's first value is below this; a larger table than need be is as exact.
        most = n if known else min(n, n * rate + occupancy.deviation(n * rate * (1.0 - rate), mass) + 2.0)
        forward, backward = (
            tails.plan(most, mass, 1.0 / (1.0 + math.exp(sign * epsilon0))) for sign in (1.0, -1.0)
        )
        binary = (buckets, (forward, backward))
    return Cuts(_cut(n, 2.0 * rate / (p + 1.0), drift, mass, True), ternary, binary)


@functools.cache
def _normal() -> tuple[np.ndarray, np.ndarray]:
    """a and log E(Z - a)_+ of a standard normal Z, from large a to small."""
    a = np.linspace(0.0, 38.0, 2001)[::-1]
    log_density = -0.5 * a * a - 0.5 * math.log(2.0 * math.pi)
    # E(Z - a)_+ = density (1 - a Mills ratio)
    mills = math.sqrt(0.5 * math.pi) * scipy.special.erfcx(a / math.sqrt(2.0))
    return a, log_density + np.log1p(-np.minimum(a * mills, 1.0 - 1e-9))


def guess(unit: pure_rounds.ShuffledPureLDP, delta: float) -> float:
    """Epsilon of one round by the normal approximation, within (0, epsilon0): where to look first."""
    p = math.exp(unit.epsilon0)
    spread = math.sqrt(2.0 * unit.rate / ((p + 1.0) * unit.num_clients)) * (p - 1.0)
    a, log_loss = _normal()
    steps = float(np.interp(math.log(delta) - math.log(max(spread, 1e-300)), log_loss, a))
    return min(max(spread * steps, 1e-6 * unit.epsilon0), 0.5 * unit.epsilon0)
