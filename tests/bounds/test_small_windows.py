"""Sliding windows of few slots: the law of the loads, and T2 by it, against enumeration of the algorithm."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import krr, random_check_ins, sums

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.profiles import GaussianProfile, MessageProfile
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.small_windows import (
    SmallWindow,
    SmallWindowRemoved,
    loads_of,
    window_loads,
)
from checkin_jax.kernels import binomial
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import Slots

pytestmark = pytest.mark.usefixtures("x64")
P, MASS = 3.0, 40.0
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
        found = SmallWindow(window, of(math.log(P), each), MASS).upper(np.log(CS))
        assert (found >= truth * (1 - ORACLE_ROUNDING)).all()
    if values == 2:
        assert found[0] <= 1.27 * truth[0]
        # The neighbour that counts one client too many in every slot.
        crowded = SmallWindow(window, of(math.log(P), variation), MASS)
        loads = loads_of(window, 31.0)
        crowded.__dict__["loads"] = loads._replace(counts=np.insert(loads.counts, 0, 0, axis=1))
        assert crowded.upper(np.zeros(1))[0] < truth[0]


def of(epsilon0, total_variation=1.0):
    return MessageProfile(cj.PureLDP(epsilon0=epsilon0, total_variation=total_variation))


def two_kinds(window, p, c, law):
    """E(1 - c + (1/m) sum d_j / (1 or 2))_+ by enumeration, d_j = t* - (1 - c), `law` that of the empty slots."""
    steps = np.array([p - 1, -c * (p - 1), -(c - 1) * (p - 1), c - 1])
    often = 1 / (p + 1)
    probs = np.array([often, often, (1 - often * (p + 1)) / p, 0.0])
    probs[-1] = 1 - probs[:-1].sum()
    total = 0.0
    for empty, mass in law.items():
        weights = np.array([1.0] * empty + [0.5] * (window - empty)) / window
        for outcome in itertools.product(range(4), repeat=window):
            chosen = list(outcome)
            total += mass * probs[chosen].prod() * max(1 - c + weights @ steps[chosen], 0.0)
    return total


@pytest.mark.parametrize("window", [2, 3, 4])
@pytest.mark.parametrize("p", [1.2, 3.0])
def test_numbers_of_empty_slots_are_counted_in_convex_order(window, p):
    """Without their law: above the mean over their law, also of functions that are not convex, and near it."""
    law = {}
    for kind, mass in enumerated(window).items():
        law[kind[0]] = law.get(kind[0], 0.0) + mass
    counts = np.arange(window + 1)
    loads = loads_of(window, 31.0, 0)
    assert (loads.counts[:, 0] == counts).all()
    for k in range(1, window):
        # Grows with the number, and is not convex.
        dent = np.minimum(counts - k, 0.0)
        true = sum(mass * dent[n] for n, mass in law.items())
        assert true <= loads.mean(dent) + 1e-12
        # The neighbour that takes the mean over independent slots.
        assert window == 2 or loads.masses @ dent < true
    for c in (1.0, 1.02, 1.1):
        bound = SmallWindow(window, of(math.log(p)), MASS)
        bound.__dict__["loads"] = loads
        exact = two_kinds(window, p, c, law)
        (found,) = bound.upper(np.log([c]))
        assert exact * (1 - 1e-12) <= found
        assert found <= exact * 1.25


@pytest.mark.parametrize(
    "randomizer", [cj.Laplace(epsilon0=1.0), cj.ApproximateLDP(epsilon0=0.5, delta0=1e-9)]
)
def test_sums_on_a_lattice_are_above_the_exact_ones(randomizer):
    """One slot of a kind alone: its stop-loss transform is kept at the lattice points, and is above between them."""
    message = MessageProfile(randomizer)
    bound = SmallWindow(20, message, MASS)
    for loss in (0.0, 0.1, 0.3):
        steps = bound._steps(loss)
        found_sums = bound.sums(steps)
        for kind, step in enumerate(steps):
            counts = np.zeros((1, len(steps)), dtype=int)
            counts[0, kind] = 1
            at = np.linspace(0.0, 0.3, 7)
            exact = step.right(at * (kind + 1)) / (kind + 1)
            found = np.array([found_sums.excess(counts, np.zeros(1), place)[0] for place in at])
            assert (found >= exact * (1 - 1e-9)).all()
            assert found[0] <= 1.02 * exact[0] + 1e-3 * found_sums.deviation


def test_all_numbers_of_empty_slots_count():
    """Of many slots; Gaussian messages in slots with others may tell more than in empty ones."""
    loads = loads_of(256, 31.0)
    empty = (1 - 1 / 256) ** 255
    # The mean of a convex function that falls, over independent slots.
    falls = np.exp(-3.0 * loads.counts[:, 0])
    assert (1 - empty + empty * math.exp(-3.0)) ** 256 <= loads.mean(falls) + loads.rest
    with float64():
        parts = SmallWindow(12, GaussianProfile(1.0), MASS)
        sums = parts.sums(SmallWindow(12, GaussianProfile(1.0), MASS)._steps(1.0))
        shared, alone = sums.excess(np.array([[0, 12], [12, 0]]), np.zeros(2), 12 * math.expm1(1.0))
    assert shared > 2.0 * alone


def test_numbers_that_are_left_out_are_in_the_rest():
    """Of values from 0 to 1, whatever they are: also where only numbers that are left out have any."""
    few, every, number, needed = loads_of(600, 1.0), loads_of(600, 700.0), np.arange(601), 0
    inside = few.counts[:, 0]
    assert every.counts.shape[0] > 1.5 * inside.size
    assert few.rest < 1e-7
    for middle in (0, inside[0] - 1, inside[0] + 1, 220, inside[-1], 600):
        for value in (number < middle, number > middle, number == middle, np.abs(number - middle) < 3):
            whole, found = every.mean(1.0 * value[every.counts[:, 0]]), few.mean(1.0 * value[inside])
            assert whole <= (found + few.rest) * (1.0 + 1e-9) + every.rest
            needed += whole > found * (1.0 + 1e-9) + every.rest
    assert needed
    # Of a law below it in convex order, numbers at an end put together, and where values at the ends are far above.
    law, last = np.exp(binomial.log_pmf(number, 600.0, (1 - 1 / 600) ** 599)), inside[-1]
    law[[last - 1, last, last + 1]] += law[last + 1] * np.array([-1.0, 2.0, -1.0])
    for far in (0.0, 1.0, 1e3):
        value = np.where(inside == last, 1.0, 0.0)
        value[[0, -2]] = far
        assert law[last] <= few.mean(value) + few.rest
    padded = few._replace(negative=np.where(inside == last, 0.0, few.negative), rest=0.0)
    assert padded.mean(1.0 * (inside == last)) < law[last]


@pytest.mark.parametrize("randomizer", [cj.Gaussian(noise_multiplier=3.0), cj.PureLDP(epsilon0=0.7)])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_larger_windows_count_loads_too(randomizer, relation):
    """Above the lower end, and by less than where others' slots are not told apart."""
    run = cj.SlidingWindow(num_clients=10**5, window=390, num_epochs=200)
    found = cj.account(run, randomizer, delta=1e-7, neighboring_relation=relation)
    assert found.lower <= found.epsilon <= 1.35 * found.lower


def test_removal_has_two_sides():
    """Ratios p and 1/p, loads by enumeration; one side in the place of the other is false."""
    window, p = 3, 3.0
    losses = np.array([0.02, 0.2, 0.5])
    exact = np.zeros((2, losses.size))
    for kind, mass in enumerated(window).items():
        weights = np.repeat(1.0 / np.arange(1, 4), kind) / window
        for ratios in itertools.product((p, 1 / p), repeat=window):
            likely = 1 + weights @ (np.array(ratios) - 1)
            chance = mass * math.prod(1 / (p + 1) if ratio > 1 else p / (p + 1) for ratio in ratios)
            exact[0] += chance * np.maximum(likely - np.exp(losses), 0)
            exact[1] += chance * np.maximum(1 - np.exp(losses) * likely, 0)
    sides = np.array(SmallWindowRemoved(window, of(math.log(p)), MASS).upper_sides(losses))
    assert (exact <= sides * (1 + 1e-12)).all()
    assert (sides <= exact * 1.06).all()
    assert (sides[0] < exact[1]).any()


@pytest.mark.parametrize("noise", [0.8, 2.0])
def test_gaussian_messages_take_a_dummys_place_or_a_clients(noise):
    """Everybody else at the farthest record; a message that always took a dummy's place would be too near."""
    window, n, mu = 2, 4, 2.0 / noise
    losses = np.array([0.0, 0.2, 0.6, 1.2])
    message = GaussianProfile(mu)
    replaced, removed = SmallWindow(window, message, MASS), SmallWindowRemoved(window, message, MASS)
    near = SmallWindow(window, GaussianProfile(0.5 * mu), MASS)
    records = [-1.0] * n
    without, mine = ([*records[:1], own, *records[2:]] for own in (None, 1.0))
    here, there, absent = (sums.sliding(each, window, 1, noise) for each in (mine, records, without))

    def leaked(p, q):
        return np.array([sums.hockey_stick(p, q, math.exp(loss)) for loss in losses])

    upper = replaced.upper(losses)
    assert (leaked(here, there) <= upper * (1 + 1e-9)).all()
    assert (leaked(there, here) <= upper * (1 + 1e-9)).all()
    assert (leaked(here, there) > near.upper(losses)).any()
    forward, backward = removed.upper_sides(losses)
    assert (leaked(here, absent) <= forward * (1 + 1e-9)).all()
    assert (leaked(absent, here) <= backward * (1 + 1e-9)).all()


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
        found = SmallWindow(2, of(epsilon0), MASS).upper(np.zeros(1))[0]
        assert exact <= found <= exact * (1 + mpmath.mpf(1e-6))


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
