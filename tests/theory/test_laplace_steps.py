"""Laplace's own laws: every triple of records is below a mixture of them, and the kernel is above brute force.

Records are anywhere in the interval, most of them between those of the grid.
"""

import itertools
import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds
from scipy import integrate, optimize
from test_own_laws import check_ins, losses_of, own, slots, upper

import checkin_jax as cj
from checkin_jax.numerics.staged_clones import AnyMessage
from checkin_jax.randomizers.step_sets import LONGEST, SHORTEST, laplace_steps, positive_part

pytestmark = pytest.mark.usefixtures("x64")
MANY = pytest.mark.slow


@pytest.mark.parametrize("seed", range(6))
def test_integrals_of_positive_parts(seed):
    rng = np.random.default_rng(seed)
    records = rng.uniform(0.0, 4.0, 3)
    weights = rng.uniform(0.2, 5.0, 3) * rng.choice([-1.0, 1.0], 3)

    def density(u):
        return max(float(np.sum(weights * 0.5 * np.exp(-np.abs(u - records)))), 0.0)

    edges = [-40.0, *np.linspace(-1.0, 5.0, 241), 45.0]
    exact = sum(integrate.quad(density, *pair, limit=200)[0] for pair in itertools.pairwise(edges))
    assert positive_part(records, weights) == pytest.approx(exact, rel=1e-6, abs=1e-9)
    assert positive_part(records, weights) >= exact - 1e-8


def transform(records, c, knots):
    """E(d - k)_+ at k >= 0, E(k - d)_+ below zero, of records (x, x', y)."""
    side = np.where(knots < 0.0, -1.0, 1.0)
    weights = np.stack(np.broadcast_arrays(side, -side * c, -side * (knots + 1.0 - c)))
    return positive_part(np.asarray(records)[:, None], weights)


def missing(value, laws):
    """How far above every mixture of the laws the value is at some knot, by linear programming; 0 if below one.

    In units of the largest law at that knot, or of .1 where the laws are smaller, for the rounding of the oracle.
    """
    count = len(laws)
    scale = np.maximum(np.max(laws, axis=0), 0.1)
    laws, value = laws / scale, value / scale
    above = np.column_stack([-laws.T, -np.ones(value.size)])
    found = optimize.linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=above,
        b_ub=-value,
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[1.0],
        bounds=[(0.0, None)] * (count + 1),
        options={"primal_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0
    return found.fun


def random_records(rng, epsilon0):
    """Often near an end."""
    place = rng.uniform(size=3)
    near = rng.random(3)
    place = np.where(near < 0.25, place * 0.1, np.where(near < 0.5, 1.0 - 0.1 * place, place))
    place[:2] = np.where(rng.random(2) < 0.3, np.round(place[:2]), place[:2])
    return epsilon0 * place


@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 2.5, 4.0, LONGEST])
def test_steps_of_all_records_are_below_mixtures_of_the_laws(epsilon0):
    rng, steps = np.random.default_rng(3), laplace_steps(epsilon0)
    for _ in range(30):
        above = np.array([math.expm1(epsilon0) * float(rng.choice([0.0, 1e-3, 0.02, 0.1, 0.4, 0.9]))])
        above *= rng.uniform(0.8, 1.1)
        knots = steps.knots(above)
        laws = steps.transforms(above, knots)[0]
        records = random_records(rng, epsilon0)
        value = transform(records, 1.0 + above[0], knots[0])
        # The oracle's integrals are rounded up by 64 roundings of weights of at most e^(2 epsilon0).
        rounding = 1e-9 + 1e-13 * math.exp(2.0 * epsilon0)
        assert missing(value, laws) <= rounding, (records, above)
        assert value[0] <= rounding
        assert value[-1] <= rounding


def test_wrong_step_sets_are_not_above_all_records():
    """Other clients at the ends alone; the target at the ends alone; a coarse grid without its remainder."""
    short, long = laplace_steps(1.0), laplace_steps(4.0)
    c, rng = 1.0, np.random.default_rng(5)
    knots = short.knots(np.zeros(1))[0]
    ends = np.stack([transform((0.0, 1.0, y), c, knots) for y in (0.0, 1.0)])
    assert missing(transform((0.0, 1.0, 0.5), c, knots), ends) > 1e-3
    knots = long.knots(np.zeros(1))[0]
    others = np.stack([transform((0.0, 4.0, y), c, knots) for y in np.linspace(0.0, 4.0, 33)])
    assert max(missing(transform((0.0, x, 4.0), c, knots), others) for x in np.linspace(1.0, 3.0, 9)) > 1e-4
    grid = np.linspace(0.0, 4.0, 3)
    coarse = np.stack([transform(each, c, knots) for each in itertools.product(grid, repeat=3)])
    assert max(missing(transform(random_records(rng, 4.0), c, knots), coarse) for _ in range(80)) > 1e-3


def channel(records, edges):
    """The probabilities of cells between the edges, and of the rays beyond, for noise of scale one."""

    def below(u):
        return np.where(u < 0.0, 0.5 * np.exp(np.minimum(u, 0.0)), 1.0 - 0.5 * np.exp(-np.maximum(u, 0.0)))

    table = below(np.asarray(edges)[None, :] - np.asarray(records)[:, None])
    ones = np.ones((len(records), 1))
    return np.diff(np.column_stack([0.0 * ones, table, ones]), axis=1)


@pytest.mark.parametrize("trials", [10, pytest.param(200, marks=MANY)])
def test_above_all_data_sets_of_told_cells(trials):
    """Whoever is told in which cell of the line a message is, of clients with three records, one round."""
    rng, largest = np.random.default_rng(7), 0.0
    for _ in range(trials):
        epsilon0 = float(rng.choice([0.3, 1.0, 2.0, 4.0, 6.0]))
        records = [0.0, float(rng.uniform(0.0, epsilon0)), epsilon0]
        edges = (
            np.sort(rng.uniform(0.0, epsilon0, 3)) if rng.random() < 0.5 else [0.0, 0.5 * epsilon0, epsilon0]
        )
        n, rate = int(rng.integers(2, 5)), float(rng.choice([0.1, 0.5, 0.9]))
        losses = losses_of(epsilon0)
        bound = upper(own(cj.Laplace(epsilon0=epsilon0)), check_ins(n, rate), rate**n, losses)
        truth = exact_rounds.most(exact_rounds.rounds(channel(records, edges), [rate] * n), np.exp(losses))
        assert (truth <= bound * (1.0 + ORACLE_ROUNDING) + 1e-13).all(), (epsilon0, records, edges, n, rate)
        seen = truth > 1e-6
        largest = max(largest, float((truth / bound)[seen].max(initial=0.0)))
    assert largest > 0.7


@pytest.mark.parametrize("epsilon0", [0.05, 1.0, 4.0, 6.5])
def test_variances_are_below_those_of_any_message(epsilon0):
    """Rounding and remainders would show here first; below and above other bounds serve."""
    assert own(cj.Laplace(epsilon0=epsilon0)).variance < AnyMessage(epsilon0).variance
    assert cj.Laplace(epsilon0=0.99 * SHORTEST).step_set is None
    assert cj.Laplace(epsilon0=1.01 * LONGEST).step_set is None


class Scaled:
    """A step set whose transforms are multiplied by a factor below one: no bound any more."""

    def __init__(self, steps, factor):
        self.steps, self.factor = steps, factor

    def knots(self, above):
        return self.steps.knots(above)

    def transforms(self, above, knots):
        return self.factor * self.steps.transforms(above, knots)


@pytest.mark.parametrize("epsilon0", [0.3, 0.5])
def test_near_what_many_messages_at_one_record_leak(epsilon0):
    """Slots, all others at one record, cells told; transforms that are a tenth too small are exceeded."""
    m, used, losses = 24, 0.9, epsilon0 * np.array([0.0, 0.05, 0.1, 0.2])
    table = channel([0.0, 0.4 * epsilon0, epsilon0], [0.1 * epsilon0, 0.9 * epsilon0])
    worst = np.zeros(losses.size)
    for y in range(3):
        others = exact_rounds.histogram([table[y]] * m, [1.0] * m)
        laws = [
            (1.0 - used) * others + used * exact_rounds.histogram([table[y]] * (m - 1) + [row], [1.0] * m)
            for row in table
        ]
        worst = np.maximum(worst, exact_rounds.most(list(itertools.permutations(laws, 2)), np.exp(losses)))
    laplace = own(cj.Laplace(epsilon0=epsilon0))
    stages = (2.0, (4.0, 6.0), 12.0, 0.03)
    bound = upper(laplace, slots(m, used), 0.0, losses, stages)
    assert (worst <= bound).all()
    wrong = type(laplace)(epsilon0, Scaled(laplace.laws, 0.8), laplace.profile)
    assert (worst > upper(wrong, slots(m, used), 0.0, losses, stages)).any()
