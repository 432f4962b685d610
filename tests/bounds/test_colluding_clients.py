"""Clients in league with the adversary: honest counts where that is right, R3c where it is not, and counterexamples."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from scipy.stats import norm

import checkin_jax as cj
from checkin_jax.accounting import witnesses
from checkin_jax.accounting.bounds.interface import LocalLabels, LocalPureLDP
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile, MessageProfile
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.unequal.pooled_clients import HiddenWithColluders
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import contention, gaussian_slots
from checkin_jax.numerics.counts import occupancy
from checkin_jax.randomizers import LabelLaws

DELTA, P = 1e-6, 3.0
MESSAGES = cj.PureLDP(epsilon0=math.log(P))
CS = np.array([1.0, 1.2, 1.6, 2.2, 2.9])


def profile(protocol, cs=CS, **more):
    with jax.enable_x64(True):
        chosen = unit_bound(protocol, MESSAGES, "messages", 1.0, 1e-12, **more)
        return np.asarray(chosen.bound.upper(np.log(np.asarray(cs))))


@pytest.mark.parametrize("view", ["messages", "aggregate"])
@pytest.mark.parametrize("randomizer", [MESSAGES, cj.Gaussian(noise_multiplier=4.0)])
@pytest.mark.parametrize(
    "make",
    [
        lambda n, **more: cj.ShuffledCheckIn(num_clients=n, check_in_prob=0.2, num_rounds=3, **more),
        lambda n, **more: cj.Shuffle(num_clients=n, num_rounds=3, **more),
        lambda n, **more: cj.AveragedUpdates(
            num_clients=n, num_slots=4, check_in_prob=0.3, num_epochs=2, **more
        ),
    ],
)
@pytest.mark.thorough(but=1)
def test_known_messages_leave_the_honest_clients(make, randomizer, view):
    """Cover and noise are those of the honest; the statement says what is assumed of the others."""
    honest = cj.account(make(400), randomizer, delta=DELTA, view=view, bounds="fast")
    found = cj.account(make(500, num_colluding=100), randomizer, delta=DELTA, view=view, bounds="fast")
    assert (found.lower, found.epsilon) == (honest.lower, honest.epsilon)
    assert found.epsilon > cj.account(make(500), randomizer, delta=DELTA, view=view, bounds="fast").epsilon
    assert "at most 100 clients collude with the adversary" in str(found)


def known_dummies(slots, prob, colluding):
    """A window with hidden dummies at x', the target alone with colluders, one in each of the first slots.

    Every colluder comes for sure; that its message is missing shows the target, drawn half of the time. P||Q.
    """
    each = prob / slots
    shown = each / 2 * colluding * np.maximum(P - CS, 0) / (P + 1)
    rest = slots - colluding
    total = 1 - each / 2 * colluding
    for k in range(rest + 1):
        base = math.comb(rest, k) * (1 / (P + 1)) ** k * (P / (P + 1)) ** (rest - k)
        ratios = k * P + (rest - k) / P
        first = total - each * rest + each * ratios
        shown = shown + base * np.maximum(first - CS * total, 0)
    return shown


@pytest.mark.parametrize(("slots", "colluding"), [(2, 1), (6, 1), (6, 4)])
def test_hidden_dummies_hide_less_from_those_who_are_there(slots, colluding):
    """T2 with the honest count is false; R3c is above, and what `account` takes is no less than the truth."""
    run = cj.FixedWindow(
        num_clients=colluding + 1, num_slots=slots, check_in_prob=0.4, num_colluding=colluding
    )
    alone = cj.FixedWindow(num_clients=1, num_slots=slots, check_in_prob=0.4)
    truth = known_dummies(slots, 0.4, colluding)
    assert (profile(run) >= truth * (1 - 1e-9)).all()
    assert (profile(run, bounds=("R3c",)) >= truth * (1 - 1e-9)).all()
    naive = profile(alone, bounds=("T2",))
    assert truth[-1] > 1.5 * naive[-1]


@pytest.mark.parametrize(("slots", "colluding"), [(1, 1), (2, 1), (6, 1), (6, 4), (6, 6)])
def test_a_profile_beside_colluders_is_above_the_window(slots, colluding):
    """Of up to so many colluders any number may be there; with all of them the target is seen half of the time."""
    losses = np.log(CS)
    with jax.enable_x64(True):
        bound = HiddenWithColluders(slots, 0.4, colluding, MessageProfile(MESSAGES), 45.0)
        found = np.asarray(bound.upper(losses))
        # The neighbour that takes the largest number for the worst one.
        met, kept, hidden = bound._ranges[0]
        alone = met * bound.profile.delta(losses)
        neighbour = alone if hidden is None else alone + kept * np.asarray(hidden.upper(losses))
    for present in range(colluding + 1):
        assert (found >= known_dummies(slots, 0.4, present) * (1 - 1e-9)).all()
    assert (found <= 0.4 * (P - CS) / (P + 1) * (1 + 1e-6)).all()
    if slots == 1:
        assert neighbour[0] < 0.6 * known_dummies(slots, 0.4, 0)[0]


@pytest.mark.parametrize("often", [0.02, 0.1])
def test_a_profile_beside_colluders_is_above_one_of_two(often):
    """Two slots, two colluders, one of whom stays away; the dummy is on the second record."""
    laws = cj.FiniteMechanism(probabilities=[[often, 1.0 - often], [often / 5.0, 1.0 - often / 5.0]])
    run = cj.FixedWindow(num_clients=3, num_slots=2, num_colluding=2)
    a, b = np.asarray(laws.probabilities)
    for c in (2.4, 2.7, 3.0):
        met = np.maximum(a - c * b, 0.0).sum() / 4.0
        truth = met + np.maximum(a / 2.0 + b / 4.0 - c * 3.0 * b / 4.0, 0.0).sum()
        with jax.enable_x64(True):
            found = unit_bound(run, laws, "messages", 1.0, 1e-12).bound.upper(np.log([c]))[0]
        assert found >= truth * (1 - 1e-9)


def beside(slots, use_prob, present, p, c):
    """R3c's two terms for so many slots with a colluder, T* that of PureLDP: by enumeration."""
    kept, often = 1 - use_prob * present / (2 * slots), 1 / (p + 1)
    steps, probs = np.array([p - c, 1 - c * p, 0.0]) - (1 - c), np.array([often, often, 1 - 2 * often])
    total = (1 - kept) * (p - c) * often
    for outcome in itertools.product(range(3), repeat=slots - present):
        chosen = list(outcome)
        gain = kept * (1 - c) + use_prob / slots * steps[chosen].sum()
        total += probs[chosen].prod() * max(gain, 0.0)
    return total


@pytest.mark.parametrize(("slots", "colluding"), [(3, 2), (4, 3), (5, 4), (5, 9)])
@pytest.mark.parametrize("use_prob", [0.6, 1.0])
@pytest.mark.parametrize("p", [math.exp(0.5), 3.0])
def test_a_profile_beside_colluders_is_above_what_is_stated(slots, colluding, use_prob, p):
    """For each number of slots with a colluder, those that are bounded together among them."""
    cs = 1 + (p - 1) * np.array([0.0, 0.1, 0.341, 0.6, 0.95])
    with jax.enable_x64(True):
        message = MessageProfile(cj.PureLDP(epsilon0=math.log(p)))
        found = HiddenWithColluders(slots, use_prob, colluding, message, 45.0).upper(np.log(cs))
    for c, upper in zip(cs, found):
        stated = max(beside(slots, use_prob, present, p, c) for present in range(min(colluding, slots) + 1))
        assert min(stated, use_prob * (p - c) / (p + 1)) <= upper * (1 + 1e-12)


def test_colluders_besides_those_in_shown_slots_hide_nobody():
    """One in each of the 11 shown slots and all others elsewhere: the target is told in half of the cases."""
    run = cj.SlidingWindow(num_clients=1010, window=1000, num_colluding=1009)
    p, epsilon = math.exp(0.5), 0.15
    told = 11 / 1000 / 2 * (p - math.exp(epsilon)) / (p + 1)
    found = cj.account(run, cj.PureLDP(epsilon0=0.5), delta=told)
    assert 0.999 * epsilon <= found.lower <= epsilon <= found.epsilon <= 1.001 * epsilon


def test_honest_clients_at_the_ends_leave_the_other_slots():
    """Window of three slots, four others that meet it, the last of them honest: it is in slot 2 at most.

    Colluders are in slots 0 and 1, the third one elsewhere; each of their slots shows the target half of the time.
    """
    run = cj.SlidingWindow(num_clients=9, window=3, num_colluding=3)
    found, *_ = witnesses._beside_colluders(
        Unit(dataclasses.replace(run, num_colluding=0), MESSAGES, "messages", "replace-one", 40.0), 3
    )
    assert isinstance(found, LocalPureLDP)
    assert found.rate == pytest.approx(2 / 3 / 2, rel=1e-9)
    assert found.rate <= 2 / 3 / 2


def target_among_shown(window, colluding, looked_at, number):
    """Probability that the target is shown beside a colluder in these slots, and at most so many honest messages are.

    The nearest clients collude, one of them in each of these slots. Also that without colluders in the slots.
    """
    theirs = range(-(colluding // 2), colluding - colluding // 2 + 1)
    honest = [i for i in range(1 - window, window) if i not in theirs]
    states = {(0,) * window: 1.0}
    for start in honest:
        stepped = dict.fromkeys(states, 0.0)
        for held, mass in states.items():
            for slot in range(start, start + window):
                there = slot if 0 <= slot < window else None
                after = tuple(load + (at == there) for at, load in enumerate(held))
                stepped[after] = stepped.get(after, 0.0) + mass / window
        states = stepped
    found, alone = 0.0, 0.0
    for held, mass in states.items():
        for mine in looked_at:
            law = np.ones(1)
            for slot in looked_at:
                often = held[slot] / (held[slot] + 1)
                law = np.convolve(law, [0.0, 1.0] if slot == mine else [1.0 - often, often])
            found += mass / window * law[: number + 1].sum() / (held[mine] + 2)
            alone += mass / window * law[: number + 1].sum() / (held[mine] + 1)
    return found, alone


@pytest.mark.parametrize(("window", "colluding"), [(4, 1), (4, 3), (5, 4), (5, 6), (6, 5), (6, 9)])
def test_the_target_is_among_the_honest_messages_as_often_as_stated(window, colluding):
    """A colluder in each of the middle slots; not counting the draw against it is too often."""
    number, rate = witnesses.shown_in_the_middle(window, colluding, 1.0)
    assert rate > 0.0
    slots = [
        range(first, end) for end in range(1, window + 1) for first in range(max(end - colluding, 0), end)
    ]
    both = [target_among_shown(window, colluding, each, number) for each in slots]
    assert max(found for found, _ in both) >= rate * (1.0 - 1e-9)
    assert witnesses.shown_in_the_middle(window, colluding, 0.5)[1] < rate
    assert max(alone for _, alone in both) > 1.4 * max(found for found, _ in both)


@pytest.mark.parametrize(("window", "colluding"), [(3, 1), (4, 3), (5, 2), (5, 6), (6, 5), (6, 10)])
def test_neighbours_who_stay_away_leave_the_target_its_slots(window, colluding):
    """The target is used as often as stated, which it is not where all others throw; the farthest ones do not help."""
    run = cj.SlidingWindow(num_clients=4 * window, window=window, num_colluding=colluding)
    found = witnesses.trusting(Unit(run, MESSAGES, "messages", "replace-one", 40.0))
    assert found.slots is not None
    _, truth = target_among_shown(window, colluding, range(window), window)
    assert found.slots.use_prob_lower <= truth
    assert found.slots.use_prob_lower > 0.97 * truth
    alike = dataclasses.replace(run, num_colluding=0).slots
    assert alike is not None
    assert found.slots.use_prob_lower >= alike.use_prob_lower
    _, all_throw = target_among_shown(window, 0, range(window), window)
    assert all_throw == pytest.approx(alike.use_prob_lower)
    assert all_throw < found.slots.use_prob_lower


def test_a_colluder_leaves_the_lower_end_of_none():
    """It may do as the others do, where only the client's own randomizer bounds epsilon from above, too."""
    ends = [
        cj.account(
            cj.SlidingWindow(num_clients=1999, window=1000, num_colluding=colluding),
            cj.L2Mechanism(epsilon0=1.0),
            delta=DELTA,
            bounds="fast",
        ).lower
        for colluding in (0, 1)
    ]
    assert ends[1] >= 0.999 * ends[0]


def test_counting_colluders_in_occupied_slots_is_false():
    """One honest client, one colluder, one visible slot: a message that is not the colluder's is the client's."""
    told = cj.FixedWindow(num_clients=2, num_slots=1, check_in_prob=0.5, empty_slots="visible")
    run = cj.FixedWindow(
        num_clients=2, num_slots=1, check_in_prob=0.5, empty_slots="visible", num_colluding=1
    )
    truth = 0.5 * (0.5 + 0.25) * np.maximum(P - CS, 0) / (P + 1)
    assert (profile(run) >= truth * (1 - 1e-9)).all()
    assert profile(told)[-1] == 0.0 < truth[-1]


def test_sliding_windows_lose_amplification_to_colluders_slot_by_slot():
    def run(colluding):
        return cj.SlidingWindow(num_clients=2000, window=200, num_colluding=colluding)

    epsilons = [cj.account(run(x), MESSAGES, delta=DELTA).epsilon for x in (0, 1, 20, 200, 1999)]
    assert (np.diff(epsilons) >= 0).all()
    # One colluder's slot shows a message of one of several; beside as many as a window has slots nobody hides it.
    assert epsilons[0] < 0.5 < epsilons[1] < 0.9 < 0.98 * math.log(P) < epsilons[3]
    few, many = (profile(run(x), [1.0, 1.2]) for x in (0, 20))
    assert (few < many).all()
    g = cj.account(run(20), MESSAGES, delta=DELTA)
    assert 0.0 < g.lower < epsilons[0]
    assert "profile" in g.method


def seen_by_colluders(channel, record, sent):
    """Law of what the others see of the middle one of three clients in windows of two slots: all but it collude.

    Each of them sends this label in a slot of the client's window, of which both slots are published.
    """
    law = {}
    for pick, own in itertools.product(range(2), range(channel.shape[1])):
        mass = channel[record, own] / 2
        for drawn in (True, False):
            outputs = tuple(own if drawn and slot == pick else sent for slot in range(2))
            law[outputs] = law.get(outputs, 0.0) + mass / 2
    return law


@pytest.mark.parametrize("seed", range(4))
def test_few_values_are_told_apart_in_a_colluders_slot(seed):
    """Lower ends where two messages may be equal: a label that the colluder did not send is the client's."""
    rng = np.random.default_rng(seed)
    channel = rng.dirichlet(np.full(4, 3.0), size=2)
    law = LabelLaws(channel[0], channel[1], "a channel")
    told = witnesses._unlike_theirs(law)
    (sent,) = np.flatnonzero(told.target == 0.0)
    one, other = (seen_by_colluders(channel, record, sent) for record in (0, 1))
    witness = LocalLabels(LocalPureLDP(1.0, 1.0), 0.5, told)
    losses = np.array([0.0, 0.1, 0.3, 0.6])
    for pair, (apart, mass) in zip(((one, other), (other, one)), witness.lower(losses)):
        for loss, least in zip(losses, apart - np.expm1(losses) * mass):
            exact = sum(max(pair[0][key] - math.exp(loss) * pair[1][key], 0.0) for key in pair[0])
            assert least <= exact * (1.0 + 1e-12)
    # Each label but one tells, half of the time.
    tv = 0.5 * np.abs(channel[0] - channel[1]).sum()
    assert 0.3 * tv < witness.lower(losses)[0][0][0] <= 0.5 * tv


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cj.ShuffledCheckIn(num_clients=2, check_in_prob=cj.Rates([0.1, 0.2]), num_colluding=1),
            "leave the colluding clients out",
        ),
        (
            lambda: cj.FixedWindow(
                num_clients=2, num_slots=1, check_in_prob=cj.Rates([0.1, 0.2]), num_colluding=1
            ),
            "leave the colluding clients out .* with empty_slots=visible",
        ),
        (
            lambda: cj.account(
                cj.SlidingWindow(num_clients=50, window=5, num_colluding=1),
                MESSAGES,
                delta=DELTA,
                neighboring_relation="add-or-remove-one",
            ),
            "no bound is known where clients collude",
        ),
    ],
)
def test_refusals_name_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_of_windows_is_not_counted_on():
    """Gaussian messages in windows with colluders: no theorem of slots, only what the client's own message tells.

    From below, colluders who stay away.
    """
    run = cj.FixedWindow(num_clients=100, num_slots=50, check_in_prob=0.5, num_colluding=10)
    alike = dataclasses.replace(run, num_clients=90, num_colluding=0)
    g, others = (
        cj.account(each, cj.Gaussian(noise_multiplier=4.0), delta=DELTA, view="aggregate")
        for each in (run, alike)
    )
    own = cj.account(run, cj.Gaussian(noise_multiplier=4.0), delta=DELTA, view="local")
    assert 0.0 < g.lower == others.lower < others.epsilon < g.epsilon <= own.epsilon * (1 + 1e-6)


def shown_by_honest(slots, known, honest, prob):
    """Law of the number of slots, out of `known` ones with a colluder each, that show an honest client's message."""
    count = np.arange(honest + 1.0)
    thrown = (prob / slots) ** count / [math.factorial(int(k)) for k in count]
    elsewhere = (1 - prob + prob * (slots - known) / slots) ** count[::-1] / [
        math.factorial(int(k)) for k in count[::-1]
    ]
    law = np.zeros((known + 1, honest + 1))
    law[0, 0] = 1.0
    for _ in range(known):
        after = np.zeros_like(law)
        for k in range(honest + 1):
            hidden = law * thrown[k] / (k + 1)
            after[:, k:] += hidden[:, : honest + 1 - k]
            after[1:, k:] += k * hidden[:-1, : honest + 1 - k]
        law = after
    return law @ elsewhere * math.factorial(honest)


@pytest.mark.parametrize(
    ("slots", "known", "honest", "prob"), [(8, 6, 12, 1.0), (30, 30, 40, 0.5), (40, 25, 30, 0.1)]
)
def test_honest_clients_shown_beside_colluders_are_not_overcounted(slots, known, honest, prob):
    """Each level is reached as often as the witness says; not so if an honest client always won the slot."""
    reached = np.append(np.cumsum(shown_by_honest(slots, known, honest, prob)[::-1])[::-1], 0.0)
    assert reached[0] == pytest.approx(1.0, rel=1e-9)
    each = prob / slots
    found = witnesses._shown_by_honest(known, honest, each)
    weights = np.cumsum([weight for _, weight in found][::-1])[::-1]
    numbers = [number for number, _ in found]
    assert (weights <= reached[numbers] * (1 + 1e-9)).all()
    assert max(numbers) >= 0.5 * known * (1 - contention.win_prob(honest, each))
    never_lost = known * -math.expm1(honest * math.log1p(-each))
    assert reached[round(never_lost)] < 0.6 or honest * each < 0.2


@pytest.mark.parametrize("colluding", [2, 3])
def test_gaussian_messages_beside_colluders_leak_no_less_than_the_witness(colluding):
    """Three honest clients in two common slots, a colluder in each: all but the target hold the second record."""
    mu, slots, prob, honest = 1.5, 2, 0.9, 3
    run = cj.FixedWindow(
        num_clients=honest + colluding, num_slots=slots, check_in_prob=prob, num_colluding=colluding
    )
    unit = Unit(
        dataclasses.replace(run, num_colluding=0),
        cj.Gaussian(noise_multiplier=2 / mu),
        "messages",
        "replace-one",
        40.0,
    )
    with jax.enable_x64(True):
        (found,) = witnesses._beside_colluders(unit, colluding)
        (apart, mass), _ = found.lower(np.log(CS))
    lower = np.asarray(apart) - (CS - 1) * np.asarray(mass)
    truth = displacing_gaussian(shown_by_honest(slots, slots, honest, prob), honest, mu, CS)
    assert (lower <= truth * (1 + 1e-9)).all()
    assert lower[0] > 0.1 * truth[0]


def displacing_gaussian(law, clients, mu, cs):
    """H at cs where k messages are seen with probability law[k], any of the clients' equally often, one moved by mu."""
    place, weight = np.polynomial.hermite_e.hermegauss(160)
    weight = weight / weight.sum()
    total = np.zeros(cs.size)
    for k in range(1, len(law)):
        grids = np.meshgrid(*[np.exp(mu * place - mu * mu / 2)] * (k - 1), np.zeros(1), indexing="ij")
        masses = np.meshgrid(*[weight] * (k - 1), np.ones(1), indexing="ij")
        others, often = sum(grids).ravel(), math.prod(masses).ravel()
        for i, c in enumerate(cs):
            # E (L - t)_+ for one more message.
            t = clients * (c - 1) + k - others
            log = np.log(np.maximum(t, 1e-300))
            beyond = norm.cdf(mu / 2 - log / mu) - t * norm.cdf(-mu / 2 - log / mu)
            total[i] += law[k] / clients * often @ np.where(t > 0, beyond, 1 - t)
    return total


@pytest.mark.parametrize(("clients", "slots", "prob"), [(4, 3, 0.3), (5, 2, 0.2), (40, 3, 0.02)])
def test_numbers_of_used_clients_are_told_apart(clients, slots, prob):
    """Visible slots: the mixture over the number of used clients is above what leaks, and below its largest number."""
    mu = 1.2
    run = cj.FixedWindow(num_clients=clients, num_slots=slots, check_in_prob=prob, empty_slots="visible")
    truth = displacing_gaussian(occupancy.exact(clients, slots, prob), clients, mu, CS)
    unit = Unit(run, cj.Gaussian(noise_multiplier=2 / mu), "messages", "replace-one", 35.0)
    with jax.enable_x64(True):
        upper = np.asarray(gaussian_slots.r3(unit).upper(np.log(CS)))
        whole = HiddenSlots(slots, slots / clients, GaussianProfile(mu), 35.0).upper(np.log(CS))
        mean = float(occupancy.moments(float(clients), float(slots), prob)[0])
        fewest = HiddenSlots(1, 1 / clients, GaussianProfile(mu), 35.0).upper(np.log(CS))
    assert (upper >= truth * (1 - 1e-9)).all()
    assert (upper <= whole * (1 + 1e-6)).all()
    assert upper[0] < 0.95 * whole[0]
    # One used client a window, as often as there is any, is no bound where often there are more.
    once = -math.expm1(clients * math.log1p(-prob)) * fewest
    assert (once < truth).any() or mean < 0.8


def beside_surely_coming(channel, records, prob, theirs):
    """Law of two common slots' messages and of the messages of a colluder in each; honest clients hold `records`."""
    size, law = channel.shape[1], {}
    for picks in itertools.product((None, 0, 1), repeat=len(records)):
        mass = math.prod(1 - prob if pick is None else prob / 2 for pick in picks)
        slots = []
        for slot in range(2):
            there = [record for record, pick in zip(records, picks) if pick == slot]
            one = np.diag(theirs) / (len(there) + 1)
            for record in there:
                one = one + np.outer(theirs, channel[record]) / (len(there) + 1)
            slots.append(one)
        for key in itertools.product(range(size), repeat=4):
            law[key] = law.get(key, 0.0) + mass * slots[0][key[:2]] * slots[1][key[2:]]
    return law


@pytest.mark.parametrize("values", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_values_that_differ_from_a_colluders_are_an_honest_clients(monkeypatch, seed, values):
    """Three honest clients, exact numbers: below what leaks. If values were told by chance alone, above."""
    rng, honest, prob = np.random.default_rng(seed), 3, 0.9
    channel = rng.dirichlet(np.ones(values) * 2.0, size=2)
    sent = np.full(2, 0.5) if values == 2 else np.eye(values)[np.argmin(np.abs(channel[0] - channel[1]))]
    mechanism = cj.FiniteMechanism(probabilities=channel.tolist())
    run = cj.FixedWindow(num_clients=honest, num_slots=2, check_in_prob=prob)
    law = next(
        law for law in mechanism.label_laws if np.allclose(law.other, channel[1]) and law.others is None
    )
    kept, told = witnesses._told_apart(witnesses._named_beside(law))
    assert np.sum(kept.target) == pytest.approx(np.sum(kept.other), rel=1e-9)
    assert (np.asarray(kept.other) * told <= (channel[1] * (1 - sent))[sent < 1]).all()
    shown = shown_by_honest(2, 2, honest, prob)

    def numbers(slots, clients, each, share=1.0):
        thinned = np.zeros(3)
        for k in range(3):
            for j in range(k + 1):
                thinned[j] += shown[k] * math.comb(k, j) * share**j * (1 - share) ** (k - j)
        return [(k, float(thinned[k])) for k in range(3)]

    monkeypatch.setattr(witnesses, "_shown_by_honest", numbers)
    unit = Unit(run, mechanism, "messages", "replace-one", 40.0)
    choices = cj.FixedWindow(num_clients=honest, num_slots=2, check_in_prob=prob).used_slot_choices
    mine, other = (beside_surely_coming(channel, [x, 1, 1], prob, sent) for x in (0, 1))
    losses = np.array([0.0, 0.05, 0.15])

    def lower():
        found = next(each for each in witnesses._foreign_messages(unit, choices, 2) if each.name == kept.name)
        (apart, mass), _ = found.lower(losses)
        return np.asarray(apart) - np.expm1(losses) * np.asarray(mass)

    truth = np.array([sum(max(mine[k] - math.exp(loss) * other[k], 0.0) for k in mine) for loss in losses])
    with jax.enable_x64(True):
        assert (lower() <= truth * (1 + 1e-9)).all()
        assert lower()[0] > 0.3 * truth[0]
        monkeypatch.setattr(witnesses, "_told_apart", lambda law: (law, 1.0))
        assert (lower() > truth).any()
