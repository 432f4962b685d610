"""Kept figures of the whole API, of each bound on one unit, and of kernels: none moves, in either direction.

A refactoring moves no figure. What changes one on purpose writes the table anew (`benchmarks/frozen_figures.py`), so
that a change shows which figures it moved, and by how much.
"""

import copy
import json
import math

import pytest

from benchmarks import frozen_figures
from checkin_jax.accounting.bounds import table

ROWS = json.loads(frozen_figures.TABLE.read_text(encoding="utf-8"))
NAMED = {frozen_figures.name_of(number, row): row for number, row in enumerate(ROWS)}
# Single bounds first: who asks which test executes a kernel (`benchmarks/mutants.py`) is told the one that compiled it.
IN_ORDER = sorted(NAMED, key=lambda name: ("-account-" in name, NAMED[name]["seconds"]))
# Rows that take less are checked every time, about a minute in all; those that take more take turns.
QUICK_SECONDS = 0.35


def check(name):
    row = NAMED[name]
    found = frozen_figures.ends(row["setting"])
    assert not frozen_figures.moved(row, found), (found, row)


@pytest.mark.parametrize("name", [name for name in IN_ORDER if NAMED[name]["seconds"] < QUICK_SECONDS])
def test_figures_have_not_moved(name):
    check(name)


@pytest.mark.thorough
@pytest.mark.turns(3)
@pytest.mark.parametrize("name", [name for name in IN_ORDER if NAMED[name]["seconds"] >= QUICK_SECONDS])
def test_slower_figures_have_not_moved(name):
    check(name)


def test_rows_are_of_every_bound_and_kind():
    settings = [row["setting"] for row in ROWS]
    asked = {setting.get("asked", "account") for setting in settings}
    assert asked >= {"account", "bound", "witnesses", "rdp", "epsilon_by_rdp", "accounting.published.shuffle"}
    bounds = {setting["bound"] for setting in settings if setting.get("asked") == "bound"}
    assert bounds == {frozen_figures.label_of(bound) for bound in table.BOUNDS}
    answers = [setting for setting in settings if setting.get("asked", "account") == "account"]
    asked_for = [setting["bounds"] for setting in answers if "bounds" in setting]
    assert {tuple(each) for each in asked_for if each != "fast"} == {(word,) for word in table.WORDS}
    assert len({setting["protocol"][0] for setting in answers}) == 6
    assert len({setting["randomizer"][0] for setting in answers}) == 10


def test_nine_of_ten_rows_are_compared_to_seven_digits():
    allowed = sorted(frozen_figures.SPREADS * row["spread"] for row in ROWS)
    assert allowed[len(ROWS) * 9 // 10] <= frozen_figures.RELATIVE
    assert allowed[-1] < 0.1


def row(spread=0.0, **ends):
    return {"setting": {}, "spread": spread, **ends}


@pytest.mark.parametrize(
    ("found", "far"),
    [
        ({"lower": [1.0], "upper": [2.0, 0.0]}, 0.0),
        ({"lower": [1.0 + 1e-12], "upper": [2.0, 0.0]}, 0.0),
        ({"lower": [1.0], "upper": [1.9, 0.0]}, 0.05),
        ({"lower": [1.1], "upper": [2.0, 0.0]}, 0.1),
        ({"lower": [1.0], "upper": [math.inf, 0.0]}, math.inf),
        ({"lower": [1.0], "upper": [2.0, 1e-300]}, math.inf),
        ({"lower": [math.nan], "upper": [2.0, 0.0]}, math.inf),
        ({"lower": [1.0], "upper": [2.0]}, math.inf),
        ({"upper": [2.0, 0.0]}, math.inf),
    ],
)
def test_moves_are_seen_in_both_directions(found, far):
    assert frozen_figures.moved(row(lower=[1.0], upper=[2.0, 0.0]), found) == pytest.approx(far)


def test_infinite_ends_do_not_move():
    assert frozen_figures.moved(row(upper=[None]), {"upper": [math.inf]}) == 0.0
    assert frozen_figures.moved(row(upper=[None]), {"upper": [1.0]}) == math.inf


def test_an_infinite_lower_end_is_told_from_a_finite_one():
    kept, same = row(lower=[None], upper=[None]), {"lower": [math.inf], "upper": [math.inf]}
    assert not frozen_figures.is_false(kept, same)
    assert not frozen_figures.widened(kept, same)
    assert frozen_figures.is_false(kept, {"lower": [1.0], "upper": [2.0]})
    assert frozen_figures.widened(kept, {"lower": [1.0], "upper": [math.inf]})


def test_what_is_not_reproducible_moves_by_more_than_thirty_times_its_spread():
    kept = row(spread=1e-4, upper=[1.0])
    assert frozen_figures.moved(kept, {"upper": [1.0029]}) == 0.0
    assert frozen_figures.moved(kept, {"upper": [1.0031]}) > 0.0


@pytest.mark.parametrize(
    ("lower", "upper", "false", "wider"),
    [
        (1.0, 2.0, False, False),
        (0.99, 2.03, False, False),
        (1.0, 2.05, False, True),
        (0.97, 2.0, False, True),
        (0.5, 0.9, True, True),
        (2.1, 2.2, True, True),
        (math.nan, math.nan, True, True),
        (1.0, math.inf, False, True),
    ],
)
def test_false_and_wider_brackets_are_told(lower, upper, false, wider):
    kept, found = row(lower=[1.0], upper=[2.0]), {"lower": [lower], "upper": [upper]}
    assert (frozen_figures.is_false(kept, found), frozen_figures.widened(kept, found)) == (false, wider)


def test_nothing_is_written_where_a_figure_is_false_or_wider_without_a_reason(monkeypatch, capsys):
    kept = [{"setting": {}, "upper": [1.0], "spread": 0.0, "seconds": 0.0}]
    wide = {"upper": [1.03]}
    monkeypatch.setattr(frozen_figures, "ends", lambda setting: wide)
    monkeypatch.setattr(frozen_figures, "with_oldest_instructions", lambda settings: [wide] * len(settings))
    with pytest.raises(SystemExit, match="wider by more than 2%, without a reason"):
        frozen_figures.updated(copy.deepcopy(kept), "")
    assert frozen_figures.updated(copy.deepcopy(kept), "a reason")[0]["upper"] == [1.03]
    monkeypatch.setattr(frozen_figures, "ends", lambda setting: {"upper": [0.9]})
    assert frozen_figures.updated(copy.deepcopy(kept), "")[0]["upper"] == [0.9]
    assert "000-account: 0.1" in capsys.readouterr().out
