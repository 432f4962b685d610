"""T2++: shares of a client's message in m common slots, if the label of its own slot is randomized.

The others occupy K of m slots, and every slot is labelled occupied or empty. The label of the slot with the
target's message may be false, so that slots of both labels have nearly the same share of that message
[docs/theory_hexagon.md, section 3]. NumPy float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from checkin_jax.numerics.counts import chernoff, occupancy

# Above this number of clients or slots the law of K is bounded, not computed.
_COUNTED = 5_000
# Ends of the ranges of K, in standard deviations from the mean.
_EDGES = np.concatenate([[-8.0, -5.0], np.linspace(-3.6, 3.6, 37), [5.0, 8.0]])
# Levels for the deviations of K and of the number of others: negative logarithms of tail masses.
_LEVELS = (1.6, 2.0, 2.6, 3.5, 5.0, 7.5, 12.0, 20.0)
# Bounds on relative errors: of quotients of the law of K, and of sums of masses.
_QUOTIENT, _SUMMED = 1e-11, 1e-9
# Masses below this have inaccurate quotients and count as lost.
_LEAST = 1e-290


class LabelledShares(NamedTuple):
    """m T / (p_0 w) of each part and its mass (with T included), [parts]; and the mass in no part.

    w: upper bound on every slot's share of the target's message, in units of p_0/m. T: lower bound on the
    probability of the labels, over their probability without the target.
    """

    clients: np.ndarray
    masses: np.ndarray
    lost: float


def counted(num_clients: int, num_slots: int) -> bool:
    """True if the law of K is computed, false if it is bounded."""
    return max(num_clients, num_slots) <= _COUNTED


def labelled(num_clients: int, num_slots: int, prob: float, neg_log_tail: float) -> LabelledShares | None:
    """Shares of n clients' messages in m common slots; each sends with probability `prob`. None
    if unknown.

    Args:
      num_clients: n > 1. neg_log_tail: the lost mass is about exp(-neg_log_tail).
    """
    if counted(num_clients, num_slots):
        found = _counted(num_clients, num_slots, prob, neg_log_tail)
    else:
        found = _bounded(num_clients, num_slots, prob, neg_log_tail)
    if found is None:
        return None
    shares, totals, masses, lost = (np.asarray(each, dtype=np.float64) for each in found)
    kept = masses > 0.0
    shares, totals, masses = shares[kept], totals[kept], masses[kept]
    clients = num_slots * totals / (prob * shares) * (1.0 - 1e-14)
    weights = masses * totals * (1.0 + _SUMMED)
    return LabelledShares(clients, weights, float(lost))


def _true(filled: np.ndarray, seen: np.ndarray, fewer: np.ndarray, crowded: bool) -> np.ndarray:
    """Pr[an empty slot taken by the target keeps its label] for each K. Any number in [0, 1] is sound.

    Shares are even where true[k] = seen + fewer (filled - true[k-1]). The recursion runs upwards while errors
    shrink, and downwards from the last K, at which no label is false unless K = m (`crowded`).
    """
    true, turn = np.ones(seen.size), int(np.count_nonzero(fewer < 1.0))
    before = 1.0
    for i in range(turn if crowded else min(turn, seen.size - 1)):
        before = true[i] = min(max(seen[i] + fewer[i] * (filled[i] - before), 0.0), 1.0)
    for i in range(seen.size - 1, turn, -1):
        true[i - 1] = min(max(filled[i] + (seen[i] - true[i]) / fewer[i], 0.0), 1.0)
    return true


def shares(num_clients: int, num_slots: int, prob: float, law: np.ndarray, low: int, high: int) -> tuple:
    """(w, T) for K = low, ..., high, w rounded up and T down. Outside, and at `high`, no label is false.

    Args:
      law: law of K, with relative errors of at most _QUOTIENT / 4.
    """
    n, m = num_clients, num_slots
    k = np.arange(low, high + 1.0)
    before = np.append(law[low - 1] if low else 0.0, law[low:high])
    fewer = before / law[low : high + 1] * (m - k + 1.0) / np.maximum(k, 1.0)
    away = m * (1.0 - prob) / prob
    seen = (k + away) / n
    true = _true(k / n, seen, fewer, high == m)
    false = fewer * (1.0 - np.append(1.0, true[:-1]))
    # Probability that the target is drawn in an occupied slot, plus false labels of slots of its own.
    occupied = seen - fewer * (1.0 - k / n) + false
    filled = k / m
    total = 1.0 - prob + prob * (filled * (1.0 + false) + (1.0 - filled) * true)
    off = _QUOTIENT * (1.0 + fewer + seen)
    share = np.maximum(np.where(k < m, true, 0.0), np.where(k > 0.0, occupied, 0.0)) + off
    return share, total - prob * off


def _counted(n: int, m: int, prob: float, mass: float) -> tuple:
    """Shares, T and masses of ranges of K, and the mass outside, from the computed law of K."""
    law = occupancy.exact(n - 1, m, prob)
    matters = np.flatnonzero(law > max(math.exp(-mass - 8.0), _LEAST))
    low, high = int(matters[0]), int(matters[-1])
    share, total = shares(n, m, prob, law, low, high)
    mean, variance = occupancy.moments(n - 1.0, float(m), prob)
    ends = np.rint(mean + math.sqrt(variance) * _EDGES)
    # The last K is a range of its own, in which no label is false.
    ends = np.unique(np.clip(np.append(ends, [high - 1.0, float(high)]), low, high)).astype(int) - low
    starts = np.append(0, ends[:-1] + 1)
    masses = np.add.reduceat(law[low : high + 1], starts)
    outside = float(law[:low].sum() + law[high + 1 :].sum()) * (1.0 + _SUMMED) + _LEAST
    return np.maximum.reduceat(share, starts), np.minimum.reduceat(total, starts), masses, outside


def _bounded(n: int, m: int, prob: float, mass: float) -> tuple | None:
    """Shares, T and masses of levels of K and the number of others, and the mass outside; None if unknown."""
    exponents = chernoff.levels(_LEVELS, mass)
    mean, variance = occupancy.moments(n - 1.0, float(m), prob)
    away = np.array([occupancy.deviation(variance, each) for each in exponents])
    least, most = np.maximum(np.floor(mean - away) - 1.0, 0.0), np.minimum(np.ceil(mean + away) + 1.0, m)
    others = np.full(exponents.shape, n - 1.0)
    fewest, highest = others, others
    if prob < 1.0:
        fewest, highest = chernoff.fewest(n - 1.0, prob, exponents), chernoff.most(n - 1.0, prob, exponents)
    if (most >= fewest).any() or least[-1] < 1.0:
        return None
    fewer = most * (most - 1.0) / ((fewest + most) * (fewest + 1.0 - most))
    share = (most + fewer) / (fewest + 1.0)
    seen = least / (highest + 1.0)
    taken = np.array([occupancy.taken(*each) for each in zip(fewest, most)])
    at_least = np.maximum(seen - taken, 0.0) / (1.0 - seen)
    total = 1.0 - prob + prob * (least / m * (1.0 - most / (fewest + 1.0)) * (1.0 + at_least) + seen)
    sides = 2.0 if prob >= 1.0 else 4.0
    beyond = np.minimum(sides * np.exp(-exponents), 1.0)
    masses = -np.diff(np.append(1.0, np.minimum.accumulate(beyond)))
    return share * (1.0 + 1e-12), total * (1.0 - 1e-12), masses, 3.0 * beyond[-1]
