"""Statements say that numbers of clients and rates are as stated where no bound on them is safe."""

import math

import numpy as np
import pytest
import scipy.special

import checkin_jax as cj
from checkin_jax.accounting.bounds import table
from tests import rows

COUNTED, RATE = table._COUNTED, table._STATED_RATE


def gaussian(mu, loss):
    """Profile of a Gaussian message."""
    ndtr = scipy.special.ndtr
    return ndtr(mu / 2 - loss / mu) - np.exp(loss) * ndtr(-mu / 2 - loss / mu)


def test_more_clients_than_stated_exceed_the_bound_on_one():
    """One slot: of two clients one displaces the other, at twice the distance of a dummy, in half of all cases."""
    run, noise = cj.FixedWindow(num_clients=1, num_slots=1), cj.Gaussian(noise_multiplier=1.0)
    found = cj.account(run, noise, delta=1e-6, neighboring_relation="add-or-remove-one")
    mu, loss = 2.0, found.epsilon
    of_two = 0.5 * gaussian(mu, math.log1p(2 * math.expm1(loss)))
    assert of_two > 1e-3
    assert any(COUNTED in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("row", "run", "counted"),
    [
        ("R1'", cj.FixedWindow(num_clients=50, num_slots=10), True),
        ("R1'", cj.SlidingWindow(num_clients=50, window=10), False),
        ("G3", cj.FixedWindow(num_clients=5, num_slots=10), True),
        ("G3", cj.FixedWindow(num_clients=50, num_slots=10), False),
        ("G3", cj.SlidingWindow(num_clients=50, window=10), False),
    ],
)
def test_added_clients_are_counted_where_dummies_are(row, run, counted):
    noise = cj.Gaussian(noise_multiplier=2.0)
    found = rows.account(row, run, noise, delta=1e-3, neighboring_relation="add-or-remove-one")
    assert any(COUNTED in text for text in found.assumptions) == counted


@pytest.mark.parametrize(
    ("run", "randomizer", "counted"),
    [
        (cj.FixedWindow(num_clients=50, num_slots=60), cj.L2Mechanism(epsilon0=1.0), True),
        (cj.FixedWindow(num_clients=50, num_slots=60), cj.OneBit(epsilon0=1.0), False),
        (
            cj.FixedWindow(num_clients=50, num_slots=60, empty_slots="visible"),
            cj.L2Mechanism(epsilon0=1.0),
            False,
        ),
        (cj.SlidingWindow(num_clients=120, window=60), cj.L2Mechanism(epsilon0=1.0), True),
        (cj.SlidingWindow(num_clients=120, window=60), cj.OneBit(epsilon0=1.0), False),
    ],
)
def test_clients_are_counted_where_slots_are_known_to_hold_fair_bits(run, randomizer, counted):
    found = cj.account(run, randomizer, delta=1e-3)
    assert any(COUNTED in text for text in found.assumptions) == counted


def occupied(clients, slots, prob):
    """Law of the number of slots that clients occupy."""
    law = np.eye(1, slots + 1)[0]
    share = np.arange(slots + 1.0) / slots
    for _ in range(clients):
        fewer = np.append(0.0, law[:-1] * (1 - share[:-1]))
        law = law * (1 - prob + prob * share) + prob * fewer
    return law


def test_fewer_messages_than_stated_exceed_the_bound_on_sums_of_visible_slots():
    """All others at the other record: the sum of K messages, one of which is the client's with probability K/n."""
    n, m, mu = 300, 5, 4.0
    run = cj.FixedWindow(num_clients=n, num_slots=m, empty_slots="visible", minibatch=m)
    noise = cj.Gaussian(noise_multiplier=2 / mu)
    found = cj.account(run, noise, delta=1e-6, view="aggregate")
    filled = np.arange(1, m + 1)
    loss = np.log1p(math.expm1(found.epsilon) * n / filled)
    leaked = occupied(n, m, 0.01)[1:] * filled / n * gaussian(mu / np.sqrt(filled), loss)
    assert leaked.sum() > 1e-4
    assert any(RATE in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("row", "run", "view", "stated"),
    [
        (
            "R1",
            cj.FixedWindow(num_clients=900, num_slots=10, empty_slots="visible", minibatch=5),
            "aggregate",
            True,
        ),
        (
            "R1",
            cj.FixedWindow(num_clients=900, num_slots=10, empty_slots="visible", minibatch=5),
            "messages",
            False,
        ),
        ("R1", cj.FixedWindow(num_clients=900, num_slots=10, minibatch=5), "aggregate", False),
        (
            "G1h",
            cj.ShuffledCheckIn(num_clients=20, check_in_prob=cj.Rates([0.5, 0.9], [10, 10])),
            "aggregate",
            True,
        ),
        (
            "G1h",
            cj.ShuffledCheckIn(num_clients=20, check_in_prob=cj.Rates([0.5, 0.9], [10, 10])),
            "messages",
            False,
        ),
    ],
)
def test_rates_are_as_stated_where_noise_adds_up(row, run, view, stated):
    found = rows.account(row, run, cj.Gaussian(noise_multiplier=2.0), delta=1e-3, view=view)
    assert any(RATE in text for text in found.assumptions) == stated
