"""Everybody sends (rate 1), exactly: what E*'s adversary sees of finite randomizers, and E* from its definition.

Clients: the target, those that are spared, and the others, each in a named slot. The target takes the slot of a uniform
one of the others, who joins the spared ones, whose messages are shuffled.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import combinations_with_replacement, permutations, product

import numpy as np
from scipy.special import gammaln, ndtr
from scipy.stats import binom

from .exact_rounds import most
from .t_star import Channel, Profile, finite_law


def shuffled(laws: Sequence[np.ndarray]) -> np.ndarray:
    """Law of the messages of these clients in uniform order; axis j: the j-th message."""
    in_turn = reduce(np.multiply.outer, laws)
    orders = list(permutations(range(len(laws))))
    return np.sum([in_turn.transpose(order) for order in orders], axis=0) / len(orders)


def bits(n: int, mu: float, at_other: int, edge: float, losses: np.ndarray) -> np.ndarray:
    """The larger H_c of both orders of how many of n messages are above `edge`; m of the others at x', else at x."""
    up = ndtr(np.array([0.5 * mu, -0.5 * mu]) - edge)
    others = np.convolve(
        binom.pmf(np.arange(at_other + 1), at_other, up[1]),
        binom.pmf(np.arange(n - at_other), n - 1 - at_other, up[0]),
    )
    p, q = (np.append(others * (1.0 - each), 0.0) + np.append(0.0, others * each) for each in up)
    c = np.exp(losses)[:, None]
    return np.maximum(*(np.maximum(a - c * b, 0.0).sum(axis=1) for a, b in ((p, q), (q, p))))


def shuffled_profile(channel: Channel, others: int) -> Profile:
    """D_r at c > 0: the largest divergence of r + 1 shuffled messages, one record replaced, over all data sets."""
    rows = [np.asarray(row, dtype=float) for row in channel]
    pairs = []
    for rest in combinations_with_replacement(rows, others):
        laws = [shuffled([row, *rest]) for row in rows]
        pairs += list(permutations(laws, 2))
    p, q = (np.array([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    return lambda c: np.maximum(p - np.asarray(c)[..., None, None] * q, 0.0).sum(axis=-1).max(axis=-1)


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


def worst_seen(channel: Channel, spared: int, others: int, cs: np.ndarray) -> np.ndarray:
    """The largest divergence of `seen` at each c over all data sets and both orders."""
    records, pairs = range(len(channel)), []
    for first, rest in product(
        combinations_with_replacement(records, spared), combinations_with_replacement(records, others)
    ):
        pairs += permutations([seen(channel, first, rest, target).ravel() for target in records], 2)
    return most(pairs, cs)


def kept_sum(profile: Profile, kinks: np.ndarray, kept: int, c: float) -> float:
    """(1/k) E(T*_1 + ... + T*_k)_+."""
    at, weights, _ = finite_law(profile, kinks, c)
    sums, masses = np.zeros(1), np.ones(1)
    for _ in range(kept):
        sums, masses = np.add.outer(sums, at).ravel(), np.multiply.outer(masses, weights).ravel()
    return float(np.maximum(sums, 0.0) @ masses) / kept


def cut_weights_terms(
    profile: Profile,
    kinks: np.ndarray,
    told: Profile,
    others: int,
    c: float,
    met: Profile | None = None,
) -> np.ndarray:
    """E*'s second inequality from its definition, c > 1: one large term, many small ones, cut weights; [3, (x, y, B)].

    The best of a few t. told: D_r at b > 0. met: in place of D_r where large weights and large terms meet.
    """
    met = told if met is None else met
    at, masses, _ = finite_law(profile, kinks, c)
    tau = at + c - 1.0
    share, single, t = (
        np.array([0.001, 0.01, 0.1, 0.4]),
        np.array([1.2, 2.0, 3.2, 4.5]),
        np.geomspace(0.3, 50.0, 20),
    )
    # rho / y, and B / y, y = distance / single; t times y.
    rho = np.geomspace(1e-3, 50.0, 100) / tau.max()
    u = t[:, None, None] * np.minimum(rho[:, None] * tau, 1.0)
    sigma = np.maximum.accumulate((np.expm1(u) - u) @ masses / rho, axis=1)
    distance = (1.0 - share)[:, None] * others * (c - 1.0)
    y = (distance / single)[:, :, None]
    whole = t * single[:, None]
    exponent = sigma[:, None, None] * others / y - (whole.T + 1.0 + np.log(whole.T))[:, None, :, None]
    few = distance[:, :, None] / others * np.exp(np.minimum(exponent.min(axis=0), 300.0))
    up, weights = tau[tau > 1e-12], masses[tau > 1e-12]
    large = up * met(y / up) * weights
    one = ((up > 1.0 / rho[:, None]) * large[:, :, None, :]).sum(axis=3)
    cut = float(profile(np.array(c))) * told(rho * y) / share[:, None, None]
    return np.stack([one, few, cut]).reshape(3, -1)


def own_records(p: float, letters: int, others: int, c: float) -> float:
    """H_c of `seen`, a little too little: k-ary response, ratio p, nobody spared, the others at records of their own.

    letters: k >= others + 2. The message of whoever is moved points at its slot; in it the target's letter is rare.
    """
    most, rest = 10, np.arange(others + 1)
    rare = 1.0 / (p + letters - 1.0)
    # The target's letter, the other record's, the slot's own, any other.
    terms = np.array([p - c, 1.0 - c * p, (1.0 - c) / p, 1.0 - c])
    masses = rare * np.array([1.0, 1.0, p, letters - 3.0])

    def sums(count: int) -> tuple[np.ndarray, np.ndarray]:
        i, j, own = (
            axis.ravel() for axis in np.meshgrid(np.arange(most), np.arange(most), rest, indexing="ij")
        )
        left = count - i - j - own
        numbers = np.stack([i, j, own, left])[:, left >= 0]
        logs = gammaln(count + 1.0) - gammaln(numbers + 1.0).sum(axis=0) + np.log(masses) @ numbers
        return terms @ numbers, np.exp(logs)

    shown = rare * (p + others - 1.0) / others
    values, laws = sums(others - 1)
    pointed = np.add.outer(rare * p / shown * terms, rare / shown * values)
    values, law = sums(others)
    alike = float(np.maximum(values, 0.0) @ law)
    return (
        float(masses @ np.maximum(pointed, 0.0) @ laws) * shown + (letters - others) * rare * alike / others
    )
