"""Training shared by two processes: one comes late, one is killed. No run looks whole that is not."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROGRAM = """
import sys, time
from pathlib import Path
folder, rounds, late, number, port = sys.argv[1:]
time.sleep(float(late))
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
from stand_in import quick_account
from checkin_jax.accounting import account
account.account = quick_account
from checkin_jax.cli import recipe
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian
hosts = {"coordinator": f"127.0.0.1:{port}", "num_processes": 2, "process_id": int(number)}
del sys.argv[1:]
job = recipe.Recipe(run_dir=Path(folder), dataset="digits", **hosts)
recipe.program(lambda: job.run(
    protocol=ShuffledCheckIn(num_clients=500, check_in_prob=0.1, num_rounds=int(rounds)),
    randomizer=Gaussian(noise_multiplier=2.0),
))
"""
# Seconds that anything here may take on a busy machine.
LIMIT = 180.0


def start(folder: Path, rounds: int, *, late: float = 0.0) -> list[subprocess.Popen[str]]:
    """Two processes of one run, the second one so many seconds late."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), *sys.path])}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                str(folder),
                str(rounds),
                str(late * number),
                str(number),
                str(port),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]


def ended(processes):
    """(exit code, stdout, stderr) of each, none of them left behind."""
    try:
        return [(*process.communicate(timeout=LIMIT), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_a_process_that_comes_late_is_waited_for(tmp_path):
    folder = tmp_path / "run"
    found = ended(start(folder, 4, late=8.0))
    assert [code for _, _, code in found] == [0, 0], found
    assert "Saved in" in found[0][0]
    assert "Saved in" not in found[1][0]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
    assert (folder / "report.json").exists()


def test_when_a_process_is_killed_the_other_stops_and_says_so(tmp_path):
    folder = tmp_path / "run"
    processes = start(folder, 100_000)
    metrics, began = folder / "metrics.jsonl", time.monotonic()
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert time.monotonic() - began < LIMIT
        assert [process.poll() for process in processes] == [None, None]
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGKILL)
    (_, told, code), (_, _, killed) = ended(processes)
    assert killed == -signal.SIGKILL
    assert code == 2, told
    assert "Traceback" not in told
    # Rounds whose sum is known, each a whole line, and no report of a run that did not end.
    lines = metrics.read_text()
    assert lines.endswith("\n")
    assert [json.loads(line)["round"] for line in lines.splitlines()] == list(range(1, lines.count("\n") + 1))
    assert not (folder / "report.json").exists()
    assert not (folder / "parameters.npz").exists()
