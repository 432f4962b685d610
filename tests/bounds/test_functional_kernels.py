"""`cj.numerics`: kernels under jit, vmap and grad, against checked functions and differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.kernels import binomial

pytestmark = pytest.mark.usefixtures("x64")
ORDERS = [2, 3, 8, 32]
SETTINGS = [
    (1.0, 0.5, 1.0),
    (10.0, 0.01, 3.0),
    (1e3, 0.999, 1.0),
    (1e4, 0.2, 5.0),
    (1e6, 0.1, 1.0),
    (1e8, 1e-6, 2.0),
]


def divergences(num_clients, rate, epsilon0):
    return cj.numerics.theorem_1_rdp(num_clients, rate, epsilon0, ORDERS)


def difference(function, at, place, step):
    """Central difference of a function in one of its arguments, at relative steps."""
    low, high = ([*at[:place], at[place] * (1 + side * step), *at[place + 1 :]] for side in (-1, 1))
    return (np.asarray(function(*high)) - np.asarray(function(*low))) / (high[place] - low[place])


def test_theorem_1_is_the_checked_one_in_one_mapped_program():
    columns = np.array(SETTINGS).T
    values = np.asarray(jax.jit(jax.vmap(divergences))(*columns))
    expected = cj.published.theorem_1(*columns, ORDERS)
    assert np.all(values >= (expected.value - expected.truncation_error) * (1 - 1e-11))
    # Coarser than single values only at n = 1e6.
    np.testing.assert_allclose(values, expected.value, rtol=1e-6)


def test_derivatives_of_theorem_1_are_differences():
    value, slopes = jax.jit(divergences), jax.jit(jax.jacrev(divergences, argnums=(0, 1, 2)))
    for at in SETTINGS[:4]:
        found = slopes(*at)
        np.testing.assert_allclose(found[1], difference(value, at, 1, 1e-6), rtol=1e-6)
        # Lemma 4 has whole numbers of messages, which jump as epsilon0 grows.
        np.testing.assert_allclose(found[2], difference(value, at, 2, 1e-2), rtol=0.04)
    for at in SETTINGS[4:]:
        found = slopes(*at)
        np.testing.assert_allclose(found[0], difference(value, at, 0, 1e-3), rtol=2e-3)
        np.testing.assert_allclose(found[2], difference(value, at, 2, 1e-2), rtol=5e-3)


@pytest.mark.parametrize(
    "at", [(1.0, 1.0, 1.0), (2.0, 1.0, 0.0), (1e5, 1.0, 50.0), (1e12, 1e-12, 1.0), (7.0, 1e-9, 1e-9)]
)
def test_derivatives_at_the_edges_are_finite(at):
    for mode in (jax.jacrev, jax.jacfwd):
        for slope in jax.jit(mode(divergences, argnums=(0, 1, 2)))(*at):
            assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("k", "n", "p"), [(3.0, 5.0, 0.3), (0.0, 9.0, 0.2), (9.0, 9.0, 0.2), (1e5, 1e6, 0.1001)]
)
def test_derivatives_of_binomial_probabilities(k, n, p):
    slopes = jax.grad(binomial.log_pmf, argnums=(1, 2))(k, n, p)
    assert slopes[1] == pytest.approx((k - n * p) / (p * (1 - p)), rel=1e-9)
    by_gamma = jax.scipy.special.digamma(n + 1) - jax.scipy.special.digamma(n - k + 1) + math.log1p(-p)
    assert slopes[0] == pytest.approx(float(by_gamma), rel=1e-7)


def test_the_budget_of_a_run_is_differentiated_through_the_conversion():
    orders = np.arange(2.0, 65.0)

    def epsilon(rate):
        moments = 100 * (orders - 1) * cj.numerics.theorem_1_rdp(1e4, rate, 1.0, orders)
        return jnp.min(cj.numerics.epsilon_from_log_moments(orders, moments, jnp.log(1e-6)))

    value, slope = jax.jit(jax.value_and_grad(epsilon))(0.1)
    assert slope == pytest.approx(difference(jax.jit(epsilon), [0.1], 0, 1e-5), rel=1e-5)
    rdp = cj.published.theorem_1(10_000, 0.1, 1.0, orders)
    assert value == pytest.approx(
        cj.published.epsilon(rdp, orders, num_rounds=100, delta=1e-6).value, rel=1e-9
    )


def test_an_infinite_moment_has_no_derivative_that_is_nan():
    def epsilon(moment):
        moments = jnp.stack([moment, jnp.inf])
        return jnp.min(cj.numerics.epsilon_from_log_moments(np.array([2.0, 3.0]), moments, jnp.log(1e-6)))

    assert jax.grad(epsilon)(1.0) == pytest.approx(1.0, rel=1e-11)


def test_pure_differential_privacy_and_its_derivative():
    orders = np.array([1.5, 2.0, 64.0])
    value = jax.jit(lambda epsilon: cj.numerics.rdp_of_pure_dp(epsilon, orders))
    for epsilon in (1e-6, 0.3, 5.0, 600.0):
        p = 1 / (1 + math.exp(-epsilon))
        if epsilon in (0.3, 5.0):
            direct = np.log(p**orders * (1 - p) ** (1 - orders) + (1 - p) ** orders * p ** (1 - orders)) / (
                orders - 1
            )
            np.testing.assert_allclose(value(epsilon), direct, rtol=1e-10)
        np.testing.assert_allclose(
            jax.jacrev(value)(epsilon), difference(value, [epsilon], 0, 1e-5), rtol=1e-6
        )
    assert (np.asarray(jax.jacrev(value)(0.0)) == 0).all()


def test_float32_is_refused():
    with jax.enable_x64(False), pytest.raises(RuntimeError, match="jax_enable_x64 is off"):
        cj.numerics.rdp_of_pure_dp(1.0, 2.0)
