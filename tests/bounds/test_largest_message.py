"""The largest message as a lower end: its events against mpmath, and a run's against the truth of that one test."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from oracles import exact_rounds as exact
from scipy.special import ndtr

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.largest_message import (
    LARGEST_IN_SLOTS,
    largest_average,
    largest_in_slots,
    largest_message,
)
from checkin_jax.accounting.bounds.select import unit_bound

pytestmark = pytest.mark.usefixtures("x64")
PLACES = np.linspace(0.0, 37.0, 2048)
LOSSES = np.array([0.0, 1e-3, 0.05, 0.3, 1.0, 4.0])


def lines(one):
    """P(A) - Q(A), Q(A) and 1 - P(A) of its events."""
    return one.gained, one.exceeding, one.not_exceeding


def events(n: int, rate: float, mu: float, place: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """P(A) and Q(A), A: some message is beyond the place, the target among them with its rate."""
    beyond = [rate * mp.erfc((place - at) / mp.sqrt(2)) / 2 for at in (0, mu)]
    others = (1 - beyond[0]) ** (n - 1)
    return 1 - others * (1 - beyond[1]), 1 - others * (1 - beyond[0])


@pytest.mark.parametrize(
    ("n", "rate", "mu"), [(2, 1.0, 1.0), (50, 1.0, 3.0), (410_000_000_000, 1.0, 3.295), (1000, 0.3, 2.0)]
)
def test_lines_are_those_of_the_best_place(n, rate, mu):
    sides = largest_message(n, rate, mu).lower(LOSSES)
    with mp.workdps(60):
        every = [events(n, rate, mu, mp.mpf(float(place))) for place in PLACES[:886]]
        for i, loss in enumerate(LOSSES):
            c = mp.exp(mp.mpf(float(loss)))
            truths = max(p - c * q for p, q in every), max((1 - q) - c * (1 - p) for p, q in every)
            for truth, (difference, mass) in zip(truths, sides):
                value = mp.mpf(float(difference[i])) - (c - 1) * mp.mpf(float(mass[i]))
                assert value <= max(truth, 0) * (1 + mp.mpf("1e-12"))
                assert value >= truth * (1 - mp.mpf("1e-4")) - mp.mpf("1e-13")


def test_every_line_is_that_of_an_event():
    """Each by itself at its own place: differences from below, masses from above."""
    given = 3 * 10**6, 1.0, 2.5
    difference, seen, unseen = lines(largest_message(*given))
    with mp.workdps(320):
        alone = lines(largest_message(1, 1.0, 2.5))
        for i in range(0, 1500, 100):
            p, q = events(*given, mp.mpf(float(PLACES[i])))
            assert mp.mpf(float(difference[i])) <= p - q
            assert mp.mpf(float(seen[i])) >= q
            assert mp.mpf(float(unseen[i])) >= 1 - p
        # The wrong neighbour forgets what the others may send.
        p, q = events(*given, mp.mpf(float(PLACES[300])))
        assert mp.mpf(float(alone[0][300])) > p - q
        assert mp.mpf(float(alone[1][300])) < q


def test_a_run_is_told_by_one_message_far_out():
    """Any message of any round beyond a place: closed forms for the whole run, in the best place."""
    n, rounds, mu, delta = 410_000_000_000, 269, 2.0 / 0.607, 1e-6
    best = 0.0
    with mp.workdps(60):
        for place in np.linspace(8.7, 9.1, 21):
            p, q = events(n, 1.0, mu, mp.mpf(float(place)))
            none_p, none_q = (1 - p) ** rounds, (1 - q) ** rounds
            if 1 - none_p > delta:
                best = max(best, float(mp.log((1 - none_p - delta) / (1 - none_q))))
    g = cj.account(
        cj.Shuffle(num_clients=n, num_rounds=rounds), cj.Gaussian(noise_multiplier=0.607), delta=delta
    )
    assert 0.99 * best < g.lower
    assert "largest" in g.lower_method
    # Not far above it: the composed events are worth little more than the best of them.
    assert g.lower < 1.03 * best
    assert math.isclose(best, 0.0568, rel_tol=1e-2)


# --- slots whose empty ones show a dummy

FIXED = (cj.FixedWindow(num_clients=4, num_slots=3, check_in_prob=0.7), [0.7] * 4, [(0, 1, 2)] * 4, (0, 1, 2))
# The target is the fastest client of four; and a slower one of rate 1/2.
UNEQUAL = (
    cj.FixedWindow(num_clients=4, num_slots=3, check_in_prob=cj.Rates([0.7, 0.5, 0.2], counts=[1, 2, 1])),
    [0.7, 0.5, 0.5, 0.2],
    [(0, 1, 2)] * 4,
    (0, 1, 2),
)
SLOWER = (UNEQUAL[0], [0.5, 0.7, 0.5, 0.2], *UNEQUAL[2:])
# The target is the third of five clients: both slots of its window are shown.
SLIDING = (
    cj.SlidingWindow(num_clients=5, window=2),
    [1.0] * 5,
    [(2, 3), (0, 1), (1, 2), (3, 4), (4, 5)],
    (2, 3),
)


def in_slots(window, relation, mu):
    """The witness of the account itself."""
    run, noise = window[0], cj.Gaussian(noise_multiplier=2.0 / mu)
    rate = window[1][0] if window[0].unequal_rates else None
    found = unit_bound(run, noise, "messages", 1.0, 1e-6, relation=relation, client_rate=rate).bound.witnesses
    (one,) = (each for each in found if each.name == LARGEST_IN_SLOTS)
    slots = run.slots_of(rate)
    facts = {"slots": slots.number, "use_prob": slots.use_prob_lower, "empty_prob": slots.empty_prob}
    facts |= {"mu": mu, "replaced": relation == "replace-one"}
    np.testing.assert_allclose(lines(one), lines(largest_in_slots(**facts)), rtol=1e-12)
    return one, facts


def exceeded(window, relation, mu, place):
    """P(A) and Q(A) by going through all choices, A: a slot of the target's exceeds the place."""
    _, rates, slots, shown = window
    beyond = ndtr(np.array([mu, 0.0, 0.5 * mu]) - place)
    channel = np.stack([1.0 - beyond, beyond], axis=1)
    held = [1] * (len(rates) - 1)
    absent = rates if relation == "replace-one" else [0.0, *rates[1:]]
    first = exact.window(channel, (0, *held), rates, slots, shown, 2)
    second = exact.window(channel, (1, *held), absent, slots, shown, 2)
    # The first output is that no slot exceeds it.
    return float(first[1:].sum()), float(second[1:].sum())


@pytest.mark.parametrize(
    ("window", "relation"),
    [
        *itertools.product((FIXED, SLIDING), ("replace-one", "add-or-remove-one")),
        (UNEQUAL, "replace-one"),
        (SLOWER, "replace-one"),
    ],
    ids=["fixed", "fixed-added", "sliding", "sliding-added", "unequal", "slower"],
)
@pytest.mark.parametrize("mu", [3.0, 6.0])
def test_the_largest_message_in_slots_is_bounded_by_the_window_itself(window, relation, mu):
    one, facts = in_slots(window, relation, mu)
    wrong = {
        "dummies are forgotten": largest_in_slots(**facts | {"empty_prob": 0.0}),
        "the target is always used": largest_in_slots(**facts | {"use_prob": 1.0}),
        "fewer slots": largest_in_slots(**facts | {"slots": 1}),
    }
    seen = dict.fromkeys(wrong, False)
    for i in range(100, 700, 40):
        p, q = exceeded(window, relation, mu, PLACES[i])
        gained, mass, unseen = (float(part[i]) for part in lines(one))
        assert gained <= (p - q) * (1.0 + 1e-9)
        assert mass >= q * (1.0 - 1e-9)
        assert unseen >= (1.0 - p) * (1.0 - 1e-9)
        if q < 0.02:
            assert gained > 0.9 * (p - q)
            # A target that stays fills slots, too, which is not counted.
            assert mass < (1.1 if relation == "add-or-remove-one" else 3.0) * q
        for name, other in wrong.items():
            seen[name] |= bool(lines(other)[0][i] > p - q or lines(other)[1][i] < q * (1.0 - 1e-9))
    assert all(seen.values()), seen


def test_a_client_alone_in_its_window_is_hidden_by_dummies():
    """No other client can be in the slot: under Q there is a dummy for sure."""
    one, facts = in_slots((cj.SlidingWindow(num_clients=5, window=1),), "add-or-remove-one", 4.0)
    assert facts["empty_prob"] == 1.0
    assert lines(one)[1][300] >= ndtr(0.5 * 4.0 - PLACES[300])


def test_clients_of_unequal_rates_stand_out_in_slots_as_those_of_one_rate_do():
    """Rates 2% about their mean: the lower end was a sixtieth, by messages at the opposite record among zeros."""
    noise, ends = cj.Gaussian(noise_multiplier=0.796), []
    for rates in (0.03, cj.Rates([0.0306, 0.0294], counts=[23_000, 23_000])):
        run = cj.FixedWindow(num_clients=46_000, num_slots=178, check_in_prob=rates)
        ends.append(cj.account(run, noise, delta=2.32e-5, client_rate=None if rates == 0.03 else 0.0306))
    assert 0.99 * ends[0].lower < ends[1].lower < 1.04 * ends[0].lower
    assert ends[1].epsilon < 1.2 * ends[1].lower


# --- averages of slots


def average_exceeded(n, m, prob, mu, place):
    """P(A) and Q(A) over all choices, A: some average exceeds the others' record by `place` standard deviations."""
    p = q = 0.0
    for choices in itertools.product(range(m + 1), repeat=n):
        chance = math.prod(prob / m if slot < m else 1.0 - prob for slot in choices)
        loads = [choices.count(slot) for slot in range(m)]
        quiet = np.array([math.log1p(-ndtr(-place)) if load else 0.0 for load in loads])
        q += chance * -math.expm1(quiet.sum())
        if choices[0] < m:
            quiet[choices[0]] = math.log1p(-ndtr(mu / math.sqrt(loads[choices[0]]) - place))
        p += chance * -math.expm1(quiet.sum())
    return p, q


@pytest.mark.parametrize(("n", "m", "prob"), [(2, 1, 1.0), (4, 3, 0.6), (5, 2, 0.3), (3, 12, 0.9)])
@pytest.mark.parametrize("mu", [2.0, 5.0])
def test_the_largest_average_is_bounded_by_the_slots_themselves(n, m, prob, mu):
    one = largest_average(n, m, prob, mu, 40.0)
    gained, mass, unseen = lines(one)
    for i in range(0, 400, 25):
        p, q = average_exceeded(n, m, prob, mu, PLACES[i])
        assert gained[i] <= (p - q) * (1.0 + 1e-9) + 1e-15
        assert mass[i] >= q * (1.0 - 1e-9)
        assert unseen[i] >= (1.0 - p) * (1.0 - 1e-9)
        if q < 0.01:
            assert gained[i] > 0.95 * (p - q)
            assert mass[i] < 2.5 * q


def test_the_noise_of_an_average_is_not_that_of_one_message():
    """The wrong neighbours: the loads are forgotten, the target is certain to take part, others are never there."""
    n, m, prob, mu = 4, 2, 0.8, 3.0
    p, q = average_exceeded(n, m, prob, mu, PLACES[110])
    one = largest_average(n, m, prob, mu, 40.0)
    alone = largest_average(1, m, prob, mu, 40.0)
    assert lines(one)[0][110] <= p - q < lines(alone)[0][110]
    assert lines(alone)[1][110] < q <= lines(one)[1][110]
