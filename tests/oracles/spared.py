"""Everybody sends (rate 1), exactly: what E*'s adversary sees of finite randomizers, and E* from its definition.

Clients: the target, those that are spared, and the others, each in a named slot. The target takes the slot of a uniform
one of the others, who joins the spared ones, whose messages are shuffled.
"""

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement, permutations, product

import numpy as np

from .t_star import Channel, Profile, finite_law


def shuffled(laws: Sequence[np.ndarray]) -> np.ndarray:
    """Law of the messages of these clients in uniform order; axis j: the j-th message."""
    total = np.zeros((len(laws[0]),) * len(laws))
    for order in permutations(laws):
        term = np.ones(())
        for law in order:
            term = np.multiply.outer(term, law)
        total += term
    return total / len(list(permutations(laws)))


def hockey_stick(p: np.ndarray, q: np.ndarray, c: float) -> float:
    return float(np.maximum(p - c * q, 0.0).sum())


def shuffled_profile(channel: Channel, others: int) -> Callable[[float], float]:
    """D_r: the largest divergence of r + 1 shuffled messages, one record replaced, over all data sets."""
    rows = [np.asarray(row, dtype=float) for row in channel]
    pairs = []
    for rest in combinations_with_replacement(rows, others):
        laws = [shuffled([row, *rest]) for row in rows]
        pairs += list(permutations(laws, 2))
    return lambda c: max(hockey_stick(p, q, c) for p, q in pairs)


def seen(channel: Channel, spared: Sequence[int], others: Sequence[int], target: int) -> np.ndarray:
    """Law of (the others' slots, in order; the spared ones' messages and one more, shuffled), as one array."""
    rows = [np.asarray(row, dtype=float) for row in channel]
    total = np.zeros((len(rows[0]),) * (len(others) + len(spared) + 1))
    for place, moved in enumerate(others):
        term = np.ones(())
        for slot, other in enumerate(others):
            term = np.multiply.outer(term, rows[target if slot == place else other])
        total += np.multiply.outer(term, shuffled([rows[moved], *(rows[each] for each in spared)]))
    return total / len(others)


def worst_seen(channel: Channel, spared: int, others: int, c: float) -> float:
    """The largest divergence of `seen` over all data sets and both orders."""
    records, found = range(len(channel)), 0.0
    for first, rest in product(
        combinations_with_replacement(records, spared), combinations_with_replacement(records, others)
    ):
        laws = [seen(channel, first, rest, target) for target in records]
        found = max(found, *(hockey_stick(p, q, c) for p, q in permutations(laws, 2)))
    return found


def kept_sum(profile: Profile, kinks: np.ndarray, kept: int, c: float) -> float:
    """(1/k) E(T*_1 + ... + T*_k)_+."""
    at, weights, _ = finite_law(profile, kinks, c)
    sums, masses = np.zeros(1), np.ones(1)
    for _ in range(kept):
        sums, masses = np.add.outer(sums, at).ravel(), np.multiply.outer(masses, weights).ravel()
    return float(np.maximum(sums, 0.0) @ masses) / kept
