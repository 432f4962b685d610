"""Slots that clients compete for: how many are won, independent weights in their stead, and what is NOT a bound."""

import math
from itertools import product

import numpy as np
import pytest
from oracles import exact_rounds as exact
from oracles import random_check_ins as brute
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages.cover import UniformSlot
from checkin_jax.accounting.bounds.messages.one_step_bounds import KaryBound, TotalVariationBound
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.messages.profile_cover_sums import WeightLaw
from checkin_jax.accounting.bounds.profiles import MessageProfile
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import contention, gaussian_slots
from checkin_jax.accounting.bounds.windows.contention import Contested, RivalledSlots, slots_won, win_prob
from checkin_jax.accounting.bounds.windows.small_windows import SmallWindow
from checkin_jax.numerics.counts import chernoff

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0


def winning(window: int) -> np.ndarray:
    """Law of the number of slots of one full sliding window in which the client would be drawn, by all throws."""
    law = np.zeros(window + 1)
    # The client's window is 0..m-1; the others begin 1 - m .. m - 1 slots after it.
    starts = [start for start in range(1 - window, window) if start]
    for throws in product(range(window), repeat=len(starts)):
        loads = np.zeros(window)
        for start, throw in zip(starts, throws):
            if 0 <= start + throw < window:
                loads[start + throw] += 1
        one = np.ones(1)
        for load in loads:
            one = np.convolve(one, [1.0 - 1.0 / (load + 1.0), 1.0 / (load + 1.0)])
        law += one / window ** len(starts)
    return law


@pytest.mark.parametrize("window", [2, 3, 4])
def test_the_number_of_slots_won_is_stochastically_below(window):
    law = winning(window)
    assert law @ np.arange(window + 1.0) == pytest.approx(
        window * win_prob(window - 1, 1.0 / window), rel=1e-9
    )
    values, masses = slots_won(window, window - 1, 1.0 / window, MASS)
    assert masses.sum() >= 1.0
    for k in range(window + 1):
        assert masses[values >= k].sum() >= law[k:].sum() - 1e-12


def test_many_slots_are_not_all_won():
    contested = Contested(10**4, 1.0, 0.5, 10**4 - 1, 1e-4)
    many = Clones(contested, 1.0, MASS)
    values, masses = slots_won(10**4, 10**4 - 1, 1e-4, MASS)
    mean = 10**4 * (1.0 - math.exp(-1.0))
    assert mean < values @ masses / masses.sum() < 1.02 * mean
    plain = Clones(UniformSlot(10**4, 1.0, 0.5), 1.0, MASS)
    losses = np.array([0.0, 0.01, 0.03])
    assert (np.asarray(many.upper(losses)) < 0.85 * np.asarray(plain.upper(losses))).all()


def test_the_mean_alone_is_no_bound():
    """Windows of two slots: 1.5 of them are won on average, but both are a quarter of the time or more."""
    p, loss = 4.0, 0.93
    tree = brute.constant_tree(brute.random_channel(np.random.default_rng(0), 3, p, "rotated"), 2)
    used = brute.sliding_window(3, 2)
    one, other = (brute.output_law(used, data, tree) for data in ((2, 0, 2), (2, 1, 2)))
    truth = brute.hockey_stick(one, other, math.exp(loss))
    assert truth > 1e-3
    assert (
        float(np.asarray(Clones(UniformSlot(1, 0.5, 0.5), math.log(p), MASS).upper(np.array([loss])))[0])
        < truth
    )
    right = Clones(Contested(2, 1.0, 0.5, 1, 0.5), math.log(p), MASS)
    assert float(np.asarray(right.upper(np.array([loss])))[0]) >= truth


@pytest.mark.parametrize("kind", ["extremal", "rotated", "atomic"])
def test_sliding_windows_themselves_are_below(kind):
    n, window, p = 5, 3, 4.0
    rng = np.random.default_rng(2)
    used = brute.sliding_window(n, window)
    losses = np.array([0.0, 0.1, 0.3, 0.6, 0.9])
    bound = Clones(Contested(window, 1.0, 0.5, window - 1, 1.0 / window), math.log(p), MASS)
    upper = np.asarray(bound.upper(losses))
    for _ in range(4):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, kind), n - window + 1)
        truth = brute.divergences(used, tree, 2, n, np.exp(losses), exchangeable=False)
        assert (np.array(truth) <= upper + 1e-12).all()


@pytest.mark.parametrize(
    ("number", "prob"), [(1, 0.3), (2, 0.75), (7, 0.6), (40, 0.1), (300, 0.63), (4096, 0.9)]
)
def test_tails_of_indicators_are_above_independent_ones_and_below_chernoff(number, prob):
    exponents = np.array([0.2, 1.0, 3.0, 8.0, 31.0])
    values, bounds = chernoff.exceeded(number, prob, exponents)
    exact = binom.sf(values, number, prob)
    assert (bounds >= exact * (1.0 - 1e-9)).all()
    assert (bounds <= np.exp(-exponents) * (1.0 + 1e-12)).all()
    assert (values <= chernoff.most(float(number), prob, exponents)).all()
    # For so many, several times as often as they are exceeded.
    inside = (exact > 1e-12) & (values > number * prob + 2.0)
    assert (bounds[inside] <= 6.0 * exact[inside]).all()


@pytest.mark.parametrize("number", [60.0, 5e3, 1e8])
def test_enough_of_a_probability(number):
    least = np.floor(number * np.array([0.0, 0.1, 0.4, 0.97]))
    (found,) = chernoff.enough(least, number, np.array([4.0]))
    assert (binom.cdf(least - 1.0, number, found) <= math.exp(-4.0) * (1.0 + 1e-9)).all()
    less = found[1:] - 1.0 / math.sqrt(number)
    assert (binom.cdf(least[1:] - 1.0, number, less) > math.exp(-4.0)).all()


# Steps on whole multiples of 1/12: weights 1, 1/2, 1/3 and 1/4 times 1, -1 or 0.
_UNIT, _STEP = 12, {1: 0.1, -1: 0.1, 0: 0.8}


def stop_loss(law: np.ndarray, at: float) -> float:
    """E(S - at)_+ of a law on whole multiples of 1/12 around the middle."""
    places = (np.arange(law.size) - law.size // 2) / _UNIT
    return float(np.maximum(places - at, 0.0) @ law)


def kept(law: np.ndarray, size: int) -> np.ndarray:
    middle = law.shape[-1] // 2
    return law[..., middle - size : middle + size + 1]


def thrown(slots: int, num_rivals: int, size: int) -> np.ndarray:
    """Law of sum w(C) d over slots among which the num_rivals throw uniformly, w = 1/(C + 1), at least 1/4.

    By the coefficients of z^num_rivals: the loads of a slot have weights z^C / C!.
    """
    one = np.zeros((num_rivals + 1, 2 * size + 1))
    for load in range(num_rivals + 1):
        for step, prob in _STEP.items():
            one[load, size + step * _UNIT // min(load + 1, 4)] += prob / math.factorial(load)
    shape = 2 * num_rivals + 1, 4 * size + 1

    def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = np.fft.irfft2(np.fft.rfft2(a, shape) * np.fft.rfft2(b, shape), shape)
        return kept(found[: num_rivals + 1], size)

    power, result = one, None
    while slots:
        if slots % 2:
            result = power if result is None else times(result, power)
        slots //= 2
        power = times(power, power) if slots else power
    assert result is not None
    return result[-1] / result[-1].sum()


def independent(number: int, weights: WeightLaw, size: int) -> np.ndarray:
    """Law of the same sum with independent weights, 1/4 at least."""
    one = np.zeros(2 * size + 1)
    for value, prob in zip(*weights):
        for step, mass in _STEP.items():
            one[size + step * _UNIT // min(round(1.0 / value), 4)] += prob * mass
    result = one
    for _ in range(number - 1):
        result = kept(np.convolve(result, one), size)
    return result


@pytest.mark.parametrize("loads", [1, 2, 3])
def test_independent_weights_are_above_all_throws(loads):
    """Common slots, whose loads depend on each other most, with all loads from `loads` on at the least weight."""
    slots, others, size = 24, 23, 20 * _UNIT
    exact = thrown(slots, others, size)
    parts = contention.independent_weights(slots, others, 1.0 / slots, MASS, loads)
    laws = [(part.mass, independent(int(part.number), part.weights, size)) for part in parts]
    for at in np.linspace(0.0, 9.0, 13):
        assert stop_loss(exact, at) <= sum(mass * stop_loss(law, at) for mass, law in laws) + 1e-12


def test_independent_loads_by_themselves_are_no_bound():
    """Without larger weights, or a larger mass: exceeded at a threshold of zero."""
    slots, others, size = 24, 23, 20 * _UNIT
    probs = np.append(binom.pmf(np.arange(3), others, 1.0 / slots), binom.sf(2, others, 1.0 / slots))
    plain = independent(slots, WeightLaw(1.0 / np.arange(1.0, 5.0), probs), size)
    exact = thrown(slots, others, size)
    assert stop_loss(exact, 0.0) > stop_loss(plain, 0.0) * (1.0 + 1e-5)


@pytest.mark.parametrize("kind", ["rotated", "extremal"])
def test_every_kind_of_message_in_sliding_windows_is_below(kind):
    """k-ary response, a total variation, a privacy profile; and their bounds if a slot fewer were won."""
    n, window, p = 5, 3, 4.0
    rng = np.random.default_rng(7)
    used = brute.sliding_window(n, window)
    losses = np.array([0.0, 0.1, 0.3, 0.6, 0.9])
    cover = Contested(window, 1.0, 0.5, window - 1, 1.0 / window)
    protocol = cj.SlidingWindow(num_clients=n, window=window)
    unit = Unit(
        protocol, cj.ApproximateLDP(epsilon0=math.log(p), delta0=0.0), "messages", "replace-one", MASS
    )
    way = gaussian_slots.Reduction(window, 1.0, 1.0)
    r3 = gaussian_slots._hidden_slots(unit, way, MessageProfile(unit.randomizer))
    small = SmallWindow(window, MessageProfile(unit.randomizer), MASS)
    bounds = [r3, small, TotalVariationBound(cover, math.log(p), 1.0, MASS)]
    if kind == "rotated":
        bounds.append(KaryBound(cover, math.log(p), 3, MASS))
    upper = [np.asarray(bound.upper(losses)) for bound in bounds]
    least = np.asarray(HiddenSlots(1, 1.0 / 3.0, MessageProfile(unit.randomizer), MASS).upper(losses))
    exceeded = False
    for _ in range(4):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, kind), n - window + 1)
        truth = np.array(brute.divergences(used, tree, 2, n, np.exp(losses), exchangeable=False))
        assert all((truth <= each + 1e-12).all() for each in upper)
        exceeded |= bool((truth > least).any())
    assert exceeded


def test_weights_are_those_of_the_steps():
    """WeightLaw of one half are half the probability; weights that may vanish, a number of slots that varies."""
    profile, losses = MessageProfile(cj.Laplace(epsilon0=1.0)), np.linspace(0.0, 0.3, 7)
    half = RivalledSlots(50, 0.8, profile, MASS, weights=WeightLaw(np.array([0.5]), np.ones(1)))
    plain = np.asarray(HiddenSlots(50, 0.4, profile, MASS).upper(losses))
    assert np.asarray(half.upper(losses)) == pytest.approx(plain, rel=0.02, abs=1e-13)
    seldom = RivalledSlots(50, 0.8, profile, MASS, weights=WeightLaw(np.array([1.0, 1e-6]), np.full(2, 0.5)))
    mixed = np.zeros(losses.size)
    for number in range(5, 46):
        slots = HiddenSlots(number, 0.8 * number / 50, profile, MASS)
        mixed += binom.pmf(number, 50, 0.5) * np.asarray(slots.upper(losses))
    assert np.asarray(seldom.upper(losses)) == pytest.approx(mixed, rel=0.02, abs=1e-8)


def test_a_window_of_far_more_slots_than_messages_leaks_what_its_messages_do():
    """No two clients meet but with a probability of 1e-12: without the slots' order this is shuffled check-in."""
    rounds, mechanism = 100_000, cj.KaryResponse(epsilon0=2.0, num_values=3)
    window = cj.FixedWindow(
        num_clients=5, num_slots=10**11, check_in_prob=1e-4, num_epochs=rounds, empty_slots="visible"
    )
    shuffled = cj.ShuffledCheckIn(num_clients=5, check_in_prob=1e-4, num_rounds=rounds)
    lower = cj.account(shuffled, mechanism, delta=1.001e-6).lower
    assert cj.account(window, mechanism, delta=1e-6).epsilon >= lower


def load_of(rates, slots):
    """Probabilities that none, one, two, ... of these clients are in a slot."""
    law = np.ones(1)
    for rate in rates:
        law = np.convolve(law, [1.0 - rate / slots, rate / slots])
    return law


@pytest.mark.parametrize("seed", range(6))
def test_loads_of_unequal_rates_are_at_least_those_of_the_law(seed):
    """A law of the same mean is exceeded: rates that differ vary less."""
    rng = np.random.default_rng(seed)
    slots, rates = int(rng.integers(2, 200)), np.exp(rng.uniform(np.log(0.01), 0.0, 400))
    run = cj.FixedWindow(num_clients=401, num_slots=slots, check_in_prob=cj.Rates([*rates, 0.5]))
    number, prob = run.slots_of(0.5).loads
    left = np.sort(np.append(rates, 0.5))
    left = np.delete(left, np.searchsorted(left, 0.5))
    least = np.zeros(left.size + 1)
    least[: number + 1] = load_of(np.full(number, prob * slots), slots)
    assert number > 0
    assert (np.cumsum(load_of(left, slots)) <= np.cumsum(least) + 1e-12).all()
    assert number * prob > 0.6 * left.sum() / slots
    same = load_of(np.full(left.size, left.mean()), slots)
    assert (np.cumsum(load_of(left, slots)) > np.cumsum(same) + 1e-9).any()


def test_windows_of_unequal_rates_are_below_the_bounds_that_count_rivals():
    """All dummies' and many others' records."""
    channel, rates = np.array([[0.8, 0.2], [0.2, 0.8]]), [0.9, 0.8, 0.9, 0.9, 0.7, 0.9, 0.9]
    run = cj.FixedWindow(num_clients=7, num_slots=2, check_in_prob=cj.Rates(rates))
    mechanism = cj.FiniteMechanism(probabilities=channel)
    losses = np.linspace(0.0, 1.2, 7)
    truth = np.zeros(losses.size)
    for held in ((0,) * 6, (1,) * 6, (0, 1) * 3):
        for dummy in (0, 1):
            laws = [exact.window(channel, (x, *held), rates, [(0, 1)] * 7, (0, 1), dummy) for x in (0, 1)]
            for pair in (laws, laws[::-1]):
                truth = np.maximum(truth, exact.leak(*pair, np.exp(losses)))
    shown = Unit(run, mechanism, "messages", "replace-one", MASS).slots
    (number, prob), facts = shown.loads, (shown.number, shown.use_prob, 0.5 * shown.use_prob)
    assert number >= 1

    def upper(cover):
        return np.asarray(Clones(cover, math.log(4.0), MASS).upper(losses))

    assert (upper(Contested(*facts, number, prob)) >= truth).all()
    assert (upper(Contested(*facts, number, prob)) < upper(UniformSlot(*facts))).any()
