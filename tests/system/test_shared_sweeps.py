"""Sweeps that several processes evaluate: executors, and any process that sees the folder, killed ones among them."""

import collections
import errno
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pyarrow
import pytest

import checkin_jax as cj
from checkin_jax import _files
from checkin_jax.sweeps.sweep import prepare
from checkin_jax.sweeps.tables import Store

ARGUMENTS = {
    "what": "rdp",
    "num_clients": [10**6, 10**7, 10**8],
    "check_in_prob": [0.1, 0.5],
    "epsilon0": [0.5, 2.0, -1.0],
    "order": [1.5, 2.0],
    "block_rows": 2,
}

# Every evaluation says when it begins; it lasts long enough to be killed.
PROCESS = """
import json, os, sys, time
import checkin_jax as cj
from checkin_jax.sweeps import evaluate
right = evaluate.evaluate
def told(question, rows, *rest):
    with open(sys.argv[2], "a") as log:
        log.write(f"{os.getpid()} {[column[0].item() for column in rows.axes.values()]}\\n")
    time.sleep(0.25)
    return right(question, rows, *rest)
evaluate.evaluate = told
written = cj.sweep_to_file(sys.argv[1], join=True, **json.loads(sys.argv[3]))
print(written.rows, written.failed)
"""


@pytest.fixture(scope="module")
def right():
    """The rows, of one process."""
    return cj.sweep(**ARGUMENTS)


def same(found, right):
    assert list(found.columns) == list(right.columns)
    for name, column in right.columns.items():
        if name != "seconds":
            np.testing.assert_array_equal(found[name], column)


def test_four_processes_on_one_folder_with_kills(tmp_path, right):
    out, log = tmp_path / "sweep.parquet", tmp_path / "log"
    log.touch()

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(out), str(log), json.dumps(ARGUMENTS)],
            stdout=subprocess.PIPE,
            text=True,
        )

    processes, killed = [start() for _ in range(4)], []
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    for begun in (3, 8):
        deadline = time.monotonic() + 120
        while len(log.read_text().splitlines()) < begun:
            assert time.monotonic() < deadline, "nothing is evaluated"
            time.sleep(0.01)
        # One that is at work, at any point of it.
        at_work = {int(line.split()[0]) for line in log.read_text().splitlines()} - set(killed)
        time.sleep(0.2 * rng.random())
        killed.append(int(rng.choice(sorted(at_work))))
        os.kill(killed[-1], signal.SIGKILL)
    told = {each.pid: each.communicate(timeout=120)[0] for each in processes}
    assert {told[each.pid] for each in processes if each.pid not in killed} == {"36 12\n"}
    same(cj.finished_rows(out), right)
    assert not (tmp_path / "sweep.parquet.blocks").exists()
    evaluated = collections.defaultdict(list)
    for line in log.read_text().splitlines():
        process, block = line.split(" ", 1)
        evaluated[block].append(int(process))
    assert len(evaluated) == 18
    for by in evaluated.values():
        assert set(by[:-1]) <= set(killed)
    # One that comes late finds the file.
    late = cj.sweep_to_file(out, join=True, **ARGUMENTS)
    assert (late.rows, late.failed) == (36, 12)


def test_a_block_at_which_another_process_is_waits_for_it(tmp_path):
    """The claim is the lock on the incomplete file: what is evaluated meanwhile elsewhere is not evaluated here."""
    identity, out = prepare(**ARGUMENTS).identity(), tmp_path / "sweep.parquet"
    table, calls = pyarrow.table({"error": [""]}), []

    def here():
        calls.append("here")
        return table

    with (
        Store(out, identity, resume=True, joins=True) as one,
        Store(out, identity, resume=True, joins=True) as two,
    ):

        def slowly():
            assert not two.write(0, here)
            assert two.write(1, here)
            return table

        assert one.write(0, slowly)
        assert one.write(1, here)
        assert calls == ["here"]
        with pytest.raises(RuntimeError, match="killed"):
            one.write(2, lambda: (_ for _ in ()).throw(RuntimeError("killed")))
        assert not one.has(2)
        assert two.write(2, here)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, None])
def test_processes_do_not_join_where_files_have_no_locks(tmp_path, monkeypatch, number):
    def refuse(file, how):
        raise OSError(number, os.strerror(number))

    if number is None:
        monkeypatch.setattr(_files, "fcntl", None)
    else:
        monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=r"sweep\.parquet\.blocks/\.lock"):
        cj.sweep_to_file(tmp_path / "sweep.parquet", join=True, **ARGUMENTS)


def test_an_executor_gives_the_rows_of_one_process(tmp_path, right):
    done = []
    with ThreadPoolExecutor(3) as threads:
        written = cj.sweep_to_file(
            tmp_path / "threads.parquet",
            executor=threads,
            progress=lambda *told: done.append(told),
            **ARGUMENTS,
        )
    assert (written.rows, written.failed) == (36, 12)
    assert done[-1] == (36, 36)
    same(cj.finished_rows(tmp_path / "threads.parquet"), right)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as processes:
        cj.sweep_to_file(tmp_path / "spawned.csv", executor=processes, **ARGUMENTS)
    np.testing.assert_array_equal(cj.finished_rows(tmp_path / "spawned.csv")["rdp"], right["rdp"])


class Fragile(Executor):
    """An executor that fails at its third block."""

    calls = 0

    def submit(self, fn, /, *args):
        self.calls += 1
        future = Future()
        if self.calls == 3:
            future.set_exception(OSError("a worker is gone"))
        else:
            future.set_result(fn(*args))
        return future


def test_blocks_before_a_worker_s_failure_are_kept(tmp_path, right):
    out = tmp_path / "sweep.parquet"
    with pytest.raises(OSError, match="a worker is gone"):
        cj.sweep_to_file(out, executor=Fragile(), **ARGUMENTS)
    again = Fragile()
    again.calls = 10
    cj.sweep_to_file(out, executor=again, resume=True, **ARGUMENTS)
    assert again.calls == 10 + 18 - 2
    same(cj.finished_rows(out), right)


def test_ways_to_share_exclude_each_other(tmp_path):
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(ValueError, match="expected one of join and executor"),
    ):
        cj.sweep_to_file(tmp_path / "sweep.parquet", join=True, executor=threads, **ARGUMENTS)
    (tmp_path / "other.parquet").write_bytes(b"")
    cj.sweep(**ARGUMENTS | {"order": 2.0}).save(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="there is a file of another sweep"):
        cj.sweep_to_file(tmp_path / "other.parquet", join=True, **ARGUMENTS)


def test_other_libraries_read_a_sweep(right):
    read = pyarrow.table(right)
    assert read.column_names == list(right.columns)
    assert read["rdp"].null_count == 12
    np.testing.assert_array_equal(read["rdp"].to_numpy(), right["rdp"])
    assert read["error"].to_pylist() == right["error"].tolist()


def test_a_table_of_arrows_is_one_of_settings():
    settings = {"num_clients": [1000, 3000], "order": [2.0, 4.0], "view": ["messages", "local"]}
    more = {"what": "rdp", "protocol": cj.Shuffle, "epsilon0": 1.0}
    found = cj.sweep(table=pyarrow.table(settings), **more)
    np.testing.assert_array_equal(found["rdp"], cj.sweep(table=settings, **more)["rdp"])
