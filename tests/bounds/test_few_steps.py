"""The game of few steps: against itself by recursion, and against whole rounds of few clients; one-sided."""

import dataclasses
import functools
import math
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from oracles import exact_rounds as exact
from oracles import game as game_oracle
from oracles import krr

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, UniformSlot
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.accounting.bounds.windows.small_windows import PlayedWindow
from checkin_jax.kernels import host
from checkin_jax.kernels.messages.likelihood_polytopes import Game, Message
from checkin_jax.numerics import few_steps
from checkin_jax.numerics.few_steps import FewSteps
from checkin_jax.numerics.staged_clones import AnyMessage
from checkin_jax.sweeps import brackets

pytestmark = pytest.mark.usefixtures("x64")
MASS = 40.0


def of_number(epsilon0: float, number: int, clients: float = 1.0) -> FewSteps:
    """The game of a known number of any eps0-LDP messages, each of weight 1/n."""
    return FewSteps(
        clients, AnyMessage(epsilon0), MASS, 0.0, (1.0,), np.array([[number]]), lambda value: value[0], number
    )


def at_start(few: FewSteps, above: float) -> float:
    """Mean value of the game, in units of p - 1."""
    return few.played(few.lattice(above), *few._laws(few._message(above), above))


@pytest.mark.parametrize("epsilon0", [0.05, 0.7, 2.0, 4.0])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_the_lattice_is_above_the_game_itself(epsilon0, number):
    """By recursion over all choices, without a lattice."""
    p, clients = math.exp(epsilon0), 8.0
    few = of_number(epsilon0, number, clients)
    for share in (0.0, 1e-4, 0.01, 0.05, 0.2, 0.6):
        above = share * (p - 1.0)
        value = game_oracle.game((1.0,) * number, p, 1.0 + above)
        # The game's steps are not centred: each has mean 1 - c.
        truth = value((number - clients) * above) / clients
        found = at_start(few, above) * (p - 1.0) / clients
        assert found >= truth * (1.0 - 1e-9)
        assert found <= 1.02 * truth + 1e-12


@pytest.mark.parametrize(
    ("clients", "rate", "epsilon0"), [(500, 0.02, 1.0), (40, 0.3, 0.3), (10**5, 1e-5, 3.0)]
)
@pytest.mark.parametrize("own", [False, True])
def test_the_compiled_game_is_that_of_the_host(clients, rate, epsilon0, own):
    """Beside the loss of another lattice; the messages that are not played are as rare as promised."""
    cover = Shuffled(clients, rate)
    laws = theorems.own_steps(cj.HadamardResponse(epsilon0=epsilon0)) if own else AnyMessage(epsilon0)
    few = few_steps.problem(cover.sums(MASS), laws, cover.everybody, MASS)
    most = brackets._most(float(clients), rate, -few_steps.log_rest(MASS))
    rare = math.exp(few_steps.log_rest(MASS))
    assert scipy.stats.binom.sf(most, clients, rate) <= rare
    assert scipy.stats.binom.sf(0.7 * most, clients, rate) > rare
    unit = math.expm1(epsilon0)
    above = few_steps.tried(few.deviation * unit / clients, unit)[[0, 8, 20, 30]]
    right = [few.value(each) for each in above.tolist()]

    def compiled(message: Message, rules: Game) -> np.ndarray:
        given = float(most), float(clients), rate, message, MASS, cover.everybody, np.log1p(above)
        program = jax.jit(functools.partial(few_steps.binomial_profile, rules=rules))
        return np.asarray(program(*jax.tree.map(jnp.asarray, given)))

    steps = few.steps
    message = steps.message(host(np.log1p(above)))
    np.testing.assert_allclose(compiled(message, steps.rules(message)), right, rtol=1e-3)


def test_shorter_steps_and_fewer_laws_are_exceeded():
    """The wrong neighbours: steps moved to the nearest point of the lattice, or a game without its worst law."""
    p, number = math.exp(2.0), 3
    few = of_number(2.0, number)
    at, laws = few._laws(few._message(0.1), 0.1)
    truth = game_oracle.game((1.0,) * number, p, 1.1)((number - 1.0) * 0.1) / (p - 1.0)
    assert at_start(few, 0.1) >= truth * (1.0 - 1e-9)
    lattice = few.lattice(0.1)
    nearest = np.sign(at) * np.floor(np.abs(at) / lattice.spacing) * lattice.spacing
    assert few.played(lattice, nearest, laws) < truth
    assert few.played(lattice, at, laws[1:]) < truth


def random_channel(rng: np.random.Generator) -> np.ndarray:
    if rng.random() < 0.5:
        return np.array(krr.random_extremal_channel(rng, 3, math.exp(rng.uniform(0.3, 2.5))))
    return rng.dirichlet(np.ones(3) * rng.uniform(1.0, 8.0), 3)


@pytest.mark.parametrize("seed", range(12))
def test_own_laws_are_above_rounds_of_few_clients(seed):
    """Every data set, every pair of the target's records; and without the event that all clients send they are not."""
    rng = np.random.default_rng(seed)
    channel = random_channel(rng)
    channel = channel[:, channel.min(axis=0) > 1e-6]
    channel = channel / channel.sum(axis=1, keepdims=True)
    clients, rate = int(rng.integers(2, 6)), float(rng.uniform(0.1, 0.9))
    mechanism = cj.FiniteMechanism(probabilities=channel)
    if not mechanism.epsilon0 > 1e-3:
        return
    cover = Shuffled(clients, rate)
    bound = StagedClones(cover, theorems.own_steps(mechanism), MASS)
    assert isinstance(bound._problem, FewSteps)
    losses = mechanism.epsilon0 * np.array([0.0, 0.02, 0.1, 0.25, 0.5, 0.8])
    truth = exact.most(exact.rounds(channel, [rate] * clients), np.exp(losses))
    upper = bound.upper(losses)
    assert (upper >= truth * (1.0 - 1e-9)).all()
    assert (truth / upper).max() > 0.7


def pool_of(others: list[float], rate: float, theta: float) -> ClientPool:
    members = pool_cover.weights(np.array(others), theta)
    return ClientPool(rate, theta, pool_cover.sum_of(members, np.ones(len(others)), MASS))


@pytest.mark.parametrize("seed", range(12))
def test_own_laws_are_above_rounds_at_unequal_rates(seed):
    """Every data set, every pair of the target's records; pools of rates below and above the target's."""
    rng = np.random.default_rng(seed)
    channel = random_channel(rng)
    channel = channel[:, channel.min(axis=0) > 1e-6]
    mechanism = cj.FiniteMechanism(probabilities=channel / channel.sum(axis=1, keepdims=True))
    if not mechanism.epsilon0 > 1e-3:
        return
    others, rate = rng.uniform(0.05, 0.9, int(rng.integers(2, 5))).tolist(), float(rng.uniform(0.05, 1.0))
    losses = mechanism.epsilon0 * np.array([0.0, 0.02, 0.1, 0.25, 0.5, 0.8])
    truth = exact.most(exact.rounds(np.array(mechanism.probabilities), [*others, rate]), np.exp(losses))
    least = np.ones(losses.size)
    for theta in (max(others), min(others), 0.5):
        bound = StagedClones(pool_of(others, rate, theta), theorems.own_steps(mechanism), MASS)
        assert isinstance(bound._problem, FewSteps)
        upper = bound.upper(losses)
        assert (upper >= truth * (1.0 - 1e-9)).all()
        least = np.minimum(least, upper)
    assert (truth / least).max() > 0.6


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_neither_slow_members_nor_the_place_of_a_pool_may_be_mistaken(rate):
    """The wrong neighbours: a pool of all others at the largest rate, and a game that begins too low."""
    channel, others, theta = np.array(krr.krr_channel(2, 9.0)), [0.6, 0.05, 0.05], 0.6
    steps, losses = (
        theorems.own_steps(cj.KaryResponse(epsilon0=math.log(9.0), num_values=2)),
        np.linspace(0, 1.8, 9),
    )
    truth = exact.most(exact.rounds(channel, [*others, rate]), np.exp(losses))
    right = pool_of(others, rate, theta)
    assert (StagedClones(right, steps, MASS).upper(losses) >= truth * (1.0 - 1e-9)).all()
    wrong = dataclasses.replace(right, size=pool_cover.certain(3.0))
    assert (StagedClones(wrong, steps, MASS).upper(losses) < truth).any()
    few = few_steps.pool(*right.size, theta, rate, steps, MASS)
    low = dataclasses.replace(few, starts=few.starts + 1.0, rest=0.0)
    assert (np.array([low.value(each) for each in np.expm1(losses)]) < truth).any()


def test_the_event_that_all_clients_send_is_not_free():
    """k-ary response: nobody's absence hides a client then."""
    channel = np.array(krr.krr_channel(2, 9.0))
    cover, mechanism = Shuffled(3, 0.9), cj.KaryResponse(epsilon0=math.log(9.0), num_values=2)
    few = StagedClones(cover, theorems.own_steps(mechanism), MASS)._problem
    losses = np.linspace(0.5, 1.8, 8)
    truth = exact.most(exact.rounds(channel, [0.9] * 3), np.exp(losses))
    upper = np.array([few.value(each) for each in np.expm1(losses)])
    assert (upper >= truth * (1.0 - 1e-9)).all()
    forgotten = dataclasses.replace(few, rest=0.0)
    assert (np.array([forgotten.value(each) for each in np.expm1(losses)]) < truth).any()


@pytest.mark.parametrize("cover", [UniformSlot(5, 1.0, 1.0), Occupied(6, 4, 0.7)])
def test_slots_take_the_game_of_few_steps_too(cover):
    """Below A, which replaces all laws by one."""
    mechanism = cj.Rappor(epsilon0=1.5)
    bound = StagedClones(cover, theorems.own_steps(mechanism), MASS)
    assert isinstance(bound._problem, FewSteps)
    losses = np.linspace(0.0, 1.0, 9)
    one_law = theorems.TotalVariationBound(cover, 1.5, mechanism.total_variation, MASS)
    assert (bound.upper(losses) <= one_law.upper(losses) * 1.01).all()
    assert (bound.upper(losses) < 0.99 * one_law.upper(losses)).any()


# --- small sliding windows


@pytest.mark.parametrize("epsilon0", [0.3, 2.0])
@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (0, 3)])
def test_weighted_steps_are_above_the_game_in_every_order(epsilon0, counts):
    p, slots = math.exp(epsilon0), float(sum(counts))
    square = counts[0] + 0.25 * counts[1]
    few = FewSteps(
        slots, AnyMessage(epsilon0), MASS, 0.0, (1.0, 0.5), np.array([counts]), lambda value: value[0], square
    )
    weights = [1.0] * counts[0] + [0.5] * counts[1]
    for share in (0.0, 0.02, 0.1, 0.3):
        above = share * (p - 1.0)
        # The oracle's steps have means 1 - c times their weights.
        rest = (slots - sum(weights)) * above
        orders = {*permutations(weights)}
        truth = max(game_oracle.game(order, p, 1.0 + above)(-rest) for order in orders) / (p - 1.0)
        found = at_start(few, above)
        assert found >= truth * (1.0 - 1e-9)
        assert found <= 1.05 * truth + 1e-9


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_own_laws_in_small_windows_are_above_the_window_itself(window, seed):
    """All records of the clients that may meet the target's window, dummies at any record."""
    rng = np.random.default_rng(seed)
    channel = rng.dirichlet(np.ones(2) * 2.0, 2) * 0.9 + 0.05
    mechanism = cj.FiniteMechanism(probabilities=channel)
    others = list(range(1 - window, 0)) + list(range(1, window))
    slots = [tuple(range(at, at + window)) for at in (0, *others)]
    shown = tuple(range(window))
    bound = PlayedWindow(window, theorems.own_steps(mechanism), MASS)
    assert bound.gains
    losses = mechanism.epsilon0 * np.array([0.0, 0.1, 0.3, 0.6])
    truth = np.zeros(losses.size)
    for held in {
        (0,) * len(others),
        (1,) * len(others),
        (0, 1) * (window - 1),
        *[tuple(rng.integers(0, 2, len(others)).tolist()) for _ in range(3)],
    }:
        for dummy in (0, 1):
            laws = [
                exact.window(channel, (x, *held), [1.0] * len(slots), slots, shown, dummy) for x in (0, 1)
            ]
            for first, second in permutations(laws):
                truth = np.maximum(truth, exact.leak(first, second, np.exp(losses)))
    upper = bound.upper(losses)
    assert (upper >= truth * (1.0 - 1e-9)).all()
    assert (truth / upper)[:3].max() > 0.7


@pytest.mark.parametrize(
    "run",
    [
        cj.ShuffledCheckIn(num_clients=1, check_in_prob=0.5),
        cj.ShuffledCheckIn(num_clients=8, check_in_prob=0.3, num_colluding=7),
        cj.FixedWindow(num_clients=4, num_slots=2, check_in_prob=0.5, num_colluding=3),
        cj.FixedWindow(num_clients=5, num_slots=2, check_in_prob=1e-300),
        cj.ShuffledCheckIn(num_clients=2, check_in_prob=5e-324),
    ],
)
@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=1.0), cj.Rappor(epsilon0=1.0)])
def test_a_client_whom_nobody_hides_has_an_answer(run, randomizer):
    found = cj.account(run, randomizer, delta=1e-6)
    assert 0.0 <= found.lower <= found.epsilon <= 1.0
