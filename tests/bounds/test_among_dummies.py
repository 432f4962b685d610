"""G5 and R4: common slots whose empty ones hide the client and whoever it displaces; and what is NOT a bound."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from oracles import random_check_ins as brute
from oracles.gaussian_slots import cells

import checkin_jax as cj
from checkin_jax.accounting.bounds.windows.common_slots import (
    CommonWindow,
    displaced_added,
    displaced_replaced,
    few_empty,
)
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture, TwoKinds
from checkin_jax.accounting.bounds.windows.one_of_slots import Displacing, OppositeRecords, gaussian_in_slots
from checkin_jax.numerics import step_ratios
from checkin_jax.numerics.counts import occupancy
from tests import rows

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.array([0.0, 0.02, 0.1, 0.3, 0.7, 1.2, 2.0, 3.0])


@pytest.mark.parametrize(("thrown", "slots"), [(1, 3), (4, 3), (7, 5), (30, 12), (30, 30)])
def test_the_chance_to_be_taken_is_bounded_and_close(thrown, slots):
    """E 1/(C + 1) in an occupied slot, given how many are occupied: by the laws of n - 1 and n clients."""
    before, after = (brute.occupancy(count, slots, Fraction(1)) for count in (thrown, thrown + 1))
    for k in range(1, min(thrown, slots) + 1):
        alone = before[k - 1] * Fraction(slots - k + 1, slots)
        exact = (after[k] * Fraction(k, thrown + 1) - alone) / before[k] / Fraction(k, slots)
        assert float(exact) <= occupancy.taken(thrown, k) <= float(exact) * (1.0 + 0.7 / k) + 1e-9
    assert occupancy.taken(10, 10) == 0.5
    assert occupancy.taken(10**6, 1) == pytest.approx(1e-6)


def levels_of(law: np.ndarray, found: list, rest: float, upper: bool) -> bool:
    """Whether the levels are stochastically above the law, or below it, but for the rest."""
    values, masses = (np.array(part) for part in zip(*found))
    for k in range(law.size):
        ours = masses[values >= k].sum() if upper else masses[values <= k].sum()
        truth = law[k:].sum() if upper else law[: k + 1].sum()
        if ours + rest < truth * (1 - 1e-12):
            return False
    return True


@pytest.mark.parametrize(("n", "m", "prob"), [(30, 25, 1.0), (60, 50, 1.0), (40, 90, 0.7), (8, 6, 4e-4)])
@pytest.mark.parametrize("neg_log_tail", [26.0, 150.0])
def test_levels_are_on_their_sides(n, m, prob, neg_log_tail):
    """Rare numbers keep their digits, too."""
    law = np.array([float(mass) for mass in brute.occupancy(n, m, prob)])
    for upper in (True, False):
        found, rest = occupancy.levels(n, m, prob, neg_log_tail, upper)
        assert rest <= math.exp(-neg_log_tail)
        assert levels_of(law, found, rest, upper)
        # So few numbers are all exact.
        assert not levels_of(law, found, rest, not upper) or len(law) < 9


def excess(c: float, k: float, records: np.ndarray, weights: np.ndarray, below: bool) -> float:
    """E(d - k)_+ of sum_i weights_i (e^{r_i W - |r_i|^2/2} - 1), W in the plane; E(-d - k)_+ if below."""
    axis = np.linspace(-8.0, 8.0, 241)
    mass = np.exp(-0.5 * axis * axis)
    mass = np.multiply.outer(mass, mass) / mass.sum() ** 2
    d = sum(
        w * np.expm1(r[0] * axis[:, None] + r[1] * axis[None, :] - 0.5 * r @ r)
        for r, w in zip(records, weights)
    )
    return float((mass * np.maximum((-d if below else d) - k, 0.0)).sum())


@pytest.mark.parametrize("below", [False, True])
def test_opposite_records_are_the_worst(below):
    """Two or three records in a disc: the client's against another one's, or against the other record and another's."""
    rng, mu = np.random.default_rng(5), 1.7
    for c, more, k in itertools.product((1.0, 1.3, 3.0), (0.0, 0.4), (0.0, 0.2, 1.5)):
        bound = step_ratios.opposite_transform(mu, c + more, np.array([k]), below)[0]
        worst = np.array([(1.0, 0.0), (-1.0, 0.0), (-1.0, 0.0)]) * 0.5 * mu
        weights = np.array([1.0, -c, -more])
        assert bound == pytest.approx(excess(c, k, worst, weights, below), rel=5e-3, abs=2e-4)
        for _ in range(3):
            angle, radius = rng.uniform(0.0, 2.0 * math.pi, 3), np.sqrt(rng.uniform(0.2, 1.0, 3)) * 0.5 * mu
            records = np.stack([np.cos(angle), np.sin(angle)], axis=1) * radius[:, None]
            assert excess(c, k, records, weights, below) <= bound * 1.005 + 2e-4


def test_transforms_are_sums_of_cells_and_never_below():
    w = np.linspace(-13.0, 13.0, 400_001)
    mass = np.exp(-0.5 * w * w)
    mass /= mass.sum()
    for mu, c in itertools.product((0.01, 0.5, 3.0), (1.0, 1.01, 2.0, 50.0)):
        d = np.expm1(0.5 * mu * w - mu * mu / 8) - c * np.expm1(-0.5 * mu * w - mu * mu / 8)
        for below in (False, True):
            for k in np.array([0.0, 0.5, 2.0, 4.0]) * mu * c:
                truth = float(mass @ np.maximum((-d if below else d) - k, 0.0))
                found = step_ratios.opposite_transform(mu, c, np.array([k]), below)[0]
                assert truth * (1.0 - 1e-7) <= found <= truth * (1.0 + 1e-6) + 1e-12


@pytest.mark.parametrize("mu", [0.4, 2.0])
@pytest.mark.parametrize("used", [0.5, 1.0])
def test_opposite_records_in_two_slots_against_quadrature(mu, used):
    w = np.linspace(-10.0, 10.0, 1501)
    mass = np.exp(-0.5 * w * w)
    mass = np.multiply.outer(mass, mass) / mass.sum() ** 2
    one, other = (np.exp(s * 0.5 * mu * w - mu * mu / 8) for s in (1.0, -1.0))
    p, q = (1.0 - used + used * 0.5 * np.add.outer(part, part) for part in (one, other))
    truth = np.array([(mass * np.maximum(p - math.exp(loss) * q, 0.0)).sum() for loss in LOSSES])
    found = OppositeRecords(2, used, mu, MASS).upper(LOSSES)
    assert (found >= truth * (1.0 - 1e-4) - 1e-12).all()
    assert (found <= truth * 1.05 + 1e-7).all()


def adaptive(mu: float, m: int, number: int, seed: int) -> brute.Tree:
    """Records that turn and shrink with what was seen."""
    rng = np.random.default_rng(seed)
    return brute.random_tree(lambda: cells(tuple(rng.choice([-1.0, -0.5, 0.4, 1.0], 3)), mu, number), m)


def views(n, m, prob, tree, others, client):
    with_client = brute.output_law(brute.fixed_window(n, m, prob), (*others, client), tree)
    return with_client, brute.output_law(brute.fixed_window(n - 1, m, prob), others, tree)


@pytest.mark.parametrize(("n", "m", "prob"), [(2, 2, 1.0), (3, 3, 0.6)])
def test_the_algorithm_is_below(n, m, prob):
    mu = 1.5
    common = CommonWindow(n, m, prob, mu, MASS)
    forward, backward = displaced_added(common).upper_sides(LOSSES)
    replaced = displaced_replaced(common).upper(LOSSES)
    plain = brute.constant_tree(cells((-1.0, 1.0, 0.3), mu, 12), m)
    for tree in (plain, adaptive(mu, m, 8, n + m)):
        for others in itertools.combinations_with_replacement(range(3), n - 1):
            seen = [views(n, m, prob, tree, others, client) for client in (0, 1)]
            for i, loss in enumerate(LOSSES):
                c = math.exp(loss)
                for present, absent in seen:
                    assert brute.hockey_stick(present, absent, c) <= forward[i] + 1e-12
                    assert brute.hockey_stick(absent, present, c) <= backward[i] + 1e-12
                for one, two in itertools.permutations([view for view, _ in seen]):
                    assert brute.hockey_stick(one, two, c) <= replaced[i] + 1e-12


@pytest.mark.parametrize(("rates", "m"), [((0.9, 0.3), 2), ((0.2, 1.0, 0.5), 3)])
def test_the_algorithm_at_unequal_rates_is_below(rates, m):
    """For the fastest client and for slower ones; the slowest client's bound does not cover the fastest."""
    mu, n, fastest, exceeded = 3.0, len(rates), max(rates), False
    sums = sum(rates) - fastest, sum(rates)
    replaced, slowest = (
        displaced_replaced(CommonWindow(n, m, rate, mu, MASS, sums)).upper(LOSSES)
        for rate in (fastest, min(rates))
    )
    trees = [brute.constant_tree(cells((-1.0, 1.0, 0.3), mu, 12), m), adaptive(mu, m, 8, n + m)]
    for tree, target in itertools.product(trees, rates):
        faster = list(rates)
        faster.remove(target)
        used = brute.fixed_window(n, m, (*faster, target))
        for others in itertools.product(range(3), repeat=n - 1):
            views = [brute.output_law(used, (*others, client), tree) for client in (0, 1)]
            for one, two in itertools.permutations(views):
                truth = np.array([brute.hockey_stick(one, two, math.exp(loss)) for loss in LOSSES])
                assert (truth <= replaced + 1e-12).all()
                exceeded = exceeded or bool((truth > slowest).any())
    assert exceeded


@pytest.mark.parametrize("m", [12, 60])
def test_levels_at_unequal_rates_are_on_their_sides(m):
    rates = [0.9] * 40 + [0.05] * 200 + [0.5] * 60
    law, filled = np.eye(1, m + 1)[0], np.arange(m + 1.0)
    for rate in rates:
        moved = law * rate * (m - filled) / m
        law = law - moved + np.append(0.0, moved[:-1])
    total = sum(rates)
    common = CommonWindow(len(rates) + 1, m, 0.3, 1.0, 20.0, (total, total))
    least, few = common.participants
    assert 0 < least < total
    for upper in (True, False):
        found, rest = common.filled(upper)
        assert levels_of(law, found, rest + few, upper)
        assert not levels_of(law, found, rest + few, not upper)


@pytest.mark.parametrize(
    ("rates", "slots", "most"),
    [
        (cj.Rates(values=[0.00754, 0.00319, 0.0308, 0.123], counts=[5_110, 189, 1_679, 280]), 511, 1.6),
        (cj.RateLimits(largest=0.123, expected_check_ins=124.0), 80_000, 2.5),
    ],
)
def test_few_others_cost_little_at_unequal_rates(rates, slots, most):
    """Where any other client may be displaced, upper over lower end is 26."""
    run = cj.FixedWindow(num_clients=7_258, num_slots=slots, check_in_prob=rates, num_epochs=10)
    found = cj.account(run, cj.Gaussian(noise_multiplier=0.936), delta=3.5e-8)
    assert found.method.startswith("allocation")
    assert found.epsilon < most * found.lower
    stated = any("exactly the stated probability" in text for text in found.assumptions)
    assert stated == isinstance(rates, cj.Rates)


def test_limits_on_rates_cover_more_check_ins_than_they_promise():
    """The upper end for only those that are promised is below the lower end of a fleet within the limits."""

    def found(num_clients, rates):
        run = cj.FixedWindow(num_clients=num_clients, num_slots=1_000, check_in_prob=rates)
        return cj.account(run, cj.Gaussian(noise_multiplier=0.8), delta=1e-6)

    limited = found(10_000, cj.RateLimits(largest=0.2, expected_check_ins=200.0))
    all_fast, promised = (found(num_clients, 0.2) for num_clients in (10_000, 1_001))
    assert limited.method.startswith("allocation")
    assert promised.epsilon < all_fast.lower < limited.epsilon


def test_whoever_is_displaced_is_not_a_dummy_nor_hidden_in_every_slot():
    """Six clients in two slots, the others far: what the theorem says, and two things that it does not say."""
    n, m, mu, losses = 6, 2, 2.0, np.array([0.2, 0.6, 1.0, 1.6])
    present, absent = views(n, m, 1.0, brute.constant_tree(cells((-1.0, 1.0), mu, 40), m), (0,) * (n - 1), 1)
    truth = np.array([brute.hockey_stick(present, absent, math.exp(loss)) for loss in losses])
    before, after = (brute.occupancy(count, m, 1.0) for count in (n - 1, n))

    def bound(displaced) -> np.ndarray:
        dummies, others = [], []
        for k in range(1, m + 1):
            used = (after[k] * k / n - before[k - 1] * (m - k + 1) / m) / before[k]
            others.append((before[k], displaced(m - k + 1, used)))
            if k < m:
                dummies.append((before[k], gaussian_in_slots(m - k, (m - k) / m, 0.5 * mu, MASS)))
        return TwoKinds(PublicMixture(tuple(dummies)), PublicMixture(tuple(others))).upper_sides(losses)[0]

    def right(slots: int, used: float):
        return Displacing(OppositeRecords(slots, 1.0, mu, MASS), used)

    assert (truth <= bound(right)).all()
    dummy = bound(lambda slots, used: gaussian_in_slots(slots, used, 0.5 * mu, MASS))
    everywhere = bound(lambda slots, used: right(m, used))
    assert (truth > 5.0 * dummy).any()
    assert (truth > 1.5 * everywhere).any()


def test_clients_who_take_part_less_often_than_stated_are_not_covered():
    """One slot, two clients: a dummy that is shown says that neither came, which hardly happens with both there."""
    n, m, mu, stated, true, losses = 2, 1, 6.0, 1.0, 0.75, np.array([0.5, 0.6, 0.7])
    tree = brute.constant_tree(cells((-1.0, 1.0), mu, 60), m)
    common = CommonWindow(n, m, stated, mu, MASS)
    bounds = displaced_added(common), few_empty(common)
    for prob, exceeded in ((stated, False), (true, True)):
        present, absent = views(n, m, prob, tree, (0,), 1)
        truth = np.array([brute.hockey_stick(absent, present, math.exp(loss)) for loss in losses])
        for bound in bounds:
            assert (truth > 1.4 * bound.upper_sides(losses)[1]).any() == exceeded


@pytest.mark.parametrize(
    ("relation", "label"),
    [
        ("add-or-remove-one", "G3'"),
        ("add-or-remove-one", "G5"),
        ("add-or-remove-one", "G7"),
        ("replace-one", "R4"),
    ],
)
def test_statements_say_that_rates_are_as_stated(relation, label):
    run = cj.FixedWindow(num_clients=200, num_slots=100)
    g = rows.account(label, run, cj.Gaussian(noise_multiplier=4.0), delta=1e-3, neighboring_relation=relation)
    assert any("takes part in every window, and none drops out" in text for text in g.assumptions)


def test_hardly_ever_anybody_leaves_nobody_to_displace():
    seldom = cj.FixedWindow(num_clients=2, num_slots=100, check_in_prob=1e-20)
    g = cj.account(seldom, cj.Gaussian(noise_multiplier=1.0), delta=1e-6)
    assert g.lower == g.epsilon == 0.0
