"""Descriptions of rates, the laws of sums of unequal indicators, and the pools made of them."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.rates import RateLimits, Rates

MASS = 45.0


def exact_law(probs):
    """In rationals."""
    law = [Fraction(1)]
    for prob in map(Fraction, probs):
        law = [a * (1 - prob) + b * prob for a, b in zip([*law, 0], [0, *law])]
    return law


def enclosed(law, exact):
    """Every value and every run is between its bounds; `exact` maps whole numbers to probabilities."""
    for i, value in enumerate(law.values.tolist()):
        truth = exact(int(value))
        assert law.lower[i] <= truth * (1 + 1e-14)
        assert truth <= law.upper[i] * (1 + 1e-14)


def test_few_indicators_are_enclosed_by_their_rational_law():
    probs = [0.01, 0.3, 0.3, 0.99, 1.0, 0.0, 0.5]
    law = poisson_binomial.law(poisson_binomial.trials(np.array(probs)), MASS)
    exact = exact_law(probs)
    enclosed(law, lambda k: exact[k])
    assert law.below == law.above == 0.0


@pytest.mark.parametrize(
    "probs",
    [
        np.geomspace(0.02, 0.3, 1500),
        np.concatenate([np.linspace(0.9, 0.999, 700), np.geomspace(1e-5, 0.5, 700)]),
        np.geomspace(1e-6, 1e-4, 2000),
    ],
)
def test_many_indicators_in_bins_are_enclosed_by_convolution(probs):
    """Held in bins by central moments: the error that is proved is never below the one that is made."""
    direct = np.ones(1)
    for prob in probs:
        direct = np.append(direct * (1 - prob), 0.0) + np.append(0.0, direct * prob)
    law = poisson_binomial.law(poisson_binomial.trials(probs), MASS)
    at = law.values.astype(int)
    assert (law.lower <= direct[at] * (1 + 2e-12)).all()
    assert (law.upper >= direct[at] * (1 - 2e-12)).all()
    seen = direct[at] > 1e-15
    assert (law.upper[seen] <= law.lower[seen] * (1 + 1e-9)).all()
    assert 1 - law.run_lower.sum() < 1e-10


@pytest.mark.parametrize(("number", "prob"), [(10**6, 0.1), (10**9, 0.1), (10**12, 0.3)])
def test_large_sums_are_enclosed_by_mpmath(number, prob):
    law = poisson_binomial.law(poisson_binomial.trials(np.array([prob]), np.array([number])), MASS)
    with mpmath.workdps(50):
        q, n = mpmath.mpf(prob), number
        for i in range(0, law.lower.size, law.lower.size // 7):
            k = int(law.values[i])
            choose = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
            truth = mpmath.exp(choose + k * mpmath.log(q) + (n - k) * mpmath.log1p(-q))
            assert law.lower[i] <= truth <= law.upper[i]
            assert law.upper[i] <= law.lower[i] * (1 + 1e-6)
    assert law.run_lower.sum() <= 1.0
    assert law.run_upper.sum() + law.below + law.above >= 1.0
    assert law.run_upper.sum() - law.run_lower.sum() < 1e-5


@pytest.mark.parametrize(("number", "prob"), [(10**8, 0.02), (10**9, 0.5), (10**8, 1 - 1e-5)])
def test_runs_of_large_sums_are_enclosed_by_mpmath(number, prob):
    """Masses of the values between stored points, the first, the last and some within."""
    law = poisson_binomial.law(poisson_binomial.trials(np.array([prob]), np.array([number])), MASS)
    stride, size = int(law.stride), law.lower.size
    assert stride > 1 or prob > 0.9
    with mpmath.workdps(50):
        q, n = mpmath.mpf(prob), number
        for i in {0, 1, size - 2, size - 1, *range(size // 2 - 2, size // 2 + 3), *range(0, size, size // 9)}:
            k = int(law.values[i])
            choose = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
            mass = mpmath.exp(choose + k * mpmath.log(q) + (n - k) * mpmath.log1p(-q))
            total = mpmath.mpf(0)
            for value in range(k, min(k + stride, int(law.last) + 1)):
                total += mass
                mass *= mpmath.mpf(n - value) / (value + 1) * q / (1 - q)
            assert law.run_lower[i] <= total <= law.run_upper[i]
            if 0 < i < size - 1:
                assert law.run_upper[i] <= total * (1 + 1e-3)
                assert law.run_lower[i] >= total * (1 - 1e-3)


@pytest.mark.parametrize("mean", [0.7, 30.0, 20_000.0, 3e9])
def test_poisson_is_enclosed_by_mpmath(mean):
    law = poisson_binomial.poisson_law(mean, MASS)
    with mpmath.workdps(40):
        for i in range(0, law.lower.size, max(law.lower.size // 9, 1)):
            k = int(law.values[i])
            truth = mpmath.exp(k * mpmath.log(mean) - mean - mpmath.loggamma(k + 1))
            assert law.lower[i] <= truth <= law.upper[i]


@pytest.mark.parametrize("theta", [0.1, 0.3, 0.6])
def test_pools_are_stochastically_below(theta):
    """At every value the pool's law has at least the exact probability of being smaller."""
    rates = np.concatenate([np.geomspace(0.02, 0.3, 40), [0.7, 0.95, 1.0]])
    members = np.minimum(rates / theta, (1 - rates) / (1 - theta))
    exact = np.array([float(v) for v in exact_law(members.tolist())])
    for pool in (
        pool_cover.sum_of(pool_cover.weights(rates, theta), None, MASS),
        pool_cover.limited(float(members.sum()), MASS),
    ):
        assert pool.masses.sum() == pytest.approx(1.0, abs=1e-12)
        for value in range(len(exact)):
            assert pool.masses[pool.sizes < value].sum() >= exact[:value].sum() * (1 - 1e-12) - 1e-15


def test_pools_of_equal_rates_are_all_of_them():
    pool = pool_cover.sum_of(pool_cover.weights(np.full(17, 0.3), 0.3), None, MASS)
    assert pool.sizes.tolist() == [17.0]
    assert pool_cover.limited(0.99, MASS).sizes.tolist() == [0.0]


def test_rates_count_clients_and_leave_one_out():
    fleet = Rates([0.05, 0.3, 1.0], counts=[900, 99, 1])
    assert (fleet.num_clients, fleet.largest, fleet.smallest) == (1000, 1.0, 0.05)
    assert fleet.expected_check_ins == pytest.approx(75.7)
    others = fleet.others(0.3)
    assert others is not None
    assert others.counts.tolist() == [900, 98, 1]
    assert fleet.fastest(0.29) == 0.05
    last = fleet.others(1.0)
    assert last is not None
    assert last.num_clients == 999
    assert last.largest == 0.3
    assert Rates([0.2]).others(0.2) is None
    assert fleet.thinned(0.5).largest == 0.5
    assert Rates([0.1]) == Rates([0.1], [1]) != Rates([0.1], [2])
    assert RateLimits(0.3, 6000.0).weight == pytest.approx(20_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), r"values=\[\]: expected at least one rate"),
        (([0.1, 0.0],), r"values\[1\]=0.0: expected a number in \(0, 1\]"),
        (([0.1, math.nan],), r"values\[1\]=nan"),
        (([1.1],), r"values\[0\]=1.1"),
        (([0.1, 0.2], [1]), r"counts=1 numbers: expected one for each of the 2 values"),
        (([0.1], [-3]), r"counts\[0\]=-3.0: expected a whole number"),
        (([0.1], [1.5]), r"counts\[0\]=1.5"),
        (([[0.1]],), r"values of shape \(1, 1\)"),
        (([10**400],), "values=.*a float64 can hold"),
    ],
)
def test_rates_refuse_what_are_none(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rates(*arguments)


@pytest.mark.parametrize("values", [["0.1"], [True, 0.5], [None, 0.5], np.array(["0.1"]), "0.1"])
def test_texts_truth_values_and_none_are_no_numbers(values):
    with pytest.raises(TypeError, match=r"values=.*: expected numbers"):
        Rates(values)
