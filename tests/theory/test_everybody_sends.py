"""E* on exact shuffles of finite randomizers, against an adversary that sees more than the messages; one-sided."""

import math

import numpy as np
import pytest
from oracles import spared as oracle
from oracles import spared_adaptive as adapted
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


# Shares of the weights that may be cut before nothing is counted on; 0: E*'s first inequality.
SHARES = (0.0, 0.25, 0.6)


def cases(seed: int, count: int, cut: float = 0.0):
    """(E*'s two terms, what the adversary has); by its second inequality where cut > 0."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        channel = random_channel(rng)
        profile, kinks = channel_profile(channel), channel_kinks(channel)
        if float(profile(np.array(1.0))) < 1e-3:
            continue
        for spared, others in ((0, 2), (0, 3), (1, 1), (1, 2), (2, 2)):
            told = oracle.shuffled_profile(channel, spared)
            cs = np.concatenate([[1.0], 1.0 + (kinks[-1] - 1.0) * rng.random(3)])
            for c, truth in zip(cs, oracle.worst_seen(channel, spared, others, cs)):
                for kept in range(1, others + 1):
                    first = oracle.kept_sum(profile, kinks, kept, float(c))
                    second = (
                        float(profile(np.array(c))) * told((1.0 - cut) * others / kept) / cut if cut else 0.0
                    )
                    if not cut:
                        second = c * float(profile(np.array(1.0))) * told(others / kept)
                    yield first, second, truth


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cut", SHARES)
@pytest.mark.turns(3)
def test_e_star_is_above_an_adversary_that_sees_the_slots(seed, cut):
    ratios = [truth / (first + second) for first, second, truth in cases(seed, 25, cut)]
    assert len(ratios) > 500
    assert max(ratios) <= 1.0 + 1e-9
    assert max(ratios) > (0.5 if cut else 0.9)


@pytest.mark.parametrize("cut", SHARES)
def test_sparing_is_not_free(cut):
    """Without the second term the adversary exceeds the bound: who has been moved shows."""
    assert max(truth / first for first, _, truth in cases(0, 25, cut) if first > 1e-12) > 1.05


@pytest.mark.parametrize("seed", range(2))
def test_cut_weights_are_above_an_adversary_that_sees_the_slots(seed):
    """E*'s second inequality whole, each case at its best of x, y, B and t; the last term is needed."""
    rng, ratios, without = np.random.default_rng(seed), [], 0
    while len(ratios) < 40:
        channel = random_channel(rng)
        profile, kinks = channel_profile(channel), channel_kinks(channel)
        if float(profile(np.array(1.0))) < 1e-3:
            continue
        for spared, others in ((0, 3), (1, 2), (2, 2)):
            told = oracle.shuffled_profile(channel, spared)
            c = 1.0 + (kinks[-1] - 1.0) * math.exp(rng.uniform(-7.0, -1.0))
            (truth,) = oracle.worst_seen(channel, spared, others, np.array([c]))
            terms = oracle.cut_weights_terms(profile, kinks, told, others, c)
            best = terms[:, terms.sum(axis=0).argmin()]
            ratios.append(truth / best.sum())
            without += truth > best[0] + best[1]
    assert max(ratios) <= 1.0 + 1e-9
    assert max(ratios) > 0.4
    assert without > 10


def k_ary(p: float, letters: int):
    """The profile of k-ary randomized response at c > 0, and its bends."""

    def profile(c: np.ndarray) -> np.ndarray:
        c = np.asarray(c, dtype=float)
        return np.maximum(1.0 - c, 0.0) + np.where(
            c > 1.0, np.maximum(p - c, 0.0), np.maximum(c * p - 1.0, 0.0)
        ) / (p + letters - 1.0)

    return profile, np.array([1.0 / p, 1.0, p])


def test_the_oracle_of_own_records_is_what_is_seen():
    p, c = 6.0, 1.4
    channel = (np.ones((5, 5)) + (p - 1.0) * np.eye(5)) / (p + 4.0)
    one, other = (oracle.seen(channel, (), (1, 2, 3), target) for target in (0, 4))
    assert np.isclose(oracle.own_records(p, 5, 3, c), np.maximum(one - c * other, 0.0).sum(), rtol=1e-9)
    profile, _ = k_ary(p, 5)
    at = np.array([0.1, 0.5, 1.0, 2.0, 7.0])
    assert np.allclose(profile(at), channel_profile(channel)(at))


@pytest.mark.parametrize(
    ("p", "letters", "others", "c"),
    [(3.75, 50, 5, 1.15), (21.5, 180, 59, 2.15), (12.2, 111, 107, 1.93), (13.3, 88, 79, 3.0)],
)
def test_cut_weights_are_above_others_at_records_of_their_own(p, letters, others, c):
    """Where the message of whoever was moved points at a slot, and the target's letter is rare in it."""
    profile, kinks = k_ary(p, letters)
    terms = oracle.cut_weights_terms(profile, kinks, profile, others, c)
    assert oracle.own_records(p, letters, others, c) <= terms.sum(axis=0).min()
    if others < 10:
        assert oracle.own_records(p, letters, others, c) > 0.6 * terms.sum(axis=0).min()


@pytest.mark.parametrize(("p", "letters", "others", "c"), [(12.2, 111, 107, 1.93), (18.1, 113, 111, 2.4)])
def test_a_large_weight_may_meet_a_large_term(p, letters, others, c):
    """Wrong neighbour: f as if the weights were one, E(tau - y)_+, is exceeded manifold."""
    profile, kinks = k_ary(p, letters)
    terms = oracle.cut_weights_terms(
        profile, kinks, profile, others, c, met=lambda b: np.maximum(1.0 - b, 0.0)
    )
    assert oracle.own_records(p, letters, others, c) > 10.0 * terms.sum(axis=0).min()


def test_one_large_term_and_many_small_ones_both_count():
    """Wrong neighbours: without either, at the best parameters."""
    for which, (p, letters, others, c) in enumerate([(21.5, 180, 59, 2.15), (1.902, 41, 16, 1.08)]):
        profile, kinks = k_ary(p, letters)
        terms = oracle.cut_weights_terms(profile, kinks, profile, others, c)
        best = terms[:, terms.sum(axis=0).argmin()]
        assert oracle.own_records(p, letters, others, c) > 1.5 * (best.sum() - best[which])


def adaptive_cases(seed: int, count: int):
    """(E*'s three terms where messages adapt, for all k and shares; what is seen)."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        channel = np.exp(rng.normal(0.0, rng.uniform(0.5, 2.0), (rng.integers(2, 4), 2)))
        if rng.random() < 0.2:
            # A message may reveal its record.
            channel[0, 0] = 0.0
        channel /= channel.sum(axis=1, keepdims=True)
        profile, kinks = channel_profile(channel), channel_kinks(channel)
        spared, others = [(0, 1), (0, 2), (1, 1)][rng.integers(3)]
        clients = spared + 1 + others
        renamed = adapted.renamings(rng, *channel.shape, clients)
        pool = adapted.told(channel, renamed, spared) if spared else profile
        cs = 1.0 + (kinks[-1] - 1.0) * rng.random(3)
        for c, truth in zip(cs, adapted.worst(channel, renamed, clients, cs)):
            yield adapted.terms(profile, kinks, pool, spared, others, float(c)), truth


@pytest.mark.parametrize("seed", range(2))
def test_e_star_is_above_what_is_seen_where_messages_adapt(seed):
    ratios = [truth / terms.sum(axis=0).min() for terms, truth in adaptive_cases(seed, 40)]
    assert len(ratios) > 100
    assert max(ratios) <= 1.0 + 1e-9
    assert max(ratios) > 0.5


def test_the_target_may_be_one_of_the_pool_where_messages_adapt():
    """Wrong neighbour: without the pool's term."""
    p, c = 8.0, 1.05
    channel = np.array([[p, 1.0], [1.0, p]]) / (p + 1.0)
    alike = dict.fromkeys(adapted.renamings(np.random.default_rng(0), 2, 2, 4), range(2))
    pool = adapted.told(channel, alike, 2)
    terms = adapted.terms(channel_profile(channel), channel_kinks(channel), pool, 2, 1, c)
    (truth,) = adapted.worst(channel, alike, 4, np.array([c]))
    assert terms[:2].sum(axis=0).min() < 0.6 * truth
    assert truth <= terms.sum(axis=0).min()
