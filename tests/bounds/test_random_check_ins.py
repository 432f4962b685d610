"""Brackets of A_fix, A_sldw and A_avg against the oracles' pairs and concrete witnesses, one-sided."""

import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import pairs, random_check_ins, windows

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages.cover import Occupied, UniformSlot
from checkin_jax.accounting.bounds.windows.contention import slots_won

MASS = 45.0


def ends(protocol, epsilon0, delta):
    g = cj.account(protocol, cj.PureLDP(epsilon0=epsilon0), delta=delta, bounds="fast")
    assert g.validity == "certified"
    return g.lower, g.epsilon


def best(witnesses, delta):
    return max(windows.epsilon(law, delta) for law in witnesses)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("slots", "used"), [(1, 1.0), (4, 0.3), (40, 0.7), (200, 1.0), (200, 0.01)])
@pytest.mark.parametrize("epsilon0", [0.3, 2.0])
def test_t2_is_above_its_pair_and_close(slots, used, epsilon0):
    p = math.exp(epsilon0)
    one = Clones(UniformSlot(slots, used, used), epsilon0, MASS)
    losses = one.largest_loss * np.array([0.0, 0.003, 0.03, 0.1, 0.3, 0.6, 0.9, 0.999])
    pair = random_check_ins.slots_pair(random_check_ins.clone_labels(p), slots, used)
    exact = pairs.profile(pair, np.exp(losses))
    ours = np.asarray(one.upper(losses))
    assert (ours >= exact * (1 - ORACLE_ROUNDING)).all()
    assert (ours[:3] <= exact[:3] * 1.002).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("n", "m", "prob"), [(1, 1, 1.0), (1, 5, 0.4), (3, 2, 0.7), (30, 12, 1.0), (9, 60, 0.5)]
)
@pytest.mark.parametrize("epsilon0", [0.3, 2.0])
@pytest.mark.thorough(but=5)
def test_t2_prime_is_above_its_pair_and_close(n, m, prob, epsilon0):
    p = math.exp(epsilon0)
    one = Clones(Occupied(n, m, prob), epsilon0, MASS)
    losses = one.largest_loss * np.array([0.0, 0.003, 0.03, 0.1, 0.3, 0.6, 0.9, 0.999])
    law = [float(mass) for mass in random_check_ins.occupancy(n, m, prob)]
    exact = pairs.profile(
        random_check_ins.occupied_pair(random_check_ins.clone_labels(p), n, law), np.exp(losses)
    )
    ours = np.asarray(one.upper(losses))
    assert (ours >= exact * (1 - ORACLE_ROUNDING)).all()
    assert (ours[:3] <= exact[:3] * 1.02).all()


def contested(slots: int, used: float, others: int, pick: float, p: float) -> windows.Slots:
    """T2 for the law of the number of slots won, by direct summation."""
    values, masses = slots_won(slots, others, pick, MASS)
    return windows.Slots(values.astype(int), masses, used / slots, p, 1.0 / (p + 1.0), 0.0)


@pytest.mark.parametrize(
    ("n", "m", "prob", "epsilon0", "delta"),
    [
        (3000, 2000, 0.6, 1.0, 1e-8),
        (10**5, 10**4, 1.0, 2.0, 1e-6),
        (300, 2000, 1.0, 3.0, 1e-6),
    ],
)
@pytest.mark.parametrize("empty_slots", ["dummy", "visible"])
@pytest.mark.turns(2)
@pytest.mark.thorough(but=1)
def test_fixed_window_at_real_sizes(n, m, prob, epsilon0, delta, empty_slots):
    """The smaller of T2 and T2' (T2' alone where empty slots are seen), and the best of three witnesses."""
    p = math.exp(epsilon0)
    above = [windows.t2_prime(n, m, prob, p)]
    if empty_slots == "dummy":
        above.append(contested(m, prob, n - 1, prob / m, p))
    exact = min(windows.epsilon(law, delta) for law in above)
    truth = best(windows.fixed_lower(n, m, prob, p, visible=empty_slots == "visible"), delta)
    protocol = cj.FixedWindow(num_clients=n, num_slots=m, check_in_prob=prob, empty_slots=empty_slots)
    lower, upper = ends(protocol, epsilon0, delta)
    assert exact * (1 - 1e-9) <= upper <= exact * 1.003
    assert truth * 0.985 <= lower <= truth * (1 + 1e-9)


@pytest.mark.parametrize(("n", "window"), [(1000, 400), (1000, 700), (40, 40), (5, 1)])
@pytest.mark.parametrize("epsilon0", [0.4, 2.0])
def test_sliding_window(n, window, epsilon0):
    """T2 over the slots of a client's window that are output, from both sides; n < 2 m - 1 included."""
    p, delta = math.exp(epsilon0), 1e-6
    lower, upper = ends(cj.SlidingWindow(num_clients=n, window=window), epsilon0, delta)
    number = min(window, n - window + 1)
    exact = windows.epsilon(contested(number, number / window, window - 1, 1.0 / window, p), delta)
    assert exact <= windows.epsilon(windows.sliding_upper(n, window, p), delta) * (1.0 + 1e-9)
    truth = best(windows.sliding_lower(n, window, p), delta)
    assert exact * (1 - 1e-9) <= upper <= exact * 1.003 + 1e-12
    assert truth * 0.99 - 1e-12 <= lower <= truth * (1 + 1e-9)


def test_averaged_updates_are_shuffled_check_in_at_the_probability_of_taking_part():
    averaged = cj.AveragedUpdates(num_clients=5000, num_slots=70, check_in_prob=0.4, num_epochs=3)
    shuffled = cj.ShuffledCheckIn(num_clients=5000, check_in_prob=0.4, num_rounds=3)
    assert ends(averaged, 1.5, 1e-7) == ends(shuffled, 1.5, 1e-7)
    g = cj.account(averaged, cj.PureLDP(epsilon0=1.5), delta=1e-7, bounds="fast")
    assert g.method.startswith("clones")


def test_shuffle_is_check_in_at_rate_one():
    assert ends(cj.Shuffle(num_clients=800, num_rounds=4), 1.0, 1e-6) == ends(
        cj.ShuffledCheckIn(num_clients=800, check_in_prob=1.0, num_rounds=4), 1.0, 1e-6
    )


def test_one_slot_for_one_client_is_the_randomizer_itself():
    for protocol in (cj.FixedWindow(num_clients=1, num_slots=1), cj.SlidingWindow(num_clients=1, window=1)):
        low, high = ends(protocol, 2.0, 1e-9)
        assert low == pytest.approx(2.0, rel=1e-6)
        assert high == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("protocol", "rate"),
    [
        (cj.FixedWindow(num_clients=50, num_slots=5, check_in_prob=0.3), 0.3),
        (cj.SlidingWindow(num_clients=50, window=5), 1.0),
        (cj.AveragedUpdates(num_clients=50, num_slots=5, check_in_prob=0.3), 0.3),
    ],
)
def test_gaussian_messages_without_tight_are_never_above_the_local_bound_and_say_what_is_left_out(
    protocol, rate
):
    noise = cj.Gaussian(noise_multiplier=3.0)
    g = cj.account(protocol, noise, delta=1e-5, bounds="fast")
    local = cj.account(protocol, noise, delta=1e-5, view="local", bounds="fast")
    # The fast bounds; see test_account.py for what the others add.
    same = cj.ShuffledCheckIn(num_clients=50, check_in_prob=rate)
    assert local.epsilon == cj.account(same, noise, delta=1e-5, view="local", bounds="fast").epsilon
    if isinstance(protocol, cj.AveragedUpdates):
        assert 0.0 < g.lower <= g.epsilon < local.epsilon
        assert g.epsilon == cj.account(same, noise, delta=1e-5, bounds="fast").epsilon
        assert "subsampling" in g.method
        assert any("no gain" in warning for warning in g.warnings)
    else:
        assert 0.0 < g.lower <= g.epsilon <= local.epsilon
        # Everybody checks in where windows slide: the local bound itself is the answer then, and is named.
        assert ("subsampling" in g.method) == (rate < 1.0)
        assert rate < 1.0 or g.epsilon == local.epsilon
        assert any("only subsampling" in warning for warning in g.warnings)
