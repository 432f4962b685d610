"""T* against exact laws of real mechanisms, against its own definition, and against a plain FFT; one-sided."""

import math

import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import checkin_gaussian, exact_rounds, krr, t_star

from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages import equal_records
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages, HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile, MessageProfile, Profile
from checkin_jax.kernels import elementary, host
from checkin_jax.kernels.messages import hidden_messages
from checkin_jax.randomizers import ApproximateLDP, KnownProfile, Laplace, PureLDP

pytestmark = pytest.mark.usefixtures("x64")

MASS = 40.0
CS = (1.0, 1.05, 1.3, 2.0, 5.0)


def random_channel(rng: np.random.Generator) -> list[list[float]]:
    """Rows with zeros in different places, so that laws may be mutually singular in part."""
    channel = rng.dirichlet(np.full(rng.integers(2, 5), rng.choice([0.3, 1.0, 3.0])), size=3)
    channel = np.where(channel < 10.0 ** rng.uniform(-3.0, -0.7), 0.0, channel)
    channel[:, 0] += channel.sum(axis=1) == 0
    return (channel / channel.sum(axis=1, keepdims=True)).tolist()


def known(channel: krr.Channel) -> MessageProfile:
    profile = t_star.channel_profile(channel)
    return MessageProfile(KnownProfile(function=lambda loss: profile(np.exp(loss))))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.thorough(but=2)
def test_any_finite_randomizer_stays_below(seed):
    rng = np.random.default_rng(seed)
    channel, n, rate = random_channel(rng), int(rng.integers(1, 4)), float(rng.choice([0.1, 0.4, 0.8]))
    profile, kinks = t_star.channel_profile(channel), t_star.channel_kinks(channel)
    one = HiddenMessages(n, rate, known(channel), MASS)
    exact = exact_rounds.worst(channel, [rate] * n, CS)
    ours = one.upper(np.log(CS))
    for c, truth, value in zip(CS, exact, ours):
        everybody, hidden = t_star.finite_value(profile, kinks, n, rate, c)
        assert truth <= (everybody + hidden) * (1.0 + ORACLE_ROUNDING) + 1e-15  # the theorem
        assert value >= truth * (1.0 - ORACLE_ROUNDING) - 1e-15
    # The kernel against the definition, before the minimum with other bounds.
    for loss, value in list(zip(one.losses, one.hidden()))[::9]:
        everybody, hidden = t_star.finite_value(profile, kinks, n, rate, math.exp(loss))
        assert value >= (everybody + hidden) * (1.0 - ORACLE_ROUNDING) - 1e-15


def test_everybody_present_is_counted():
    """Without gamma^n D(c) the value is below the definition."""
    channel, n, rate = krr.krr_channel(3, 4.0), 2, 0.8
    one = HiddenMessages(n, rate, known(channel), MASS)
    found = list(zip(one.losses, one.hidden(), one.profile.delta(one.losses)))
    profile, kinks = t_star.channel_profile(channel), t_star.channel_kinks(channel)
    less = [
        value - rate**n * alone < sum(t_star.finite_value(profile, kinks, n, rate, math.exp(loss)))
        for loss, value, alone in found
    ]
    assert any(less)


def on_one_contour(channel: krr.Channel, n: int, rate: float, losses: np.ndarray, law) -> np.ndarray:
    one = HiddenMessages(n, rate, known(channel), MASS)
    far, ends = n * np.expm1(losses), one._law(law)
    arguments = [host(each) for each in (*one.sums, rate, one.steps[2])]
    orders = host(hidden_messages.orders(far[0], far[-1], one.steps[2]))
    paths = hidden_messages.paths_of(host(rate), host(float(n)), orders, ends)
    group = hidden_messages.StepTransforms(*(part[None] for part in ends))
    rest = host(losses)[None], group, host(one.ceilings(losses)[None])
    return np.asarray(hidden_messages.hidden_upper(*arguments, paths, *rest))[0]


def test_losses_on_one_contour_have_laws_between_those_of_the_ends():
    """Transforms are convex in c; the first law alone is below the definition."""
    channel, n, rate = krr.krr_channel(3, 3.0), 3, 0.4
    losses = np.log([1.0, 1.3, 1.8, 2.2, 3.0, 4.0])
    profile, kinks = t_star.channel_profile(channel), t_star.channel_kinks(channel)
    exact = np.array([t_star.finite_value(profile, kinks, n, rate, c)[1] for c in np.exp(losses)])
    found = on_one_contour(channel, n, rate, losses, losses[[0, -1]])
    assert np.all(found >= exact * (1.0 - ORACLE_ROUNDING))
    assert found[1] < 1.3 * exact[1]
    assert np.any(on_one_contour(channel, n, rate, losses, losses[[0, 0]]) < exact)


def test_sums_that_share_a_contour_have_steps_of_their_own():
    """Other ceilings count; with the steps of the other sum the value is below the definition."""
    channel, rate, losses = krr.krr_channel(3, 3.0), 0.4, np.log([1.0, 1.3, 1.8])
    profile, kinks = t_star.channel_profile(channel), t_star.channel_kinks(channel)
    masses, sizes = np.array([0.3, 0.6]), np.array([2.0, 4.0])
    one = HiddenMessages(3, rate, known(channel), MASS)
    law, orders = one._law(losses[[0, -1]]), host(hidden_messages.orders(0.0, 3.0, one.steps[2]))
    paths = hidden_messages.paths_of(host(rate), host(3.0), orders, law)
    group = hidden_messages.StepTransforms(*(part[None] for part in law))
    each = [[t_star.finite_value(profile, kinks, int(n), rate, c)[1] for n in sizes] for c in np.exp(losses)]

    def found(counts: np.ndarray, ceilings: np.ndarray) -> np.ndarray:
        arguments = map(host, (masses, sizes, counts, rate, one.steps[2]))
        some = host(losses)[None], group, host(ceilings)[None]
        return np.asarray(hidden_messages.hidden_upper(*arguments, paths, *some))[0]

    exact, nothing = np.array(each) @ masses, np.full((3, 2), math.inf)
    value = found(sizes, nothing)
    assert (value >= exact * (1.0 - ORACLE_ROUNDING)).all()
    assert (value <= 1.2 * exact).all()
    assert (found(sizes[[0, 0]], nothing) < exact * (1.0 - 1e-3)).any()
    lowered = found(sizes, np.array([[math.inf, 0.01]] * 3))
    assert (lowered < value).all()
    assert (lowered >= masses[0] * np.array(each)[:, 0] + 0.01 * masses[1]).all()


@pytest.mark.parametrize(("n", "rate"), [(10**4, 0.999), (16, 0.95)])
def test_what_stands_for_further_losses_leaves_out_everybody_present(n, rate):
    """Where the sum no longer matters, the term of K = n still falls with c."""
    one = HiddenMessages(n, rate, GaussianProfile(0.5), MASS)
    alone = rate**n * one.profile.delta(one.losses)
    assert np.all(np.isfinite(one.values))
    assert np.all(one.values >= alone)
    far = np.flatnonzero(one.values - alone < math.exp(6.0 - MASS))
    assert far.size > 20
    assert alone[far[0]] > 1e6 * alone[far[-1]]


@pytest.mark.parametrize("x", [0.0, 0.7, -3.1, 40.0])
def test_sums_along_a_contour(x):
    """By two factors of every exponential, within the roundings that ends are moved by."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=hidden_messages.NODES) + 1j * rng.normal(size=hidden_messages.NODES)
    base, k = 0.3, np.arange(hidden_messages.NODES)
    with mpmath.workdps(30):
        exact = mpmath.fsum(
            (mpmath.mpmathify(complex(v)) * mpmath.expj(-mpmath.mpf(base) * int(i) * mpmath.mpf(x))).real
            for i, v in zip(k, values)
        )
    found = float(hidden_messages.along(values[None], host(base), host([x]))[0, 0])
    allowed = elementary.UNIT * (k.size + 16.0 * base * k * abs(x)) @ np.abs(values)
    assert abs(found - float(exact)) <= allowed
    wrong = float(hidden_messages.along(values[None], host(base), host([-x]))[0, 0])
    assert x == 0.0 or abs(wrong - float(exact)) > allowed


@pytest.mark.parametrize("phase", [1e-9, 0.01, 1.0, 3.1, 80.0])
def test_powers_of_a_turn_keep_their_digits(phase):
    """Within the roundings of k |phase| that contours count."""
    turn = host([-2.0 * math.sin(0.5 * phase) ** 2]) + 1j * host([math.sin(phase)])
    found = hidden_messages.powers(turn, 32)
    for k in range(33):
        with mpmath.workdps(40):
            exact = mpmath.expj(mpmath.mpf(phase) * k) - 1
        assert abs(complex(found[k, 0]) - complex(exact)) <= 32.0 * elementary.UNIT * k * phase


@pytest.mark.parametrize("base", [1e-5, 0.01, 1.0])
def test_transforms_keep_their_digits(base):
    """Every node, relative to the phases of its terms, within what contours count."""
    rng = np.random.default_rng(1)
    at, tilted = rng.normal(size=40) * np.exp(rng.normal(size=40)), rng.random((2, 40))
    found = hidden_messages.transform(at, host(base), tilted)
    assert np.all(found[:, 0] == 0.0)
    for k in [*range(1, 50), 500, 991, *range(1007, hidden_messages.NODES)]:
        with mpmath.workdps(40):
            turns = [mpmath.expj(k * mpmath.mpf(base) * mpmath.mpf(float(each))) - 1 for each in at]
            exact = [complex(mpmath.fdot(turns, map(mpmath.mpf, row.tolist()))) for row in tilted]
        allowed = 4.0 * elementary.UNIT * (at.size + 40.0) * k * base * tilted @ np.abs(at)
        assert np.all(np.abs(found[:, k] - exact) <= allowed)


OTHERS = [(0.0, 1.0), (1.0, 1.0), (-1.0, 0.3), (3.0, -2.0)]


@pytest.mark.parametrize("rate", [0.3, 0.8])
@pytest.mark.parametrize("z", [0.8, 3.0])
@pytest.mark.thorough(but=2)
def test_gaussian_mechanism_stays_below(z, rate):
    """Records in [-1, 1] are clipped ones; others further away are covered all the same."""
    one = HiddenMessages(3, rate, GaussianProfile(2.0 / z), MASS)
    ours = one.upper(np.log(CS))
    for others in OTHERS:
        for data in ([*others, 1.0], [*others, -1.0]), ([*others, -1.0], [*others, 1.0]):
            exact = checkin_gaussian.messages_mechanism_hockey_stick(*data, rate, z, CS, [0, 200, 50])
            assert np.all(ours >= np.array(exact) * (1.0 - ORACLE_ROUNDING))


def test_half_the_sensitivity_is_caught():
    """Under replacement the sensitivity is twice the clipping norm."""
    wrong = HiddenMessages(3, 0.3, GaussianProfile(1.0), MASS).upper(np.log(CS))
    exact = checkin_gaussian.messages_mechanism_hockey_stick(
        [1.0, 1.0, 1.0], [1.0, 1.0, -1.0], 0.3, 1.0, CS, [0, 200, 50]
    )
    assert np.any(wrong < np.array(exact))


LATTICE: list[tuple[int, float, Profile, t_star.Profile, float]] = [
    (1000, 0.05, GaussianProfile(0.4), t_star.gaussian_profile(0.4), 0.02),
    (1000, 0.05, GaussianProfile(1.2), t_star.gaussian_profile(1.2), 0.06),
    (20, 0.3, GaussianProfile(0.3), t_star.gaussian_profile(0.3), 0.015),
    (50, 0.1, GaussianProfile(1.0), t_star.gaussian_profile(1.0), 0.05),
    (400, 0.2, MessageProfile(Laplace(epsilon0=1.5)), t_star.laplace_profile(1.5), 0.02),
]


@pytest.mark.parametrize(("n", "rate", "profile", "in_c", "step"), LATTICE)
@pytest.mark.thorough(but=2)
def test_against_a_plain_fft(n, rate, profile, in_c, step):
    """Halving the step removes three quarters of the lattice's excess: 2 v(h/2) - v(h) is below T*."""
    one = HiddenMessages(n, rate, profile, MASS)
    hidden = one.hidden()
    for i in (0, 5, 10, 20, 30):
        c = math.exp(one.losses[i])
        coarse = t_star.lattice_value(in_c, n, rate, c, step, 2**15)
        fine = t_star.lattice_value(in_c, n, rate, c, step / 2, 2**16)
        everybody = rate**n * float(in_c(np.array(c)))
        if fine < 1e-9:
            continue
        # The FFT's rounding, and what is cut off the lattice's law at 1e-13.
        assert hidden[i] >= everybody + min(2.0 * fine - coarse, fine * (1 - 1e-4)) - 1e-10
        assert hidden[i] <= (everybody + fine) * 1.03


def test_pure_messages_give_t1():
    n, rate, epsilon0 = 3000, 0.1, 1.0
    t1 = Clones(Shuffled(n, rate), epsilon0, MASS)
    one = HiddenMessages(n, rate, MessageProfile(PureLDP(epsilon0=epsilon0)), MASS)
    at = one.losses[:41:4]
    ratio = one.upper(at) / np.asarray(t1.upper(at))
    assert np.all(ratio <= 1.02)
    assert np.all(ratio >= 0.995)  # T1's own buckets


@pytest.mark.parametrize(
    "profile",
    [
        MessageProfile(PureLDP(epsilon0=50.0)),
        MessageProfile(ApproximateLDP(epsilon0=20.0, delta0=1e-3)),
        MessageProfile(Laplace(epsilon0=0.01)),
        GaussianProfile(1e-7),
        GaussianProfile(40.0),
    ],
)
@pytest.mark.parametrize(("n", "rate"), [(1, 0.5), (1000, 0.1)])
@pytest.mark.thorough(but=3)
def test_extremes_fall_back_to_one_message(profile, n, rate):
    one = HiddenMessages(n, rate, profile, MASS)
    losses = np.concatenate([[0.0], np.geomspace(1e-10, 690.0, 40)])
    value = one.upper(losses)
    assert np.all(np.diff(value) <= 0)
    assert np.all(value >= 0)
    assert value[0] <= rate * profile.delta(losses[:1])[0] * (1.0 + 1e-6)


def test_delta0_costs_little_more_than_a_lost_mass():
    n, rate, epsilon0, delta0 = 3000, 0.1, 1.0, 1e-7
    at = np.linspace(0.0, 0.02, 5)
    pure = HiddenMessages(n, rate, MessageProfile(PureLDP(epsilon0=epsilon0)), MASS).upper(at)
    approximate = HiddenMessages(
        n, rate, MessageProfile(ApproximateLDP(epsilon0=epsilon0, delta0=delta0)), MASS
    ).upper(at)
    assert np.all(approximate >= pure * (1 - 1e-3))
    assert np.all(approximate <= pure * 1.01 + 1.5 * rate * delta0)


@pytest.mark.parametrize("profile", [GaussianProfile(1.0), MessageProfile(Laplace(epsilon0=2.0))])
def test_never_above_subsampling_or_one_message(profile):
    one = HiddenMessages(5000, 0.01, profile, MASS)
    upper = one.upper(one.losses)
    assert np.all(upper <= one.subsampled(one.losses) * (1 + 1e-9))
    assert np.all(upper <= 0.01 * profile.delta(one.losses) * (1 + 1e-6))
    assert np.all(np.diff(upper) <= 0)
    assert np.any(upper < 0.3 * one.subsampled(one.losses))


@pytest.mark.parametrize("mu", [1e-3, 0.03, 1.0, 2.5, 5.0])
@pytest.mark.parametrize(
    ("n", "rate"), [(7, 0.9), (10**4, 0.1), (10**12, 1e-3), (10**12, 0.5), (10**9, 1e-9)]
)
@pytest.mark.thorough(but=3)
def test_whole_range_gives_profiles(n, rate, mu):
    one = HiddenMessages(n, rate, GaussianProfile(mu), 60.0)
    losses = np.concatenate([[0.0], np.geomspace(1e-12, 690.0, 200)])
    value = one.upper(losses)
    assert np.all(np.isfinite(value))
    assert np.all(value >= 0)
    assert np.all(value <= rate * (1 + 1e-6))
    assert np.all(np.diff(value) <= 0)
    assert value[-1] <= math.exp(-55.0) or mu > 2


@pytest.mark.parametrize(
    ("n", "rate", "mu", "step"), [(1000, 0.05, 1.0, 0.05), (400, 0.5, 0.3, 0.02), (30, 0.2, 1.5, 0.05)]
)
@pytest.mark.thorough(but=1)
def test_witness_stays_below_its_exact_value(n, rate, mu, step):
    """Every line of events of the pair (P, Q) lies below the pair's profile, at all c."""
    one = HiddenMessages(n, rate, GaussianProfile(mu), MASS)
    witness = one.witnesses[0]
    losses = one.losses[[1, 6, 12, 20, 28]]
    profile = t_star.gaussian_profile(mu)
    for reverse, (difference, mass) in enumerate(witness.lower(losses)):
        lines = np.asarray(difference)[:, None] - np.expm1(losses)[None, :] * np.asarray(mass)[:, None]
        exact = np.array(
            [
                t_star.one_record_value(profile, n, rate, math.exp(loss), bool(reverse), step, 2**15)
                for loss in losses
            ]
        )
        assert np.all(lines <= exact[None, :] + 1e-12)
        large = exact > 1e-5
        assert np.all(np.diag(lines)[large] >= 0.97 * exact[large])


def test_contours_that_tell_nothing_do_not_end_the_search_for_events():
    """One client: the definition. The first contours fail."""
    one = HiddenMessages(1, 0.5, GaussianProfile(2.0), MASS)
    losses = np.linspace(0.1, 3.0, 8)
    exact = 0.5 * one.profile.delta(losses)
    for difference, mass in one.witnesses[0].lower(losses):
        found = np.asarray(difference) - np.expm1(losses) * np.asarray(mass)
        assert np.all(found <= exact)
        assert np.all(found >= 0.2 * exact)


def test_moments_that_vanish_leave_the_lower_end():
    """A thousand steps, all taken: at some frequencies a step's moment is zero to a rounding."""
    slots = HiddenSlots(1000, 0.01, GaussianProfile(1e-3), MASS)
    losses = slots.losses[[2, 10, 20]]
    for difference, mass in equal_records.hidden_witnesses(slots, slots)[0].lower(losses):
        found = np.asarray(difference) - np.expm1(losses) * np.asarray(mass)
        assert np.all(found <= slots.upper(losses))
        assert np.all(found >= 0.9 * slots.upper(losses))


def test_swapped_measures_are_caught():
    """Q||P is not P||Q: read in the wrong order the witness exceeds its exact value."""
    one = HiddenMessages(1000, 0.05, GaussianProfile(1.0), MASS)
    loss = one.losses[[20]]
    difference, mass = one.witnesses[0].lower(loss)[0]
    wrong = float(difference[0] - math.expm1(loss[0]) * mass[0])
    exact = t_star.one_record_value(
        t_star.gaussian_profile(1.0), 1000, 0.05, math.exp(loss[0]), True, 0.05, 2**15
    )
    assert wrong > exact


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda loss: 0.5 + 0.0 * loss + 0.1 * (loss > 1.0), "does not increase"),
        (lambda loss: np.where(loss < 1.0, 0.5, 0.1), "convex"),
        (lambda loss: np.exp(-loss) * 1.5, "in \\[0, 1\\]"),
        (lambda loss: np.full_like(loss, np.nan), "in \\[0, 1\\]"),
        (lambda loss: 0.5, "one for each loss"),
    ],
)
def test_what_is_no_profile_is_refused(function, complaint):
    with pytest.raises(ValueError, match=complaint):
        KnownProfile(function=function)


def test_profile_that_does_not_end_is_refused():
    with pytest.raises(ValueError, match="largest_loss"):
        KnownProfile(function=lambda loss: 0.5 * np.exp(-loss), largest_loss=2.0)


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf, 41.0])
def test_mu_outside_its_range_is_refused(mu):
    with pytest.raises(ValueError, match="mu"):
        GaussianProfile(mu)


def test_nobody_absent_is_left_to_other_bounds():
    """At rate 1 T* is not proved; what is left is subsampling, here with everybody in the sample."""
    one = HiddenMessages(50, 1.0, GaussianProfile(1.0), MASS)
    losses = np.array([0.1, 0.5])
    assert np.all(one.upper(losses) >= one.profile.delta(losses) * (1 - 1e-12))
