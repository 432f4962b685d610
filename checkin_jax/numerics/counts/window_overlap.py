"""Number of co-occupants of a slot of a sliding window, and length of the overlap of their windows.

In A_sldw client j sends to one of the slots j .. j + m - 1, uniformly. A group of clients that share a slot
with a given one could have shared any slot of the overlap of all their windows. The bounds on the law of a
group's size and of its overlap hold for every client, also if the server does not output every slot
[docs/evaluation.md]. NumPy float64.
"""

from __future__ import annotations

import math

import numpy as np

# Absolute rounding of a share, and relative rounding of a probability, with wide margins.
_SHARE, _PROBABILITY = 1e-13, 1e-11


def sizes(window: int, neg_log_tail: float) -> tuple[np.ndarray, float]:
    """(probs, rest): Pr[s others are in a slot], s = 1, 2, ..., rounded up, and the probability of larger s.

    Each of m - 1 others is in the slot with probability 1/m.

    Args:
      window: m >= 2. neg_log_tail: larger s have total probability at most exp(-neg_log_tail).
    """
    found, power = [], 1.0
    for s in range(1, window):
        power *= (window - s) / (window * s)
        # The term is at most 1/s!, and all later terms add up to less than twice the first.
        if 2.0 * power < math.exp(-neg_log_tail):
            return np.array(found), 2.0 * power
        found.append(power * math.exp((window - 1.0 - s) * math.log1p(-1.0 / window)) * (1.0 + _PROBABILITY))
    return np.array(found), 0.0


def shares(window: int, others: int, at: np.ndarray) -> np.ndarray:
    """Upper bounds on the share of slots and groups of s others whose overlap is `at` or less, at = 0 .. m.

    (s + 1) C(R - 1, s - 1) groups have places (the target's included) that span R, each in m - R slots. So
    C(r, s + 1) + (m - r) C(r, s) of C(m, s + 1) have a larger overlap, r = m - 1 - at.

    Args:
      window: m. others: s, from 1 to m - 1. at: whole numbers.
    """
    at = np.asarray(at, dtype=np.float64)
    rest = window - 1.0 - at
    choose = np.ones_like(at)
    for j in range(others):
        choose = choose * np.maximum(rest - j, 0.0) / (window - j)
    # C(rest, s) / C(m, s + 1), and C(rest, s + 1) / C(m, s + 1).
    beyond = choose * ((at + 1.0) * (others + 1.0) + np.maximum(rest - others, 0.0)) / (window - others)
    share = np.where(at <= 0.0, 0.0, np.minimum(1.0 - beyond + _SHARE, 1.0))
    return np.maximum.accumulate(np.where(at >= window, 1.0, share))
