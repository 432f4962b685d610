"""Grid pairs lie on their side of the pair they stand for, at every c; compositions at every epsilon and tilt."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkin_jax.kernels import host
from checkin_jax.kernels.composition import composed_contour, pld

pytestmark = pytest.mark.usefixtures("x64")
CS = np.exp(np.linspace(-3, 3, 241))


def random_pair(seed):
    """A finite pair (P, Q), on a few atoms or many, symmetric or not."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([2, 5, 40, 400]))
    q = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 10.0])))
    loss = rng.choice([0.05, 0.5, 1.0]) * rng.standard_normal(size)
    p = q * np.exp(loss)
    return p / p.sum(), q


def hockey_stick(p, q, cs):
    return np.maximum(p[:, None] - cs[None, :] * q[:, None], 0).sum(0)


def knots_for(p, q, count, reach):
    top = reach * np.abs(np.log(p / q)).max()
    return np.concatenate([[0.0], top * np.linspace(0.02, 1, count) ** 1.3])


def upper_atoms(p, q, knots):
    plus = pld.side_upper(host(knots), host(hockey_stick(p, q, np.exp(knots))))
    minus = pld.side_upper(host(knots), host(hockey_stick(q, p, np.exp(knots))))
    return pld.join(host(knots), plus, minus, True)


def lower_atoms(p, q, knots, capped=False):
    sides = []
    for a, b in ((p, q), (q, p)):
        middle = np.exp(0.5 * (knots[1:] + knots[:-1]))
        chosen = a[:, None] > middle[None, :] * b[:, None]
        near, far = (chosen * a[:, None]).sum(0), (chosen * b[:, None]).sum(0)
        sides.append(pld.side_lower(host(knots), host(near - far), host(far), capped))
    return pld.join(host(knots), *sides, False)


def profile_of(atoms, cs):
    p, losses = np.asarray(atoms.masses), np.asarray(atoms.losses)
    finite = np.maximum(p[:, None] * (1 - cs[None, :] * np.exp(-losses)[:, None]), 0).sum(0)
    return finite + float(atoms.infinite)


@given(st.integers(0, 10**6), st.sampled_from([8, 60, 300]), st.sampled_from([0.7, 1.0, 1.5]))
def test_grid_pairs_stay_on_their_side_at_every_c(seed, count, reach):
    """c below and above one; knots that end before, at and beyond the largest loss."""
    p, q = random_pair(seed)
    knots = knots_for(p, q, count, reach)
    exact = hockey_stick(p, q, CS)
    assert (profile_of(upper_atoms(p, q, knots), CS) >= exact - 1e-13).all()
    for capped in (False, True):
        assert (profile_of(lower_atoms(p, q, knots, capped), CS) <= exact + 1e-13).all()


def test_few_kinks_beside_knots_keep_their_masses():
    """Without the cap a kink between knots makes mass near loss zero, and all others shrink to make room."""
    shown = np.arange(9)
    q = np.array([math.comb(8, k) for k in shown]) * 0.78**shown / 1.78**8
    p = q * (0.78 + 0.0625 * (1 / 0.78 - 0.78) * 2 * shown)
    p /= p.sum()
    places = np.floor(np.abs(np.log(p / q)) / 1e-4)
    knots = 1e-4 * np.unique(np.concatenate([[0.0, 1.0], places - 1.0, places, places + 1.0]))
    squares = []
    for capped in (False, True):
        atoms = lower_atoms(p, q, knots, capped)
        assert (profile_of(atoms, CS) <= hockey_stick(p, q, CS) + 1e-13).all()
        squares.append(np.asarray(atoms.masses) @ np.asarray(atoms.losses) ** 2)
    exact = p @ np.log(p / q) ** 2
    assert squares[0] <= 0.99 * exact
    assert 0.999 * exact <= squares[1] <= exact


def test_errors_of_the_grid_are_of_second_order():
    rng = np.random.default_rng(0)
    x = np.sort(rng.standard_normal(20_000)) * 0.3
    q = np.full(x.size, 1 / x.size)
    p = q * np.exp(x)
    p /= p.sum()
    gaps = []
    for count in (40, 80):
        knots = np.linspace(0, np.abs(np.log(p / q)).max() * 1.01, count)
        up, low = (profile_of(f(p, q, knots), CS[100:140]) for f in (upper_atoms, lower_atoms))
        gaps.append((up - low).max())
    assert gaps[1] < gaps[0] / 3


def exact_delta(atoms_p, atoms_loss, rounds, epsilon):
    """Composition by repeated convolution of whole-number losses, no FFT."""
    low = atoms_loss.min()
    base = np.zeros(atoms_loss.max() - low + 1)
    np.add.at(base, atoms_loss - low, atoms_p)
    law = np.array([1.0])
    for _ in range(rounds):
        law = np.convolve(law, base)
    return lambda spacing: sum(
        m * -math.expm1(epsilon - (i + rounds * low) * spacing)
        for i, m in enumerate(law)
        if (i + rounds * low) * spacing > epsilon
    )


@pytest.mark.parametrize("rounds", [2, 7, 40])
@pytest.mark.parametrize("spread", [3, 40])
@pytest.mark.parametrize("tilt_factor", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("shift", [-0.45, 0.0, 0.3])
@pytest.mark.thorough(but=36)
def test_composition_is_bounded_whatever_the_tilt_and_the_window(rounds, spread, tilt_factor, shift):
    """Bad tilts and windows that wrap may make the bounds loose, never wrong."""
    spacing, points = 0.02, 1024
    index = np.arange(-spread, spread + 1)
    masses = np.exp(-0.5 * (index / (spread / 2.5)) ** 2 + 0.5 * index * spacing)
    masses /= masses.sum() / (1 - 1e-9)
    atoms = pld.Atoms(host(index[None] * spacing), host(masses[None]), host([1e-9]))
    counts = host([float(rounds)])
    good = pld.chernoff_tilt(atoms, counts, host(math.log(1e-8)))
    tilt = pld.tilt_at(atoms, counts, host(float(good.order) * tilt_factor))
    first = int(float(good.mean) / spacing) - points // 2 + int(shift * points)
    infinite = -math.expm1(rounds * math.log1p(-1e-9))
    for upper in (True, False):
        composed = pld.compose(
            atoms, np.asarray(index[None]), counts, host(spacing), tilt, np.int64(first), points, upper
        )
        epsilon, delta = np.asarray(composed.epsilon), np.asarray(composed.delta)
        for i in range(5, points - 1, 97):
            exact = exact_delta(masses, index, rounds, epsilon[i])(spacing)
            if upper:
                assert delta[i] >= (exact + infinite * (1 - 1e-6)) * (1 - 1e-12)
            else:
                assert delta[i] <= exact * (1 + 1e-12)


@pytest.mark.parametrize("spacing", [0.02, 0.4])
@pytest.mark.parametrize("delta", [3e-2, 1e-3, 2e-5])
def test_ends_between_points_of_the_grid(spacing, delta):
    """The law sits on the grid, so its delta is a line in e^epsilon there: both ends meet it, from their sides."""
    rounds, points = 6, 1024
    index = np.arange(-5, 6)
    masses = np.exp(-0.5 * (index / 2.0) ** 2 + 0.5 * index * spacing)
    masses /= masses.sum()
    atoms = pld.Atoms(host(index[None] * spacing), host(masses[None]), host([0.0]))
    counts = host([float(rounds)])
    tilt = pld.chernoff_tilt(atoms, counts, host(math.log(delta)))
    first = int(float(tilt.mean) / spacing) - points // 2
    ends = {False: composed_law.largest, True: composed_law.smallest}
    low, high = (
        float(
            end(
                pld.compose(atoms, index[None], counts, host(spacing), tilt, first, points, upper),
                host(delta),
            )[0]
        )
        for upper, end in ends.items()
    )
    true = exact_delta(masses, index, rounds, low)
    assert true(spacing) >= delta
    assert high * (1 - 1e-6) <= low <= high
    assert not float(low / spacing).is_integer()
    # A step on there is none left: the next point of the grid would be too much.
    assert exact_delta(masses, index, rounds, math.ceil(low / spacing) * spacing)(spacing) < delta


def test_composition_is_accurate_at_tiny_delta():
    """exp(-600) is far below the FFT's noise floor; the tilt brings it within reach."""
    spacing, points, rounds = 0.01, 4096, 60
    index = np.arange(-40, 41)
    masses = np.exp(-0.5 * (index / 14) ** 2 + 0.5 * index * spacing)
    masses /= masses.sum()
    atoms = pld.Atoms(host(index[None] * spacing), host(masses[None]), host([0.0]))
    counts = host([float(rounds)])
    target = 20.0
    tilt = pld.saddle_tilt(atoms, counts, host(target))
    first = int(target / spacing) - points // 2
    got = [
        pld.compose(
            atoms, np.asarray(index[None]), counts, host(spacing), tilt, np.int64(first), points, upper
        )
        for upper in (True, False)
    ]
    i = points // 2
    exact = exact_delta(masses, index, rounds, float(got[0].epsilon[i]))(spacing)
    assert 0 < exact < 1e-80
    assert float(got[1].delta[i]) <= exact * (1 + 1e-9) <= float(got[0].delta[i]) * (1 + 2e-9)
    assert float(got[0].delta[i]) <= float(got[1].delta[i]) * 1.001


def test_mixed_events_compose_like_their_convolution():
    spacing, points = 0.02, 2048
    index = np.stack([np.arange(-20, 21), np.arange(-20, 21) * 2])
    masses = np.stack(
        [np.exp(-0.5 * (np.arange(-20, 21) / s) ** 2 + 0.4 * row * spacing) for s, row in zip((5, 9), index)]
    )
    masses /= masses.sum(1, keepdims=True)
    atoms = pld.Atoms(host(index * spacing), host(masses), host([0.0, 0.0]))
    counts = host([3.0, 2.0])
    law = np.array([1.0])
    wide = np.zeros(81)
    wide[::2] = masses[1]
    for part in [masses[0]] * 3 + [wide] * 2:
        law = np.convolve(law, part)
    losses = (np.arange(law.size) - (3 * 20 + 2 * 40)) * spacing
    tilt = pld.tilt_at(atoms, counts, host(1.0))
    for upper in (True, False):
        composed = pld.compose(
            atoms, np.asarray(index), counts, host(spacing), tilt, np.int64(-900), points, upper
        )
        for i in range(900, 1100, 20):
            epsilon = float(composed.epsilon[i])
            exact = np.maximum(-law * np.expm1(epsilon - losses), 0)[losses > epsilon].sum()
            assert (float(composed.delta[i]) - exact) * (1 if upper else -1) >= -1e-13
            np.testing.assert_allclose(float(composed.delta[i]), exact, atol=1e-10)
