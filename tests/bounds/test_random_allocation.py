"""Random allocation in public: k of t noisy sums against cells, quadrature and Monte Carlo; what is NOT a bound."""

import json
import math
from itertools import combinations

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from oracles import allocation as oracle
from oracles import exact_rounds, krr
from scipy import stats
from scipy.special import ndtr

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import neg_log_tail
from checkin_jax.accounting.bounds.windows.one_of_slots import gaussian_in_slots
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.interop import composed_guarantee as ledger
from checkin_jax.accounting.interop.composed_guarantee import SETTLED

ADDED, REPLACED = "add-or-remove-one", "replace-one"
GAUSS = dp_accounting.GaussianDpEvent


def cells(steps, selected, mu, value=1.0):
    """The law of t sums over cells, merged, which lowers divergences; a record of this value in k of them."""
    edges = np.linspace(-4.0 - 2.0 * mu, 4.0 + 2.0 * mu, 140 if steps == 3 else 1200)
    without, with_it = (np.diff(ndtr(edges - mean), prepend=0.0, append=1.0) for mean in (0.0, value * mu))
    law = 0.0
    chosen = list(combinations(range(steps), selected))
    for places in chosen:
        rows = [with_it if step in places else without for step in range(steps)]
        joint = rows[0]
        for row in rows[1:]:
            joint = np.multiply.outer(joint, row)
        law = law + joint / len(chosen)
    return law


def worst(laws, epsilon):
    p, q = laws
    return max(oracle.hockey_stick(p, q, math.exp(epsilon)), oracle.hockey_stick(q, p, math.exp(epsilon)))


@pytest.mark.parametrize(("steps", "selected"), [(2, 1), (2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("noise", [0.6, 1.5])
@pytest.mark.parametrize("delta", [1e-1, 1e-2])
@pytest.mark.thorough(but=4)
def test_k_of_t_against_its_law(steps, selected, noise, delta):
    laws = cells(steps, selected, 1.0 / noise), cells(steps, 0, 1.0 / noise)
    g = cj.random_allocation(noise, steps, num_selected=selected, delta=delta, neighboring_relation=ADDED)
    assert worst(laws, g.epsilon) <= delta
    assert worst(laws, g.lower) >= delta * (1 - 0.06)
    assert g.lower <= g.epsilon
    if selected == 1:
        assert g.epsilon <= 1.05 * g.lower


@pytest.mark.parametrize("noise", [0.6, 1.5])
def test_one_unit_of_blocks_for_k_of_t_is_no_bound(noise):
    """k of t steps are k units of one of t/k; one of them by itself, or the pair of one of t, is exceeded."""
    laws = cells(3, 2, 1.0 / noise), cells(3, 0, 1.0 / noise)
    for steps in (2, 3):
        wrong = cj.random_allocation(noise, steps, delta=1e-2, neighboring_relation=ADDED)
        assert worst(laws, wrong.epsilon) > 1.1e-2


@pytest.mark.parametrize(("steps", "selected"), [(1, 1), (2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize(("noise", "delta"), [(0.6, 1e-1), (1.5, 1e-2)])
def test_replaced_records_against_opposite_ones_and_zeros(steps, selected, noise, delta):
    g = cj.random_allocation(noise, steps, num_selected=selected, delta=delta, neighboring_relation=REPLACED)
    mine = cells(steps, selected, 1.0 / noise)
    others = [cells(steps, selected, 1.0 / noise, value) for value in (-1.0, 0.0, 0.4)]
    found = [worst((mine, other), g.epsilon) for other in others]
    assert max(found) <= delta
    # Wider cells where there are three sums.
    assert max(worst((mine, other), g.lower) for other in others) >= delta * (0.98 if steps < 3 else 0.94)
    if selected > 1:
        # One block by itself, and the pairs of added or removed records, are exceeded.
        single = cj.random_allocation(noise, steps, delta=delta, neighboring_relation=REPLACED)
        added = cj.random_allocation(
            noise, steps, num_selected=selected, delta=delta, neighboring_relation=ADDED
        )
        assert all(
            max(worst((mine, other), wrong.epsilon) for other in others) > 1.1 * delta
            for wrong in (single, added)
        )


@pytest.mark.parametrize(("steps", "finished"), [(1, 1), (2, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("prob", [0.05, 0.6, 1.0])
@pytest.mark.parametrize("relation", [ADDED, REPLACED])
def test_sampled_and_unfinished_epochs_against_their_law(steps, finished, prob, relation):
    """`steps` sums of an epoch of `finished`, in which a record takes part with this probability."""
    noise, delta, used = 0.8, 0.02 * prob, prob * steps / finished
    absent = cells(steps, 0, 1.0 / noise)
    mine = (1.0 - used) * absent + used * cells(steps, 1, 1.0 / noise)
    others = [absent]
    if relation == REPLACED:
        others.append((1.0 - used) * absent + used * cells(steps, 1, 1.0 / noise, -1.0))
    many = {"num_epochs": 0, "unfinished_steps": steps} if steps < finished else {}
    g = cj.random_allocation(
        noise, finished, delta=delta, neighboring_relation=relation, sampling_prob=prob, **many
    )
    assert max(worst((mine, other), g.epsilon) for other in others) <= delta * (1.0 + 1e-9)
    assert max(worst((mine, other), g.lower) for other in others) >= 0.93 * delta
    assert 0.0 < g.lower <= g.epsilon
    if relation == ADDED:
        assert g.epsilon <= 1.05 * g.lower


def merged(*laws):
    """The product of laws, losses told apart to 0.01, which lowers divergences."""
    p, q = np.ones(1), np.ones(1)
    for first, second in laws:
        p, q = np.multiply.outer(p, first).ravel(), np.multiply.outer(q, second).ravel()
        p, q = p[p * q > 0.0], q[p * q > 0.0]
        _, place = np.unique(np.round(np.log(p) - np.log(q), 2), return_inverse=True)
        p, q = np.bincount(place, p), np.bincount(place, q)
    return p, q


@pytest.mark.parametrize("delta", [1e-1, 1e-3])
@pytest.mark.parametrize(("selected", "prob"), [(1, 1.0), (2, 1.0), (1, 0.3)])
def test_replaced_records_in_a_ledger_of_several_kinds(selected, prob, delta):
    """At once: k of two sums, a sampled sum of Laplace noise, and a 3-ary response among two others' at x'."""
    noise, rate, epsilon0 = 0.8, 0.5, 3.0
    absent, mine, other = (
        cells(2, k, 1.25, value) for k, value in ((0, 1), (selected, 1.0), (selected, -1.0))
    )
    sums = tuple((1.0 - prob) * absent + prob * law for law in (mine, other))
    edges = np.linspace(-2.0, 2.0, 161)
    rows = [np.diff(stats.laplace.cdf(edges - mean), prepend=0.0, append=1.0) for mean in (0.0, 1.0, -1.0)]
    laplace = tuple((1.0 - rate) * rows[0] + rate * row for row in rows[1:])
    channel = np.array(krr.krr_channel(3, math.exp(epsilon0)))
    held = [[channel[i], channel[1], channel[1]] for i in (0, 1)]
    rounds = tuple(exact_rounds.histogram(each, [1.0] * 3) for each in held)
    laws = merged(sums, laplace, rounds)

    allocation = cj.RandomAllocationDpEvent(GAUSS(noise), selected, 2)
    sampled = dp_accounting.PoissonSampledDpEvent
    events = [
        sampled(prob, allocation) if prob < 1.0 else allocation,
        sampled(rate, dp_accounting.LaplaceDpEvent(1.0)),
        cj.to_event(cj.Shuffle(num_clients=3), cj.KaryResponse(epsilon0=epsilon0, num_values=3)),
    ]
    ledger = cj.CheckInAccountant()
    for event in events:
        # What is composed without the last units is exceeded.
        assert worst(laws, ledger.get_epsilon(delta)) > 1.1 * delta
        ledger.compose(event)
    assert worst(laws, ledger.get_epsilon(delta)) <= delta
    assert worst(laws, ledger.get_lower_epsilon(delta)) >= 0.8 * delta


def test_an_unfinished_epoch_is_not_a_sampled_whole_one():
    """The record is in one of two sums with probability 2/3: not in one of three with that probability."""
    absent = cells(2, 0, 1.25)
    mine = absent / 3.0 + cells(2, 1, 1.25) * (2.0 / 3.0)
    wrong = cj.random_allocation(0.8, 3, delta=1e-2, neighboring_relation=ADDED, sampling_prob=2.0 / 3.0)
    assert worst((mine, absent), wrong.epsilon) > 1.1e-2


def test_a_sampled_allocation_is_an_event_of_a_ledger():
    event = dp_accounting.PoissonSampledDpEvent(0.2, cj.RandomAllocationDpEvent(GAUSS(1.0), 1, 50))
    ledger = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, 3)
    alone = cj.random_allocation(
        1.0, 50, num_epochs=3, sampling_prob=0.2, delta=1e-6, neighboring_relation=ADDED
    )
    assert ledger.get_epsilon(1e-6) == pytest.approx(alone.epsilon, rel=1e-6)
    again = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.get_epsilon(1e-6) == ledger.get_epsilon(1e-6)
    silent = dp_accounting.PoissonSampledDpEvent(0.2, cj.RandomAllocationDpEvent(GAUSS(0.0), 1, 50))
    assert ledger.compose(silent).get_epsilon(1e-6) == math.inf
    assert "sampling_probability=0.2" in str(alone)


@pytest.mark.parametrize(
    ("step", "arguments", "sentences"),
    [
        (1.0, {}, (ledger.DRAWN, ledger.CLIPPED)),
        (1.0, {"unfinished_steps": 2}, (ledger.DRAWN, ledger.CLIPPED, SETTLED, ledger.STOPPED)),
        (
            1.0,
            {"unfinished_steps": 2, "num_selected": 2},
            (ledger.DRAWN, ledger.CLIPPED, ledger.STOPPED, SETTLED),
        ),
        (cj.KnownProfile(function=cj.PureLDP(epsilon0=0.5).profile), {}, (ledger.DRAWN, ledger.GIVEN)),
    ],
)
def test_the_statement_assumes_that_nobody_learns_which_steps_use_a_record(step, arguments, sentences):
    g = cj.random_allocation(step, 5, delta=1e-3, neighboring_relation=ADDED, **arguments)
    assert g.assumptions == (ledger.ASSUMED, *sentences)


def test_whoever_knows_the_step_has_the_epsilon_of_a_step():
    g = cj.random_allocation(1.0, 5, delta=1e-3, neighboring_relation=ADDED)
    known = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(GAUSS(1.0)).guarantee(1e-3)
    assert known.lower > 1.2 * g.epsilon
    assert known.assumptions == (ledger.ASSUMED, ledger.CLIPPED)


@pytest.mark.parametrize(("steps", "selected", "epochs"), [(50, 1, 1), (50, 1, 4), (60, 7, 1)])
@pytest.mark.thorough(but=1)
def test_monte_carlo_is_between_the_ends(steps, selected, epochs):
    """Losses of 200,000 draws; delta of P||Q is E(1 - e^(eps - loss))_+, in [0, 1]: Hoeffding's bound at 1e-9."""
    rng = np.random.default_rng(3)
    noise, draws, delta = 1.0, 200_000, 0.03
    log_ratio = np.zeros(draws)
    for _ in range(epochs):
        y = rng.standard_normal((draws, steps))
        y[:, :selected] += 1.0 / noise  # which ones does not matter to a symmetric ratio
        # The mean over sets of k of products: elementary symmetric polynomials of the steps' ratios.
        ratio = np.exp(y / noise - 0.5 / noise**2)
        sums = np.zeros((selected + 1, draws))
        sums[0] = 1.0
        for step in range(steps):
            sums[1:] += sums[:-1].copy() * ratio[:, step]
        log_ratio += np.log(sums[selected] / math.comb(steps, selected))
    g = cj.random_allocation(
        noise, steps, num_selected=selected, num_epochs=epochs, delta=delta, neighboring_relation=ADDED
    )
    slack = math.sqrt(math.log(1e9) / (2 * draws))

    def estimate(epsilon):
        return np.mean(np.maximum(-np.expm1(epsilon - log_ratio), 0.0))

    assert estimate(g.epsilon) <= delta + slack
    # The other direction is smaller here, so this one reaches the lower end.
    assert estimate(g.lower) >= delta - slack


def test_k_units_are_their_composition_and_no_more():
    delta = 1e-6
    mass = neg_log_tail(5, delta)
    blocks = [(gaussian_in_slots(4, 1.0, 0.5, mass), 4), (gaussian_in_slots(5, 1.0, 0.5, mass), 1)]
    g = cj.random_allocation(2.0, 21, num_selected=5, delta=delta, neighboring_relation=ADDED)
    assert g.epsilon == pytest.approx(compose.bracket(blocks, delta).upper, rel=1e-9)
    # Those units' own pairs would put the lower end above what the mechanism may leak.
    assert g.lower < compose.bracket(blocks, delta).lower


@pytest.mark.parametrize("relation", [NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE])
def test_every_step_is_plain_composition(relation):
    g = cj.random_allocation(3.0, 7, num_selected=7, delta=1e-5, neighboring_relation=relation)
    plain = cj.CheckInAccountant(relation).compose(GAUSS(3.0), 7)
    assert plain.get_lower_epsilon(1e-5) <= g.epsilon
    assert g.epsilon == pytest.approx(plain.get_epsilon(1e-5), rel=1e-3)
    assert g.lower == pytest.approx(g.epsilon, rel=1e-2)


@pytest.mark.thorough
def test_the_event_composes_with_others_and_is_remembered():
    event = cj.RandomAllocationDpEvent(GAUSS(2.0), num_selected=3, num_steps=100)
    ledger = (
        cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, 2).compose(GAUSS(40.0))
    )
    alone = cj.random_allocation(
        2.0, 100, num_selected=3, num_epochs=2, delta=1e-6, neighboring_relation=ADDED
    )
    assert alone.epsilon <= ledger.get_epsilon(1e-6) <= alone.epsilon + 0.2
    assert alone.lower <= ledger.get_lower_epsilon(1e-6) <= ledger.get_epsilon(1e-6)
    again = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.get_epsilon(1e-6) == ledger.get_epsilon(1e-6)
    assert "RandomAllocationDpEvent" in str(ledger)
    twice = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, 2)
    assert twice.guarantee(1e-6) == alone
    pld = twice.to_pld(value_discretization_interval=1e-3)
    assert pld.get_epsilon_for_delta(1e-6) >= alone.lower
    assert pld.get_epsilon_for_delta(1e-6) == pytest.approx(alone.epsilon, rel=0.03)
    assert f"{alone.delta!r})-differential privacy, certified" in str(alone)


@pytest.mark.parametrize(
    ("event", "relation", "why"),
    [
        (cj.RandomAllocationDpEvent(GAUSS(1.0), 10, 9), ADDED, "num_selected=10"),
        (cj.RandomAllocationDpEvent(GAUSS(1.0), 1, 0), ADDED, "num_steps=0"),
        (cj.RandomAllocationDpEvent(GAUSS(0.01), 1, 9), ADDED, "noise_multiplier=0.01"),
    ],
)
def test_what_is_not_proved_is_refused_with_the_reason(event, relation, why):
    known = NeighboringRelation.REPLACE_ONE if relation == REPLACED else NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(UnsupportedEventError, match=why):
        cj.CheckInAccountant(known).compose(event)


@pytest.mark.parametrize(("noise", "delta"), [(1.0 / 12.0, 1e-150), (1.0 / 8.0, 1e-200), (0.25, 1e-250)])
def test_no_event_of_one_large_term_has_probability_zero(noise, delta):
    """H at the lower end is at least delta; it is below that of one large term, and of two beyond e^k < e^lower."""
    g = cj.random_allocation(noise, 2, delta=delta, neighboring_relation=ADDED)
    with mpmath.workdps(40):
        mu = mpmath.mpf(1.0 / noise)
        loss, k = mpmath.mpf(g.lower) + mpmath.log(2) - 1e-9, 0.8 * mpmath.mpf(g.lower)
        single = mpmath.ncdf(mu / 2 - loss / mu) - mpmath.exp(loss) * mpmath.ncdf(-mu / 2 - loss / mu)
        both = mpmath.ncdf(mu / 2 - k / mu) * mpmath.ncdf(-mu / 2 - k / mu)
        assert single + both >= delta
