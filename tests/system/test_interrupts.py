"""Ctrl-C and SIGTERM during training: acknowledged at once, never lost, and what is kept is said."""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest
from stand_in import quick_account

from checkin_jax import cli
from checkin_jax.cli.terminal import Interrupts, RoundBar

pytestmark = pytest.mark.usefixtures("interruptible", "compiled_in_haste")
ROOT = Path(__file__).parents[2]
DIGITS = "train digits --num-clients 1000 --check-in-prob .03 --num-rounds 12 --seed 1 --eval-every 5 --run-dir run"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Where the commands run, with an instant accountant and no cache of the user's."""
    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _interrupted(monkeypatch, command: str, number: int, *, at: int = 7, swallowed: bool = False) -> int:
    """The exit code of a command that gets a signal while round `at` is shown."""
    whole = RoundBar.__call__

    def shown(self, line):
        whole(self, line)
        if line["round"] == at:
            try:
                os.kill(os.getpid(), number)
                time.sleep(5)
            except KeyboardInterrupt:
                if not swallowed:
                    raise

    monkeypatch.setattr(RoundBar, "__call__", shown)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as stop:
        cli.main(command.split())
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    monkeypatch.setattr(RoundBar, "__call__", whole)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_run_with_a_report_and_says_what_is_kept(
    folder, capfd, monkeypatch, number, code, swallowed
):
    command = f"{DIGITS} --checkpoint-every 3"
    assert _interrupted(monkeypatch, command, number, swallowed=swallowed) == code
    said = capfd.readouterr()
    assert "ended after 7 of 12 rounds (interrupted)" in said.out
    evaluated, first, last = said.err.splitlines()
    assert re.fullmatch(r"round 5 of 12: accuracy \d+\.\d%, epsilon [\d.e-]+ \(view messages\)", evaluated)
    assert first.startswith("interrupted: writing a report of the rounds so far (a second interrupt")
    kept = "metrics of 7 rounds, parameters and report, and checkpoints"
    assert last == f"run keeps the {kept}: the same command with --resume goes on"
    cli.main([*command.split(), "--resume"])
    assert "12 in" in capfd.readouterr().out


def test_without_checkpoints_it_says_so(capfd, monkeypatch):
    assert _interrupted(monkeypatch, DIGITS, signal.SIGTERM) == 143
    assert "without --checkpoint-every it cannot go on" in capfd.readouterr().err


def test_an_interrupt_before_the_first_round_leaves_a_folder_that_may_be_used(folder, capfd, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "checkin_jax.training.loop.round_sum",
            lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGINT),
        )
        with pytest.raises(SystemExit) as stop:
            cli.main(DIGITS.split())
    assert stop.value.code == 130
    assert "no round has run: run may be used again" in capfd.readouterr().err
    cli.main(DIGITS.split())


def test_an_interrupt_after_the_last_round_is_not_lost(capfd, monkeypatch):
    assert _interrupted(monkeypatch, DIGITS, signal.SIGINT, at=12, swallowed=True) == 130
    assert "run keeps the metrics of 12 rounds" in capfd.readouterr().err


def test_errors_are_not_replaced_and_ignored_signals_stay_ignored(folder, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts(folder):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with pytest.raises(ZeroDivisionError), Interrupts(folder):
            1 / 0  # noqa: B018
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("digits.py --run-dir .", "digits.py: run_dir='.': already there and not empty; name another"),
        (
            "mnist_ldp_sgd.py --run-dir run --dataset digits --seed -3",
            "mnist_ldp_sgd.py: seed=-3: expected a whole number in [0, 3.40282e+38]",
        ),
        (
            "mnist_fixed_window.py --run-dir run --dataset digits --checkpoint-every -1",
            "mnist_fixed_window.py: checkpoint_every=-1: expected a whole number in [0, inf]",
        ),
    ],
)
def test_user_errors_of_training_programs_are_one_line(folder, capsys, monkeypatch, program, told):
    (folder / "note.txt").write_text("mine")
    name, *options = program.split()
    file = str(ROOT / "train" / name)
    monkeypatch.setattr(sys, "argv", [file, *options])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(file, run_name="__main__")
    assert (stop.value.code, *capsys.readouterr()) == (2, "", f"{told}\n")
