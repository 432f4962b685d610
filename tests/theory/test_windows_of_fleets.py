"""T2'h, windows of common slots at rates that differ, against the mechanism; its neighbours, which are false."""

import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import krr, random_check_ins
from oracles import unequal_rates as brute

import checkin_jax as cj

RATES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)


def fleets(rng, trials):
    """(p, target's rate, others' rates, slots, truth at cs, cs): adaptive randomizers, all records of two."""
    for _ in range(trials):
        p = float(rng.choice([1.3, 2.0, 3.0, 7.0, 30.0]))
        number, slots = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        rate, *others = rng.choice(RATES, number + 1).tolist()
        cs = np.unique(np.concatenate([[1.0], p ** rng.uniform(0.0, 1.0, 3)]))
        visible = rng.random() < 0.6

        def channel(p=p, visible=visible):
            rows = np.array(brute.random_vertex(rng, 2, p) if rng.random() < 0.5 else krr.krr_channel(2, p))
            rows = np.vstack([rows, rows[rng.integers(2)]])
            return random_check_ins.flag_empty(rows) if visible else rows

        choices = random_check_ins.fixed_window_choices(number + 1, slots, (*others, rate))
        used = random_check_ins.one_of_each_slot(choices, range(slots))
        tree, top = random_check_ins.random_tree(channel, slots), np.zeros(len(cs))
        for data, other in random_check_ins.neighbours(2, number + 1, exchangeable=False):
            if data[-1] != other[-1]:
                pair = [random_check_ins.output_law(used, held, tree) for held in (data, other)]
                top = np.maximum(top, [random_check_ins.hockey_stick(*pair, c) for c in cs])
        yield p, rate, others, slots, top, cs


@pytest.mark.parametrize("played", [False, True], ids=["one law", "the hexagon's game"])
@pytest.mark.parametrize("trials", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_t2_prime_h_is_above_every_window_and_attained(trials, played):
    """Every theta, also below rates of the others, and theta = 1."""
    closest = 0.0
    for p, rate, others, slots, truth, cs in fleets(np.random.default_rng(11), trials):
        for theta in {0.1, 0.5, 0.9, 1.0, rate, *others}:
            bound = brute.t2_prime_h(others, theta, rate, slots, p, cs, played)
            assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-14).all(), (p, rate, others, slots, theta)
            seen = bound > 1e-9
            closest = max([closest, *(truth[seen] / bound[seen])])
    assert closest > 0.999


FALSE = {
    "T2' at the largest rate": lambda rate, others, *rest: equal(len(others) + 1, max(rate, *others), *rest),
    "T2' at the target's rate": lambda rate, others, *rest: equal(len(others) + 1, rate, *rest),
    "nobody thinned": lambda rate, others, *rest: brute.t2_prime_h(
        [max(others)] * len(others), max(others), rate, *rest
    ),
    "nobody thinned, in the game": lambda rate, others, *rest: brute.t2_prime_h(
        [max(others)] * len(others), max(others), rate, *rest, played=True
    ),
    "the mean of n'": lambda rate, others, *rest: brute.t2_prime_h(
        [0.5] * math.ceil(sum(brute.members(others, 0.5))), 0.5, rate, *rest
    ),
    "the mean of n', in the game": lambda rate, others, *rest: brute.t2_prime_h(
        [0.5] * math.ceil(sum(brute.members(others, 0.5))), 0.5, rate, *rest, played=True
    ),
}


@pytest.mark.parametrize("wrong", FALSE)
def test_its_neighbours_are_false(wrong):
    most = 0.0
    for p, rate, others, slots, truth, cs in fleets(np.random.default_rng(12), 60):
        bound, seen = FALSE[wrong](rate, others, slots, p, cs), truth > 1e-9
        most = max([most, *(truth[seen] / np.maximum(bound[seen], 1e-300))])
    assert most > 1.2


def equal(number, rate, slots, p, cs):
    """T2' of clients at one rate."""
    masses = random_check_ins.occupancy(number, slots, rate)
    return np.array([sum(m * brute.psi(k, number, p, c) for k, m in enumerate(masses) if k) for c in cs])


def test_more_pool_members_never_leak_more():
    """M2 for windows: n' may be replaced by what is stochastically below it."""
    cs = np.array([1.0, 1.2, 1.7, 2.6])
    for theta in (0.2, 0.7, 1.0):
        for rate in (0.05, 0.4, 1.0):
            for slots in (1, 3, 20):
                # All others in the pool for sure.
                found = [brute.t2_prime_h([theta] * n, theta, rate, slots, 3.0, cs) for n in range(1, 7)]
                assert (np.diff(found, axis=0) <= 1e-14).all()


def test_at_one_rate_it_is_t2_prime():
    """A fleet that hardly differs, by either theorem, and by what T2' says of it."""
    n, m = 2000, 700
    nearly = cj.Rates([0.1, 0.0999999], counts=[n - 1, 1])
    told = {"num_clients": n, "num_slots": m, "num_epochs": 30, "empty_slots": "visible"}
    messages = cj.PureLDP(epsilon0=1.0)
    unequal = cj.account(cj.FixedWindow(check_in_prob=nearly, **told), messages, delta=1e-6, bounds="clones")
    common = cj.account(cj.FixedWindow(check_in_prob=0.1, **told), messages, delta=1e-6, bounds="clones")
    assert "clones" in unequal.method
    assert common.epsilon * (1 - 1e-6) <= unequal.epsilon <= 1.015 * common.epsilon
    assert unequal.lower <= unequal.epsilon <= 1.35 * unequal.lower


def test_visible_slots_hide_clients_of_any_rate():
    """As `account` uses it: a slower client loses less, limits alone tell a little more, dummies hide no less."""
    rates = cj.Rates([0.05, 0.4], counts=[1500, 500])
    told = {"num_clients": 2000, "num_slots": 300, "num_epochs": 30}
    messages = cj.PureLDP(epsilon0=1.0)
    seen = cj.FixedWindow(check_in_prob=rates, empty_slots="visible", **told)
    fast = cj.account(seen, messages, delta=1e-6)
    assert 0 < fast.at_rate(0.05).epsilon < 0.2 * fast.epsilon
    assert fast.lower > 0.7 * fast.epsilon
    limits = cj.RateLimits(largest=0.4, expected_check_ins=rates.expected_check_ins - 0.4)
    known = cj.account(
        cj.FixedWindow(check_in_prob=limits, empty_slots="visible", **told), messages, delta=1e-6
    )
    assert fast.epsilon <= known.epsilon < 1.05 * fast.epsilon
    hidden = cj.account(cj.FixedWindow(check_in_prob=rates, **told), messages, delta=1e-6)
    assert hidden.epsilon <= fast.epsilon * (1 + 1e-5)
