"""T2++: a false label for the client's own slot; all throws, the algorithm, the game, and what is NOT a bound."""

import math
from collections import defaultdict
from fractions import Fraction as F
from functools import cache
from itertools import product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import hexagon as oracle
from oracles import random_check_ins as brute
from scipy.optimize import linprog

from checkin_jax.kernels import host
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.counts import occupancy, redrawn

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
SETTINGS = [(2, 2, 1.0), (3, 2, 1.0), (3, 3, 1.0), (4, 3, 1.0), (4, 2, 0.5), (3, 3, 0.6)]


def law_and_shares(n: int, m: int, prob: float) -> tuple:
    """K's law, and for every K that occurs the largest share and the labels' probability."""
    law = occupancy.exact(n - 1, m, prob)
    kept = np.flatnonzero(law)
    return law, kept, *redrawn.shares(n, m, prob, law, int(kept[0]), int(kept[-1]))


def theorem(n: int, m: int, prob: float, p: float, c: float, share=None, total=None) -> float:
    """T2++ by the game itself; with other shares or probabilities of labels, where they are given."""
    law, kept, w, t = law_and_shares(n, m, prob)
    w, t = w if share is None else share, t if total is None else total
    found = 0.0
    for i, k in enumerate(kept):
        value = oracle.weighted_game(p, c, [prob * w[i] / m] * m)
        found += law[k] * value((prob * w[i] - t[i]) * (c - 1.0))
    return float(found)


@pytest.mark.parametrize(("n", "m", "prob"), SETTINGS)
def test_labels_of_all_throws(n, m, prob):
    """Shares and probabilities of labels, by who throws where, who is drawn, and whose label is false.

    Labels say of every slot whether it is occupied, and by whom: None for empty ones.
    """
    law, kept, share, total = law_and_shares(n, m, prob)
    k = kept.astype(float)
    before = np.array([law[j - 1] if j else 0.0 for j in kept])
    fewer = before / law[kept] * (m - k + 1) / np.maximum(k, 1.0)
    kept_true = redrawn._true(k / n, (k + m * (1 - prob) / prob) / n, fewer, kept[-1] == m)
    true = dict(zip(kept.tolist(), np.where((kept == kept[-1]) & (kept < m), 1.0, kept_true)))
    without, unused, used = defaultdict(float), defaultdict(float), defaultdict(float)
    for picks, mass in brute.one_of_each_slot(
        brute.fixed_window_choices(n - 1, m, F(prob)), range(m)
    ).items():
        without[picks] += float(mass)
    for throws, mass in brute.fixed_window_choices(n - 1, m, F(prob)).items():
        members = [[i for i, slot in enumerate(throws) if slot == j] for j in range(m)]
        for drawn in product(*([*each] or [None] for each in members)):
            chance = float(mass) / math.prod(max(len(each), 1) for each in members)
            unused[drawn] += chance * (1 - prob)
            for j in range(m):
                own, load = chance * prob / m, len(members[j])
                if load:
                    used[drawn, j] += own / (load + 1)
                    unused[drawn] += own * load / (load + 1)
                    continue
                keeps = true[sum(each is not None for each in drawn)]
                used[drawn, j] += own * keeps
                spare = [i for i in range(n - 1) if i not in drawn]
                for other in spare:
                    false = (*drawn[:j], other, *drawn[j + 1 :])
                    used[false, j] += own * (1 - keeps) / len(spare)
                assert spare or keeps == 1.0
    assert sum(unused.values()) + sum(used.values()) == pytest.approx(1.0)
    for picks, mass in without.items():
        at = int(np.flatnonzero(kept == sum(each is not None for each in picks))[0])
        shares = np.array([used[picks, j] for j in range(m)]) / mass * m / prob
        assert shares.max() == pytest.approx(share[at], rel=1e-8)
        assert (shares <= share[at]).all()
        probability = (unused[picks] + sum(used[picks, j] for j in range(m))) / mass
        assert total[at] <= probability * (1 + 1e-12)
        assert probability == pytest.approx(total[at], rel=1e-8)
    assert {picks for picks, _ in used} | set(unused) <= set(without)


@pytest.mark.parametrize(("n", "m"), [(1000, 1000), (300, 1000), (3000, 1000), (40, 1000)])
@pytest.mark.parametrize("prob", [1.0, 0.4])
def test_shares_are_nearly_even(n, m, prob):
    """They add up to the probability that the message is used, a hundredth more at most; labels' to one."""
    seen = redrawn.labelled(n, m, prob, MASS)
    assert seen is not None
    used = m / n * (1 - (1 - prob / m) ** n)
    assert 0.99 <= seen.masses.sum() <= 1.0 + 1e-6
    assert used <= (seen.masses * m / seen.clients).sum() <= 1.01 * used


@pytest.mark.parametrize(
    ("n", "m", "prob"), [(4000, 4000, 1.0), (4900, 600, 1.0), (4900, 2000, 0.6), (5000, 4000, 0.7)]
)
def test_bounds_on_the_law_are_above_it(n, m, prob):
    """Where K's law is bounded, the value of any level is above those of all K and numbers of others in it."""
    bounded, exact = redrawn._bounded(n, m, prob, MASS), redrawn._counted(n, m, prob, MASS)
    assert bounded is not None
    assert exact is not None
    share, total, masses, _, lost = bounded
    for far in (0.0, 0.02, 0.05):
        # A unit's worth of a normal sum, where it matters: any value that falls with T and grows with the share.
        def value(each, far=far):
            return sum(q * max(0.0, w - 8.0 * far * t) for w, t, q in zip(*each[:3]))

        assert value((share, total, masses)) + lost >= value(exact)
    assert (np.diff(share) >= 0).all()
    assert (np.diff(total) <= 0).all()


def ratios(n: int, m: int, prob: float, seed: int, number: int, bound, losses) -> float:
    """The largest ratio of the algorithm, in adaptive channels of finite randomizers, to `bound` at e^loss."""
    rng, largest = np.random.default_rng(seed), 0.0
    used, p = brute.fixed_window(n, m, prob), 4.0
    at_most = np.array([bound(p, math.exp(loss)) for loss in losses])
    for turn in range(number):
        kind = ("extremal", "rotated")[turn % 2]
        tree = brute.random_tree(lambda kind=kind: brute.random_channel(rng, 3, p, kind), m)
        truth = np.array(brute.divergences(used, tree, 2, n, np.exp(losses)))
        assert (truth <= at_most * (1 + 1e-9) + 1e-15).all()
        seen = at_most > 0.0
        largest = max(largest, (truth[:, seen] / at_most[seen]).max())
    return largest


@pytest.mark.parametrize(("n", "m", "prob"), SETTINGS)
def test_the_algorithm_is_below(n, m, prob):
    largest = ratios(n, m, prob, n * m, 8, lambda p, c: theorem(n, m, prob, p, c), (0.0, 0.2, 0.5, 0.9))
    assert 0.5 < largest <= 1.0 + 1e-9


@pytest.mark.parametrize(("n", "m", "prob"), SETTINGS)
def test_a_client_added_or_removed_is_below(n, m, prob):
    """Random adaptive randomizers, dummies and others of different records; the bound is attained to a third."""
    rng, largest = np.random.default_rng(n + m), 0.0
    used, without = brute.fixed_window(n, m, prob), brute.fixed_window(n - 1, m, prob)
    for p in (1.3, 4.0):
        losses = np.array([0.0, 0.05, 0.2, 0.5]) * math.log1p(prob * (p - 1.0))
        bound = [theorem(n, m, prob, p, math.exp(loss)) for loss in losses]
        for turn in range(24):
            kind = ("extremal", "rotated")[turn % 2]
            tree = brute.random_tree(lambda kind=kind, p=p: brute.random_channel(rng, 3, p, kind), m)
            others = rng.integers(0, 2, n - 1).tolist()
            there, gone = brute.output_law(used, [*others, 0], tree), brute.output_law(without, others, tree)
            for loss, most in zip(losses, bound):
                for one, other in ((there, gone), (gone, there)):
                    truth = brute.hockey_stick(one, other, math.exp(loss))
                    assert truth <= most * (1 + 1e-9) + 1e-15
                    largest = max(largest, truth / most if most > 0.0 else 0.0)
    assert largest > 1.0 / 3.0


def powers(law: np.ndarray, most: int) -> list:
    """Laws of the counts of labels of 0, ..., most messages, each of this law."""
    one = np.zeros((2,) * law.size)
    for label, mass in enumerate(law):
        one[tuple(int(i == label) for i in range(law.size))] = mass
    found = [np.ones((1,) * law.size)]
    for _ in range(most):
        found.append(together(found[-1], one))
    return found


def together(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    found = np.zeros([a + b - 1 for a, b in zip(one.shape, other.shape)])
    for at in zip(*np.nonzero(other)):
        found[tuple(slice(i, i + size) for i, size in zip(at, one.shape))] += other[at] * one
    return found


def exchangeable(n: int, m: int, prob: float, channel: np.ndarray, c: float) -> float:
    """H of the algorithm where all others hold one record: rows are the client's two records, dummy's, others'."""
    first, second, dummy, other = channel
    occupied, dummies, others = occupancy.exact(n, m, prob), powers(dummy, m), powers(other, m)
    moved = powers(first, 1)[1] - c * powers(second, 1)[1]
    total = np.zeros((m + 1,) * dummy.size)
    for k in np.flatnonzero(occupied):
        total += occupied[k] * (1 - k / n) * (1 - c) * together(others[k], dummies[m - k])
        if k:
            total += occupied[k] * k / n * together(together(moved, others[k - 1]), dummies[m - k])
    return float(np.maximum(total, 0).sum())


def extreme_channel(rng: np.random.Generator, p: float) -> np.ndarray:
    """A random extreme law of the four densities, whose quotients are 1/p to p."""
    rays = np.array([each for each in product([1.0, p], repeat=4) if len(set(each)) == 2])
    masses = linprog(rng.normal(size=len(rays)), A_eq=rays.T, b_eq=np.ones(4), bounds=(0, None)).x
    return (rays * masses[:, None])[masses > 1e-9].T


def worst(n: int, m: int, prob: float, p: float, bound, seed: int, number: int = 20) -> float:
    """The largest ratio to `bound` over randomizers that tell dummies from others."""
    rng, losses = np.random.default_rng(seed), math.log(p) * prob * np.array([0.0, 0.08, 0.25])
    at_most = [bound(p, math.exp(loss)) for loss in losses]
    channels = [extreme_channel(rng, p) for _ in range(number)]
    return max(
        exchangeable(n, m, prob, each, math.exp(loss)) / value
        for each in channels
        for loss, value in zip(losses, at_most)
    )


@pytest.mark.parametrize("p", [1.6, math.exp(2), 20.0])
@pytest.mark.parametrize(("n", "m", "prob"), [(3, 2, 1.0), (6, 4, 1.0), (4, 4, 0.8), (12, 4, 1.0)])
def test_dummies_and_others_told_apart_are_below(n, m, prob, p):
    found = worst(n, m, prob, p, lambda p, c: theorem(n, m, prob, p, c), n)
    assert 0.85 < found <= 1.0 + 1e-9


def test_one_client_too_many_is_no_bound():
    """Shares as if the client competed with itself, or without what false labels add: exceeded by the algorithm."""
    law, kept, *_ = law_and_shares(4, 3, 1.0)
    more, _ = redrawn.shares(5, 3, 1.0, law, int(kept[0]), int(kept[-1]))
    for share in (more, kept / 4.0):
        assert worst(4, 3, 1.0, 4.0, lambda p, c, w=share: theorem(4, 3, 1.0, p, c, w), 1) > 1.05


def test_the_mean_share_is_no_bound():
    """The probability to be used in every slot whatever is seen: exceeded where dummies and others differ."""
    mean = np.array([0.75])

    def bound(p: float, c: float) -> float:
        return theorem(2, 2, 1.0, p, c, mean, np.ones(1))

    rng, c = np.random.default_rng(5), math.exp(0.6 * math.log(4.0))
    found = max(exchangeable(2, 2, 1.0, extreme_channel(rng, 4.0), c) for _ in range(40))
    assert found > 1.05 * bound(4.0, c)


@pytest.mark.parametrize(("p", "step"), [(F(3, 2), F(1, 100)), (F(4), F(1, 20))])
def test_above_the_game(p, step):
    """Two parts that begin at different places, played out on a lattice."""
    far, slots, clients, masses = [step * j for j in (0, 1, 2)], 200, (250, 300), (0.7, 0.3)
    parts = StepCounts(*map(host, (clients, 1.0, (slots, slots), masses)))
    found = staged_clones.parts(parts, staged_clones.AnyMessage(math.log(float(p))), 0.0, MASS)
    assert found is not None
    bound = convex.chords(*found.profile(), np.log1p(np.array([float(x) for x in far])))
    width = 9.0 * math.sqrt(slots * float(max(2 / (p + 2), 1 / p)))
    truth = [
        sum(q * oracle.lattice_game(p, 1 + x, -n * x, slots, width)[-1] / n for n, q in zip(clients, masses))
        for x in far
    ]
    assert (bound >= np.array(truth) * (1 - ORACLE_ROUNDING)).all()
    assert bound[0] <= 1.06 * truth[0]


@pytest.mark.parametrize(("n", "m", "prob"), [(2, 2, 1.0), (3, 3, 1.0), (5, 3, 0.6), (8, 4, 1.0)])
def test_fewer_clients_are_a_bound(n, m, prob):
    found = [worst(n + more, m, prob, 4.0, lambda p, c: theorem(n, m, prob, p, c), n) for more in (0, 1, 3)]
    assert found[2] < found[1] < found[0] <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("n", "m", "prob", "groups"),
    [
        (3, 2, 1.0, (0, 1)),
        (4, 3, 1.0, (0, 0, 0)),
        (4, 2, 0.5, (0, 1, 1)),
        (3, 3, 0.6, (0, 0)),
        (5, 3, 0.9, (0,) * 4),
    ],
)
def test_no_adaptive_randomizer_is_above(n, m, prob, groups):
    """The worst of all, not of some; it is attained at c = 1, and nearly so beyond. More clients are below, too."""
    for p in (1.7, 4.0, 20.0):
        c = np.exp(np.array([0.0, 0.03, 0.3, 0.7]) * math.log1p(prob * (p - 1.0)))
        found = [brute.every_randomizer(brute.fixed_window(n, m, prob), n - 1, groups, p, each) for each in c]
        bound = [theorem(n, m, prob, p, each) for each in c]
        assert (np.array(found) <= np.array(bound) * (1.0 + 1e-9) + 1e-12).all()
        assert found[0] >= 0.95 * bound[0]
        if n < 5:
            used = brute.fixed_window(n + 1, m, prob)
            more = brute.every_randomizer(used, n, (*groups, groups[-1]), p, c[1])
            assert more <= bound[1] * (1.0 + 1e-9)


def beside_fair_bits(
    n: int, m: int, prob: float, p: float, c: float, less: int = 0, size: float = 1.0
) -> float:
    """T2++ of one window, steps in the worst order; `less`: of the named slots also hold fair bits."""
    law, kept, *both = law_and_shares(n, m, prob)
    found = 0.0
    for k, share, total in zip(kept, *both):
        step, rare, fair = prob * share / m, 1.0 / (p + 1.0), size * (c + 1.0) * (p - 1.0) / (p + 1.0)

        @cache
        def value(chosen: int, bits: int, at: float, step=step, rare=rare, fair=fair) -> float:
            def mean(one: float, mass: float, other: float, *left: int) -> float:
                ends = (round(at + step * d, 11) for d in (one, other))
                return sum(q * value(*left, end) for q, end in zip((mass, 1.0 - mass), ends))

            left = chosen - 1, bits
            ways = [mean(fair, 0.5, -fair, chosen, bits - 1)] if bits else []
            if chosen:
                ways += [
                    mean(p - 1.0, rare, 1.0 / p - 1.0, *left),
                    mean(c * (1.0 - p), rare, c - c / p, *left),
                ]
            return max(ways, default=max(at, 0.0))

        named = max(int(k) - less, 0)
        found += law[k] * value(named, m - named, -total * (c - 1.0))
    return float(found)


def test_adaptive_bits_beside_fair_dummies_are_below():
    """All throws; others and the target of any record after any past. One slot more of fair bits is no bound."""
    rng, largest, wrong = np.random.default_rng(4), 0.0, np.zeros(2)
    for n, m, prob, p in [(3, 2, 1.0, 4.0), (4, 3, 1.0, 1.5), (4, 2, 0.5, 4.0), (3, 3, 0.6, 20.0)]:
        used, without = brute.fixed_window(n, m, prob), brute.fixed_window(n - 1, m, prob)
        rows = np.array([[p, 1.0], [1.0, p], [(p + 1.0) / 2.0] * 2]) / (p + 1.0)
        cs = np.exp(np.array([0.0, 0.1, 0.4]) * math.log1p(prob * (p - 1.0)))
        bounds = [[beside_fair_bits(n, m, prob, p, c, *way) for c in cs] for way in ((), (1,), (0, 0.5))]
        for _ in range(12):
            tree = brute.random_tree(lambda rows=rows: rows[[*rng.integers(0, 2, 3), 2]], m)
            others = rng.integers(0, 3, n - 1).tolist()
            laws = [brute.output_law(used, [*others, x], tree) for x in (0, 1)]
            gone = brute.output_law(without, others, tree)
            for one, other in ((laws, laws[::-1]), (laws, [gone] * 2), ([gone] * 2, laws)):
                truth = [[brute.hockey_stick(a, b, c) for c in cs] for a, b in zip(one, other)]
                ratios = (np.array(truth)[:, None] / np.array(bounds)).max(axis=(0, 2))
                largest, wrong = max(largest, ratios[0]), np.maximum(wrong, ratios[1:])
    assert 0.95 < largest <= 1.0 + 1e-9
    assert (wrong > 1.05).all()


def test_ranges_have_their_last_number_of_named_slots():
    """The first one of every range is no bound: others are fair bits, of smaller variance."""
    below, (*_, masses, most, _) = (
        np.cumsum(occupancy.exact(299, 200, 1.0)),
        redrawn._counted(300, 200, 1.0, MASS),
    )
    assert (np.cumsum(masses) <= below[most.astype(int)] + 1e-9).all()
    first = most[:-1].astype(int) + 1
    assert (np.cumsum(masses)[1:] > below[first] + 1e-9).any()
