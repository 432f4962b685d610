"""400 answers kept from before: no end widens unlisted, and old and new brackets share a value.

Both are brackets of one number, so that an end on the wrong side of the other's opposite end is false in one of them.
`tests/golden/widened.json` lists what may widen, by the row's name: the factor, at most, and the reason. A fifth of the
rows is checked each day; `make test-exhaustive` checks all.
"""

import json
import math
from pathlib import Path

import pytest

from benchmarks.frozen_brackets import bracket

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = json.loads((GOLDEN / "brackets.json").read_text())["rows"]
WIDENED = json.loads((GOLDEN / "widened.json").read_text())
# No end widens by more, if it is not listed.
FACTOR = 1.02
# Ends of brackets are rounded outwards; so much may rounding move the opposite ends beyond each other.
ROUNDING = 1e-9
# Rows take turns by the day; of today's quick ones `make test` checks so many.
DAYS, SAMPLE = 5, 20


def name_of(number, row):
    setting = row["setting"]
    kinds = [setting[part][0] for part in ("protocol", "randomizer") if part in setting]
    return "-".join([f"{number:03d}", setting.get("asked", "account"), *kinds])


NAMED = {name_of(number, row): row for number, row in enumerate(ROWS)}
IN_ORDER = sorted(NAMED, key=lambda name: NAMED[name]["seconds"])
QUICK, LONGER = IN_ORDER[: len(IN_ORDER) // 2], IN_ORDER[len(IN_ORDER) // 2 :]


def infinite(end):
    return math.inf if end is None else end


def faults(row, lower, upper, widest=FACTOR):
    """What is wrong with a new bracket of this row, in words."""
    old_lower, old_upper = row["lower"], infinite(row["upper"])
    found = []
    if not upper * (1 + ROUNDING) >= old_lower:
        found.append(f"upper end {upper!r} below the frozen lower end {old_lower!r}")
    if not lower <= old_upper * (1 + ROUNDING):
        found.append(f"lower end {lower!r} above the frozen upper end {old_upper!r}")
    if not upper <= old_upper * widest:
        found.append(f"upper end {upper!r} above {widest} times the frozen {old_upper!r}")
    if not lower >= old_lower / widest:
        found.append(f"lower end {lower!r} below the frozen {old_lower!r} over {widest}")
    return found


def check(name):
    row = NAMED[name]
    lower, upper, _ = bracket(row["setting"])
    listed = WIDENED.get(name)
    assert faults(row, lower, upper, listed["factor"] if listed else FACTOR) == [], row
    assert not listed or faults(row, lower, upper), f"{name} is listed in widened.json and does not widen"


@pytest.mark.turns(DAYS)
@pytest.mark.thorough(but=SAMPLE)
@pytest.mark.parametrize("name", QUICK)
def test_quick_bracket_has_not_widened(name):
    check(name)


@pytest.mark.turns(DAYS)
@pytest.mark.thorough
@pytest.mark.parametrize("name", LONGER)
def test_longer_bracket_has_not_widened(name):
    check(name)


def test_the_list_says_which_rows_may_widen_by_how_much_and_why():
    assert set(WIDENED) <= set(NAMED)
    assert all(each["factor"] > FACTOR and each["reason"] for each in WIDENED.values())


def test_rows_are_400_of_all_kinds():
    assert len(NAMED) == 400
    kinds = [name.split("-")[1:] for name in NAMED]
    assert len({kind[1] for kind in kinds if kind[0] == "account"}) == 6
    assert len({kind[2] for kind in kinds if kind[0] == "account"}) == 10
    assert {kind[0] for kind in kinds} >= {"account", "rdp", "epsilon_by_rdp", "published.shuffle"}


@pytest.mark.parametrize(
    ("lower", "upper", "count"),
    [
        (1.0, 2.0, 0),
        (0.99, 2.03, 0),
        (1.0, 2.05, 1),
        (0.97, 2.0, 1),
        (0.5, 0.9, 2),
        (2.1, 2.2, 2),
        (math.nan, math.nan, 4),
        (1.0, math.inf, 1),
    ],
)
def test_false_brackets_are_seen(lower, upper, count):
    assert len(faults({"lower": 1.0, "upper": 2.0}, lower, upper)) == count


def test_no_finite_end_before_is_none_that_can_widen():
    assert faults({"lower": 1.0, "upper": None}, 1.0, math.inf) == []
