"""A map over calls: in this process and, if enough work is left, in worker processes."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from loky import ProcessPoolExecutor

from checkin_jax.kernels.execution.devices import on_cpu

# CPU seconds of work per process (this one included) from which workers are started; a start takes two.
_WORTHWHILE = 4.0
# Calls queued per process, so that it does not wait for this one.
_WAITING = 2
# Seconds after which an idle process ends, and between checks that its parent exists.
_IDLE, _LOOK = 60, 1.0


class Workers:
    """Evaluates calls on the host's CPU; use as a context manager.

    Worker processes import the package and not the calling script, so that the script needs no guard; objects
    of the script are pickled by value. A call that fails in a worker, for any reason, is repeated in this
    process.

    Args:
      alone: True if other processes share the cores; then no worker is started.

    Attributes:
      blocks_left: number of runs of similar size after the next one.
    """

    def __init__(self, alone: bool = False) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most = 0 if alone else cores - 1
        self._pool: ProcessPoolExecutor | None = None
        self._processes = 0
        self.blocks_left = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()

    def run(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], take: Callable[[int, Any], None]
    ) -> None:
        """Calls take(i, function(*calls[i])) for every i, in any order; `take` runs in this thread.

        Raises:
          Exceptions of `function` in this process.
        """
        here = on_cpu(function)
        left = collections.deque(range(len(calls)))
        # Calls that failed in workers, and calls under way there.
        again: list[int] = []
        pending: dict[concurrent.futures.Future[Any], int] = {}
        spent, made = 0.0, 0
        while left or again or pending:
            if self._pool is None and made:
                self._begin(spent / made * (len(left) + len(calls) * self.blocks_left))
            while left and len(pending) < _WAITING * self._processes:
                future = self._submitted(function, calls[left[0]])
                if future is None:
                    break
                pending[future] = left.popleft()
            if again or left:
                i = again.pop() if again else left.popleft()
                started = time.process_time()
                take(i, here(*calls[i]))
                spent, made = spent + time.process_time() - started, made + 1
            else:
                concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in [each for each in pending if each.done()]:
                i = pending.pop(future)
                if future.exception() is None:
                    take(i, future.result())
                else:
                    again.append(i)

    def _begin(self, seconds: float) -> None:
        """Starts worker processes if this many CPU seconds of work are worth it."""
        count = min(self._most, int(seconds / _WORTHWHILE) - 1)
        if count <= 0:
            return
        try:
            self._pool = ProcessPoolExecutor(
                count, timeout=_IDLE, initializer=_follow, initargs=(os.getpid(),), env=_environment()
            )
            self._processes = count
        except (OSError, NotImplementedError):  # systems without semaphores
            self._most = 0

    def _submitted(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> concurrent.futures.Future[Any] | None:
        """Submits a call to a worker; None after a worker was killed, when no more are started."""
        try:
            return None if self._pool is None else self._pool.submit(function, *arguments)
        except concurrent.futures.BrokenExecutor:
            self._close()
            self._most = self._processes = 0
            return None

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None


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
