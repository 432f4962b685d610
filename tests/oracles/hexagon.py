"""The hexagon game of T1+, played out: exactly for a few steps, on an exact lattice for hundreds.

Per step the adversary chooses a law on the hexagon of likelihood ratios 1/p <= z, z', z/z' <= p with E z = E z' = 1;
after k steps it is paid (s + sum (z - c z'))_+. Everything is from this definition; extreme laws are found by solving
linear equations for every set of corners.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations
from math import comb, gcd, inf, lcm

import numpy as np

Number = Fraction | float
Point = tuple[Number, Number]
Law = dict[Point, Number]


def corners(p: Number) -> list[Point]:
    """Corners of {(z, z'): 1/p <= z, z', z/z' <= p}."""
    one = p / p
    return [(p, one), (one, p), (p, p), (one / p, one / p), (one, one / p), (one / p, one)]


def _solve(points: Sequence[Point]) -> list[Number] | None:
    """Weights >= 0 with total 1 and mean (1, 1), if they exist and are unique; Gaussian elimination."""
    rows = [[1 for _ in points] + [1], [z for z, _ in points] + [1], [y for _, y in points] + [1]]
    rank = 0
    for column in range(len(points)):
        pivot = next((r for r in range(rank, 3) if abs(rows[r][column]) > 1e-12), None)
        if pivot is None:
            return None
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        rows[rank] = [value / rows[rank][column] for value in rows[rank]]
        for r in range(3):
            if r != rank:
                factor = rows[r][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[rank])]
        rank += 1
    if any(abs(rows[r][-1]) > 1e-12 for r in range(rank, 3)):
        return None
    weights = [rows[r][-1] for r in range(rank)]
    return weights if all(w > 1e-12 for w in weights) else None


@lru_cache(maxsize=64, typed=True)
def vertex_laws(p: Number) -> list[Law]:
    """All extreme laws on the corners with mean (1, 1); exact for a Fraction."""
    found = []
    for size in (1, 2, 3):
        for points in combinations(corners(p), size):
            weights = _solve(points)
            if weights is not None:
                found.append(dict(zip(points, weights)))
    return found


def game_value(p: Number, c: Number, steps: int, s: Number, choices: Sequence[Law] | None = None) -> Number:
    """V_steps(s) by backward induction over all sums that can occur; exact for Fractions.

    choices: the laws of (z, z') that the adversary has, all extreme ones by default.
    """
    chosen = vertex_laws(p) if choices is None else choices
    laws = [[(z - c * y, w) for (z, y), w in law.items()] for law in chosen]

    @cache
    def value(left: int, at: Number) -> Number:
        if left == 0:
            return max(at, at * 0)
        return max(sum(w * value(left - 1, at + step) for step, w in law) for law in laws)

    return value(steps, s)


def weighted_game(
    p: float, c: float, weights: Sequence[float], choices: Sequence[Law] | None = None
) -> Callable[[float], float]:
    """s -> the largest E(s + sum w (z - c z'))_+, a law chosen step by step, the first weight first; float64.

    Sums that agree to twelve places are one. choices: as for `game_value`.
    """
    chosen = vertex_laws(p) if choices is None else choices
    laws = [[(z - c * y, w) for (z, y), w in law.items()] for law in chosen]

    @cache
    def value(step: int, at: float) -> float:
        if step == len(weights):
            return max(at, 0.0)
        after = [[(round(at + weights[step] * d, 12), w) for d, w in law] for law in laws]
        return max(sum(w * value(step + 1, there) for there, w in law) for law in after)

    return lambda s: value(0, round(s, 12))


def hidden_by_nobody(num_clients: int, p: Number, c: Number) -> Number:
    """Psi_n: all clients have checked in; T1's law, n steps with p - c and 1 - c p w.p. 1/(p+1) each, else 0."""
    total = 0
    for ups in range(num_clients + 1):
        for downs in range(num_clients + 1 - ups):
            rest = num_clients - ups - downs
            ways = comb(num_clients, ups) * comb(num_clients - ups, downs)
            payment = ups * (p - c) + downs * (1 - c * p)
            if payment > 0:
                total += ways * ((p - 1) / (p + 1)) ** rest * (1 / (p + 1)) ** (ups + downs) * payment
    return total / num_clients


def exact_profile(num_clients: int, rate: Number, p: Number, c: Number) -> Number:
    """T1+ of one round, from the game's exact values; small n."""
    total = rate**num_clients * hidden_by_nobody(num_clients, p, c)
    for k in range(num_clients):
        mass = comb(num_clients, k) * rate**k * (1 - rate) ** (num_clients - k)
        total += mass * game_value(p, c, k, (num_clients - k) * (1 - c)) / num_clients
    return total


def lattice_game(
    p: Fraction,
    c: Fraction,
    at: Fraction,
    steps: int,
    half_width: float,
    choices: Sequence[Law] | None = None,
    per_step: Fraction = Fraction(1),
    weights: Sequence[Fraction] | None = None,
) -> np.ndarray:
    """Lower bounds on V_k(at + k per_step (c - 1)) for k = 0 .. steps, very close to it; float64.

    So shifted, all sums lie on a lattice, so nothing is interpolated. Beyond half_width (in units of p - 1) V is
    replaced by s_+, which it exceeds. weights: of the steps, the last one first, each 1 / q with q whole; all are 1 if
    None.
    """
    chosen = vertex_laws(p) if choices is None else choices
    laws = [[(z - c * y + per_step * (c - 1), w) for (z, y), w in law.items()] for law in chosen]
    order = [Fraction(1)] * steps if weights is None else weights
    finest = min(order, default=Fraction(1))
    values = [d * finest for law in laws for d, _ in law] + [at]
    shared = lcm(*(d.denominator for d in values))
    spacing = Fraction(gcd(*(int(abs(d) * shared) for d in values)), shared)
    reach = int(max(abs(d) for law in laws for d, _ in law) / spacing)
    half = int(half_width * (p - 1) / spacing)
    grid = np.arange(-half - reach, half + reach + 1) * float(spacing)
    inside = slice(reach, len(grid) - reach)
    value = np.maximum(grid, 0.0)
    where = half + reach + int(at / spacing)
    assert 0 <= where < len(grid), f"at={at} is beyond half_width={half_width}"
    out = [value[where]]
    for weight in order:
        best = np.full(2 * half + 1, -inf)
        for law in laws:
            mean = np.zeros(2 * half + 1)
            for d, w in law:
                shift = int(d * weight / spacing)
                mean += float(w) * value[inside.start + shift : inside.stop + shift]
            np.maximum(best, mean, out=best)
        value[inside] = best
        out.append(value[where])
    return np.array(out)


def lattice_profile(
    num_clients: int, rate: float, p: Fraction, c: Fraction, counts: np.ndarray, masses: np.ndarray
) -> float:
    """T1+ of one round (without K = n) from below, for the law of K given by `counts` and `masses`."""
    deviation = (num_clients * rate * float(max(2 / (p + 2), 1 / p))) ** 0.5
    values = lattice_game(p, c, num_clients * (1 - c), int(counts.max()), 9.0 * deviation)
    return float(masses @ values[counts]) / num_clients
