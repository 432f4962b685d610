"""From rounds to runs: the conversion against its oracle, pure DP against coins, refusals."""

import math

import numpy as np
import pytest

from checkin_jax.accounting import published
from tests.oracles import conversions

ORDERS = np.array([2, 3, 9, 33])


def test_epsilon_is_the_oracles_best_order():
    bound = published.theorem_1([1_000, 5_000], 0.2, 0.5, ORDERS)
    found = published.epsilon(bound, ORDERS, num_rounds=np.array([[1], [70]]), delta=1e-5)
    assert found.value.shape == found.truncation_error.shape == (2, 2)
    for i, rounds in enumerate((1, 70)):
        for j in range(2):
            exact = float(
                conversions.epsilon_from_rdp(ORDERS.tolist(), (rounds * bound.value[j]).tolist(), 1e-5)
            )
            assert exact <= found.value[i, j] <= exact * (1 + 1e-11)
    assert found.label == bound.label
    assert found.validity == "published"
    # What is invalid stays so.
    invalid = published.theorem_2(1_000, 0.2, 0.5, ORDERS)
    assert published.epsilon(invalid, ORDERS, num_rounds=1, delta=1e-5).validity == "invalid"


def test_only_upper_renyi_divergences_become_epsilon():
    for bound in (
        published.theorem_3(1_000, 0.2, 0.5, ORDERS),
        published.theorem_1(1_000, 0.2, 0.5, ORDERS[:3]),
        published.shuffle(1_000, 0.5, [1e-5] * 4),
    ):
        with pytest.raises(ValueError, match="expected upper Renyi divergences of shape"):
            published.epsilon(bound, ORDERS, num_rounds=1, delta=1e-5)


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 3.0, 50.0])
@pytest.mark.parametrize("order", [1.01, 2.0, 40.5])
def test_pure_dp_is_attained_by_coins(epsilon, order):
    log_p, log_q = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    terms = order * log_p + (1 - order) * log_q, order * log_q + (1 - order) * log_p
    exact = np.logaddexp(*terms) / (order - 1)
    # The right-hand side cancels: its terms are near 1.
    assert published.pure_rdp(epsilon, [order]).value[0] == pytest.approx(exact, rel=1e-9, abs=1e-13)
    assert published.pure_rdp(epsilon, [order]).value[0] <= epsilon * (1 + 1e-11)


def test_small_pure_dp_keeps_its_precision():
    # order eps^2 / 2 to first order.
    assert published.pure_rdp(1e-150, [2.0]).value[0] == pytest.approx(1e-300, rel=1e-11)
