"""T1+ by staged domination against the game played out, brute force, L1 and T1; one-sided."""

import math
from fractions import Fraction as F

import jax
import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import exact_rounds, krr, large, pairs
from oracles import hexagon as oracle
from scipy.stats import binom, norm

from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.kernels import host
from checkin_jax.kernels.execution.backend import quietly
from checkin_jax.kernels.messages import equal_steps, likelihood_polytopes, staged_games
from checkin_jax.numerics import convex
from checkin_jax.numerics import staged_clones as host_half
from checkin_jax.numerics.staged_clones import AnyMessage

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0
KNOTS = 72  # as many as `profile` uses: one compilation


def profile(num_clients, rate, epsilon0, mass):
    """Knots of T1+ in shuffled check-in; None if there is no such bound."""
    return StagedClones(Shuffled(num_clients, rate), AnyMessage(epsilon0), mass)._profile


def at(num_clients, rate, epsilon0, c_minus_1):
    """T1+ at these c - 1, from the knots of its profile."""
    found = profile(num_clients, rate, epsilon0, MASS)
    assert found is not None
    return convex.chords(*found, np.log1p(np.asarray(c_minus_1, dtype=float)))


def deviation(num_clients, rate, epsilon0):
    """Standard deviation of the largest L1's loss."""
    p = math.exp(epsilon0)
    return math.sqrt(num_clients * rate * max(2 / (p + 2), 1 / p)) * (p - 1) / num_clients


# --- the game itself


@pytest.mark.parametrize("p", [F(10, 9), F(3, 2), F(2), F(7, 2), F(40)])
def test_the_five_extreme_laws_are_all_there_are(p):
    """Found by solving linear equations for every set of corners; ours are a table."""
    c = F(21, 20)
    epsilon0 = host(math.log(p))
    message = likelihood_polytopes.Message(epsilon0, host(1.0))
    displacement = np.asarray(likelihood_polytopes.HEXAGON.places(host(float(c - 1)), message))
    weights = np.asarray(likelihood_polytopes.HEXAGON.laws(message))
    corners = [*oracle.corners(p), (F(0), F(0))]
    exact = [float((z - c * y + c - 1) / (p - 1)) for z, y in corners]
    np.testing.assert_allclose(displacement, exact, rtol=1e-14, atol=1e-17)
    ours = {tuple(np.round(row, 12)) for row in weights[:-1]}
    theirs = {
        tuple(round(float(law.get(corner, 0)), 12) for corner in corners) for law in oracle.vertex_laws(p)
    }
    assert ours == theirs
    assert len(theirs) == 5
    t1 = [float(x) for x in (1 / (p + 1), 1 / (p + 1), 0, 0, 0, 0, (p - 1) / (p + 1))]
    np.testing.assert_allclose(weights[-1], t1, rtol=1e-14)


@pytest.mark.parametrize("p", [1.3, 2.0, 6.0])
def test_the_game_is_above_brute_force_and_below_t1(p):
    """Random extreme channels on all data sets of up to 3 clients; attained up to a few percent."""
    rng = np.random.default_rng(0)
    cs = [1.0 + (p - 1) * share for share in (0.0, 0.05, 0.3, 0.7)]
    channels = [krr.krr_channel(k, p) for k in (2, 3)]
    channels += [krr.random_extremal_channel(rng, 3, p) for _ in range(4)]
    for n in (1, 2, 3):
        game = np.array([oracle.exact_profile(n, 0.4, p, c) for c in cs])
        for channel in channels:
            assert (game >= exact_rounds.worst(channel, [0.4] * n, cs) * (1 - 1e-12)).all()
        t1 = pairs.profile(pairs.enumerate_pair(pairs.t1_labels(p, 0.4), n), cs)
        assert (game <= t1 * (1 + 1e-12)).all()


def test_the_lattice_oracle_plays_the_exact_game():
    p, c = F(2), F(11, 10)
    for steps in (1, 3, 5):
        values = oracle.lattice_game(p, c, F(-1, 5), steps, 20.0)
        exact = oracle.game_value(p, c, steps, F(-1, 5) + steps * (c - 1))
        assert values[steps] == pytest.approx(float(exact), rel=1e-13)


# --- the bound against the game


@pytest.mark.parametrize(
    ("p", "step"), [(F(3, 2), F(1, 120)), (F(2), F(1, 80)), (F(4), F(1, 20)), (F(20), F(1, 5))]
)
def test_above_the_game_with_hundreds_of_messages(p, step):
    """n = 1000, rate 0.3: never below, and close: the distance is a few percent of a standard deviation."""
    counts, masses = large.binomial_window(1000, 0.3, 1e-20)
    far = [step * j for j in (0, 1, 3)]
    ours = at(1000, 0.3, math.log(p), [float(x) for x in far])
    game = np.array([oracle.lattice_profile(1000, 0.3, p, 1 + x, counts, masses) for x in far])
    assert (ours >= game * (1 - ORACLE_ROUNDING)).all()
    assert ours[0] <= 1.025 * game[0]
    # So many messages are played where that is cheap; far out, chords between its losses are up to twice as large.
    assert (ours <= 2.2 * game).all()


def check_ins(n, rate):
    return equal_steps.StepCounts(host(n), host(rate), host([n]), host([1.0]))


def profile_of_stages(n, rate, p, stages, far, nodes=staged_games.USUAL):
    losses = np.log1p(np.resize(np.array([float(x) for x in far]), KNOTS))
    made = staged_games.Stages(*(host(value) for value in stages))
    message = likelihood_polytopes.Message(host(math.log(p)), host(1.0))
    played = staged_games.RoundSums(check_ins(n, rate), host(rate**n))
    rules = likelihood_polytopes.HEXAGON
    values = staged_games.profile_upper(
        staged_games.sampled, played, message, made, host(losses), rules, nodes
    )
    return np.asarray(values)[: len(far)]


@given(
    st.sampled_from([(F(9, 8), F(1, 160)), (F(3, 2), F(1, 30)), (F(2), F(1, 20)), (F(5), F(1, 5))]),
    st.integers(9, 14),
    st.sampled_from([0.4, 0.7]),
    st.integers(1, 3),
    st.lists(st.integers(0, 1), min_size=10, max_size=10),
    st.sampled_from([1e-3, 0.1, 1e6]),
)
@settings(max_examples=12)
def test_any_plan_and_tolerance_is_above_the_exact_game(setting, n, rate, first, stages, tolerance):
    """A dozen messages, stages from the first or second step on, and tolerances so large that nothing is smoothed.

    Then nearly everything is debt; whatever was planned, the result stays above.
    """
    p, step = setting
    stages = [count if sum(stages[:i]) < 2 else 0 for i, count in enumerate(stages)]
    far = [step * j for j in (0, 1, 2)]
    chosen = (first, stages, first + sum(stages), tolerance)
    ours = profile_of_stages(n, rate, p, chosen, far)
    counts = np.arange(n)
    masses = binom.pmf(counts, n, rate)
    for bound, x in zip(ours, far):
        game = oracle.lattice_profile(n, rate, p, 1 + x, counts, masses)
        game += rate**n * float(oracle.hidden_by_nobody(n, p, 1 + x))
        assert bound >= game * (1 - ORACLE_ROUNDING)


@pytest.mark.parametrize("sizes", [[0, 4, 0, 1, 0, 1, 5], [0] * 6 + [12], [20] * 7])
def test_more_early_steps_than_there_are_messages_is_above_the_exact_game(sizes):
    """That there are fewer is likely then, or certain."""
    p, far = F(5, 2), [F(0), F(3, 20)]
    ours = profile_of_stages(14, 0.4, p, (2, sizes, 2 + sum(sizes), 0.1), far)
    counts = np.arange(14)
    for bound, x in zip(ours, far):
        game = oracle.lattice_profile(14, 0.4, p, 1 + x, counts, binom.pmf(counts, 14, 0.4))
        assert bound >= game * (1 - ORACLE_ROUNDING)


@pytest.mark.parametrize("nodes", [48, 240])
def test_any_period_is_above_the_exact_game(nodes):
    """Of one standard deviation, where images are as large as what they are of, and of five; at a high price."""
    p, far = F(2), [F(j, 20) for j in (0, 1, 2)]
    usual, short = (
        profile_of_stages(14, 0.7, p, (2, [1] * 4 + [0] * 6, 6, 0.1), far, each)
        for each in (staged_games.USUAL, nodes)
    )
    counts = np.arange(14)
    game = [
        oracle.lattice_profile(14, 0.7, p, 1 + x, counts, binom.pmf(counts, 14, 0.7))
        + 0.7**14 * float(oracle.hidden_by_nobody(14, p, 1 + x))
        for x in far
    ]
    assert (usual >= np.array(game) * (1 - ORACLE_ROUNDING)).all()
    assert (short >= np.array(game) * (1 - ORACLE_ROUNDING)).all()
    assert (short > usual).all()


# --- the bound against L1 and T1


@pytest.mark.parametrize(("n", "rate"), [(3000, 0.1), (60000, 0.1), (1000, 0.9)])
@pytest.mark.parametrize("epsilon0", [0.25, 0.69, 1.0, 3.0])
@pytest.mark.thorough(but=6)
def test_between_l1_and_t1(n, rate, epsilon0):
    """Exact values of 3-ary and of binary randomized response (both directions), out to nine deviations."""
    p, sd = math.exp(epsilon0), deviation(n, rate, epsilon0)
    far = sd * np.array([0.0, 0.5, 1.0, 2.0, 3.3, 5.0, 7.0, 9.0])
    ours = at(n, rate, epsilon0, far)
    few = far[[0, 3, 5, 7]] if n > 10000 else far
    ternary = large.large_profile(pairs.krr3_labels(p, rate), n, 1 + few)
    mine = ours[[0, 3, 5, 7]] if n > 10000 else ours
    assert (mine >= ternary * (1 - ORACLE_ROUNDING)).all()
    assert mine[0] <= ternary[0] * 1.02 or epsilon0 < math.log(2)
    if n < 10000:
        pair = large.large_binary_rr_pair(p, rate, n)
        for binary in (pairs.profile(pair, 1 + far), pairs.profile(pairs.Pair(pair.q, pair.p), 1 + far)):
            assert (ours >= binary * (1 - 1e-9)).all()  # P - c Q cancels in the oracle
    t1 = np.asarray(Clones(Shuffled(n, rate), epsilon0, MASS).upper(np.log1p(far)))
    assert (ours <= t1).all()
    assert ours[2] <= 0.96 * t1[2]


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"), [(10**9, 0.1, 0.69), (10**12, 0.01, 1.5), (10**12, 1 - 1e-9, 2.0)]
)
def test_any_number_of_clients(n, rate, epsilon0):
    """The normal law's stop-loss transform with L1's variance, which is exact in the limit, from 0 to 8 deviations."""
    sd = deviation(n, rate, epsilon0)
    far = np.array([0.0, 1.0, 3.0, 8.0])
    ours = at(n, rate, epsilon0, far * sd) / sd
    normal = norm.pdf(far) - far * norm.sf(far)
    # Asymptotic series where the difference cancels; Edgeworth corrections are below 1e-3 at such n.
    normal[-1] = norm.pdf(8.0) / 64.0 * (1 - 3 / 64.0)
    assert (ours >= normal * (1 - 1e-3)).all()
    # The last between two losses: a chord costs a fiftieth of a deviation there.
    assert (ours[:3] <= normal[:3] * np.array([1.003, 1.006, 1.07])).all()


# --- the check of domination


def begin(moves, weights, sd, first):
    game = staged_games.laws_on(
        host(likelihood_polytopes.HEXAGON.candidates), moves, weights, sd, 1.5 / sd, staged_games.USUAL
    )
    return game, staged_games.begin(game, first)


def failure(game, begun, share):
    return staged_games._failure(game, begun, staged_games._grid(game, begun), share)


def played(epsilon0, c_minus_1, first):
    """The game at n gamma = 100 after `first` steps of T1's law, and E(x + S + d)_+ by enumeration."""
    p = math.exp(epsilon0)
    sd = math.sqrt(100 * max(2 / (p + 2), 1 / p))
    message = likelihood_polytopes.Message(host(epsilon0), host(1.0))
    moves = np.asarray(likelihood_polytopes.HEXAGON.places(host(c_minus_1), message))
    weights = np.asarray(likelihood_polytopes.HEXAGON.laws(message))
    game, begun = begin(moves, weights, host(sd), host(first))
    values, masses = np.zeros(1), np.ones(1)
    for _ in range(first):
        values = np.add.outer(values, moves[weights[-1] > 0]).ravel()
        masses = np.multiply.outer(masses, weights[-1][weights[-1] > 0]).ravel()
    smooth = float(game.contour.smoothing)

    def f(x):
        y = (x[:, None] + values[None, :]) / smooth
        return smooth * (norm.pdf(y) + y * norm.cdf(y)) @ masses

    def moved(x, law):
        return sum(w * f(x + d) for d, w in zip(moves, law))

    return game, begun, weights, moved


@pytest.mark.parametrize("first", [0, 3, 1000])
def test_the_sum_that_a_game_begins_with_has_no_smaller_moments(first):
    """At all three orders, by mpmath: what Chernoff's bounds leave out of a window grows with them."""
    message = likelihood_polytopes.Message(host(0.8), host(1.0))
    moves = np.asarray(likelihood_polytopes.HEXAGON.places(host(0.03), message))
    weights = np.asarray(likelihood_polytopes.HEXAGON.laws(message))
    game, begun = begin(moves, weights, host(4.0), host(first))
    found = {float(game.contour.order): begun.total.log_mgf} | dict(zip(map(float, game.orders), begun.far))
    with mpmath.workdps(40):
        smooth = mpmath.mpf(float(game.contour.smoothing))
        for order, log_moment in found.items():
            one = mpmath.fsum(w * mpmath.exp(mpmath.mpf(order) * d) for w, d in zip(weights[-1], moves))
            exact = smooth**2 * mpmath.mpf(order) ** 2 / 2 + first * mpmath.log(one)
            assert abs(float(log_moment) - exact) <= 1e-12 * exact


MAIN = {"3-ary": [1, 0, 0, 0, 0, 0], "both binary": [0, 0.5, 0.5, 0, 0, 0], "T1": [0, 0, 0, 0, 0, 1.0]}


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("epsilon0", [0.4, 0.8, 1.6])
@pytest.mark.parametrize("name", MAIN)
def test_a_failure_to_dominate_is_never_understated(name, epsilon0, first):
    """Against both sides evaluated directly at thousands of points; early steps of a cheap law are caught."""
    game, begun, weights, moved = played(epsilon0, 0.03, first)
    share = np.array(MAIN[name], dtype=float)
    stated = float(failure(game, begun, host(share)))
    x = np.linspace(-12.0, 12.0, 3001)
    scale = np.exp(-float(game.contour.order) * x - float(begun.total.log_mgf))
    true = max(((moved(x, law) - moved(x, share @ weights)) * scale).max() for law in weights[:-1])
    assert stated >= true - 1e-13
    if name == "T1":
        assert true <= 1e-13
        # What the grid does not resolve is small against one step's effect, which is about 0.1.
        assert stated <= 0.05
    elif first == 0:
        # No smoothing: another law gains a tenth of a step where the payment has its kink.
        assert true >= 0.015
        assert stated <= true + 0.05


@pytest.mark.parametrize(
    ("epsilon0", "c_minus_1", "sd", "law"),
    [
        (0.8, 0.03 * math.expm1(0.8), 102.4 / 3.25, 4),
        (0.4, 0.03 * math.expm1(0.4), 102.4, 0),
        (0.4, 0.0, 102.4 / 4.25, 4),
    ],
)
def test_what_bends_between_points_is_counted(epsilon0, c_minus_1, sd, law):
    """Kinks of the payment between two points: second differences alone understate failures by a thousandth."""
    message = likelihood_polytopes.Message(host(epsilon0), host(1.0))
    moves = np.asarray(likelihood_polytopes.HEXAGON.places(host(c_minus_1), message))
    weights = np.asarray(likelihood_polytopes.HEXAGON.laws(message))
    game, begun = begin(moves, weights, host(sd), host(0.0))
    stated = float(failure(game, begun, host(np.eye(6)[law])))
    smooth = float(game.contour.smoothing)
    x = np.add.outer(-moves[:6], smooth * np.linspace(-0.5, 0.5, 101)).ravel()
    y = np.add.outer(x, moves) / smooth
    gained = smooth * (norm.pdf(y) + y * norm.cdf(y)) @ (weights[:-1] - weights[law]).T
    true = (gained * np.exp(-float(game.contour.order) * x - float(begun.total.log_mgf))[:, None]).max()
    assert true <= stated <= 1.02 * true


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0.3, 1.0))
def test_no_peak_between_points_of_a_grid_is_missed(seed, highest, fall):
    """Random periodic functions on 80 points, against 80 times as many; neither part of the bound alone is one."""
    rng, points, finer = np.random.default_rng(seed), 80, 80
    waves = np.arange(1, highest + 1)
    waves = waves[waves < points // 2]
    parts = (rng.normal(size=(2, waves.size)) + 1j * rng.normal(size=(2, waves.size))) * fall ** np.arange(
        waves.size
    )

    def at(x):
        return np.real(parts @ np.exp(2j * np.pi * np.outer(waves, x)))

    coarse, fine = at(np.arange(points) / points), at(np.arange(points * finer) / (points * finer))
    peak = float(staged_games._peak(host(coarse)))
    fourth = (np.abs(parts) @ (2 * np.pi * waves) ** 4.0).max()
    assert fine.max() <= peak + staged_games._FOURTH * points**-4.0 * fourth + 1e-12
    # Where waves are long the fourth derivative hardly counts: a parabola's peak it is.
    if highest <= 4:
        assert peak <= fine.max() + 0.25 * (coarse.max() - coarse.min()) * (np.pi * highest / points) ** 2


def test_every_interval_of_the_period_counts_with_both_of_its_ends():
    """The formula of docs/evaluation.md, wherever in the period and in whichever row the peak is."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.normal(size=(3, 9))
        bend = np.maximum(2 * values - np.roll(values, 1, axis=1) - np.roll(values, -1, axis=1), 0)
        ends, bends = (np.maximum(each, np.roll(each, -1, axis=1)) for each in (values, bend))
        expected = (ends + bends / 8).max()
        for shift in range(9):
            rolled = np.roll(values, (shift, shift), axis=(0, 1))
            assert float(staged_games._peak(host(rolled))) == pytest.approx(expected, rel=1e-14)


def test_a_grid_by_itself_misses_peaks():
    """The mutations: the largest value on the grid, or with second differences alone where they see nothing."""
    points = 8
    x = (np.arange(points) + 0.5) / points
    long = np.cos(2 * np.pi * x)[None, :]
    assert long.max() < 0.93
    assert float(staged_games._peak(host(long))) + staged_games._FOURTH * (2 * np.pi / points) ** 4 >= 1.0
    # As on every second point, a wave of the highest frequency is flat.
    quick = np.cos(2 * np.pi * points * (x + 0.4 / points))[None, :]
    assert float(staged_games._peak(host(quick))) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("p", [F(3, 2), F(5)])
def test_without_the_debt_the_bound_would_be_wrong(p, monkeypatch):
    """The same plans as above, tolerance 1e6, with failures forgotten: what keeps the bound up is the debt."""
    counts = np.arange(14)
    game = oracle.lattice_profile(14, 0.7, p, p / p, counts, binom.pmf(counts, 14, 0.7))
    stages = (1, [1] + [0] * 9, 2, 1e6)
    assert profile_of_stages(14, 0.7, p, stages, [0.0])[0] >= game
    monkeypatch.setattr(staged_games, "_failure", lambda *_: host(0.0))
    monkeypatch.setattr(
        staged_games,
        "profile_upper",
        jax.jit(staged_games.profile_upper.__wrapped__, static_argnames=("value", "rules", "nodes")),
    )
    try:
        jax.clear_caches()
        assert profile_of_stages(14, 0.7, p, stages, [0.0])[0] < game
    finally:
        monkeypatch.undo()
        jax.clear_caches()


def test_binary_response_without_smoothing_is_not_a_bound():
    """The mutation that the check is there for: below log 2, both binary laws in equal shares from the first step."""
    p, c = F(3, 2), F(1)
    for steps in (1, 2, 3):
        game = oracle.game_value(p, c, steps, F(1, 10) * steps)
        value = {F(0): F(1)}
        for _ in range(steps):
            new: dict[F, F] = {}
            for s, mass in value.items():
                for z, w in (
                    (p - 1, 1 / (p + 1)),
                    (1 / p - 1, p / (p + 1)),
                    (1 - p, 1 / (p + 1)),
                    (1 - 1 / p, p / (p + 1)),
                ):
                    new[s + z] = new.get(s + z, F(0)) + mass * w / 2
            value = new
        paid = sum(mass * max(F(1, 10) * steps + s, F(0)) for s, mass in value.items())
        assert paid < game


@pytest.mark.parametrize("epsilon0", [0.4, 0.8, 1.6])
def test_the_chosen_law_is_cheaper_than_t1_and_fails_no_more_than_allowed(epsilon0):
    game, begun, _, _ = played(epsilon0, 0.03, 8)
    share, failed = quietly(staged_games.stage_law)(game, begun, host(1e-3))
    share = np.asarray(share)
    assert share.sum() == pytest.approx(1.0, rel=1e-14)
    assert (share >= 0).all()
    assert share[-1] < 0.9
    assert float(failed) <= 4e-3
    # Nothing allowed: T1's law, or one that does not fail.
    strict, _ = quietly(staged_games.stage_law)(game, begun, host(0.0))
    assert np.asarray(strict)[-1] > share[-1]


# --- the host side


@given(st.integers(2000, 10**12), st.floats(1e-3, 0.99), st.floats(20.0, 700.0))
def test_plans_add_up_and_their_early_steps_are_nearly_certain(n, rate, mass):
    stages = host_half.stages(check_ins(n, rate), math.exp(n * math.log(rate)), mass)
    if stages is None:
        assert n * rate < 4.0 * (mass + 50.0) or n * -math.log(rate) < mass + 4.0
        return
    first, before = float(stages.first), float(stages.before)
    assert first + float(np.sum(stages.sizes)) == before <= n * rate / 2
    assert (np.asarray(stages.sizes) >= 0).all()
    assert binom.logcdf(before - 1, n, rate) <= -mass


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"),
    [
        (100, 1.0, 1.0),
        (10**5, 0.999999, 1.0),
        (10**5, 0.1, 0.01),
        (10**5, 0.1, 5.0),
        (1, 0.5, 1.0),
    ],
)
def test_none_where_there_is_no_proof_or_no_gain(n, rate, epsilon0):
    assert profile(n, rate, epsilon0, MASS) is None


@given(
    st.floats(0.03, 4.5),
    st.floats(math.log(300), math.log(1e9)),
    st.floats(0.001, 0.9),
    st.floats(20.0, 300.0),
)
@settings(max_examples=10)
def test_profiles_are_convex_and_nonincreasing_and_chords_meet_them(epsilon0, log_mean, rate, mass):
    n = math.ceil(math.exp(log_mean) / rate)
    found = profile(n, rate, epsilon0, mass)
    if found is None:
        assert n * rate < 4.0 * (mass + 50.0)
        return
    losses, upper = found
    assert losses[0] == 0.0
    assert losses[-1] == epsilon0
    assert upper[-1] == 0.0
    assert (np.diff(losses) > 0).all()
    assert (np.diff(upper) <= 0).all()
    slopes = np.diff(upper) / np.diff(np.expm1(losses))
    assert (np.diff(slopes) >= -1e-9 * np.abs(slopes[1:])).all()
    np.testing.assert_allclose(convex.chords(losses, upper, losses[:-1]), upper[:-1], rtol=1e-11)
    middle = 0.5 * (losses[1:] + losses[:-1])
    value = convex.chords(losses, upper, middle)
    assert (value >= upper[1:]).all()
    assert (value <= upper[:-1]).all()
    assert convex.chords(losses, upper, np.array([epsilon0, 2 * epsilon0])).tolist() == [0.0, 0.0]
