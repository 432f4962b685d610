"""How evenly a client's message lies in common slots where its own slot bears a label of either kind: T2++.

Others occupy K of m slots. Every slot bears a label, occupied or empty; that of the client's message is true or false
by chance, so that slots of both kinds have nearly the same share of it [docs/theory_hexagon.md, section 5b]. Host code,
numpy float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from checkin_jax.numerics.counts import chernoff, occupancy

# Of more clients or slots than this the law of K is bounded, not computed.
_COUNTED = 5_000
# Ends of the ranges of K that are told apart, in standard deviations from the mean.
_EDGES = np.concatenate([[-8.0, -5.0], np.linspace(-3.6, 3.6, 37), [5.0, 8.0]])
# Levels of how far K and the number of others are from their means, by the logarithm of what is beyond.
_LEVELS = (1.6, 2.0, 2.6, 3.5, 5.0, 7.5, 12.0, 20.0)
PARTS = _EDGES.size + 3
# Relative errors of quotients of K's law, at most; and of masses that are added up.
_QUOTIENT, _SUMMED = 1e-11, 1e-9
# Masses below this, whose quotients are not accurate, count as lost.
_LEAST = 1e-290


class Labelled(NamedTuple):
    """m T / (p_0 w) of each part and its mass, T included, [PARTS], padded with masses of 0; and what is in none.

    w: no slot's share of the client's message, in units of p_0/m, is above it. T: the probability of the labels over
    that of the same labels without the client, at least.
    """

    clients: np.ndarray
    masses: np.ndarray
    lost: float


def counted(num_clients: int, num_slots: int) -> bool:
    """Whether the law of K is computed, not bounded."""
    return max(num_clients, num_slots) <= _COUNTED


def labelled(num_clients: int, num_slots: int, prob: float, log_inverse_mass: float) -> Labelled | None:
    """Shares of n clients' messages in m common slots into which each throws with probability `prob`; None if unknown.

    Args:
      num_clients: n > 1. log_inverse_mass: what is lost is about exp(-log_inverse_mass).
    """
    if counted(num_clients, num_slots):
        found = _counted(num_clients, num_slots, prob, log_inverse_mass)
    else:
        found = _bounded(num_clients, num_slots, prob, log_inverse_mass)
    if found is None:
        return None
    shares, totals, masses, lost = (np.asarray(each, dtype=np.float64) for each in found)
    kept = masses > 0.0
    shares, totals, masses = shares[kept], totals[kept], masses[kept]
    pad = (0, PARTS - shares.size)
    clients = num_slots * totals / (prob * shares) * (1.0 - 1e-14)
    weights = masses * totals * (1.0 + _SUMMED)
    return Labelled(np.pad(clients, pad, mode="edge"), np.pad(weights, pad), float(lost))


def _true(filled: np.ndarray, seen: np.ndarray, fewer: np.ndarray, crowded: bool) -> np.ndarray:
    """How often an empty slot that the client takes keeps its label, for each K: any number in [0, 1] is sound.

    Shares are even where true[k] = seen + fewer (filled - true[k-1]): followed upwards while errors shrink so, and
    downwards from the last K, where nobody is left for a false label, unless it is m (`crowded`).
    """
    true, turn = np.ones(seen.size), int(np.count_nonzero(fewer < 1.0))
    before = 1.0
    for i in range(turn if crowded else min(turn, seen.size - 1)):
        before = true[i] = min(max(seen[i] + fewer[i] * (filled[i] - before), 0.0), 1.0)
    for i in range(seen.size - 1, turn, -1):
        true[i - 1] = min(max(filled[i] + (seen[i] - true[i]) / fewer[i], 0.0), 1.0)
    return true


def shares(num_clients: int, num_slots: int, prob: float, law: np.ndarray, low: int, high: int) -> tuple:
    """(w, T) for K = low, ..., high, w rounded up and T down; outside, and at `high`, no label is false.

    Args:
      law: that of K, relative errors of _QUOTIENT / 4 at most.
    """
    n, m = num_clients, num_slots
    k = np.arange(low, high + 1.0)
    before = np.append(law[low - 1] if low else 0.0, law[low:high])
    fewer = before / law[low : high + 1] * (m - k + 1.0) / np.maximum(k, 1.0)
    away = m * (1.0 - prob) / prob
    seen = (k + away) / n
    true = _true(k / n, seen, fewer, high == m)
    false = fewer * (1.0 - np.append(1.0, true[:-1]))
    # The client's chance to be drawn where others are, and false labels of slots that it has for itself.
    occupied = seen - fewer * (1.0 - k / n) + false
    filled = k / m
    total = 1.0 - prob + prob * (filled * (1.0 + false) + (1.0 - filled) * true)
    off = _QUOTIENT * (1.0 + fewer + seen)
    share = np.maximum(np.where(k < m, true, 0.0), np.where(k > 0.0, occupied, 0.0)) + off
    return share, total - prob * off


def _counted(n: int, m: int, prob: float, mass: float) -> tuple:
    """Shares, T and masses of ranges of K, and what is in none, by K's law."""
    law = occupancy.exact(n - 1, m, prob)
    matters = np.flatnonzero(law > max(math.exp(-mass - 8.0), _LEAST))
    low, high = int(matters[0]), int(matters[-1])
    share, total = shares(n, m, prob, law, low, high)
    mean, variance = occupancy.moments(n - 1.0, float(m), prob)
    ends = np.rint(mean + math.sqrt(variance) * _EDGES)
    # The last by itself: nobody is left there for a false label.
    ends = np.unique(np.clip(np.append(ends, [high - 1.0, float(high)]), low, high)).astype(int) - low
    starts = np.append(0, ends[:-1] + 1)
    masses = np.add.reduceat(law[low : high + 1], starts)
    outside = float(law[:low].sum() + law[high + 1 :].sum()) * (1.0 + _SUMMED) + _LEAST
    return np.maximum.reduceat(share, starts), np.minimum.reduceat(total, starts), masses, outside


def _bounded(n: int, m: int, prob: float, mass: float) -> tuple | None:
    """The same of levels: how many others there are, and how many slots they occupy, but with small probability."""
    exponents = np.array([*(each for each in _LEVELS if each < mass), mass])
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
