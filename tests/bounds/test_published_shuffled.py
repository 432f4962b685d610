"""Shuffled check-in as published: one-sided against direct sums and exact randomized response, on all of the domain."""

import math

import jax
import numpy as np
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import binom

from checkin_jax.accounting import published
from checkin_jax.kernels import binomial, host
from tests.conftest import ORACLE_ROUNDING
from tests.oracles import pairs

SUMS = (published.theorem_1, published.theorem_1_smaller, published.subsampling_only)
UPPER = (*SUMS, published.theorem_2_repaired)
LOWER = (published.theorem_3, published.theorem_3_sharper)
# Few static sizes: every other list of orders is padded to the same.
ORDERS = [2, 3, 9, 33]


RUNS = jax.jit(binomial.runs, static_argnums=2)


def direct_moments(k, n, epsilon0, order):
    """Lemma 4's moment and that of subsampling alone, as printed, term by term."""
    if k == 0:
        return 1.0, 1.0
    big, g = math.exp(epsilon0), k / n
    kbar = math.floor((k - 1) / (2 * big)) + 1
    x = g * (big**2 - 1) / big
    shuffled = 1 + 4 * math.comb(order, 2) * g**2 * (big - 1) ** 2 / (kbar * big)
    for j in range(3, order + 1):
        base = 2 * (big**2 - 1) ** 2 / (kbar * big**2)
        shuffled += math.comb(order, j) * g**j * j * math.gamma(j / 2) * base ** (j / 2)
    shuffled += ((1 + x) ** order - 1 - order * x) * math.exp(-(k - 1) / (8 * big))
    e = math.log(1 + g * (big - 1))
    p = math.exp(e) / (1 + math.exp(e))
    sampled = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
    return shuffled, sampled


def direct_sum(n, gamma, epsilon0, order):
    mass = binom.pmf(np.arange(n + 1), n, gamma)
    moments = np.array([direct_moments(k, n, epsilon0, order) for k in range(n + 1)])
    sums = mass @ moments[:, 0], mass @ moments.min(axis=1), mass @ moments[:, 1]
    return np.log(sums) / (order - 1)


@pytest.mark.parametrize(
    ("n", "gamma", "epsilon0"),
    [(1, 0.7, 0.5), (40, 0.1, 2.0), pytest.param(900, 0.3, 1.0, marks=pytest.mark.slow)],
)
@pytest.mark.thorough(but=1)
def test_the_sums_over_k_bracket_the_direct_sums(n, gamma, epsilon0):
    bounds = [theorem(n, gamma, epsilon0, ORDERS) for theorem in SUMS]
    for column, order in enumerate(ORDERS[:3]):
        for bound, exact in zip(bounds, direct_sum(n, gamma, epsilon0, order)):
            value, error = bound.value[column], bound.truncation_error[column]
            assert value >= exact * (1 - 1e-12)
            # scipy's binomial probabilities are good to about 1e-12.
            assert value - error <= exact * (1 + 1e-10)


@pytest.mark.parametrize(("n", "gamma"), [(500, 0.02), (5_000, 0.5), (3, 1.0), (70_000, 1e-4)])
@pytest.mark.parametrize("size", [64, 256, 512])
@pytest.mark.thorough(but=4)
def test_runs_cover_every_count_with_enough_mass(x64, n, gamma, size):
    runs = RUNS(host(n), host(gamma), size)
    first, last, upper, lower = (np.asarray(column) for column in runs)
    used = (np.exp(upper) > 0) & (last >= first)
    covered, masses = np.zeros(n + 2), binom.pmf(np.arange(n + 1), n, gamma)
    for a, b, log_upper, log_lower in zip(first[used], last[used], upper[used], lower[used]):
        exact = masses[int(a) : int(b) + 1].sum()
        assert np.exp(log_upper) >= exact * (1 - 1e-9) - 1e-300
        assert np.exp(log_lower) <= exact * (1 + 1e-9) + 1e-15
        covered[int(a) : int(b) + 1] = 1
    missing = np.flatnonzero(covered[1 : n + 1] == 0) + 1
    assert masses[missing].sum() == 0.0


@pytest.mark.parametrize(
    ("n", "gamma", "epsilon0"), [(10, 0.01, 3.0), (10, 0.05, 1.0), (60, 0.3, 2.0), (200, 0.05, 0.5)]
)
def test_valid_bounds_bracket_exact_binary_randomized_response(n, gamma, epsilon0):
    orders = np.array([2, 5, 20, 33])
    exact = pairs.rdp(pairs.enumerate_pair(pairs.binary_rr_labels(np.exp(epsilon0), gamma), n), orders)
    for theorem in UPPER:
        bound = theorem(n, gamma, epsilon0, orders)
        assert bound.validity == "published"
        assert bound.direction == "upper"
        assert (bound.value >= exact * (1 - ORACLE_ROUNDING)).all()
    for theorem in LOWER:
        bound = theorem(n, gamma, epsilon0, orders)
        assert bound.direction == "lower"
        assert (bound.value <= exact * (1 + ORACLE_ROUNDING)).all()


@pytest.mark.thorough
def test_runs_of_counts_are_looser_but_close():
    setting = (10**9, 0.4, 1.0, [2, 33])
    bound = published.theorem_1(*setting)
    assert (bound.truncation_error > 0).all()
    assert (bound.truncation_error <= 1e-6 * bound.value).all()
    closer = published.theorem_1(10**5, 0.4, 1.0, [2, 33])
    assert (closer.truncation_error <= 1e-11 * closer.value).all()


@pytest.mark.thorough
def test_arguments_broadcast_and_rows_do_not_depend_on_their_neighbours():
    n, gamma = np.array([[50], [3_000]]), np.array([0.1, 0.9, 1.0])
    for theorem in (published.theorem_1, published.theorem_2, *LOWER):
        bound = theorem(n, gamma, 1.0, [2, 33])
        assert bound.value.shape == (2, 3, 2)
        alone = theorem(3_000, 0.9, 1.0, [33])
        assert bound.value[1, 1, 1] == pytest.approx(float(alone.value[0]), rel=1e-12)


@pytest.mark.parametrize(
    ("n", "gamma", "epsilon0"),
    [
        (1, 1.0, 0.0),
        (1, 0.5, 50.0),
        (10**12, 1.0, 50.0),
        (10**12, 1e-12, 1.0),
        (7, 1e-300, 1.0),
        (2, 1.0, 1e-12),
    ],
)
def test_the_corners_of_the_domain_give_numbers_in_order(n, gamma, epsilon0):
    orders = [2, 33]
    lows = [theorem(n, gamma, epsilon0, orders).value for theorem in LOWER]
    for theorem in UPPER:
        value = theorem(n, gamma, epsilon0, orders).value
        assert np.isfinite(value).all()
        for low in lows:
            assert (low <= value).all()
    assert np.isfinite(published.theorem_2(n, gamma, epsilon0, orders).value).all()
    if epsilon0 == 0:
        assert not np.any(published.theorem_1(n, gamma, epsilon0, orders).value)


def test_order_4096_does_not_overflow():
    bound = published.theorem_1(1_000, 0.5, 20.0, [4096])
    degrees = np.arange(3, 4097)
    # By hand at the largest terms: k of about 500 and the binomial expansion of (1 + x)^4096.
    assert np.isfinite(bound.value).all()
    log_comb = gammaln(4097) - gammaln(degrees + 1) - gammaln(4097 - degrees)
    largest = logsumexp(log_comb + degrees * (math.log(0.5) + 20.0)) - 1 / 8
    assert bound.value[0] * 4095 >= largest


def test_values_do_not_depend_on_whether_their_truncation_is_wanted():
    """Where sums go in runs there is no lower end then; values one by one have both for nothing."""
    n, rate, orders = np.array([1000.0, 10.0**9]), 0.3, [2, 17]
    for theorem in (published.theorem_1, published.theorem_1_smaller):
        both, above = (theorem(n, rate, 1.0, orders, truncation=wanted) for wanted in (True, False))
        np.testing.assert_array_equal(both.value, above.value)
        np.testing.assert_array_equal(both.truncation_error[0], above.truncation_error[0])
        assert np.isnan(above.truncation_error[1]).all()
