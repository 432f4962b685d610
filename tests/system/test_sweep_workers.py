"""Rows that processes beside this one evaluate: the same ones, whatever becomes of those processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

import checkin_jax as cj
from checkin_jax.sweeps import evaluate

TABLE = {"num_clients": [3000.0] * 8, "num_rounds": list(range(1, 9)), "epsilon0": 0.5, "delta": 1e-6}
CPU = jax.local_devices(backend="cpu")[0]


class _Gpu(NamedTuple):
    """A device that nothing can be put on."""

    platform: str = "gpu"


def swept(monkeypatch, worthwhile, **more):
    """The rows, and what each pool of processes was told."""
    begun = []

    def counted(*args, **told):
        begun.append(told)
        return pool(*args, **told)

    pool = evaluate.ProcessPoolExecutor
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "_WORTHWHILE", worthwhile)
        patch.setattr(evaluate, "ProcessPoolExecutor", counted)
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        found = cj.sweep(protocol=cj.Shuffle, table=TABLE, bounds="fast", **more)
    return found, begun


def same(found, right):
    for name in set(right.columns) - {"seconds"}:
        assert found[name].tolist() == right[name].tolist()


def test_rows_are_the_same_wherever_they_are_evaluated(monkeypatch):
    alone, none = swept(monkeypatch, 1e9)
    shared, begun = swept(monkeypatch, 1e-9)
    assert not none
    assert len(begun) == 1
    same(shared, alone)


def test_beside_an_accelerator_the_host_s_processes_evaluate(monkeypatch):
    """What has no compiled kernel; they leave the accelerator alone."""
    right, _ = swept(monkeypatch, 1e9)
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [CPU] if backend else [_Gpu()])
    found, begun = swept(monkeypatch, 1e-9)
    assert [told["env"]["JAX_PLATFORMS"] for told in begun] == ["cpu"]
    same(found, right)


def test_a_class_of_the_calling_program_goes_there_too(monkeypatch):
    here = type("Here", (cj.PureLDP,), {"__module__": "__main__"})
    monkeypatch.setattr("__main__.Here", here, raising=False)
    right, _ = swept(monkeypatch, 1e9)
    found, begun = swept(monkeypatch, 1e-9, randomizer=here)
    assert begun
    assert {*found["randomizer"]} == {"Here"}
    found.columns["randomizer"][:] = "PureLDP"
    same(found, right)


def _fragile(parent, how):
    """Fails in every process but the parent."""
    if os.getpid() != parent:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("not here")
    return "done"


@pytest.mark.parametrize("how", ["killed", "error"])
def test_a_call_that_fails_elsewhere_is_made_here(monkeypatch, how):
    monkeypatch.setattr(evaluate, "_WORTHWHILE", 1e-9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    taken = {}
    with evaluate.Workers() as both:
        both.run(_fragile, [(os.getpid(), how)] * 9, taken.__setitem__)
        both.run(_fragile, [(os.getpid(), how)] * 3, lambda i, found: taken.update({9 + i: found}))
    assert taken == dict.fromkeys(range(12), "done")


def test_an_error_in_this_process_is_raised():
    with evaluate.Workers() as both, pytest.raises(ZeroDivisionError):
        both.run(divmod, [(7, 0)], lambda i, found: None)


SCRIPT = """
import os, sys, time
import checkin_jax as cj
from checkin_jax.sweeps import evaluate
print("top", flush=True)
evaluate._WORTHWHILE = 1e-9
os.sched_getaffinity = lambda _: {0, 1, 2}
def told(done, total):
    print(done, flush=True)
    time.sleep(float(sys.argv[1]))
rounds = list(range(1, int(sys.argv[2])))
about = {"protocol": cj.Shuffle, "num_clients": 3000, "epsilon0": 0.5, "delta": 1e-6, "bounds": "fast"}
cj.sweep(num_rounds=rounds, progress=told, **about)
print("end", flush=True)
"""


def _children(process: int) -> list[int]:
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == str(process)
    ]


def test_a_script_needs_no_guard(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    run = subprocess.run([sys.executable, str(file), "0", "61"], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split()[0] == "top"
    assert run.stdout.split()[-2:] == ["60", "end"]
    assert run.stdout.count("top") == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_killed_sweep_leaves_neither_processes_nor_tracebacks(tmp_path):
    file, said = tmp_path / "script.py", tmp_path / "said"
    file.write_text(SCRIPT)
    with said.open("w") as stream:
        running = subprocess.Popen(
            [sys.executable, str(file), "0.05", "2000"], stdout=subprocess.DEVNULL, stderr=stream
        )
    deadline = time.monotonic() + 120
    while len(children := _children(running.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(children) >= 3, "the tracker of the pool, and two processes"
    time.sleep(3.0)  # they are at work
    running.send_signal(signal.SIGKILL)
    running.wait()
    while any(Path(f"/proc/{each}").exists() for each in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [each for each in children if Path(f"/proc/{each}").exists()]
    assert "Traceback" not in said.read_text()
    assert "BrokenPipe" not in said.read_text()
