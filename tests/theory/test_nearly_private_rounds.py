"""E+ for nearly eps0-LDP messages, on exact rounds of finite randomizers in which all send, and messages may adapt."""

import math
from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest
from oracles import exact_rounds, spared_pure
from oracles import spared_adaptive as adapted

# Terms of the bound: the game, what is cut off, the pool's floor, the cost of cutting steps.
ALL, NO_STEPS, NO_POOL = (1, 1, 1, 1), (1, 1, 1, 0), (1, 1, 0, 1)


def random_channel(rng: np.random.Generator, p: float) -> np.ndarray:
    """The record shown now and then, or laws within a factor p of each other but for a few outputs."""
    if rng.random() < 0.4:
        rows = exact_rounds.shown_or_response(p, float(rng.choice([1e-3, 0.02, 0.1, 0.3])))
        return rows[:, rows.sum(axis=0) > 0.0]
    records, outputs = rng.integers(2, 4, size=2)
    rows = rng.dirichlet(np.ones(outputs)) * p ** rng.uniform(-0.5, 0.5, (records, outputs))
    rows *= np.where(rng.random(rows.shape) < 0.25, rng.choice([0.0, 0.02, 3.0], rows.shape), 1.0)
    rows += 1e-3 * (rows.sum(axis=1, keepdims=True) == 0.0)
    return rows / rows.sum(axis=1, keepdims=True)


def excess(channel: np.ndarray, renamed: adapted.Renamed, others: int, p: float) -> float:
    """The largest excess of the pool's divergences over T1, c >= 1: at the bends of either."""
    pairs = []
    for rest in combinations_with_replacement(range(len(channel)), others):
        laws = [adapted.in_order(channel, renamed, (own, *rest)).ravel() for own in range(len(channel))]
        pairs += list(permutations(laws, 2))
    first, second = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    profile, bends = spared_pure.t1_profile(others + 1, p)
    ratios = (first[second > 0.0] / second[second > 0.0]).ravel()
    cs = np.unique(np.concatenate([ratios, bends, [1.0, 1e9]]))
    cs = cs[cs >= 1.0]
    truth = np.array([np.maximum(first - c * second, 0.0).sum(axis=1).max() for c in cs])
    return max(float(np.max(truth - profile(cs))), 0.0)


def ratios(seed: int, count: int, counted=ALL, one_law: bool = True, cut_all: bool = False) -> list[float]:
    """Truth over the bound with these terms; the pool's floor is the least one, or G2's."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        p = math.exp(rng.uniform(0.2, 2.3))
        channel = random_channel(rng, p)
        delta0 = max(np.maximum(a - p * b, 0.0).sum() for a, b in permutations(channel, 2))
        letters = channel.shape[1]
        clients = int(rng.integers(3, 6)) if letters < 3 else int(rng.integers(3, 5)) if letters < 4 else 3
        renamed = adapted.renamings(rng, *channel.shape, clients)
        if rng.random() < 0.4:
            renamed = dict.fromkeys(renamed, range(len(channel)))
        c = 1.0 if rng.random() < 0.3 else 1.0 + (p - 1.0) * rng.random() ** 2
        (truth,) = adapted.worst(channel, renamed, clients, np.array([c]))
        for spared in range(clients - 1):
            of_t1 = delta0 * (1.0 + p) * (1.0 + 2.0 * spared / p) if spared else delta0
            floor = excess(channel, renamed, spared, p)
            assert floor <= of_t1 * (1.0 + 1e-9) + 1e-12
            terms = adapted.capped(
                p, spared, clients - spared - 1, c, True, delta0, of_t1 if cut_all else floor, one_law
            )
            found.append(truth / max(float((np.array(counted) @ terms).min()), 1e-12))
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("one_law", "cut_all"), [(True, False), (False, False), (False, True)])
def test_the_bound_is_above_what_is_seen(seed, one_law, cut_all):
    found = ratios(seed, 40, ALL, one_law, cut_all)
    assert max(found) <= 1.0 + 1e-9
    assert max(found) > 0.6


@pytest.mark.parametrize(("counted", "least"), [(NO_STEPS, 1.2), (NO_POOL, 1.5)])
def test_cutting_is_not_free(counted, least):
    """Wrong neighbours: without the cost of cutting steps, and without the pool's floor."""
    assert max(ratios(1, 60, counted)) > least
