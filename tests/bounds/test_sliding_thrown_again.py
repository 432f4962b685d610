"""G9 and R7: sliding windows, those who share the client's slot taken to have thrown again; what is NOT a bound."""

import collections
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from oracles import random_check_ins as brute
from oracles.gaussian_slots import cells, random_tree

import checkin_jax as cj
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import sliding_windows
from checkin_jax.accounting.bounds.windows.mixtures import TwoSteps
from checkin_jax.accounting.bounds.windows.one_of_slots import gaussian_among_others, gaussian_in_slots
from tests import rows

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 1.7])


def rivals(m: int) -> list[int]:
    """Everybody who can be in a slot of client 0, whose window is 0 .. m - 1."""
    return [k for k in range(1 - m, m) if k]


def loads(m: int) -> list[list[int]]:
    """How many of the client's rivals are in each slot of its window, for all their throws."""
    throws = itertools.product(*(range(k, k + m) for k in rivals(m)))
    return [[picks.count(slot) for slot in range(m)] for picks in throws]


@pytest.mark.parametrize("m", [2, 3, 4])
def test_tails_are_on_their_sides(m):
    again, every = sliding_windows.ResampledNeighbours(m, 1.0, MASS), loads(m)
    empty = np.array([sum(not load for load in each) for each in every])
    mean = np.array([sum(min(0.5, 1.0 / (load + 1.0)) for load in each) / m for each in every])
    tails = np.cumsum([mass for mass, _, _ in again._levels])
    for reached, (_, most, least) in zip(tails, again._levels):
        assert np.mean((empty > most) | (mean < least - 1e-12)) <= 1.0 - reached + 1e-9


def used(n: int, m: int, target: int, present: bool) -> brute.Used:
    """Who is used in the slots m .. n of A_sldw, the client that is meant there or not; clients by number from 0."""
    choices: dict = {}
    for picks in itertools.product(*(range(j, j + m) for j in range(1, n + 1))):
        kept = picks if present else (*picks[:target], 0, *picks[target + 1 :])
        choices[kept] = choices.get(kept, 0) + Fraction(1, m**n)
    return brute.one_of_each_slot(choices, range(m, n + 1))


def truths(n, m, target, mu, number, others, tree=None):
    """Divergences at LOSSES: with the client (at record 0) against without; the reverse; against record 1."""
    tree = tree or brute.constant_tree(cells((1.0, -1.0, 0.0), mu, number), n - m + 1)
    views = [
        brute.output_law(used(n, m, target, there), (*others[:target], record, *others[target + 1 :]), tree)
        for there, record in ((True, 0), (False, 0), (True, 1))
    ]
    pairs = ((0, 1), (1, 0), (0, 2))
    return np.array(
        [[brute.hockey_stick(views[a], views[b], math.exp(loss)) for loss in LOSSES] for a, b in pairs]
    )


def exact(m: int, mu: float, displaced: bool = True) -> np.ndarray:
    """G9's right side from all throws one by one, the best factor; who is missed from G3.

    displaced: whoever shares the slot is counted.
    """
    laws = collections.Counter()
    for each in loads(m):
        mean = sum(min(0.5, 1.0 / (load + 1.0)) for load in each) / m
        laws[sum(not load for load in each), mean] += 1.0 / m ** (2 * m - 2)
    one = gaussian_among_others(m - 1, 1.0, mu, MASS)
    pairs = {empty: gaussian_in_slots(empty, 1.0, 0.5 * mu, MASS) for empty, _ in laws if empty}
    best = np.full(LOSSES.shape, np.inf)
    alone, used = (1.0 - 1.0 / m) ** (m - 1), 1.0 - (1.0 - 1.0 / m) ** m
    for factor in np.exp(np.geomspace(1e-3, 5.0, 60)):
        often = ((1.0 - 1.0 / m + factor / m) ** m - (1.0 - 1.0 / m) ** m) / factor
        short = (often - used) / (factor - 1.0) * float(one.side(np.array([math.log(factor)]), True)[0])
        weight = often / alone if displaced else 1.0
        total = np.full(LOSSES.shape, short)
        for (empty, mean), mass in laws.items():
            share = weight * empty / m
            rest = np.expm1(LOSSES) + mean - (share - 0.5 * empty / m)
            value = np.maximum(-rest, 0.0)
            if empty:
                value = value + share * pairs[empty].side(np.log1p(np.maximum(rest, 0.0) / share), False)
            total += mass * value
        best = np.minimum(best, total)
    return best


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(("n", "m", "target", "number"), [(3, 2, 1, 12), (4, 2, 0, 8), (5, 3, 2, 6)])
@pytest.mark.parametrize("mu", [1.2, 2.0, 3.0])
def test_the_algorithm_is_below(n, m, target, number, mu):
    """Clients in the middle and at the ends; the theorem with exact laws, and as it is evaluated."""
    again, forward = sliding_windows.ResampledNeighbours(m, mu, MASS), exact(m, mu)
    bounds = (again.side(LOSSES, False), again.side(LOSSES, True), TwoSteps(again).upper(LOSSES))
    for others in ((1,) * n, (1, 0) * n, (2, 1) * n, (0,) * n):
        truth = truths(n, m, target, mu, number, others[:n])
        assert (truth[0] <= forward + 1e-12).all()
        for found, one in zip(truth, bounds):
            assert (found <= one + 1e-12).all()


@pytest.mark.parametrize(("n", "m", "target", "number"), [(4, 2, 2, 10), (5, 3, 2, 8)])
@pytest.mark.parametrize("mu", [1.2, 3.0])
def test_records_that_turn_are_below(n, m, target, number, mu):
    """All records anew after every message."""
    rng, again, forward = (
        np.random.default_rng(n),
        sliding_windows.ResampledNeighbours(m, mu, MASS),
        exact(m, mu),
    )
    bounds = (again.side(LOSSES, False), again.side(LOSSES, True), TwoSteps(again).upper(LOSSES))
    for _ in range(8):
        tree, others = random_tree(rng, mu, n - m + 1, number), tuple(rng.integers(0, 3, n).tolist())
        truth = truths(n, m, target, mu, number, others, tree)
        assert (truth[0] <= forward + 1e-12).all()
        for found, one in zip(truth, bounds):
            assert (found <= one + 1e-12).all()


def test_whoever_shares_the_slot_counts():
    truth = truths(3, 2, 1, 3.0, 16, (1, 1, 1))[0]
    assert (truth <= exact(2, 3.0)).all()
    assert (truth > 1.3 * exact(2, 3.0, displaced=False)).any()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("noise", "relation", "before", "theorem", "most", "ratio"),
    [
        (1.0, "replace-one", ("R1", "R2", "R3", "R5"), "R7", 0.68, 0.53),
        (1.0, "add-or-remove-one", ("G3", "R1'"), "G9", 0.4, 0.57),
    ],
)
def test_windows_of_a_thousand_slots(noise, relation, before, theorem, most, ratio):
    run, noisy = cj.SlidingWindow(num_clients=10_000, window=1_000), cj.Gaussian(noise_multiplier=noise)
    old, new = (
        rows.account(theorems, run, noisy, delta=1e-6, neighboring_relation=relation)
        for theorems in (before, theorem)
    )
    assert new.lower < new.epsilon < min(most, ratio * old.epsilon)


def test_where_they_apply():
    run, noisy = cj.SlidingWindow(num_clients=400, window=100), cj.Gaussian(noise_multiplier=1.0)
    assert sliding_windows.r7(Unit(run, noisy, "messages", "replace-one", MASS)) is not None
    assert sliding_windows.g9(Unit(run, noisy, "messages", "replace-one", MASS)) is None
    assert sliding_windows.g9(Unit(run, noisy, "messages", "add-or-remove-one", MASS)) is not None
    for other in (
        cj.SlidingWindow(num_clients=400, window=50),
        cj.SlidingWindow(num_clients=400, window=100, num_colluding=1),
        cj.FixedWindow(num_clients=400, num_slots=100),
    ):
        assert sliding_windows.r7(Unit(other, noisy, "messages", "replace-one", MASS)) is None
