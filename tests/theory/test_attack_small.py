"""An attack with a seed from the clock: random finite mechanisms in small runs, all data sets listed.

Every bound of the table that applies to a unit is above the worst pair at every loss, every concrete witness is below
it, and so are the two ends of `account`. Mechanisms are the user's own: twins that differ by rounding, equal rows,
mixtures of rows, messages of next to no probability, likelihood ratios of nearly 1 and of e^20.
"""

import collections
import itertools
import time

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import upper_sides
from checkin_jax.accounting.bounds.select import built_bounds, unit_bound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels.execution import devices
from checkin_jax.protocols import ADD_OR_REMOVE, REPLACE

# Of the oracle, whose laws are sums of float64: probabilities near 1 are subtracted where little leaks.
SLACK = 5e-15
CPU_SECONDS = 18.0
# Masses up to exp(-MASS) do not matter.
MASS = 40.0


def matrix(rng, records, messages):
    """Likelihood ratios from 1 + 1e-6 to e^20."""
    epsilon0 = float(rng.choice([1e-6, 1e-3, 0.1, 0.7, 2.0, 5.0, 20.0]))
    odds = np.exp(epsilon0 * rng.uniform(0.0, 1.0, (records, messages)))
    kind = int(rng.integers(6))
    if kind == 1:
        odds = np.exp(epsilon0 * rng.integers(0, 2, odds.shape)) * rng.dirichlet(np.ones(messages))
    if kind == 2:
        odds *= 10.0 ** -rng.integers(0, 9, messages)
    if kind == 3 and records > 2:
        rows = odds[:-1] / odds[:-1].sum(axis=1, keepdims=True)
        odds = np.concatenate([rows, [rng.dirichlet(np.ones(records - 1)) @ rows]])
    if kind == 4:
        # Messages that tell nearly the same, and records that are nearly alike.
        odds[:, -1] = odds[:, 0] * (
            1.0 + rng.choice([0.0, 1e-16, 3e-16, 1e-12]) * rng.integers(0, 2, records)
        )
        if records > 2:
            odds[-1] = odds[0] * (1.0 + rng.choice([0.0, 3e-16, 1e-10]) * rng.integers(0, 2, messages))
    if kind == 5:
        odds[:, -1] = 10.0 ** -float(rng.integers(10, 200)) * np.exp(epsilon0 * rng.integers(0, 2, records))
    rows = odds / odds.sum(axis=1, keepdims=True)
    return rows if np.ptp(np.log(rows), axis=0).max() > 1e-8 else matrix(rng, records, messages)


def rate_of(rng):
    return float(rng.choice([rng.uniform(0.02, 0.98), 1e-3, 0.999]))


def rounds(rng):
    """Shuffled check-in at one rate or several, or everybody; all pairs of neighbouring data sets."""
    messages = int(rng.integers(2, 5))
    clients = int(rng.integers(2, 7 if messages < 4 else 5))
    channel = matrix(rng, int(rng.integers(2, 5 if clients < 5 else 4)), messages)
    kind = int(rng.integers(4))
    if kind == 0:
        run, fleet = cj.Shuffle(num_clients=clients), [1.0] * clients
    elif kind == 1:
        fleet = [rate_of(rng) for _ in range(min(clients, 4))]
        run = cj.ShuffledCheckIn(num_clients=len(fleet), check_in_prob=cj.Rates(fleet))
    else:
        coin, lost = rate_of(rng), float(rng.choice([0.0, 0.3]))
        run = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=coin, drop_out_prob=lost)
        fleet = [coin * (1.0 - lost)] * clients
    pairs = []
    for meant in range(len(fleet) if len(set(fleet)) > 1 else 1):
        pairs += exact_rounds.rounds(channel, [*fleet[:meant], *fleet[meant + 1 :], fleet[meant]])
    return run, channel, REPLACE, pairs


def windows(rng):
    """Fixed and sliding windows, with dummies or empty slots that are seen, by both neighboring relations."""
    records, messages = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    channel, clients = matrix(rng, records, messages), int(rng.integers(1, 4))
    relation = REPLACE if rng.integers(2) else ADD_OR_REMOVE
    if rng.integers(3):
        slots, coin = int(rng.integers(1, 4)), float(rng.choice([1.0, rate_of(rng)]))
        empty = "dummy" if relation == ADD_OR_REMOVE or rng.integers(2) else "visible"
        run = cj.FixedWindow(num_clients=clients, num_slots=slots, check_in_prob=coin, empty_slots=empty)
        shown, places = range(slots), [range(slots)] * clients
        targets = [clients - 1]
    else:
        clients, coin, empty = max(clients, 2), 1.0, "dummy"
        run = cj.SlidingWindow(num_clients=clients, window=int(rng.integers(1, clients + 1)))
        shown = range(run.window - 1, clients)
        places = [range(first, first + run.window) for first in range(clients)]
        targets = range(clients)
    pairs = []
    for dummy, meant in itertools.product(range(records) if empty == "dummy" else [None], targets):
        mine, others = places[meant], [*places[:meant], *places[meant + 1 :]]
        for held in itertools.product(range(records), repeat=clients - 1):
            laws = [
                exact_rounds.window(channel, (*held, x), [coin] * clients, [*others, mine], shown, dummy)
                for x in range(records)
            ]
            if relation == REPLACE:
                pairs += itertools.permutations(laws, 2)
            else:
                gone = exact_rounds.window(channel, held, [coin] * (clients - 1), others, shown, dummy)
                pairs += [pair for law in laws for pair in ((law, gone), (gone, law))]
    return run, channel, relation, pairs


class Truth:
    """The worst of all pairs."""

    def __init__(self, pairs):
        self.pairs = [np.stack(part) for part in zip(*pairs, strict=True)]

    def __call__(self, losses):
        first, second = self.pairs
        return np.array([np.maximum(first - c * second, 0.0).sum(axis=1).max() for c in np.exp(losses)])


def attack(rng, covers, count, closest):
    """One mechanism in one run; `count` and `closest` are added to. Fails where an end is on the wrong side."""
    run, channel, relation, pairs = covers[int(rng.integers(len(covers)))](rng)
    mechanism, truth = cj.FiniteMechanism(probabilities=channel), Truth(pairs)
    told = f"{run!r}, {channel.tolist()!r}, {relation}"
    top = mechanism.epsilon0
    losses = top * np.sort(np.concatenate([[0.0, 1e-4, 0.999], rng.uniform(0.0, 1.0, 61)]))
    leaks = truth(losses)
    matters = leaks > 1e3 * SLACK
    unit = Unit(run, mechanism, "messages", relation, MASS)
    for bound, made in built_bounds(unit, "best"):
        above = np.maximum(*(np.asarray(side) for side in upper_sides(made, losses)))
        assert (leaks <= above * (1.0 + ORACLE_ROUNDING) + SLACK).all(), (told, bound.word, losses.tolist())
        count["upper"] += losses.size
        closest["upper"] = max(closest["upper"], (leaks / np.maximum(above, SLACK))[matters].max(initial=0.0))
    chosen = unit_bound(run, mechanism, "messages", 1.0, 1e-6, relation=relation)
    for witness in chosen.bound.witnesses:
        for value, slope in witness.lower(losses):
            below = np.asarray(value) - np.expm1(losses) * np.asarray(slope)
            assert (below <= leaks * (1.0 + ORACLE_ROUNDING) + SLACK).all(), (told, witness, losses.tolist())
            count["lower"] += losses.size
            closest["lower"] = max(closest["lower"], (below[matters] / leaks[matters]).max(initial=0.0))
    for loss in (0.3 * top * rng.random(), 0.95 * top * rng.random()):
        delta = float(truth(np.array([loss]))[0])
        if not 1e-9 < delta < 0.9 or delta * 1e-9 < SLACK:
            continue
        found = cj.account(run, mechanism, delta=delta, neighboring_relation=relation)
        above, below = truth(np.array([found.epsilon, found.lower * (1.0 - 1e-9)]))
        assert above <= delta * (1.0 + ORACLE_ROUNDING) + SLACK, (told, delta, found.epsilon, found.method)
        assert found.lower == 0.0 or below >= delta * (1.0 - ORACLE_ROUNDING) - SLACK, (told, delta, found)
        count["account"] += 2


@pytest.mark.thorough
@pytest.mark.parametrize("covers", [[rounds], [windows]], ids=["rounds", "windows"])
def test_no_end_is_on_the_wrong_side_of_a_random_mechanism(covers):
    seed = time.time_ns() % 2**32
    rng, count, closest = np.random.default_rng(seed), collections.Counter(), collections.Counter()
    until = time.process_time() + CPU_SECONDS
    try:
        with devices.float64():
            while time.process_time() < until:
                attack(rng, covers, count, closest)
    except AssertionError as wrong:
        raise AssertionError(f"seed {seed}: {wrong}") from wrong
    assert min(count["upper"], count["lower"]) >= 100, count
    # An attack that comes near nothing would see nothing.
    assert min(closest["upper"], closest["lower"]) > 0.5, (seed, closest)
