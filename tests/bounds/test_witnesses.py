"""Concrete pairs below bounds: against all that a few clients can send, and where nothing was known below before."""

import dataclasses
import itertools
import json
import math
import types

import mpmath as mp
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact
from oracles import known_messages as oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.equal_records import LabelsAtOneRecord, opposite_gaussians
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages, HiddenMixture
from checkin_jax.accounting.bounds.profiles import LabelProfile
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.numerics.counts import chernoff
from checkin_jax.randomizers.named import Levels, levels, responses

pytestmark = pytest.mark.usefixtures("x64")
CS = np.exp(np.linspace(0.0, 1.5, 31))
LOSSES = np.array([0.02, 0.1, 0.3, 0.7])


def below(lines, first, second, least=0.0):
    """Lines of P||Q and of Q||P are nowhere above the divergences of this pair, those of one of them near enough."""
    near = []
    for (apart, far), pair in zip(lines, ((first, second), (second, first)), strict=True):
        truth = exact.leak(*pair, CS)
        value = np.asarray(apart)[:, None] - (CS - 1.0)[None, :] * np.asarray(far)[:, None]
        if not (value <= truth * (1.0 + ORACLE_ROUNDING) + 1e-13).all():
            return False
        if truth[1] > 0.0:
            near.append(value.max(axis=0)[1] / truth[1])
    return max(near) >= least


# --- a profile as a mixture of randomized responses


def profile_of_levels(known: Levels, cs: np.ndarray) -> np.ndarray:
    p = np.exp(known.losses)
    return (known.weights * np.maximum(p - cs[:, None], 0.0) / (p + 1.0)).sum(axis=1)


def two_responses(loss):
    c = np.exp(np.asarray(loss))
    return 0.3 * np.maximum(2.0 - c, 0.0) / 3.0 + 0.6 * np.maximum(1.3 - c, 0.0) / 2.3


PROFILES = {
    "Laplace": (cj.Laplace(epsilon0=2.0).profile, 2.0),
    "Gaussian": (cj.Gaussian(noise_multiplier=1.0).profile, math.inf),
    "hardly any noise": (cj.Gaussian(noise_multiplier=0.3).profile, math.inf),
    "much noise": (cj.Gaussian(noise_multiplier=30.0).profile, math.inf),
    "shown": (cj.ApproximateLDP(epsilon0=1.0, delta0=1e-3).profile, math.inf),
    "two responses": (two_responses, math.log(2.0)),
}


@pytest.mark.parametrize("name", PROFILES)
def test_levels_are_below_the_profile_and_near_it(name):
    function, largest = PROFILES[name]
    known = levels(function, largest)
    losses = np.linspace(0.0, min(largest, 0.9 * float(known.losses.max())), 1000)
    truth = np.asarray(function(losses))
    found = profile_of_levels(known, np.exp(losses))
    assert (found <= truth).all()
    seen = truth > 1e-4 * truth[0]
    assert (found[seen] >= 0.75 * truth[seen]).all()
    assert known.weights.sum() <= 1.0
    # A little more would be too much.
    assert (1.02 * found > truth).any()


@pytest.mark.parametrize("name", PROFILES)
def test_records_of_levels_have_the_profile_of_their_pairs_at_most(name):
    """The third record's pairs, too."""
    function, largest = PROFILES[name]
    for law in responses(levels(function, largest), name):
        rows = [law.target, law.other, *(() if law.others is None else (law.others,))]
        assert all(row.sum() == pytest.approx(1.0, abs=1e-12) for row in rows)
        assert np.allclose(law.apart, law.target - law.other, atol=1e-15)
        for first, second in itertools.permutations(rows, 2):
            assert (exact.leak(first, second, CS) <= np.asarray(function(np.log(CS))) + 1e-15).all()


TINY = 3.7e-9
SCALES = {
    "Hadamard": (cj.HadamardResponse(epsilon0=TINY), 0.5 / (1.0 + math.exp(-TINY)), 1.0),
    "RAPPOR": (cj.Rappor(epsilon0=TINY), 1.0 / (1.0 + math.exp(-0.5 * TINY)) ** 2, 1.0),
    "Laplace": (cj.Laplace(epsilon0=TINY), 1.0, 2.0),
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("view", ["local", "messages"])
def test_laws_of_tiny_epsilons_keep_their_digits(name, view):
    """One client alone, against the profile solved for epsilon; differences of masses have lost digits."""
    randomizer, scale, slope = SCALES[name]
    delta = 0.3 * TINY * scale
    truth = TINY + slope * math.log1p(-delta / scale)
    g = cj.account(cj.Shuffle(num_clients=1), randomizer, delta=delta, view=view)
    assert (1.0 - 1e-3) * truth <= g.lower <= truth * (1.0 + 1e-12)
    for law in randomizer.label_laws:
        kept = law.difference != 0.0
        assert np.abs(law.difference.sum()) <= 1e-12 * np.abs(law.difference).sum()
        lost = (law.target - law.other)[kept] / law.difference[kept] - 1.0
        assert 1e-12 < np.abs(lost).max() < 1e-3


# --- all others at one record


MECHANISMS = [
    cj.KaryResponse(epsilon0=1.5, num_values=5),
    cj.PureLDP(epsilon0=1.5, total_variation=0.3),
    cj.OneBit(epsilon0=1.5, differ=0.5),
    cj.ApproximateLDP(epsilon0=1.0, delta0=1e-2),
    cj.Rappor(epsilon0=1.5),
]


@pytest.mark.parametrize("randomizer", MECHANISMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_shuffled_labels_are_below_the_round_itself(randomizer, rate):
    # Labels that nobody else shows are not hidden among others.
    for law in (each for each in randomizer.label_laws if not each.revealed):
        rows = [law.target, law.other] + ([] if law.others is None else [law.others])
        # Labels that no record tells apart by are one.
        same = np.all([row == rows[0] for row in rows], axis=0)
        merged = [np.append(row[~same], row[same].sum()) for row in rows]
        others = (merged[-1],) * 2
        held = [exact.histogram([*others, row], [rate] * 3) for row in merged[:2]]
        one = LabelsAtOneRecord(HiddenMessages(3, rate, LabelProfile(law), 40.0), law)
        assert below(one.lower(LOSSES), *held, least=0.6), law.name
        # Among fewer others there is more to see.
        fewer = [exact.histogram([*others[:1], row], [rate] * 2) for row in merged[:2]]
        two = LabelsAtOneRecord(HiddenMessages(2, rate, LabelProfile(law), 40.0), law)
        assert below(two.lower(LOSSES), *fewer), law.name
        assert not below(two.lower(LOSSES), *held), law.name


def bits_summed(rows: np.ndarray, bits: np.ndarray, rate: float) -> np.ndarray:
    """The law of (how many come, the sum of their vectors), by going through all messages."""
    law: dict[tuple[int, ...], float] = {}
    for seen in itertools.product(range(-1, len(bits)), repeat=len(rows)):
        mass = math.prod(1.0 - rate if y < 0 else rate * row[y] for y, row in zip(seen, rows))
        total = sum((bits[y] for y in seen if y >= 0), np.zeros(3, int))
        place = (sum(y >= 0 for y in seen), *total.tolist())
        law[place] = law.get(place, 0.0) + mass
    places = itertools.product(range(len(rows) + 1), repeat=4)
    return np.array([law.get(place, 0.0) for place in places])


def test_sums_of_rappor_tell_the_difference_of_two_bits():
    p, rate = 3.0, 0.6
    kept = math.sqrt(p) / (1.0 + math.sqrt(p))
    bits = np.array(list(itertools.product((0, 1), repeat=3)))
    channel = [np.prod(np.where(bits == one, kept, 1.0 - kept), axis=1) for one in np.eye(3)]
    first, second = (bits_summed([channel[2], channel[2], channel[x]], bits, rate) for x in (0, 1))
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=rate)
    summed, single = (
        unit_bound(run, cj.Rappor(epsilon0=math.log(p)), view, 1, 1e-6).bound.witnesses
        for view in ("aggregate", "messages")
    )
    at_third = [one for one in summed if "one of the two" not in one.name]
    for one, least in zip(at_third, (0.6, 0.3), strict=True):
        assert below(one.lower(LOSSES), first, second, least=least), one.name
    # The single messages, whose third bits are seen with the others, tell more than sums do.
    third = next(each for each in single if each.name == "RAPPOR, all others at a third record")
    assert not below(third.lower(LOSSES), first, second)


# --- slots


@pytest.mark.parametrize(
    "randomizer",
    [cj.KaryResponse(epsilon0=1.5, num_values=4), cj.ApproximateLDP(epsilon0=1.0, delta0=1e-2)],
    ids=["k-ary", "shown"],
)
@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("rates", [(0.7, 0.7, 0.7), (0.3, 0.9, 0.7)])
def test_labels_in_slots_are_below_the_window_itself(randomizer, visible, rates):
    """Dummies at the record of the others where they hide; the client meant is the last one."""
    equal = len(set(rates)) == 1
    run = cj.FixedWindow(
        num_clients=3,
        num_slots=2,
        check_in_prob=rates[0] if equal else cj.Rates(rates),
        empty_slots="visible" if visible else "dummy",
    )
    meant = None if equal else rates[-1]
    found = unit_bound(run, randomizer, "messages", 1, 1e-6, client_rate=meant).bound.witnesses
    checked = 0
    for law in randomizer.label_laws:
        for one in (each for each in found if each.name == law.name):
            rows = np.stack([law.target, law.other, law.other if law.others is None else law.others])
            told = np.any(rows != rows[0], axis=0)
            rows = np.concatenate([rows[:, told], rows[:, ~told].sum(1, keepdims=True)], axis=1)
            first, second = (
                exact.window(rows, (2, 2, x), rates, [(0, 1)] * 3, (0, 1), None if visible else 2)
                for x in (0, 1)
            )
            assert below(one.lower(LOSSES), first, second, least=0.2), one.name
            checked += 1
    assert checked


@pytest.mark.parametrize(
    "run",
    [
        cj.FixedWindow(num_clients=900, num_slots=500, num_colluding=300),
        cj.FixedWindow(num_clients=900, num_slots=500, num_colluding=300, empty_slots="visible"),
        cj.SlidingWindow(num_clients=900, window=100, num_colluding=300),
        # The bound hides far less than without colluders: its grids would be too coarse.
        cj.FixedWindow(num_clients=9_000, num_slots=250, num_colluding=1_500, num_epochs=100),
        cj.SlidingWindow(num_clients=70_700, window=53_900, num_colluding=29_712, num_epochs=31),
    ],
)
@pytest.mark.parametrize(
    "randomizer",
    [
        cj.Gaussian(noise_multiplier=1.0),
        cj.KaryResponse(epsilon0=1.0, num_values=5),
        cj.L2Mechanism(epsilon0=1.0),
        cj.PureLDP(epsilon0=2.4),
    ],
)
@pytest.mark.turns(4)
@pytest.mark.thorough(but=2)
def test_colluders_who_do_as_others_do_leave_the_lower_end_of_nobody(run, randomizer):
    g = cj.account(run, randomizer, delta=1e-6)
    trusting = cj.account(dataclasses.replace(run, num_colluding=0), randomizer, delta=1e-6)
    assert 0.0 < 0.99 * trusting.lower < g.lower <= g.epsilon


# --- rare losses


def test_a_few_rare_losses_are_composed_exactly():
    """Four rounds in which a message hardly ever comes: no grid serves, and nothing was known below."""
    rate, rounds, delta = 3e-3, 4, 1e-5
    kary = cj.KaryResponse(epsilon0=0.3, num_values=60)
    run = cj.ShuffledCheckIn(num_clients=100, check_in_prob=rate, num_rounds=rounds)
    g = cj.account(run, kary, delta=delta, view="local")
    channel = exact.sometimes(oracle.subset_channel(60, 1, math.exp(0.3)), rate)
    truth = exact.epsilon(*exact.composed(channel[0], channel[1], rounds), delta)
    assert 0.99 * truth < g.lower <= truth <= g.epsilon
    more = exact.epsilon(*exact.composed(channel[0], channel[1], 1), delta)
    assert g.lower > more


def at_least(least: int, number: int, prob: float) -> mp.mpf:
    """Pr[Bin(number, prob) >= least]."""
    share = mp.mpf(prob)
    terms = (
        mp.binomial(number, k) * share**k * (1 - share) ** (number - k) for k in range(least, number + 1)
    )
    return mp.mpf(mp.fsum(terms).real)


@pytest.mark.parametrize(
    ("number", "prob"), [(1, 0.3), (2, 1e-7), (40, 0.02), (40, 0.6), (300, 1e-3), (300, 0.11), (300, 1e-12)]
)
def test_tails_of_binomial_laws_are_bounded_on_both_sides(number, prob):
    every = np.arange(1.0, number + 1.0)
    below, above = chernoff.log_at_least(every, float(number), np.array(prob))
    with mp.workdps(50):
        for least in sorted(
            {1, 2, 3, number // 3, number // 2, number - 1, number} & set(range(1, number + 1))
        ):
            truth = mp.log(at_least(least, number, prob))
            assert below[least - 1] <= truth <= above[least - 1]
            if least > number * prob:
                assert above[least - 1] - below[least - 1] < 1.0


def told(count: int, shown: float, mass: float, delta: float) -> float:
    """Largest log((P - delta) / Q) of the events that at least so many of the rounds show something."""
    with mp.workdps(50):
        pairs = [(at_least(k, count, shown), at_least(k, count, mass)) for k in range(1, count + 1)]
        return max(float(mp.log((p - delta) / q)) for p, q in pairs if p > delta)


@pytest.mark.parametrize(
    ("count", "shown", "mass", "delta"),
    [(30, 0.2, 1e-6, 1e-9), (200, 0.01, 1e-4, 1e-5), (90, 0.3, 0.1, 1e-6)],
)
def test_many_rare_losses_tell_more_than_one(count, shown, mass, delta):
    truth = told(count, shown, mass, delta)
    found = compose._so_many(float(count), np.array([shown]), np.array([mass]), delta)
    assert 0.97 * truth < found <= truth
    one = math.log((-math.expm1(count * math.log1p(-shown)) - delta) / -math.expm1(count * math.log1p(-mass)))
    assert found > 1.2 * one
    # The wrong neighbours: a few rounds more, or rounds that show as much under the other record.
    assert compose._so_many(1.1 * count // 1, np.array([shown]), np.array([mass]), delta) > truth
    assert compose._so_many(float(count), np.array([mass]), np.array([mass]), delta) <= 1e-12
    assert compose._so_many(float(count), np.array([shown]), np.array([0.0]), delta) == 0.0


@dataclasses.dataclass(frozen=True)
class LooseEvent:
    """Witness that knows only bounds on its event: 0.6 against 0.1, of which 0.1 is bounded by `mass`."""

    mass: float

    def lower(self, loss):
        lines = np.full(loss.shape, 0.5), np.full(loss.shape, self.mass)
        return lines, (np.zeros(loss.shape), np.ones(loss.shape))


def test_numbers_of_rounds_whose_probabilities_are_loosely_bounded_tell_no_more_than_the_truth():
    """(0.6, 0.1) raised to (0.9, 0.4) would tell 0.66 of two rounds, of which 0.5 is the delta at 0.59."""

    def end(mass):
        composer = types.SimpleNamespace(truncation_losses=[1.0], counts=[2.0], delta=0.5)
        return compose._Composer._by_rare_losses(composer, [LooseEvent(mass)])

    first, second = (
        np.array([each**2, each * (1 - each), each * (1 - each), (1 - each) ** 2]) for each in (0.6, 0.1)
    )
    for mass in np.linspace(0.1, 0.99, 60):
        assert np.maximum(first - math.exp(end(mass)) * second, 0.0).sum() >= 0.5
    assert end(0.1) > 0.3


@pytest.mark.parametrize("view", ["messages", "aggregate", "local"])
@pytest.mark.parametrize(
    "run",
    [
        cj.ShuffledCheckIn(num_clients=5_000, check_in_prob=0.1, num_rounds=10),
        cj.Shuffle(num_clients=5_000, num_rounds=10),
        cj.AveragedUpdates(num_clients=2_000, num_slots=30, check_in_prob=0.5),
        cj.AveragedUpdates(num_clients=40, num_slots=3, check_in_prob=cj.Rates(np.linspace(0.1, 0.9, 40))),
        cj.FixedWindow(num_clients=2_000, num_slots=900, minibatch=3),
        cj.FixedWindow(num_clients=2_000, num_slots=900, empty_slots="visible"),
        cj.SlidingWindow(num_clients=2_000, window=100, minibatch=30),
    ],
)
@pytest.mark.parametrize(
    "randomizer",
    [
        cj.KnownProfile(function=cj.Laplace(epsilon0=1.5).profile, largest_loss=1.5),
        cj.ApproximateLDP(epsilon0=1.0, delta0=1e-12),
        cj.HadamardResponse(epsilon0=1.0),
        cj.Rappor(epsilon0=1.0),
        cj.KaryResponse(epsilon0=1.0, num_values=9),
        cj.L2Mechanism(epsilon0=1.0),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.turns(4)
@pytest.mark.thorough(but=3)
def test_something_is_known_below_everywhere(run, randomizer, view):
    g = cj.account(run, randomizer, delta=1e-6, view=view, bounds="fast")
    assert 0.0 < g.lower <= g.epsilon


@pytest.mark.parametrize("mu", [0.01, 0.5, 4.0])
def test_cells_of_opposite_gaussian_messages_at_50_digits(mu):
    """Both laws and their difference, in the last, infinite cells too."""
    laws = opposite_gaussians(mu, 45.0)
    assert laws.others is not None
    count = laws.target.size // 2
    edges = np.linspace(0.0, max(9.0, math.sqrt(90.0)) + 0.5 * mu, count).tolist()
    for i, (low, high) in enumerate(zip(edges, [*edges[1:], mp.inf])):
        # By the upper tail, which keeps its digits far out.
        with mp.workdps(50):
            zero, up, down = (mp.ncdf(at - low) - mp.ncdf(at - high) for at in (0.0, 0.5 * mu, -0.5 * mu))
            apart = float(up - down)
        for j, one, other, sign in ((i, up, down, 1.0), (count + i, down, up, -1.0)):
            assert laws.others[j] == pytest.approx(float(zero), rel=1e-11, abs=1e-300)
            assert laws.target[j] == pytest.approx(float(one), rel=1e-11, abs=1e-300)
            assert laws.other[j] == pytest.approx(float(other), rel=1e-11, abs=1e-300)
            assert laws.difference[j] == pytest.approx(sign * apart, rel=1e-9, abs=1e-300)


# --- messages that show the record

SHOWN = 0.01
MARKS = np.array([[1.0 - SHOWN, SHOWN], [1.0, 0.0]])


def in_window(rates, slots, shown, dummy=1):
    """Laws of a window with the target, the first client, at either record and absent; all others at the second."""
    held = [1] * (len(rates) - 1)
    present = [exact.window(MARKS, (x, *held), rates, slots, shown, dummy) for x in (0, 1)]
    return (*present, exact.window(MARKS, (1, *held), (0.0, *rates[1:]), slots, shown, dummy))


FIXED = cj.FixedWindow(num_clients=3, num_slots=2, check_in_prob=0.6)
SEEN = cj.FixedWindow(num_clients=3, num_slots=2, check_in_prob=0.6, empty_slots="visible")
SLIDING = cj.SlidingWindow(num_clients=5, window=2)
UNEQUAL = cj.Rates([0.5, 0.2], [1, 2])
ROWS = [MARKS[0], MARKS[1]]
REVEALED = {
    "check-in": (
        cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.3),
        [exact.histogram([row, ROWS[1], ROWS[1]], [0.3] * 3) for row in ROWS],
    ),
    "shuffle": (
        cj.Shuffle(num_clients=3),
        [exact.histogram([row, ROWS[1], ROWS[1]], [1.0] * 3) for row in ROWS],
    ),
    "unequal": (
        cj.ShuffledCheckIn(num_clients=3, check_in_prob=UNEQUAL),
        [exact.histogram([row, ROWS[1], ROWS[1]], [0.5, 0.2, 0.2]) for row in ROWS],
    ),
    "fixed": (FIXED, in_window([0.6] * 3, [(0, 1)] * 3, (0, 1))),
    "visible": (SEEN, in_window([0.6] * 3, [(0, 1)] * 3, (0, 1), None)),
    # The target is the third of five clients: both slots of its window are shown.
    "sliding": (SLIDING, in_window([1.0] * 5, [(2, 3), (0, 1), (1, 2), (3, 4), (4, 5)], (1, 2, 3, 4))),
}


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("name", REVEALED)
def test_a_message_that_shows_the_record_is_seen_as_often_as_the_mechanism_shows_it(name, relation):
    run, (first, replaced, *absent) = REVEALED[name]
    if relation == "add-or-remove-one" and run.refuses(relation, "messages"):
        pytest.skip("no bound is known")
    second = absent[0] if relation == "add-or-remove-one" else replaced
    truth = float(first[second == 0.0].sum())
    randomizer = cj.ApproximateLDP(epsilon0=1.0, delta0=SHOWN)
    found = unit_bound(run, randomizer, "messages", 1.0, 1e-6, relation=relation).bound
    revealed = [each.revealed for each in found.witnesses if each.name == "a message that shows the record"]
    assert len(revealed) == 1
    assert truth * (1.0 - 1e-7) < revealed[0] <= truth

    def ends(delta):
        g = cj.account(run, randomizer, delta=delta, neighboring_relation=relation)
        return g.lower, g.epsilon

    # Exactly then no epsilon holds; the worst of a mechanism with epsilon0 has finite losses, too.
    assert ends(truth * 0.999) == (math.inf, math.inf)
    lower, upper = ends(truth * 1.01)
    assert 0.0 <= lower < math.inf
    assert lower <= upper


def test_what_others_show_too_reveals_nothing():
    """The wrong neighbours: another client at the target's record, or dummies at it, show the mark under Q."""
    first, second = (exact.histogram([row, ROWS[0], ROWS[1]], [0.3] * 3) for row in ROWS)
    assert first[second == 0.0].sum() < 0.5 * SHOWN * 0.3
    first, second, _ = in_window([0.6] * 3, [(0, 1)] * 3, (0, 1), 0)
    assert first[second == 0.0].sum() == 0.0


@pytest.mark.parametrize("view", ["messages", "aggregate", "local"])
def test_no_epsilon_holds_from_the_round_on_whose_shown_records_exceed_delta(view):
    randomizer, delta, rate, rounds = cj.ApproximateLDP(epsilon0=0.5, delta0=1e-9), 2e-8, 0.2, 101
    assert -math.expm1(100 * math.log1p(-rate * 1e-9)) < delta < -math.expm1(101 * math.log1p(-rate * 1e-9))

    def ends(count):
        run = cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=rate, num_rounds=count)
        g = cj.account(run, randomizer, delta=delta, view=view)
        return g.lower, g.epsilon, g.lower_method

    assert ends(rounds) == (math.inf, math.inf, "a message that shows the record")
    lower, upper, _ = ends(rounds - 4)
    assert 0.0 < lower < upper < math.inf


def test_rounds_of_several_kinds_show_the_record_together():
    """A ledger of two runs, neither of which exceeds delta by itself, beside a third that never shows a record."""
    run = cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=0.2, num_rounds=60)
    slots = cj.FixedWindow(num_clients=1_000, num_slots=900, check_in_prob=0.5, num_epochs=40)
    shows, never = cj.ApproximateLDP(epsilon0=0.5, delta0=1e-9), cj.PureLDP(epsilon0=0.5)
    assert cj.account(run, shows, delta=2e-8).epsilon < math.inf
    assert cj.account(slots, shows, delta=2e-8).epsilon < math.inf
    found = cj.account(run, shows, delta=2e-8, before=[(slots, shows), (run, never)])
    assert (found.lower, found.epsilon) == (math.inf, math.inf)
    assert found.warnings == ("no finite epsilon holds at this delta",)


def test_a_finite_upper_end_beside_an_infinite_lower_one_is_a_defect(monkeypatch):
    monkeypatch.setattr(compose, "_bracketed", lambda *_: Bracket(0.0, 3.0, "false"))
    run = cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.5, num_rounds=2)
    with pytest.raises(ArithmeticError, match="lower=inf is above upper=3"):
        cj.account(run, cj.ApproximateLDP(epsilon0=1.0, delta0=1e-3), delta=1e-6)


def test_an_infinite_lower_end_is_written_without_nan():
    run = cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=0.5, num_rounds=10)
    g = cj.account(run, cj.ApproximateLDP(epsilon0=1.0, delta0=1e-6), delta=1e-6)
    assert "inf <= epsilon <= inf" in str(g)
    assert "a message that shows the record" in g._repr_html_()
    plain = json.loads(json.dumps(g.as_dict(attack=True), allow_nan=False))
    assert (plain["lower"], plain["epsilon"]) == (None, None)
    rows = cj.sweep(
        protocol=cj.ShuffledCheckIn,
        randomizer=cj.ApproximateLDP,
        num_clients=1_000,
        check_in_prob=0.5,
        num_rounds=[1, 10],
        epsilon0=1.0,
        delta0=1e-6,
        delta=1e-6,
    )
    assert math.isfinite(rows["lower"][0])
    assert rows["lower"][1] == rows["epsilon"][1] == math.inf
    assert list(rows["error"]) == ["", ""]
    ledger = cj.CheckInAccountant()
    ledger.compose(cj.CheckInDpEvent(run.repeated(1), g.randomizer), 10)
    assert ledger.get_lower_epsilon(1e-6) == math.inf
    assert json.loads(json.dumps(ledger.guarantee(1e-6).as_dict(), allow_nan=False))["lower"] is None


@pytest.mark.parametrize("third", [False, True])
def test_mixed_numbers_of_labels_share_contours_and_are_below_each_round(third):
    """Sums have numbers and chances of their own: with fewer messages or a larger chance there is more to see."""
    laws = cj.HadamardResponse(epsilon0=1.5).label_laws
    law = next(each for each in laws if (each.others is None) != third)
    everybody = np.asarray(law.others if third else law.other)
    numbers, chances = np.array([3.0, 4.0]), np.array([0.9, 0.5])

    def sums(numbers: np.ndarray, chances: np.ndarray) -> np.ndarray:
        one = HiddenMixture(np.array([0.2, 0.5]), numbers, chances, LabelProfile(law), 40.0)
        return LabelsAtOneRecord(one, law).of_sums(LOSSES)

    found, fewer, certain = sums(numbers, chances), sums(numbers - 2.0, chances), sums(numbers, np.ones(2))
    for i, (number, chance) in enumerate(zip(numbers, chances)):
        theirs = (everybody,) * (int(number) - 1)
        held = [
            exact.histogram(
                [*theirs, chance * np.asarray(row) + (1.0 - chance) * everybody], [1.0] * int(number)
            )
            for row in (law.target, law.other)
        ]
        assert below(found[:, :, i], *held, least=0.5)
        assert not below(fewer[:, :, i], *held)
        assert not below(certain[:, :, i], *held)
