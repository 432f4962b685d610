"""Binary randomized response from below: its lines lie under the exact profile and touch it, both directions."""

import math

import mpmath as mp
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import pairs, random_check_ins

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, UniformSlot
from checkin_jax.kernels import binomial, clones, host

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0


def check(one, pair, close):
    losses = one.largest_loss * np.array([1e-6, 0.01, 0.05, 0.2, 0.5, 0.8])
    cs = np.exp(one.largest_loss * np.array([0.0, 0.003, 0.02, 0.1, 0.3, 0.6, 0.95]))
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
    check(Clones(Shuffled(n, rate), epsilon0, MASS), pair, 0.01)


@pytest.mark.parametrize(("slots", "used"), [(1, 1.0), (5, 0.4), (120, 0.9)])
@pytest.mark.parametrize("epsilon0", [0.1, 0.6, 3.0])
def test_slots(slots, used, epsilon0):
    labels = random_check_ins.binary_slot_labels(math.exp(epsilon0))
    check(
        Clones(UniformSlot(slots, used, used), epsilon0, MASS),
        random_check_ins.slots_pair(labels, slots, used),
        1e-6,
    )


@pytest.mark.parametrize(("n", "m", "prob"), [(4, 3, 0.8), (50, 30, 1.0)])
@pytest.mark.parametrize("epsilon0", [0.1, 0.6, 3.0])
def test_occupied_slots(n, m, prob, epsilon0):
    law = [float(mass) for mass in random_check_ins.occupancy(n, m, prob)]
    labels = random_check_ins.binary_slot_labels(math.exp(epsilon0))
    check(Clones(Occupied(n, m, prob), epsilon0, MASS), random_check_ins.occupied_pair(labels, n, law), 0.05)


def composed(pair, repeats, delta):
    """Epsilon of all outcomes of the rounds, by enumeration; equal losses joined, bisected."""
    each = np.log(pair.p / pair.q)
    losses, masses = np.zeros(1), np.ones(1)
    for _ in range(repeats):
        losses, masses = np.add.outer(losses, each).ravel(), np.outer(masses, pair.p).ravel()
        order = np.argsort(losses)
        losses, masses = losses[order], masses[order]
        first = np.append(True, np.diff(losses) > 1e-12)
        losses, masses = losses[first], np.bincount(np.cumsum(first) - 1, masses)
    low, high = 0.0, losses[-1]
    for _ in range(60):
        middle = 0.5 * (low + high)
        beyond = losses > middle
        value = -(masses[beyond] @ np.expm1(middle - losses[beyond]))
        low, high = (middle, high) if value > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("n", "rounds", "epsilon0", "delta"),
    [(8, 4, 0.25, 1e-6), (8, 5, 1.0, 1e-6), (24, 3, 0.5, 1e-6), (24, 3, 0.25, 1e-2), (60, 2, 0.5, 1e-6)],
)
def test_rounds_of_few_messages_are_composed_to_the_third_digit(n, rounds, epsilon0, delta):
    """A grid for all losses alike was up to 5% below its own witness."""
    pair = pairs.enumerate_pair(pairs.binary_rr_labels(math.exp(epsilon0), 1.0)[:2], n)
    exact = max(composed(each, rounds, delta) for each in (pair, pair.reversed()))
    found = cj.account(
        cj.Shuffle(num_clients=n, num_rounds=rounds), cj.PureLDP(epsilon0=epsilon0), delta=delta
    )
    assert exact * 0.999 <= found.lower <= exact * (1.0 + ORACLE_ROUNDING)
    assert found.lower <= found.epsilon


@pytest.mark.parametrize("epsilon0", [16.0, 22.0, 28.0, 33.0, 36.0])
def test_lines_of_rare_labels_are_below_an_oracle_of_forty_digits(epsilon0):
    """Of Q||P, whose usual label has a probability that is rounded to a share of the rare one's."""
    number, weight, kappa = (host(each) for each in ([1.0, 2.0, 3.0], [0.001, 0.009, 0.99], [1.0 / 3.0] * 3))
    mix = clones.BinaryMessages(number, weight, kappa)
    losses = np.array([0.0, 0.5, 2.0, 5.0, 0.5 * epsilon0, 0.9 * epsilon0])
    table = binomial.table_size(3.0, 40.0, 1.0 / (1.0 + math.exp(epsilon0)))
    tables = clones.binary_tables(mix, host(epsilon0), host(40.0), table, True)
    found = clones.binary_lines_lower(mix, tables, host(losses), host(epsilon0), table[1], True)
    apart, second = map(np.asarray, found)
    with mp.workdps(40):
        p = mp.e ** mp.mpf(epsilon0)
        for loss, difference, mass in zip(losses, apart, second):
            c, exact = mp.e ** mp.mpf(loss), mp.mpf(0)
            for m, share in zip((1, 2, 3), np.asarray(weight)):
                for rare in range(m + 1):
                    law = mp.binomial(m, rare) * p ** (m - rare) / (p + 1) ** m
                    ratio = 1 + mp.mpf(1) / 3 * ((p + 1) * rare - m)
                    exact += mp.mpf(float(share)) * law * max(1 - c * ratio, 0)
            assert mp.mpf(float(difference)) - (c - 1) * mp.mpf(float(mass)) <= exact
            assert float(mass) >= 0.0
