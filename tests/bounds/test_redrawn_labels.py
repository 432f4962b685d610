"""T2d: the label of the own slot is drawn anew; all throws, the algorithm, the tails, and what is NOT a bound."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from oracles import hexagon as oracle
from oracles import random_check_ins as brute

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.numerics import staged_clones
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


def parts_beside_colluders(
    windows, own, each: float, keys: int, known: dict[int, float]
) -> tuple[list, float]:
    """`parts` with a colluder of key known[s] in slot s, and the probability that the target is shown without a label.

    There the target's share is one in the labels of smaller keys than the colluder's, and labels are drawn anew among
    these.
    """
    law = draws(windows, keys)
    slots = sorted({v for window in windows for v in window})
    places = {s: slots.index(s) for s in own}
    found, unlabelled = defaultdict(float), 0.0
    shown, mass_of = defaultdict(float), defaultdict(float)
    for label, mass in law.items():
        for s, at in places.items():
            rest, kappa = label[:at] + label[at + 1 :], label[at][1]
            shown[s, rest] += mass * min(kappa, known.get(s, 1.0))
            mass_of[s, rest] += mass * (kappa < known.get(s, 2.0))
    for which, mass in shown.items():
        unlabelled += 0.0 if mass_of[which] else each * mass
    for label, mass in law.items():
        weights, sent = [], 0.0
        for s, at in places.items():
            which, kappa = (s, label[:at] + label[at + 1 :]), label[at][1]
            weights.append(shown[which] / mass_of[which] if kappa < known.get(s, 2.0) else 0.0)
            sent += min(kappa, known.get(s, 1.0))
        total = 1.0 + each * (sum(weights) - sent)
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


@pytest.mark.parametrize(("colluder", "slot"), [(1, 1), (-2, 0)])
def test_honest_clients_who_are_known_count_as_colluders(colluder, slot):
    """Of three slots one colluder leaves every slot one client of whom labels may tell.

    The other honest client of the colluder's residue is known, too: where it is, and its key. A bound that hides the
    target among it and the colluder is exceeded.
    """
    keys, m, own = 3, 3, [0, 1, 2]
    starts = [start for start in (-2, -1, 1, 2) if start != colluder]
    windows = [{start + j: 1.0 / m for j in range(m)} for start in starts]
    (handed,) = (i for i, start in enumerate(starts) if not (start - colluder) % m)
    hidden = [dict.fromkeys(window, 0.0) if i == handed else window for i, window in enumerate(windows)]
    known, exceeded = {slot: 0.8}, 0
    laws = shown_beside_colluders(windows, own, 1.0 / m, keys, known)
    cases = []
    for at, k in itertools.product(windows[handed], range(keys)):
        key = (k + (handed + 1) / (len(windows) + 1)) / keys
        theirs = {**known, at: min(key, known.get(at, 1.0))} if at in own else known
        cases.append((1.0 / (m * keys), *parts_beside_colluders(hidden, own, 1.0 / m, keys, theirs)))
    unaware, rest = parts_beside_colluders(windows, own, 1.0 / m, keys, {})
    for p in (1.7, 6.0):
        for share in (0.0, 0.3, 0.6, 0.9):
            c = math.exp(share * math.log(p))
            alone = max(p - c, 0.0) / (p + 1.0)
            truth = sum(worst_of_groups(law, len(windows), p, c) for law in laws)
            bound = sum(mass * (theorem(found, p, c) + lost * alone) for mass, found, lost in cases)
            assert truth <= bound * (1.0 + 1e-9) + 1e-12
            exceeded += truth > (theorem(unaware, p, c) + rest * alone) * (1.0 + 1e-9)
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


def random_views(rng, laws, case, p: float, number: int):
    """Laws of what is seen of random adaptive randomizers, for each law of who is shown."""
    windows, own = case
    for turn in range(number):
        kind = ("extremal", "rotated")[turn % 2]
        tree = brute.random_tree(lambda kind=kind: brute.random_channel(rng, 3, p, kind), len(own))
        others = rng.integers(0, 2, len(windows)).tolist()
        yield tuple(brute.output_law(law, [*others, 0], tree) for law in laws)


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
        for there, gone in random_views(rng, (used, without), case, p, 24):
            for loss, most in zip(losses, bound):
                for one, other in ((there, gone), (gone, there)):
                    truth = brute.hockey_stick(one, other, math.exp(loss))
                    assert truth <= most * (1.0 + 1e-9) + 1e-12
                    largest = max(largest, truth / most if most else 0.0)
    assert largest > 1.0 / 3.0


def other_shown(windows, own, keys: int) -> float:
    """Largest probability that an absent client's slot shows another message than its label's, given the label.

    Labels with one name in the slot count as one: keys are of no message. The displaced client keeps its name, if
    that has mass left.
    """
    law, most = draws(windows, keys), 0.0
    slots = sorted({v for window in windows for v in window})
    for at in (slots.index(s) for s in own):
        shares, mass, shown = conditional_shares(law, at), defaultdict(float), defaultdict(float)
        for label, prob in law.items():
            which = label[:at] + label[at + 1 :], label[at][0]
            mass[which] += prob
            shown[which] += prob * label[at][1]
        most = max(most, *(1.0 - shown[which] / (each * shares[which[0]]) for which, each in mass.items()))
    return most


def step_of(p: float, other: float) -> list[tuple[float, float]]:
    """(value, probability): above z - 1 - s (z' - 1) of any eps0-LDP messages, s = other."""
    rare = 1.0 / (p + 1.0)
    if other <= 1.0 / p:
        return [(p - 1.0, rare), (1.0 / p - 1.0, p * rare)]
    return [(p - 1.0, rare), (other - 1.0, (p - 1.0) * rare), (-other * (p - 1.0), rare)]


def removed(found: list, p: float, c: float, shown: float, backward: bool) -> float:
    """Bound on H_c(P||Q), P with the client, or on H_c(Q||P); shown: as `other_shown`."""
    other, sign = (shown / c, -c) if backward else (shown * c, 1.0)
    total = 0.0
    for mass, whole, weights in found:
        sums = {0.0: 1.0}
        for w in weights:
            stepped: dict[float, float] = defaultdict(float)
            for (at, q), (value, prob) in itertools.product(sums.items(), step_of(p, other)):
                stepped[at + sign * w * value] += q * prob
            sums = stepped
        total += mass * sum(q * max(whole * (1.0 - c) + at, 0.0) for at, q in sums.items())
    return total


@pytest.mark.parametrize(("case", "each"), CASES)
@pytest.mark.parametrize("keys", [1, 3])
def test_an_absent_client_leaves_the_labelled_message_or_another_one(case, each, keys):
    """Random adaptive randomizers, dummies and others of different records; smaller shares are exceeded."""
    windows, own = case
    found, used = parts(windows, own, each, keys), shown_law(windows, own, each, keys)
    without, shown = shown_law(windows, own, 0.0, keys), other_shown(windows, own, keys)
    smaller = [(mass, whole, tuple(0.5 * w for w in weights)) for mass, whole, weights in found]
    rng, exceeded, never_another = np.random.default_rng(len(windows)), False, False
    for p in (1.3, 1.7, 6.0):
        losses = np.array([0.0, 0.05, 0.3, 0.6]) * math.log1p(each * len(own) * (p - 1.0))
        asked = [(math.exp(loss), bool(turned)) for loss in losses for turned in (0, 1)]
        bounds = [
            [
                removed(labels, p, c, other, turned)
                for labels, other in ((found, shown), (smaller, shown), (found, 0.0))
            ]
            for c, turned in asked
        ]
        for there, gone in random_views(rng, (used, without), case, p, 40):
            for (c, turned), (most, too_small, no_other) in zip(asked, bounds):
                truth = brute.hockey_stick(*((gone, there) if turned else (there, gone)), c)
                if turned or shown * c <= 1.0:
                    assert truth <= most * (1.0 + 1e-9) + 1e-12
                exceeded |= truth > too_small
                never_another |= truth > no_other * (1.0 + 1e-9)
    assert exceeded
    # Where another message is often shown it matters.
    assert never_another or shown < 0.6


def test_the_labelled_message_is_shown_half_of_the_time():
    """At least, given the other labels, and hardly more for few clients that may be in the slot."""
    rng = np.random.default_rng(8)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    t, least = 0.5 * (nodes + 1.0), 1.0
    for number in (1, 2, 5, 40):
        for scale in (1e-3, 0.1, 1.0, 5.0):
            g = np.minimum(rng.uniform(0.0, 2.0 * scale / number, number), 0.999)
            nobody = np.prod(1.0 - t[:, None] * g, axis=1)
            mean = 0.5 * weights @ nobody
            for each in g:
                named = nobody / (1.0 - t * each)
                key = (weights @ (t * named)) / (weights @ named)
                least = min(least, key / mean)
    assert 0.5 <= least < 0.501


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


def drawn_labels(rng: np.random.Generator, window: int) -> tuple[np.ndarray, np.ndarray]:
    """(W_s, kappa_s) of the slots 0, ..., window - 1 of a client that starts there, all others throwing."""
    m, first = window, -3 * window
    starts = np.array([start for start in range(first, 4 * m) if start])
    slots, keys = starts + rng.integers(0, m, starts.size) - first, rng.random(starts.size)
    kappa, named = np.ones(9 * m), np.full(9 * m, -(10**9))
    order = np.argsort(-keys)
    kappa[slots[order]], named[slots[order]] = keys[order], starts[order]
    place = {int(who): int(slot) for slot, who in enumerate(named)}
    left = np.concatenate([[0.0], np.cumsum(1.0 - kappa)])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    u, shares = 0.5 * (nodes + 1.0), np.empty(m)
    for s in range(m):
        able = (i for i in range(s - m + 1, s + 1) if i)
        others = [i for i in able if place.get(i, s - first) == s - first]
        own = np.array(others, dtype=int) - first
        g = 1.0 / (1.0 + left[own + m] - left[own] - (1.0 - kappa[s - first]))
        shares[s] = 0.5 * weights @ np.exp(np.log1p(-np.outer(u, g)).sum(axis=1))
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
        assert redrawn.excesses(m, np.array([high]))[0] >= above
        assert redrawn.shortfalls(m, np.array([low]))[0] >= below
    if m == 500:
        wide = shares.mean() + 1.2 / math.sqrt(m)
        assert redrawn.excesses(m, np.array([wide]))[0] < 0.1 / math.sqrt(m)
        assert redrawn.shortfalls(m, np.array([2.0 * shares.mean() - wide]))[0] < 0.15 / math.sqrt(m)


def drawn_loads(windows: list[dict[int, float]], slot: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """(G, probability) of all labels of the other slots, the probabilities g_i to be in this slot added up."""
    law, found = draws(windows, keys), defaultdict(float)
    slots, n = sorted({v for window in windows for v in window}), len(windows)
    for label, mass in law.items():
        drawn = {who for v, (who, _) in zip(slots, label) if v != slot}
        total = 0.0
        for i, window in enumerate(windows):
            if i not in drawn and slot in window:
                own = [(k + (i + 1) / (n + 1)) / keys for k in range(keys)]
                lost = sum(
                    window.get(v, 0.0) * sum(key < kappa for key in own) / keys
                    for v, (_, kappa) in zip(slots, label)
                    if v != slot
                )
                total += window[slot] / (1.0 - lost)
        found[round(total, 12)] += mass
    return np.array(list(found)), np.array(list(found.values()))


def missing_clients(windows: list[dict[int, float]], slot: int, keys: int, least: tuple[float, ...]) -> float:
    """Mean number of clients that are too few, least[k] places being counted for a client's key k."""
    slots, n, total = sorted({v for window in windows for v in window}), len(windows), 0.0
    for i, window in enumerate(windows):
        if slot in window:
            others = [{} if j == i else each for j, each in enumerate(windows)]
            for label, mass in draws([each or {slots[0]: 0.0} for each in others], keys).items():
                for k, needed in enumerate(least):
                    key = (k + (i + 1) / (n + 1)) / keys
                    free = 1 + sum(
                        kappa < key for v, (_, kappa) in zip(slots, label) if v in window and v != slot
                    )
                    total += mass * max(needed - free, 0.0) * window[slot] / keys
    return total


@pytest.mark.parametrize(
    ("windows", "slot"),
    [(sliding(2, 2)[0], 0), (sliding(3, 2)[0], 1), (sliding(3, 3)[0], 1), (common(5, 3, 1.0)[0], 0)],
)
@pytest.mark.parametrize("keys", [2, 3])
def test_loads_are_no_more_dispersed_than_binomial_numbers(windows, slot, keys):
    """Of all throws and keys; a bound that does not count the clients that are missing is exceeded."""
    if len(windows) > 3 and keys > 2:
        pytest.skip("too many labels")
    at, masses = drawn_loads(windows, slot, keys)
    able, each = sum(slot in window for window in windows), windows[0][next(iter(windows[0]))]
    assert at @ masses == pytest.approx(able * each)
    number, exceeded = np.arange(able + 1.0), 0
    for least in itertools.product((1.0, 1.5, 2.0, 3.0), repeat=keys):
        scale, rest = float(np.mean(least)), missing_clients(windows, slot, keys, least)
        chance = scale * each
        if chance > 1.0:
            continue
        probs = [math.comb(able, int(k)) * chance**k * (1.0 - chance) ** (able - k) for k in number]
        for k, sign in itertools.product((0.3, 0.6, 0.9, 1.2, 1.8), (1.0, -1.0)):
            truth = np.maximum(sign * (scale * at - k), 0.0) @ masses
            bound = np.maximum(sign * (number - k), 0.0) @ np.array(probs)
            assert truth <= bound + rest + 1e-12
            exceeded += truth > bound * (1.0 + 1e-9)
    # Of common slots in which all throw, hardly any client is missing.
    assert exceeded or len({*map(tuple, windows)}) == 1


@pytest.mark.parametrize("m", [200, 500])
def test_loads_and_mean_shares_are_as_rare_as_they_say(samples, m):
    """Loads of one slot, all shares of a window, and their mean; a third of the exponent is too little."""
    shares = np.array([w for w, _ in samples[m]])
    x = np.array([1.0, 3.0, 6.0, 9.0])
    rare = np.exp(-x)
    least, most = redrawn._BinomialLoads.of(m, m - 1.0).beyond(x)
    usual = redrawn._least_mean(m, x)
    high, low = redrawn._extremes(m, x + math.log(m), x + math.log(2.0 * m))
    for i, chance in enumerate(rare):
        assert np.mean(shares > redrawn._share(least[i])) <= chance + 1e-12
        assert np.mean(shares < redrawn._least_share(most)[i] * 0.99) <= chance + 1e-12
        assert np.mean(shares.mean(axis=1) < usual[i]) <= chance + 0.05
        assert np.mean(shares.max(axis=1) > high[i]) <= chance + 0.05
        assert np.mean(shares.min(axis=1) < low[i]) <= chance + 0.05
    # Bounds at e^-1 of single slots are exceeded by a few of so many; those of a window's mean are near it.
    assert np.mean(shares > redrawn._share(0.7 * least[0] + 0.3)) > 0.0
    assert usual[0] > 0.8 * shares.mean()


class Drawn(NamedTuple):
    """Of the slots 0, ..., window - 1: W_s, the smaller key, and the sums of 1/(1 + S_i) and of 1/S_i over L_s."""

    shares: np.ndarray
    keys: np.ndarray
    loads: np.ndarray
    most: np.ndarray


def drawn_beside(
    rng: np.random.Generator, window: int, residues: np.ndarray, known: Sequence[int] = ()
) -> Drawn:
    """Clients of these residues throw, and labels name these; in the known slots is one other client each."""
    m, first = window, -3 * window
    starts = np.array([start for start in range(first, 4 * m) if start % m in set(residues.tolist())])
    slots, keys = starts + rng.integers(0, m, starts.size) - first, rng.random(starts.size)
    kappa, named = np.ones(9 * m), np.full(9 * m, -(10**9))
    order = np.argsort(-keys)
    kappa[slots[order]], named[slots[order]] = keys[order], starts[order]
    place = np.full(8 * m, -1)
    shown = np.flatnonzero(named > -(10**9))
    place[named[shown] - first] = shown
    left = np.concatenate([[0.0], np.cumsum(1.0 - kappa)])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    found = np.empty((4, m))
    for s in range(m):
        able = starts[(starts > s - m) & (starts <= s)] - first
        own, mine = able[(place[able] == -1) | (place[able] == s - first)], kappa[s - first]
        sums = left[own + m] - left[own] - (1.0 - mine)
        g, theirs = 1.0 / (1.0 + sums), rng.random() if s in known else 1.0
        kept = np.log1p(-np.outer(0.5 * theirs * (nodes + 1.0), g)).sum(axis=1)
        share = 0.5 * theirs * weights @ np.exp(kept)
        if s in known:
            share *= (mine < theirs) / -np.expm1(np.log1p(-theirs * g).sum()) if own.size else 0.0
        found[:, s] = share, min(mine, theirs), np.sum(g), np.sum(1.0 / np.maximum(sums, 1e-300))
    return Drawn(*found)


@pytest.mark.parametrize(("m", "honest"), [(400, 300), (400, 100)])
@pytest.mark.parametrize("together", [True, False])
def test_loads_beside_colluders(m, honest, together):
    """Residues one after the other, or anywhere; bounds for twice or half as many honest clients are exceeded."""
    rng = np.random.default_rng(m + honest)
    choices = [1 + np.arange(honest) if together else 1 + rng.permutation(m - 1)[:honest] for _ in range(8)]
    drawn = [drawn_beside(rng, m, each) for each in choices]
    loads, most = (
        np.concatenate([each.loads for each in drawn]),
        np.concatenate([each.most for each in drawn]),
    )
    assert loads.mean() == pytest.approx(honest / m, rel=0.15)
    below, above, exceeded = redrawn.deficits(m, honest), redrawn.surpluses(m, honest), 0
    for part in (0.6, 0.8, 0.9, 1.0, 1.1, 1.3):
        at = part * honest / m
        lack, surplus = (
            np.array([each.mean()])
            for each in (np.maximum(1.0 - loads / at, 0.0), 0.5 * np.maximum(most / at - 1.0, 0.0))
        )
        # No load with as small a bound is larger, or smaller.
        if lack > 1e-3:
            assert below.first(lack, True)[0] <= at
            exceeded += redrawn.deficits(m, 2.0 * honest).first(lack, True)[0] > at
        if surplus > 1e-3:
            assert above.first(surplus, False)[0] >= at
            exceeded += redrawn.surpluses(m, 0.5 * honest).first(surplus, False)[0] < at
    assert exceeded >= 2


@pytest.mark.parametrize("residues", [(1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_numbers_of_clients_named_nowhere_else(residues):
    """Windows of four slots, of which every slot has so many clients: throws at random."""
    m, slot = 4, 0
    able = [i for i in range(slot - m + 1, slot + 1) if i % m in residues]
    # Clients of these windows may be named in place of those that may be in the slot.
    near = [i for i in range(slot - 2 * m + 2, slot + m) if i % m in residues]
    rng, throws = np.random.default_rng(len(residues)), 60_000
    slots = np.array(near) + rng.integers(0, m, (throws, len(near)))
    keys = rng.random(slots.shape)
    beaten = (slots[:, :, None] == slots[:, None, :]) & (keys[:, :, None] > keys[:, None, :])
    nowhere = ~(~beaten.any(axis=2) & (slots != slot))
    number = nowhere[:, [near.index(i) for i in able]].sum(axis=1)
    t = np.array([0.05, 0.3, 1.0, 3.0])
    fewer = np.log(np.exp(-t[:, None] * number).mean(axis=1))
    assert (fewer <= redrawn.fewer_named_nowhere_else(m, len(residues), t)).all()
    if len(residues) == m - 1:
        assert (fewer > redrawn.fewer_named_nowhere_else(m, 2 * len(residues), t)).any()


def test_loads_are_hardly_ever_very_small():
    """Deficits that the mean number of missing clients does not reach, in windows beside a few colluders."""
    found = redrawn.deficits(200, 197.0).first(np.exp([-20.0, -30.0]), True)
    assert 0.05 < found[1] < found[0] < 0.3
    assert redrawn.beside_colluders(200, 200, 30.0, 2) is not None


def test_loads_of_small_windows_need_the_missing_clients_and_no_larger_multiple():
    """Of drawn labels, for every choice; without the missing clients, or with a scale of one client more, exceeded."""
    rng, m = np.random.default_rng(23), 6
    drawn = np.array([drawn_beside(rng, m, np.arange(1, m)).loads for _ in range(4000)])
    loads, number, exceeded = redrawn._BinomialLoads.of(m, m - 1.0), np.arange(float(m)), np.zeros(2, int)

    def bound(scale: float, at: float, sign: int) -> float:
        probs = [math.comb(m - 1, k) * (scale / m) ** k * (1.0 - scale / m) ** (m - 1 - k) for k in range(m)]
        return float(np.maximum(sign * (number - at), 0.0) @ probs)

    points = np.linspace(0.2, 2.5, 15)
    for choice, (scale, missing) in enumerate(zip(loads.scale, loads.missing)):
        for at, sign in itertools.product(points, (1, -1)):
            lost = np.maximum(sign * (drawn - at), 0.0).mean(axis=1)
            least = lost.mean() - 3.0 * lost.std() / math.sqrt(len(lost))
            assert scale * least <= bound(scale, scale * at, sign) + missing
            exceeded[0] += scale * least > bound(scale, scale * at, sign)
            larger = scale + 1.0
            exceeded[1] += larger * least > bound(larger, larger * at, sign) + missing
        for found, sign in ((loads.excess(points), 1), (loads.shortage(points), -1)):
            exact = [bound(scale, scale * at, sign) + missing for at in points]
            assert (scale * found[choice] >= exact).all()
    assert (exceeded > 0).all()


@pytest.mark.parametrize("m", [6, 20, 150])
def test_rare_loads_are_those_of_one_choice(m):
    """By the best Chernoff bounds of one choice that rarely has more than one client missing."""
    loads, t = redrawn._BinomialLoads.of(m, m - 1.0), np.geomspace(1e-3, 60.0, 4000)
    for x in (0.5, 2.0, 8.0, 20.0):
        least, most = (float(each[0]) for each in loads.beyond(np.array([x])))
        low, high = least == 0.0, most == math.inf
        for scale, missing in zip(loads.scale, loads.missing):
            if missing <= 0.5 * math.exp(-x):
                ends = [
                    (((m - 1.0) * np.log1p(scale / m * np.expm1(sign * t)) + x + math.log(2.0)) / t).min()
                    for sign in (-1.0, 1.0)
                ]
                low |= scale * least + 1.0 <= -ends[0] + 1e-9
                high |= scale * most - 1.0 >= ends[1] - 1e-9
        assert low
        assert high


def test_clients_are_missing_as_often_as_a_mean_key_says(samples):
    """Of one key in the place of all, fewer are missing: E(c - 1 - S)_+ of each client; of mean sums, fewer again."""
    m = 20
    sums = np.array([(1.0 - kappa[1:]).sum() for _, kappa in samples[m]])
    loads, seen = redrawn._BinomialLoads.of(m, m - 1.0), 0
    for scale, missing in zip(loads.scale, loads.missing):
        fewer = np.maximum(scale - 1.0 - sums, 0.0)
        least = fewer.mean() - 3.0 * fewer.std() / math.sqrt(sums.size)
        assert missing >= (m - 1.0) / m * least
        # One client's number of missing ones is not that of all.
        seen += missing / (m - 1.0) < (m - 1.0) / m * least
    assert seen
    for m in (10**5, 10**9):
        loads, mean = redrawn._BinomialLoads.of(m, m - 1.0), (m - 1.0) * redrawn._left(m, m - 1.0)
        assert (loads.missing >= (m - 1.0) / m * (loads.scale - 1.0 - mean)).all()
        # Places counted at the larger end of a cell of keys would be too many.
        assert loads.scale[0] + (m - 1.0) * (1.0 - math.exp(-1.0)) / redrawn._KEYS > 1.0 + mean


def scale_of(shares: np.ndarray, shape: np.ndarray) -> float:
    """The least multiple of a vector, of decreasing numbers, that weakly majorizes the shares."""
    return float((np.cumsum(np.sort(shares)[::-1]) / np.cumsum(shape)).max())


@pytest.mark.parametrize(("window", "shown"), [(500, 500), (500, 120), (200, 100)])
def test_scales_of_drawn_labels_are_below_the_levels(samples, window, shown):
    """Means of T (w/T - k)_+, w the least scale; the law whose scales are three hundredths less is exceeded."""
    levels = redrawn.redrawn(shown, window, 12.0)
    assert levels is not None
    shape = np.repeat(levels.values[0], levels.numbers[0].astype(int))
    ratios, mean = levels.values[:, 0] / levels.values[0, 0], 1.0 - (1.0 - 1.0 / window) ** window
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


@pytest.mark.parametrize(("window", "shown", "colluding"), [(600, 600, 60), (600, 200, 400), (300, 300, 150)])
def test_levels_beside_colluders_hold_as_often_as_they_say(window, shown, colluding):
    """Whether colluders are in every slot that they may be in, in some, or in none, and honest clients are known."""
    rng = np.random.default_rng(colluding)
    levels = redrawn.beside_colluders(shown, window, 12.0, colluding)
    assert levels is not None
    unaware = redrawn.beside_colluders(shown, window, 12.0, 0)
    assert unaware is not None
    honest = window - 1 - colluding
    within, exceeded, number = np.zeros(levels.masses.size), False, 9
    ends = np.append(np.cumsum(levels.masses), 1.0)[:-1]

    def above(values: np.ndarray, count: np.ndarray) -> np.ndarray:
        bound = np.sort(np.repeat(values, count.astype(int)))[::-1]
        return np.cumsum(np.pad(bound, (0, shown))[:shown]) + 1e-9

    for turn in range(number):
        most = min(shown, colluding + int(rng.poisson(colluding * shown / window)))
        known = range((0, most // 2, most)[turn % 3])
        drawn = drawn_beside(rng, window, 1 + rng.permutation(window - 1)[:honest], known)
        w = np.sort(np.minimum(drawn.shares[:shown], levels.values[0, 0]))[::-1]
        total = 1.0 + (w.sum() - drawn.keys[:shown].sum()) / window
        for values, numbers in ((levels.values, levels.numbers), levels.two_kinds):
            for i, (t, each, count) in enumerate(zip(levels.totals, values, numbers)):
                within[i] += 0.5 * (t <= total and bool((np.cumsum(w) <= above(each, count)).all()))
        exceeded |= bool((np.cumsum(w) > above(unaware.values[0], unaware.numbers[0])).any())
    assert (within / number >= ends - 0.35).all()
    assert within[-1] == number
    assert exceeded
    assert levels.lost > math.exp(-12.0)


def test_levels_of_many_slots_beside_colluders():
    """Every load is nearly the mean one at the first level, whose T is nearly one."""
    m, colluding = 10**9, 6 * 10**8
    honest = 1.0 - colluding / m
    levels = redrawn.beside_colluders(m, m, 31.0, colluding)
    assert levels is not None
    shown = 1.0 + math.expm1(-honest) / honest
    assert 0.99 < levels.totals[0] <= 1.0
    _, beside, share, rest = levels.values[0]
    assert 1.0 / honest <= beside < 1.01 / honest
    assert -math.expm1(-honest) / honest <= share < 1.01 * -math.expm1(-honest) / honest
    # In slots with somebody known both kinds of slots have no larger shares, in sum.
    assert shown * beside + (1.0 - shown) * rest == pytest.approx(share)
    assert shown * m <= levels.numbers[0, 1] < 1.02 * shown * m
    assert redrawn.beside_colluders(m, m, 31.0, m - 2) is None


@pytest.mark.parametrize("load", [0.2, 1.0, 3.0])
def test_keys_and_shares_of_slots(load):
    """Sums of independent slots, with one other client or two in some of them, or in none."""
    rng, slots, turns, tight = np.random.default_rng(5), 400, 3000, 0
    kappa = np.minimum(rng.exponential(1.0 / load, (turns, slots)), 1.0)
    exponents = np.array([0.7, 3.0])
    at = np.array([1.05, 1.1]) * load
    found = redrawn._keys_less_shares(float(slots), np.full(2, 300.0), load, 1.0 / load, at, exponents)
    for known, others in ((0, 1), (150, 1), (300, 1), (300, 2)):
        theirs = np.ones((turns, slots))
        theirs[:, :known] = rng.random((others, turns, known)).min(axis=0)
        for bound, g, level in zip(found, at, exponents):
            least = np.where(kappa < theirs, 1.0 / g, 0.0)
            least[:, known:] = -math.expm1(-g) / g
            sums = (np.minimum(kappa, theirs) - least).sum(axis=1)
            assert np.mean(sums > bound) <= math.exp(-level)
            tight += np.mean(sums > 0.9 * bound) > 0.0
    assert tight


@pytest.mark.parametrize("colluding", [5, 100])
def test_rare_labels_do_not_take_the_game_from_the_others(colluding):
    """Beside colluders the lost mass is several times e^-neg_log_tail, and has no steps."""
    protocol = cj.SlidingWindow(num_clients=2000, window=1000, num_colluding=colluding)
    unit = Unit(protocol, cj.PureLDP(epsilon0=1.0), "messages", "replace-one", 30.0)
    assert theorems._weighted(unit, staged_clones.AnyMessage(1.0)) is not None


def drawn_common_labels(
    rng: np.random.Generator, others: int, slots: int, prob: float, known: int
) -> tuple[np.ndarray, np.ndarray]:
    """(W_s, smaller key) of all slots, in which `others` throw; with a colluder in each of the first `known`."""
    there = np.flatnonzero(rng.random(others) < prob)
    place, keys = rng.integers(0, slots, there.size), rng.random(there.size)
    kappa = np.ones(slots)
    np.minimum.at(kappa, place, keys)
    named = kappa < 1.0
    left = slots * (1.0 - prob) / prob + (1.0 - kappa).sum() - (1.0 - kappa)
    # Clients that are named in no other slot are there, each with this probability.
    free, g = others - named.sum() + named, 1.0 / (1.0 + left)
    theirs = np.append(rng.random(known), np.ones(slots - known))
    shares = (1.0 - (1.0 - theirs * g) ** (free + 1.0)) / ((free + 1.0) * g)
    shares[:known] *= ((kappa < theirs) / (1.0 - (1.0 - theirs * g) ** free))[:known]
    return shares, np.minimum(kappa, theirs)


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
        total, shown = 1.0 + prob / slots * (shares - kappa).sum(), (shares[:known] > 0.0).sum()
        within += (
            (levels.totals <= total)
            & (levels.values[:, 1] >= shares[known:].max())
            & (levels.values[:, 0] >= shares[:known].max())
            & (levels.numbers[:, 0] >= shown)
        )
        loose += [
            levels.values[-1, 1] * 0.85 > shares[known:].max(),
            levels.values[-1, 0] * 0.75 > shares[:known].max(),
            levels.numbers[-1, 0] * 0.5 > shown,
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
    share = -math.expm1(-load) / load
    assert levels.values[0, 1] == pytest.approx(share, rel=1e-3)
    assert levels.values[0, 0] * prob / slots == pytest.approx(1.0 / others, rel=1e-3)
    assert levels.numbers[0, 0] == pytest.approx(known * (1.0 - share), rel=1e-3)
    assert levels.totals[0] == pytest.approx(1.0, abs=1e-3)
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


def test_levels_of_many_slots():
    """They come close to equal shares, each slot having that of the mean."""
    for window, most in ((200, 1.08), (5_000, 1.007), (10**5, 1.004), (10**9, 1.003), (10**12, 1.003)):
        levels = redrawn.redrawn(window, window, 31.0)
        assert levels is not None
        squares = (np.square(levels.values) * levels.numbers).sum(axis=1) @ levels.masses
        found = math.sqrt(squares / window) / (1.0 - math.exp(-1.0))
        assert 1.0 <= found <= most
    assert redrawn.redrawn(99, 99, 31.0) is None


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_labels_are_drawn_anew_for_either_relation(relation):
    for window, known in ((130, {None, 130}), (300, {300})):
        protocol = cj.SlidingWindow(num_clients=10**4, window=window)
        unit = Unit(protocol, cj.PureLDP(epsilon0=1.0), "messages", relation, 30.0, None)
        found = theorems._weighted(unit, staged_clones.AnyMessage(1.0))
        assert {each.window for each in getattr(found, "bounds", (found,))} == known


def test_few_colluders_hardly_raise_the_shares_of_large_windows():
    """Where hardly any share is above the mean one of colluders' slots, shares are cut far above it."""
    m = 10**6
    for colluding in (10, 1000):
        levels = redrawn.beside_colluders(m, m, 31.0, colluding)
        assert levels is not None
        spread = math.sqrt(redrawn._squares(levels)[0] / m) / levels.totals[0]
        assert 1.0 <= spread / (1.0 - math.exp(-1.0)) <= 1.01
