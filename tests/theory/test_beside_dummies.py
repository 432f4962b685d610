"""E+: a few of the messages of a round in which all send are dummies; its proof on exact rounds, one-sided."""

import itertools
import math

import numpy as np
import pytest
from oracles import krr
from oracles.t_star import channel_kinks, channel_profile, finite_law
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.messages.cover import NotAll
from checkin_jax.accounting.bounds.profiles import GaussianProfile, MessageProfile, without_dummies
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.numerics.step_laws import OwnSteps
from checkin_jax.protocols import REPLACE, Cover
from checkin_jax.randomizers.step_sets import laplace_steps

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0


def random_channel(rng: np.random.Generator) -> np.ndarray:
    """A random randomizer of two or three records and outputs, its laws within a factor of at most six."""
    records = int(rng.integers(2, 4))
    rows = np.array(krr.random_extremal_channel(rng, records, math.exp(rng.uniform(0.3, 1.8))), dtype=float)
    rows = 0.95 * rows[:, rows[0] > 1e-6] + 0.05 / np.sum(rows[0] > 1e-6)
    return rows / rows.sum(axis=1, keepdims=True)


def largest(channel: np.ndarray, clients: int, cs: np.ndarray, prob: float = 1.0) -> np.ndarray:
    """The largest H_c over all data sets at these c, each client sending with this probability."""
    pairs = [
        [float(krr.hockey_stick(*pair, c)) for c in cs]
        for pair in krr.neighbouring_laws(channel.tolist(), clients, prob)
    ]
    return np.max(pairs, axis=0)


def unit(randomizer: cj.Randomizer, clients: int, mass: float = MASS) -> Unit:
    return Unit(cj.Shuffle(num_clients=clients), randomizer, "messages", REPLACE, mass)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.turns(3)
def test_e_plus_is_above_all_rounds_of_few_clients(seed):
    """Its value for any probability of no dummy, over all data sets; without that event it is exceeded."""
    rng, reached, wrong = np.random.default_rng(100 + seed), 0.0, 0.0
    for _ in range(5):
        channel, clients = random_channel(rng), int(rng.integers(3, 6))
        mechanism = cj.FiniteMechanism(probabilities=channel)
        losses = mechanism.largest_loss * np.array([0.0, 0.05, 0.2, 0.5])
        truth = largest(channel, clients, np.exp(losses))
        found = np.full(losses.shape, math.inf)
        for part in (0.1, 0.3, 0.5):
            rarely = -clients * math.log1p(-part / math.exp(mechanism.largest_loss))
            bound = theorems._beside_dummies(
                unit(mechanism, clients), Cover(clients, 1.0), rarely * (1 - 1e-9)
            )
            if bound is None:
                continue
            value = np.asarray(bound.upper(losses))
            assert (value >= truth - 1e-12).all()
            found = np.minimum(found, value)
            wrong = max(wrong, float(np.max(truth - np.asarray(bound.hidden.upper(losses)))))
        reached = max(reached, float(np.max(truth / found)))
    assert reached > 0.8
    assert wrong > 1e-3


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_steps_without_dummies_are_those_of_the_residual_randomizer(share):
    rng = np.random.default_rng(5)
    channel = random_channel(rng)
    x, other = 0, 1
    dummy = 0.5 * (channel[x] + channel[other])
    left = (channel - share * dummy) / (1.0 - share)
    steps = cj.FiniteMechanism(probabilities=channel).step_set
    above = np.array([0.0, 0.2, 0.7])
    knots = np.linspace(-2.0, 2.0, 9)[None] * np.ones((3, 1))
    found = steps.without(share).transforms(above, knots)
    side = np.where(knots < 0.0, -1.0, 1.0)
    for record in left:
        d = (left[x] - (1.0 + above[:, None]) * left[other]) / record + above[:, None]
        each = np.maximum(side[:, None, :] * (d[:, :, None] - knots[:, None, :]), 0.0)
        exact = np.einsum("a,cak->ck", record, each)
        apart = np.abs(found - exact[:, None]).max(axis=(0, 2))
        assert apart.min() < 1e-9


@pytest.mark.parametrize(("epsilon0", "share"), [(0.5, 0.05), (2.0, 0.02), (4.0, 0.004)])
def test_steps_of_laplace_noise_without_dummies_by_integration(epsilon0, share):
    """Ends of the interval, and records between, against sums over a fine grid; with dummies they are smaller."""
    steps, plain = laplace_steps(epsilon0).without(share), laplace_steps(epsilon0)
    w = np.linspace(-30.0, epsilon0 + 30.0, 400_001)
    step = w[1] - w[0]

    def density(record: float) -> np.ndarray:
        return 0.5 * np.exp(-np.abs(w - record))

    above = np.array([0.0, 0.1 * math.expm1(epsilon0)])
    knots = steps.knots(above)
    found, other = steps.transforms(above, knots), plain.transforms(above, plain.knots(above))
    near, wrong = False, False
    for x, x_other, y in ((0, 1, 0), (0, 1, 1), (1, 0, 0), (0, 1, 0.4), (0.2, 0.9, 0.6)):
        a, b, h = (density(epsilon0 * each) for each in (x, x_other, y))
        dummy = 0.5 * share * (a + b)
        for i, (each, at) in enumerate(zip(above, knots)):
            d = (a - (1.0 + each) * b + each * dummy) / (h - dummy) + each
            side = np.where(at < 0.0, -1.0, 1.0)
            exact = np.array(
                [np.sum((h - dummy) * np.maximum(s * (d - k), 0.0)) for s, k in zip(side, at)]
            ) * (step / (1.0 - share))
            # One mixture of the laws is above; the largest of them at every knot is, too.
            assert (found[i].max(axis=0)[1:-1] >= exact[1:-1] * (1.0 - 1e-4) - 1e-9).all()
            near |= bool((found[i].max(axis=0)[1:-1] < 1.1 * exact[1:-1]).any())
            own = np.interp(at, plain.knots(above)[i], other[i].max(axis=0))
            wrong |= bool((exact > own * (1.0 + 1e-3))[1:-1].any())
    assert near
    assert wrong


@pytest.mark.parametrize(("mu", "clients", "share"), [(1.0, 200, 0.01), (2.0, 10_000, 1e-3)])
def test_the_profile_without_dummies_is_above_gaussian_ones(mu, clients, share):
    """Dummies are noise alone, cut down to s_A times the density of each record."""
    left = without_dummies(GaussianProfile(mu), clients, share)
    assert left is not None
    w = np.linspace(-14.0, 14.0, 200_001)
    step = w[1] - w[0]

    def density(record: float) -> np.ndarray:
        return np.exp(-0.5 * (w - record) ** 2) / math.sqrt(2.0 * math.pi)

    records = 0.5 * mu * np.array([-1.0, 0.0, 0.3, 1.0])
    dummy = np.min([density(0.0), *(left.most * density(each) for each in records)], axis=0)
    assert 1.0 - dummy.sum() * step <= 1.0 - share / left.dense + 1e-9
    dummy /= dummy.sum() * step
    assert (share * dummy <= left.dense * density(0.0) * (1.0 + 1e-6)).all()
    losses = np.array([0.0, 0.05, 0.3, 1.0, 2.0, 4.0])
    value, reached = left.delta(losses), 0.0
    for first in records:
        for second in records:
            one, two = ((density(each) - share * dummy) / (1.0 - share) for each in (first, second))
            assert min(one.min(), two.min()) >= -1e-12
            told = np.array([np.maximum(one - math.exp(x) * two, 0.0).sum() * step for x in losses])
            assert (told <= value + 1e-7).all()
            reached = max(reached, float(np.max(told[:4] / value[:4])))
    assert reached > 0.9
    # Dummies that are not left out tell less.
    assert (GaussianProfile(mu).delta(losses)[1:4] < value[1:4]).all()


def test_the_profile_without_dummies_is_above_those_of_finite_randomizers():
    rng = np.random.default_rng(7)
    for _ in range(10):
        channel = random_channel(rng)
        mechanism = cj.FiniteMechanism(probabilities=channel)
        share = 0.2 / math.exp(mechanism.largest_loss)
        left = without_dummies(MessageProfile(mechanism), 50, share)
        assert left is not None
        rest = (channel - share * channel[0]) / (1.0 - share)
        losses = np.linspace(0.0, mechanism.largest_loss, 7)
        exact = channel_profile(rest)(np.exp(losses))
        assert (left.delta(losses) >= exact - 1e-12).all()


@pytest.mark.parametrize(("clients", "gamma"), [(10**3, 1.0), (10**12, 1.0), (10**12, 1.0 - 1e-12)])
def test_the_probability_of_no_dummy_is_rounded_up_for_many_clients(clients, gamma):
    share, rate, none_prob = theorems._Dummies.of(Cover(clients, gamma), 14.0)
    # All messages but dummies arrive at this rate or less; 1 - rate is exact.
    assert gamma * (1.0 - share) <= rate
    assert none_prob >= math.exp(clients * math.log1p(rate - 1.0))
    assert none_prob == pytest.approx(math.exp(-14.0), rel=1e-4)


def test_staged_steps_at_the_mechanisms_own_scale_are_exceeded():
    """Whoever forgets that dummies are left out: many dummies, the mechanism's own steps."""
    clients, epsilon0 = 60, 1.0
    bits = cj.OneBit(epsilon0=epsilon0)
    rarely = 10.0
    share = -math.expm1(-rarely / clients)
    steps = OwnSteps(epsilon0, bits.step_set, bits.profile)
    fewer = StagedClones(NotAll(clients, 1.0 - share), steps, MASS)
    right = theorems._beside_dummies(unit(bits, clients), Cover(clients, 1.0), rarely)
    p, losses = math.exp(epsilon0), np.array([0.0, 0.2])
    rest = np.array([math.comb(59, k) * (p ** (59 - k)) / (1 + p) ** 59 for k in range(60)])
    one, two = (np.append(rest * (1 - q), 0) + np.append(0, rest * q) for q in (p / (1 + p), 1 / (1 + p)))
    truth = np.array(
        [max(np.maximum(a - math.exp(x) * b, 0).sum() for a, b in ((one, two), (two, one))) for x in losses]
    )
    assert (np.asarray(right.upper(losses)) >= truth).all()
    assert (np.asarray(fewer.upper(losses)) < truth).any()


def of_weights(others: np.ndarray, pair: np.ndarray, dummy: np.ndarray, share: float, theta: float, c: float):
    """(expected (P - c Q)_+ where a dummy's owner is one of S, probability of no dummy).

    others: their laws, [clients, outputs]. pair: laws at x and x'. In S the target shows its message in the owner's
    name; all other dummies and all the rest of theta are named.
    """
    dummies, found = np.minimum(share * dummy, theta * others), 0.0
    masses = dummies.sum(axis=1)
    for kinds in itertools.product("sdr", repeat=len(others)):
        left = [i for i, kind in enumerate(kinds) if kind == "s"]
        if not left:
            continue
        weight = share * (1.0 - theta) ** (len(left) - 1) / (kinds.count("d") + 1)
        weight *= math.prod(masses[i] for i, kind in enumerate(kinds) if kind == "d")
        weight *= math.prod(theta - masses[i] for i, kind in enumerate(kinds) if kind == "r")
        ratio = np.minimum(1.0, theta * others[left] / (share * dummy))
        terms = (pair[0] - c * pair[1]) / others[left]
        for outputs in itertools.product(range(dummy.size), repeat=len(left)):
            chance = math.prod(others[i, w] for i, w in zip(left, outputs))
            shown = np.array([row[w] for row, w in zip(terms, outputs)])
            found += weight * chance * float(dummy @ np.maximum(shown @ ratio, 0.0))
    return found, float(np.prod(1.0 - masses))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.turns(3)
def test_dummies_of_others_alone_are_a_base(seed):
    """Weak noise on exact rounds: the base, and the statement; without the event of no dummy it is false."""
    rng, wrong, reached = np.random.default_rng(200 + seed), 0.0, 0.0
    for _ in range(6):
        channel, clients = random_channel(rng), int(rng.integers(3, 5))
        records = rng.integers(0, len(channel), clients - 1)
        others, pair, dummy = channel[records], channel[:2], rng.dirichlet(np.ones(channel.shape[1])) * 0.9
        dummy = (dummy + 0.05) / (dummy + 0.05).sum()
        share, theta, eta = rng.uniform(0.1, 0.3), rng.uniform(0.4, 0.7), 0.4
        profile, kinks = channel_profile(channel), channel_kinks(channel)
        apart = max(float(np.maximum(dummy - theta / share * h, 0.0).sum()) for h in channel)
        for c in (1.0, 1.2, 2.0):
            laws = [krr.histogram_law([*records.tolist(), x], channel.tolist(), 1) for x in (0, 1)]
            truth, alone = float(krr.hockey_stick(*laws, c)), float(profile(c))
            found, none = of_weights(others, pair, dummy, share, theta, c)
            assert truth <= found + none * alone + 1e-12
            wrong, reached = max(wrong, truth - found), max(reached, truth / max(found + none * alone, 1e-12))
            # The statement, for every M.
            at, weights, beyond = finite_law(profile, kinks, c)
            sums, law = np.zeros(1), np.ones(1)
            for number in range(1, clients):
                sums, law = np.add.outer(sums, at).ravel(), np.multiply.outer(law, weights).ravel()
                hidden = float(np.maximum(sums, 0.0) @ law) / number + beyond
                few = binom.cdf(math.ceil(number / (1.0 - eta)) - 2, clients - 1, 1.0 - theta)
                event = (1.0 - share * (1.0 - apart)) ** (clients - 1) + few
                event += (1.0 - eta) * apart / (eta * (1.0 - apart))
                assert truth <= hidden + event * alone + 1e-12
    assert reached > 0.5
    assert wrong > 1e-3
