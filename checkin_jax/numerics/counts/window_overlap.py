"""Loads of the slots of a sliding window: co-occupants of a slot, the overlap of their windows, occupied slots.

In A_sldw client j sends to one of the slots j .. j + m - 1, uniformly. A group of clients that share a slot
with a given one could have shared any slot of the overlap of all their windows. The bounds on the law of a
group's size and of its overlap hold for every client, also if the server does not output every slot
[docs/evaluation.md]. NumPy float64.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy

from checkin_jax.numerics.counts.occupancy import OccupiedLaws

# Absolute rounding of a share, and relative rounding of a probability, with wide margins.
_SHARE, _PROBABILITY = 1e-13, 1e-11
# Longest window for which the law of occupied slots is computed; points of Gauss' rule, whose error is below 1e-12.
MOST_SLIDING, _POINTS = 256, 5
# Rows of probabilities below this are dropped; bound on all that is dropped.
_DROPPED, _REST = 1e-22, 1e-16


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


class SlidingThrows(NamedTuple):
    """Clients with sliding windows, among them all 2 m - 2 whose windows meet the target's.

    num_slots: m, the length of a window.
    """

    num_slots: int

    def exact(self) -> OccupiedLaws:
        """The laws in the target's window, but for `_REST`, and for relative errors of 20 m roundings."""
        return _occupied(self.num_slots)

    def bounded(self, neg_log_tail: float) -> OccupiedLaws:
        """Bounds on the laws."""
        del neg_log_tail
        used, dummy, present, without, rest = _occupied(self.num_slots)
        more = 1.0 + _PROBABILITY
        return OccupiedLaws(used / more, (dummy + rest) * more, present * more, without * more, rest)


def _chosen(pending: np.ndarray, prob: float) -> list[np.ndarray]:
    """Probabilities that so many of the pending clients choose a slot, 0, 1, ... up to a number that is rare."""
    found: list[np.ndarray] = []
    for count in range(int(pending[-1]) + 1):
        others = np.maximum(pending - count, 0)
        chance = scipy.special.binom(pending, count) * prob**count * (1.0 - prob) ** others
        if count > prob * pending[-1] and chance.max() < _DROPPED:
            break
        found.append(np.where(pending < count, 0.0, chance))
    return found


@functools.lru_cache(maxsize=8)
def _occupied(window: int) -> OccupiedLaws:
    """The laws of `SlidingThrows`, by recursion over the slots of the target's window.

    A client whose window begins after the target's is pending from its first slot on, unless its choice is beyond the
    target's window; pending clients choose each remaining slot alike. A client whose window began before the target's
    is thrown at its last slot. The number C of others in the target's slot counts by u^C; E 1/(C + 1) is the integral
    over u in (0, 1). All derivatives are positive, so that Gauss' rule is below the integral.
    """
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    powers = 0.5 * (points + 1.0)[:, None, None]
    # By occupied slots but for the target's own, from `low` on, and pending clients, from `idle` on. First without a
    # target; then with one whose slot is not a later one, for each u.
    state, low, idle = np.zeros((1 + _POINTS, 1, 1)), 0, 0
    state[0] = 1.0
    for slot in range(window):
        rows, columns = (np.flatnonzero(state.sum(axis=others) > _DROPPED) for others in ((0, 2), (0, 1)))
        before = state[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        low, idle = low + int(rows[0]), idle + int(columns[0])
        if slot:
            inside = (window - slot) / window
            before = np.pad(before * (1.0 - inside), ((0, 0), (0, 0), (0, 1)))
            before[:, :, 1:] += state[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] * inside
        pending = np.arange(idle, idle + before.shape[2])
        chances = _chosen(pending, 1.0 / (window - slot))
        least = max(idle - len(chances) + 1, 0)
        state = np.zeros((1 + _POINTS, before.shape[1] + 2, idle - least + before.shape[2]))
        for count, chance in enumerate(chances):
            # Those of fewer pending clients than `count` have no chance.
            skipped, here = max(count - idle, 0), int(count > 0)
            moved = before[:, :, skipped:] * chance[skipped:]
            start = idle + skipped - count - least
            state[:, here : here + before.shape[1], start : start + moved.shape[2]] += moved
            joined = powers**count * moved[0] / window
            state[1:, : before.shape[1], start : start + moved.shape[2]] += joined
        idle = least
        if slot + 1 < window:
            occupied = low + np.arange(state.shape[1])[:, None]
            free, beside = (np.maximum(all_slots - occupied, 0.0) / window for all_slots in (slot + 1, slot))
            moved = state * np.stack([free, *[beside] * _POINTS])
            state[0] -= moved[0]
            state[1:] *= 1.0 - beside - (1.0 - powers) / window
            state[:, 1:] += moved[:, :-1]
    state = np.pad(state[:, :, 0], ((0, 0), (low, window)))[:, : window + 1]
    without, filled = state[0], np.arange(window + 1.0)
    used, dummy = np.append(0.0, 0.5 * weights @ state[1:, :-1]), np.zeros(window + 1)
    dummy[1:] = without[:-1] * (window - filled[:-1]) / window
    return OccupiedLaws(used, dummy, without * filled / window + dummy, without, _REST)
