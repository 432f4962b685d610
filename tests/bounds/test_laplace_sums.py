"""Sums of Laplace messages: bound and witness against the law of the sum, from its characteristic function."""

import math

import mpmath
import numpy as np
import pytest
from numpy.polynomial import Polynomial

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.messages.equal_records import (
    Numbers,
    laplace_at_one_record,
    numbers_seen,
)
from checkin_jax.accounting.bounds.profiles import summed_laplace
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.numerics.counts.summed_noise import (
    _FEW_TERMS,
    ERROR,
    _few,
    _log_density,
    _many,
    laplace_sum,
)

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


def known(number: float, used: float) -> Numbers:
    """So many messages are always seen, the target's with this probability."""
    return Numbers(*np.array([[number], [used], [1.0]]))


@pytest.mark.parametrize("number", [2, 60, 300, 20_000])
@pytest.mark.parametrize(("used", "epsilon0"), [(1.0, 1.0), (0.1, 2.5), (0.01, 0.3)])
def test_the_witness_is_just_below_what_is_seen(number, used, epsilon0):
    losses = used * epsilon0 / math.sqrt(number) * np.array([0.0, 0.05, 0.3, 1.0])
    lines = laplace_at_one_record(known(number, used), epsilon0).lower(losses)
    found = np.array([np.asarray(apart) - np.expm1(losses) * np.asarray(mass) for apart, mass in lines])
    truth = leak(number, used, epsilon0, losses)
    assert (found <= truth * (1.0 + 3e-4) + 1e-9).all()
    assert (found >= 0.99 * truth)[:, :3].all()
    # Wrong neighbour: a tenth of the terms less.
    fewer = laplace_at_one_record(known(math.floor(0.9 * number), used), epsilon0).lower(losses[:1])
    assert float(fewer[0][0][0]) > 1.02 * truth[0, 0]


SUMS = [
    (1, 0.3),
    (1, 4.0),
    (2, 1.0),
    (9, 0.3),
    (40, 0.05),
    (256, 2.0),
    (257, 0.3),
    (900, 20.0),
    (20_000, 1.0),
]


@pytest.mark.parametrize(("number", "epsilon0"), SUMS)
def test_the_profile_of_a_sum_is_just_above_its_law(number, epsilon0):
    """Against the characteristic function; not with one in a hundred terms more, nor below twice its error."""
    losses = min(epsilon0, 3.0 * epsilon0 / math.sqrt(number)) * np.array([0.0, 0.05, 0.2, 0.5, 0.8])
    found = summed_laplace(number, epsilon0).delta(losses)
    truth = leak(number, 1.0, epsilon0, losses)
    assert (found >= truth * (1.0 - 3e-4) - 1e-8).all()
    assert (found <= truth.max(axis=0) * 1.01 + 1e-8).all()
    more = summed_laplace(number + math.ceil(0.01 * number), epsilon0).delta(losses)
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
    """Pr[sum of Laplace variables > x]: of the gamma variables' difference, by partial fractions."""
    if x < 0:
        return 1 - exact_tail(number, -x)
    total, term, fewer = mpmath.mpf(0), mpmath.exp(-x), mpmath.mpf(0)
    for left in range(1, number + 1):
        fewer += term
        term *= x / left
        weight = mpmath.binomial(2 * number - 1 - left, number - 1) / mpmath.mpf(2) ** (2 * number - left)
        total += weight * fewer
    return total


@pytest.mark.parametrize(("number", "epsilon0"), [*SUMS[:5], (257, 0.3), (300, 12.0)])
def test_knots_are_above_every_threshold_of_exact_tails(number, epsilon0):
    """With 40 digits, at thresholds about each knot's best one; a little less is not."""
    losses, values = laplace_sum(number, epsilon0)
    few = number < 100
    with mpmath.workdps(40 if few else 90):
        shift, reach = mpmath.mpf(epsilon0), (12 if few else 8) * math.sqrt(2 * number)
        places = [shift / 2, *mpmath.linspace(0, epsilon0 + reach, 100 if few else 40)]
        tails = [(exact_tail(number, x - shift), exact_tail(number, x)) for x in places]
        for at in (0, losses.size // 4, losses.size // 2, (3 * losses.size) // 4):
            c = mpmath.exp(mpmath.mpf(float(losses[at])))
            truth = max(moved - c * still for moved, still in tails)
            assert values[at] >= truth
            if at == 0:
                assert values[at] * (1.0 - 1e-4) < truth


@pytest.mark.parametrize("epsilon0", [0.3, 12.0])
@pytest.mark.parametrize("law", [_few, _many])
def test_tails_of_many_terms_are_accurate(law, epsilon0):
    """With 90 digits, up to 6 standard deviations; not with a term less."""
    number = 257
    places = np.linspace(-0.5 * epsilon0, 15.0 * math.sqrt(2 * number), 620)
    (_, tails), (_, fewer) = law(number, places), law(number - 1, places)
    with mpmath.workdps(90):
        for at in (0, 3, 40, 120, 240):
            truth = exact_tail(number, mpmath.mpf(float(places[at])))
            assert abs(float(tails[at] / truth) - 1.0) < 0.1 * ERROR
    assert fewer[240] < tails[240] * (1.0 - 1e-3)


@pytest.mark.parametrize("number", [257, 258, 400, 2000])
def test_the_expansion_of_the_density_is_accurate(number):
    """Against the Bessel function with 50 digits; not with an order more."""
    for x in np.append(0.0, np.geomspace(1e-3, 22.0, 12)) * math.sqrt(number):
        with mpmath.workdps(50):
            order, place = mpmath.mpf(number) - 0.5, mpmath.mpf(float(x))
            bessel = (
                mpmath.gamma(order) / 2 if x == 0.0 else (place / 2) ** order * mpmath.besselk(order, place)
            )
            truth = mpmath.log(bessel / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(number)))
            assert abs(float(truth - float(_log_density(number, np.array(x))))) < 1e-13 * (
                1.0 + abs(float(truth))
            )
            assert abs(float(truth - float(_log_density(number + 1, np.array(x))))) > 1e-6


def test_the_remainder_of_the_expansion_is_bounded_for_all_x():
    """Olver's bound 2 exp(2 V(u_1)/nu) V(u_5)/nu^5, V the variation over t in (0, 1); not with a term less."""
    x = Polynomial([0.0, 1.0])
    terms, places = [Polynomial([1.0])], np.linspace(0.0, 1.0, 100_001)
    for _ in range(5):
        last = terms[-1]
        terms.append(0.5 * x**2 * (1.0 - x**2) * last.deriv() + (0.125 * (1.0 - 5.0 * x**2) * last).integ())
    variation = [float(np.abs(np.diff(each(places))).sum()) for each in terms]
    order = _FEW_TERMS + 0.5
    bounds = [2.0 * math.exp(2.0 * variation[1] / order) * variation[m] / order**m for m in (4, 5)]
    assert bounds[1] < 2e-13 < 0.1 * ERROR < bounds[0]


EQUAL = [([0.2] * 39, 0.2), ([0.05] * 299, 0.05), ([1.0] * 29, 1.0), ([0.4] * 1199, 0.4)]
UNEQUAL = [([0.2] * 30 + [0.7] * 9, 0.7), ([0.1, 0.5, 0.9], 0.9), ([0.05] * 400 + [0.6] * 700, 0.6)]


@pytest.mark.parametrize("epsilon0", [0.3, 3.0])
@pytest.mark.parametrize(("others", "rate"), [*EQUAL, *UNEQUAL])
def test_both_ends_of_sums_are_at_what_is_seen(others, rate, epsilon0):
    """Subsampling with the profile of the sum is attained where all others are at one end."""

    def unit(others: list[float]) -> Unit:
        rates = rate if set(others) == {rate} else cj.Rates([*others, rate])
        protocol = cj.ShuffledCheckIn(num_clients=len(others) + 1, check_in_prob=rates)
        return Unit(protocol, cj.Laplace(epsilon0=epsilon0), "aggregate", "replace-one", MASS)

    bound = theorems.message_sums(unit(others))
    assert bound is not None
    mean = sum(others) + rate
    reach = epsilon0 * rate / math.sqrt(mean) / (math.sqrt(len(others) * rate) if rate < 1.0 else 1.0)
    losses = min(max(reach, 0.3 * rate / mean**1.5), 0.3 * epsilon0) * np.array([0.0, 0.1, 0.5, 1.0])
    orders = seen(others, rate, epsilon0, losses)
    truth, upper = orders.max(axis=0), np.asarray(bound.upper(losses))
    assert (upper >= truth * (1.0 - 3e-4) - 1e-7).all()
    assert (upper <= 1.02 * truth + 1e-6).all()
    distinct, counts = np.unique(others, return_counts=True)
    numbers = numbers_seen(rate, Others(distinct, counts.astype(float)), MASS)
    for exact, (apart, mass) in zip(orders, laplace_at_one_record(numbers, epsilon0).lower(losses)):
        found = np.asarray(apart) - np.expm1(losses) * np.asarray(mass)
        assert (found <= np.minimum(exact * (1.0 + 3e-4) + 1e-7, upper * (1.0 + 1e-12))).all()
        assert (found >= 0.97 * exact - 1e-6).all()
    # Wrong neighbours: other clients less, and more.
    away = len(others) // 8 + 1
    numbers = numbers_seen(rate, Others(distinct[-1:], counts[-1:] - 1.0 * away), MASS)
    fewer = laplace_at_one_record(numbers, epsilon0).lower(losses[:1])[0]
    assert float(fewer[0][0]) > truth[0] * (1.0 + 1e-3)
    with_more = theorems.message_sums(unit([*others, *others[-away:]]))
    assert with_more is not None
    assert float(np.asarray(with_more.upper(losses[:1]))[0]) < truth[0] * (1.0 - 1e-3)


def seen(others: list[float], rate: float, epsilon0: float, losses: np.ndarray) -> np.ndarray:
    """H_c of a round's sum and number of messages in both orders, all others at one end, a little too little."""
    law = np.ones(1)
    for each in others:
        law = np.append(law * (1.0 - each), 0.0) + np.append(0.0, law * each)
    total = np.zeros((2, losses.size))
    for number in range(1, law.size + 1):
        sent = rate * law[number - 1]
        often = sent + (1.0 - rate) * (law[number] if number < law.size else 0.0)
        if often > 1e-9:
            total += often * leak(number, sent / often, epsilon0, losses)
    return total


def test_sums_of_many_messages_are_sharp():
    """No lower end, and an upper one of .056 for single messages, before."""
    run = cj.ShuffledCheckIn(num_clients=10**7, check_in_prob=0.05, num_rounds=1000)
    g = cj.account(run, cj.Laplace(epsilon0=4.3), delta=1e-8, view="aggregate")
    assert 0.0 < g.lower < g.epsilon < 1.005 * g.lower
    assert "subsampling" in g.method
    assert any("fewer messages bring less noise" in each for each in g.assumptions)
    single = cj.account(run, cj.Laplace(epsilon0=4.3), delta=1e-8)
    assert single.lower > 1.5 * g.epsilon


def test_rare_numbers_of_messages_matter_for_a_small_delta():
    """Fewer than ten of sixty clients send with a probability of 1e-8, far above delta."""
    run = cj.ShuffledCheckIn(num_clients=60, check_in_prob=0.5)
    g = cj.account(run, cj.Laplace(epsilon0=20.0), delta=1e-20, view="aggregate")
    assert g.lower < g.epsilon < 1.01 * g.lower


@pytest.mark.parametrize("epsilon0", [1.0, 10.0])
def test_no_number_of_messages_lowers_what_others_leak(epsilon0):
    """At losses that a number does not reach, its event is empty."""
    losses = epsilon0 * np.linspace(0.0, 1.1, 23)
    numbers = numbers_seen(0.1, Others(np.array([0.1]), np.array([299.0])), 54.0)
    for order in range(2):
        each = [
            laplace_at_one_record(Numbers(*(part[here : here + 1] for part in numbers)), epsilon0)
            for here in range(numbers.number.size)
        ]
        for found in (*each, laplace_at_one_record(numbers, epsilon0)):
            apart, mass = (np.asarray(part) for part in found.lower(losses)[order])
            assert (apart - np.expm1(losses) * mass >= -1e-8 * apart).all()


@pytest.mark.parametrize("randomizer", [cj.Laplace(epsilon0=1.0), cj.Rappor(epsilon0=3.0)])
def test_averages_of_slots_have_the_noise_of_one_slot(randomizer):
    """Not that of all slots together, which is the same if there is one."""

    def epsilon(run):
        return cj.account(run, randomizer, delta=1e-6, view="aggregate", bounds="subsampling").epsilon

    clients = {"num_clients": 400, "check_in_prob": 0.5}
    summed = epsilon(cj.ShuffledCheckIn(**clients))
    of_slots = [epsilon(cj.AveragedUpdates(num_slots=slots, **clients)) for slots in (1, 4, 16)]
    # One slot shows the number of participants alone: subsampling is not counted.
    assert summed < of_slots[0] < 0.8 * of_slots[1] < 0.8 * of_slots[2]
    everybody = {"num_clients": 400, "check_in_prob": 1.0}
    sure = epsilon(cj.AveragedUpdates(num_slots=1, **everybody))
    assert sure == pytest.approx(epsilon(cj.ShuffledCheckIn(**everybody)), rel=1e-3)


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
