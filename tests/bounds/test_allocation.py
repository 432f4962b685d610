"""Random allocation of Gaussian messages: G3 between quadratures, G3', R1 to R3, G4, and what is NOT a bound."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import allocation as oracle
from oracles import gaussian
from scipy import stats
from scipy.special import ndtr

import checkin_jax as cj
from checkin_jax.accounting.bounds import interface
from checkin_jax.accounting.bounds.interface import Minimum
from checkin_jax.accounting.bounds.messages import subsampling
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.windows.common_slots import CommonWindow, few_empty
from checkin_jax.accounting.bounds.windows.mixtures import TwoSteps
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    ButForRareEvent,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.numerics import allocation_losses, step_ratios
from checkin_jax.numerics.counts import occupancy

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.array([0.0, 1e-3, 0.05, 0.3, 1.0, 2.0, 4.0, 7.0])
# Absolute error of the quadratures.
QUADRATURE = 3e-11


def exact(slots, used, mu, losses=LOSSES):
    return np.array([oracle.profiles(slots, used, mu, math.exp(l)) for l in losses]).T


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0])
@pytest.mark.parametrize("used", [0.2, 1.0])
@pytest.mark.parametrize("slots", [1, 2])
def test_few_slots_against_quadrature(slots, used, mu):
    pair = gaussian_in_slots(slots, used, mu, MASS)
    for upper, truth in zip(pair.upper_sides(LOSSES), exact(slots, used, mu)):
        assert (upper >= truth * (1 - ORACLE_ROUNDING) - QUADRATURE).all()
        assert (upper <= truth * 1.03 + 1e-11).all()


@pytest.mark.parametrize(("mu", "used"), [(0.7, 0.4), (2.0, 1.0), (4.0, 1.0)])
@pytest.mark.parametrize("slots", [1, 2])
def test_lines_are_below_the_quadrature_everywhere_and_touch_it(slots, mu, used):
    pair = gaussian_in_slots(slots, used, mu, MASS)
    for (difference, far), truth in zip(pair.lower(LOSSES[1:]), exact(slots, used, mu)):
        line = difference[:, None] - np.expm1(LOSSES)[None, :] * far[:, None]
        assert (line <= truth[None, :] * (1 + ORACLE_ROUNDING) + QUADRATURE).all()
        touching = np.diagonal(line[:, 1:])
        assert (touching >= 0.95 * truth[1:] - 1e-7).all()


@pytest.mark.parametrize(
    ("slots", "mu", "used"), [(10, 0.5, 1.0), (10, 1.0, 0.3), (100, 0.5, 1.0), (1000, 0.5, 0.7)]
)
@pytest.mark.thorough(but=2)
def test_many_slots_against_the_characteristic_function(slots, mu, used):
    sd = used * math.sqrt(math.expm1(mu * mu) / slots)
    losses = sd * np.array([0.2, 0.7, 1.5, 2.5])
    truths = oracle.by_characteristic_function(slots, used, mu, np.exp(losses))
    pair = gaussian_in_slots(slots, used, mu, MASS)
    for upper, (difference, far), truth in zip(pair.upper_sides(losses), pair.lower(losses), truths):
        lower = difference - np.expm1(losses) * far
        assert (upper >= truth - 1e-7 * sd).all()
        assert (upper <= truth * 1.015 + 1e-7 * sd).all()
        assert (lower <= truth + 1e-7 * sd).all()
        assert (lower >= truth * 0.985 - 1e-7 * sd).all()


@pytest.mark.parametrize(
    ("slots", "mu"),
    [(10, 2.0), (10, 0.25), (100, 2.0), (300, 1.0), (10_000, 0.25), (10**6, 0.02)],
)
def test_ends_meet_in_both_directions(slots, mu):
    """Where no oracle reaches: the two ends are computed from different lattice laws."""
    pair = gaussian_in_slots(slots, 1.0, mu, MASS)
    grid = np.geomspace(1e-6, 20.0, 300)
    uppers = pair.upper_sides(grid)
    seen = 0
    for upper, (difference, far) in zip(uppers, pair.lower(grid)):
        lower = difference - np.expm1(grid) * far
        assert (lower <= upper).all()
        matters = (upper < 0.9 * upper[0]) & (upper > max(1e-5 * upper[0], 1e-9))
        # A quarter of delta so far out is about a hundredth of epsilon.
        assert (lower[matters] >= 0.75 * upper[matters]).all()
        seen += int(matters.sum())
    assert seen > 20


@pytest.mark.parametrize(("slots", "mu"), [(17_854_000, 1.92), (737_000_000, 1.88)])
def test_rare_large_terms_of_many_slots(slots, mu):
    """At c = 1 both directions are one number, for which a lattice up to the rarest term would be too coarse."""
    pair = gaussian_in_slots(slots, 0.3, mu, MASS)
    grid = np.array([0.0, 1e-5, 1e-3, 1e-2])
    uppers = pair.upper_sides(grid)
    lowers = [difference - np.expm1(grid) * far for difference, far in pair.lower(grid)]
    assert uppers[1][0] <= 1.01 * uppers[0][0]
    assert all((lower <= upper).all() and lower[0] >= 0.85 * upper[0] for lower, upper in zip(lowers, uppers))
    assert all((np.diff(upper) <= 0.0).all() for upper in uppers[:1])
    assert lowers[0][3] > 0.0


@pytest.mark.parametrize(("slots", "used", "mu"), [(1, 1.0, 2.0), (3, 0.7, 2.0), (1000, 0.2, 1.5)])
def test_a_large_term_is_an_event_of_these_probabilities(slots, used, mu):
    losses = np.array([0.01, 0.3, 1.0, 3.0])
    difference, far = allocation_losses.large_term_lines(step_ratios.Lognormal(mu), slots, used, losses)
    for loss, apart, away in zip(losses, difference, far):
        place = mpmath.log1p(slots / used * mpmath.expm1(loss)) / mu + mu / 2
        q, p = mpmath.ncdf(-place), mpmath.ncdf(mu - place)
        assert apart <= used * (1 - q) ** (slots - 1) * (p - q)
        assert away >= 1 - (1 - q) ** slots
        assert apart >= 0.9 * used * (1 - q) ** (slots - 1) * (p - q) or slots * q > 0.1


def test_upper_is_monotone_in_slots_and_in_use():
    grid = np.geomspace(1e-3, 1.0, 40)
    wide = gaussian_in_slots(400, 1.0, 1.0, MASS).upper(grid)
    assert (gaussian_in_slots(100, 1.0, 1.0, MASS).upper(grid) >= wide * (1 - 1e-2)).all()
    assert (gaussian_in_slots(400, 0.5, 1.0, MASS).upper(grid) <= wide * (1 + 1e-2)).all()


@pytest.mark.slow
def test_more_slots_than_are_followed_are_bounded_by_fewer():
    few = gaussian_in_slots(allocation_losses.MAX_SLOTS, 1.0, 0.5, MASS)
    many = dataclasses.replace(few, slots=10 * allocation_losses.MAX_SLOTS)
    grid = np.geomspace(1e-6, 1e-3, 5)
    assert (many.upper(grid) == few.upper(grid)).all()
    # Lattices have no lower bound there; that of a single large term is below.
    for difference, far in many.lower(grid):
        assert (difference - np.expm1(grid) * far <= few.upper(grid)).all()


def test_lattice_laws_are_on_their_sides_in_convex_order():
    for mu, low, high, spacing in [(0.1, 0.4, 2.0, 0.01), (1.0, 0.0, 40.0, 0.1), (2.0, 0.0, 300.0, 3.0)]:
        upper = step_ratios.law_upper(step_ratios.Lognormal(mu), low, high, spacing)
        lower = step_ratios.law_lower(step_ratios.Lognormal(mu), low, high, spacing)
        assert lower is not None
        t = np.linspace(low, high, 997)
        truth = step_ratios.Lognormal(mu).excess(t) + np.maximum(1.0 - t, 0.0)
        top = float(step_ratios.Lognormal(mu).excess(np.asarray([high]))[0])
        for law, sign in ((upper, 1.0), (lower, -1.0)):
            levels = law.start + law.spacing * np.arange(law.masses.size)
            assert math.isclose(law.masses.sum(), 1.0, rel_tol=1e-12)
            mine = np.maximum(levels[None, :] - t[:, None], 0.0) @ law.masses + law.above
            assert (sign * (mine - truth) >= -law.slack - (top if sign > 0 else 0.0) - 1e-13).all()
            assert np.abs(mine - truth).max() < 0.2 * spacing


# G3: a dummy or another client makes place


@pytest.mark.parametrize("mu", [0.5, 1.5])
@pytest.mark.parametrize("used", [0.3, 1.0])
@pytest.mark.parametrize("halves", [(False,), (True,), (False, False), (False, True), (True, True)])
@pytest.mark.thorough(but=12)
def test_g3_is_above_every_kind_of_slot(mu, used, halves):
    slots = len(halves)
    bound = gaussian_among_others(slots, used, mu, MASS)
    kinds = [(0.5 * used / slots, mu) if half else (used / slots, 0.5 * mu) for half in halves]
    truths = np.array([oracle.mixed(kinds, math.exp(loss)) for loss in LOSSES]).T
    for upper, truth in zip(bound.upper_sides(LOSSES), truths):
        assert (upper >= truth * (1 - ORACLE_ROUNDING) - QUADRATURE).all()


def test_neither_kind_of_slot_alone_is_a_bound():
    """mu = 1/z forgets the displaced, who is further away; half of the cases at 2/z forgets the dummy's own loss."""
    losses, mu = np.array([0.3, 1.0, 2.0, 3.0]), 1.0
    dummies, displaced = gaussian_in_slots(1, 1.0, 0.5 * mu, MASS), gaussian_in_slots(1, 0.5, mu, MASS)
    both = gaussian_among_others(1, 1.0, mu, MASS).upper_sides(losses)
    # Forward, an other at -1 displaced half of the time; backward, a dummy.
    for side, bound, others in ((0, dummies, (-1.0,)), (1, displaced, ())):
        pair = [oracle.window(records, 1, 1.0, 2.0) for records in ((*others, 1.0), others)]
        p, q = pair[:: 1 - 2 * side]
        truth = np.array([oracle.hockey_stick(p, q, math.exp(l)) for l in losses])
        assert (truth > 1.5 * bound.upper_sides(losses)[side]).any()
        assert (truth <= both[side] * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("noise", [0.8, 2.0])
@pytest.mark.parametrize(("slots", "prob"), [(1, 1.0), (2, 0.6)])
@pytest.mark.parametrize("others", [(), (-1.0, -1.0, -1.0), (-1.0, 0.5)])
@pytest.mark.thorough(but=1)
def test_windows_themselves_are_below_every_bound(noise, slots, prob, others):
    """The algorithm with hidden participants, n up to 4: added and removed, and replaced, in both orders."""
    mu, n = 2.0 / noise, len(others) + 1
    losses = np.array([0.0, 0.1, 0.5, 1.5, 3.0])
    without = oracle.window(others, slots, prob, noise)
    present, replaced = (oracle.window((*others, r), slots, prob, noise) for r in (1.0, -1.0))
    g3, crowded = (
        gaussian_among_others(slots, prob, mu, MASS),
        few_empty(CommonWindow(n, slots, prob, mu, MASS)),
    )
    most, rest = occupancy.most(n, slots, prob, MASS)
    bounds = [
        subsampling.sometimes(prob, mu),
        TwoSteps(g3),
        HiddenSlots(slots, prob, GaussianProfile(mu), MASS),
    ]
    if most < n:
        used = most / n
        bounds += [
            subsampling.sometimes(used, mu, rest),
            TwoSteps(gaussian_in_slots(most, used, mu, MASS), rest),
            HiddenSlots(most, used, GaussianProfile(mu), MASS, rest),
        ]
    sides = [np.minimum(*both) for both in zip(g3.upper_sides(losses), crowded.upper_sides(losses))]
    uppers = [np.asarray(each.upper(losses)) for each in bounds]
    for i, loss in enumerate(losses):
        c = math.exp(loss)
        for record in (present, replaced):
            assert oracle.hockey_stick(record, without, c) <= sides[0][i] * (1 + 1e-9) + 1e-12
            assert oracle.hockey_stick(without, record, c) <= sides[1][i] * (1 + 1e-9) + 1e-12
        for upper in uppers:
            assert oracle.hockey_stick(present, replaced, c) <= upper[i] * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("slots", "prob"), [(1, 1.0), (2, 0.7)])
def test_witnesses_are_below_the_windows_themselves(slots, prob):
    """All others, and the dummies, at zero; all others at the other end where no slot is empty."""
    noise, losses = 1.0, np.array([0.05, 0.3, 1.0, 2.0])
    cases = [(0.0, 0.0, 0.0)] if slots == 2 else [(0.0, 0.0, 0.0), (-1.0, -1.0, -1.0)]
    for others in cases:
        n = len(others) + 1
        mean, _ = occupancy.moments(float(n), float(slots), prob)
        pair = gaussian_in_slots(slots, mean / n, 1.0 / noise if others[0] == 0.0 else 2.0 / noise, MASS)
        p, q = (oracle.window(records, slots, prob, noise) for records in ((*others, 1.0), others))
        for (apart, far), (a, b) in zip(pair.lower(losses), ((p, q), (q, p))):
            truth = np.array([oracle.hockey_stick(a, b, math.exp(l)) for l in losses])
            line = apart - np.expm1(losses) * far
            assert (line <= truth * (1 + 1e-3) + 1e-12).all()  # cells lower the truth
            assert (line >= 0.9 * truth - 1e-5).all()


def test_an_event_that_is_not_seen_counts_against_an_witness():
    pair, losses = gaussian_in_slots(2, 0.5, 1.0, MASS), np.array([0.1, 0.5])
    hidden, seen = (ButForRareEvent(pair, 1e-3, public).lower(losses) for public in (False, True))
    for (plain, far), (less, more), (apart, same) in zip(pair.lower(losses), hidden, seen):
        assert np.allclose(less, 0.999 * plain - 1e-3, rtol=1e-12)
        assert np.allclose(more, far + 1e-3, rtol=1e-12)
        assert np.allclose(apart, 0.999 * plain, rtol=1e-12)
        assert np.allclose(same, far, rtol=1e-12)


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
@pytest.mark.thorough(but=1)
def test_rounds_are_composed_in_either_order_coherently(delta):
    """Two windows of one slot, exactly: the larger epsilon of the two orders; one order by itself is exceeded."""
    rounds, used, mu = 2, 0.5, 1.5
    x = np.linspace(-9.0, 9.0 + mu, 701)
    q = np.exp(-0.5 * x * x)
    q /= q.sum()
    p = q * (1.0 - used + used * np.exp(mu * x - 0.5 * mu * mu))
    pp, qq = np.outer(p, p), np.outer(q, q)
    epsilons = []
    for a, b in ((pp, qq), (qq, pp)):
        low, high = 0.0, 20.0
        for _ in range(25):
            middle = 0.5 * (low + high)
            low, high = (
                (middle, high) if oracle.hockey_stick(a, b, math.exp(middle)) > delta else (low, middle)
            )
        epsilons.append(high)
    pair = gaussian_in_slots(1, used, mu, interface.neg_log_tail(rounds, delta))
    found = compose.bracket([(pair, rounds)], delta)
    # The grid's sums are good to about 1e-4.
    assert found.lower <= max(epsilons) * (1 + 1e-4)
    assert max(epsilons) * (1 - 1e-4) <= found.upper <= max(epsilons) * 1.02
    assert min(epsilons) < 0.9 * found.upper
    # The worse direction of each round is above both orders, and looser than need be.
    loose = compose.upper_end([(Minimum((pair,)), rounds)], delta)
    # Each is found on a grid of its own.
    assert loose.upper >= found.upper * (1 - 1e-3)


# G3'


@pytest.mark.parametrize(("clients", "prob"), [(40, 1.0), (3000, 0.5), (2, 1.0), (1, 0.7)])
def test_g3_prime_is_never_above_g3_by_more_than_its_rest(clients, prob):
    sharp = few_empty(CommonWindow(clients, 10, prob, 1.0, MASS))
    plain = gaussian_among_others(10, prob, 1.0, MASS)
    assert (sharp.upper(LOSSES) <= plain.upper(LOSSES) * (1 + 1e-9) + math.exp(-MASS)).all()


def test_g3_prime_gains_where_clients_are_many():
    sharp = few_empty(CommonWindow(10**4, 10, 1.0, 1.0, MASS))
    truth = gaussian_in_slots(10, 10 / 10**4, 1.0, MASS)
    assert (sharp.upper(LOSSES) <= truth.upper(LOSSES) * 1.001 + math.exp(-MASS)).all()
    assert sharp.upper(LOSSES)[4] < 0.01 * gaussian_in_slots(10, 1.0, 1.0, MASS).upper(LOSSES)[4]


def two_slots(n: int, noise: float, others: float) -> tuple[np.ndarray, np.ndarray]:
    """What two slots show in cells, with and without the client (record 1); all others at one record, dummies 0."""
    edges = np.linspace(-1.0 - 7.0 * noise, 1.0 + 7.0 * noise, 400)

    def cells(record: float) -> np.ndarray:
        return np.diff(ndtr((edges - record) / noise), prepend=0.0, append=1.0)

    mine, other, dummy = (cells(record) for record in (1.0, others, 0.0))
    present, absent = np.zeros((2, mine.size, mine.size))
    for load in range(n):
        chance = math.comb(n - 1, load) * 0.5 ** (n - 1)
        first, second = (other if count else dummy for count in (load, n - 1 - load))
        absent += chance * np.multiply.outer(first, second)
        moved = (mine + load * first) / (load + 1), (mine + (n - 1 - load) * second) / (n - load)
        present += 0.5 * chance * (np.multiply.outer(moved[0], second) + np.multiply.outer(first, moved[1]))
    return present, absent


@pytest.mark.parametrize(("noise", "others", "n"), [(0.7, -1.0, 8), (2.0, 0.5, 12)])
def test_g3_prime_is_above_two_slots_of_which_one_may_be_empty(noise, others, n):
    bound = few_empty(CommonWindow(n, 2, 1.0, 2.0 / noise, MASS))
    present, absent = two_slots(n, noise, others)
    losses = np.array([0.0, 0.1, 0.3, 0.6, 1.0, 3.0])
    forward, backward = bound.upper_sides(losses)
    truth = [
        [np.maximum(p - math.exp(loss) * q, 0.0).sum() for loss in losses]
        for p, q in ((present, absent), (absent, present))
    ]
    assert (forward >= np.array(truth[0]) - 1e-12).all()
    assert (backward >= np.array(truth[1]) - 1e-12).all()


def test_empty_slots_may_not_be_forgotten():
    """Where dummies can be told, a client that is missing is missed most in an empty slot."""
    n, noise, loss = 7, 0.25, math.log(1.7)
    present, absent = two_slots(n, noise, -1.0)
    (pair, _), *_ = few_empty(CommonWindow(n, 2, 1.0, 2.0 / noise, MASS)).parts
    truth = np.maximum(absent - 1.7 * present, 0.0).sum()
    assert truth > 1e-4
    assert pair.upper_sides(np.array([loss]))[1][0] < 1e-6


def test_too_few_others_count_wherever_empty_slots_do():
    """Where fewer than N_0 take part every part is needed, not the last alone."""
    bound = few_empty(CommonWindow(400, 20, 0.5, 1.0, 8.0))
    (pair, whole), (_, needed), *_ = bound.parts
    assert whole == 1.0
    least = round(0.5 * 20 / pair.use_prob - 1.0)
    missed = stats.binom.cdf(least - 1, 399, 0.5)
    assert 0.0 < missed <= needed - occupancy.many_empty(399, 20, 0.5, 1)


@pytest.mark.parametrize(("n", "m", "prob"), [(7, 4, 1.0), (5, 3, 0.6), (12, 5, 0.9)])
def test_how_many_slots_may_be_empty(n, m, prob):
    """Against the law of occupied slots, step by step."""
    law = np.zeros(m + 1)
    law[0] = 1.0
    filled = np.arange(m + 1.0)
    for _ in range(n - 1):
        law = law * (1.0 - prob + prob * filled / m) + np.append(0.0, (law * prob * (m - filled) / m)[:-1])
    for least in range(1, m + 1):
        assert occupancy.many_empty(n - 1, m, prob, least) >= law[: m - least + 1].sum() * (1.0 - 1e-12)


def test_the_chance_of_an_empty_slot_is_bounded():
    # Two slots, three others: 2 (1/2)^3.
    assert occupancy.many_empty(3, 2, 1.0, 1) == pytest.approx(0.25)
    assert [occupancy.many_empty(n, m, 1.0, 1) for n, m in ((0, 5), (0, 1), (1, 1))] == [1.0, 1.0, 0.0]


# Replacement


def test_the_worse_direction_of_g3_is_no_bound_under_replacement():
    """Two slots; the record goes from one side of the others' to the other; mu is the largest shift."""
    mu, violated = 1.0, 0.0
    pair = gaussian_in_slots(2, 1.0, mu, MASS)
    bounds = subsampling.sometimes(1.0, mu), TwoSteps(pair), HiddenSlots(2, 1.0, GaussianProfile(mu), MASS)
    losses = np.array([0.2, 1.0, 2.5, 4.0])
    worse = pair.upper(losses)
    uppers = [np.asarray(each.upper(losses)) for each in bounds]
    for base in ((0.0, 0.0), (-0.5, -0.5), (0.5, -0.5), (0.15, -0.3)):
        truth = np.array([oracle.replaced(2, base, 0.5, -0.5, math.exp(l)) for l in losses])
        violated = max(violated, float((truth / worse).max()))
        for upper in uppers:
            assert (truth <= upper * (1 + 1e-9) + 1e-12).all()
    assert violated > 1.5


def test_two_steps_and_t_star_win_for_many_slots():
    losses = np.geomspace(0.05, 3.0, 9)
    one = subsampling.sometimes(1.0, 1.0).upper(losses)
    two = TwoSteps(gaussian_among_others(1000, 1.0, 1.0, MASS)).upper(losses)
    star = np.asarray(HiddenSlots(1000, 1.0, GaussianProfile(1.0), MASS).upper(losses))
    assert (two[2:] < 0.5 * one[2:]).all()
    assert (star <= one * (1 + 1e-6)).all()
    assert (star[2:] < 0.5 * one[2:]).all()
    # R1 at full use is the Gaussian mechanism itself, and so is T* for one slot.
    local = np.array([oracle.averaged_bound(1, 1, 1.0, 1.0, l) for l in losses])
    for single in (one, np.asarray(HiddenSlots(1, 1.0, GaussianProfile(1.0), MASS).upper(losses))):
        assert (single >= local * (1 - ORACLE_ROUNDING)).all()
    assert (one <= local * (1 + 1e-6)).all()


def test_bounds_join_and_shape_is_kept():
    other = subsampling.averaged(1, 1, 1e-3, 1.0, MASS)
    joined = Minimum(
        (subsampling.sometimes(1.0, 0.5), TwoSteps(gaussian_among_others(50, 1.0, 0.5, MASS)), other)
    )
    grid = LOSSES.reshape(2, 4)
    assert joined.name == "subsampling and two-steps and subsampling (noise of the sum)"
    assert np.shape(joined.bounds[1].upper(grid)) == (2, 4)
    assert (np.ravel(joined.upper(LOSSES)) <= np.asarray(other.upper(LOSSES))).all()


# G4


@pytest.mark.parametrize("std", [0.7, 1.5])
@pytest.mark.parametrize("others", [(-1.0,), (1.0,), (-1.0, -1.0), (0.2, -0.8)])
def test_g4_is_above_the_averages_themselves(others, std):
    bound = subsampling.averaged(len(others) + 1, 2, 1.0, 2.0 / std, MASS)
    for loss in (0.0, 0.5, 1.5):
        upper = float(np.asarray(bound.upper(np.array([loss])))[0])
        truths = [oracle.averaged(others, a, -a, 2, std, math.exp(loss)) for a in (1.0, -1.0)]
        assert max(truths) <= upper * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("n", "m", "prob"), [(1, 1, 1.0), (30, 4, 1.0), (5000, 20, 0.3), (5000, 10**6, 1.0)])
def test_g4_is_its_definition(n, m, prob):
    ours = np.asarray(subsampling.averaged(n, m, prob, 1.3, MASS).upper(LOSSES[:5]))
    exact_values = np.array([oracle.averaged_bound(n, m, prob, 1.3, l) for l in LOSSES[:5]])
    assert (ours >= exact_values * (1 - 1e-9) - 1e-15).all()
    assert (ours <= exact_values * 1.05 + 1e-12).all()


@pytest.mark.parametrize(
    ("mu", "slots", "mass"), [(2 / 162477.3, 1, 564.0), (2e-5, 1, 565.0), (1e-4, 3, 700.0), (1e-2, 1, 700.0)]
)
@pytest.mark.parametrize("kind", [step_ratios.Lognormal, step_ratios.SharedLognormal])
@pytest.mark.parametrize("reverse", [False, True])
def test_terms_with_hardly_any_spread_have_a_profile_too(mu, slots, mass, kind, reverse):
    """A scale may begin below the least sum that the truncated terms have (found by readers: negative dimensions)."""
    above = allocation_losses.profile(kind(mu), slots, mass, reverse, True)
    value = allocation_losses.profile_upper(above, kind(mu), 1.0, LOSSES)
    alone = allocation_losses.profile_upper(above, kind(mu), 1.0, np.zeros(1))
    assert np.all((value >= 0) & (value <= alone))
    if slots == 1 and kind is step_ratios.Lognormal:
        # One slot is the Gaussian mechanism by itself.
        single = GaussianProfile(mu).delta(LOSSES)
        assert np.all(value >= single * (1 - 1e-9) - 1e-303)
        assert np.all(value <= single * (1 + 1e-7) + 1e-303)


@pytest.mark.parametrize(
    ("protocol", "used", "noise", "delta"),
    [
        (cj.FixedWindow(num_clients=1, num_slots=1), 1.0, 162477.3, 4.5e-238),
        (cj.SlidingWindow(num_clients=1, window=1), 1.0, 1e5, 1e-238),
        (cj.SlidingWindow(num_clients=10**9, window=10**9), 1e-9, 1e6, 1e-300),
    ],
)
def test_much_noise_and_a_tiny_delta_are_accounted_for(protocol, used, noise, delta):
    found = cj.account(
        protocol, cj.Gaussian(noise_multiplier=noise), delta=delta, neighboring_relation="add-or-remove-one"
    )
    assert 0 <= found.lower <= found.epsilon < 1
    # The client's message replaces a dummy: half the shift of a replacement, in one slot.
    stretched = math.log1p(math.expm1(found.epsilon) / used)
    assert used * gaussian.delta_g(1 / noise, stretched) <= delta
