"""Ends of epsilon by a contour integral: never on the wrong side of exact compositions, near them, as of `account`."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from oracles import exact_rounds

import checkin_jax as cj
from benchmarks import sweeps as kinds
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.one_step_bounds import KaryBound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels import host, stop_loss
from checkin_jax.kernels.composition import composed_contour, pld
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages import hidden_messages, hidden_messages_lower, staged_games
from checkin_jax.sweeps import brackets
from checkin_jax.sweeps.formulas import OneRate
from checkin_jax.sweeps.results import Question, Results

ROOT = Path(__file__).resolve().parents[2]
CPU = jax.local_devices(backend="cpu")[:1]
# Atoms are padded to one shape.
SIZE = 9


def exact_epsilon(losses, masses, delta):
    """Epsilon at delta of a finite law of the loss, from below, within rounding."""

    def above(epsilon):
        return math.fsum(masses * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)) > delta

    low, high = 0.0, max(float(np.max(losses)), 0.0)
    if not above(low):
        return 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


@functools.cache
def compiled(*constants):
    del constants  # one program each

    def end(atoms, counts, log_delta, upper):
        order = composed_contour.order(atoms, counts, log_delta)
        composed = composed_contour.compose(atoms, counts, order, upper)
        return composed_contour.end(composed, log_delta, upper)[0]

    return jax.jit(end)


def ends(losses, masses, rounds, delta):
    """The lower and the upper end of so many rounds."""
    losses, masses = (np.pad(part, (0, SIZE - len(part)))[None] for part in (losses, masses))
    with float64():
        program = compiled(composed_contour._SMOOTHING, composed_contour._PER_DEVIATION)
        given = (
            pld.Atoms(host(losses), host(masses), host([0.0])),
            host([float(rounds)]),
            host(math.log(delta)),
        )
        return tuple(float(program(*given, np.asarray(upper))) for upper in (False, True))


@pytest.mark.parametrize(
    ("smoothing", "per_deviation"), [(0.005, 204.8), (0.8, 51.2), (0.005, 640.0), (0.005, 440.0)]
)
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-6, 1e-12, 1e-60])
@pytest.mark.parametrize(
    ("epsilon0", "rounds"), [(1.0, 1000), (0.01, 1000), (0.05, 100_000), (0.5, 50), (0.3, 3)]
)
def test_rounds_of_randomized_response(epsilon0, rounds, delta, smoothing, per_deviation, monkeypatch):
    """Large smoothing makes a wrong term of either kernel large, and a short period what it adds."""
    monkeypatch.setattr(composed_contour, "_SMOOTHING", smoothing)
    monkeypatch.setattr(composed_contour, "_PER_DEVIATION", per_deviation)
    often, number = 1.0 / (1.0 + math.exp(-epsilon0)), np.arange(rounds + 1.0)
    masses = scipy.stats.binom.pmf(number, rounds, often)
    exact = exact_epsilon(epsilon0 * (2.0 * number - rounds), masses, delta)
    lower, upper = ends([epsilon0, -epsilon0], [often, 1.0 - often], rounds, delta)
    assert lower <= exact * (1.0 + 1e-9)
    assert upper >= exact * (1.0 - 1e-9)
    if rounds >= 1000 and (smoothing, per_deviation) == (0.005, 204.8) and delta > 1e-30:
        assert lower >= exact * (1.0 - 1e-3)
        assert upper <= exact * (1.0 + 2e-3)


def test_frequencies_beyond_the_nodes_count(monkeypatch):
    """A narrow normal variable leaves many of them, a few rounds let none fall; without them ends are wrong."""
    monkeypatch.setattr(composed_contour, "_SMOOTHING", 0.001)
    cases = [(0.3, 3), (1.0, 2), (1.0, 1), (2.0, 4), (0.05, 7)]

    def wrong():
        found = 0
        for (epsilon0, rounds), delta in itertools.product(cases, [0.3, 0.1, 0.03, 0.01, 1e-3]):
            often, number = 1.0 / (1.0 + math.exp(-epsilon0)), np.arange(rounds + 1.0)
            masses = scipy.stats.binom.pmf(number, rounds, often)
            exact = exact_epsilon(epsilon0 * (2.0 * number - rounds), masses, delta)
            lower, upper = ends([epsilon0, -epsilon0], [often, 1.0 - often], rounds, delta)
            found += lower > exact * (1.0 + 1e-9) or upper < exact * (1.0 - 1e-9)
        return found

    assert wrong() == 0
    beyond = stop_loss.beyond
    monkeypatch.setattr(stop_loss, "beyond", lambda *given: 0.0 * beyond(*given))
    compiled.cache_clear()
    assert wrong() > 0
    compiled.cache_clear()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rounds", [1, 3, 10, 1000])
def test_infinite_losses_of_a_law_of_mass_above_one(rounds):
    """Of the product measure; as if the total were one they would be too few."""
    rare, total = 1e-4, 1.002
    given = (
        pld.Atoms(host([[0.5, -0.5]]), host([[0.6, total - 0.6 - rare]]), host([rare])),
        host([float(rounds)]),
    )
    order = composed_contour.order(*given, host(math.log(1e-3)))
    found = float(composed_contour.compose(*given, order, np.asarray(True)).infinite)
    exact = total**rounds - (total - rare) ** rounds
    assert exact <= found * (1.0 + 1e-12)
    assert found <= 1.03 * exact
    assert rounds == 1 or -math.expm1(rounds * math.log1p(-rare)) < exact


def test_the_search_ends_where_floats_are_wider_apart_than_its_width():
    """The mean is a million standard deviations of the sum: a halving leaves the interval as it is."""
    rounds, number = 100_000, np.arange(100_001.0)
    masses = scipy.stats.binom.pmf(number, rounds, 0.5)
    exact = exact_epsilon(1e5 - 1e-5 * number, masses, 1e-6)
    lower, upper = ends([1.0, 0.99999], [0.5, 0.5], rounds, 1e-6)
    assert lower <= exact * (1.0 + 1e-9)
    assert upper >= exact * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("low", "value"), [(1e9, lambda x: (x - 1e9 - 1.1, np.nan)), (0.0, lambda x: (-1.0, 9e4))]
)
def test_searches_in_numpy_end(low, value):
    """Floats wider apart than the width; and a slope so steep that every Newton step is short."""
    steps = itertools.count()

    def counted(x):
        assert next(steps) < 1000
        return value(x)

    high = np.float64(low + 16.0)
    assert low <= backend.crossing(counted, np.float64(low), high, 40) <= high


def test_few_rounds_of_any_law():
    """Laws from the clock; all sums of their losses are listed."""
    rng, found = np.random.default_rng(int(time.time())), 0
    for _ in range(40):
        count, rounds = int(rng.integers(3, SIZE)), int(rng.integers(2, 6))
        losses, second = rng.normal(size=count) * rng.choice([0.01, 0.3, 2.0]), rng.dirichlet(np.ones(count))
        first = second * np.exp(losses)
        losses, first = losses - math.log(first.sum()), first / first.sum()
        sums, masses = losses, first
        for _ in range(rounds - 1):
            sums, masses = np.add.outer(sums, losses).ravel(), np.multiply.outer(masses, first).ravel()
        for delta in (0.1, 0.01, 1e-4):
            exact = exact_epsilon(sums, masses, delta)
            lower, upper = ends(losses, first, rounds, delta)
            assert lower <= exact + 1e-9 <= upper + 2e-9, (losses, first, rounds, delta)
            found += lower > 0.0 and upper < math.inf
    assert found > 10


def test_shells_are_the_lines_of_their_events():
    """Events of a normal law, in NumPy and traced; with a line left out of order, still below all lines."""
    at = np.linspace(0.01, 6.0, 30)
    first, second = scipy.stats.norm.sf(at - 0.5), scipy.stats.norm.sf(at + 0.5)
    for apart, mass in (
        (first - second, second),
        (np.delete(first - second, 7), np.delete(second, 8)),
    ):
        with float64():
            losses, side = pld.shells(host(apart), host(mass))
            traced = jax.jit(pld.shells)(host(apart), host(mass))
        for one, other in zip(jax.tree.leaves(traced), jax.tree.leaves((losses, side))):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-15)
        c = np.exp(np.linspace(0.0, 6.0, 200))
        lines = np.max(apart - (c[:, None] - 1.0) * mass, axis=1)
        profile = np.sum(np.maximum(np.asarray(side.near) - c[:, None] * np.asarray(side.far), 0.0), axis=1)
        assert (profile <= np.maximum(lines, 0.0) * (1.0 + 1e-9) + 1e-15).all()
        if len(apart) == len(at):
            assert (profile >= lines * (1.0 - 1e-6) - 1e-9).all()


def test_traced_searches_find_what_numpy_finds():
    def value(x):
        return backend.xp.expm1(x) - 3.0, backend.xp.exp(x)

    with float64():
        for low, high in ((0.0, 5.0), (2.0, 5.0), (0.0, 1.0)):
            given = np.asarray(low), np.asarray(high)
            traced = jax.jit(lambda a, b: backend.crossing(value, a, b, 40))(*map(jnp.asarray, given))
            np.testing.assert_allclose(traced, backend.crossing(value, *given, 40), atol=1e-9)
        values = np.random.default_rng(0).normal(size=20)
        np.testing.assert_array_equal(
            backend.largest_from_here(jnp.asarray(values)), backend.largest_from_here(values)
        )


def rows_of(table, randomizer=cj.PureLDP):
    given = OneRate.of(table)
    columns = given.num_clients, given.rate, given.num_rounds, table["delta"]
    made = [
        randomizer(**{name: table[name][i].item() for name in ("epsilon0", "num_values") if name in table})
        for i in range(len(table["delta"]))
    ]
    with float64():
        rows = [brackets._row(each, *map(float, one)) for each, *one in zip(made, *columns)]
        return [i for i, row in enumerate(rows) if row is not None], [row for row in rows if row is not None]


def lane_at(losses, epsilon0, delta):
    """A lane with these losses, the odd ones between."""
    row = rows_of(SOME)[1][0]
    about = {"epsilon0": host(epsilon0), "log_delta": host(math.log(delta))}
    lane = row.lane._replace(losses=host(losses[::2]), between=host(losses[1::2]), **about)
    return jax.tree.map(jnp.asarray, lane)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.2])
def test_one_round_ends_where_its_profile_falls_to_delta(delta):
    """Randomized response, whose profile is a line; and Gaussian noise, whose profile is above its tangents."""
    p, losses = math.e, np.linspace(0.0, 0.99, 104)
    lane = lane_at(losses, 1.0, delta)
    right = math.log(p - delta * (p + 1.0))
    profile = (p - np.exp(losses)) / (p + 1.0)
    upper = float(brackets._crossed(lane, *map(jnp.asarray, (profile[::2], profile[1::2]))))
    events = jnp.full((2, 52), (p - 1.0) / (p + 1.0)), jnp.full((2, 52), 1.0 / (p + 1.0))
    lower = float(brackets._reached(lane, *events))
    assert right * (1.0 - 1e-6) < lower < right < upper < right * (1.0 + 1e-6)

    mu, losses = 0.5, np.linspace(0.0, 4.0, 104)

    def gaussian(loss):
        first, second = (scipy.special.ndtr(sign * 0.5 * mu - loss / mu) for sign in (1.0, -1.0))
        return first - np.exp(loss) * second

    lane, profile = lane_at(losses, 5.0, delta), gaussian(losses)
    upper = float(brackets._crossed(lane, *map(jnp.asarray, (profile[::2], profile[1::2]))))
    right = (
        scipy.optimize.brentq(lambda loss: gaussian(loss) - delta, 0.0, 4.0) if profile[0] > delta else 0.0
    )
    assert right <= upper <= right + 0.01


@pytest.mark.usefixtures("x64")
def test_a_game_that_is_loose_at_loss_zero_makes_no_law_of_mass_above_one():
    """As where a stage failed there: the chord to the mirror image is below it."""
    mu, losses = 0.01, np.append(np.linspace(0.0, 0.06, 103), 0.5)
    first, second = (scipy.special.ndtr(sign * 0.5 * mu - losses / mu) for sign in (1.0, -1.0))
    profile = first - np.exp(losses) * second
    lane, game = lane_at(losses, 1.0, 1e-6), profile[::2] * np.append(1.03, np.ones(51))
    alone = map(jnp.asarray, (2.0 * profile[::2], 2.0 * profile[1::2]))
    here, between = brackets._smaller(lane, jnp.asarray(game), *alone)
    assert (np.asarray(here) >= profile[::2]).all()
    assert (np.asarray(between) >= profile[1::2]).all()
    atoms = brackets._above(lane, here, between)
    assert 1.0 - 1e-9 < float(jnp.sum(atoms.masses) + atoms.infinite) < 1.0 + 1e-6
    loose = brackets._above(lane, jnp.asarray(game), between)
    assert float(jnp.sum(loose.masses)) > 1.0 + 1e-4


def exact_profile(ahead, behind, losses):
    return np.array([np.maximum(ahead - math.exp(loss) * behind, 0.0).sum() for loss in losses])


PAIRS = [
    ("all others at a third record", cj.KaryResponse(epsilon0=2.0, num_values=4)),
    ("all others at one of the two records", cj.KaryResponse(epsilon0=2.0, num_values=4)),
    ("all others at a third record", cj.HadamardResponse(epsilon0=1.0)),
    ("two records", cj.Rappor(epsilon0=1.5)),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("words", "randomizer"), PAIRS)
def test_events_of_lanes_are_below_the_pair(words, randomizer):
    """Histograms of few clients, exactly; with the second measure's masses those of all others they are not below."""
    (law,) = [law for law in randomizer.label_laws if law.name.endswith(words) and not law.of_sums]
    clients, rate, epsilon0 = 6, 0.7, randomizer.epsilon0
    losses = np.geomspace(1e-3, 0.99 * epsilon0, 104)
    lane = lane_at(np.append(0.0, losses[1:]), epsilon0, 1e-3)
    lane = lane._replace(num_clients=jnp.asarray(float(clients)), rate=jnp.asarray(rate))
    given = brackets._witness(law, Shuffled(clients, rate), math.expm1(epsilon0))
    others = [np.asarray(law.other if law.others is None else law.others)] * (clients - 1)
    first, second = (
        exact_rounds.histogram([*others, np.asarray(one)], [rate] * clients)
        for one in (law.target, law.other)
    )
    c_minus_1, program = np.expm1(losses)[:, None], jax.jit(brackets._events)

    def above(given):
        """The largest amount by which a line exceeds the pair's profile, in either direction."""
        apart, mass = program(lane, jax.tree.map(jnp.asarray, given))
        right = exact_profile(first, second, losses), exact_profile(second, first, losses)
        lines = [np.max(one - c_minus_1 * two, axis=1) for one, two in zip(*map(np.asarray, (apart, mass)))]
        assert lines[0][20] > 0.5 * right[0][20]
        return max((line - exact).max() for line, exact in zip(lines, right))

    assert above(given) <= 1e-12
    cells = given.cells
    wrong = cells._replace(right_other=0.8 * cells.right_other, left_other=0.8 * cells.left_other)
    assert above(given._replace(cells=wrong)) > 1e-6


@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=4.0), cj.L2Mechanism(epsilon0=4.0)])
def test_losses_end_below_that_of_a_message(randomizer):
    """Without the dummies messages have a larger epsilon0."""
    lane = brackets._row(randomizer, 1000.0, 1.0, 100.0, 1e-6).lane
    losses = np.stack([lane.losses, lane.between], axis=1).ravel()
    assert lane.hidden.epsilon0 > 4.1
    assert (np.diff(losses) > 0.0).all()
    assert losses[-1] < 4.0


def test_rare_steps_are_left_to_the_host():
    law = cj.Rappor(epsilon0=6.0).label_laws[0]
    assert brackets._witness(law, Shuffled(10**4, 1e-3), math.expm1(6.0)) is None
    assert brackets._witness(law, Shuffled(10**6, 1e-1), math.expm1(6.0)) is not None


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("randomizer", [cj.Rappor(epsilon0=1.0), cj.Laplace(epsilon0=2.0)])
def test_lanes_have_the_profiles_of_the_host(randomizer):
    """Of a mechanism's own laws, and of one dominating law; beside another order of rounding."""
    cover, mass = Shuffled(10**5, 0.05), 40.0
    row = brackets._row(randomizer, 1e5, 0.05, 100.0, 1e-6)
    (upper, (lane, own)), *_ = row.parts()
    traced = np.asarray(jax.jit(upper.game)(*jax.tree.map(jnp.asarray, (lane, own))))
    steps = theorems.own_steps(randomizer)
    message, sums = (
        steps.message(lane.losses),
        staged_games.RoundSums(cover.sums(mass), lane.hidden.everybody),
    )
    rules, nodes = steps.rules(message), row.play[1]
    about = staged_games.sampled, sums, message, lane.stages, lane.losses, rules, nodes
    np.testing.assert_allclose(traced, staged_games.profile_upper(*about), rtol=1e-6)
    about = brackets._row(cj.PureLDP(epsilon0=1.0), 1e5, 1.0, 100.0, 1e-6).parts()[0]
    beside, (all_send, _) = about
    found = np.asarray(jax.jit(beside.game, static_argnums=1)(jax.tree.map(jnp.asarray, all_send), None))
    unit = Unit(cj.Shuffle(num_clients=10**5), cj.PureLDP(epsilon0=1.0), "messages", "replace-one", mass)
    right = theorems.e_plus(dataclasses.replace(unit, neg_log_tail=float(all_send.neg_log_tail)))
    few_lost = 1.0 - found / np.asarray(right.upper(np.asarray(all_send.losses)))
    assert (few_lost > -1e-6).all()
    assert (few_lost[:15] < 5e-3).all()  # the rest is chords'
    given = right.all_sent.law, right.all_sent.epsilon0, np.asarray(all_send.losses), mass
    rest = right.none_prob * right.all_sent.step_cover.of_step(*given)
    assert (found >= rest * (1.0 - 1e-6)).all()
    assert (rest > 0.5 * found).any()
    kary = KaryBound(cover, 1.0, 7, mass)
    lane = jax.tree.map(jnp.asarray, lane._replace(law=kary.law, epsilon0=host(1.0)))
    found = np.asarray(jax.jit(brackets._of_one_law)(lane, lane.losses))
    right = cover.of_step(kary.law, 1.0, np.asarray(lane.losses), mass)
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-30)


@pytest.mark.usefixtures("x64")
def test_lines_of_the_contour_are_those_of_numpy():
    law = cj.HadamardResponse(epsilon0=2.0).label_laws[0]
    given = brackets._witness(law, Shuffled(10**4, 0.1), math.expm1(2.0))
    cells = jax.tree.map(lambda part: part[0], given.cells)
    choice = hidden_messages.ContourChoice(host([0.3, 0.6]), np.array([4, 4]), host([400.0, 400.0]))
    at = host([1e4]), host(0.1), cells, choice, host([[[5.0, 9.0], [20.0, 30.0]]])
    right = hidden_messages_lower.lines_lower(*at)
    with jax.numpy_rank_promotion("allow"):
        found = jax.jit(hidden_messages_lower.lines_lower)(*jax.tree.map(jnp.asarray, at))
    assert (np.asarray(right[0]) > 0.0).all()
    for one, other in zip(found, right):
        np.testing.assert_allclose(one, other, rtol=1e-7)


def ends_are_those_of_account(monkeypatch):
    """Rows of the benchmark: on either side of the host's; most within 1e-3, all within 1.5%."""
    del monkeypatch
    compared_with_account(kinds.check_ins(130, seed=11), cj.PureLDP)


def ends_of_one_bit_are_those_of_account(monkeypatch):
    """Of few messages, too."""
    del monkeypatch
    table = kinds.check_ins(60, seed=12)
    table["check_in_prob"][::4] = 1.0
    compared_with_account(table, cj.L2Mechanism)


def ends_of_mechanisms_are_those_of_account(monkeypatch):
    del monkeypatch
    table = kinds.check_ins(30, seed=13)
    table["check_in_prob"][::3] = 1.0
    compared_with_account(table | {"num_values": np.resize([3, 10, 300], 30)}, cj.KaryResponse)
    for randomizer in (cj.HadamardResponse, cj.Rappor):
        compared_with_account(table, randomizer)
    compared_with_account(table | {"epsilon0": np.resize([0.5, 1.0, 3.0], 30)}, cj.Laplace)


def compared_with_account(table, randomizer):
    index, rows = rows_of(table, randomizer)
    few = [i for i, row in enumerate(rows) if row.lane.most > 0.0]
    # A CPU takes seconds for a row of few messages.
    index, rows = ([each for i, each in enumerate(whole) if i not in few[4:]] for whole in (index, rows))
    with float64():
        found = brackets.ends(rows, CPU, 4, (4,))
        single = np.array([row.single for row in rows])
        again = [row.nearer(upper) for row, upper in zip(rows, found[:, 0]) if row.single]
        found[single] = brackets.ends(again, CPU, 4, (4,))
    apart = []
    for i, row, (upper, *witnesses) in zip(index, rows, found):
        run = cj.ShuffledCheckIn(
            **{name: table[name][i].item() for name in ("num_clients", "check_in_prob", "num_rounds")}
        )
        described = {name: table[name][i].item() for name in ("epsilon0", "num_values") if name in table}
        right = cj.account(run, randomizer(**described), delta=table["delta"][i].item())
        lower = max(witnesses)
        assert right.lower <= upper * (1.0 + 1e-9), i
        assert lower <= right.epsilon * (1.0 + 1e-9), i
        if brackets._as_account(row, upper, *witnesses):
            apart.append([abs(upper / right.epsilon - 1.0), abs(lower / right.lower - 1.0)])
    # Brackets of bits are wider where few large losses decide.
    assert len(apart) >= (0.95 if randomizer is cj.PureLDP else 0.8) * len(rows), len(apart)
    assert (np.quantile(apart, 0.8, axis=0) < (1e-3, 2e-3)).all(), apart
    assert (np.max(apart, axis=0) < 0.015).all(), apart


TWO_DEVICES = """
import jax
import numpy as np
from tests.bounds.test_composed_contour import SOME, brackets, float64, rows_of

devices = jax.local_devices()
assert len(devices) == 2
with float64():
    print(*brackets.ends(rows_of(SOME)[1], devices, 4, (2,)).ravel().tolist())
# A device that waited for the other would hang where there are fewer threads than devices.
for program, _ in brackets._programs(tuple(devices), 4)._known.values():
    assert "all-reduce" not in program.as_text()
"""
SOME = {name: column[:12] for name, column in kinds.check_ins(12, seed=3).items()}


def two_devices_give_what_one_gives(monkeypatch):
    del monkeypatch
    with float64():
        right = brackets.ends(rows_of(SOME)[1], CPU, 2, (2,)).ravel()
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(
        command,
        env={**os.environ, **flags, **cache, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose([float(each) for each in done.stdout.split()], right, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_lanes_lower_for_cuda_in_float64():
    """Every program of every part of the bracket."""
    lowered = []

    def run(one, *given):
        found = jax.export.export(jax.jit(jax.vmap(one)), platforms=["cuda"])(*given)
        assert not re.search(r"\b(f32|bf16|f16)>", found.mlir_module()), one
        lowered.append(one)
        shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in found.out_avals]
        return jax.tree.unflatten(found.out_tree, shapes)

    any_pure, bit = cj.PureLDP(epsilon0=1.0), cj.OneBit(epsilon0=1.0)
    some = [
        (randomizer, clients, 0.01, rounds)
        for randomizer in (any_pure, cj.Rappor(epsilon0=1.0))
        for clients in (1e5, 1e3)
        for rounds in (1.0, 9.0)
    ]
    some += [(any_pure, 1e12, 0.01, 9.0), (cj.Laplace(epsilon0=1.0), 1e5, 0.01, 9.0), (bit, 1e5, 0.01, 9.0)]
    for about in [*some, (any_pure, 1e5, 1.0, 9.0), (bit, 1e5, 1.0, 9.0)]:
        for part, given in brackets._row(*about, 1e-6).parts():
            shape = lambda leaf: jax.ShapeDtypeStruct((2, *np.shape(leaf)), np.float64)  # noqa: E731
            part(run, *jax.tree.map(shape, given), jax.ShapeDtypeStruct((2,), bool))
    assert len(set(lowered)) == 18


def test_a_row_whose_ends_cross_has_an_error_and_leaves_the_others(monkeypatch):
    def ends(rows, devices, count):
        del devices, count
        found = np.array([[0.2, 0.199, 0.0] for _ in rows]).reshape(-1, 3)
        found[:1, 1] = 0.3
        return found

    table = {name: column.copy() for name, column in SOME.items()}
    table["num_rounds"][:] = 100
    monkeypatch.setattr(brackets, "ends", ends)
    results = Results(Question("bracket", cj.ShuffledCheckIn), 12)
    index = brackets.on_devices(table, np.arange(12), CPU, results)
    assert index.size > 3
    assert ["report" in error for error in results.errors[index]] == [True] + [False] * (index.size - 1)
    assert (results.columns["lower"][index[1:]] == 0.199).all()


class _Accelerator(NamedTuple):
    """A CPU that says that it is none."""

    platform: str = "gpu"


def a_sweep_on_an_accelerator_says_which_rows_are_the_hosts(monkeypatch):
    table = {
        "num_clients": [10**5, 1000, 10**6, -1, 10**6, 10**6],
        "check_in_prob": [0.1, 0.02, 1.0, 0.1, 0.01, 0.5],
        "num_rounds": [100, 10, 10, 10, 1, 200],
        "epsilon0": [1.0, 1.0, 1.0, 1.0, 1.0, 0.5],
        "delta": [1e-6] * 6,
    }
    two = {name: column[:2] for name, column in table.items()}
    bits = {"table": two, "randomizer": cj.L2Mechanism}
    labels = {"table": two | {"num_values": [10, 1]}, "randomizer": cj.KaryResponse}
    asked = {"table": table}, bits, labels
    right, real = [cj.sweep(what="bracket", **each) for each in asked], brackets.ends
    with monkeypatch.context() as patch:
        patch.setattr(brackets, "ends", lambda rows, devices, count: real(rows, CPU, 4, (4,)))
        patch.setattr(jax, "local_devices", lambda backend=None: CPU if backend else [_Accelerator()])
        patch.setattr(jax, "default_device", lambda device: contextlib.nullcontext())
        found = [cj.sweep(what="bracket", **each) for each in asked]
    for ours, hosts in zip(found, right):
        for name in ("epsilon", "lower"):
            np.testing.assert_allclose(ours[name], hosts[name], rtol=4e-3)
        for name in ("lower_method", "validity", "error"):
            assert ours[name].tolist() == hosts[name].tolist()
    assert [*found[1]["method"]] == [f"own-laws (one bit), {brackets.METHOD}"] * 2
    assert found[2]["method"].tolist() == [f"{KaryBound.name}, {brackets.METHOD}", ""]
    assert "num_values" in found[2]["error"][1]
    found, right = found[0], right[0]
    ours = [brackets.METHOD in method for method in found["method"]]
    assert ours == [True, True, True, False, False, True]
    for name in ("epsilon", "lower"):
        # One round is the accelerator's, too.
        assert (found[name][[0, 1, 2, 4, 5]] != right[name][[0, 1, 2, 4, 5]]).all()


WHOLE = (
    ends_are_those_of_account,
    ends_of_one_bit_are_those_of_account,
    ends_of_mechanisms_are_those_of_account,
    two_devices_give_what_one_gives,
    a_sweep_on_an_accelerator_says_which_rows_are_the_hosts,
)


@pytest.mark.thorough
@pytest.mark.turns(3)
@pytest.mark.parametrize("check", WHOLE, ids=lambda each: each.__name__)
def test_whole_brackets_of_devices(check, monkeypatch):
    """Each compiles all programs of the brackets, a minute or two."""
    check(monkeypatch)
