"""Moments of pairs whose profile and chi-square divergence are bounded, against exact rounds of few clients.

Both bounds hold for every pair of a round, but the profile's two directions need not be reached by one pair: where few
messages are expected, the likelihood ratio of each pair has one heavy tail.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, UniformSlot
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.accounting.composition import compose, search
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.execution.devices import float64

MASS = 40.0
ORDERS = np.array([1.0, 1.5, 2.0, 4.0, 10.0, 40.0])


def chi_square(first, second):
    return float(np.sum(np.square(first - second)[second > 0.0] / second[second > 0.0]))


def log_moment(first, second, t):
    held = second > 0.0
    return float(np.log(np.sum(second[held] * (first[held] / second[held]) ** (t + 1.0))))


def random_channel(rng, records=3, outputs=3):
    odds = np.exp(rng.uniform(0.5, 3.0) * rng.uniform(0.0, 1.0, (records, outputs)))
    return odds / odds.sum(axis=1, keepdims=True)


def exact_pairs(channel, clients, rate):
    return list(exact_rounds.rounds(channel, [rate] * clients))


@pytest.mark.parametrize("seed", range(6))
def test_chi_square_of_every_pair_of_a_round_is_below_the_bound(seed):
    rng = np.random.default_rng(seed)
    channel, clients, rate = random_channel(rng), int(rng.integers(2, 6)), rng.uniform(0.02, 0.6)
    run, mechanism = (
        cj.ShuffledCheckIn(num_clients=clients, check_in_prob=rate),
        cj.FiniteMechanism(probabilities=channel),
    )
    bound = unit_bound(run, mechanism, "messages", 1.0, 1e-6).bound
    worst = max(chi_square(*pair) for pair in exact_pairs(channel, clients, rate))
    assert worst <= bound.chi_square * (1.0 + ORACLE_ROUNDING)
    # A bound far above what is reached would gain nothing.
    assert rate * clients > 0.5 or bound.chi_square < 2.0 * worst


@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 2.5])
@pytest.mark.parametrize(("values", "clients", "factor"), [(2, 12, 1.2), (4, 5, 2.0)])
def test_chi_square_of_randomized_response_is_nearly_reached(epsilon0, values, clients, factor):
    mechanism = cj.KaryResponse(epsilon0=epsilon0, num_values=values)
    channel = np.full((values, values), 1.0) + np.expm1(epsilon0) * np.eye(values)
    channel /= channel.sum(axis=1, keepdims=True)
    run = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=0.01)
    bound = unit_bound(run, mechanism, "messages", 1.0, 1e-6).bound
    worst = max(chi_square(*pair) for pair in exact_pairs(channel[:3], clients, 0.01))
    assert worst <= bound.chi_square * (1.0 + ORACLE_ROUNDING)
    assert bound.chi_square < factor * worst


def test_a_chi_square_without_the_second_law_is_too_small():
    """The second measure falls to a share of the reference law that few clients make small."""
    channel, clients, rate = np.array([[0.9, 0.1], [0.1, 0.9]]), 3, 0.6
    cover, epsilon0 = Shuffled(clients, rate), float(np.log(9.0))
    worst = max(chi_square(*pair) for pair in exact_pairs(channel, clients, rate))
    variance = np.exp(-epsilon0)
    assert worst <= cover.chi_square(epsilon0, variance, MASS)
    everybody = rate**clients * np.expm1(epsilon0) ** 2 / np.exp(epsilon0)
    plain = variance * np.expm1(epsilon0) ** 2 * rate / clients
    assert worst > plain
    assert worst > cover.chi_square(epsilon0, variance, MASS) - everybody or plain < worst


def test_occupied_slots_have_the_chi_square_of_their_number():
    channel, clients, slots = np.array([[0.8, 0.2], [0.3, 0.7]]), 3, 3
    mechanism = cj.FiniteMechanism(probabilities=channel)
    run = cj.FixedWindow(num_clients=clients, num_slots=slots, check_in_prob=0.5, empty_slots="visible")
    bound = unit_bound(run, mechanism, "messages", 1.0, 1e-6).bound
    pairs = []
    for held in itertools.product(range(2), repeat=clients - 1):
        laws = [
            exact_rounds.window(
                channel, (*held, x), [0.5] * clients, [range(slots)] * clients, range(slots), None
            )
            for x in range(2)
        ]
        pairs += itertools.permutations(laws, 2)
    with float64():
        variance = bound.chi_square
        assert Occupied(clients, slots, 0.5).chi_square(1.0, 1.0, MASS) > 0.0
    assert max(chi_square(*pair) for pair in pairs) <= variance * (1.0 + ORACLE_ROUNDING)


@pytest.mark.parametrize("epsilon0", [1.0, 20.0, 30.0, 35.0, 40.0, 50.0])
@pytest.mark.parametrize("cover", [UniformSlot(10, 1.0, 1.0), UniformSlot(10, 0.7, 0.7), Shuffled(10, 1.0)])
def test_the_least_share_of_the_second_law_keeps_its_digits(cover, epsilon0):
    """1 - (k/n) (1 - e^-epsilon0) cancels where nearly all messages are shown, and was negative at 35."""
    variance = math.exp(-epsilon0)
    number, clients = Fraction(10), Fraction(10) / Fraction(cover.use_prob)
    p = Fraction(math.exp(epsilon0))
    exact = Fraction(variance) * (p - 1) ** 2 / clients**2 * number / (1 - number / clients * (1 - 1 / p))
    exact += Fraction(cover.everybody) * (p - 1) ** 2 / p
    with float64():
        found = cover.chi_square(epsilon0, variance, MASS)
    assert exact <= found <= exact * (1 + Fraction(1, 10**7))


def laws_above(pairs, losses):
    """Atoms above all pairs in both directions, as the accountant makes them from a profile."""
    profile = exact_rounds.most(pairs, np.exp(losses)) * (1.0 + 1e-12)
    side = pld.side_upper(host(losses), host(profile))
    return pld.join(host(losses), side, side, True)


@pytest.mark.parametrize("seed", range(6))
def test_moments_of_every_pair_are_below(seed):
    """With the exact profile, cut at a loss or not, and the exact largest chi-square divergence."""
    rng = np.random.default_rng(100 + seed)
    channel = random_channel(rng)
    pairs = exact_pairs(channel, int(rng.integers(2, 6)), rng.uniform(0.01, 0.3))
    top = max(float(np.log((p[q > 0] / q[q > 0]).max())) for p, q in pairs)
    worst = max(chi_square(*pair) for pair in pairs)
    with float64():
        atoms = laws_above(pairs, np.linspace(0.0, top, 200))
        stacked = pld.Atoms(*(part[None] for part in atoms))
        found = np.asarray(pld.log_moments_within(stacked, host([worst]), host(ORDERS)))[:, 0]
        plain = np.asarray(pld.rounds_at(stacked, host(ORDERS)).log_mgf)[:, 0]
        less = np.asarray(pld.log_moments_within(stacked, host([0.5 * worst]), host(ORDERS)))[:, 0]
    exact = np.array([max(log_moment(*pair, t) for pair in pairs) for t in ORDERS])
    assert (exact <= found + 1e-12).all()
    assert found[0] < plain[0]
    # The moment of order 2 is the chi-square divergence itself: a smaller one is refuted.
    assert less[0] < exact[0]
    assert found[0] == pytest.approx(exact[0], rel=1e-6)


def test_an_order_below_one_has_no_bound():
    with float64():
        atoms = pld.Atoms(host([[-0.1, 0.0, 0.1]]), host([[0.2, 0.5, 0.3]]), host([0.0]))
        found = np.asarray(pld.log_moments_within(atoms, host([0.01]), host([0.5, 0.999, 1.0])))
    assert np.isinf(found[:2]).all()
    assert np.isfinite(found[2]).all()


def test_mass_at_infinity_counts():
    """A pair with P = c_N Q on the likeliest event and more mass there is cut at c_N, its profile reduced by that."""
    first, second = np.array([0.02, 0.98]), np.array([0.001, 0.999])
    losses = np.linspace(0.0, 1.0, 50)
    with float64():
        atoms = laws_above([(first, second), (second, first)], losses)
        assert float(atoms.infinite) > 0.0
        stacked = pld.Atoms(*(part[None] for part in atoms))
        cut = np.minimum(first, np.exp(losses[-1]) * second)
        worst = chi_square(first, second)
        found = np.asarray(pld.log_moments_within(stacked, host([worst]), host(ORDERS)))[:, 0]
    assert all(log_moment(cut, second, t) <= each for t, each in zip(ORDERS, found))


def one_round(clients, rate, epsilon0, opposite):
    """Masses of P and Q of a round of one-bit messages: numbers of both bits; the others at x', or at x."""
    p = np.exp(epsilon0)
    channel = np.array([[p, 1.0], [1.0, p]]) / (p + 1.0)
    held = 0 if opposite else 1
    law = np.ones((1, 1))
    for _ in range(clients - 1):
        law = exact_rounds.with_client(law, channel[held], rate)
    return [exact_rounds.with_client(law, row, rate).ravel() for row in channel]


def transform(first, second, spacing, size):
    """Of the loss under P, on a lattice: losses rounded down, so that the composition is from below."""
    held = (first > 0.0) & (second > 0.0)
    place = np.floor(np.log(first[held] / second[held]) / spacing).astype(int)
    law = np.zeros(size)
    np.add.at(law, place % size, first[held])
    return np.fft.rfft(law)


def test_rounds_of_either_pair_in_any_numbers_are_below():
    """j rounds with the others at one record and K - j with them at the other one: each is below the upper end."""
    clients, rate, epsilon0, rounds, delta = 400, 0.003, 2.0, 6000, 1e-5
    run = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=rate, num_rounds=rounds)
    found = cj.account(run, cj.OneBit(epsilon0=epsilon0), delta=delta)
    assert found.method.endswith("RDP")
    spacing, size = 2e-6, 1 << 22
    one, other = (
        transform(*one_round(clients, rate, epsilon0, opposite), spacing, size) for opposite in (0, 1)
    )
    losses = spacing * np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size)
    reached = []
    for j in (0, 1, 600, 3000, 5400, 5999, 6000):
        law = np.fft.irfft(one**j * other ** (rounds - j), size)
        above = losses > found.epsilon
        reached.append(float(np.sum(law[above] * -np.expm1(found.epsilon - losses[above]))))
    assert max(reached) <= delta * (1.0 + 1e-6)
    # Near enough that a moment of half the chi-square divergence would be refuted.
    assert max(reached) > 0.02 * delta


def test_units_without_a_bound_have_none():
    run = cj.ShuffledCheckIn(num_clients=50, check_in_prob=cj.Rates([0.1] * 25 + [0.2] * 25), num_rounds=3)
    with float64():
        bound = unit_bound(run, cj.Gaussian(noise_multiplier=1.0), "messages", 3.0, 1e-6).bound
        composer = compose._Composer([(bound, 3)], 1e-6)
    assert composer.chi_squares is None
    assert search.Search.chi_squares is None


@pytest.mark.parametrize("epsilon0", [10.0, 30.0, 36.0, 40.0, 50.0])
def test_a_chi_square_where_all_slots_may_show_the_least_likely_message_is_not_rounded_away(epsilon0):
    """1 - (1 - 1/p) would be."""
    with float64():
        found = UniformSlot(7, 1.0, 1.0).chi_square(epsilon0, np.exp(-epsilon0), MASS)
    p = np.exp(epsilon0)
    assert found == pytest.approx((p - 1.0) ** 2 / 7.0, rel=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_chi_square_at_unequal_rates_is_below_the_bound(seed):
    """Of pools of rates below and above the target's; a pool of all others at the largest rate is not enough."""
    rng = np.random.default_rng(seed)
    channel = rng.dirichlet(np.ones(3) * 2.0, 3) * 0.9 + 0.1 / 3.0
    mechanism = cj.FiniteMechanism(probabilities=channel)
    others, rate = rng.uniform(0.02, 0.6, 3), float(rng.uniform(0.02, 1.0))
    worst = max(chi_square(*pair) for pair in exact_rounds.rounds(channel, [*others.tolist(), rate]))
    for theta in (float(others.max()), float(others.min()), 0.5):
        size = pool_cover.sum_of(pool_cover.weights(others, theta), np.ones(3), MASS)
        with float64():
            bound = StagedClones(ClientPool(rate, theta, size), theorems.own_steps(mechanism), MASS)
            assert worst <= bound.chi_square * (1.0 + ORACLE_ROUNDING)


def test_chi_square_of_a_pool_that_is_too_large_is_too_small():
    channel, others, rate = np.array([[0.9, 0.1], [0.1, 0.9]]), [0.5, 0.02, 0.02], 0.3
    worst = max(chi_square(*pair) for pair in exact_rounds.rounds(channel, [*others, rate]))
    steps = theorems.own_steps(cj.FiniteMechanism(probabilities=channel))
    with float64():
        assert StagedClones(ClientPool(rate, 0.5, pool_cover.certain(3.0)), steps, MASS).chi_square < worst
