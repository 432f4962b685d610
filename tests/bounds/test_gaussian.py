"""The Gaussian profile and its inverse against 50-digit arithmetic, down to delta = 1e-300."""

import mpmath as mp
import numpy as np
import pytest
from oracles import gaussian as oracle

from checkin_jax import Gaussian
from checkin_jax.kernels import gaussian_profile
from checkin_jax.kernels.execution.backend import quietly


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mu", [1e-6, 1e-4, 0.01, 0.3, 0.49, 0.51, 1.5, 5.0, 30.0])
@pytest.mark.parametrize("a", [-8.0, -3.0, -0.5, 0.0, 0.5, 3.0, 8.0, 24.9, 29.9, 30.1, 36.0])
def test_log_delta(mu, a):
    epsilon = (a + mu / 2) * mu
    exact = float(mp.log(oracle.delta_g(mu, epsilon)))
    # Subtracting two nearly equal numbers near delta = 1 costs about 1e-16 / mu.
    assert (
        abs(float(gaussian_profile.log_delta(np.float64(mu), np.float64(epsilon))) - exact)
        <= 1e-12 + 1e-17 / mu
    )


def ahead():
    """Shifts and places of losses, what the kernels find there, and the exact profile and tails."""
    rng = np.random.default_rng(7)
    mu = np.concatenate([10.0 ** rng.uniform(-8, 1.9, 150), np.repeat([0.0066, 0.1499, 0.15, 0.2, 1.0], 10)])
    loss = mu * np.where(rng.random(200) < 0.2, 10.0 ** rng.uniform(-9, 0, 200), rng.uniform(0, 36, 200))
    x = loss / mu
    profile, logs = (
        quietly(gaussian_profile.delta_ahead)(mu, loss),
        quietly(gaussian_profile.log_delta_ahead)(mu, loss),
    )
    np.testing.assert_allclose(np.exp(logs), profile, rtol=1e-12, atol=1e-306)
    found = [profile, *quietly(gaussian_profile.tails_ahead)(mu, x)]
    exact = []
    with mp.workdps(60):
        for shift, lost, at in zip(mu, loss, x):
            shift, at = mp.mpf(float(shift)), mp.mpf(float(at))
            near, far = mp.ncdf(-(at - shift / 2)), mp.ncdf(-(at + shift / 2))
            exact.append((oracle.delta_g(shift, mp.mpf(float(lost))), far, near - far))
    return np.asarray(found), exact


def apart(found, exact):
    return max(
        float(abs(mp.mpf(float(f)) / e - 1))
        for column, row in zip(found.T, exact)
        for f, e in zip(column, row)
        if e > 1e-295
    )


@pytest.mark.usefixtures("x64")
def test_profile_and_tails_ahead():
    assert apart(*ahead()) <= 2e-12


@pytest.mark.usefixtures("x64")
def test_tails_ahead_where_the_series_ends():
    x = np.linspace(0.0, 4.0, 41)
    mu = np.nextafter(0.2, 0.0) / np.maximum(x, 1.0) * (1.0 - 1e-15)
    _, between = quietly(gaussian_profile.tails_ahead)(mu, x)
    with mp.workdps(60):
        for shift, at, found in zip(mp.matrix(mu.tolist()), mp.matrix(x.tolist()), between.tolist()):
            exact = mp.ncdf(shift / 2 - at) - mp.ncdf(-shift / 2 - at)
            assert abs(found / exact - 1) <= 2e-13


@pytest.mark.usefixtures("x64")
def test_a_taylor_series_over_longer_steps_would_not_do(monkeypatch):
    monkeypatch.setattr(gaussian_profile, "_SHORT", 1.5)
    assert apart(*ahead()) > 1e-9


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("b", [26.5, 29.99, 30.0, 37.5, 37.55, 37.6, 37.67, 37.7, 38.4, 38.6, 60.0])
@pytest.mark.parametrize("a", [0.0, 0.6, 5.0, 20.0, 24.0])
def test_long_steps_far_into_the_tail(a, b):
    # erfc underflows from 37.6 on: the far part of delta must not go with it.
    mu = b - a
    epsilon = (a + mu / 2) * mu
    exact = oracle.delta_g(mu, epsilon)
    # Rounding of epsilon / mu - mu / 2 moves a by 1e-14 or so, and delta with it.
    assert (
        abs(float(gaussian_profile.log_delta(np.float64(mu), np.float64(epsilon))) - float(mp.log(exact)))
        <= 1e-12
    )
    # Without the far part the profile would be visibly too large.
    assert mp.ncdf(-a) > exact * (1 + mp.mpf(10) ** -9)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [0.5, 1e-6, 1e-30, 1e-300])
@pytest.mark.thorough(but=9)
def test_largest_mu_is_feasible_and_tight(epsilon, delta):
    mu = gaussian_profile.largest_mu(epsilon, delta)
    exact = oracle.mu_for(epsilon, delta)
    if exact < 1e-9:
        assert mu == 0.0
        return
    assert mu <= exact
    assert mu >= exact * (1 - 1e-10)


@pytest.mark.parametrize(
    ("num_clients", "epsilon0", "noise"),
    [(6e4, 2.0, 4.968), (6e4, 8.0, 1.420), (1e7, 2.0, 6.226), (1e7, 8.0, 1.708)],
)
def test_noise_of_the_paper_settings(num_clients, epsilon0, noise):
    found = Gaussian.from_local(epsilon0=epsilon0, delta0=num_clients**-1.5).noise_multiplier
    assert round(found, 3) == noise
