"""The page with sliders and the notebook: what they show is what the accountant certifies, or safer."""

import contextlib
import functools
import html
import importlib.util
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import checkin_jax as cj

ROOT = Path(__file__).parents[2]
PAGE, NOTEBOOK = ROOT / "docs" / "explore.html", ROOT / "docs" / "my_fleet.ipynb"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RANDOMIZERS = {"epsilon0": cj.PureLDP, "noise_multiplier": cj.Gaussian}


@functools.cache
def program():
    spec = importlib.util.spec_from_file_location("explorer", ROOT / "accountants" / "explorer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables():
    found = re.search(r"const TABLES = (\{.*?\}), VIEWS", PAGE.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


def accounted(given, view):
    (name,) = RANDOMIZERS.keys() & given.keys()
    run = cj.ShuffledCheckIn(
        num_clients=int(given.get("num_clients", 1e4)),
        check_in_prob=given["check_in_prob"],
        num_rounds=int(given["num_rounds"]),
    )
    message = RANDOMIZERS[name](**{name: given[name]})
    return cj.account(run, message, delta=given["delta"], view=view, bounds="fast")


def test_the_page_is_what_the_program_makes_of_its_table():
    (version,) = re.findall(r"upper end of checkin-jax ([\d.]+),", PAGE.read_text())
    assert program().build(tables(), version) == PAGE.read_text()
    for name, table in tables().items():
        sizes = [len(values) for _, values in table["axes"]]
        assert len(table["epsilon"]) == functools.reduce(int.__mul__, sizes), name
    assert not re.search(r"https?://|src=|@import", PAGE.read_text())
    assert PAGE.stat().st_size < 100_000


@pytest.mark.parametrize("index", [0, -1, 17])
def test_numbers_of_the_table_are_the_accountants_rounded_up(index):
    for name, table in tables().items():
        place, given = index % len(table["epsilon"]), {}
        number = table["epsilon"][place]
        for axis, values in reversed(table["axes"]):
            place, i = divmod(place, len(values))
            given[axis] = values[i]
        g = accounted(given, name.partition("/")[2])
        # The programs of a sweep are others than those of `account`: their sums differ in the last bits.
        assert g.epsilon * (1 - 1e-7) <= number <= g.epsilon * (1 + 1.1e-4), (name, given)


def test_small_tables_are_in_the_order_of_their_axes():
    axes = {"num_clients": [300.0], "check_in_prob": [0.1, 0.5], "num_rounds": [1], "delta": [1e-5]}
    found = program().tables(axes, {"epsilon0": [0.5, 1.0]})
    for (p, e), epsilon in zip(
        [(p, e) for p in (0.1, 0.5) for e in (0.5, 1.0)], found["epsilon0/messages"]["epsilon"]
    ):
        given = {"num_clients": 300, "check_in_prob": p, "num_rounds": 1, "delta": 1e-5, "epsilon0": e}
        assert accounted(given, "messages").epsilon * (1 - 1e-7) <= epsilon
    assert [name for name, _ in found["epsilon0/local"]["axes"]] == [
        "check_in_prob",
        "num_rounds",
        "delta",
        "epsilon0",
    ]


def shown(address, tmp_path):
    """The page at an address, as its script has made it."""
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    )
    options += (
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        f"--user-data-dir={tmp_path}",
    )
    done = subprocess.run(
        [str(CHROMIUM), *options, "--dump-dom", address],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return html.unescape(done.stdout)


browser = pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor google-chrome is installed")


@browser
@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_the_page_opens_on_a_point_of_its_table(kind, tmp_path):
    text = shown(f"{PAGE.as_uri()}#kind={kind}", tmp_path)
    view = program().VIEWS[kind]
    (line,) = re.findall(r'<pre id="command">checkin epsilon (.*?) --view (.*?)</pre>', text, re.DOTALL)
    assert line[1] == view
    given = {name.replace("-", "_"): float(value) for name, value in re.findall(r"--(\S+) (\S+)", line[0])}
    table = tables()[f"{kind}/{view}"]
    place = 0
    for axis, values in table["axes"]:
        place = place * len(values) + values.index(given.pop(axis))
    assert not given
    assert f'id="answer" data-epsilon="{table["epsilon"][place]}"' in text


@browser
@pytest.mark.parametrize(
    "given",
    [
        {"num_clients": 250_000, "check_in_prob": 0.01, "num_rounds": 60, "epsilon0": 1.5, "delta": 2e-6},
        {
            "num_clients": 20_000,
            "check_in_prob": 0.1,
            "num_rounds": 900,
            "noise_multiplier": 0.65,
            "delta": 1e-6,
        },
        {"num_clients": 9_999, "check_in_prob": 0.1, "num_rounds": 1, "epsilon0": 1.0, "delta": 1e-6},
        {"num_clients": 20_000, "check_in_prob": 0.05, "num_rounds": 1, "epsilon0": 1.0, "delta": 1e-6},
    ],
)
def test_between_points_the_page_shows_no_less_than_is_certified(given, tmp_path):
    (kind,) = RANDOMIZERS.keys() & given.keys()
    asked = "&".join(f"{name}={value!r}" for name, value in {"kind": kind, **given}.items()).replace("'", "")
    text = shown(f"{PAGE.as_uri()}#{asked}", tmp_path)
    found = re.search(r'id="answer" data-epsilon="([^"]*)">([^<]*)<', text)
    assert found
    if given["num_clients"] < 10_000 or given["check_in_prob"] == 0.05:
        assert found.groups() == ("null", "not in the table")
        return
    view = program().VIEWS[kind]
    assert float(found[1]) >= accounted(given, view).epsilon
    assert found[2] == f"epsilon at most {found[1]}"


def alike(one, other):
    """The same words, and numbers that differ in their last digits at most."""
    number = r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?"
    assert re.sub(number, "#", one) == re.sub(number, "#", other)
    for x, y in zip(re.findall(number, one), re.findall(number, other)):
        assert float(x.replace(",", "")) == pytest.approx(float(y.replace(",", "")), rel=2e-4)


def test_the_notebook_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown"
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        *lines, last = "".join(cell["source"]).splitlines()
        printed, shown = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            if last.isidentifier() or last.startswith("ledger.guarantee("):
                exec("\n".join(lines), names)
                shown = eval(last, names)
            else:
                exec("\n".join([*lines, last]), names)
        kept = "".join("".join(each["text"]) for each in cell["outputs"] if each["output_type"] == "stream")
        alike(printed.getvalue(), kept)
        results = [each["data"] for each in cell["outputs"] if each["output_type"] == "execute_result"]
        assert len(results) == (shown is not None)
        for data in results:
            alike("".join(data["text/html"]), shown._repr_html_())
    assert (
        cj.CheckInAccountant().load_state_dict(json.loads((tmp_path / "my_fleet.json").read_text())) is None
    )
