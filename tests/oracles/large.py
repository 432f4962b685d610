"""Windowed one-round references of T1 and L1 for tens of thousands of clients.

Every binomial is enumerated on the window where its pmf exceeds 1e-40 of its mode, by ratios from
the mode outwards and normalised by its own sum: relative error about 1e-12, no log-gamma involved.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.linalg import eigh_tridiagonal

from .pairs import Label, Pair, renyi_excess


def binomial_window(num_trials: int, prob: float, cut: float = 1e-40) -> tuple[np.ndarray, np.ndarray]:
    """(values, pmf) of Bin(num_trials, prob) where the pmf exceeds `cut` times its mode; sums to 1."""
    if prob <= 0 or prob >= 1 or num_trials == 0:
        return np.array([num_trials if prob >= 1 else 0]), np.ones(1)
    mode = min(int((num_trials + 1) * prob), num_trials)
    width = int(14 * np.sqrt(num_trials * prob * (1 - prob)) + 140)
    up = np.arange(mode, min(mode + width, num_trials))
    down = np.arange(mode, max(mode - width, 0), -1)
    odds = prob / (1 - prob)
    above = np.cumprod((num_trials - up) / (up + 1) * odds)
    below = np.cumprod(down / (num_trials - down + 1) / odds)
    weights = np.concatenate([below[::-1], [1.0], above])
    values = np.arange(mode - len(below), mode + len(above) + 1)
    keep = weights > cut
    return values[keep], weights[keep] / weights[keep].sum()


def binomial_quadrature(num_trials: int, prob: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss rule for the weight Bin(num_trials, prob): exact for polynomials of degree < 2 * nodes.

    Golub-Welsch on the recurrence of the Krawtchouk polynomials.
    """
    if prob <= 0 or prob >= 1 or num_trials == 0:
        return np.array([num_trials if prob >= 1 else 0.0]), np.ones(1)
    k = np.arange(min(nodes, num_trials + 1), dtype=float)
    diagonal = (num_trials - k) * prob + k * (1 - prob)
    off_diagonal = np.sqrt(k * prob * (1 - prob) * (num_trials - k + 1))[1:]
    points, vectors = eigh_tridiagonal(diagonal, off_diagonal)
    return points, vectors[0] ** 2


def _slices(labels: Sequence[Label], num_clients: int) -> Iterator[tuple[int, float, float]]:
    """(N, Pr[N], probability of 'absent' given neither clone) over the window of N = N0 + N1."""
    clones = 2 * float(labels[0].prob)
    absent = min(float(labels[2].prob) / (1 - clones), 1.0)
    for count, mass in zip(*binomial_window(num_clients, clones)):
        yield int(count), float(mass), absent


def _base(labels: Sequence[Label], num_others: int, num_absent: np.ndarray) -> np.ndarray:
    """What absent and remaining clients add to n P/F, the same under P and Q."""
    return float(labels[2].z_p) * num_absent + float(labels[3].z_p) * (num_others - num_absent)


def large_profile(labels: Sequence[Label], num_clients: int, cs: Sequence[float]) -> np.ndarray:
    """One-round H(c) of `t1_labels` or `krr3_labels`, to about 1e-10 relative (n = 60000: a second)."""
    p = float(labels[0].z_p)
    total = np.zeros(len(cs))
    for count, mass, absent in _slices(labels, num_clients):
        n0, pmf = binomial_window(count, 0.5)
        tail = np.append(np.cumsum(pmf[::-1])[::-1], 0.0)
        tail_mean = np.append(np.cumsum((n0 * pmf)[::-1])[::-1], 0.0)
        num_absent, absent_pmf = binomial_window(num_clients - count, absent)
        base = _base(labels, num_clients - count, num_absent)
        for i, c in enumerate(cs):
            least = ((c * p - 1) * count + (c - 1) * base) / ((p - 1) * (1 + c))
            j = np.clip(np.floor(least).astype(int) + 1 - n0[0], 0, len(n0))
            positive = (p - 1) * (1 + c) * tail_mean[j] - ((c * p - 1) * count + (c - 1) * base) * tail[j]
            total[i] += mass * (absent_pmf @ positive)
    return total / num_clients


def large_pair(labels: Sequence[Label], num_clients: int, nodes: int = 10) -> Pair:
    """One-round atoms with the number of absent clients replaced by a Gauss rule.

    Not a bound: an estimate of smooth functionals (Renyi moments, composed profiles) whose error is
    far below 1e-12 relative once n (1 - gamma) or n gamma is in the hundreds.
    """
    p = float(labels[0].z_p)
    masses_p, masses_q = [], []
    for count, mass, absent in _slices(labels, num_clients):
        n0, pmf = binomial_window(count, 0.5)
        num_absent, weights = binomial_quadrature(num_clients - count, absent, nodes)
        base = _base(labels, num_clients - count, num_absent)[:, None]
        joint = mass * weights[:, None] * pmf / num_clients
        masses_p.append((joint * (p * n0 + (count - n0) + base)).ravel())
        masses_q.append((joint * (n0 + p * (count - n0) + base)).ravel())
    return Pair(np.concatenate(masses_p), np.concatenate(masses_q))


def large_binary_rr_pair(p: float, check_in_prob: float, num_clients: int) -> Pair:
    """One-round atoms of L1 for binary randomized response (`binary_rr_labels`), none approximated."""
    masses_p, masses_q = [], []
    for present, mass in zip(*binomial_window(num_clients, check_in_prob)):
        n0, pmf = binomial_window(int(present), 1 / (p + 1))
        masses_p.append(mass * pmf * (p * n0 + (present - n0) / p + num_clients - present) / num_clients)
        masses_q.append(mass * pmf)
    return Pair(np.concatenate(masses_p), np.concatenate(masses_q))


def large_renyi_excess(
    labels: Sequence[Label], num_clients: int, orders: Sequence[float], nodes: int = 10
) -> np.ndarray:
    """A(order) - 1 of one round, to about 1e-10 relative for large n (more nodes for small n)."""
    return renyi_excess(large_pair(labels, num_clients, nodes), orders)
