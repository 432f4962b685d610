"""Bounds on both profiles of a pair that are lowered by each other: never below any pair's, and then a law's."""

from fractions import Fraction

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.numerics import convex
from tests import rows

pytestmark = pytest.mark.usefixtures("x64")
LOSSES = np.append(0.0, np.geomspace(1e-4, 9.0, 60))


def pair(rng):
    """Both profiles of two laws on a few outcomes, some of them on both sides of 1e-9."""
    size = int(rng.integers(2, 40))
    p, q = (rng.dirichlet(np.full(size, 10 ** rng.uniform(-1, 1.5))) for _ in range(2))
    share = 10 ** rng.uniform(-6, 0)
    p = (1 - share) * q + share * p
    c = np.exp(LOSSES)[:, None]
    return np.maximum(p - c * q, 0.0).sum(1), np.maximum(q - c * p, 0.0).sum(1)


def bounds(rng, exact):
    """Above it, by something else at every loss; least where another theorem would say more."""
    raised = exact * np.exp(np.abs(rng.normal(0.0, rng.choice([0.01, 0.5, 3.0]), exact.size)))
    raised = np.where(rng.random(exact.size) < 0.3, exact, raised) + rng.choice([0.0, 1e-12, 1e-4])
    raised[0] *= rng.choice([1.0, 30.0])
    return np.minimum.accumulate(np.minimum(raised, 1.0))


def drawn(count=300):
    rng = np.random.default_rng(5)
    for _ in range(count):
        exact = pair(rng)
        yield exact, tuple(bounds(rng, each) for each in exact)


def test_lowered_bounds_are_bounds_and_make_a_law():
    gained = 0
    for exact, given in drawn():
        found = convex.lowered(LOSSES, *given)
        for truth, mine, before in zip(exact, found, given):
            assert (mine >= truth * (1 - 1e-11) - 1e-16).all()
            assert (mine <= before).all()
        gained += (found[0] < 0.9 * given[0]).any()
        plus, minus = (pld.side_upper(host(LOSSES), host(each)) for each in found)
        atoms = pld.join(host(LOSSES), plus, minus, True)
        # Values are rounded up by 1e-12, over knots 1e-4 apart.
        assert float(np.sum(atoms.masses)) + float(atoms.infinite) <= 1.0 + 1e-7
    assert gained > 100


def test_bounds_that_are_a_pair_s_stay():
    for exact, _ in drawn(50):
        for mine, truth in zip(convex.lowered(LOSSES, *exact), exact):
            np.testing.assert_allclose(mine, truth, rtol=1e-9, atol=1e-15)


def test_the_other_direction_is_no_mirror_image():
    """Below c = 1 the profile is 1 - c + c H_{1/c}(Q||P); without 1 - c, or with P and Q exchanged, it is no bound."""

    def wrong(forward, backward, mirrored):
        above = np.expm1(LOSSES)
        x = np.concatenate([-above[:0:-1] / (1 + above[:0:-1]), above])
        y = np.concatenate([mirrored(above, backward)[:0:-1], forward])
        kept = convex.hull(x, y)
        return np.interp(above, x[kept], y[kept])

    def without(above, other):
        return other / (1 + above)

    below = exchanged = 0
    for (forward, backward), given in drawn(100):
        below += (wrong(*given, without) < 0.9 * forward).any()
        # Each by itself, as if the pair were symmetric.
        alone, _ = convex.lowered(LOSSES, backward, backward)
        exchanged += (np.minimum(alone, given[0]) < 0.9 * forward).any()
    assert below
    assert exchanged


@pytest.mark.parametrize(
    ("clients", "slots", "prob", "epochs", "noise", "before"),
    [(282_406, 112, 0.15494, 24, 0.9504, 0.4513), (637_522, 508, 0.2882, 4, 0.7573, 0.3401)],
)
@pytest.mark.thorough(but=1)
def test_what_several_theorems_say_is_not_more_than_one_of_them_says(
    clients, slots, prob, epochs, noise, before
):
    """Their least falls faster at c = 1 than any pair's: its law had a mass of 1.26, to the power of the epochs."""
    run = cj.FixedWindow(num_clients=clients, num_slots=slots, check_in_prob=prob, num_epochs=epochs)
    noisy = cj.Gaussian(noise_multiplier=noise)
    g, alone = cj.account(run, noisy, delta=1e-6), rows.account("R3", run, noisy, delta=1e-6)
    assert g.lower < g.epsilon <= alone.epsilon * (1 + 1e-3) < before / 1.5


@pytest.mark.parametrize(("at_one", "floor"), [(1e-9, 1e-2), (1e-14, 1e-4), (1e-17, 1e-4), (1e-20, 1.0)])
def test_one_direction_may_be_bounded_far_below_the_other(at_one, floor):
    """The pair is apart only at infinite loss, by at_one: both its profiles are that at every c >= 1."""
    losses = np.array([0.0, 1e-3, 0.5, 1.0])
    truth, loose = np.full(4, at_one), np.full(4, floor)
    for given in ((truth, loose), (loose, truth)):
        for found in convex.lowered(losses, *given):
            assert (found >= at_one * (1.0 - 1e-13)).all()


@pytest.mark.parametrize("small", [1e-9, 1e-13, 1e-20])
def test_a_bound_may_rise_at_its_last_loss(small):
    losses, truth = np.array([0.0, 1e-3, 0.5, 1.0]), np.array([3e-4, 1e-4, small, 0.5 * small])
    for found in convex.lowered(losses, np.append(truth[:3], 1.0), truth):
        assert (found >= truth * (1.0 - 1e-13)).all()


def test_values_that_fall_by_many_orders_are_interpolated_from_above():
    """numpy's sum ends below the chord, and below 0: a profile's logarithm was no number then."""
    rng = np.random.default_rng(5)
    knots = np.cumsum(rng.uniform(0.1, 1.0, 12))
    values = np.append(10.0 ** -np.cumsum(rng.uniform(0.0, 40.0, 11)), 0.0)
    x = np.concatenate([knots, knots[1:] - 1e-15 * knots[1:], rng.uniform(knots[0], knots[-1], 400)])
    found, plain = convex.falling(x, knots, values), np.interp(x, knots, values)
    below = 0
    for at, value, other in zip(x, found, plain):
        j = min(max(int(np.searchsorted(knots, at)) - 1, 0), len(knots) - 2)
        a, b = Fraction(float(knots[j])), Fraction(float(knots[j + 1]))
        part = (b - Fraction(float(at))) / (b - a)
        exact = part * Fraction(float(values[j])) + (1 - part) * Fraction(float(values[j + 1]))
        assert exact <= Fraction(float(value)) <= exact + Fraction(1, 10**14) * Fraction(float(values[j]))
        below += Fraction(float(other)) < exact
    assert below
    rising = convex.falling(np.array([-1.0, 20.0]), knots, values, left=np.inf)
    assert rising[0] == np.inf
    assert rising[1] >= 0.0
    assert convex.falling(np.array([0.5]), np.array([0.0, 1.0]), np.array([np.inf, 1.0]))[0] == np.inf


@pytest.mark.parametrize("noise", [0.0, 1e-13, 1e-3, 1.0])
def test_corners_are_convex_and_below_all_points(noise):
    rng = np.random.default_rng(6)
    for size in (1, 2, 3, 40, 500):
        x = np.cumsum(rng.uniform(0.01, 1.0, size))
        y = np.exp(-0.1 * x) * (1.0 + noise * rng.normal(size=size))
        kept = convex.hull(x, y)
        assert kept[0] == 0
        assert kept[-1] == size - 1
        assert (np.interp(x, x[kept], y[kept]) <= y + 1e-15).all()
        assert (np.diff(np.diff(y[kept]) / np.diff(x[kept])) > -1e-14).all()


def test_the_highest_of_many_lines():
    rng = np.random.default_rng(7)
    at_zero, slopes, x = rng.random(700), rng.random(700), rng.exponential(size=(3, 70))
    found = convex.highest(at_zero, slopes, x)
    assert (found == np.argmax(at_zero - x[..., None] * slopes, axis=-1)).all()
