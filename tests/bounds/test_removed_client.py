"""T2r, a client added to slots with hidden dummies or removed: against all throws, and what is NOT a bound."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy
from oracles import random_check_ins as brute

import checkin_jax as cj
from checkin_jax.accounting.bounds.profiles import MessageProfile
from checkin_jax.accounting.bounds.windows import removed_client
from checkin_jax.accounting.bounds.windows.removed_client import RemovedClient, WeightLaw
from checkin_jax.accounting.bounds.windows.small_windows import SmallWindowRemoved
from checkin_jax.numerics.counts import chernoff

pytestmark = pytest.mark.usefixtures("x64")
MASS, LOSSES = 31.0, np.array([0.0, 0.02, 0.1, 0.3, 0.6, 0.9, 1.3])
RELATION = "add-or-remove-one"


class Loads(RemovedClient):
    """The bound by a Poisson number of others, also where it is not the smaller one."""

    @property
    def parts(self):
        return (self.poisson(),)


def with_and_without(num_clients, num_slots, rate, records, tree):
    """Laws of a common window's outputs with the last client, and without it; by all choices and draws."""
    found = []
    for its in (rate, 0.0):
        rates = (rate,) * (num_clients - 1) + (its,)
        choices = brute.fixed_window_choices(num_clients, num_slots, rates)
        used = brute.one_of_each_slot(choices, range(num_slots))
        found.append(brute.output_law(used, records, tree))
    return found


def exact_sides(laws):
    """H(P||Q) and H(Q||P) at LOSSES."""
    one, other = laws
    return [
        np.array([brute.hockey_stick(*pair, math.exp(loss)) for loss in LOSSES])
        for pair in ((one, other), (other, one))
    ]


def above(bound, laws) -> bool:
    exact = exact_sides(laws)
    return all(
        np.all(np.asarray(ours) >= theirs * (1.0 - 1e-11) - 1e-13)
        for ours, theirs in zip(bound.upper_sides(LOSSES), exact)
    )


@pytest.mark.parametrize("kind", ["extremal", "rotated", "atomic"])
@pytest.mark.parametrize(
    ("num_clients", "num_slots", "rate"), [(1, 2, 0.7), (2, 2, 1.0), (3, 2, 0.9), (3, 3, 0.5)]
)
def test_all_choices_of_a_few_clients_are_below(kind, num_clients, num_slots, rate):
    p = 4.0
    rng = np.random.default_rng(num_clients * num_slots)
    message = MessageProfile(cj.PureLDP(epsilon0=math.log(p)))
    facts = num_slots, rate, message, MASS, num_clients - 1, rate / num_slots
    bounds = [RemovedClient(*facts), RemovedClient(*facts, common=True)]
    bounds += [Loads(*facts, common=True)] if num_clients > 1 else []
    for _ in range(6):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, kind), num_slots)
        records = rng.integers(0, 3, size=num_clients).tolist()
        laws = with_and_without(num_clients, num_slots, rate, records, tree)
        assert all(above(bound, laws) for bound in bounds)


@pytest.mark.parametrize("kind", ["extremal", "rotated"])
def test_sliding_windows_are_below(kind):
    """The middle one of five clients, whose window of three slots is published whole."""
    n, window, p = 5, 3, 4.0
    rng = np.random.default_rng(5)
    message = MessageProfile(cj.PureLDP(epsilon0=math.log(p)))
    bounds = [
        RemovedClient(window, 1.0, message, MASS, window - 1, 1.0 / window),
        SmallWindowRemoved(window, message, MASS),
    ]
    choices = brute.sliding_window_choices(n, window)
    without = {}
    for picks, mass in choices.items():
        gone = (*picks[:2], brute.EMPTY, *picks[3:])
        without[gone] = without.get(gone, 0) + mass
    slots = range(3, 6)
    both = [brute.one_of_each_slot(law, slots) for law in (choices, without)]
    for _ in range(4):
        tree = brute.random_tree(lambda: brute.random_channel(rng, 3, p, kind), window)
        records = rng.integers(0, 3, size=n).tolist()
        laws = [brute.output_law(used, records, tree) for used in both]
        assert all(above(bound, laws) for bound in bounds)


def showing(delta0: float, epsilon0: float) -> np.ndarray:
    """Channel of binary randomized response that shows the record with probability delta0; the dummy holds 0."""
    p = math.exp(epsilon0)
    rows = []
    for record in (0, 1, 0):
        hidden = (1.0 - delta0) * np.array([p, 1.0] if record == 0 else [1.0, p]) / (p + 1.0)
        rows.append([*hidden, delta0 * (record == 0), delta0 * (record == 1)])
    return np.array(rows)


@pytest.mark.parametrize(("delta0", "epsilon0"), [(0.03, 0.7), (0.2, 0.3)])
def test_messages_that_may_show_the_record_are_below(delta0, epsilon0):
    message = MessageProfile(cj.ApproximateLDP(epsilon0=epsilon0, delta0=delta0))
    tree = brute.constant_tree(showing(delta0, epsilon0), 2)
    for records in ((1,), (0, 1), (1, 0, 1)):
        n = len(records)
        facts = 2, 1.0, message, MASS, n - 1, 0.5
        laws = with_and_without(n, 2, 1.0, records, tree)
        assert above(RemovedClient(*facts), laws)
        assert n == 1 or above(Loads(*facts, common=True), laws)


WAYS = range(4)


class Way(RemovedClient):
    """The bound with a dummy's own law, by one of its ways, also where that is not the smallest one."""

    which = 0

    @property
    def parts(self):
        return self._with_dummies[self.which % len(self._with_dummies)]


def by_way(which, *facts, **named):
    return type("One", (Way,), {"which": which})(*facts, **named)


def among_coins(rng, coin, kind):
    """Channel of one bit after a public coin: three records' bits differ from a fair one by at most `coin`."""
    public = rng.dirichlet(np.ones(2))
    bias = rng.choice([-coin, coin], (4, 2)) if kind == "extremal" else rng.uniform(-coin, coin, (4, 2))
    bias[-1] = 0.0  # the dummy
    return np.concatenate([public * (1.0 + bias), public * (1.0 - bias)], axis=1) * 0.5


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("p", [1.2, 4.0, 30.0])
@pytest.mark.parametrize(
    ("num_clients", "num_slots", "rate"), [(1, 2, 0.7), (2, 2, 1.0), (3, 2, 0.9), (3, 3, 0.5)]
)
def test_beside_fair_dummies_all_choices_of_a_few_clients_are_below(p, num_clients, num_slots, rate):
    rng = np.random.default_rng(num_clients * num_slots)
    message, coin = MessageProfile(cj.L2Mechanism(epsilon0=math.log(p))), (p - 1.0) / (p + 1.0)
    facts = num_slots, rate, message, MASS, num_clients - 1, rate / num_slots
    bounds = [RemovedClient(*facts, common=common, coin=coin) for common in (False, True)]
    bounds += [by_way(which, *facts, common=common, coin=coin) for which in WAYS for common in (False, True)]
    for kind in ("dummies", "extremal", "inner") * 4:
        tree = brute.random_tree(lambda kind=kind: among_coins(rng, coin, kind), num_slots)
        if kind == "dummies":
            tree = brute.constant_tree(fair_dummies(p), num_slots)
        records = (rng.integers(0, 2 + (kind != "dummies"), size=num_clients)).tolist()
        laws = with_and_without(num_clients, num_slots, rate, records, tree)
        assert all(above(bound, laws) for bound in bounds)


def fair_dummies(p):
    """Channel of binary randomized response, the dummy a fair coin."""
    return np.array([[p, 1.0], [1.0, p], [0.5 * (p + 1.0)] * 2]) / (p + 1.0)


def middle_of_sliding_windows(n, window):
    """Laws of the published slots of the middle client's window, with it and without it."""
    choices, gone, middle = brute.sliding_window_choices(n, window), {}, n // 2
    for picks, mass in choices.items():
        absent = (*picks[:middle], brute.EMPTY, *picks[middle + 1 :])
        gone[absent] = gone.get(absent, 0) + mass
    slots = range(middle + 1, middle + 1 + window)
    return [brute.one_of_each_slot(law, slots) for law in (choices, gone)]


@pytest.mark.parametrize("p", [1.2, 4.0, 30.0])
def test_sliding_windows_with_fair_dummies_are_below(p):
    n, window = 5, 3
    rng = np.random.default_rng(7)
    message, coin = MessageProfile(cj.L2Mechanism(epsilon0=math.log(p))), (p - 1.0) / (p + 1.0)
    facts = window, 1.0, message, MASS, window - 1, 1.0 / window
    bounds = [by_way(which, *facts, coin=coin) for which in WAYS]
    bounds += [RemovedClient(*facts, coin=coin), SmallWindowRemoved(window, message, MASS, coin)]
    both = middle_of_sliding_windows(n, window)
    for case in range(6):
        records = rng.integers(0, 2, size=n).tolist() if case else [0, 0, 1, 0, 0]
        laws = [
            brute.output_law(used, records, brute.constant_tree(fair_dummies(p), window)) for used in both
        ]
        assert all(above(bound, laws) for bound in bounds)


def test_a_dummy_that_holds_a_record_is_not_below():
    """Nor are others whose steps, counted by their own load, are taken for dummies'."""
    p, n, window = 4.0, 5, 3
    message, coin = MessageProfile(cj.L2Mechanism(epsilon0=math.log(p))), (p - 1.0) / (p + 1.0)
    both, records = middle_of_sliding_windows(n, window), [0, 0, 1, 0, 0]
    told = np.array([[p, 1.0], [1.0, p], [p, 1.0]]) / (p + 1.0)
    recorded, fair = (
        [brute.output_law(used, records, brute.constant_tree(channel, window)) for used in both]
        for channel in (told, fair_dummies(p))
    )
    facts = window, message, MASS
    assert above(SmallWindowRemoved(*facts), recorded)
    assert above(SmallWindowRemoved(*facts, coin), fair)
    assert not above(SmallWindowRemoved(*facts, coin), recorded)
    assert not above(SmallWindowRemoved(*facts, 0.5 * coin), fair)


def binary(num_clients, num_slots, rate, p, x=1):
    """Binary randomized response, all others and the dummies at one record, the client at the other."""
    tree = brute.constant_tree(np.array([[p, 1.0], [1.0, p], [p, 1.0]]) / (p + 1.0), num_slots)
    return with_and_without(num_clients, num_slots, rate, (0,) * (num_clients - 1) + (x,), tree)


def three_places(p: float, other: float) -> list[tuple[float, float]]:
    """(value, probability) of a law above z - 1 - s (z' - 1), s = other >= 1/p, of any eps0-LDP messages."""
    rare = 1.0 / (p + 1.0)
    return [(p - 1.0, rare), (other - 1.0, (p - 1.0) * rare), (-other * (p - 1.0), rare)]


@pytest.mark.parametrize("p", [1.3, 2.7, 20.0])
@pytest.mark.parametrize("other", [0.5, 0.8, 1.0])
def test_steps_of_an_absent_client_among_labels(p, other):
    """Both transforms are those of three places; without a third message that on the left is too small."""
    if other < 1.0 / p:
        return
    message, places = MessageProfile(cj.PureLDP(epsilon0=math.log(p))), np.linspace(0.0, p, 60)
    value, prob = map(np.array, zip(*three_places(p, other)))
    for falls, sign in ((False, 1.0), (True, -1.0)):
        exact = np.maximum(sign * value - places[:, None], 0.0) @ prob
        step = removed_client._Half(message, removed_client.ALWAYS, falls, other=other)
        np.testing.assert_allclose(step.delta(np.log1p(places)), exact, rtol=1e-9, atol=1e-12)
        assert step.largest_loss >= math.log1p(np.max(sign * value)) * (1.0 - 1e-12)
    left = removed_client._Half(message, removed_client.ALWAYS, True).delta(np.log1p(places))
    assert (left <= exact + 1e-12).all()
    assert (left < exact - 1e-3).any()


def test_another_message_counts_more_at_larger_losses():
    """Left transforms are those of c/2 at each loss; of two losses a mixture is above that of a loss between."""
    p, m = 3.0, 400
    message = MessageProfile(cj.PureLDP(epsilon0=math.log(p)))
    facts = m, 1.0, float(m), message, removed_client.ALWAYS, MASS, False, 0.0, 0, 0.5
    one, ratios = removed_client._SlotSum(*facts), np.array([1.0, 1.4, 1.8])
    law, found = one._law(np.log(ratios)), []
    places = np.linspace(0.0, p, 200)
    for c, knots, value in zip(ratios, np.asarray(law.left), np.asarray(law.left_value)):
        at, prob = map(np.array, zip(*three_places(p, 0.5 * c)))
        np.testing.assert_allclose(value, np.maximum(-at - knots[:, None], 0.0) @ prob, rtol=1e-9, atol=1e-12)
        found.append(np.maximum(-at - places[:, None], 0.0) @ prob)
    first, middle, last = found
    assert (0.5 * (first + last) >= middle - 1e-12).all()
    assert (first < middle - 1e-3).any()


@pytest.mark.parametrize("p", [1.6, 3.0])
def test_labels_drawn_anew_come_close_to_equal_shares(p):
    """Every slot having the mean share is below; loads that are known are above from some loss on."""
    m, message = 4000, MessageProfile(cj.PureLDP(epsilon0=math.log(p)))
    facts = m, 1.0, message, MASS, m - 1, 1.0 / m
    bound, share = RemovedClient(*facts, window=m), 1.0 - (1.0 - 1.0 / m) ** m
    rare = 1.0 / (p + 1.0)
    usual = np.flatnonzero(scipy.stats.binom.pmf(np.arange(m + 1.0), m, rare) > 1e-18)
    losses = np.array([0.0, 2.0, 4.0]) * math.sqrt(0.4 * (p - 1.0) ** 2 / p / m)
    for turned in (False, True):
        for loss, found in zip(losses, bound.side(losses, turned)):
            c = math.exp(loss)
            other = max(1.0 / (2.0 * c) if turned else 0.5 * c, 1.0 / p)
            (high, _), (middle, _), (lowest, _) = three_places(p, other)
            least = 0.0
            for number in usual:
                rest = m - number
                numbers = usual[usual <= rest]
                sums = number * high + (rest - numbers) * middle + numbers * lowest
                value = 1.0 - c + (-c if turned else 1.0) * share / m * sums
                probs = scipy.stats.binom.pmf(numbers, rest, rare / (1.0 - rare))
                least += scipy.stats.binom.pmf(number, m, rare) * (probs @ np.maximum(value, 0.0))
            assert least <= found <= 2.0 * least
    known = RemovedClient(*facts).upper(losses[-1:])
    assert bound.upper(losses[-1:]) < 0.8 * known


def test_alone_it_is_what_binary_response_leaks():
    p, m = 3.0, 4
    bound = RemovedClient(m, 0.8, MessageProfile(cj.PureLDP(epsilon0=math.log(p))), MASS)
    for ours, exact in zip(bound.upper_sides(LOSSES), exact_sides(binary(1, m, 0.8, p))):
        assert np.all(ours >= exact * (1.0 - 1e-11))
        # Chords between some hundred losses, and one contour for several of them.
        assert np.all(ours[exact > 1e-3] <= exact[exact > 1e-3] * 1.03)


def test_one_direction_is_no_bound_on_the_other():
    p, m = 3.0, 4
    bound = RemovedClient(m, 0.8, MessageProfile(cj.PureLDP(epsilon0=math.log(p))), MASS)
    forward, _ = exact_sides(binary(1, m, 0.8, p))
    assert np.any(bound.upper_sides(LOSSES)[1] < forward)


def test_one_rival_too_many_is_no_bound(monkeypatch):
    p = 3.0
    facts = 2, 0.1, MessageProfile(cj.PureLDP(epsilon0=math.log(p))), MASS, 1, 0.05
    laws = binary(2, 2, 0.1, p)
    assert above(Loads(*facts, common=True), laws)

    def too_many(mean):
        return WeightLaw(np.array([0.5]), np.ones(1))

    monkeypatch.setattr(removed_client, "poisson_weights", too_many)
    assert not above(Loads(*facts, common=True), laws)


def test_more_others_than_there_are_are_no_bound():
    """A Poisson number of a larger mean, in whose place fewer throw."""
    p, n, m = 3.0, 3, 2
    facts = m, 1.0, MessageProfile(cj.PureLDP(epsilon0=math.log(p))), MASS, n - 1, 0.5
    laws = binary(n, m, 1.0, p)
    assert above(Loads(*facts, common=True), laws)

    class TooMany(Loads):
        def poisson(self):
            mean = self.num_rivals + 3.0 * math.sqrt(self.num_rivals)
            return (
                super()
                .poisson()
                ._replace(mass=1.0, weights=removed_client.poisson_weights(mean * self.rival_prob))
            )

    assert not above(TooMany(*facts, common=True), laws)


@pytest.mark.parametrize("mean", [1e-9, 0.3, 19.0, 4e3, 2e7, 1e12])
def test_loads_are_counted_in_full(mean):
    values, probs = removed_client.poisson_weights(mean)
    assert probs.sum() >= 1.0
    assert np.all((values > 0.0) & (values <= 1.0) & (probs >= 0.0))
    # E 1/(C + 1) = (1 - e^-mean)/mean. Where loads are told apart to a tenth of their deviation, half of that is lost.
    exact = -math.expm1(-mean) / mean
    assert exact <= values @ probs <= exact * (1.0 + 0.1 * (mean > 30.0) / math.sqrt(mean) + 3e-4)


def poisson(count, mean):
    """Probability of this count, with 40 digits."""
    with mpmath.workdps(40):
        return mpmath.exp(count * mpmath.log(mean) - mean - mpmath.loggamma(count + 1))


@pytest.mark.parametrize("mean", [0.3, 19.0, 4e3, 2e7])
def test_no_bucket_of_loads_has_too_small_a_probability(mean):
    """Against 40 digits, also where scipy's incomplete gamma function fails, from 4.5 deviations on."""
    values, probs = removed_client.poisson_weights(mean)
    edges = [round(1.0 / value - 1.0) for value in values]
    for low, high, prob in [*zip(edges, edges[1:], probs)][:: max(len(edges) // 16, 1)]:
        # The mass function has one top, so that some of its values and the largest bound a sum from both sides.
        places = np.unique(np.linspace(low, high - 1, 200).round().astype(int)).tolist()
        least = [min(poisson(one, mean), poisson(two, mean)) for one, two in itertools.pairwise(places)]
        below = sum(each * (two - one) for each, (one, two) in zip(least, itertools.pairwise(places)))
        assert prob >= float(
            below + max(poisson(places[0], mean), poisson(places[-1], mean)) * (high - low == 1)
        )


@pytest.mark.parametrize("others", [30, 10**4, 10**8, 10**12])
def test_the_poisson_number_is_smaller_as_often_as_it_says(others):
    """scipy says 3e-8 at the last of these where it is 3e-6."""
    means = np.maximum(others - removed_client._FEWER * math.sqrt(others), 1e-9)
    for mean, more in [*zip(means.tolist(), chernoff.more_than(float(others), means).tolist())][::4]:
        # Pr[M > n] is at least this many times the last one of its first values.
        many = max(int(0.1 * math.sqrt(others)), 1)
        assert more >= float(poisson(others + many, mean) * many)
        normal = 0.5 * math.erfc((others + 0.5 - mean) / math.sqrt(2.0 * mean))
        assert others < 1e6 or more >= normal * (1.0 - 1e-2)


def test_messages_of_a_known_profile_may_be_removed():
    """Before, no bound was known for them."""
    run = cj.FixedWindow(num_clients=10**4, num_slots=10**4, num_epochs=10)
    pure = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, neighboring_relation=RELATION)
    nearly = cj.account(
        run, cj.ApproximateLDP(epsilon0=1.0, delta0=1e-13), delta=1e-6, neighboring_relation=RELATION
    )
    assert pure.epsilon * (1.0 - 1e-4) <= nearly.epsilon <= 1.001 * pure.epsilon
    assert nearly.lower <= nearly.epsilon <= 1.2 * nearly.lower


@pytest.mark.parametrize(
    ("randomizer", "largest"),
    [
        (cj.ApproximateLDP(epsilon0=0.0, delta0=0.0), 0.0),
        (cj.ApproximateLDP(epsilon0=0.0, delta0=1e-20), 0.0),
        (cj.KnownProfile(function=np.zeros_like), 0.0),
        (cj.PureLDP(epsilon0=1e-3), 1e-9),
    ],
)
def test_messages_that_tell_nothing_leak_nothing(randomizer, largest):
    run = cj.FixedWindow(num_clients=10**12, num_slots=10**12, check_in_prob=1e-298)
    g = cj.account(run, randomizer, delta=1e-6, neighboring_relation=RELATION)
    assert 0.0 <= g.lower <= g.epsilon <= largest
    full = cj.FixedWindow(num_clients=1000, num_slots=1000)
    g = cj.account(full, randomizer, delta=1e-6, neighboring_relation=RELATION)
    assert 0.0 <= g.lower <= g.epsilon <= largest + 1e-3
