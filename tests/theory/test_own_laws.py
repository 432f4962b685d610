"""A mechanism's own laws against brute force: the kernel itself, at few clients, for random finite mechanisms.

Any stages give a bound, so that the evaluator of the accountant runs with numbers of steps at which all data sets can
be listed. Step sets that leave something out must be exceeded.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds

import checkin_jax as cj
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import staged_clones
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
    return table / table.sum(axis=1, keepdims=True)


def upper(steps, seen, everybody, losses, stages=(0.0, (1.0, 1.0), 2.0, 0.1)):
    """The kernel at these losses, with stages for very few messages."""
    first, sizes, before, tolerance = stages
    made = staged_clones.Stages(host(first), host(sizes), host(before), host(tolerance))
    message = steps.message(losses)
    binomial = bool(float(seen.rate) < 1.0)
    arguments = seen, message, host(everybody), made, host(losses), steps.rules(message), binomial
    return np.asarray(staged_clones.profile_upper(*arguments))


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
    assert largest > 0.9


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
                exact_rounds.window(channel, (*held, x), [rate] * n, windows, list(places), dummy) for x in range(3)
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
    """Step laws that were changed by hand, with a profile that says nothing."""

    steps: FiniteSteps
    epsilon0: float

    @property
    def own(self):
        return OwnSteps(self.epsilon0, self.steps, lambda losses: np.ones(np.shape(losses)))


THIRD_LEAKS = np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
# Others at the first record leak more than others at the second, to whoever sees them.
ASYMMETRIC = np.array([[0.9, 0.1], [0.5, 0.5]])


def worst_ratio(channel, steps, epsilon0, n=5, rate=0.3):
    losses = losses_of(epsilon0)
    bound = upper(steps, check_ins(n, rate), rate**n, losses)
    truth = exact_rounds.most(exact_rounds.rounds(channel, [rate] * n), np.exp(losses))
    seen = truth > 1e-9
    return float((truth / bound)[seen].max())


def test_leaving_one_record_out_is_exceeded():
    """Others at a third record leak most."""
    mechanism = cj.FiniteMechanism(probabilities=THIRD_LEAKS)
    steps, e = mechanism.step_set, mechanism.largest_loss
    # y = x or x' alone.
    two = np.array([np.allclose(a, -o) or np.allclose(o, 0.0) for a, o in zip(steps.apart, steps.other)])
    assert two.sum() == 12
    less = FiniteSteps(steps.apart[two], steps.other[two], steps.masses[two])
    assert worst_ratio(THIRD_LEAKS, Changed(less, e).own, e) > 1.02
    assert worst_ratio(THIRD_LEAKS, Changed(steps, e).own, e) <= 1.0


def test_leaving_one_direction_out_is_exceeded():
    mechanism = cj.FiniteMechanism(probabilities=ASYMMETRIC)
    steps, e = mechanism.step_set, mechanism.largest_loss
    ratios = []
    for half in (slice(0, 2), slice(2, 4)):
        less = FiniteSteps(steps.apart[half], steps.other[half], steps.masses[half])
        ratios.append(worst_ratio(ASYMMETRIC, Changed(less, e).own, e))
    assert max(ratios) > 1.02
    assert worst_ratio(ASYMMETRIC, Changed(steps, e).own, e) <= 1.0


def test_midpoints_in_place_of_dilation_are_exceeded():
    """Cells of messages merged under their mean ratios are a post-processing: they leak less."""
    mechanism = cj.FiniteMechanism(probabilities=THIRD_LEAKS)
    steps, e = mechanism.step_set, mechanism.largest_loss
    merged = np.array([[1, 0], [1, 0], [0, 1]])
    masses = steps.masses @ merged
    less = FiniteSteps(
        (steps.masses * steps.apart) @ merged / masses, (steps.masses * steps.other) @ merged / masses, masses
    )
    assert worst_ratio(THIRD_LEAKS, Changed(less, e).own, e) > 1.02


def test_a_step_whose_mean_is_off_is_exceeded():
    """Steps without the masses at (1/p, 1/p) that keep the mean."""
    mechanism = cj.FiniteMechanism(probabilities=THIRD_LEAKS)
    steps, e = mechanism.step_set, mechanism.largest_loss
    less = FiniteSteps(0.97 * steps.apart, 0.97 * steps.other, steps.masses)
    assert worst_ratio(THIRD_LEAKS, Changed(less, e).own, e) > 1.005
    assert math.isfinite(e)
