"""T2 that counts in how many slots the client would win: against all throws, and what is NOT a bound."""

import math
from itertools import product

import numpy as np
import pytest
from oracles import random_check_ins as brute

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages.cover import UniformSlot
from checkin_jax.accounting.bounds.windows.contention import Contested, slots_won, win_prob

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0


def winning(window: int) -> np.ndarray:
    """Law of the number of slots of one full sliding window in which the client would be drawn, by all throws."""
    law = np.zeros(window + 1)
    # The client's window is 0..m-1; the others begin 1 - m .. m - 1 slots after it.
    starts = [start for start in range(1 - window, window) if start]
    for throws in product(range(window), repeat=len(starts)):
        loads = np.zeros(window)
        for start, throw in zip(starts, throws):
            if 0 <= start + throw < window:
                loads[start + throw] += 1
        one = np.ones(1)
        for load in loads:
            one = np.convolve(one, [1.0 - 1.0 / (load + 1.0), 1.0 / (load + 1.0)])
        law += one / window ** len(starts)
    return law


@pytest.mark.parametrize("window", [2, 3, 4])
def test_the_number_of_slots_won_is_stochastically_below(window):
    law = winning(window)
    assert law @ np.arange(window + 1.0) == pytest.approx(
        window * win_prob(window - 1, 1.0 / window), rel=1e-9
    )
    values, masses = slots_won(window, window - 1, 1.0 / window, MASS)
    assert masses.sum() >= 1.0
    for k in range(window + 1):
        assert masses[values >= k].sum() >= law[k:].sum() - 1e-12


def test_many_slots_are_not_all_won():
    contested = Contested(10**4, 1.0, 0.5, 10**4 - 1, 1e-4)
    many = Clones(contested, 1.0, MASS)
    values, masses = slots_won(10**4, 10**4 - 1, 1e-4, MASS)
    mean = 10**4 * (1.0 - math.exp(-1.0))
    assert mean < values @ masses / masses.sum() < 1.02 * mean
    plain = Clones(UniformSlot(10**4, 1.0, 0.5), 1.0, MASS)
    losses = np.array([0.0, 0.01, 0.03])
    assert (np.asarray(many.upper(losses)) < 0.85 * np.asarray(plain.upper(losses))).all()


def test_the_mean_alone_is_no_bound():
    """Windows of two slots: 1.5 of them are won on average, but both are a quarter of the time or more."""
    p, loss = 4.0, 0.93
    tree = brute.constant_tree(brute.random_channel(np.random.default_rng(0), 3, p, "rotated"), 2)
    used = brute.sliding_window(3, 2)
    one, other = (brute.output_law(used, data, tree) for data in ((2, 0, 2), (2, 1, 2)))
    truth = brute.hockey_stick(one, other, math.exp(loss))
    assert truth > 1e-3
    assert (
        float(np.asarray(Clones(UniformSlot(1, 0.5, 0.5), math.log(p), MASS).upper(np.array([loss])))[0])
        < truth
    )
    right = Clones(Contested(2, 1.0, 0.5, 1, 0.5), math.log(p), MASS)
    assert float(np.asarray(right.upper(np.array([loss])))[0]) >= truth


@pytest.mark.parametrize("kind", ["extremal", "rotated", "atomic"])
def test_sliding_windows_themselves_are_below(kind):
    n, window, p = 5, 3, 4.0
    rng = np.random.default_rng(2)
    used = brute.sliding_window(n, window)
    losses = np.array([0.0, 0.1, 0.3, 0.6, 0.9])
    bound = Clones(Contested(window, 1.0, 0.5, window - 1, 1.0 / window), math.log(p), MASS)
    upper = np.asarray(bound.upper(losses))
    for _ in range(4):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, kind), n - window + 1)
        for one, other in brute.neighbours(2, n, exchangeable=False):
            first, second = (brute.output_law(used, data, tree) for data in (one, other))
            for loss, value in zip(losses, upper):
                assert brute.hockey_stick(first, second, math.exp(loss)) <= value + 1e-12


def test_a_long_sliding_window():
    g = cj.account(cj.SlidingWindow(num_clients=10**5, window=10**4), cj.PureLDP(epsilon0=0.5), delta=1e-6)
    assert g.epsilon < 1.5 * g.lower
