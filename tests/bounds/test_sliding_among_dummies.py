"""R5: sliding windows whose empty slots hide all who share one with the client; and what is NOT a bound."""

import collections
import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from oracles import random_check_ins as brute
from oracles.gaussian_slots import cells
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import sliding_windows
from checkin_jax.accounting.bounds.windows.one_of_slots import OppositeRecords
from checkin_jax.numerics.counts import chernoff, occupancy
from tests import rows

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 1.7])


def rivals(m: int) -> list[int]:
    """Everybody who can be in a slot of client 0, whose window is 0 .. m - 1."""
    return [k for k in range(1 - m, m) if k]


def configurations(m: int):
    """All throws of the client's rivals: for each slot of its window who is in it."""
    for picks in itertools.product(*(range(k, k + m) for k in rivals(m))):
        yield [[k for k, pick in zip(rivals(m), picks) if pick == slot] for slot in range(m)]


def overlap(m: int, group: list[int]) -> list[int]:
    """The slots that are in the windows of the client and of all of the group."""
    return [slot for slot in range(m) if all(k <= slot < k + m for k in group)]


@pytest.mark.parametrize("m", [2, 3, 5, 6])
def test_groups_and_overlaps_are_counted(m):
    sizes, rest = occupancy.overlap_sizes(m, 40.0)
    assert rest == 0.0
    for s in range(1, m):
        counts = np.zeros(m + 1)
        for slot in range(m):
            near = [k for k in range(slot - m + 1, slot + 1) if k]
            for group in itertools.combinations(near, s):
                counts[len(overlap(m, list(group)))] += 1.0
        share = np.cumsum(counts) / counts.sum()
        found = occupancy.overlap_shares(m, s, np.arange(m + 1.0))
        assert (found >= share - 1e-15).all()
        np.testing.assert_allclose(found, share, atol=1e-12)
        assert sizes[s - 1] == pytest.approx(binom.pmf(s, m - 1, 1.0 / m))


def test_few_and_many_are_as_rare_as_they_should_be():
    numbers, exponents = np.array([0.0, 1.0, 7.0, 40.0, 1000.0]), np.array([0.1, 1.0, 4.0, 20.0])
    found = chernoff.fewest(numbers[:, None], 0.37, exponents)
    assert (binom.cdf(found - 1.0, numbers[:, None], 0.37) <= np.exp(-exponents)).all()
    assert found[-1, 0] > 300.0
    found = chernoff.most(numbers[:, None], 0.37, exponents)
    assert (binom.sf(found, numbers[:, None], 0.37) <= np.exp(-exponents)).all()
    assert found[-1, 0] < 440.0


@pytest.mark.parametrize("m", [2, 3, 4])
def test_tails_are_on_their_sides(m):
    """How many slots are empty, what the thresholds add up to, and the empty slots that a group has to hide in."""
    windows = sliding_windows.Windows(m, 1.0, MASS)
    groups = windows.groups
    stretch = dict(zip(groups.overlap, groups.stretch))
    empty, taken, hidden = [], [], {}
    every = list(configurations(m))
    for members in every:
        empty.append(sum(not who for who in members))
        taken.append(sum(stretch[len(overlap(m, who))] for who in members if who) / m)
        for who in members:
            if who:
                shared = overlap(m, who)
                free = 1 + sum(not members[slot] for slot in shared)
                hidden.setdefault((len(shared), len(who)), []).append(free)
    for tail, most, total in zip(windows.tails, windows.empty, windows.taken):
        assert np.mean((np.array(empty) > most) | (np.array(taken) > total + 1e-12)) <= math.exp(-tail)
    for (size, _), found in hidden.items():
        column = int(np.flatnonzero(groups.overlap == size)[0])
        for slots, _, _ in windows.hidden:
            fewer = sum(part[column] for each, _, part in windows.hidden if each <= slots)
            assert np.mean(np.array(found) <= slots) <= fewer + 1e-12


def bound(m: int, mu: float, scale: float, charged=True) -> np.ndarray:
    """R5, thresholds of this scale over c - 1, from all throws one by one.

    charged: the groups' thresholds are taken off the whole.
    """
    every = list(configurations(m))
    displaced, alone = collections.Counter(), collections.Counter()
    for members in every:
        parts = [0.5 * m / len(overlap(m, who)) for who in members if who]
        alone[m - len(parts), charged * scale * sum(parts) / m] += 1.0 / len(every)
        for who in members:
            if who:
                others, size = len(who), len(overlap(m, who))
                free = 1 + sum(not members[slot] for slot in overlap(m, who))
                displaced[free, others, size] += 1.0 / len(every) / (m * (others + 1.0))
    theta = 1.0 - max(part for _, part in alone)
    pairs = {free: OppositeRecords(free, 1.0, mu, MASS) for free, _, _ in displaced}
    above, replaced = np.expm1(LOSSES), np.zeros(LOSSES.size)
    for (free, others, size), weight in displaced.items():
        apart = 0.5 * (others + 1.0) * m / size * scale
        replaced += weight * pairs[free].upper(np.log1p(apart * above))
    records = {e: OppositeRecords(e, e / m / theta, mu, MASS) for e, _ in alone if e and e / m <= theta}
    for (e, _), weight in alone.items():
        if e:
            too_many = e / m + (e / m - theta) * above
            replaced += weight * (theta * records[e].upper(LOSSES) if e in records else too_many)
    return replaced


def used(n: int, m: int) -> brute.Used:
    """Who is used in the slots m .. n of A_sldw; clients by number from 0."""
    choices: dict = {}
    for picks in itertools.product(*(range(j, j + m) for j in range(1, n + 1))):
        choices[picks] = choices.get(picks, 0) + Fraction(1, m**n)
    return brute.one_of_each_slot(choices, range(m, n + 1))


def truth_of(n, m, target, mu, number, others):
    """Divergence at LOSSES of the client's record 0 from its record 1."""
    tree = brute.constant_tree(cells((1.0, -1.0, 0.3), mu, number), n - m + 1)
    first, second = (
        brute.output_law(used(n, m), (*others[:target], record, *others[target + 1 :]), tree)
        for record in (0, 1)
    )
    return np.array([brute.hockey_stick(first, second, math.exp(loss)) for loss in LOSSES])


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("n", "m", "target", "number"), [(3, 2, 1, 12), (4, 2, 0, 8), (5, 3, 2, 6)])
def test_the_algorithm_is_below(n, m, target, number):
    """Clients in the middle and at the ends; the theorem with exact laws, and as it is evaluated."""
    mu = 2.0
    replaced = bound(m, mu, 0.4)
    for others in ((1,) * n, (1, 0) * n, (2, 1) * n):
        assert (truth_of(n, m, target, mu, number, others[:n]) <= replaced + 1e-12).all()


@pytest.mark.thorough
def test_the_algorithm_is_below_what_is_evaluated():
    n, m, mu = 5, 3, 2.0
    replaced = sliding_windows.overlapping(sliding_windows.Windows(m, mu, MASS)).upper(LOSSES)
    for others in ((1,) * n, (1, 0) * n):
        assert (truth_of(n, m, 2, mu, 6, others[:n]) <= replaced + 1e-12).all()


def test_thresholds_are_not_free():
    truth = truth_of(3, 2, 1, 1.0, 12, (1, 1, 1))
    assert (truth <= bound(2, 1.0, 0.8)).all()
    assert (truth > 1.1 * bound(2, 1.0, 3.0, charged=False)).any()


@pytest.mark.thorough
def test_little_noise_in_long_windows():
    run, noisy = cj.SlidingWindow(num_clients=10_000, window=1_000), cj.Gaussian(noise_multiplier=1.0)
    before = ("R1", "R2", "R3")
    old, new = (rows.account(theorems, run, noisy, delta=1e-6) for theorems in (before, (*before, "R5")))
    assert old.lower == pytest.approx(new.lower, rel=1e-3)
    assert new.lower < new.epsilon < 0.45 * old.epsilon


def test_few_slots_much_noise_and_long_sums_are_left_to_others():
    long, noisy = cj.SlidingWindow(num_clients=10_000, window=1_000), cj.Gaussian(noise_multiplier=1.0)
    short = dataclasses.replace(long, num_clients=1_010)
    summed = dataclasses.replace(long, minibatch=2)
    for run, noise, view in ((short, 1.0, "messages"), (long, 1.5, "messages"), (summed, 1.0, "aggregate")):
        unit = Unit(run, dataclasses.replace(noisy, noise_multiplier=noise), view, "replace-one", MASS)
        assert sliding_windows.r5(unit) is None
    assert sliding_windows.r5(Unit(long, noisy, "messages", "replace-one", MASS)) is not None
    assert sliding_windows.r5(Unit(long, noisy, "messages", "add-or-remove-one", MASS)) is None
