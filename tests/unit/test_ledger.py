"""The accountant's memory: mixed ledgers, saved state, would_exceed, describe and dp_accounting's own PLDs."""

import contextlib
import copy
import json

import dp_accounting
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting.interop.accountant import MixedViewsWarning
from checkin_jax.accounting.interop.composed_guarantee import SETTLED

PURE = cj.PureLDP(epsilon0=1.0)
UNITS = [
    (cj.ShuffledCheckIn(num_clients=900, check_in_prob=0.3, num_rounds=3), PURE, "messages"),
    (cj.Shuffle(num_clients=700, num_rounds=2), cj.PureLDP(epsilon0=0.5), "aggregate"),
    (
        cj.FixedWindow(num_clients=400, num_slots=100, check_in_prob=0.8, empty_slots="visible"),
        PURE,
        "messages",
    ),
    (cj.SlidingWindow(num_clients=500, window=120), PURE, "messages"),
    (cj.AveragedUpdates(num_clients=800, num_slots=9, check_in_prob=0.5), PURE, "messages"),
    (cj.ShuffledCheckIn(num_clients=900, check_in_prob=0.3), cj.Gaussian(noise_multiplier=4.0), "aggregate"),
    (
        cj.FixedWindow(num_clients=400, num_slots=90, minibatch=30),
        cj.Gaussian(noise_multiplier=4.0),
        "aggregate",
    ),
    (
        cj.SlidingWindow(num_clients=400, window=90, minibatch=30),
        cj.Gaussian(noise_multiplier=4.0),
        "aggregate",
    ),
]


def composed(units):
    accountant = cj.CheckInAccountant(bounds="fast")
    mixed = len({view for _, _, view in units}) > 1
    with pytest.warns(MixedViewsWarning) if mixed else contextlib.nullcontext():
        for protocol, randomizer, view in units:
            accountant.compose(cj.to_event(protocol, randomizer, view=view))
    return accountant


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit[0]).__name__)
@pytest.mark.thorough(but=3)
def test_an_event_means_what_the_protocol_means(unit):
    protocol, randomizer, view = unit
    g = cj.account(protocol, randomizer, delta=1e-6, view=view, bounds="fast")
    accountant = composed([unit])
    assert accountant.get_epsilon(1e-6) == pytest.approx(g.epsilon, rel=1e-12)
    assert accountant.get_lower_epsilon(1e-6) == pytest.approx(g.lower, rel=1e-12)


@pytest.mark.thorough
def test_mixed_ledgers_lie_between_their_parts_and_basic_composition():
    alone = [composed([unit]).get_epsilon(1e-6) for unit in UNITS[:4]]
    together = composed(UNITS[:4])
    assert max(alone) <= together.get_epsilon(1e-6)
    assert together.get_epsilon(4e-6) <= sum(alone)
    assert 0 < together.get_lower_epsilon(1e-6) <= together.get_epsilon(1e-6)


@pytest.mark.thorough
def test_state_survives_json_and_the_ledger_goes_on():
    accountant = composed(UNITS)
    state = json.loads(json.dumps(accountant.state_dict()))
    restored = cj.CheckInAccountant(bounds="fast")
    with pytest.warns(MixedViewsWarning):
        restored.load_state_dict(state)
    assert restored.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
    assert restored.state_dict() == accountant.state_dict()
    more = cj.to_event(*UNITS[0][:2])
    assert restored.compose(more).get_epsilon(1e-6) == accountant.compose(more).get_epsilon(1e-6)
    assert restored.ledger == accountant.ledger


def spoil(path, value):
    state = composed(UNITS[:1]).state_dict()
    at = state
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return state


@pytest.mark.parametrize(
    ("state", "part"),
    [
        (spoil(["schema"], 1), "schema=1"),
        (spoil(["schema"], None), "expected"),
        (spoil(["neighboring_relation"], "ADD_OR_REMOVE_ONE"), "neighboring_relation"),
        (spoil(["non_private"], 1), "non_private=1"),
        (spoil(["ledger", 0, "count"], 0), "count=0"),
        (spoil(["ledger", 0, "view"], "x"), "view='x'"),
        (spoil(["ledger", 0, "protocol", "kind"], "Other"), "kind='Other'"),
        (spoil(["ledger", 0, "protocol", "check_in_prob"], 2.0), "check_in_prob=2.0"),
        (spoil(["ledger", 0, "protocol", "extra"], 1), "extra"),
        (spoil(["ledger", 0, "randomizer", "epsilon0"], None), "expected"),
        (spoil(["ledger", 0, "surprise"], 1), "surprise"),
        (spoil(["ledger", 0, "protocol", "num_rounds"], 1000), "single unit"),
        (spoil(["ledger", 0, "protocol"], [1]), "expected a mapping"),
        (spoil(["ledger"], {}), "expected a list"),
        (spoil(["schema"], True), "schema=True"),
        (3, "state=3"),
    ],
)
def test_states_of_another_making_are_refused_and_change_nothing(state, part):
    accountant = composed(UNITS[1:2])
    before = copy.deepcopy(accountant.state_dict())
    with pytest.raises((ValueError, TypeError)) as info:
        accountant.load_state_dict(state)
    assert part in str(info.value)
    assert accountant.state_dict() == before


def test_mixed_views_and_populations_are_named():
    run = cj.ShuffledCheckIn(num_clients=900, check_in_prob=0.3)
    window = cj.FixedWindow(num_clients=400, num_slots=100)
    accountant = cj.CheckInAccountant(bounds="fast").compose(cj.to_event(run, PURE))
    accountant.compose(cj.to_event(run, PURE), 2).compose(cj.to_event(run, cj.PureLDP(epsilon0=0.5)))
    assert accountant.notes == ()
    accountant.compose(cj.to_event(window, PURE))
    (populations,) = accountant.notes
    assert "2 populations, of 400 to 900 clients; epsilon is for a client in all of them" in populations
    assert str(accountant).startswith(populations)
    with pytest.warns(MixedViewsWarning, match="one adversary who has all of them") as warned:
        accountant.compose(cj.to_event(window, PURE, view="aggregate"))
    assert warned[0].filename == __file__
    views, also = accountant.notes
    assert also == populations
    for protocol, view in ((run, "messages"), (window, "messages"), (window, "aggregate")):
        assert f"{view!r}: {protocol.observed(view)}" in views
    accountant.compose(cj.to_event(run, PURE, view="aggregate"))  # said once for each view
    assert str(accountant).startswith(f"{accountant.notes[0]}\n\n{populations}\n\n")
    restored = cj.CheckInAccountant(bounds="fast")
    with pytest.warns(MixedViewsWarning):
        restored.load_state_dict(accountant.state_dict())
    assert restored.notes == accountant.notes


def test_asking_about_another_view_is_no_mixing():
    accountant = composed(UNITS[:1])
    event = cj.to_event(*UNITS[0][:2], view="aggregate")
    assert not accountant.would_exceed(event, target_epsilon=100.0, target_delta=1e-6)
    assert accountant.notes == ()


def test_would_exceed_composes_nothing():
    accountant = composed(UNITS[:1])
    now = accountant.get_epsilon(1e-6)
    event = cj.to_event(*UNITS[0][:2])
    assert not accountant.would_exceed(event, 1, target_epsilon=3 * now, target_delta=1e-6)
    assert accountant.would_exceed(event, 20, target_epsilon=1.5 * now, target_delta=1e-6)
    assert accountant.would_exceed(dp_accounting.ZCDpEvent(1.0), target_epsilon=100.0, target_delta=1e-6), (
        "what cannot be accounted for is never within a budget"
    )
    assert accountant.get_epsilon(1e-6) == now
    with pytest.raises(ValueError, match="target_epsilon=-1"):
        accountant.would_exceed(event, target_epsilon=-1, target_delta=1e-6)


def test_a_guarantee_names_theorems_references_and_assumptions():
    text = composed(UNITS).guarantee(1e-6).statement()
    for part in (
        "clones",
        "subsampling",
        "BBG18",
        "same randomizer",
        "assumes",
        "over 3 rounds",
        "a clone of the client's own message",
    ):
        assert part in text
    assert str(cj.CheckInAccountant(bounds="fast")) == "nothing was composed"


def test_a_ledger_of_several_kinds_of_unit_assumes_that_none_was_chosen_by_an_output():
    """No privacy filter: tests/theory/test_filters.py has the counterexample."""
    assert SETTLED in composed(UNITS[:2]).guarantee(1e-6).assumptions
    assert SETTLED not in composed(UNITS[:1]).guarantee(1e-6).assumptions


@pytest.mark.parametrize("unit", [UNITS[0], UNITS[2], UNITS[5]], ids=lambda unit: type(unit[0]).__name__)
@pytest.mark.thorough(but=1)
def test_plds_of_dp_accounting_agree(unit):
    """dp_accounting composes our grid pair by plain FFT: above the true value, and near ours."""
    accountant = composed([unit])
    pld = accountant.to_pld(value_discretization_interval=1e-3)
    for delta in (1e-3, 1e-6):
        ours, theirs = accountant.get_epsilon(delta), pld.get_epsilon_for_delta(delta)
        assert accountant.get_lower_epsilon(delta) <= theirs
        assert theirs == pytest.approx(ours, rel=0.01, abs=2e-3)


@pytest.mark.thorough
def test_plds_of_several_kinds_compose():
    accountant = composed(UNITS[:4])
    pld = accountant.to_pld(value_discretization_interval=1e-3)
    assert pld.get_epsilon_for_delta(1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=0.01)
    one = cj.to_pld(*UNITS[0][:2], value_discretization_interval=1e-3, bounds="fast")
    assert np.isfinite(one.get_delta_for_epsilon(0.01))
