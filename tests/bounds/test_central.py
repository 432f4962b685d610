"""Central mechanisms in one ledger with check-ins: every side against integration and dp_accounting's PLDs."""

import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from scipy.stats import laplace, norm

import checkin_jax as cj
from checkin_jax.accounting.interop import central_mechanisms
from checkin_jax.kernels.execution.devices import float64

GAUSS, LAPLACE = dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent
ADDED, REPLACED = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
LOSSES = np.array([0.0, 1e-6, 1e-3, 0.02, 0.1, 0.3, 0.7, 1.5, 3.0, 7.0])
X = np.linspace(-60.0, 60.0, 1_200_001)


def density(noise, by):
    return (norm if isinstance(noise, central_mechanisms.GaussianNoise) else laplace).pdf(
        X, loc=by * noise.shift
    )


def integrated(p, q, losses):
    """H by the trapezoidal rule, good to 1e-9 of its kinks' size."""
    return np.array([np.trapezoid(np.maximum(p - math.exp(each) * q, 0.0), X) for each in losses])


def lines_at(witness, losses):
    return [
        np.asarray(difference) - np.expm1(losses) * np.asarray(far)
        for difference, far in witness.lower(losses)
    ]


NOISES = [
    central_mechanisms.GaussianNoise(0.7),
    central_mechanisms.GaussianNoise(3.0),
    central_mechanisms.LaplaceNoise(0.5),
    central_mechanisms.LaplaceNoise(2.0),
]


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_a_client_added_or_removed_is_exact(noise, rate):
    one = central_mechanisms.Sampled(noise, rate)
    with_it, without = (1.0 - rate) * density(noise, 0.0) + rate * density(noise, 1.0), density(noise, 0.0)
    with float64():
        upper, lower = one.upper_sides(LOSSES), lines_at(one, LOSSES)
    for pair, above, below in zip(((with_it, without), (without, with_it)), upper, lower):
        exact = integrated(*pair, LOSSES)
        assert np.all(above >= exact - 2e-9)
        assert np.all(below <= exact + 2e-9)
        np.testing.assert_allclose(above, exact, atol=4e-9)
        np.testing.assert_allclose(np.maximum(below, 0.0), exact, atol=4e-9)
    assert np.all(upper[0][one.largest_loss < LOSSES] < 1e-300)
    # The two orders are no more the same.
    if rate == 0.5:
        assert np.max(np.abs(upper[0] - upper[1])) > 1e-3


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_a_client_replaced_is_between(noise, rate):
    with float64():
        one = central_mechanisms.sampled_replaced(noise, rate)
    rest, first, second = (density(noise, by) for by in (0.0, 1.0, -1.0))
    exact = integrated((1 - rate) * rest + rate * first, (1 - rate) * rest + rate * second, LOSSES)
    (witness,) = one.witnesses
    with float64():
        upper, (below, other) = one.upper(LOSSES), lines_at(witness, LOSSES)
    assert np.all(upper >= exact - 2e-9)
    assert np.all(below <= exact + 2e-9)
    assert np.all(below == other)
    np.testing.assert_allclose(np.maximum(below, 0.0), exact, atol=2e-8)
    if rate < 1.0:
        # Without the factor of two of a replaced value the bound would be below the truth.
        with float64():
            assert np.any(central_mechanisms.Sampled(noise, rate).upper(LOSSES) < exact - 1e-4)


@pytest.mark.parametrize(("rate", "scale"), [(0.001, 0.8), (0.1, 0.5), (0.3, 3.0)])
def test_rare_large_losses_of_a_sampled_value_are_not_those_of_two(rate, scale):
    """Where the other value is sampled is rare: the exact profile is about that of a client removed."""
    event = dp_accounting.PoissonSampledDpEvent(rate, GAUSS(scale))
    ledger = cj.CheckInAccountant(REPLACED).compose(event, 30)
    assert ledger.get_lower_epsilon(1e-8) <= ledger.get_epsilon(1e-8) <= 1.1 * ledger.get_lower_epsilon(1e-8)


def test_a_response_that_is_all_noise_tells_nothing():
    ours = cj.CheckInAccountant(REPLACED).compose(dp_accounting.RandomizedResponseDpEvent(1.0, 5), 3)
    assert ours.get_lower_epsilon(1e-6) == ours.get_epsilon(1e-6) == 0.0


def close_to_dp_accounting(event, count, relation, slack=2e-3):
    ours = cj.CheckInAccountant(relation).compose(event, count)
    theirs = pld_privacy_accountant.PLDAccountant(relation, value_discretization_interval=1e-4)
    if isinstance(event, dp_accounting.RandomizedResponseDpEvent):
        for _ in range(count):  # with a count, 0.6 composes it once
            theirs.compose(event)
    else:
        theirs.compose(event, count)
    for delta in (1e-3, 1e-6):
        reference = theirs.get_epsilon(delta)
        assert ours.get_lower_epsilon(delta) <= reference
        assert ours.get_epsilon(delta) == pytest.approx(reference, rel=slack)
        # Of atoms at the largest loss, as Laplace has, the lower grid loses some.
        assert ours.get_lower_epsilon(delta) == pytest.approx(reference, rel=0.1)


@pytest.mark.parametrize(
    ("event", "count"),
    [
        (GAUSS(3.0), 20),
        (LAPLACE(5.0), 20),
        (dp_accounting.PoissonSampledDpEvent(0.05, GAUSS(1.0)), 100),
        (dp_accounting.PoissonSampledDpEvent(0.2, LAPLACE(2.0)), 30),
    ],
    ids=repr,
)
@pytest.mark.thorough(but=1)
def test_agrees_with_dp_accounting_on_added_and_removed_clients(event, count):
    close_to_dp_accounting(event, count, ADDED)


def test_randomized_response_agrees_with_dp_accounting():
    close_to_dp_accounting(dp_accounting.RandomizedResponseDpEvent(0.4, 5), 12, REPLACED)


def test_a_replaced_value_moves_a_sum_by_two():
    """In closed form: mu = 2 sqrt(T) / sigma, from norm 1 at most for either value."""
    ledger = cj.CheckInAccountant().compose(GAUSS(20.0), 30).compose(GAUSS(40.0), 40)
    mu = 2.0 * math.sqrt(30 / 20.0**2 + 40 / 40.0**2)
    epsilon = ledger.get_epsilon(1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta <= 1e-5
    assert delta == pytest.approx(1e-5, rel=0.03)
    assert ledger.get_lower_epsilon(1e-5) <= epsilon


@pytest.mark.thorough
def test_check_ins_and_central_events_in_one_ledger():
    """Training, adaptive clipping, a private evaluation and a vendor's guarantee together."""
    run = cj.ShuffledCheckIn(num_clients=2_000, check_in_prob=0.1, num_rounds=50)
    clipping = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.1, GAUSS(10.0)), 50)
    evaluation = dp_accounting.ComposedDpEvent([GAUSS(30.0), LAPLACE(50.0)])
    parts = [cj.to_event(run, cj.PureLDP(epsilon0=1.0)), clipping, evaluation]
    alone = []
    ledger = cj.CheckInAccountant(bounds="fast")
    for part in parts:
        one = cj.CheckInAccountant(bounds="fast").compose(part)
        alone.append((one.get_lower_epsilon(1e-6), one.get_epsilon(1e-6 / 3)))
        ledger.compose(part)
    lower, upper = ledger.get_lower_epsilon(1e-6), ledger.get_epsilon(1e-6)
    assert max(low for low, _ in alone) <= lower <= upper <= sum(high for _, high in alone)
    assert upper < 0.8 * sum(high for _, high in alone)
    assert "the same client in every event" in ledger.notes[-1]
    assert "50 x PoissonSampledDpEvent" in str(ledger)
    # Saved and restored, and as dp_accounting's own distribution.
    state = json.loads(json.dumps(ledger.state_dict()))
    again = cj.CheckInAccountant(bounds="fast")
    again.load_state_dict(state)
    assert again.get_epsilon(1e-6) == upper
    assert ledger.to_pld(value_discretization_interval=1e-3).get_epsilon_for_delta(1e-6) == pytest.approx(
        upper, rel=0.02
    )
    assert ledger.attack(1e-6).advantage.lower > 0


@pytest.mark.thorough
def test_added_and_removed_windows_and_central_events_in_one_order():
    window = cj.SlidingWindow(num_clients=43, window=40)
    unit = cj.to_event(window, cj.Gaussian(noise_multiplier=2.0))
    sampled = dp_accounting.PoissonSampledDpEvent(0.3, GAUSS(2.0))
    ledger = cj.CheckInAccountant(ADDED, bounds="fast").compose(unit).compose(sampled, 3)
    parts = [cj.CheckInAccountant(ADDED, bounds="fast").compose(*each) for each in ((unit, 1), (sampled, 3))]
    assert max(each.get_lower_epsilon(1e-5) for each in parts) <= ledger.get_lower_epsilon(1e-5)
    assert ledger.get_epsilon(1e-5) <= sum(each.get_epsilon(5e-6) for each in parts)


@pytest.mark.parametrize(
    ("event", "relation", "why"),
    [
        (dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSS(1.0)), REPLACED, "another relation"),
        (
            dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.ZCDpEvent(1.0)),
            REPLACED,
            "after the sampling",
        ),
        (dp_accounting.ZCDpEvent(0.1), REPLACED, "Renyi"),
        (dp_accounting.RandomizedResponseDpEvent(0.5, 4), ADDED, "absent"),
        (dp_accounting.UnsupportedDpEvent(), REPLACED, "no bound is known"),
        (GAUSS(1e-3), REPLACED, "noise_multiplier"),
        (dp_accounting.PoissonSampledDpEvent(1.5, GAUSS(1.0)), REPLACED, "sampling_probability"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_not_known_is_refused_with_the_reason(event, relation, why):
    with pytest.raises(UnsupportedEventError, match=why):
        cj.CheckInAccountant(relation).compose(event)


@pytest.mark.parametrize("event", [GAUSS(0.0), dp_accounting.PoissonSampledDpEvent(0.1, GAUSS(0.0))])
def test_no_noise_is_no_privacy(event):
    assert cj.CheckInAccountant().compose(event).get_epsilon(1e-6) == math.inf
