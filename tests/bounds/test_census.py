"""Brackets of settings that nobody chose: a small census with a seed from the clock, and what it is made of."""

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import census
from benchmarks.drawn_settings import PROTOCOLS, RANDOMIZERS, answer, draw, protocol_of, randomizer_of, timed

SETTINGS = 20
# Of one setting; a first answer of its kind compiles.
CPU_SECONDS = 20.0
# Upper over lower end by kind of randomizer, of settings with both ends and an upper end from LEAST to MOST nats (small
# fleets of which limits alone are known reach 8); and
# where slots use one client each, of which bounds on clients removed, or of unequal rates, do not count the others.
LARGEST_TODAY = {
    "PureLDP": 12.0,
    "KaryResponse": 12.0,
    "OneBit": 12.0,
    "L2Mechanism": 12.0,
    "Rappor": 12.0,
    "HadamardResponse": 12.0,
    "Laplace": 12.0,
    "ApproximateLDP": math.inf,
    "KnownProfile": math.inf,
    "Gaussian": 100.0,
    "FiniteMechanism": 12.0,
}
LARGEST_IN_WINDOWS = 1000.0
LARGEST_WANTED = dict.fromkeys(LARGEST_TODAY, 2.5)
# Of all settings: without a lower end above zero, without a finite upper end or an answer in time.
SHARES_TODAY = {census.NO_LOWER: 0.25, census.NO_UPPER: 0.25, census.LONG: 0.25, census.REFUSED: 0.25}
SHARES_WANTED = dict.fromkeys(SHARES_TODAY, 0.0)


def stronger(setting):
    """The same run where more is seen; None in the view of which no other sees more, or where it has no bounds."""
    if setting.get("relation"):
        return None
    above = {"aggregate": "messages", "messages": "local"}.get(setting["view"])
    return above and {**setting, "view": above}


def faults(each, setting):
    """What is wrong with one line of a census, in words."""
    found = []
    if each.outcome in (census.LONG, census.REFUSED):
        return found
    if not 0 <= each.lower <= each.upper:
        found.append("no bracket")
    if each.outcome == census.BRACKET and census.LEAST <= each.upper <= census.MOST:
        most = LARGEST_TODAY[each.randomizer]
        if not each.ratio <= (max(most, LARGEST_IN_WINDOWS) if "window" in each.protocol else most):
            found.append(f"a ratio of {each.ratio}")
        more = stronger(setting)
        if more is not None and not each.lower <= answer(more).epsilon * (1 + 1e-9):
            found.append("more is attained than may leak where more is seen")
    return found


@pytest.mark.thorough
def test_brackets_of_settings_that_nobody_chose():
    seed = time.time_ns() % 2**32
    found = [census.measured(seed, number, CPU_SECONDS) for number in range(SETTINGS)]
    wrong = [(each, told) for each in found if (told := faults(each, census.drawn(seed, each.number)[2]))]
    assert not wrong, f"seed {seed}: {wrong}"
    for word, most in SHARES_TODAY.items():
        share = sum(each.outcome == word for each in found) / SETTINGS
        assert share <= most, f"seed {seed}: {word}: {share}"


def test_maxima_are_of_every_kind_and_what_is_wanted_is_no_more():
    assert set(RANDOMIZERS) <= set(LARGEST_TODAY)
    assert all(LARGEST_WANTED[name] <= LARGEST_TODAY[name] for name in LARGEST_TODAY)
    assert all(SHARES_WANTED[name] <= SHARES_TODAY[name] for name in SHARES_TODAY)


def line(lower, upper, **more):
    known = census.Found(
        0, "shuffle", "OneBit", "local", "", lower, upper, 0.1, census.outcome_of(lower, upper), "", ""
    )
    return known._replace(**more)


@pytest.mark.parametrize(
    ("each", "count"),
    [
        (line(1.0, 1.1), 0),
        (line(1.1, 1.0), 1),
        (line(0.01, 1.0), 1),
        (line(0.01, 1.0, randomizer="ApproximateLDP"), 0),
        (line(0.01, 1.0, protocol="sliding window"), 0),
        (line(math.nan, math.nan), 1),
        (line(math.nan, math.nan, outcome=census.LONG), 0),
        # More than a message by itself can leak.
        (line(3.0, 3.3, view="messages"), 1),
    ],
)
def test_wrong_lines_are_seen(each, count):
    setting = {
        "protocol": ["Shuffle", {"num_clients": 100, "num_rounds": 1}],
        "randomizer": ["OneBit", {"epsilon0": 1.0}],
        "delta": 1e-6,
        "view": each.view,
    }
    assert len(faults(each, setting)) == count


def test_a_setting_is_the_same_however_many_are_drawn_and_json_holds_it():
    assert census.drawn(3, 7) == census.drawn(3, 7) != census.drawn(4, 7)
    assert sum(census.SHARES) == pytest.approx(1.0)
    assert len(census.SHARES) == len(PROTOCOLS)


@pytest.mark.parametrize("randomizer", RANDOMIZERS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_drawn_can_be_built(protocol, randomizer):
    generator = np.random.default_rng(7)
    for _ in range(20):
        setting = draw(generator, protocol, randomizer)
        assert 1e-12 <= setting["delta"] <= 1e-4
        assert dataclasses.is_dataclass(protocol_of(setting["protocol"]))
        assert dataclasses.is_dataclass(randomizer_of(setting["randomizer"]))


def spin(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return "done"


def test_what_takes_too_long_is_stopped_and_the_rest_is_not():
    assert timed(lambda: spin(0.02), 5.0)[0] == "done"
    with pytest.raises(TimeoutError, match=r"more than 0\.05 CPU seconds"):
        timed(lambda: spin(5.0), 0.05)


def test_a_census_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    asked = []

    def measured(seed, number, cpu_seconds):
        asked.append(number)
        return line(
            1.0, 1.0 + number, number=number, setting=census.json.dumps(census.drawn(seed, number)[2])
        )

    monkeypatch.setattr(census, "measured", measured)
    table, picture = tmp_path / "census.csv", tmp_path / "census.svg"

    def run(settings, seed="1"):
        words = ["census.py", "--seed", seed, "--settings", settings, "--out", str(table)]
        monkeypatch.setattr("sys.argv", [*words, "--picture", str(picture)])
        census.main()

    run("3")
    run("5")
    assert asked == [0, 1, 2, 3, 4]
    assert [each.upper for each in census.read(table)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert "shuffle" in picture.read_text()
    with pytest.raises(SystemExit):
        run("5", seed="2")
    assert "expected a table of seed 2" in capsys.readouterr().err
    (tmp_path / "other.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="expected the columns number, protocol"):
        census.read(tmp_path / "other.csv")


def test_the_page_shows_the_figures_of_the_table_that_is_kept():
    docs = Path(__file__).parents[2] / "docs"
    found = census.read(docs / "pictures" / "census.csv")
    ratios = sorted(each.ratio for each in found if each.outcome == census.BRACKET)
    page = " ".join((docs / "guarantees.md").read_text().split())
    half, ninth = (ratios[math.ceil(share * len(ratios)) - 1] for share in (0.5, 0.9))
    missing = sum(each.outcome == census.NO_LOWER for each in found)
    assert f"Of {len(found)} settings" in page
    assert f"median {half:.4g}, ninth decile {ninth:.4g}, largest {ratios[-1]:.4g}" in page
    assert f"{missing} {'has' if missing == 1 else 'have'} no lower end" in page
