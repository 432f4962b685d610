"""T2+: slots in which the client has its whole share or half of it; the game, all throws, and what is NOT a bound."""

import math
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import hexagon as oracle
from oracles import random_check_ins as brute

from checkin_jax.accounting.bounds.windows.contention import WeightedSlots
from checkin_jax.kernels import host
from checkin_jax.kernels.messages.weighted_clones import WeightedSteps
from checkin_jax.numerics import convex, staged_clones

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
HALF = F(1, 2)


def evaluated(whole: int, part: int, clients: float, p: float, far: list) -> np.ndarray:
    """T2+ of so many slots of either kind at c - 1 = far, by the kernel."""
    counts = np.ones(10), np.full(10, float(whole)), np.full(10, float(part))
    one = WeightedSteps(*map(host, (np.full(10, clients), *counts, np.eye(10)[0], 0.5)))
    found = staged_clones.weighted(one, staged_clones.AnyMessage(math.log(p)), MASS)
    assert found is not None
    return convex.chords(*found.profile(), np.log1p(np.array([float(x) for x in far])))


def game(order: list, clients: int, p: F, far: list) -> np.ndarray:
    """The same of slots of these weights, the last one first, played out on a lattice."""
    deviation = math.sqrt(sum(float(w) ** 2 for w in order) * float(max(2 / (p + 2), 1 / p)))
    values = [
        oracle.lattice_game(p, 1 + x, -clients * x, len(order), 9.0 * deviation, weights=order)[-1]
        for x in far
    ]
    return np.array(values) / clients


@pytest.mark.parametrize(("p", "step"), [(F(3, 2), F(1, 100)), (F(4), F(1, 20))])
def test_above_the_game_in_any_order_of_the_slots(p, step):
    """Neither kind's steps need be in a row: an adversary adapts to what it has seen in slots of both."""
    far = [step * j for j in (0, 1, 2)]
    bound = evaluated(80, 120, 200.0, float(p), far)
    orders = ([F(1)] * 80 + [HALF] * 120, [HALF] * 120 + [F(1)] * 80, [F(1), HALF, HALF, HALF, F(1)] * 40)
    for order in orders:
        truth = game(order, 200, p, far)
        assert (bound >= truth * (1 - ORACLE_ROUNDING)).all()
        assert bound[0] <= 1.06 * truth[0]


def test_half_the_weight_in_all_slots_is_no_bound():
    """Nor is the mean weight in every slot: here 80 of one and 120 of a half, .7 on average."""
    p, far = F(4), [F(1, 5)]
    truth = game([F(1)] * 80 + [HALF] * 120, 200, p, far)
    assert evaluated(40, 160, 200.0, 4.0, far)[0] < truth[0]
    assert game([F(7, 10)] * 200, 200, p, far)[0] < 0.95 * truth[0]


def throws_of(window: int) -> dict[tuple, F]:
    """Law of the loads of one full sliding window, by all throws of the others."""
    law: dict = {}
    starts = [start for start in range(1 - window, window) if start]
    for throws in product(range(window), repeat=len(starts)):
        loads = [0] * window
        for start, throw in zip(starts, throws):
            if 0 <= start + throw < window:
                loads[start + throw] += 1
        law[tuple(loads)] = law.get(tuple(loads), F(0)) + F(1, window ** len(starts))
    return law


def test_a_rare_level_of_few_large_shares_is_more_than_one_message():
    """Twenty shares of a half; a level of fewer steps than the stages have."""
    p, mass, far = math.e, 0.2, np.array([0.01, 0.1, 0.35])
    levels = np.array([700.0, 2.0]), np.ones(2), np.array([100.0, 20.0]), np.array([100.0, 0.0])
    one = WeightedSteps(*map(host, (*levels, np.array([0.6, mass]), 0.6)))
    found = staged_clones.weighted(one, staged_clones.AnyMessage(1.0), 2.0)
    assert found is not None
    bound = convex.chords(*found.profile(), np.log1p(far))
    alone = (p - 1.0 - far) / (p + 1.0)
    rare = np.array([mass * oracle.game_value(p, 1.0 + x, 20, 18.0 * x) / 2.0 for x in far])
    assert (np.minimum(rare, alone) <= bound).all()
    assert (rare > 1.5 * mass * alone).all()


@pytest.mark.parametrize("window", [2, 3, 4])
def test_numbers_of_slots_of_either_kind_are_above_their_joint_law(window):
    """For every level: how often more slots are whole, or more are won at all, than it allows."""
    seen = WeightedSlots(window, 1.0, staged_clones.AnyMessage(1.0), MASS, window - 1, 1.0 / window).weights
    joint = np.zeros((window + 1, window + 1))
    for loads, mass in throws_of(window).items():
        shared = np.ones(1)
        for load in loads:
            if load:
                shared = np.convolve(shared, [1.0 - 2.0 / (load + 1.0), 2.0 / (load + 1.0)])
        alone = loads.count(0)
        for more, chance in enumerate(shared):
            joint[alone, alone + more] += float(mass) * chance
    own, either = np.indices(joint.shape)
    assert joint.sum() == pytest.approx(1.0)
    reached = np.cumsum(seen.masses)
    for whole, part, mass in zip(seen.whole, seen.part, reached):
        within = joint[(own <= whole) & (either <= whole + part)].sum()
        assert within >= min(mass, 1.0) - 1e-9


def theorem(window: int, p: float, c: float, share) -> float:
    """T2+ with the exact law of the loads, `share` being the client's chance to be drawn at a load."""
    total = 0.0
    for loads, mass in throws_of(window).items():
        for won in product((True, False), repeat=window):
            chance, weights = float(mass), []
            for load, here in zip(loads, won):
                likely = 1.0 if load == 0 else 2.0 * share(load)
                chance *= likely if here else 1.0 - likely
                weights.append((1.0 if load == 0 else 0.5) if here else 0.0)
            if chance:
                total += (
                    chance * oracle.weighted_game(p, c, weights)((sum(weights) - window) * (c - 1.0)) / window
                )
    return total


@pytest.mark.parametrize("kind", ["extremal", "rotated"])
def test_sliding_windows_themselves_are_below(kind):
    n, window, p = 3, 2, 4.0
    rng, used, largest = np.random.default_rng(3), brute.sliding_window(3, 2), 0.0
    cs = np.exp([0.0, 0.2, 0.5, 0.9])
    bounds = np.array([theorem(window, p, c, lambda load: 1.0 / (load + 1.0)) for c in cs])
    for _ in range(8):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, kind), n - window + 1)
        truth = np.array(brute.divergences(used, tree, 2, n, cs, exchangeable=False))
        assert (truth <= bounds + 1e-12).all()
        largest = max(largest, (truth / bounds).max())
    assert largest > 0.8


def test_the_share_of_one_client_too_many_is_no_bound():
    """1/(C + 2), as if the client competed with itself: exceeded by the algorithm."""
    p, used, exceeded = 4.0, brute.sliding_window(3, 2), 0
    rng = np.random.default_rng(3)
    wrong = theorem(2, p, math.exp(0.2), lambda load: 0.5 / (load + 2.0))
    for _ in range(8):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, "extremal"), 2)
        truth = brute.divergences(used, tree, 2, 3, [math.exp(0.2)], exchangeable=False)
        exceeded += (np.array(truth) > wrong).any()
    assert exceeded


def test_numbers_of_slots_beside_fair_dummies_are_above_their_law():
    """With b - a steps d/2, as where d counts more in a slot of its own, they are too few."""
    rng, facts = np.random.default_rng(7), (200, 1.0, staged_clones.AnyMessage(1.0), MASS, 199, 1.0 / 200)
    loads = rng.multinomial(199, np.full(200, 1.0 / 200), 20_000)
    empty = (loads == 0).sum(axis=1)
    shared = ((rng.random(loads.shape) < 2.0 / (loads + 1.0)) & (loads > 0)).sum(axis=1)
    fair, plain = (WeightedSlots(*facts, fair_dummies=each).weights for each in (True, False))
    reached = np.minimum(np.cumsum(fair.masses), 1.0)[:-1]
    for parts, enough in ((fair.part, True), (plain.part, False)):
        within = np.array([((empty <= a) & (shared <= b)).mean() for a, b in zip(fair.whole, parts)])[:-1]
        assert (within >= reached - 0.02).all() == enough
