"""Figures in text stay true: upper ends are cut upwards, lower ends downwards."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkin_jax as cj
from checkin_jax import _rounding
from checkin_jax._rounding import down, up
from checkin_jax.accounting.guarantee import RateRow


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
        g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=delta, bounds="fast")
        head, bracket = str(g).splitlines()[0], next(x for x in str(g).splitlines() if "bracket" in x)
        epsilon, stated = (float(part) for part in head[1 : head.index(")")].split(", "))
        low, high = (
            float(part) for part in bracket.split(" at ")[0].replace("bracket", "").split("<= epsilon <=")
        )
        assert epsilon == high >= g.epsilon
        assert f"{g:.3}" == f"{down(g.lower, 3)} <= epsilon <= {up(g.epsilon, 3)}"
        assert f"{g}" == str(g)
        assert low <= g.lower
        assert stated == delta


def test_a_format_gives_both_ends_outwards():
    assert _rounding.bracket(1.35585, 1.36048, ".4") == "1.355 <= epsilon <= 1.361"
    assert _rounding.bracket(0.0, math.inf, ".2") == "0 <= epsilon <= inf"
    row = RateRow(0.1, 0.46724, 0.49767)
    assert f"{row:.2}" == "0.46 <= epsilon <= 0.5"
    assert f"{row}" == str(row)
    for wrong in (".3f", "5", ".0", ">30"):
        with pytest.raises(
            ValueError, match=re.escape(f"format '{wrong}': expected a number of significant")
        ):
            format(row, wrong)


def test_things_are_counted_in_their_number():
    assert [_rounding.counted(n, "round") for n in (0, 1, 2_000)] == ["0 rounds", "1 round", "2,000 rounds"]
    assert _rounding.counted(2, "pass", "passes") == "2 passes"
