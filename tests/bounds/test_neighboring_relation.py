"""Adding or removing a client: where it is bounded, what the guarantee says, and no number silently for both."""

import json
import math
from fractions import Fraction

import dp_accounting
import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from oracles import krr
from oracles import random_check_ins as rci

import checkin_jax as cj
from checkin_jax.accounting.bounds.select import unit_bound

ADDED = "add-or-remove-one"
NOISE = cj.Gaussian(noise_multiplier=3.0)
WINDOW = cj.FixedWindow(num_clients=2_000, num_slots=200, check_in_prob=0.5, num_epochs=2)
SLIDING = cj.SlidingWindow(num_clients=500, window=100)


@pytest.mark.parametrize("protocol", [WINDOW, SLIDING])
@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=1.0), NOISE])
@pytest.mark.thorough(but=1)
def test_the_relation_is_stated_and_changes_the_number(protocol, randomizer):
    g = cj.account(protocol, randomizer, delta=1e-6, neighboring_relation=ADDED, bounds="fast")
    other = cj.account(protocol, randomizer, delta=1e-6, bounds="fast")
    assert (g.neighboring_relation, other.neighboring_relation) == (ADDED, "replace-one")
    assert "the dummy" in str(g)
    assert "the dummy" not in str(other).split("adjacency")[1].splitlines()[0]
    assert 0 < g.lower <= g.epsilon
    assert (g.lower, g.epsilon) != (other.lower, other.epsilon)
    # One message a slot: the aggregate shows the messages.
    seen = cj.account(
        protocol, randomizer, delta=1e-6, neighboring_relation=ADDED, view="aggregate", bounds="fast"
    )
    assert seen.epsilon == g.epsilon


def test_names_and_dp_accountings_enumeration_mean_the_same():
    named, enumerated = (
        cj.account(SLIDING, NOISE, delta=1e-6, neighboring_relation=relation, bounds="fast")
        for relation in (ADDED, NeighboringRelation.ADD_OR_REMOVE_ONE)
    )
    assert named == enumerated
    for relation in (NeighboringRelation.REPLACE_SPECIAL, "remove", None):
        with pytest.raises(ValueError, match=r"neighboring_relation=.*expected one of"):
            cj.account(SLIDING, NOISE, delta=1e-6, neighboring_relation=relation, bounds="fast")  # pyright: ignore


@pytest.mark.thorough
def test_the_accountant_composes_under_its_relation():
    accountant = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, bounds="fast")
    accountant.compose(cj.to_event(WINDOW, NOISE))
    g = cj.account(WINDOW, NOISE, delta=1e-6, neighboring_relation=ADDED, bounds="fast")
    assert accountant.get_epsilon(1e-6) == pytest.approx(g.epsilon, rel=1e-12)
    assert accountant.get_lower_epsilon(1e-6) == pytest.approx(g.lower, rel=1e-12)
    assert any(each.startswith("allocation: ") for each in accountant.guarantee(1e-6).theorems)
    state = json.loads(json.dumps(accountant.state_dict()))
    restored = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, bounds="fast")
    restored.load_state_dict(state)
    assert restored.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
    with pytest.raises(ValueError, match="neighboring_relation"):
        cj.CheckInAccountant(bounds="fast").load_state_dict(state)


@pytest.mark.thorough
def test_dp_accounting_gets_both_directions():
    unit = cj.FixedWindow(num_clients=2_000, num_slots=200, check_in_prob=0.5)
    theirs = cj.to_pld(
        unit, NOISE, neighboring_relation=ADDED, value_discretization_interval=1e-4, bounds="fast"
    )
    assert theirs._pmf_remove.get_delta_for_epsilon(0.05) != theirs._pmf_add.get_delta_for_epsilon(0.05)
    ours = cj.account(WINDOW, NOISE, delta=1e-6, neighboring_relation=ADDED, bounds="fast")
    epsilon = theirs.self_compose(2).get_epsilon_for_delta(1e-6)
    # Theirs is for every delta: fewer others count in a slot than at this one.
    assert ours.lower <= epsilon <= ours.epsilon * 1.1
    assert isinstance(theirs, dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution)


@pytest.mark.thorough
def test_calibrated_noise_is_feasible_when_evaluated_again():
    found = cj.calibrate(
        WINDOW, cj.Gaussian, target_epsilon=0.3, delta=1e-6, neighboring_relation=ADDED, bounds="fast"
    )
    assert found.guarantee.neighboring_relation == ADDED
    again = cj.account(
        WINDOW, found.guarantee.randomizer, delta=1e-6, neighboring_relation=ADDED, bounds="fast"
    )
    assert again.epsilon == found.guarantee.epsilon <= 0.3
    less = cj.Gaussian(noise_multiplier=0.998 * found.value)
    assert cj.account(WINDOW, less, delta=1e-6, neighboring_relation=ADDED, bounds="fast").epsilon > 0.3


@pytest.mark.parametrize("prob", [Fraction(1), Fraction(2, 3)])
@pytest.mark.parametrize(("clients", "slots"), [(1, 2), (2, 1), (3, 2), (2, 3)])
def test_t2_holds_for_a_removed_client_of_a_fixed_window(clients, slots, prob):
    """Brute force over the others' records, with randomized response of 2 and 3 answers; the witness is attained."""
    channels = [krr.krr_channel(records, Fraction(3)) for records in (2, 3)]
    protocol = cj.FixedWindow(num_clients=clients, num_slots=slots, check_in_prob=float(prob))
    probs = [prob] * clients
    there = rci.one_of_each_slot(rci.fixed_window_choices(clients, slots, tuple(probs)), range(slots))
    away = rci.one_of_each_slot(
        rci.fixed_window_choices(clients, slots, (*probs[:-1], Fraction(0))), range(slots)
    )
    worst = _worst(there, away, clients, slots, channels)
    _check(protocol, math.log(3.0), worst)


def _worst(there, away, clients, slots, channels):
    worst = dict.fromkeys(CS, 0.0)
    for channel in channels:
        letters = len(channel)
        # Its last row is the dummy's.
        tree = rci.constant_tree([*channel, channel[-1]], slots)
        for data in np.ndindex(*(letters,) * clients):
            p, q = rci.output_law(there, data, tree), rci.output_law(away, data, tree)
            for c in CS:
                worst[c] = max(worst[c], float(rci.hockey_stick(p, q, c)), float(rci.hockey_stick(q, p, c)))
    return worst


CS = (Fraction(1), Fraction(6, 5), Fraction(3, 2), Fraction(2))


def _check(protocol, epsilon0, worst):
    with jax.enable_x64(True):
        one = unit_bound(protocol, cj.PureLDP(epsilon0=epsilon0), "messages", 1, 1e-9, relation=ADDED).bound
        losses = np.log([float(c) for c in CS])
        upper = np.asarray(one.upper(losses))
        assert one.witnesses
        for value, c in zip(upper, CS):
            assert value >= worst[c] * (1 - 1e-11)
        for witness in one.witnesses:
            for apart, far in witness.lower(losses[1:]):
                line = np.asarray(apart) - np.expm1(losses[1:]) * np.asarray(far)
                assert (line <= np.array([worst[c] for c in CS[1:]]) * (1 + 1e-11)).all()
