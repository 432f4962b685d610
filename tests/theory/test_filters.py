"""Filters: what adaptively chosen parameters leak, by brute force (docs/theory_filters.md)."""

from fractions import Fraction as F

import numpy as np
import pytest

RESPONSE = ((F(3, 4), F(1, 4)), (F(1, 4), F(3, 4)))  # binary randomized response, p = 3
LEAK = ((F(3, 8), F(0), F(5, 8)), (F(0), F(3, 8), F(5, 8)))  # the record with probability 3/8, or nothing


def hockey_stick(p, q, c):
    return sum(max(a - c * b, F(0)) for a, b in zip(p, q))


def run(first, then):
    """The joint laws of a first round and of the round chosen by its outcome."""
    laws = []
    for side in (0, 1):
        laws.append([a * b for i, a in enumerate(first[side]) for b in then[i][side]])
    return laws


def test_every_path_within_budget_is_no_guarantee_by_pld():
    c, delta = F(3), F(3, 8)
    for fixed in (RESPONSE, LEAK):
        for p, q in (run(RESPONSE, (fixed, fixed)), run(RESPONSE, (fixed, fixed))[::-1]):
            assert hockey_stick(p, q, c) == delta
    p, q = run(RESPONSE, (RESPONSE, LEAK))
    assert hockey_stick(p, q, c) == F(15, 32) > delta


def test_stopping_and_less_than_planned_stay_below_the_planned_product():
    # F1: the second round may be left out, or be one that the planned pair dominates, by what was seen.
    nothing, weaker = ((F(1),), (F(1),)), ((F(2, 3), F(1, 3)), (F(1, 3), F(2, 3)))
    planned = run(RESPONSE, (RESPONSE, RESPONSE))
    for one in (nothing, weaker, RESPONSE):
        for two in (nothing, weaker, RESPONSE):
            p, q = run(RESPONSE, (one, two))
            for c in (F(1, 2), F(1), F(3, 2), F(3), F(8)):
                assert hockey_stick(p, q, c) <= hockey_stick(*planned, c)
                assert hockey_stick(q, p, c) <= hockey_stick(*planned[::-1], c)


def renyi(p, q, order):
    """The larger of both directions."""
    return max(np.log(np.sum(a**order * b ** (1 - order))) / (order - 1) for a, b in ((p, q), (q, p)))


def tree(rng, order, budget, depth):
    """Laws of all outputs of a run that picks every round by its past, as long as it fits into `budget`."""
    nothing = np.array([(1.0, 1.0)])
    if depth == 0:
        return nothing
    size = rng.integers(2, 4)
    p, q = rng.dirichlet(np.ones(size)) + 0.02, rng.dirichlet(np.ones(size)) + 0.02
    p, q = p / p.sum(), q / q.sum()
    left = budget - renyi(p, q, order)
    if left < 0:
        return nothing
    return np.concatenate([np.array([a, b]) * tree(rng, order, left, depth - 1) for a, b in zip(p, q)])


@pytest.mark.parametrize("order", [1.3, 2.0, 7.5])
def test_the_filter_by_one_renyi_order_holds(order):
    rng, spent = np.random.default_rng(5), []
    for budget in rng.uniform(0.05, 2.0, 400):
        p, q = tree(rng, order, budget, 4).T
        assert p.sum() == pytest.approx(1.0)
        assert q.sum() == pytest.approx(1.0)
        spent.append(renyi(p, q, order) / budget)
    assert max(spent) <= 1.0 + 1e-12
    assert max(spent) > 0.9


def test_the_order_that_is_best_on_each_path_bounds_none():
    # A coin that says nothing; then a rare large loss, which fits by the small order, or a small one, by the large.
    rare = np.array([0.005, 0.995]), np.array([0.00005, 0.99995])
    small = np.array([0.6, 0.4]), np.array([0.4, 0.6])
    budget = {1.3: renyi(*rare, 1.3), 20.0: renyi(*small, 20.0)}
    assert renyi(*rare, 20.0) > budget[20.0]
    assert renyi(*small, 1.3) > budget[1.3]
    p, q = (np.concatenate([0.5 * a, 0.5 * b]) for a, b in zip(rare, small))
    assert all(renyi(p, q, order) > budget[order] for order in budget)
