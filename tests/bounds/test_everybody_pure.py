"""E+ evaluated: weights, the pool's law, the game and whole rounds against exact ones; what it is used for."""

import functools
import math
from itertools import permutations

import mpmath as mp
import numpy as np
import pytest
from oracles import spared_pure as oracle
from scipy.signal import fftconvolve
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.kernels import host, stop_loss
from checkin_jax.numerics import left_out_clones as ours
from checkin_jax.numerics.staged_clones import AnyMessage, OneBitMessage, Steps
from checkin_jax.numerics.step_laws import OwnSteps

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0


def hexagon(p: float) -> AnyMessage:
    return AnyMessage(math.log(p))


def t1_pool(clients: int, p: float) -> ours.LogProfile:
    """T1's profile of so many clients."""
    return ours.Link(hexagon(p), clients, MASS, links=0).profile


# --- nearly even weights


@pytest.mark.parametrize("seed", range(5))
def test_weights_majorize_all_that_are_even_enough(seed):
    rng = np.random.default_rng(seed)
    tight, half = 0.0, 0.0
    for _ in range(200):
        count, kappa = int(rng.integers(3, 80)), math.exp(rng.uniform(-1.0, 3.0))
        rho = np.exp(rng.normal(0.0, rng.uniform(0.01, 0.4), count))
        if rng.random() < 0.3:
            rho = np.where(np.arange(count) < rng.integers(1, count), 1.0 + rng.uniform(0.0, 0.5), 1.0)
        rho = -np.sort(-rho / rho.mean())
        excess = float(np.cosh(kappa * (rho[:, None] - rho[None])).mean()) - 1.0
        for factor in (1.0, 0.5):
            weights = ours.nearly_even(factor * excess, kappa, count)
            if weights is None:
                continue
            each = np.repeat(weights.values, weights.counts.astype(int))
            assert each.size == count
            assert (np.diff(each) <= 0.0).all()
            apart = np.max(np.cumsum(rho - each))
            if factor == 1.0:
                assert apart <= 1e-9
                sums = np.cumsum(rho - 1.0)[:-1] / np.maximum(np.cumsum(each - 1.0)[:-1], 1e-12)
                tight = max(tight, float(np.max(sums)))
            else:
                half = max(half, float(apart))
    assert tight > 0.9
    assert half > 1e-3  # half of Lambda - 1 is too little


@pytest.mark.parametrize("count", [2, 10, 1000, 10**6, 10**15])
def test_partial_sums_of_weights_are_above_the_bound_at_30_digits(count):
    """At many q, those between the tangents included, beyond by the margins alone where a tangent touches."""
    seen, places = 0, np.unique(np.geomspace(1, count - 1, 80).astype(int))
    touching = [int(share * count) for share in ours._TOUCHING if share * count >= 1]
    places = np.unique([*places, *(count - places), *np.linspace(1, count - 1, 60).astype(int), *touching])
    for kappa in (1.0, 3.0, 10.0, 100.0):
        for excess in (1e-3, 0.1, 1.0):
            weights = ours.nearly_even(excess, kappa, count)
            if weights is None:
                continue
            seen += 1
            ends = np.append(0, np.cumsum(weights.counts)).astype(int).tolist()
            assert ends[-1] == count
            with mp.workdps(30):
                for place in places.tolist():
                    total = mp.fsum(
                        (mp.mpf(weight) - 1) * min(max(place - end, 0), after - end)
                        for weight, end, after in zip(weights.values.tolist(), ends, ends[1:])
                    )
                    share = mp.mpf(place) / count
                    spread = share * (1 - share)
                    assert total >= count * spread * mp.acosh(1 + mp.mpf(excess) / (2 * spread)) / kappa
    assert seen >= 5 if count < 10**6 else seen >= 1


def test_very_uneven_weights_are_refused():
    assert ours.nearly_even(1e6, 1.0, 50) is None


# --- the pool's law


@pytest.mark.parametrize(("p", "clients"), [(1.3, 40), (2.7, 300), (7.4, 1000)])
@pytest.mark.parametrize("share", [0.0, 1e-4, 0.02, 0.3])
def test_the_pools_law_is_that_of_chords(p, clients, share):
    """Its stop-loss transform by mpmath is above D's perspective everywhere, and no more than chords say at knots."""
    profile, above = t1_pool(clients, p), share * (p - 1.0)
    pool = ours.pool_law(profile, above, clients, p - 1.0)
    with mp.workdps(40):
        places = [mp.mpf(float(y)) * (p - 1) / clients for y in pool.places]
        masses = [mp.exp(mp.mpf(float(each))) for each in pool.log_masses]
        assert abs(sum(masses) - 1) < 1e-9
        assert abs(sum(mass * y for mass, y in zip(masses, places))) < 1e-9
        assert all(
            math.exp(error) < 1e-6 * math.exp(mass) + 1e-10
            for error, mass in zip(pool.log_errors, pool.log_masses)
        )

        def at(c: float) -> float:
            return (
                math.exp(profile.log_at(c - 1.0))
                if c >= 1.0
                else 1.0 - c + c * math.exp(profile.log_at(1.0 / c - 1.0))
            )

        deviation = math.sqrt(float(sum(mass * y**2 for mass, y in zip(masses, places))))
        for t in np.linspace(-4.0, 4.0, 33) * deviation:
            # T* = y + 1 - c, and y is centred.
            shift = float(t) - (1.0 - (1.0 + above))
            exact = (1.0 - t) * at((1.0 + above) / (1.0 - t)) if t < 0.0 else at(1.0 + above + t)
            found = float(sum(mass * max(y - shift, mp.mpf(0)) for mass, y in zip(masses, places)))
            assert exact * (1.0 - 1e-7) <= found <= exact * 1.05 + 1e-12


@pytest.mark.parametrize(("p", "clients"), [(1.3, 40), (7.4, 1000)])
@pytest.mark.parametrize("negligible", [-3.0, -12.0, -20.0])
def test_a_cut_pool_costs_the_rest(p, clients, negligible):
    """min(T*, t) and E(T* - t)_+ together have the stop-loss transform of T*."""
    above = 0.02 * (p - 1.0)
    whole, cut = (
        ours.pool_law(t1_pool(clients, p), above, clients, p - 1.0, least)
        for least in (-math.inf, negligible)
    )
    assert whole.log_beyond == -math.inf
    assert cut.log_beyond <= negligible
    assert cut.places[-1] < whole.places[-1]
    last, unit = cut.places[-1], clients / (p - 1.0)

    def transform(law: ours.PoolLaw, place: float) -> float:
        return float(np.exp(law.log_masses) @ np.maximum(law.places - place, 0.0))

    beyond = transform(whole, last)
    assert beyond <= unit * math.exp(cut.log_beyond) * (1.0 + 1e-9) + 1e-15
    assert beyond >= 0.999 * unit * math.exp(cut.log_beyond) - 1e-12
    for place in np.linspace(0.5 * whole.places[0], last, 40):
        assert transform(whole, place) == pytest.approx(transform(cut, place) + beyond, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize(("p", "clients"), [(1.3, 40), (7.4, 1000)])
def test_the_pools_moments_by_mpmath(p, clients):
    profile = t1_pool(clients, p)
    pool = ours.pool_law(profile, 0.05 * (p - 1.0), clients, p - 1.0)
    deviation = math.sqrt(clients * 2.0 / (p + 1.0))
    for order in (0.5 / deviation, 5.0 / deviation):
        contour = stop_loss.Contour(host(order), host(12.5 * deviation), host(0.02 * deviation))
        theta = stop_loss.nodes(contour, 3 * ours._TOGETHER)
        start = stop_loss.start(contour, theta)
        found = ours._with_pool(start, pool, theta)
        with mp.workdps(40):
            masses = [mp.exp(mp.mpf(float(each))) for each in pool.log_masses]
            whole = sum(mass * mp.exp(mp.mpf(order) * float(y)) for mass, y in zip(masses, pool.places))
            assert 0 <= float(found.log_mgf - start.log_mgf - mp.log(whole)) < 1e-6
            for k in (*range(8), *range(ours._TOGETHER - 1, 3 * ours._TOGETHER, 8)):
                at = mp.mpf(order) + mp.mpf(float(theta[k].imag)) * mp.j
                exact = sum(mass * mp.exp(at * float(y)) for mass, y in zip(masses, pool.places)) / whole
                ratio = complex(np.exp(found.log_ratio[k] - start.log_ratio[k]))
                assert abs(complex(exact) - ratio) <= float(found.absolute)


@pytest.mark.parametrize(("p", "clients"), [(1.3, 40), (2.7, 300)])
@pytest.mark.parametrize("share", [0.013, 0.4, 1.0, 2.0])
def test_the_mean_of_the_hyperbolic_cosine_by_mpmath(p, clients, share):
    """Up to a share of p - 1, inside a chord or beyond them all."""
    profile, reach = t1_pool(clients, p), share * (p - 1.0)
    kappas = np.array([0.5, 3.0, 8.0]) * math.sqrt(clients) / (p - 1.0)
    with mp.workdps(30):
        for kappa, found in zip(kappas, ours._log_cosh_excess(profile, kappas, reach)):
            exact = mp.mpf(0)
            for a, b, at_a, at_b in zip(profile.above, profile.above[1:], profile.logs, profile.logs[1:]):
                left, right = (
                    mp.exp(mp.mpf(float(at_a))),
                    mp.exp(mp.mpf(float(at_b))) if at_b > -1e300 else mp.mpf(0),
                )
                a, b, k = mp.mpf(float(a)), mp.mpf(float(b)), mp.mpf(float(kappa))
                slope = (right - left) / (b - a)
                if a >= reach:
                    break
                if b > reach:
                    b, right = mp.mpf(reach), left + slope * (mp.mpf(reach) - a)
                # int cosh(k t) (left + slope (t - a)) dt, by parts.
                exact += right * mp.sinh(k * b) / k - left * mp.sinh(k * a) / k
                exact -= slope * (mp.cosh(k * b) - mp.cosh(k * a)) / k**2
            exact = 2 * mp.mpf(float(kappa)) ** 2 * exact
            assert 0 <= float(found) - float(mp.log(exact)) < 1e-8


@pytest.mark.parametrize("p", [1.4, 3.0, 12.0])
def test_profiles_of_pools_are_above_t1(p):
    """Contours, Chernoff's bound and chords, from the middle to p."""
    clients = 14
    exact, _ = oracle.t1_profile(clients, p)
    profile = t1_pool(clients, p)
    c = 1.0 + (p - 1.0) * np.linspace(0.0, 0.999, 200)
    found = np.exp([profile.log_at(each - 1.0) for each in c.tolist()])
    assert (found >= exact(c) * (1.0 - 1e-9)).all()
    assert found[0] <= 1.02 * exact(c)[0]
    assert (np.diff(profile.log_slopes) < 0.0).all()


@pytest.mark.parametrize("x", [-0.5, -30.0, -900.0])
def test_chernoffs_bound_where_some_places_have_no_mass(x):
    """By mpmath. Moments relative to the largest place, whose mass is zero, had vanished: a bound of zero."""
    at, masses = np.array([-1.0, -0.02, 0.03, 0.5, 4.0]), np.array([0.01, 0.0, 0.2, 0.008, 0.0])
    count = 1000.0
    found = ours._log_chernoff(host(at), host(masses), count, x)
    with mp.workdps(30):
        variance = count * float(masses @ at**2)
        exact = mp.inf
        for order in ours._ORDERS * -x / variance:
            moment = 1 + mp.fsum(mass * mp.expm1(mp.mpf(order) * mp.mpf(y)) for mass, y in zip(masses, at))
            exact = min(exact, order * x + count * mp.log(moment) - 1 - mp.log(order))
    assert exact <= found <= float(exact) + 1e-9 * (1.0 + abs(float(exact)))


@pytest.mark.filterwarnings("error")
def test_a_pool_of_few_clients_has_a_profile_up_to_p():
    """Its logarithms had been infinite near p, and the excess of its weights no number."""
    steps = theorems._all_sent(cj.Laplace(epsilon0=0.106))
    link = ours.Link(steps, 2730, 42.0)
    assert link.pooled > 0
    while link.pooled:
        assert np.isfinite(link.pool.logs[:-1]).all()
        assert np.isfinite(link.log_excess).all()
        link = link.inner


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rare", [0.0005, 0.001])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_pool_of_which_hardly_any_message_is_distinctive_has_a_profile(rare, adaptive):
    """Contours give nothing eight deviations from the middle, and the profile had been infinite there, or no number."""
    mechanism = cj.FiniteMechanism(probabilities=[[1.0 - rare, rare], [1.0 - 1.07 * rare, 1.07 * rare]])
    steps = theorems._all_sent(mechanism)
    link, t1 = (ours.Link(steps, 1293, 28.7, adaptive, links) for links in (ours._LINKS, 0))
    assert link.pooled > 0
    assert np.isfinite(link.pool.logs[:-1]).all()
    above = np.linspace(0.0, 8.0, 9) * link.deviation
    assert (link.values(above) <= 1.01 * t1.values(above)).all()


# --- the game with weights and a pool


@pytest.mark.parametrize("p", [1.5, 2.0, 5.0])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.4, 1.0, 0.6), (1.2, 1.2, 1.0, 0.8, 0.8)])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.4])
def test_played_out_is_above_the_exact_game(p, weights, share):
    clients, above = 3, share * (p - 1.0)
    c, unit = 1.0 + above, p - 1.0
    steps = hexagon(p)
    pool = ours.pool_law(t1_pool(clients, p), above, clients, unit)
    value = oracle.game(weights, p, c)
    masses = np.exp(pool.log_masses)
    exact = sum(
        mass * value(unit * y - clients * above) for mass, y in zip(masses, pool.places) if mass > 1e-14
    )
    kinds = np.array(sorted(set(weights), reverse=True))
    counts = np.array([float(weights.count(each)) for each in kinds])
    laws, each = ours.step_laws(steps, np.array([above])), ours.Weights(kinds, counts)
    start = host([-(sum(weights) + clients) * above / unit])
    (found,) = ours._played_out(laws, [each], [pool], host(clients * 2.0 / (p + 1.0)), start)
    assert unit * found >= exact * (1.0 - 1e-9)
    # Without the pool, too.
    (alone,) = ours._played_out(laws, [each], None, host(0.0), host([-sum(weights) * above / unit]))
    assert unit * alone >= value(0.0) * (1.0 - 1e-9)


def test_losses_at_once_are_those_apart():
    """Games of other weights and of other numbers of stages, padded to the longest."""
    steps, clients, unit = hexagon(2.0), 3, 1.0
    above, pool = np.array([0.0, 0.05, 0.2]), t1_pool(clients, 2.0)
    weights = [
        ours.Weights(np.array(values), np.array(counts))
        for values, counts in (
            ((1.3, 1.0, 0.7), (20.0, 500.0, 20.0)),
            ((1.0,), (540.0,)),
            ((1.2, 1.0, 0.9), (1.0, 538.0, 2.0)),
        )
    ]
    assert len({len(ours._stages_of(each, False)) for each in weights}) > 1
    laws, start, extra = ours.step_laws(steps, above), -(540 + clients) * above / unit, host(2.0)
    pools = [ours.pool_law(pool, each, clients, unit) for each in above]
    found = ours._played_out(laws, weights, pools, extra, host(start))
    for i, each in enumerate(weights):
        (apart,) = ours._played_out(
            laws.at_losses(np.arange(3) == i), [each], [pools[i]], extra, host(start[i : i + 1])
        )
        assert found[i] == pytest.approx(apart, rel=1e-4)


# --- whole rounds


def forced(monkeypatch, pooled: int, steps: Steps, clients: int, adaptive: bool = False) -> ours.Link:
    """A link that spares clients whether it pays or not, with T1 for the pool."""
    with monkeypatch.context() as patch:
        patch.setattr(
            ours,
            "_plan",
            lambda n, *_: ours._Plan(2.0 / (math.exp(steps.epsilon0) + 1.0), pooled * (n == clients)),
        )
        return ours.Link(steps, clients, MASS, adaptive)


def at(link: ours.Link, bound, above: float) -> float:
    (found,) = bound(ours.step_laws(link.steps, np.array([above])), np.array([above]))
    return float(found)


def whole_value(link: ours.Link, above: float) -> float:
    (found,) = link.values(np.array([above]))
    return float(found)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("epsilon0", "clients", "pooled"), [(0.2, 60, 20), (0.5, 400, 150), (0.1, 30, 15)])
def test_a_link_is_above_shuffled_binary_responses(monkeypatch, epsilon0, clients, pooled, adaptive):
    """Others at both records in any proportion, both orders."""
    p = math.exp(epsilon0)
    link = forced(monkeypatch, pooled, hexagon(p), clients, adaptive)
    up, down = p / (p + 1.0), 1.0 / (p + 1.0)
    reached = 0.0
    for share in (0.0, 0.01, 0.1):
        above = share * (p - 1.0)
        bound = at(link, link._of_pool, above)
        for at_x in {0, clients // 2, clients - 1}:
            rest = np.convolve(
                binom.pmf(np.arange(at_x + 1), at_x, up),
                binom.pmf(np.arange(clients - at_x), clients - 1 - at_x, down),
            )
            laws = [np.append(rest * (1 - q), 0.0) + np.append(0.0, rest * q) for q in (up, down)]
            for a, b in (laws, laws[::-1]):
                truth = np.maximum(a - (1.0 + above) * b, 0.0).sum()
                assert bound >= truth * (1.0 - 1e-12)
                reached = max(reached, truth / bound)
    assert reached > 0.5


@pytest.mark.parametrize(("epsilon0", "clients"), [(0.25, 1000), (1.0, 10_000), (2.0, 10_000)])
def test_a_profile_is_convex_and_below_t1(epsilon0, clients):
    link = ours.pure(clients, MASS, AnyMessage(epsilon0))
    losses, upper = link.table
    assert link.pooled > 0
    slopes = np.diff(upper) / np.diff(np.expm1(losses))
    assert (np.diff(slopes) >= -1e-12 * np.abs(slopes[:-1])).all()
    assert losses[0] == 0.0
    assert upper[-1] == 0.0
    assert upper[0] < 0.99 * at(link, link._of_t1, 0.0)
    # The normal limit is a lower end, nearly.
    p = math.exp(epsilon0)
    limit = math.sqrt(max(2.0 / (p + 2.0), 1.0 / p) / (2.0 * math.pi * clients)) * (p - 1.0)
    assert 0.995 * limit < upper[0] < 1.06 * limit


def test_one_bit_messages_have_a_game_of_their_own():
    _, upper = ours.pure(10_000, MASS, OneBitMessage(2.0, 1.0)).table
    _, any_message = ours.pure(10_000, MASS, AnyMessage(2.0)).table
    assert upper[0] < 0.9 * any_message[0]
    p = math.exp(2.0)
    limit = math.sqrt(1.0 / p / (2.0 * math.pi * 10_000)) * (p - 1.0)
    assert upper[0] > 0.995 * limit


@pytest.mark.parametrize("steps", [AnyMessage(1.0), OneBitMessage(1.0, 1.0)])
def test_any_choice_is_above_what_binary_responses_leak(monkeypatch, steps):
    """What is chosen is no part of the proof."""
    epsilon0, clients = 1.0, 4000
    p = math.exp(epsilon0)
    deviation = math.sqrt(1.0 / p / clients) * (p - 1.0)
    rest = binom.pmf(np.arange(clients), clients - 1, 1.0 / (p + 1.0))
    laws = [
        np.append(rest * (1 - q), 0.0) + np.append(0.0, rest * q) for q in (p / (p + 1.0), 1.0 / (p + 1.0))
    ]
    for name, value in (
        ("_UNEVEN", 0.1),
        ("_TOUCHING", (0.01,)),
        ("_KAPPAS", np.array([2.0])),
        ("_SHARES", (0.5,)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(ours, name, value)
            link = ours.Link(steps, clients, MASS)
            for above in (0.0, 3.0 * deviation, 4.5 * deviation):
                truth = max(np.maximum(a - (1.0 + above) * b, 0.0).sum() for a, b in (laws, laws[::-1]))
                assert whole_value(link, above) >= truth


# --- a mechanism's own laws

# Three records; the last two are nearly alike.
CHANNEL = np.array([[0.62, 0.25, 0.13], [0.2, 0.3, 0.5], [0.22, 0.33, 0.45]])


def many(row: np.ndarray, count: int) -> np.ndarray:
    """Law of the numbers of the first two outputs of `count` messages; [count + 1, count + 1]."""
    first = np.arange(count + 1)
    law = np.zeros((count + 1, count + 1))
    for some in first:
        rest = np.arange(count - some + 1)
        share = binom.pmf(rest, count - some, row[1] / (row[1] + row[2]))
        law[some, : count - some + 1] = binom.pmf(some, count, row[0]) * share
    return law


def shuffled(counts: tuple[int, int, int]) -> list[np.ndarray]:
    """For each record of the target, the law of the messages' numbers, so many others at each record."""
    others = functools.reduce(fftconvolve, [many(*pair) for pair in zip(CHANNEL, counts)])
    return [fftconvolve(others, many(row, 1)) for row in CHANNEL]


def own_steps(mechanism: cj.FiniteMechanism) -> OwnSteps:
    assert mechanism.step_set is not None
    return OwnSteps(mechanism.largest_loss, mechanism.step_set, mechanism.profile, mechanism.total_variation)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("clients", "pooled"), [(60, 25), (240, 60), (240, 160)])
def test_own_laws_are_above_shuffled_messages_of_a_finite_mechanism(monkeypatch, clients, pooled, adaptive):
    """Others at all three records in any proportion, all pairs of records of the target."""
    mechanism, others = cj.FiniteMechanism(probabilities=CHANNEL), clients - 1
    link = forced(monkeypatch, pooled, own_steps(mechanism), clients, adaptive)
    whole = ours.Link(own_steps(mechanism), clients, MASS, adaptive)
    splits = [(others, 0, 0), (0, others, 0), (0, 0, others), (others // 2, others - others // 2, 0)]
    truths = [
        shuffled((*split,)) for split in [*splits, (others // 3, others // 3, others - 2 * (others // 3))]
    ]
    reached = 0.0
    for share in (0.0, 0.005, 0.03):
        above = share * link.unit
        truth = max(
            np.maximum(a - (1.0 + above) * b, 0.0).sum() for laws in truths for a, b in permutations(laws, 2)
        )
        values = [at(link, link._of_pool, above), at(link, link._of_t1, above), whole_value(whole, above)]
        assert min(values) >= truth * (1.0 - 1e-9) - 1e-13
        reached = max(reached, truth / min(values))
    assert reached > 0.6


def test_own_laws_of_fewer_records_are_exceeded():
    """Whoever leaves out the record that all others hold, or takes messages for closer than they are."""
    clients = 240
    truth = max(np.maximum(a - b, 0.0).sum() for a, b in permutations(shuffled((239, 0, 0)), 2))
    near = cj.FiniteMechanism(probabilities=CHANNEL[1:])
    assert whole_value(ours.Link(own_steps(near), clients, MASS), 0.0) < 0.5 * truth
    bound = whole_value(ours.Link(own_steps(cj.FiniteMechanism(probabilities=CHANNEL)), clients, MASS), 0.0)
    assert truth <= bound


# --- what it is used for


@functools.cache
def bracket(clients: int, rounds: int, epsilon0: float):
    return cj.account(
        cj.Shuffle(num_clients=clients, num_rounds=rounds), cj.PureLDP(epsilon0=epsilon0), delta=1e-6
    )


def test_where_it_is_used():
    pure, one = cj.PureLDP(epsilon0=0.5), 10_000
    everybody = cj.Shuffle(num_clients=one)
    ((text, bound),) = [(a, a) for a in bracket(one, 1, 0.5).assumptions if "same round" in a]
    assert text == bound == "no client's message depends on another message of the same round"
    check_in = cj.ShuffledCheckIn(num_clients=one, check_in_prob=1.0)
    assert cj.account(check_in, pure, delta=1e-6).epsilon == pytest.approx(
        bracket(one, 1, 0.5).epsilon, rel=1e-9
    )
    averages = cj.AveragedUpdates(num_clients=one, num_slots=10, check_in_prob=1.0)
    # Later slots may depend on earlier ones, which costs some percent.
    found = cj.account(averages, pure, delta=1e-6)
    assert "everybody" in found.method
    assert not any("same round" in text and "depends" in text for text in found.assumptions)
    assert bracket(one, 1, 0.5).epsilon < found.epsilon < 1.06 * bracket(one, 1, 0.5).epsilon
    assert "everybody" not in cj.account(everybody, pure, delta=1e-6, bounds="fast").method
    # Whoever drops out leaves fewer messages: at a rate at which nobody may well be missing everybody is a bound.
    nearly = cj.ShuffledCheckIn(num_clients=one, check_in_prob=1.0, drop_out_prob=1e-6)
    assert "everybody" in cj.account(nearly, pure, delta=1e-6).method
    some = cj.ShuffledCheckIn(num_clients=one, check_in_prob=1.0, drop_out_prob=0.1)
    assert "everybody" not in cj.account(some, pure, delta=1e-6).method


def test_bad_arguments():
    for clients, mass in ((0, MASS), (10, 0.0)):
        with pytest.raises(ValueError, match="expected"):
            ours.pure(clients, mass, AnyMessage(1.0))
