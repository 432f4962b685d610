"""Random allocation of any step: epochs of finite mechanisms by enumeration, adaptive ones too; what is NOT a bound."""

import dataclasses
import json
import math
from itertools import combinations, product

import dp_accounting
import numpy as np
import pytest
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from scipy.stats import laplace

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import AsymmetricBound, OwnWitness
from checkin_jax.accounting.bounds.windows.allocated_sums import AllocatedPair
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.interop.allocated_epochs import AllocatedStep, Epoch
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


def epoch(pair, steps, selected, used=1.0):
    """Laws of the steps of an epoch with the record, which takes part with probability `used`, and without it."""
    sets = list(combinations(range(steps), selected))
    inside = sum(joint([pair.p if i in some else pair.q for i in range(steps)]) for some in sets) / len(sets)
    without = joint([pair.q] * steps)
    return used * inside + (1.0 - used) * without, without


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("used", [1.0, 0.3])
def test_one_of_m_steps_of_a_finite_pair_from_both_sides(name, slots, used):
    pair = PAIRS[name]
    bound = AllocatedPair(slots, used, pair, MASS)
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
    wrong = AllocatedPair(3, 1.0, exchanged, MASS).upper_sides(LOSSES)
    rarer = AllocatedPair(5, 1.0, pair, MASS).upper_sides(LOSSES)
    for found in (rarer, wrong) if name != "lopsided" else (rarer,):
        assert any(np.any(truth > 1.02 * upper + 1e-6) for truth, upper in zip(truths, found))


def test_lower_laws_are_below_transforms_with_kinks():
    """A tangent below zero at a level, raised to zero, would put the law of two atoms above theirs."""
    for pair in (
        FinitePair((0.7, 0.2999999, 1e-7, 0.0), (0.2999999, 0.7, 0.0, 1e-7)),
        PAIRS["rare"],
        PAIRS["shown"],
    ):
        ratio = AllocatedPair(1, 1.0, pair, MASS).ratio
        for high, spacing in ((1.0, 1 / 186), (2.0, 0.07), (2.5, 0.2)):
            law = step_ratios.law_lower(ratio, 0.0, high, spacing)
            assert law is not None
            levels = law.start + law.spacing * np.arange(law.masses.size)
            t = np.linspace(0.0, high, 4001)
            mine = np.maximum(t[:, None] - levels, 0.0) @ law.masses
            # Of min(L, high), whose mean is below one by its excess.
            truth = ratio.excess(t) + np.where(t > 1.0, t - 1.0, 0.0)
            assert np.all(mine - law.below <= truth + law.slack)


class FiniteStep(AllocatedStep):
    """A step of a finite mechanism."""

    mu = None

    def __init__(self, pair):
        object.__setattr__(self, "rate", 1.0)
        object.__setattr__(self, "pair", pair)

    def one_of(self, steps, used, mass):
        return AllocatedPair(steps, used, self.pair, mass)


def found_by(pair, steps, selected, delta):
    return compose.bracket(Epoch(FiniteStep(pair), selected, steps, 1.0).units(ADDED, MASS), delta)


EPOCHS = [(3, 2), (4, 2), (4, 3), (5, 2), (5, 4), (4, 1)]


@pytest.mark.parametrize(("steps", "selected"), EPOCHS)
@pytest.mark.parametrize("name", ["response", "lopsided"])
def test_epochs_of_several_steps_a_record_by_enumeration(steps, selected, name):
    pair = PAIRS[name]
    p, q = epoch(pair, steps, selected)
    for delta in (0.05, 1e-3):
        g = found_by(pair, steps, selected, delta)
        at = np.array([g.upper])
        assert max(divergence(p, q, at)[0], divergence(q, p, at)[0]) <= delta
        assert 0.0 <= g.lower <= g.upper


def adaptive(step_of, steps, selected):
    """Laws of an epoch whose steps are chosen by earlier outputs: `step_of(outputs)` is a pair."""
    sets = list(combinations(range(steps), selected))
    inside, without = [], []
    for outputs in product(range(2), repeat=steps):
        rows = [step_of(outputs[:i]) for i in range(steps)]
        each = [
            math.prod((row.p if i in some else row.q)[out] for i, (row, out) in enumerate(zip(rows, outputs)))
            for some in sets
        ]
        inside.append(sum(each) / len(sets))
        without.append(math.prod(row.q[out] for row, out in zip(rows, outputs)))
    return np.array(inside), np.array(without)


@pytest.mark.parametrize(("steps", "selected"), [*EPOCHS, (5, 1)])
def test_steps_that_adapt_to_earlier_ones(steps, selected):
    """Every pair of responses within a factor of 3 is below the widest, whatever chooses among them."""
    rng = np.random.default_rng(steps * 100 + selected)
    widest = PAIRS["response"]
    for _ in range(30):
        chosen = {}

        def step_of(past, chosen=chosen):
            if past not in chosen:
                high, low = rng.uniform(0.25, 0.75, 2)
                chosen[past] = FinitePair((high, 1.0 - high), (low, 1.0 - low))
                if rng.random() < 0.6:
                    chosen[past] = widest if rng.random() < 0.5 else FinitePair(widest.q, widest.p)
            return chosen[past]

        p, q = adaptive(step_of, steps, selected)
        delta = 0.02
        at = np.array([found_by(widest, steps, selected, delta).upper])
        assert max(divergence(p, q, at)[0], divergence(q, p, at)[0]) <= delta


def test_what_is_no_bound_on_an_epoch_of_several_steps_a_record():
    """One unit less is none."""
    pair, delta = PAIRS["response"], 1e-3
    p, q = epoch(pair, 3, 2)
    at = np.array([found_by(pair, 3, 1, delta).upper])
    assert max(divergence(p, q, at)[0], divergence(q, p, at)[0]) > 1.02 * delta


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
    """One of one step, and every step of all, are exact."""
    noise = dp_accounting.LaplaceDpEvent(1.0)
    for many in ({"num_steps": 1}, {"num_steps": 6, "num_selected": 6}):
        g = cj.random_allocation(noise, delta=1e-6, neighboring_relation=ADDED, **many)
        assert g.lower <= g.epsilon <= 1.02 * g.lower


def test_events_of_other_steps_are_composed_and_remembered():
    event = cj.RandomAllocationDpEvent(dp_accounting.LaplaceDpEvent(1.0), 1, 100)
    some = cj.RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(2.0), 4, 40)
    ledger = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, 3).compose(some)
    ledger.compose(dp_accounting.PoissonSampledDpEvent(0.5, event))
    again = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.get_epsilon(1e-6) == ledger.get_epsilon(1e-6) > ledger.get_lower_epsilon(1e-6) > 0.0


@pytest.mark.parametrize(
    ("event", "why"),
    [
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
            dp_accounting.PoissonSampledDpEvent(
                0.5, cj.RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(1.0), 2, 9)
            ),
            "num_selected=2",
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
