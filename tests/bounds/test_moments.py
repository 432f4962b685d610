"""Renyi moments of mixtures of clones' counts: never below the pair's own, near it, and independent of the company."""

import contextlib
import math
from fractions import Fraction
from typing import NamedTuple

import jax
import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.messages.cover import Shuffled, UniformSlot
from checkin_jax.accounting.composition import renyi
from checkin_jax.accounting.composition.renyi import unit_curve
from checkin_jax.kernels import clones
from checkin_jax.kernels.composition import moments as kernels
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.sweeps import curves, formulas
from tests.oracles import large, pairs
from tests.oracles.binomial import log_pmf

ORDERS = np.array([1.01, 1.5, 2.0, 5.5, 20.0, 64.0])


def ours(n, rate, epsilon0, orders=ORDERS):
    with float64():
        return renyi.log_moments_of_mixture(
            Clones(Shuffled(n, rate), epsilon0, 60.0).mixture, np.asarray(orders)
        )


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0", "excess"),
    [
        (1, 0.5, 1.0, 3e-8),
        (5, 0.3, 2.0, 3e-8),
        (48, 0.5, 6.0, 3e-8),
        (49, 0.5, 6.0, 0.01),
        (120, 0.5, 2.0, 0.003),
        (120, 0.05, 4.0, 0.002),
        (200, 1.0, 2.0, 0.001),
    ],
)
def test_moments_are_above_the_pair(n, rate, epsilon0, excess):
    pair = pairs.enumerate_pair(pairs.t1_labels(math.exp(epsilon0), rate), n)
    exact = np.log1p(pairs.renyi_excess(pair, ORDERS))
    found = ours(n, rate, epsilon0)
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= exact * (1 + excess))[:4].all()


@pytest.mark.parametrize(
    ("n", "rate", "epsilon0"), [(60_000, 0.1, 2.0), (20_000, 0.9, 0.3), (3_000, 0.1, 1.0)]
)
def test_moments_keep_their_digits_at_large_n(n, rate, epsilon0):
    orders = [1.01, 1.5, 2.0, 8.0, 32.0]
    labels = pairs.t1_labels(math.exp(epsilon0), rate)
    exact = np.log1p(large.large_renyi_excess(labels, n, orders))
    ratio = ours(n, rate, epsilon0, orders) / exact
    assert (ratio >= 1 - 1e-11).all()
    assert (ratio <= 1.0015).all()


def slots_moment(slots, used, epsilon0, orders):
    """log A of T2's pair, summed over N and N0 in logarithms of exact binomials."""
    p, special = math.exp(epsilon0), 2.0 / (math.exp(epsilon0) + 1.0)
    number = np.arange(0, slots + 1)[:, None]
    first = np.arange(0, slots + 1)[None, :]
    valid = first <= number
    log_mass = np.array([float(log_pmf(slots, int(k), special)) for k in number.ravel()])[:, None]
    log_choose = np.array(
        [
            [
                math.lgamma(k + 1) - math.lgamma(i + 1) - math.lgamma(k - i + 1) if i <= k else 0.0
                for i in first[0]
            ]
            for k in number[:, 0]
        ]
    )
    mass = np.where(valid, np.exp(log_mass + log_choose - number * math.log(2.0)), 0.0)
    always = slots * (1.0 - used) / used
    up = mass * used * (p * first + (number - first) + always) / slots
    down = mass * used * (first + p * (number - first) + always) / slots
    keep = valid & (down > 0)
    return np.log1p(pairs.renyi_excess(pairs.Pair(up[keep], down[keep]), orders))


@pytest.mark.parametrize(("slots", "used", "epsilon0"), [(20, 0.6, 1.5), (150, 0.3, 2.0), (150, 1.0, 1.0)])
def test_slots_too(slots, used, epsilon0):
    exact = slots_moment(slots, used, epsilon0, ORDERS[:5])
    with float64():
        mixture = Clones(UniformSlot(slots, used, used), epsilon0, 60.0).mixture
        found = renyi.log_moments_of_mixture(mixture, ORDERS[:5])
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= exact * 1.004)[:4].all()


def test_orders_and_rows_do_not_depend_on_their_company():
    together, run = np.geomspace(1.001, 900.0, 40), cj.ShuffledCheckIn(num_clients=10**7, check_in_prob=0.3)
    whole = cj.rdp(run, cj.PureLDP(epsilon0=1.0), together)
    alone = [cj.rdp(run, cj.PureLDP(epsilon0=1.0), [order])[0] for order in together]
    np.testing.assert_allclose(whole, alone, rtol=1e-13)
    assert (np.diff(whole) > 0).all()  # divergences increase with their order


def lanes_of(settings, orders):
    """Lanes of every setting (n, rate, epsilon0) at every order."""
    n, rate, epsilon0 = (np.array(column, dtype=np.float64) for column in zip(*settings))
    index = np.repeat(np.arange(len(n)), len(orders))
    law = clones.upper_law(n, rate, epsilon0)
    return renyi.lanes(law, epsilon0, rate * (1 - rate) / n, index, np.tile(orders, len(n)), 64)


def test_compiled_lanes_give_what_the_host_gives():
    """What an accelerator runs, here on the CPU: more nodes and buckets, so hardly less, and never less than the
    pair's own."""
    settings, orders = [(20_000, 0.9, 0.3), (10**8, 0.01, 1.0), (40, 0.5, 1.0)], np.array([1.5, 2.0, 8.0])
    compiled = np.empty((3, 3))
    with float64():
        cpu = jax.local_devices(backend="cpu")[:1]
        for where, values in curves.log_moments(lanes_of(settings, orders), cpu, most=4):
            compiled.ravel()[where] = values
    host = np.stack([ours(*one, orders) for one in settings])
    assert (compiled <= host * (1 + 1e-9)).all()
    assert (compiled >= host * (1 - 2e-3)).all()
    assert (compiled[0] < host[0]).all(), "other sizes"
    n, rate, epsilon0 = settings[0]
    exact = np.log1p(large.large_renyi_excess(pairs.t1_labels(math.exp(epsilon0), rate), n, orders))
    assert (compiled[0] >= exact * (1 - 1e-11)).all()


def test_compiled_lanes_of_random_settings_are_above_the_pair():
    """Settings from the clock; moments of up to e^300, most of them of events that no sum of few terms shows."""
    rng = np.random.default_rng()
    orders, count = np.geomspace(1.25, 256.0, 12), 6
    settings = [
        (int(10 ** rng.uniform(1.7, 3.7)), 10 ** rng.uniform(-2, 0), math.exp(rng.uniform(-2.0, 1.2)))
        for _ in range(count)
    ]
    compiled = np.empty(count * len(orders))
    with float64():
        cpu = jax.local_devices(backend="cpu")[:1]
        for where, values in curves.log_moments(lanes_of(settings, orders), cpu, most=8):
            compiled[where] = values
    for (n, rate, epsilon0), found in zip(settings, compiled.reshape(count, -1)):
        excess = large.large_renyi_excess(pairs.t1_labels(math.exp(epsilon0), rate), n, orders)
        assert (found >= np.log1p(excess) * (1 - 1e-11)).all(), (n, rate, epsilon0)


def test_lanes_hold_every_order_of_their_setting_once():
    settings, orders = [(10**6, 0.1, 1.0), (40, 1.0, 2.0), (10**4, 0.3, 0.1)], np.geomspace(1.1, 900.0, 150)
    seen = []
    for _, lane, where in lanes_of(settings, orders):
        assert where.shape[1] <= 64
        np.testing.assert_array_equal(lane.orders, np.tile(orders, 3)[where])
        setting = where // len(orders)
        assert (setting == setting[:, :1]).all()
        np.testing.assert_array_equal(lane.epsilon0, np.array([one[2] for one in settings])[setting[:, 0]])
        seen.append(np.concatenate([np.unique(row) for row in where]))
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(3 * len(orders)))


class _Accelerator(NamedTuple):
    """A CPU that says that it is none."""

    platform: str = "gpu"


@pytest.mark.thorough
def test_a_sweep_on_an_accelerator_batches_what_has_a_kernel(monkeypatch):
    """The rest, and what is refused, is the host's."""
    table = {"num_clients": [10**6, 1000, 20, -1, 10**6], "epsilon0": [1.0, 2.0, 1.0, 1.0, 0.0]}
    about = {"what": "rdp", "protocol": cj.Shuffle, "table": {**table, "order": [2.0, 7.0, 3.0, 2.0, 2.0]}}
    right, asked = cj.sweep(**about), []
    cpu = jax.local_devices(backend="cpu")[:1]

    def batched(lanes, devices):
        asked.append(sum(len(each.where) for each in lanes))
        return real(lanes, cpu, most=1)

    real = curves.log_moments
    with monkeypatch.context() as patch:
        patch.setattr(curves, "log_moments", batched)
        patch.setattr(jax, "local_devices", lambda backend=None: cpu if backend else [_Accelerator()])
        patch.setattr(jax, "default_device", lambda device: contextlib.nullcontext())
        found = cj.sweep(**about)
    assert asked == [3]
    np.testing.assert_allclose(found["rdp"], right["rdp"], rtol=2e-3)
    for name in ("method", "validity", "error"):
        assert found[name].tolist() == right[name].tolist()


def test_published_formulas_on_an_accelerator_are_the_same(monkeypatch):
    """More settings at a time."""
    about = {"num_clients": [10**4, 10**6, -1], "check_in_prob": 0.1, "epsilon0": [0.5, 2.0], "delta": 1e-6}
    about |= {"what": "published", "bound": ["theorem-1", "theorem-2"]}
    right, cpu, together = cj.sweep(**about), jax.local_devices(backend="cpu")[:1], []
    real = formulas.parts

    def parts(inputs, index, platform):
        together.append(platform)
        return real(inputs, index, platform)

    with monkeypatch.context() as patch:
        patch.setattr(formulas, "parts", parts)
        patch.setattr(jax, "local_devices", lambda backend=None: cpu if backend else [_Accelerator()])
        patch.setattr(jax, "default_device", lambda device: contextlib.nullcontext())
        found = cj.sweep(**about)
    assert together == ["gpu"]
    for name in set(right.columns) - {"seconds"}:
        np.testing.assert_array_equal(found[name], right[name])


def test_cost_does_not_grow_with_n():
    """The same shapes from 1e8 to 1e12 clients: arrays are what the work is done on."""
    with float64():
        shapes = {
            each.choice
            for n in (10**8, 10**10, 10**12)
            for each in lanes_of([(n, 0.1, 1.0)], np.array([2.0]))
        }
    assert len(shapes) == 1


def test_mass_at_the_lower_node_is_no_bound(monkeypatch):
    def wrong(n, edges):
        masses = np.asarray(right(n, edges))
        return np.concatenate([masses[:, 1:], np.zeros_like(masses[:, :1])], axis=1)

    n, rate, epsilon0 = 3_000, 0.1, 1.0
    exact = np.log1p(large.large_renyi_excess(pairs.t1_labels(math.exp(epsilon0), rate), n, [2.0, 8.0]))
    right = kernels._at_edges
    monkeypatch.setattr(kernels, "_at_edges", wrong)
    assert (ours(n, rate, epsilon0, [2.0, 8.0]) < exact).all()


def test_what_the_mixture_leaves_out_must_be_counted(monkeypatch):
    """With a window of e^-1 the rest is most of a high order's moment."""
    n, rate, epsilon0, orders = 120, 0.3, 2.0, np.array([20.0, 64.0])
    pair = pairs.enumerate_pair(pairs.t1_labels(math.exp(epsilon0), rate), n)
    exact = np.log1p(pairs.renyi_excess(pair, orders))
    monkeypatch.setattr(renyi, "_LEAST_MASSES", (1.0,))
    assert (ours(n, rate, epsilon0, orders) >= exact).all()
    right = kernels._left_out
    monkeypatch.setattr(
        kernels,
        "_left_out",
        lambda *given: (lambda number, log_weight: (number, log_weight - np.inf))(*right(*given)),
    )
    assert (ours(n, rate, epsilon0, orders) < exact).any()


def test_a_mass_at_infinite_loss_has_no_moments():
    class Leaves:
        def __init__(self, rest):
            self.rest = rest

        def upper(self, loss):
            return np.where(loss < 1.0, 0.1 * (1.0 - loss), 0.0) + self.rest

    with float64():
        finite, infinite = (renyi._by_profile([Leaves(rest)], 1.0, np.array([2.0])) for rest in (0.0, 1e-30))
    assert 0.0 < finite[0] < math.inf
    assert infinite[0] == math.inf


def test_names_say_what_a_divergence_rests_on():
    orders = np.array([2.0])
    slots = cj.FixedWindow(num_clients=10**5, num_slots=1000, check_in_prob=0.5)
    assert unit_curve(slots, cj.PureLDP(epsilon0=1.0)).curve(orders).names == ["clones"]
    run = cj.ShuffledCheckIn(num_clients=1000, check_in_prob=0.5)
    assert unit_curve(run, cj.PureLDP(epsilon0=1e-12)).curve(orders).names == ["a message by itself"]
    found = cj.sweep(
        what="rdp",
        randomizer=cj.KaryResponse,
        num_clients=1000,
        check_in_prob=0.5,
        epsilon0=1.0,
        num_values=5,
        order=2.0,
    )
    assert "own-laws" in found["method"][0]
    assert found["method"][0].endswith(", RDP")


@pytest.mark.parametrize(("n", "rate", "rounds", "delta"), [(60_000, 0.1, 1000, 1e-6), (40, 0.5, 3, 1e-5)])
def test_the_best_order_is_the_best_of_a_fine_grid_and_above_the_composed_law(n, rate, rounds, delta):
    run, messages = (
        cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate, num_rounds=rounds),
        cj.PureLDP(epsilon0=1.0),
    )
    epsilon, order = cj.epsilon_by_rdp(run, messages, delta=delta)
    orders = np.geomspace(1.5, 3000.0, 400)
    values = cj.rdp(run, messages, orders)
    t = orders - 1.0
    tried = values + (-math.log(delta) + t * np.log1p(-1.0 / orders) - np.log(orders)) / t
    assert epsilon <= tried.min() * (1 + 1e-4)
    assert epsilon >= cj.account(run, messages, delta=delta, bounds="fast").lower
    swept = cj.sweep(
        what="rdp-epsilon",
        num_clients=n,
        check_in_prob=rate,
        num_rounds=rounds,
        epsilon0=1.0,
        delta=[delta, 2.0],
    )
    assert (swept["epsilon"][0], swept["optimal_order"][0], swept["method"][0]) == (
        epsilon,
        order,
        "clones, RDP",
    )
    assert swept["error"][1].startswith("delta=2.0: expected")


def _sum_of_signs(number, power):
    """E S^power of a sum of signs, an exact fraction."""
    total = sum(math.comb(number, k) * (2 * k - number) ** power for k in range(number + 1))
    return Fraction(total, 2**number)


@pytest.mark.parametrize("number", [1, 2, 7, 40, 300])
def test_moments_of_sums_of_signs_are_rounded_up(number):
    with float64():
        found = kernels._relative_moments(np.array([float(number)]), 24)[0]
    double = 1
    for k, value in enumerate(found, start=1):
        double *= 2 * k - 1
        exact = float(_sum_of_signs(number, 2 * k) / (double * number**k))
        assert value >= exact * (1 - 1e-13)
        if k <= number:
            assert value <= exact * (1 + 1e-8)


def test_coefficients_of_the_moments_are_those_of_the_series():
    """(1 + x)^lam (1 - x)^(1 - lam), multiplied out with binomial coefficients of exact fractions."""
    orders = [Fraction(5, 4), Fraction(7, 2), Fraction(40)]

    def binomial(top, k):
        return math.prod((top - i for i in range(k)), start=Fraction(1)) / math.factorial(k)

    with float64():
        found = kernels._log_coefficients(np.array([float(order) for order in orders]), 12)
    for order, row in zip(orders, found):
        for k, value in enumerate(row, start=1):
            exact = sum(
                binomial(order, i) * binomial(1 - order, 2 * k - i) * (-1) ** i for i in range(2 * k + 1)
            )
            assert value == pytest.approx(math.log(exact), abs=1e-13)


def series(n, rate, epsilon0, orders, terms):
    """log A by so many terms of the series, whether or not they suffice."""
    with float64():
        law = Clones(Shuffled(n, rate), epsilon0, 690.0).mixture.law
        lane = kernels.Lane(
            type(law)(*(np.ravel(part) for part in law)),
            *map(np.float64, (epsilon0, 690.0, 0.0, 0.0)),
            orders=np.asarray(orders),
        )
        return kernels.log_moments(lane, kernels.Discretization(96, 1, (), 0, terms))


def test_few_terms_of_the_series_are_a_bound_and_their_rest_is_needed(monkeypatch):
    n, rate, epsilon0, orders = 30_000, 0.1, 1.0, [1.5, 8.0, 256.0]
    exact = np.log1p(large.large_renyi_excess(pairs.t1_labels(math.exp(epsilon0), rate), n, orders))
    for terms in (2, 4, 128):
        assert (series(n, rate, epsilon0, orders, terms) >= exact * (1 - 1e-11)).all()
    assert (series(n, rate, epsilon0, orders, 128) <= exact * 1.003).all()
    monkeypatch.setattr(kernels, "_log_rest", lambda lane, terms: np.full(len(orders), -np.inf))
    assert series(n, rate, epsilon0, orders, 2)[-1] < exact[-1]
