"""What a run refuses before its first round, and what it says then."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from stand_in import quick_account

import checkin_jax as cj
from checkin_jax import _progress

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

RUN = cj.training.PrivateRun(
    protocol=cj.ShuffledCheckIn(num_clients=50, check_in_prob=0.4, num_rounds=4),
    randomizer=cj.Gaussian(noise_multiplier=1.0),
)
RECORDS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def _loss(parameters, record):
    return jnp.sum((parameters["layer"]["w"] + record) ** 2)


def _train(folder, initial=0.0, **options):
    # The same loss each time, which compiles once.
    model = cj.training.Model(
        init=lambda key: {"layer": {"w": jnp.zeros(3), "b": jnp.full(3, initial)}}, loss=_loss
    )
    settings = {"eval_every": 2, "seed": 1, "account_fn": quick_account, **options}
    return cj.training.train(RUN, model, cj.training.Dataset(records=RECORDS), folder, **settings)


def test_evaluate_is_called_once_before_the_first_round(tmp_path):
    seen = []

    def evaluate(parameters):
        seen.append(np.asarray(parameters["layer"]["w"]))
        return {"first": seen[-1][0], "count": len(seen), "yes": True}

    logged = []
    _train(tmp_path / "run", evaluate=evaluate, on_round=logged.append)
    assert not seen[0].any()
    assert len(seen) == 3
    assert [line["count"] for line in logged if "count" in line] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("returned", "error", "told"),
    [
        (0.5, TypeError, "evaluate returned 0.5: expected names"),
        ([("x", 1.0)], TypeError, "expected names and a number for each"),
        ({1: 0.5}, TypeError, "expected names and a number for each"),
        ({"x": np.zeros(2)}, TypeError, "evaluate returned x=array"),
        ({"x": "0.5"}, TypeError, "evaluate returned x='0.5': expected a number"),
        ({"x": None}, TypeError, "evaluate returned x=None: expected a number"),
        ({"epsilon": 0.5}, ValueError, "metric 'epsilon'"),
    ],
)
def test_what_evaluate_must_not_return_is_refused_before_the_first_round(tmp_path, returned, error, told):
    rounds = []
    with pytest.raises(error, match=told):
        _train(tmp_path / "run", evaluate=lambda parameters: returned, on_round=rounds.append)
    assert not rounds
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b""


def test_a_target_that_evaluate_does_not_measure_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"target_accuracy=0\.5: expected an 'accuracy'"):
        _train(tmp_path / "run", evaluate=lambda parameters: {"x": 0.5}, target_accuracy=0.5)
    # No round was spent: the run may begin.
    found = _train(tmp_path / "run", evaluate=lambda parameters: {"accuracy": 0.5}, target_accuracy=0.5)
    assert found.rounds == 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_parameters_that_are_not_finite_are_refused_by_name(tmp_path, value):
    with pytest.raises(ValueError, match=r"initial parameters 'layer/b': expected finite numbers"):
        _train(tmp_path / "run", value, checkpoint_every=1)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize("value", [object(), math.nan, {1, 2}, {"deep": [math.inf]}])
def test_settings_that_json_cannot_hold_are_refused_by_name(tmp_path, value):
    with pytest.raises(ValueError, match=r"about=\{'x': .*expected plain values"):
        _train(tmp_path / "run", about={"x": value})
    with pytest.raises(ValueError, match="expected plain values"):
        _train(tmp_path / "run", about={1: "x"})
    assert not (tmp_path / "run").exists()


def test_one_line_says_that_training_goes_on_unless_it_is_told_otherwise(tmp_path, monkeypatch, capsys):
    class Impatient:
        """A timer that does not wait."""

        def __init__(self, patience, function, args):
            assert patience == _progress.PATIENCE
            self.start = lambda: function(*args)

        def cancel(self):
            pass

    monkeypatch.setattr("checkin_jax._progress.threading.Timer", Impatient)
    _train(tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert capsys.readouterr().err == f"checkin: training: up to 4 rounds; lines come to {metrics}\n"
    _train(tmp_path / "silent", verbose=False)
    _train(tmp_path / "watched", on_round=lambda line: None)
    assert capsys.readouterr().err == ""


def test_the_reader_of_mnist_is_public():
    from checkin_jax.training.examples import data

    assert "mnist" in dir(cj.training)
    assert cj.training.mnist is data.mnist
