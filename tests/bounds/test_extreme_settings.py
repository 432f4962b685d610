"""Where grids are coarse: `best` is no larger than one theorem by itself, nor `account` than `epsilon_by_rdp`."""

import contextlib

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import random_check_ins
from scipy.special import log_ndtr, logsumexp

import checkin_jax as cj
from checkin_jax.accounting.bounds import table
from checkin_jax.accounting.bounds.select import check_randomizer
from checkin_jax.numerics.allocation_losses import EqualTerms, Excess

# A run, messages, delta: settings at which the least of all bounds on one grid is above one of them.
SETTINGS = {
    "delta near the end of float64": (
        cj.ShuffledCheckIn(num_clients=23, check_in_prob=0.002385876776153965, drop_out_prob=0.9),
        cj.Gaussian(noise_multiplier=7.047546635950871),
        3.529959937585756e-259,
    ),
    "the same in windows": (
        cj.FixedWindow(num_clients=8, num_slots=2, check_in_prob=0.999999999784062, num_epochs=112),
        cj.Gaussian(noise_multiplier=6.376612859888515),
        3.09e-277,
    ),
    "beyond the largest loss": (
        cj.AveragedUpdates(num_clients=12739, num_slots=1, check_in_prob=0.8407185222467378),
        cj.Gaussian(noise_multiplier=0.004406988664927479),
        1e-200,
    ),
    "hardly any loss": (
        cj.from_availability([8, 964], coin=0.9),
        cj.HadamardResponse(epsilon0=9.85e-6),
        1e-6,
    ),
    "less than delta": (
        cj.from_availability([8, 964], coin=0.5),
        cj.HadamardResponse(epsilon0=9.85e-6),
        1e-6,
    ),
}


def alone(run, randomizer, delta):
    """epsilon by each word that applies, by word."""
    found = {}
    for word in table.words():
        with contextlib.suppress(ValueError):
            found[word] = cj.account(run, randomizer, delta=delta, bounds=word).epsilon
    assert found
    return found


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.turns(3)
def test_best_is_the_smallest_of_all(name):
    run, randomizer, delta = SETTINGS[name]
    best = cj.account(run, randomizer, delta=delta)
    found = alone(run, randomizer, delta)
    assert best.lower <= best.epsilon <= min(found.values()), (best.method, found)
    # What it rests on is said.
    named = [word for word in best.method.replace(",", " ").split() if word in table.words()]
    assert all(any(theorem.startswith(f"{word}:") for theorem in best.theorems) for word in named)


@pytest.mark.parametrize("view", ["messages", "aggregate"])
@pytest.mark.parametrize("name", list(SETTINGS)[:3])
@pytest.mark.turns(3)
def test_account_is_never_above_moments(name, view):
    run, randomizer, delta = SETTINGS[name]
    best = cj.account(run, randomizer, delta=delta, view=view)
    assert best.epsilon <= cj.epsilon_by_rdp(run, randomizer, delta=delta, view=view)[0]


@pytest.mark.parametrize(
    ("n", "m", "prob", "noise", "delta"),
    [
        (8, 6, 3.920951023881947e-4, 41.94843177601436, 1.02e-47),
        (9, 6, 2.7060632830620834e-06, 67.22264702678844, 6.73e-65),
    ],
)
def test_rare_numbers_of_messages_count(n, m, prob, noise, delta):
    """All others at the other record: the sum of the messages that are shown leaks at most delta at epsilon."""
    run = cj.FixedWindow(num_clients=n, num_slots=m, check_in_prob=prob, empty_slots="visible")
    loss = cj.account(run, cj.Gaussian(noise_multiplier=noise), delta=delta).epsilon
    shown = np.arange(1.0, m + 1.0)
    law = np.array([float(mass) for mass in random_check_ins.occupancy(n, m, prob)])[1:]
    mu, there = 2.0 / (noise * np.sqrt(shown)), np.log1p(np.expm1(loss) * n / shown)
    ahead, back = log_ndtr(mu / 2 - there / mu), there + log_ndtr(-mu / 2 - there / mu)
    leaked = logsumexp(np.log(law * shown / n) + ahead + np.log(-np.expm1(back - ahead)))
    assert leaked <= np.log(delta) + ORACLE_ROUNDING


def test_epsilon_grows_with_rounds_beyond_the_largest_loss():
    """One message of a loss above 690 has a closed form, as several have."""
    loud = cj.Gaussian(noise_multiplier=0.01)
    for view in ("local", "messages"):
        found = [
            cj.account(
                cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.3, num_rounds=rounds),
                loud,
                delta=1e-6,
                view=view,
            )
            for rounds in (1, 2, 3)
        ]
        ends = np.array([(g.lower, g.epsilon) for g in found])
        assert np.isfinite(ends).all()
        assert (np.diff(ends[:, 1]) > 0).all()
        assert (ends[:, 0] <= ends[:, 1]).all()
    # delta_G(mu, epsilon) at rate 1, by hand: mu = 200, log delta_G ~ log Pr[N(mu/2, 1) > epsilon/mu].
    sent = cj.account(cj.Shuffle(num_clients=1), loud, delta=0.5, view="local")
    assert sent.epsilon == pytest.approx(0.5 * 200.0**2, rel=1e-2)
    assert sent.epsilon - sent.lower <= 1e-6 * sent.epsilon


def test_laws_that_do_not_fit_into_memory_are_refused():
    for mu in (2.8, 3.5, 4.0):
        excess = Excess((EqualTerms(100, mu, 1.0),), 40.0, True)
        with pytest.raises(ValueError, match=rf"mu={mu}.*expected a law of at most"):
            excess.at(np.array([1.0]))
    with pytest.raises(ValueError, match="weights nearer to each other"):
        Excess((EqualTerms(100, 2.0, 1.0), EqualTerms(100, 2.0, 1e-4)), 40.0, True).at(np.array([1.0]))
    assert np.isfinite(Excess((EqualTerms(100, 2.0, 1.0),), 40.0, True).at(np.array([1.0]))).all()


class TestMethod:
    """`method` names what gave the answer, and nothing else: alone it gives the same."""

    @pytest.mark.parametrize(
        ("run", "randomizer", "relation"),
        [
            (
                cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800),
                cj.PureLDP(epsilon0=2.0),
                "replace-one",
            ),
            (
                cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1),
                cj.PureLDP(epsilon0=2.0),
                "replace-one",
            ),
            (
                cj.FixedWindow(num_clients=1000, num_slots=1000, num_epochs=10),
                cj.PureLDP(epsilon0=1.0),
                "replace-one",
            ),
            (
                cj.FixedWindow(num_clients=1000, num_slots=1000, num_epochs=10),
                cj.Gaussian(noise_multiplier=1.0),
                "replace-one",
            ),
            (
                cj.FixedWindow(num_clients=1000, num_slots=1000),
                cj.Gaussian(noise_multiplier=1.0),
                "add-or-remove-one",
            ),
            (
                cj.SlidingWindow(num_clients=3000, window=1000, num_epochs=2),
                cj.Gaussian(noise_multiplier=1.0),
                "add-or-remove-one",
            ),
        ],
        ids=str,
    )
    def test_what_is_not_named_gave_nothing(self, run, randomizer, relation):
        how = {"delta": 1e-6, "neighboring_relation": relation}
        best = cj.account(run, randomizer, **how)
        named = [word for word in table.words() if word in best.method.replace(",", " ").split()]
        again = cj.account(run, randomizer, bounds=named, **how)
        assert again.epsilon == pytest.approx(best.epsilon, rel=1e-5)
        for word in named if len(named) > 1 else ():
            others = [each for each in named if each != word]
            assert cj.account(run, randomizer, bounds=others, **how).epsilon > best.epsilon * (1 + 1e-7)

    def test_the_hexagon_alone(self):
        """Where clones alone give 1.443 they are not named beside it."""
        run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
        best = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
        assert best.method == "hexagon, PLD"
        assert [theorem.split(":")[0] for theorem in best.theorems] == ["clones", "hexagon"]

    def test_of_several_runs_each(self):
        """Of what was before, too; a ledger says the same."""
        run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=100)
        noise = cj.Gaussian(noise_multiplier=2.0)
        both = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6, before=[(run, noise)])
        assert both.method == "hexagon; gaussian-cover, PLD"

    def test_where_one_message_by_itself_is_the_smallest(self):
        """Nothing is gained from who else is there, and no theorem is named that says less."""
        run = cj.FixedWindow(num_clients=60, num_slots=50, check_in_prob=0.4)
        best = cj.account(run, cj.Gaussian(noise_multiplier=0.05), delta=1e-6, bounds="fast")
        assert best.method.startswith("the Gaussian mechanism, sent at the check-in rate (exact)")


def test_likelihood_ratios_that_are_no_float64_are_refused():
    with pytest.raises(ValueError, match="the largest is e\\^inf"):
        cj.FiniteMechanism(probabilities=[[1e-320, 1.0], [1.0, 1e-320]])


def test_messages_that_hardly_ever_show_their_record_have_a_bracket():
    """Tilted masses below the least normal float64 do not overflow."""
    run = cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.1, num_rounds=3)
    rare, never = (
        cj.account(run, randomizer, delta=1e-6)
        for randomizer in (cj.ApproximateLDP(epsilon0=1.0, delta0=1e-300), cj.PureLDP(epsilon0=1.0))
    )
    assert 0.9 * never.lower < rare.lower <= rare.epsilon < 1.01 * never.epsilon


@pytest.mark.parametrize("values", [2, 3, 10])
def test_k_ary_responses_are_taken_at_every_epsilon0(values):
    """At an epsilon0 of 40 their profile rounded to more than 1, which is refused."""
    for epsilon0 in np.arange(20.0, 50.25, 0.25).tolist():
        check_randomizer(cj.KaryResponse(epsilon0=epsilon0, num_values=values))
