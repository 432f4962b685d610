"""Td: messages that are nearly eps0-LDP, cut to the hexagon: its lemma, exact small rounds, and the accountant."""

import itertools
import math
from math import comb

import numpy as np
import pytest
from oracles import exact_rounds, hexagon

import checkin_jax as cj
from checkin_jax.accounting.bounds.hexagon import CutRatios
from checkin_jax.accounting.bounds.interface import LocalPureLDP

pytestmark = pytest.mark.usefixtures("x64")


def divergence(first, second, factor):
    return np.maximum(first - factor * second, 0.0).sum()


def largest_divergence(rows, p):
    return max(divergence(one, other, p) for one, other in itertools.permutations(rows, 2))


def rows_that_nearly_obey(rng, p, outputs=4, records=3):
    """Laws within a factor p of each other but for a few outputs, some of which have probability zero."""
    base = rng.dirichlet(np.ones(outputs))
    rows = base * np.exp(rng.uniform(-0.5, 0.5, (records, outputs)) * math.log(p))
    rows *= np.where(rng.random(rows.shape) < 0.25, rng.choice([0.0, 0.02, 3.0], rows.shape), 1.0)
    rows += 1e-3 * (rows.sum(axis=1, keepdims=True) == 0.0)
    return rows / rows.sum(axis=1, keepdims=True)


def cost(p, c):
    return (1.0 + min(c, p)) * (2.0 + 1.0 / p)


def shortfalls(share, trials=1500, seed=3):
    """By how much one message's mean exceeds the hexagon's worst mean and `share` of the cost, at most."""
    rng = np.random.default_rng(seed)
    most = -math.inf
    for _ in range(trials):
        p = float(rng.choice([1.2, 2.0, 5.0, 30.0]))
        c = p ** float(rng.uniform(0.0, 1.0))
        a, b, h = rows_that_nearly_obey(rng, p)
        delta0 = largest_divergence((a, b, h), p)
        there = h > 0.0
        steps = (a[there] - c * b[there]) / h[there]
        kinks = np.append(rng.uniform(-c * p, p, 3), rng.choice(steps))
        weights = rng.dirichlet(np.ones(kinks.size)) * float(rng.choice([1.0, 0.6]))

        def convex(t, kinks=kinks, weights=weights):
            return np.maximum(np.subtract.outer(t, kinks), 0.0) @ weights

        # Where h vanishes the adversary gains (a - c b)_+, with slope at most 1.
        found = h[there] @ convex(steps) + np.maximum(a[~there] - c * b[~there], 0.0).sum()
        worst = max(
            sum(weight * float(convex(np.array([z - c * y]))[0]) for (z, y), weight in law.items())
            for law in hexagon.vertex_laws(p)
        )
        most = max(most, found - worst - share * cost(p, c) * delta0)
    return most


def test_one_message_is_below_the_hexagon_and_the_cost_of_cutting():
    assert shortfalls(1.0) <= 1e-12


def test_without_the_cost_of_cutting_one_message_is_not_below_the_hexagon():
    """A twentieth of the cost is too little."""
    assert shortfalls(0.05) > 1e-4


def theorem(clients, rate, p, c, delta0):
    """Td for shuffled check-in, from the game's exact values."""
    total = rate**clients * max(p - c, 0.0) / (p + 1.0) + rate * delta0 * cost(p, c)
    for k in range(clients):
        mass = comb(clients, k) * rate**k * (1.0 - rate) ** (clients - k)
        total += mass * hexagon.game_value(p, min(c, p), k, (clients - k) * (1.0 - min(c, p))) / clients
    return total


@pytest.mark.parametrize("p", [1.5, 4.0])
@pytest.mark.parametrize(("clients", "rate"), [(2, 0.3), (3, 0.8), (4, 0.1)])
def test_the_theorem_is_above_exact_rounds(p, clients, rate):
    rng = np.random.default_rng(int(10 * p) + clients)
    cs = np.array([1.0, 1.0 + 0.1 * (p - 1.0), math.sqrt(p), p, 2.0 * p])
    # Rows that show the record now and then are the usual picture; others have no structure.
    channels = [exact_rounds.shown_or_response(p, delta0) for delta0 in (1e-3, 0.05)]
    channels += [rows_that_nearly_obey(rng, p, 3) for _ in range(12)]
    for channel in channels:
        delta0 = largest_divergence(channel, p)
        truth = exact_rounds.most(exact_rounds.rounds(channel, [rate] * clients), cs)
        above = np.array([theorem(clients, rate, p, float(c), delta0) for c in cs])
        assert (above >= truth * (1.0 - 1e-12) - 1e-15).all()


def test_the_hexagon_alone_is_below_exact_rounds_of_nearly_private_messages():
    p, clients, rate, delta0 = 1.5, 3, 0.3, 0.05
    channel = exact_rounds.shown_or_response(p, delta0)
    truth = exact_rounds.most(exact_rounds.rounds(channel, [rate] * clients), np.array([1.2]))
    assert theorem(clients, rate, p, 1.2, 0.0) < truth[0] <= theorem(clients, rate, p, 1.2, delta0)


def test_the_bound_adds_the_cost_and_no_more():
    pure, epsilon0, delta0, used = LocalPureLDP(0.5, 1.0), 1.0, 1e-5, 0.5
    losses = np.array([0.0, 0.4, 1.0, 3.0])
    added = np.asarray(CutRatios(pure, epsilon0, delta0, used).upper(losses)) - np.asarray(pure.upper(losses))
    exact = np.array([used * delta0 * cost(math.e, math.exp(loss)) for loss in losses])
    assert (added >= exact * (1.0 - 1e-9)).all()
    assert (added <= exact * (1.0 + 1e-6) + 1e-8).all()


@pytest.mark.parametrize(
    ("run", "delta"),
    [
        (cj.ShuffledCheckIn(num_clients=17_500_000, check_in_prob=0.000655, num_rounds=11), 2.9e-12),
        (cj.AveragedUpdates(num_clients=1_000_000, num_slots=1000, check_in_prob=0.05, num_epochs=20), 1e-10),
        (cj.FixedWindow(num_clients=50_000, num_slots=40_000, check_in_prob=0.8, num_epochs=10), 1e-8),
    ],
)
def test_a_tiny_delta0_costs_little(run, delta):
    """Within 1% of pure messages' bracket, by the hexagon; without Td it was the clones', some percent above."""
    pure = cj.account(run, cj.PureLDP(epsilon0=1.5), delta=delta)
    nearly = cj.account(run, cj.ApproximateLDP(epsilon0=1.5, delta0=1e-17), delta=delta)
    assert "hexagon" in nearly.method
    assert pure.lower <= nearly.epsilon <= 1.01 * pure.epsilon
    assert nearly.lower <= nearly.epsilon


def test_it_is_not_used_where_it_costs_more_than_delta():
    run = cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=0.1, num_rounds=1000)
    found = cj.account(run, cj.ApproximateLDP(epsilon0=1.0, delta0=2e-10), delta=1e-7)
    assert "hexagon" not in found.method
    assert math.isfinite(found.epsilon)
