"""A map over calls: in this process, and in worker processes if enough work is left."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from loky import ProcessPoolExecutor

# CPU seconds of work per process (this one included) from which workers are started; a start takes two.
_WORTHWHILE = 4.0
# Seconds after which an idle process ends, and between checks that its parent exists.
_IDLE, _LOOK = 60, 1.0


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Evaluates calls on the host's CPU; use as a context manager.

    The first calls run in this process. If they show that enough work is left, worker processes take calls from
    the front and this process from the end. Worker processes import the package and not the calling script, so
    that the script needs no guard; objects of the script are pickled by value. A call that fails in a worker, for
    any reason, is repeated in this process.

    Args:
      alone: True if other processes share the cores; then no worker is started.

    Attributes:
      blocks_left: number of runs of similar size after the next one.
    """

    def __init__(self, alone: bool = False) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most = 0 if alone else cores - 1
        self._pool: ProcessPoolExecutor | None = None
        self.blocks_left = 0

    def __exit__(self, *exc_info: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)

    def run(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], take: Callable[[int, Any], None]
    ) -> None:
        """Calls take(i, function(*calls[i])) for every i, in any order; `take` runs in this thread.

        Raises:
          Exceptions of `function` in this process.
        """
        started, made = time.process_time(), 0
        while made < len(calls) and self._pool is None:
            take(made, function(*calls[made]))
            made += 1
            each = (time.process_time() - started) / made
            self._begin(each * (len(calls) - made + len(calls) * self.blocks_left))
        pending = {self._submitted(function, calls[i]): i for i in range(made, len(calls))}
        while pending:
            last = next(reversed(pending))
            if last.cancel():
                i = pending.pop(last)
                take(i, function(*calls[i]))
            else:
                concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in [each for each in pending if each.done()]:
                i = pending.pop(future)
                take(i, function(*calls[i]) if future.exception() else future.result())

    def _begin(self, seconds: float) -> None:
        """Starts worker processes if this many CPU seconds of work are worth it."""
        count = min(self._most, int(seconds / _WORTHWHILE) - 1)
        if count <= 0:
            return
        try:
            self._pool = ProcessPoolExecutor(
                count, timeout=_IDLE, initializer=_follow, initargs=(os.getpid(),), env=_environment()
            )
        except (OSError, NotImplementedError):  # systems without semaphores
            self._most = 0

    def _submitted(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> concurrent.futures.Future[Any]:
        """A call to a worker; it has failed already if the pool is broken, since a worker was killed."""
        assert self._pool is not None
        try:
            return self._pool.submit(function, *arguments)
        except concurrent.futures.BrokenExecutor as error:
            failed = concurrent.futures.Future()
            failed.set_exception(error)
            return failed


def _environment() -> dict[str, str]:
    """Environment of worker processes: no accelerators, and JAX's compilation cache."""
    settings = jax.config.values
    names = (
        "jax_enable_compilation_cache",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
    )
    kept = {name.upper(): str(settings[name]) for name in names if settings[name] is not None}
    return {"JAX_PLATFORMS": "cpu", **kept}


def _follow(parent: int) -> None:
    """Ends this process with its parent, which alone handles the keyboard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
