"""Counts of bits: bounds on one count, on two, and on sums of RAPPOR, against every law of a few clients."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy

import checkin_jax as cj
from checkin_jax.accounting.bounds import table, theorems
from checkin_jax.accounting.bounds.interface import AsymmetricBound, neg_log_tail
from checkin_jax.accounting.bounds.messages.equal_records import bits_at_one_record, numbers_seen
from checkin_jax.accounting.bounds.messages.subsampling import SubsampledMessages
from checkin_jax.accounting.bounds.profiles import SummedMessages
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import gaussian_slots
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.counts import summed_noise

MASS = 60.0
LOSSES = np.concatenate([np.linspace(0.0, 1.0, 21), np.linspace(1.1, 4.0, 10)])
# Bounds have a relative allowance of 1e-9, the laws here an absolute error of 1e-15.
ERROR = 2e-15
BITS = 3


def flip(epsilon0):
    return 1.0 / (1.0 + math.exp(epsilon0))


def count(ones_and_zeros, flipped):
    """Law of the number of ones among these bits, each flipped."""
    law = np.ones(1)
    for bit in ones_and_zeros:
        law = np.convolve(law, [flipped, 1.0 - flipped] if bit else [1.0 - flipped, flipped])
    return law


def divergence(first, second, losses):
    above = np.exp(losses)[:, None] * second.ravel()
    return np.maximum(first.ravel() - above, 0.0).sum(axis=1)


def both(first, second, losses):
    return np.maximum(divergence(first, second, losses), divergence(second, first, losses))


def worst_of_one(clients, epsilon0, losses):
    """The largest divergence of a count, over all bits of the others."""
    laws = (
        [count([bit, *[1] * ones, *[0] * (clients - 1 - ones)], flip(epsilon0)) for bit in (0, 1)]
        for ones in range(clients)
    )
    return np.max([both(*pair, losses) for pair in laws], axis=0)


@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("clients", [1, 2, 5, 17])
def test_one_count_is_the_worst_of_all_others(clients, epsilon0):
    losses, upper = summed_noise.one_count(clients, epsilon0, MASS)
    exact = worst_of_one(clients, epsilon0, losses)
    assert np.all(upper >= exact - ERROR)
    np.testing.assert_allclose(upper, exact, rtol=1e-5, atol=1e-14)
    one_more = worst_of_one(clients + 1, epsilon0, losses)
    assert np.all(one_more <= upper + ERROR)
    assert np.any(summed_noise.one_count(clients + 1, epsilon0, MASS)[1][:1] < exact[:1])


@pytest.mark.parametrize(("clients", "epsilon0"), [(400, 0.5), (3_000, 2.0), (200_000, 1.0)])
def test_runs_of_numbers_of_ones_cost_little(clients, epsilon0):
    """By tails of binomial laws: all others alike, and half of them."""
    losses, upper = summed_noise.one_count(clients, epsilon0, MASS)
    losses, flipped, exact = losses[:80:8], flip(epsilon0), []
    for ones in (0, clients - 1):
        prob, others = (1.0 - flipped if ones else flipped), clients - 1
        s = np.arange(others + 1)
        w, beyond = scipy.stats.binom.pmf(s, others, prob), scipy.stats.binom.sf(s, others, prob)
        lines = (1.0 - 2.0 * flipped) * w - np.expm1(losses)[:, None] * (beyond + flipped * w)
        exact.append(lines.max(axis=1))
    exact = np.max(exact, axis=0)
    assert np.all(upper[:80:8] >= exact * (1.0 - 1e-10))
    assert np.all(upper[:80:8][exact > 1e-9] <= 1.2 * exact[exact > 1e-9])
    assert upper[0] <= 1.01 * exact[0]


@pytest.mark.parametrize("epsilon0", [0.3, 1.2, 2.5])
@pytest.mark.parametrize("clients", [2, 3, 5, 8])
def test_two_counts_are_above_every_pair(clients, epsilon0):
    flipped = flip(epsilon0)
    laws = [
        [count([bit, *[1] * ones, *[0] * (clients - 1 - ones)], flipped) for bit in (0, 1)]
        for ones in range(clients)
    ]
    losses, upper = summed_noise.two_counts(clients, epsilon0, MASS)
    worst = np.max(
        [
            both(np.outer(one[0], two[1]), np.outer(one[1], two[0]), losses)
            for one, two in itertools.product(laws, laws)
        ],
        axis=0,
    )
    assert np.all(upper >= worst - ERROR)
    assert upper[0] <= 1.2 * worst[0]
    # One count, and two of bits that tell less, are not bounds.
    one = np.interp(losses, *summed_noise.one_count(clients, epsilon0, MASS))
    assert np.any(one < 0.99 * worst)
    assert summed_noise.two_counts(clients, 0.8 * epsilon0, MASS)[1][0] < worst[0]


def test_many_messages_are_bounded_as_where_all_send():
    """Beyond the range of one method the other is a bound on the same count."""
    clients, epsilon0 = 600_000, 1.0
    near = summed_noise.one_count(clients, epsilon0, 40)
    pair = summed_noise.two_counts(4 * clients, epsilon0, 40)
    half = summed_noise.composed(*near, pair[0])
    assert np.all(pair[1][:60] < half[:60])
    exact = 2.0 * math.tanh(0.5) / math.sqrt(2.0 * math.pi * 8.0 * clients * flip(1.0) * (1.0 - flip(1.0)))
    assert exact < pair[1][0] * 2.0 * math.sqrt(2.0) < 3.0 * exact


@functools.cache
def sums(holders, epsilon0):
    """Law of the counts of all bits, these records being summed."""
    laws = [count([holder == bit for holder in holders], flip(0.5 * epsilon0)) for bit in range(BITS)]
    return functools.reduce(np.multiply.outer, laws)


def of_sample(target, others, rates, epsilon0):
    """Law of number and counts, as one vector; the target's rate is the first."""
    found = [np.zeros((count + 1,) * BITS) for count in range(len(others) + 2)]
    records = (target, *others)
    for sent in itertools.product((False, True), repeat=len(records)):
        prob = math.prod(rate if one else 1.0 - rate for rate, one in zip(rates, sent, strict=True))
        found[sum(sent)] += prob * sums(tuple(itertools.compress(records, sent)), epsilon0)
    return np.concatenate([each.ravel() for each in found])


def worst_sample(rates, epsilon0):
    """The largest divergence of a round over all records of the others; either order is a pair of records."""
    orders = itertools.product if len(set(rates[1:])) > 1 else _unordered
    found = (
        both(*(of_sample(target, others, rates, epsilon0) for target in (0, 1)), LOSSES)
        for others in orders(range(BITS), repeat=len(rates) - 1)
    )
    return np.max(list(found), axis=0)


def _unordered(values, *, repeat):
    return itertools.combinations_with_replacement(values, repeat)


def flips(law, clients):
    """Law of messages and flips of their first two bits from the second record's, of a law of `of_sample`."""
    found, start = np.zeros((clients + 1, 2 * clients + 1)), 0
    for number in range(clients + 1):
        for counts in itertools.product(range(number + 1), repeat=BITS):
            found[number, counts[0] + number - counts[1]] += law[start]
            start += 1
    return found


def of_run(run, randomizer):
    with float64():
        unit = Unit(run, randomizer, "aggregate", "replace-one", neg_log_tail(1.0, 1e-9))
        bound = theorems.message_sums(unit)
        assert bound is not None
        return np.asarray(bound.upper(LOSSES)), bound


@pytest.mark.parametrize("epsilon0", [0.5, 2.0, 5.0])
@pytest.mark.parametrize(("clients", "rate"), [(1, 0.3), (2, 0.6), (4, 0.25), (5, 0.7), (6, 1.0)])
def test_sums_of_a_sample(clients, rate, epsilon0):
    if rate < 1.0:
        run = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=rate)
    else:
        run = cj.Shuffle(num_clients=clients)
    exact = worst_sample((rate,) * clients, epsilon0)
    upper, bound = of_run(run, cj.Rappor(epsilon0=epsilon0))
    assert np.all(upper >= exact - ERROR)
    assert upper[0] <= 1.25 * exact[0]
    # Wrong neighbours: less for every bit, a count for two.
    assert of_run(run, cj.Rappor(epsilon0=0.85 * epsilon0))[0][0] < exact[0]
    with float64():
        single = SubsampledMessages(bound.counted, rate, lambda number: one_count(number, 0.5 * epsilon0))
        assert np.any(np.asarray(single.upper(LOSSES)) < 0.99 * exact)


def one_count(number, epsilon0):
    """The wrong profile: of one count."""
    facts = number, epsilon0, MASS
    return SummedMessages("one count", 2.0 * epsilon0, summed_noise.one_count, facts)


@pytest.mark.parametrize("epsilon0", [0.5, 2.0, 5.0])
@pytest.mark.parametrize(
    "rates", [(0.3,), (0.6,) * 3, (0.7,) * 5, (1.0,) * 4, (0.6, 0.2, 0.3, 0.9), (0.1, 0.8, 1.0)]
)
def test_flips_where_all_others_hold_the_second_record(rates, epsilon0):
    """Both orders, for all losses: the events are the best ones of flips, whose law is a post-processing."""
    clients, others = len(rates), (1,) * (len(rates) - 1)
    first, second = (of_sample(target, others, rates, epsilon0) for target in (0, 1))
    theirs = Others(np.array(rates[1:]), np.ones(clients - 1))
    found = bits_at_one_record(numbers_seen(rates[0], theirs, MASS), 0.5 * epsilon0).lower(LOSSES)
    # Wrong neighbour: a faster target.
    faster = numbers_seen(min(1.2 * rates[0], 1.0), theirs, MASS)
    more = bits_at_one_record(faster, 0.5 * epsilon0).lower(LOSSES[:1])[0][0]
    assert rates[0] == 1.0 or more[0] > 1.01 * divergence(first, second, LOSSES[:1])[0]
    merged = [flips(law, clients) for law in (first, second)]
    for (apart, mass), (one, other), whole in zip(
        found, (merged, merged[::-1]), ((first, second), (second, first)), strict=True
    ):
        lower = apart - np.expm1(LOSSES) * mass
        np.testing.assert_allclose(lower, divergence(one, other, LOSSES), atol=2e-7)
        assert np.all(lower <= divergence(one, other, LOSSES) + ERROR)
        assert np.all(lower <= divergence(*whole, LOSSES) + ERROR)


@pytest.mark.parametrize("rates", [(0.6, 0.2, 0.3), (0.5, 0.5, 0.1, 0.1)])
def test_sums_at_unequal_rates(rates):
    distinct, counts = np.unique(rates, return_counts=True)
    run = cj.ShuffledCheckIn(
        num_clients=len(rates),
        check_in_prob=cj.Rates(values=distinct.tolist(), counts=counts.tolist()),
        num_rounds=1,
    )
    exact = worst_sample(rates, 2.0)
    upper, _ = of_run(run, cj.Rappor(epsilon0=2.0))
    assert np.all(upper >= exact - ERROR)
    assert upper[0] <= 1.3 * exact[0]


@pytest.mark.parametrize("fleet", [(0.6, 0.3), (0.6, 0.2, 0.1), (0.4, 0.5, 0.6), (0.2, 0.6, 0.6, 0.1)])
def test_sums_within_limits_of_rates(fleet):
    """Every fleet within the limits, the target being its first client."""
    exact, others = worst_sample(fleet, 2.0), math.fsum(fleet[1:]) * (1.0 - 1e-12)

    def upper(largest):
        limits = cj.RateLimits(largest=largest, expected_check_ins=others)
        run = cj.ShuffledCheckIn(num_clients=len(fleet), check_in_prob=limits, num_rounds=1)
        return of_run(run, cj.Rappor(epsilon0=2.0))[0]

    assert np.all(upper(0.6) >= exact - ERROR)
    # A wrong neighbour: the target is faster than the limit.
    assert fleet[0] < 0.6 or upper(0.5)[0] < exact[0]


def of_window(target, others, dummy, prob, slots, minibatch, epsilon0):
    """Law of the sums of a fixed window with hidden dummies."""
    records = (target, *others)
    cells = slots // minibatch
    whole = np.zeros(((minibatch + 1) ** BITS,) * cells)
    for places in itertools.product((None, *range(slots)), repeat=len(records)):
        chance = math.prod(1.0 - prob if place is None else prob / slots for place in places)
        among = [
            [records[i] for i, place in enumerate(places) if place == slot] or [dummy]
            for slot in range(slots)
        ]
        for used in itertools.product(*among):
            share = chance / math.prod(map(len, among))
            laws = [
                sums(tuple(sorted(used[i * minibatch : (i + 1) * minibatch])), epsilon0).ravel()
                for i in range(cells)
            ]
            whole += share * functools.reduce(np.multiply.outer, laws)
    return whole


@pytest.mark.parametrize("epsilon0", [1.0, 4.0])
@pytest.mark.parametrize(
    ("clients", "prob", "slots", "minibatch"),
    [(1, 1.0, 4, 2), (2, 1.0, 4, 2), (3, 0.7, 4, 2), (3, 1.0, 2, 2), (4, 1.0, 3, 3)],
)
def test_sums_of_slots(clients, prob, slots, minibatch, epsilon0):
    run = cj.FixedWindow(
        num_clients=clients, num_slots=slots, check_in_prob=prob, num_epochs=1, minibatch=minibatch
    )
    facts = prob, slots, minibatch, epsilon0
    exact = np.max(
        [
            both(*(of_window(target, others, dummy, *facts) for target in (0, 1)), LOSSES)
            for others in itertools.combinations_with_replacement(range(BITS), clients - 1)
            for dummy in range(BITS)
        ],
        axis=0,
    )
    with float64():
        unit = Unit(run, cj.Rappor(epsilon0=epsilon0), "aggregate", "replace-one", neg_log_tail(1.0, 1e-9))
        bound = gaussian_slots.r3_of_sums(unit)
        assert bound is not None
        assert not isinstance(bound, AsymmetricBound)
        upper = np.asarray(bound.upper(LOSSES))
    assert np.all(upper >= exact - ERROR)


def of_averages(target, others, prob, slots, epsilon0):
    """Law of the loads and sums of averaged slots."""
    records = (target, *others)
    found = {}
    for places in itertools.product((None, *range(slots)), repeat=len(records)):
        chance = math.prod(1.0 - prob if place is None else prob / slots for place in places)
        held = [
            tuple(sorted(records[i] for i, place in enumerate(places) if place == slot))
            for slot in range(slots)
        ]
        law = functools.reduce(np.multiply.outer, [sums(each, epsilon0).ravel() for each in held])
        loads = tuple(map(len, held))
        found[loads] = found.get(loads, 0.0) + chance * law
    return np.concatenate([found[loads].ravel() for loads in sorted(found)])


@pytest.mark.parametrize("epsilon0", [1.0, 4.0])
@pytest.mark.parametrize(("clients", "prob", "slots"), [(2, 0.5, 1), (4, 0.3, 1), (3, 0.6, 2), (4, 0.9, 3)])
def test_averages_of_slots(clients, prob, slots, epsilon0):
    run = cj.AveragedUpdates(num_clients=clients, num_slots=slots, check_in_prob=prob)
    exact = np.max(
        [
            both(*(of_averages(target, others, prob, slots, epsilon0) for target in (0, 1)), LOSSES)
            for others in itertools.combinations_with_replacement(range(BITS), clients - 1)
        ],
        axis=0,
    )
    with float64():
        unit = Unit(run, cj.Rappor(epsilon0=epsilon0), "aggregate", "replace-one", neg_log_tail(1.0, 1e-9))
        bound = theorems.t_star_averages(unit)
        assert bound is not None
        upper = np.asarray(bound.upper(LOSSES))
    assert np.all(upper >= exact - ERROR)


@pytest.mark.parametrize(
    "build",
    [theorems.message_sums, theorems.t_star_averages, gaussian_slots.r3_of_sums],
    ids=lambda each: each.__name__,
)
def test_statements_name_the_page_of_the_proof(build):
    (row,) = (each for each in table.BOUNDS if each.build is build)
    assert "docs/theory_mechanisms.md" in row.reference
