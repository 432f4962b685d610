"""The library's own brackets against exact laws of whole rounds, by a reader who did not write the bounds.

What `account` would use of a unit (its bound at every loss, its witnesses) and `account` itself are held against all
data sets of two to four clients: adversarial others, unequal rates, colluders, composition.
"""

import math
from itertools import permutations, product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact
from oracles import known_messages as known
from oracles import krr

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.subsampling import SubsampledMessages
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels import host
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages.likelihood_polytopes import Message

E0 = 1.5
P = math.exp(E0)
CS = 1 + (P - 1) * np.array([0.0, 0.02, 0.1, 0.3, 0.6, 0.9])
EVERYWHERE = np.exp(E0 * np.linspace(0.0, 1.3, 30))
KARY2, KARY3, KARY4 = (np.array(krr.krr_channel(k, P)) for k in (2, 3, 4))
BETA = 0.4 * (P - 1) / (P + 1)
# A randomizer, a channel of its class, and whether its witnesses are made of the channel's records.
MECHANISMS = {
    "l2, plane": (cj.L2Mechanism(epsilon0=E0), exact.l2_in_the_plane(P, [0, np.pi, 1.3], [1, 1, 0.7]), True),
    "l2, line": (cj.L2Mechanism(epsilon0=E0), exact.one_number(P, [1, -1, 0.3]), True),
    "2-ary": (cj.KaryResponse(epsilon0=E0, num_values=2), KARY2, True),
    "3-ary": (cj.KaryResponse(epsilon0=E0, num_values=3), KARY3, True),
    "4-ary": (cj.KaryResponse(epsilon0=E0, num_values=4), KARY4, True),
    "Hadamard": (cj.HadamardResponse(epsilon0=E0), np.asarray(known.hadamard_channel(P)), True),
    "RAPPOR": (cj.Rappor(epsilon0=E0), np.asarray(known.rappor_channel(3, P)), True),
    "Laplace": (cj.Laplace(epsilon0=E0), np.asarray(known.laplace_channel([0, 0.4, 1], E0, 6)), False),
    "total variation": (
        cj.PureLDP(epsilon0=E0, total_variation=BETA),
        exact.sometimes(KARY2, BETA * (P + 1) / (P - 1)),
        True,
    ),
    "one bit": (
        cj.OneBit(epsilon0=E0, differ=0.5),
        np.concatenate([0.5 * KARY2, np.full((2, 2), 0.5 * KARY2[0])], axis=1),
        False,
    ),
    "approximate": (cj.ApproximateLDP(epsilon0=E0, delta0=0.02), exact.shown_or_response(P, 0.02), True),
}

# Another mechanism of the same description, of three records, which lower ends are made of, too.
OF_THREE = {
    "total variation": exact.sometimes(KARY3, BETA * (P + 2) / (P - 1)),
    "approximate": KARY3,
}


def attainable(name, pairs, rates):
    """The pairs of a mechanism, and those of another one that the description covers."""
    return [*pairs, *(exact.rounds(OF_THREE[name], rates) if name in OF_THREE else ())]


# Those without T*, which takes longer.
SWIFT = ["l2, plane", "l2, line", "2-ary", "3-ary"]


def held_against(protocol, randomizer, pairs, *, below=None, **options):
    """The bound is above all pairs at every c, its witnesses are below the largest of `below`."""
    found = unit_bound(protocol, randomizer, "messages", 1.0, 1e-9, **options).bound
    truth = exact.most(pairs, CS)
    with float64():
        upper = np.asarray(found.upper(np.log(CS)))
        assert (upper >= truth * (1 - ORACLE_ROUNDING) - 1e-14).all(), (protocol, randomizer, truth / upper)
        lines = [side for one in found.witnesses for side in one.lower(np.log(CS))]
    if below is not None:
        top = exact.most(below, EVERYWHERE)
        for difference, far in lines:
            value = np.asarray(difference)[:, None] - (EVERYWHERE - 1)[None, :] * np.asarray(far)[:, None]
            assert (value <= top * (1 + ORACLE_ROUNDING) + 1e-14).all(), (protocol, randomizer)
    seen = truth > 1e-9
    return float((truth[seen] / upper[seen]).max(initial=0.0))


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_of_a_common_rate(name):
    randomizer, channel, attained = MECHANISMS[name]
    n, closest = 3 if channel.shape[1] <= 4 else 2, 0.0
    for rate in (0.05, 0.4, 0.9) if name in SWIFT else (0.4,):
        run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate)
        pairs = list(exact.rounds(channel, [rate] * n))
        below = attainable(name, pairs, [rate] * n) if attained else None
        closest = max(closest, held_against(run, randomizer, pairs, below=below))
    pairs = list(exact.rounds(channel, [1.0] * n))
    below = attainable(name, pairs, [1.0] * n) if attained else None
    held_against(cj.Shuffle(num_clients=n), randomizer, pairs, below=below)
    assert closest > 0.85


@pytest.mark.parametrize("name", SWIFT)
def test_colluders_are_no_cover(name):
    """Whoever knows when they come and what they send takes them out."""
    randomizer, channel, _ = MECHANISMS[name]
    pairs = list(exact.rounds(channel, [0.4] * 2))
    run = cj.ShuffledCheckIn(num_clients=4, check_in_prob=0.4, num_colluding=2)
    held_against(run, randomizer, pairs, below=pairs)
    # Counted as cover they are false.
    with pytest.raises(AssertionError):
        held_against(cj.ShuffledCheckIn(num_clients=4, check_in_prob=0.4), randomizer, pairs)


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["l2, line", "3-ary", "total variation", "approximate"])
def test_mechanisms_of_unequal_rates(name):
    """For a client of any rate and for all slower ones; the witnesses are the named client's."""
    randomizer, channel, _ = MECHANISMS[name]
    rates = (0.05, 0.6, 0.9)
    run = cj.ShuffledCheckIn(num_clients=len(rates), check_in_prob=cj.Rates(rates))
    pairs = {g: list(exact.rounds(channel, [*(x for x in rates if x != g), g])) for g in rates}
    for g in rates:
        covered = [pair for rate in rates if rate <= g for pair in pairs[rate]]
        below = attainable(name, pairs[g], [*(x for x in rates if x != g), g])
        held_against(run, randomizer, covered, below=below, client_rate=g, bounds="fast")


def fleets_within(largest, total, number):
    """All at one rate; as few as can be; the fastest and one that makes up the sum; all at the largest rate."""
    few = math.ceil(total / largest - 1e-12)
    spread = np.zeros(number)
    spread[:few] = total / few
    steep = np.zeros(number)
    steep[: few - 1], steep[few - 1] = largest, total - largest * (few - 1)
    return [np.full(number, total / number), spread, steep, np.full(number, largest)]


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["l2, line", "3-ary", "total variation", "approximate"])
def test_limits_hold_for_every_fleet_within_them(name):
    randomizer, channel, _ = MECHANISMS[name]
    for largest, total in ((0.97, 0.9), (0.4, 0.5), (0.8, 1.5)):
        run = cj.ShuffledCheckIn(
            num_clients=3, check_in_prob=cj.RateLimits(largest=largest, expected_check_ins=total)
        )
        for g in (largest, 0.3 * largest):
            alike = run.check_in_prob.common_rate_of_others(g, 3)
            fleets = [*fleets_within(largest, total, 2), [alike, alike]]
            pairs = [pair for fleet in fleets for pair in exact.rounds(channel, [*fleet, g])]
            below = [pair for fleet in fleets for pair in attainable(name, (), [*fleet, g])]
            held_against(run, randomizer, pairs, below=[*pairs, *below], client_rate=g)


def test_one_fleet_within_the_limits_is_no_bound_for_all():
    """Messages of a privacy profile: the number of messages of another fleet tells more, by over a half."""
    randomizer, channel, _ = MECHANISMS["approximate"]
    limits, g = cj.RateLimits(largest=0.97, expected_check_ins=0.9), 0.67
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=limits)
    found = unit_bound(run, randomizer, "messages", 1.0, 1e-9, client_rate=g, bounds=("G1h",)).bound
    fleets = fleets_within(0.97, 0.9, 2)
    truth = exact.most([pair for fleet in fleets for pair in exact.rounds(channel, [*fleet, g])], CS)
    (right,) = (one for one in getattr(found, "bounds", (found,)) if isinstance(one, SubsampledMessages))
    with float64():
        assert (right.upper(np.log(CS)) >= truth).all()
        alone = SubsampledMessages(right.counted.within, g, right.profile)
        assert (truth > 1.5 * alone.upper(np.log(CS))).any()


def test_lower_ends_of_a_slow_client_are_of_a_fleet_whose_every_client_has_such_others():
    """The limits hold whichever client is meant, so that the others of a slow one are faster than the mean."""
    largest, total, g, number = 0.2, 0.7, 0.01, 8
    limits = cj.RateLimits(largest=largest, expected_check_ins=total)
    run = cj.ShuffledCheckIn(num_clients=number, check_in_prob=limits)
    randomizer = MECHANISMS["2-ary"][0]
    least = (total - g) / (number - 2)
    assert limits.common_rate_of_others(g, number) == pytest.approx(least)
    within = [
        pair
        for rate in np.linspace(least, largest, 3)
        for pair in exact.rounds(KARY2, [*[rate] * (number - 1), g])
    ]
    beyond = list(exact.rounds(KARY2, [*[total / (number - 1)] * (number - 1), g]))
    for delta in (1e-3, 3e-4):
        end = cj.account(run, randomizer, delta=delta, client_rate=g).lower
        assert end > 0.0
        assert exact.reaches(within, end, delta)
        assert exact.reaches(beyond, 1.05 * end, delta)


def windows_of(channel, rates, slots, dummies):
    """All pairs of neighbouring data sets of A_fix, the last client being the target."""
    everywhere, records = [range(slots)] * len(rates), range(len(channel) - (len(channel) > 2))
    for dummy in dummies:
        for held in product(records, repeat=len(rates) - 1):
            laws = [
                exact.window(channel, (*held, x), rates, everywhere, range(slots), dummy) for x in records
            ]
            yield from permutations(laws, 2)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_slow_client_competes_with_the_fastest_for_its_slot(slots):
    """Lower ends of A_fix at rates that differ: the slow client's message is used more rarely than its share."""
    run = cj.FixedWindow(num_clients=2, num_slots=slots, check_in_prob=cj.Rates([0.1, 0.9]))
    randomizer = MECHANISMS["2-ary"][0]
    slow = list(windows_of(KARY2, [0.9, 0.1], slots, range(2)))
    fast = list(windows_of(KARY2, [0.1, 0.9], slots, range(2)))
    held_against(run, randomizer, slow, below=slow, client_rate=0.1)
    held_against(run, randomizer, [*slow, *fast], below=fast, client_rate=0.9)
    # Of the fastest client's chance the share of the rates is no lower end.
    share = run.slots_of(0.9).use_prob_lower * 0.1 / 0.9
    assert share > 1.05 * run.slots_of(0.1).use_prob_lower
    if slots == 1:
        used = 0.1 * (0.1 + 0.9 / 2)
        assert run.slots_of(0.1).use_prob_lower == pytest.approx(used, rel=1e-9)
        top = exact.most(slow, np.ones(1))[0]
        assert top == pytest.approx(used * (P - 1) / (P + 1), rel=1e-9)
        assert share * (P - 1) / (P + 1) > 1.5 * top


@pytest.mark.parametrize("name", ["l2, line", "2-ary", "3-ary", "total variation"])
def test_windows_with_colluders_in_the_worst_slots(name):
    """A colluder always comes, to a slot chosen in advance, with a message that everybody recognises."""
    randomizer, channel, _ = MECHANISMS[name]
    records = 2
    theirs = np.zeros((records + 2, channel.shape[1] + 1))
    theirs[:records, :-1], theirs[records, -1] = channel[:records], 1.0
    theirs[-1, :-1] = channel[:2].mean(axis=0) if name.startswith("l2") else channel[-1]
    for slots, empty in ((1, "dummy"), (2, "dummy"), (2, "visible")):
        run = cj.FixedWindow(
            num_clients=3, num_slots=slots, check_in_prob=0.7, num_colluding=1, empty_slots=empty
        )
        windows = [range(slots), range(slots), [0]]
        dummy = None if empty == "visible" else records + 1
        pairs = []
        for held in range(records):
            laws = [
                exact.window(theirs, (held, x, records), (0.7, 0.7, 1.0), windows, range(slots), dummy)
                for x in range(records)
            ]
            pairs += permutations(laws, 2)
        held_against(run, randomizer, pairs)


@pytest.mark.parametrize("name", ["l2, line", "3-ary", "Hadamard"])
@pytest.mark.parametrize("slots", [1, 2])
def test_all_messages_of_the_slots_show_more_than_the_used_ones(name, slots):
    """Averages are above windows with visible empty slots; their lower ends are not the windows'."""
    randomizer, channel, _ = MECHANISMS[name]
    run = cj.FixedWindow(num_clients=3, num_slots=slots, check_in_prob=0.3, empty_slots="visible")
    averaged = Unit(run, randomizer, "messages", "replace-one", 20.0).averaged
    assert averaged is not None
    records, everywhere = range(len(channel)), [range(slots)] * 3
    windows = []
    for held in product(records, repeat=2):
        laws = [exact.window(channel, (*held, x), [0.3] * 3, everywhere, range(slots), None) for x in records]
        windows += permutations(laws, 2)
    held_against(run, randomizer, windows, below=windows)
    held_against(averaged.protocol, randomizer, windows)
    with pytest.raises(AssertionError):
        held_against(averaged.protocol, randomizer, windows, below=windows)


def test_units_that_are_a_post_processing_of_averages():
    def averaged(run, relation="replace-one", view="messages"):
        found = Unit(run, cj.Gaussian(noise_multiplier=1.0), view, relation, 20.0).averaged
        return None if found is None else (found.protocol, found.view)

    same = {"num_clients": 9, "num_slots": 4, "check_in_prob": 0.3}
    shown = cj.AveragedUpdates(**same), "messages"
    assert averaged(cj.FixedWindow(**same, empty_slots="visible")) == shown
    assert averaged(cj.FixedWindow(**same, empty_slots="visible", minibatch=2), view="aggregate") == shown
    # Colluders hide nobody, and recognise dummies.
    beside = {**same, "num_clients": 12, "num_colluding": 3}
    assert (
        averaged(cj.FixedWindow(**beside))
        == averaged(cj.FixedWindow(**beside, empty_slots="visible"))
        == shown
    )
    assert averaged(cj.FixedWindow(**same)) is None
    assert averaged(cj.FixedWindow(**same), relation="add-or-remove-one") is None
    assert averaged(cj.SlidingWindow(num_clients=9, window=4, num_colluding=2)) is None
    assert averaged(cj.ShuffledCheckIn(num_clients=9, check_in_prob=0.3)) is None
    # Where clients share slots, the number of used messages says more.
    assert (
        averaged(cj.FixedWindow(num_clients=14, num_slots=4, check_in_prob=0.3, empty_slots="visible"))
        is None
    )


@pytest.mark.parametrize("name", ["l2, line", "3-ary", "Hadamard", "total variation"])
def test_brackets_of_several_rounds(name):
    """`account` itself, two rounds, and a round after another one with other messages."""
    randomizer, channel, _ = MECHANISMS[name]
    run = cj.ShuffledCheckIn(num_clients=2, check_in_prob=0.4, num_rounds=2)
    pairs = list(exact.rounds(channel, [0.4, 0.4]))
    twice = [exact.composed(*pair, 2) for pair in pairs]
    worst = max(twice, key=lambda pair: exact.leak(*pair, np.array([1.2]))[0])
    delta = float(exact.leak(*worst, np.array([P**0.6]))[0])
    found = cj.account(run, randomizer, delta=delta)
    attained = [exact.composed(*pair, 2) for pair in attainable(name, pairs, [0.4, 0.4])]
    assert exact.reaches(attained, found.lower, delta)
    assert not exact.reaches(twice, found.epsilon * (1 + 1e-9), delta)
    other, its, _ = MECHANISMS["RAPPOR"]
    earlier = list(exact.rounds(its, [0.8, 0.8]))
    together = [
        (np.outer(a[0], b[0]).ravel(), np.outer(a[1], b[1]).ravel())
        for a in pairs
        for b in earlier[:: max(len(earlier) // 4, 1)]
    ]
    both = cj.account(
        run.repeated(1),
        randomizer,
        delta=delta,
        before=[(cj.ShuffledCheckIn(num_clients=2, check_in_prob=0.8), other)],
    )
    assert not exact.reaches(together, both.epsilon * (1 + 1e-9), delta)


def test_b0h_is_above_one_bit_mechanisms_and_close():
    """As stated, any theta; without its t* it is exceeded."""
    rng, closest, bare = np.random.default_rng(6), 0.0, 0.0
    for trial in range(24):
        p, number = float(np.exp(rng.choice([0.3, 1.0, 2.0]))), int(rng.integers(1, 4))
        rate, *others = rng.choice([0.02, 0.1, 0.3, 0.6, 0.9], number + 1).tolist()
        binary = trial % 2 == 0
        channel = np.array(krr.krr_channel(2, p)) if binary else known.one_bit_channel(rng, 2, p, 2)
        cs = 1 + (p - 1) * np.array([0.0, 0.1, 0.5])
        truth = exact.most(list(exact.rounds(channel, [*others, rate])), cs)
        for theta in {max(others), 0.4}:
            bound = np.array([known.b0h(others, theta, rate, p, c) for c in cs])
            assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-10).all()
            closest = max(closest, float((truth / bound).max()))
            if binary:
                less = np.array([known.b0h(others, theta, rate, p, c, middle=False) for c in cs])
                seen = less > 1e-9
                bare = max(bare, float((truth[seen] / less[seen]).max(initial=0.0)))
    assert closest > 0.98
    assert bare > 1.5


def test_b0h_as_evaluated_is_above_its_statement_and_close():
    rng = np.random.default_rng(8)
    for _ in range(12):
        p, number = float(np.exp(rng.choice([0.5, 2.0, 4.0]))), int(rng.integers(1, 7))
        rate, *others = rng.choice([0.05, 0.3, 0.6, 0.9], number + 1).tolist()
        theta, cs = float(rng.choice([0.3, 0.6, 0.9])), 1 + (p - 1) * np.array([0.0, 0.02, 0.1, 0.3, 0.6])
        stated = np.array([known.b0h(others, theta, rate, p, c) for c in cs])
        with float64():
            pool = pool_cover.sum_of(pool_cover.weights(np.array(others), theta), np.ones(number), 45.0)
            message = Message(host(math.log(p)), host(1.0))
            found = ClientPool(rate, theta, pool).of_bits(message, np.log(cs), np.ones(cs.size), 45.0)
        assert (found >= stated * (1 - 1e-9) - 1e-10).all()
        assert (found <= stated * 1.1 + 1e-9).all()


def test_a_fleet_that_sends_one_bit():
    """60,000 clients of unequal rates: the l2 mechanism within .6% of its lower end; as the worst message 1.387."""
    rates = 0.02 * 15 ** ((np.arange(60_000) + 0.5) / 60_000)
    run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=cj.Rates(rates), num_rounds=6_800)
    found = cj.account(run, cj.L2Mechanism(epsilon0=2.0), delta=1e-6, client_rate=0.1034)
    assert 1.080 < found.lower <= found.epsilon < min(1.0865, 1.006 * found.lower)
    assert "own-laws" in found.method
    assert any("no client's message depends on another" in text for text in found.assumptions)
