"""The page about a run: complete, self-contained, and of runs that were killed too."""

import dataclasses
import datetime
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from stand_in import as_read, audited, quick_account

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._rounding import down, up
from checkin_jax.protocols import VIEWS
from checkin_jax.training.reports import recorded, run_page
from checkin_jax.training.run import PrivateRun

PROTOCOLS = [
    cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.1, num_rounds=40),
    cj.FixedWindow(num_clients=300, num_slots=40),
    cj.AveragedUpdates(num_clients=300, num_slots=20, num_epochs=2),
]


@pytest.fixture
def run_dir(tmp_path, request):
    """The folder of a run that was killed in its last round, as the trainer leaves it."""
    protocol = getattr(request, "param", PROTOCOLS[0])
    private = PrivateRun(protocol=protocol, randomizer=cj.PureLDP(epsilon0=1.0))
    folder = tmp_path / "run"
    folder.mkdir()
    about = {**private.as_dict(), "eval_every": 20, "seed": 7, "dataset": "<digits>", "jax": "0.0"}
    (folder / "config.json").write_text(json.dumps(about))
    rng = np.random.default_rng(0)
    number, rate = private.schedule.check_ins
    with (folder / "metrics.jsonl").open("w") as file:
        for index in range(1, private.schedule.num_rounds + 1):
            line = {"round": index, "check_ins": int(rng.binomial(number, rate))}
            if index % 20 == 0:
                line |= {"accuracy": index / 100, "epsilon": 1.0, "epsilon_lower": 0.5}
                line |= {"spent": dict.fromkeys(VIEWS, 1.0), "spent_lower": dict.fromkeys(VIEWS, 0.5)}
            file.write(json.dumps(line) + "\n")
        file.write('{"round": 41, "che')
    return folder


class Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids, self.text = [], [], set(), ""

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", "path", "use", "line", "image", "dc:type", "dc:format"):
            self.open.append(tag)
        self.ids |= {value for name, value in attrs if name == "id"}
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def check_links(self):
        """Every one leads to a place on the page itself."""
        assert all(link.startswith("#") and unquote(link[1:]) in self.ids for link in self.links)


@pytest.mark.parametrize("run_dir", PROTOCOLS, indirect=True, ids=lambda each: type(each).__name__)
def test_the_page_says_it_all_and_loads_nothing(run_dir):
    run = recorded.read(run_dir)
    text = run_page.build(run)
    parsed = Collector()
    parsed.feed(text)
    parsed.check_links()
    assert "url(http" not in text
    assert "@import" not in text
    for view in ("local", "messages", "aggregate"):
        g = cj.account(run.run.schedule.so_far(run.rounds), run.run.randomizer, delta=1e-6, view=view)
        assert up(g.epsilon, 4) in parsed.text
        assert down(g.lower, 4) in parsed.text
    assert "has not ended, or was killed" in parsed.text
    assert "<digits>" in parsed.text
    assert "<digits>" not in text
    assert f"{sum(line['check_ins'] for line in run.metrics):,} messages" in parsed.text
    # Accuracy, its cost, the cost of the rounds; and check-ins unless the protocol fixes them.
    fixed = isinstance(run.run.protocol, cj.FixedWindow)
    assert len(re.findall("<svg", text)) == (3 if fixed else 4)


@pytest.fixture
def drawn(monkeypatch):
    """Title -> figure, of the pages built in a test."""
    kept, drawn_for_page = {}, run_page.render.figure

    def figure(drawing, title, caption):
        kept[title] = drawing
        return drawn_for_page(drawing, title, caption)

    monkeypatch.setattr(run_page.render, "figure", figure)
    return kept


def test_rounds_are_whole_on_the_axes(run_dir, drawn):
    run = recorded.read(run_dir)
    few = [line for line in run.metrics if "accuracy" not in line or line["round"] == 40]
    run_page.build(dataclasses.replace(run, metrics=few), quick_account)
    axes = {title: drawing.axes[0] for title, drawing in drawn.items()}
    rounds = [axes["Accuracy over the rounds"].xaxis, axes["Check-ins"].yaxis]
    for ticks in rounds:
        low, high = ticks.get_view_interval()
        shown = [tick for tick in ticks.get_ticklocs() if low <= tick <= high]
        assert low == 0
        assert len(shown) > 1
        assert all(tick == round(tick) for tick in shown)


def test_a_damaged_folder_is_refused_with_the_file_named(run_dir):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        recorded.read(run_dir / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        recorded.read(run_dir.parent)
    good = (run_dir / "config.json").read_text()
    (run_dir / "config.json").write_text(good[:-20])
    with pytest.raises(ValueError, match=r"config\.json: damaged"):
        recorded.read(run_dir)
    (run_dir / "config.json").write_text(good.replace("ShuffledCheckIn", "Gossip"))
    with pytest.raises(ValueError, match="not a config of this version"):
        recorded.read(run_dir)
    (run_dir / "config.json").write_text(good.replace("{", '{"minibatch": 200, ', 1))
    with pytest.raises(ValueError, match="minibatch=200"):
        recorded.read(run_dir)
    (run_dir / "config.json").write_text(good)
    metrics = (run_dir / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text("{]\n" + metrics)
    with pytest.raises(ValueError, match=r"metrics\.jsonl: damaged"):
        recorded.read(run_dir)
    for line in (
        '{"round": 2, "check_ins": 1}',
        '{"round": 1}',
        "7",
        '{"round": 1, "check_ins": NaN}',
        "\udcff",
    ):
        (run_dir / "metrics.jsonl").write_bytes(f"{line}\n".encode(errors="surrogateescape"))
        with pytest.raises(ValueError, match=r"metrics\.jsonl: damaged"):
            recorded.read(run_dir)
    (run_dir / "metrics.jsonl").write_text(metrics)
    for report in (
        '{"rounds": 41, "accuracy": 0.5, "notes": []}',
        '{"rounds": 4, "accuracy": 0.5, "notes": [1]}',
    ):
        (run_dir / "report.json").write_text(report)
        with pytest.raises(ValueError, match=r"report\.json: damaged"):
            recorded.read(run_dir)
    (run_dir / "report.json").unlink()
    (run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="no round was logged"):
        run_page.build(recorded.read(run_dir))


def test_the_curves_show_what_the_run_recorded_and_nothing_is_accounted_for_again(run_dir, drawn):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()[:-1]]
    ends = {"spent": {"local": 9.0, "messages": 0.75, "aggregate": None}}
    ends["spent_lower"] = {"local": 8.0, "messages": 0.5, "aggregate": None}
    for line in lines[19::20]:
        line |= ends
    (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    asked = []

    def counted(protocol, *args, **how):
        asked.append(protocol)
        return quick_account(protocol, *args, **how)

    run = recorded.read(run_dir)
    run_page.build(run, counted)
    assert set(asked) == {run.run.schedule.so_far(40)}
    for title, x, y in (
        ("Accuracy against epsilon", [0.75, 0.75], [20, 40]),
        ("Epsilon over the rounds", [20, 40], [0.75, 0.75]),
    ):
        curves = {line.get_label(): line for line in drawn[title].axes[0].lines}
        assert curves["messages"].get_xdata().tolist() == x
        assert curves["messages"].get_ydata().tolist() == y
        assert curves["aggregate"].get_xdata().size == 0  # null is infinite
    for wrong in ({"spent": {"local": 1.0}}, {"spent_lower": {**ends["spent"], "local": -1}}, {"spent": 7}):
        lines[19] |= ends | wrong
        (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with pytest.raises(ValueError, match=r"metrics\.jsonl: damaged"):
            recorded.read(run_dir)


def test_an_accuracy_that_was_not_finite_is_left_out(run_dir, drawn):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()[:-1]]
    lines[19]["accuracy"] = None
    (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run_page.build(recorded.read(run_dir), quick_account)
    (curve,) = drawn["Accuracy over the rounds"].axes[0].lines
    assert curve.get_xdata().tolist() == [40]


def test_the_command_writes_the_page_beside_the_run(run_dir, capsys):
    from checkin_jax.cli import main

    main(["report", str(run_dir)])
    assert capsys.readouterr().out.strip() == str(run_dir / "report.html")
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    (run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run_dir)])
    assert stop.value.code == 2
    assert "no round was logged" in capsys.readouterr().err


def test_without_matplotlib_the_page_has_all_but_figures(run_dir, monkeypatch):
    made = datetime.date(2026, 11, 22)
    drawn = run_page.build(recorded.read(run_dir), quick_account, made=made)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = run_page.build(recorded.read(run_dir), quick_account, made=made)
    assert "matplotlib was not installed" in text
    assert "<svg" not in text
    assert "matplotlib was not installed" not in drawn
    whole = re.sub(r"<figure.*?</figure>", "", drawn, flags=re.DOTALL)
    for heading in re.findall(r"<h2>.*?</h2>", whole):
        assert heading in text
    assert re.findall(r"<td.*?</td>", text) == re.findall(r"<td.*?</td>", whole)


def test_the_page_says_who_declared_what_and_what_an_audit_found(run_dir):
    audited(recorded.read(run_dir))
    (run_dir / "deployment.toml").write_text("[deployment]\nview = 'aggregate'\noperator = 'Example Ltd'\n")
    text = as_read(run_page.build(recorded.read(run_dir), quick_account, made=datetime.date(2026, 11, 22)))
    assert (
        "The code of checkin-jax 0.0 was attacked by checkin audit on 2026-11-20: no attack proved more"
        in text
    )
    assert "epsilon at least 0.25, certified at most 0.5, at delta 1e-06 (3 of 4)" in text
    assert "View aggregate applies here, Example Ltd declares" in text
    assert "<td>2026-11-22</td>" in text
    for name in ("config.json", "metrics.jsonl", "audit.json"):
        assert hashlib.sha256((run_dir / name).read_bytes()).hexdigest() in text


FLEET = """
[fleet]
available = [2000, 1000]
check_in_prob = 0.05
cycles = 3
[target]
epsilon = 0.5
delta = 1e-5
[[message]]
epsilon0 = 1.0
[deployment]
view = "messages"
"""


PAGES = {"fleet": "fleet.toml.html", "ledger": "fleet.json.html"}


@pytest.fixture
def pages(tmp_path, monkeypatch, capsys):
    """The pages of a ledger with two views and of a plan, as the command writes them."""
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    (tmp_path / "fleet.toml").write_text(FLEET)
    ledger = cj.CheckInAccountant(bounds="fast")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for view in ("messages", "aggregate"):
            ledger.compose(cj.to_event(PROTOCOLS[0], cj.PureLDP(epsilon0=1.0), view=view))
    (tmp_path / "fleet.json").write_text(json.dumps(ledger.state_dict()))
    cli.main(["report", str(tmp_path / "fleet.toml"), "--bounds", "fast"])
    cli.main(["report", str(tmp_path / "fleet.json"), "--delta", "1e-7", "--bounds", "fast"])
    assert capsys.readouterr().out.split() == [str(tmp_path / n) for n in PAGES.values()]
    return {name: (tmp_path / file).read_text() for name, file in PAGES.items()}, ledger


def test_a_page_of_another_source_or_what_it_is_made_of_is_not_overwritten(pages, tmp_path, capsys, run_dir):
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    fast, plan = ["--bounds", "fast"], tmp_path / "fleet.toml"
    for words, told in (
        ([str(plan), *fast, "--out", str(tmp_path / PAGES["ledger"])], "a page about 'fleet.json'"),
        ([str(run_dir), "--out", str(tmp_path / PAGES["fleet"])], "a page about 'fleet.toml'"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", *words])
        assert ended.value.code == 2
        assert told in capsys.readouterr().err
    assert "by fast bounds only" in before[PAGES["fleet"]].decode().lower()
    other = tmp_path / "composed.toml"
    other.write_text(FLEET.replace('view = "messages"', 'view = "as composed"'))
    with pytest.raises(SystemExit):
        cli.main(["report", str(other), *fast])
    assert "view='as composed': expected one of" in capsys.readouterr().err
    other.unlink()
    cli.main(["report", str(plan), *fast])
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()} == before


def test_a_plan_and_a_ledger_have_pages_of_the_accountants_figures(pages):
    texts, ledger = pages
    plan = cj.account(
        cj.from_availability([2000, 1000] * 3, coin=0.05), cj.PureLDP(epsilon0=1.0), delta=1e-5, bounds="fast"
    )
    assert up(plan.epsilon, 4) in texts["fleet"]
    assert "This is a plan: nothing has run" in texts["fleet"]
    for view in cj.protocols.VIEWS:  # which of several messages a theorem is about
        assert f"1-LDP messages, view {view}, upper end: " in as_read(texts["fleet"])
        assert f"<p>View {view}, upper end: " in texts["ledger"]
    found = ledger.guarantee(1e-7)
    for g in (found, cj.account(PROTOCOLS[0], cj.PureLDP(epsilon0=1.0), delta=1e-7, bounds="fast")):
        assert g.compared in html.unescape(texts["ledger"])
    assert up(found.epsilon, 4) in texts["ledger"]
    assert "has not declared which" in texts["ledger"]
    assert texts["ledger"].count("<small>view ") == 4
    seen = re.findall("<small>view (.*?)</small>", texts["ledger"])
    assert [view for view in seen if view in cj.protocols.VIEWS] == [*cj.protocols.VIEWS]
    for text in texts.values():
        parsed = Collector()
        parsed.feed(text)
        parsed.check_links()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Whatever the page would load is blocked and told; so are errors, and what sticks out of the window to the right.
PROBE = """
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<script>
const faults = [];
addEventListener("error", event => faults.push(event.message || String(event.target)), true);
addEventListener("securitypolicyviolation", event => faults.push("blocked " + event.blockedURI));
addEventListener("load", () => {
  const root = document.documentElement, beyond = element => element.getBoundingClientRect().right > innerWidth + 0.5;
  const out = [...document.querySelectorAll("body *")].filter(element => !element.closest(".wide > *, svg *"));
  const loaded = performance.getEntriesByType("resource").map(entry => entry.name);
  parent.document.documentElement.dataset.found = JSON.stringify(
    {faults, loaded, inner: innerWidth, scroll: root.scrollWidth, out: out.filter(beyond).map(each => each.tagName)});
});
</script>
"""


def browse(page_file, *options):
    """Headless Chromium on one file: what it prints, and its log with what the page's console says."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *(
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
            ),
            *("--disable-component-update", "--disable-sync", "--disable-quic", "--enable-logging=stderr"),
            f"--user-data-dir={page_file.parent / 'chromium'}",
            *options,
            page_file.as_uri(),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, done.stderr


def probed(text, width, file):
    """What the probe finds in the page, in a frame of this width: windows are never narrower than 500 pixels."""
    content = html.escape(text.replace("<head>", f"<head>{PROBE}", 1), quote=True)
    file.write_text(f'<!doctype html><iframe width="{width}" height="20000" srcdoc="{content}"></iframe>')
    shown, log = browse(file, "--window-size=1300,1000", "--dump-dom")
    found = re.search('data-found="([^"]*)"', shown)
    assert found
    return json.loads(html.unescape(found[1])), "CONSOLE" in log


@pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor google-chrome is installed")
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_the_page_whole_and_loads_nothing(run_dir, width):
    text = run_page.build(recorded.read(run_dir))
    right = {"faults": [], "loaded": [], "inner": width, "scroll": width, "out": []}
    assert probed(text, width, run_dir / "probed.html") == (right, False)
    # It would have told.
    wrong = text.replace(
        "</body>", "<img src='https://localhost/x.png'><div style='width:2000px;height:9px'></div></body>"
    )
    found, complains = probed(wrong, width, run_dir / "probed.html")
    assert complains
    assert found["faults"]
    assert found["scroll"] > width
    assert found["out"] == ["DIV"]


@pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor google-chrome is installed")
def test_a_browser_shows_the_pages_of_a_plan_and_a_ledger_on_a_phone(pages, tmp_path):
    for text in pages[0].values():
        right = {"faults": [], "loaded": [], "inner": 390, "scroll": 390, "out": []}
        assert probed(text, 390, tmp_path / "probed.html") == (right, False)


@pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor google-chrome is installed")
def test_a_browser_prints_the_page(run_dir):
    written = run_dir / "report.html"
    written.write_text(run_page.build(recorded.read(run_dir)))
    log = browse(written, f"--print-to-pdf={run_dir / 'page.pdf'}")[1]
    assert "CONSOLE" not in log
    printed = (run_dir / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert printed.count(b"/Type /Page\n") >= 2
