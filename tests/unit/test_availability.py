"""Logs of availability: groups on the safe side, refusals that name the row, one bracket for thousands of rounds."""

import time

import numpy as np
import pytest

from checkin_jax.accounting import availability
from checkin_jax.accounting.bounds.clones import ShuffledPureLDP
from checkin_jax.accounting.composition import composer


def diurnal(rounds):
    """Between 5,000 and 60,000, once a day of 24 rounds."""
    day = np.cos(2 * np.pi * np.arange(rounds) / 24.37)
    return np.rint(32_500 - 27_500 * day)


def test_groups_keep_to_their_side_and_count_every_round():
    rng = np.random.default_rng(0)
    available, coin = rng.integers(1, 10**6, 3000), rng.uniform(0.05, 0.06, 3000)
    groups = availability.grouped(availability.log(available, coin), 1.05)
    assert sum(group.num_rounds for group in groups) == 3000
    assert all(group.most <= 1.05 * group.least * (1 + 1e-9) for group in groups)
    assert all(group.fastest <= 1.005 * group.slowest * (1 + 1e-9) for group in groups)
    assert min(group.least for group in groups) == available.min()
    for n, p in zip(available[:50].tolist(), coin[:50].tolist()):
        assert any(g.least <= n <= g.most and g.slowest <= p <= g.fastest for g in groups)


def test_a_hundred_thousand_rounds_are_grouped_in_a_moment():
    start = time.process_time()
    groups = availability.grouped(availability.log(diurnal(100_000), 0.1))
    assert time.process_time() - start < 2.0
    assert len(groups) < 120


def test_a_diurnal_log_is_far_below_its_trough():
    rounds = 6792
    groups = availability.grouped(availability.log(diurnal(rounds), 0.1))
    mass = composer.log_inverse_mass(rounds, 1e-6)

    def units(size, rate):
        return [
            (ShuffledPureLDP(getattr(g, size), getattr(g, rate), 2.0, mass), g.num_rounds) for g in groups
        ]

    upper = composer.upper_end(units("least", "fastest"), 1e-6).upper
    lower = composer.bracket(units("most", "slowest"), 1e-6).lower
    trough = composer.upper_end([(ShuffledPureLDP(5000, 0.1, 2.0, mass), rounds)], 1e-6).upper
    assert lower < upper < 1.1 * lower
    assert trough == pytest.approx(5.73, rel=5e-3)
    assert upper < 0.55 * trough


def test_a_file_is_read(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("coin, available\n0.1,5000\n0.2,7\n")
    assert availability.read(path).available.tolist() == [5000, 7]
    assert availability.read(path).coin.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 has the columns none: expected available"),
        ("available\n5\n", "expected coin"),
        ("available,coin\n", "expected one round"),
        ("available,coin\n5,0.1\n5\n", "line 3: '5': expected two numbers"),
        ("available,coin\n5,a\n", "line 2: '5,a': expected two numbers"),
        ("available,coin\n5,0.1\n5.5,0.1\n", "line 3: available=5.5"),
        ("available,coin\n0,0.1\n", "line 2: available=0.0"),
        ("available,coin\nnan,0.1\n", "line 2: available=nan"),
        ("available,coin\n5,nan\n", "line 2: coin=nan"),
        ("available,coin\n5,1.5\n", "line 2: coin=1.5"),
    ],
)
def test_a_file_that_is_no_log_is_refused_by_its_line(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        availability.read(path)


@pytest.mark.parametrize(
    ("available", "coin", "message"),
    [
        ([], 0.1, "expected one round"),
        ([5, -1], 0.1, "available, row 2: -1.0"),
        ([5, float("nan")], 0.1, "available, row 2: nan"),
        ([5], [0.1, 0.2], "coin=2 numbers: expected one for each of the 1 rounds"),
        ([5, 6], [0.1, 0.0], "coin, row 2: 0.0"),
        ([[5]], 0.1, "available of shape"),
    ],
)
def test_lists_that_are_no_log_are_refused_by_their_row(available, coin, message):
    with pytest.raises(ValueError, match=message):
        availability.log(available, coin)
