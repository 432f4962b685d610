r"""Privacy loss of many randomized responses of one client, averaged over their number. All terms are
positive.

With K messages the loss is s eps0, where s is a walk of K steps, up with probability p/(p+1), p = e^eps0,
else down:

    H_c = E_K sum_s Pr[s | K] (1 - c e^{-s eps0})_+ .

NumPy float64.
"""

from __future__ import annotations

import numpy as np

from checkin_jax.kernels import FLUSHED
from checkin_jax.kernels.round_off import UNIT

# Relative error of masses and profiles, with a wide margin.
ROUNDING = 1e-9


def response_law(epsilon0: float, number: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Masses of the loss s eps0 of K randomized responses, s = 1, ..., largest K, with relative error
    `ROUNDING`.

    number, mass: whole values of K, from 0 on without gaps, and their masses. At most 2^11 steps of three
    roundings each; no cancellation. Masses below the least float64 are lost.
    """
    most = int(number[-1])
    kept, flipped = 1.0 / (1.0 + np.exp(-epsilon0)), np.exp(-epsilon0) / (1.0 + np.exp(-epsilon0))
    # s = -most .. most. Rows alternate between even and odd s.
    walk = np.zeros(2 * most + 1)
    walk[most] = 1.0
    law = mass[0] * walk
    for weight in mass[1:]:
        following = np.zeros_like(walk)
        following[1:] = kept * walk[:-1]
        following[:-1] += flipped * walk[1:]
        walk = following
        law += weight * walk
    return law[most + 1 :]


def response_profile(epsilon0: float, law: np.ndarray, loss: np.ndarray, upper: bool) -> np.ndarray:
    """sum_s law_s (1 - e^{loss - s eps0})_+ at losses >= 0 in nats, rounded up if `upper`, else down;
    [losses].
    """
    at = epsilon0 * np.arange(1.0, law.size + 1.0)
    away = 8.0 * UNIT * at
    gap = at[None, :] - np.asarray(loss)[:, None] + (away if upper else -away)[None, :]
    value = -np.expm1(-np.maximum(gap, 0.0)) @ law
    return (
        value * (1.0 + ROUNDING) + FLUSHED if upper else np.maximum(value * (1.0 - ROUNDING) - FLUSHED, 0.0)
    )
