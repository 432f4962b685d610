"""RDP to (epsilon, delta): [CKS20] against mpmath; nothing unusable becomes a number."""

import math

import numpy as np
import pytest
from oracles import conversions as oracle

from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld

pytestmark = pytest.mark.usefixtures("x64")


def epsilon(orders, rdp, delta):
    orders, rdp = np.asarray(orders), np.asarray(rdp)
    moments = rdp * (orders - 1)
    return np.asarray(pld.epsilon_from_log_moments(host(orders), host(moments), host(math.log(delta))))


@pytest.mark.parametrize("delta", [0.5, 1e-6, 1e-100, 1e-300])
def test_every_order_equals_the_formula(delta):
    orders, rdp = [1.01, 1.5, 2.0, 17.3, 1024.0], [1e-9, 0.03, 0.5, 2.0, 40.0]
    for order, value, ours in zip(orders, rdp, epsilon(orders, rdp, delta)):
        exact = max(0.0, float(oracle.epsilon_at_order(order, value, delta)))
        assert exact <= ours <= exact * (1 + 1e-11) + 1e-300


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_divergence_that_is_not_finite_is_no_guarantee(bad):
    assert epsilon([2.0], [bad], 1e-6)[0] == math.inf
