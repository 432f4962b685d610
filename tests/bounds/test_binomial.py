"""Loader's pmf against mpmath, and the bucket masses that every bound is built from, one-sided."""

import functools

import mpmath
import numpy as np
import pytest
from oracles import binomial as oracle

from checkin_jax.kernels import binomial
from checkin_jax.kernels.execution.backend import quietly

pytestmark = pytest.mark.usefixtures("x64")


def _interesting(n: int, p: float) -> list[int]:
    deviation = (n * p * (1 - p)) ** 0.5
    near = {round(n * p + z * deviation) for z in (-30, -8, -3, -1, 0, 1, 3, 8, 30)}
    return sorted({min(n, max(0, k)) for k in near | {0, 1, n // 2, n - 1, n}})


@pytest.mark.parametrize("n", [1, 2, 5, 17, 100, 10**4, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("p", [1e-9, 1e-4, 0.1, 1 / 3, 0.5, 0.9])
def test_log_pmf_is_within_1e_13_of_mpmath(n, p):
    for k in _interesting(n, p):
        exact = float(oracle.log_pmf(n, k, p))
        assert abs(float(binomial.log_pmf(float(k), float(n), p)) - exact) <= 1e-13 * max(1.0, abs(exact))


@pytest.mark.parametrize("n", [1, 2, 5, 17, 100, 10**4, 10**6, 10**9, 10**12])
def test_half_pmf_is_within_1e_13_of_mpmath(n):
    for k in _interesting(n, 0.5):
        exact = float(oracle.log_pmf(n, k, 0.5))
        ours = float(binomial.log_pmf_half(np.float64(k), np.float64(n)))
        assert abs(ours - exact) <= 1e-13 * max(1.0, abs(exact))


@pytest.mark.parametrize(("k", "n", "p", "value"), [(0, 0, 0.3, 0.0), (0, 5, 0.0, 0.0), (5, 5, 1.0, 0.0)])
def test_certain_events_have_log_probability_zero(k, n, p, value):
    assert float(binomial.log_pmf(float(k), float(n), p)) == value


@pytest.mark.parametrize(("k", "n", "p"), [(1, 5, 0.0), (4, 5, 1.0)])
def test_impossible_events_have_log_probability_minus_infinity(k, n, p):
    assert float(binomial.log_pmf(float(k), float(n), p)) == -np.inf


@pytest.mark.parametrize("n", [2, 17, 10**4, 10**9, 10**12])
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9])
def test_log_chernoff_is_above_its_exact_value_and_within_1e_11(n, p):
    for k in _interesting(n, p):
        exact = 0.0
        with mpmath.workdps(50):
            for count, share in ((k, mpmath.mpf(p)), (n - k, 1 - mpmath.mpf(p))):
                if count:
                    exact -= count * mpmath.log(count / (n * share))
            exact = float(exact)
        found = float(binomial.log_chernoff(float(k), float(n), p))
        assert exact <= found <= exact + 1e-11 * max(1.0, abs(exact))


def test_chernoff_is_above_the_tail_and_says_what_cannot_be():
    n, p = 40, 0.3
    below, above = np.cumsum(masses(n, p)), np.cumsum(masses(n, p)[::-1])[::-1]
    k = np.arange(n + 1.0)
    found = np.exp(np.asarray(binomial.log_chernoff(k, n, p)))
    assert np.all(found[k <= n * p] >= below[k <= n * p])
    assert np.all(found[k > n * p] >= above[k > n * p])
    assert float(binomial.log_chernoff(-1.0, n, p)) == -np.inf
    assert float(binomial.log_chernoff(n - 1.0, n, 1.0)) == -np.inf


@functools.cache
def masses(n: int, p: float) -> np.ndarray:
    """Pr[Bin(n, p) = k] for k = 0, ..., n."""
    return np.exp(quietly(binomial.log_pmf)(np.arange(n + 1.0), float(n), p))


@pytest.mark.parametrize(
    ("n", "p"),
    [
        (0, 0.5),
        (1, 0.3),
        (5, 1.0),
        (30, 0.5),
        (400, 0.02),
        (3000, 0.5),
        (40_000, 0.01),
        (40_000, 0.999),
        (10**5, 0.5),
    ],
)
@pytest.mark.parametrize("buckets", [16, 64, 256])
@pytest.mark.parametrize("neg_log_tail", [30.0, 300.0])
def test_cells_bound_every_bucket_and_the_rest(n, p, buckets, neg_log_tail):
    """Each bucket's mass and mean, and the mass outside the window, against exact sums."""
    cut = binomial.cells(np.float64(n), np.float64(p), np.float64(neg_log_tail), buckets)
    values, pmf = np.arange(n + 1), masses(n, p)
    first, last = np.asarray(cut.first).astype(int), np.asarray(cut.last).astype(int)
    upper, lower = np.asarray(cut.mass_upper), np.asarray(cut.mass_lower)
    mean_upper, mean_lower = np.asarray(cut.mean_upper), np.asarray(cut.mean_lower)
    covered = np.zeros(n + 1, bool)
    for i in range(buckets):
        if upper[i] == 0:
            assert lower[i] == 0  # an empty bucket; what it might have missed shows in `covered`
            continue
        inside = slice(first[i], last[i] + 1)
        assert not covered[inside].any(), "buckets overlap"
        covered[inside] = True
        exact = pmf[inside].sum()
        assert lower[i] * (1 - 1e-12) <= exact <= upper[i] * (1 + 1e-12) + 1e-290
        if exact > 1e-250 and first[i] < last[i]:
            mean = (pmf[inside] * values[inside]).sum() / exact
            assert mean_lower[i] <= mean * (1 + 1e-12)
            assert first[i] <= mean_lower[i]
            assert mean_upper[i] <= last[i]
    assert pmf[~covered].sum() <= float(cut.tail) + 1e-14 * (float(cut.tail) == 0)


@pytest.mark.parametrize("n", [10**6, 10**9, 10**12])
@pytest.mark.parametrize("p", [1e-4, 0.1, 0.5])
def test_cells_are_tight_at_any_size(n, p):
    cut = binomial.cells(np.float64(n), np.float64(p), np.float64(40.0), 64)
    assert 1.0 - 1e-15 <= float(cut.mass_upper.sum()) <= 1.002
    assert 0.998 <= float(cut.mass_lower.sum()) <= 1.0 + 1e-12


def test_mean_inverse_bounds_the_mean_of_one_over_x():
    rng = np.random.default_rng(0)
    for _ in range(200):
        first = rng.integers(1, 50)
        x = np.arange(first, first + rng.integers(1, 30))
        w = rng.dirichlet(np.ones(len(x)))
        mean = w @ x
        bound = float(binomial.mean_inverse(np.float64(x[0]), np.float64(x[-1]), np.float64(mean)))
        assert bound >= (w @ (1 / x)) * (1 - 1e-12)
