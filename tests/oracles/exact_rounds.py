"""Exact laws of whole rounds for few clients, by a reader who did not write the bounds: nothing of them is used.

A round of shuffled check-in is the law of a histogram, held as a dense array; a window is a sum over who throws where
and who is drawn. float64 sums of positive terms. Records are rows of a channel, outputs its columns.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import exp, inf, prod

import numpy as np

Law = np.ndarray


def l2_in_the_plane(p: float, angles: Sequence[float], norms: Sequence[float]) -> np.ndarray:
    """The l2 mechanism in two dimensions: arcs of the circle on which all records' sides are constant."""
    angles = np.asarray(angles)
    edges = np.unique(np.round(np.concatenate([angles + np.pi / 2, angles - np.pi / 2]) % (2 * np.pi), 14))
    widths = np.diff(np.append(edges, edges[0] + 2 * np.pi))
    sides = np.sign(np.cos(edges + widths / 2 - angles[:, None]))
    return widths / (2 * np.pi) * (1 + sides * np.asarray(norms)[:, None] * (p - 1) / (p + 1))


def one_number(p: float, shares: Sequence[float]) -> np.ndarray:
    """The l2 mechanism in one dimension, records in units of the bound."""
    high = (1 + np.asarray(shares, float) * (p - 1) / (p + 1)) / 2
    return np.stack([high, 1 - high], axis=1)


def sometimes(channel: np.ndarray, share: float) -> np.ndarray:
    """The channel with probability `share`, else a message that says nothing."""
    return np.concatenate([share * channel, np.full((len(channel), 1), 1 - share)], axis=1)


def shown_or_response(p: float, delta0: float) -> np.ndarray:
    """The record with probability delta0, else randomized response; four outputs."""
    shares = np.array([delta0, (1 - delta0) * p / (p + 1), (1 - delta0) / (p + 1), 0.0])
    return np.stack([shares, shares[::-1]])


def with_client(law: Law, row: np.ndarray, rate: float) -> Law:
    """The histogram's law, axis y: how many messages are y, after one more client."""
    after = np.zeros([count + 1 for count in law.shape])
    as_many = [slice(0, -1)] * law.ndim
    after[tuple(as_many)] = (1 - rate) * law
    for y, chance in enumerate(row):
        one_more = as_many.copy()
        one_more[y] = slice(1, None)
        after[tuple(one_more)] += rate * chance * law
    return after


def histogram(rows: Sequence[np.ndarray], rates: Sequence[float]) -> Law:
    """Of the messages of clients whose outputs have the laws `rows` and who come with probabilities `rates`."""
    law = np.ones((1,) * len(rows[0]))
    for row, rate in zip(rows, rates):
        law = with_client(law, row, rate)
    return law.ravel()


def rounds(channel: np.ndarray, rates: Sequence[float]) -> Iterator[tuple[Law, Law]]:
    """All pairs of neighbouring data sets, the last client being the target."""
    channel, (*others, own) = np.asarray(channel), rates
    for held in product(range(len(channel)), repeat=len(others)):
        if len(set(others)) == 1 and list(held) != sorted(held):
            continue
        law = np.ones((1,) * channel.shape[1])
        for record, rate in zip(held, others):
            law = with_client(law, channel[record], rate)
        yield from permutations([with_client(law, row, own).ravel() for row in channel], 2)


def window(
    channel: np.ndarray,
    held: Sequence[int],
    rates: Sequence[float],
    windows: Sequence[Sequence[int]],
    shown: Sequence[int],
    dummy: int | None,
) -> Law:
    """One message used in each shown slot: of a uniform client in it, of the dummy (None: the slot is seen empty)."""
    rows = np.concatenate([channel, np.zeros((len(channel), 1))], axis=1)
    rows = np.concatenate([rows, np.eye(1, rows.shape[1], rows.shape[1] - 1)])
    empty = len(channel) if dummy is None else dummy
    law: Law = np.zeros(rows.shape[1] ** len(shown))
    choices = [
        [(-1, 1 - rate), *((slot, rate / len(mine)) for slot in mine)] for rate, mine in zip(rates, windows)
    ]
    for thrown in product(*choices):
        mass = prod(chance for _, chance in thrown)
        if mass == 0.0:
            continue
        there = [[i for i, (slot, _) in enumerate(thrown) if slot == s] for s in shown]
        for used in product(*(some or [None] for some in there)):
            one: Law = np.array([mass / prod(len(some) or 1 for some in there)])
            for i in used:
                one = np.multiply.outer(one, rows[empty if i is None else held[i]]).ravel()
            law = law + one
    return law


def leak(first: Law, second: Law, cs: np.ndarray) -> np.ndarray:
    """Hockey-stick divergence at each c."""
    return np.maximum(first[None, :] - cs[:, None] * second[None, :], 0.0).sum(axis=1)


def most(pairs: Iterator[tuple[Law, Law]] | Sequence[tuple[Law, Law]], cs: np.ndarray) -> np.ndarray:
    """The largest divergence over the pairs at each c."""
    return np.max([leak(first, second, cs) for first, second in pairs], axis=0)


def reaches(
    pairs: Iterator[tuple[Law, Law]] | Sequence[tuple[Law, Law]], epsilon: float, delta: float
) -> bool:
    """True if some pair has a divergence of delta at e^epsilon, so that no valid bound is below epsilon."""
    return bool(most(pairs, np.array([exp(epsilon)]))[0] * (1 + 1e-11) >= delta)


def worst(channel: np.ndarray, rates: Sequence[float], cs: Sequence[float] | np.ndarray) -> np.ndarray:
    """The largest divergence at each c over all data sets of `rounds`, the last client being the target."""
    return most(rounds(channel, rates), np.asarray(cs, float))


def composed(first: Law, second: Law, times: int) -> tuple[Law, Law]:
    """Independent rounds, outcomes with the same likelihood ratio merged."""
    kept = (first > 0) | (second > 0)
    p, q = np.ones(1), np.ones(1)
    for _ in range(times):
        p, q = np.outer(p, first[kept]).ravel(), np.outer(q, second[kept]).ravel()
        with np.errstate(divide="ignore"):
            ratio, place = np.unique(np.round(np.log(p) - np.log(q), 12), return_inverse=True)
        p, q = np.bincount(place, p, ratio.size), np.bincount(place, q, ratio.size)
    return p, q


def epsilon(first: Law, second: Law, delta: float) -> float:
    """The least epsilon >= 0 with a divergence of delta at most, by bisection, rounded down."""
    low, high = 0.0, 1.0
    while leak(first, second, np.array([exp(high)]))[0] > delta:
        low, high = high, 2 * high
        if high > 200:
            return inf
    for _ in range(60):
        middle = (low + high) / 2
        above = leak(first, second, np.array([exp(middle)]))[0] > delta
        low, high = (middle, high) if above else (low, middle)
    return low
