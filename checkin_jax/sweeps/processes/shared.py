"""Blocks of a sweep that others evaluate too: any executor's workers, or any process that sees the folder."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from checkin_jax.kernels.execution.devices import certified, in_use
from checkin_jax.sweeps import evaluate, table
from checkin_jax.sweeps.processes.claims import Claims
from checkin_jax.sweeps.processes.workers import Workers
from checkin_jax.sweeps.results import Question
from checkin_jax.sweeps.store import Store

# Blocks that an executor holds at a time, and the pause between two looks at what it or others have done, in seconds.
_AHEAD, _PAUSE = 1024, 0.05
_FILE = "file"

T = TypeVar("T")


class Future(Protocol):
    """What `Executor.submit` gives."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Executor(Protocol):
    """Whatever runs functions elsewhere: a `concurrent.futures.Executor`, or what looks like one."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future: ...


def elsewhere(question: Question, rows: Mapping[str, np.ndarray]) -> tuple[str, table.Columns]:
    """One block in a worker of an executor: its platform, and the block's columns."""
    with Workers(alone=True) as workers:
        return certified(in_use()).platform, evaluate.evaluate(question, rows, workers, lambda done: None)


def by_executor(
    executor: Executor,
    question: Question,
    blocks: Iterator[tuple[int, Mapping[str, np.ndarray]]],
    platform: str,
    write: Callable[[int, table.Columns], None],
) -> None:
    """Evaluates blocks, as many at a time as an executor may hold; those that are done are written in any order.

    Raises:
      ValueError: a worker computes on another platform than this process.
    """
    pending: dict[int, Future] = {}
    try:
        while True:
            for block, rows in itertools.islice(blocks, _AHEAD - len(pending)):
                pending[block] = executor.submit(elsewhere, question, rows)
            if not pending:
                return
            ready = [block for block, future in pending.items() if future.done()]
            for block in ready:
                theirs, columns = pending.pop(block).result()
                if theirs != platform:
                    raise ValueError(f"executor: a worker computes on {theirs}, expected {platform} as here")
                write(block, columns)
            if not ready:
                time.sleep(_PAUSE)
    finally:
        for future in pending.values():
            getattr(future, "cancel", lambda: None)()


def together(
    store: Store,
    count: int,
    lease: float,
    work: Callable[[int], table.Columns],
    tell: Callable[[int], None],
    join: Callable[[], T],
) -> T | None:
    """Evaluates blocks until all are finished, by this process or by others; what `join` gives, if it is this one's.

    work: a block's columns. tell: is told of every block that is finished. join: makes the file and removes the folder.
    """
    try:
        with Claims(store.folder, lease) as claims:
            left = list(range(count))
            while left:
                waiting = []
                for block in left:
                    if not store.has(block):
                        if not claims.take(f"{block:08d}"):
                            waiting.append(block)
                            continue
                        # It may have been finished between the two looks.
                        if not store.has(block):
                            _written(store, block, work(block))
                        claims.drop(f"{block:08d}")
                    tell(block)
                if len(waiting) == len(left):
                    time.sleep(_PAUSE)
                left = waiting
            while store.folder.exists():
                if claims.take(_FILE):
                    return join()
                time.sleep(_PAUSE)
    except FileNotFoundError:
        if store.folder.exists():
            raise
    # Others have finished everything and joined the file.
    return None


def _written(store: Store, block: int, columns: table.Columns) -> None:
    """Keeps a block, even if one whose claim was taken for stale is writing the same one."""
    while True:
        try:
            store.write(block, columns)
            return
        except BlockingIOError:
            time.sleep(_PAUSE)


def counted(path: Path) -> tuple[int, int, str]:
    """Rows of a file that is there, how many of them have errors, and the first error."""
    found = table.load(path)
    errors = found.columns.get("error", np.zeros(len(found), dtype=object))
    failed = [str(text) for text in errors if text]
    return len(found), len(failed), failed[0] if failed else ""
