"""The loop and what it leaves behind: arithmetic of a step, early ends, the run directory and the report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stand_in import image_training, quick_account

from checkin_jax.protocols import AveragedUpdates, FixedWindow, Shuffle, ShuffledCheckIn, SlidingWindow
from checkin_jax.randomizers import Gaussian
from checkin_jax.reports import render
from checkin_jax.training import budget, draws, loop
from checkin_jax.training.examples import data, networks
from checkin_jax.training.model import named_arrays
from checkin_jax.training.reports import recorded, report
from checkin_jax.training.reports.run_page import of_run
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.runs.run_directory import RunDirectory
from checkin_jax.training.server import suggested_learning_rate

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

NOISELESS = Gaussian(noise_multiplier=1e-30)


def _config(n=1_000, prob=0.05, rounds=3, randomizer=None, protocol=None, **others) -> networks.ImageTraining:
    protocol = protocol or ShuffledCheckIn(num_clients=n, check_in_prob=prob, num_rounds=rounds)
    settings = {"seed": 1, "decay": "constant", "eval_every": 1_000, **others}
    return image_training(
        protocol=protocol, randomizer=randomizer or Gaussian(noise_multiplier=2.0), **settings
    )


def _run(config, folder, on_round=None, account_fn=quick_account, **options) -> report.Report:
    return networks.train(config, data.digits(), folder, on_round, account_fn=account_fn, **options)


def _parameters(folder) -> dict[str, np.ndarray]:
    with np.load(folder / "parameters.npz") as arrays:
        return dict(arrays)


def _flat(folder) -> np.ndarray:
    return np.concatenate([array.ravel() for array in _parameters(folder).values()]).astype(np.float64)


def _train(folder, **settings) -> np.ndarray:
    _run(_config(**settings), folder)
    return _flat(folder)


def _metrics(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _initial(seed=1) -> np.ndarray:
    key = draws.jax_key(seed, draws.Stream.INITIAL_PARAMETERS)
    arrays = named_arrays(networks.functional(networks.build(8, key))[0])
    return np.concatenate([array.ravel() for array in arrays.values()]).astype(np.float64)


def test_private_training_learns_the_digits(tmp_path):
    config = _config(1_437, 0.5, 40, Gaussian(noise_multiplier=0.3), learning_rate=8.0)
    result = _run(config, tmp_path / "run")
    assert result.accuracy > 0.7
    noisy = _config(1_437, 0.5, 40, Gaussian(noise_multiplier=100.0), learning_rate=8.0)
    assert _run(noisy, tmp_path / "noisy").accuracy < 0.5


def _clipped_sum(chosen, clip_norm=0.1) -> np.ndarray:
    """The sum of the clipped gradients of these clients at the initial parameters, by plain vmap."""
    digits = data.digits()
    held = draws.client_records(1, 1_000, 1_437)[chosen]
    key = draws.jax_key(1, draws.Stream.INITIAL_PARAMETERS)
    parameters, apply = networks.functional(networks.build(8, key))

    def loss(parameters, image, label):
        return networks.cross_entropy(apply(parameters, image), label)

    images = jnp.asarray(digits.train_images[held], jnp.float32)[..., None] / 16
    labels = jnp.asarray(digits.train_labels[held], jnp.int32)
    rows = jax.vmap(jax.grad(loss), (None, 0, 0))(parameters, images, labels)
    rows = np.concatenate([array.reshape(len(held), -1) for array in named_arrays(rows).values()], axis=1)
    return (rows * np.minimum(1, clip_norm / np.linalg.norm(rows, axis=1, keepdims=True))).sum(0)


def test_a_step_divides_by_the_expected_count_never_by_the_realised_one(tmp_path):
    moved = _train(tmp_path / "run", rounds=1, randomizer=NOISELESS, learning_rate=2.0) - _initial()
    protocol = ShuffledCheckIn(num_clients=1_000, check_in_prob=0.05)
    chosen = draws.participants(1, protocol, 0)
    assert len(chosen) != 50
    np.testing.assert_allclose(moved, -2.0 * _clipped_sum(chosen) / 50, atol=3e-7)


def test_momentum_averaging_and_decay_do_what_they_say(tmp_path):
    common = {"randomizer": NOISELESS, "learning_rate": 2.0}
    plain = [_initial()] + [_train(tmp_path / f"p{t}", rounds=t, **common) for t in (1, 2, 3, 4)]
    with_momentum = _train(tmp_path / "m", rounds=2, momentum=0.5, **common)
    np.testing.assert_allclose(with_momentum - plain[2], 0.5 * (plain[1] - plain[0]), atol=1e-6)
    averaged = _train(tmp_path / "a", rounds=4, averaging=0.5, **common)
    np.testing.assert_allclose(averaged, (plain[3] + plain[4]) / 2, atol=1e-6)
    decayed = _train(tmp_path / "d", rounds=2, decay="linear", **common)
    np.testing.assert_allclose(decayed - plain[1], 0.5 * (plain[2] - plain[1]), atol=1e-6)


def test_empty_rounds_change_nothing_and_are_counted(tmp_path):
    result = _run(_config(2, 1e-6, 5, momentum=0.9), tmp_path / "run")
    np.testing.assert_array_equal(_flat(tmp_path / "run"), _initial())
    assert result.rounds == 5
    assert [line["check_ins"] for line in _metrics(tmp_path / "run")] == [0] * 5


def test_a_run_directory_is_complete_and_consistent(tmp_path):
    folder = tmp_path / "runs" / "one"
    lines = []
    result = _run(_config(rounds=5, eval_every=2), folder, lines.append)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "parameters.npz", "report.json", "report.txt"}
    assert _metrics(folder) == lines
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    protocol = result.run.protocol
    assert [line["check_ins"] for line in lines] == [
        len(draws.participants(1, protocol, t)) for t in range(5)
    ]
    assert [line["round"] for line in lines if "accuracy" in line] == [2, 4, 5]
    assert all(line["epsilon_lower"] <= line["epsilon"] for line in lines if "accuracy" in line)
    assert lines[-1]["accuracy"] == result.accuracy
    last = result.guarantees["messages"]
    assert (lines[-1]["epsilon"], lines[-1]["epsilon_lower"]) == (last.epsilon, last.lower)
    assert (lines[-1]["view"], lines[-1]["method"]) == ("messages", last.method)
    stored = json.loads((folder / "report.json").read_text())
    assert stored == json.loads(json.dumps(result.as_dict()))
    assert (folder / "report.txt").read_text() == str(result)
    for view in ("local", "messages", "aggregate"):
        assert str(result.guarantees[view]) in str(result)
        assert result.guarantees[view].protocol == protocol
        assert result.guarantees[view].randomizer == result.run.randomizer
    assert result.messages_per_client == pytest.approx(0.25)
    assert result.planned == {}
    assert sum(array.size for array in _parameters(folder).values()) == 1_722


def test_a_seed_reproduces_a_run_and_the_report_warns(tmp_path):
    first, second = (_train(tmp_path / name, rounds=4) for name in "ab")
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, _train(tmp_path / "c", rounds=4, seed=2))
    assert _metrics(tmp_path / "a") == _metrics(tmp_path / "b")
    assert report.SEEDED in (tmp_path / "a" / "report.txt").read_text()


def test_without_a_seed_the_entropy_is_fresh_and_never_written(tmp_path, monkeypatch):
    drawn = []
    fresh = draws.fresh_entropy
    monkeypatch.setattr(draws, "fresh_entropy", lambda: drawn.append(fresh()) or drawn[-1])
    first, second = (_train(tmp_path / name, seed=None) for name in "ab")
    assert not np.array_equal(first, second)
    assert len(set(drawn)) == 2
    for path in (tmp_path / "a").iterdir():
        content = path.read_bytes()
        assert str(drawn[0]).encode() not in content
        assert f"{drawn[0]:x}".encode() not in content
    assert report.SEEDED not in (tmp_path / "a" / "report.txt").read_text()


def test_entropy_may_come_from_elsewhere_and_the_run_says_so(tmp_path):
    def dice(count):
        return next(stream).to_bytes(count, "big")

    def run(name, start, **settings):
        nonlocal stream
        stream = itertools.count(start)
        _run(_config(rounds=2, **settings), tmp_path / name, entropy=dice)
        return _flat(tmp_path / name)

    stream = itertools.count()
    first = run("a", 1 << 100, seed=None)
    np.testing.assert_array_equal(first, run("b", 1 << 100, seed=None))
    assert not np.array_equal(first, run("c", 1 << 101, seed=None))
    name = draws.source_name(dice)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["entropy"] == name
    assert json.loads((tmp_path / "a" / "report.json").read_text())["entropy"] == name
    assert f"entropy came from {name}" in (tmp_path / "a" / "report.txt").read_text()
    with pytest.raises(ValueError, match="expected None with seed=1"):
        run("d", 1, seed=1)
    with pytest.raises(TypeError, match="expected a function"):
        _run(_config(seed=None), tmp_path / "e", entropy=7)  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()
    assert not (tmp_path / "e").exists()


def test_an_interrupt_inside_a_round_leaves_it_out(tmp_path, monkeypatch):
    """Nobody has seen anything of it."""
    whole, left = loop.round_sum, itertools.count()

    def interrupted(*args, **kwargs):
        if next(left) == 5:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    monkeypatch.setattr(loop, "round_sum", interrupted)
    seen = []
    result = _run(_config(rounds=10), tmp_path / "run", seen.append)
    assert 5 - loop.AHEAD <= result.rounds <= 5
    assert _metrics(tmp_path / "run") == seen
    assert len(seen) == result.rounds
    assert result.guarantees["messages"].protocol.num_rounds == result.rounds
    monkeypatch.undo()
    np.testing.assert_array_equal(_flat(tmp_path / "run"), _train(tmp_path / "short", rounds=result.rounds))


def test_the_loop_is_never_more_than_a_few_rounds_ahead(tmp_path, monkeypatch):
    """And logs nothing that was not computed."""
    whole, begun, under_way, seen = loop.round_sum, itertools.count(1), [], []

    def count(*args, **kwargs):
        under_way.append(next(begun) - len(seen))
        return whole(*args, **kwargs)

    monkeypatch.setattr(loop, "round_sum", count)
    _run(_config(rounds=30), tmp_path / "run", seen.append)
    assert max(under_way) == loop.AHEAD + 1
    assert min(under_way[loop.AHEAD :]) == loop.AHEAD + 1  # the device does not wait for the log either

    def fail(waited):
        if next(waits) == 12:
            raise jax.errors.JaxRuntimeError("INTERNAL: Connection closed by peer\nand more")

    waits, ready = itertools.count(1), jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda waited: fail(waited) or ready(waited))
    with pytest.raises(
        loop.RoundError, match=r"round 12 could not be computed: INTERNAL: Connection closed by peer$"
    ):
        _run(_config(rounds=1_000), tmp_path / "failed")
    assert len(_metrics(tmp_path / "failed")) == 11


def test_a_run_accounts_for_no_setting_twice_and_for_few(tmp_path):
    asked = []

    def counted(protocol, randomizer, **options):
        asked.append((protocol, options["view"]))
        return quick_account(protocol, randomizer, **options)

    _run(_config(rounds=5, eval_every=2), tmp_path / "run", account_fn=counted)
    assert len(set(asked)) == len(asked) == 3 * 3 + 1  # one message by itself
    asked.clear()
    window = FixedWindow(num_clients=50, num_slots=12)
    _run(_config(protocol=window, eval_every=1), tmp_path / "window", account_fn=counted)
    assert len(asked) == 4
    asked.clear()
    many = _config(n=50, rounds=201, eval_every=1)
    _run(many, tmp_path / "many", account_fn=counted)
    assert len(asked) <= 3 * budget.MOST_EVALUATIONS + 1
    lines = _metrics(tmp_path / "many")
    assert all("accuracy" in line for line in lines)
    assert [line["round"] for line in lines if "epsilon" in line] == [*range(11, 201, 11), 201]


def test_a_target_accuracy_ends_the_run_and_both_ledgers_are_shown(tmp_path):
    config = _config(rounds=10, eval_every=2, target_accuracy=1e-9)
    result = _run(config, tmp_path / "run")
    assert result.rounds == 2
    assert result.stopped == "reached accuracy 1e-09"
    assert result.planned["aggregate"].protocol.num_rounds == 10
    assert result.messages_per_client == pytest.approx(10 * config.run.protocol.check_in_prob)
    stated = render.plain(of_run(recorded.read(tmp_path / "run")))["mechanism"]["in_words"]
    assert "over 10 rounds" in stated
    assert stated.endswith("; it ended after 2 of 10 rounds")


def test_shared_records_are_disclosed(tmp_path):
    _run(_config(5_000, rounds=1), tmp_path / "shared")
    _run(_config(1_437, rounds=1), tmp_path / "own")
    assert "drew their records with replacement" in (tmp_path / "shared" / "report.txt").read_text()
    assert "drew their records with replacement" not in (tmp_path / "own" / "report.txt").read_text()


def test_files_are_written_whole_or_not_at_all(tmp_path):
    with RunDirectory(tmp_path / "run") as folder:
        folder.write_json("a.json", {"x": 1})
        with pytest.raises(ValueError, match="JSON"):
            folder.write_json("a.json", {"x": math.nan})
        with pytest.raises(ValueError, match="JSON"):
            folder.log({"x": math.inf})
    assert json.loads((tmp_path / "run" / "a.json").read_text()) == {"x": 1}
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""


def test_one_gaussian_message_is_stated_at_its_own_delta():
    protocol = ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1)
    for noise, expected in ((4.968, 2.0), (1.420, 8.0)):
        epsilon0, delta0 = report.message_privacy(
            _config(protocol=protocol, randomizer=Gaussian(noise_multiplier=noise)).run
        )
        assert delta0 == pytest.approx(60_000**-1.5)
        assert epsilon0 == pytest.approx(expected, rel=1e-3)
    alone = ShuffledCheckIn(num_clients=1, check_in_prob=1.0)
    assert report.message_privacy(_config(protocol=alone).run)[1] == 0.1


def test_several_records_average_gradients(tmp_path):
    # One client, one round, no noise, nothing clipped: the new model is the client's own.
    digits = data.digits()
    config = _config(1, 1.0, 1, NOISELESS, learning_rate=0.5, records_per_client=6, clip_norm=1e3)
    _run(config, tmp_path / "run")
    key = draws.jax_key(1, draws.Stream.INITIAL_PARAMETERS)
    parameters, apply = networks.functional(networks.build(8, key))
    held = draws.client_records(1, 1, 1_437, each=6)[0]
    images = jnp.asarray(digits.train_images[held], jnp.float32)[..., None] / 16
    labels = jnp.asarray(digits.train_labels[held], jnp.int32)

    def loss(parameters):
        losses = jax.vmap(lambda x, y: networks.cross_entropy(apply(parameters, x), y))(images, labels)
        return jnp.mean(losses)

    parameters = jax.tree.map(lambda p, g: p - 0.5 * g, parameters, jax.grad(loss)(parameters))
    expected = np.concatenate([array.ravel() for array in named_arrays(parameters).values()])
    np.testing.assert_allclose(_flat(tmp_path / "run"), expected, atol=2e-6)
    assert "6 records each" in (tmp_path / "run" / "report.txt").read_text()


def test_a_slot_is_one_message_and_a_dummy_is_the_zero_update(tmp_path):
    # One client, ten slots: nine dummies; ten slots make one update, divided by ten.
    window = FixedWindow(num_clients=1, num_slots=10, minibatch=10)
    config = _config(protocol=window, randomizer=NOISELESS, clip_norm=1e3)
    _run(config, tmp_path / "window")
    alone = _config(protocol=Shuffle(num_clients=1), randomizer=NOISELESS, learning_rate=0.1, clip_norm=1e3)
    _run(alone, tmp_path / "alone")
    np.testing.assert_allclose(_flat(tmp_path / "window"), _flat(tmp_path / "alone"), atol=1e-7)
    # What is logged does not tell dummies from clients.
    assert _metrics(tmp_path / "window")[0]["check_ins"] == 10


def test_the_sum_that_is_released_is_what_is_accounted_for():
    """One sum of 100 slots' messages, one Gaussian mechanism: [5.749, 23.49] before, for a truth of 1.766 at most."""
    window = FixedWindow(num_clients=100, num_slots=100, minibatch=100)
    config = _config(protocol=window, randomizer=Gaussian(noise_multiplier=0.5), delta=1e-6)
    assert config.run.schedule.num_rounds == 1
    found, planned, _ = report.figures(config.run, 1, 1)
    assert planned == {}
    assert 0.5 < found["aggregate"].lower <= found["aggregate"].epsilon <= 1.766
    assert found["messages"].lower > 5.7
    assert "the messages of 100 successive slots summed" in str(found["aggregate"])


@pytest.mark.parametrize(
    ("protocol", "rounds", "windows"),
    [
        (Shuffle(num_clients=50, num_rounds=3), 3, 3),
        (FixedWindow(num_clients=50, num_slots=10, num_epochs=2, minibatch=4), 6, 2),
        (FixedWindow(num_clients=9, num_slots=30, empty_slots="visible", minibatch=7), 5, 1),
        (AveragedUpdates(num_clients=50, num_slots=5, check_in_prob=0.7), 5, 1),
        (SlidingWindow(num_clients=50, window=11, num_epochs=2, minibatch=8), 10, 2),
    ],
)
def test_every_protocol_runs_and_is_accounted_for(tmp_path, protocol, rounds, windows):
    config = _config(protocol=protocol, eval_every=2)
    result = _run(config, tmp_path / "run")
    assert (result.rounds, result.units) == (rounds, windows)
    assert result.guarantees["messages"].protocol == protocol
    assert result.planned == {}
    lines = _metrics(tmp_path / "run")
    assert [line["round"] for line in lines] == list(range(1, rounds + 1))
    if not isinstance(protocol, Shuffle):
        assert [line["window"] for line in lines] == [1 + t * windows // rounds for t in range(rounds)]
        assert lines[-1]["epsilon"] == result.guarantees["messages"].epsilon
    assert np.all(np.isfinite(_flat(tmp_path / "run")))


def test_a_window_that_was_begun_counts_as_a_whole(tmp_path):
    def interrupt(line):
        if line["round"] == 4:
            raise KeyboardInterrupt

    window = FixedWindow(num_clients=50, num_slots=12, num_epochs=3, minibatch=4)
    config = _config(protocol=window)
    result = _run(config, tmp_path / "run", interrupt)
    assert (result.rounds, result.units) == (4, 2)
    assert result.guarantees["messages"].protocol == dataclasses.replace(window, num_epochs=2)
    assert result.planned["messages"].protocol == window
    text = (tmp_path / "run" / "report.txt").read_text()
    assert "ended after 4 of 9 rounds (interrupted)" in text
    assert "the last window is incomplete" in text


def test_averaged_updates_divide_by_the_realised_count(tmp_path):
    protocol = AveragedUpdates(num_clients=1_000, num_slots=1, check_in_prob=0.04)
    config = _config(protocol=protocol, randomizer=NOISELESS, learning_rate=2.0)
    _run(config, tmp_path / "run")
    chosen, _ = draws.averaged_updates(1, protocol, 0)
    assert len(chosen) != 40
    moved = _flat(tmp_path / "run") - _initial()
    np.testing.assert_allclose(moved, -2.0 * _clipped_sum(chosen) / len(chosen), atol=3e-7)


@pytest.mark.parametrize("number", [40, 1])
def test_the_learning_rate_rule_keeps_the_noise_of_a_run(number):
    protocol = ShuffledCheckIn(num_clients=1_000, check_in_prob=number / 1_000, num_rounds=100)
    run = PrivateRun(protocol=protocol, randomizer=Gaussian(noise_multiplier=3.0), clip_norm=0.2)
    rate = suggested_learning_rate(run)
    noise = rate * 0.2 * 3.0 * math.sqrt(100 * number) / number
    assert noise == pytest.approx(0.15)
