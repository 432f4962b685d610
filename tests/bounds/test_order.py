"""Order at every setting: ends, views and choices of theorems, what only helps, and the corners of the domain."""

import dataclasses
import math

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.protocols import VIEWS

MANY = 10**12


def drawn(seed):
    """A protocol, a randomizer and a delta from wide ranges."""
    rng = np.random.default_rng(seed)
    n, rounds = int(10 ** rng.uniform(0, rng.choice([1, 4, 9]))), int(10 ** rng.uniform(0, 3))
    rate = float(rng.choice([10 ** rng.uniform(-8, 0), 1 - 10 ** rng.uniform(-8, -1), 1.0]))
    slots, delta = int(10 ** rng.uniform(0, 5)), 10 ** -float(rng.uniform(1, rng.choice([12, 290])))
    window = {"num_clients": n, "num_slots": slots, "check_in_prob": rate, "num_epochs": rounds}
    protocol = [
        lambda: cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds),
        lambda: cj.Shuffle(num_clients=n, num_rounds=rounds),
        lambda: cj.FixedWindow(**window),
        lambda: cj.FixedWindow(**window, empty_slots="visible"),
        lambda: cj.SlidingWindow(num_clients=n, window=min(slots, n), num_epochs=rounds),
        lambda: cj.AveragedUpdates(**window),
    ][seed % 6]()
    if rng.random() < 0.5:
        return protocol, cj.Gaussian(noise_multiplier=10 ** rng.uniform(-1, 3)), delta
    return protocol, cj.PureLDP(epsilon0=10 ** rng.uniform(-3, 1.6)), delta


CORNERS = [
    cj.ShuffledCheckIn(num_clients=1, check_in_prob=1.0, num_rounds=10**9),
    cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.5, num_rounds=3),
    cj.ShuffledCheckIn(num_clients=MANY, check_in_prob=1e-6, num_rounds=10**9),
    cj.ShuffledCheckIn(num_clients=MANY, check_in_prob=1.0, num_rounds=10**8),
    cj.Shuffle(num_clients=1000),
    cj.Shuffle(num_clients=MANY),
    cj.FixedWindow(num_clients=MANY, num_slots=MANY, check_in_prob=1e-9, num_epochs=10**6),
    cj.FixedWindow(num_clients=MANY, num_slots=3),
    cj.FixedWindow(num_clients=1, num_slots=1, empty_slots="visible"),
    cj.FixedWindow(num_clients=7, num_slots=MANY, empty_slots="visible"),
    cj.FixedWindow(num_clients=10**6, num_slots=10**6, check_in_prob=0.5),
    cj.SlidingWindow(num_clients=500, window=100),
    cj.SlidingWindow(num_clients=MANY, window=MANY),
    cj.SlidingWindow(num_clients=MANY, window=10**6),
    cj.AveragedUpdates(num_clients=MANY, num_slots=10, check_in_prob=1e-12),
    cj.AveragedUpdates(num_clients=1000, num_slots=10, check_in_prob=0.5),
]
MESSAGES = [
    *((cj.PureLDP(epsilon0=epsilon0), 1e-6) for epsilon0 in (0.0, 1e-300, 1e-7, 8.0, 50.0)),
    *(
        (cj.PureLDP(epsilon0=epsilon0), delta)
        for epsilon0, delta in ((1e-6, 1e-100), (1.0, 1e-250), (2.0, 1e-300))
    ),
    *((cj.Gaussian(noise_multiplier=noise), 1e-6) for noise in (1e-30, 0.03, 0.07, 1.0, 1e7, 1e30)),
]


def check(protocol, randomizer, delta, **how):
    """The ends of every view are in order, and of views that see less no upper end is larger."""
    found = {view: cj.account(protocol, randomizer, delta=delta, view=view, **how) for view in VIEWS}
    for g in found.values():
        assert 0.0 <= g.lower <= g.epsilon
        assert math.isfinite(g.epsilon) or any("no finite epsilon" in warning for warning in g.warnings)
        if isinstance(randomizer, cj.PureLDP):
            assert g.epsilon <= randomizer.epsilon0 * protocol.num_units * (1 + 1e-9)
    assert found["aggregate"].epsilon <= found["messages"].epsilon <= found["local"].epsilon
    return found["messages"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.thorough(but=2)
def test_who_sees_less_never_learns_more(seed):
    check(*drawn(seed), bounds="fast")


@pytest.mark.parametrize("message", MESSAGES, ids=str)
@pytest.mark.parametrize("protocol", CORNERS, ids=str)
@pytest.mark.turns(4)
@pytest.mark.thorough(but=12)
def test_corners_of_the_domain_have_answers_in_order(protocol, message):
    randomizer, delta = message
    check(protocol, randomizer, delta, bounds="fast")


@pytest.mark.parametrize("noise", [1e-30, 0.03, 1e7, 1e30])
@pytest.mark.parametrize("protocol", [CORNERS[1], CORNERS[4], CORNERS[11], CORNERS[15]], ids=str)
@pytest.mark.thorough(but=3)
def test_more_theorems_never_give_more(protocol, noise):
    sliding = isinstance(protocol, cj.SlidingWindow)
    how = {"delta": 1e-6, "neighboring_relation": "add-or-remove-one" if sliding else "replace-one"}
    best, fast = (
        cj.account(protocol, cj.Gaussian(noise_multiplier=noise), bounds=words, **how)
        for words in ("best", "fast")
    )
    assert 0.0 <= best.lower <= best.epsilon <= fast.epsilon * (1 + 1e-6) + 1e-30


BASES = [
    cj.ShuffledCheckIn(num_clients=200, check_in_prob=0.6, num_rounds=100),
    cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=1e-3, num_rounds=10_000),
    cj.Shuffle(num_clients=5_000, num_rounds=4),
    cj.FixedWindow(num_clients=1000, num_slots=500, check_in_prob=0.7, num_epochs=2),
    cj.FixedWindow(num_clients=400, num_slots=90, num_epochs=10, empty_slots="visible"),
    cj.SlidingWindow(num_clients=3000, window=1000, num_epochs=2),
    cj.AveragedUpdates(num_clients=1000, num_slots=20, check_in_prob=0.5, num_epochs=3),
]


def helped(run):
    """The same run with fewer repetitions, a smaller rate, more clients, or hidden empty slots."""
    yield run.repeated(run.num_units // 2)
    for name, change in (("check_in_prob", lambda rate: rate / 2), ("num_clients", lambda n: 3 * n)):
        if hasattr(run, name) and not isinstance(run, cj.SlidingWindow):
            yield dataclasses.replace(run, **{name: change(getattr(run, name))})
    if getattr(run, "empty_slots", "dummy") == "visible":
        yield dataclasses.replace(run, empty_slots="dummy")


@pytest.mark.parametrize(("epsilon0", "delta"), [(0.1, 1e-6), (1.0, 1e-60), (4.0, 1e-12)])
@pytest.mark.parametrize("run", BASES, ids=str)
@pytest.mark.turns(3)
@pytest.mark.thorough(but=3)
def test_what_only_helps_never_costs(run, epsilon0, delta):
    """Half a percent is allowed for the grids of the two settings, whose slack differs."""

    def ends(run=run, epsilon0=epsilon0, delta=delta):
        g = cj.account(run, cj.PureLDP(epsilon0=epsilon0), delta=delta, bounds="fast")
        return np.array([g.lower, g.epsilon])

    here = ends()
    assert here[0] <= here[1]
    for less in (*map(ends, helped(run)), ends(epsilon0=0.7 * epsilon0), ends(delta=10 * delta)):
        assert (less <= here * 1.005 + 1e-12).all()
    if run.num_units == 2:  # no more than two by themselves at half of delta each
        assert here[1] <= 2 * ends(run.repeated(1), delta=delta / 2)[1] * (1 + 1e-9)
