"""The bracket of a whole run: the issue's figures, the references, monotonicity, right limits, bad input."""

import math

import numpy as np
import pytest
from oracles import composition, pairs
from oracles import gaussian as gaussian_oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.interface import AsymmetricBound, minimum
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture
from checkin_jax.accounting.composition import compose


def run(n, rate, rounds=1, drop=0.0):
    return cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds, drop_out_prob=drop)


class Falling:
    """A bound that falls from `top` at this rate, and its evaluations."""

    largest_loss, witnesses = 10.0, ()

    def __init__(self, top, rate):
        self.name, self.top, self.rate, self.times = f"{top} at {rate}", top, rate, 0

    def upper(self, loss):
        self.times += 1
        return self.top * np.exp(-self.rate * np.asarray(loss))


@pytest.mark.parametrize("delta", [0.15, 0.1, 1e-3, 1e-9])
def test_bounds_that_cross_later_are_not_evaluated_again(delta):
    """The upper end of one unit is that of the smallest bound, bit for bit; others are left after a few grids."""
    bounds = [Falling(0.5, 1.0), Falling(1.0, 3.0), Falling(0.2, 0.1), Falling(1.0, 30.0)]
    alone = [compose.bracket([(one, 1)], delta).upper for one in bounds]
    times = [one.times for one in bounds]
    found = compose.bracket([(minimum(bounds), 1)], delta)
    assert found.upper == min(alone)
    evaluated = [one.times - before for one, before in zip(bounds, times)]
    assert max(evaluated) >= 5
    assert min(evaluated) <= 4


class Backward(AsymmetricBound):
    """A bound that is small in one direction, and another in the other."""

    name = "asymmetric"

    def __init__(self, first, second):
        self.sides = first, second

    def side(self, loss, backward):
        return self.sides[backward].upper(loss)


def test_the_directions_of_one_unit_may_have_different_smallest_bounds():
    low, high = Falling(0.5, 3.0), Falling(0.5, 0.5)
    both = minimum([Backward(low, high), Backward(high, low), Falling(0.9, 2.9)])
    assert compose.bracket([(both, 1)], 0.01).upper == compose.bracket([(low, 1)], 0.01).upper


def test_a_mixture_stops_where_its_first_parts_are_above_another_bound():
    losses, rare, small = np.linspace(0.0, 0.9, 10), Falling(0.5, 1.0), Falling(0.1, 3.0)
    mixture = PublicMixture(((0.5, Falling(0.5, 1.0)), (0.5, rare)))
    assert not minimum([mixture, small]).asymmetric
    assert (minimum([mixture, small]).upper(losses) == small.upper(losses)).all()
    assert rare.times == 0
    large = Falling(0.9, 1.0)
    assert (minimum([mixture, large]).upper(losses) == mixture.upper(losses)).all()


def test_the_headline_setting():
    """n=60000, rate .1, eps0=2, T=6800: the pair's own value is 1.4422 and the witness's 1.3567 (oracles)."""
    g = cj.account(run(60_000, 0.1, 6_800), cj.PureLDP(epsilon0=2.0), delta=1e-6, bounds="fast")
    assert 1.34 < g.lower <= 1.3568
    assert 1.4421 <= g.epsilon < 1.46
    assert g.epsilon <= 1.4422 * 1.002, "numerical slack of the upper end above 0.2%"
    assert g.epsilon / g.lower <= 1.08
    assert (g.validity, g.neighboring_relation, g.view) == ("certified", "replace-one", "messages")


@pytest.mark.parametrize(
    ("view", "limit", "reference"), [("aggregate", 0.00052, 0.000482), ("messages", 0.05, 0.0485)]
)
def test_the_second_gaussian_setting(view, limit, reference):
    randomizer = cj.Gaussian.from_local(epsilon0=8.0, delta0=1e7**-1.5)
    g = cj.account(run(10**7, 1e-4, 2000), randomizer, delta=1e-7, view=view, bounds="fast")
    assert reference <= g.epsilon <= limit
    assert g.method.endswith("PLD")


@pytest.mark.thorough
def test_tight_counts_the_shuffling_of_gaussian_messages():
    """THE setting for which 0.67 was published: T* proves about 0.001."""
    noise = cj.Gaussian(noise_multiplier=1.70834)
    loose = cj.account(run(10**7, 1e-4, 2000), noise, delta=1e-7, bounds="fast")
    g = cj.account(run(10**7, 1e-4, 2000), noise, delta=1e-7, bounds="best")
    assert "gaussian-cover" in g.method
    assert 0.000725 * 0.99 < g.lower <= 0.000725 * 1.005
    assert g.lower < g.epsilon <= 0.000992 * 1.01
    assert g.epsilon < loose.epsilon / 40
    assert any("subsampling counts no gain" in warning for warning in loose.warnings)


@pytest.mark.thorough
def test_averaged_gaussian_updates_take_t_star_when_somebody_may_be_absent():
    noise = cj.Gaussian(noise_multiplier=3.0)
    averaged = cj.AveragedUpdates(num_clients=10_000, num_slots=10, check_in_prob=0.5)
    g = cj.account(averaged, noise, delta=1e-5, bounds="best")
    same = cj.account(run(10_000, 0.5), noise, delta=1e-5, bounds="profile")
    assert g.epsilon == same.epsilon
    # T** needs messages that do not depend on one another, as those of later slots may.
    assert cj.account(run(10_000, 0.5), noise, delta=1e-5).epsilon < 0.9 * g.epsilon
    seen_less = cj.account(averaged, noise, delta=1e-5, view="aggregate", bounds="best")
    # Loads are published: the sum of all messages is known in either view.
    assert 0.0 < seen_less.lower <= seen_less.epsilon <= g.epsilon
    everybody = cj.AveragedUpdates(num_clients=10_000, num_slots=10)
    shown = cj.account(everybody, noise, delta=1e-5, bounds="fast")
    assert shown.method.startswith("everybody")
    assert (
        0
        < shown.lower
        <= shown.epsilon
        < cj.account(everybody, noise, delta=1e-5, view="local", bounds="fast").epsilon
    )
    summed = cj.account(everybody, noise, delta=1e-5, view="aggregate", bounds="fast")
    assert "subsampling (noise of the sum)" in summed.method
    assert (
        summed.epsilon < 0.2 * cj.account(everybody, noise, delta=1e-5, view="local", bounds="fast").epsilon
    )


@pytest.mark.parametrize("empty_slots", ["dummy", "visible"])
def test_gaussian_messages_in_slots_gain_by_being_used_rarely(empty_slots):
    """n = 10 m: at most one client in ten is used; R1 is subsampling at that rate."""
    noise = cj.Gaussian(noise_multiplier=2.0)
    window = cj.FixedWindow(num_clients=1_000, num_slots=100, empty_slots=empty_slots)
    g = cj.account(window, noise, delta=1e-6, bounds="best")
    assert g.method.startswith("profile")
    assert any(theorem.startswith("subsampling:") for theorem in g.theorems)
    c = (math.exp(g.epsilon) - 1.0) * 10.0
    # No worse than R1, whose delta at this epsilon is no smaller.
    assert 0.1 * gaussian_oracle.delta_g(1.0, math.log1p(c)) >= 1e-6 * (1 - 1e-6)
    loose = cj.account(window, noise, delta=1e-6, bounds="fast")
    assert loose.method.startswith("subsampling, ")
    assert g.epsilon < loose.epsilon / 3
    assert loose.epsilon < cj.account(window, noise, delta=1e-6, view="local", bounds="fast").epsilon / 2
    # Where no quick bound applies, the words do not say that none does.
    window = cj.FixedWindow(num_clients=300, num_slots=200)
    quick = cj.account(window, cj.ApproximateLDP(epsilon0=1.0, delta0=1e-8), delta=1e-5, bounds="fast")
    assert quick.method.startswith("local-view bound (no bound that was tried counts a gain)")
    assert any("only subsampling" in warning for warning in loose.warnings)
    assert g.lower > 0


@pytest.mark.parametrize(
    ("n", "epsilon0", "exact"),
    [(10**3, 1.0, 0.148671), (10**4, 2.0, 0.114400), (10**6, 2.0, 0.0095172), (10**8, 0.5, 9.65342e-5)],
)
def test_single_shuffles_against_the_exact_pair(n, epsilon0, exact):
    """Reference values to six digits, obtained by summing the pair with other code."""
    g = cj.account(run(n, 1.0), cj.PureLDP(epsilon0=epsilon0), delta=1e-6, bounds="fast")
    assert exact * (1 - 4e-6) <= g.epsilon <= exact * 1.001
    assert g.lower <= exact


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"), [(1, 0.5, 1.0), (3, 0.3, 2.0), (20, 0.5, 1.0), (60, 0.4, 0.5)]
)
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.thorough(but=5)
def test_small_runs_against_exact_composition(n, rate, epsilon0, rounds):
    """The pairs enumerated in full and convolved atom by atom lie inside the bracket."""
    p, deltas = math.exp(epsilon0), (1e-2, 1e-5, 1e-9)
    found = [
        cj.account(run(n, rate, rounds), cj.PureLDP(epsilon0=epsilon0), delta=delta, bounds="fast")
        for delta in deltas
    ]
    law = composition.loss_law(pairs.enumerate_pair(pairs.t1_labels(p, rate), n))
    if n > 3 and rounds > (1 if n > 20 else 2):  # too many atoms: the oracle's grid
        low = composition.compose_on_grid(law, rounds, 1e-4)
        assert all(g.epsilon >= low.epsilon(delta) - 1e-12 for g, delta in zip(found, deltas))
        return
    upper = composition.compose_exactly(law, rounds)
    binary = pairs.enumerate_pair(pairs.binary_rr_labels(p, rate), n)
    witnesses = [
        composition.compose_exactly(composition.loss_law(pair), rounds)
        for pair in (pairs.enumerate_pair(pairs.krr3_labels(p, rate), n), binary, binary.reversed())
    ]
    for g, delta in zip(found, deltas):
        lower = max(each.epsilon(delta) for each in witnesses)
        assert g.epsilon >= upper.epsilon(delta) * (1 - 1e-11)
        assert g.lower <= max(lower, 0.0) * (1 + 1e-11)
        assert g.epsilon <= upper.epsilon(delta) * 1.03 + 1e-12


def test_a_sum_to_which_fewer_contribute_has_less_noise():
    """Why a statement about sums needs the rate itself: what is promised at rate .1 is not true at .001."""
    noisy = cj.Gaussian(noise_multiplier=1.0)
    often, seldom = (
        cj.account(
            cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=rate), noisy, delta=1e-6, view="aggregate"
        )
        for rate in (0.1, 0.001)
    )
    assert 7.0 * often.epsilon < seldom.lower
    assert any("exactly the stated probability" in text for text in often.assumptions)
    messages = cj.account(often.protocol, noisy, delta=1e-6, bounds="subsampling")
    assert not any("exactly the stated probability" in text for text in messages.assumptions)
    averaged = cj.AveragedUpdates(num_clients=1_000, num_slots=10)
    found = cj.account(averaged, noisy, delta=1e-6, view="aggregate", bounds="subsampling")
    assert any("exactly the stated probability" in text for text in found.assumptions)


def test_a_message_that_repeats_another_of_the_same_sum_tells_more():
    """Why a statement about sums needs messages that do not depend on each other: one adds the other to its own noise.

    Of two messages 2 (x + noise) + noise is seen: mu is 2/sqrt(5) times that of one, in place of 1/sqrt(2).
    """
    mu, delta = 0.5, 1e-6
    pair, noisy = cj.ShuffledCheckIn(num_clients=2, check_in_prob=1.0), cj.Gaussian(noise_multiplier=2.0 / mu)
    repeated = cj.Gaussian(noise_multiplier=math.sqrt(5.0) / mu)
    alone = cj.ShuffledCheckIn(num_clients=1, check_in_prob=1.0)
    found = cj.account(pair, noisy, delta=delta, view="aggregate")
    assert cj.account(alone, repeated, delta=delta).lower > 1.2 * found.epsilon
    text = "no client's message depends on another message of the same round"
    assert text in found.assumptions
    many = cj.ShuffledCheckIn(num_clients=10**5, check_in_prob=0.1)
    assert text not in cj.account(many, noisy, delta=delta, bounds="subsampling").assumptions
    averaged = cj.AveragedUpdates(num_clients=50, num_slots=10, check_in_prob=0.5)
    for protocol, randomizer, bound in [
        (averaged, noisy, "profile"),
        (averaged, noisy, "subsampling"),
        (many, cj.Laplace(epsilon0=1.0), "subsampling"),
    ]:
        assert (
            text in cj.account(protocol, randomizer, delta=delta, view="aggregate", bounds=bound).assumptions
        )


def test_drop_out_counts_through_the_effective_rate():
    dropped = cj.account(run(1000, 0.5, 10, drop=0.8), cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="fast")
    plain = cj.account(run(1000, 0.1, 10), cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="fast")
    assert dropped.epsilon == pytest.approx(plain.epsilon, rel=1e-12)


@pytest.mark.parametrize("view", ["messages", "aggregate", "local"])
def test_right_limits(view):
    assert (
        cj.account(run(10, 0.5, 5), cj.PureLDP(epsilon0=0.0), delta=1e-9, view=view, bounds="fast").epsilon
        == 0.0
    )
    assert (
        cj.account(run(10, 0.5, 5), cj.PureLDP(epsilon0=3.0), delta=1.0, view=view, bounds="fast").epsilon
        == 0.0
    )
    alone = cj.account(run(1, 1.0), cj.PureLDP(epsilon0=1.5), delta=1e-300, view=view, bounds="fast")
    assert alone.epsilon == pytest.approx(1.5, rel=1e-6)
    assert alone.lower == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("view", ["messages", "aggregate", "local"])
@pytest.mark.parametrize(
    ("protocol", "coins"),
    [
        (run(1000, 0.1), True),
        (run(1000, 1.0), False),
        (cj.ShuffledCheckIn(num_clients=2, check_in_prob=cj.Rates([0.1, 1.0])), True),
        (cj.Shuffle(num_clients=1000), False),
        (cj.FixedWindow(num_clients=1000, num_slots=9, check_in_prob=0.1), True),
        (cj.FixedWindow(num_clients=1000, num_slots=9), False),
        (cj.AveragedUpdates(num_clients=1000, num_slots=9, check_in_prob=0.1), True),
        (cj.SlidingWindow(num_clients=1000, window=9), False),
    ],
)
def test_the_statement_assumes_fresh_choices(protocol, coins, view):
    """Without them composition proves nothing: a client that keeps its coin sends in all rounds or in none."""
    text = " ".join(protocol.assumed(view))
    assert ("fresh coin, independent of the other clients and of everything that persists" in text) == coins
    assert "keep no state of their own between rounds" in text
    if not isinstance(protocol, cj.ShuffledCheckIn | cj.Shuffle) and view != "local":
        assert "slots and of the other clients, and nobody learns which" in text


def test_the_statement_names_everything_that_matters():
    g = cj.account(run(1000, 0.1, 50), cj.Gaussian(noise_multiplier=3.0), delta=1e-3, bounds="fast")
    text = str(g)
    for part in (
        "replace-one",
        "certified",
        "messages",
        "G1",
        "same check-in rate",
        "shuffler",
        "delta = 0.001",
    ):
        assert part in text
    assert any("1/num_clients" in w for w in g.warnings)
    everything = cj.account(run(1000, 0.1), cj.PureLDP(epsilon0=-0.0), delta=1.0)
    assert any("1/num_clients" in w for w in everything.warnings)
    assert "randomizer 0-LDP" in str(everything)
    data = g.as_dict()
    assert data["protocol"]["kind"] == "ShuffledCheckIn"
    assert data["epsilon"] == g.epsilon
