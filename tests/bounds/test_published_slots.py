"""Random check-ins as published: relaxations in order, approximate LDP within its limits."""

import math
import re

import mpmath as mp
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting import published
from tests.oracles import exact_rounds, krr

DELTA = 1e-6


@pytest.mark.parametrize("size", [1, 2, 100, 10**5, 10**12])
@pytest.mark.parametrize("epsilon0", [0.0, 0.3, 2.0])
def test_relaxing_a_sum_does_not_make_it_smaller(size, epsilon0):
    for relaxed, summed in (
        (published.fixed_window, published.fixed_window_unrelaxed),
        (published.shuffle, published.shuffle_unrelaxed),
    ):
        bound = summed(size, epsilon0, DELTA)
        assert bound.value - bound.truncation_error <= relaxed(size, epsilon0, DELTA).value * (1 + 1e-11)
        assert bound.truncation_error <= 1e-3 * bound.value


@pytest.mark.parametrize("size", [1, 3, 500])
def test_unrelaxed_sums_are_the_sums_of_their_terms(size):
    big, delta = math.exp(1.5), 1e-3
    i = np.arange(1, size + 1)
    slot = np.log(1 + 0.5 * big * (big - 1) / (i - 1 + big * (size - i + 1)))
    client = np.log(1 + big**2 * (big - 1) / (big**2 + (i - 1) + (size - i) * big))
    for terms, bound in (
        (slot, published.fixed_window_unrelaxed(size, 1.5, delta, check_in_prob=0.5)),
        (client, published.shuffle_unrelaxed(size, 1.5, delta)),
    ):
        exact = (terms * np.tanh(terms / 2)).sum() + math.sqrt(2 * math.log(1 / delta) * (terms**2).sum())
        assert bound.value == pytest.approx(exact, rel=1e-11)
        assert bound.value >= exact * (1 - 1e-13)


def test_longer_sums_than_the_table_bracket_the_direct_sum():
    n, big = 300_000, math.e
    i = np.arange(1, n + 1)
    terms = np.log(1 + big**2 * (big - 1) / (big**2 + (i - 1) + (n - i) * big))
    exact = (terms * np.tanh(terms / 2)).sum() + math.sqrt(2 * math.log(1 / DELTA) * (terms**2).sum())
    bound = published.shuffle_unrelaxed(n, 1.0, DELTA)
    assert bound.value >= exact * (1 - 1e-12)
    assert bound.value - bound.truncation_error <= exact * (1 + 1e-12)


def test_shuffling_bounds_are_above_exact_randomized_response():
    # Three clients, every message seen but for its name.
    channel = krr.krr_channel(2, math.e)
    for delta in (0.2, 0.02):
        for theorem in (published.shuffle, published.shuffle_unrelaxed, published.shuffle_2019):
            c = math.exp(min(float(theorem(3, 1.0, delta).value), 700.0))
            assert exact_rounds.worst(channel, [1.0] * 3, [c]) <= delta


@pytest.mark.slow
def test_published_bounds_lie_above_the_certified_ones():
    randomizer, one_message = cj.PureLDP(epsilon0=1.0), 1.0
    n, m = 10_000, 100
    for protocol, bound in (
        (cj.FixedWindow(num_clients=n, num_slots=m), published.fixed_window(m, one_message, DELTA)),
        (cj.SlidingWindow(num_clients=n, window=m), published.sliding_window(m, one_message, DELTA)),
    ):
        assert cj.account(protocol, randomizer, delta=DELTA, bounds="fast").epsilon <= float(bound.value)


def test_limits_of_large_epsilon0_are_infinite_not_wrong():
    assert published.fixed_window(10, 50.0, DELTA).value > 1e40
    assert published.shuffle(1, 50.0, DELTA).value > 1e60
    assert published.shuffle_2019(1, 50.0, DELTA).value == math.inf
    assert 0 < published.delta0_limit(50.0, 1e-9) < 1e-100
    assert published.delta0_limit(0.0, 1e-9) == 0.0


@pytest.mark.parametrize("epsilon0", [1e-9, 0.1, 0.2, 1.0, 6.9, 6.972, 6.9999, 7.0, 12.0, 50.0])
@pytest.mark.parametrize("delta1", [1e-6, 1e-9, 1e-150])
def test_the_limit_of_delta0_is_rounded_down_and_hardly(epsilon0, delta1):
    with mp.workdps(60):
        e0, d1 = mp.mpf(epsilon0), mp.mpf(delta1)
        repeats = mp.ceil(mp.log(2 / d1) / -mp.log1p(-mp.exp(-5 * e0)))
        exact = -mp.expm1(-e0) * d1 / (4 * mp.exp(e0) * (2 + repeats))
    assert float(published.delta0_limit(epsilon0, delta1) / exact) == pytest.approx(1.0, rel=3e-12)
    assert published.delta0_limit(epsilon0, delta1) <= exact


def test_approximate_messages_need_a_delta0_within_the_limit():
    limit = float(published.delta0_limit(0.1, 1e-12))
    pure = published.shuffle(1_000, 0.8, DELTA)
    bound = published.approximate_ldp(pure, 1_000, 0.1, DELTA, limit, 1e-12)
    assert bound.delta > DELTA
    assert bound.value == pure.value
    with pytest.raises(ValueError, match=r"^delta0=.*: expected at most"):
        published.approximate_ldp(pure, 1_000, 0.1, DELTA, 1.01 * limit, 1e-12)
    # The total delta is above 1: nothing is promised.
    assert published.approximate_ldp(pure, 10**12, 0.1, DELTA, 0.0, 1e-9).value == math.inf


def test_corollary_3_3_composes_what_strong_composition_does_better():
    found = published.corollary_3_3(10_000, 100, 0.5, 1e-9, 1e-6)
    assert found.first.value < found.exact.value < found.relaxed.value < found.closed.value
    assert published.strong(found.first.value, 100, 1e-6) <= found.exact.value
    assert found.exact.delta == pytest.approx(1e-6 + 100 * 1e-9)


def test_one_pass_repeated_once_is_itself_and_more_cost_more():
    def one(delta):
        return published.shuffle(1_000, 0.5, delta)

    assert published.repeated(one, 1, DELTA).value == one(DELTA).value
    twice = published.repeated(one, 2, DELTA)
    assert twice.value > one(DELTA).value
    assert twice.label == "Theorem 5.1, strong composition"


def test_dummies_are_expected_empty_slots():
    # Two clients, two slots, p_0 = 1/2: a slot is empty with probability (3/4)^2.
    assert published.fixed_window_dummies(2, 2, 0.5).value == pytest.approx(2 * 0.75**2, rel=1e-14)
    assert published.fixed_window_dummies(5, 1).value == 0.0
    assert published.sliding_window_dummies(5, 1).value == 0.0
    n, m = 10_000, 100
    assert published.sliding_window_dummies(n, m).value <= (n - m + 1) / math.e


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: published.fixed_window(0, 1.0, 0.1), "num_slots=0.0: expected a whole number in [1, 1e+12]"),
        (lambda: published.fixed_window(5, 1.0, 1.0), "delta=1.0: expected a number in (0, 1)"),
        (lambda: published.fixed_window(5, math.nan, 0.1), "epsilon0=nan: expected a number in [0, 50]"),
        (
            lambda: published.fixed_window(5, 1.0, 0.1, check_in_prob=0),
            "check_in_prob=0.0: expected a number in (0, 1]",
        ),
        (lambda: published.averaged_updates(5, 5, 1.0, 0.1, 0.0), "delta2=0.0: expected a number in (0, 1)"),
        (lambda: published.weighted_shuffle(1.5, 1.0, 0.1), "norm=1.5: expected a number in (0, 1]"),
        (
            lambda: published.corollary_3_3(5, 6, 1.0, 0.1, 0.1),
            "num_slots=6.0: expected at most num_clients=5.0",
        ),
        (lambda: published.sliding_window_dummies(5, 6), "num_slots=6.0: expected at most num_clients=5.0"),
    ],
)
def test_bad_input_is_refused_with_name_value_and_range(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call()
