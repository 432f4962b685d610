"""Losses and updates of one's own through `train`: several records a step, clients' coins, the same bits resumed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stand_in import quick_account

import checkin_jax as cj

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

RNG = np.random.default_rng(0)
TABLE = {"x": RNG.normal(size=(200, 4)).astype(np.float32), "y": RNG.normal(size=200).astype(np.float32)}
PROTOCOL = cj.ShuffledCheckIn(num_clients=50, check_in_prob=0.4, num_rounds=6)
RUN = cj.training.PrivateRun(protocol=PROTOCOL, randomizer=cj.Gaussian(noise_multiplier=1.0), clip_norm=0.5)


def squared(parameters, record):
    return (record["x"] @ parameters["w"] - record["y"]) ** 2


def dropped(parameters, record, key):
    """The squared error with half of the inputs left out by the client's coins."""
    kept = jax.random.bernoulli(key, 0.5, record["x"].shape)
    return squared(parameters, {**record, "x": jnp.where(kept, 2.0 * record["x"], 0.0)})


def coin_of_client(parameters, records, weights, key):
    return {"w": jax.random.normal(key, parameters["w"].shape)}


class _KilledError(Exception):
    pass


def _train(folder, update=None, loss=squared, stop_after=None, **options):
    def kill(line):
        if line["round"] == stop_after:
            raise _KilledError

    model = cj.training.Model(init=lambda key: {"w": jax.random.normal(key, (4,))}, loss=loss)
    return cj.training.train(
        RUN,
        model,
        cj.training.Dataset(records=TABLE),
        folder,
        client_update=update,
        seed=5,
        eval_every=3,
        on_round=kill,
        account_fn=quick_account,
        **options,
    )


def _outcome(folder):
    return cj.training.load(folder)["w"].tobytes(), (folder / "metrics.jsonl").read_bytes()


UPDATES = {
    "local steps on 2 of 4 records": {
        "update": cj.training.local_steps(squared, learning_rate=0.1, steps=2, batch=2),
        "records_per_client": 4,
        "records_per_round": 2,
    },
    "a loss with coins on several records": {"loss": dropped, "records_per_client": 3},
    "local steps with coins": {
        "update": cj.training.local_steps(dropped, learning_rate=0.1, steps=3, batch=1),
        "records_per_client": 2,
    },
    "an update with coins": {"update": cj.training.ClientUpdate(coin_of_client)},
}


@pytest.mark.parametrize("settings", UPDATES.values(), ids=UPDATES.keys())
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, settings):
    _train(tmp_path / "whole", **settings)
    with pytest.raises(_KilledError):
        _train(tmp_path / "run", stop_after=3, checkpoint_every=2, **settings)
    _train(tmp_path / "run", resume=True, **settings)
    assert _outcome(tmp_path / "run") == _outcome(tmp_path / "whole")


def test_a_batch_must_divide_the_records_that_a_client_uses(tmp_path):
    update = cj.training.local_steps(squared, learning_rate=0.1, steps=2, batch=2)
    with pytest.raises(ValueError, match="batch=2: expected a divisor of the 3 records"):
        _train(tmp_path / "run", update, records_per_client=6, records_per_round=3)
    assert not (tmp_path / "run").exists()


def test_a_run_on_other_batches_is_another_run(tmp_path):
    def steps(batch):
        return cj.training.local_steps(squared, learning_rate=0.1, steps=2, batch=batch)

    with pytest.raises(_KilledError):
        _train(tmp_path / "run", steps(2), stop_after=3, checkpoint_every=2, records_per_client=4)
    with pytest.raises(cj.training.ResumeError, match=r"\(program\) differs"):
        _train(tmp_path / "run", steps(4), resume=True, records_per_client=4)


def test_coins_change_what_is_trained_and_no_coins_change_nothing(tmp_path):
    def ignoring(parameters, record, key):
        return squared(parameters, record)

    general = cj.training.Performance(gradients="general")
    outcomes = []
    for number, loss in enumerate((squared, ignoring, dropped)):
        _train(tmp_path / str(number), loss=loss, performance=general)
        outcomes.append(_outcome(tmp_path / str(number))[0])
    assert outcomes[0] == outcomes[1] != outcomes[2]


@pytest.mark.parametrize("loss", [squared, lambda p, record, scale=1.0: scale * squared(p, record)])
def test_a_third_argument_with_a_default_is_left_alone(tmp_path, loss):
    _train(tmp_path / "run", loss=loss)
    _train(tmp_path / "other")
    assert _outcome(tmp_path / "run") == _outcome(tmp_path / "other")


def test_a_loss_with_coins_is_not_differentiated_layer_by_layer(tmp_path):
    with pytest.raises(ValueError, match="gradients='layers': expected a loss of two arguments"):
        _train(tmp_path / "run", loss=dropped, performance=cj.training.Performance(gradients="layers"))


def test_an_update_that_is_none_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"client_update=.*squared"):
        _train(tmp_path / "run", squared)
    assert not (tmp_path / "run").exists()
