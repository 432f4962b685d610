"""Runs with a budget: they end before the round that would exceed it, resumed or not, and their ledger can be read."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from stand_in import image_training, quick_account

from checkin_jax import cli
from checkin_jax.protocols import FixedWindow, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian
from checkin_jax.training.budget import budget_of
from checkin_jax.training.examples import data, networks
from checkin_jax.training.reports import recorded, run_page
from checkin_jax.training.runs.run_directory import ResumeError

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

CHECK_IN = ShuffledCheckIn(num_clients=1_000, check_in_prob=0.03, num_rounds=12)


def config(protocol=CHECK_IN, **others):
    settings = {"seed": 1, "momentum": 0.5, "averaging": 0.5, "eval_every": 3, **others}
    return image_training(protocol=protocol, randomizer=Gaussian(noise_multiplier=2.0), **settings)


def train(folder, settings, on_round=None, **options):
    return networks.train(settings, data.digits(), folder, on_round, account_fn=quick_account, **options)


def parameters(folder):
    with np.load(folder / "parameters.npz") as arrays:
        return b"".join(arrays[name].tobytes() for name in arrays.files)


class KilledError(Exception):
    """Stands in for a kill."""


@pytest.mark.parametrize(
    ("protocol", "target", "rounds"),
    [
        (CHECK_IN, 0.0141, 7),
        (FixedWindow(num_clients=40, num_slots=20, num_epochs=4, minibatch=8), 0.0041, 6),
    ],
    ids=["rounds", "windows"],
)
def test_a_run_that_halts_is_the_run_that_planned_so_few_rounds(tmp_path, protocol, target, rounds):
    report = train(tmp_path / "run", config(protocol, target_epsilon=target))
    units = report.units
    fewer = train(tmp_path / "fewer", config(protocol.repeated(units)))
    assert report.rounds == fewer.rounds == rounds
    assert parameters(tmp_path / "run") == parameters(tmp_path / "fewer")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        tmp_path / "fewer" / "metrics.jsonl"
    ).read_bytes()
    assert {view: g.epsilon for view, g in report.guarantees.items()} == {
        view: g.epsilon for view, g in fewer.guarantees.items()
    }
    # It says so, and looking at results had no part in it.
    assert f"would exceed epsilon {target:g} in view 'messages'" in report.stopped
    (note,) = [note for note in report.notes() if "ended after" in note]
    assert "fixed before the first round" in note
    assert not report.planned
    assert report.guarantees["messages"].epsilon <= target
    assert note in run_page.build(recorded.read(tmp_path / "run"), quick_account).replace("&#39;", "'")


def test_lines_that_report_say_what_is_spent_in_every_view(tmp_path):
    before = [(CHECK_IN.repeated(5), Gaussian(noise_multiplier=1.0))]
    train(tmp_path / "run", config(target_epsilon=0.0241, before=before))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["round"] for line in lines if "spent" in line] == [3, 6, 7]
    for line in lines:
        if "spent" in line:
            spent = {"local": 3e-3, "messages": 2e-3, "aggregate": 1e-3}
            assert line["spent"] == pytest.approx({v: f * (line["round"] + 5) for v, f in spent.items()})
            assert line["spent"]["messages"] == line["epsilon"]
            assert line["spent_lower"] == pytest.approx({v: x / 2 for v, x in line["spent"].items()})


def test_a_run_is_not_resumed_with_another_target(tmp_path):
    def kill(line):
        raise KilledError

    with pytest.raises(KilledError):
        train(tmp_path / "run", config(target_epsilon=0.0161), kill, checkpoint_every=2)
    with pytest.raises(ResumeError, match=r"target_epsilon was 0.0161, is 0.5.*theory_filters"):
        train(tmp_path / "run", config(target_epsilon=0.5), checkpoint_every=2, resume=True)


def test_a_run_stopped_earlier_by_results_is_covered_by_all_rounds_that_fit(tmp_path):
    report = train(tmp_path / "run", config(target_epsilon=0.0161, target_accuracy=1e-9))
    assert report.rounds == 3
    assert report.stopped.startswith("reached accuracy")
    assert report.planned["messages"].epsilon == pytest.approx(0.016)
    assert any("the figures to quote are those of the 8 rounds that fit" in note for note in report.notes())


def test_a_run_after_one_that_a_result_stopped_counts_all_its_planned_rounds(tmp_path):
    report = train(tmp_path / "one", config(target_accuracy=1e-9))
    ledger = recorded.read(tmp_path / "one").spent
    assert report.rounds == 3
    assert ledger == ((CHECK_IN, Gaussian(noise_multiplier=2.0)),)
    both = train(tmp_path / "two", config(CHECK_IN.repeated(1), before=ledger), after=tmp_path / "one")
    # 12 planned rounds, though 3 ran, and 1 more: together at least what the first run's own report quotes.
    assert both.guarantees["messages"].epsilon == pytest.approx(2e-3 * 13)
    assert both.guarantees["messages"].epsilon > report.planned["messages"].epsilon


def test_the_ledger_is_read_while_the_run_goes_on(tmp_path):
    folder, seen = tmp_path / "run", []

    def look(line):
        if line["round"] in (1, 5):
            # What another process may meet: a line that is being written.
            with (folder / "metrics.jsonl").open("ab") as stream:
                stream.write(b'{"round": 9')
            try:
                seen.append(budget_of(recorded.read(folder), quick_account))
            finally:
                content = (folder / "metrics.jsonl").read_bytes()
                with (folder / "metrics.jsonl").open("r+b") as stream:
                    stream.truncate(len(content) - len(b'{"round": 9'))

    train(folder, config(target_epsilon=0.0161), look)
    assert [(each.rounds, each.rounds_within, each.ended) for each in seen] == [(1, 8, None), (5, 8, None)]
    assert seen[1].left == pytest.approx(0.0161 - 0.01)
    assert "5 of 8 logged (12 planned)" in str(seen[1])
    done = budget_of(recorded.read(folder), quick_account)
    assert done.ended is not None
    assert "would exceed" in done.ended
    assert done.spent == done.whole
    assert done.as_dict()["spent"]["aggregate"] == pytest.approx(0.008)


def test_a_run_that_has_not_begun_has_spent_what_ran_before(tmp_path):
    before = [
        (CHECK_IN.repeated(2), Gaussian(noise_multiplier=1.0)),
        (CHECK_IN.repeated(3), Gaussian(noise_multiplier=4.0)),
    ]
    for earlier, spent in ((before, 0.01), ([], None)):
        folder = tmp_path / str(spent)

        def stop(line):
            raise KilledError

        with pytest.raises(KilledError):
            train(folder, config(target_epsilon=0.0201, before=earlier), stop)
        (folder / "metrics.jsonl").write_bytes(b"")
        found = budget_of(recorded.read(folder), quick_account)
        assert found.rounds == 0
        assert found.run_dir == folder
        assert found.left == pytest.approx(0.0201 - (spent or 0.0))
        assert found.spent == {} if spent is None else found.spent["messages"].epsilon == pytest.approx(spent)


def test_a_run_goes_on_with_other_parameters_and_one_ledger(tmp_path):
    train(tmp_path / "one", config(target_epsilon=0.0081))
    ledger = recorded.read(tmp_path / "one").spent
    assert ledger == ((CHECK_IN.repeated(4), Gaussian(noise_multiplier=2.0)),)
    other = ShuffledCheckIn(num_clients=1_000, check_in_prob=0.06, num_rounds=9)
    settings = config(other, before=ledger, target_epsilon=0.0141)
    first = []
    report = train(
        tmp_path / "two", settings, after=tmp_path / "one", on_model=lambda p: first or first.append(p)
    )
    assert report.rounds == 3
    # It begins with the parameters that the first run left.
    with np.load(tmp_path / "one" / "parameters.npz") as arrays:
        left = np.sort(np.concatenate([arrays[name].ravel() for name in arrays.files]))
    begun = np.sort(np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(first[0])]))
    assert np.array_equal(left, begun)
    assert report.guarantees["messages"].epsilon == pytest.approx(2e-3 * 7)
    two = recorded.read(tmp_path / "two")
    assert two.spent == (*ledger, (other.repeated(3), Gaussian(noise_multiplier=2.0)))
    # What is said to be spent names the first run.
    budget = budget_of(two, quick_account)
    first_run = "over 4 rounds of check-ins at rate 0.03; Gaussian noise of 2 clip norms per message"
    assert f"\n  counts too {first_run}\n" in str(budget)
    assert budget.as_dict()["before"] == (first_run,)


def test_the_commands_halt_with_exit_code_0_and_read_the_ledger(tmp_path, capsys):
    folder = tmp_path / "run"
    options = "--num-clients 1000 --num-rounds 40 --check-in-prob .05 --epsilon0 1 --mechanism any"
    train = ["train", "digits", *options.split(), "--target-view", "local", "--seed", "1"]
    cli.main([*train, "--run-dir", str(folder), "--target-epsilon", "4"])
    shown = capsys.readouterr().out
    assert "would exceed epsilon 4 in view 'local'" in shown
    cli.main(["budget", str(folder)])
    assert "epsilon 4 in view 'local'" in capsys.readouterr().out
    cli.main(["budget", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == found["rounds_within"] < found["rounds_planned"] == 40
    assert 0 <= found["left"] < 1
    assert found["spent"]["local"] <= 4
    with pytest.raises(SystemExit) as stop:
        cli.main([*train, "--run-dir", str(tmp_path / "none"), "--target-epsilon", "0.1"])
    assert stop.value.code == 2
    assert "the epsilon of one round in view 'local'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    with pytest.raises(SystemExit) as stop:
        cli.main(["budget", str(tmp_path)])
    assert stop.value.code == 2
