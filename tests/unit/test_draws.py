"""Schedules: laws of participation, independence of streams, reproducibility."""

from __future__ import annotations

import collections
import os

import jax
import numpy as np
import pytest
from scipy import stats

from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.training import draws
from checkin_jax.training.draws import Stream

ACCEPT, REJECT = 1e-3, 1e-8


def _count_p_value(counts: np.ndarray, n: int, rate: float) -> float:
    """Chi-square test of counts against Binomial(n, rate), cells of expected size at least 5."""
    law = stats.binom(n, rate)
    edges = np.unique(law.ppf(np.linspace(0, 1, 41)[1:-1]))
    expected = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]])) * len(counts)
    observed = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize(
    ("n", "coin", "drop"),
    [(10_000_000, 1e-4, 0.0), (10_000_000, 2e-4, 0.5), (2_000, 0.1, 0.0), (50, 0.9, 0.2)],
)
def test_the_number_of_check_ins_is_binomial(n, coin, drop):
    protocol = ShuffledCheckIn(num_clients=n, check_in_prob=coin, drop_out_prob=drop)
    counts = np.array([len(draws.participants(7, protocol, t)) for t in range(4_000)])
    assert _count_p_value(counts, n, protocol.rate) > ACCEPT
    wrong = protocol.rate * (1 + 0.5 * (1 - protocol.rate) / np.sqrt(n * protocol.rate))
    assert _count_p_value(counts, n, min(1.0, wrong)) < REJECT


def test_participants_are_distinct_and_uniform():
    protocol = ShuffledCheckIn(num_clients=40, check_in_prob=0.3)
    rounds = [draws.participants(1, protocol, t) for t in range(4_000)]
    assert all(len(set(r.tolist())) == len(r) for r in rounds)
    present = np.zeros((4_000, 40))
    for t, chosen in enumerate(rounds):
        present[t, chosen] = 1
    expected = 4_000 * 0.3
    statistic = np.sum((present.sum(0) - expected) ** 2) / (expected * 0.7)
    assert 1e-3 < stats.chi2(40).sf(statistic) < 1 - 1e-3
    # Two clients are independent, and so are two rounds of one client.
    pairs = np.corrcoef(present.T)[np.triu_indices(40, 1)]
    assert np.abs(pairs).max() < 5 / np.sqrt(4_000)
    lagged = np.mean((present[1:] - 0.3) * (present[:-1] - 0.3)) / 0.21
    assert abs(lagged) < 5 / np.sqrt(40 * 4_000)


@pytest.mark.parametrize(
    ("n", "rate"),
    # Few of many, many of many, everybody: NumPy draws them in different ways.
    [(30_000, 1e-4), (12_000, 0.3), (5, 1.0), (5, 0.6)],
)
def test_messages_are_in_random_order(n, rate):
    """Whoever sends messages in the order of `participants` has shuffled them: ranks are uniform at every place."""
    protocol = ShuffledCheckIn(num_clients=n, check_in_prob=rate)
    largest, first, orders = [], [], collections.Counter()
    for t in range(3_000):
        chosen = draws.participants(11, protocol, t)
        if len(chosen) < 3:
            continue
        # Where the largest is, and how large the first is among all, as numbers uniform in [0, 1).
        jitter = np.random.default_rng(t).random(2)
        largest.append((np.argmax(chosen) + jitter[0]) / len(chosen))
        first.append((np.sum(chosen < chosen[0]) + jitter[1]) / len(chosen))
        orders[tuple(np.argsort(chosen[[0, len(chosen) // 2, -1]]).tolist())] += 1
    assert stats.kstest(largest, "uniform").pvalue > ACCEPT
    assert stats.kstest(first, "uniform").pvalue > ACCEPT
    assert len(orders) == 6
    assert stats.chisquare(list(orders.values())).pvalue > ACCEPT


def test_certain_and_impossible_check_ins():
    everybody = ShuffledCheckIn(num_clients=17, check_in_prob=1.0)
    assert sorted(draws.participants(3, everybody, 5)) == list(range(17))
    hardly = ShuffledCheckIn(num_clients=1, check_in_prob=1e-9)
    nobody = draws.participants(3, hardly, 0)
    assert nobody.shape == (0,)


def test_a_round_can_be_drawn_without_the_rounds_before_it():
    protocol = ShuffledCheckIn(num_clients=1_000, check_in_prob=0.1, num_rounds=10)
    in_order = [draws.participants(5, protocol, t) for t in range(10)]
    np.testing.assert_array_equal(draws.participants(5, protocol, 7), in_order[7])
    assert not np.array_equal(in_order[6], in_order[7])
    assert not np.array_equal(draws.participants(6, protocol, 7), in_order[7])


def test_streams_differ_by_purpose_and_entropy():
    keys = {
        tuple(jax.random.key_data(draws.jax_key(entropy, stream)).tolist())
        for entropy in (0, 1, 2**127)
        for stream in Stream
    }
    assert len(keys) == 3 * len(Stream)
    firsts = {draws.generator(0, stream).random() for stream in Stream}
    assert len(firsts) == len(Stream)
    assert len({draws.fresh_entropy() for _ in range(20)}) == 20
    assert max(draws.fresh_entropy() for _ in range(20)) > 2**100


def test_a_source_of_entropy_is_asked_for_bytes_and_a_broken_one_is_refused(tmp_path):
    asked = []

    def counting(count: int) -> bytes:
        asked.append(count)
        return bytes(range(len(asked), len(asked) + count))

    assert draws.drawn_entropy(counting) == int.from_bytes(bytes(range(1, 17)), "big")
    assert set(asked) == {16}
    assert draws.source_name(counting).endswith("counting")
    assert draws.source_name(os.urandom).endswith("urandom")
    broken = {
        "expected 16 bytes, got 15": lambda count: bytes(range(count - 1)),
        "expected 16 bytes, got 17": lambda count: bytes(range(count + 1)),
        "16 equal ones": lambda count: b"\xff" * count,
        "the same twice": lambda count: bytes(range(count)),
    }
    for words, source in broken.items():
        with pytest.raises(draws.EntropyError, match=words):
            draws.drawn_entropy(source)
    with pytest.raises(TypeError, match="expected bytes, got str"):
        draws.drawn_entropy(lambda count: "x" * count)  # type: ignore[return-value]
    with pytest.raises(TypeError, match="expected a function"):
        draws.drawn_entropy(b"0123456789abcdef")  # type: ignore[arg-type]


def test_clients_hold_their_own_record_while_there_are_enough():
    held = draws.client_records(1, 30, 100)
    assert held.dtype == np.int32
    assert len(set(held.tolist())) == 30
    np.testing.assert_array_equal(np.sort(draws.client_records(1, 100, 100)), np.arange(100))
    np.testing.assert_array_equal(draws.client_records(1, 60, 100)[:30], held)


def test_more_clients_than_records_draw_with_replacement():
    held = draws.client_records(1, 100_000, 50)
    assert held.dtype == np.int32
    assert stats.chisquare(np.bincount(held, minlength=50)).pvalue > ACCEPT
    np.testing.assert_array_equal(held, draws.client_records(1, 100_000, 50))


def test_records_of_very_many_clients_are_drawn_when_they_are_asked_for(monkeypatch):
    held = draws.client_records(1, 10**12, 50)
    assert held.shape == (10**12,)
    clients = np.random.default_rng(0).choice(10**12, 100_000, replace=False)
    records = held[clients]
    assert records.dtype == np.int32
    assert stats.chisquare(np.bincount(records, minlength=50)).pvalue > ACCEPT
    np.testing.assert_array_equal(records[::-1], draws.client_records(1, 10**12, 50)[clients[::-1]])
    assert (draws.client_records(2, 10**12, 50)[clients] != records).mean() > 0.9
    assert np.abs(np.corrcoef(records[:-1], records[1:])[0, 1]) < 5 / np.sqrt(len(records))
    several = draws.client_records(1, 10**11, 50, each=3)[clients[:7] % 10**11]
    assert several.shape == (7, 3)
    assert held[clients[:0]].shape == (0,)
    monkeypatch.setattr(draws, "TABLE", 10)
    assert isinstance(draws.client_records(1, 30, 100), np.ndarray)  # records of their own
