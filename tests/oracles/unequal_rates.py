"""T1h, T1m, ... of shuffled check-in where clients have rates of their own, by enumeration.

Written from the statements of docs/theory_rates.md alone: nothing of the library is used. float64, positive terms only.
"""

from collections.abc import Sequence
from itertools import product
from math import factorial, prod

import numpy as np

from . import hexagon, krr, pairs


def counts_law(probs: Sequence[float]) -> np.ndarray:
    """The law of a sum of independent indicators."""
    pmf = np.ones(1)
    for prob in probs:
        pmf = np.append(pmf * (1 - prob), 0.0) + np.append(0.0, pmf * prob)
    return pmf


def plus_part(start: float, jumps: Sequence[tuple[float, float]], terms: int) -> float:
    """E(start + sum of `terms` independent jumps)_+ for jumps (value, probability), by counts of each value."""
    counts = pairs.compositions(terms, len(jumps))
    value = start + counts @ np.array([jump for jump, _ in jumps])
    mass = np.array([prod(map(factorial, row)) for row in counts.tolist()], dtype=float)
    mass = factorial(terms) / mass * np.prod(np.array([prob for _, prob in jumps]) ** counts, axis=1)
    return float(mass @ np.maximum(value, 0.0))


def t_star(p: float, c: float) -> list[tuple[float, float]]:
    """The jumps t*: p - c and 1 - cp, else 0."""
    return [(p - c, 1 / (p + 1)), (1 - c * p, 1 / (p + 1)), (0.0, (p - 1) / (p + 1))]


def pool_profile(number: int, theta: float, rate: float, p: float, c: float) -> float:
    """H^{n',theta,g}(c) of T1h, c >= 1: n independent terms, alpha (1-c) if absent, else beta t*."""
    alpha, beta = (1 - rate) / (1 - theta), rate / theta
    jumps = [(alpha * (1 - c), 1 - theta)]
    jumps += [(beta * value, theta * prob) for value, prob in t_star(p, c)]
    return plus_part(0.0, jumps, number + 1) / (number + 1)


def members(others: Sequence[float], theta: float) -> list[float]:
    """w of each of the others."""
    return [min(x / theta, (1 - x) / (1 - theta)) for x in others]


def t1h(others: Sequence[float], theta: float, rate: float, p: float, cs: np.ndarray) -> np.ndarray:
    """T1h at each c >= 1."""
    pmf = counts_law(members(others, theta))
    return np.array([pmf @ [pool_profile(n, theta, rate, p, c) for n in range(len(pmf))] for c in cs])


def psi(used: int, clients: int, p: float, c: float) -> float:
    """Psi_{K,n}(c)."""
    return plus_part((clients - used) * (1 - c), t_star(p, c), used) / clients


def nothing_revealed(others: Sequence[float], rate: float, p: float, cs: np.ndarray) -> np.ndarray:
    """FALSE: the exact posterior q_k with uniform weights, as if nothing had to be revealed."""
    pmf = counts_law(others)
    total = np.zeros(len(cs))
    for k in range(1, len(pmf) + 1):
        here = (1 - rate) * (pmf[k] if k < len(pmf) else 0.0) + rate * pmf[k - 1]
        q = rate * pmf[k - 1] / here if here > 0 else 0.0
        for i, c in enumerate(cs):
            jumps = [(q / k * value, prob) for value, prob in t_star(p, c)]
            total[i] += here * plus_part((1 - q) * (1 - c), jumps, k)
    return total


def random_vertex(rng: np.random.Generator, records: int, p: float) -> krr.Channel:
    """A random vertex of the polytope of eps0-LDP channels, or near one: columns proportional to {1, p}^records."""
    patterns = np.array(list(product([1.0, p], repeat=records)))[1:-1]
    while True:
        columns = patterns[rng.choice(len(patterns), records, replace=False)]
        if abs(np.linalg.det(columns)) < 1e-9:
            continue
        weights = np.linalg.solve(columns.T, np.ones(records))
        if (weights >= -1e-12).all():
            return (columns * np.maximum(weights, 0.0)[:, None]).T.tolist()


def occupied(throwers: int, slots: int) -> np.ndarray:
    """The law of the number of occupied slots, k = 0..throwers, when all of them throw."""
    law = np.append(1.0, np.zeros(throwers))
    for _ in range(throwers):
        k = np.arange(throwers + 1)
        law = law * k / slots + np.append(0.0, (law * np.maximum(slots - k, 0) / slots)[:-1])
    return law


def t2_prime_h(
    others: Sequence[float],
    theta: float,
    rate: float,
    slots: int,
    p: float,
    cs: np.ndarray,
    played: bool = False,
) -> np.ndarray:
    """T2'h at each c >= 1, how many of the pool and the target throw (J) revealed; theta = 1: who throws is.

    played: with the hexagon's game where not all of the pool are used.
    """
    pmf = counts_law(others if theta == 1.0 else members(others, theta))
    rho = np.inf if rate == 1.0 else rate * (1 - theta) / ((1 - rate) * theta)
    total = np.zeros(len(cs))
    for pool, mass in enumerate(pmf):
        thrown = np.append(binom_law(pool, theta), 0.0)
        for j in range(1, pool + 2):
            if j == pool + 1 or theta == 1.0:
                chance, share = rate * thrown[j - 1], 1 / j
            else:
                chance = (1 - rate) * thrown[j] + rate * thrown[j - 1]
                share = (1 / j if rho == np.inf else rho / (pool + 1 - j + rho * j)) if rate else 0.0
            for k, shown in enumerate(occupied(j, slots)):
                if shown > 0 and chance > 0:
                    for i, c in enumerate(cs):
                        jumps = [(share * value, prob) for value, prob in t_star(p, c)]
                        start = (1 - share * k) * (1 - c)
                        if not played:
                            here = plus_part(start, jumps, k)
                        elif k <= pool:
                            here = share * hexagon.game_value(p, c, k, start / share) if share else 0.0
                        else:
                            here = max(p - c, 0.0) / (p + 1)
                        total[i] += mass * chance * shown * here
    return total


def binom_law(number: int, prob: float) -> np.ndarray:
    """Of a sum of so many indicators of one probability."""
    return counts_law([prob] * number)
