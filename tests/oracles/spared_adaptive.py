"""Everybody sends (rate 1) and messages adapt, exactly: what is seen in order, and E*, E+ from their definitions.

A client's record is renamed before it is randomized, in a way that depends on all earlier messages of the round.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement, permutations, product

import numpy as np

from . import spared_pure
from .exact_rounds import most
from .t_star import Channel, Profile, finite_law

# Messages so far -> what each record is taken for.
Renamed = dict[tuple[int, ...], Sequence[int]]


def renamings(rng: np.random.Generator, records: int, letters: int, length: int) -> Renamed:
    """Any renaming, for all that may be seen before the last of `length` messages."""
    return {
        past: rng.integers(records, size=records).tolist()
        for count in range(length)
        for past in product(range(letters), repeat=count)
    }


def in_order(channel: Channel, renamed: Renamed, held: Sequence[int]) -> np.ndarray:
    """Law of the messages in order, of clients with these records in uniform order; axis j: the j-th message."""
    rows = np.asarray(channel, dtype=float)
    records, letters = rows.shape
    # [records, earlier messages, message], an axis a message.
    after = [
        np.stack([rows[renamed[past]] for past in product(range(letters), repeat=j)], axis=1)
        for j in range(len(held))
    ]
    after = [each.reshape(records, *(letters,) * (j + 1)) for j, each in enumerate(after)]
    orders = set(permutations(held))
    total = np.zeros((letters,) * len(held))
    for order in orders:
        term = np.ones(())
        for each, record in zip(after, order):
            term = term[..., None] * each[record]
        total += term
    return total / len(orders)


def told(channel: Channel, renamed: Renamed, others: int) -> Profile:
    """D_r at c > 0: the largest divergence of the first r + 1 messages, one record replaced, over all data sets."""
    records, pairs = range(len(channel)), []
    for rest in combinations_with_replacement(records, others):
        laws = [in_order(channel, renamed, (own, *rest)).ravel() for own in records]
        pairs += list(permutations(laws, 2))
    p, q = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    return lambda c: np.maximum(p - np.asarray(c)[..., None, None] * q, 0.0).sum(axis=-1).max(axis=-1)


def worst(channel: Channel, renamed: Renamed, clients: int, cs: np.ndarray) -> np.ndarray:
    """The largest divergence at each c of the messages in order over all data sets and both orders."""
    records, pairs = range(len(channel)), []
    for rest in combinations_with_replacement(records, clients - 1):
        pairs += permutations([in_order(channel, renamed, (own, *rest)).ravel() for own in records], 2)
    return most(pairs, cs)


def terms(
    profile: Profile, kinks: np.ndarray, pool: Profile, spared: int, others: int, c: float
) -> np.ndarray:
    """E*'s three terms where messages adapt, for all k and some shares; [3, (k, share)].

    others: N. The sum of k terms, what is cut off, and the pool.
    """
    at, weights, beyond = finite_law(profile, kinks, c)
    clients, found = spared + 1 + others, []
    for kept in range(1, others + 1):
        sums, masses = np.zeros(1), np.ones(1)
        for _ in range(kept):
            sums, masses = np.add.outer(sums, at).ravel(), np.multiply.outer(masses, weights).ravel()
        for share in (0.0, 0.1, 0.3, 0.6, 1.0):
            nearer = float(np.maximum(sums + kept * share * (c - 1.0), 0.0) @ masses) / kept + beyond
            cut = c * float(profile(np.array(1.0))) * float(pool(others / kept))
            joined = float(pool(c + share * (c - 1.0) * others / (spared + 1)))
            found.append([others * nearer, others * cut, (spared + 1) * joined])
    return np.array(found).T / clients


def capped(
    p: float,
    spared: int,
    others: int,
    c: float,
    tells: bool = True,
    delta0: float = 0.0,
    floor: float = 0.0,
    one_law: bool = False,
) -> np.ndarray:
    """E+'s terms where messages adapt, D_m being T1's, for all k; [4, k].

    The game, what is cut off, the pool's floor, and the cost of cutting steps.

    tells: False for a wrong one, in which the pool tells nothing.
    floor: the pool's divergences are at most D_m + floor. one_law: T1's law in place of the hexagon's.
    """
    clients, pool = spared + 1 + others, spared + 1
    profile, bends = spared_pure.t1_profile(pool, p)
    places, masses = spared_pure.pool_law(profile, bends, c)
    if not tells:
        places, masses = np.array([1.0 - c]), np.ones(1)
    found = []
    for kept in range(1, others + 1):
        weight = others / kept
        value = spared_pure.game((weight,) * kept, p, c, one_law)
        first = sum(mass * value(pool * place) for place, mass in zip(places, masses) if mass > 1e-15)
        apart = delta0 + (1.0 - delta0) * (p - 1.0) / (p + 1.0)
        cut = others * c * apart * (float(profile(np.array(weight))) + floor)
        steps = others * delta0 * (c if one_law else (1.0 + c) * (2.0 + 1.0 / p))
        found.append([first, cut, pool * c * floor, steps])
    return np.array(found).T / clients
