"""Unequal check-in rates (docs/theory_rates.md) against the mechanism itself: all records of the others, both orders.

What the library computes is compared one-sidedly with brute force; candidates that look right and are not, and the
least witness known for each, must fail.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds, hexagon, krr
from oracles import unequal_rates as brute
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool, Others
from checkin_jax.accounting.bounds.unequal.pooled_clients import PooledClones
from checkin_jax.accounting.bounds.unequal.unequal_witness import unequal_labels
from checkin_jax.numerics.staged_clones import AnyMessage

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0
RATES = np.array([0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
MANY = pytest.mark.slow


def t1h(others, theta, rate, epsilon0, losses, known=True):
    rates, counts = np.asarray(others, float), np.ones(len(others))
    if known:
        pool = pool_cover.sum_of(pool_cover.weights(rates, theta), counts, MASS)
    else:
        pool = pool_cover.limited(float(rates.sum()) / theta, MASS)
    return np.asarray(PooledClones(ClientPool(rate, theta, pool), epsilon0, MASS).upper(np.asarray(losses)))


def fleets(rng, trials):
    """(epsilon0, channel, target's rate, others' rates, c's) at random, rates of all sizes."""
    for _ in range(trials):
        p = float(rng.choice([1.3, 2.0, 3.0, 7.0, 30.0]))
        records = int(rng.integers(2, 4))
        channel = brute.random_vertex(rng, records, p) if rng.random() < 0.7 else krr.krr_channel(records, p)
        number = int(rng.integers(1, 5 if records == 2 else 4))
        draw = rng.choice(RATES, number + 1) if rng.random() < 0.7 else rng.uniform(0.01, 1.0, number + 1)
        cs = np.unique(np.concatenate([[1.0], p ** rng.uniform(0.0, 1.0, 5)]))
        yield math.log(p), channel, float(draw[0]), draw[1:].tolist(), cs


def not_below(bound, truth):
    assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all(), (bound, truth)


@pytest.mark.parametrize("trials", [60, pytest.param(3000, marks=MANY)])
def test_t1h_is_above_every_mechanism_and_attained(trials):
    """Every theta is valid; the library's values are above the statement's, and those above the truth."""
    rng, closest = np.random.default_rng(7), 0.0
    for epsilon0, channel, rate, others, cs in fleets(rng, trials):
        truth = exact_rounds.worst(channel, [*others, rate], cs)
        for theta in {0.1, 0.5, 0.9, *(x for x in (rate, *others) if x < 1)}:
            exact = brute.t1h(others, theta, rate, math.exp(epsilon0), cs)
            not_below(exact, truth)
            not_below(t1h(others, theta, rate, epsilon0, np.log(cs)), exact)
            seen = exact > 1e-9
            closest = max([closest, *(truth[seen] / exact[seen])])
    assert closest > 0.99


def test_limits_alone_are_enough():
    """K1: nothing is known but that no rate exceeds theta, and the sum of the others' rates."""
    rng = np.random.default_rng(8)
    for epsilon0, channel, rate, others, cs in fleets(rng, 30):
        theta = max(rate, *others)
        if theta < 1:
            not_below(
                t1h(others, theta, rate, epsilon0, np.log(cs), known=False),
                exact_rounds.worst(channel, [*others, rate], cs),
            )


def test_the_others_of_one_rate_need_no_buckets():
    """n' is known: the profile is the statement's, up to the spread of the absent in buckets (none here)."""
    others, cs = [0.4] * 20, np.array([1.0, 1.3, 2.0])
    exact = brute.t1h(others, 0.4, 0.05, 3.0, cs)
    np.testing.assert_allclose(t1h(others, 0.4, 0.05, math.log(3.0), np.log(cs)), exact, rtol=3e-8)


# (epsilon0, target's rate, others' rates, c): the worst of random fleets, for binary or 3-ary randomized response.
FALSE = {
    "T1 at the largest rate": (lambda rate, others: max(rate, *others)),
    "T1 at the mean rate": (lambda rate, others: float(np.mean([rate, *others]))),
    "T1 at the target's rate": (lambda rate, others: rate),
}


def exceeded(candidate, trials=60, seed=3):
    """The largest truth / candidate over random fleets."""
    rng, top = np.random.default_rng(seed), 0.0
    for epsilon0, channel, rate, others, cs in fleets(rng, trials):
        bound = candidate(epsilon0, rate, others, cs)
        if bound is not None:
            truth = exact_rounds.worst(channel, [*others, rate], cs)
            seen = truth > 1e-9
            top = max([top, *(truth[seen] / np.maximum(bound[seen], 1e-300))])
    return top


@pytest.mark.parametrize("name", FALSE)
def test_t1_at_one_rate_for_all_is_false(name):
    def candidate(epsilon0, rate, others, cs):
        return np.asarray(
            Clones(Shuffled(len(others) + 1, FALSE[name](rate, others)), epsilon0, MASS).upper(np.log(cs))
        )

    assert exceeded(candidate) > 1.1


def test_the_mean_of_the_pool_is_false():
    """n' replaced by its mean, rounded up; and by the number of others (nobody is thinned)."""

    def at(number):
        def candidate(epsilon0, rate, others, cs):
            theta = 0.5
            size = number(brute.members(others, theta))
            return np.array([brute.pool_profile(size, theta, rate, math.exp(epsilon0), c) for c in cs])

        return candidate

    assert exceeded(at(lambda weights: math.ceil(sum(weights))), 200) > 1.05
    assert exceeded(at(len)) > 1.5


def test_revealing_nothing_is_false():
    def candidate(epsilon0, rate, others, cs):
        return brute.nothing_revealed(others, rate, math.exp(epsilon0), cs)

    assert exceeded(candidate, 300) > 1.05


def test_enough_fast_others_are_not_enough():
    """There is no monotony in the others' rates: "at least n0 others with rate >= lo" is no bound."""
    p, rate, cs = 3.0, 0.1, np.array([1.5])
    claimed = t1h([0.3] * 4, 0.3, rate, math.log(p), np.log(cs))
    truth = exact_rounds.worst(krr.krr_channel(2, p), [*[1.0] * 4, rate], cs)
    assert truth[0] > 20 * claimed[0]
    leaks = [
        exact_rounds.worst(krr.krr_channel(2, p), [*[x] * 4, rate], cs)[0] for x in (0.05, 0.3, 0.5, 0.9)
    ]
    assert leaks[0] > leaks[1] < leaks[2] < leaks[3]


@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_witnesses_are_the_mechanism_with_all_others_at_one_record(epsilon0, rate):
    p, others = math.exp(epsilon0), [0.05, 0.3, 0.3, 0.8]
    losses = epsilon0 * np.array([0.01, 0.1, 0.3, 0.6, 0.9])
    everywhere = np.exp(epsilon0 * np.linspace(0, 1, 40))
    fleet = Others(np.array(others), np.ones(4))
    pool = pool_cover.sum_of(pool_cover.weights(fleet.rates, 0.8), fleet.counts, MASS)
    (binary,) = PooledClones(ClientPool(rate, 0.8, pool, fleet), epsilon0, MASS).witnesses
    (law,) = (
        each
        for each in cj.KaryResponse(epsilon0=epsilon0, num_values=3).label_laws
        if each.others is not None
    )
    for witness, channel, held, pair in (
        (unequal_labels(rate, fleet, MASS, law), krr.krr_channel(3, p), 2, (0, 1)),
        (binary, krr.krr_channel(2, p), 1, (0, 1)),
    ):
        laws = [exact_rounds.histogram([*[channel[held]] * 4, channel[x]], [*others, rate]) for x in pair]
        for side, (first, second) in enumerate((laws, laws[::-1])):
            difference, far = (np.asarray(v) for v in witness.lower(losses)[side])
            exact = exact_rounds.leak(first, second, everywhere)
            lines = difference[:, None] - (everywhere - 1)[None, :] * far[:, None]
            assert (lines <= exact * (1 + ORACLE_ROUNDING) + 1e-15).all()
            touched = difference - np.expm1(losses) * far
            truth = exact_rounds.leak(first, second, np.exp(losses))
            # Far out the witness is merged (Jensen), which such small fleets feel.
            np.testing.assert_allclose(touched[:1], truth[:1], rtol=0.02, atol=3e-8)


def test_counter_example_of_the_first_edition():
    """n = 4, target 1/2, others 1/100, p = 3, c = 5/2: T1 at 1/2 is 16.8 times too small, T1h 1.6% above."""
    cs, others = np.array([2.5]), [0.01] * 3
    truth = exact_rounds.worst(krr.krr_channel(2, 3.0), [*others, 0.5], cs)[0]
    assert truth == pytest.approx(0.055577, rel=1e-4)
    assert truth > 16.7 * np.asarray(Clones(Shuffled(4, 0.5), math.log(3.0), MASS).upper(np.log(cs)))[0]
    assert t1h(others, 0.01, 0.5, math.log(3.0), np.log(cs))[0] == pytest.approx(0.056450, rel=1e-4)
    assert t1h(others, 0.5, 0.5, math.log(3.0), np.log(cs))[0] == pytest.approx(0.060185, rel=1e-4)


@pytest.mark.parametrize("inverse_rho", [Fraction(1), Fraction(2), Fraction(6)])
@pytest.mark.parametrize("c", [Fraction(41, 40), Fraction(11, 10), Fraction(6, 5)])
def test_t1h_plus_is_above_the_hexagon_game_and_near_it(inverse_rho, c):
    """Staged domination against the game itself, its start given by how many of the pool are absent."""
    p, theta, size = Fraction(3), 0.5, 320
    # rho = (g / theta) (1 - theta) / (1 - g) = g / (1 - g) at theta = 1/2
    rate = float(1 / (1 + inverse_rho))
    n, beta = size + 1, rate / theta
    pool = pool_cover.certain(size)
    staged = StagedClones(ClientPool(rate, theta, pool), AnyMessage(math.log(3.0)), 28.0)
    assert staged.gains
    steps = 240
    width = max(90.0, float((c - 1) * n * inverse_rho))
    values = hexagon.lattice_game(p, c, -(c - 1) * n * inverse_rho, steps, width, per_step=inverse_rho)
    masses = binom.pmf(np.arange(steps + 1), n, theta)
    game = beta / n * float(masses[1:] @ values[1:])
    loss = np.array([math.log(c)])
    ours = float(staged.upper(loss)[0])
    assert ours >= game * (1 - 1e-9)
    # Chords between the losses that are evaluated cost 3% this far out.
    assert ours <= game * 1.05 + 1e-6
    # Far out T1h is smaller.
    assert (
        ours < float(PooledClones(ClientPool(rate, theta, pool), math.log(3.0), MASS).upper(loss)[0])
        or ours < 1e-6
    )


def test_t1h_plus_at_equal_rates_is_t1_plus():
    losses = np.array([0.0, 0.002, 0.01, 0.02])
    ours = StagedClones(ClientPool(0.1, 0.1, pool_cover.certain(9_999)), AnyMessage(2.0), MASS).upper(losses)
    theirs = StagedClones(Shuffled(10_000, 0.1), AnyMessage(2.0), MASS).upper(losses)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_t1h_plus_without_thinning_is_false():
    """A pool of all others at the largest rate: below what 3-ary randomized response leaks."""
    others, rate = Others(np.array([0.02, 0.3]), np.array([3000.0, 300.0])), 0.3
    pool = pool_cover.sum_of(pool_cover.weights(others.rates, 0.3), others.counts, MASS)
    law = PooledClones(ClientPool(rate, 0.3, pool, others), 2.0, MASS)
    losses = np.array([0.03, 0.06])
    difference, far = law.witnesses[0].lower(losses)[0]
    leaked = difference - np.expm1(losses) * far
    not_below(StagedClones(ClientPool(rate, 0.3, pool), AnyMessage(2.0), MASS).upper(losses), leaked)
    assert (
        StagedClones(ClientPool(rate, 0.3, pool_cover.certain(3300)), AnyMessage(2.0), MASS).upper(losses)
        < 0.9 * leaked
    ).any()
