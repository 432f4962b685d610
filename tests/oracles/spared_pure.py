"""Everybody sends eps0-LDP messages (rate 1), exactly: what E+'s adversary sees of finite randomizers, and E+ itself.

Clients: the target, those that are spared, and the others, each in a named slot. With probability 1/n for each of the
others the target takes its slot and it joins the spared ones, else the target does; the pool is shuffled. Everything is
from the definitions; profiles of pools are T1's, which are linear between finitely many bends.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import numpy as np

from . import krr, pairs
from .hexagon import weighted_game

Profile = Callable[[np.ndarray], np.ndarray]


@cache
def t1_profile(clients: int, p: float) -> tuple[Profile, np.ndarray]:
    """T1 for so many shuffled messages at c > 0, and its bends, rising."""
    pair = pairs.enumerate_pair(pairs.t1_labels(p, 1.0), clients)

    def profile(c: np.ndarray) -> np.ndarray:
        c = np.asarray(c, dtype=float)
        above = np.maximum(c, 1.0 / c).ravel()
        value = np.asarray(pairs.profile(pair, above)).reshape(c.shape)
        return np.where(c >= 1.0, value, 1.0 - c + c * value)

    first, second = (np.asarray(each, dtype=float) for each in pair[:2])
    ratio = np.unique(np.round(first[second > 0.0] / second[second > 0.0], 12))
    return profile, np.unique(np.round(np.concatenate([ratio, 1.0 / ratio, [1.0]]), 9))


def pool_law(profile: Profile, bends: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """T*: places and masses."""
    below, above = bends[bends < c - 1e-6], bends[bends > c + 1e-6]
    places = np.concatenate([1.0 - c / below, [0.0], above - c])
    low = c / below * profile(below)
    value = np.concatenate([low, profile(np.array([c])), profile(above)])
    slopes = np.concatenate([[-1.0], np.diff(value) / np.diff(places), [0.0]])
    return places, np.diff(slopes)


def cosh_and_tangent(u: np.ndarray, kappa: float, reach: float) -> np.ndarray:
    """f(u): cosh(kappa u) up to `reach`, and its tangents beyond."""
    near = np.minimum(np.abs(u), reach)
    return np.cosh(kappa * near) + kappa * np.sinh(kappa * near) * (np.abs(u) - near)


def cosh_mean(profile: Profile, bends: np.ndarray, kappa: float, reach: float = math.inf) -> float:
    """C = 1 + 2 int f''(t) D(1 + t) dt, by the second differences of D."""
    at = np.concatenate([[0.0], bends[bends > 1.0] - 1.0])
    slopes = np.append(np.diff(profile(1.0 + at)) / np.diff(at), 0.0)
    masses = np.diff(slopes)
    return 1.0 + 2.0 * float(masses @ (cosh_and_tangent(at[1:], kappa, reach) - 1.0))


def omega(share: np.ndarray, excess: float, kappa: float) -> np.ndarray:
    return np.arccosh(1.0 + excess / (2.0 * share * (1.0 - share))) / kappa


def most(count: int, excess: float, kappa: float) -> np.ndarray:
    """Bounds on the sums of the k largest rho_i - 1, k = 0 .. count."""
    share = np.arange(1, count) / count
    return np.concatenate([[0.0], count * share * (1.0 - share) * omega(share, excess, kappa), [0.0]])


def seen(
    channel: krr.Channel, spared: Sequence[int], others: Sequence[int], target: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """M_i(G), [others, outputs of the pool]; (M_x, M_x'); and of every other the law and both ratios of its message.

    target: x and x'.
    """
    rows = [np.asarray(row, dtype=float) for row in channel]
    laws = [krr.histogram_law([*spared, each], channel, 1) for each in (*others, *target)]
    keys = sorted(set().union(*laws))
    pools = np.array([[float(law.get(key, 0.0)) for key in keys] for law in laws])
    pools = pools[:, pools.sum(axis=0) > 0.0]
    slots = [(rows[h], rows[target[0]] / rows[h], rows[target[1]] / rows[h]) for h in others]
    return pools[: len(others)], pools[len(others) :], slots


def adversary(
    channel: krr.Channel, spared: Sequence[int], others: Sequence[int], target: Sequence[int], c: float
) -> float:
    """n H_c of what is revealed: (1) summed over all slots and pools."""
    pools, (first, second), slots = seen(channel, spared, others, target)
    total, m = 0.0, len(spared) + 1
    for outputs in product(range(len(channel[0])), repeat=len(others)):
        chance = math.prod(slot[0][y] for slot, y in zip(slots, outputs))
        steps = np.array([slot[1][y] - c * slot[2][y] for slot, y in zip(slots, outputs)])
        total += chance * np.maximum(steps @ pools + m * (first - c * second), 0.0).sum()
    return total


def game(weights: Sequence[float], p: float, c: float, one_law: bool = False) -> Callable[[float], float]:
    """V_w(s), the last weight first, with the hexagon's extreme laws, or with T1's law alone."""
    of_t1 = {(p, 1.0): 1.0 / (p + 1.0), (1.0, p): 1.0 / (p + 1.0), (0.0, 0.0): (p - 1.0) / (p + 1.0)}
    return weighted_game(p, c, weights[::-1], [of_t1] if one_law else None)


def theorem(
    clients: int,
    spared: int,
    p: float,
    c: float,
    kappa: float,
    tau: float,
    even: bool = False,
    reach: float = math.inf,
) -> tuple[float, float]:
    """Both terms of E+ for n H_c, D being T1's; infinite where a weight is negative or omega is above `reach`.

    even: a wrong one, weights one.
    """
    m, count = spared + 1, clients - spared - 1
    profile, bends = t1_profile(m, p)
    excess = (cosh_mean(profile, bends, kappa, reach) - 1.0) / tau
    if not even and count > 1 and omega(np.array(1.0 / count), excess, kappa) > reach:
        return math.inf, 0.0
    weights = np.ones(count) if even else 1.0 + np.diff(most(count, excess, kappa))
    if (weights < 0.0).any():
        return math.inf, 0.0
    value = game(tuple(weights.tolist()), p, c)
    places, masses = pool_law(profile, bends, c)
    first = sum(mass * value(m * place) for place, mass in zip(places, masses) if mass > 1e-15)
    return first, tau * (p - c) * (count / (p + 1.0) + m)
