"""Messages of which only a privacy profile is known, against exact laws of random finite mechanisms with that profile.

G2 (everybody sends) and R3 (slots whose empty ones are visible), all data sets of two to four clients; a singular part
(an output that one record never gives) included.
"""

import math
from itertools import combinations_with_replacement, permutations, product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.full_participation import AllCut
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.profiles import one_message
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.unequal import populations
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels import host
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages import hidden_messages
from checkin_jax.protocols import REPLACE

LOSSES = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0])
CS = np.exp(LOSSES)
MASS = 31.0


def channels(seed, number):
    """Channels of three records and three or four outputs; every second one has an output that a record never gives."""
    rng = np.random.default_rng(seed)
    for trial in range(number):
        channel = rng.dirichlet(np.full(3 + trial % 2, rng.choice([0.5, 2.0, 8.0])), size=3)
        if trial % 2:
            channel[0, 0] = 0.0
            channel[0] /= channel[0].sum()
        yield channel


def known(channel):
    """The channel as a randomizer of which the profile alone is known."""

    def profile(loss):
        pairs = list(permutations(channel, 2))
        found = [np.maximum(a - np.exp(loss)[..., None] * b, 0.0).sum(axis=-1) for a, b in pairs]
        return np.minimum(np.max(found, axis=0) * (1.0 + 1e-13), 1.0)

    return cj.KnownProfile(function=lambda loss: profile(np.asarray(loss, dtype=np.float64)))


def windows(channel, clients, slots, prob, dummy, colluding=None):
    """All pairs of neighbouring data sets of a common window; the last client is the target.

    prob: one rate, or a list of them. colluding: the record of a further client, who always comes to the first slot.
    """
    records, places = range(3), [range(slots)] * clients
    rates = prob if isinstance(prob, list) else [prob] * clients
    beside = () if colluding is None else (colluding,)
    for held in product(records, repeat=clients - 1):
        laws = [
            exact.window(
                channel,
                (*beside, *held, x),
                [*([1.0] * len(beside)), *rates],
                [*([[0]] * len(beside)), *places],
                range(slots),
                dummy,
            )
            for x in records
        ]
        yield from permutations(laws, 2)


def bound_of(run, randomizer, **options):
    found = unit_bound(run, randomizer, "messages", 1.0, 1e-9, **options).bound
    with float64():
        return np.asarray(found.upper(LOSSES))


def above(bound, truth):
    return (bound >= truth * (1.0 - ORACLE_ROUNDING) - 1e-14).all()


@pytest.mark.parametrize("clients", [2, 3])
def test_everybody_sends_messages_of_a_profile(clients):
    cheaper = 0
    for channel in channels(1, 8):
        truth, randomizer = exact.most(list(exact.rounds(channel, [1.0] * clients)), CS), known(channel)
        assert above(bound_of(cj.Shuffle(num_clients=clients), randomizer), truth)
        with float64():
            bound = AllCut(clients, one_message(randomizer), MASS)
            for epsilon0 in (0.1, 0.4, 1.0, 2.5):
                assert above(bound._with_cut(epsilon0, LOSSES), truth)
                free = np.asarray(Clones(Shuffled(clients, 1.0), epsilon0, MASS).upper(LOSSES))
                cheaper += (truth > 1.5 * free + 1e-9).any()
    # Cutting is not free.
    assert cheaper > 4


@pytest.mark.turns(3)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("rates", [(0.9, 0.3), (0.05, 0.6, 0.9)])
def test_clients_of_unequal_rates_send_messages_of_a_profile(rates, place):
    """T*h: clients of any rate and slower ones, all data sets of two and three clients."""
    channel = list(channels(5, 4))[place]
    randomizer = known(channel)
    run = cj.ShuffledCheckIn(num_clients=len(rates), check_in_prob=cj.Rates(rates))
    truth = np.zeros(len(CS))
    for mine in sorted(rates):
        others = list(rates)
        others.remove(mine)
        truth = np.maximum(truth, exact.worst(channel, [*others, mine], CS))
        assert above(bound_of(run, randomizer, client_rate=mine), truth)


@pytest.mark.turns(3)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_slots_of_clients_of_unequal_rates_show_messages_of_a_profile(slots):
    """T2'h with cut laws; a client of rate 1 reveals who takes part."""
    cheaper = 0
    for channel in channels(7 + slots, 2):
        randomizer = known(channel)
        for rates, empty in product(((0.9, 0.3), (0.05, 0.6, 0.9), (1.0, 0.4)), ("visible", "dummy")):
            run = cj.FixedWindow(
                num_clients=len(rates), num_slots=slots, check_in_prob=cj.Rates(rates), empty_slots=empty
            )
            truth = np.zeros(len(CS))
            for mine in sorted(rates):
                others = list(rates)
                others.remove(mine)
                for dummy in range(3) if empty == "dummy" else [None]:
                    pairs = list(windows(channel, len(rates), slots, [*others, mine], dummy))
                    truth = np.maximum(truth, exact.most(pairs, CS))
                assert above(bound_of(run, randomizer, client_rate=mine), truth)
                with float64():
                    unit = Unit(run, randomizer, "messages", REPLACE, MASS, client_rate=mine)
                    bound = populations.t2_prime_h(unit)
                    for epsilon0 in (0.1, 1.0, 2.5):
                        assert above(bound._with_cut(epsilon0, LOSSES), truth)
                        free = np.asarray(bound.clones(epsilon0).upper(LOSSES))
                        cheaper += (truth > 1.5 * free + 1e-9).any()
    # Cutting is not free.
    assert cheaper > 2


def t1_at_rate_one(n, p, c):
    """T1's bound for n messages, all sent, by its multinomial law."""
    total = 0.0
    for high, low in product(range(n + 1), repeat=2):
        if high + low <= n:
            ways = math.comb(n, high) * math.comb(n - high, low)
            chance = ways * (p + 1.0) ** -(high + low) * ((p - 1.0) / (p + 1.0)) ** (n - high - low)
            total += chance * max(high * (p - c) + low * (1.0 - c * p), 0.0)
    return total / n


@pytest.mark.parametrize("clients", [2, 3])
def test_what_a_cut_costs_line_by_line(clients):
    """The laws at the two records lose different masses; whoever counts one of them for both is exceeded."""
    rng, missed = np.random.default_rng(5), 0
    for channel in channels(5, 60):
        for a, b in permutations(range(3), 2):
            p = np.exp(rng.uniform(0.05, 1.5))
            first, second = np.minimum(channel[a], p * channel[b]), np.minimum(channel[b], p * channel[a])
            lost, other = 1.0 - first.sum(), 1.0 - second.sum()
            blanket = np.maximum(first, second) / p
            for c in (1.0, 0.5 * (1.0 + p), p):
                moved = max(other - p * lost, 0.0) * (p - c) + max(p * other - lost, 0.0) * (c * p - 1.0)
                assert moved <= (p * p - 1.0) * (c * max(lost, other) + 1e-14)
                cut = t1_at_rate_one(clients, p, c) + lost
                for held in combinations_with_replacement(range(3), clients - 1):
                    one, two = (
                        exact.histogram([*channel[list(held)], channel[x]], [1.0] * clients) for x in (a, b)
                    )
                    replaced = sum(np.maximum(blanket - channel[i], 0.0).sum() for i in held)
                    truth = np.maximum(one - c * two, 0.0).sum()
                    found = cut + (1.0 + c) * replaced
                    assert truth <= found + moved / (p * p - 1.0) + 1e-12
                    missed += truth > found + c * lost + 1e-9
    assert missed


@pytest.mark.parametrize(("clients", "slots"), [(2, 1), (3, 1), (3, 2), (2, 2), (2, 3)])
def test_slots_whose_empty_ones_are_visible(clients, slots):
    """More clients than slots: one of them is displaced; else all may be used."""
    hidden_is_less = 0
    for channel in channels(2, 4):
        randomizer = known(channel)
        for prob in (0.3, 1.0):
            run = cj.FixedWindow(
                num_clients=clients, num_slots=slots, check_in_prob=prob, empty_slots="visible"
            )
            truth = exact.most(list(windows(channel, clients, slots, prob, None)), CS)
            bound = bound_of(run, randomizer)
            assert above(bound, truth), (clients, slots, prob)
            alone = bound_of(run, randomizer, bounds="fast") if slots < clients else bound
            assert (bound <= alone * (1.0 + 1e-9)).all()
            dummies = cj.FixedWindow(num_clients=clients, num_slots=slots, check_in_prob=prob)
            hidden_is_less += (truth > bound_of(dummies, randomizer) * 1.01 + 1e-9).any()
    # The bound for hidden dummies is none for visible ones.
    assert hidden_is_less or slots == 1


@pytest.mark.parametrize("slots", [1, 2])
def test_colluders_in_slots_are_no_cover(slots):
    """A colluder always comes to the first slot, with a message that everybody recognises."""
    counted_is_less = 0
    for channel in channels(3, 4):
        randomizer = known(channel)
        theirs = np.zeros((4, channel.shape[1] + 1))
        theirs[:3, :-1], theirs[3, -1] = channel, 1.0
        options = {"num_slots": slots, "check_in_prob": 0.7, "empty_slots": "visible"}
        truth = exact.most(list(windows(theirs, 3, slots, 0.7, None, colluding=3)), CS)
        run = cj.FixedWindow(num_clients=4, num_colluding=1, **options)
        assert above(bound_of(run, randomizer), truth)
        alone = exact.most(list(windows(channel, 3, slots, 0.7, None)), CS)
        many = bound_of(cj.FixedWindow(num_clients=40, **options), randomizer)
        counted_is_less += (alone > many * 1.01 + 1e-9).any()
    assert counted_is_less


def test_approximate_messages_in_slots_are_hidden():
    """T* of (epsilon0, delta0)-LDP messages has no mass at zero: its weights, rounded up, were refused everywhere."""
    for empty in ("dummy", "visible"):
        run = cj.FixedWindow(num_clients=10_000, num_slots=500, num_epochs=3, empty_slots=empty)
        found = cj.account(run, cj.ApproximateLDP(epsilon0=1.0, delta0=1e-12), delta=1e-6, bounds="profile")
        alone = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6)
        assert "profile" in found.method
        assert alone.lower <= found.epsilon < 1.5 * alone.epsilon


def test_weights_that_are_too_many_for_a_law_are_stretched_in_convex_order():
    rng = np.random.default_rng(4)
    for _ in range(50):
        at, weights = rng.normal(size=12), rng.uniform(size=12)
        weights *= rng.uniform(0.5, 3.0) / weights.sum()
        rate = rng.uniform(0.2, 1.0)
        places, fewer = hidden_messages.of_a_law(host(at), host(weights), host(rate))
        assert rate * fewer.sum() <= 1.0
        assert (places * fewer).sum() == pytest.approx((at * weights).sum())
        k = np.abs(rng.normal(size=40))[:, None]
        for side in (1.0, -1.0):
            before = (weights * np.maximum(side * at - k, 0.0)).sum(axis=1)
            after = (fewer * np.maximum(side * places - k, 0.0)).sum(axis=1)
            assert (after >= before * (1.0 - 1e-12)).all()
        if rate * weights.sum() <= 1.0:
            assert (places == at).all()
            assert (fewer == weights).all()
