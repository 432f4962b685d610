"""Total variation, k-ary response and one-bit messages as shipped: against oracles, one-sided, and composed figures."""

import math
from fractions import Fraction as F

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import hexagon, large
from oracles import known_messages as known

import checkin_jax as cj
from checkin_jax.accounting.bounds import select
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.interface import minimum, neg_log_tail
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, UniformSlot
from checkin_jax.accounting.bounds.messages.one_step_bounds import (
    KaryBound,
    OneBitCheckIn,
    TotalVariationBound,
)
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.composition import compose
from checkin_jax.kernels import host, stop_loss
from checkin_jax.kernels.messages import equal_steps, one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.step_laws import OwnSteps

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0
SHARES = (F(0), F(1, 40), F(1, 10), F(1, 4), F(1, 2), F(4, 5))


def cs_of(p):
    return [1 + (p - 1) * share for share in SHARES]


def losses_of(cs):
    return np.log(np.array([float(c) for c in cs]))


def law_of(labels):
    """The labels of t*_beta or t_k as the kernel has them."""
    at = {(label.z_p, label.z_q): float(label.prob) for label in labels}
    p = max(z for z, _ in at)
    return equal_steps.StepLaw(*(host(at.get(key, 0.0)) for key in ((p, 1), (p, p), (0, 0))))


def sum_bound(labels, n, counts, masses, rate, c):
    """sum_i mass_i (1/n) E((n - K_i)(1 - c) + sum t)_+."""
    step = known.steps_of(known.sent_with(labels, rate), c)
    rest = {1 - c: F(1)}
    return sum(
        float(mass) * known.stop_loss([(step, k), (rest, n - k)]) / n for k, mass in zip(counts, masses)
    )


def labels_of(p, k, spread):
    return known.beta_labels(p, (p - 1) / (p + k - 1)) if spread else known.kary_labels(p, k)


class TestEqualSteps:
    @pytest.mark.parametrize("spread", [False, True])
    @pytest.mark.parametrize("p", [F(3, 2), F(4), F(20)])
    @pytest.mark.parametrize(
        ("n", "rate"), [(1, F(1)), (3, F(1, 2)), (12, F(1)), (150, F(1, 10)), (150, F(1))]
    )
    @pytest.mark.thorough(but=2)
    def test_above_the_sums_and_close(self, n, rate, p, spread):
        labels, cs = labels_of(p, 5, spread), cs_of(p)
        seen = equal_steps.StepCounts(host(n), host(float(rate)), host([n]), host([1.0]))
        found = np.asarray(
            equal_steps.profile_upper(law_of(labels), seen, host(math.log(p)), host(losses_of(cs)))
        )
        exact = np.array([sum_bound(labels, n, [n], [1], rate, c) for c in cs])
        assert (found >= exact * (1 - ORACLE_ROUNDING)).all()
        # Few messages are lumpy: what smooths them costs some percent.
        assert (found <= (1.002 if n == 150 and p < 20 else 1.15) * exact + 1e-9).all()

    @pytest.mark.parametrize("order", [1e-6, 0.02, 1.0, 20.0, 150.0])
    def test_steps_at_the_nodes_are_within_the_rounding_that_is_counted(self, order):
        rng = np.random.default_rng(0)
        paths = (20.0 / order, 0.1, 0.0), (500.0 + 20.0 / order, 2.0, 0.3), (1050.0 / order, 0.1, 0.0)
        for period, epsilon0, share in paths:
            at = equal_steps.places(host(share * math.expm1(epsilon0)), host(epsilon0))
            weights = (
                rng.dirichlet(np.ones(4)) * rng.uniform() if share else np.array([0.25, 0.25, 0.25, 0.0])
            )
            path = stop_loss.Contour(host(order), host(period), host(1.0))
            laws = equal_steps.CentredLaws(at, host(weights[None]))
            real = laws.real(host([order]))[0]
            found = equal_steps.excess(path, laws, real, equal_steps.NODES)[0]
            coarser = float(equal_steps.on_nodes(path, laws, 1, host(1.0), equal_steps.NODES).coarser)
            for k in (0, 1, 2, 31, 32, 33, *range(140, 200, 4), 272, 400, 1500):
                with mpmath.workdps(50):
                    theta = mpmath.mpc(order, k * mpmath.mpf(2.0 * math.pi / period))
                    terms = (w * (mpmath.expm1(theta * d) - theta * d) for w, d in zip(weights, at.tolist()))
                    error = abs(mpmath.mpc(complex(found[k])) - mpmath.fsum(terms))
                    assert error <= coarser * 128.0 * 2.0**-53 * abs(theta) ** 2 * float(real[0])

    @pytest.mark.parametrize(
        ("counts", "masses"),
        [([math.nan, 30.0], [0.5, 0.5]), ([math.nan], [1.0]), ([40.0, 30.0], [math.nan, 0.5])],
    )
    def test_a_count_or_mass_that_is_no_number_is_not_left_out(self, counts, masses):
        p, losses = F(3), losses_of(cs_of(F(3)))
        law, one = law_of(labels_of(p, 3, True)), host(math.log(p))
        alone = np.exp(losses) * np.expm1(math.log(p) - losses) * float(law.pair)
        seen = equal_steps.StepCounts(host(40), host(0.5), host(counts), host(masses))
        assert (np.asarray(equal_steps.profile_upper(law, seen, one, host(losses))) >= alone).all()
        pool = equal_steps.PoolSteps(host(counts), host(masses), host(0.5), host(0.3))
        assert (np.asarray(equal_steps.pooled_upper(law, pool, one, host(losses))) >= 0.3 * alone).all()

    def test_any_law_of_the_number_of_messages(self):
        p, n = F(3), 40
        labels, cs = labels_of(p, 3, True), cs_of(p)
        counts, masses = [5, 17, 40, 40], [0.2, 0.5, 0.3, 0.0]
        seen = equal_steps.StepCounts(host(n), host(1.0), host(counts), host(masses))
        found = np.asarray(
            equal_steps.profile_upper(law_of(labels), seen, host(math.log(p)), host(losses_of(cs)))
        )
        exact = np.array([sum_bound(labels, n, counts, masses, F(1), c) for c in cs])
        assert (found >= exact * (1 - ORACLE_ROUNDING)).all()
        assert (found <= 1.06 * exact + 1e-9).all()

    @given(st.floats(0.01, 5.0), st.floats(5.0, 27.0), st.floats(-3.0, 0.0))
    @settings(max_examples=12)
    def test_total_variation_of_any_message_is_t1_within_rounding(self, epsilon0, log_n, log_rate):
        """With the largest total variation there is, A is T1: the two kernels share no code."""
        n, rate = math.ceil(math.exp(log_n)), math.exp(log_rate)
        losses = np.log1p(math.expm1(epsilon0) * np.array([0.0, 1e-6, 1e-4, 1e-2, 0.1, 0.5]))
        ours = TotalVariationBound(Shuffled(n, rate), epsilon0, 1.0, MASS)
        seen = ours.step_cover.sums(MASS)
        found = np.asarray(equal_steps.profile_upper(ours.law, seen, host(epsilon0), host(losses)))
        t1 = np.asarray(Clones(Shuffled(n, rate), epsilon0, MASS).upper(losses))
        assert found[0] <= 1.08 * t1[0]
        assert found[0] >= 0.98 * t1[0]


def b0_values(n, rate, p, cs, ceilings=None):
    message = Message(host(math.log(p)), host(1.0))
    high = np.ones(len(cs)) if ceilings is None else ceilings
    return np.asarray(
        one_bit_profile.profile_upper(host(n), host(float(rate)), message, host(losses_of(cs)), host(high))
    )


class TestB0:
    @pytest.mark.parametrize("p", [F(3, 2), F(4), F(20)])
    @pytest.mark.parametrize("rate", [F(1, 20), F(1, 2), F(9, 10)])
    @pytest.mark.parametrize("n", [1, 2, 4, 12])
    @pytest.mark.thorough(but=21)
    def test_above_the_largest_of_all_m(self, n, rate, p):
        cs = cs_of(p)
        # One message by itself gives away no more than (p - c)/(p + 1).
        alone = np.array([float((p - c) / (p + 1)) for c in cs])
        exact = np.minimum([known.b0(n, rate, p, c) for c in cs], alone)
        found = b0_values(n, rate, p, cs)
        assert (found >= exact * (1 - ORACLE_ROUNDING)).all()
        # Few messages are lumpy: what smooths them costs much at c = 1.
        assert (found <= 1.25 * exact + 0.05).all()

    @pytest.mark.parametrize("epsilon0", [0.5, 2.0, 6.0])
    def test_intervals_cover_every_m(self, epsilon0):
        """g at hundreds of m never exceeds the bound on its largest value, and comes within 1e-3 of it."""
        n, rate = 60_000.0, 0.1
        message = Message(host(epsilon0), host(1.0))
        spread = math.sqrt(n * rate * math.exp(-epsilon0)) * math.expm1(epsilon0) / n
        for deviations in (0.0, 1.0, 3.0, 6.0):
            loss = host([math.log1p(spread * deviations)])
            curve, _ = one_bit_profile.curve_of(host(n), host(rate), message, loss)
            (most,) = one_bit_profile.largest(curve, host(n - 1.0), host([math.inf]))
            m = np.floor(np.linspace(0.0, n - 1.0, 400))
            values = np.array([one_bit_profile.value_at(curve, host([each]))[0][0] for each in m])
            assert most >= values.max() * (1 - 1e-12)
            assert most <= values.max() * (1.001 if epsilon0 < 6 else 1.01)

    @pytest.mark.parametrize("epsilon0", [0.3, 2.0, 7.0])
    def test_xla_finds_the_bounds_of_numpy(self, x64, epsilon0):
        """From the few messages of 50 clients to 1e8; where most all send, too."""
        message = Message(host(epsilon0), host(1.0))
        traced = jax.jit(one_bit_profile.profile_upper)
        for n, rate in ((50.0, 0.02), (3_000.0, 0.9), (1e8, 0.01)):
            spread = math.sqrt(n * rate * math.exp(-epsilon0)) * math.expm1(epsilon0) / n
            above = np.append(np.linspace(0.0, 5.0, 6) * spread, 0.5 * math.expm1(epsilon0))
            losses = np.log1p(above[above < math.expm1(epsilon0)])
            given = host(n), host(rate), message, host(losses), host(np.full(losses.size, math.inf))
            numpy, xla = one_bit_profile.profile_upper(*given), traced(*jax.tree.map(jnp.asarray, given))
            np.testing.assert_allclose(xla, numpy, rtol=1e-6, atol=1e-290)

    @pytest.mark.parametrize("floored", [0, 1])
    def test_moduli_raised_to_the_floor_are_counted_at_every_m(self, floored):
        """A step of one kind whose |M| is raised to 1e-4 changes the sum by at most both products, at the worst m."""
        others, points, small, other = 5.0, 16, math.log(1e-4), math.log(0.6)
        contour = stop_loss.Contour(host([1.0]), host([8.0]), host([4.0]))
        theta = stop_loss.nodes(contour, points)
        begun = stop_loss.start(contour, theta)

        def step(log_modulus, log_mgf):
            log_ratio = np.full(points, log_modulus - log_mgf) + 0j
            return stop_loss.ContourSum(host(log_mgf), log_ratio, np.zeros(points), host(0.0))

        steps = [step(other, 0.1), step(other, 0.1)]
        steps[floored] = step(small, 0.2)
        curve, deficit = one_bit_profile.curve_between(
            contour, theta, begun, *steps, host(others), host([-1.0]), stop_loss.last(contour, points)
        )
        # Of `others` steps some are floored, one at least; the rest have their moduli relative to M(t).
        worst = max((2e-4) ** k * math.exp((other - 0.1) * (others - k)) for k in range(1, 6))
        top = math.exp(float(curve.height[0]) + max(others * float(curve.tilt[0]), 0.0))
        least = 2.0 * worst * float(np.sum(np.asarray(curve.kernel))) * top
        assert least * (1.0 - 1e-12) <= float(deficit[0]) <= 1.001 * least

    def test_a_smaller_bound_elsewhere_saves_work_only(self):
        cs = cs_of(F(4))
        free, held = b0_values(12, 0.5, F(4), cs), b0_values(12, 0.5, F(4), cs, np.full(6, 1e-6))
        assert (held >= free * (1 - 1e-12)).all()

    def test_everybody_may_check_in_alone(self):
        """n = 1: the client's own message, sent with probability gamma; and gamma^n of it is always inside."""
        p, cs = F(3), cs_of(F(3))
        alone = np.array([float((p - c) / (p + 1)) for c in cs])
        assert (b0_values(1, 0.3, p, cs) >= 0.3 * alone * (1 - ORACLE_ROUNDING)).all()
        assert (b0_values(4, 0.9, p, cs) >= 0.9**4 * alone).all()


def one_bit_game(epsilon0, differ=1.0):
    """The staged game of the laws of one bit."""
    one = cj.OneBit(epsilon0=epsilon0, differ=differ)
    return OwnSteps(epsilon0, one.step_set, one.profile)


class TestStagedOneBit:
    @pytest.mark.parametrize(("p", "step"), [(F(3, 2), F(1, 120)), (F(4), F(1, 20))])
    @pytest.mark.thorough(but=1)
    def test_above_the_game_played_out(self, p, step):
        """n = 1000, rate 0.3, and slots: 300 of them, or a law of their number."""
        counts, masses = large.binomial_window(1000, 0.3, 1e-20)
        far = [step * j for j in (0, 1, 3)]
        deviation = math.sqrt(300 / p) * float(p - 1) / 1000

        def game(counts, masses, c):
            values = hexagon.lattice_game(
                p, c, 1000 * (1 - c), int(max(counts)), 9.0 * math.sqrt(300 / p), known.two_laws(p)
            )
            return float(np.asarray(masses) @ values[np.asarray(counts)]) / 1000

        some = np.array([280, 300, 320]), np.array([0.25, 0.5, 0.25])
        for seen, law in (
            (equal_steps.StepCounts(host(1000), host(0.3), host([1000]), host([1.0])), (counts, masses)),
            (equal_steps.StepCounts(host(1000), host(1.0), host([300]), host([1.0])), ([300], [1.0])),
            (equal_steps.StepCounts(host(1000), host(1.0), *map(host, some)), some),
        ):
            found = staged_clones.problem(seen, one_bit_game(math.log(p)), 0.0, MASS)
            assert found is not None
            ours = convex.chords(*found.profile(), np.log1p(np.array([float(x) for x in far])))
            exact = np.array([game(*law, 1 + x) for x in far])
            assert (ours >= exact * (1 - ORACLE_ROUNDING)).all()
            assert ours[0] <= 1.08 * exact[0], deviation

    @pytest.mark.parametrize(
        ("made", "left_out"), [(cj.Rappor, True), (cj.Laplace, True), (cj.HadamardResponse, False)]
    )
    def test_total_variation_is_left_out_beside_narrower_own_laws(self, made, left_out):
        """A is above the own laws of RAPPOR and Laplace, and below those of Hadamard response."""
        run, losses = cj.ShuffledCheckIn(num_clients=30_000, check_in_prob=0.1), np.linspace(0.0, 0.02, 21)
        unit = Unit(run, made(epsilon0=1.0), "messages", "replace-one", MASS)
        built = {row.labels[0]: one for row, one in select.built_bounds(unit, "best")}
        assert built.keys() >= {"T1", "T*", "B"}
        assert ("A" not in built) == left_out
        wider = TotalVariationBound(Shuffled(30_000, 0.1), 1.0, unit.randomizer.total_variation, MASS)
        own, other = (np.asarray(one.upper(losses)) for one in (built["B"], wider))
        matters = own > 1e-12
        assert matters.sum() > 3
        assert ((other > own) == left_out)[matters].all()

    def test_total_variation_stays_where_large_steps_are_few(self):
        """One record of a thousand differs: by its own laws alone 1.16 times as much."""
        run, rare = cj.SlidingWindow(num_clients=10_000, window=1000), cj.OneBit(epsilon0=2.0, differ=0.001)
        assert cj.account(run, rare, delta=1e-8).epsilon < 0.0208

    def test_not_where_everybody_may_be_used(self):
        seen = equal_steps.StepCounts(host(1000), host(1.0), host([1000]), host([1.0]))
        assert staged_clones.problem(seen, one_bit_game(1.0), 1.0, MASS) is None
        with pytest.raises(ValueError, match=r"rate=1\.0"):
            OneBitCheckIn(Shuffled(1000, 1.0), 1.0, MASS)


ROUNDS = [
    lambda step_cover, e: KaryBound(step_cover, e, 10, MASS),
    lambda step_cover, e: TotalVariationBound(step_cover, e, 0.3 * math.tanh(e / 2), MASS),
]


@pytest.mark.parametrize("make", ROUNDS)
@pytest.mark.parametrize(
    "step_cover",
    [Shuffled(3000, 0.1), UniformSlot(300, 0.3, 0.25), Occupied(3000, 300, 0.5), Occupied(20, 30, 0.9)],
)
@pytest.mark.parametrize("epsilon0", [0.1, 1.5, 6.0, 40.0])
@pytest.mark.thorough(but=4)
def test_profiles_are_those_of_symmetric_pairs(make, step_cover, epsilon0):
    """Convex on (0, inf), both halves together; nonincreasing; zero from the largest loss on; below T1, T2, T2'."""
    one = make(step_cover, epsilon0)
    losses, upper = one.profile
    assert losses[0] == 0.0
    assert (np.diff(losses) > 0).all()
    assert (np.diff(upper) <= 0).all()
    slopes = np.diff(upper) / np.diff(np.expm1(losses))
    assert (np.diff(slopes) >= -1e-8 * np.abs(slopes[1:])).all()
    assert -slopes[0] <= 0.5 * (1.0 - upper[0]) * (1 + 1e-6) + 1e-11
    assert one.upper(np.array([one.largest_loss, one.largest_loss + 1.0])).tolist() == [0.0, 0.0]
    worst = TotalVariationBound(step_cover, epsilon0, 1.0, MASS)
    loss = losses[:-1]
    assert (one.upper(loss) <= worst.upper(loss) * 1.03 + 1e-9).all()


@pytest.mark.parametrize(
    "step_cover", [Shuffled(500, 0.2), UniformSlot(100, 0.2, 0.18), Occupied(500, 100, 0.7)]
)
@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
@pytest.mark.thorough(but=2)
def test_witnesses_lie_below(step_cover, epsilon0):
    for one in (KaryBound(step_cover, epsilon0, k, MASS) for k in (2, 3, 20)):
        (witness,) = one.witnesses
        loss = np.linspace(1e-3, 0.9 * one.largest_loss, 40)
        upper = one.upper(loss)
        for difference, mass in witness.lower(loss):
            assert (np.asarray(difference) - np.expm1(loss) * np.asarray(mass) <= upper * (1 + 1e-9)).all()


# --- composed: the table of docs/theory_mechanisms.md


def bracket(make, num_rounds=6800, delta=1e-6):
    with jax.enable_x64(True):
        one = make(neg_log_tail(num_rounds, delta))
    return compose.bracket([(one, num_rounds)], delta)


def one_bit_by_stages(step_cover, epsilon0, mass):
    """Own laws of one bit, or T1's law where that is smaller."""
    staged = StagedClones(step_cover, one_bit_game(epsilon0), mass)
    return minimum([staged, TotalVariationBound(step_cover, epsilon0, 1.0, mass)])


@pytest.mark.thorough
def test_slots_gain_as_check_in_does():
    """One bit at eps0 = 2 in A_fix and A_avg; T2 and T2' give 1.443 and 1.438."""
    for step_cover, most in ((UniformSlot(6000, 0.1, 0.095), 1.098), (Occupied(60_000, 6000, 0.5), 1.093)):
        found = bracket(lambda mass, step_cover=step_cover: one_bit_by_stages(step_cover, 2.0, mass))
        assert found.upper <= most
    averaged = bracket(lambda mass: one_bit_by_stages(Shuffled(60_000, 0.1), 2.0, mass))
    assert averaged.upper <= 1.098


def test_a_hull_on_one_side_is_no_pairs_profile(monkeypatch):
    """Below another bound at every c, and yet composed to more, unless it is lowered to what both sides say."""
    with jax.enable_x64(True):
        mass = neg_log_tail(6800, 1e-6)
        plain = TotalVariationBound(Shuffled(60_000, 0.1), 6.0, 1.0, mass)
        losses, upper = plain.profile
    above, steep = np.expm1(losses), upper.copy()
    # A bound that is sharper away from c = 1 only, as staged domination is at this epsilon0.
    steep[1:] *= 0.97

    class Hull(TotalVariationBound):
        halves = 2

        @property
        def profile(self):
            if self.halves == 2:
                knots, value = convex.full_hull(above, steep)
                return np.log1p(knots), value
            kept = convex.hull(above, steep)
            return losses[kept], steep[kept]

    class HalfHull(Hull):
        halves = 1

    arguments = Shuffled(60_000, 0.1), 6.0, 1.0, mass
    before = compose.upper_end([(plain, 6800)], 1e-6).upper
    assert compose.upper_end([(Hull(*arguments), 6800)], 1e-6).upper < before
    half = compose.upper_end([(HalfHull(*arguments), 6800)], 1e-6).upper
    monkeypatch.setattr(convex, "lowered", lambda losses, forward, backward: (forward, backward))
    assert half < before < compose.upper_end([(HalfHull(*arguments), 6800)], 1e-6).upper
