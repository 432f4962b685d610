"""G5 and R4 with the exact laws of small windows, against the algorithm itself in cells, adaptive records included."""

import numpy as np
import pytest
from oracles import gaussian_slots
from oracles import random_check_ins as brute

from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture, TwoKinds
from checkin_jax.accounting.bounds.windows.one_of_slots import Displacing, OppositeRecords, gaussian_in_slots

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.concatenate([[0.0], np.geomspace(0.01, 3.0, 11)])


def bounds(n: int, m: int, prob: float, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G5 in both directions, and R4 for the better theta of two."""
    before, after = ([float(p) for p in brute.occupancy(count, m, prob)] for count in (n - 1, n))
    dummies, others, used, alone = [], [], {0: 0.0}, {}
    for k in range(min(n - 1, m) + 1):
        alone[k] = prob * (m - k) / m
        if k:
            used[k] = (after[k] * k / n - before[k - 1] * prob * (m - k + 1) / m) / before[k]
            pair = OppositeRecords(m - k + 1, 1.0, mu, MASS)
            others.append((before[k], Displacing(pair, used[k])))
        if k < m:
            dummies.append((before[k], gaussian_in_slots(m - k, alone[k], 0.5 * mu, MASS)))
    forward, backward = TwoKinds(PublicMixture(tuple(dummies)), PublicMixture(tuple(others))).upper_sides(
        LOSSES
    )
    best = np.full(LOSSES.size, np.inf)
    for theta in (0.5, 0.75):
        if theta > 1.0 - max(used.values()):
            continue
        total = np.zeros(LOSSES.size)
        for k, chance in enumerate(before[: min(n - 1, m) + 1]):
            if k and used[k] > 0.0:
                pair = OppositeRecords(m - k + 1, 1.0, mu, MASS)
                total += chance * used[k] * pair.upper(np.log1p((1.0 - theta) * np.expm1(LOSSES) / used[k]))
            if k < m:
                rho = alone[k] / theta
                here = OppositeRecords(m - k, rho, mu, MASS).upper(LOSSES) * theta if rho <= 1.0 else 1.0
                total += chance * here
        best = np.minimum(best, total)
    return forward, backward, best


def compared(n: int, m: int, prob: float, mu: float, seed: int) -> np.ndarray:
    """Truth over bound, wherever the bound is above 1e-9."""
    rng, number = np.random.default_rng(seed), {1: 60, 2: 24, 3: 9}[m]
    trees = [brute.constant_tree(gaussian_slots.cells((-1.0, 1.0, 0.5), mu, number), m)]
    trees += [gaussian_slots.random_tree(rng, mu, m, number) for _ in range(2)]
    return gaussian_slots.ratios((n, m, prob), trees, LOSSES, bounds(n, m, prob, mu))


@pytest.mark.parametrize(("n", "m", "prob"), [(2, 2, 1.0), (4, 2, 0.5), (3, 3, 1.0)])
def test_the_algorithm_is_below_and_sometimes_near(n, m, prob):
    ratios = np.concatenate([compared(n, m, prob, mu, n * m) for mu in (0.7, 2.5)])
    assert ratios.size > 1000
    assert ratios.max() <= 1.0 + 1e-9
    assert ratios.max() > 0.6
