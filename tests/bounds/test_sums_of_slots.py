"""Sums of the messages of successive slots: every bound above the algorithm by enumeration, witnesses below it."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from oracles import sums as oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.largest_message import LARGEST_IN_SLOTS
from checkin_jax.accounting.bounds.messages.subsampling import sometimes
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import gaussian_slots
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    OneOfSlots,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.accounting.bounds.windows.summed_rivals import CompetingSum
from checkin_jax.accounting.bounds.windows.window_witnesses import CompetingGaussian, OppositeGaussian
from checkin_jax.protocols import ADD_OR_REMOVE, REPLACE

pytestmark = pytest.mark.usefixtures("x64")
LOSSES = np.array([0.0, 0.1, 0.5, 1.5, 3.0])
MASS = 31.0


def bounds_of(protocol, noise, relation=REPLACE):
    """Every bound that enters the smallest one."""
    randomizer = cj.Gaussian(noise_multiplier=noise)
    one = unit_bound(protocol, randomizer, "aggregate", 1, 1e-6, bounds="best", relation=relation).bound
    return one.bounds, one.witnesses


@functools.cache
def uppers_of(protocol, noise):
    """Values at LOSSES of every bound that may be the smallest one."""
    randomizer = cj.Gaussian(noise_multiplier=noise)
    one = unit_bound(protocol, randomizer, "aggregate", 1, 1e-6, bounds="best").bound
    return [bound.upper(LOSSES) for bound in getattr(one, "bounds", (one,))]


def below(p, q, uppers):
    """Whether H(p||q) is below the values at all losses."""
    truth = np.array([oracle.hockey_stick(p, q, math.exp(loss)) for loss in LOSSES])
    return (truth <= np.asarray(uppers) * (1 + 1e-9) + 1e-12).all()


FIXED = [(2, 1, 1.0), (2, 2, 1.0), (3, 2, 0.7), (4, 2, 1.0), (3, 3, 0.5), (4, 3, 1.0)]


@pytest.mark.parametrize("noise", [0.6, 2.0])
@pytest.mark.parametrize(("slots", "size", "prob"), FIXED)
@pytest.mark.parametrize("others", [(), (-1.0,), (-1.0, 0.3)])
@pytest.mark.thorough(but=1)
def test_sums_of_a_fixed_window_are_below_every_bound(noise, slots, size, prob, others):
    """A client replaced, added and removed, in both orders; sums that do not divide the window among them."""
    protocol = cj.FixedWindow(
        num_clients=len(others) + 1, num_slots=slots, check_in_prob=prob, minibatch=size
    )
    here, there, without = (
        oracle.fixed((*others, *own), slots, size, prob, noise) for own in ((1.0,), (-1.0,), ())
    )
    bounds, _ = bounds_of(protocol, noise)
    for bound in bounds:
        upper = bound.upper(LOSSES)
        assert below(here, there, upper)
        assert below(there, here, upper)
    bounds, _ = bounds_of(protocol, noise, ADD_OR_REMOVE)
    for bound in bounds:
        forward, backward = (
            bound.upper_sides(LOSSES) if hasattr(bound, "upper_sides") else (bound.upper(LOSSES),) * 2
        )
        assert below(here, without, forward)
        assert below(without, here, backward)


@pytest.mark.parametrize("noise", [0.6, 2.0])
@pytest.mark.parametrize(("window", "size", "n"), [(2, 2, 3), (2, 2, 4), (3, 2, 4), (1, 2, 4)])
@pytest.mark.thorough(but=1)
def test_sums_of_sliding_windows_are_below_every_bound(noise, window, size, n):
    """Windows that overlap sums, for a client at every place."""
    protocol = cj.SlidingWindow(num_clients=n, window=window, minibatch=size)
    replaced, (added, _) = (bounds_of(protocol, noise, each) for each in (REPLACE, ADD_OR_REMOVE))
    uppers = [np.asarray(bound.upper(LOSSES)) for bound in replaced[0]]
    sides = [
        bound.upper_sides(LOSSES) if hasattr(bound, "upper_sides") else (bound.upper(LOSSES),) * 2
        for bound in added
    ]
    for place in range(n):
        for pattern in ((-1.0,), (0.0,), (1.0, -1.0)):
            records = [pattern[i % len(pattern)] for i in range(n)]
            here, there, without = (
                oracle.sliding([*records[:place], own, *records[place + 1 :]], window, size, noise)
                for own in (1.0, -1.0, None)
            )
            for upper in uppers:
                assert below(here, there, upper)
                assert below(there, here, upper)
            for forward, backward in sides:
                assert below(here, without, forward)
                assert below(without, here, backward)


@pytest.mark.parametrize("noise", [0.6, 2.0])
@pytest.mark.parametrize(
    ("slots", "size", "prob"), [(2, 2, 1.0), (3, 2, 0.6), (3, 1, 1.0), (4, 1, 0.7), (2, 1, 1.0)]
)
@pytest.mark.parametrize("others", [(), (-1.0,), (1.0, -1.0), (-1.0, -1.0)])
@pytest.mark.thorough(but=2)
def test_windows_with_visible_empty_slots_are_below_every_bound(noise, slots, size, prob, others):
    """n <= m among them: G2, and R3 but for different birthdays."""
    protocol = cj.FixedWindow(
        num_clients=len(others) + 1,
        num_slots=slots,
        check_in_prob=prob,
        minibatch=size,
        empty_slots="visible",
    )
    here, there = (oracle.fixed((*others, own), slots, size, prob, noise, True) for own in (1.0, -1.0))
    for upper in uppers_of(protocol, noise):
        assert below(here, there, upper)
        assert below(there, here, upper)


@pytest.mark.parametrize("visible", [False, True])
@pytest.mark.parametrize(("slots", "size", "others"), [(2, 2, 1), (3, 2, 2), (4, 2, 1), (2, 1, 1), (3, 1, 2)])
def test_witnesses_of_sums_are_below_the_sums_themselves(slots, size, others, visible):
    noise, losses = 1.0, np.array([0.05, 0.3, 1.0])
    protocol = cj.FixedWindow(
        num_clients=others + 1,
        num_slots=slots,
        minibatch=size,
        empty_slots="visible" if visible else "dummy",
    )
    one = unit_bound(protocol, cj.Gaussian(noise_multiplier=noise), "aggregate", 1, 1e-3).bound
    for witness in one.witnesses:
        # Dummies are at 0, and so are the others where the client's records are opposite.
        base = (
            -1.0
            if visible
            or isinstance(witness, CompetingGaussian | CompetingSum)
            or witness.name == LARGEST_IN_SLOTS
            else 0.0
        )
        second = -1.0 if isinstance(witness, OppositeGaussian) else base
        records = (base,) * others
        p, q = (oracle.fixed((*records, own), slots, size, 1.0, noise, visible) for own in (1.0, second))
        for (apart, far), (a, b) in zip(witness.lower(losses), ((p, q), (q, p))):
            line = np.asarray(apart) - np.expm1(losses) * np.asarray(far)
            truth = np.array([oracle.hockey_stick(a, b, math.exp(loss)) for loss in losses])
            assert (line <= truth * (1 + 1e-2) + 1e-6).all()  # cells lower the truth
    assert one.witnesses


@pytest.mark.parametrize(("window", "size", "n"), [(2, 2, 3), (2, 3, 5), (3, 2, 6)])
def test_witnesses_of_sliding_sums_are_below_the_sums_themselves(window, size, n):
    noise, losses = 1.0, np.array([0.05, 0.3, 1.0])
    protocol = cj.SlidingWindow(num_clients=n, window=window, minibatch=size)
    one = unit_bound(protocol, cj.Gaussian(noise_multiplier=noise), "aggregate", 1, 1e-3).bound
    for witness in one.witnesses:
        # All others are at zero, as dummies are, or opposite; so is the client in the second world, or opposite.
        base = -1.0 if isinstance(witness, CompetingSum) else 0.0
        second = -1.0 if isinstance(witness, OppositeGaussian) else base
        best = [np.zeros(3), np.zeros(3)]
        for place in range(n):
            p, q = (
                oracle.sliding([*[base] * place, own, *[base] * (n - 1 - place)], window, size, noise)
                for own in (1.0, second)
            )
            for side, (a, b) in enumerate(((p, q), (q, p))):
                truth = [oracle.hockey_stick(a, b, math.exp(loss)) for loss in losses]
                best[side] = np.maximum(best[side], truth)
        for (apart, far), truth in zip(witness.lower(losses), best):
            line = np.asarray(apart) - np.expm1(losses) * np.asarray(far)
            assert (line <= truth * (1 + 2e-3) + 1e-9).all()
            assert (line > 0).any()
    summed = {CompetingSum} if window > 2 else set()
    assert {type(witness) for witness in one.witnesses} == {OneOfSlots, OppositeGaussian, *summed}


# What is NOT a bound


def violated(p, q, bound):
    return not below(p, q, bound.upper(LOSSES))


@pytest.mark.thorough
def test_a_short_last_sum_does_not_count_as_a_whole_one():
    """Three slots by twos: the last sum has the noise of one message."""
    noise = 1.0
    p, q = (oracle.fixed((-1.0, -1.0, own), 3, 2, 1.0, noise) for own in (1.0, -1.0))
    whole = gaussian_in_slots(2, 1.0, 2.0 / noise / math.sqrt(2.0), MASS)
    p1, q1 = (oracle.fixed(records, 3, 2, 1.0, noise) for records in ((1.0,), ()))
    wrong = gaussian_in_slots(2, 1.0, 1.0 / noise / math.sqrt(2.0), MASS)
    assert not below(p1, q1, wrong.upper_sides(LOSSES)[0])
    protocol = cj.FixedWindow(num_clients=3, num_slots=3, minibatch=2)
    assert all(below(p, q, bound.upper(LOSSES)) for bound in bounds_of(protocol, noise)[0])
    assert whole.slots == 2


def test_visible_empty_slots_bring_no_noise():
    """Two slots summed, nobody else: one message alone with its own noise, whatever the size of the sum."""
    noise = 1.0
    p, q = (oracle.fixed((own,), 2, 2, 1.0, noise, True) for own in (1.0, -1.0))
    assert violated(p, q, sometimes(1.0, 2.0 / noise / math.sqrt(2.0)))


@pytest.mark.thorough
def test_a_window_that_overlaps_sums_is_in_no_more_of_them_than_it_fills():
    """One slot for sure (window 1), in a sum of two: as many terms as sums would be wrong."""
    noise, window, size = 1.0, 2, 2
    wrong = gaussian_in_slots(3, 1.0, 1.0 / noise / math.sqrt(size), MASS)
    found = []
    for place in range(7):
        records = [None if i == place else 0.0 for i in range(7)]
        q = oracle.sliding(records, window, size, noise)
        p = oracle.sliding([*records[:place], 1.0, *records[place + 1 :]], window, size, noise)
        found.append(below(p, q, wrong.upper_sides(LOSSES)[0]))
        right = gaussian_among_others(1, 1.0, 2.0 / noise / math.sqrt(size), MASS)
        assert below(p, q, right.upper_sides(LOSSES)[0])
    assert not all(found)


def test_ways_of_a_client_among_sums():
    """As many whole sums as its slots fill, what is left by itself; parts that divide both."""

    def unit(run: cj.CheckInProtocol, view: str) -> Unit:
        return Unit(run, cj.Gaussian(noise_multiplier=1.0), view, "replace-one", MASS)

    window = cj.FixedWindow(num_clients=50, num_slots=10, minibatch=4)
    whole, parts = gaussian_slots.hidden_reductions(unit(window, "aggregate"), 2.0)
    assert (whole.number, whole.use_prob, whole.mu, whole.left) == (2, 1.0, 1.0, ((0.2, 2.0 / math.sqrt(2)),))
    assert (parts.number, parts.mu, parts.left) == (5, 2.0 / math.sqrt(2), ())
    assert gaussian_slots.hidden_reductions(unit(window, "messages"), 2.0) == [
        gaussian_slots.Reduction(10, 1.0, 2.0)
    ]
    sliding = cj.SlidingWindow(num_clients=21, window=6, minibatch=4)
    (whole, parts) = gaussian_slots.hidden_reductions(unit(sliding, "aggregate"), 2.0)
    assert (whole.number, whole.left, parts.number) == (1, ((2 / 6, 1.0),), 3)


# The figures


@pytest.mark.thorough
def test_one_released_sum_is_one_gaussian_mechanism():
    """n = m = minibatch = 100, z = .5: [5.749, 23.49] before, for a sum whose epsilon is at most 1.766."""
    window = cj.FixedWindow(num_clients=100, num_slots=100, minibatch=100)
    g = cj.account(window, cj.Gaussian(noise_multiplier=0.5), delta=1e-6, view="aggregate", bounds="best")
    assert 0.5 < g.lower <= g.epsilon <= 1.766
    alone = cj.account(window, cj.Gaussian(noise_multiplier=0.5), delta=1e-6, bounds="best")
    assert alone.lower > 5.7
    assert "successive slots each" in str(g)
    assert "successive slots each" not in str(alone)


@pytest.mark.parametrize("relation", [REPLACE, ADD_OR_REMOVE])
@pytest.mark.parametrize(
    "protocol",
    [cj.FixedWindow(num_clients=500, num_slots=60), cj.SlidingWindow(num_clients=500, window=60)],
    ids=["fixed", "sliding"],
)
@pytest.mark.thorough(but=1)
def test_more_slots_in_a_sum_never_cost_privacy(protocol, relation):
    randomizer = cj.Gaussian(noise_multiplier=2.0)
    found = [
        cj.account(
            dataclasses.replace(protocol, minibatch=size),
            randomizer,
            delta=1e-6,
            view="aggregate",
            bounds="best",
            neighboring_relation=relation,
        )
        for size in (1, 7, 30)
    ]
    assert all(g.lower <= g.epsilon <= found[0].epsilon * (1 + 1e-6) for g in found)
    if relation == REPLACE and isinstance(protocol, cj.FixedWindow):
        # Loads of single slots of a small sliding window are counted more sharply than those of sums.
        assert found[2].epsilon < 0.9 * found[0].epsilon
