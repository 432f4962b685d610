"""The trainer as a library: users and their records, optimizers, what a run leaves for use, what its report says."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from stand_in import quick_account

import checkin_jax as cj
from checkin_jax.reports import render
from checkin_jax.training.reports import run_page
from checkin_jax.training.reports.run_page import of_run

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

GAUSSIAN = cj.Gaussian(noise_multiplier=0.5)
RUN = cj.training.PrivateRun(
    protocol=cj.ShuffledCheckIn(num_clients=60, check_in_prob=0.5, num_rounds=6),
    randomizer=GAUSSIAN,
    clip_norm=1.0,
)
X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
TABLE = {"x": X, "y": (X @ np.array([1.0, -1.0, 0.5], np.float32)).astype(np.float32)}
DATA = cj.training.Dataset(records=TABLE, test=TABLE, name="a table")


def apply(parameters, x):
    return x @ parameters["in"]["weights"] + parameters["bias"]


def apply_error(parameters, record):
    return jnp.abs(apply(parameters, record["x"]) - record["y"])


MODEL = cj.training.Model(
    init=lambda key: {"in": {"weights": jnp.zeros(3, jnp.float32)}, "bias": jnp.zeros((), jnp.float32)},
    loss=lambda p, record: (apply(p, record["x"]) - record["y"]) ** 2,
    metrics=lambda p, record: {"error": apply_error(p, record)},
    apply=apply,
)


def train(folder, *, run=RUN, model=MODEL, data=DATA, **options):
    options = {"seed": 1, "account_fn": quick_account, "eval_every": 3, **options}
    return cj.training.train(run, model, data, folder, **options)


def metrics(**functions):
    """The model with other metrics."""
    return dataclasses.replace(
        MODEL, metrics=lambda p, record: {name: function(record) for name, function in functions.items()}
    )


# Users.


@pytest.mark.parametrize("kind", ["numbers", "words", "words of a table", "a column"])
def test_owners_are_numbers_words_or_a_column(kind):
    names = np.array(["eva", "ada", "eva", "ben", "eva", "ada"])
    owner = names if kind != "numbers" else np.array([7, -2, 7, 3, 7, -2])
    owner = owner.astype(object) if kind == "words of a table" else owner
    records = {"x": np.arange(6.0), "user": names}
    if kind == "a column":
        data = cj.training.Dataset(records=records, test=records, owner="user")
        assert set(data.records) == set(data.test) == {"x"}
        assert set(records) == {"x", "user"}, "the caller's own"
        np.testing.assert_array_equal(data.owner, names)
        again = dataclasses.replace(data, name="again")
        np.testing.assert_array_equal(again.owner, names)
    else:
        data = cj.training.Dataset(records=records["x"], owner=owner)
    rows = data.holdings(5, 3, None)[np.arange(3)]
    assert sorted(tuple(sorted(row[row >= 0].tolist())) for row in rows) == [(0, 2, 4), (1, 5), (3,)]


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ({"x": [1.0, 2.0]}, "got \\[0\\] .the numbers of a list"),
        ({"x": np.zeros(2), "name": np.array(["a", "b"])}, "records 'name' of type <U1: expected numbers"),
        ({"x": np.zeros(2), "when": np.zeros(2, "M8[s]")}, "records 'when' of type datetime64"),
        (np.array([[1], [1, 2]], dtype=object), "records of type object"),
        ({"id": np.array([1, 2**33])}, "records 'id': whole numbers from 1 to 8589934592, .* int32"),
        (np.array([0, 2**32], np.uint64), "records: whole numbers from 0 to 4294967296, .* uint32"),
        (
            {"x": np.array([[0, np.nan], [1, 2], [np.inf, np.nan]])},
            "records 'x': .* infinities in 2 of 3 rows",
        ),
        (jnp.array([0.0, np.nan]), "records: .* infinities in 1 of 2 rows"),
        (np.array([1e300]), "records: .* infinities in 1 of 1 rows"),  # in 32 bits
    ],
)
def test_columns_that_jax_cannot_hold_are_named(records, match):
    with pytest.raises((TypeError, ValueError), match=match):
        cj.training.Dataset(records=records)
    with pytest.raises((TypeError, ValueError), match=match.replace("records", "test")):
        cj.training.Dataset(records=np.zeros(2), test=records)


def test_whole_numbers_of_64_bits_that_fit_are_records():
    longest = np.array([-(2**31), 2**31 - 1])
    assert len(cj.training.Dataset(records={"y": longest, "u": np.array([0, 2**32 - 1], np.uint64)})) == 2


@pytest.mark.parametrize(
    ("records", "owner", "match"),
    [
        ({"x": np.zeros(2)}, "user", "owner='user': expected one of several columns"),
        ({"x": np.zeros(2)}, "x", "owner='x': expected one of several columns"),
        (np.zeros(2), "user", "owner='user'"),
        (np.zeros(2), np.array([0.5, 1.0]), "owner: expected 2 whole numbers or words"),
        ({"x": np.zeros(2), "user": np.zeros(2)}, "user", "owner: expected 2 whole numbers or words"),
        (np.zeros(2), np.array(["ada", None], object), "owner: expected 2 whole numbers or words"),
        (np.zeros(2), np.array(["ada", math.nan], object), "owner: expected 2 whole numbers or words"),
    ],
)
def test_owners_that_cannot_be_told_apart_are_refused(records, owner, match):
    with pytest.raises(ValueError, match=match):
        cj.training.Dataset(records=records, owner=owner)


def test_records_of_a_round_are_a_uniform_set_of_a_clients_own():
    rows = np.array([[4, 7, 9, 2], [5, 1, -1, -1], [3, -1, -1, -1], [-1, -1, -1, -1]])
    seen = collections.Counter()
    for index in range(600):
        drawn = DATA.drawn(11, index, rows, 2)
        assert drawn.shape == (4, 2)
        assert set(drawn[1]) == {5, 1}
        np.testing.assert_array_equal(drawn[2:], [[3, -1], [-1, -1]])
        seen[tuple(sorted(drawn[0].tolist()))] += 1
    # Six sets of equal chance: beyond 5 standard deviations once in a million seeds.
    assert len(seen) == 6
    assert all(abs(count - 100) < 5 * math.sqrt(600 * 5 / 36) for count in seen.values())
    # The same round of the same run draws the same, another entropy or round another.
    same, other, later = (
        DATA.drawn(e, i, np.tile(rows[:1], (50, 1)), 2) for e, i in ((3, 4), (5, 4), (3, 5))
    )
    np.testing.assert_array_equal(same, DATA.drawn(3, 4, np.tile(rows[:1], (50, 1)), 2))
    assert (same != other).any()
    assert (same != later).any()
    assert len({tuple(sorted(row)) for row in same.tolist()}) == 6, "clients draw by themselves"
    np.testing.assert_array_equal(DATA.drawn(3, 4, rows, 4), rows)
    np.testing.assert_array_equal(DATA.drawn(3, 4, np.arange(3), 1), np.arange(3))


def test_a_client_that_draws_its_records_anew_moves_by_those_of_the_round(tmp_path):
    """One client, one record a round, almost no noise: every step is the gradient at one record of its own."""
    data = cj.training.Dataset(records={"x": X[:4], "y": TABLE["y"][:4]}, owner=np.zeros(4, int))
    alone = cj.training.PrivateRun(
        protocol=cj.Shuffle(num_clients=1, num_rounds=25),
        randomizer=cj.Gaussian(noise_multiplier=1e-30),
        clip_norm=1e3,
    )
    path = []
    options = {"optimizer": optax.sgd(0.01), "on_model": lambda p: path.append(p)}
    train(tmp_path / "run", run=alone, data=data, records_per_round=1, **options)
    used = set()
    for before, after in itertools.pairwise(path):
        moved = [
            np.allclose(
                after["in"]["weights"], before["in"]["weights"] - 0.01 * g["in"]["weights"], atol=1e-6
            )
            for g in (jax.grad(MODEL.loss)(before, {"x": X[i], "y": TABLE["y"][i]}) for i in range(4))
        ]
        assert sum(moved) == 1
        used.add(moved.index(True))
    assert used == {0, 1, 2, 3}
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert about["records_per_round"] == 1


# What is refused before anything has run.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimizer": optax.contrib.reduce_on_plateau()}, "optimizer: cannot step .*value"),
        ({"optimizer": 0.1}, "optimizer=0.1: expected an optax transformation"),
        ({"optimizer": optax.lookahead(optax.sgd(0.1), 2, 0.5)}, "optimizer: cannot step .*fast"),
        ({"model": dataclasses.replace(MODEL, init=lambda key: {})}, "parameters: expected at least one"),
        ({"model": metrics(x=lambda record: record["x"])}, "metrics of one record .*a scalar for each"),
        (
            {"model": dataclasses.replace(MODEL, metrics=apply_error)},
            "metrics of one record .*a scalar for each",
        ),
        ({"model": metrics(epsilon=lambda record: record["y"])}, "metric 'epsilon': expected another name"),
        ({"target_accuracy": 0.9}, "target_accuracy=0.9: expected an 'accuracy' among metrics"),
        ({"data": TABLE}, "dataset="),
        ({"model": apply}, "model="),
        ({"records_per_round": 0}, "records_per_round=0"),
        (
            {"client_update": cj.training.ClientUpdate(lambda p, r, w: jax.lax.pmean(p, "clients"))},
            "the update of one client communicates with other clients",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_there_is_a_folder(tmp_path, options, match):
    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises((TypeError, ValueError), match=match),
    ):  # optax's
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            {"model": dataclasses.replace(MODEL, loss=lambda p, record: record["x"][0, 0])},
            "the loss of one record: given {'x': 'float32[3]', 'y': 'float32[]'}",
        ),
        (
            {"data": dataclasses.replace(DATA, test={"x": X[:, :2], "y": TABLE["y"]})},
            "the metrics of one record of the test set: given {'x': 'float32[2]', 'y': 'float32[]'}",
        ),
    ],
)
def test_errors_of_the_users_own_functions_say_what_they_were_given(tmp_path, options, note):
    with pytest.raises((IndexError, TypeError)) as caught:
        train(tmp_path / "run", **options)
    assert caught.value.__notes__[-1] == note
    assert not (tmp_path / "run").exists()


# What a run leaves.


def test_parameters_and_what_they_are_used_for_come_back(tmp_path):
    train(tmp_path / "run", optimizer=optax.sgd(0.1))
    parameters = cj.training.load(tmp_path / "run", MODEL)
    plain = cj.training.load(tmp_path / "run")
    assert jax.tree.structure(plain) == jax.tree.structure(parameters)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(plain))
    jax.tree.map(np.testing.assert_array_equal, plain, parameters)
    predict = cj.training.predictor(tmp_path / "run", MODEL)
    np.testing.assert_allclose(predict(X), apply(parameters, X), rtol=1e-6)
    with pytest.raises(ValueError, match="expected one with `apply`"):
        cj.training.predictor(tmp_path / "run", dataclasses.replace(MODEL, apply=None))


def test_a_finished_run_that_is_resumed_has_finished_and_another_one_is_refused(tmp_path):
    train(tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(cj.training.FinishedError, match="this run has finished"):
        train(tmp_path / "run", resume=True)
    with pytest.raises(cj.training.ResumeError, match="eval_every differ") as other:
        train(tmp_path / "run", resume=True, eval_every=2)
    assert not isinstance(other.value, cj.training.FinishedError)
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == files


def stop_after(number):
    def stop(line):
        if line["round"] == number:
            raise KeyboardInterrupt

    return stop


def test_an_interrupted_run_without_checkpoints_has_not_finished(tmp_path):
    train(tmp_path / "run", on_round=stop_after(2))
    with pytest.raises(cj.training.ResumeError, match="interrupted and has no checkpoints") as error:
        train(tmp_path / "run", resume=True)
    assert not isinstance(error.value, cj.training.FinishedError)


# What the report says.


def test_the_report_says_what_is_public_what_costs_nothing_and_how_settings_were_chosen(tmp_path):
    by_rule = train(tmp_path / "rule")
    silent = train(tmp_path / "silent", optimizer=optax.sgd(0.1))
    told = train(tmp_path / "told", optimizer=optax.sgd(0.1), tuning="as in an earlier study")
    for report in (by_rule, silent, told):
        assert "  test set   is public" in str(report)
        assert "post-processing costs no privacy" in str(report)
    assert "  tuning     learning rate by a rule of thumb" in str(by_rule)
    assert "  tuning     how optimizer and settings were chosen was not stated" in str(silent)
    assert "  tuning     as in an earlier study" in str(told)
    for wrong in ("", " ", 3):
        with pytest.raises(ValueError, match=r"tuning=.*: expected a text that is not empty"):
            train(tmp_path / "wrong", tuning=wrong)
    for wrong in ({"init": 3, "loss": len}, {"init": len, "loss": None}):
        with pytest.raises(TypeError, match=r"(init=3|loss=None): expected a function"):
            cj.training.Model(**wrong)
    read = cj.training.read(tmp_path / "told")
    assert read.about["tuning"] == "as in an earlier study"
    record = render.plain(of_run(read, quick_account), attack=False)
    assert record["tuning"]["stated"] == "as in an earlier study"
    shown = render.as_text(record)
    assert "Stated: as in an earlier study." in shown
    assert "post-processing costs no privacy" in shown
    assert "  test set " not in str(dataclasses.replace(told, metrics={}))


def test_a_run_that_ended_early_leads_with_all_planned_rounds_everywhere(tmp_path):
    folder = tmp_path / "run"
    report = train(folder, on_round=stop_after(2))
    # 2 of 6 rounds; the stand-in's epsilon is .002 a round in view messages.
    assert report.guarantees["messages"].epsilon == pytest.approx(0.004)
    assert report.leading["messages"].epsilon == pytest.approx(0.012)
    text = (folder / "report.txt").read_text()
    _, planned = text.split("Over all 6 planned rounds")
    planned, ran = planned.split("Over the 2 rounds that ran")
    assert "0.012" in planned
    assert "0.004" not in planned
    assert "epsilon <= 0.004" in ran
    stored = json.loads((folder / "report.json").read_text())
    assert stored["epsilon"] == pytest.approx({"local": 0.018, "messages": 0.012, "aggregate": 0.006})
    read = cj.training.read(folder)
    page = run_page.build(read, quick_account)
    assert page.index(">0.012<") < page.index("epsilon at most 0.004")
    values = render.plain(of_run(read, quick_account), attack=False)
    for form in ("text", "model-card"):
        shown = render.FORMATS[form](values)
        assert shown.index("at most 0.012") < shown.index("at most 0.004")
    entry = json.loads(render.as_registry(values))
    assert [each["epsilon"] for each in entry["dp_flavors"]] == pytest.approx([0.018, 0.012, 0.006])


def test_a_whole_run_leads_with_its_own_figures(tmp_path):
    report = train(tmp_path / "run")
    assert report.leading == report.guarantees
    assert "Over all" not in str(report)
    assert report.as_dict()["epsilon"]["messages"] == pytest.approx(0.012)
    assert "that ran:" not in run_page.build(cj.training.read(tmp_path / "run"), quick_account)


def test_a_run_that_its_budget_ended_leads_with_what_ran(tmp_path):
    """How many rounds fit was known before the first one, so nothing was chosen by looking."""
    run = dataclasses.replace(RUN, target_epsilon=0.007)
    report = train(tmp_path / "run", run=run)
    assert report.rounds == 3
    assert report.leading["messages"].epsilon == pytest.approx(0.006)
    read = cj.training.read(tmp_path / "run")
    assert "that ran:" not in run_page.build(read, quick_account)
    assert render.plain(of_run(read, quick_account), attack=False)["guarantees_of_all_planned_rounds"] == []


def test_a_fleet_that_ended_early_states_the_rates_of_what_it_leads_with(tmp_path):
    rates = cj.Rates([0.2, 0.6], [30, 30])
    protocol = cj.ShuffledCheckIn(num_clients=60, check_in_prob=rates, num_rounds=6)
    run = dataclasses.replace(RUN, protocol=protocol)
    report = train(tmp_path / "run", run=run, on_round=stop_after(2))
    assert report.planned
    assert report.by_rate["messages"][0].epsilon == report.leading["messages"].epsilon
    values = render.plain(of_run(cj.training.read(tmp_path / "run"), quick_account), attack=False)
    (first, *_), none = (
        values[name][1]["by_rate"] for name in ("guarantees_of_all_planned_rounds", "guarantees")
    )
    assert first["epsilon"] == values["guarantees_of_all_planned_rounds"][1]["epsilon"]
    assert none == []
