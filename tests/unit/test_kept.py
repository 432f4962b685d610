"""Tables that are made once: in a process, and by all processes that share a folder."""

import io
import threading
from typing import NamedTuple

import numpy as np
import pytest

from checkin_jax import _compiled
from checkin_jax.numerics import kept


class Table(NamedTuple):
    squares: np.ndarray
    roots: np.ndarray


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKIN_JAX_CACHE", str(tmp_path))
    return tmp_path


def counting(made: list[tuple[float, int]], wait: threading.Event | None = None):
    """A function of two numbers that notes its calls; each call of this stands for another process."""

    @kept.kept(Table)
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


@pytest.mark.parametrize(
    "harm", [lambda whole: whole[:-1], lambda whole: b"", lambda whole: whole[::-1], lambda whole: whole[:40]]
)
def test_what_is_damaged_is_made_anew(folder, harm):
    made = []
    right = counting(made)(1.0, 3)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    path.write_bytes(harm(path.read_bytes()))
    for _ in range(2):  # it is replaced
        np.testing.assert_array_equal(counting(made)(1.0, 3).roots, right.roots)
    assert len(made) == 2


def an_archive(*arrays: np.ndarray) -> bytes:
    np.savez(buffer := io.BytesIO(), *arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", b"no table, but whole", an_archive(np.ones(3)), b"PK" + bytes(80)])
def test_an_entry_of_something_else_is_made_anew(folder, content):
    made = []
    counting(made)(1.0, 3)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    _compiled.write(path.name, content)
    for _ in range(2):
        assert counting(made)(1.0, 3).squares.tolist() == [0.0, 1.0, 4.0]
    assert len(made) == 2


def test_other_sources_or_releases_are_another_table(folder, monkeypatch):
    made = []
    counting(made)(1.0, 3)
    monkeypatch.setattr(kept.ahead, "surroundings", lambda *_: "others")
    counting(made)(1.0, 3)
    assert len(made) == 2


def test_nothing_is_kept_where_the_user_says_so(monkeypatch):
    monkeypatch.setenv("CHECKIN_JAX_CACHE", "off")
    made = []
    counting(made)(1.0, 3)
    counting(made)(1.0, 3)
    assert len(made) == 2
    assert _compiled.programs() is None


def test_threads_wait_for_the_one_that_makes_it(folder):
    made = []
    table = counting(made, threading.Event())
    threads = [threading.Thread(target=table, args=(2.0, 4)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [(2.0, 4)]
