"""No view has more than a stronger adversary's, no rate more than a larger one; and what would be wrong instead."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from oracles import checkin_gaussian, exact_rounds, krr
from oracles import gaussian as oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.full_participation import AllCut
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalPureLDP
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.bracket import Bracket

pytestmark = pytest.mark.usefixtures("x64")
MASS = 40.0
CS = (1.0, 1.05, 1.3, 2.0, 5.0)


@pytest.mark.parametrize(
    ("protocol", "noise", "delta", "local"),
    [
        (
            cj.AveragedUpdates(num_clients=79941454972, num_slots=72623, check_in_prob=7.852705176670676e-09),
            0.19058250801207507,
            5.3e-171,
            340.3,
        ),
        (
            cj.ShuffledCheckIn(num_clients=249507484, check_in_prob=0.00028032053821847193, num_rounds=25141),
            1.3147527063229194,
            1.8e-282,
            107.5,
        ),
    ],
)
@pytest.mark.thorough
@pytest.mark.turns(2)
def test_t_star_is_finite_where_subsampling_is(protocol, noise, delta, local):
    """The last knot of T* stood for all larger losses: infinity at deltas below it (found by readers)."""
    found = cj.account(protocol, cj.Gaussian(noise_multiplier=noise), delta=delta, bounds="best")
    assert found.lower <= found.epsilon < local


def test_t_star_falls_on_where_its_knots_end():
    one = HiddenMessages(249507484, 0.00028, GaussianProfile(1.52), 678.0)
    far = np.array([30.0, 40.0, 60.0, 80.0])
    assert np.all(one.upper(far) <= one.subsampled(far * (1 - 0.03)) * (1 + 1e-6))
    assert np.all(one.upper(far) >= 0.00028 * 0.5 * one.subsampled(far) * (one.subsampled(far) < 1e-303))


RATES = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0]


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.thorough
def test_epsilon_grows_with_the_rate(tight):
    """0.7355 at .999, 2.145 at .9999 and 0.245 at 1 before."""
    noise = cj.Gaussian(noise_multiplier=4.0)
    found = [
        cj.account(
            cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=rate),
            noise,
            delta=1e-6,
            bounds="best" if tight else "fast",
        ).epsilon
        for rate in RATES
    ]
    if not tight:
        assert found[-1] == pytest.approx(0.24535, rel=1e-4)
    for smaller, larger in itertools.pairwise(found):
        assert smaller <= larger * (1 + 1e-6)
    if tight:
        assert found[3] < 0.03
        # E+.
        assert found[-1] < 0.0215


@pytest.mark.parametrize("seed", range(12))
def test_thinning_all_messages_is_checking_in_at_a_smaller_rate(seed):
    """What the minimum with G2 rests on, in exact enumeration: H_c does not fall with a common rate."""
    rng = np.random.default_rng(seed)
    channel = krr.random_extremal_channel(rng, 3, float(rng.choice([2.0, 5.0])))
    n = int(rng.integers(1, 4))
    values = [exact_rounds.worst(channel, [rate] * n, CS) for rate in (0.1, 0.4, 0.8, 1.0)]
    for smaller, larger in itertools.pairwise(values):
        assert (smaller <= larger * (1 + 1e-12) + 1e-15).all()


OTHERS = [(0.0, 1.0), (1.0, 1.0), (-1.0, 0.3)]


def nearly_all(clients, rate, mu, losses):
    """T* with G2 if all clients send, and G2 by itself."""
    everybody = AllCut(clients, LocalGaussian(1.0, mu), MASS)
    hidden = HiddenMessages(clients, rate, GaussianProfile(mu), MASS, everybody)
    return np.minimum(hidden.upper(losses), everybody.upper(losses))


@pytest.mark.parametrize("rate", [0.6, 0.95, 0.999])
@pytest.mark.parametrize("noise", [0.8, 3.0])
@pytest.mark.thorough(but=3)
def test_gaussian_messages_of_nearly_all_stay_below(noise, rate):
    ours = nearly_all(3, rate, 2.0 / noise, np.log(CS))
    for others in OTHERS:
        for data in ([*others, 1.0], [*others, -1.0]), ([*others, -1.0], [*others, 1.0]):
            exact = checkin_gaussian.messages_mechanism_hockey_stick(*data, rate, noise, CS, [0, 200, 50])
            assert np.all(ours >= np.array(exact) * (1.0 - 1e-9))


def test_all_clients_cut_at_no_cost_are_no_bound():
    """T1 at rate 1 and the eps0 where Gaussian laws are cut, without what is cut off, at a smaller rate."""
    rate, noise = 0.999, 0.5
    losses = np.array([0.0, 0.2, 0.6, 1.2, 2.0])
    wrong = Clones(Shuffled(2, 1.0), 1.0, MASS).upper(losses)
    truth = checkin_gaussian.messages_mechanism_hockey_stick(
        [-1.0, 1.0], [-1.0, -1.0], rate, noise, np.exp(losses).tolist(), [0, 4000, 600]
    )
    assert np.any(np.asarray(wrong) < 0.9 * np.array(truth))
    assert np.all(nearly_all(2, rate, 2 / noise, losses) >= truth)


def test_a_cap_is_said():
    """An end that the composer found too large is replaced, with the theorem's name; one below stays."""
    stronger = [(LocalGaussian(0.5, 0.3), 40)]
    best = compose.upper_end(stronger, 1e-6)
    capped = compose.capped(Bracket(0.1, math.inf, "PLD"), stronger, 1e-6)
    assert (capped.upper, capped.lower, capped.bound) == (best.upper, 0.1, stronger[0][0].name)
    below = Bracket(0.0, 0.9 * best.upper, "PLD")
    assert compose.capped(below, stronger, 1e-6) == below
    with pytest.raises(ArithmeticError, match="is above upper"):
        compose.capped(Bracket(2 * best.upper, math.inf, "PLD"), stronger, 1e-6)


def test_a_mixed_ledger_is_capped_too():
    accountant = cj.CheckInAccountant(bounds="fast")
    run = cj.ShuffledCheckIn(num_clients=1, check_in_prob=1e-6)
    for randomizer in (cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=5.0)):
        accountant.compose(cj.to_event(run, randomizer), 20)
    alone = [(LocalPureLDP(1e-6, 1.0), 20), (LocalGaussian(1e-6, 0.4), 20)]
    assert accountant.get_epsilon(1e-12) <= compose.upper_end(alone, 1e-12).upper


@pytest.mark.thorough
def test_one_client_is_its_own_messages():
    for view in ("messages", "aggregate"):
        run = cj.ShuffledCheckIn(num_clients=1, check_in_prob=1.0, num_rounds=9)
        found = cj.account(run, cj.Gaussian(noise_multiplier=3.0), delta=1e-9, view=view, bounds="fast")
        assert oracle.delta_g(2.0, found.epsilon) <= 1e-9
        assert found.epsilon == pytest.approx(
            cj.account(
                run, cj.Gaussian(noise_multiplier=3.0), delta=1e-9, view="local", bounds="fast"
            ).epsilon,
            rel=1e-9,
        )


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("rate", [0.3, 0.7, 1.0])
@pytest.mark.thorough(but=1)
def test_averages_are_not_told_apart_as_messages_are(rate, tight):
    """The lower end came from the messages, which a view of averages does not show: 4.05 above 0.243."""
    run = cj.AveragedUpdates(num_clients=200, num_slots=2, check_in_prob=rate)
    noise = cj.Gaussian(noise_multiplier=1.0)
    averages = cj.account(run, noise, delta=1e-4, view="aggregate", bounds="best" if tight else "fast")
    assert "all others at one of the two records" not in averages.lower_method
    # One sum of everything, a post-processing of the averages and loads, says no more than G4.
    one_slot = dataclasses.replace(run, num_slots=1)
    loosest = cj.account(one_slot, noise, delta=1e-4, view="aggregate", bounds="best" if tight else "fast")
    assert 0 < averages.lower <= loosest.epsilon * (1 + 1e-6)
    assert averages.lower <= averages.epsilon
