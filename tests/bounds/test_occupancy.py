"""The law of the number of occupied slots: exact at small sizes, stochastically on its side at all."""

import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import random_check_ins, windows

from checkin_jax.numerics.counts import occupancy

SIZES = [(1, 1, 0.3), (1, 7, 1.0), (5, 1, 0.2), (6, 9, 1.0), (40, 25, 0.5), (30, 200, 1.0), (300, 40, 0.9)]


def exact(n, m, prob):
    law = np.array([float(mass) for mass in random_check_ins.occupancy(n, m, prob)])
    return np.arange(len(law)), law


@pytest.mark.parametrize(("n", "m", "prob"), SIZES)
def test_moments(n, m, prob):
    k, law = exact(n, m, prob)
    mean, variance = occupancy.moments(float(n), float(m), prob)
    assert mean == pytest.approx(law @ k, rel=1e-12)
    true = law @ (k - law @ k) ** 2
    assert true * (1 - 1e-9) <= variance <= true * (1 + 1e-9) + 1e-11 * mean


def test_variance_keeps_its_digits_where_slots_abound():
    """n << m: nearly all throws are alone, Var K is about n^2 / (2 m)."""
    _, variance = occupancy.moments(1e6, 1e12, 1.0)
    true = 0.5 * 1e6 * (1e6 - 1) / 1e12
    assert true * (1 - 1e-6) <= variance <= true + 2e-6


@pytest.mark.parametrize(("n", "m", "prob"), SIZES)
@pytest.mark.parametrize("neg_log_tail", [20.0, 60.0])
def test_laws_are_on_their_side_everywhere(n, m, prob, neg_log_tail):
    k, law = exact(n, m, prob)
    survival = np.array([law[k > e].sum() for e in range(m + 1)])
    for upper in (True, False):
        values, masses = occupancy.law(n, m, prob, neg_log_tail, upper)
        assert len(values) <= occupancy.VALUES[-1]
        assert (masses >= 0).all()
        ours = np.array([masses[values > e].sum() for e in range(m + 1)])
        if upper:
            assert masses.sum() == pytest.approx(1.0, abs=1e-12)
            assert (ours >= survival * (1 - 1e-8) - 1e-12).all()
        else:
            assert (ours <= survival * (1 + 1e-8) + 1e-12).all()
        # Within half a standard deviation of the truth in the mean.
        spread = math.sqrt(occupancy.moments(float(n), float(m), prob)[1])
        assert masses @ values == pytest.approx(law @ k, abs=0.5 * spread + 1e-6)


@pytest.mark.parametrize(("n", "m", "prob"), [*SIZES, (900, 30, 1.0)])
@pytest.mark.parametrize("neg_log_tail", [5.0, 20.0, 60.0])
def test_single_probabilities_are_bounded_from_both_sides(n, m, prob, neg_log_tail):
    _, law = exact(n, m, prob)
    found = occupancy.probabilities(n, m, prob, neg_log_tail)
    inside = slice(found.low, found.low + len(found.most))
    assert (found.least <= law[inside]).all()
    assert (law[inside] <= found.most * (1 + 1e-15)).all()
    assert 1.0 - law[inside].sum() <= found.rest + 1e-15
    assert found.rest <= 3.0 * math.exp(-neg_log_tail)
    assert found.least.sum() > 1.0 - 60.0 * math.exp(-neg_log_tail) * len(found.least) - 1e-6
    # Bounds on the probabilities of more clients are none, unless nearly all slots are full.
    law = exact(2 * n, m, prob)[1][inside]
    assert n == 900 or (law < found.least).any() or (law > found.most).any()


@pytest.mark.parametrize(("n", "m", "prob"), [(3000, 2000, 0.6), (10**5, 10**4, 1.0), (500, 10**5, 1.0)])
def test_laws_at_large_sizes(n, m, prob):
    k, law = windows.occupancy_window(n, m, prob)
    for upper in (True, False):
        values, masses = occupancy.law(n, m, prob, 45.0, upper)
        for edge in np.unique(np.concatenate([values, k[:: max(len(k) // 50, 1)]])):
            ours, truth = masses[values > edge].sum(), law[k > edge].sum()
            assert (ours >= truth * (1 - 1e-8) - 1e-12) if upper else (ours <= truth * (1 + 1e-8) + 1e-12)


def few_in_many_slots(n, m, prob, most):
    """Pr[K > e] for e < most, in exact arithmetic but for float64 at the end: over how many of n clients send."""
    rate, law = Fraction(prob), [Fraction(0)] * (most + 1)
    given = [Fraction(1)] + [Fraction(0)] * most
    for sent in range(min(n, most) + 1):
        mass = math.comb(n, sent) * rate**sent * (1 - rate) ** (n - sent)
        law = [here + mass * each for here, each in zip(law, given)]
        moved = [each * (1 - Fraction(k, m)) for k, each in enumerate(given)]
        given = [each * Fraction(k, m) for k, each in enumerate(given)]
        given = [each + before for each, before in zip(given, [Fraction(0), *moved])]
    return np.array([float(sum(law[e + 1 :])) for e in range(most)])


@pytest.mark.parametrize(
    ("n", "m", "prob"),
    [
        (10, 269_022_380, 0.00325),
        (5, 10**11, 1e-4),
        (10, 10**12, 1e-3),
        (10, 10**12, 1e-6),
        (40, 10**12, 0.01),
    ],
)
def test_few_messages_in_many_slots_keep_their_digits(n, m, prob):
    """The probability that a given slot is free is 1 - n p / m: of the occupied ones it had no digits left."""
    truth = few_in_many_slots(n, m, prob, n)
    for upper in (True, False):
        values, masses = occupancy.law(n, m, prob, 40.0, upper)
        ours = np.array([masses[values > e].sum() for e in range(n)])
        if upper:
            assert (ours >= truth * (1 - ORACLE_ROUNDING) - math.exp(-40.0)).all()
            # The allowance for rounding grows with the number of slots.
            assert ours[0] <= truth[0] * 1.01
        else:
            assert (ours <= truth * (1 + ORACLE_ROUNDING)).all()


def test_bernstein_alone_serves_where_the_bulk_is_wide():
    """A million slots: only tail bounds; the mean moves by a few standard deviations at most."""
    mean, variance = occupancy.moments(1e6, 1e6, 1.0)
    high = occupancy.law(10**6, 10**6, 1.0, 45.0, True)
    low = occupancy.law(10**6, 10**6, 1.0, 45.0, False)
    assert mean < high[0] @ high[1] < mean + 3 * math.sqrt(variance)
    assert mean - 3 * math.sqrt(variance) < low[0] @ low[1] < mean
