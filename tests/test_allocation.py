"""Random allocation of Gaussian messages: G3 between quadratures, G3', R1 and R2, G4, and what is NOT a bound."""

import dataclasses
import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import allocation as oracle

from checkin_jax.accounting import composer
from checkin_jax.accounting.allocation_rounds import (
    AllocationGaussian,
    AveragedGaussian,
    OccupiedAllocationGaussian,
    ReplacedGaussian,
    replaced_rate,
)
from checkin_jax.kernels import allocation, lognormal

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
    pair = AllocationGaussian(slots, used, mu, MASS)
    for upper, truth in zip(pair.upper_sides(LOSSES), exact(slots, used, mu)):
        assert (upper >= truth * (1 - ORACLE_ROUNDING) - QUADRATURE).all()
        assert (upper <= truth * 1.03 + 1e-11).all()


@pytest.mark.parametrize(("mu", "used"), [(0.7, 0.4), (2.0, 1.0), (4.0, 1.0)])
@pytest.mark.parametrize("slots", [1, 2])
def test_lines_are_below_the_quadrature_everywhere_and_touch_it(slots, mu, used):
    pair = AllocationGaussian(slots, used, mu, MASS)
    for (difference, far), truth in zip(pair.lower(LOSSES[1:]), exact(slots, used, mu)):
        line = difference[:, None] - np.expm1(LOSSES)[None, :] * far[:, None]
        assert (line <= truth[None, :] * (1 + ORACLE_ROUNDING) + QUADRATURE).all()
        touching = np.diagonal(line[:, 1:])
        assert (touching >= 0.95 * truth[1:] - 1e-7).all()


@pytest.mark.parametrize(
    ("slots", "mu", "used"), [(10, 0.5, 1.0), (10, 1.0, 0.3), (100, 0.5, 1.0), (1000, 0.5, 0.7)]
)
def test_many_slots_against_the_characteristic_function(slots, mu, used):
    sd = used * math.sqrt(math.expm1(mu * mu) / slots)
    losses = sd * np.array([0.2, 0.7, 1.5, 2.5])
    truths = oracle.by_characteristic_function(slots, used, mu, np.exp(losses))
    pair = AllocationGaussian(slots, used, mu, MASS)
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
    pair = AllocationGaussian(slots, 1.0, mu, MASS)
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


def test_upper_is_monotone_in_slots_and_in_use():
    grid = np.geomspace(1e-3, 1.0, 40)
    wide = AllocationGaussian(400, 1.0, 1.0, MASS).upper(grid)
    assert (AllocationGaussian(100, 1.0, 1.0, MASS).upper(grid) >= wide * (1 - 1e-2)).all()
    assert (AllocationGaussian(400, 0.5, 1.0, MASS).upper(grid) <= wide * (1 + 1e-2)).all()


@pytest.mark.slow
def test_more_slots_than_are_followed_are_bounded_by_fewer():
    few = AllocationGaussian(allocation.MAX_SLOTS, 1.0, 0.5, MASS)
    many = dataclasses.replace(few, slots=10 * allocation.MAX_SLOTS)
    grid = np.geomspace(1e-6, 1e-3, 5)
    assert (many.upper(grid) == few.upper(grid)).all()
    assert not np.asarray(many.lower(grid)).any()


@pytest.mark.parametrize(("slots", "mu"), [(10, 2.0), (100, 1.0), (1000, 0.5)])
def test_bracket_of_one_window_is_tight(slots, mu):
    found = composer.bracket(
        [(AllocationGaussian(slots, 1.0, mu, composer.log_inverse_mass(1, 1e-6)), 1)], 1e-6
    )
    assert 0 < found.lower <= found.upper <= 1.02 * found.lower


def test_lattice_laws_are_on_their_sides_in_convex_order():
    for mu, low, high, spacing in [(0.1, 0.4, 2.0, 0.01), (1.0, 0.0, 40.0, 0.1), (2.0, 0.0, 300.0, 3.0)]:
        upper = lognormal.law_upper(mu, low, high, spacing)
        lower = lognormal.law_lower(mu, low, high, spacing)
        assert lower is not None
        t = np.linspace(low, high, 997)
        truth = lognormal.time_value(mu, t) + np.maximum(1.0 - t, 0.0)
        top = float(lognormal.time_value(mu, np.asarray([high]))[0])
        for law, sign in ((upper, 1.0), (lower, -1.0)):
            levels = law.start + law.spacing * np.arange(law.masses.size)
            assert math.isclose(law.masses.sum(), 1.0, rel_tol=1e-12)
            mine = np.maximum(levels[None, :] - t[:, None], 0.0) @ law.masses + law.above
            assert (sign * (mine - truth) >= -law.slack - (top if sign > 0 else 0.0) - 1e-13).all()
            assert np.abs(mine - truth).max() < 0.2 * spacing


# G3'


@pytest.mark.parametrize(("clients", "prob"), [(40, 1.0), (3000, 0.5), (2, 1.0), (1, 0.7)])
def test_g3_prime_is_never_above_g3_by_more_than_its_rest(clients, prob):
    sharp = OccupiedAllocationGaussian(clients, 10, prob, 1.0, MASS)
    plain = AllocationGaussian(10, prob, 1.0, MASS)
    assert (sharp.upper(LOSSES) <= plain.upper(LOSSES) * (1 + 1e-9) + math.exp(-MASS)).all()


def test_g3_prime_gains_where_clients_are_many():
    sharp = OccupiedAllocationGaussian(10**4, 10, 1.0, 1.0, MASS)
    truth = AllocationGaussian(10, 10 / 10**4, 1.0, MASS)
    assert (sharp.upper(LOSSES) <= truth.upper(LOSSES) * 1.001 + math.exp(-MASS)).all()
    assert sharp.upper(LOSSES)[4] < 0.01 * AllocationGaussian(10, 1.0, 1.0, MASS).upper(LOSSES)[4]


# Replacement


def test_the_worse_direction_of_g3_is_no_bound_under_replacement():
    """Two slots; the record goes from one side of the others' to the other; mu is the largest shift."""
    mu, violated = 1.0, 0.0
    pair = AllocationGaussian(2, 1.0, mu, MASS)
    bound = ReplacedGaussian(2, 1.0, True, mu, MASS)
    losses = np.array([0.2, 1.0, 2.5, 4.0])
    worse, valid = pair.upper(losses), bound.upper(losses)
    for base in ((0.0, 0.0), (-0.5, -0.5), (0.5, -0.5), (0.15, -0.3)):
        truth = np.array([oracle.replaced(2, base, 0.5, -0.5, math.exp(l)) for l in losses])
        violated = max(violated, float((truth / worse).max()))
        assert (truth <= valid * (1 + 1e-9) + 1e-12).all()
    assert violated > 1.5


def test_two_steps_win_for_many_slots_and_one_step_for_few_clients():
    losses = np.geomspace(0.05, 3.0, 9)
    one = ReplacedGaussian(1000, 1.0, False, 1.0, MASS)
    two = dataclasses.replace(one, two_steps=True)
    assert (two.upper(losses) <= one.upper(losses)).all()
    assert (two.upper(losses[2:]) < 0.5 * one.upper(losses[2:])).all()
    assert (one.name, two.name) == ("R1", "R1 and R2")
    # R1 at one slot and full use is the Gaussian mechanism itself.
    single = ReplacedGaussian(1, 1.0, True, 1.0, MASS).upper(losses)
    local = np.array([oracle.averaged_bound(1, 1, 1.0, 1.0, l) for l in losses])
    assert (single >= local * (1 - ORACLE_ROUNDING)).all()
    assert (single <= local * (1 + 1e-6)).all()


def test_other_bounds_join_and_shape_is_kept():
    other = AveragedGaussian(1, 1, 1e-3, 1.0, MASS)
    joined = ReplacedGaussian(50, 1.0, True, 0.5, MASS, others=(other,))
    grid = LOSSES.reshape(2, 4)
    assert joined.name == "R1 and R2 and G4"
    assert joined.upper(grid).shape == (2, 4)
    assert (joined.upper(grid) <= np.asarray(other.upper(LOSSES)).reshape(2, 4)).all()


def test_which_rate_holds():
    assert replaced_rate(100, 10, 0.5, True, False) == (0.1, True)
    assert replaced_rate(100, 10, 0.05, True, False) == (0.05, True)
    assert replaced_rate(100, 10, 0.05, False, False) == (0.1, True)
    assert replaced_rate(10, 10, 0.5, True, False) == (0.5, True)
    assert replaced_rate(10, 10, 0.5, False, False) == (1.0, False)
    assert replaced_rate(100, 10, 1.0, True, True) == (1.0, True)


# G4


@pytest.mark.parametrize("std", [0.7, 1.5])
@pytest.mark.parametrize("others", [(-1.0,), (1.0,), (-1.0, -1.0), (0.2, -0.8)])
def test_g4_is_above_the_averages_themselves(others, std):
    bound = AveragedGaussian(len(others) + 1, 2, 1.0, 2.0 / std, MASS)
    for loss in (0.0, 0.5, 1.5):
        upper = float(np.asarray(bound.upper(np.array([loss])))[0])
        truths = [oracle.averaged(others, a, -a, 2, std, math.exp(loss)) for a in (1.0, -1.0)]
        assert max(truths) <= upper * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("n", "m", "prob"), [(1, 1, 1.0), (30, 4, 1.0), (5000, 20, 0.3), (5000, 10**6, 1.0)])
def test_g4_is_its_definition(n, m, prob):
    ours = np.asarray(AveragedGaussian(n, m, prob, 1.3, MASS).upper(LOSSES[:5]))
    exact_values = np.array([oracle.averaged_bound(n, m, prob, 1.3, l) for l in LOSSES[:5]])
    assert (ours >= exact_values * (1 - 1e-9) - 1e-15).all()
    assert (ours <= exact_values * 1.05 + 1e-12).all()


@pytest.mark.slow
def test_against_another_implementation():
    """PLD-accounting of the authors of random allocation, where it is installed."""
    api = pytest.importorskip("PLD_accounting.random_allocation_api")
    for sigma, slots in ((1.0, 10), (1.0, 100)):
        theirs = api.gaussian_allocation_epsilon_range(delta=1e-6, sigma=sigma, num_steps=slots)
        mass = composer.log_inverse_mass(1, 1e-6)
        ours = composer.bracket([(AllocationGaussian(slots, 1.0, 1.0 / sigma, mass), 1)], 1e-6)
        assert min(theirs) <= ours.upper
        assert ours.lower <= max(theirs)
