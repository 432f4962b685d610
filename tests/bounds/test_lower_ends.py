"""Lower ends by what is seen: no choice of bounds, dummy or sum may put one above what is proved."""

import dataclasses
import functools
import itertools
import math
from collections import Counter

import jax
import numpy as np
import pytest
import scipy
from oracles import exact_rounds

import checkin_jax as cj
from checkin_jax.accounting import witnesses
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, StepCover, UniformSlot
from checkin_jax.accounting.bounds.messages.equal_records import LabelsAtOneRecord
from checkin_jax.accounting.bounds.messages.one_step_bounds import TotalVariationBound, fair_bits
from checkin_jax.accounting.bounds.profiles import LabelProfile
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.window_witnesses import CompetingBits
from checkin_jax.accounting.composition import compose
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.numerics.counts import occupancy
from checkin_jax.numerics.counts.occupancy import CommonThrows

NOISE = cj.Gaussian(noise_multiplier=2.0)


@pytest.mark.parametrize(
    "run",
    [
        cj.ShuffledCheckIn(num_clients=50, check_in_prob=0.6, num_rounds=20),
        cj.AveragedUpdates(num_clients=50, num_slots=5, check_in_prob=0.6, num_epochs=20),
    ],
)
@pytest.mark.parametrize("view", ["messages", "aggregate"])
@pytest.mark.thorough
def test_what_everybody_leaks_is_no_witness_of_a_smaller_rate(run, view):
    """G2 at rate 1 is above rate 0.6; its witness gave 3.109 below, where 3.047 is proved."""
    best = cj.account(run, NOISE, delta=1e-4, view=view)
    quick = cj.account(run, NOISE, delta=1e-4, view=view, bounds="fast")
    alone = cj.account(run, NOISE, delta=1e-4, view="messages", bounds="everybody")
    assert quick.lower <= best.epsilon
    if view == "messages":
        assert alone.lower <= best.epsilon <= alone.epsilon


def test_hidden_dummies_hide_the_number_of_occupied_slots_at_unequal_rates():
    """Witnesses in 120 occupied slots gave .868 below, where .790 is proved: 300 messages are seen."""
    rates = cj.Rates(values=[0.3, 0.9, 1.0], counts=[100, 60, 40])
    run = cj.FixedWindow(num_clients=200, num_slots=300, check_in_prob=rates)
    found = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6, bounds="fast")
    assert 0.57 < found.lower < found.epsilon < 0.79
    seen = dataclasses.replace(run, empty_slots="visible")
    assert cj.account(seen, cj.PureLDP(epsilon0=2.0), delta=1e-6, bounds="fast").lower > 0.86


@pytest.mark.parametrize(("n", "m", "epsilon0", "delta"), [(250, 100, 1.0, 1e-4), (45, 20, 2.0, 1e-3)])
@pytest.mark.thorough(but=1)
def test_hidden_dummies_do_not_show_how_many_slots_are_occupied(n, m, epsilon0, delta):
    """The visible witness leaks more; it was taken for hidden dummies, too."""
    hidden, visible = (
        cj.account(
            cj.FixedWindow(num_clients=n, num_slots=m, empty_slots=empty),
            cj.PureLDP(epsilon0=epsilon0),
            delta=delta,
        ).lower
        for empty in ("dummy", "visible")
    )
    assert hidden <= visible * 0.97


@pytest.mark.parametrize(
    ("randomizer", "values"),
    [
        (cj.PureLDP(epsilon0=1.0), 3),
        (cj.KaryResponse(epsilon0=1.0, num_values=2), 2),
        (cj.KaryResponse(epsilon0=1.0, num_values=3), 3),
    ],
)
def test_sums_beyond_a_window_do_not_tell_its_messages(randomizer, values):
    """A sum of 99 slots hides the two of the client's window: the histogram of all, the others at the last value.

    .8219 was said, and .8182 of three values, where .155 and .1596 leak.
    """
    run = cj.SlidingWindow(num_clients=100, window=2, minibatch=99)
    channel = np.exp(np.eye(values)) / (values - 1.0 + math.e)
    held = [channel[-1]] * 98
    without, *both = (exact_rounds.histogram([*held, row], [1.0] * 99) for row in channel[[-1, 0, 1]])
    # Whoever shares the slot it throws may be drawn in its place.
    p, q = (0.25 * without + 0.75 * law for law in both)
    truth = max(exact_rounds.epsilon(p, q, 1e-3), exact_rounds.epsilon(q, p, 1e-3))
    assert 0.99 * truth < cj.account(run, randomizer, delta=1e-3, view="aggregate").lower <= truth
    assert cj.account(run, randomizer, delta=1e-3, view="messages").lower > 0.8


def test_sums_of_the_l2_mechanism_tell_all_where_it_is_seen_how_many_there_are():
    """In one dimension: elsewhere, as where dummies hide it, they tell by how much one side prevails."""
    run, one_bit = cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.5), cj.L2Mechanism(epsilon0=1.0)
    summed, single = (cj.account(run, one_bit, delta=1e-3, view=v).lower for v in ("aggregate", "messages"))
    assert 0.0 < summed == single
    beyond = cj.SlidingWindow(num_clients=100, window=2, minibatch=99)
    assert 0.0 < cj.account(beyond, one_bit, delta=1e-3, view="aggregate").lower <= 0.155
    assert (
        cj.account(run, cj.KaryResponse(epsilon0=1.0, num_values=3), delta=1e-3, view="aggregate").lower > 0.0
    )


@pytest.mark.parametrize("randomizer", [cj.Laplace(epsilon0=1.0), cj.Rappor(epsilon0=2.0)])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.turns(3)
def test_a_dummy_that_may_be_any_record_gives_a_lower_end(randomizer, relation):
    run = cj.FixedWindow(num_clients=200, num_slots=200)
    g = cj.account(run, randomizer, delta=1e-4, neighboring_relation=relation)
    assert 0.0 < g.lower <= g.epsilon


def test_a_dummy_that_is_a_zero_update_is_at_no_other_record():
    """One client in one slot, there or not by a coin: a fair bit in its place, .4706 at most, where .6181 was said."""
    randomizer = cj.L2Mechanism(epsilon0=1.0)
    one = cj.FixedWindow(num_clients=1, num_slots=1, check_in_prob=0.5)
    assert cj.account(one, randomizer, delta=1e-3).lower <= 0.4706
    everywhere = cj.account(one, cj.KaryResponse(epsilon0=1.0, num_values=2), delta=1e-3)
    assert everywhere.lower > 0.6
    seen = cj.FixedWindow(num_clients=1, num_slots=1, check_in_prob=0.5, empty_slots="visible")
    assert cj.account(seen, randomizer, delta=1e-3).lower > 0.5


@pytest.mark.parametrize("minibatch", [1, 3])
def test_a_client_of_the_l2_mechanism_is_missed(minibatch):
    """Added or removed, in the view of sums, too: beside a zero update or an opposite one, by enumeration."""
    slots, prob, p, delta = 6, 0.8, math.e, 1e-3

    def truth(other):
        both = hidden_slots(slots, prob, [p / (p + 1), other]), hidden_slots(slots, prob, [other])
        with_it, without = (np.array([law[view] for view in both[0]]) for law in both)
        return max(
            exact_rounds.epsilon(with_it, without, delta), exact_rounds.epsilon(without, with_it, delta)
        )

    run = cj.FixedWindow(num_clients=2, num_slots=slots, check_in_prob=prob, minibatch=minibatch)
    how = {"delta": delta, "view": "aggregate", "neighboring_relation": "add-or-remove-one"}
    g = cj.account(run, cj.L2Mechanism(epsilon0=1.0), **how)
    zero, opposite = truth(0.5), truth(1 / (p + 1))
    assert zero < 0.98 * opposite < g.lower <= opposite <= g.epsilon


# --- fair bits: one-bit messages whose dummies, like updates of zero, lie between all records


def sums_of_check_ins(n, rate, odds):
    """The sum of messages of +1 or -1, exactly; odds: of +1, for every client."""
    law = Counter({0: 1.0})
    for up in odds:
        law, before = Counter(), law
        for total, mass in before.items():
            law[total] += (1 - rate) * mass
            law[total + 1] += rate * up * mass
            law[total - 1] += rate * (1 - up) * mass
    return law


def hidden_slots(m, prob, odds, dummy=0.5):
    """A_fix with hidden dummies, slot by slot, by going through everything."""
    law = Counter()
    for picks in itertools.product(range(-1, m), repeat=len(odds)):
        chance = math.prod(prob / m if slot >= 0 else 1 - prob for slot in picks)
        there = [[up for up, slot in zip(odds, picks) if slot == j] for j in range(m)]
        ups = [sum(each) / len(each) if each else dummy for each in there]
        for seen in itertools.product((0, 1), repeat=m):
            law[seen] += chance * math.prod(up if bit else 1 - up for up, bit in zip(ups, seen))
    return law


def occupied_sums(m, prob, odds):
    """A_fix with visible empty slots, whose messages are summed; their number is seen."""
    law = Counter()
    for picks in itertools.product(range(-1, m), repeat=len(odds)):
        chance = math.prod(prob / m if slot >= 0 else 1 - prob for slot in picks)
        there = [[up for up, slot in zip(odds, picks) if slot == j] for j in range(m)]
        ups = [sum(each) / len(each) for each in there if each]
        for seen in itertools.product((-1, 1), repeat=len(ups)):
            mass = math.prod(up if bit > 0 else 1 - up for up, bit in zip(ups, seen))
            law[sum(seen)] += chance * mass
    return law


def divergence(law, other, c):
    return sum(max(law[view] - c * other[view], 0.0) for view in law | other)


@pytest.mark.parametrize("p", [1.5, 4.0, 40.0])
@pytest.mark.parametrize(
    ("clients", "step_cover", "law"),
    [
        (5, Shuffled(5, 0.3), lambda odds: sums_of_check_ins(5, 0.3, odds)),
        (4, Shuffled(4, 1.0), lambda odds: sums_of_check_ins(4, 1.0, odds)),
        (3, UniformSlot(3, 1.0, (1 - (2 / 3) ** 3)), lambda odds: hidden_slots(3, 1.0, odds)),
        (3, UniformSlot(2, 0.6, 0.6 * (1 - 0.7**3) / 0.9), lambda odds: hidden_slots(2, 0.6, odds)),
        (3, Occupied(3, 2, 0.7), lambda odds: occupied_sums(2, 0.7, odds)),
    ],
    ids=["check-in", "shuffle", "hidden", "hidden, rare", "visible"],
)
def test_fair_bits_are_what_the_mechanism_leaks(p, clients, step_cover: StepCover, law):
    """The pair is the algorithm's, of three or five clients: no more, and no less but for the mean over N."""
    epsilon0 = math.log(p)
    others = [0.5] * (clients - 1)
    first, second = law([p / (p + 1), *others]), law([1 / (p + 1), *others])
    assert math.isclose(sum(first.values()), 1.0)
    assert math.isclose(sum(second.values()), 1.0)
    cs = np.exp(np.linspace(0.02, 0.95, 14) * epsilon0)
    with jax.enable_x64(True):
        lines, mirrored = fair_bits(
            TotalVariationBound(step_cover, epsilon0, 1.0, 30.0), step_cover, epsilon0, 30.0
        ).lower(np.log(cs))
    exact = [divergence(first, second, c) for c in cs]
    assert np.allclose(exact, [divergence(second, first, c) for c in cs], atol=1e-14)
    for difference, far in (lines, mirrored):
        found = np.asarray(difference) - (cs - 1.0) * np.asarray(far)
        assert (found <= np.asarray(exact) + 1e-12).all()
        assert (found >= np.asarray(exact) * (1 - 1e-6) - 1e-9).all()
        # One line lies below at every c.
        for i, c in itertools.product(range(len(cs)), np.exp(np.linspace(0.0, 1.0, 9) * epsilon0)):
            line = float(difference[i]) - (c - 1.0) * float(far[i])
            assert line <= divergence(first, second, c) + 1e-12


@pytest.mark.parametrize("p", [1.5, 4.0, 40.0])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("clients", "m", "prob"), [(2, 3, 1.0), (4, 3, 0.7), (5, 2, 1.0), (3, 1, 0.5)])
def test_opposite_bits_in_common_slots_are_what_the_mechanism_leaks(p, replaced, clients, m, prob):
    """All others at the opposite record, fair bits in empty slots, slot by slot; a record replaced, or absent."""
    loss = np.linspace(0.0, 0.95, 12) * math.log(p)

    def leaks(witness_of, dummy=0.5):
        others = [1 / (p + 1)] * (clients - 1)
        first = hidden_slots(m, prob, [p / (p + 1), *others], dummy)
        second = hidden_slots(m, prob, [*([1 / (p + 1)] if replaced else []), *others], dummy)
        for lines, one, two in zip(witness_of.lower(loss), (first, second), (second, first)):
            (apart, mass), truth = lines, [divergence(one, two, math.exp(each)) for each in loss]
            yield apart - np.expm1(loss) * mass, np.array(truth)

    witness = CompetingBits(CommonThrows(clients, m, prob), math.log(p), 40.0, replaced)
    for found, truth in leaks(witness):
        assert (found <= truth * (1 + 1e-12)).all()
        assert (found >= truth * (1 - 1e-6) - 1e-7).all()
    # A client of a larger epsilon0 is not below, nor is one whose dummies are at its own record.
    busy = dataclasses.replace(witness, epsilon0=1.1 * math.log(p))
    assert all((found > truth).any() for found, truth in leaks(busy))
    assert prob == 1.0 or any((found > truth).any() for found, truth in leaks(witness, dummy=p / (p + 1)))


def test_opposite_bits_among_many_are_binary_response_where_no_slot_is_empty():
    """42,400 clients in 316 slots: the target's message is one of 316 opposite ones with probability 316 / 42,400."""
    p, m, n = 60.0, 316, 42_400
    ones = np.arange(m + 1.0)
    flipped = scipy.stats.binom.pmf(ones, m, 1 / (p + 1))
    # One of the messages, the target's with probability m / n, is a one p times as often, a zero 1/p times.
    ratio = 1.0 - m / n + (ones * p + (m - ones) / p) / n
    loss = np.linspace(0.0, 0.1, 6)
    truth = [np.maximum(flipped * (ratio - c), 0.0).sum() for c in np.exp(loss)]
    for replaced in (False, True):
        apart, mass = CompetingBits(CommonThrows(n, m, 1.0), math.log(p), 45.0, replaced).lower(loss)[0]
        assert apart - np.expm1(loss) * mass == pytest.approx(truth, rel=1e-6, abs=1e-12)


def test_numbers_of_occupied_slots_that_are_left_out_count_against_the_witness():
    """One slot, which 14 clients rarely leave empty: it shows the target's bit for another one's, or for a dummy."""
    p, prob, n = 1.2, 0.57, 14
    empty, each_more_empty = (1.0 - prob) ** n, (1.0 - prob) ** (n - 1)
    truth = (p - 1) / (p + 1) * ((1.0 - empty) / n - 0.5 * prob * each_more_empty)
    apart, _ = CompetingBits(CommonThrows(n, 1, prob), math.log(p), 10.0, False).lower(np.zeros(1))[0]
    assert apart == pytest.approx(truth, rel=1e-4)
    assert apart <= truth


def test_dummies_at_a_record_would_leak_more_than_fair_ones():
    """The wrong neighbour: the worst of all data sets with fair dummies is below dummies at the record x'."""
    p, m, c = 9.0, 3, 1.0
    bits = [p / (p + 1), 0.5, 1 / (p + 1)]
    worst = max(
        divergence(hidden_slots(m, 1.0, [bits[0], other]), hidden_slots(m, 1.0, [bits[2], other]), c)
        for other in bits
    )
    wrong = divergence(*(hidden_slots(m, 1.0, [up, bits[2]], dummy=bits[2]) for up in (bits[0], bits[2])), c)
    assert wrong > 1.05 * worst


@pytest.mark.parametrize(
    ("run", "bounds"),
    [
        (cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=0.1, num_rounds=100), "profile"),
        (cj.FixedWindow(num_clients=18_900, num_slots=10_200, check_in_prob=0.6, num_epochs=50), "fast"),
    ],
)
def test_witnesses_that_are_left_out_change_nothing(run, bounds, monkeypatch):
    asked, genuine, randomizer = [], compose._Composer.lower, cj.Gaussian(noise_multiplier=2.0)

    def lower(self, witnesses, *rest):
        asked.append(witnesses)
        return genuine(self, witnesses, *rest)

    monkeypatch.setattr(compose._Composer, "lower", lower)
    found = cj.account(run, randomizer, delta=1e-6, bounds=bounds)
    few = len(asked)
    monkeypatch.setattr(compose, "_below_grid_bound", lambda _: False)
    every = cj.account(run, randomizer, delta=1e-6, bounds=bounds)
    assert (found.epsilon, found.lower, found.lower_method) == (
        every.epsilon,
        every.lower,
        every.lower_method,
    )
    assert few < len(asked) - few


def test_few_gaussian_messages_in_visible_slots_count_by_their_number():
    """Two clients in two slots: one slot is occupied half of the time, and then either client may be used."""
    mu, losses = 1.3, np.array([0.0, 0.2, 0.6, 1.0])
    run = cj.FixedWindow(num_clients=2, num_slots=2, check_in_prob=1.0, empty_slots="visible")
    unit = Unit(run, cj.Gaussian(noise_multiplier=2.0 / mu), "messages", "replace-one", 40.0)
    at = np.linspace(-9.0, 9.0 + mu, 3001)
    normal = np.exp(-0.5 * np.square(at)) / math.sqrt(2.0 * math.pi) * (at[1] - at[0])
    ratio = np.exp(mu * at - 0.5 * mu * mu)
    with float64():
        (witness,) = witnesses._of_gaussians(unit)
        lines = witness.lower(losses)
    for (apart, mass), turned in zip(lines, (False, True)):
        for loss, found in zip(losses, apart - np.expm1(losses) * mass):
            c = math.exp(loss)
            one = 0.5 + 0.5 * ratio
            two = 0.5 * (ratio[:, None] + ratio[None, :])
            exact = sum(
                0.5 * float((np.maximum(1.0 - c * each if turned else each - c, 0.0) * weight).sum())
                for each, weight in ((one, normal), (two, normal[:, None] * normal[None, :]))
            )
            assert found <= exact * (1.0 + 1e-6)
            # Contours of sums of one or two terms are loose.
            assert found >= 0.5 * exact
    g = cj.account(
        cj.FixedWindow(num_clients=50, num_slots=4, check_in_prob=0.5, num_epochs=10, empty_slots="visible"),
        cj.Gaussian(noise_multiplier=1.0),
        delta=1e-6,
    )
    assert 0.9 * g.epsilon < g.lower < g.epsilon


def _in_few_occupied_slots(clients: int, slots: int, prob: float, epsilon0: float, losses: np.ndarray):
    """Divergences of binary responses in occupied slots, the target at one record and all others at the other."""
    often = 1.0 / (1.0 + math.exp(-epsilon0))
    total = np.zeros((2, losses.size))
    for number, chance in enumerate(occupancy.exact(clients, slots, prob)[: clients + 1]):
        without = scipy.stats.binom.pmf(np.arange(number + 1), number, 1.0 - often)
        shown = number / clients
        if number:
            rest = scipy.stats.binom.pmf(np.arange(number + 1), number - 1, 1.0 - often)
            present = (1.0 - shown) * without + shown * ((1.0 - often) * rest + often * np.roll(rest, 1))
        else:
            present = without
        for side, (first, second) in enumerate(((present, without), (without, present))):
            apart = np.maximum(first - np.exp(losses)[:, None] * second, 0.0)
            total[side] += chance * apart.sum(axis=1)
    return total


def test_messages_in_slots_that_are_rarely_shared_are_a_shuffled_check_in_at_a_lower_rate(monkeypatch):
    clients, slots, prob, epsilon0 = 9, 100, 0.5, 1.5
    losses = np.linspace(0.0, 0.8, 9)
    exact = _in_few_occupied_slots(clients, slots, prob, epsilon0, losses)
    law = witnesses._binary(epsilon0)

    def values() -> np.ndarray:
        with float64():
            (witness,) = witnesses._in_occupied_slots(
                Occupied(clients, slots, prob),
                LabelProfile(law),
                40.0,
                functools.partial(LabelsAtOneRecord, laws=law),
            )
            lines = np.asarray(witness.lower(losses))
        return lines[:, 0] - np.expm1(losses) * lines[:, 1]

    found = values()
    assert (found <= exact * (1.0 + 1e-9)).all()
    # At the rate of the clients themselves it is no lower bound: they share slots.
    monkeypatch.setattr(witnesses.chernoff, "most", lambda number, prob, exponents: 0.0 * exponents)
    assert (values() > exact * (1.0 + 1e-4)).any()
