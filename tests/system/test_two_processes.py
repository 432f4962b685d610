"""Training shared by several processes: one comes late, any is killed and the run resumed. No half run looks whole."""

import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_in import without_progress

from checkin_jax.cli.options import HostOptions
from checkin_jax.cli.programs import UsageError

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

TESTS = Path(__file__).parents[1]
# The command itself, of which every process leaves a sign once it has joined the others.
COMMAND = """
import sys
from pathlib import Path
from stand_in import quick_account
from checkin_jax import cli
from checkin_jax.accounting import account
from checkin_jax.training.runs import processes
account.account, join = quick_account, processes.join
def joined(*where):
    join(*where)
    Path(f"joined-{where[2]}").touch()
processes.join = joined
cli.main(sys.argv[1:])
"""
ROUNDS = "--seed 1 --num-clients 500 --check-in-prob .2 --momentum .5 --eval-every 9 --checkpoint-every 9 --num-rounds"
# Seconds that anything here may take on a busy machine.
LIMIT = 180.0


def command(folder: Path, rounds: int, hosts: int, late: float = 0.0) -> list[subprocess.Popen[str]]:
    """The processes of `checkin train`, all of which have joined, the last one so many seconds late.

    Resumes what is in the folder.
    """
    for sign in folder.glob("joined-*"):
        sign.unlink()
    words = f"train digits --run-dir run --resume {ROUNDS} {rounds} --coordinator 127.0.0.1:{free_port()}"
    begun = []
    for number in range(hosts):
        time.sleep(late * (number == hosts - 1))
        own = f"{words} --num-processes {hosts} --process-id {number}"
        begun.append(process(*own.split(), cwd=folder))
    wait_for(lambda: len(list(folder.glob("joined-*"))) == hosts, begun)
    return begun


def process(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), *sys.path]),
    }
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(happened, processes):
    """Returns once it has, or a process has ended."""
    began = time.monotonic()
    while not happened() and all(one.poll() is None for one in processes):
        assert time.monotonic() - began < LIMIT
        time.sleep(0.02)


def logged(folder: Path, rounds: int) -> bool:
    return lines_of(folder) >= rounds


def lines_of(folder: Path) -> int:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def ended(processes):
    """(exit code, stdout, stderr) of each, none of them left behind."""
    try:
        found = [(*process.communicate(timeout=LIMIT), process.returncode) for process in processes]
        return [(out, without_progress(said), code) for out, said, code in found]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize(("kills", "hosts"), [(2, 2), pytest.param(20, 3, marks=pytest.mark.slow)])
def test_kills_of_any_process_change_nothing(tmp_path, kills, hosts):
    rounds, rng = (60, random.Random(3)) if kills == 2 else (300, random.Random(20))

    def finished(folder: Path, damaged: int | None = None, late: float = 0.0) -> list[bytes]:
        found = ended(command(folder, rounds, hosts, late))
        told = f"the checkpoint of round {damaged} cannot be used"
        lines = [
            [line for line in said.splitlines() if not line.startswith("round ")] for _, said, _ in found
        ]
        assert [len(each) for each in lines] == [damaged is not None, *[0] * (hosts - 1)], lines
        assert damaged is None or told in lines[0][0]
        assert [code for _, _, code in found] == [0] * hosts, found
        assert ["Saved in run" in out for out, _, _ in found] == [True, *[False] * (hosts - 1)]
        assert not (folder / "run" / "checkpoints").exists()
        return [(folder / "run" / name).read_bytes() for name in ("parameters.npz", "metrics.jsonl")]

    (tmp_path / "right").mkdir()
    right, folder = finished(tmp_path / "right", late=5.0), tmp_path / "killed"
    folder.mkdir()
    for victim in (number % hosts for number in range(kills)):
        processes, goal = command(folder, rounds, hosts), lines_of(folder) + rng.randint(1, 12) + 9
        wait_for(functools.partial(logged, folder, goal), processes)
        time.sleep(rng.uniform(0, 0.1))
        killed = processes[victim].poll() is None
        processes[victim].kill()
        began, found = time.monotonic(), ended(processes)
        if (folder / "run" / "report.json").exists():  # it was quicker
            shutil.rmtree(folder / "run")
            continue
        assert killed
        assert time.monotonic() - began < 60
        assert not (folder / "run" / "parameters.npz").exists()
        if victim:  # the first process logs rounds whose sum is known, each in a whole line
            *lines, rest = (folder / "run" / "metrics.jsonl").read_text().split("\n")
            assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1))
            assert not rest
        for number, (_, said, code) in enumerate(found):
            if number == victim:
                continue
            assert "Traceback" not in said
            told = [line for line in said.splitlines() if not line.startswith("round ")]
            if number == 0:
                assert (code, len(told)) == (2, 1), found
            else:
                # The coordinator goes with process 0: JAX speaks of that too, and may be quicker to end the others.
                assert code in (2, -signal.SIGABRT), found
                assert code != 2 or any(line.startswith("checkin: ") for line in told), said
    # The first process renames what cannot be used, and says so; all go on from what it has read.
    steps = sorted(int(path.name) for path in (folder / "run" / "checkpoints").glob("[0-9]*[0-9]"))
    if len(steps) > 1:
        shutil.rmtree(folder / "run" / "checkpoints" / str(steps[-1]) / "state")
    assert finished(folder, steps[-1] if len(steps) > 1 else None) == right


def test_processes_of_another_run_are_refused(tmp_path):
    words = "train digits --run-dir run --checkpoint-every 1 --num-processes 2 --coordinator"
    words = f"{words} 127.0.0.1:{free_port()}"
    own = [f"{words} --process-id {number} --num-rounds {3 + number}" for number in (0, 1)]
    found = ended([process(*each.split(), cwd=tmp_path) for each in own])
    assert [code for _, _, code in found] == [2, 2]
    for _, said, _ in found:
        assert said.startswith("checkin: process 1 of the run: config."), said
        assert "config.protocol.num_rounds" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("auto", "JAX finds no cluster here"),
        *[
            (f"{text} --num-processes 2 --process-id 0", "no HOST:PORT")
            for text in ("here", "here:99999", ":1")
        ],
    ],
)
def test_processes_that_nobody_can_find_are_refused(tmp_path, where, told):
    words = f"train digits --run-dir run --coordinator {where}"
    ((_, said, code),) = ended([process(*words.split(), cwd=tmp_path)])
    assert code == 2
    assert said.startswith(f"checkin: --coordinator {where.partition(' ')[0]}"), said
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"num_processes": 2},
        {"process_id": 0, "num_processes": 2},
        {"coordinator": "here:1"},
        {"coordinator": "auto", "process_id": 1},
    ],
)
def test_processes_are_named_whole(options):
    with pytest.raises(UsageError, match="go together"):
        HostOptions(**options).devices()
