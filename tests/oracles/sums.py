"""Sums of the messages of successive slots by enumeration: A_fix and A_sldw with Gaussian messages, few clients.

A slot shows one of its clients, uniformly drawn, or the dummy 0 (or nothing, where empty slots are visible); the server
shows the sum of each group of slots, noise of standard deviation `noise` in every message that is there. Outputs are
merged into cells, which lowers hockey-stick divergences.
"""

import math
from itertools import product

import numpy as np
from scipy.special import ndtr

Law = dict[tuple[int, ...], np.ndarray]


def fixed(records, slots: int, size: int, prob: float, noise: float, visible: bool = False) -> Law:
    """All sums of one window of A_fix, by how many messages each of them has; records in [-1, 1]."""
    choices = [[(i, prob / slots) for i in range(slots)] + [(None, 1.0 - prob)]] * len(records)
    return _law(records, choices, range(slots), size, noise, visible)


def sliding(records, window: int, size: int, noise: float) -> Law:
    """All sums of one pass of A_sldw; a record that is None is of a client that is not there."""
    n = len(records)
    choices = [[(j + i, 1.0 / window) for i in range(window)] for j in range(n)]
    return _law(records, choices, range(window - 1, n), size, noise, False)


def _law(records, choices, shown, size: int, noise: float, visible: bool) -> Law:
    weights: dict[tuple[tuple[int, float], ...], float] = {}
    groups = [list(shown)[i : i + size] for i in range(0, len(shown), size)]
    here = [(r, c) for r, c in zip(records, choices) if r is not None]
    for picks in product(*(c for _, c in here)):
        chance = math.prod(share for _, share in picks)
        if chance == 0.0:
            continue
        members = {
            slot: [r for (r, _), (pick, _) in zip(here, picks) if pick == slot] or ([] if visible else [0.0])
            for slot in shown
        }
        used = [members[slot] for slot in shown if members[slot]]
        for drawn in product(*used):
            share = chance / math.prod(len(each) for each in used)
            left = iter(drawn)
            sums = []
            for group in groups:
                there = [next(left) for slot in group if members[slot]]
                sums.append((len(there), round(math.fsum(there), 9)))
            key = tuple(sums)
            weights[key] = weights.get(key, 0.0) + share
    law: Law = {}
    for sums, share in weights.items():
        counts = tuple(count for count, _ in sums)
        used_dims = sum(count > 0 for count in counts)
        cells = {0: 1, 1: 4000, 2: 400, 3: 90}[used_dims]
        row = np.ones(1)
        for count, mean in sums:
            if count:
                std = noise * math.sqrt(count)
                edges = np.linspace(-count - 6.0 * std, count + 6.0 * std, cells)
                row = np.outer(row, np.diff(ndtr((edges - mean) / std), prepend=0.0, append=1.0)).ravel()
        law[counts] = law.get(counts, 0.0) + share * row
    return law


def hockey_stick(p: Law, q: Law, c: float) -> float:
    """H_c of two laws."""
    return float(sum(np.maximum(p.get(k, 0.0) - c * np.asarray(q.get(k, 0.0)), 0.0).sum() for k in {*p, *q}))
