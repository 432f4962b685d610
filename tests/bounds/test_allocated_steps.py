"""Random allocation of any step: epochs of finite mechanisms by enumeration, adaptive ones too; what is NOT a bound."""

import dataclasses
import json
import math
from fractions import Fraction
from itertools import combinations, product

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses_of
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from oracles import allocation as oracle
from scipy.stats import binom, hypergeom, laplace, norm

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import AsymmetricBound, LocalGaussian, OwnWitness
from checkin_jax.accounting.bounds.windows.one_of_slots import step_in_slots
from checkin_jax.accounting.interop.allocated_epochs import (
    AllocatedStep,
    CountedSteps,
    Epoch,
    GivenLosses,
    StepProbs,
    coins,
)
from checkin_jax.accounting.interop.central_mechanisms import LaplaceNoise, Sampled
from checkin_jax.numerics import step_ratios

ADDED, REPLACED = "add-or-remove-one", "replace-one"
LOSSES = np.concatenate([[0.0], np.geomspace(1e-3, 3.0, 40)])
MASS = 40.0


@dataclasses.dataclass(frozen=True)
class FinitePair(OwnWitness, AsymmetricBound):
    """A pair on finitely many outcomes, in both directions and with its events."""

    p: tuple[float, ...]
    q: tuple[float, ...]

    name = "a finite pair"
    symmetric = False

    def _events(self, loss, one, other):
        apart = np.subtract(one, other)
        inside = apart > np.expm1(np.asarray(loss))[..., None] * np.asarray(other)
        return np.sum(np.where(inside, apart, 0.0), axis=-1), np.sum(np.where(inside, other, 0.0), axis=-1)

    def upper_sides(self, loss):
        found = (self._events(loss, *pair) for pair in ((self.p, self.q), (self.q, self.p)))
        return tuple(apart - np.expm1(np.asarray(loss)) * mass for apart, mass in found)

    def lower(self, loss):
        return self._events(loss, self.p, self.q), self._events(loss, self.q, self.p)


PAIRS = {
    "response": FinitePair((0.75, 0.25), (0.25, 0.75)),
    "lopsided": FinitePair((0.6, 0.3, 0.1), (0.1, 0.3, 0.6)),
    "rare": FinitePair((0.5, 0.48, 0.02), (0.5, 0.499, 0.001)),
    "shown": FinitePair((0.0, 0.3, 0.65, 0.05), (0.02, 0.5, 0.48, 0.0)),
}


def divergence(p, q, losses):
    return np.maximum(np.ravel(p) - np.exp(losses)[:, None] * np.ravel(q), 0.0).sum(axis=1)


def joint(rows):
    law = np.ones(1)
    for row in rows:
        law = np.multiply.outer(law, row)
    return law[0]


def epoch(pair, steps, selected, finished=None, used=1.0):
    """Laws of the finished steps of an epoch with the record and without it."""
    finished = finished or steps
    sets = list(combinations(range(steps), selected))
    inside = sum(joint([pair.p if i in some else pair.q for i in range(finished)]) for some in sets) / len(
        sets
    )
    without = joint([pair.q] * finished)
    return used * inside + (1.0 - used) * without, without


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("used", [1.0, 0.3])
def test_one_of_m_steps_of_a_finite_pair_from_both_sides(name, slots, used):
    pair = PAIRS[name]
    bound = step_in_slots(slots, used, pair, MASS)
    p, q = epoch(pair, slots, 1, used=used)
    truths = divergence(p, q, LOSSES), divergence(q, p, LOSSES)
    for truth, upper, (apart, far) in zip(truths, bound.upper_sides(LOSSES), bound.lower(LOSSES)):
        assert np.all(upper >= truth * (1.0 - 1e-12))
        assert np.all(upper <= truth * 1.01 + 5e-3 * truth[0])
        lines = apart[:, None] - np.expm1(LOSSES) * far[:, None]
        assert np.all(lines <= truth * (1.0 + 1e-9) + 1e-15)
        # The lower end leaves out what only the record's law gives.
        if name != "shown":
            assert np.all(np.max(lines, axis=0) >= 0.97 * truth - 0.02 * truth[0])


@pytest.mark.parametrize("name", ["lopsided", "rare", "shown"])
def test_the_directions_of_a_step_are_not_exchanged(name):
    """The pair of (Q, P) in place of (P, Q), or one of m + 1 steps, is no bound."""
    pair = PAIRS[name]
    p, q = epoch(pair, 3, 1)
    truths = divergence(p, q, LOSSES), divergence(q, p, LOSSES)
    exchanged = FinitePair(pair.q, pair.p)
    wrong = step_in_slots(3, 1.0, exchanged, MASS).upper_sides(LOSSES)
    rarer = step_in_slots(5, 1.0, pair, MASS).upper_sides(LOSSES)
    for found in (rarer, wrong) if name != "lopsided" else (rarer,):
        assert any(np.any(truth > 1.02 * upper + 1e-6) for truth, upper in zip(truths, found))


def test_lower_laws_are_below_transforms_with_kinks():
    """A tangent below zero at a level, raised to zero, would put the law of two atoms above theirs."""
    for pair in (
        FinitePair((0.7, 0.2999999, 1e-7, 0.0), (0.2999999, 0.7, 0.0, 1e-7)),
        PAIRS["rare"],
        PAIRS["shown"],
    ):
        ratio = step_in_slots(1, 1.0, pair, MASS).ratio
        for high, spacing in ((1.0, 1 / 186), (2.0, 0.07), (2.5, 0.2)):
            law = step_ratios.law_lower(ratio, 0.0, high, spacing)
            assert law is not None
            levels = law.start + law.spacing * np.arange(law.masses.size)
            t = np.linspace(0.0, high, 4001)
            mine = np.maximum(t[:, None] - levels, 0.0) @ law.masses
            # Of min(L, high), whose mean is below one by its excess.
            truth = ratio.excess(t) + np.where(t > 1.0, t - 1.0, 0.0)
            assert np.all(mine - law.below <= truth + law.slack)


def profile(pair):
    """The pair as a symmetric profile: the larger of both directions."""
    worst = cj.KnownProfile(
        function=lambda loss: np.minimum(np.maximum(*pair.upper_sides(loss)), 1.0), name="finite messages"
    )
    assert worst.profile(np.zeros(1))[0] > 0
    return worst


EPOCHS = [
    (3, 2, 3, 1.0),
    (4, 2, 4, 0.4),
    (4, 2, 3, 1.0),
    (4, 3, 2, 1.0),
    (5, 2, 3, 0.5),
    (5, 4, 3, 1.0),
    (4, 3, 1, 0.7),
]


def found_by(step, steps, selected, finished, used, delta, relation=ADDED):
    rest = {} if finished == steps else {"unfinished_steps": finished, "num_epochs": 0}
    return cj.random_allocation(
        step,
        steps,
        num_selected=selected,
        sampling_prob=used,
        delta=delta,
        neighboring_relation=relation,
        **rest,
    )


@pytest.mark.parametrize(("steps", "selected", "finished", "used"), EPOCHS)
@pytest.mark.parametrize("name", ["response", "lopsided"])
def test_epochs_of_several_steps_a_record_by_enumeration(steps, selected, finished, used, name):
    pair = PAIRS[name]
    p, q = epoch(pair, steps, selected, finished, used)
    step = profile(pair)
    for delta in (0.05, 1e-3):
        g = found_by(step, steps, selected, finished, used, delta)
        at = np.array([g.epsilon])
        assert max(divergence(p, q, at)[0], divergence(q, p, at)[0]) <= delta
        assert 0.0 <= g.lower <= g.epsilon


def adaptive(step_of, steps, selected, finished, used):
    """Laws of an epoch whose steps are chosen by earlier outputs: `step_of(outputs)` is a pair."""
    sets = list(combinations(range(steps), selected))
    inside, without = [], []
    for outputs in product(range(2), repeat=finished):
        rows = [step_of(outputs[:i]) for i in range(finished)]
        none = math.prod(row.q[out] for row, out in zip(rows, outputs))
        each = [
            math.prod((row.p if i in some else row.q)[out] for i, (row, out) in enumerate(zip(rows, outputs)))
            for some in sets
        ]
        inside.append(used * sum(each) / len(sets) + (1.0 - used) * none)
        without.append(none)
    return np.array(inside), np.array(without)


@pytest.mark.parametrize(("steps", "selected", "finished", "used"), [*EPOCHS, (5, 1, 5, 1.0), (5, 1, 3, 0.5)])
def test_steps_that_adapt_to_earlier_ones(steps, selected, finished, used):
    """Every pair of responses within a factor of 3 is below the profile, whatever chooses among them."""
    rng = np.random.default_rng(steps * 100 + selected)
    widest, delta = PAIRS["response"], 0.02
    at = np.array([found_by(profile(widest), steps, selected, finished, used, delta).epsilon])
    for _ in range(30):
        chosen = {}

        def step_of(past, chosen=chosen):
            if past not in chosen:
                high, low = rng.uniform(0.25, 0.75, 2)
                chosen[past] = FinitePair((high, 1.0 - high), (low, 1.0 - low))
                if rng.random() < 0.6:
                    chosen[past] = widest if rng.random() < 0.5 else FinitePair(widest.q, widest.p)
            return chosen[past]

        p, q = adaptive(step_of, steps, selected, finished, used)
        assert max(divergence(p, q, at)[0], divergence(q, p, at)[0]) <= delta


def test_what_is_no_bound_on_an_epoch_of_several_steps_a_record():
    """Neither is independent sampling of each unit, nor one unit less, nor an epoch of as many finished steps."""
    pair, delta = PAIRS["response"], 1e-3
    step = profile(pair)

    def exceeded(truth, epsilon):
        at = np.array([epsilon])
        return max(divergence(*truth, at)[0], divergence(*truth[::-1], at)[0]) > 1.02 * delta

    sampled = epoch(pair, 4, 4, used=0.3)
    # The record is in all of four steps or in none: not in each with that probability.
    alone = cj.random_allocation(
        step, 1, num_epochs=4, sampling_prob=0.3, delta=delta, neighboring_relation=ADDED
    )
    assert exceeded(sampled, alone.epsilon)
    unfinished = epoch(pair, 4, 3, finished=2)
    assert exceeded(unfinished, found_by(step, 4, 2, 2, 1.0, delta).epsilon)
    assert exceeded(unfinished, found_by(step, 4, 1, 2, 1.0, delta).epsilon)
    assert exceeded(epoch(pair, 3, 2), found_by(step, 3, 1, 3, 1.0, delta).epsilon)


@pytest.mark.parametrize(
    ("total", "selected", "finished"),
    [
        (5, 2, 3),
        (10, 3, 4),
        (10, 6, 7),
        (10, 7, 6),
        (10, 4, 10),
        (9, 9, 4),
        (12, 1, 5),
        (12, 5, 1),
        (40, 10, 39),
        (40, 20, 20),
    ],
)
def test_coins_have_the_hypergeometric_law(total, selected, finished):
    law = np.ones(1)
    probs = coins(total, selected, finished)
    assert probs.size == min(selected, finished)
    assert np.all((probs > 0) & (probs <= 1))
    for prob in probs:
        law = np.convolve(law, [1.0 - prob, prob])
    truth = [
        Fraction(
            math.comb(finished, j) * math.comb(total - finished, selected - j), math.comb(total, selected)
        )
        if selected - j <= total - finished
        else Fraction(0)
        for j in range(law.size)
    ]
    assert np.max(np.abs(law - np.array(list(map(float, truth))))) < 1e-7
    # Rounded up: never less likely to be large.
    assert np.all(np.cumsum(law[::-1]) >= np.cumsum(np.array(list(map(float, truth)))[::-1]) * (1.0 - 1e-13))


def test_equal_coins_are_not_the_hypergeometric_law():
    """They have a larger variance, and so the wrong law, though a larger one."""
    probs = coins(10, 4, 5)
    assert np.ptp(probs) > 0.5
    assert probs @ (1.0 - probs) < 4 * 0.25 * 0.75


@pytest.mark.parametrize("make", ["plain", "sampled", "laplace", "response"])
def test_given_losses_have_the_profile_of_their_distribution(make):
    distribution = {
        "plain": lambda: losses_of.from_gaussian_mechanism(1.0, value_discretization_interval=1e-2),
        "sampled": lambda: losses_of.from_gaussian_mechanism(
            1.0, value_discretization_interval=1e-2, sampling_prob=0.1
        ),
        "laplace": lambda: losses_of.from_laplace_mechanism(1.0, value_discretization_interval=1e-2),
        "response": lambda: losses_of.from_randomized_response(0.3, 4),
    }[make]()
    ours = GivenLosses(distribution).upper_sides(LOSSES)
    for pmf, found in zip((distribution._pmf_remove, distribution._pmf_add), ours):
        theirs = np.array([pmf.get_delta_for_epsilon(float(loss)) for loss in LOSSES])
        assert np.all(found >= theirs * (1.0 - 1e-10) - 1e-16)
        grid = np.array([pmf.get_delta_for_epsilon(1e-2 * i) for i in range(0, 100, 7)])
        mine = GivenLosses(distribution).side(
            1e-2 * np.arange(0, 100, 7), pmf is not distribution._pmf_remove
        )
        assert np.allclose(mine, grid, rtol=2e-9, atol=1e-15)


def test_a_given_distribution_is_the_step_it_was_made_of():
    fine = losses_of.from_gaussian_mechanism(1.0, value_discretization_interval=1e-3)
    for many in ({}, {"num_selected": 3}, {"num_selected": 3, "sampling_prob": 0.2}):
        ours = cj.random_allocation(fine, 50, delta=1e-6, neighboring_relation=ADDED, **many)
        exact = cj.random_allocation(1.0, 50, delta=1e-6, neighboring_relation=ADDED, **many)
        assert exact.epsilon * (1.0 - 1e-4) <= ours.epsilon <= exact.epsilon * 1.002
    sampled = losses_of.from_gaussian_mechanism(1.0, value_discretization_interval=1e-3, sampling_prob=0.1)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    ours, exact = (
        cj.random_allocation(step, 50, delta=1e-6, neighboring_relation=ADDED) for step in (sampled, event)
    )
    assert exact.epsilon * (1.0 - 1e-4) <= ours.epsilon <= exact.epsilon * 1.005
    assert exact.lower > 0.99 * exact.epsilon


def test_an_optimistic_distribution_is_refused():
    wrong = losses_of.from_gaussian_mechanism(
        1.0, pessimistic_estimate=False, value_discretization_interval=1e-2
    )
    with pytest.raises(ValueError, match="optimistic"):
        cj.random_allocation(wrong, 9, delta=1e-6, neighboring_relation=ADDED)


def cells(steps, scale, value=1.0):
    """Laws of Laplace sums over cells, merged, with a record of this value in one of them and in none."""
    edges = np.linspace(-8.0 * scale, 8.0 * scale + value, 120 if steps == 3 else 1500)
    without, inside = (
        np.diff(laplace.cdf(edges, mean, scale), prepend=0.0, append=1.0) for mean in (0.0, value)
    )
    rows = [joint([inside if i == j else without for i in range(steps)]) for j in range(steps)]
    return sum(rows) / steps, joint([without] * steps)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("delta", [0.05, 0.005])
def test_laplace_noise_in_one_of_t_steps(steps, scale, delta):
    step = dp_accounting.LaplaceDpEvent(scale)
    p, q = cells(steps, scale)

    def worst(epsilon):
        at = np.array([epsilon])
        return max(divergence(p, q, at)[0], divergence(q, p, at)[0])

    g = cj.random_allocation(step, steps, delta=delta, neighboring_relation=ADDED)
    assert worst(g.epsilon) <= delta * (1.0 + 1e-9)
    assert worst(g.lower) >= 0.9 * delta
    assert g.lower <= g.epsilon <= 1.02 * g.lower
    replaced = cj.random_allocation(step, steps, delta=delta, neighboring_relation=REPLACED)
    opposite, _ = cells(steps, scale, -1.0) if steps < 3 else (None, None)
    assert g.lower <= replaced.epsilon
    if opposite is not None:
        edges = np.linspace(-9.0 * scale - 1.0, 9.0 * scale + 1.0, 1500)
        up, down, none = (
            np.diff(laplace.cdf(edges, mean, scale), prepend=0.0, append=1.0) for mean in (1.0, -1.0, 0.0)
        )
        laws = [
            sum(joint([one if i == j else none for i in range(steps)]) for j in range(steps)) / steps
            for one in (up, down)
        ]
        assert divergence(*laws, np.array([replaced.epsilon]))[0] <= delta * (1.0 + 1e-9)
        if steps > 1:
            assert divergence(*laws, np.array([g.epsilon]))[0] > 1.1 * delta


def test_a_step_that_is_one_of_ours_has_its_exact_bound():
    """One of one step, every step of all, and an epoch of one step are exact."""
    noise = dp_accounting.LaplaceDpEvent(1.0)
    for many in ({"num_steps": 1}, {"num_steps": 6, "num_selected": 6}):
        g = cj.random_allocation(noise, delta=1e-6, neighboring_relation=ADDED, **many)
        assert g.lower <= g.epsilon <= 1.02 * g.lower
    first = found_by(2.0, 100, 10, 1, 0.5, 1e-6)
    alone = cj.random_allocation(2.0, 1, sampling_prob=0.05, delta=1e-6, neighboring_relation=ADDED)
    assert first.epsilon == pytest.approx(alone.epsilon, rel=1e-9)
    assert first.lower == pytest.approx(alone.lower, rel=1e-9)


NOISES = {
    "Laplace": (dp_accounting.LaplaceDpEvent(0.8), 1.0),
    "rare": (dp_accounting.LaplaceDpEvent(0.2), 1.0),
    "sampled": (dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(0.7)), 0.3),
}


def steps_beyond(probs, steps, selected, finished, used):
    """Laws of the number of finished steps beyond the threshold, over all choices of the record's steps."""
    some = hypergeom(steps, finished, selected)
    laws = []
    for prob in probs[:2]:
        law = np.zeros(finished + 1)
        for own in range(finished + 1):
            weight = used * some.pmf(own) + (1.0 - used) * (own == 0)
            both = (
                binom.pmf(np.arange(finished - own + 1), finished - own, probs.none),
                binom.pmf(np.arange(own + 1), own, prob),
            )
            law += weight * np.convolve(*both)
        laws.append(law)
    return laws


def counted(name, steps, selected, finished, used, opposite):
    step = AllocatedStep.of(NOISES[name][0])
    epoch, probs = Epoch(step, selected, steps, finished, used), StepProbs.of(step, opposite)
    return CountedSteps(LocalGaussian(1.0, 1.0), epoch, probs, MASS), probs


@pytest.mark.parametrize("opposite", [False, True])
@pytest.mark.parametrize(
    ("steps", "selected", "finished", "used"), [*EPOCHS, (300, 20, 120, 0.5), (90, 7, 90, 1.0)]
)
@pytest.mark.parametrize("name", NOISES)
def test_lower_ends_by_numbers_of_steps_are_below_and_near_their_law(
    name, steps, selected, finished, used, opposite
):
    witness, probs = counted(name, steps, selected, finished, used, opposite)
    first, second = steps_beyond(probs, steps, selected, finished, used)
    more, _ = counted(name, steps + 1, selected + 1, finished, used, opposite)
    exceeded = False
    for pair, lines, wrong in zip(
        ((first, second), (second, first)), witness.lower(LOSSES), more.lower(LOSSES)
    ):
        exact = divergence(*pair, LOSSES)
        shown = lines[0] - np.expm1(LOSSES) * lines[1]
        assert (shown <= exact + 1e-16).all()
        seen = exact > 1e-6
        # Rare numbers of a record's steps count as none, others as the least of a group.
        assert (shown[seen] >= (0.9 if finished == 120 else 0.998) * exact[seen]).all()
        exceeded |= bool((wrong[0] - np.expm1(LOSSES) * wrong[1] > exact * 1.01 + 1e-15).any())
    assert exceeded or finished == 1


@pytest.mark.parametrize("name", NOISES)
def test_thresholds_are_of_the_noise(name):
    event, rate = NOISES[name]
    for opposite in (False, True):
        first, second, none = StepProbs.of(AllocatedStep.of(event), opposite)
        law = (
            laplace(scale=event.noise_multiplier) if rate == 1.0 else norm(scale=event.event.noise_multiplier)
        )
        at = law.isf(none)
        assert first == pytest.approx(rate * law.sf(at - 1.0) + (1.0 - rate) * none, rel=1e-9)
        expected = rate * law.sf(at + 1.0) + (1.0 - rate) * none if opposite else none
        assert second == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("relation", [ADDED, REPLACED])
@pytest.mark.parametrize("rest", [{}, {"sampling_prob": 0.3}, {"unfinished_steps": 300}])
def test_epochs_of_laplace_steps_have_both_ends(relation, rest):
    g = cj.random_allocation(
        dp_accounting.LaplaceDpEvent(1.5),
        1_000,
        num_selected=30,
        num_epochs=3,
        delta=1e-6,
        neighboring_relation=relation,
        **rest,
    )
    assert 0.0 < g.lower <= g.epsilon <= (1.15 if relation == ADDED else 1.7) * g.lower


@pytest.mark.parametrize("relation", [ADDED, REPLACED])
def test_steps_that_hardly_ever_have_the_record_and_epochs_of_very_many(relation):
    for noise in (dp_accounting.LaplaceDpEvent(1.0), 1.0):
        rare = found_by(noise, 1_000_000, 2, 19, 1.0, 1e-6, relation)
        assert 0.0 <= rare.lower <= rare.epsilon < 0.1
        many = found_by(noise, 10**9, 10**9, 10**9, 1.0, 0.1, relation)
        assert many.lower <= many.epsilon


def test_bounds_are_continuous_where_an_epoch_is_almost_whole():
    whole = found_by(2.0, 100, 10, 100, 1.0, 1e-6)
    assert found_by(2.0, 100, 10, 99, 1.0, 1e-6).epsilon <= whole.epsilon
    assert found_by(2.0, 100, 10, 50, 1.0, 1e-6).epsilon <= 0.8 * whole.epsilon
    sampled = found_by(2.0, 100, 10, 100, 1.0 - 1e-6, 1e-6)
    assert sampled.epsilon == pytest.approx(whole.epsilon, rel=1e-3)
    # One of ten sums with probability 1/10 each, but all or none.
    assert found_by(2.0, 100, 10, 100, 0.1, 1e-6).epsilon <= 0.25 * whole.epsilon


def test_sums_of_gaussian_steps_are_between_the_ends():
    """The lower end is the sum's: 4 of 10 steps of which the first 5 are shown, or after sampling."""
    for finished, used in ((5, 1.0), (10, 0.3), (5, 0.3)):
        g = found_by(1.5, 10, 4, finished, used, 1e-4)
        j = np.arange(5)
        weights = hypergeom.pmf(j, 10, 4, finished)
        x = np.linspace(-12.0, 14.0, 200_001)
        shift = j / 1.5 / math.sqrt(finished)
        p = used * (norm.pdf(x[:, None] - shift) @ weights) + (1.0 - used) * norm.pdf(x)
        p, q = p * (x[1] - x[0]), norm.pdf(x) * (x[1] - x[0])

        def worst(epsilon, p=p, q=q):
            return max(
                oracle.hockey_stick(p, q, math.exp(epsilon)), oracle.hockey_stick(q, p, math.exp(epsilon))
            )

        assert worst(g.lower) == pytest.approx(1e-4, rel=5e-3)
        assert worst(g.epsilon) <= 1e-4


def test_events_of_other_steps_are_composed_and_remembered():
    event = cj.RandomAllocationDpEvent(dp_accounting.LaplaceDpEvent(1.0), 1, 100)
    some = cj.UnfinishedAllocationDpEvent(
        cj.RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(2.0), 4, 40), 10
    )
    ledger = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, 3).compose(some)
    sampled = dp_accounting.PoissonSampledDpEvent(0.5, some)
    ledger.compose(sampled)
    again = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.get_epsilon(1e-6) == ledger.get_epsilon(1e-6) > ledger.get_lower_epsilon(1e-6) > 0.0
    coarse = losses_of.from_laplace_mechanism(1.0, value_discretization_interval=1e-2)
    given = cj.RandomAllocationDpEvent(coarse, 1, 100)
    assert cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(given).get_epsilon(1e-6) > 0.0
    with pytest.raises(ValueError, match="not saved"):
        cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(given).state_dict()


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (cj.UnfinishedAllocationDpEvent(dp_accounting.GaussianDpEvent(1.0), 1), "RandomAllocationDpEvent"),
        (
            cj.UnfinishedAllocationDpEvent(
                cj.RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(1.0), 2, 9), 10
            ),
            "finished_steps=10",
        ),
        (
            cj.RandomAllocationDpEvent(dp_accounting.RandomizedResponseDpEvent(0.1, 3), 1, 9),
            "RandomizedResponse",
        ),
        (cj.RandomAllocationDpEvent(dp_accounting.LaplaceDpEvent(0.001), 1, 9), "noise_multiplier=0.001"),
        (
            dp_accounting.PoissonSampledDpEvent(
                1e-6,
                cj.RandomAllocationDpEvent(
                    dp_accounting.PoissonSampledDpEvent(1e-6, dp_accounting.GaussianDpEvent(1.0)), 1, 9
                ),
            ),
            "product",
        ),
        (
            cj.UnfinishedAllocationDpEvent(
                cj.RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(1.0), 10**5, 10**6), 10
            ),
            "num_selected=100000",
        ),
    ],
)
def test_steps_without_a_bound_are_refused(event, why):
    with pytest.raises(UnsupportedEventError, match=why):
        cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)


def test_the_largest_loss_of_laplace_noise_with_many_scales():
    """expm1 of minus 50 is minus one in float64."""
    assert Sampled(LaplaceNoise(50.0), 1.0).largest_loss == 50.0
    g = cj.random_allocation(dp_accounting.LaplaceDpEvent(0.02), 3, delta=1e-6, neighboring_relation=ADDED)
    assert 49.0 - math.log(3) <= g.lower <= g.epsilon <= 50.0


@pytest.mark.parametrize("scale", [20.0, 100.0, 300.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-4])
def test_lower_ends_of_weak_laplace_noise_are_below_upper_ends(scale, delta):
    """Tangents on both sides of 1 may not be convex together; a common minorant had been above the transform."""
    found = cj.random_allocation(
        dp_accounting.LaplaceDpEvent(scale), 258, delta=delta, neighboring_relation="add-or-remove-one"
    )
    assert 0.0 <= found.lower <= found.epsilon


def test_coarse_privacy_losses_have_an_upper_end():
    """Roundings of the two directions need not belong to one pair: the masses at 1 had been negative."""
    first, second = (0.99, 0.01), (0.43, 0.57)
    logs = [{i: math.log(prob) for i, prob in enumerate(probs)} for probs in (first, second)]
    coarse = losses_of.from_two_probability_mass_functions(*logs, value_discretization_interval=0.1)
    found = cj.random_allocation(
        coarse, 3, delta=1e-2, neighboring_relation="add-or-remove-one", num_selected=3, sampling_prob=0.2
    )
    assert 0.0 <= found.lower <= found.epsilon < math.inf


def test_noise_is_no_looser_than_the_losses_of_the_same_noise():
    noise = dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(0.8))
    losses = losses_of.from_gaussian_mechanism(0.8, sampling_prob=0.3)
    stopped = {"num_selected": 3, "num_epochs": 0, "unfinished_steps": 4, "delta": 1e-5}
    both = [
        cj.random_allocation(step, 10, neighboring_relation=REPLACED, **stopped) for step in (noise, losses)
    ]
    assert both[0].lower <= both[0].epsilon <= 1.001 * both[1].epsilon


def test_blocks_of_one_unit_each_have_a_loss_distribution():
    """The first of them carries the witness, and nothing is left to compose with itself."""
    whole = cj.RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(2.0), 2, 10)
    ledger = cj.CheckInAccountant().compose(cj.UnfinishedAllocationDpEvent(whole, 3))
    losses = ledger.to_pld(value_discretization_interval=1e-3)
    assert losses.get_epsilon_for_delta(1e-6) == pytest.approx(ledger.get_epsilon(1e-6), rel=0.01)
