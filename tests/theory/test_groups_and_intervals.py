"""Groups of clients with randomizers of their own, and rates known as an interval, by enumeration of few clients.

docs/theory_rates.md, 1 (K1) and 3.
"""

import math
from itertools import permutations, product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact
from oracles import krr

import checkin_jax as cj
from checkin_jax.accounting.account import OWN_GROUP
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.kernels.execution.devices import float64

P = 3.0
E0 = math.log(P)
CS = 1 + (P - 1) * np.array([0.02, 0.1, 0.25, 0.5, 0.8])
KARY = np.array(krr.krr_channel(3, P))
MESSAGES = cj.PureLDP(epsilon0=E0)


def above(run, **more):
    found = unit_bound(run, MESSAGES, "messages", 1.0, 1e-9, **more).bound
    with float64():
        return np.asarray(found.upper(np.log(CS)))


# Rates in an interval.
LOW, HIGH, NUMBER = 0.15, 0.6, 4


def truth_within(channel, own, others):
    """The largest divergence over fleets with these rates of the client and of each of the others."""
    worst = np.zeros(len(CS))
    for mine, theirs in product(own, product(others, repeat=NUMBER - 1)):
        if list(theirs) == sorted(theirs):
            worst = np.maximum(worst, exact.most(exact.rounds(channel, [*theirs, mine]), CS))
    return worst


def test_rates_anywhere_in_an_interval():
    """Divergences are convex in each rate, so that the ends and a point between them tell all fleets."""
    ends = (LOW, 0.3, HIGH)
    limits = cj.RateLimits.between(LOW, HIGH, num_clients=NUMBER)
    run = cj.ShuffledCheckIn(num_clients=NUMBER, check_in_prob=limits)
    bound = above(run)
    truth = truth_within(KARY, ends, ends)
    assert (bound >= truth * (1 - ORACLE_ROUNDING)).all()
    assert (truth / bound).max() > 0.5


def test_no_rate_stands_for_an_interval():
    """One common rate, at either end or at both, is no bound on fleets whose rates differ."""
    truth = truth_within(KARY, (LOW, HIGH), (LOW, HIGH))
    common = [above(cj.ShuffledCheckIn(num_clients=NUMBER, check_in_prob=rate)) for rate in (LOW, HIGH)]
    assert (np.maximum(*common) < truth * 0.98).any()


def test_slow_others_are_not_the_worst():
    """The client meant at its rate, and all others at the lowest: others that nearly always come hide it less."""
    low, high, own = 0.3, 0.99, 0.1
    slow = truth_within(KARY, (own,), (low,))
    fast = truth_within(KARY, (own,), (high,))
    assert (fast > 5 * slow).any()
    limits = cj.RateLimits.between(own, high, num_clients=NUMBER)
    run = cj.ShuffledCheckIn(num_clients=NUMBER, check_in_prob=limits)
    assert (above(run, client_rate=own) >= fast * (1 - ORACLE_ROUNDING)).all()


@pytest.mark.parametrize("coin", [0.25, 0.5])
def test_one_common_rate_of_an_interval_has_its_upper_end(coin):
    """Messages can be thinned: what the larger common rate shows determines what the smaller one would."""
    smaller = exact.most(exact.rounds(KARY, [coin] * NUMBER), CS)
    larger = exact.most(exact.rounds(KARY, [HIGH] * NUMBER), CS)
    assert (larger >= smaller).all()
    assert (above(cj.ShuffledCheckIn(num_clients=NUMBER, check_in_prob=HIGH)) >= smaller).all()


# Groups: 3-ary responses of p = 3, and messages that are told from these by what they are.
def told_apart(channel, wider):
    """Both channels on letters of their own."""
    first = np.concatenate([channel, np.zeros((len(channel), wider.shape[1]))], axis=1)
    return first, np.concatenate([np.zeros((len(wider), channel.shape[1])), wider], axis=1)


BINARY = np.array(krr.krr_channel(2, 9.0))
OTHER = {
    "other letters": told_apart(KARY, BINARY),
    "the same letters": (KARY, np.array(krr.krr_channel(3, 9.0))),
    "the same letters, no noise": (KARY, np.eye(3)),
}


def group_pairs(mine, theirs, own_rates, other_rates):
    """Neighbouring pairs: the client is the last of its own group; all records of everybody."""
    for held in product(range(len(mine)), repeat=len(own_rates) - 1):
        for beside in product(range(len(theirs)), repeat=len(other_rates)):
            rows = [*(theirs[i] for i in beside), *(mine[i] for i in held)]
            laws = [exact.histogram([*rows, own], [*other_rates, *own_rates]) for own in mine]
            yield from permutations(laws, 2)


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("coin", [0.3, 1.0])
def test_groups_hide_their_own_clients(kind, coin):
    mine, theirs = OTHER[kind]
    truth = exact.most(group_pairs(mine, theirs, [coin] * 2, [0.4, 0.8]), CS)
    bound = above(cj.ShuffledCheckIn(num_clients=2, check_in_prob=coin))
    assert (bound >= truth * (1 - ORACLE_ROUNDING)).all()
    assert (truth / bound).max() > 0.5


def test_wrong_neighbours_of_groups():
    """Counting clients of other groups as cover, and taking the smallest epsilon of the groups."""
    mine, theirs = OTHER["other letters"]
    truth = exact.most(group_pairs(mine, theirs, [0.5] * 2, [0.5] * 2), CS)
    assert (above(cj.ShuffledCheckIn(num_clients=4, check_in_prob=0.5)) < truth * 0.99).any()
    wide = exact.most(group_pairs(theirs, mine, [0.5] * 2, [0.5] * 2), CS)
    assert (above(cj.ShuffledCheckIn(num_clients=2, check_in_prob=0.5)) < wide * 0.99).any()


def phones(number):
    return cj.ShuffledCheckIn(num_clients=number, check_in_prob=0.05, num_rounds=20)


def test_the_worst_group_comes_first():
    groups = {
        "new": (phones(4_000), cj.PureLDP(epsilon0=1.0)),
        "old": (phones(900), cj.PureLDP(epsilon0=3.0)),
    }
    found = cj.account_groups(groups, delta=1e-6, bounds="fast")
    assert list(found) == ["old", "new"]
    for name, (run, randomizer) in groups.items():
        own = cj.account(run, randomizer, delta=1e-6, bounds="fast")
        assert (found[name].epsilon, found[name].lower) == (own.epsilon, own.lower)
        assert OWN_GROUP in found[name].assumptions
    assert found["old"].epsilon > found["new"].epsilon


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: cj.account_groups({}, delta=1e-6), TypeError, "expected a mapping from names to pairs"),
        (lambda: cj.account_groups({"a": phones(9)}, delta=1e-6), TypeError, r"groups\['a'\]"),
        (
            lambda: cj.account_groups(
                {"a": (cj.FixedWindow(num_clients=9, num_slots=3), MESSAGES)}, delta=1e-6
            ),
            ValueError,
            "no bound is known where clients of other groups compete for slots",
        ),
        (
            lambda: cj.account(phones(9), {"a": MESSAGES}, delta=1e-6),
            TypeError,
            "`account_groups` takes groups with randomizers of their own",
        ),
    ],
)
def test_more_than_groups_by_themselves_is_refused(call, error, told):
    with pytest.raises(error, match=told):
        call()
