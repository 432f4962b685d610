"""R1': slots with their loads; nobody else in the slots; visible empty slots with fewer clients than slots."""

import math
from fractions import Fraction

import numpy as np
import pytest
from oracles import allocation as oracle
from oracles import gaussian as gaussian_oracle
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import LocalGaussian
from checkin_jax.accounting.bounds.messages.subsampling import loaded_slot
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture
from checkin_jax.numerics.counts import occupancy

pytestmark = pytest.mark.usefixtures("x64")
LOSSES = np.array([0.0, 0.1, 0.5, 1.5, 3.0])
MASS = 31.0
ADDED = {"neighboring_relation": "add-or-remove-one"}


def definition(shown, prob, num_rivals, rival_prob, mu, loss):
    k = np.arange(num_rivals + 1)
    stretched = np.log1p(math.expm1(loss) * (k + 1) / prob)
    shift = np.where(k == 0, 0.5 * mu, mu)
    profile = np.array([gaussian_oracle.delta_g(s, e) for s, e in zip(shift, stretched)])
    return shown * prob * float(binom.pmf(k, num_rivals, rival_prob) / (k + 1) @ profile)


@pytest.mark.parametrize(
    ("shown", "prob", "num_rivals", "rival_prob"),
    [
        (1.0, 0.7, 0, 0.5),
        (1.0, 1.0, 1, 1.0),
        (0.4, 1.0, 9, 0.1),
        (1.0, 0.3, 3000, 0.02),
        (1.0, 1.0, 2000, 1e-4),
    ],
)
@pytest.mark.thorough(but=2)
def test_loads_are_their_definition(shown, prob, num_rivals, rival_prob):
    ours = np.asarray(loaded_slot(shown, prob, num_rivals, rival_prob, 1.3, MASS).upper(LOSSES))
    truth = np.array([definition(shown, prob, num_rivals, rival_prob, 1.3, loss) for loss in LOSSES])
    assert (ours >= truth * (1 - 1e-9)).all()
    assert (ours <= truth * 1.06 + 1e-12).all()


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize(("slots", "prob"), [(1, 1.0), (1, 0.6), (2, 1.0), (2, 0.6)])
@pytest.mark.parametrize("others", [(), (-1.0,), (-1.0, -1.0, -1.0), (0.5, -1.0)])
def test_loads_are_above_windows_with_and_without_a_client(noise, slots, prob, others):
    bound = loaded_slot(1.0, prob, len(others), prob / slots, 2.0 / noise, MASS)
    uppers = np.asarray(bound.upper(LOSSES))
    present, without = (oracle.window(records, slots, prob, noise) for records in ((*others, 1.0), others))
    for upper, loss in zip(uppers, LOSSES):
        for p, q in ((present, without), (without, present)):
            assert oracle.hockey_stick(p, q, math.exp(loss)) <= upper * (1 + 1e-9) + 1e-12


def test_a_displaced_client_is_further_away_than_the_dummy():
    """Half the shift at every load is exceeded: one slot, one other client at the far end."""
    noise = 0.5
    p, q = (oracle.window(records, 1, 1.0, noise) for records in ((-1.0, 1.0), (-1.0,)))
    truth = np.array([oracle.hockey_stick(p, q, math.exp(loss)) for loss in LOSSES])
    wrong = np.array(
        [0.5 * gaussian_oracle.delta_g(1.0 / noise, math.log1p(2 * math.expm1(l))) for l in LOSSES]
    )
    assert (truth > 1.1 * wrong).any()


def test_nobody_else_is_not_half_of_all_cases():
    """Where the others are, k + 1 share the slot; alone, the client is shown for certain."""
    p, q = (oracle.window(records, 1, 1.0, 1.0) for records in ((1.0,), ()))
    shared = loaded_slot(1.0, 1.0, 1, 1.0, 2.0, MASS)
    truth = np.array([oracle.hockey_stick(p, q, math.exp(loss)) for loss in LOSSES])
    assert (truth > np.asarray(loaded_slot(1.0, 0.5, 0, 0.0, 2.0, MASS).upper(LOSSES))).any()
    assert (truth <= np.asarray(loaded_slot(1.0, 1.0, 0, 0.0, 2.0, MASS).upper(LOSSES)) * (1 + 1e-9)).all()
    assert np.asarray(shared.upper(LOSSES)).shape == LOSSES.shape


@pytest.mark.parametrize(
    "protocol",
    [
        cj.FixedWindow(num_clients=1, num_slots=2, check_in_prob=0.6),
        cj.SlidingWindow(num_clients=5, window=1),
    ],
)
def test_nobody_else_against_quadrature(protocol):
    one = unit_bound(
        protocol, cj.Gaussian(noise_multiplier=1.0), "messages", 1, 1e-6, relation="add-or-remove-one"
    ).bound
    slots, used = (2, 0.6) if isinstance(protocol, cj.FixedWindow) else (1, 1.0)
    truth = np.array([oracle.profiles(slots, used, 1.0, math.exp(l)) for l in LOSSES[1:]]).T
    for upper, exact in zip(one.upper_sides(LOSSES[1:]), truth):
        assert (upper >= exact - 3e-11).all()
        assert (upper <= exact * 1.03 + 1e-10).all()


def test_a_mixture_is_the_sum_of_its_parts():
    parts = ((0.25, LocalGaussian(1.0, 1.0)), (0.75, loaded_slot(1.0, 1.0, 3, 0.5, 1.0, MASS)))
    forward, backward = PublicMixture(parts).upper_sides(LOSSES)
    truth = sum(weight * np.asarray(part.upper(LOSSES)) for weight, part in parts)
    assert np.allclose(forward, truth, rtol=1e-9)
    assert (forward >= truth).all()
    assert (forward == backward).all()


@pytest.mark.parametrize(
    ("clients", "noise", "before", "now"), [(10, 1.0, 3.14, 1.7), (10, 2.0, 0.0853, 0.0847)]
)
def test_few_others_are_not_in_every_slot(clients, noise, before, now):
    """1,000 slots: G3 counts another client in each of them."""
    window, randomizer = (
        cj.FixedWindow(num_clients=clients, num_slots=1000),
        cj.Gaussian(noise_multiplier=noise),
    )
    g = cj.account(window, randomizer, delta=1e-6, **ADDED)
    assert 0 < g.lower <= g.epsilon < now < before
    alone = cj.account(cj.FixedWindow(num_clients=1, num_slots=1000), randomizer, delta=1e-6, **ADDED)
    assert g.epsilon > alone.epsilon


# Visible empty slots


@pytest.mark.parametrize(
    ("n", "m", "prob"), [(1, 1, 0.3), (2, 3, 1.0), (7, 10, 0.9), (30, 400, 1.0), (4, 3, 1.0)]
)
def test_birthdays_are_exact(n, m, prob):
    truth = Fraction(prob) ** n * math.prod(Fraction(m - i, m) for i in range(n))
    low, high = occupancy.all_apart(n, m, prob)
    assert low <= truth <= high <= low * (1 + 3e-9)


@pytest.mark.parametrize(("n", "m"), [(10**6 + 1, 10**12), (10**9, 10**12), (2 * 10**6, 2 * 10**6)])
def test_birthdays_of_many_are_bracketed(n, m):
    low, high = occupancy.all_apart(n, m, 1.0)
    log = math.lgamma(m + 1) - math.lgamma(m - n + 1) - n * math.log(m)
    assert 0.0 <= low <= math.exp(log) * (1 + 1e-2) + 1e-300
    assert high >= math.exp(log) * (1 - 1e-2) or m > 10**11  # lgamma cancels there


def test_fewer_clients_than_visible_slots_hide_each_other():
    """[0, 2.254] before, the local bound."""
    window = cj.FixedWindow(num_clients=1000, num_slots=10_000, empty_slots="visible")
    g = cj.account(window, cj.Gaussian(noise_multiplier=4.0), delta=1e-6, bounds="best")
    assert 0.05 < g.lower <= g.epsilon < 0.0706
    plain = cj.account(window, cj.Gaussian(noise_multiplier=4.0), delta=1e-6, bounds="fast")
    assert plain.epsilon < 0.82
    assert not any("subsampling" in warning for warning in plain.warnings)


@pytest.mark.thorough
def test_clients_alone_in_their_visible_slots_are_shuffled():
    """Twenty in a hundred million slots: all apart, as good as shuffling."""
    window = cj.FixedWindow(num_clients=20, num_slots=10**8, empty_slots="visible")
    randomizer = cj.Gaussian(noise_multiplier=4.0)
    g = cj.account(window, randomizer, delta=1e-6, bounds="fast")
    shuffled = cj.account(cj.Shuffle(num_clients=20), randomizer, delta=1e-6, bounds="fast")
    assert 0.45 < g.lower <= g.epsilon <= shuffled.epsilon * (1 + 1e-9)
    alone = cj.account(
        cj.FixedWindow(num_clients=1, num_slots=9, empty_slots="visible"),
        randomizer,
        delta=1e-6,
        bounds="fast",
    )
    exact = cj.account(cj.Shuffle(num_clients=1), randomizer, delta=1e-6, view="local", bounds="fast")
    assert (alone.lower, alone.epsilon) == (exact.lower, exact.epsilon)


# Averaged updates


@pytest.mark.parametrize("view", ["messages", "aggregate"])
def test_averaged_updates_are_subsampled_like_check_ins(view):
    """Plain: the local bound and a lower end of 0 before."""
    randomizer = cj.Gaussian(noise_multiplier=2.0)
    averaged = cj.AveragedUpdates(num_clients=1000, num_slots=10, check_in_prob=0.1)
    shuffled = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.1)
    g = cj.account(averaged, randomizer, delta=1e-6, view=view, bounds="fast")
    same = cj.account(shuffled, randomizer, delta=1e-6, bounds="fast")
    assert 0 < g.lower <= g.epsilon <= same.epsilon * (1 + 1e-9)
    local = cj.account(averaged, randomizer, delta=1e-6, view="local", bounds="fast")
    assert g.epsilon < 0.8 * local.epsilon
