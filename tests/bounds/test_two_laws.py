"""T**: laws above everything that another client's Gaussian message may say, and the rounds made of them; one-sided."""

import math

import numpy as np
import pytest
from oracles import triples as oracle
from scipy.signal import fftconvolve
from scipy.special import ndtr
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.gaussian_cover import TwoLawMessages, gains
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.sampled_profile import TwoLawUnequal, UnequalHidden
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import hidden_messages, two_point_sums
from checkin_jax.numerics import two_point_laws as laws

pytestmark = pytest.mark.usefixtures("x64")

REACH = 8.0
MUS = (1.41, 0.3)


def random_points(rng: np.random.Generator, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """u and v of three points of a ball of radius mu/2, in three dimensions, some of them on its surface."""
    points = rng.normal(size=(3, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points *= 0.5 * mu * np.where(rng.random((3, 1)) < 0.5, 1.0, rng.random((3, 1)) ** (1.0 / 3.0))
    x, other, y = points
    return x - y, other - y


def feasible(needed: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """The least overshoot of needed over lambda first + (1 - lambda) second, best lambda; negative: covered."""
    shares = np.linspace(0.0, 1.0, 4001)[:, None]
    needed, first, second = (part.ravel() for part in (needed, first, second))
    return float(np.min(np.max(needed - second - shares * (first - second), axis=1)))


def at_c(both: laws.TwoLaws, interval: int, c: float) -> tuple[np.ndarray, np.ndarray]:
    """V_X and V_Y at this c, [2 sides, knots] each."""
    low, high = laws.C_NODES[interval : interval + 2]
    share = (c - low) / (high - low)
    side = [(1.0 - share) * part[0] + share * part[1] for part in (both.right, both.left)]
    return np.stack([side[0][0], side[1][0]]), np.stack([side[0][1], side[1][1]])


def test_transforms_are_above_plain_quadrature_and_near_it():
    rng = np.random.default_rng(0)
    for _ in range(20):
        mu, c = float(rng.choice([0.05, 0.5, 1.41, 3.0])), float(rng.choice([1.0, 1.04, 1.5]))
        u, v = random_points(rng, mu)
        gram = np.array([[u @ u, u @ v, v @ v]])
        if np.linalg.det([[gram[0, 0], gram[0, 1]], [gram[0, 1], gram[0, 2]]]) < 1e-6 * mu**4:
            continue
        knots = laws.knots_of(mu, 6.0)
        found = np.stack(
            [
                np.asarray(side)[0]
                for side in two_point_sums.transforms_upper(host(gram), host(c), host(knots))
            ]
        )
        exact = oracle.transforms(u, v, c, knots)
        assert np.all(found >= exact * (1.0 - 1e-9) - 1e-13)
        assert np.all(found <= exact * 1.01 + 2e-3 * math.sqrt(math.expm1(mu * mu)))


def test_transforms_of_less_are_caught():
    """The same kernel at 0.5% less of the squared distances falls below the truth."""
    u, v = oracle.triangle(1.41, 50.0, 55.0)
    gram = 0.995 * np.array([[u @ u, u @ v, v @ v]])
    knots = laws.knots_of(1.41, 6.0)
    found = np.stack(
        [np.asarray(side)[0] for side in two_point_sums.transforms_upper(host(gram), host(1.0), host(knots))]
    )
    assert np.any(found < oracle.transforms(u, v, 1.0, knots) * (1.0 - 1e-9) - 1e-13)


def test_cells_are_covered():
    rng = np.random.default_rng(1)
    a, b = rng.uniform(0.0, 0.5 * math.pi, (2, 4000))
    half = 10.0 ** rng.uniform(-4.0, -1.2, 4000)
    above = laws.cover(a, b, half)
    for scale in (1.0, -1.0, 0.3):
        for other in (1.0, -1.0, -0.6):
            u, v = a + scale * half, b + other * half
            entry = -np.sin(u) * np.sin(v) * np.cos(u + v)
            first, off, second = (above - np.stack([np.sin(v) ** 2, entry, np.sin(u) ** 2], axis=-1)).T
            assert np.all(first + second > 0)
            assert np.all(first * second - off * off >= -1e-13)


def test_half_a_cover_is_caught():
    """What covers half of each cell does not cover all of it."""
    a, b, half = np.array([0.9]), np.array([0.9]), np.array([0.03])
    first, off, second = (
        laws.cover(a, b, 0.5 * half)
        - np.stack(
            [
                np.sin(b - half) ** 2,
                -np.sin(a + half) * np.sin(b - half) * np.cos(a + b),
                np.sin(a + half) ** 2,
            ],
            axis=-1,
        )
    ).T
    assert first * second - off * off < 0 or first + second < 0


@pytest.mark.parametrize(("mu", "interval"), [(MUS[0], 0), (MUS[1], 0), (MUS[0], 2)])
@pytest.mark.thorough(but=1)
def test_every_triple_is_below_a_mixture(mu, interval):
    both = laws.dominating(mu, REACH, interval)
    rng = np.random.default_rng(2)
    shapes = [
        oracle.triangle(mu, a, b)
        for a, b in ((45, 45), (50, 55), (60, 60), (3, 89.9), (89.5, 40), (10, 88), (88, 88))
    ]
    shapes += [random_points(rng, mu) for _ in range(60)]
    shapes += [oracle.triangle(mu, a, b) for a, b in rng.uniform(1.0, 89.0, (60, 2)) if a + b > 90.0]
    low, high = laws.C_NODES[interval : interval + 2]
    for u, v in shapes:
        c = float(rng.choice([low, high, rng.uniform(low, high)]))
        needed = oracle.transforms(u, v, c, both.knots, 2001)
        assert feasible(needed, *at_c(both, interval, c)) <= 1e-11


def test_the_two_records_alone_are_caught():
    """X and Y themselves do not suffice; nor do the laws for c near 1 at c = 3, or where no ball holds the points."""
    mu, knots = 1.41, laws.knots_of(1.41, REACH)
    u, v = oracle.triangle(mu, 45.0, 45.0)
    plain = laws.of_ends(mu, 1.0, knots)
    needed = oracle.transforms(u, v, 1.0, knots, 2001)
    assert feasible(needed, plain[:, 0], plain[:, 1]) > 0.01
    both = laws.dominating(mu, REACH, 0)
    needed = oracle.transforms(*oracle.triangle(mu, 10.0, 89.9), 3.0, knots, 2001)
    assert feasible(needed, *at_c(both, 0, 1.0)) > 0.01
    # All three sides mu.
    u, v = mu * np.array([1.0, 0.0]), mu * np.array([0.5, math.sqrt(0.75)])
    assert feasible(oracle.transforms(u, v, 1.0, knots, 2001), *at_c(both, 0, 1.0)) > 1e-3


def on_lattice(
    mu: float, c: float, step: float, low: int, high: int, angles: tuple[float, float]
) -> np.ndarray:
    at = step * np.arange(low, high + 1)
    right, left = oracle.transforms(*oracle.triangle(mu, *angles), c, np.abs(at), 1001)
    return oracle.lattice_law(at, np.where(at >= 0, right, left - at), step, low, high)


def test_groups_that_begin_at_a_node_have_the_laws_beyond_it(monkeypatch):
    """e^loss may be rounded to the other side of the node."""
    one = TwoLawMessages(100, 0.5, GaussianProfile(0.3), 40.0)
    knots = laws.knots_of(0.3, one.knot_range)

    def made(mu: float, knot_range: float, interval: int) -> laws.TwoLaws:
        side = np.stack([np.full((2, knots.size), c) for c in laws.C_NODES[interval : interval + 2]])
        return laws.TwoLaws(knots, side, side)

    monkeypatch.setattr(laws, "dominating", made)
    node, beyond = laws.C_NODES[1:3]
    inside = 0.5 * (node + beyond)
    for c in ([np.nextafter(node, 0.0), inside], [inside, np.nextafter(beyond, 2.0)], [node, node]):
        ((right, left),) = one._laws(np.array([c]))
        for side in (right, left):
            np.testing.assert_allclose(
                np.asarray(side), np.broadcast_to(np.reshape(c, (2, 1, 1)), side.shape)
            )


@pytest.mark.parametrize(("n", "rate", "c"), [(40, 0.3, 1.02), (40, 0.3, 1.1), (150, 0.1, 1.03)])
@pytest.mark.thorough
def test_rounds_are_above_sums_of_real_messages(n, rate, c):
    """All ways to place the others among three places, by an FFT; the laws of one place must not be enough."""
    mu, step, low, high = 0.5, 0.02, -150, 400
    loss = np.array([math.log(c)])
    interval = next(i for i in range(3) if c < laws.C_NODES[i + 1])
    both = laws.dominating(mu, REACH, interval)
    first, second = at_c(both, interval, c)
    top = np.maximum(first, second)

    def ours(*three: np.ndarray) -> float:
        sides = (np.stack([[law[side] for law in three]] * 2) for side in (0, 1))
        deviation, far = 0.5 * math.sqrt(n * rate), n * math.expm1(loss[0])
        right, left = (host(side) for side in sides)
        at = host(np.broadcast_to(both.knots, right[0].shape))
        law = hidden_messages.StepTransforms(at, right[0], at, left[0])
        orders = hidden_messages.orders(far, far, deviation)
        paths = hidden_messages.paths_of(host(rate), host(n), host(orders), law)
        arguments = (host(each) for each in ([1.0], [n], [n], rate, deviation, both.knots))
        rest = (host(each) for each in (loss, np.ones((1, 1))))
        return float(two_point_sums.profile_upper(*arguments, paths, *rest, right, left)[0])

    near = [on_lattice(mu, c, step, low, high, angles) for angles in ((0.5, 89.9), (89.9, 0.5), (45.0, 45.0))]
    assert all(law.min() > -1e-9 for law in near)
    sums = {}
    for counts in (
        (n, 0, 0),
        (0, n, 0),
        (0, 0, n),
        (n // 2, n - n // 2, 0),
        (n // 3, n // 3, n - 2 * (n // 3)),
    ):
        sums[counts] = oracle.sum_above(list(zip(near, counts)), low, rate, step, -n * (c - 1.0)) / n
    value = ours(first, second, top)
    assert value >= max(sums.values()) * (1.0 - 1e-9)
    assert value <= max(sums.values()) * 1.4
    # The wrong neighbour: only the place that is not the worst, or half the noise counted.
    worst = max(sums[n, 0, 0], sums[0, n, 0])
    less = laws.dominating(0.8 * mu, REACH, interval)
    small = [
        np.stack([np.interp(both.knots, less.knots, side) for side in law]) for law in at_c(less, interval, c)
    ]
    assert ours(*small, np.maximum(*small)) < worst


@pytest.mark.parametrize(("n", "rate", "mu"), [(300, 0.2, 0.3), (60_000, 0.1, 1.41)])
@pytest.mark.thorough
def test_never_above_t_star(n, rate, mu):
    loss = np.linspace(0.0, 0.2, 50)
    ours = TwoLawMessages(n, rate, GaussianProfile(mu), 39.0).upper(loss)
    star = HiddenMessages(n, rate, GaussianProfile(mu), 39.0).upper(loss)
    assert np.all(ours <= star * (1.0 + 1e-9))
    assert np.any(ours < 0.95 * star)


def bits_seen(rates: tuple[float, float], split: tuple[int, int], mu: float, edge: float, losses: np.ndarray):
    """The larger H_c of both orders of the numbers of messages on either side of `edge`, by the multinomial law.

    rates: of the target, and of each of the others, `split` of whom are at x and at x'.
    """
    above = ndtr(np.array([0.5 * mu, -0.5 * mu]) - edge)

    def many(count: int, rate: float, up: float) -> np.ndarray:
        number = np.arange(count + 1)
        sent = binom.pmf(number, count, rate)[:, None] * binom.pmf(number[None, :], number[:, None], up)
        law = np.zeros((count + 1, count + 1))
        below = number[:, None] - number[None, :]
        known = below >= 0
        law[np.broadcast_to(number[None, :], known.shape)[known], below[known]] = sent[known]
        return law

    others = fftconvolve(*(many(count, rates[1], up) for count, up in zip(split, above)))
    p, q = (fftconvolve(others, many(1, rates[0], up)) for up in above)
    c = np.exp(losses)[:, None, None]
    return np.maximum(*(np.maximum(a - c * b, 0.0).sum(axis=(1, 2)) for a, b in ((p, q), (q, p))))


@pytest.mark.parametrize(
    ("n", "theta", "rate", "mu"),
    [(80, 0.3, 0.1, 0.8), (80, 0.3, 0.3, 0.3), pytest.param(120, 0.1, 0.4, 1.5, marks=pytest.mark.thorough)],
)
def test_unequal_rates_are_above_counts_of_messages_and_below_t_star(n, theta, rate, mu):
    """T**h, wherever the others are; a pool of four times as many is too large."""
    losses = 3.0 * mu * rate / math.sqrt(n * theta) * np.linspace(0.0, 1.0, 15)

    def bound(kind, size: int) -> np.ndarray:
        pool = pool_cover.PoolSizes(np.array([float(size)]), np.ones(1))
        return np.asarray(kind(rate, theta, pool, GaussianProfile(mu), 39.0).upper(losses))

    ours, star, wrong = bound(TwoLawUnequal, n), bound(UnequalHidden, n), bound(TwoLawUnequal, 4 * n)
    exceeded = 0
    for at_x in (0, n // 5, n // 2, n):
        for edge in (-0.5 * mu, 0.0, 0.5 * mu):
            truth = bits_seen((rate, theta), (at_x, n - at_x), mu, edge, losses)
            assert (ours >= truth * (1.0 - 1e-9) - 1e-13).all()
            exceeded += int((wrong < truth).any())
    assert exceeded
    assert (ours <= star * (1.0 + 1e-9)).all()
    assert (ours < 0.99 * star).any()


def test_left_to_other_bounds():
    """Few messages, everybody's, or hardly any noise; averaged updates, whose messages may depend on one another."""
    assert not gains(15, 0.1, 1.0)
    assert not gains(1000, 1.0, 1.0)
    assert not gains(1000, 0.1, 5.0)
    run = cj.AveragedUpdates(num_clients=1000, num_slots=10, check_in_prob=0.5)
    with pytest.raises(ValueError, match="words that apply here"):
        cj.account(run, cj.Gaussian(noise_multiplier=4.0), delta=1e-6, bounds="gaussian-cover")
