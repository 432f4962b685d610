"""What `assumptions` permit the adversary to know, each sentence against an exact oracle that knows it.

All data sets of few clients, by every protocol, kind of empty slots, kind of rates and neighboring relation. A sentence
that permits knowledge in words that no oracle here has fails the test.
"""

import math
import re
from itertools import permutations, product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact
from oracles import krr
from oracles import random_check_ins as rci

import checkin_jax as cj
from checkin_jax.protocols import ADD_OR_REMOVE, REPLACE, CheckInProtocol
from checkin_jax.protocols.protocol import TRUSTED, dropped

EPSILON0 = 1.5
P = math.exp(EPSILON0)
CS = 1 + (P - 1) * np.array([0.02, 0.15, 0.4, 0.8])
KARY3 = np.array(krr.krr_channel(3, P))
# A public coin, which is seen, and one bit; the records' bits differ whatever the coin says, or if it is 1.
COIN_AND_BIT = np.array(
    [
        [0.5 * each for coin in (0, 1) for each in krr.krr_channel(2, P)[bits[coin]]]
        for bits in [(0, 0), (1, 1), (0, 1)]
    ]
)
MECHANISMS = {
    "any": (cj.PureLDP(epsilon0=EPSILON0), KARY3),
    "3-ary": (cj.KaryResponse(epsilon0=EPSILON0, num_values=3), KARY3),
    "one bit": (cj.OneBit(epsilon0=EPSILON0), COIN_AND_BIT),
}
FLEET = (0.2, 0.9, 0.6)
LIMITS = cj.RateLimits(largest=0.9, expected_check_ins=0.8)

RUNS = {
    "shuffled check-in": cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5),
    "with drop-outs": cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.8, drop_out_prob=0.4),
    "with colluders": cj.ShuffledCheckIn(num_clients=4, check_in_prob=0.5, num_colluding=2),
    "of a fleet": cj.ShuffledCheckIn(num_clients=3, check_in_prob=cj.Rates(FLEET)),
    "of a fleet with drop-outs": cj.ShuffledCheckIn(
        num_clients=3, check_in_prob=cj.Rates(FLEET), drop_out_prob=0.5
    ),
    "within limits": cj.ShuffledCheckIn(num_clients=3, check_in_prob=LIMITS, drop_out_prob=0.5),
    "shuffling": cj.Shuffle(num_clients=3),
    "shuffling with colluders": cj.Shuffle(num_clients=3, num_colluding=1),
    "log": cj.from_availability([2, 3], coin=[0.8, 0.5], drop_out_prob=0.25),
    "log with colluders": cj.from_availability([3, 4], coin=[0.8, 0.5], num_colluding=1),
    "batches of two": cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.6, drop_out_prob=0.5, min_reports=2),
    "batches of two of a log": cj.from_availability([2, 3], coin=[0.8, 0.5], min_reports=2),
    "averages": cj.AveragedUpdates(num_clients=3, num_slots=2, check_in_prob=0.6),
    "averages of a fleet": cj.AveragedUpdates(num_clients=3, num_slots=2, check_in_prob=cj.Rates(FLEET)),
    "averages within limits": cj.AveragedUpdates(num_clients=3, num_slots=2, check_in_prob=LIMITS),
    "averages with colluders": cj.AveragedUpdates(
        num_clients=3, num_slots=2, check_in_prob=0.6, num_colluding=1
    ),
    "sliding": cj.SlidingWindow(num_clients=3, window=2),
    "sliding with colluders": cj.SlidingWindow(num_clients=3, window=2, num_colluding=1),
    **{
        f"fixed window, {kind}, {empty}": cj.FixedWindow(
            num_clients=3, num_slots=2, check_in_prob=rate, empty_slots=empty, num_colluding=colluding
        )
        for empty in ("dummy", "visible")
        for kind, rate, colluding in [
            ("one rate", 0.6, 0),
            ("everybody", 1.0, 0),
            ("a fleet", cj.Rates(FLEET), 0),
            ("limits", LIMITS, 0),
            ("colluders", 0.6, 1),
        ]
    },
}
RELATIONS = {
    name: [REPLACE, *([] if run.refuses(ADD_OR_REMOVE, "messages") else [ADD_OR_REMOVE])]
    for name, run in RUNS.items()
}
# Bounds on single mechanisms take longer where rates differ.
EVERY = [
    (name, relation, kind)
    for name, run in RUNS.items()
    for relation in RELATIONS[name]
    for kind in (MECHANISMS if run.unequal_rates is None else ("any",))
]


def fleet_of(run):
    """Check-in probabilities of the honest clients: one fleet that the protocol describes."""
    prob = getattr(run, "check_in_prob", 1.0)
    if isinstance(prob, cj.Rates):
        return tuple(prob.values)
    if isinstance(prob, cj.RateLimits):
        return (prob.largest, *[prob.expected_check_ins / (run.num_clients - 1)] * (run.num_clients - 1))
    return (prob,) * run.honest


def data_sets(num_records, rates):
    """(others' records, others' rates, rate of the client meant), each client being meant in turn."""
    for meant in range(len(rates)):
        others = [rate for i, rate in enumerate(rates) if i != meant]
        for held in product(range(num_records), repeat=len(others)):
            if len(set(others)) > 1 or list(held) == sorted(held):
                yield held, others, rates[meant]
        if len(set(rates)) == 1:
            return


def counted_window(channel, held, rates, windows, shown, dummy, known_slots, counted):
    """Law of what the slots show and, if `counted`, of how many honest messages arrive.

    known_slots: where each colluder is, None for nowhere; whose message is its own symbol, so that it is known.
    """
    honest, symbols = len(held), channel.shape[1] + len(known_slots)
    rows = np.zeros((len(channel) + len(known_slots), symbols))
    rows[: len(channel), : channel.shape[1]] = channel
    rows[len(channel) :, channel.shape[1] :] = np.eye(len(known_slots))
    laws = []
    for arrived in range(honest + 1):
        law = 0.0
        for those in product((False, True), repeat=honest):
            if sum(those) != arrived:
                continue
            mass = math.prod(rate if there else 1 - rate for rate, there in zip(rates, those))
            there = [i for i in range(honest) if those[i]]
            present = [held[i] for i in there] + [
                len(channel) + j for j, slot in enumerate(known_slots) if slot is not None
            ]
            where = [windows[i] for i in there] + [(slot,) for slot in known_slots if slot is not None]
            law = law + mass * exact.window(rows, present, [1.0] * len(present), where, shown, dummy)
        laws.append(law)
    return np.concatenate(laws) if counted else sum(laws)


def window_pairs(run, relation, channel, counted, knows_colluders):
    """All neighbouring pairs of a window, for an adversary who may know the number of messages and the colluders'."""
    sliding = isinstance(run, cj.SlidingWindow)
    slots = range(run.num_clients) if sliding else range(run.num_slots)
    shown = range(run.window - 1, run.num_clients) if sliding else slots
    rates, records = fleet_of(run), range(len(channel))
    visible = not sliding and run.empty_slots == "visible"
    places = [None, *slots] if knows_colluders else [None]
    # Who is where: the windows of sliding clients are their own, so every client is meant in turn.
    order = list(range(run.num_clients)) if sliding else [0] * run.num_clients
    for meant, taken in product(
        range(run.honest) if sliding else [None], product(places, repeat=run.num_colluding)
    ):
        for held, others, rate in data_sets(len(channel), rates):
            windows = (
                [tuple(range(j, j + run.window)) for j in order] if sliding else [tuple(slots)] * len(order)
            )
            if sliding:
                mine = windows.pop(meant)
                windows = [*windows[: len(others)], mine]
            for dummy in [None] if visible else records:

                def law(*own, held=held, others=others, rate=rate, windows=windows, dummy=dummy, taken=taken):
                    who, rated = [*held, *own], [*others, rate][: len(held) + len(own)]
                    return counted_window(channel, who, rated, windows, shown, dummy, taken, counted)

                if relation == REPLACE:
                    yield from permutations([law(x) for x in records], 2)
                else:
                    without = law()
                    size = len(law(0))
                    without = np.pad(without, (0, size - len(without)))
                    for x in records:
                        yield from permutations((law(x), without), 2)


def round_pairs(run, channel, num_clients=None):
    """All neighbouring pairs of a round: which messages there are, and so how many."""
    kept = run.arrival_prob
    rates = fleet_of(run) if num_clients is None else (num_clients[1],) * num_clients[0]
    for held, others, rate in data_sets(len(channel), [kept * each for each in rates]):
        laws = [
            exact.histogram([channel[i] for i in (*held, x)], [*others, rate]) for x in range(len(channel))
        ]
        yield from permutations(laws, 2)


def batch_pairs(run, channel, coin):
    """All neighbouring pairs of a round whose batch has as few messages as it may, if the client reports."""
    for held in product(range(len(channel)), repeat=run.min_reports - 1):
        rows = [channel[i] for i in held]
        laws = [
            (1 - coin) * exact.histogram([*rows, own], [1.0] * len(rows) + [0.0])
            + coin * exact.histogram([*rows, own], [1.0] * (len(rows) + 1))
            for own in channel
        ]
        yield from permutations(laws, 2)


def average_pairs(run, channel):
    """All neighbouring pairs of averaged updates whose slots show all their messages, and how many."""
    for held, others, rate in data_sets(len(channel), fleet_of(run)):
        choices = rci.fixed_window_choices(run.honest, run.num_slots, (*others, rate))
        laws = [
            rci.averaged_law(choices, (*held, x), run.num_slots, lambda past: channel)
            for x in range(len(channel))
        ]
        for first, second in permutations(laws, 2):
            outcomes = sorted({*first, *second})
            yield tuple(np.array([float(law.get(at, 0.0)) for at in outcomes]) for law in (first, second))


def log_pairs(run, channel):
    """Rounds of a log put together: how many are available is known, and the client always is."""
    rounds = [
        list(
            batch_pairs(run, channel, float(coin))
            if run.min_reports
            else round_pairs(run, channel, (int(n) - run.num_colluding, float(coin)))
        )
        for n, coin in zip(run.log.available, run.log.coin)
    ]
    for first, second in product(*rounds):
        yield tuple(np.multiply.outer(a, b).ravel() for a, b in zip(first, second))


def knowing(run, relation, channel, *, counted=False, colluders=False):
    """All neighbouring pairs for an adversary who knows how many messages arrive, or all about the colluders."""
    if isinstance(run, cj.FixedWindow | cj.SlidingWindow):
        return window_pairs(run, relation, channel, counted, colluders)
    # Here the number of messages is seen, and those of the colluders are taken out.
    if isinstance(run, cj.AveragedUpdates):
        return average_pairs(run, channel)
    if run.title.endswith("available"):
        return log_pairs(run, channel)
    return batch_pairs(run, channel, run.rate) if run.min_reports else round_pairs(run, channel)


# What sentences permit, in their words, and who knows it.
PERMITTED = {
    "how many messages arrive may be known": {"counted": True},
    "does not depend on anybody's data and may be known": {},
    "collude with the adversary, who knows, or decides beforehand, when they check in and what they send": {
        "colluders": True
    },
    "every message has fresh public coins": {},
    "which others report may be known": {},
}
PERMITS = re.compile(r"\b(may|might|can be|knows?|known|public|reveal\w*|told|tells?|learns?|visible|seen)\b")
# Words that forbid what they are about.
FORBIDDEN = (
    "nobody learns which message is whose",
    "independently of its earlier slots and of the other clients, and nobody learns which",
    "nobody learns who was drawn",
    "nobody learns who checked in, nor how many did",
    "nobody learns who checked in",
)


def permitted(sentence):
    """What a sentence permits to know; fails where it permits, in its own words, what no oracle knows."""
    found, rest = [], sentence
    for phrase in FORBIDDEN:
        rest = rest.replace(phrase, "")
    for phrase in PERMITTED:
        if phrase in rest:
            found.append(phrase)
            rest = rest.replace(phrase, "")
    assert not PERMITS.search(rest), f"{sentence!r} permits knowledge that no oracle here has"
    return found


def held_against(run, randomizer, relation, pairs, client_rate=None):
    """`account` is above every pair, at the delta that the worst of them has at each c; how close it comes."""
    worst, closest = exact.most(list(pairs), CS), 0.0
    for c, delta in zip(CS, worst):
        if delta < 1e-9:
            continue
        found = cj.account(
            run,
            randomizer,
            delta=float(delta) * (1 - ORACLE_ROUNDING),
            neighboring_relation=relation,
            client_rate=client_rate,
        )
        assert found.epsilon >= math.log(c) * (1 - ORACLE_ROUNDING), (run, relation, c, found.epsilon)
        closest = max(closest, math.log(c) / found.epsilon)
    return closest


def test_every_protocol_is_here():
    own = set(_concrete(CheckInProtocol))
    assert own == {type(run) for run in RUNS.values()}


def _concrete(cls):
    """Protocols of the package below a class; those of other tests, which are subclasses too, are none of them."""
    own = [child for child in cls.__subclasses__() if child.__module__.startswith("checkin_jax.")]
    return [each for child in own for each in _concrete(child)] or [cls]


@pytest.mark.parametrize(("name", "relation", "kind"), EVERY)
def test_whoever_knows_what_may_be_known(name, relation, kind):
    run, (randomizer, channel) = RUNS[name], MECHANISMS[kind]
    stated = cj.account(run, randomizer, delta=1e-3, neighboring_relation=relation)
    phrases = [phrase for sentence in stated.assumptions for phrase in permitted(sentence)]
    knows = {key: value for phrase in phrases for key, value in PERMITTED[phrase].items()}
    closest = held_against(run, randomizer, relation, knowing(run, relation, channel, **knows))
    assert closest > 0.2


@pytest.mark.parametrize("phrase", PERMITTED)
def test_every_permission_is_met(phrase):
    said = [
        sentence
        for run in RUNS.values()
        for randomizer, _ in MECHANISMS.values()
        for sentence in (*run.assumptions, *randomizer.assumptions)
    ]
    assert any(phrase in permitted(sentence) for sentence in said)


def test_unknown_permissions_fail():
    with pytest.raises(AssertionError, match="permits"):
        permitted("the number of phones that are charged may be known")
    with pytest.raises(AssertionError, match="permits"):
        permitted(
            "dropping out does not depend on the data, and nobody learns who checked in (how many did may be known)"
        )


class TestWhatMayNotBeKnown:
    """Knowledge that sentences do not permit, with which the bounds are exceeded: so they must not permit it."""

    def test_which_slot_a_client_picked(self):
        """A client of averages then hides among those of its slot alone, some 6 of 60 here."""
        message = cj.PureLDP(epsilon0=1.0)
        stated = cj.account(cj.AveragedUpdates(num_clients=60, num_slots=10), message, delta=1e-3)
        assert cj.account(cj.Shuffle(num_clients=6), message, delta=1e-3).lower > 2.0 * stated.epsilon

    @pytest.mark.parametrize("empty", ["dummy", "visible"])
    def test_a_slot_that_prefers_a_client(self, empty):
        """A client that every slot prefers is used as often as if nobody competed with it."""
        message = cj.PureLDP(epsilon0=1.0)
        stated = cj.account(
            cj.FixedWindow(num_clients=600, num_slots=10, empty_slots=empty), message, delta=1e-3
        )
        assert any("drawn uniformly" in sentence for sentence in stated.assumptions)
        alone = cj.FixedWindow(num_clients=1, num_slots=10, empty_slots="visible")
        assert cj.account(alone, message, delta=1e-3).lower > 5.0 * stated.epsilon

    def test_clients_that_are_more_reliable_than_others(self):
        """Half of the clients never drop out and half always do: a share of 1/2 as stated."""
        message, rounds = cj.PureLDP(epsilon0=1.0), {"check_in_prob": 0.2, "num_rounds": 100}
        stated = cj.ShuffledCheckIn(num_clients=1_000, drop_out_prob=0.5, **rounds)
        assert "with probability 0.5," in dropped(0.5)[0]
        assert {*dropped(0.5)} <= {*stated.assumed("messages")} & {*stated.assumed("local")}
        assert stated.description.endswith("at rate 0.2, a share 0.5 of check-ins dropping out")
        reliable = cj.ShuffledCheckIn(num_clients=500, **rounds)
        assert not any("drops out" in sentence for sentence in reliable.assumptions)
        for view in ("messages", "local"):
            known = cj.account(reliable, message, delta=1e-5, view=view).lower
            assert known > 1.4 * cj.account(stated, message, delta=1e-5, view=view).epsilon
        log = cj.from_availability([900, 800], coin=0.2, drop_out_prob=0.5)
        assert {*dropped(0.5)} <= {*log.assumed("messages")} & {*log.assumed("local")}

    def test_more_clients_than_stated_show_more_of_a_sliding_window(self):
        message = cj.PureLDP(epsilon0=1.0)
        few, more = (cj.SlidingWindow(num_clients=n, window=60) for n in (60, 200))
        stated = cj.account(few, message, delta=1e-5)
        assert cj.account(more, message, delta=1e-5).lower > stated.epsilon
        for run, said in ((few, True), (more, False)):
            assert any("no more clients" in sentence for sentence in run.assumptions) == said

    def test_whose_message_is_whose_where_everybody_checks_in(self):
        for rates in (1.0, cj.Rates([0.5, 1.0])):
            assert TRUSTED in cj.ShuffledCheckIn(num_clients=2, check_in_prob=rates).assumptions
        assert TRUSTED not in cj.ShuffledCheckIn(num_clients=2, check_in_prob=0.5).assumptions

    def test_where_everybody_sends_nothing_is_assumed_about_their_number(self):
        for run in (cj.FixedWindow(num_clients=9, num_slots=3), cj.SlidingWindow(num_clients=9, window=3)):
            for relation in (REPLACE, ADD_OR_REMOVE):
                said = any("nor how many" in sentence for sentence in run.assumed("messages", relation))
                assert said == (relation == ADD_OR_REMOVE)
        for run in (RUNS["fixed window, everybody, dummy"], cj.Shuffle(num_clients=9)):
            for view in ("messages", "aggregate"):
                found = cj.account(run, cj.Gaussian(noise_multiplier=1.0), delta=1e-3, view=view)
                assert not any("exactly the stated probability" in each for each in found.assumptions)

    @pytest.mark.parametrize(
        ("n", "m", "prob"), [(1, 1, 0.5), (2, 2, 0.5), (2, 2, cj.Rates((0.3, 0.4)))], ids=str
    )
    def test_number_of_messages_among_hidden_dummies(self, n, m, prob):
        run = cj.FixedWindow(num_clients=n, num_slots=m, check_in_prob=prob)
        randomizer, channel = MECHANISMS["any"]
        assert any("nor how many" in sentence for sentence in run.assumptions)
        with pytest.raises(AssertionError):
            held_against(run, randomizer, REPLACE, knowing(run, REPLACE, channel, counted=True))

    @pytest.mark.parametrize("name", ["fixed window, everybody, dummy", "sliding"])
    def test_number_of_messages_where_clients_are_added(self, name):
        run, (_, channel) = RUNS[name], MECHANISMS["any"]
        assert any("nor how many" in sentence for sentence in run.assumptions)
        worst = exact.most(list(knowing(run, ADD_OR_REMOVE, channel, counted=True)), CS)
        assert np.allclose(worst, 1.0)

    def test_number_of_check_ins_beside_drop_outs_of_a_fleet(self):
        rates, kept, channel = (0.1, 0.9), 0.5, KARY3
        run = cj.ShuffledCheckIn(num_clients=2, check_in_prob=cj.Rates(rates), drop_out_prob=1 - kept)

        def pairs(known):
            for other in range(3):
                laws = []
                for x in range(3):
                    parts = []
                    for those in product((False, True), repeat=2):
                        mass = math.prod(r if there else 1 - r for r, there in zip((0.9, 0.1), those))
                        arrive = [kept * there for there in those]
                        parts.append(
                            (sum(those), mass * exact.histogram([channel[other], channel[x]], arrive))
                        )
                    by_number = [sum(part for number, part in parts if number == j) for j in range(3)]
                    laws.append(np.concatenate(by_number) if known else sum(by_number))
                yield from permutations(laws, 2)

        randomizer = MECHANISMS["any"][0]
        held_against(run, randomizer, REPLACE, pairs(False), client_rate=0.1)
        with pytest.raises(AssertionError):
            held_against(run, randomizer, REPLACE, pairs(True), client_rate=0.1)
