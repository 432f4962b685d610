"""Messages of which more is known than their eps0: channels, and the bounds of docs/theory_mechanisms.md.

Channels are matrices with the law of the output on record x in row x. Bounds are from their text, sums over everything
that can happen: path by path, or on a lattice by plain convolution (positive terms only, about 1e-12 relative).
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import gcd, lcm

import numpy as np

from .hexagon import Law as RatioLaw
from .pairs import Label

Number = Fraction | float
Steps = dict[Number, Number]  # value of t = z - c z' -> probability


# --- channels


def total_variation(channel: np.ndarray) -> float:
    """The largest total variation of two rows."""
    rows = np.asarray(channel, float)
    return max(0.5 * np.abs(a - b).sum() for a, b in product(rows, rows))


def one_bit_channel(rng: np.random.Generator, num_records: int, p: float, coins: int) -> np.ndarray:
    """Public coins w (`coins` values, any law) and a bit whose Pr[+] given w is anywhere in [1/(p+1), p/(p+1)]."""
    weights = rng.dirichlet(np.ones(coins))
    low, high = 1.0 / (p + 1.0), p / (p + 1.0)
    share = rng.beta(0.3, 0.3, (num_records, coins))
    # Ends are where the bounds are met.
    share = np.where(rng.random(share.shape) < 0.6, np.rint(share), share)
    plus = low + (high - low) * share
    return np.concatenate([weights * plus, weights * (1.0 - plus)], axis=1)


def hemisphere_channel(angles: Sequence[float], radii: Sequence[float], p: float, cells: int) -> np.ndarray:
    """The l2 mechanism in the plane: v uniform on a circle of `cells` directions, its side drawn as by LDP-SGD."""
    v = 2.0 * np.pi * (np.arange(cells) + 0.25) / cells
    side = np.sign(np.cos(np.asarray(angles)[:, None] - v[None, :]))
    bias = (p - 1.0) / (p + 1.0) * np.asarray(radii)[:, None]
    plus = 0.5 * (1.0 + bias * side) / cells
    return np.concatenate([plus, 1.0 / cells - plus], axis=1)


def subset_channel(num_values: int, size: int, p: float) -> np.ndarray:
    """d-subset selection: a subset of this size, p times as likely if it holds the record."""
    subsets = list(combinations(range(num_values), size))
    rows = np.array([[p if x in subset else 1.0 for subset in subsets] for x in range(num_values)])
    return rows / rows.sum(axis=1, keepdims=True)


def hadamard_channel(p: float) -> np.ndarray:
    """Hadamard response with 3 records in 4 outputs: a row of the matrix (not the first), +1 p times as likely."""
    matrix = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    return np.where(matrix > 0, p, 1.0) / (2.0 * p + 2.0)


def rappor_channel(num_values: int, p: float) -> np.ndarray:
    """Symmetric RAPPOR: a bit for each value, each flipped by randomized response at eps0/2."""
    q = np.sqrt(p)
    outputs = np.array(list(product([0, 1], repeat=num_values)))
    same = outputs[None, :, :] == np.eye(num_values, dtype=int)[:, None, :]
    return np.where(same, q / (q + 1.0), 1.0 / (q + 1.0)).prod(axis=2)


def arc_channel(num_cells: int, width: int, p: float) -> np.ndarray:
    """Two levels: an arc of `width` of the cells of a circle is p times as likely; one record for each cell."""
    inside = [[(cell - x) % num_cells < width for cell in range(num_cells)] for x in range(num_cells)]
    rows = np.where(np.array(inside), p, 1.0)
    return rows / rows.sum(axis=1, keepdims=True)


def laplace_channel(points: Sequence[float], epsilon0: float, cells: int) -> np.ndarray:
    """The Laplace mechanism on [0, 1], scale 1/eps0, its output told by the cell it is in."""
    edges = np.concatenate([[-np.inf], np.linspace(-0.5, 1.5, cells - 1), [np.inf]])

    def cdf(u: np.ndarray) -> np.ndarray:
        return np.where(u < 0, 0.5 * np.exp(np.minimum(u, 0)), 1.0 - 0.5 * np.exp(-np.maximum(u, 0)))

    return np.array([np.diff(cdf((edges - x) * epsilon0)) for x in points])


# --- dominating laws, as labels


def beta_labels(p: Number, beta: Number) -> list[Label]:
    """t*_beta."""
    w = beta / (p - 1)
    high = (1 - (p + 1) * w) / p
    return [Label(w, p, 1), Label(w, 1, p), Label(high, p, p), Label(1 - 2 * w - high, 0, 0)]


def kary_labels(p: Number, k: int) -> list[Label]:
    """t_k."""
    w = 1 / (p + k - 1)
    return [Label(w, p, 1), Label(w, 1, p), Label((k - 2) * w, 1, 1), Label((p - 1) * w, 0, 0)]


def sent_with(labels: Sequence[Label], rate: Number) -> list[Label]:
    """The labels of one client of shuffled check-in."""
    sent = [Label(rate * prob, z_p, z_q) for prob, z_p, z_q in labels]
    return [*sent, Label(1 - rate, 1, 1)] if rate < 1 else sent


def steps_of(labels: Iterable[Label], c: Number) -> Steps:
    """Law of t = z - c z'."""
    law: Steps = {}
    for prob, z_p, z_q in labels:
        t = z_p - c * z_q
        law[t] = law.get(t, prob * 0) + prob
    return law


def two_laws(p: Number) -> list[RatioLaw]:
    """X (all others at x') and Y (at x): laws of (z, z')."""
    low, high = 1 / (p + 1), p / (p + 1)
    return [{(p, p / p): low, (1 / p, p / p): high}, {(p / p, p): low, (p / p, 1 / p): high}]


def two_law_value(num_steps: int, start: np.ndarray | float, c: float, p: float) -> np.ndarray:
    """V_k(start) of theorem B with k = num_steps, by following all paths."""
    moves = np.array([[z - c * y for z, y in law] for law in two_laws(p)])
    weights = np.array([1 / (p + 1), p / (p + 1)])

    def value(steps: int, s: np.ndarray) -> np.ndarray:
        if steps == 0:
            return np.maximum(s, 0)
        return (value(steps - 1, s[..., None, None] + moves) @ weights).max(axis=-1)

    return value(num_steps, np.asarray(start, float))


# --- sums


def stop_loss(parts: Sequence[tuple[Steps, int]]) -> float:
    """E(sum)_+ of independent steps, `count` of each law; on their lattice for Fractions, else path by path."""
    laws = [(law, count) for law, count in parts if count]
    if not all(isinstance(v, Fraction | int) for law, _ in laws for v in law):
        at, total = np.zeros(1), np.ones(1)
        for law, count in laws:
            for _ in range(count):
                at = np.add.outer(at, [float(v) for v in law]).ravel()
                total = np.multiply.outer(total, [float(w) for w in law.values()]).ravel()
        return float(np.maximum(at, 0.0) @ total)
    values = [Fraction(v) for law, _ in laws for v in law]
    shared = lcm(*(v.denominator for v in values))
    spacing = Fraction(gcd(*(int(abs(v) * shared) for v in values)), shared) or Fraction(1)
    total, first = np.ones(1), 0
    for law, count in laws:
        places = np.array([int(Fraction(v) / spacing) for v in law])
        one = np.zeros(int(places.max() - places.min()) + 1)
        np.add.at(one, places - places.min(), [float(w) for w in law.values()])
        first += int(places.min()) * count
        while count:
            if count & 1:
                total = np.convolve(total, one)
            count >>= 1
            if count:
                one = np.convolve(one, one)
    at = (first + np.arange(total.size)) * float(spacing)
    return float(np.maximum(at, 0) @ total)


def b0(
    num_clients: int,
    rate: Number,
    p: Number,
    c: Number,
    mixes: Iterable[int] | None = None,
    middle: Callable[[Number, Number], Steps] | None = None,
) -> float:
    """Theorem B0 as it is written: the largest over m, and everybody.

    mixes: the numbers m of Y's that are tried, all of them by default. middle: the law in place of t*.
    """
    x, y = ({z - c * v: w for (z, v), w in law.items()} for law in two_laws(p))
    star = steps_of(beta_labels(p, (p - 1) / (p + 1)), c) if middle is None else middle(p, c)

    def at_rate(law: Steps) -> Steps:
        out = {t: rate * w for t, w in law.items()}
        out[1 - c] = out.get(1 - c, 0) + 1 - rate
        return out

    x, y, star = at_rate(x), at_rate(y), at_rate(star)
    best = max(
        stop_loss([(y, m), (x, num_clients - 1 - m), (star, 1)])
        for m in (range(num_clients) if mixes is None else mixes)
    )
    return float(rate) ** num_clients * max(float(p - c), 0.0) / float(p + 1) + best / num_clients


def b0h(
    others: Sequence[float], theta: float, rate: float, p: float, c: float, *, middle: bool = True
) -> float:
    """B0h as it is written, for each n' at most what one message gives away; middle: whether with its t*."""
    alpha, beta = (1 - rate) / (1 - theta), rate / theta
    x, y = ({z - c * v: w for (z, v), w in law.items()} for law in two_laws(p))
    star = steps_of(beta_labels(p, (p - 1) / (p + 1)), c) if middle else {1 - c: 1.0}

    def stretched(law: Steps) -> Steps:
        out: Steps = {beta * t: theta * w for t, w in law.items()}
        out[alpha * (1 - c)] = out.get(alpha * (1 - c), 0) + 1 - theta
        return out

    x, y, star = stretched(x), stretched(y), stretched(star)
    pmf = np.ones(1)
    for each in others:
        member = min(each / theta, (1 - each) / (1 - theta))
        pmf = np.append(pmf * (1 - member), 0.0) + np.append(0.0, pmf * member)
    total, alone = 0.0, rate * max(p - c, 0.0) / (p + 1)
    for size, mass in enumerate(pmf):
        best = max(paths([(y, m), (x, size - m), (star, 1)]) for m in range(size + 1))
        total += mass * min(theta**size * alone + best / (size + 1), alone)
    return total


def paths(parts: Iterable[tuple[Steps, int]]) -> float:
    """E(sum)_+ of independent steps with real values, (law, how many)."""
    sums = {0.0: 1.0}
    for law, count in parts:
        for _ in range(count):
            after: dict[float, float] = {}
            for (t, w), (step, v) in product(sums.items(), law.items()):
                place = round(float(t + step), 11)
                after[place] = after.get(place, 0.0) + float(w * v)
            sums = after
    return sum(max(t, 0.0) * w for t, w in sums.items())
