"""A map over calls: in this process and, once enough work is left for them, in processes beside it."""

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

# Processor seconds of work that each process must find, the one that begins it included; a process takes two to begin.
_WORTHWHILE = 4.0
# Calls that a process has waiting, so that it need not wait for this one.
_WAITING = 2
# Seconds after which a process that has nothing to do ends, and between two looks whether its parent is still there.
_IDLE, _LOOK = 60, 1.0


class Workers:
    """Evaluates calls on the host's CPU; use as a context manager.

    Processes beside this one import the package and nothing of the calling script, so that the script needs no guard;
    what only the script has is pickled by value. A call that fails there, in whatever way, is made again here.

    Args:
      alone: other processes share the cores already, so that none is begun.

    Attributes:
      blocks_left: how many runs of about as many calls follow the next one.
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
        """Calls take(i, function(*calls[i])) for every i, in no order; both are called in this thread but `function`.

        Raises:
          What `function` raises in this process.
        """
        here = on_cpu(function)
        left = collections.deque(range(len(calls)))
        # Calls that failed elsewhere, and calls that are under way there.
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
        """Begins processes if so many seconds of the processor's work pay for them."""
        count = min(self._most, int(seconds / _WORTHWHILE) - 1)
        if count > 0:
            self._processes = count
            self._pool = ProcessPoolExecutor(
                count, timeout=_IDLE, initializer=_follow, initargs=(os.getpid(),), env=_environment()
            )

    def _submitted(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> concurrent.futures.Future[Any] | None:
        """A call under way in another process; None where a process was killed, after which none is begun again."""
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
    """What other processes are told: to leave accelerators alone, and where JAX keeps what it compiles."""
    settings = jax.config.values
    names = (
        "jax_enable_compilation_cache",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
    )
    kept = {name.upper(): str(settings[name]) for name in names if settings[name] is not None}
    return {"JAX_PLATFORMS": "cpu", **kept}


def _follow(parent: int) -> None:
    """Ends this process with its parent, which alone answers the keyboard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
