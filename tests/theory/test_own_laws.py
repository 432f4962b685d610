"""A mechanism's own laws against brute force: the kernel itself, at few clients, for random finite mechanisms.

Any stages give a bound, so that the evaluator of the accountant runs with numbers of steps at which all data sets can
be listed. Step sets that leave something out must be exceeded.
"""

import dataclasses
import itertools

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds
from scipy import stats

import checkin_jax as cj
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import staged_games
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.numerics.step_laws import OwnSteps
from checkin_jax.randomizers.step_sets import FiniteSteps

pytestmark = pytest.mark.usefixtures("x64")
MANY = pytest.mark.slow


def random_channel(rng, records, messages, epsilon0):
    """Rows whose likelihood ratios are within e^epsilon0; a third of the columns are extreme."""
    levels = rng.uniform(0.0, epsilon0, (records, messages))
    extreme = rng.random(messages) < 0.7
    levels[:, extreme] = epsilon0 * rng.integers(0, 2, (records, int(extreme.sum())))
    table = np.exp(0.5 * levels) * rng.dirichlet(np.ones(messages)) + 1e-3
    # Some record's messages must differ.
    table[0, 0] += 1e-3
    return table / table.sum(axis=1, keepdims=True)


def upper(steps, seen, everybody, losses, stages=(0.0, (1.0, 0.0), 1.0, 0.1)):
    """The kernel at these losses, with stages for very few messages."""
    first, sizes, before, tolerance = stages
    made = staged_games.Stages(host(first), host(sizes), host(before), host(tolerance))
    message = steps.message(losses)
    value = staged_games.sampled if float(seen.rate) < 1.0 else staged_games.counted
    played = staged_games.RoundSums(seen, host(everybody))
    arguments = value, played, message, made, host(losses), steps.rules(message)
    return np.asarray(staged_games.profile_upper(*arguments))


def check_ins(n, rate):
    return StepCounts(host(n), host(rate), host([n]), host([1.0]))


def slots(m, used):
    return StepCounts(host(m / used), host(1.0), host([m]), host([1.0]))


def losses_of(epsilon0):
    return epsilon0 * np.array([0.0, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97])


def own(mechanism):
    return OwnSteps(mechanism.largest_loss, mechanism.step_set, mechanism.profile)


@pytest.mark.parametrize("trials", [25, pytest.param(600, marks=MANY)])
def test_above_all_data_sets_of_random_mechanisms(trials):
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(trials):
        records, messages = int(rng.integers(2, 5)), int(rng.integers(2, 5))
        channel = random_channel(rng, records, messages, float(rng.choice([0.2, 1.0, 3.0])))
        mechanism = cj.FiniteMechanism(probabilities=channel)
        n, rate = int(rng.integers(3, 6 if records < 4 else 5)), float(rng.choice([0.1, 0.5, 0.9]))
        losses = losses_of(mechanism.largest_loss)
        bound = upper(own(mechanism), check_ins(n, rate), rate**n, losses)
        truth = exact_rounds.most(exact_rounds.rounds(channel, [rate] * n), np.exp(losses))
        assert (truth <= bound * (1.0 + ORACLE_ROUNDING) + 1e-15).all(), (channel.tolist(), n, rate)
        seen = truth > 1e-6
        largest = max(largest, float((truth / bound)[seen].max(initial=0.0)))
    assert largest > 0.7


@pytest.mark.parametrize("trials", [15, pytest.param(300, marks=MANY)])
def test_above_all_data_sets_in_slots_with_hidden_dummies(trials):
    rng, largest = np.random.default_rng(1), 0.0
    for _ in range(trials):
        channel = random_channel(rng, 3, 2, float(rng.choice([0.2, 1.0, 3.0])))
        mechanism = cj.FiniteMechanism(probabilities=channel)
        n, m, rate = int(rng.integers(1, 4)), 3, float(rng.choice([0.3, 1.0]))
        losses = losses_of(mechanism.largest_loss)
        bound = upper(own(mechanism), slots(m, rate), 0.0, losses)
        dummy, places = int(rng.integers(3)), range(m)
        windows = [list(places)] * n
        worst = np.zeros(losses.size)
        for held in itertools.combinations_with_replacement(range(3), n - 1):
            laws = [
                exact_rounds.window(channel, (*held, x), [rate] * n, windows, list(places), dummy)
                for x in range(3)
            ]
            pairs = itertools.permutations(laws, 2)
            worst = np.maximum(worst, exact_rounds.most(list(pairs), np.exp(losses)))
        assert (worst <= bound * (1.0 + ORACLE_ROUNDING) + 1e-15).all(), (channel.tolist(), n, rate, dummy)
        seen = worst > 1e-6
        largest = max(largest, float((worst / bound)[seen].max(initial=0.0)))
    assert largest > 0.6


# --- wrong neighbours


@dataclasses.dataclass(frozen=True, eq=False)
class Changed:
    """Step laws of a mechanism that were changed by hand."""

    steps: FiniteSteps
    mechanism: cj.FiniteMechanism

    @property
    def own(self):
        return OwnSteps(self.mechanism.largest_loss, self.steps, self.mechanism.profile)


THIRD_LEAKS = np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
# Others at the first record leak more than others at the second, to whoever sees them.
ASYMMETRIC = np.array([[0.9, 0.1], [0.5, 0.5]])


def worst_ratio(channel, steps, losses, m=40):
    """The truth over the bound: m slots, all others at one record, the best of all."""
    bound = upper(steps, slots(m, 0.9), 0.0, losses, (2.0, (5.0, 8.0), 15.0, 0.03))
    worst = np.zeros(losses.size)
    for y in range(len(channel)):
        others = exact_rounds.histogram([channel[y]] * m, [1.0] * m)
        laws = [
            0.1 * others + 0.9 * exact_rounds.histogram([channel[y]] * (m - 1) + [row], [1.0] * m)
            for row in channel
        ]
        worst = np.maximum(worst, exact_rounds.most(list(itertools.permutations(laws, 2)), np.exp(losses)))
    return float((worst / bound).max())


def ratios(channel, changes):
    """Of the mechanism's own laws, and of all changed ones."""
    mechanism = cj.FiniteMechanism(probabilities=channel)
    losses = mechanism.largest_loss * np.array([0.0, 0.05, 0.1, 0.2, 0.3])
    right = worst_ratio(channel, own(mechanism), losses)
    steps = mechanism.step_set
    return right, [worst_ratio(channel, Changed(change(steps), mechanism).own, losses) for change in changes]


def some(kept):
    """Some of the laws."""
    return lambda steps: FiniteSteps(
        *(part[kept(steps)] for part in (steps.apart, steps.other, steps.masses))
    )


def merged(steps):
    """Two messages told as one, with their mean ratios: a post-processing."""
    both = np.array([[1, 0], [1, 0], [0, 1]])
    masses = steps.masses @ both
    return FiniteSteps(
        (steps.masses * steps.apart) @ both / masses, (steps.masses * steps.other) @ both / masses, masses
    )


def of_two(steps):
    """True where all others hold one of the target's records."""
    return np.array(
        [np.allclose(a, -o) or np.allclose(o, 0.0) for a, o in zip(steps.apart, steps.other, strict=True)]
    )


def test_step_sets_that_leave_something_out_are_exceeded():
    """The third record; one order of the target's two records, whichever; messages merged; a mean that is off."""
    shrunk = lambda steps: FiniteSteps(0.9 * steps.apart, 0.9 * steps.other, steps.masses)  # noqa: E731
    right, wrong = ratios(THIRD_LEAKS, [some(of_two), merged, shrunk])
    assert 0.95 < right <= 1.0
    assert min(wrong) > 1.02, wrong


def test_a_step_set_of_one_order_of_the_records_is_exceeded():
    """Where the target's records are told apart better in one order."""
    one_order = [
        some(lambda steps, kept=kept: np.isin(np.arange(4), kept))
        for kept in ([0, 1], [2, 3], [0, 2], [1, 3])
    ]
    right, wrong = ratios(ASYMMETRIC, one_order)
    assert right <= 1.0
    assert max(wrong[:2]) > 1.02, (right, wrong)
    assert max(wrong[2:]) > 1.02, (right, wrong)


def normalised(odds):
    """A matrix whose equal entries are computed in different ways, as users write it: rows divided by their sums."""
    odds = np.asarray(odds)
    return odds / odds.sum(axis=1, keepdims=True)


def subsets(size, chosen, epsilon0):
    rows = itertools.combinations(range(size), chosen)
    inside = np.array([[record in row for record in range(size)] for row in rows]).T
    return normalised(np.exp(epsilon0 * inside))


def unary(size, epsilon0):
    bits = np.array(list(itertools.product((0, 1), repeat=size)))
    odds = [np.prod(np.exp(0.5 * epsilon0 * (bits == (np.arange(size) == x))), axis=1) for x in range(size)]
    return normalised(odds)


THREE_LEVELS = np.array(
    [[0.2689414213699951, 0.7310585786300048], [0.5, 0.5], [0.7310585786300049, 0.26894142136999516]]
)
TWINS = {
    "three levels": THREE_LEVELS,
    **{f"2-of-5 subsets, {e}": subsets(5, 2, e) for e in (0.3, 1.0, 4.0)},
    **{f"unary, {e}": unary(3, e) for e in (0.3, 0.5, 1.0, 4.0)},
}


@pytest.mark.parametrize("matrix", TWINS.values(), ids=TWINS)
def test_masses_are_those_of_laws_where_equal_places_differ_by_rounding(matrix):
    """Slopes between twins are rounding: masses of thousands, and upper bounds below zero, were the consequence."""
    mechanism = cj.FiniteMechanism(probabilities=matrix)
    losses = np.log1p(np.append(0.0, np.geomspace(1e-5, 0.9, 51)) * np.expm1(mechanism.largest_loss))
    laws = own(mechanism).message(host(losses)).own
    masses = np.asarray(laws.laws)
    assert masses.min() >= 0.0
    assert masses.sum(axis=-1).max() <= 1.0
    # Places are in units of p - 1, from -p to p: they are hardly moved.
    assert np.abs(laws.at).max() <= 1.001 * np.exp(mechanism.largest_loss)


def exact_delta_in_visible_slots(row, other, third, epsilon, clients=400, slots=200, coin=0.5):
    """Hockey-stick divergence of one bit (likelier under `row` or not), all others at one record, by occupancy."""
    occupied = np.zeros(slots + 1)
    occupied[0] = 1.0
    taken = np.arange(slots + 1) / slots
    for _ in range(clients):
        after = occupied * (1.0 - coin + coin * taken)
        after[1:] += occupied[:-1] * coin * (1.0 - taken[:-1])
        occupied = after
    up = row > other
    a, b, h = (float(each[up].sum()) for each in (row, other, third))
    total = 0.0
    for count in range(1, slots + 1):
        chance = count / clients
        without = np.append(stats.binom.pmf(np.arange(count), count - 1, h), 0.0)
        with_one = np.append(0.0, without[:-1])
        base = (1.0 - chance) * stats.binom.pmf(np.arange(count + 1), count, h)
        first, second = (base + chance * (without * (1.0 - z) + with_one * z) for z in (a, b))
        total += occupied[count] * np.maximum(first - np.exp(epsilon) * second, 0.0).sum()
    return total


@pytest.mark.parametrize(
    ("matrix", "pair"), [(subsets(5, 2, 0.3), (0, 1)), (THREE_LEVELS, (0, 2))], ids=["subsets", "levels"]
)
def test_the_accountant_is_above_what_twins_leak(matrix, pair):
    run = cj.FixedWindow(num_clients=400, num_slots=200, check_in_prob=0.5, empty_slots="visible")
    found = cj.account(run, cj.FiniteMechanism(probabilities=matrix), delta=1e-5)
    row, other = (matrix[i] for i in pair)
    truth = exact_delta_in_visible_slots(row, other, other, found.epsilon)
    assert truth <= 1e-5 * (1.0 + 1e-9)
    assert exact_delta_in_visible_slots(row, other, other, 0.0) > 1e-3
