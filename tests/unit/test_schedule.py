"""Rounds of windows: the laws of [RCI]'s algorithms against their plain simulation, and how windows are cut."""

from __future__ import annotations

import collections
import dataclasses
import sys
import time

import numpy as np
import pytest
from scipy import stats

from checkin_jax.protocols import AveragedUpdates, FixedWindow, Shuffle, ShuffledCheckIn, SlidingWindow
from checkin_jax.training import draws, schedules
from checkin_jax.training.schedules import schedule_of

ACCEPT = 1e-4
DRAWS = 6_000


def _plain_fixed_window(rng, n, m, p):
    """[RCI] Algorithm 1 to the letter."""
    slots = np.where(rng.random(n) < p, rng.integers(m, size=n), -1)
    present = [np.flatnonzero(slots == i) for i in range(m)]
    return tuple(int(rng.choice(s)) if len(s) else -1 for s in present)


def _plain_sliding_window(rng, n, m):
    """[RCI] Algorithm 3 to the letter, counting from 0."""
    slots = np.arange(n) + rng.integers(m, size=n)
    present = [np.flatnonzero(slots == i) for i in range(m - 1, n)]
    return tuple(int(rng.choice(s)) if len(s) else -1 for s in present)


def same_law(a, b) -> float:
    """p-value of two lists of outcomes having one law."""
    counts = collections.Counter(a), collections.Counter(b)
    cells = sorted(set(a) | set(b))
    table = np.array([[c[cell] for cell in cells] for c in counts])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], axis=1)
    return float(stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue)


@pytest.mark.parametrize(("n", "m", "p"), [(3, 2, 1.0), (2, 3, 0.6), (4, 1, 0.5), (3, 3, 0.9)])
def test_a_fixed_window_has_the_law_of_the_algorithm(n, m, p):
    protocol = FixedWindow(num_clients=n, num_slots=m, check_in_prob=p)
    drawn = [tuple(draws.fixed_window(5, protocol, t).tolist()) for t in range(DRAWS)]
    rng = np.random.default_rng(0)
    assert same_law(drawn, [_plain_fixed_window(rng, n, m, p) for _ in range(DRAWS)]) > ACCEPT
    # Successive windows are independent: pairs have the law of pairs from two runs.
    other = [tuple(draws.fixed_window(6, protocol, t).tolist()) for t in range(DRAWS)]
    assert same_law(list(zip(drawn[::2], drawn[1::2])), list(zip(drawn[::2], other[1::2]))) > ACCEPT


def test_the_law_test_sees_another_check_in_probability():
    rng = np.random.default_rng(1)
    right = [_plain_fixed_window(rng, 3, 3, 0.9) for _ in range(DRAWS)]
    assert same_law(right, [_plain_fixed_window(rng, 3, 3, 1.0) for _ in range(DRAWS)]) < 1e-8


@pytest.mark.parametrize(("n", "m"), [(4, 2), (4, 3), (3, 1), (4, 4)])
def test_a_sliding_window_has_the_law_of_the_algorithm(monkeypatch, n, m):
    monkeypatch.setattr(draws, "MIN_BLOCK", 2)  # several blocks to a pass
    protocol = SlidingWindow(num_clients=n, window=m, num_epochs=DRAWS, minibatch=n - m + 1)
    schedule = schedule_of(protocol)
    draw = schedule.draw(5)
    drawn = [tuple(draw(t).tolist()) for t in range(DRAWS)]
    rng = np.random.default_rng(0)
    assert same_law(drawn, [_plain_sliding_window(rng, n, m) for _ in range(DRAWS)]) > ACCEPT


def test_averaged_updates_have_the_law_of_the_algorithm():
    n, m, p = 3, 2, 0.7
    protocol = AveragedUpdates(num_clients=n, num_slots=m, check_in_prob=p, num_epochs=DRAWS)
    draw, drawn, plain = schedule_of(protocol).draw(5), [], []
    rng = np.random.default_rng(0)
    for t in range(DRAWS):
        drawn.append(tuple(frozenset(draw(2 * t + i).tolist()) for i in range(m)))
        slots = np.where(rng.random(n) < p, rng.integers(m, size=n), -1)
        plain.append(tuple(frozenset(np.flatnonzero(slots == i).tolist()) for i in range(m)))
    assert same_law(drawn, plain) > ACCEPT


@pytest.mark.parametrize("n", [10**7, 10**12])
def test_windows_of_very_many_clients_are_drawn_at_once(n):
    protocol = FixedWindow(num_clients=n, num_slots=10_000, check_in_prob=1e4 / n)
    started = time.process_time()
    slots = [draws.fixed_window(1, protocol, t) for t in range(5)]
    assert time.process_time() - started < 1.0  # some ms each
    for used in slots:
        clients = used[used >= 0]
        assert len(set(clients.tolist())) == len(clients)
        assert abs((used < 0).mean() - np.exp(-1)) < 6 * np.sqrt(0.1 / 10_000)
        assert stats.kstest(clients / n, "uniform").pvalue > ACCEPT


@pytest.mark.parametrize("minibatch", [1, 7, 80, 171])
def test_rounds_of_a_sliding_window_are_consecutive_slots(monkeypatch, minibatch):
    monkeypatch.setattr(draws, "MIN_BLOCK", 16)
    protocol = SlidingWindow(num_clients=200, window=30, num_epochs=2, minibatch=minibatch)
    schedule = schedule_of(protocol)
    assert protocol.slots_shown == 171
    draw = schedule.draw(9)
    rounds = [draw(t) for t in range(schedule.num_rounds)]
    whole = np.concatenate(rounds)
    at_once = schedule_of(dataclasses.replace(protocol, minibatch=171)).draw(9)
    np.testing.assert_array_equal(whole, np.concatenate([at_once(t) for t in (0, 1)]))
    for one in whole.reshape(2, 171):
        clients = one[one >= 0]
        assert len(set(clients.tolist())) == len(clients)
        slot = 29 + np.flatnonzero(one >= 0)
        assert np.all((clients <= slot) & (slot < clients + 30))
    # Rounds in any order are the same rounds.
    again = schedule.draw(9)
    for t in reversed(range(schedule.num_rounds)):
        np.testing.assert_array_equal(again(t), rounds[t])


def test_slots_accumulate_and_the_last_round_of_a_window_takes_the_rest():
    protocol = FixedWindow(num_clients=30, num_slots=10, num_epochs=3, minibatch=4)
    schedule = schedule_of(protocol)
    assert (schedule.rounds_per_unit, schedule.num_rounds) == (3, 9)
    draw = schedule.draw(1)
    rounds = [draw(t) for t in range(9)]
    assert [len(r) for r in rounds] == [4, 4, 2] * 3
    assert schedule.divisor(2) == 4.0  # also of the two that are left
    np.testing.assert_array_equal(np.concatenate(rounds[3:6]), draws.fixed_window(1, protocol, 1))
    # A window counts as a whole as soon as its first slot is used.
    assert [schedule.so_far(rounds).num_units for rounds in range(1, 10)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_visible_empty_slots_are_left_out_and_hidden_ones_are_not():
    common = {"num_clients": 5, "num_slots": 40, "minibatch": 40}
    seen = schedule_of(FixedWindow(**common, empty_slots="visible")).draw(1)(0)
    hidden = schedule_of(FixedWindow(**common)).draw(1)(0)
    np.testing.assert_array_equal(seen, hidden[hidden >= 0])
    assert len(seen) <= 5
    assert len(hidden) == 40


def test_divisors_are_public():
    assert schedule_of(ShuffledCheckIn(num_clients=100, check_in_prob=0.2)).divisor(7) == 20.0
    assert schedule_of(Shuffle(num_clients=100)).divisor(100) == 100.0
    assert schedule_of(AveragedUpdates(num_clients=100, num_slots=9)).divisor(11) == 11.0
    visible = FixedWindow(num_clients=5, num_slots=40, empty_slots="visible", minibatch=8)
    assert schedule_of(visible).divisor(2) == 8.0


def test_shuffling_uses_everybody_every_round():
    draw = schedule_of(Shuffle(num_clients=20, num_rounds=2)).draw(1)
    for t in (0, 1):
        assert sorted(draw(t)) == list(range(20))


def test_clients_may_hold_several_records():
    held = draws.client_records(1, 20, 100, each=5)
    assert held.shape == (20, 5)
    np.testing.assert_array_equal(np.sort(held.ravel()), np.arange(100))
    shared = draws.client_records(1, 2_000, 100, each=5)
    assert shared.shape == (2_000, 5)
    assert stats.chisquare(np.bincount(shared.ravel(), minlength=100)).pvalue > ACCEPT


def test_jax_privacys_batches_want_jax_privacy(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_privacy", None)
    schedules._kind.cache_clear()
    with pytest.raises(ImportError, match=r"\.\[jax-privacy\]"):
        schedules.batch_selection(Shuffle(num_clients=5))
