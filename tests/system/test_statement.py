"""`checkin statement`: every format says the same, and the record keeps to the published schema."""

import copy
import html
import json
import re
from pathlib import Path

import jsonschema
import pytest
from stand_in import as_read, audited, quick_account

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._rounding import up
from checkin_jax.reports import declarations, render
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.run_page import of_run
from checkin_jax.training.run import PrivateRun

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "statement.schema.json").read_text())
VALID = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture
def run_dir(tmp_path):
    """A run that was killed after two of three rounds."""
    protocol = cj.ShuffledCheckIn(num_clients=30, check_in_prob=0.5, num_rounds=3)
    private = PrivateRun(protocol=protocol, randomizer=cj.PureLDP(epsilon0=1.0), delta=1e-4)
    about = {**private.as_dict(), "dataset": "<digits>", "version": "0.0", "records_per_client": 2}
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "check_ins": 14}\n{"round": 2, "check_ins": 16}\n')
    return tmp_path


@pytest.fixture
def record(run_dir):
    return render.plain(of_run(recorded.read(run_dir), quick_account), attack=False)


def test_the_record_keeps_to_the_schema(record):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALID.validate(json.loads(render.as_json(record)))
    assert record["unit"]["records_per_client"] == 2
    assert record["guarantees"][1]["epsilon"] == pytest.approx(4e-3)
    assert record["guarantees_of_all_planned_rounds"][1]["epsilon"] == pytest.approx(6e-3)
    assert record["tuning"]["covered"] is False


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.pop("not_covered"),
        lambda record: record.update(schema=1),
        lambda record: record["guarantees"][0].update(epsilon=-1.0),
        lambda record: record["tuning"].update(covered=True),
        lambda record: record["unit"].pop("adjacency"),
        lambda record: record.update(extra=1),
    ],
)
def test_the_schema_refuses_other_records(record, spoil):
    record = copy.deepcopy(record)
    spoil(record)
    assert not VALID.is_valid(record)


@pytest.mark.parametrize("form", ["text", "model-card"])
def test_every_format_says_it_all(record, form):
    shown = render.FORMATS[form](record)
    for words in ("Unit of privacy", "replace-one", "0.0001", "Tuning", "Not covered", "shuffler", "0.006"):
        assert words in shown
    assert ("&lt;digits>" if form == "model-card" else "<digits>") in shown


def test_an_entry_of_a_registry_says_what_a_run_cannot_know(record):
    entry = json.loads(render.as_registry(record))
    assert entry["deployment"]["data_curator"] is None
    assert [each["model"]["view"] for each in entry["dp_flavors"]] == ["local", "messages", "aggregate"]
    VALID.validate(entry["statement"])


def test_the_command_states_with_an_attackers_terms(run_dir, capsys):
    cli.main(["statement", str(run_dir), "--format", "json"])
    values = json.loads(capsys.readouterr().out)
    VALID.validate(values)
    assert all(each["attack"] is None for each in values["guarantees"])
    for each in values["guarantees_of_all_planned_rounds"]:
        assert 0.0 <= each["epsilon_lower"] <= each["epsilon"]
        assert each["attack"]["advantage"]["lower"] <= each["attack"]["advantage"]["upper"] < 1.0


def test_every_format_quotes_the_last_audit(run_dir, record):
    assert record["audit"] is None
    assert "No audit of this run is known here." in render.as_text(record)
    run = recorded.read(run_dir)
    audited(run)
    record = render.plain(of_run(run, quick_account), attack=False)
    VALID.validate(json.loads(render.as_json(record)))
    for form in ("text", "model-card"):
        shown = render.FORMATS[form](record)
        assert "attacked by checkin audit on 2026-11-20" in shown
        assert "(confidence 0.95)" in shown
        assert "epsilon at least 0.25, certified at most 0.5, at delta 1e-06" in as_read(shown)
    assert json.loads(render.as_registry(record))["statement"]["audit"]["findings"][0]["audit_lower"] == 0.25
    audited(run, passed=False)
    assert "VIOLATION" in render.as_text(render.plain(of_run(run, quick_account), attack=False))


def test_an_audit_of_another_run_is_refused_with_one_line(run_dir, capsys):
    audited(recorded.read(run_dir), clip_norm=0.5)
    with pytest.raises(SystemExit) as stop:
        cli.main(["statement", str(run_dir)])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert "of another run" in err


def test_theorems_are_stated(run_dir):
    record = render.plain(of_run(recorded.read(run_dir)), attack=False)
    _, _, below = render.as_text(record).partition("\n\nTheorems\n")
    *said, pointer = [line.removeprefix("  ") for line in below.partition("\n\n")[0].splitlines()]
    assert pointer == render.GLOSSARY
    quoted = render.guaranteed_of(record)
    assert said == [*dict.fromkeys(theorem for each in quoted for theorem in each["theorems"])] != []


def test_a_run_without_rounds_is_refused_with_one_line(run_dir, capsys):
    (run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit) as stop:
        cli.main(["statement", str(run_dir)])
    assert stop.value.code == 2
    assert "nothing to state" in capsys.readouterr().err


PLAN = """
[fleet]
available = [2000, 1000]
check_in_prob = 0.05
cycles = 3

[target]
epsilon = 0.5
delta = 1e-5

[[message]]
epsilon0 = 1.0

[[message]]
epsilon0 = 4.0

[deployment]
operator = "Example <Ltd>"
view = "messages"
"""


@pytest.fixture
def subjects(tmp_path, monkeypatch, capsys):
    """A plan and a ledger in the working folder; returns what prints a statement."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    Path("fleet.toml").write_text(PLAN)
    Path("said.toml").write_text(PLAN[PLAN.index("[deployment]") :])
    for month, cycles, day in (("june", 4, "2026-06-30"), ("july", 5, "2026-07-31")):
        Path(f"{month}.csv").write_text("available,coin\n" + "2000,0.05\n1000,0.05\n" * cycles)
        add = ["--availability", f"{month}.csv", "--epsilon0", "1", "--note", month, "--delta", "1e-5"]
        cli.main(["ledger", "add", "year.json", *add, "--target-epsilon", "0.5", "--on", day])
    capsys.readouterr()

    def stated(*args: str) -> str:
        cli.main(["statement", *args, "--bounds", "fast"])
        return capsys.readouterr().out

    return stated


@pytest.mark.parametrize("subject", [["fleet.toml"], ["year.json", "--deployment", "said.toml"]])
def test_a_ledger_and_a_plan_are_stated_in_every_format(subjects, subject):
    values = json.loads(subjects(*subject, "--format", "json"))
    VALID.validate(values)
    assert values["subject"] == ("plan" if subject[0] == "fleet.toml" else "ledger")
    assert values["target"] == {"epsilon": 0.5, "view": "messages"}
    assert values["declared"]["operator"] == "Example <Ltd>"
    assert "purpose" in values["blanks"]
    assert all(each["met"] == (each["epsilon"] <= 0.5) for each in values["guarantees"])
    (one, *_) = (each for each in values["guarantees"] if each["view"] == "messages")
    assert [each["checked"] for each in values["assumptions"]] == [[]] * len(values["assumptions"])
    night = "plugged in all night"
    assert any(night in each for each in one["assumptions"])
    entry = json.loads(subjects(*subject, "--format", "registry"))
    VALID.validate(entry["statement"])
    assert entry["deployment"]["data_curator"] == "Example <Ltd>"
    assert entry["accounting"]["run_by"] == ("nobody yet" if subject[0] == "fleet.toml" else "Example <Ltd>")
    target = "is met" if values["subject"] == "ledger" else "1 in view messages"
    for form in ("text", "model-card", "html"):
        shown = subjects(*subject, "--format", form)
        # Each kind of a plan's messages, or entry of a ledger, has one line under this heading.
        _, _, done = shown.partition("What is done to the data?" if form == "html" else "Mechanism")
        told = done.partition("Guarantees")[0].count("1-LDP messages")
        assert form == "html" or told <= (1 if "fleet" in subject[0] else 3)
        for words in (night, "replace-one", "1e-05", "shuffler", "Purpose", target):
            assert words in as_read(shown), (form, words)
        assert form == "html" or "Still blank in [deployment]: Contact (contact), " in shown
        if subject[0] == "year.json" and form != "model-card":
            assert "Entry 1, 2026-06-30: over 8 rounds" in shown
        assert form == "html" or "2,000 clients" not in shown.replace("2,000 clients at once", "")


@pytest.mark.parametrize("subject", [["fleet.toml"], ["year.json", "--deployment", "said.toml"]])
def test_a_statement_says_what_changed_since_the_last(subjects, subject, capsys):
    last = subjects(*subject, "--format", "json", "--out", "last.json").strip()
    then = json.loads(Path(last).read_text())
    said = next(each["epsilon"] for each in then["guarantees"] if each["view"] == "messages")
    shown = as_read(subjects(*subject, "--last", last, "--format", "html"))
    assert f"Last time, on {then['made']}, epsilon was at most {up(said, 4)} at delta 1e-05." in shown
    assert f"Last time, on {then['made']}, epsilon was at most " in subjects(*subject, "--last", last)
    VALID.validate(json.loads(subjects(*subject, "--last", last, "--format", "json")))
    with pytest.raises(SystemExit):
        cli.main(["statement", *subject, "--last", "june.csv"])
    assert "june.csv: expected a statement made by" in capsys.readouterr().err


def test_what_changed_is_listed_and_another_subject_is_refused(subjects, capsys):
    subjects("year.json", "--format", "json", "--out", "last.json")
    assert (
        json.loads(subjects("year.json", "--last", "last.json", "--format", "json"))["last"]["changes"] == []
    )
    cli.main(["ledger", "remove", "year.json", "1", "--by", "Ann"])
    cli.main(
        ["ledger", "add", "year.json", "--availability", "june.csv", "--epsilon0", "2", "--on", "2026-08-31"]
    )
    capsys.readouterr()
    shown = subjects("year.json", "--deployment", "said.toml", "--last", "last.json")
    assert "New: Entry 3, 2026-08-31" in shown
    assert "New: Entry 1, 2026-06-30" in shown, "with the words of its removal"
    assert "No longer there" not in shown
    assert "Declared anew: operator, view." in shown
    with pytest.raises(SystemExit):
        cli.main(["statement", "fleet.toml", "--last", "last.json", "--bounds", "fast"])
    assert "expected a statement about a plan, not about a ledger" in capsys.readouterr().err


def test_a_longer_run_at_another_delta_is_not_called_no_larger(subjects):
    subjects("fleet.toml", "--format", "json", "--out", "last.json")
    Path("fleet.toml").write_text(PLAN.replace("cycles = 3", "cycles = 9").replace("1e-5", "1e-2"))
    shown = as_read(subjects("fleet.toml", "--last", "last.json"))
    assert "At another delta than 0.01, it does not compare." in shown
    assert "larger now" not in shown
    assert "The run then: over 6 rounds" in shown
    assert "; now: over 18 rounds" in shown
    assert "Delta was 1e-05 and is 0.01." in shown


def test_no_statement_is_written_over_what_it_reads(subjects, capsys):
    subjects("year.json", "--format", "json", "--out", "last.json")
    inputs = ["year.json", "said.toml", "last.json"]
    before = [Path(name).read_bytes() for name in inputs]
    words = ["year.json", "--deployment", "said.toml", "--last", "last.json", "--format", "json"]
    for name in inputs:
        with pytest.raises(SystemExit):
            cli.main(["statement", *words, "--out", name])
        assert f"--out {name}: that file is an input of the page" in capsys.readouterr().err
    assert [Path(name).read_bytes() for name in inputs] == before


@pytest.mark.parametrize(("on", "told"), [("2999-01-01", "up to today"), ("25 Nov", "such as 2026-01-31")])
def test_a_decision_is_of_a_day_that_has_been(subjects, capsys, on, told):
    decided = f'\n[deployment.decision]\noutcome = "accepted"\nby = "B"\non = "{on}"\n'
    Path("said.toml").write_text(Path("said.toml").read_text() + decided)
    with pytest.raises(SystemExit):
        cli.main(["statement", "year.json", "--deployment", "said.toml"])
    assert told in capsys.readouterr().err


def test_a_decision_is_filed(subjects, capsys):
    decided = '\n[deployment.decision]\noutcome = "refused"\nby = "the privacy office"\non = 2026-08-31\n'
    said = Path("said.toml").read_text()
    Path("said.toml").write_text(said + decided + 'reason = "Who runs the shuffler is open."\n')
    shown = subjects("year.json", "--deployment", "said.toml")
    assert "Decision: refused by the privacy office, 2026-08-31. Who runs the shuffler is open." in shown
    values = json.loads(subjects("year.json", "--deployment", "said.toml", "--format", "json"))
    VALID.validate(values)
    assert values["declared"]["decision"]["outcome"] == "refused"
    for text, told in (
        (decided, "outcome='refused' needs a reason"),
        (decided.replace("refused", "maybe"), "outcome='maybe': expected one of"),
        ('\n[deployment.decision]\noutcome = "accepted"\n', "needs by"),
    ):
        Path("said.toml").write_text(said + text)
        with pytest.raises(SystemExit):
            cli.main(["statement", "year.json", "--deployment", "said.toml"])
        assert told in capsys.readouterr().err


def test_checks_stand_beside_their_assumptions_and_those_of_nothing_are_refused(subjects, capsys):
    said = Path("said.toml").read_text()
    check = '\n[[deployment.checked]]\nassumption = "{}"\nby = "Ann"\n'
    Path("said.toml").write_text(said + check.format("being available"))
    shown = subjects("year.json", "--deployment", "said.toml")
    assert "[for every answer; checked by Ann]" in as_read(shown)
    assert "[for view messages and aggregate; nobody has declared to have checked this]" in as_read(shown)
    assert re.search(r"1 of \d assumptions are declared as checked, by Ann\.", shown)
    Path("said.toml").write_text(said + check.format("foo"))
    with pytest.raises(SystemExit):
        cli.main(["statement", "year.json", "--deployment", "said.toml", "--bounds", "fast"])
    assert "no assumption begins 'foo'" in capsys.readouterr().err
    Path("said.toml").write_text(said + "num_clients = 10\n")
    with pytest.raises(SystemExit):
        cli.main(["statement", "year.json", "--deployment", "said.toml", "--bounds", "fast"])
    assert "num_clients=10: expected 2000 or more" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "html"])
def test_what_is_left_is_that_of_the_view_that_applies(subjects, capsys, form):
    cli.main(["ledger", "show", "year.json", "--bounds", "fast", "--json"])
    left = json.loads(capsys.readouterr().out)["rounds_left"]
    shown = as_read(subjects("year.json", "--deployment", "said.toml", "--format", form))
    words = f"Left of epsilon 0.5 for runs like entry 2: {left:,} rounds, "
    assert words in shown
    # Somebody who knows the names has learned more than the target allows.
    Path("said.toml").write_text(Path("said.toml").read_text().replace("messages", "local"))
    for said in ([], ["--deployment", "said.toml"]):
        assert "Left of epsilon" not in as_read(subjects("year.json", *said, "--format", form))


def test_a_removed_entry_is_said_and_not_counted(subjects):
    before = json.loads(subjects("year.json", "--format", "json"))["guarantees"]
    cli.main(["ledger", "remove", "year.json", "2", "--by", "Ann", "--note", "a test"])
    shown = subjects("year.json")
    assert "by Ann (a test), and not counted." in shown
    values = json.loads(subjects("year.json", "--format", "json"))["guarantees"]
    assert all(now["epsilon"] < then["epsilon"] for now, then in zip(values, before))


def first_page(shown):
    """Words of the first part of a page, or of a text."""
    if not shown.startswith("<!doctype"):
        first = shown.partition("\n\nData\n")[0]
    else:
        marked = shown[shown.index("<body>") : shown.index("What is promised</h2>")]
        first = as_read(html.unescape(re.sub("<[^>]*>", " ", marked)))
    return [each for each in first.split() if re.search(r"\w", each)]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("subject", ["fleet.toml", "year.json", "run"])
@pytest.mark.parametrize("form", ["text", "html"])
@pytest.mark.turns(2)
def test_the_first_page_is_for_a_decider(subjects, run_dir, subject, declared, form):
    """250 words, no name of a theorem, no factor above 1,000; verdict, beliefs, trust, blanks and a decision."""
    said = ["--deployment", "said.toml"]
    if not declared:
        Path("fleet.toml").write_text(PLAN.replace('view = "messages"', ""))
        said = []
    if subject == "run":
        told = None if said == [] else declarations.read(Path("said.toml"))
        record = of_run(recorded.read(run_dir), deployment=told)
        shown = render.page(record) if form == "html" else render.as_text(render.plain(record))
    else:
        asked = [subject, *said] if subject == "year.json" else [subject]
        subjects(*asked, "--format", "json", "--out", "last.json")
        shown = subjects(*asked, "--last", "last.json", "--format", form)
    words = first_page(shown)
    told = " ".join(words)
    assert len(words) <= 250
    assert not re.search(r"\b[TGRB]\d|T\*|clones|hexagon|own-laws|profile", told)
    assert "factor" not in words
    assert not any("e+" in each for each in words)
    blanks = "Still blank: Contact" if form == "html" else "(contact), Purpose (purpose)"
    trust = "nobody has said yet who that is" if declared else "has not declared which adversary there is"
    for part in (
        "target",
        "a suspicion of",
        "becomes at most",
        "up to delta" if form == "html" else "except with probability",
        "assumptions are declared as checked",
        "This is version",
        "Decision",
        trust,
        *([blanks] if declared else []),
        *(["on conditions", "Signature"] if form == "html" else []),
        *(["Last time", "not larger now"] if subject == "year.json" else []),
    ):
        assert part in told.replace("A suspicion", "a suspicion"), part


def test_a_blank_links_to_its_place_and_names_its_key_and_no_word_of_a_table_is_broken(subjects):
    page = subjects("fleet.toml", "--format", "html")
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)[1]
    anywhere = re.findall(r"([^{}]*){[^{}]*overflow-wrap:anywhere", style)
    assert {selector.strip() for selector in anywhere} == {"code", "pre"}
    assert "word-break" not in style
    keys = re.findall('<a href="#([a-z_]+)">', page[: page.index("What is promised</h2>")])
    assert {"contact", "message", "num_clients", "side_channels"} < set(keys)
    assert json.loads(subjects("fleet.toml", "--format", "json"))["blanks"] == keys
    for key in keys:
        name, told = re.search(f'<p id="{key}"><small>([^<]*):</small> (.*)</p>', page).groups()
        assert f"<code>{key}</code>" in told
        assert f'<a href="#{key}">{name}</a>' in page


@pytest.mark.parametrize("subject", [["fleet.toml"], ["year.json", "--deployment", "said.toml"]])
def test_factors_above_a_thousand_are_words_a_gap_is_explained_and_a_report_is_the_same_page(
    subjects, subject
):
    stated = subjects(*subject, "--format", "html")
    cli.main(["report", *subject, "--bounds", "fast", "--out", "page.html"])
    assert Path("page.html").read_text().strip() == stated.strip()
    page = as_read(stated)
    found = re.findall(r'data-head="factor at most">([^<]*)<', page)
    assert len(found) >= 3
    if subject == ["fleet.toml"]:
        assert "above 1,000: hardly any protection" in found, "names on messages of epsilon0 = 4"
    assert all(each == "above 1,000: hardly any protection" or 1.0 <= float(each) <= 1000.0 for each in found)
    assert "A wide gap means that" in " ".join(page.split())
