"""Binary randomized response from below: its lines lie under the exact profile and touch it, both directions."""

import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import pairs, random_check_ins

from checkin_jax.accounting.bounds.clones import OccupiedPureLDP, ShuffledPureLDP, SlotsPureLDP

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0


def check(one, pair, close):
    losses = one.top * np.array([1e-6, 0.01, 0.05, 0.2, 0.5, 0.8])
    cs = np.exp(one.top * np.array([0.0, 0.003, 0.02, 0.1, 0.3, 0.6, 0.95]))
    for lines, each in zip(one.binary().lower(losses), (pair, pair.reversed())):
        difference, far = (np.asarray(v) for v in lines)
        assert (far >= 0).all()
        drawn = difference[:, None] - (cs[None, :] - 1.0) * far[:, None]
        exact = pairs.profile(each, cs)
        assert (drawn <= exact[None, :] * (1 + ORACLE_ROUNDING) + 1e-15).all()
        touching = difference - np.expm1(losses) * far
        at = pairs.profile(each, np.exp(losses))
        assert (touching >= at * (1 - close) - 1e-6).all()


@pytest.mark.parametrize(("n", "rate"), [(1, 0.4), (6, 0.5), (6, 1.0), (80, 0.3), (150, 1.0)])
@pytest.mark.parametrize("epsilon0", [0.1, 0.6, 3.0])
def test_check_in(n, rate, epsilon0):
    pair = pairs.enumerate_pair(pairs.binary_rr_labels(math.exp(epsilon0), rate), n)
    check(ShuffledPureLDP(n, rate, epsilon0, MASS), pair, 0.01)


@pytest.mark.parametrize(("slots", "used"), [(1, 1.0), (5, 0.4), (120, 0.9)])
@pytest.mark.parametrize("epsilon0", [0.1, 0.6, 3.0])
def test_slots(slots, used, epsilon0):
    labels = random_check_ins.binary_slot_labels(math.exp(epsilon0))
    check(
        SlotsPureLDP(slots, used, used, epsilon0, MASS),
        random_check_ins.slots_pair(labels, slots, used),
        1e-6,
    )


@pytest.mark.parametrize(("n", "m", "prob"), [(4, 3, 0.8), (50, 30, 1.0)])
@pytest.mark.parametrize("epsilon0", [0.1, 0.6, 3.0])
def test_occupied_slots(n, m, prob, epsilon0):
    law = [float(mass) for mass in random_check_ins.occupancy(n, m, prob)]
    labels = random_check_ins.binary_slot_labels(math.exp(epsilon0))
    check(OccupiedPureLDP(n, m, prob, epsilon0, MASS), random_check_ins.occupied_pair(labels, n, law), 0.05)
