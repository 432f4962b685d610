"""E*: Gaussian messages of everybody, from above, against what is seen of them (the theorem: tests/theory)."""

import math
from itertools import permutations

import numpy as np
import pytest
from oracles import spared as oracle
from scipy.special import ndtr

import checkin_jax as cj
from checkin_jax.accounting.bounds.full_participation import AllCut
from checkin_jax.accounting.bounds.interface import LocalGaussian
from checkin_jax.accounting.bounds.messages import left_out
from checkin_jax.accounting.bounds.profiles import GaussianProfile, MessageProfile

pytestmark = pytest.mark.usefixtures("x64")
MASS = math.log(1e6) + 17.0
LOSSES = np.geomspace(0.002, 0.06, 25)


@pytest.mark.thorough
def test_e_star_is_above_bits_of_the_messages_wherever_the_others_are():
    n, mu = 2500, 0.5
    value = left_out.LeftOut(n, GaussianProfile(mu), MASS).upper(LOSSES)
    for at_other in (0, n // 5, n // 2, n - 1):
        for edge in (-0.7, 0.0, 0.5):
            assert (value >= oracle.bits(n, mu, at_other, edge, LOSSES) * (1.0 - 1e-9) - 1e-14).all()
    four_times_as_many = left_out.LeftOut(4 * n, GaussianProfile(mu), MASS).upper(LOSSES)
    assert (four_times_as_many < oracle.bits(n, mu, n // 2, 0.0, LOSSES)).any()


def test_e_star_is_above_the_messages_among_others_at_one_record_and_near_them():
    n, mu = 10**4, 0.5
    value = left_out.LeftOut(n, GaussianProfile(mu), MASS).upper(LOSSES)
    (witness, *_) = AllCut(n, LocalGaussian(1.0, mu), MASS).witnesses
    below = np.max(
        [np.asarray(p) - np.expm1(LOSSES) * np.asarray(q) for p, q in witness.lower(LOSSES)], axis=0
    )
    assert (value >= below).all()
    # The same divergence at an epsilon that is less than 1.5 times as large.
    near = (LOSSES > 0.01) & (value > 1e-8)
    assert (value <= np.interp(LOSSES / 1.5, LOSSES, below))[near].all()


@pytest.mark.parametrize("plan", [(200, 20, 0), (0,), (598, 0), (60,)])
@pytest.mark.thorough(but=2)
def test_every_chain_is_above_the_one_message_that_hides_least(plan):
    """Whatever the plan, also one that spares hardly anybody or almost all."""
    n, mu, allowed = 600, 0.3, 18.0
    losses = np.geomspace(0.01, 0.5, 12)
    truth = np.maximum(oracle.bits(n, mu, 0, 0.0, losses), oracle.bits(n, mu, n - 1, 0.0, losses))
    links = tuple(left_out._Link(each, 2.0) for each in plan)
    value = left_out._Chain(n, GaussianProfile(mu), links, allowed).upper(losses)
    assert (value >= truth).all()
    assert (value <= np.asarray(LocalGaussian(1.0, mu).upper(losses)) * (1.0 + 1e-12)).all()


def test_a_chain_costs_what_its_spared_clients_tell():
    """k terms of N: D(1) D_r(N/k), against one message by itself, r = 0."""
    n, mu = 40, 0.3
    chain = left_out._Chain(n, GaussianProfile(mu), (left_out._Link(0, 2.0),), 16.0)
    kept = chain._sum.slots
    factor = (n - 1) / kept

    def alone(c: float) -> float:
        return float(ndtr(mu / 2 - math.log(c) / mu) - c * ndtr(-mu / 2 - math.log(c) / mu))

    assert factor > 1.0
    assert alone(1.0) * alone(factor) <= chain._cost <= alone(1.0) * alone(factor) * (1.0 + 1e-6)
    assert alone(factor) <= math.exp(-16.0) < alone((n - 1) / (kept + 1)) * 1.5


@pytest.mark.parametrize(("n", "mu"), [(1, 0.5), (10**9, 0.5), (2, 3.0), (3, 0.5), (10**12, 5.0), (10, 15.0)])
@pytest.mark.thorough(but=3)
def test_any_setting_gives_a_profile(n, mu):
    value = left_out.LeftOut(n, GaussianProfile(mu), MASS).upper(np.linspace(0.0, 5.0, 30))
    assert np.all(np.isfinite(value))
    assert np.all(np.diff(value) <= 1e-12)
    assert value[0] <= 1.0 + 1e-7


@pytest.mark.parametrize(("n", "mu"), [(3000, 0.5), (600, 0.3)])
def test_messages_that_depend_on_others_hide_less(n, mu):
    """Above the others; still above the best event, and far below one message by itself."""
    loss = np.geomspace(0.005, 0.5, 15)
    fixed, adaptive = (
        left_out.LeftOut(n, GaussianProfile(mu), MASS, each).upper(loss) for each in (False, True)
    )
    assert (adaptive >= fixed * (1.0 - 1e-9)).all()
    assert (adaptive >= oracle.bits(n, mu, n - 1, 0.0, loss)).all()
    alone = np.asarray(LocalGaussian(1.0, mu).upper(loss))
    assert (adaptive < 0.1 * alone)[loss > 0.02].all()


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_message_may_reveal_its_record(adaptive):
    """A profile that ends at 1e-9: nothing costs less, and the chain is not given up."""
    profile = MessageProfile(cj.ApproximateLDP(epsilon0=1.0, delta0=1e-9))
    value = left_out.LeftOut(10**5, profile, MASS, adaptive).upper(
        np.array([0.0, 0.01, 0.05, 0.3, 0.9, 30.0])
    )
    assert (value >= 1e-9).all()
    assert value[2] < 1e-6
    assert value[-1] < 1e-8


def test_a_nearer_sum_may_grow_and_is_then_not_used():
    """One term, exactly: (1 + s) D(c / (1 + s)), s = (1 - d)(c - 1), over d; a running minimum had been .28 for 1.6."""
    profile, distance, losses = GaussianProfile(0.5), 0.5, np.array([0.05, 0.5, 1.0, 2.0, 4.0])
    nearer = left_out._Nearer(1, distance, profile, 40.0)
    above = 1.0 + (1.0 - distance) * np.expm1(losses)
    exact = above * profile.delta(losses - np.log(above)) / distance
    kept = losses <= nearer.last
    assert kept.tolist() == [True, True, True, False, False]
    assert (nearer.upper(losses) >= exact)[kept].all()
    assert nearer.upper(losses)[-1] < 0.2 * exact[-1]


def test_the_oracle_forgets_to_the_shuffled_messages():
    """Slots and spared messages in random order are all clients' messages in random order."""
    rng = np.random.default_rng(3)
    channel = rng.dirichlet(np.ones(3), size=3)
    law = oracle.seen(channel, (0,), (1, 2), 1)
    whole = oracle.shuffled([channel[1], channel[0], channel[1], channel[2]])
    orders = [np.transpose(law, order) for order in permutations(range(4))]
    assert np.allclose(np.mean(orders, axis=0), whole)
