"""Tables that are made once: in a process, and by all processes that share a folder."""

import io
import os
import threading
import time
from typing import NamedTuple

import jax
import numpy as np
import pytest

from checkin_jax import _compiled
from checkin_jax.numerics import two_point_laws


class Table(NamedTuple):
    squares: np.ndarray
    roots: np.ndarray


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKIN_JAX_CACHE", str(tmp_path))
    return tmp_path


def counting(made: list[tuple[float, int]], wait: threading.Event | None = None):
    """A function of two numbers that notes its calls; each call of this stands for another process."""

    @two_point_laws.disk_cache(Table)
    def table(scale: float, size: int) -> Table:
        made.append((scale, size))
        if wait is not None:
            wait.wait(0.05)
        numbers = scale * np.arange(size)
        return Table(numbers**2, np.sqrt(numbers))

    return table


def test_a_table_is_made_once_and_the_next_process_has_the_same_bits(folder):
    made = []
    first = counting(made)
    found = first(1.7, 5)
    assert first(1.7, 5) is found
    again = counting(made)(1.7, 5)
    assert made == [(1.7, 5)]
    assert isinstance(again, Table)
    for one, other in zip(found, again):
        np.testing.assert_array_equal(one, other)


def test_other_numbers_are_another_table(folder):
    made = []
    table = counting(made)
    assert table(1.7, 5).squares[1] != table(np.nextafter(1.7, 2.0), 5).squares[1]
    assert len(made) == 2


def an_archive(*arrays: np.ndarray) -> bytes:
    np.savez(buffer := io.BytesIO(), *arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "harm",
    [
        lambda whole: whole[:-1],
        lambda whole: b"",
        lambda whole: whole[::-1],
        lambda whole: whole[:40],
        # One bit of an array.
        lambda whole: whole.replace(np.float64(4.0).tobytes(), np.float64(2.0).tobytes()),
        # Whole, but of something else.
        *(
            lambda _, content=content: content
            for content in (b"no table", an_archive(np.ones(3)), b"PK" + bytes(80))
        ),
    ],
)
def test_what_is_no_table_is_made_anew(folder, harm):
    made = []
    right = counting(made)(1.0, 3)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    path.write_bytes(harm(path.read_bytes()))
    for _ in range(2):  # it is replaced
        for one, other in zip(counting(made)(1.0, 3), right, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(made) == 2


def test_other_sources_or_releases_are_another_table(folder, monkeypatch):
    made = []
    counting(made)(1.0, 3)
    monkeypatch.setattr(two_point_laws, "_surroundings", lambda *_: "others")
    counting(made)(1.0, 3)
    assert len(made) == 2


def test_a_release_and_the_sources_are_in_the_name(monkeypatch):
    device = jax.local_devices()[0]
    here = two_point_laws._surroundings.__wrapped__(device)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    assert two_point_laws._surroundings.__wrapped__(device) != here
    monkeypatch.undo()
    monkeypatch.setattr(two_point_laws.importlib.metadata, "version", lambda name: "0")
    assert two_point_laws._surroundings.__wrapped__(device) != here


def test_tables_that_nobody_reads_are_removed(folder):
    made = []
    counting(made)(1.0, 3)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    before = time.time() - 100 * 86_400
    os.utime(path, (before, before))
    counting(made)(2.0, 3)
    assert not path.exists()
    counting(made)(2.0, 3)
    assert len(made) == 2


@pytest.mark.parametrize("value", ["off", "0", "False"])
def test_nothing_is_kept_where_the_user_says_so(monkeypatch, tmp_path, value):
    monkeypatch.setenv("CHECKIN_JAX_CACHE", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    counting(made)(1.0, 3)
    counting(made)(1.0, 3)
    assert len(made) == 2
    assert _compiled.folder("tables") is None
    assert not list(tmp_path.iterdir())


def test_threads_wait_for_the_one_that_makes_it(folder):
    made = []
    table = counting(made, threading.Event())
    threads = [threading.Thread(target=table, args=(2.0, 4)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [(2.0, 4)]
