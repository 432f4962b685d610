"""Where float64 ends: overflow, flushed subnormals and cancellation must not turn into bounds (found by review)."""

import math

import pytest
from oracles import gaussian as oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalPureLDP
from checkin_jax.accounting.composition import compose


def run(n, rate, rounds=1):
    return cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds)


@pytest.mark.parametrize("noise", [1e-300])
def test_a_loss_beyond_float64_is_infinity_not_the_end_of_the_grid(noise):
    g = cj.account(run(1, 1.0), cj.Gaussian(noise_multiplier=noise), delta=1e-6, view="local", bounds="fast")
    assert g.epsilon == math.inf
    assert any("no finite epsilon" in w for w in g.warnings)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_stretched_loss_does_not_overflow(rounds):
    g = cj.account(run(10**12, 1e-9, rounds), cj.Gaussian(noise_multiplier=0.05), delta=1e-15, bounds="fast")
    assert g.epsilon >= 960


@pytest.mark.parametrize(("mu", "delta"), [(10.0, 1e-200), (20.0, 1e-100), (30.0, 1e-15)])
@pytest.mark.thorough(but=1)
def test_masses_too_small_for_float64_are_not_lost(mu, delta):
    """Composing with anything cannot do better than the Gaussian alone."""
    both = compose.bracket([(LocalGaussian(1.0, mu), 1), (LocalPureLDP(1.0, 1e-3), 1)], delta)
    assert both.upper == math.inf or oracle.delta_g(mu, both.upper) <= delta


@pytest.mark.parametrize("delta", [1e-200, 1e-290, 1e-300])
def test_a_scale_below_float64_is_no_bound(delta):
    found = compose.bracket([(LocalGaussian(1.0, 0.02), 10**6)], delta)
    assert found.upper == math.inf or oracle.delta_g(20.0, found.upper) <= delta
    assert oracle.delta_g(20.0, found.lower) >= delta


@pytest.mark.parametrize(("mu", "delta"), [(5.0, 1e-300), (15.0, 1e-200), (20.0, 1e-100), (25.0, 1e-50)])
@pytest.mark.thorough(but=1)
def test_a_vanished_mass_does_not_raise_the_lower_end(mu, delta):
    randomizer = cj.Gaussian(noise_multiplier=2 / (mu * math.sqrt(10)))
    g = cj.account(run(10, 1.0), randomizer, delta=delta, view="aggregate", bounds="fast")
    assert oracle.delta_g(mu, g.lower) >= delta
    # The largest message tells more than the sum, and no more than its sender's own message.
    g = cj.account(run(10, 1.0), randomizer, delta=delta, bounds="fast")
    assert oracle.delta_g(mu * math.sqrt(10), g.lower) >= delta


def test_small_differences_of_probabilities_do_not_cancel():
    g = cj.account(
        run(10**12, 1.0), cj.Gaussian(noise_multiplier=2000.0), delta=1e-13, view="aggregate", bounds="fast"
    )
    assert oracle.delta_g(1e-9, g.lower) >= 1e-13


def test_rare_weights_below_float64_still_count():
    g = cj.account(run(10, 1.5e-29), cj.PureLDP(epsilon0=50.0), delta=1e-295, bounds="fast")
    assert g.epsilon >= 49.9


def test_rdp_counts_rare_losses_whose_second_mass_vanishes():
    """One client: the moment is 1 - g + g (p^19 p + p^-19) / (p + 1) at order 20, about g e^950."""
    rate = 1e-290
    value = cj.rdp(run(1, rate), cj.PureLDP(epsilon0=50.0), [20.0])[0]
    assert value >= (math.log(rate) + 19 * 50.0) / 19 * (1 - 1e-12)
