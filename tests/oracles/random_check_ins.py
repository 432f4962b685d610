"""Brute force of random check-ins with finite local randomizers, slot by slot, from the algorithms' definitions.

`A_fix`: each of n clients takes part with probability p0 and picks one of m slots uniformly; one uniformly drawn
client of each slot sends its message. `A_sldw`: client j picks uniformly among slots j..j+m-1, the server outputs
slots m..n. `A_avg`: all clients of a slot send a message and the adversary sees each slot's histogram. An empty slot
of the first two sends a message on a dummy record (nobody can tell) or shows that it is empty. Below, the exact pairs
these are compared with, as atoms (Fractions in, Fractions out).

Channels adapt: a tree `levels[j][prefix]` is the channel of slot j after the outputs `prefix` (in lexicographic
order), rows are records, the last one the dummy's; `constant_tree` is the tree that does not adapt.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np

from .krr import Channel, Law, Number, add_client, krr_channel, random_extremal_channel
from .pairs import Label, Pair, enumerate_pair, exact_pair

EMPTY = None  # who is used in an empty slot
Used = dict[tuple, Number]  # per visible slot the client that is used, or EMPTY -> probability
Tree = list[np.ndarray]


def fixed_window_choices(
    num_clients: int, num_slots: int, p0: Number | tuple[Number, ...]
) -> dict[tuple, Number]:
    """Law of the clients' choices in A_fix and A_avg: per client a slot, or EMPTY if it stays away.

    `p0` is everybody's probability to take part, or one for each client.
    """
    rates = p0 if isinstance(p0, tuple) else (p0,) * num_clients
    law = {}
    for picks in product([EMPTY, *range(num_slots)], repeat=num_clients):
        mass = 1
        for pick, rate in zip(picks, rates):
            mass = mass * (1 - rate if pick is EMPTY else rate / num_slots)
        if mass:
            law[picks] = mass
    return law


def sliding_window_choices(num_clients: int, window: int) -> dict[tuple, Number]:
    """Law of the clients' choices in A_sldw; client j = 1..n picks one of the slots j..j+window-1."""
    windows = [range(j, j + window) for j in range(1, num_clients + 1)]
    return {picks: Fraction(1, window**num_clients) for picks in product(*windows)}


def one_of_each_slot(choices: Mapping[tuple, Number], slots: Sequence[int]) -> Used:
    """Law of who is used in `slots` when each slot draws one of its clients uniformly."""
    used: Used = {}
    for picks, mass in choices.items():
        members = [[i for i, pick in enumerate(picks) if pick == slot] or [EMPTY] for slot in slots]
        share = mass
        for slot in members:
            share = share / len(slot)
        for chosen in product(*members):
            used[chosen] = used.get(chosen, 0) + share
    return used


@lru_cache(maxsize=64, typed=True)
def fixed_window(num_clients: int, num_slots: int, p0: Number) -> Used:
    """Law of the used clients of A_fix."""
    return one_of_each_slot(fixed_window_choices(num_clients, num_slots, p0), range(num_slots))


@lru_cache(maxsize=64, typed=True)
def sliding_window(num_clients: int, window: int) -> Used:
    """Law of the used clients of A_sldw in its visible slots window..n (n >= window)."""
    return one_of_each_slot(sliding_window_choices(num_clients, window), range(window, num_clients + 1))


@lru_cache(maxsize=64, typed=True)
def ordered_sample(num_clients: int, count: int) -> Used:
    """Theorem U given K: a uniform ordered sample without replacement."""
    samples = list(permutations(range(num_clients), count))
    return dict.fromkeys(samples, Fraction(1, len(samples)))


def constant_tree(channel: Channel | np.ndarray, num_slots: int) -> Tree:
    """The same channel in every slot, whatever came before."""
    level = np.array(channel)
    return [np.broadcast_to(level, (level.shape[1] ** j, *level.shape)) for j in range(num_slots)]


def random_tree(draw: Callable[[], Channel | np.ndarray], num_slots: int) -> Tree:
    """A fresh channel from `draw` for every slot and every past."""
    levels = [np.array(draw())[None]]
    while len(levels) < num_slots:
        levels.append(np.array([draw() for _ in range(len(levels[-1]) * levels[-1].shape[-1])]))
    return levels


def flag_empty(channel: Channel | np.ndarray) -> np.ndarray:
    """The channel with visible empty slots: the dummy's row becomes a symbol of its own."""
    rows = np.array(channel)[:-1]
    zero = rows[0, 0] * 0
    flagged = np.full((rows.shape[0] + 1, rows.shape[1] + 1), zero, dtype=rows.dtype)
    flagged[:-1, :-1] = rows
    flagged[-1, -1] = zero + 1
    return flagged


def output_law(used: Used, records: Sequence[int], tree: Tree) -> np.ndarray:
    """Law of the slots' outputs on the data set `records`, one entry per sequence in lexicographic order."""
    merged: dict[tuple, Number] = {}
    for clients, mass in used.items():
        rows = tuple(-1 if i is EMPTY else records[i] for i in clients)
        merged[rows] = merged.get(rows, 0) + mass
    rows = np.array(list(merged))
    dtype = tree[0].dtype
    weights = np.array(list(merged.values()), dtype=dtype)[:, None]
    for j, level in enumerate(tree):
        stepped = weights[:, :, None] * level[:, rows[:, j]].transpose(1, 0, 2)
        weights = stepped.reshape(len(rows), -1)
    return weights.sum(axis=0)


def hockey_stick(p: np.ndarray, q: np.ndarray, c: Number) -> Number:
    """sum (P - c Q)_+ of two laws listed in the same order."""
    return np.maximum(p - c * q, 0).sum()


def neighbours(
    num_records: int, num_clients: int, exchangeable: bool = True
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ordered pairs of data sets that differ in one client's record: in the last one if clients are exchangeable."""
    for x, other in permutations(range(num_records), 2):
        if exchangeable:
            for rest in combinations_with_replacement(range(num_records), num_clients - 1):
                yield (*rest, x), (*rest, other)
        else:
            for rest in product(range(num_records), repeat=num_clients - 1):
                for i in range(num_clients):
                    yield (*rest[:i], x, *rest[i:]), (*rest[:i], other, *rest[i:])


def divergences(
    used: Used,
    tree: Tree,
    num_records: int,
    num_clients: int,
    cs: Sequence[Number],
    exchangeable: bool = True,
) -> list[list[Number]]:
    """One row of divergences for every neighbouring pair of data sets, one column for each c."""
    laws: dict[tuple, np.ndarray] = {}

    def law(records: tuple[int, ...]) -> np.ndarray:
        key = tuple(sorted(records)) if exchangeable else records
        if key not in laws:
            laws[key] = output_law(used, key, tree)
        return laws[key]

    return [
        [hockey_stick(law(data), law(other), c) for c in cs]
        for data, other in neighbours(num_records, num_clients, exchangeable)
    ]


def averaged_law(
    choices: Mapping[tuple, Number],
    records: Sequence[int],
    num_slots: int,
    channel_after: Callable[[tuple], Channel],
) -> Law:
    """Law of the slots' histograms of A_avg (untrusted aggregator); `channel_after(earlier histograms)` adapts."""
    loads: dict[tuple, Number] = {}
    for picks, mass in choices.items():
        key = tuple(
            tuple(sorted(r for r, pick in zip(records, picks) if pick == slot)) for slot in range(num_slots)
        )
        loads[key] = loads.get(key, 0) + mass
    states: dict[tuple, dict[tuple, Number]] = {(): loads}
    for slot in range(num_slots):
        stepped: dict[tuple, dict[tuple, Number]] = {}
        for prefix, weights in states.items():
            channel, histograms = channel_after(prefix), {}
            for key, weight in weights.items():
                if key[slot] not in histograms:
                    law: Law = {(0,) * len(channel[0]): 1}
                    for record in key[slot]:
                        law = add_client(law, channel[record], 1)
                    histograms[key[slot]] = law
                for seen, prob in histograms[key[slot]].items():
                    if prob:
                        stepped.setdefault((*prefix, seen), {})[key] = weight * prob
        states = stepped
    return {prefix: sum(weights.values()) for prefix, weights in states.items()}


def occupancy(num_clients: int, num_slots: int, p0: Number) -> list[Number]:
    """Pr[K = k], k = 0..m, of the number of occupied slots, one client after the other."""
    law = [p0 * 0 + 1] + [p0 * 0] * num_slots
    for _ in range(num_clients):
        law = [
            law[k] * (1 - p0 + p0 * k / num_slots)
            + (law[k - 1] * p0 * (num_slots - k + 1) / num_slots if k else 0)
            for k in range(num_slots + 1)
        ]
    return law


def clone_labels(p: Number) -> list[Label]:
    """One slot of T2: clone of x, clone of x', neither."""
    return [Label(1 / (p + 1), p, 1), Label(1 / (p + 1), 1, p), Label((p - 1) / (p + 1), 0, 0)]


def krr3_slot_labels(p: Number) -> list[Label]:
    """One slot of 3-ary randomized response, target x or x', base x2 (others and dummy)."""
    return [Label(1 / (p + 2), p, 1), Label(1 / (p + 2), 1, p), Label(p / (p + 2), 1 / p, 1 / p)]


def binary_slot_labels(p: Number) -> list[Label]:
    """One slot of binary randomized response, base at x'; reverse the pair for the other direction."""
    return [Label(1 / (p + 1), p, 1), Label(p / (p + 1), 1 / p, 1)]


def used_in(labels: Sequence[Label], rho: Number) -> list[Label]:
    """The labels of a slot when the target is used with probability rho: P/F = mean of 1 - rho + rho z."""
    return [Label(prob, 1 - rho + rho * z_p, 1 - rho + rho * z_q) for prob, z_p, z_q in labels]


def slots_pair(labels: Sequence[Label], num_slots: int, rho: Number) -> Pair:
    """The pair P/F = (1 - rho) + (rho/m) sum of z over m independent labels, float64."""
    if num_slots == 0:
        return Pair(np.ones(1), np.ones(1))
    return enumerate_pair(used_in(labels, rho), num_slots)


def exact_slots_pair(
    labels: Sequence[Label], num_slots: int, rho: Fraction
) -> list[tuple[Fraction, Fraction]]:
    """`slots_pair` in rational arithmetic."""
    return exact_pair(used_in(labels, rho), num_slots) if num_slots else [(Fraction(1), Fraction(1))]


def occupied_pair(labels: Sequence[Label], num_clients: int, count_law: Sequence[Number]) -> Pair:
    """The mixture over a visible K ~ `count_law` of `slots_pair` with K slots and rho = K/n: Theorem U, T2'."""
    parts = [
        (float(mass), slots_pair(labels, k, k / num_clients)) for k, mass in enumerate(count_law) if mass
    ]
    return Pair(
        np.concatenate([mass * part.p for mass, part in parts]),
        np.concatenate([mass * part.q for mass, part in parts]),
    )


def exact_occupied_pair(
    labels: Sequence[Label], num_clients: int, count_law: Sequence[Fraction]
) -> list[tuple[Fraction, Fraction]]:
    """`occupied_pair` in rational arithmetic."""
    return [
        (mass * a, mass * b)
        for k, mass in enumerate(count_law)
        if mass
        for a, b in exact_slots_pair(labels, k, Fraction(k, num_clients))
    ]


def fixed_window_use(num_clients: int, num_slots: int, p0: Number) -> Number:
    """Probability that A_fix uses a given client's message: (m/n) (1 - (1 - p0/m)^n)."""
    return (1 - (1 - p0 / num_slots) ** num_clients) * num_slots / num_clients


def sliding_window_slots(num_clients: int, window: int) -> int:
    """Largest number of visible slots in a client's window in A_sldw: min(m, n - m + 1)."""
    return min(window, num_clients - window + 1)


def sliding_window_use(num_clients: int, window: int) -> Fraction:
    """Probability that A_sldw uses, in a visible slot, the message of a client with most visible slots."""
    slots = sliding_window_slots(num_clients, window)
    return Fraction(slots, window) * (1 - (1 - Fraction(1, window)) ** window)


@lru_cache(maxsize=16, typed=True)
def hexagon_laws(p: float) -> tuple[np.ndarray, np.ndarray]:
    """T1+: the six corners (z, z'), and all laws on three of them with mean (1, 1), one a row."""
    corners = np.array([(p, 1), (1, p), (p, p), (1 / p, 1 / p), (1, 1 / p), (1 / p, 1)])
    laws = []
    for chosen in map(list, combinations(range(6), 3)):
        weights = np.linalg.solve(np.vstack([corners[chosen].T, np.ones(3)]), np.ones(3))
        if (weights > -1e-12).all():
            laws.append(np.zeros(6))
            laws[-1][chosen] = np.maximum(weights, 0)
    return corners, np.array(laws)


def hexagon_value(num_slots: int, start: np.ndarray | float, c: float, p: float) -> np.ndarray:
    """V_k(start) of T1+ with k = num_slots, by following all 6^k paths."""
    corners, laws = hexagon_laws(p)
    moves = corners @ np.array([1.0, -c])

    def value(steps: int, s: np.ndarray) -> np.ndarray:
        if steps == 0:
            return np.maximum(s, 0)
        return (value(steps - 1, s[..., None] + moves) @ laws.T).max(axis=-1)

    return value(num_slots, np.asarray(start, float))


def random_channel(rng: np.random.Generator, num_records: int, p: float, kind: str) -> np.ndarray:
    """A random channel with likelihood ratios at most p: `extremal`, `rotated` k-RR, `atomic` or `smooth`."""
    while kind == "extremal":
        with suppress(
            np.linalg.LinAlgError
        ):  # patterns that are singular up to rounding, at large p: draw again
            channel = np.array(random_extremal_channel(rng, num_records, p))
            if np.abs(channel.sum(axis=1) - 1).max() < 1e-13:
                return channel
    if kind == "rotated":
        return np.array(krr_channel(num_records, p))[:, rng.permutation(num_records)]
    if kind == "atomic":
        # an output that is p times as likely, but rare, on some of the records
        marked, rare = rng.integers(0, 2, num_records), rng.beta(0.5, 2) / (p + 1)
        seen = np.where(marked, p * rare, rare)
        return np.column_stack([seen, 1 - seen])
    rows = p ** (rng.random((num_records, 3)) / 2)
    return rows / rows.sum(axis=1, keepdims=True)


@lru_cache(maxsize=16)
def extreme_randomizers(num_records: int, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Rays of likelihoods that are 1 or p, one a row, and the masses on them of all extreme eps0-LDP randomizers.

    Every randomizer of these records with quotients of at most p is a mixture of them, up to post-processing.
    """
    rays = np.array([ray for ray in product((1.0, p), repeat=num_records) if len(set(ray)) == 2])
    chosen = np.array(list(combinations(range(len(rays)), num_records)))
    bases = rays[chosen].transpose(0, 2, 1)
    regular = np.abs(np.linalg.det(bases)) > 1e-9 * p
    chosen, weights = chosen[regular], np.linalg.solve(bases[regular], np.ones((num_records, 1)))[..., 0]
    masses = np.zeros((len(chosen), len(rays)))
    np.put_along_axis(masses, chosen, np.maximum(weights, 0.0), axis=1)
    return rays, np.unique(np.round(masses[(weights > -1e-11).all(axis=1)], 12), axis=0)


def largest_over_randomizers(weights: np.ndarray, p: float) -> float:
    """max sum (sum over sequences of weight times likelihood)_+ over all adaptive eps0-LDP randomizers, exactly.

    weights: one axis for each slot, by the records (the dummy is one) whose messages are shown; of either sign. From
    the last slot to the first: given the past the sum is convex in the randomizer, so that an extreme one is best.
    """
    rays, masses = extreme_randomizers(weights.shape[0], p)

    def value(left: np.ndarray, slots: int) -> np.ndarray:
        if slots == 0:
            return np.maximum(left[:, 0], 0.0)
        seen = np.einsum("bcx,rc->brx", left.reshape(len(left), rays.shape[1], -1), rays)
        values = value(seen.reshape(len(left) * len(rays), -1), slots - 1).reshape(len(left), len(rays))
        return np.array([(masses @ each).max() for each in values])

    return float(value(weights.reshape(1, -1), weights.ndim)[0])


def every_randomizer(used: Used, target: int, groups: Sequence[int], p: float, c: float) -> float:
    """The largest H over all adaptive eps0-LDP randomizers, the target's record being replaced.

    groups: of the clients before the target, the last one; those of one group hold one record. The dummy has its own.
    """
    weights = np.zeros((4 + max(groups),) * len(next(iter(used))))
    for clients, mass in used.items():
        shown = tuple(0 if who is EMPTY else 1 if who == target else 3 + groups[who] for who in clients)
        if 1 in shown:
            weights[shown] += mass
            weights[tuple(2 if record == 1 else record for record in shown)] -= c * mass
        else:
            weights[shown] += (1.0 - c) * mass
    return largest_over_randomizers(weights, p)
