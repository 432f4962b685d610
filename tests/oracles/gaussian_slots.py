"""Random check-ins with Gaussian messages seen in cells: the algorithm itself against bounds on it."""

import itertools
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from . import random_check_ins as brute


def cells(records: Sequence[float], mu: float, number: int) -> np.ndarray:
    """A channel: what a message at each record, or at zero, shows in cells."""
    edges = np.linspace(-0.5 * mu - 2.0, 0.5 * mu + 2.0, number - 1)
    return np.array([np.diff(ndtr(edges - 0.5 * mu * r), prepend=0.0, append=1.0) for r in (*records, 0.0)])


def random_tree(rng: np.random.Generator, mu: float, num_slots: int, number: int) -> brute.Tree:
    """Three records a slot that turn and shrink with what was seen."""
    return brute.random_tree(lambda: cells(rng.choice([-1.0, -0.6, 0.0, 0.6, 1.0], 3), mu, number), num_slots)


def ratios(
    window: tuple[int, int, float],
    trees: Sequence[brute.Tree],
    losses: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """Truth over bound of A_fix with three records, wherever the bound is above 1e-9, all data sets at once.

    window: n, m, p0. bounds: at `losses` with against without the client, the reverse, and one record for another.
    """
    n, m, prob = window
    forward, backward, replaced = bounds
    with_client, without = brute.fixed_window(n, m, prob), brute.fixed_window(n - 1, m, prob)
    found, c = [], np.exp(losses)[:, None]

    def compare(p: np.ndarray, q: np.ndarray, bound: np.ndarray) -> None:
        truth = np.maximum(p[None] - c * q[None], 0.0).sum(axis=1)
        found.append((truth - 1e-12)[bound > 1e-9] / bound[bound > 1e-9])

    for tree in trees:
        for others in itertools.combinations_with_replacement(range(3), n - 1):
            absent = brute.output_law(without, others, tree)
            present = [brute.output_law(with_client, (*others, client), tree) for client in range(3)]
            for each in present:
                compare(each, absent, forward)
                compare(absent, each, backward)
            for one, two in itertools.permutations(present, 2):
                compare(one, two, replaced)
    return np.concatenate(found)
