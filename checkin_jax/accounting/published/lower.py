"""Lower bounds on the Renyi divergence of shuffled check-in: [SCI] Theorem 3, and a sharper, simpler one.

View "messages", replace-one, one round. No bound for all eps0-LDP randomizers is below them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound


def theorem_3(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    spread: ArrayLike = 0.5,
) -> PublishedBound:
    """[SCI] Theorem 3, a LOWER bound at whole orders: no bound for all eps0-LDP randomizers is below it.

    A >= 1 + (1 - exp(-D^2 n gamma/(2 + D))) C(lam, 2) gamma^2 (E-1)^2 / ((1 + D) n gamma E). Rounded down.

    Args:
      num_clients, rate, epsilon0, orders: as `theorem_1`.
      spread: D in (0, 1].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    spreads = formula.reals(0, 1, "(]", spread=spread)
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0, spread=spreads)
    n, gamma, e0, d = (each[..., None] for each in given)
    likely = -np.expm1(-d * d * n * gamma / (2 + d))
    value = _lower(likely * gamma / ((1 + d) * n), e0, orders)
    return formula.renyi(value, "Theorem 3", direction="lower")


def theorem_3_sharper(
    num_clients: ArrayLike, rate: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike
) -> PublishedBound:
    """A LOWER bound above Theorem 3: A >= 1 + C(lam, 2) (gamma/n) (E-1)^2 / E, whole orders only. Rounded down.

    The second moment of binary randomized response is exact. Higher whole orders follow by convexity, which fails for
    1 < lam < 2.
    Arguments and errors as `theorem_1`.
    """
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0)
    n, gamma, e0 = (each[..., None] for each in given)
    return formula.renyi(
        _lower(gamma / n, e0, orders), "Theorem 3, sharper", validity="certified", direction="lower"
    )


def _lower(share: np.ndarray, epsilon0: np.ndarray, orders: ArrayLike) -> np.ndarray:
    lam = formula.whole_orders(orders)
    excess = share * 0.5 * lam * (lam - 1) * np.expm1(epsilon0) ** 2 * np.exp(-epsilon0)
    return np.log1p(excess) / (lam - 1) * (1 - 1e-12)
