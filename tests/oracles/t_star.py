"""T* from its definition: exact laws for finite randomizers, a plain FFT on a lattice for Gaussian ones.

The bound is gamma^n D(c) + (1/n) E(sum of n t_j)_+ with independent t_j: 1 - c with probability 1 - gamma,
else T*, where E(T* - t)_+ = D(c + t) for t >= 0 and (1 + |t|) D(c / (1 + |t|)) for t < 0.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, permutations

import numpy as np
from scipy.special import ndtr

Channel = Sequence[Sequence[float | Fraction]]  # row x: the law of the output on record x
Profile = Callable[[np.ndarray], np.ndarray]  # D at c > 0, any shape


def channel_profile(channel: Channel) -> Profile:
    """D(c) = the largest sum (a - c b)_+ over all ordered pairs of rows; c > 0."""
    rows = np.asarray(channel, dtype=float)
    pairs = [(rows[i], rows[j]) for i, j in permutations(range(len(rows)), 2)]

    def profile(c: np.ndarray) -> np.ndarray:
        c = np.asarray(c, dtype=float)[..., None]
        return np.max([np.maximum(a - c * b, 0.0).sum(axis=-1) for a, b in pairs], axis=0)

    return profile


def channel_kinks(channel: Channel) -> np.ndarray:
    """All c > 0 at which the slope of `channel_profile` changes, and some at which it does not."""
    rows = np.asarray(channel, dtype=float)
    pairs = list(permutations(range(len(rows)), 2))
    ratios = {a / b for i, j in pairs for a, b in zip(rows[i], rows[j]) if a > 0 and b > 0}
    kinks = np.array(sorted(ratios | {1.0}))
    edges = np.concatenate([[0.0], kinks, [2.0 * kinks[-1]]])
    crossings = []
    for low, high in pairwise(edges):
        # Within the interval every pair's divergence is a line.
        lines = [
            (rows[i][keep].sum(), rows[j][keep].sum())
            for i, j in pairs
            for keep in [rows[i] > 0.5 * (low + high) * rows[j]]
        ]
        for (a, b), (a2, b2) in combinations(lines, 2):
            if abs(b - b2) > 1e-12 and low < (a - a2) / (b - b2) < high:
                crossings.append((a - a2) / (b - b2))
    return np.unique(np.concatenate([kinks, crossings]))


def finite_law(profile: Profile, kinks: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray, float]:
    """T*'s values and probabilities, and E(T* - t)_+ at t = infinity, for a D that is linear between kinks."""
    at = np.unique(np.concatenate([[0.0], np.where(kinks > c, kinks - c, 1.0 - c / kinks)]))
    at = at[np.concatenate([[True], np.diff(at) > 1e-9])]
    # One knot beyond either end for the outermost slopes.
    knots = np.concatenate([[2.0 * at[0] - 1.0], at, [2.0 * at[-1] + 1.0]])
    size = np.maximum(-knots, 0.0)
    value = np.where(knots >= 0, profile(c + np.maximum(knots, 0.0)), (1 + size) * profile(c / (1 + size)))
    slopes = np.diff(value) / np.diff(knots)
    return at, np.diff(slopes), float(value[-1])


def finite_value(profile: Profile, kinks: np.ndarray, n: int, gamma: float, c: float) -> tuple[float, float]:
    """(gamma^n D(c), the rest of T*) exactly, for a few clients."""
    at, weights, beyond = finite_law(profile, kinks, c)
    at, weights = np.append(at, 1.0 - c), np.append(gamma * weights, 1.0 - gamma)
    sums, masses = np.zeros(1), np.ones(1)
    for _ in range(n):
        sums, masses = np.add.outer(sums, at).ravel(), np.multiply.outer(masses, weights).ravel()
    hidden = float(np.maximum(sums, 0.0) @ masses) / n + gamma * beyond
    return gamma**n * float(profile(np.array(c))), hidden


def gaussian_profile(mu: float) -> Profile:
    """delta_G(mu, log c) for all c > 0, float64."""

    def profile(c: np.ndarray) -> np.ndarray:
        c = np.asarray(c, dtype=float)
        epsilon = np.log(c)
        return ndtr(mu / 2 - epsilon / mu) - c * ndtr(-mu / 2 - epsilon / mu)

    return profile


def laplace_profile(epsilon0: float) -> Profile:
    """max over both orders of the Laplace mechanism's divergence, all c > 0."""

    def profile(c: np.ndarray) -> np.ndarray:
        c = np.asarray(c, dtype=float)
        up = np.maximum(1.0 - np.exp((np.log(np.maximum(c, 1.0)) - epsilon0) / 2), 0.0)
        down = np.maximum(1.0 - np.exp((-np.log(np.minimum(c, 1.0)) - epsilon0) / 2), 0.0)
        return np.where(c >= 1, up, 1.0 - c + c * down)

    return profile


def lattice_value(profile: Profile, n: int, gamma: float, c: float, step: float, points: int) -> float:
    """(1/n) E(sum t_j)_+ with T* + c - 1 moved to multiples of `step` (mean kept: a little too much), plain FFT."""

    def stop_loss(k: np.ndarray) -> np.ndarray:
        t = k - (c - 1.0)
        size = np.maximum(-t, 0.0)
        call = np.where(t >= 0, profile(c + np.maximum(t, 0.0)), (1 + size) * profile(c / (1 + size)))
        return call + np.minimum(k, 0.0)

    return _mean_above(stop_loss, n, gamma, n * (c - 1.0), step, points) / n


def one_record_value(
    profile: Profile, n: int, gamma: float, c: float, reverse: bool, step: float, points: int
) -> float:
    """H_c of `messages` with all others at x', a little too much; reverse: the target's x' against x.

    P/F = 1 + W/n and Q = F for W the sum of n steps Z - 1, Z = (density at x) / (density at x'), so E(Z - c)_+ = D(c).
    """

    def stop_loss(k: np.ndarray) -> np.ndarray:
        # E(Z - 1 - k)_+ for k >= 0; E(1 + k - Z)_+ = (1 + k) E(1 - Z / (1 + k))_+ for k < 0.
        below = np.maximum(1.0 + k, 1e-300)
        return np.where(k >= 0, profile(np.maximum(1.0 + k, 1.0)), profile(below) - 1.0 + below)

    if reverse:
        sum_above = _mean_above(lambda k: stop_loss(-k), n, gamma, n * (1.0 - 1.0 / c), step, points)
        return c * sum_above / n
    return _mean_above(stop_loss, n, gamma, n * (c - 1.0), step, points) / n


def _mean_above(stop_loss: Profile, n: int, gamma: float, x: float, step: float, points: int) -> float:
    """E(S - x)_+ for a sum of n steps of mean zero, taken with probability gamma each, on a lattice.

    stop_loss: E(d - k)_+ for k >= 0, E(k - d)_+ for k < 0. Exact but for the lattice (too much), for what lies outside
    the window of points * step, and for 1e-16 times its width.
    """
    k = (np.arange(points + 1) - points // 2) * step
    value = stop_loss(k)
    # Differences of what is smaller are rounding.
    value[value < 1e-13] = 0.0
    weights = np.diff(value, n=2) / step
    # On the left the line -k was taken off.
    weights[np.flatnonzero(k[1:-1] == 0)] += 1.0
    law = np.zeros(points)
    np.add.at(law, np.rint(k[1:-1] / step).astype(int) % points, np.maximum(weights, 0.0))
    law *= gamma / law.sum()
    law[0] += 1.0 - gamma
    total = np.fft.irfft(np.fft.rfft(law) ** n, points)
    return float(np.maximum(np.fft.fftfreq(points, 1.0 / points) * step - x, 0.0) @ total)
