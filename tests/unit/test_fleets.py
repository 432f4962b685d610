"""Fleets whose check-in rates differ, and availability logs: the trainer draws the law that the accountant assumes."""

from __future__ import annotations

import collections
import itertools
import time

import numpy as np
import pytest
from scipy import stats
from test_schedule import same_law

import checkin_jax as cj
from checkin_jax.training.draws import Fleet
from checkin_jax.training.schedules import schedule_of

ACCEPT, REJECT = 1e-3, 1e-8
DRAWS = 6_000
# Clients 0 and 1 at .3, client 2 at .1, client 3 at .9.
FEW = cj.Rates([0.3, 0.1, 0.9], counts=[2, 1, 1])
EACH = np.array([0.3, 0.3, 0.1, 0.9])


def _sets_p_value(rounds, rates) -> float:
    """Chi-square test of sets of clients against independent coins of these rates."""
    counts = collections.Counter(frozenset(each.tolist()) for each in rounds)
    expected, observed = [], []
    for present in itertools.product((False, True), repeat=len(rates)):
        mass = float(np.prod(np.where(present, rates, 1.0 - rates)))
        expected.append(mass * len(rounds))
        observed.append(counts[frozenset(np.flatnonzero(present).tolist())])
    if sum(observed) < len(rounds):
        return 0.0  # somebody came who never does
    expected, observed = np.array(expected), np.array(observed)
    rare = expected < 5
    cells = [np.append(column[~rare], column[rare].sum()) for column in (observed, expected)]
    cells = [column[cells[1] > 0] for column in cells]
    return float(stats.chisquare(*cells).pvalue)


def test_every_client_throws_its_own_coin():
    run = cj.ShuffledCheckIn(num_clients=4, check_in_prob=FEW, num_rounds=DRAWS)
    draw = schedule_of(run).draw(7)
    rounds = [draw(t) for t in range(DRAWS)]
    assert _sets_p_value(rounds, EACH) > ACCEPT
    # One rate for all, whichever, is another law; so are the same rates held by others.
    for wrong in (np.full(4, EACH.mean()), np.full(4, EACH.max()), np.full(4, EACH.min()), EACH[::-1]):
        assert _sets_p_value(rounds, wrong) < REJECT
    # Rounds are independent of each other: pairs of rounds are products.
    both = [np.concatenate([a, b + 4]) for a, b in zip(rounds[::2], rounds[1::2])]
    assert _sets_p_value(both, np.tile(EACH, 2)) > ACCEPT
    # And the order tells nothing: of two that came either is the first.
    first = [each[0] < each[1] for each in rounds if len(each) == 2]
    assert stats.binomtest(sum(first), len(first)).pvalue > ACCEPT


def test_messages_that_are_lost_are_lost_whoever_sent_them():
    run = cj.ShuffledCheckIn(num_clients=4, check_in_prob=FEW, drop_out_prob=0.5)
    draw = schedule_of(run).draw(8)
    rounds = [draw(t) for t in range(DRAWS)]
    assert _sets_p_value(rounds, EACH / 2) > ACCEPT
    assert _sets_p_value(rounds, EACH) < REJECT


def test_a_large_fleet_comes_as_its_rates_say():
    rng = np.random.default_rng(0)
    rates = np.exp(rng.uniform(np.log(0.02), np.log(0.3), 2_000))
    rates[:200] = 1.0
    run = cj.ShuffledCheckIn(num_clients=2_000, check_in_prob=cj.Rates(rates))
    schedule, present, rounds = schedule_of(run), np.zeros(2_000), 2_000
    draw, numbers = schedule.draw(3), []
    for t in range(rounds):
        clients = draw(t)
        assert len(set(clients.tolist())) == len(clients)
        present[clients] += 1
        numbers.append(len(clients))
    assert (present[:200] == rounds).all()

    def p_value(of):
        z = (present[200:] - rounds * of) ** 2 / (rounds * of * (1 - of))
        return stats.chi2(1_800).sf(z.sum())

    assert ACCEPT < p_value(rates[200:]) < 1 - ACCEPT
    assert p_value(np.full(1_800, rates[200:].mean())) < REJECT
    assert p_value(np.sort(rates[200:])) < REJECT
    # The number of messages varies less than that of equal coins.
    edges = np.arange(min(numbers), max(numbers) + 2, 8) - 0.5
    edges = np.concatenate([[-0.5], edges[1:-1], [2_000.5]])
    spread = np.sqrt(np.sum(rates * (1 - rates)))
    expected = rounds * np.diff(stats.norm(rates.sum(), spread).cdf(edges))
    observed = np.histogram(numbers, edges)[0]
    assert stats.chisquare(observed, expected * rounds / expected.sum()).pvalue > ACCEPT
    equal = rounds * np.diff(stats.binom(2_000, rates.mean()).cdf(edges))
    assert stats.chisquare(observed, equal * rounds / equal.sum()).pvalue < REJECT


def _plain_window(rng, slots):
    """Who picks which slot, to the letter; -1: nobody."""
    picked = np.where(rng.random(4) < EACH, rng.integers(slots, size=4), -1)
    return [np.flatnonzero(picked == i) for i in range(slots)]


def test_windows_have_the_laws_of_their_algorithms():
    rng, slots = np.random.default_rng(0), 2
    plain = [_plain_window(rng, slots) for _ in range(DRAWS)]
    fixed = cj.FixedWindow(num_clients=4, num_slots=slots, check_in_prob=FEW, num_epochs=DRAWS, minibatch=2)
    draw = schedule_of(fixed).draw(5)
    drawn = [tuple(draw(t).tolist()) for t in range(DRAWS)]
    used = [tuple(int(rng.choice(each)) if len(each) else -1 for each in window) for window in plain]
    assert same_law(drawn, used) > ACCEPT
    dummies = np.mean([[client < 0 for client in window] for window in drawn])
    assert abs(dummies - schedule_of(fixed).dummies) < 5 * 0.5 / np.sqrt(2 * DRAWS)
    averaged = cj.AveragedUpdates(num_clients=4, num_slots=slots, check_in_prob=FEW, num_epochs=DRAWS)
    draw = schedule_of(averaged).draw(5)
    drawn = [tuple(tuple(sorted(draw(slots * t + i).tolist())) for i in range(slots)) for t in range(DRAWS)]
    whole = [tuple(tuple(each.tolist()) for each in window) for window in plain]
    assert same_law(drawn, whole) > ACCEPT
    # The test sees the mean rate in place of each client's own.
    equal = cj.AveragedUpdates(num_clients=4, num_slots=slots, check_in_prob=EACH.mean(), num_epochs=DRAWS)
    draw = schedule_of(equal).draw(5)
    wrong = [tuple(tuple(sorted(draw(slots * t + i).tolist())) for i in range(slots)) for t in range(DRAWS)]
    assert same_law(wrong, whole) < REJECT


def test_those_who_are_available_throw_the_coin_of_the_round():
    run = cj.from_availability([4, 2, 3] * DRAWS, [0.2, 0.9, 0.5] * DRAWS, drop_out_prob=0.1)
    schedule = schedule_of(run)
    draw = schedule.draw(2)
    rounds = [draw(t) for t in range(3 * DRAWS)]
    for place, (number, coin) in enumerate([(4, 0.2), (2, 0.9), (3, 0.5)]):
        mine = rounds[place::3]
        assert _sets_p_value(mine, np.full(number, 0.9 * coin)) > ACCEPT
        mean = np.where(np.arange(4) < number, 0.0, 1e-12) + 0.9 * np.mean([0.2, 0.9, 0.5])
        assert _sets_p_value(mine, mean) < REJECT  # neither the mean coin
        if number != 3:  # nor the mean number
            assert _sets_p_value(mine, np.full(3, 0.9 * coin)) < REJECT
    assert schedule.divisor(1) == pytest.approx(0.9 * np.mean([4 * 0.2, 2 * 0.9, 3 * 0.5]))
    numbers = [len(each) for each in rounds]
    coins = [(4, 0.2), (2, 0.9), (3, 0.5)]
    expected = DRAWS * sum(stats.binom(number, 0.9 * coin).pmf(np.arange(5)) for number, coin in coins)
    assert stats.chisquare(np.bincount(numbers, minlength=5), expected).pvalue > ACCEPT
    # Whoever is always there is in a message of a round more often than who is away at times.
    seen = np.bincount(np.concatenate(rounds), minlength=4)
    chances = np.array([schedule.exposure(client)[0] for client in range(4)])
    assert (np.diff(chances[[0, 2, 3]]) < 0).all()
    assert (np.diff(seen[[0, 2, 3]]) < 0).all()


def test_a_fleet_is_drawn_at_the_cost_of_those_who_come_and_the_same_again():
    rng = np.random.default_rng(1)
    fleet = cj.Rates(np.exp(rng.uniform(np.log(1e-4), np.log(3e-3), 1_000_000)))
    run = cj.ShuffledCheckIn(num_clients=1_000_000, check_in_prob=fleet, num_rounds=50)
    schedule = schedule_of(run)
    draw = schedule.draw(4)
    first = draw(0)
    started = time.process_time()
    rounds = [draw(t) for t in range(50)]
    assert time.process_time() - started < 2.0  # some ms each
    np.testing.assert_array_equal(rounds[0], first)
    np.testing.assert_array_equal(schedule_of(run).draw(4)(31), rounds[31])
    assert not np.array_equal(rounds[30], rounds[31])
    assert not np.array_equal(schedule_of(run).draw(5)(31), rounds[31])
    assert len(first) == pytest.approx(schedule.divisor(0), rel=0.2)


def test_rates_in_groups_are_those_of_their_clients():
    fleet = Fleet(cj.Rates([0.5, 0.001, 0.25], counts=[2, 10**9, 3]))
    assert [fleet.rate_of(i) for i in (0, 1, 2, 10**9 + 1, 10**9 + 2, 10**9 + 4)] == [
        0.5,
        0.5,
        0.001,
        0.001,
        0.25,
        0.25,
    ]
    clients = fleet.present(np.random.default_rng(0))
    assert clients.max() > 9e8
    assert len(clients) == pytest.approx(fleet.expected, rel=0.01)
    assert fleet.all_absent(1.0) == pytest.approx(0.0)


def test_stand_ins_of_the_audit_keep_the_rates_apart():
    fleet = cj.Rates(np.geomspace(0.02, 0.3, 1_001))
    for run in (
        cj.ShuffledCheckIn(num_clients=1_001, check_in_prob=fleet, num_rounds=100),
        cj.AveragedUpdates(num_clients=1_001, num_slots=50, check_in_prob=fleet),
        cj.FixedWindow(num_clients=1_001, num_slots=50, check_in_prob=fleet),
    ):
        few = schedule_of(run).fewer_clients()
        assert few.num_clients == 3
        np.testing.assert_allclose(few.check_in_prob.values, np.geomspace(0.02, 0.3, 3) / 0.6)
        assert (schedule_of(few).exposure(2) > 10 * schedule_of(few).exposure(0)).all()
    log = cj.from_availability([5_000, 60_000, 30_000], 0.1)
    few = schedule_of(log).fewer_clients()
    assert few.log.available.tolist() == [1, 3, 2]
    assert few.log.coin.tolist() == [0.5, 0.5, 0.5]
    assert few.num_rounds == 1


def test_what_does_not_say_how_often_each_client_comes_is_refused():
    limits = cj.RateLimits(largest=0.3, expected_check_ins=20.0)
    with pytest.raises(ValueError, match="or Rates for training: limits do not"):
        schedule_of(cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=limits))
