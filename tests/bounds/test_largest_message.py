"""The largest message as a lower end: its events against mpmath, and a run's against the truth of that one test."""

import math

import mpmath as mp
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.largest_message import LargestMessage

pytestmark = pytest.mark.usefixtures("x64")
PLACES = np.linspace(0.0, 37.0, 2048)
LOSSES = np.array([0.0, 1e-3, 0.05, 0.3, 1.0, 4.0])


def events(n: int, rate: float, mu: float, place: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """P(A) and Q(A), A: some message is beyond the place, the target among them with its rate."""
    beyond = [rate * mp.erfc((place - at) / mp.sqrt(2)) / 2 for at in (0, mu)]
    others = (1 - beyond[0]) ** (n - 1)
    return 1 - others * (1 - beyond[1]), 1 - others * (1 - beyond[0])


@pytest.mark.parametrize(
    ("n", "rate", "mu"), [(2, 1.0, 1.0), (50, 1.0, 3.0), (410_000_000_000, 1.0, 3.295), (1000, 0.3, 2.0)]
)
def test_lines_are_those_of_the_best_place(n, rate, mu):
    sides = LargestMessage(n, rate, mu).lower(LOSSES)
    with mp.workdps(60):
        every = [events(n, rate, mu, mp.mpf(float(place))) for place in PLACES[:886]]
        for i, loss in enumerate(LOSSES):
            c = mp.exp(mp.mpf(float(loss)))
            truths = max(p - c * q for p, q in every), max((1 - q) - c * (1 - p) for p, q in every)
            for truth, (difference, mass) in zip(truths, sides):
                value = mp.mpf(float(difference[i])) - (c - 1) * mp.mpf(float(mass[i]))
                assert value <= max(truth, 0) * (1 + mp.mpf("1e-12"))
                assert value >= truth * (1 - mp.mpf("1e-4")) - mp.mpf("1e-13")


def test_every_line_is_that_of_an_event():
    """Each by itself at its own place: differences from below, masses from above."""
    one = LargestMessage(3 * 10**6, 1.0, 2.5)
    difference, seen, unseen = one._lines
    with mp.workdps(320):
        alone = LargestMessage(1, 1.0, 2.5)._lines
        for i in range(0, 1500, 100):
            p, q = events(one.num_clients, one.rate, one.mu, mp.mpf(float(PLACES[i])))
            assert mp.mpf(float(difference[i])) <= p - q
            assert mp.mpf(float(seen[i])) >= q
            assert mp.mpf(float(unseen[i])) >= 1 - p
        # The wrong neighbour forgets what the others may send.
        p, q = events(one.num_clients, one.rate, one.mu, mp.mpf(float(PLACES[300])))
        assert mp.mpf(float(alone[0][300])) > p - q
        assert mp.mpf(float(alone[1][300])) < q


def test_a_run_is_told_by_one_message_far_out():
    """Any message of any round beyond a place: closed forms for the whole run, in the best place."""
    n, rounds, mu, delta = 410_000_000_000, 269, 2.0 / 0.607, 1e-6
    best = 0.0
    with mp.workdps(60):
        for place in np.linspace(8.7, 9.1, 21):
            p, q = events(n, 1.0, mu, mp.mpf(float(place)))
            none_p, none_q = (1 - p) ** rounds, (1 - q) ** rounds
            if 1 - none_p > delta:
                best = max(best, float(mp.log((1 - none_p - delta) / (1 - none_q))))
    g = cj.account(
        cj.Shuffle(num_clients=n, num_rounds=rounds), cj.Gaussian(noise_multiplier=0.607), delta=delta
    )
    assert 0.99 * best < g.lower
    assert "largest" in g.lower_method
    # Not far above it: the composed events are worth little more than the best of them.
    assert g.lower < 1.03 * best
    assert math.isclose(best, 0.0568, rel_tol=1e-2)
