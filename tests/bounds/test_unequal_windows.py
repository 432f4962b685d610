"""T2'h, windows of common slots at rates that differ: what is computed, against its statement and the mechanism."""

import math

import numpy as np
import pytest
import scipy.stats
from conftest import ORACLE_ROUNDING
from oracles import krr, random_check_ins
from oracles import unequal_rates as brute

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.profiles import GaussianProfile, profile_of
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.occupied_slots import OccupiedGame, OccupiedHidden, UnequalOccupied
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.staged_clones import AnyMessage

P = 3.0
CS = np.array([1.0, 1.2, 1.7, 2.6])
MESSAGES = cj.PureLDP(epsilon0=math.log(P))
TERNARY = cj.KaryResponse(epsilon0=math.log(P), num_values=3)


def evaluated(others, theta, rate, slots, cs, played):
    members = np.asarray(others if theta == 1.0 else brute.members(others, theta))
    with float64():
        pool = pool_cover.sum_of(members, None, 45.0)
        bound = UnequalOccupied(rate, theta, pool, slots, (slots, rate), math.log(P), 45.0)
        if played:
            bound = OccupiedGame(rate, theta, pool, slots, AnyMessage(math.log(P)), 45.0)
            assert bound.gains
        return np.asarray(bound.upper(np.log(cs)))


@pytest.mark.parametrize("played", [False, True], ids=["one law", "the hexagon's game"])
@pytest.mark.parametrize(
    ("others", "theta", "rate", "slots"),
    [
        ([0.3, 0.1, 0.5], 0.5, 0.2, 2),
        ([0.3, 1.0, 0.9], 0.3, 1.0, 3),
        ([0.4, 1.0, 1.0], 1.0, 0.3, 4),
        ([0.3] * 9, 0.3, 0.05, 5),
        ([0.2, 0.5] * 3, 0.5, 0.5, 40),
        ([0.2] * 10, 0.2, 0.6, 6),
    ],
)
@pytest.mark.thorough(but=2)
def test_what_is_computed_is_above_what_is_stated_and_near_it(others, theta, rate, slots, played):
    stated = brute.t2_prime_h(others, theta, rate, slots, P, CS, played)
    found = evaluated(others, theta, rate, slots, CS, played)
    assert (found >= stated * (1 - 1e-12)).all()
    # The game has one weight for all shares of few clients.
    assert played or (found[:2] <= 1.05 * stated[:2] + 3e-5).all()


def test_the_game_of_many_clients_is_near_what_is_stated():
    others, cs = [0.5] * 60, np.array([1.0, 1.001])
    stated, one_law = (brute.t2_prime_h(others, 0.5, 0.4, 3, P, cs, played) for played in (True, False))
    found = evaluated(others, 0.5, 0.4, 3, cs, True)
    assert (found >= stated * (1 - 1e-12)).all()
    assert (found <= 1.05 * stated).all()
    assert (one_law > 1.02 * stated).all()


@pytest.mark.parametrize("empty", ["visible", "dummy"])
@pytest.mark.parametrize("rates", [(0.05, 0.3, 0.8), (0.2, 1.0, 1.0)])
@pytest.mark.parametrize(
    ("theorem", "messages", "values"), [("T2'h", MESSAGES, (2, 3)), ("T*h", TERNARY, (3,))]
)
@pytest.mark.thorough(but=2)
def test_every_client_of_a_window_is_covered(rates, empty, theorem, messages, values):
    """All slower clients too; the witnesses are mechanisms with these very rates."""
    run = cj.FixedWindow(num_clients=3, num_slots=2, check_in_prob=cj.Rates(rates), empty_slots=empty)
    for g in sorted(set(rates)):
        one = unit_bound(run, messages, "messages", 1.0, 1e-9, bounds=(theorem,), client_rate=g).bound
        with float64():
            bound = np.asarray(one.upper(np.log(CS)))
            lines = [side for each in one.witnesses for side in each.lower(np.log(CS))]
        for target in sorted({rate for rate in rates if rate <= g}):
            others = list(rates)
            others.remove(target)
            truth = np.max(
                [leaked(others, target, 2, responses(k), empty == "visible", CS) for k in values], axis=0
            )
            assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all(), (rates, g, target)
        # The last of these targets is the client meant.
        everywhere = np.exp(np.linspace(0.0, 1.3, 12))
        truth = np.max(
            [leaked(others, g, 2, responses(k), empty == "visible", everywhere) for k in values], axis=0
        )
        for difference, far in lines:
            value = np.asarray(difference)[:, None] - (everywhere - 1)[None, :] * np.asarray(far)[:, None]
            assert (value <= truth * (1 + ORACLE_ROUNDING) + 1e-15).all()


@pytest.mark.parametrize("empty", ["visible", "dummy"])
def test_messages_that_are_nearly_private_are_covered(empty):
    """Td of the game: with a small probability a message is its record."""
    shown, often = 1e-8, P / (P + 1)
    channel = np.array(
        [
            [shown, 0, (1 - shown) * often, (1 - shown) / (P + 1)],
            [0, shown, (1 - shown) / (P + 1), (1 - shown) * often],
        ]
    )
    rates = (0.05, 0.3, 0.3)
    messages = cj.ApproximateLDP(epsilon0=math.log(P), delta0=shown)
    run = cj.FixedWindow(num_clients=3, num_slots=2, check_in_prob=cj.Rates(rates), empty_slots=empty)
    cs = np.append(CS, 1.01 * P)
    with float64():
        found = theorems.t_delta(Unit(run, messages, "messages", cj.protocols.REPLACE, 30.0))
        assert found is not None
        bound = np.asarray(found.upper(np.log(cs)))
    assert (
        bound >= leaked(rates[:2], rates[2], 2, channel, empty == "visible", cs) * (1 - ORACLE_ROUNDING)
    ).all()


def test_that_all_of_the_pool_are_used_must_be_counted():
    """Two clients in four slots are rarely in one."""
    with float64():
        pool = pool_cover.sum_of(np.array([1.0]), None, 45.0)
        bound = OccupiedHidden(0.9, 0.9, pool, 4, profile_of(TERNARY), 45.0)
        whole = np.asarray(bound.upper(np.log(CS)))
        less = whole - bound._counted.everybody * bound.profile.delta(np.log(CS))
    truth = leaked([0.9], 0.9, 4, responses(3), True, CS)
    assert (whole >= truth * (1 - ORACLE_ROUNDING)).all()
    assert (less < 0.9 * truth).all()


def responses(values):
    """k-ary randomized response."""
    return np.array(krr.krr_channel(values, P))


def leaked(others, rate, slots, channel, visible, cs):
    """The most of messages of this channel, over the others' records and the dummy's; the target is the last."""
    choices = random_check_ins.fixed_window_choices(len(others) + 1, slots, (*others, rate))
    used = random_check_ins.one_of_each_slot(choices, range(slots))
    values = len(channel)
    top = np.zeros(len(cs))
    for dummy in range(values):
        rows = np.vstack([channel, channel[dummy]])
        tree = random_check_ins.constant_tree(random_check_ins.flag_empty(rows) if visible else rows, slots)
        for data, other in random_check_ins.neighbours(values, len(others) + 1, exchangeable=False):
            if data[-1] != other[-1]:
                pair = [random_check_ins.output_law(used, held, tree) for held in (data, other)]
                top = np.maximum(top, [random_check_ins.hockey_stick(*pair, c) for c in cs])
    return top


@pytest.mark.parametrize(("size", "theta", "noise"), [(10, 0.3, 20.0), (10, 0.3, 5.0), (100, 0.05, 20.0)])
def test_shares_of_few_participants_are_below_no_sum_of_messages(size, theta, noise):
    """Among so many slots hardly two clients meet; the sum of J messages tells two opposite records of one apart."""
    slots, above_one = 10**6, np.array([0.0, 0.002, 0.005, 0.01, 0.02, 0.05])
    participants = np.arange(1, size + 2)
    masses = scipy.stats.binom.pmf(participants - 1, size, theta)
    apart = masses * (1.0 - participants * (participants - 1.0) / 2.0 / slots)
    loss = np.log1p(above_one)
    sums = [GaussianProfile(2.0 / noise / math.sqrt(j)).delta(loss) for j in participants.tolist()]
    with float64():
        found = OccupiedHidden(
            1.0, theta, pool_cover.certain(float(size)), slots, GaussianProfile(2.0 / noise), 45.0
        ).upper(loss)
    assert (found >= apart @ np.array(sums)).all()
    # One participant more than there are hides too much.
    more = [GaussianProfile(2.0 / noise / math.sqrt(j + 1.0)).delta(loss) for j in participants.tolist()]
    assert (masses @ np.array(more) < apart @ np.array(sums)).all()
