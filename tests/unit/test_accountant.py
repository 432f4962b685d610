"""CheckInAccountant in dp_accounting's terms: its own conformance tests, mixed ledgers, calibration."""

import math

import dp_accounting
import pytest
from dp_accounting import privacy_accountant_test
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError

import checkin_jax as cj


class TestConformance(privacy_accountant_test.PrivacyAccountantTest):
    """dp_accounting's contract, run unchanged."""

    def _make_test_accountants(self):
        return [
            cj.CheckInAccountant(NeighboringRelation.REPLACE_ONE, bounds="fast"),
            cj.CheckInAccountant(bounds="fast"),
        ]


RUN = cj.ShuffledCheckIn(num_clients=5_000, check_in_prob=0.2, num_rounds=30)
PURE, NOISE = cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=3.0)


@pytest.mark.thorough
def test_attack_terms_of_a_ledger():
    """Those of `account` for one kind; of more kinds no less."""
    run = cj.ShuffledCheckIn(num_clients=500, check_in_prob=0.2, num_rounds=8)
    accountant = cj.CheckInAccountant(bounds="clones").compose(cj.to_event(run, cj.PureLDP(epsilon0=1.0)))
    g = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="clones")
    assert accountant.attack(1e-6).advantage == g.advantage
    more = accountant.compose(cj.to_event(run, cj.PureLDP(epsilon0=2.0)))
    assert more.attack(1e-6).tpr(0.01).lower > g.tpr(0.01).upper
    with pytest.raises(ValueError, match="target_delta"):
        accountant.attack(1.0)
    with pytest.raises(ValueError, match="non-private"):
        accountant.compose(dp_accounting.NonPrivateDpEvent()).attack(1e-6)


def test_counts_add_up():
    one = cj.to_event(cj.ShuffledCheckIn(num_clients=5_000, check_in_prob=0.2), PURE)
    pieces = cj.CheckInAccountant(bounds="fast").compose(one, 10).compose(one, 20)
    assert pieces.get_epsilon(1e-6) == cj.account(RUN, PURE, delta=1e-6, bounds="fast").epsilon


@pytest.mark.thorough
def test_get_delta_inverts_get_epsilon_on_the_safe_side():
    accountant = cj.CheckInAccountant(bounds="fast").compose(cj.to_event(RUN, PURE))
    epsilon = accountant.get_epsilon(1e-5)
    delta = accountant.get_delta(epsilon)
    assert accountant.get_epsilon(delta) <= epsilon
    assert delta == pytest.approx(1e-5, rel=0.01)


def test_pure_differential_privacy_at_delta_zero():
    assert cj.CheckInAccountant(bounds="fast").compose(cj.to_event(RUN, PURE)).get_epsilon(
        0.0
    ) == pytest.approx(30.0)
    assert cj.CheckInAccountant(bounds="fast").compose(cj.to_event(RUN, NOISE)).get_epsilon(0.0) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.ZCDpEvent(1.0),
        cj.CheckInDpEvent(RUN.repeated(2), PURE),
        cj.CheckInDpEvent("shuffle", PURE),  # pyright: ignore
        cj.CheckInDpEvent(RUN.repeated(1), dp_accounting.GaussianDpEvent(1.0)),  # pyright: ignore
        cj.CheckInDpEvent(RUN.repeated(1), PURE, "everything"),
    ],
)
def test_what_no_bound_is_known_for_is_refused(event):
    with pytest.raises(UnsupportedEventError):
        cj.CheckInAccountant(bounds="fast").compose(event)


def test_another_adjacency_is_refused_not_converted():
    with pytest.raises(ValueError, match="neighboring_relation='replace-special'"):
        cj.CheckInAccountant(NeighboringRelation.REPLACE_SPECIAL, bounds="fast")
    with pytest.raises(TypeError, match="neighboring_relation='replace-one'"):
        cj.CheckInAccountant("replace-one", bounds="fast")  # pyright: ignore
    added = cj.CheckInAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, bounds="fast")
    with pytest.raises(UnsupportedEventError):
        added.compose(cj.to_event(RUN, NOISE))


def test_events_survive_dp_accountings_serialisation():
    event = cj.to_event(RUN, NOISE)
    assert event.to_named_tuple() is not None
    assert hash(event.event) == hash(cj.to_event(RUN, NOISE).event)
