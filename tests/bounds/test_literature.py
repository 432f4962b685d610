"""Values that others have published beside our brackets: which cannot be true, and none valid far below ours."""

import collections
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._rounding import up
from checkin_jax.accounting.published_values import PublishedValue, tables

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def values():
    return cj.literature()


def test_contradicted_are_those_that_the_page_argues(values):
    """The grid of figure 3, and the weights of the clones of figure 4."""
    found = [(value.table, value.published) for value in values if value.verdict == "contradicted"]
    assert found == [
        ("koskela-figure-4", pytest.approx(0.6515625)),
        ("koskela-figure-3", pytest.approx(0.005113124847)),
        ("koskela-figure-3", pytest.approx(0.015872001648)),
        ("koskela-figure-3", pytest.approx(0.051221966743)),
    ]


def test_no_valid_upper_end_is_below_ours_by_more_than_two_percent(values):
    broken = {(value.table, value.bound) for value in values if value.verdict == "contradicted"}
    for value in values:
        if value.direction == "upper" and (value.table, value.bound) not in broken:
            assert value.published >= 0.98 * value.epsilon, value


def test_lower_ends_of_others_are_below_our_upper_ends(values):
    lower = [value for value in values if value.direction == "lower"]
    assert lower
    assert all(value.published <= value.epsilon for value in lower)


def test_the_page_shows_what_is_computed(values):
    found = collections.defaultdict(list)
    for value in values:
        found[value.table].append(value)
    rows = re.findall(
        r"^\| `([\w-]+)` \| [^|]+ \| (\d+) \| ([\d.]+)(?: to ([\d.]+))? \| (\d) \|$", PAGE, re.MULTILINE
    )
    assert [row[0] for row in rows] == list(tables()) == list(found)
    for name, number, least, most, contradicted in rows:
        ratios = [value.published / value.epsilon for value in found[name] if value.direction == "upper"]
        assert int(number) == len(found[name]), name
        assert float(least) == pytest.approx(min(ratios), abs=2e-3), name
        assert float(most or least) == pytest.approx(max(ratios), rel=2e-3), name
        assert int(contradicted) == sum(value.verdict == "contradicted" for value in found[name]), name


@pytest.mark.parametrize(
    ("direction", "published", "verdict"),
    [
        ("upper", 0.9, "contradicted"),
        ("upper", 1.1, "sharper"),
        ("upper", 1.3, "looser"),
        ("lower", 1.3, "contradicted"),
        ("lower", 1.1, "sharper"),
        ("lower", 0.9, "looser"),
    ],
)
def test_verdicts(direction, published, verdict):
    value = PublishedValue(
        table="t",
        setting="s",
        delta=1e-6,
        bound="b",
        direction=direction,
        published=published,
        lower=1.0,
        epsilon=1.2,
    )
    assert value.verdict == verdict


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="table='koskela': expected one of clones-2021, koskela-figure-4"):
        cj.literature("koskela")


def test_the_command_prints_and_writes_a_table_with_its_source(capsys, tmp_path):
    out = tmp_path / "rows.parquet"
    cli.main(["bench", "clones-2021", "--out", str(out)])
    printed = capsys.readouterr().out
    assert tables()["clones-2021"].artefact in printed
    values = cj.literature("clones-2021")
    assert all(up(value.epsilon, 5) in printed and value.verdict in printed for value in values)
    assert pq.read_table(out).column("epsilon").to_pylist() == [value.epsilon for value in values]
    cli.main(["bench", "clones-2021", "--json"])
    assert [row["verdict"] for row in json.loads(capsys.readouterr().out)] == ["looser", "looser"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["clones"], "--table clones: expected one of clones-2021, "),
        (["clones-2021", "--out", "rows.txt"], "--out rows.txt: expected a name ending in .csv or .parquet"),
        (
            ["clones-2021", "--out", "nowhere/rows.csv"],
            "--out nowhere/rows.csv: expected a file in an existing folder",
        ),
    ],
)
def test_the_command_refuses_before_any_work(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
