"""T1 from above and L1 from below against brute force over real data sets and full enumeration, one-sided."""

import math

import mpmath as mp
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from hypothesis import given
from hypothesis import strategies as st
from oracles import exact_rounds, krr, large, pairs

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones, Mixture
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, largest_loss
from checkin_jax.kernels import binomial, clones, host
from checkin_jax.kernels.execution.backend import quietly

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0


def profile(n, rate, epsilon0, losses):
    return np.asarray(Clones(Shuffled(n, rate), epsilon0, MASS).upper(np.asarray(losses)))


def lines(n, rate, epsilon0, losses):
    """The lower bound's lines: (P(A) - Q(A), Q(A)) for each loss."""
    ternary = Clones(Shuffled(n, rate), epsilon0, MASS).ternary()
    return tuple(np.asarray(v) for v in ternary.lower(np.asarray(losses))[0])


def grid(epsilon0):
    return epsilon0 * np.array([0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 0.99])


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
def test_t1_is_above_brute_force_over_every_data_set(rate, epsilon0):
    """k-RR with k = 2..4 on all data sets of n <= 5 clients: never below, and attained."""
    losses = grid(epsilon0)
    channels = [krr.krr_channel(k, math.exp(epsilon0)) for k in (2, 3, 4)]
    for n in range(1, 6):
        ours = profile(n, rate, epsilon0, losses)
        truth = np.max([exact_rounds.worst(c, [rate] * n, np.exp(losses)) for c in channels], axis=0)
        assert (ours >= truth * (1 - ORACLE_ROUNDING)).all()
        assert (truth / ours).max() >= 1 - 1e-7  # the profile carries 1e-8 for rounding


@given(st.integers(0, 10**6))
def test_t1_is_above_random_channels(seed):
    rng = np.random.default_rng(seed)
    epsilon0, n = float(rng.uniform(0.1, 3)), int(rng.integers(1, 5))
    rate, k = float(rng.choice([0.05, 0.3, 0.7, 1.0])), int(rng.integers(2, 4))
    channel = krr.random_extremal_channel(rng, k, math.exp(epsilon0))
    losses = grid(epsilon0)
    truth = exact_rounds.worst(channel, [rate] * n, np.exp(losses))
    assert (profile(n, rate, epsilon0, losses) >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all()


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("epsilon0", [0.5, 2.0, 8.0])
def test_l1_equals_brute_force_of_three_ary_response(rate, epsilon0):
    """All other clients at a third record: our lower line at its own c is that witness's hockey-stick."""
    channel = np.array(krr.krr_channel(3, math.exp(epsilon0)))
    losses = grid(epsilon0)[1:]
    for n in range(1, 6):
        laws = [exact_rounds.histogram([channel[x], *[channel[2]] * (n - 1)], [rate] * n) for x in (0, 1)]
        truth = exact_rounds.leak(*laws, np.exp(losses))
        difference, far = lines(n, rate, epsilon0, losses)
        ours = difference - np.expm1(losses) * far
        assert (ours <= truth * (1 + ORACLE_ROUNDING)).all()
        # 1e-8 of rounding in each of two masses, whose difference this is.
        np.testing.assert_allclose(ours, truth, atol=3e-8 * difference.max())


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"),
    [
        (1, 0.5, 1.0), (2, 1.0, 1.0), (3, 0.5, 45.0), (20, 0.5, 20.0), (48, 0.4, 1.0), (49, 0.4, 1.0),
        (60, 0.5, 0.5), (60, 1.0, 2.0), (100, 0.5, 4.0), (120, 0.9, 1.0), (100, 0.02, 8.0), (120, 0.7, 1e-3),
    ],
)  # fmt: skip
def test_both_ends_against_full_enumeration(n, rate, epsilon0):
    losses = np.unique(np.concatenate([grid(epsilon0), grid(epsilon0) * 0.05, grid(epsilon0) * 0.3]))
    p = math.exp(epsilon0)
    upper = pairs.profile(pairs.enumerate_pair(pairs.t1_labels(p, rate), n), np.exp(losses))
    witness = pairs.enumerate_pair(pairs.krr3_labels(p, rate), n)
    lower = pairs.profile(witness, np.exp(losses))
    # Full enumeration itself rounds at 1e-15 absolute.
    assert (profile(n, rate, epsilon0, losses) >= upper * (1 - ORACLE_ROUNDING) - 1e-15).all()
    difference, far = lines(n, rate, epsilon0, losses[1:])
    # Each line lies below the witness's profile everywhere, not only where it touches.
    everywhere = difference[:, None] - np.expm1(losses)[None, :] * far[:, None]
    assert (everywhere <= lower[None, :] * (1 + ORACLE_ROUNDING) + 1e-15).all()
    # The spread of the absent costs little in the bulk and more in the tails, at such small n.
    visible = upper > 0.2 * upper[0]
    assert (profile(n, rate, epsilon0, losses)[visible] <= upper[visible] * 1.02).all()


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"), [(2000, 0.5, 1.0), (60_000, 0.1, 2.0), (60_000, 0.1, 0.25)]
)
def test_slack_at_moderate_n_is_below_0_2_percent_in_the_bulk(n, rate, epsilon0):
    p = math.exp(epsilon0)
    deviation = 2 * math.tanh(epsilon0 / 2) * math.sqrt(rate * 2 / (p + 1) / n) * (p + 1) / 2
    losses = deviation * np.array([0.0, 0.3, 1.0])
    exact = large.large_profile(pairs.t1_labels(p, rate), n, np.exp(losses))
    ours = profile(n, rate, epsilon0, losses)
    assert (ours >= exact * (1 - ORACLE_ROUNDING)).all()
    assert (ours <= exact * 1.002).all()


@pytest.mark.thorough
def test_strided_tails_are_no_less_sound_than_exact_ones():
    n, rate, epsilon0 = 100, 0.6, 1.5
    losses = grid(epsilon0) * 0.3
    law = clones.upper_law(np.float64(n), np.float64(rate), np.float64(epsilon0))  # one part
    mix = clones.buckets_upper(law, np.float64(MASS), 64, (2.2, 4.5))
    exact = pairs.profile(pairs.enumerate_pair(pairs.t1_labels(math.exp(epsilon0), rate), n), np.exp(losses))
    for plan in ((64, True), (16, False), (64, False)):
        tables = quietly(binomial.tabulate)(mix.number - 1.0, None, np.float64(MASS), *plan, False)
        ours = clones.profile_upper(mix, tables, losses, np.float64(epsilon0), plan[1])
        assert (np.asarray(ours) >= exact * (1 - ORACLE_ROUNDING)).all()


@pytest.mark.parametrize("used", [1e-300, 1e-17, 1e-9, 0.3, 1.0])
@pytest.mark.parametrize("epsilon0", [0.01, 1.0, 50.0])
def test_the_largest_loss_of_a_client_that_is_hardly_ever_used(epsilon0, used):
    with mp.workdps(50):
        exact = mp.log1p(mp.mpf(used) * mp.expm1(mp.mpf(epsilon0)))
        assert 0 <= largest_loss(epsilon0, used) / exact - 1 <= 3e-15


def test_the_pair_without_the_visible_count_is_not_a_bound():
    """Hiding how many messages arrived breaks it, by brute force and against T1."""
    n, rate, epsilon0, loss = 5, 0.9, math.log(50.0), math.log(35.3)
    (truth,) = exact_rounds.worst(krr.krr_channel(2, 50.0), [rate] * n, [math.exp(loss)])
    trap = pairs.profile(pairs.enumerate_pair(pairs.trap_labels(50.0, rate), n), [math.exp(loss)])[0]
    assert truth > 8 * trap
    assert profile(n, rate, epsilon0, [loss])[0] >= truth * (1 - ORACLE_ROUNDING)


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"), [(1, 0.5, 1.0), (5, 0.3, 2.0), (40, 0.5, 3.0), (120, 0.5, 2.0)]
)
def test_rdp_is_above_the_pair_at_real_orders(n, rate, epsilon0):
    orders = [1.1, 1.5, 2.0, 5.5, 20.0]
    exact = pairs.rdp(pairs.enumerate_pair(pairs.t1_labels(math.exp(epsilon0), rate), n), orders)
    run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate)
    ours = cj.rdp(run, cj.PureLDP(epsilon0=epsilon0), orders)
    assert (ours >= exact * (1 - 1e-9)).all()  # the oracle's moments are one plus small numbers
    assert (ours[:3] <= exact[:3] * 1.004).all()


def test_rdp_keeps_its_digits_at_large_n():
    orders = [1.5, 2.0, 8.0, 32.0]
    exact = np.log1p(large.large_renyi_excess(pairs.t1_labels(math.exp(2.0), 0.1), 60_000, orders))
    ours = cj.rdp(cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1), cj.PureLDP(epsilon0=2.0), orders)
    ratio = ours * (np.array(orders) - 1) / exact
    assert (ratio >= 1 - 1e-11).all()
    assert (ratio <= 1.001).all()


def test_labels_kept_have_mass_and_none_is_missed():
    """Laws of occupied slots have no parts of mass zero, nor do the tables; a part left out is missed."""
    one = Clones(Occupied(79_524, 8_301, 0.77), 1.3, MASS)
    values, used, masses = (np.asarray(part) for part in one.cover._shown(MASS, True))
    assert (masses > 0.0).all()
    mix, tables, _ = one.mixture._above
    assert (np.asarray(mix.weight) > 0.0).any(axis=1).all()
    assert tables.log_pmf.shape[0] == mix.number.size <= masses.size * 64
    law = clones.slots_law(values, used, masses, host(1.3), True)
    losses = np.linspace(1e-4, 0.02, 40)
    again = Mixture(law, 1.3, MASS).upper(losses)
    np.testing.assert_allclose(one.upper(losses), again, rtol=1e-13)
    fewer = clones.MixtureLaw(*(np.delete(np.asarray(part), masses.argmax()) for part in law))
    fewer = Mixture(fewer, 1.3, MASS).upper(losses)
    assert (fewer < again * (1.0 - 1e-6)).any()
