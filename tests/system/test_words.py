"""One source of words: statements, JSON, pages and audits name the adversary and the neighbors as the protocol does."""

import dataclasses
import html
import json
import re

import pytest

import checkin_jax as cj
from checkin_jax.accounting.bounds.select import check_relation, unit_bound
from checkin_jax.accounting.bounds.table import BOUNDS
from checkin_jax.auditing.auditor import Audit, Finding
from checkin_jax.protocols import PROTOCOLS, RELATIONS, VIEWS
from checkin_jax.reports import render
from checkin_jax.training.reports import recorded, run_page
from checkin_jax.training.reports.run_page import of_run
from checkin_jax.training.run import PrivateRun

PURE = cj.PureLDP(epsilon0=1.0)
RUNS = [
    cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.1, num_rounds=4),
    cj.Shuffle(num_clients=300, num_rounds=4),
    cj.FixedWindow(num_clients=300, num_slots=4),
    cj.FixedWindow(num_clients=300, num_slots=4, empty_slots="visible"),
    cj.SlidingWindow(num_clients=303, window=300),
    cj.FixedWindow(num_clients=300, num_slots=4, minibatch=2),
    cj.FixedWindow(num_clients=300, num_slots=4, empty_slots="visible", minibatch=2),
    cj.SlidingWindow(num_clients=303, window=300, minibatch=2),
    cj.AveragedUpdates(num_clients=300, num_slots=4),
]
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: type(run).__name__)


def test_every_protocol_is_here():
    assert {type(run) for run in RUNS} == set(PROTOCOLS)


def supported(run, view, relation):
    try:
        check_relation(run, view, relation)
    except ValueError:
        return False
    return True


@every_run
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("view", VIEWS)
def test_statement_and_json_speak_as_the_protocol_does(run, view, relation):
    if not supported(run, view, relation):
        with pytest.raises(ValueError, match="neighboring_relation"):
            cj.account(run, PURE, delta=1e-6, view=view, neighboring_relation=relation, bounds="fast")
        return
    g = cj.account(run, PURE, delta=1e-6, view=view, neighboring_relation=relation, bounds="fast")
    said = g.as_dict()
    assert (said["against"], said["compared"]) == (run.observed(view), run.compared(relation))
    assert f"  against    {run.observed(view)}\n" in str(g)
    assert f"  adjacency  {relation}: {run.compared(relation)}\n" in str(g)


@every_run
def test_relations_have_words_where_they_have_bounds_and_nowhere_else(run):
    for relation in RELATIONS:
        if any(supported(run, view, relation) for view in VIEWS):
            assert run.compared(relation)
        else:
            with pytest.raises(ValueError, match=f"neighboring_relation='{relation}': expected"):
                run.compared(relation)


def test_the_words_tell_protocols_apart_as_what_is_seen_does():
    shuffled, shuffle, fixed, visible, sliding, fixed_sums, visible_sums, sliding_sums, averaged = RUNS
    assert shuffled.observed("messages") == shuffle.observed("messages")
    assert fixed.observed("messages") == sliding.observed("messages")
    for run in (fixed, visible, sliding):
        assert "no other message" in run.observed("messages")
        assert "every" not in run.observed("messages")
    for view in ("messages", "aggregate"):
        assert "which slots are empty" in visible.observed(view)
        assert "empty" not in fixed.observed(view)
        assert len({run.observed(view) for run in (shuffled, fixed, visible, averaged)}) == 4
    for run in (fixed_sums, visible_sums, sliding_sums):
        assert "sums of the messages used in 2 successive slots" in run.observed("aggregate")
        assert "no single message" in run.observed("aggregate")
        assert run.observed("messages") == dataclasses.replace(run, minibatch=1).observed("messages")
    assert "which slots are empty" in visible_sums.observed("aggregate")
    assert len({run.observed("local") for run in RUNS}) == 1


@pytest.mark.parametrize("given", ["everything", "", None, 1])
def test_other_views_and_relations_are_refused(given):
    with pytest.raises((ValueError, TypeError), match="view="):
        RUNS[0].observed(given)
    with pytest.raises((ValueError, TypeError), match="neighboring_relation="):
        RUNS[2].compared(given)


NOISY, NUMBERS = cj.Gaussian(noise_multiplier=2.0), cj.Laplace(epsilon0=1.0)


@every_run
@pytest.mark.parametrize("randomizer", [PURE, NOISY, NUMBERS], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("view", VIEWS)
def test_theorems_and_caveats_speak_of_what_the_view_shows(run, randomizer, view):
    quick = unit_bound(run, randomizer, view, 4, 1e-6, bounds="fast")
    alone = [quick._replace(rows=(each,)) for each in BOUNDS if each.caveat and each.build(quick.unit)]
    for chosen in (quick, *(alone if view != "local" else ())):
        said_as_seen(chosen, run, randomizer, view)


def said_as_seen(chosen, run, randomizer, view):
    told = " ".join((*chosen.caveats, *chosen.stated))
    adds_up = view == "aggregate" and run.summed and randomizer == NOISY
    if view == "local":
        assert not told
    elif adds_up:
        # The sum is all there is: no shuffling is left out of account.
        assert "shuffling" not in told
        assert "a sum whose noise adds up" in told
        assert not chosen.caveats
    if "counts no gain from shuffling" in told:
        assert ("or from summation" in told) == (view == "aggregate")
    if "only subsampling" in told:
        summed = view == "aggregate" and getattr(run, "minibatch", 1) > 1
        assert ("smaller for sums of slots" in told) == summed


def test_a_bound_for_a_stronger_adversary_rests_on_no_theorem_about_a_weaker_one():
    run = cj.Shuffle(num_clients=300, num_rounds=4)
    g = cj.account(run, NOISY, delta=1e-6, bounds="fast")
    assert g.method.startswith(cj.account(run, NOISY, delta=1e-6, view="local").method.partition(",")[0])
    assert not g.theorems
    assert any("no gain from hiding" in warning for warning in g.warnings)


def folder_of(run, folder):
    """A run directory as the trainer leaves it after a kill."""
    private = PrivateRun(protocol=run, randomizer=PURE)
    about = {**private.as_dict(), "eval_every": 4, "seed": 7, "dataset": "digits", "jax": "0.0"}
    (folder / "config.json").write_text(json.dumps(about))
    lines = [{"round": index + 1, "check_ins": 1} for index in range(private.schedule.num_rounds)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@every_run
def test_the_page_speaks_as_the_statement_does(run, tmp_path):
    read = recorded.read(folder_of(run, tmp_path))
    top = html.unescape(run_page.build(read)).partition('<h2 id="words">')[0]
    statement = render.as_text(render.plain(of_run(read), attack=False))
    for view in VIEWS:
        # In the table and, of all that anybody may say about an adversary, nothing else.
        assert f">{run.observed(view)}<br><small>view {view}</small>" in top
        assert run.observed(view) in statement
    seen = {run.observed(view) for view in VIEWS}
    for words in re.findall("somebody who sees[^<;(:]*", top):
        assert any(each.startswith(words.strip(" .,")) for each in seen), words
    assert run.compared("replace-one") in top
    assert run.compared("replace-one") in statement


@every_run
def test_an_audit_speaks_as_the_statement_does(run):
    findings = [
        Finding(
            test="many runs",
            view=view,
            protocol=run,
            delta=1e-6,
            lower=0.0,
            guarantee=cj.account(run, PURE, delta=1e-6, view=view, bounds="fast"),
            evidence="none",
        )
        for view in VIEWS
    ]
    private = PrivateRun(protocol=run, randomizer=PURE)
    found = Audit(
        run=private, findings=tuple(findings), confidence=0.9, runs=20, seed=1, seconds=1.0, notes=()
    )
    for view, said in zip(VIEWS, found.as_dict()["findings"]):
        assert (said["against"], said["compared"]) == (run.observed(view), run.compared("replace-one"))
        assert f"  against    {run.observed(view)}\n" in str(found)
