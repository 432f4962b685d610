"""Laws lie on their side of the pair they stand for, at every c; compositions at every epsilon and order."""

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


def bounds(atoms, counts, order, step, points):
    """Bounds on delta from below and from above at losses 0, step, ..."""
    of = [composed_contour.compose(atoms, counts, host(order), np.asarray(upper)) for upper in (False, True)]
    return [
        np.asarray(composed_contour.on_grid(each, host(step), points, np.asarray(upper)))
        for each, upper in zip(of, (False, True))
    ]


@pytest.mark.parametrize("rounds", [2, 7, 40])
@pytest.mark.parametrize("spread", [3, 40])
@pytest.mark.parametrize("tilt_factor", [0.05, 0.5, 1.0, 3.0])
def test_composition_is_bounded_whatever_the_order(rounds, spread, tilt_factor):
    """Bad orders may make the bounds loose, never wrong."""
    spacing, points = 0.02, 1024
    index = np.arange(-spread, spread + 1)
    masses = np.exp(-0.5 * (index / (spread / 2.5)) ** 2 + 0.5 * index * spacing)
    masses /= masses.sum() / (1 - 1e-9)
    atoms = pld.Atoms(host(index[None] * spacing), host(masses[None]), host([1e-9]))
    counts = host([float(rounds)])
    good = pld.chernoff_tilt(atoms, counts, host(math.log(1e-8)))
    infinite = -math.expm1(rounds * math.log1p(-1e-9))
    below, above = bounds(atoms, counts, float(good.order) * tilt_factor, spacing, points)
    for i in range(5, points - 1, 97):
        exact = exact_delta(masses, index, rounds, i * spacing)(spacing)
        assert above[i] >= (exact + infinite * (1 - 1e-6)) * (1 - 1e-12)
        assert below[i] <= exact * (1 + 1e-12)


@pytest.mark.parametrize("spacing", [0.02, 0.4])
@pytest.mark.parametrize("delta", [3e-2, 1e-3, 2e-5])
def test_ends_are_on_their_sides(spacing, delta):
    rounds, index = 6, np.arange(-5, 6)
    masses = np.exp(-0.5 * (index / 2.0) ** 2 + 0.5 * index * spacing)
    masses /= masses.sum()
    atoms = pld.Atoms(host(index[None] * spacing), host(masses[None]), host([0.0]))
    counts, log_delta = host([float(rounds)]), host(math.log(delta))
    order = composed_contour.order(atoms, counts, log_delta)
    low, high = (
        float(
            composed_contour.end(
                composed_contour.compose(atoms, counts, order, np.asarray(upper)),
                log_delta,
                np.asarray(upper),
            )[0]
        )
        for upper in (False, True)
    )
    assert (
        exact_delta(masses, index, rounds, low)(spacing)
        >= delta
        >= exact_delta(masses, index, rounds, high)(spacing)
    )
    assert high * (1 - 2e-3) <= low <= high


def test_composition_is_accurate_at_tiny_delta():
    """exp(-600) is far below the rounding of a sum; the order brings it within reach."""
    spacing, rounds = 0.01, 60
    index = np.arange(-40, 41)
    masses = np.exp(-0.5 * (index / 14) ** 2 + 0.5 * index * spacing)
    masses /= masses.sum()
    atoms = pld.Atoms(host(index[None] * spacing), host(masses[None]), host([0.0]))
    counts = host([float(rounds)])
    order = pld.saddle_tilt(atoms, counts, host(20.0)).order
    below, above = bounds(atoms, counts, float(order), 20.0 / 1000, 1024)
    exact = exact_delta(masses, index, rounds, 20.0)(spacing)
    assert 0 < exact < 1e-80
    assert below[1000] <= exact * (1 + 1e-9) <= above[1000] * (1 + 2e-9)
    assert above[1000] <= below[1000] * 1.02


def test_mixed_kinds_compose_like_their_convolution():
    spacing = 0.02
    index = np.stack([np.arange(-20, 21), np.arange(-20, 21) * 2])
    masses = np.stack(
        [np.exp(-0.5 * (np.arange(-20, 21) / s) ** 2 + 0.4 * row * spacing) for s, row in zip((5, 9), index)]
    )
    masses /= masses.sum(1, keepdims=True)
    atoms = pld.Atoms(host(index * spacing), host(masses), host([0.0, 0.0]))
    law = np.array([1.0])
    wide = np.zeros(81)
    wide[::2] = masses[1]
    for part in [masses[0]] * 3 + [wide] * 2:
        law = np.convolve(law, part)
    losses = (np.arange(law.size) - (3 * 20 + 2 * 40)) * spacing
    below, above = bounds(atoms, host([3.0, 2.0]), 1.0, 0.5 * spacing, 1024)
    for i in range(0, 400, 20):
        epsilon = 0.5 * i * spacing
        exact = np.maximum(-law * np.expm1(epsilon - losses), 0)[losses > epsilon].sum()
        assert below[i] <= exact + 1e-13
        assert above[i] >= exact - 1e-13
        np.testing.assert_allclose([below[i], above[i]], exact, rtol=1e-3, atol=1e-6)
    # The wrong neighbours: rounds of the other kind.
    for counts in ([2.0, 3.0], [4.0, 2.0]):
        below, above = bounds(atoms, host(counts), 1.0, 0.5 * spacing, 1024)
        assert below[100] > np.maximum(-law * np.expm1(spacing * 50 - losses), 0)[losses > spacing * 50].sum()
