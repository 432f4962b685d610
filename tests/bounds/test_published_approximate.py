"""Lemma 3 is a minimum, so it lies below what mechanisms do; its valid ingredients lie above exact values."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkin_jax as cj
from checkin_jax.accounting import published
from tests.oracles import gaussian, krr

ORDERS = np.array([2, 3, 16])


@given(st.floats(0.0, 8.0), st.floats(-30.0, -0.1), st.sampled_from([2, 3, 16, 200]))
def test_lemma_3_is_the_minimum_over_pairs_of_coins(epsilon, log_delta, order):
    delta = math.exp(log_delta)
    value = published.lemma_3(epsilon, delta, [order]).value[0]
    s = np.exp(np.linspace(log_delta - 1, math.log1p(-delta), 4001)[:-1])
    r, q = s + delta, s * math.exp(-epsilon)
    with np.errstate(divide="ignore"):
        coin = np.logaddexp(
            order * np.log(r) + (1 - order) * np.log(q),
            order * np.log1p(-np.minimum(r, 1)) + (1 - order) * np.log1p(-q),
        ) / (order - 1)
    # The logarithms here cancel; the grid's own minimum is a little above.
    assert value <= coin.min() + 1e-12
    assert value >= coin.min() * (1 - 1e-4) - 1e-12


def test_lemma_3_is_below_the_gaussian_mechanism_it_is_said_to_bound():
    for mu in (0.1, 1.0, 3.0):
        for epsilon in (0.1, 1.0, 2.0):
            delta = float(gaussian.delta_g(mu, epsilon))
            bound = published.lemma_3(epsilon, delta, ORDERS)
            assert bound.validity == "invalid"
            assert "MINIMUM" in bound.reason
            assert (bound.value < ORDERS * mu**2 / 2).all()


def test_lemma_3_at_its_ends():
    assert not np.any(published.lemma_3(3.0, 0.0, ORDERS).value)
    assert np.isfinite(published.lemma_3(690.0, 1e-300, [2, 4096]).value).all()
    assert published.lemma_3([[1.0], [2.0]], [1e-6, 1e-3, 0.5], ORDERS).value.shape == (2, 3, 3)


@pytest.mark.slow
def test_strong_composition_is_above_the_certified_account():
    run = cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=0.1, num_rounds=200)
    bound = published.strong_composition(10_000, 0.1, 0.5, num_rounds=200, delta=1e-6)
    assert float(bound.value) >= cj.account(run, cj.PureLDP(epsilon0=0.5), delta=1e-6, bounds="fast").epsilon


def test_strong_composition_is_above_exact_randomized_response():
    # Two rounds of shuffling among two clients, worst pair of data sets, in full.
    channel = krr.krr_channel(2, math.e)
    law = [krr.two_round_law(records, channel, lambda _: channel, 1) for records in ((0, 0), (1, 0))]
    for delta in (0.3, 0.05):
        bound = published.strong_composition(2, 1.0, 1.0, num_rounds=2, delta=delta)
        c = math.exp(float(bound.value))
        assert krr.hockey_stick(law[1], law[0], c) <= delta
        assert krr.hockey_stick(law[0], law[1], c) <= delta


def test_strong_composition_of_approximate_messages_needs_room_for_their_deltas():
    setting = {"num_clients": 10_000, "rate": 0.1, "epsilon0": 1.0, "num_rounds": 10, "delta": 1e-6}
    pure = published.strong_composition(**setting).value
    assert published.strong_composition(**setting, delta0=1e-12).value >= pure
    assert published.strong_composition(**setting, delta0=1e-3).value == math.inf


def test_strong_takes_the_best_of_its_forms():
    assert published.strong(0.01, 1, 1e-6) == pytest.approx(0.01, rel=1e-11)
    many = published.strong(0.01, 10_000, 1e-6)
    assert many < 10_000 * 0.01
    assert published.strong(math.inf, 5, 0.1) == math.inf


@pytest.mark.parametrize("approach", [published.approach_1, published.approach_2])
@pytest.mark.thorough
def test_the_approaches_are_marked_and_finite(approach):
    bound = approach([10**6, 10**7], 0.01, 2.0, ORDERS, shuffle_delta=1e-6, delta0=1e-12)
    assert bound.validity == "invalid"
    assert bound.value.shape == (2, 3)
    assert np.isfinite(bound.value).all()
    assert (bound.truncation_error <= 0.05 * bound.value).all()
    # Above the order of a message's own divergence nothing would be gained.
    assert (bound.value <= published.pure_rdp(2.0, ORDERS).value).all()


def test_approach_2_at_one_client_is_lemma_3_itself():
    bound = published.approach_2(1, 1.0, 1.0, ORDERS, shuffle_delta=1e-6, delta0=1e-4)
    assert bound.value == pytest.approx(published.lemma_3(1.0, 1e-4, ORDERS).value, rel=1e-9)


def test_baseline_uses_a_number_of_messages_that_is_rarely_exceeded():
    bound = published.baseline(1_000, 0.1, 1.0, ORDERS, tail_delta=1e-9)
    assert bound.validity == "invalid"
    more = published.baseline(1_000, 0.1, 1.0, ORDERS, tail_delta=1e-6)
    assert (more.value > bound.value).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: published.lemma_3(1.0, 1.0, [2]), "delta=1.0: expected a number in [0, 1)"),
        (lambda: published.lemma_3(-1.0, 0.1, [2]), "epsilon=-1.0: expected a number in [0, 690]"),
        (lambda: published.strong(1.0, 0, 0.1), "num_rounds=0.0: expected a whole number in [1, 1e+09]"),
        (
            lambda: published.approach_1(10, 0.1, 1.0, [2], shuffle_delta=0.0),
            "shuffle_delta=0.0: expected a number in (0, 1)",
        ),
        (
            lambda: published.baseline(10, 0.1, 1.0, [2], tail_delta=1.0),
            "tail_delta=1.0: expected a number in (0, 1)",
        ),
    ],
)
def test_bad_input_is_refused_with_name_value_and_range(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call()
