"""Sliding windows of few slots: the law of the loads, and T2 by it, against enumeration of the algorithm."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import krr, random_check_ins

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.contention import SmallWindow, window_loads
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import Slots

pytestmark = pytest.mark.usefixtures("x64")
P = 3.0
CS = np.array([1.0, 1.05, 1.2, 1.5, 2.2])


def enumerated(window):
    """The law of `window_loads` over all throws of the 2 (m - 1) others."""
    law = {}
    starts = [away for away in range(1 - window, window) if away]
    for throws in itertools.product(range(window), repeat=len(starts)):
        loads = [0] * window
        for start, throw in zip(starts, throws):
            if 0 <= start + throw < window:
                loads[start + throw] += 1
        kind = tuple(sum(min(load, 2) == told for load in loads) for told in range(3))
        law[kind] = law.get(kind, 0.0) + 1.0 / window ** len(starts)
    return law


@pytest.mark.parametrize("window", [2, 3, 4])
def test_loads_of_a_window_are_those_of_all_throws(window):
    found, law = dict(window_loads(window)), enumerated(window)
    assert found.keys() == law.keys()
    assert all(law[kind] <= found[kind] <= law[kind] * (1 + 1e-10) for kind in law)


def leaked(window, num_clients, values):
    """The most of k-ary randomized response for a client whose whole window is shown."""
    used = random_check_ins.sliding_window(num_clients, window)
    channel = np.array(krr.krr_channel(values, P), dtype=float)
    top = np.zeros(CS.size)
    for dummy in range(values):
        tree = random_check_ins.constant_tree(np.vstack([channel, channel[dummy]]), num_clients - window + 1)
        for data, other in random_check_ins.neighbours(values, num_clients, exchangeable=False):
            if data[window - 1] != other[window - 1]:
                pair = [
                    np.asarray(random_check_ins.output_law(used, held, tree), dtype=float)
                    for held in (data, other)
                ]
                top = np.maximum(top, [random_check_ins.hockey_stick(*pair, c) for c in CS])
    return top


@pytest.mark.parametrize(("window", "num_clients", "values"), [(2, 3, 2), (2, 3, 3), (2, 4, 2), (3, 5, 2)])
def test_the_bound_is_above_the_algorithm_and_near_it(window, num_clients, values):
    truth = leaked(window, num_clients, values)
    variation = (P - 1) / (P + values - 1)
    for each in {variation, (P - 1) / (P + 1)}:
        found = SmallWindow(window, math.log(P), each).upper(np.log(CS))
        assert (found >= truth * (1 - ORACLE_ROUNDING)).all()
    if values == 2:
        assert found[0] <= 1.27 * truth[0]
        # The neighbour that counts one client too many in every slot.
        crowded = sum(
            mass * SmallWindow(window, math.log(P), variation)._given((0, *kind), 0.0)
            for kind, mass in window_loads(window)
        )
        assert crowded < truth[0]


def test_small_windows_are_sharper_than_by_the_slots_won():
    """Row 135 of the census: 657 where 368 leaks."""
    run = cj.SlidingWindow(num_clients=158_000, window=5, num_epochs=30_500)
    found = cj.account(run, cj.PureLDP(epsilon0=0.41), delta=9.05e-11)
    assert found.epsilon < 495.0


@pytest.mark.parametrize("epsilon0", [1e-8, 1e-6, 1e-3])
def test_small_epsilon0_keeps_its_digits(epsilon0):
    """At c = 1 steps are +-(p - 1) with probability 1/(p + 1) each, else 0."""
    with mpmath.workdps(40):
        gain, exact = mpmath.expm1(mpmath.mpf(epsilon0)), mpmath.mpf(0)
        for counts, mass in window_loads(2):
            weights = [
                mpmath.mpf(1) / (2 * (load + 1)) for load, number in enumerate(counts) for _ in range(number)
            ]
            for signs in itertools.product((-1, 0, 1), repeat=2):
                chance = mpmath.fprod((gain if sign == 0 else 1) / (gain + 2) for sign in signs)
                total = mpmath.fsum(sign * weight for sign, weight in zip(signs, weights))
                exact += mass * chance * max(gain * total, 0)
        found = SmallWindow(2, epsilon0, math.tanh(0.5 * epsilon0)).upper(np.zeros(1))[0]
        assert exact <= found <= exact * (1 + mpmath.mpf(1e-9))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benches(cj.CheckInProtocol):
    """Two slots, in each of which the one other client is seldom: no sliding window."""

    num_clients: int = 2
    num_days: int = 1

    _unit = "num_days"
    title = "two benches"
    description = "on two benches"
    assumptions = ("benches are drawn by lot",)
    slots = Slots(2, 1.0, 0.9, 1, 0.1, 1.0, True, 2, 1, True)


def test_windows_are_those_of_protocols_that_declare_them():
    """Loads of a sliding window would make the bound false: its H_1 is .514 where .637 is true."""
    with float64():
        unit = Unit(Benches(), cj.PureLDP(epsilon0=2.0), "messages", "replace-one", 30.0)
        assert theorems.small_window(unit) is None
    g = cj.account(Benches(), cj.PureLDP(epsilon0=2.0), delta=0.1)
    assert g.lower <= g.epsilon
