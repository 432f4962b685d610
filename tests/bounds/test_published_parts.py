"""Published formulas of windows, approximate messages and runs, beside golden values: their ends and conversions."""

import math

import mpmath as mp
import numpy as np
import pytest

from checkin_jax.accounting import published
from tests.oracles import conversions, krr

DELTA = 1e-6
ORDERS = np.array([2, 3, 16])
FEW = np.array([2, 3, 9, 33])


def test_longer_sums_than_the_table_bracket_the_direct_sum():
    n, big = 300_000, math.e
    i = np.arange(1, n + 1)
    terms = np.log(1 + big**2 * (big - 1) / (big**2 + (i - 1) + (n - i) * big))
    exact = (terms * np.tanh(terms / 2)).sum() + math.sqrt(2 * math.log(1 / DELTA) * (terms**2).sum())
    bound = published.shuffle_unrelaxed(n, 1.0, DELTA)
    assert bound.value >= exact * (1 - 1e-12)
    assert bound.value - bound.truncation_error <= exact * (1 + 1e-12)


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


def test_one_pass_repeated_once_is_itself_and_more_cost_more():
    def one(delta):
        return published.shuffle(1_000, 0.5, delta)

    assert published.repeated(one, 1, DELTA).value == one(DELTA).value
    twice = published.repeated(one, 2, DELTA)
    assert twice.value > one(DELTA).value
    assert twice.label == "Theorem 5.1, strong composition"


def test_lemma_3_at_its_ends():
    assert not np.any(published.lemma_3(3.0, 0.0, ORDERS).value)
    assert np.isfinite(published.lemma_3(690.0, 1e-300, [2, 4096]).value).all()
    assert published.lemma_3([[1.0], [2.0]], [1e-6, 1e-3, 0.5], ORDERS).value.shape == (2, 3, 3)


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


def test_epsilon_is_the_oracles_best_order():
    bound = published.theorem_1([1_000, 5_000], 0.2, 0.5, FEW)
    found = published.epsilon(bound, FEW, num_rounds=np.array([[1], [70]]), delta=1e-5)
    assert found.value.shape == found.truncation_error.shape == (2, 2)
    for i, rounds in enumerate((1, 70)):
        for j in range(2):
            exact = float(
                conversions.epsilon_from_rdp(FEW.tolist(), (rounds * bound.value[j]).tolist(), 1e-5)
            )
            assert exact <= found.value[i, j] <= exact * (1 + 1e-11)
    assert found.label == bound.label
    assert found.validity == "published"
    # What is invalid stays so.
    invalid = published.theorem_2(1_000, 0.2, 0.5, FEW)
    assert published.epsilon(invalid, FEW, num_rounds=1, delta=1e-5).validity == "invalid"


def test_only_upper_renyi_divergences_become_epsilon():
    for bound in (
        published.theorem_3(1_000, 0.2, 0.5, FEW),
        published.theorem_1(1_000, 0.2, 0.5, FEW[:3]),
        published.shuffle(1_000, 0.5, [1e-5] * 4),
    ):
        with pytest.raises(ValueError, match="expected upper Renyi divergences of shape"):
            published.epsilon(bound, FEW, num_rounds=1, delta=1e-5)


def test_small_pure_dp_keeps_its_precision():
    # order eps^2 / 2 to first order.
    assert published.pure_rdp(1e-150, [2.0]).value[0] == pytest.approx(1e-300, rel=1e-11)
