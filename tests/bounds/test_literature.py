"""Values that others have published beside our brackets: which cannot be true, and none valid far below ours."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._rounding import up
from checkin_jax.accounting.compare import PublishedValue, tables

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")


ROWS = re.findall(
    r"^\| `([\w-]+)` \| [^|]+ \| (\d+) \| ([\d.]+)(?: to ([\d.]+))? \| (\d) \|$", PAGE, re.MULTILINE
)
# The grid of figure 3, and the weights of the clones of figure 4.
CONTRADICTED = {
    "koskela-figure-4": [0.6515625],
    "koskela-figure-3": [0.005113124847, 0.015872001648, 0.051221966743],
}


def test_the_page_has_every_table():
    assert [row[0] for row in ROWS] == list(tables())


@pytest.mark.turns(8)
@pytest.mark.parametrize(("name", "number", "least", "most", "contradicted"), ROWS)
def test_the_page_shows_what_is_computed(name, number, least, most, contradicted):
    """Contradicted are those that the page argues; no other upper end is below ours by more than 2%."""
    values = cj.literature(name)
    broken = [value for value in values if value.verdict == "contradicted"]
    assert [value.published for value in broken] == pytest.approx(CONTRADICTED.get(name, []))
    bounds = {value.bound for value in broken}
    for value in values:
        if value.direction == "lower":
            assert value.published <= value.epsilon, value
        elif value.bound not in bounds:
            assert value.published >= 0.98 * value.epsilon, value
    ratios = [value.published / value.epsilon for value in values if value.direction == "upper"]
    assert int(number) == len(values)
    assert float(least) == pytest.approx(min(ratios), abs=2e-3)
    assert float(most or least) == pytest.approx(max(ratios), rel=2e-3)
    assert int(contradicted) == len(broken)


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
    assert tables()["clones-2021"]["artefact"] in printed
    values = cj.literature("clones-2021")
    assert all(up(value.epsilon, 5) in printed and value.verdict in printed for value in values)
    assert pq.read_table(out).column("epsilon").to_pylist() == [value.epsilon for value in values]
    cli.main(["bench", "clones-2021", "--json"])
    assert [row["verdict"] for row in json.loads(capsys.readouterr().out)] == ["looser", "looser"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["clones"], "checkin: clones: expected one of clones-2021, "),
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
