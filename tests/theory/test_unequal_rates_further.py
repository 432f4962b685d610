"""Sure clients (S, T1m), colluders (R3c) and sums of noise (G1h) against the mechanisms themselves."""

import math
from itertools import product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds, krr
from oracles import unequal_rates as brute
from scipy.stats import norm

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages.cover import UniformSlot
from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian
from checkin_jax.accounting.bounds.profiles import MessageProfile
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool, Others
from checkin_jax.accounting.bounds.unequal.pooled_clients import (
    AlwaysPresentOthers,
    HiddenWithColluders,
    PooledClones,
)
from checkin_jax.accounting.bounds.unequal.sampled_profile import UnequalGaussian

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0


def not_below(bound, truth):
    assert (np.asarray(bound) >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all(), (bound, truth)


@pytest.mark.parametrize("p", [1.3, 3.0, 20.0])
def test_s_and_t1m_are_above_every_mechanism(p):
    rng = np.random.default_rng(int(p))
    cs = p ** np.array([0.0, 0.05, 0.3, 0.7])
    for trial in range(12):
        channel = krr.krr_channel(2, p) if trial % 2 else brute.random_vertex(rng, 2, p)
        rate, theta = float(rng.choice([0.05, 0.3, 0.9, 1.0])), float(rng.choice([0.1, 0.5, 0.9]))
        pool, sure = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        truth = exact_rounds.worst(channel, [*[theta] * pool, *[1.0] * sure, rate], cs)
        losses = np.log(cs)
        not_below(
            AlwaysPresentOthers(
                ClientPool(rate, theta, pool_cover.certain(pool)), math.log(p), MASS, always_present=sure
            ).upper(losses),
            truth,
        )
        present = pool_cover.sum_of(np.array([theta, 1.0]), np.array([float(pool), float(sure)]), MASS)
        not_below(PooledClones(ClientPool(rate, 1.0, present), math.log(p), MASS).upper(losses), truth)


def test_t1m_without_the_spread_of_w_is_false():
    """W = 1, as if every position might hold a pool member just the same: some mechanism leaks more."""
    p, worst = 3.0, 0.0
    for theta, pool, sure, rate in product((0.1, 0.5), (1, 2), (1, 2, 3), (0.1, 0.5, 0.9)):
        others = [theta] * pool + [1.0] * sure
        cs = p ** np.array([0.3, 0.6, 0.8, 0.9])
        truth = exact_rounds.worst(krr.krr_channel(2, p), [*others, rate], cs)
        pmf = np.append(brute.counts_law([theta] * pool), 0.0)
        for c, leak in zip(cs, truth):
            claimed = rate * theta**pool * brute.psi(pool + 1 + sure, pool + 1 + sure, p, c)
            for k in range(1, pool + 1):
                here = (1 - rate) * pmf[k] + rate * pmf[k - 1]
                q, length = rate * pmf[k - 1] / here, k + sure
                jumps = [(q / length * value, prob) for value, prob in brute.t_star(p, c)]
                claimed += here * brute.plus_part((1 - q) * (1 - c), jumps, length)
            worst = max(worst, leak / max(claimed, 1e-300))
    assert worst > 1.05


def colluding_window(slots, used, colluding, p, c):
    """A window in which each of the first slots holds a colluder and others a dummy at x', binary response; P||Q.

    A colluder's message is known: seeing another one tells that the target was drawn, which happens half of the time.
    """
    each = used / slots
    shown = each / 2 * colluding * max(p - c, 0) / (p + 1)
    rest = slots - colluding
    # Otherwise: one of `rest` slots holds the target, or none does; all dummies are at x'.
    total = 1 - each / 2 * colluding
    for outputs in product((0, 1), repeat=rest):
        base = math.prod(1 / (p + 1) if y == 0 else p / (p + 1) for y in outputs)
        ratios = sum(p if y == 0 else 1 / p for y in outputs)
        # The target is alone with the dummy, which it replaces.
        first = base * (total - each * rest + each * ratios)
        second = base * total
        shown += max(first - c * second, 0.0)
    return shown


@pytest.mark.parametrize(("slots", "colluding"), [(1, 1), (2, 1), (4, 1), (4, 3), (4, 4)])
def test_r3c_is_above_a_window_with_colluders_and_t2_is_not(slots, colluding):
    p, used = 3.0, 0.4
    cs = np.array([1.0, 1.2, 1.6, 2.2, 2.9])
    truth = np.array([colluding_window(slots, used, colluding, p, c) for c in cs])
    losses = np.log(cs)
    profile = MessageProfile(cj.PureLDP(epsilon0=math.log(p)))
    not_below(HiddenWithColluders(slots, used, colluding, profile, MASS).upper(losses), truth)
    naive = np.asarray(Clones(UniformSlot(slots, used, used), math.log(p), MASS).upper(losses))
    assert truth[-1] > 1.5 * naive[-1]
    none = HiddenWithColluders(slots, used, 0, profile, MASS).upper(losses)
    np.testing.assert_allclose(none, naive, rtol=0.01, atol=1e-300)


def summed(records, rates, mu, grid):
    """Density of the sum of unit noise at each number of messages, [messages, grid]; weights are inside."""
    found = np.zeros((len(rates) + 1, grid.size))
    for came in product((0, 1), repeat=len(rates)):
        chance = math.prod(x if here else 1 - x for x, here in zip(rates, came))
        number = sum(came)
        if number and chance:
            centre = mu * sum(value for value, here in zip(records, came) if here)
            found[number] += chance * norm.pdf(grid, centre, math.sqrt(number))
    return found


@pytest.mark.parametrize("rate", [0.1, 0.6, 1.0])
def test_g1h_is_the_worst_case_of_the_sum(rate):
    others, mu = [0.05, 0.4, 1.0], 1.3
    grid = np.linspace(-14, 18, 200_001)
    cs = np.array([1.0, 1.3, 2.0, 4.0])
    fleet = Others(np.array(others), np.ones(3))
    one = UnequalGaussian(rate, fleet, mu, True, MASS)
    bound, worst = np.asarray(one.upper(np.log(cs))), np.zeros(4)
    for held in product((0.0, 0.5, 1.0), repeat=3):
        laws = [summed((*held, x), (*others, rate), mu, grid) for x in (0.0, 1.0)]
        for first, second in (laws, laws[::-1]):
            truth = np.array([np.maximum(first - c * second, 0).sum() * (grid[1] - grid[0]) for c in cs])
            # The quadrature is good to about 1e-7.
            assert (bound >= truth * (1 - 1e-6)).all()
            worst = np.maximum(worst, truth)
    np.testing.assert_allclose(worst, bound, rtol=1e-6)
    # And from below, all others at one record.
    first, second = (summed((0.0, 0.0, 0.0, x), (*others, rate), mu, grid) for x in (1.0, 0.0))
    losses = np.log(cs[1:])
    for side, pair in enumerate(((first, second), (second, first))):
        difference, far = (np.asarray(v) for v in one.witnesses[0].lower(losses)[side])
        truth = np.array([np.maximum(pair[0] - c * pair[1], 0).sum() * (grid[1] - grid[0]) for c in cs[1:]])
        ours = difference - np.expm1(losses) * far
        assert (ours <= truth * (1 + 1e-6)).all()
        np.testing.assert_allclose(ours, truth, rtol=1e-5)


def test_the_noise_of_a_common_rate_is_no_bound():
    """G1 with all others at the largest rate counts noise that is not there."""
    others, rate, mu = [0.02, 0.02, 0.02], 0.9, 1.0
    fleet = Others(np.array(others), np.ones(3))
    truth = np.asarray(UnequalGaussian(rate, fleet, mu, True, MASS).upper(np.array([1.0])))
    assert truth > 2 * np.asarray(ShuffledGaussian(4, rate, mu, True, MASS).upper(np.array([1.0])))


@pytest.mark.parametrize(("n", "rate"), [(40, 0.3), (20_000, 0.1)])
def test_g1h_at_equal_rates_is_g1(n, rate):
    losses = np.array([0.0, 1e-3, 0.01, 0.1, 0.3])
    ours = UnequalGaussian(rate, Others(np.array([rate]), np.array([n - 1.0])), 0.5, True, MASS).upper(losses)
    theirs = ShuffledGaussian(n, rate, 0.5, True, MASS).upper(losses)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-20)
