"""Runs that are killed and resumed, and everything that can be wrong with what they left."""

from __future__ import annotations

import dataclasses
import re
import shutil
import stat
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from stand_in import image_training, quick_account

import checkin_jax as cj
from checkin_jax.protocols import FixedWindow, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian
from checkin_jax.training import loop
from checkin_jax.training.examples import data, networks
from checkin_jax.training.reports import recorded
from checkin_jax.training.runs import checkpoints
from checkin_jax.training.runs.checkpoints import Checkpoints
from checkin_jax.training.runs.run_directory import LOCK, ResumeError, RunDirectory

pytestmark = pytest.mark.usefixtures("compiled_in_haste")


def _config(protocol=None, **others) -> networks.ImageTraining:
    protocol = protocol or ShuffledCheckIn(num_clients=1_000, check_in_prob=0.03, num_rounds=12)
    settings = {"seed": 1, "momentum": 0.5, "averaging": 0.5, "eval_every": 5, **others}
    return image_training(protocol=protocol, randomizer=Gaussian(noise_multiplier=2.0), **settings)


def _train(folder, config=None, stop_after=None, **options):
    """A run, killed after a round without any chance to tidy up."""

    def kill(line):
        if line["round"] == stop_after:
            raise _KilledError

    return networks.train(
        config or _config(), data.digits(), folder, kill, account_fn=quick_account, **options
    )


class _KilledError(Exception):
    """Stands in for a kill: nothing in the library catches it."""


def _killed(folder, after=7, config=None, every=3, **options):
    with pytest.raises(_KilledError):
        _train(folder, config, after, checkpoint_every=every, **options)


def _outcome(folder) -> tuple[bytes, bytes]:
    with np.load(folder / "parameters.npz") as arrays:
        parameters = b"".join(arrays[name].tobytes() for name in arrays.files)
    return parameters, (folder / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[bytes, bytes]:
    """The outcome of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    _train(folder)
    return _outcome(folder)


@pytest.fixture(scope="module")
def _killed_after_eight(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    _killed(folder, 8)
    assert _steps(folder) == [3, 6]
    return folder


@pytest.fixture
def folder(_killed_after_eight, tmp_path) -> Path:
    """A run that was killed after eight rounds, with checkpoints of rounds 3 and 6."""
    return shutil.copytree(_killed_after_eight, tmp_path / "run")


def _resumed(folder, **options) -> tuple[bytes, bytes]:
    _train(folder, resume=True, **options)
    return _outcome(folder)


def _steps(folder) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())


def test_a_resumed_run_keeps_the_entropy_of_its_checkpoint_and_says_where_it_came_from(tmp_path):
    def other(count):
        raise AssertionError("asked again")

    config, folder = _config(seed=None), tmp_path / "run"
    source = iter([b"first of two ones", b"and another one.."]).__next__
    with pytest.raises(_KilledError):
        _train(folder, config, 4, checkpoint_every=2, entropy=lambda count: source()[:count])
    resumed = _train(folder, config, resume=True, entropy=other)
    assert resumed.entropy.endswith("<lambda>")
    assert any("entropy came from" in note for note in resumed.notes())


@pytest.mark.parametrize(
    "config",
    [
        _config(),
        _config(seed=None),
        _config(FixedWindow(num_clients=40, num_slots=20, num_epochs=2, minibatch=4), decay="constant"),
        _config(simulate="messages", momentum=0.0, averaging=0.0),
        _config(
            ShuffledCheckIn(
                num_clients=90, check_in_prob=cj.Rates([0.05, 0.6, 0.9], [60, 20, 10]), num_rounds=12
            )
        ),
        _config(cj.from_availability([30, 10, 20, 5] * 3, 0.3)),
        _config(target_epsilon=0.0161),
    ],
    ids=["shuffled", "no seed", "window", "messages", "unequal rates", "log", "budget"],
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, monkeypatch, config):
    monkeypatch.setattr("checkin_jax.training.draws.fresh_entropy", lambda: 5)
    whole = _train(tmp_path / "whole", config)
    # A resumed run takes its entropy from the checkpoint.
    monkeypatch.setattr(
        "checkin_jax.training.draws.fresh_entropy", iter([5, 6, 7]).__next__
    )  # 6 and 7 would show
    folder = tmp_path / "run"
    _killed(folder, 4, config)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
    with pytest.raises(_KilledError):
        _train(folder, config, 8, checkpoint_every=2, resume=True)
    resumed = _train(folder, config, resume=True)
    assert _outcome(folder) == _outcome(tmp_path / "whole")
    assert {p.name for p in folder.iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}
    same = {
        "run": whole.run,
        "settings": whole.settings,
        "guarantees": whole.guarantees,
        "rounds": whole.rounds,
        "stopped": whole.stopped,
    }
    assert {name: getattr(resumed, name) for name in same} == same
    assert resumed.seconds > 0


def test_checkpoints_are_secret_few_and_gone_at_the_end(tmp_path):
    folder = tmp_path / "run"
    _killed(folder, 11, keep_checkpoints=2)
    assert _steps(folder) == [6, 9]
    assert stat.S_IMODE((folder / "checkpoints").stat().st_mode) == 0o700
    _train(folder, resume=True)
    assert not (folder / "checkpoints").exists()
    with pytest.raises(ResumeError, match="has finished"):
        _train(folder, resume=True)


def test_the_first_checkpoint_is_written_before_the_first_round(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        loop, "round_sum", lambda *args, **kwargs: seen.append(_steps(tmp_path / "run")) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        _train(tmp_path / "run", checkpoint_every=100)
    assert seen == [[0]]


@pytest.mark.parametrize("left", [(), ("metrics.jsonl", ".lock"), ("metrics.jsonl", "config.json", ".lock")])
def test_resume_begins_a_run_that_has_not_begun(tmp_path, whole, left):
    for name in left:  # of a run that was killed before its first round
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).touch()
    _train(tmp_path / "run", resume=True, checkpoint_every=5)
    assert _outcome(tmp_path / "run") == whole


def test_an_interrupted_run_has_a_report_and_can_go_on(tmp_path, whole):
    def interrupt(line):
        if line["round"] == 7:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    first = networks.train(
        _config(), data.digits(), folder, interrupt, checkpoint_every=3, account_fn=quick_account
    )
    assert (first.rounds, first.stopped) == (7, "interrupted")
    # Killed once more: the report of the seven rounds must not stay behind as if it were of all, and is not lost.
    results = {name: (folder / name).read_bytes() for name in ("report.json", "report.txt", "parameters.npz")}
    with pytest.raises(_KilledError):
        _train(folder, None, 10, resume=True)
    assert not set(results) & {path.name for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (folder / "interrupted").iterdir()} == results
    assert _train(folder, resume=True).rounds == 12
    assert not (folder / "interrupted").exists()
    assert _outcome(folder) == whole


def test_a_target_reached_just_before_the_kill_still_ends_the_run(tmp_path):
    config = _config(target_accuracy=1e-9)
    whole = _train(tmp_path / "whole", config)
    _killed(tmp_path / "run", 5, config, every=5)  # round 5 is not saved: the kill came first
    resumed = _train(tmp_path / "run", config, resume=True)
    assert (resumed.rounds, resumed.stopped) == (whole.rounds, whole.stopped) == (5, "reached accuracy 1e-09")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Damage to what is told beside the arrays of a checkpoint: none of it makes a run another one.
_NOTES = {
    "another accuracy": (b'"tested"', b'"testee"'),
    "another name of a setting": (b'"version"', b'"varsion"'),
    "another setting": (b'"momentum"', b'"momentun"'),
    "another digest of arrays": (b'"state": "', b'"state": "0'),
    "no digest": (b'"digest"', b'"digesu"'),
}


def _damage(folder: Path, step: int, how: str) -> None:
    files = [p for p in (folder / "checkpoints" / str(step)).rglob("*") if p.is_file()]
    if how == "half of every file":
        for file in files:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif how == "no arrays":
        shutil.rmtree(folder / "checkpoints" / str(step) / "state")
    elif how == "no note":
        shutil.rmtree(folder / "checkpoints" / str(step) / "note")
    elif how in _NOTES:
        (note,) = [file for file in files if file.parent.name == "note" and file.name == "metadata"]
        old, new = _NOTES[how]
        assert old in note.read_bytes()
        note.write_bytes(note.read_bytes().replace(old, new, 1))
    else:
        largest = max(files, key=lambda p: p.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["half of every file", "no arrays", "no note", "one bit", *_NOTES])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(folder, whole, capsys, how):
    _damage(folder, 6, how)
    _train(folder, resume=True, checkpoint_every=3)
    aside = re.escape(str(folder / "checkpoints" / "unused-6-1"))
    told = rf"\S+: the checkpoint of round 6 cannot be used \(.+\): it is kept as {aside}, .* from round 3\n"
    assert re.fullmatch(told, capsys.readouterr().err)
    assert _outcome(folder) == whole


def test_a_half_written_checkpoint_is_none_and_goes_when_the_run_is_resumed(folder, whole):
    """As a kill leaves it; nothing else in the folder goes."""
    checkpoints = folder / "checkpoints"
    shutil.move(checkpoints / "6", checkpoints / "6.orbax-checkpoint-tmp")
    (checkpoints / "unused-5-1").mkdir()
    (checkpoints / "notes.txt").write_text("mine")
    with pytest.raises(_KilledError):
        _train(folder, None, 8, resume=True, checkpoint_every=3)
    assert {path.name for path in checkpoints.iterdir()} == {"3", "6", "unused-5-1", "notes.txt"}
    assert _files(checkpoints / "6")
    assert _resumed(folder) == whole


def test_metrics_that_a_power_cut_lost_make_the_checkpoint_unusable(folder, whole, capsys):
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:4]))
    before = _files(folder / "checkpoints" / "6")
    with pytest.raises(_KilledError):
        _train(folder, None, 5, resume=True)
    assert re.search(r"round 6 cannot be used .*metrics", capsys.readouterr().err)
    assert _files(folder / "checkpoints" / "unused-6-1") == before
    assert _resumed(folder) == whole


def test_without_a_usable_checkpoint_a_run_that_was_seen_cannot_go_on(folder, tmp_path):
    for step in (3, 6):
        _damage(folder, step, "no arrays")
    with pytest.raises(ResumeError, match=r"\(round 6: .+; round 3: .+\), .* account for both"):
        _train(folder, resume=True)
    assert _steps(folder) == [3, 6]
    _killed(tmp_path / "none", 8, every=0)
    with pytest.raises(ResumeError, match=r"\(there is none\), .* account for both"):
        _train(tmp_path / "none", resume=True)


# What becomes of the lines of metrics.jsonl, and how the refusal goes on.
_LOST = r"has {} bytes.* nothing was deleted"
_OTHERS = r"its first \d+ bytes are not those that were logged"
_METRICS = {
    "empty": (lambda lines: [], _LOST),
    "one byte": (lambda lines: [lines[0][:1]], _LOST),
    "sixty bytes": (lambda lines: [b"".join(lines)[:60]], _LOST),
    "zeros": (lambda lines: [b"\0" * len(lines[0]), *lines[1:]], _OTHERS),
    "a digit": (lambda lines: [lines[0].replace(b": ", b": 1", 1)[:-2] + b"\n", *lines[1:]], _OTHERS),
    "a brace": (lambda lines: [b"[" + lines[0][1:], *lines[1:]], _OTHERS),
    "swapped": (lambda lines: [lines[1], lines[0], *lines[2:]], _OTHERS),
}


@pytest.mark.parametrize("how", _METRICS)
def test_changed_metrics_are_refused_and_cost_no_checkpoint(folder, whole, capsys, how):
    metrics, (change, told) = folder / "metrics.jsonl", _METRICS[how]
    logged, before = metrics.read_bytes(), _files(folder / "checkpoints")
    changed = b"".join(change(logged.splitlines(keepends=True)))
    assert changed != logged
    assert (len(changed) == len(logged)) == (told == _OTHERS)
    metrics.write_bytes(changed)
    for _ in range(2):
        with pytest.raises(ResumeError, match=r"metrics\.jsonl'?:? " + told.format(len(changed))):
            _train(folder, resume=True, checkpoint_every=3)
    assert (_files(folder / "checkpoints"), capsys.readouterr().err) == (before, "")
    metrics.write_bytes(logged)
    assert _resumed(folder) == whole


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError(), ValueError("odd")])
def test_an_error_while_reading_costs_no_checkpoint(folder, whole, monkeypatch, error):
    before = _files(folder / "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "restore", lambda *args, **kwargs: (_ for _ in ()).throw(error))
        with pytest.raises(ResumeError, match="none of its checkpoints can be used"):
            _train(folder, resume=True)
    assert _files(folder / "checkpoints") == before
    assert _resumed(folder) == whole


def test_checkpoints_that_make_room_are_kept_to_the_end(folder):
    _damage(folder, 6, "one bit")
    damaged = _files(folder / "checkpoints" / "6")
    for number in (1, 2):
        with pytest.raises(_KilledError):
            _train(folder, None, 8, resume=True, checkpoint_every=3)
        assert _files(folder / "checkpoints" / "unused-6-1") == damaged
        assert _steps(folder) == [3, 6]
        if number == 1:
            _damage(folder, 6, "no arrays")
    assert (folder / "checkpoints" / "unused-6-2").is_dir()
    _train(folder, resume=True)
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize("config", ["{}", "", "[]", None, "other"])
def test_a_config_of_another_run_is_refused(folder, config):
    path, before = folder / "config.json", _files(folder / "checkpoints")
    whole = path.read_text()
    path.unlink()
    if config is not None:
        path.write_text(whole.replace('"momentum": 0.5', '"momentum": 0.25') if config == "other" else config)
    with pytest.raises(
        ResumeError, match=r"config\.json.*" + ("momentum differ" if config == "other" else "")
    ):
        _train(folder, resume=True)
    assert _files(folder / "checkpoints") == before
    path.write_text(whole)
    assert _train(folder, resume=True).rounds == 12


def test_rounds_that_were_seen_stay_logged_while_they_are_repeated(tmp_path, whole):
    """Whoever reads the folder meanwhile accounts for all of them."""
    folder = tmp_path / "run"
    _killed(folder, 11, every=4)
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"round": 12, "che')
    with pytest.raises(_KilledError):
        _train(folder, None, 9, resume=True)
    assert recorded.read(folder).rounds == 11
    assert _resumed(folder) == whole


def test_a_machine_that_repeats_a_round_otherwise_is_told(folder):
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    lines[6] = '{"round": 7, "check_ins": 9999}\n'
    metrics.write_text("".join(lines))
    with pytest.raises(ResumeError, match="a repeated round did not give what was logged before"):
        _train(folder, resume=True)


def test_a_run_that_was_killed_before_its_first_round_may_begin_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "round_sum", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _train(folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", "metrics.jsonl"}
    assert _train(folder).rounds == 12
    with pytest.raises(FileExistsError, match="not empty"):
        _train(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"learning_rate": 2.0}, r"config\.learning_rate was 1\.0, is 2\.0"),
        ({"protocol": ShuffledCheckIn(num_clients=1_000, check_in_prob=0.03, num_rounds=13)}, "num_rounds"),
        ({"seed": 2}, r"config\.seed was 1, is 2"),
    ],
)
def test_another_run_is_refused_and_nothing_is_lost(folder, change, told):
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ResumeError, match=told):
        _train(folder, _config(**change), resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert _steps(folder) == [3, 6]


def test_another_version_machine_data_set_or_precision_is_refused(folder, tmp_path, monkeypatch):
    with jax.default_matmul_precision("highest"), pytest.raises(ResumeError, match="matmul_precision"):
        _train(folder, resume=True)
    digits = data.digits()
    other = dataclasses.replace(digits, train_labels=digits.train_labels[::-1].copy())
    with pytest.raises(ResumeError, match=r"dataset\.digest\) differs"):
        networks.train(_config(), other, folder, resume=True, account_fn=quick_account)
    with monkeypatch.context() as patch:
        patch.setattr("checkin_jax.training.runs.session.__version__", "9.9.9")
        with pytest.raises(ResumeError, match=r"config\.version was '.*', is '9\.9\.9'"):
            _train(folder, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr("checkin_jax.training.runs.checkpoints.processor", lambda name: "abacus")
        with pytest.raises(ResumeError, match=r"machine\.processor was .*, is 'abacus'"):
            _train(folder, resume=True)
    with monkeypatch.context() as patch:
        describe = checkpoints.describe
        patch.setattr(
            checkpoints, "describe", lambda *settings: checkpoints.of_all([describe(*settings)] * 2)
        )
        with pytest.raises(ResumeError, match=r"another run \(number of processes was 1, is 2\)"):
            _train(folder, resume=True)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    with pytest.raises(ResumeError, match="xla_gpu_deterministic_ops"):
        _train(tmp_path / "gpu", checkpoint_every=1)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        _train(tmp_path)
    with pytest.raises(FileExistsError, match=r"no metrics\.jsonl"):
        _train(tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_full_disk_is_one_clear_error_and_keeps_what_was_saved(tmp_path, whole, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        unharmed = Checkpoints.save

        def save(self, number, *args, **kwargs):
            if number == 9:
                manager = self._manager
                patch.setattr(
                    manager, "save", lambda *a, **k: (_ for _ in ()).throw(ValueError("No space left"))
                )
            unharmed(self, number, *args, **kwargs)

        patch.setattr(Checkpoints, "save", save)
        with pytest.raises(OSError, match="the checkpoint of round 9 could not be written: No space left"):
            _train(folder, checkpoint_every=3)
    assert _steps(folder) == [3, 6]
    assert _resumed(folder) == whole


def test_two_processes_cannot_write_to_one_folder(tmp_path):
    with RunDirectory(tmp_path / "run"), pytest.raises(BlockingIOError, match="in use by another process"):
        _train(tmp_path / "run", resume=True)
    # The lock of a dead process holds nobody up.
    (tmp_path / "run" / LOCK).write_text("1\n")
    with RunDirectory(tmp_path / "run", resume=True):
        pass
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_finished_run_that_lost_lines_says_so_wherever_it_is_read(tmp_path, capsys, monkeypatch):
    from checkin_jax.cli import main

    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)
    folder = tmp_path / "run"
    _train(folder)
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    recorded.read(folder)
    assert capsys.readouterr().err == ""
    metrics.write_bytes(b"".join(lines[:5]))
    told = f"{metrics}: lines of 5 of 12 rounds are there; "
    assert recorded.read(folder).rounds == 12
    assert told in capsys.readouterr().err
    main(["budget", str(folder)])
    assert capsys.readouterr().err.count(told) == 1
    metrics.unlink()
    recorded.read(folder)
    assert "lines of 0 of 12 rounds" in capsys.readouterr().err
    with pytest.raises(FileExistsError, match=r"metrics\.jsonl of this run is gone"):
        _train(folder, resume=True)


def test_a_killed_run_that_lost_lines_has_spent_the_rounds_of_its_newest_checkpoint(folder, capsys):
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:60])
    assert recorded.read(folder).rounds == 6
    assert "lines of 2 of 6 rounds" in capsys.readouterr().err
    (folder / "checkpoints" / "6").rename(folder / "checkpoints" / "unused-6-1")
    (folder / "checkpoints" / "12th_note.txt").touch()
    ((protocol, _),) = recorded.read(folder).spent
    assert protocol.num_rounds == 6
    metrics.unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl: gone, so that nobody knows how many rounds ran"):
        recorded.read(folder)
