"""`calibrate`: feasible when evaluated again, and the next value is not; every free variable; clear refusals."""

import dataclasses
import math

import pytest

import checkin_jax as cj

RUN = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=500)
WINDOW = cj.FixedWindow(num_clients=5_000, num_slots=1_000, num_epochs=1)


def epsilon(protocol, randomizer, delta, view):
    return cj.account(protocol, randomizer, delta=delta, view=view, bounds="fast").epsilon


@pytest.mark.parametrize(
    ("protocol", "randomizer", "free", "target", "view", "worse"),
    [
        (RUN, cj.PureLDP, None, 0.4, "messages", 1.002),
        (RUN, cj.Gaussian, None, 0.4, "aggregate", 0.998),
        (RUN, cj.Gaussian, "noise_multiplier", 40.0, "local", 0.998),
        (RUN, cj.Gaussian, None, 4e5, "local", 0.998),
        (RUN, cj.PureLDP(epsilon0=2.0), "check_in_prob", 0.25, "messages", 1.002),
        (RUN, cj.PureLDP(epsilon0=2.0), "num_rounds", 0.3, "messages", 1.02),
        (RUN, cj.PureLDP(epsilon0=2.0), "num_clients", 0.3, "messages", 0.998),
        (WINDOW, cj.PureLDP(epsilon0=1.0), "num_clients", 0.02, "messages", 0.998),
    ],
)
@pytest.mark.thorough(but=2)
def test_the_value_is_feasible_and_the_next_is_not(protocol, randomizer, free, target, view, worse):
    found = cj.calibrate(
        protocol, randomizer, target_epsilon=target, delta=1e-6, view=view, free=free, bounds="fast"
    )
    g = found.guarantee
    assert g.epsilon <= target
    assert epsilon(g.protocol, g.randomizer, 1e-6, view) == g.epsilon, "evaluated again it is the same"
    owner = g.randomizer if found.name in ("epsilon0", "noise_multiplier") else g.protocol
    assert getattr(owner, found.name) == found.value
    beyond = found.value * worse
    moved = dataclasses.replace(
        owner, **{found.name: round(beyond) if found.name.startswith("num") else beyond}
    )
    pair = (g.protocol, moved) if owner is g.randomizer else (moved, g.randomizer)
    assert epsilon(*pair, 1e-6, view) > target


def test_beyond_the_largest_loss_that_is_followed_moments_are_searched():
    """As `account` uses them there."""
    g = cj.calibrate(RUN, cj.Gaussian, target_epsilon=1e9, delta=1e-6, view="local").guarantee
    assert g.method.endswith("RDP")
    assert 0.999e9 < g.epsilon <= 1e9


@pytest.mark.parametrize(
    ("randomizer", "view", "worse"), [(cj.PureLDP, "messages", 1.01), (cj.Gaussian, "aggregate", 0.99)]
)
@pytest.mark.thorough(but=1)
def test_an_advantage_is_met_and_the_next_value_does_not(randomizer, view, worse):
    about = {"delta": 1e-6, "view": view, "bounds": "fast"}
    found = cj.calibrate(RUN, randomizer, target_advantage=0.03, **about)
    assert found.guarantee.advantage.upper <= 0.03
    beyond = dataclasses.replace(found.randomizer, **{found.name: found.value * worse})
    assert cj.account(RUN, beyond, **about).advantage.upper > 0.03


@pytest.mark.parametrize(
    "targets",
    [
        {},
        {"target_epsilon": 1.0, "target_advantage": 0.1},
        {"target_advantage": 1.0},
        {"target_advantage": 0.0},
    ],
)
def test_one_target_in_its_range(targets):
    with pytest.raises(ValueError, match=r"target_advantage=.*expected"):
        cj.calibrate(RUN, cj.PureLDP, delta=1e-6, **targets)


def test_whole_numbers_are_exact():
    found = cj.calibrate(
        cj.ShuffledCheckIn(num_clients=2_000, check_in_prob=0.5),
        cj.PureLDP(epsilon0=1.0),
        target_epsilon=0.5,
        delta=1e-5,
        free="num_rounds",
        bounds="fast",
    )
    more = dataclasses.replace(found.guarantee.protocol, num_rounds=int(found.value) + 1)
    assert found.guarantee.epsilon <= 0.5 < epsilon(more, cj.PureLDP(epsilon0=1.0), 1e-5, "messages")


def test_a_target_that_everything_meets_gives_the_end_of_the_range():
    found = cj.calibrate(
        RUN, cj.PureLDP(epsilon0=0.1), target_epsilon=50.0, delta=1e-6, free="check_in_prob", bounds="fast"
    )
    assert found.value == 1.0
    assert found.at_end
    assert "the end of the search" in str(found)
    inside = cj.calibrate(RUN, cj.PureLDP, target_epsilon=0.4, delta=1e-6, bounds="fast")
    assert not inside.at_end
    assert "end of the search" not in str(inside)


def test_the_fewest_clients_are_one_more_than_collude():
    run = cj.Shuffle(num_clients=900, num_colluding=30)
    found = cj.calibrate(run, cj.PureLDP(epsilon0=1.0), target_epsilon=2.0, delta=1e-6, free="num_clients")
    assert (found.value, found.at_end) == (31, True)


@pytest.mark.parametrize(
    ("protocol", "free", "view", "delta"),
    [
        (cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.5), "check_in_prob", "local", 1e-20),
        (cj.ShuffledCheckIn(num_clients=100, check_in_prob=0.5), "num_clients", "local", 1e-20),
        (cj.FixedWindow(num_clients=50, num_slots=1000), "num_clients", "messages", 1e-6),
    ],
)
def test_a_target_met_exactly_on_a_plateau_ends_the_search(protocol, free, view, delta):
    """Found by review: such a target was stepped away from and back to, for ever."""
    noise = cj.PureLDP(epsilon0=1.0)
    target = cj.account(protocol, noise, delta=delta, view=view, bounds="fast").epsilon
    found = cj.calibrate(
        protocol, noise, target_epsilon=target, delta=delta, view=view, free=free, bounds="fast"
    )
    assert found.guarantee.epsilon <= target


@pytest.mark.parametrize(
    ("kwargs", "error", "part"),
    [
        (
            {"randomizer": cj.PureLDP, "target_epsilon": 1.0, "free": "num_rounds"},
            ValueError,
            "free='num_rounds'",
        ),
        (
            {"randomizer": cj.PureLDP(epsilon0=1), "target_epsilon": 1.0},
            ValueError,
            "free was left out: expected",
        ),
        (
            {
                "protocol": cj.SlidingWindow(num_clients=200, window=50),
                "randomizer": cj.PureLDP(epsilon0=1),
                "target_epsilon": 1.0,
                "free": "num_clients",
            },
            ValueError,
            "free='num_clients'",
        ),
        ({"randomizer": int, "target_epsilon": 1.0}, TypeError, "randomizer=<class 'int'>"),
        ({"randomizer": 3.0, "target_epsilon": 1.0}, TypeError, "randomizer=3.0"),
    ],
)
def test_bad_input_gets_one_clear_error(kwargs, error, part):
    with pytest.raises(error) as info:
        cj.calibrate(**{"protocol": RUN, "delta": 1e-6, **kwargs})
    assert part in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("run", "at_one", "target"),
    [
        (cj.AveragedUpdates(num_clients=1_000, num_slots=1, check_in_prob=1e-3), 0.2432, 0.24809),
        (cj.AveragedUpdates(num_clients=200, num_slots=5, check_in_prob=0.02), 1.0363, 1.05706),
    ],
)
@pytest.mark.thorough
def test_where_noise_adds_up_the_largest_rate_is_not_missed(run, at_one, target):
    """Epsilon rises and falls again with the rate: every client at once may be the quietest."""
    delta = 1e-6 if run.num_clients == 1_000 else 1e-4
    noise = cj.Gaussian(noise_multiplier=1.0)
    everybody = dataclasses.replace(run, check_in_prob=1.0)
    few = dataclasses.replace(run, check_in_prob=0.1)
    assert cj.account(
        everybody, noise, delta=delta, view="aggregate", bounds="fast"
    ).epsilon == pytest.approx(at_one, rel=1e-3)
    assert cj.account(few, noise, delta=delta, view="aggregate", bounds="fast").epsilon > target
    found = cj.calibrate(
        run, noise, target_epsilon=target, delta=delta, view="aggregate", free="check_in_prob", bounds="fast"
    )
    assert found.value == 1.0
    tighter = cj.calibrate(
        run, noise, target_epsilon=0.05, delta=delta, view="aggregate", free="check_in_prob", bounds="fast"
    )
    assert tighter.value < 1e-3
    assert tighter.guarantee.epsilon <= 0.05


def test_derivatives_of_power_laws_are_exact():
    """In the local view few messages compose to their sum."""
    run = cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=1.0, num_rounds=3)
    found = cj.sensitivities(run, cj.PureLDP(epsilon0=0.5), delta=1e-9, view="local")
    assert (
        found.guarantee.epsilon == cj.account(run, cj.PureLDP(epsilon0=0.5), delta=1e-9, view="local").epsilon
    )
    assert found.slopes["epsilon0"].upper == pytest.approx(3.0, rel=1e-3)
    assert found.slopes["num_rounds"].upper == pytest.approx(0.5, rel=1e-3)
    assert found.slopes["num_clients"].upper == 0.0
    assert "d epsilon / d epsilon0: about 3\n" in str(found)


@pytest.mark.parametrize(
    ("run", "randomizer", "view"),
    [
        (
            cj.ShuffledCheckIn(num_clients=2_000, check_in_prob=0.1, num_rounds=50),
            cj.PureLDP(epsilon0=1.0),
            "messages",
        ),
        (cj.Shuffle(num_clients=500, num_rounds=20), cj.Gaussian(noise_multiplier=2.0), "aggregate"),
        (cj.FixedWindow(num_clients=2_000, num_slots=200), cj.PureLDP(epsilon0=1.0), "messages"),
        (cj.SlidingWindow(num_clients=400, window=200), cj.PureLDP(epsilon0=1.0), "messages"),
    ],
)
def test_derivatives_have_the_signs_and_sizes_of_differences(run, randomizer, view):
    def upper(protocol=run, randomizer=randomizer, delta=1e-6):
        return cj.account(protocol, randomizer, delta=delta, view=view, bounds="fast").epsilon

    found = cj.sensitivities(run, randomizer, delta=1e-6, view=view, bounds="fast").slopes
    own = randomizer.variable.name
    assert set(found) == {*(each.name for each in run.variables), own, "delta"}
    value = getattr(randomizer, own)
    high, low = (
        upper(randomizer=dataclasses.replace(randomizer, **{own: value * (1 + h)})) for h in (0.03, -0.03)
    )
    assert found[own].upper == pytest.approx((high - low) / (0.06 * value), rel=0.1)
    assert found["delta"].upper < 0
    assert found["delta"].upper == pytest.approx(
        (upper(delta=1.05e-6) - upper(delta=0.95e-6)) / 1e-7, rel=0.1
    )


def test_messages_that_tell_nothing_have_a_derivative_on_one_side():
    run = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.1, num_rounds=10)
    found = cj.sensitivities(run, cj.PureLDP(epsilon0=0.0), delta=1e-6)
    assert found.guarantee.epsilon == 0.0
    assert 0.0 < found.slopes["epsilon0"].upper < 1.0


def test_an_infinite_end_has_no_derivative():
    run, noise = cj.Shuffle(num_clients=100), cj.ApproximateLDP(epsilon0=1.0, delta0=1e-3)
    found = cj.sensitivities(run, noise, delta=1e-9)
    assert found.guarantee.epsilon == math.inf
    assert found.slopes["num_clients"].upper is None
    assert "about unknown" not in str(found)
    assert "num_clients: unknown" in str(found)


def test_a_parameter_at_the_end_of_its_range_is_lowered():
    found = cj.sensitivities(cj.Shuffle(num_clients=100), cj.PureLDP(epsilon0=1.0), delta=1.0)
    assert found.slopes["delta"] == (0.0, 0.0)
    assert "about -0" not in str(found)
