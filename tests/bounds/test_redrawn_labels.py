"""T2d: the label of the own slot is drawn anew; all throws, the algorithm, the tails, and what is NOT a bound."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from oracles import hexagon as oracle
from oracles import random_check_ins as brute

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels import host
from checkin_jax.kernels.messages.weighted_clones import WeightedSteps
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.counts import redrawn

pytestmark = pytest.mark.usefixtures("x64")

# Of every slot, the client shown if the target is not there and that client's key.
Label = tuple[tuple[int | None, float], ...]


def draws(windows: list[dict[int, float]], keys: int) -> dict[Label, float]:
    """Law of the labels of all slots: client i is in slot v with probability windows[i][v], and has a random key.

    Keys of client i are (k + (i + 1)/(n + 1))/keys, k = 0, ..., keys - 1: no two clients have the same one.
    """
    slots, n = sorted({v for each in windows for v in each}), len(windows)
    states: dict[Label, float] = {tuple((None, 1.0) for _ in slots): 1.0}
    for i, window in enumerate(windows):
        stepped: dict[Label, float] = defaultdict(float)
        for label, mass in states.items():
            stepped[label] += mass * (1.0 - sum(window.values()))
            for v, prob in window.items():
                for k in range(keys):
                    key, at = (k + (i + 1) / (n + 1)) / keys, slots.index(v)
                    mine = (*label[:at], (i, key), *label[at + 1 :]) if key < label[at][1] else label
                    stepped[mine] += mass * prob / keys
        states = {label: mass for label, mass in stepped.items() if mass}
    return states


def conditional_shares(law: dict[Label, float], slot: int) -> dict[Label, float]:
    """W_s: mean of the key in this slot, given the labels of all others."""
    mass, total = defaultdict(float), defaultdict(float)
    for label, prob in law.items():
        others = label[:slot] + label[slot + 1 :]
        mass[others] += prob
        total[others] += prob * label[slot][1]
    return {others: total[others] / mass[others] for others in mass}


def sliding(window: int, shown: int) -> tuple[list[dict[int, float]], list[int]]:
    """Windows of all others whose windows meet slots 0, ..., shown - 1 of the target's; and these slots."""
    starts = [start for start in range(1 - window, shown) if start]
    return [{start + j: 1.0 / window for j in range(window)} for start in starts], list(range(shown))


def common(n: int, slots: int, prob: float) -> tuple[list[dict[int, float]], list[int]]:
    return [dict.fromkeys(range(slots), prob / slots)] * (n - 1), list(range(slots))


CASES = [(sliding(2, 2), 0.5), (sliding(3, 2), 1 / 3), (common(4, 3, 1.0), 1 / 3), (common(4, 2, 0.6), 0.3)]


@pytest.mark.parametrize(("case", "each"), CASES)
def test_shares_given_the_other_labels(case, each):
    """Others that are drawn nowhere else are independent; g_i is the probability of each to be in the slot."""
    (windows, own), keys = case, 3
    law = draws(windows, keys)
    slots, n = sorted({v for window in windows for v in window}), len(windows)
    for s in own:
        at = slots.index(s)
        for others, share in conditional_shares(law, at).items():
            rest = [v for v in slots if v != s]
            drawn = {who for who, _ in others}
            # Law of the smallest key: client by client.
            smallest = {1.0: 1.0}
            for i, window in enumerate(windows):
                if i in drawn or s not in window:
                    continue
                own_keys = [(k + (i + 1) / (n + 1)) / keys for k in range(keys)]
                lost = sum(
                    window.get(v, 0.0) * sum(key < kappa for key in own_keys) / keys
                    for v, (_, kappa) in zip(rest, others)
                )
                g, stepped = window[s] / (1.0 - lost), defaultdict(float)
                for key, mass in smallest.items():
                    stepped[key] += mass * (1.0 - g)
                    for mine in own_keys:
                        stepped[min(key, mine)] += mass * g / keys
                smallest = dict(stepped)
            assert share == pytest.approx(sum(key * mass for key, mass in smallest.items()), rel=1e-9)


def parts(windows, own, each: float, keys: int) -> list[tuple[float, float, tuple]]:
    """(mass, T, weights) of all labels; `each`: probability that the target is in one given slot of its own."""
    law = draws(windows, keys)
    slots = sorted({v for window in windows for v in window})
    places = [slots.index(s) for s in own]
    shares = {at: conditional_shares(law, at) for at in places}
    found: dict[tuple, float] = defaultdict(float)
    for label, mass in law.items():
        kappa = [label[at][1] for at in places]
        weights = [shares[at][label[:at] + label[at + 1 :]] for at in places]
        total = 1.0 + each * (sum(weights) - sum(kappa))
        found[round(total, 12), tuple(round(each * w, 12) for w in weights)] += mass
    return [(mass, *which) for which, mass in found.items()]


@pytest.mark.parametrize(("case", "each"), CASES)
def test_labels_of_all_throws(case, each):
    """The probability of every label, with the target's message shown in every slot or in none, from the throws."""
    (windows, own), keys = case, 2
    law = draws(windows, keys)
    slots = sorted({v for window in windows for v in window})
    used: dict[tuple, float] = defaultdict(float)
    for label, mass in law.items():
        used[label, None] += mass * (1.0 - each * sum(label[slots.index(s)][1] for s in own))
        for s in own:
            at = slots.index(s)
            # The label of the own slot is drawn from its law given all others.
            same = {
                other: q
                for other, q in law.items()
                if other[:at] + other[at + 1 :] == label[:at] + label[at + 1 :]
            }
            for other, q in same.items():
                used[other, s] += mass * each * label[at][1] * q / sum(same.values())
    assert sum(used.values()) == pytest.approx(1.0)
    shares = {s: conditional_shares(law, slots.index(s)) for s in own}
    for label, mass in law.items():
        total = used[label, None]
        for s in own:
            at = slots.index(s)
            assert used[label, s] == pytest.approx(mass * each * shares[s][label[:at] + label[at + 1 :]])
            total += used[label, s]
        weights = [shares[s][label[: slots.index(s)] + label[slots.index(s) + 1 :]] for s in own]
        expected = 1.0 + each * sum(w - label[slots.index(s)][1] for w, s in zip(weights, own))
        assert total == pytest.approx(mass * expected)


def parts_beside_colluders(
    windows, own, each: float, keys: int, known: dict[int, float]
) -> tuple[list, float]:
    """`parts` with a colluder of key known[s] in slot s, and the probability that the target is shown without a label.

    Honest messages that a colluder's hides are shown, too, with the order of the two keys; labels are drawn anew among
    those of clients that are there, in this order.
    """
    law = draws(windows, keys)
    slots = sorted({v for window in windows for v in window})
    places = {s: slots.index(s) for s in own}
    found, unlabelled = defaultdict(float), 0.0

    def kind(s: int, kappa: float) -> int:
        """0: empty, 1: a key below the colluder's, 2: one above."""
        return 0 if kappa == 1.0 and s in known else 1 if kappa < known.get(s, 2.0) else 2

    shown, mass_of = defaultdict(float), defaultdict(float)
    for label, mass in law.items():
        for s, at in places.items():
            rest, kappa = label[:at] + label[at + 1 :], label[at][1]
            mass_of[s, rest, kind(s, kappa)] += mass
            shown[s, rest, 1] += mass * min(kappa, known.get(s, 1.0))
            shown[s, rest, 2] += mass * max(kappa - known.get(s, 1.0), 0.0)
    for which, mass in shown.items():
        unlabelled += each * mass if not mass_of.get(which) else 0.0
    for label, mass in law.items():
        weights = []
        for s, at in places.items():
            which = s, label[:at] + label[at + 1 :], kind(s, label[at][1])
            weights.append(shown[which] / mass_of[which] if which[2] else 0.0)
        total = 1.0 + each * (sum(weights) - sum(label[at][1] for at in places.values()))
        found[round(total, 12), tuple(round(each * w, 12) for w in weights)] += mass
    return [(mass, *which) for which, mass in found.items()], unlabelled


def shown_beside_colluders(windows, own, each: float, keys: int, known: dict[int, float]) -> list[brute.Used]:
    """Laws of who is shown in the other own slots, one for each set of slots that show a colluder's message."""
    law = draws(windows, keys)
    slots, target = sorted({v for window in windows for v in window}), len(windows)
    places, found = {s: slots.index(s) for s in own}, defaultdict(lambda: defaultdict(float))

    def seen(label: Label, mine: int | None, mass: float) -> None:
        names = [
            target if s == mine else label[at][0] if label[at][1] < known.get(s, 2.0) else "colluder"
            for s, at in places.items()
        ]
        hidden = tuple(s for s, who in zip(places, names) if who == "colluder")
        found[hidden][tuple(who for who in names if who != "colluder")] += mass

    for label, mass in law.items():
        shares = {s: each * min(label[at][1], known.get(s, 1.0)) for s, at in places.items()}
        seen(label, None, mass * (1.0 - sum(shares.values())))
        for s, share in shares.items():
            seen(label, s, mass * share)
    return [dict(each) for names, each in found.items() if len(names) < len(own)]


@pytest.mark.parametrize(
    ("windows", "known"),
    [
        (sliding(2, 2), {0: 1.0}),
        (sliding(2, 2), {0: 0.6, 1: 1.0}),
        (sliding(3, 2), {1: 0.7}),
        (common(4, 2, 0.6), {0: 1.0}),
        (common(2, 3, 0.9), {0: 0.4, 1: 0.9}),
    ],
)
def test_no_adaptive_randomizer_is_above_beside_colluders(windows, known):
    """Their slots and keys are known; the bound that is not told of them is exceeded."""
    windows, own = windows
    each, keys = 1.0 / len(windows[0]), 3
    laws = shown_beside_colluders(windows, own, each, keys, known)
    found, unlabelled = parts_beside_colluders(windows, own, each, keys, known)
    unaware = parts(windows, own, each, keys)
    assert sum(mass for mass, *_ in found) == pytest.approx(1.0)
    exceeded = 0
    for p in (1.7, 6.0):
        for share in (0.0, 0.3, 0.6, 0.9):
            c = math.exp(share * math.log1p(each * len(own) * (p - 1.0)))
            truth = sum(worst_of_groups(law, len(windows), p, c) for law in laws)
            bound = theorem(found, p, c) + unlabelled * max(p - c, 0.0) / (p + 1.0)
            assert truth <= bound * (1.0 + 1e-9) + 1e-12
            exceeded += truth > theorem(unaware, p, c) * (1.0 + 1e-9)
    assert exceeded


def theorem(found: list, p: float, c: float, scale: float = 1.0) -> float:
    """E Phi(T, W), the weights times `scale`."""
    return sum(
        mass
        * oracle.weighted_game(p, c, [scale * w for w in weights])((scale * sum(weights) - total) * (c - 1.0))
        for mass, total, weights in found
    )


def shown_law(windows, own, each: float, keys: int) -> brute.Used:
    """Law of who is shown in the own slots: the client of the smallest key; the target is the last client."""
    law, used = draws(windows, keys), defaultdict(float)
    slots = sorted({v for window in windows for v in window})
    places = [slots.index(s) for s in own]
    for label, mass in law.items():
        names = tuple(label[at][0] for at in places)
        used[names] += mass * (1.0 - each * sum(label[at][1] for at in places))
        for j, at in enumerate(places):
            used[(*names[:j], len(windows), *names[j + 1 :])] += mass * each * label[at][1]
    return dict(used)


def worst_of_groups(used: brute.Used, target: int, p: float, c: float) -> float:
    """Of all others alike, and of two kinds of them."""
    kinds = [0] * target, [i % 2 for i in range(target)]
    return max(brute.every_randomizer(used, target, groups, p, c) for groups in kinds)


@pytest.mark.parametrize(("case", "each"), CASES)
@pytest.mark.parametrize("keys", [1, 3])
def test_no_adaptive_randomizer_is_above(case, each, keys):
    """The worst of all, in the order of the slots; nearly attained, so that smaller shares are exceeded."""
    windows, own = case
    found, used = parts(windows, own, each, keys), shown_law(windows, own, each, keys)
    for p in (1.7, 6.0):
        exceeded = 0
        for share in (0.0, 0.05, 0.3, 0.6):
            c = math.exp(share * math.log1p(each * len(own) * (p - 1.0)))
            truth, bound = worst_of_groups(used, len(windows), p, c), theorem(found, p, c)
            assert truth <= bound * (1.0 + 1e-9) + 1e-12
            exceeded += truth > theorem(found, p, c, scale=0.95)
        assert exceeded


@pytest.mark.parametrize(("case", "each"), CASES)
@pytest.mark.parametrize("keys", [1, 3])
def test_a_client_added_or_removed_is_below(case, each, keys):
    """Random adaptive randomizers, dummies and others of different records; the bound is attained to a third."""
    windows, own = case
    found, used = parts(windows, own, each, keys), shown_law(windows, own, each, keys)
    without, rng, largest = shown_law(windows, own, 0.0, keys), np.random.default_rng(len(windows)), 0.0
    for p in (1.3, 1.7, 6.0):
        losses = np.array([0.0, 0.05, 0.3, 0.6]) * math.log1p(each * len(own) * (p - 1.0))
        bound = [theorem(found, p, math.exp(loss)) for loss in losses]
        for turn in range(24):
            kind = ("extremal", "rotated")[turn % 2]
            tree = brute.random_tree(lambda kind=kind, p=p: brute.random_channel(rng, 3, p, kind), len(own))
            others = rng.integers(0, 2, len(windows)).tolist()
            there = brute.output_law(used, [*others, 0], tree)
            gone = brute.output_law(without, [*others, 0], tree)
            for loss, most in zip(losses, bound):
                for one, other in ((there, gone), (gone, there)):
                    truth = brute.hockey_stick(one, other, math.exp(loss))
                    assert truth <= most * (1.0 + 1e-9) + 1e-12
                    largest = max(largest, truth / most if most else 0.0)
    assert largest > 1.0 / 3.0


def test_the_mean_share_is_no_bound():
    """W = E W and T = 1, whatever the labels: exceeded by the algorithm."""
    (windows, own), each = CASES[0]
    found, used = parts(windows, own, each, 3), shown_law(windows, own, each, 3)
    masses, _, weights = zip(*found)
    mean = [(1.0, 1.0, tuple(np.average(weights, axis=0, weights=masses)))]
    c = math.exp(0.6 * math.log1p(0.7))
    assert worst_of_groups(used, len(windows), 1.7, c) > 1.1 * theorem(mean, 1.7, c)


def test_sliding_windows_draw_uniformly():
    """With many keys the draw is that of the algorithm."""
    windows, own = sliding(2, 2)
    used = shown_law(windows, own, 0.5, 12)
    exact = brute.sliding_window(3, 2)
    for names, mass in used.items():
        # The oracle's clients are in order of their windows; the target is the second.
        order = {None: None, 0: 0, 1: 2, 2: 1}
        assert mass == pytest.approx(float(exact.get(tuple(order[who] for who in names), 0.0)), abs=0.02)


def drawn_labels(
    rng: np.random.Generator, window: int, colluding: Sequence[int] = (), known: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(W_s, kappa_s) of the slots 0, ..., window - 1 of a client that starts there, all others throwing.

    In each of the first `known` slots is one of the `colluding` clients; W_s is zero there if no other one is.
    """
    m, first = window, -3 * window
    starts = np.array([start for start in range(first, 4 * m) if start and start not in colluding])
    slots, keys = starts + rng.integers(0, m, starts.size) - first, rng.random(starts.size)
    kappa, named = np.ones(9 * m), np.full(9 * m, -(10**9))
    order = np.argsort(-keys)
    kappa[slots[order]], named[slots[order]] = keys[order], starts[order]
    place = {int(who): int(slot) for slot, who in enumerate(named)}
    left = np.concatenate([[0.0], np.cumsum(1.0 - kappa)])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    u, shares = 0.5 * (nodes + 1.0), np.empty(m)
    for s in range(m):
        able = (i for i in range(s - m + 1, s + 1) if i and i not in colluding)
        others = [i for i in able if place.get(i, s - first) == s - first]
        own = np.array(others, dtype=int) - first
        g = 1.0 / (1.0 + left[own + m] - left[own] - (1.0 - kappa[s - first]))
        shares[s] = 0.5 * weights @ np.exp(np.log1p(-np.outer(u, g)).sum(axis=1))
        if s < known:
            shares[s] *= (kappa[s - first] < 1.0) / -np.expm1(np.log1p(-g).sum())
    return shares, kappa[-first : m - first]


@pytest.fixture(scope="module")
def samples() -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
    rng = np.random.default_rng(35)
    return {
        m: [drawn_labels(rng, m) for _ in range(number)] for m, number in ((20, 400), (200, 60), (500, 60))
    }


@pytest.mark.parametrize("m", [20, 500])
def test_tails_of_the_shares(samples, m):
    """Mean excesses and shortfalls are above those of drawn labels, and not by very much."""
    shares = np.array([w for w, _ in samples[m]])
    assert shares.mean() == pytest.approx(
        1.0 - (1.0 - 1.0 / m) ** m, abs=0.15 / math.sqrt(m * len(shares)) + 0.002
    )
    for deviations in (0.0, 0.3, 0.8):
        high, low = (shares.mean() + sign * deviations / math.sqrt(m) for sign in (1, -1))
        above, below = np.maximum(shares - high, 0.0).mean(), np.maximum(low - shares, 0.0).mean()
        assert redrawn.excesses(m, 0, np.array([high]))[0] >= above
        assert redrawn.shortfalls(m, 0, np.array([low]))[0] >= below
    if m == 500:
        wide = shares.mean() + 1.2 / math.sqrt(m)
        assert redrawn.excesses(m, 0, np.array([wide]))[0] < 0.1 / math.sqrt(m)
        assert redrawn.shortfalls(m, 0, np.array([2.0 * shares.mean() - wide]))[0] < 0.15 / math.sqrt(m)


@pytest.mark.parametrize("colluding", [range(1, 41), range(-200, 200, 2)])
def test_tails_of_the_shares_beside_colluders(colluding):
    """Shares of slots without a colluder; bounds that are told of no colluders are exceeded by some shares."""
    m, rng = 400, np.random.default_rng(len(colluding))
    honest = [each for each in colluding if each]
    shares = np.concatenate([drawn_labels(rng, m, honest)[0] for _ in range(4)])
    at = np.linspace(0.3, 0.95, 40)
    above, below = (np.maximum(sign * (shares[:, None] - at), 0.0).mean(axis=0) for sign in (1.0, -1.0))
    assert (redrawn.excesses(m, len(honest), at) >= above).all()
    assert (redrawn.shortfalls(m, len(honest), at) >= below).all()
    if len(honest) > 100:
        assert (redrawn.excesses(m, 0, at) < above).any()


def test_a_share_falls_by_its_steepest_logarithmic_slope_at_most():
    """A slope that is a thousandth smaller is no bound."""
    ratio = np.linspace(0.01, 8.0, 40_000)
    fall = -np.diff(redrawn._share(ratio)) / np.diff(np.log(ratio))
    assert 0.999 * redrawn._STEEPEST < fall.max() <= redrawn._STEEPEST


@pytest.mark.parametrize(("case", "each"), CASES)
def test_clients_that_are_named_nowhere_else(case, each):
    """Given the others, i is one of L_s unless it is named elsewhere, and then its sum is that without it."""
    del each
    (windows, own), keys = case, 3
    slots, n = sorted({v for window in windows for v in window}), len(windows)
    for i, window in enumerate(windows):
        alone = [(k + (i + 1) / (n + 1)) / keys for k in range(keys)]

        def named(label: Label, s: int, window=window, alone=alone) -> float:
            rest = ((window.get(v, 0.0), kappa) for v, (_, kappa) in zip(slots, label) if v != s)
            return sum(prob * sum(key < kappa for key in alone) / keys for prob, kappa in rest)

        without = [dict.fromkeys(other, 0.0) if j == i else other for j, other in enumerate(windows)]
        for s in own:
            if s not in window:
                continue
            found, expected = defaultdict(float), defaultdict(float)
            for label, mass in draws(windows, keys).items():
                if not any(who == i for v, (who, _) in zip(slots, label) if v != s):
                    found[round(named(label, s), 9)] += mass
            for label, mass in draws(without, keys).items():
                expected[round(named(label, s), 9)] += mass * (1.0 - named(label, s))
            assert found == pytest.approx(expected)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 0.6])
def test_sums_of_clients_that_are_named_nowhere_else(sigma):
    """Client i is in L_s with probability (1 + S_i')/m, which grows with S_i'; not 1 - S_i'/m, which falls."""
    (windows, own), keys, m = sliding(3, 3), 5, 3
    slots, s = sorted({v for window in windows for v in window}), own[1]
    i = windows.index(dict.fromkeys(range(1, 4), 1 / 3))
    others = [dict.fromkeys(each, 0.0) if j == i else each for j, each in enumerate(windows)]

    def over(label: Label) -> float:
        return max(sum(1.0 - label[slots.index(v)][1] for v in windows[i] if v != s) - sigma, 0.0)

    without = [(mass, over(label)) for label, mass in draws(others, keys).items()]
    mean, square = (sum(mass * u**power for mass, u in without) for power in (1, 2))
    truth = sum(
        mass * over(label)
        for label, mass in draws(windows, keys).items()
        if not any(who == i and v != s for v, (who, _) in zip(slots, label))
    )
    # The lattice of keys moves it.
    assert truth == pytest.approx(((1.0 + sigma) * mean + square) / m, rel=0.1)
    assert truth < 0.85 * sum(mass * u * (1.0 - (sigma + u) / m) for mass, u in without)


def scale_of(shares: np.ndarray, shape: np.ndarray) -> float:
    """The least multiple of a vector, of decreasing numbers, that weakly majorizes the shares."""
    return float((np.cumsum(np.sort(shares)[::-1]) / np.cumsum(shape)).max())


@pytest.mark.parametrize(("window", "shown"), [(500, 500), (500, 120), (200, 100)])
def test_scales_of_drawn_labels_are_below_the_levels(samples, window, shown):
    """Means of T (w/T - k)_+, w the least scale; the law whose scales are three hundredths less is exceeded."""
    levels = redrawn.redrawn(shown, window, 12.0)
    assert levels is not None
    shape = np.repeat([levels.heavy[0], levels.shares[0]], [int(levels.whole[0]), int(levels.numbers[0, 0])])
    ratios, mean = levels.heavy / levels.heavy[0], 1.0 - (1.0 - 1.0 / window) ** window
    drawn = [
        (scale_of(w[:shown], shape[:shown]), 1.0 + (w[:shown] - kappa[:shown]).sum() / window)
        for w, kappa in samples[window]
    ]
    scales, totals = np.array(drawn).T
    # All of so few labels are at the first level, whose law ends at the place of its last corner.
    for k in np.append(0.0, np.linspace(0.9, 1.1, 21) * mean / shape.mean()):
        truth, bound = (
            np.maximum(scales - k * totals, 0.0).mean(),
            levels.masses @ np.maximum(ratios - k, 0.0),
        )
        assert truth <= bound
    assert scales.mean() > 0.94 * levels.masses @ ratios
    assert levels.masses.sum() == pytest.approx(1.0, abs=0.02)


def in_worst_order(found: list, p: float, c: float, scale: float = 1.0) -> float:
    """`theorem` with the worst order of each vector of weights."""
    return sum(
        max(theorem([(mass, total, order)], p, c, scale) for order in set(itertools.permutations(weights)))
        for mass, total, weights in found
    )


@pytest.mark.parametrize(("case", "each"), CASES)
def test_no_adaptive_randomizer_is_above_the_kept_mean(case, each):
    """Shares of two values, times scales of a law that is above w/T in increasing convex order; from all throws."""
    windows, own = case
    found, used = parts(windows, own, each, 3), shown_law(windows, own, each, 3)
    number, exceeded = len(own), 0
    shape = np.array([1.3, *[1.0 - 0.3 / (number - 1)] * (number - 1)])
    laws = [(mass, total, scale_of(np.array(weights) / each, shape)) for mass, total, weights in found]
    at = np.linspace(0.0, max(scale / total for _, total, scale in laws), 6)
    bounds = [sum(mass * max(scale - k * total, 0.0) for mass, total, scale in laws) for k in at]
    masses = np.diff(np.append(np.diff(bounds) / np.diff(at), 0.0))
    kept = [(mass, 1.0, tuple(each * k * shape)) for mass, k in zip(masses, at[1:])]
    for p in (1.7, 6.0):
        for share in (0.0, 0.05, 0.3, 0.6):
            c = math.exp(share * math.log1p(each * number * (p - 1.0)))
            truth, bound = worst_of_groups(used, len(windows), p, c), in_worst_order(kept, p, c)
            assert truth <= theorem(found, p, c) * (1.0 + 1e-9) + 1e-12
            assert theorem(found, p, c) <= bound * (1.0 + 1e-9) + 1e-12
            exceeded += truth > in_worst_order(kept, p, c, 0.7)
    assert exceeded


NEAREST, BESIDE = (lambda known: range(1, known + 1)), (lambda known: range(-known, known, 2))


@pytest.mark.parametrize(("window", "known", "colluding"), [(500, 5, NEAREST), (800, 80, BESIDE)])
def test_levels_beside_colluders_hold_as_often_as_they_say(window, known, colluding):
    """Colluders are neighbours on one side or on both, each in a slot of the target's window."""
    rng = np.random.default_rng(known)
    levels = redrawn.beside_colluders(window, window, 12.0, 4, known)
    assert levels is not None
    samples = [drawn_labels(rng, window, [k or known for k in colluding(known)], known) for _ in range(6)]
    assert_majorized(samples, window, levels, 0.35)
    unaware = redrawn.redrawn(window, window, 12.0)
    assert unaware is not None
    assert redrawn.spread(levels, window) > (1.02 if known == 5 else 1.5) * redrawn.spread(unaware, window)
    assert levels.lost > 2.0 * (1.0 - levels.masses.sum())


@pytest.mark.parametrize("colluding", [NEAREST, BESIDE])
def test_tails_beside_colluders_are_on_their_side_of_the_mean(colluding):
    """Of named clients and keys, wherever the colluders are; a likely tail is at most a deviation away."""
    m, known = 500, 150
    starts = [i for i in range(-2 * m, 2 * m) if i and i not in [k or known for k in colluding(known)]]
    able = np.array([sum(s - m < i <= s for i in starts) for s in range(-m, 2 * m)])
    named = (1.0 - (1.0 - 1.0 / m) ** able) / able
    left = 1.0 - m / (able + 1.0) * (1.0 - (1.0 - 1.0 / m) ** (able + 1))
    tails = redrawn._tails(m, 40.0, known)
    assert tails is not None
    for s in (0, 40, m // 2, m - 1):
        names, keys = (np.concatenate([[0.0], np.cumsum(each)]) for each in (named, left))
        mine = [i for i in starts if s - m < i <= s]
        drawn = sum(1.0 - (names[i + 2 * m] - names[i + m] - named[s + m]) for i in mine)
        sums = [keys[i + 2 * m] - keys[i + m] - left[s + m] for i in mine]
        assert tails.fewest[0] <= drawn <= tails.most[0]
        assert tails.low[0] <= min(sums) <= max(sums) <= tails.high[0]
    beside = redrawn._shown_beside(tails, known, m, m - 1.0 - known, np.array([0.5]))
    shown = (1.0 - (1.0 - 1.0 / m) ** able[m : 2 * m])[:known].sum()
    assert shown <= beside.most[0] <= shown + 2.0 * math.sqrt(known)
    # Shares in shown slots have the mean of the keys.
    assert beside.least[0] <= (1.0 - left)[m : m + known].sum()
    assert beside.least[0] / shown <= drawn / max(sums) <= beside.share[0] * shown / known * 3.0


def test_levels_of_many_slots_beside_colluders():
    """Five of a hundred clients of every window collude: the mean label is at the first level, with a T of one."""
    m, known = 10**7, 5 * 10**5
    honest, others = 1.0 - known / m, m - known
    share = -math.expm1(-honest) / honest
    one, two = (redrawn.beside_colluders(m, m, 31.0, cells, known) for cells in (1, 2))
    assert one is not None
    assert two is not None
    assert one.whole[0] >= known * honest * share
    largest = one.numbers[0, 0] * one.shares[0] / others
    lowest = largest - 2.0 * (two.totals[0, 1] - two.totals[0, 0]) * m / others
    assert lowest < share < one.shares[0]
    assert one.heavy[0] >= 1.0 / honest
    assert 0.99 <= one.totals[0, 0] + (share - lowest) * others / m <= 1.0


@pytest.mark.parametrize("colluding", [5, 100])
def test_rare_labels_do_not_take_the_game_from_the_others(colluding):
    """Beside colluders the lost mass is several times e^-neg_log_tail, and has no steps."""
    protocol = cj.SlidingWindow(num_clients=2000, window=1000, num_colluding=colluding)
    unit = Unit(protocol, cj.PureLDP(epsilon0=1.0), "messages", "replace-one", 30.0)
    assert theorems._weighted(unit, staged_clones.AnyMessage(1.0)) is not None


def drawn_common_labels(
    rng: np.random.Generator, others: int, slots: int, prob: float, known: int
) -> tuple[np.ndarray, np.ndarray]:
    """(W_s, kappa_s) of all slots, in which `others` throw; with a colluder in each of the first `known`."""
    there = np.flatnonzero(rng.random(others) < prob)
    place, keys = rng.integers(0, slots, there.size), rng.random(there.size)
    kappa = np.ones(slots)
    np.minimum.at(kappa, place, keys)
    named = kappa < 1.0
    left = slots * (1.0 - prob) / prob + (1.0 - kappa).sum() - (1.0 - kappa)
    # Clients that are named in no other slot are there, each with this probability.
    free, g = others - named.sum() + named, 1.0 / (1.0 + left)
    shares = (1.0 - (1.0 - g) ** (free + 1.0)) / ((free + 1.0) * g)
    shares[:known] *= named[:known] / (1.0 - (1.0 - g[:known]) ** free[:known])
    return shares, kappa


COMMON = [
    (1500, 1000, 1.0, 150),
    (4000, 900, 0.2, 300),
    (60_000, 2000, 0.01, 1400),
    (6000, 20_000, 0.9, 4000),
]


@pytest.mark.parametrize(("others", "slots", "prob", "known"), COMMON)
def test_levels_of_common_slots_hold_as_often_as_they_say(others, slots, prob, known):
    """T, the largest share on either side, and the number of heavy slots; fewer are not enough."""
    rng = np.random.default_rng(slots)
    levels = redrawn.in_common_slots(others, slots, prob, 14.0, known)
    assert levels is not None
    assert levels.masses.sum() == pytest.approx(1.0 - math.exp(-14.0))
    assert levels.lost > 1.8 * math.exp(-14.0)
    within, loose = np.zeros(levels.masses.size), np.zeros(3)
    number = 40
    for _ in range(number):
        shares, kappa = drawn_common_labels(rng, others, slots, prob, known)
        total, shown = 1.0 + prob / slots * (shares - kappa).sum(), (kappa[:known] < 1.0).sum()
        within += (
            (levels.totals[:, 0] <= total)
            & (levels.shares >= shares[known:].max())
            & (levels.heavy >= shares[:known].max())
            & (levels.whole >= shown)
        )
        loose += [
            levels.shares[-1] * 0.85 > shares[known:].max(),
            levels.heavy[-1] * 0.75 > shares[:known].max(),
            levels.whole[-1] * 0.6 > shown,
        ]
    ends = np.append(np.cumsum(levels.masses), 1.0)[:-1]
    assert (within / number >= ends - 0.02).all()
    assert not loose.any()


def test_levels_of_many_common_slots_come_close_to_equal_shares():
    """Of so many clients every share is nearly the mean one; it is that of a draw against the others there."""
    others, slots, known, prob = 5 * 10**8, 10**9, 10**8, 0.7
    levels = redrawn.in_common_slots(others, slots, prob, 31.0, known)
    assert levels is not None
    load = others * prob / slots
    assert levels.shares[0] == pytest.approx(-math.expm1(-load) / load, rel=1e-3)
    assert levels.heavy[0] * prob / slots == pytest.approx(1.0 / others, rel=1e-3)
    assert levels.whole[0] == pytest.approx(-known * math.expm1(-load), rel=1e-3)
    assert levels.totals[0, 0] == pytest.approx(1.0, abs=1e-3)
    # Nobody else may be named if no two of few clients share a slot; nor are colluders in no slot, or in all, a case.
    assert redrawn.in_common_slots(10, 10**5, 1.0, 31.0, 50) is None
    assert redrawn.in_common_slots(others, slots, prob, 31.0, 0) is None
    assert redrawn.in_common_slots(others, slots, prob, 31.0, slots) is None


@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=1.0), cj.HadamardResponse(epsilon0=1.0)])
@pytest.mark.thorough(but=1)
def test_common_slots_beside_colluders_are_sharper_than_either_neighbour(randomizer):
    """Messages in the colluders' slots and those in all others hide together; an end without colluders is too low."""
    facts = {"num_slots": 4 * 10**6, "check_in_prob": 0.9, "num_epochs": 3}
    run = cj.FixedWindow(num_clients=10**6, num_colluding=4 * 10**5, **facts)
    found = cj.account(run, randomizer, delta=1e-7)
    assert 0.0 < found.lower <= found.epsilon < 1.4 * found.lower
    assert cj.account(run, randomizer, delta=1e-7, bounds=("clones",)).epsilon > 1.3 * found.epsilon
    trusting = cj.account(cj.FixedWindow(num_clients=6 * 10**5, **facts), randomizer, delta=1e-7)
    assert trusting.epsilon < found.epsilon


def test_colluders_may_see_that_many_take_part():
    """Beyond the loss log(1 - p_0 + p_0 e^eps0) there is leakage: of k honest messages seen one is the target's.

    Responses are ternary, all others and dummies at the third record; a colluder's message is shown half of the time.
    """
    honest, slots, prob, known, p = 61, 104, 0.05, 70, math.exp(2.0)
    run = cj.FixedWindow(num_clients=honest + known, num_slots=slots, check_in_prob=prob, num_colluding=known)
    found = theorems.hexagon(Unit(run, cj.PureLDP(epsilon0=2.0), "messages", "replace-one", 30.0))
    assert found is not None
    seen, c = 0.5 * prob * known / slots, math.exp(0.3)
    assert c > 1.0 + prob * (p - 1.0)
    least = 0.0
    for k in range(1, 11):
        mass = math.comb(honest, k) * seen**k * (1.0 - seen) ** (honest - k)
        for i in range(k + 1):
            for j in range(k - i + 1):
                rest = k - i - j
                ways = math.comb(k, i) * math.comb(k - i, j) * p**rest / (p + 2.0) ** k
                steps = i * (p - c) + j * (1.0 - c * p) + rest * (1.0 - c) / p
                least += mass * ways * max((1.0 - k / honest) * (1.0 - c) + steps / honest, 0.0)
    assert least > 3e-7
    assert found.upper(np.array([0.3]))[0] >= least


def assert_majorized(
    samples: list[tuple[np.ndarray, np.ndarray]], shown: int, levels: redrawn.Redrawn, slack: float = 0.02
) -> None:
    """A level holds for as many of the samples as it says; m is their number of slots."""
    ends = np.concatenate([np.cumsum(levels.masses), [1.0]])
    within = np.zeros(levels.masses.size)
    for w, kappa in samples:
        w, total = np.sort(w[:shown])[::-1], 1.0 + (w[:shown] - kappa[:shown]).sum() / kappa.size
        for i, share in enumerate(levels.shares):
            whole = int(levels.whole[i])
            for t, number in zip(levels.totals[i], levels.numbers[i]):
                bound = np.zeros(max(shown, whole + int(number)))
                bound[:whole], bound[whole : whole + int(number)] = levels.heavy[i], share
                if t <= total and (np.cumsum(w) <= np.cumsum(bound[:shown]) + 1e-9).all():
                    within[i] += 1.0 / len(samples)
                    break
    assert (within >= ends[:-1] - slack).all()


def test_levels_of_many_slots():
    """They come close to equal shares, each slot having that of the mean."""
    for window, most in ((5_000, 1.015), (10**5, 1.004), (10**9, 1.003), (10**12, 1.003)):
        levels = redrawn.redrawn(window, window, 31.0)
        assert levels is not None
        found = math.sqrt(redrawn.spread(levels, window)) / (1.0 - math.exp(-1.0))
        assert 1.0 <= found <= most
    # The first level's largest shares may sum up to one, for which the cap of its values is proved.
    assert redrawn.redrawn(200, 200, 31.0) is None
    assert redrawn.redrawn(100, 200, 31.0) is not None
    assert redrawn.beside_colluders(200, 200, 31.0, 8, 3) is None


def test_cells_count_as_the_largest():
    """A level's value is at least that of each of its cells by itself, and of the largest one."""

    def evaluated(totals: list, numbers: list) -> np.ndarray:
        parts = np.array([totals]), np.full(1, 100.0), np.array([numbers]), np.ones(1)
        one = WeightedSteps(*map(host, (np.full(1, 700.0), *parts, 0.6)))
        found = staged_clones.weighted(one, staged_clones.AnyMessage(1.0), 31.0)
        assert found is not None
        return convex.chords(*found.profile(), np.linspace(0.0, 0.15, 9))

    both = evaluated([0.95, 1.05], [520.0, 600.0])
    each = [evaluated([total], [number]) for total, number in ((0.95, 520.0), (1.05, 600.0))]
    assert both == pytest.approx(np.maximum(*each), rel=0.02)
    assert (both >= 0.99 * np.maximum(*each)).all()


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_labels_are_drawn_anew_for_either_relation(relation):
    protocol = cj.SlidingWindow(num_clients=10**4, window=300)
    unit = Unit(protocol, cj.PureLDP(epsilon0=1.0), "messages", relation, 30.0, None)
    found = theorems._weighted(unit, staged_clones.AnyMessage(1.0))
    assert {each.window for each in getattr(found, "bounds", (found,))} == {None, 300}
