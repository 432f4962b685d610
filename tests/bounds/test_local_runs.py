"""The view `local` over many rounds, by how often a client takes part: against sums in 50 digits, and wrong ones."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from oracles import gaussian as oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalPureLDP
from checkin_jax.accounting.composition import compose, local_view
from checkin_jax.kernels import gaussian_profile, host

pytestmark = pytest.mark.usefixtures("x64")


def often(count, rate):
    """(K, its probability) for all K that matter at 1e-320."""
    rate, mean = mp.mpf(rate), count * rate
    for k in range(count + 1):
        mass = mp.binomial(count, k) * rate**k * (1 - rate) ** (count - k)
        if k > mean and mass < mp.mpf("1e-320"):
            return
        yield k, mass


def delta_of_responses(epsilon0, rate, count, epsilon):
    p, total = mp.exp(mp.mpf(epsilon0)), mp.mpf(0)
    for k, mass in often(count, rate):
        for j in range(k + 1):
            gain = p**j - mp.exp(epsilon) * p ** (k - j)
            if gain > 0:
                total += mass * mp.binomial(k, j) * gain / (1 + p) ** k
    return total


def delta_of_gaussians(mu, rate, count, epsilon):
    return mp.fsum(mass * oracle.delta_g(mu * mp.sqrt(k), epsilon) for k, mass in often(count, rate) if k > 0)


def run(rate, rounds, n=1000):
    return cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds)


@pytest.mark.parametrize(
    ("epsilon0", "rate", "rounds", "delta"),
    [
        (1.0, 1e-6, 1000, 1e-12),
        (1.0, 1e-4, 20, 1e-12),
        (0.3, 0.02, 60, 1e-9),
        (4.0, 0.3, 40, 1e-30),
        (12.0, 1e-3, 50, 1e-20),
        (0.01, 1.0, 30, 1e-4),
        (1e-4, 0.5, 30, 1e-5),
        (2.0, 1e-5, 10**6, 1e-100),
        (1.0, 1e-9, 10**9, 1e-300),
    ],
)
def test_responses_lie_between_the_ends(epsilon0, rate, rounds, delta):
    found = cj.account(run(rate, rounds), cj.PureLDP(epsilon0=epsilon0), delta=delta, view="local")
    assert local_view.METHOD in found.method
    with mp.workdps(50):
        assert delta_of_responses(epsilon0, rate, rounds, found.epsilon) <= delta
        assert found.lower == 0 or delta_of_responses(epsilon0, rate, rounds, found.lower) >= delta
    assert found.epsilon <= found.lower * (1 + 1e-5) + 1e-12


def delta_of_labels(first, second, rate, count, epsilon):
    """For two records, by the numbers of their three labels in rounds in which the client takes part."""
    total, c = mp.mpf(0), mp.exp(epsilon)
    for numbers in itertools.product(range(count + 1), repeat=3):
        away = count - sum(numbers)
        if away < 0:
            continue
        ways = math.factorial(count)
        for number in (*numbers, away):
            ways //= math.factorial(number)
        near, far = (mp.fprod(mp.mpf(m) ** k for m, k in zip(law, numbers)) for law in (first, second))
        total += ways * mp.mpf(rate) ** (count - away) * (1 - mp.mpf(rate)) ** away * max(near - c * far, 0)
    return total


@pytest.mark.parametrize(("rate", "rounds"), [(0.75, 20), (0.125, 24)])
def test_labels_lie_between_the_ends(rate, rounds):
    first, second = (0.5, 0.375, 0.125), (0.25, 0.3125, 0.4375)
    mechanism = cj.FiniteMechanism(probabilities=[first, second])
    found = cj.account(run(rate, rounds), mechanism, delta=1e-6, view="local")
    both = (first, second), (second, first)
    with mp.workdps(30):
        assert max(delta_of_labels(*pair, rate, rounds, found.epsilon) for pair in both) <= 1e-6
        assert max(delta_of_labels(*pair, rate, rounds, found.lower) for pair in both) >= 1e-6
        # No larger by 2%: grids follow the losses of the labels.
        assert max(delta_of_labels(*pair, rate, rounds, found.lower * 1.02) for pair in both) < 1e-6


@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "delta"),
    [
        (1.7, 1e-4, 2000, 1e-9),
        (1.0, 1e-4, 20, 1e-8),
        (4.0, 0.1, 50, 1e-6),
        (0.1, 1e-3, 40, 1e-30),
        (100.0, 1.0, 10**6, 1e-6),
        (30.0, 0.02, 200, 1e-9),
        (1e4, 1e-3, 30, 1e-9),
        (2.0, 1e-9, 10**9, 1e-290),
    ],
)
def test_gaussian_messages_lie_between_the_ends(noise, rate, rounds, delta):
    found = cj.account(run(rate, rounds), cj.Gaussian(noise_multiplier=noise), delta=delta, view="local")
    assert local_view.METHOD in found.method
    if rate == 1.0:
        total = lambda epsilon: oracle.delta_g(2 / noise * math.sqrt(rounds), epsilon)  # noqa: E731
    else:
        total = lambda epsilon: delta_of_gaussians(2 / noise, rate, rounds, epsilon)  # noqa: E731
    assert total(found.epsilon) <= delta
    assert found.lower == 0 or total(found.lower) >= delta
    assert found.epsilon <= found.lower * (1 + 1e-5) + 1e-12


def test_every_transcript_of_three_rounds():
    """Silence or one of two labels a round, seen: the law of the transcript itself, in rationals."""
    p, rate = Fraction(3), Fraction(1, 4)
    yes, no = rate * p / (1 + p), rate / (1 + p)
    one = {None: (1 - rate, 1 - rate), 0: (yes, no), 1: (no, yes)}
    epsilon0 = math.log(3)
    for epsilon in (0.0, 0.4, 1.2, 2.5):
        c = Fraction(math.exp(epsilon))
        total = Fraction(0)
        for seen in itertools.product(one, repeat=3):
            first, second = (math.prod(one[each][side] for each in seen) for side in (0, 1))
            total += max(first - c * second, Fraction(0))
        assert float(total) == pytest.approx(
            float(delta_of_responses(epsilon0, 0.25, 3, mp.log(mp.mpf(c.numerator) / c.denominator))),
            rel=1e-9,
        )
        profile = local_view.profile_of(LocalPureLDP(0.25, epsilon0), 3, math.exp(-23.0))
        assert profile is not None
        assert profile.lower(np.array([epsilon]))[0] <= float(total) * (1 + 1e-12)
        assert profile.upper(np.array([epsilon]))[0] >= float(total) * (1 - 1e-12)
        assert profile.upper(np.array([epsilon]))[0] == pytest.approx(float(total), rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("mu", [41.0, 200.0, 1e3, 1e4])
@pytest.mark.parametrize("share", [-35.0, -5.0, 0.0, 5.0, 35.0])
def test_large_shifts_of_the_gaussian_profile(mu, share):
    """`log_delta` is used up to mu = 1e4 here, beyond what its own tests reach."""
    epsilon = 0.5 * mu * mu + share * mu
    with mp.workdps(60):
        exact = oracle.delta_g(mu, epsilon)
        found = math.exp(float(gaussian_profile.log_delta(host(mu), host(epsilon))))
        assert float(abs(found / exact - 1)) < 0.1 * local_view.ROUNDING


def test_the_mean_number_of_messages_is_no_bound():
    """Participation at its mean, and a count that is cut at ten means without its tail: both are below the truth."""
    mu, rate, rounds, delta = 1.0, 0.01, 200, 1e-9
    found = local_view.bracket(LocalGaussian(rate, mu), rounds, delta)
    assert found is not None
    mean = mp.findroot(lambda e: oracle.delta_g(mu * math.sqrt(rounds * rate), e) / delta - 1, 8.0)
    assert mean < 0.9 * found.lower
    law = local_view.response_law(1.0, np.arange(6.0), np.array([float(m) for _, m in often(200, 0.01)][:6]))
    without = local_view.response_profile(1.0, law, np.array([6.0]), True)[0]
    assert without < float(delta_of_responses(1.0, 0.01, 200, 6.0))


def test_rounds_of_different_kinds_are_composed_and_equal_ones_are_not():
    one, other = LocalPureLDP(0.01, 1.0), LocalPureLDP(0.02, 1.0)
    both = compose.bracket([(one, 30), (other, 30)], 1e-6)
    most, least = (local_view.bracket(each, 60, 1e-6) for each in (other, one))
    assert most is not None
    assert least is not None
    assert both.method != local_view.METHOD
    assert least.lower <= both.upper
    assert both.lower <= most.upper
    assert compose.bracket([(one, 20), (LocalPureLDP(0.01, 1.0), 40)], 1e-6) == least
    # Too many numbers of messages matter.
    assert local_view.bracket(one, 10**9, 1e-6) is None
    assert local_view.bracket(LocalGaussian(0.5, 1e-12), 10, 1e-6) is None


def test_a_ledger_of_one_kind_is_exact():
    accountant = cj.CheckInAccountant()
    event = cj.to_event(run(1e-6, 1), cj.PureLDP(epsilon0=1.0), view="local")
    accountant.compose(event, 1000)
    assert accountant.get_epsilon(1e-12) == pytest.approx(2.98458, rel=1e-5)
    assert accountant.get_lower_epsilon(1e-12) == pytest.approx(2.98458, rel=1e-5)


@pytest.mark.parametrize(
    ("one", "count", "delta"),
    [
        (LocalPureLDP(1e-6, 1.0), 1000, 1e-12),
        (LocalPureLDP(0.3, 0.1), 100, 1e-6),
        (LocalGaussian(1e-4, 1.2), 2000, 1e-9),
        (LocalGaussian(1.0, 0.02), 10**6, 1e-6),
        (LocalGaussian(0.7, 2.0), 3, 1e-5),
        (LocalPureLDP(1.0, 3.0), 100, 1e-250),
    ],
)
def test_a_glance_never_tells_too_much(one, count, delta):
    found = local_view.bracket(one, count, delta)
    assert found is not None
    assert not local_view.surely_above(one, count, found.upper, delta)
    assert local_view.surely_above(one, count, 0.4 * found.lower, delta)
