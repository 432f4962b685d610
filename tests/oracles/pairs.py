"""Pairs of laws of shuffled check-in made of label counts: T1, L1 and the invalid pair of the trap.

A pair is given by labels: n independent draws of a label, P/F = mean of `z_p`, Q/F = mean of `z_q`
over the draws, and the counts of all labels are visible. Exact (Fractions) for small n, by full
enumeration in float64 (positive terms only, relative error about n * 1e-16) for n up to a few hundred.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import comb
from typing import NamedTuple

import numpy as np

Number = Fraction | float


class Label(NamedTuple):
    """A label's probability under the base law and its likelihood ratios under P and under Q."""

    prob: Number
    z_p: Number
    z_q: Number


class Pair(NamedTuple):
    """Atoms of a pair (P, Q): masses `p` and `q` of each outcome, same order."""

    p: np.ndarray
    q: np.ndarray

    def reversed(self) -> "Pair":
        """The pair (Q, P)."""
        return Pair(self.q, self.p)


def t1_labels(p: Number, check_in_prob: Number) -> list[Label]:
    """T1, the dominating pair of shuffled check-in: clones of x, clones of x', absent, the rest."""
    each = check_in_prob / (p + 1)
    return [
        Label(each, p, 1),
        Label(each, 1, p),
        Label(1 - check_in_prob, 1, 1),
        Label(each * (p - 1), 0, 0),
    ]


def krr3_labels(p: Number, check_in_prob: Number) -> list[Label]:
    """L1 for 3-ary randomized response, records x and x', all others at a third record (symmetric)."""
    each = check_in_prob / (p + 2)
    return [
        Label(each, p, 1),
        Label(each, 1, p),
        Label(1 - check_in_prob, 1, 1),
        Label(each * p, 1 / p, 1 / p),
    ]


def binary_rr_labels(p: Number, check_in_prob: Number) -> list[Label]:
    """L1 for binary randomized response, all others at x'; reverse the pair for the other direction."""
    each = check_in_prob / (p + 1)
    return [Label(each, p, 1), Label(each * p, 1 / p, 1), Label(1 - check_in_prob, 1, 1)]


def trap_labels(p: Number, check_in_prob: Number) -> list[Label]:
    """THE TRAP, not a bound: T1's pair with only the two clone counts visible.

    Hiding the number of messages merges 'absent' and 'rest'; the merged label's likelihood ratio is
    the conditional mean, so this is exactly the image of T1's pair under (N0, N1, Nabs) -> (N0, N1).
    """
    clone_0, clone_1, absent, rest = t1_labels(p, check_in_prob)
    hidden = absent.prob + rest.prob
    return [clone_0, clone_1, Label(hidden, absent.prob / hidden, absent.prob / hidden)]


def compositions(total: int, parts: int) -> np.ndarray:
    """All count vectors of length `parts` with the given total, one per row."""
    if parts == 1:
        return np.array([[total]])
    tails = [compositions(total - first, parts - 1) for first in range(total + 1)]
    firsts = np.repeat(np.arange(total + 1), [len(tail) for tail in tails])
    return np.column_stack([firsts, np.concatenate(tails)])


def binomial_table(num_trials: int, prob: float) -> np.ndarray:
    """Row m, column k: Pr[Bin(m, prob) = k], by Pascal's rule (positive terms only)."""
    table = np.zeros((num_trials + 1, num_trials + 1))
    table[0, 0] = 1.0
    for m in range(num_trials):
        table[m + 1] = (1 - prob) * table[m]
        table[m + 1, 1:] += prob * table[m, :-1]
    return table


def exact_pair(labels: Sequence[Label], num_clients: int) -> list[tuple[Fraction, Fraction]]:
    """The pair's atoms (P, Q) in rational arithmetic, one per count vector."""
    atoms = []
    for counts in compositions(num_clients, len(labels)).tolist():
        mass, left = Fraction(1), num_clients
        for count, label in zip(counts, labels):
            mass *= comb(left, count) * label.prob**count
            left -= count
        z_p = sum(count * label.z_p for count, label in zip(counts, labels))
        z_q = sum(count * label.z_q for count, label in zip(counts, labels))
        atoms.append((mass * z_p / num_clients, mass * z_q / num_clients))
    return atoms


def exact_profile(atoms: Sequence[tuple[Fraction, Fraction]], c: Number) -> Number:
    """sum (P - c Q)_+ of exact atoms."""
    return sum(max(p - c * q, 0) for p, q in atoms)


def enumerate_pair(labels: Sequence[Label], num_clients: int) -> Pair:
    """The pair's atoms in float64, one per count vector: O(n^(labels - 1)) of them."""
    counts = compositions(num_clients, len(labels))
    mass, left, prob_left = np.ones(len(counts)), np.full(len(counts), num_clients), 1.0
    for column, label in zip(counts.T[:-1], labels):
        share = float(label.prob) / prob_left
        mass *= binomial_table(num_clients, min(share, 1.0))[left, column]
        left, prob_left = left - column, prob_left - float(label.prob)
    z_p = counts @ np.array([float(label.z_p) for label in labels]) / num_clients
    z_q = counts @ np.array([float(label.z_q) for label in labels]) / num_clients
    return Pair(mass * z_p, mass * z_q)


def profile(pair: Pair, cs: Sequence[float]) -> np.ndarray:
    """H(c) = sum (P - c Q)_+ for each c."""
    return np.array([np.maximum(pair.p - c * pair.q, 0.0).sum() for c in cs])


def renyi_excess(pair: Pair, orders: Sequence[float]) -> np.ndarray:
    """A(order) - 1 with A = sum P^order Q^(1 - order), by nonnegative terms so that nothing cancels.

    Uses sum P = sum Q = 1: A - 1 = sum Q (r^order - 1 - order (r - 1)) with r = P/Q.
    """
    seen = pair.q > 0
    q, change = pair.q[seen], (pair.p[seen] - pair.q[seen]) / pair.q[seen]
    log_ratio = np.log1p(change)
    return np.array([(q * (np.expm1(order * log_ratio) - order * change)).sum() for order in orders])


def rdp(pair: Pair, orders: Sequence[float]) -> np.ndarray:
    """Renyi divergence log A(order) / (order - 1) for each order > 1."""
    return np.log1p(renyi_excess(pair, orders)) / (np.asarray(orders) - 1)
