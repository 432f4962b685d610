"""E* on exact shuffles of finite randomizers, against an adversary that sees more than the messages; one-sided."""

import numpy as np
import pytest
from oracles import spared as oracle
from oracles.t_star import channel_kinks, channel_profile


def random_channel(rng: np.random.Generator) -> np.ndarray:
    """A few records and values: randomized response of any kind, or anything else without zeros."""
    records, values = rng.integers(2, 4, size=2)
    if rng.random() < 0.5:
        factor = np.exp(rng.uniform(0.3, 3.0))
        rows = np.where(np.eye(records, values, dtype=bool), factor, 1.0)
    else:
        rows = np.exp(rng.normal(0.0, rng.uniform(0.3, 1.5), (records, values)))
    return rows / rows.sum(axis=1, keepdims=True)


def cases(seed: int, count: int):
    """(E*'s two terms, the second without c, what the adversary has, c)."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        channel = random_channel(rng)
        profile, kinks = channel_profile(channel), channel_kinks(channel)
        if float(profile(np.array(1.0))) < 1e-3:
            continue
        for spared, others in ((0, 2), (0, 3), (1, 1), (1, 2), (2, 2)):
            told = oracle.shuffled_profile(channel, spared)
            for c in np.concatenate([[1.0], 1.0 + (kinks[-1] - 1.0) * rng.random(3)]):
                truth = oracle.worst_seen(channel, spared, others, float(c))
                for kept in range(1, others + 1):
                    first = oracle.kept_sum(profile, kinks, kept, float(c))
                    second = float(profile(np.array(1.0))) * told(others / kept)
                    yield first, second, truth, float(c)


@pytest.mark.parametrize("seed", range(4))
def test_e_star_is_above_an_adversary_that_sees_the_slots(seed):
    ratios = [truth / (first + c * second) for first, second, truth, c in cases(seed, 25)]
    assert len(ratios) > 500
    assert max(ratios) <= 1.0 + 1e-9
    assert max(ratios) > 0.9


def test_sparing_is_not_free():
    """Without the second term the adversary exceeds the bound: who has been moved shows."""
    assert max(truth / first for first, _, truth, _ in cases(0, 25) if first > 1e-12) > 1.05
