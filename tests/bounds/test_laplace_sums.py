"""Sums of Laplace messages: bound and witness against the law of the sum, from its characteristic function."""

import dataclasses
import math

import jax
import mpmath
import numpy as np
import pytest
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.messages.equal_records import laplace_at_one_record
from checkin_jax.accounting.bounds.messages.laplace_sums import LaplaceSum, ShuffledLaplaceSum
from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian
from checkin_jax.accounting.bounds.profiles import summed_laplace
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.numerics.counts.summed_noise import MOST_TERMS, laplace_sum

pytestmark = pytest.mark.usefixtures("x64")
MASS = math.log(1e6) + 17.0
POINTS = 2**14


def shifted(number: int, epsilon0: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses of a sum of Laplace variables of scale 1 on a lattice, and of the sum moved by epsilon0."""
    step = epsilon0 / math.ceil(epsilon0 / (0.01 * math.sqrt(2.0 * number) + 0.004))
    order = 2.0 * np.pi * np.fft.fftfreq(POINTS, d=step)
    law = np.maximum(np.real(np.fft.ifft((1.0 + np.square(order)) ** -float(number))), 0.0)
    return law, np.roll(law, round(epsilon0 / step))


def leak(number: int, used: float, epsilon0: float, losses: np.ndarray) -> np.ndarray:
    """H_c of both orders; [2, losses]."""
    still, moved = shifted(number, epsilon0)
    mixed, c = (1.0 - used) * still + used * moved, np.exp(losses)[:, None]
    return np.stack([np.maximum(p - c * q, 0.0).sum(axis=1) for p, q in ((mixed, still), (still, mixed))])


@pytest.mark.parametrize("number", [2, 60, 20_000])
@pytest.mark.parametrize(("used", "epsilon0"), [(1.0, 1.0), (0.1, 2.5), (0.01, 0.3)])
def test_the_witness_is_just_below_what_is_seen(number, used, epsilon0):
    losses = used * epsilon0 / math.sqrt(number) * np.array([0.0, 0.05, 0.3, 1.0])
    lines = LaplaceSum(number, used, epsilon0, MASS).lower(losses)
    found = np.array([np.asarray(apart) - np.expm1(losses) * np.asarray(mass) for apart, mass in lines])
    truth = leak(number, used, epsilon0, losses)
    assert (found <= truth * (1.0 + 2e-3) + 1e-9).all()
    assert (found >= 0.94 * truth)[:, :3].all()
    # Wrong neighbour: a fifth of the terms less.
    fewer = LaplaceSum(0.8 * number, used, epsilon0, MASS).lower(losses[:1])
    assert float(fewer[0][0][0]) > 1.05 * truth[0, 0]


SUMS = [(1, 0.3), (1, 4.0), (2, 1.0), (9, 0.3), (40, 0.05), (256, 2.0)]


@pytest.mark.parametrize(("number", "epsilon0"), SUMS)
def test_the_profile_of_a_sum_is_just_above_its_law(number, epsilon0):
    """Against the characteristic function; not with a term more, nor below twice the error at any knot."""
    losses = min(epsilon0, 3.0 * epsilon0 / math.sqrt(number)) * np.array([0.0, 0.05, 0.2, 0.5, 0.8])
    found = summed_laplace(number, epsilon0).delta(losses)
    truth = leak(number, 1.0, epsilon0, losses)
    assert (found >= truth * (1.0 - 3e-4) - 1e-8).all()
    assert (found <= truth.max(axis=0) * 1.01 + 1e-8).all()
    if number < MOST_TERMS:
        more = summed_laplace(number + 1, epsilon0).delta(losses)
        assert (more <= found).all()
        assert more[0] < truth[0, 0] * (1.0 - 3e-4)


@pytest.mark.parametrize("epsilon0", [1e-12, 1e-9, 1e-8])
def test_intervals_too_short_for_knots_in_between(epsilon0):
    """The total variation of one message is epsilon0/2, nearly, and a round's as much times the rate at most."""
    assert summed_laplace(1, epsilon0).delta(np.zeros(1))[0] >= -math.expm1(-0.5 * epsilon0)
    run = cj.ShuffledCheckIn(num_clients=2, check_in_prob=0.9)
    found = cj.account(run, cj.Laplace(epsilon0=epsilon0), delta=1e-13, view="aggregate")
    assert 0.0 <= found.lower <= found.epsilon <= epsilon0 * (1.0 + 1e-9)
    assert found.epsilon > 0.5 * epsilon0


def exact_tail(number: int, x: mpmath.mpf) -> mpmath.mpf:
    """Pr[sum of Laplace variables > x], x >= 0: of the gamma variables' difference, by partial fractions."""
    total = mpmath.mpf(0)
    for left in range(1, number + 1):
        weight = mpmath.binomial(2 * number - 1 - left, number - 1) / mpmath.mpf(2) ** (2 * number - left)
        total += weight * mpmath.gammainc(left, x, regularized=True)
    return total


@pytest.mark.parametrize(("number", "epsilon0"), SUMS[:5])
def test_knots_are_above_every_threshold_of_exact_tails(number, epsilon0):
    """With 40 digits, at a hundred thresholds about each knot's best one; a ten-thousandth less is not."""
    losses, values = laplace_sum(number, epsilon0)
    with mpmath.workdps(40):

        def tail(x):
            return exact_tail(number, x) if x >= 0 else 1 - exact_tail(number, -x)

        for at in (0, losses.size // 4, losses.size // 2, (3 * losses.size) // 4):
            c = mpmath.exp(mpmath.mpf(float(losses[at])))
            places = mpmath.linspace(0, epsilon0 + 12 * math.sqrt(2 * number), 100)
            shift = mpmath.mpf(epsilon0)
            truth = max(tail(x - shift) - c * tail(x) for x in (shift / 2, *places))
            assert values[at] >= truth
            if at == 0:
                assert values[at] * (1.0 - 1e-4) < truth


@pytest.mark.parametrize("epsilon0", [0.3, 3.0])
@pytest.mark.parametrize(("clients", "rate"), [(40, 0.2), (300, 0.05), (30, 1.0)])
def test_both_ends_of_few_sums_are_at_what_is_seen(clients, rate, epsilon0):
    """Subsampling with the profile of the sum is attained where all others are at one end."""
    protocol = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=rate)
    unit = Unit(protocol, cj.Laplace(epsilon0=epsilon0), "aggregate", "replace-one", MASS)
    bound = theorems.message_sums(unit)
    assert bound is not None
    reach = epsilon0 * math.sqrt(rate / clients) if rate < 1.0 else epsilon0 / math.sqrt(clients)
    losses = min(reach, 0.3 * epsilon0) * np.array([0.0, 0.1, 0.5, 1.0])
    truth = seen(clients, rate, epsilon0, losses)
    upper = np.asarray(bound.upper(losses))
    assert (upper >= truth * (1.0 - 3e-4) - 1e-7).all()
    assert (upper <= 1.02 * truth + 1e-6).all()
    witness = laplace_at_one_record(clients, rate, epsilon0, MASS)
    for order, (apart, mass) in enumerate(witness.lower(losses)):
        found = np.asarray(apart) - np.expm1(losses) * np.asarray(mass)
        assert (found <= upper * (1.0 + 1e-12)).all()
        assert (found >= 0.97 * seen_in(order, clients, rate, epsilon0, losses) - 1e-6).all()
    # Wrong neighbours: one client less, and one message more in every sum.
    fewer = laplace_at_one_record(clients - 1, rate, epsilon0, MASS)
    assert float(fewer.lower(losses[:1])[0][0][0]) > truth[0] or rate < 1.0
    with_more = theorems.message_sums(
        dataclasses.replace(unit, protocol=dataclasses.replace(protocol, num_clients=clients + 3))
    )
    assert with_more is not None
    assert float(np.asarray(with_more.upper(losses[:1]))[0]) < truth[0]


def seen_in(order: int, clients: int, rate: float, epsilon0: float, losses: np.ndarray) -> np.ndarray:
    """H_c of a round's sum and number of messages in one order, all others at one end."""
    total = np.zeros(losses.size)
    for number in range(1, clients + 1):
        if (often := binom.pmf(number, clients, rate)) > 1e-9:
            total += often * leak(number, number / clients, epsilon0, losses)[order]
    return total


def seen(clients: int, rate: float, epsilon0: float, losses: np.ndarray) -> np.ndarray:
    """The larger H_c of a round's sum and number of messages, all others at one end, a little too little."""
    total = np.zeros((2, losses.size))
    for number in range(1, clients + 1):
        often = binom.pmf(number, clients, rate)
        if often > 1e-9:
            total += often * leak(number, number / clients, epsilon0, losses)
    return total.max(axis=0)


@pytest.mark.parametrize("epsilon0", [0.5, 4.0])
def test_the_bound_is_above_what_is_seen(epsilon0):
    clients, rate = 1200, 0.4
    losses = np.array([0.0, 1e-3, 0.01, 0.05, 0.1]) * epsilon0
    bound = ShuffledLaplaceSum(clients, rate, epsilon0, MASS)
    assert bound.gains
    value, truth = bound.upper(losses), seen(clients, rate, epsilon0, losses)
    assert (value >= truth * (1.0 - 1e-6)).all()
    assert value[0] < 1.7 * truth[0]
    # Wrong neighbour: twice the noise.
    half = ShuffledGaussian(clients, rate, 0.5 * epsilon0, True, MASS).upper(losses)
    assert (half < truth)[0]


def test_sums_of_many_messages_are_sharp():
    """No lower end, and an upper one of .056 for single messages, before."""
    run = cj.ShuffledCheckIn(num_clients=10**7, check_in_prob=0.05, num_rounds=1000)
    g = cj.account(run, cj.Laplace(epsilon0=4.3), delta=1e-8, view="aggregate")
    assert 0.0 < g.lower < g.epsilon < 1.05 * g.lower
    assert "subsampling" in g.method
    assert any("fewer messages bring less noise" in each for each in g.assumptions)
    single = cj.account(run, cj.Laplace(epsilon0=4.3), delta=1e-8)
    assert single.lower > 1.5 * g.epsilon


def test_few_messages_and_single_ones_have_no_bound_of_the_sum():
    with jax.enable_x64(True):
        assert not ShuffledLaplaceSum(40, 0.5, 1.0, MASS).gains
    averaged = cj.AveragedUpdates(num_clients=10**4, num_slots=10, check_in_prob=0.5)
    with pytest.raises(ValueError, match="bounds"):
        cj.account(averaged, cj.Laplace(epsilon0=1.0), delta=1e-6, view="aggregate", bounds="subsampling")


@pytest.mark.parametrize(
    "run",
    [
        cj.ShuffledCheckIn(num_clients=1000, check_in_prob=cj.Rates([0.1] * 500 + [0.3] * 500)),
        cj.AveragedUpdates(num_clients=1000, num_slots=10, check_in_prob=0.5),
        cj.FixedWindow(num_clients=300, num_slots=200, minibatch=10),
        cj.FixedWindow(num_clients=300, num_slots=200, minibatch=10, empty_slots="visible"),
        cj.SlidingWindow(num_clients=300, window=50, minibatch=10),
    ],
)
def test_every_sum_has_a_lower_end(run):
    g, single = (
        cj.account(run, cj.Laplace(epsilon0=1.0), delta=1e-4, view=view) for view in ("aggregate", "messages")
    )
    assert 0.0 < g.lower <= g.epsilon <= single.epsilon * (1.0 + 1e-9)
