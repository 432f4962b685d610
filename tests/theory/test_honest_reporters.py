"""At least h honest reporters: batches with a floor, clients kept from sending, against an adversary who picks them.

All data sets of few clients, and every choice of the others who report; docs/theory_rates.md, 3.
"""

import math
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact
from oracles import krr

import checkin_jax as cj
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.training.schedules import schedule_of

E0 = 1.5
P = math.exp(E0)
CS = 1 + (P - 1) * np.array([0.0, 0.05, 0.2, 0.5, 0.9])
EVERYWHERE = np.exp(E0 * np.linspace(0.0, 1.3, 30))
MECHANISMS = {
    "any": (cj.PureLDP(epsilon0=E0), np.array(krr.krr_channel(3, P))),
    "3-ary": (cj.KaryResponse(epsilon0=E0, num_values=3), np.array(krr.krr_channel(3, P))),
    "l2": (cj.L2Mechanism(epsilon0=E0), exact.one_number(P, [1, -1, 0.3])),
}
OTHERS = 3


def batch(channel, held, those, own=None):
    """Law of the messages of those others who report, and of the client's with the law `own`, if it reports."""
    rows = [*(channel[i] for i in held), channel[0] if own is None else own]
    there = [1.0 if i in those else 0.0 for i in range(len(held))]
    return exact.histogram(rows, [*there, 0.0 if own is None else 1.0])


def choices(least):
    return [those for size in range(least, OTHERS + 1) for those in combinations(range(OTHERS), size)]


def floor_pairs(channel, rate, least):
    """Neighbouring pairs: at least `least` others in the client's batch, any others where it stays away."""
    for held in combinations_with_replacement(range(len(channel)), OTHERS):
        for beside, without in product(choices(least), [(), (0, 1, 2)]):
            laws = [
                (1 - rate) * batch(channel, held, without) + rate * batch(channel, held, beside, channel[x])
                for x in range(len(channel))
            ]
            yield from permutations(laws, 2)


def upper(run, randomizer):
    found = unit_bound(run, randomizer, "messages", 1.0, 1e-9).bound
    with float64():
        return np.asarray(found.upper(np.log(CS))), [
            side for one in found.witnesses for side in one.lower(np.log(CS))
        ]


def floor(rate, least, num_clients=50):
    return cj.ShuffledCheckIn(num_clients=num_clients, check_in_prob=rate, min_reports=least)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("least", [1, 2, 3])
def test_whoever_else_reports(name, least):
    (randomizer, channel), rate = MECHANISMS[name], 0.3
    pairs = list(floor_pairs(channel, rate, least - 1))
    truth = exact.most(pairs, CS)
    above, lines = upper(floor(rate, least), randomizer)
    assert (above >= truth * (1 - ORACLE_ROUNDING)).all()
    seen = truth > 1e-9
    assert (truth[seen] / above[seen]).max() > 0.75
    # One of the fleets that are described has nobody else; any mechanism may be binary response.
    if name == "any":
        pairs += floor_pairs(np.array(krr.krr_channel(2, P)), rate, least - 1)
    top = exact.most(pairs, EVERYWHERE)
    assert lines
    for difference, far in lines:
        value = np.asarray(difference)[:, None] - (EVERYWHERE - 1)[None, :] * np.asarray(far)[:, None]
        assert (value <= top * (1 + ORACLE_ROUNDING) + 1e-14).all()


@pytest.mark.parametrize("least", [2, 3])
def test_wrong_neighbours_of_a_floor(least):
    """Others' coins in place of the floor, and the client not counted in it."""
    randomizer, channel, rate = MECHANISMS["any"][0], np.array(krr.krr_channel(2, P)), 0.3
    truth = exact.most(list(floor_pairs(channel, rate, least - 1)), CS)
    assert (upper(floor(rate, least), randomizer)[0] >= truth * (1 - ORACLE_ROUNDING)).all()
    for wrong in (
        cj.ShuffledCheckIn(num_clients=least, check_in_prob=rate),
        cj.ShuffledCheckIn(num_clients=OTHERS + 1, check_in_prob=rate),
        floor(rate, least + 1),
        floor(0.8 * rate, least),
    ):
        assert (upper(wrong, randomizer)[0] < truth * 0.999).any(), wrong


def test_who_reports_may_not_depend_on_messages():
    """The others are kept from sending if the client's message is 0: then the floor of other batches hides nothing."""
    (randomizer, channel), rate, held = MECHANISMS["any"], 0.3, (2, 2, 2)

    def law(x):
        found = (1 - rate) * batch(channel, held, (0, 1, 2))
        for message, those in enumerate([(0,), (0, 1, 2), (0, 1, 2)]):
            own = np.where(np.arange(len(channel)) == message, channel[x], 0.0)
            found = found + rate * batch(channel, held, those, own)
        return found

    truth = exact.leak(law(0), law(1), CS)
    assert (truth > upper(floor(rate, 2), randomizer)[0] * 1.01).any()


def chosen_by_the_first_round(channel, held, record, then):
    """Law of both rounds: of two others, the one who is kept from sending in the second depends on the first."""
    first = exact.histogram([channel[held[0]], channel[record]], [1.0, 1.0])
    second = [exact.histogram([channel[other], channel[record]], [1.0, 1.0]) for other in held]
    return np.concatenate([mass * second[then[i]] for i, mass in enumerate(first)])


@pytest.mark.parametrize(
    ("run", "right"),
    [
        (cj.Shuffle(num_clients=3, num_rounds=2, num_colluding=1), True),
        (cj.ShuffledCheckIn(num_clients=9, check_in_prob=1.0, num_rounds=2, min_reports=2), True),
        (cj.Shuffle(num_clients=3, num_rounds=2), False),
    ],
)
def test_whom_the_adversary_stops_may_depend_on_earlier_rounds(run, right):
    randomizer, channel = MECHANISMS["any"][0], np.array(krr.krr_channel(2, P))
    outcomes = [i for i, mass in enumerate(exact.histogram([channel[0]] * 2, [1.0] * 2)) if mass > 0]
    worst = np.zeros(len(CS))
    for held, picks in product(product(range(2), repeat=2), product(range(2), repeat=len(outcomes))):
        then = np.zeros(9, dtype=int)
        then[outcomes] = picks
        laws = [chosen_by_the_first_round(channel, held, x, then) for x in range(2)]
        worst = np.maximum(worst, exact.most(list(permutations(laws, 2)), CS))
    held_up = []
    for c, delta in zip(CS[1:], worst[1:]):
        found = cj.account(run, randomizer, delta=float(delta) * (1 - ORACLE_ROUNDING))
        held_up.append(found.epsilon >= math.log(c) * (1 - ORACLE_ROUNDING))
    assert all(held_up) == right


@pytest.mark.parametrize("view", ["messages", "aggregate"])
def test_gaussian_messages_of_a_floor(view):
    """A share of the profile of everybody's sending: the same bracket as for one round of the batch alone.

    How many messages count as dummies is chosen by delta, which is another one there, in view messages.
    """
    noise = cj.Gaussian(noise_multiplier=2.0)
    batch_alone = cj.account(cj.Shuffle(num_clients=40), noise, delta=1e-5 / 0.3, view=view)
    found = cj.account(floor(0.3, 40), noise, delta=1e-5, view=view)
    assert found.epsilon == pytest.approx(batch_alone.epsilon, rel=1e-3 if view == "aggregate" else 0.07)
    assert 0.0 < found.lower <= found.epsilon
    if view == "aggregate":
        # Exact: H of the sum is that of noise 2 sqrt(40) against a move by 2.
        assert found.lower == pytest.approx(found.epsilon, rel=1e-3)


def test_logs_take_floors_and_colluders():
    hours, randomizer = [600, 900, 600], cj.PureLDP(epsilon0=1.0)

    def log(**terms):
        return cj.from_availability(hours, coin=0.2, **terms)

    ask = {"delta": 1e-6}
    plain, beside = (cj.account(log(**terms), randomizer, **ask) for terms in ({}, {"num_colluding": 100}))
    fewer = cj.account(cj.from_availability([500, 800, 500], coin=0.2), randomizer, **ask)
    assert plain.epsilon < beside.epsilon == fewer.epsilon
    assert "at most 100 clients collude" in str(beside)
    floored = cj.account(log(min_reports=80), randomizer, **ask)
    rounds = cj.ShuffledCheckIn(num_clients=900, check_in_prob=0.2, num_rounds=3, min_reports=80)
    alike = cj.account(rounds, randomizer, **ask)
    assert floored.epsilon == pytest.approx(alike.epsilon, rel=1e-6)
    assert "at least 80 honest messages" in str(floored)
    assert beside.epsilon < floored.epsilon
    with pytest.raises(ValueError, match="num_colluding=600: expected at most 599"):
        log(num_colluding=600)
    with pytest.raises(ValueError, match=r"min_reports=901: expected a whole number in \[0, 900\]"):
        log(min_reports=901)
    month = log(min_reports=80)
    ledger = cj.CheckInAccountant()
    ledger.compose(cj.to_event(month, randomizer))
    ledger.compose(cj.to_event(month, randomizer))
    year = cj.from_availability(hours * 2, coin=0.2, min_reports=80)
    assert ledger.get_epsilon(1e-6) == pytest.approx(cj.account(year, randomizer, **ask).epsilon, rel=1e-3)
    assert cj.CheckInAccountant().compose(cj.to_event(log(), randomizer)).get_epsilon(
        1e-6
    ) < ledger.get_epsilon(1e-6)


def test_training_and_published_bounds_leave_floors_out():
    with pytest.raises(ValueError, match="min_reports=4: expected 0 for training"):
        schedule_of(floor(0.3, 4))
    found = cj.compare(floor(0.3, 4), cj.PureLDP(epsilon0=1.0), delta=1e-6)
    assert {each.validity for each in found} == {"certified"}
