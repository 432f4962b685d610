"""Profiles of random check-ins with many slots, by direct summation: T2, Theorem U, T2' and the lower witnesses.

All are mixtures over K of E((1 - K share)(1 - c) + share sum_{j <= K} t_j)_+ with independent t_j = z - c z' from
three labels: (z, z') = (p, 1) and (1, p) with probability `clone` each, else (rest, rest). N clones are binomial, N0
given N is fair; both are enumerated on windows (`large.binomial_window`), N0 by tail sums. Positive terms only: about
1e-11 relative, down to delta of 1e-30.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from .large import binomial_window
from .random_check_ins import sliding_window_slots

Profile = Callable[[float], float]  # c - 1 -> H_c


class Slots(NamedTuple):
    """K slots with probability `weights`; the target is in a given one with probability `share`."""

    counts: np.ndarray
    weights: np.ndarray
    share: float
    p: float
    clone: float
    rest: float

    def __call__(self, excess: float) -> float:
        """H at c = 1 + excess."""
        p, total = self.p, 0.0
        windows = [binomial_window(int(k), 2 * self.clone) for k in self.counts]
        lowest = min(int(values[0]) for values, _ in windows)
        joint = np.zeros((len(windows), max(int(values[-1]) for values, _ in windows) - lowest + 1))
        for row, weight, (values, pmf) in zip(joint, self.weights, windows):
            row[values - lowest] = weight * pmf
        for num_clones, masses in enumerate(joint.T, start=lowest):
            # value/share = (p-1)(N0-N1) - excess (N0 + p N1 + rest (K-N) + 1/share - K), increasing in N0
            n0, pmf = binomial_window(num_clones, 0.5)
            unused = self.rest * (self.counts - num_clones) + 1 / self.share - self.counts
            slope = 2 * (p - 1) + excess * (p - 1)
            base = -(p - 1) * num_clones - excess * (p * num_clones + unused)
            tail = np.append(np.cumsum(pmf[::-1])[::-1], 0.0)
            tail_mean = np.append(np.cumsum((n0 * pmf)[::-1])[::-1], 0.0)
            j = np.clip(np.floor(-base / slope).astype(int) + 1 - n0[0], 0, len(n0))
            total += masses @ (slope * tail_mean[j] + base * tail[j])
        return float(self.share * total)


class BinarySlots(NamedTuple):
    """`Slots` for binary randomized response, base at x': (z, z') = (p, 1) or (1/p, 1); Q/F = 1."""

    counts: np.ndarray
    weights: np.ndarray
    share: float
    p: float
    swapped: bool

    def __call__(self, excess: float) -> float:
        """H at c = 1 + excess; the roles of P and Q exchanged if `swapped`."""
        total = 0.0
        for count, weight in zip(self.counts, self.weights):
            n0, pmf = binomial_window(int(count), 1 / (self.p + 1))
            move = self.share * (self.p - 1) * (n0 - (count - n0) / self.p)  # P/Q - 1
            value = -move - excess * (1 + move) if self.swapped else move - excess
            total += weight * (pmf @ np.maximum(value, 0))
        return total


def profile(law: Profile, cs: Sequence[float]) -> np.ndarray:
    """H at each c."""
    return np.array([law(c - 1) for c in cs])


def epsilon(law: Profile, delta: float) -> float:
    """The eps with H_{e^eps} = delta, to 1e-13 absolute and relative; 0 if H_1 is below delta."""
    if law(0.0) <= delta:
        return 0.0
    top = 1e-6
    while law(np.expm1(top)) > delta:
        top *= 2
    low = top / 2 if top > 1e-6 else 0.0
    # the logarithm is nearly a parabola, so a few steps do
    root = brentq(lambda eps: np.log(max(law(np.expm1(eps)), 1e-320) / delta), low, top, xtol=1e-13)
    return float(root)  # type: ignore[arg-type]


@lru_cache(maxsize=16)
def occupancy_window(num_clients: int, num_slots: int, p0: float) -> tuple[np.ndarray, np.ndarray]:
    """(values, law) of the number of occupied slots where it exceeds 1e-60 of its largest value.

    The recursion over clients, on a moving window; positive terms, so n roundings: n * 3e-16 relative.
    """
    low, law = 0, np.ones(1)
    for _ in range(num_clients):
        full = np.arange(low, low + len(law) + 1) / num_slots
        stepped = np.append(law, 0.0) * (1 - p0 + p0 * full)
        stepped[1:] += law * p0 * (1 - full[:-1])
        seen = np.flatnonzero(stepped > 1e-60 * stepped.max())
        law, low = stepped[seen[0] : seen[-1] + 1], low + int(seen[0])
    return np.arange(low, low + len(law)), law / law.sum()


def _clones(
    counts: Sequence[int] | np.ndarray, weights: Sequence[float] | np.ndarray, share: float, p: float
):
    return Slots(np.asarray(counts), np.asarray(weights), share, p, 1 / (p + 1), 0.0)


def t2(num_slots: int, rho: float, p: float) -> Slots:
    """T2: m slots, a message with probability rho."""
    return _clones([num_slots], [1.0], rho / num_slots, p)


def psi(num_clients: int, count: int, p: float) -> Slots:
    """Psi_K of Theorem U: K of n clients."""
    return _clones([count], [1.0], 1 / num_clients, p)


def t2_prime(num_clients: int, num_slots: int, p0: float, p: float) -> Slots:
    """T2': Psi_K averaged over the number of occupied slots."""
    return _clones(*occupancy_window(num_clients, num_slots, p0), 1 / num_clients, p)


def sliding_upper(num_clients: int, window: int, p: float) -> Slots:
    """T2 for the client of A_sldw with most visible slots: v = min(m, n - m + 1) slots, rho = v/m."""
    return _clones([sliding_window_slots(num_clients, window)], [1.0], 1 / window, p)


def _lower(counts: Sequence[int] | np.ndarray, weights: Sequence[float] | np.ndarray, share: float, p: float):
    counts, weights = np.asarray(counts), np.asarray(weights)
    ternary = Slots(counts, weights, share, p, 1 / (p + 2), 1 / p)
    return [ternary, *(BinarySlots(counts, weights, share, p, swapped) for swapped in (False, True))]


def _at_least_one(trials: int, prob: float) -> float:
    """1 - (1 - prob)^trials without cancellation."""
    return -float(np.expm1(trials * np.log1p(-prob))) if prob < 1 else 1.0


def fixed_lower(
    num_clients: int, num_slots: int, p0: float, p: float, visible: bool = False
) -> list[Slots | BinarySlots]:
    """The lower witnesses of A_fix (ternary, binary, binary reversed); `visible`: empty slots are recognisable."""
    if visible:
        return _lower(*occupancy_window(num_clients, num_slots, p0), 1 / num_clients, p)
    return _lower([num_slots], [1.0], _at_least_one(num_clients, p0 / num_slots) / num_clients, p)


def sliding_lower(num_clients: int, window: int, p: float) -> list[Slots | BinarySlots]:
    """The lower witnesses of A_sldw (dummies hidden)."""
    slots = sliding_window_slots(num_clients, window)
    return _lower([slots], [1.0], _at_least_one(window, 1 / window) / window, p)
