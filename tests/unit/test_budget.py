"""How many rounds fit into a budget, and the ledger of runs whose parameters change."""

import dataclasses
import math

import pytest
from stand_in import quick_account

import checkin_jax as cj
from checkin_jax.accounting.account import UNSEEN_CHANGES, account
from checkin_jax.accounting.calibration import largest_count
from checkin_jax.accounting.interop.accountant import CheckInAccountant
from checkin_jax.accounting.interop.events import CheckInDpEvent
from checkin_jax.protocols import FixedWindow, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, PureLDP
from checkin_jax.training.budget import rounds_within
from checkin_jax.training.run import PrivateRun

CHECK_IN = ShuffledCheckIn(num_clients=1_000, check_in_prob=0.1, num_rounds=50)


def run_of(protocol=CHECK_IN, randomizer=None, **others):
    return PrivateRun(protocol=protocol, randomizer=randomizer or Gaussian(noise_multiplier=2.0), **others)


@pytest.mark.parametrize(
    "epsilon",
    [
        lambda n: 0.01 * n**0.5,
        lambda n: 0.3 * n**0.1,
        lambda n: 1e-5 * n**1.7,
        lambda n: 0.0 if n < 70 else n / 70,
        lambda n: math.floor(n / 9) / 10,
        lambda n: math.inf if n > 123 else 0.01,
        lambda n: 2.0,
    ],
)
@pytest.mark.parametrize("target", [0.05, 0.31, 1.0, 1.9])
@pytest.mark.parametrize("most", [1, 2, 40, 3_000])
def test_the_largest_count_that_fits_is_found(epsilon, target, most):
    truth = max((n for n in range(1, most + 1) if epsilon(n) <= target), default=0)
    for start in (1, most):
        assert largest_count(epsilon, most, target, start=start) == truth


def test_few_questions_are_asked_of_the_accountant():
    asked = []

    def epsilon(count):
        asked.append(count)
        return 1e-3 * count**0.52

    found = largest_count(epsilon, 10**9, 1.0)
    assert epsilon(found) <= 1.0 < epsilon(found + 1)
    assert len(asked) < 12


@pytest.mark.parametrize(("view", "rounds"), [("messages", 25), ("aggregate", 50), ("local", 16)])
def test_rounds_within_is_about_the_view_that_is_named(view, rounds):
    run = run_of(target_epsilon=0.0501, target_view=view)
    assert rounds_within(run, quick_account) == rounds


def test_no_target_is_no_limit():
    assert rounds_within(run_of(), quick_account) == 50


def test_a_window_counts_whole_even_where_it_is_cut_into_rounds():
    window = FixedWindow(num_clients=100, num_slots=30, num_epochs=9, minibatch=7)
    run = run_of(window, target_epsilon=0.007)
    assert run.schedule.rounds_per_unit == 5
    assert rounds_within(run, quick_account) == 3 * 5
    assert rounds_within(run_of(window, target_epsilon=1.0), quick_account) == run.schedule.num_rounds


def test_what_was_run_before_is_within_the_budget():
    run = run_of(target_epsilon=0.0501, before=[(CHECK_IN.repeated(10), Gaussian(noise_multiplier=1.0))])
    assert rounds_within(run, quick_account) == 15
    with pytest.raises(
        ValueError, match=r"expected at least .* the epsilon of one round and all earlier runs"
    ):
        rounds_within(dataclasses.replace(run, target_epsilon=0.021), quick_account)


def test_a_budget_that_nothing_fits_into_says_what_a_round_costs():
    with pytest.raises(
        ValueError, match=r"target_epsilon=0.001: expected at least 0.002, the epsilon of one round"
    ):
        rounds_within(run_of(target_epsilon=1e-3), quick_account)


@pytest.mark.thorough
def test_by_the_real_accountant_one_round_more_is_too_many():
    run = run_of(
        ShuffledCheckIn(num_clients=10_000, check_in_prob=0.1, num_rounds=2_000), PureLDP(epsilon0=1.0)
    )
    run = dataclasses.replace(run, target_epsilon=0.3)
    found = rounds_within(run, account)
    assert 1 < found < 2_000
    epsilons = [
        account(run.protocol.repeated(n), run.randomizer, delta=run.delta).epsilon for n in (found, found + 1)
    ]
    assert epsilons[0] <= 0.3 < epsilons[1]


@pytest.mark.parametrize("view", ["local", "messages", "aggregate"])
@pytest.mark.thorough(but=1)
def test_before_composes_as_the_accountant_does(view):
    first, second = CHECK_IN.repeated(20), dataclasses.replace(CHECK_IN, check_in_prob=0.3, num_rounds=7)
    one, two = Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=3.0)
    found = cj.account(second, two, delta=1e-6, view=view, before=[(first, one)])
    ledger = CheckInAccountant()
    ledger.compose(CheckInDpEvent(first.repeated(1), one, view), 20)
    ledger.compose(CheckInDpEvent(second.repeated(1), two, view), 7)
    assert found.epsilon == pytest.approx(ledger.get_epsilon(1e-6), rel=1e-9)
    assert found.lower == pytest.approx(ledger.get_lower_epsilon(1e-6), rel=1e-9)
    alone = [cj.account(p, r, delta=1e-6, view=view) for p, r in ((first, one), (second, two))]
    assert found.lower > max(each.lower for each in alone)
    assert found.lower <= found.epsilon
    assert UNSEEN_CHANGES in found.assumptions
    assert UNSEEN_CHANGES not in alone[0].assumptions
    assert "and before 1,000 clients over 20 rounds of check-ins at rate 0.1" in str(found)
    assert found.as_dict()["before"][0]["protocol"]["num_rounds"] == 20


@pytest.mark.thorough
def test_the_same_parameters_before_and_now_are_one_run():
    whole = cj.account(CHECK_IN.repeated(30), PureLDP(epsilon0=1.0), delta=1e-6)
    parts = cj.account(
        CHECK_IN.repeated(10),
        PureLDP(epsilon0=1.0),
        delta=1e-6,
        before=[(CHECK_IN.repeated(20), PureLDP(epsilon0=1.0))],
    )
    assert parts.epsilon == pytest.approx(whole.epsilon, rel=1e-3)
    assert parts.lower == pytest.approx(whole.lower, rel=1e-3)
