"""Rows that another process evaluates beside this one: the same ones, whatever becomes of it."""

import os
import signal

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.sweeps.processes import beside, workers

BESIDE = beside.Beside
TABLE = {"num_clients": [3000.0] * 8, "num_rounds": list(range(1, 9)), "epsilon0": 0.5, "delta": 1e-6}


def swept(monkeypatch, worthwhile):
    """The rows, and how many processes began."""
    begun = []

    class Counted(BESIDE):
        def __init__(self):
            super().__init__()
            begun.append(self)

    monkeypatch.setattr(workers, "_WORTHWHILE", worthwhile)
    monkeypatch.setattr(beside, "Beside", Counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    found = cj.sweep(protocol=cj.Shuffle, rows="zip", bounds="fast", **TABLE)
    return found, begun


@pytest.fixture(scope="module")
def process():
    found = beside.Beside()
    yield found
    found.close()


def test_rows_are_the_same_wherever_they_are_evaluated(monkeypatch):
    alone, none = swept(monkeypatch, np.inf)
    shared, begun = swept(monkeypatch, -1.0)
    assert not none
    assert len(begun) == 1
    for name in set(alone.columns) - {"seconds"}:
        assert alone[name].tolist() == shared[name].tolist()
    assert begun[0]._process.poll() is not None, "it ends with the sweep"


def test_what_another_process_cannot_do_is_left_to_this_one(process):
    taken = []
    assert process.does(beside.Portable(divmod, (7, 2), taken.append))
    assert not process.does(beside.Portable(divmod, (7, 0), taken.append)), (
        "its error is this process's to raise"
    )
    assert not process.does(beside.Portable(lambda: 1, (), taken.append)), "no module has it"
    assert process.does(beside.Portable(divmod, (9, 2), taken.append)), "it goes on"
    assert taken == [(3, 1), (4, 1)]


def test_a_class_of_the_calling_program_stays_in_this_process(monkeypatch):
    here = type("Here", (cj.PureLDP,), {"__module__": "__main__"})
    monkeypatch.setattr("__main__.Here", here, raising=False)
    monkeypatch.setattr(workers, "_WORTHWHILE", -1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    found = cj.sweep(protocol=cj.Shuffle, rows="zip", bounds="fast", randomizer=here, **TABLE)
    known = cj.sweep(protocol=cj.Shuffle, rows="zip", bounds="fast", **TABLE)
    assert found["epsilon"].tolist() == known["epsilon"].tolist()


def test_a_process_that_is_killed_costs_no_row():
    found = beside.Beside()
    os.kill(found._process.pid, signal.SIGKILL)
    assert not found.does(beside.Portable(divmod, (7, 2), [].append))
    found.close()
