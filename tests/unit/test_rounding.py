"""Figures in text stay true: upper ends are cut upwards, lower ends downwards."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkin_jax as cj
from checkin_jax._rounding import down, up


@given(st.floats(0.0, 1e300), st.integers(1, 17))
def test_cut_on_the_side_that_stays_true_and_by_less_than_a_digit(value, digits):
    assert float(down(value, digits)) <= value <= float(up(value, digits))
    assert float(up(value, digits)) - float(down(value, digits)) <= 10.0 ** (2 - digits) * value + 1e-322


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (1.4432421, "1.44324", "1.44325"),
        (0.1, "0.1", "0.1"),
        (0.0, "0", "0"),
        (math.inf, "inf", "inf"),
        (99999.96, "99999.9", "100000"),
    ],
)
def test_known_figures(value, low, high):
    assert (down(value), up(value)) == (low, high)


def test_a_printed_guarantee_promises_no_more_than_was_proven():
    run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
    for delta in (1e-6, 1.2345e-6):
        g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=delta)
        head, bracket = str(g).splitlines()[0], next(x for x in str(g).splitlines() if "bracket" in x)
        epsilon, stated = (float(part) for part in head[1 : head.index(")")].split(", "))
        low, high = (
            float(part) for part in bracket.split(" at ")[0].replace("bracket", "").split("<= epsilon <=")
        )
        assert epsilon == high >= g.epsilon
        assert low <= g.lower
        assert stated == delta
