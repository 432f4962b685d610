"""Which devices share the work: tasks are whole groups of settings, so no result depends on how many there are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import jax
from jax.sharding import Mesh

from checkin_jax.kernels.execution.devices import certified, float64

Task = Callable[[], None]


def _trim() -> None:
    """Gives memory that compilers have freed back to the system: glibc would keep more than half of it."""
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


class Workers:
    """Threads, each with a device of its own to compute on; use as a context manager.

    Args:
      mesh: the devices of this process in it are used; all of this process's devices when left out. A CPU that is one
        device gets a thread for each of its cores. In place of devices without IEEE float64 the CPU is used.

    Raises:
      TypeError: mesh is not a Mesh. ValueError: it has no device of this process.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(f"mesh={mesh!r}: expected a jax.sharding.Mesh")
        found = list(jax.local_devices() if mesh is None else mesh.local_devices)
        if not found:
            raise ValueError(f"mesh={mesh!r}: no device of this process in it")
        devices = list(dict.fromkeys(map(certified, found)))
        if len(devices) == 1:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            # A second thread prepares a group while an accelerator computes another.
            devices = devices * (cores if devices[0].platform == "cpu" else 2)
        self._first = devices[0]
        self._free = queue.SimpleQueue()
        for device in devices:
            self._free.put(device)
        self._pool = ThreadPoolExecutor(len(devices))
        self._stopped = threading.Event()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def device(self) -> contextlib.AbstractContextManager[object]:
        """Makes one of the devices the default: for choices that depend on their kind."""
        return jax.default_device(self._first)

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs all tasks, in no order; the first exception is raised once those under way have ended."""
        futures = [self._pool.submit(self._one, task) for task in tasks]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        finally:
            _trim()

    def _one(self, task: Task) -> None:
        if self._stopped.is_set():
            return
        device = self._free.get()
        try:
            # Both settings belong to a thread.
            with jax.default_device(device), float64():
                task()
        finally:
            self._free.put(device)
