"""Chains of cut weights: one large term and many small ones against T*, links against messages, whole runs."""

import math

import numpy as np
import pytest
from oracles import spared as oracle
from oracles.t_star import gaussian_profile, lattice_value

from checkin_jax.accounting.bounds.messages import left_out_chain
from checkin_jax.accounting.bounds.messages.left_out_chain import CutWeights, Terms
from checkin_jax.accounting.bounds.profiles import GaussianProfile

pytestmark = pytest.mark.usefixtures("x64")
MASS = math.log(1e6) + 17.0


def from_profile(mu: float, c: float, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E(tau - k)_+ and E(-tau - k)_+ from T*'s definition, E(T* - t)_+ = D(c + t) or (1 - t) D(c / (1 - t))."""
    profile = gaussian_profile(mu)

    def stop_loss(t: np.ndarray) -> np.ndarray:
        below = 1.0 + np.maximum(-t, 0.0)
        return np.where(t >= 0.0, profile(c + np.maximum(t, 0.0)), below * profile(c / below))

    # tau = T* + c - 1, and (-u)_+ = u_+ - u.
    return stop_loss(k - (c - 1.0)), stop_loss(-k - (c - 1.0)) - k


def transforms(mu: float, c: float, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`from_profile` where nothing cancels: k may be large."""
    delta, rest = GaussianProfile(mu).delta, np.maximum(c - k, 1.0)
    right = np.where(k < c - 1.0, rest * delta(np.log(c / rest)), delta(np.log1p(k)))
    return right, c * delta(np.log1p(k / c))


def law(mu: float, c: float) -> tuple[np.ndarray, np.ndarray]:
    """tau's values and masses, tau = T* + c - 1, on a fine grid."""
    k = np.append(0.0, np.geomspace(1e-6, math.exp(mu * (0.5 * mu + 9.0)), 20_000))
    parts = []
    for sign, side in zip((1.0, -1.0), transforms(mu, c, k)):
        slopes = np.append(np.diff(side) / np.diff(k), 0.0)
        parts.append((sign * k[1:], np.diff(slopes)))
    return np.concatenate([at for at, _ in parts]), np.concatenate([masses for _, masses in parts])


def many(tilt: float, rho: np.ndarray, at: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """E g(tilt min(rho tau, 1)) / rho, where g(u) = e^u - 1 - u."""
    u = tilt * np.minimum(rho[:, None] * at, 1.0)
    return (np.expm1(u) - u) @ masses / rho


CASES = [(0.3, 1.02), (1.3, 1.5), (3.3, 1.05), (3.3, 40.0)]


@pytest.mark.parametrize(("mu", "c"), CASES)
def test_transforms_are_those_of_t_star(mu, c):
    k = np.append(0.0, np.geomspace(1e-5, 50.0, 40))
    made = left_out_chain._transforms(GaussianProfile(mu), np.array([[c]]), k)
    for value, plain, truth in zip(made, transforms(mu, c, k), from_profile(mu, c, k)):
        assert (value[0] >= truth * (1.0 - 1e-9) - 1e-12).all()
        assert np.allclose(value[0], truth, rtol=2e-8, atol=1e-12)
        assert np.allclose(plain, truth, rtol=2e-8, atol=1e-12)
    at, masses = law(mu, c)
    assert math.isclose(masses.sum(), 1.0, rel_tol=1e-3)
    for place in (0.05, 0.7, 9.0):
        up, down = (float(side[0]) for side in transforms(mu, c, np.array([place])))
        assert math.isclose(float(np.maximum(at - place, 0.0) @ masses), up, rel_tol=0.01, abs_tol=1e-9)
        assert math.isclose(float(np.maximum(-at - place, 0.0) @ masses), down, rel_tol=0.01, abs_tol=1e-9)


@pytest.mark.parametrize(("mu", "c"), CASES)
def test_growth_is_just_above_that_of_the_law_for_all_smaller_weights(mu, c):
    made = Terms.of(GaussianProfile(mu), np.array([c]), math.exp(mu * (0.5 * mu + 9.0)))
    at, masses = law(mu, c)
    places = np.arange(20, len(made.places), 9)
    for row, tilt in enumerate(left_out_chain._TILTS):
        value = made.growth[row, 0]
        truth = many(tilt, 1.0 / made.places[places], at, masses)
        largest = np.maximum.accumulate(truth[::-1])[::-1]
        assert (value[places] >= largest * (1.0 - 2e-3)).all()
        # Between places, too, and no more than chords and a place's step cost.
        between = many(tilt, 1.0 / (made.places[places] * 1.05), at, masses)
        assert (value[places] >= between * (1.0 - 2e-3)).all()
        seen = (truth > 1e-8) & (truth >= 0.999 * largest)
        assert np.median((value[places] / truth)[seen]) <= 1.4
        if tilt >= 4.0 and 1.0 < mu < 2.0:
            # Wrong neighbour: the variance alone.
            half = 0.5 * tilt**2 / made.places[places] * float(at**2 @ masses)
            assert (half < truth)[seen].any()


@pytest.mark.parametrize(("mu", "c"), CASES)
def test_one_large_term_is_just_above_the_law_weighed(mu, c):
    """f(u) = u D(y/u) for u > y/B, the weights told by one message; without weights it is too little."""
    made = Terms.of(GaussianProfile(mu), np.array([c]), math.exp(mu * (0.5 * mu + 9.0)))
    at, masses = law(mu, c)
    alone = GaussianProfile(mu).delta

    def told(b: np.ndarray) -> np.ndarray:
        beyond = alone(np.abs(np.log(b)))
        return np.where(b >= 1.0, beyond, 1.0 - b + b * beyond)

    for y in (0.3, 3.0) if mu < 1.0 else (0.3, 3.0, 100.0):
        value = made.one(made.places * told(y / made.places)[None, :])[0]
        u = np.maximum(at, 1e-300)
        f = u * told(np.minimum(y / u, 1e300))
        for place in range(20, len(made.places), 15):
            truth = float(np.where(at > made.places[place], f, 0.0) @ masses)
            assert value[place] >= truth * (1.0 - 5e-3)
            if truth > 1e-9:
                assert value[place] <= 2.5 * truth
        if y > 3.0 and c < 2.0:
            assert float(transforms(mu, c, np.array([y]))[0][0]) < 0.9 * value[0]


@pytest.mark.parametrize(("mu", "others", "c"), [(0.5, 64, 1.05), (1.0, 64, 1.3), (1.5, 256, 2.0)])
def test_equal_weights_are_above_the_sum_of_t_stars(mu, others, c):
    """All weights one: one large term and many small ones; either by itself is too little somewhere."""
    made = Terms.of(GaussianProfile(mu), np.array([c]), math.exp(mu * (0.5 * mu + 9.0)))
    truth = lattice_value(gaussian_profile(mu), others, 1.0, c, 0.02, 2**17)
    share, found = 1e-12, math.inf
    for single in left_out_chain._SINGLE[0]:
        y = (c - 1.0) * others / single
        # B = 1: places up to y.
        place = np.searchsorted(made.places, y, side="right") - 1
        alone = float(transforms(mu, c, np.array([y]))[0][0])
        found = min(found, alone + float(made.many(share, single)[0, place]))
    assert truth * (1.0 - 1e-3) <= found
    assert float(transforms(mu, c, np.array([(c - 1.0) * others]))[0][0]) < truth


@pytest.mark.parametrize(("n", "mu"), [(300, 0.3), (3000, 0.5), (3000, 1.0), (20_000, 1.5)])
def test_links_are_above_bits_of_the_messages(n, mu):
    losses = np.geomspace(0.005, 2.0, 30)
    value = CutWeights(n, GaussianProfile(mu), MASS).upper(losses)
    assert (np.diff(value) <= 0.0).all()
    assert (value <= GaussianProfile(mu).delta(losses) * (1.0 + 1e-12)).all()
    for at_other in (0, n // 2, n - 1):
        for edge in (-0.5, 0.5, 2.0):
            assert (value >= oracle.bits(n, mu, at_other, edge, losses) * (1.0 - 1e-9) - 1e-14).all()


@pytest.mark.parametrize(("n", "mu", "mass"), [(2**42, 16.0, 700.0), (3, 10.0, 20.0), (256, 0.1, 18.0)])
def test_any_setting_gives_a_profile(n, mu, mass):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        value = CutWeights(n, GaussianProfile(mu), mass).upper(np.append(0.0, np.geomspace(1e-6, 300.0, 30)))
    assert np.all(np.isfinite(value))
    assert np.all(np.diff(value) <= 0.0)
    assert value[0] <= 1.0 + 1e-7


def test_a_link_is_its_inequality():
    """One link by hand, one message told: where it pays, the program is near the best of a few (x, y, B, t)."""
    n, mu, c = 20_000, 1.5, 1.5
    bound = CutWeights(n, GaussianProfile(mu), MASS, whole=n)
    inner, (at, masses) = bound.next_link, law(mu, c)
    assert inner is not None
    left, alone = n - inner.num_clients, float(gaussian_profile(mu)(np.array(c)))
    u = np.maximum(at, 1e-300)
    best = alone
    for share in left_out_chain._SHARES[1]:
        for single in left_out_chain._SINGLE[1][1:3]:
            distance = (1.0 - share) * left * (c - 1.0)
            y = distance / single
            f = u * np.asarray(inner.upper(np.log(np.maximum(y / u, 1.0))))
            for cut in np.geomspace(1.5, 100.0, 4):
                weights = cut * np.geomspace(1e-2, 1.0, 8)
                one = float(np.where(at > y / cut, f, 0.0) @ masses)
                told = float(inner.upper(np.array([math.log(cut)]))[0])
                for tilt in left_out_chain._TILTS[4:11:3]:
                    sigma = float(many(tilt, weights / y, at, masses).max()) / y
                    few = math.exp(min(left * sigma - tilt * single - 1.0, 99.0)) * y / (tilt * left)
                    best = min(best, one + few + alone * told / share)
    value = float(bound.upper(np.array([math.log(c)]))[0])
    assert best < 0.5 * alone
    assert 0.4 * best < value < 1.5 * best
