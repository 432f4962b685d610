"""Programs that are compiled ahead and kept: for whom, where, and what becomes of entries that are not whole."""

import os
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from checkin_jax import _compiled
from checkin_jax.kernels.execution import ahead, engine

pytestmark = pytest.mark.usefixtures("x64")


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.fixture(autouse=True)
def alone():
    """JAX's own cache is off: programs from it are not kept a second time."""
    mine = jax.config.values["jax_compilation_cache_dir"]
    for folder in (None, mine):
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()
        if folder is None:
            yield


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Keeps programs in a folder of the test."""
    home = tmp_path / "programs"
    monkeypatch.setenv(_compiled.VARIABLE, str(home))
    return home


@pytest.fixture
def compilations(monkeypatch):
    """The names of what is compiled."""
    made, compile_it = [], ahead._compile

    def counted(lowered, device, quick):
        made.append(lowered)
        return compile_it(lowered, device, quick)

    monkeypatch.setattr(ahead, "_compile", counted)
    return made


@ahead.compiled(static=("times",))
def kernel(pair: Pair, loss, times: int):
    total = pair.first + loss
    for _ in range(times):
        total = total + pair.second
    return Pair(total, {"loss": loss})


def entries(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


PAIR, LOSS = Pair(np.ones(3), np.arange(3.0)), np.float64(2.0)


def answer(times=2):
    found = kernel(PAIR, LOSS, times)
    assert isinstance(found, Pair)
    assert np.array_equal(found.first, 3.0 + times * np.arange(3.0))
    assert float(found.second["loss"]) == 2.0


def settled(folder, count):
    """Waits for the thread that writes."""
    for _ in range(200):
        if len(entries(folder)) == count and not list(folder.rglob("*.tmp")):
            return
        time.sleep(0.05)
    pytest.fail(f"{count} entries expected, found {entries(folder)}")


def test_a_program_is_compiled_once_and_kept(folder, compilations):
    kernel.forget()
    answer()
    answer()
    assert len(compilations) == 1
    settled(folder, 1)
    assert (folder.stat().st_mode & 0o777) == 0o700
    kernel.forget()
    answer()
    assert len(compilations) == 1
    answer(times=3)
    kernel(Pair(np.ones(4), np.ones(4)), LOSS, times=2)
    assert len(compilations) == 3


@ahead.family
def multiple(times: int):
    return lambda loss: times * loss


@ahead.compiled(static=("inner",))
def outer(loss, inner):
    return inner(loss)


def test_kernels_of_a_family_are_kept_apart(folder, compilations):
    for forgotten in range(2):
        outer.forget()
        for times in (2, 3):
            assert float(outer(LOSS, multiple(times))) == times * 2.0
        settled(folder, 2)
        assert len(compilations) == 2, forgotten


def test_a_kernel_without_a_name_of_its_own_is_refused(folder):
    with pytest.raises(ValueError, match=r"function of a module or one of a family, got .*lambda"):
        outer(LOSS, lambda loss: loss)


def test_arrays_on_the_device_stay_there(monkeypatch):
    given = []
    monkeypatch.setattr(
        ahead.Kernel,
        "_make",
        lambda self, found, *args: found.set_result(lambda *leaves: given.append(leaves)),
    )
    outer.forget()
    there = jax.numpy.ones(2)
    outer(there, multiple(2))
    outer.forget()
    assert given[0][0] is there


@pytest.mark.parametrize(
    "harm", [lambda content: content[:-9], lambda content: b"", lambda content: content[::-1]]
)
def test_entries_that_are_not_whole_are_made_anew(folder, compilations, harm):
    kernel.forget()
    answer()
    settled(folder, 1)
    (path,) = entries(folder)
    path.write_bytes(harm(path.read_bytes()))
    kernel.forget()
    answer()
    assert len(compilations) == 2


def test_a_program_that_does_not_run_is_made_anew(folder, compilations):
    def broken(*leaves):
        raise jax.errors.JaxRuntimeError("NOT_FOUND: Function add_fusion not found")

    loaded = ahead._Loaded(broken, lambda: lambda *leaves: sum(leaves))
    assert loaded(1, 2) == 3
    assert loaded(3, 4) == 7


def test_programs_from_jaxs_own_cache_are_not_kept_again(folder, compilations, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    compilation_cache.reset_cache()
    kernel.forget()
    answer(times=5)
    settled(folder, 1)
    (path,) = entries(folder)
    path.unlink()
    kernel.forget()
    jax.clear_caches()
    answer(times=5)
    time.sleep(0.2)
    assert entries(folder) == []
    assert len(compilations) == 2


def test_an_entry_of_something_else_is_made_anew(folder, compilations):
    kernel.forget()
    answer()
    settled(folder, 1)
    (path,) = entries(folder)
    _compiled.write(path.name, b"no program, but whole")
    kernel.forget()
    answer()
    assert len(compilations) == 2


@pytest.mark.parametrize("value", ["off", "0", "False"])
def test_nothing_is_kept_if_asked(tmp_path, monkeypatch, value):
    monkeypatch.setenv(_compiled.VARIABLE, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _compiled.programs() is None
    kernel.forget()
    answer()
    assert entries(tmp_path) == []


def test_programs_lie_in_the_users_cache_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.delenv(_compiled.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "checkin-jax" / "programs" / _compiled.release_and_machine()
    assert _compiled.programs() == folder
    folder.chmod(0o777)  # anybody could put code there
    assert _compiled.programs() is None


def test_programs_that_nobody_reads_are_removed(folder):
    home = folder / _compiled.release_and_machine()
    _compiled.write("old", b"program")
    before = time.time() - 100 * 86_400
    os.utime(home / "old", (before, before))
    _compiled.write("new", b"program")
    assert {path.name for path in home.iterdir()} == {"new"}
    assert _compiled.read("new") == b"program"
    assert _compiled.read("old") is None


def test_another_source_release_or_platform_has_other_programs(monkeypatch):
    device = jax.local_devices()[0]
    here = ahead.surroundings.__wrapped__(device)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    assert ahead.surroundings.__wrapped__(device) != here
    monkeypatch.undo()
    monkeypatch.setattr(ahead.importlib.metadata, "version", lambda name: "0")
    assert ahead.surroundings.__wrapped__(device) != here


def test_names_of_static_arguments_are_the_same_in_every_process():
    code = (
        "from checkin_jax.kernels.execution import ahead; from checkin_jax.kernels.messages.games import HEXAGON;"
        "print(ahead._named({'rules': HEXAGON, 'binomial': True}))"
    )
    found = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout for _ in range(2)
    }
    assert len(found) == 1
    assert b" at 0x" not in found.pop()


def test_threads_wait_for_one_compilation(folder, compilations):
    kernel.forget()
    found = []

    def call():
        with jax.enable_x64(True):
            found.append(float(kernel(PAIR, LOSS, 2).first[0]))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3.0] * 6
    assert len(compilations) == 1


def test_preparing_compiles_without_waiting(folder, compilations):
    kernel.forget()
    kernel.prepare(Pair(np.zeros(3), np.zeros(3)), np.float64(0.0), times=2)
    answer()
    assert len(compilations) == 1


def test_an_error_while_tracing_is_raised_and_not_kept():
    @ahead.compiled()
    def wrong(x):
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            wrong(np.ones(2))


def test_jax_set_to_look_for_nan_does_so_here(compilations):
    @ahead.compiled()
    def root(x):
        return jax.numpy.sqrt(x)

    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        root(np.float64(-1.0))
    assert np.isnan(root(np.float64(-1.0)))
    assert len(compilations) == 1


def test_a_program_may_be_asked_for_in_numpy(compilations):
    kernel.forget()
    assert float(engine.run(kernel, PAIR, LOSS, 2).first[0]) == 3.0
