"""The page about any run: every question has an answer or room for one, and nothing declared is lost or made up."""

import dataclasses
import datetime
import functools
import html
import json
import math
import re
import warnings
from pathlib import Path

import pytest
from stand_in import as_read, quick_account

import checkin_jax as cj
from checkin_jax._rounding import down, up
from checkin_jax.accounting.interop import ledger_file
from checkin_jax.protocols import VIEWS
from checkin_jax.reports import declarations, record, render, subjects
from checkin_jax.reports.declarations import Checked, Decision, Deployment
from checkin_jax.reports.render import words_of_pages

RUN = cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.1, num_rounds=4)
PURE = cj.PureLDP(epsilon0=1.0)
FULL = """
[deployment]
operator = "Example <Ltd>"
view = "messages"
client = "one phone"
tuning = "on public text"
audit = "by hand"
[[deployment.checked]]
assumption = "every client has"
by = "A. Person"
on = "on 2026-11-20"
"""


def guarantees(randomizer=PURE, delta=1e-6):
    return {view: cj.account(RUN, randomizer, delta=delta, view=view, bounds="fast") for view in VIEWS}


def built(found, **more):
    """The page as it reads: without what keeps numbers on one line."""
    files = more.pop("files", ())
    made = subjects.of_plan("fleet", RUN, found, deployment=more.pop("deployment", Deployment()), **more)
    return as_read(html.unescape(render.page(dataclasses.replace(made, files=files))))


@pytest.fixture(scope="module")
def found():
    return guarantees()


def test_every_epsilon_has_its_delta_and_every_assumption_room_for_a_name(found):
    text = built([found])
    rows = re.findall(r"<tr[^>]*><td.*?</tr>", text)
    for view, g in found.items():
        (row,) = (each for each in rows if f"<small>view {view}</small>" in each)
        assert record.number(g.epsilon, up) in row
        assert record.number(g.lower, down) in row
        assert ">1e-06<" in row
        for each in g.assumptions:
            assert any(each in row and 'class="blank"' in row for row in rows), each
    for told in re.findall(r"epsilon at most [^<;]*", text.split("What has to be disclosed")[1]):
        assert "at delta 1e-06" in told or "meets" in told.lower()


@pytest.mark.parametrize(("declared", "warned"), [("local", True), ("messages", False), (None, False)])
def test_a_target_in_another_view_than_the_declared_one_is_warned_of(found, declared, warned):
    text = built([found], target=(1.0, "messages"), deployment=Deployment(view=declared))
    assert ('<p class="warn">The target is in view messages, but view local applies' in text) == warned


def test_what_guidelines_ask_is_on_the_page_in_order(found):
    asked = "protected|adjacency|trusted|delta small enough|done to the data|are covered|not covered|released"
    asked += "|accounted for|assumptions hold|mathematics|Where the code is|utility, bias|side channels"
    asked += "|answers for this"
    text = built([found])
    assert "<h1>Plan of fleet</h1>" in text
    text = text.split("What has to be disclosed")[1]
    places = [text.index(each) for each in asked.split("|")]
    assert places == sorted(places)


def test_an_undeclared_view_is_said_and_a_declared_one_is_marked(found, tmp_path):
    assert "has not declared which" in built([found])
    assert 'class="applies"' not in built([found])
    (tmp_path / "x.toml").write_text(FULL)
    text = built([found], deployment=declarations.read(tmp_path / "x.toml"))
    assert "has not declared which" not in text
    (marked,) = re.findall(r'<tr class="applies">.*?</tr>', text)
    assert "view messages" in marked
    for words in (
        "Example <Ltd>",
        "one phone",
        "on public text",
        "by hand",
        "A. Person, on 2026-11-20",
        "1 of ",
    ):
        assert words in text
    assert "No audit" not in text


EMPTY = ledger_file.Ledger(path=Path("x.json"))


def ledger_of(*views):
    ledger = cj.CheckInAccountant(bounds="fast")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # views differ
        for view in views:
            ledger.compose(cj.to_event(RUN, PURE, view=view))
    return ledger.guarantee(1e-6)


@pytest.fixture(scope="module")
def of_ledgers():
    return {views: ledger_of(*views) for views in (("messages",), ("local",), ("messages", "aggregate"))}


def ledger_page(of_ledgers, *views, view=None):
    others = {"local": of_ledgers["local",]}
    made = subjects.of_ledger("x", of_ledgers[views], others, ledger=EMPTY, deployment=Deployment(view=view))
    return as_read(html.unescape(render.page(made)))


@pytest.mark.parametrize("views", [("messages",), ("messages", "aggregate")])
def test_that_entries_name_views_declares_nothing(of_ledgers, views):
    text = ledger_page(of_ledgers, *views)
    assert "([deployment] view): only view local may be relied on" in text
    assert 'class="applies"' not in text
    assert "applies here" not in text
    for view in VIEWS:
        assert f"View {view}: " in text
    first, last = re.findall(r"<small>view (.*?)</small>", text)
    assert (first, last) == ("local", "messages" if len(views) == 1 else "as composed")


@pytest.mark.parametrize(
    ("views", "view", "told"),
    [
        (
            ("messages",),
            "messages",
            "View messages applies here, the deployer declares, and needs trust in the ",
        ),
        (("messages",), "as composed", "View as composed applies here, the deployer declares."),
        (("messages", "aggregate"), "as composed", "View as composed applies here, the deployer declares."),
        (
            ("messages", "aggregate"),
            "local",
            "View local applies here, the deployer declares, and needs trust in ",
        ),
    ],
)
def test_a_ledgers_view_is_the_deployers_to_declare(of_ledgers, views, view, told):
    text = ledger_page(of_ledgers, *views, view=view)
    assert told in text
    assert "may be relied on" not in text
    (marked,) = re.findall(r'<tr class="applies">.*?</tr>', text)
    assert f"view {view}<" in marked


def test_a_declared_view_without_figures_is_no_reason_to_mark_another(of_ledgers):
    text = ledger_page(of_ledgers, "messages", view="aggregate")
    assert "View aggregate is declared, and has no figures here: only view local may be relied on" in text
    assert "applies here" not in text
    made = subjects.of_ledger(
        "x", of_ledgers["messages",], {}, ledger=EMPTY, deployment=Deployment(message="9-LDP")
    )
    with pytest.raises(
        ValueError, match="message='9-LDP': expected the first words of one of '1-LDP messages"
    ):
        render.page(made)
    made = subjects.of_ledger(
        "x", of_ledgers["messages",], {}, ledger=EMPTY, deployment=Deployment(message="1-LDP")
    )
    assert made.chosen is None
    made = subjects.of_ledger("x", of_ledgers["messages",], {}, ledger=EMPTY, deployment=Deployment())
    assert "no figure may be relied on, as each trusts somebody" in render.page(made)


def test_a_plan_of_several_messages_asks_which_is_used_and_how_many_clients_there_are(found):
    other = guarantees(cj.PureLDP(epsilon0=2.0))
    text = built([found, other])
    blank = '<span class="blank">\xa0</span>'
    assert f"Message in use:</small> {blank}" in text
    assert "Delta times 300 clients, the most that are there at once, is 0.0003;" in text
    assert f"Clients in all:</small> {blank}" in text
    text = built([found, other], deployment=Deployment(message="2-LDP", num_clients=200_000))
    assert "Message in use:</small> 2-LDP messages<" in text
    assert "Delta times that number is 0.2;" in text
    assert "Clients in all:</small> 200,000<" in text
    assert "Message in use" not in built([found])
    named = (
        {"messages": cj.account(RUN, each, delta=1e-6, bounds="fast")}
        for each in (PURE, cj.L2Mechanism(epsilon0=1.0))
    )
    assert "in use:</small> 1-LDP messages<" in built(
        [*named], deployment=Deployment(message="1-LDP messages")
    )
    assert "Delta is not below 1 in 2,000,000" in built([found], deployment=Deployment(num_clients=2_000_000))
    assert "Delta is not below 1 in" not in built([found], deployment=Deployment(num_clients=900_000))
    for wrong, told in (
        (Deployment(message="3-LDP"), "message='3-LDP': expected the first words of one of '1-LDP messages'"),
        (Deployment(num_clients=299), "num_clients=299: expected 300 or more"),
    ):
        with pytest.raises(ValueError, match=told):
            built([found, other], deployment=wrong)


def test_first_words_of_several_assumptions_check_none_of_them(found):
    assumptions = ["noise is secret", "noise is Gaussian", "noise"]
    ann, bob = (Checked(assumption="noise is s", by=name) for name in ("Ann", "Bob"))
    assert Deployment(checked=(ann, bob)).checks(assumptions) == [(ann, bob), (), ()]
    whole = Checked(assumption="noise", by="Ann")
    assert Deployment(checked=(whole,)).checks(assumptions) == [(), (), (whole,)]
    with pytest.raises(ValueError, match="3 assumptions begin 'noi': expected the first words of one"):
        Deployment(checked=(Checked(assumption="noi", by="Ann"),)).checks(assumptions)
    first = found["messages"].assumptions[0]
    both = tuple(Checked(assumption=first, by=name) for name in ("Ann", "Bob"))
    assert "Ann<br>Bob" in built([found], deployment=Deployment(checked=both))


def test_a_target_is_said_to_be_met_or_not(found):
    other = {view: quick_account(RUN, PURE, delta=1e-6, view=view) for view in VIEWS}
    epsilon = found["messages"].epsilon
    declared = Deployment(view="messages")
    text = built([found, other], target=(epsilon, "messages"), deployment=declared)
    meeting = int(other["messages"].epsilon <= epsilon) + 1
    told = f"Of 2 kinds of message, these meet the target, epsilon at most {up(epsilon)}: {meeting} in view messages"
    assert told in text
    undeclared = built([found, other], target=(epsilon, "messages"))
    local = sum(each["local"].epsilon <= epsilon for each in (found, other))
    assert f": {local} in view local" in undeclared
    assert f", {meeting} in view messages" in undeclared
    elsewhere = built([found, other], target=(epsilon, "messages"), deployment=Deployment(view="local"))
    assert f": {local} in view local" in elsewhere
    assert f", {meeting} in view messages." in elsewhere
    with pytest.raises(ValueError, match="nothing to report: hopeless"):
        built(["hopeless"])
    assert "hopeless" in built([found, "hopeless"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[deployment", "x.toml"),
        ("[fleet]\n", "expected a table"),
        ("[deployment]\nopertor = 'x'\n", "did you mean operator?"),
        ("[deployment]\noperator = 7\n", "expected a text"),
        ("[deployment]\noperator = ' '\n", "expected a text"),
        ("[deployment]\nview = 'all'\n", "view='all'"),
        ("[deployment]\nnum_clients = 'many'\n", "num_clients='many'"),
        ("[deployment]\nnum_clients = 0\n", "num_clients=0: expected a whole number in [1, 1e+12]"),
        ("[deployment]\nchecked = 'all'\n", "checked"),
        ("[[deployment.checked]]\nby = 'A'\n", "needs assumption"),
        (
            "[[deployment.checked]]\nassumption = 'A'\nby = 'B'\non = '2999-11-20, by the code'\n",
            "on='2999-11-20': expected a day up to today",
        ),
        ("[[deployment.checked]]\nassumption = 'A'\nwho = 'B'\n", "has no who"),
    ],
)
def test_declarations_that_are_none_are_refused_with_the_file(tmp_path, text, told):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ValueError, match=r"x\.toml") as refused:
        declarations.read(tmp_path / "x.toml")
    assert told in str(refused.value)


def test_a_run_has_one_name_wherever_it_lies(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text("{}")
    names = [
        declarations.identity(declarations.digests([tmp_path / x / "run.json", tmp_path / "none"]))
        for x in "ab"
    ]
    assert names[0] == names[1]
    (tmp_path / "b" / "run.json").write_text("{ }")
    assert declarations.identity(declarations.digests([tmp_path / "b" / "run.json"])) != names[0]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"passed": true, "confidence": 0.9, "findings": [{}]}',
        '{"passed": true, "confidence": 0.9, "findings": [], "version": "0", "date": "today"}',
        '{"passed": true, "confidence": NaN, "findings": [], "version": "0", "date": "2026-11-22"}',
    ],
)
def test_a_damaged_audit_is_refused(tmp_path, text):
    assert declarations.audit_of(tmp_path) is None
    (tmp_path / declarations.AUDIT).write_text(text)
    with pytest.raises(ValueError, match="damaged"):
        declarations.audit_of(tmp_path)


def test_an_audit_is_read_as_it_was_kept(tmp_path):
    finding = {"test": "many runs", "view": "local", "evidence": "none", "delta": 1e-6, "audit_lower": 0.1}
    found = {"passed": True, "confidence": 0.95, "findings": [finding | {"certified": {"epsilon": None}}]}
    declarations.keep_audit(tmp_path, found | {"version": "0.0"})
    kept = json.loads((tmp_path / declarations.AUDIT).read_text())
    day = datetime.date.fromisoformat(kept.pop("date"))
    assert abs(day - datetime.datetime.now(datetime.UTC).date()) <= datetime.timedelta(days=1)
    assert kept == found | {"version": "0.0"}
    said = declarations.audited(declarations.audit_of(tmp_path))
    assert f"on {day}: no attack proved more than is certified" in said[0]
    assert "epsilon at least 0.1, certified at most infinity, at delta 1e-06 (none)" in said[1]


def test_theorems_have_their_sentences_on_the_page(found):
    made = subjects.of_plan("fleet", RUN, [found], deployment=Deployment())
    text = render.page(made)
    shown = {name for name, _ in (each.split(": ", 1) for g in found.values() for each in g.theorems)}
    assert shown
    for name in shown:
        assert f'<li id="{name}"><b>{name}</b>: ' in text


def test_theorems_lead_to_the_glossary(found):
    assert render.GLOSSARY in built([found])
    assert render.GLOSSARY not in built([{"local": found["local"]}])


def test_the_words_of_a_page_are_explained_on_it(found):
    text = built([found])
    before, _, section = text.partition('<h2 id="words">Words</h2>')
    assert '<a href="#words">' in before
    explained = dict(re.findall("<li><b>([^<]*)</b>: (.*?)</li>", section.partition("<h2>")[0], re.DOTALL))
    assert tuple(explained) == tuple(words_of_pages())
    assert len(explained) >= 16
    assert all(len(each.split()) > 5 for each in explained.values())


def test_a_page_has_the_day_it_was_made(found):
    made = subjects.of_plan("fleet", RUN, [found], deployment=Deployment())
    assert abs(made.made - datetime.datetime.now(datetime.UTC).date()) <= datetime.timedelta(days=1)


def version_of(text):
    return re.search(r"This is version <code>(\w+)</code>", text)[1]


def test_the_version_covers_what_is_declared_but_no_decision(found):
    files = (declarations.Digest("fleet.toml", "0"),)
    seen = Deployment(view="messages")
    version = version_of(built([found], files=files, deployment=seen))
    for other in (Deployment(view="aggregate"), Deployment(view="messages", tuning="on public text")):
        assert version_of(built([found], files=files, deployment=other)) != version
    assert version_of(built([guarantees(delta=1e-7)], files=files, deployment=seen)) != version
    for end in ("epsilon", "lower"):
        other = {view: dataclasses.replace(g, **{end: getattr(g, end) * 1.01}) for view, g in found.items()}
        assert version_of(built([other], files=files, deployment=seen)) != version
    decision = Decision(outcome="refused", by="P. Officer", reason="who shuffles is open", version="0")
    text = built([found], files=files, deployment=dataclasses.replace(seen, decision=decision))
    assert version_of(text) == version
    assert "Decision: refused by P. Officer. Who shuffles is open." in text
    assert "It was about version 0, which is not this one." in text
    same = dataclasses.replace(decision, version=version)
    assert "which is not this one" not in built(
        [found], files=files, deployment=dataclasses.replace(seen, decision=same)
    )


def test_without_a_view_the_target_is_said_for_each(found):
    most = found["messages"].epsilon
    text = built([found], target=(most, "messages"))
    assert "is not met in view local, met in view messages, met in view aggregate." in text
    assert "Formal protection" not in built(
        [found], target=(most / 2, "messages"), deployment=Deployment(view="messages")
    )


def test_a_page_says_which_entries_are_twice_in_a_ledger(tmp_path, of_ledgers):
    path = tmp_path / "year.json"
    event = cj.to_event(RUN, PURE).event
    for day in ("2026-06-30", "2026-07-31", "2026-07-31"):
        kept, _ = ledger_file.add(path, event, 1, on=day, by="Ann")
    assert kept.repeated == ((2, 3),)
    made = functools.partial(subjects.of_ledger, "x", of_ledgers["messages",], {}, deployment=Deployment())
    assert made(ledger=kept).state[0].startswith("Entries 2 and 3 are the same run on the same day")
    assert made(ledger=ledger_file.remove(path, 3, by="Ann")).state == ()


def test_no_belief_is_below_what_the_lower_end_of_epsilon_implies(found):
    for g in found.values():
        for prior, most in record.beliefs(g).items():
            odds = prior / (1.0 - prior) * math.exp(g.lower)
            assert odds / (1.0 + odds) * (1.0 - 1e-9) <= most <= 1.0


def test_assumptions_of_messages_that_are_not_declared_are_not_counted():
    """Of a plan for l2 and Gaussian messages: who has checked all that l2 needs has nothing left."""
    kinds = [guarantees(), guarantees(cj.Gaussian(noise_multiplier=3.0))]
    plan = subjects.of_plan("fleet", RUN, kinds, deployment=Deployment())
    name = plan.promises[0].name
    needed = dict.fromkeys(text for g in kinds[0].values() for text in g.assumptions)
    assert len(needed) < len(plan.assumptions)
    said = Deployment(
        view="messages",
        message=name,
        checked=tuple(Checked(assumption=text, by="Ann") for text in needed),
    )
    told = subjects.of_plan("fleet", RUN, kinds, deployment=said)
    assert told.confirmed == f"{len(needed)} of {len(needed)} assumptions are declared as checked, by Ann."
    open_yet = subjects.of_plan("fleet", RUN, kinds, deployment=dataclasses.replace(said, message=None))
    assert open_yet.confirmed.startswith(f"{len(needed)} of {len(plan.assumptions)} ")
