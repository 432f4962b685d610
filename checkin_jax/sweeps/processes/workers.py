"""Which devices share the work: tasks are whole groups of settings, so no result depends on how many there are.

On a CPU of several cores long work on the host goes on in a process for each core.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import jax
from jax.sharding import Mesh

from checkin_jax.kernels.execution.devices import certified, float64
from checkin_jax.sweeps.processes import beside

Task = Callable[[], None]
# Processor seconds that must be left for every process there would be then before another one, which takes two, begins.
_WORTHWHILE = 4.0


class _Place:
    """A device that one task at a time has; further: it may have a process of its own beside this one."""

    def __init__(self, device: object, further: bool) -> None:
        self.device, self.further = device, further
        self.beside: beside.Beside | None = None

    def close(self) -> None:
        if self.beside is not None:
            self.beside.close()
            self.beside = None


class _Left:
    """What is left of the tasks of a run, and of runs like it, from how long those took that are done."""

    def __init__(self, tasks: int, runs: int) -> None:
        self._tasks, self._done, self._seconds = tasks * (1 + runs), 0, 0.0
        self._lock = threading.Lock()

    def done(self, seconds: float | None) -> None:
        """One more; seconds: of the processor, None where another process's."""
        with self._lock:
            self._tasks -= 1
            if seconds is not None:
                self._done, self._seconds = self._done + 1, self._seconds + seconds

    @property
    def seconds(self) -> float:
        """Processor seconds, about; zero before the first has ended."""
        return self._tasks * self._seconds / max(self._done, 1)


class Workers:
    """Threads, each with a device of its own to compute on; use as a context manager.

    Args:
      mesh: the devices of this process in it are used; all of this process's devices when left out. A CPU that is one
        device gets a thread for each of its cores. In place of devices without IEEE float64 the CPU is used.
      alone: whether other processes share the cores already, so that none is begun.

    Attributes:
      runs_left: about how many more runs there will be after the next one.

    Raises:
      TypeError: mesh is not a Mesh. ValueError: it has no device of this process.
    """

    def __init__(self, mesh: Mesh | None = None, alone: bool = False) -> None:
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(f"mesh={mesh!r}: expected a jax.sharding.Mesh")
        found = list(jax.local_devices() if mesh is None else mesh.local_devices)
        if not found:
            raise ValueError(f"mesh={mesh!r}: no device of this process in it")
        devices = list(dict.fromkeys(map(certified, found)))
        further = False
        if len(devices) == 1:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            # A second thread prepares a group while an accelerator computes another.
            further = devices[0].platform == "cpu" and not alone and beside.possible()
            devices = devices * (cores if devices[0].platform == "cpu" else 2)
        self._first = devices[0]
        self._free: queue.SimpleQueue[_Place] = queue.SimpleQueue()
        # The first one's work stays in this process.
        self._places = [_Place(device, further and i > 0) for i, device in enumerate(devices)]
        for place in self._places:
            self._free.put(place)
        self._pool = ThreadPoolExecutor(len(devices))
        self._stopped, self._turn = threading.Event(), threading.Lock()
        self.runs_left = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        for place in self._places:
            place.close()
        self._pool.shutdown(cancel_futures=True)

    def device(self) -> contextlib.AbstractContextManager[object]:
        """Makes one of the devices the default: for choices that depend on their kind."""
        return jax.default_device(self._first)

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs all tasks, in no order; the first exception is raised once those under way have ended."""
        left = _Left(len(tasks), self.runs_left)
        futures = [self._pool.submit(self._one, task, left) for task in tasks]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        finally:
            beside.trim()

    def _one(self, task: Task, left: _Left) -> None:
        if self._stopped.is_set():
            return
        place = self._free.get()
        try:
            if isinstance(task, beside.Portable) and self._elsewhere(place, task, left):
                left.done(None)
                return
            # Two threads with small calls of NumPy take the interpreter's lock from each other all the time.
            host = isinstance(task, beside.Portable) and self._first.platform == "cpu"
            with self._turn if host else contextlib.nullcontext():
                started = time.thread_time()
                # Both settings belong to a thread.
                with jax.default_device(place.device), float64():
                    task()
                left.done(time.thread_time() - started)
        finally:
            self._free.put(place)
            beside.trim()

    def _elsewhere(self, place: _Place, task: beside.Portable, left: _Left) -> bool:
        """Whether the place's process has done the task; one is begun where enough is left for it."""
        if not place.further:
            return False
        if place.beside is None:
            processes = 1 + sum(each.beside is not None for each in self._places)
            if left.seconds < _WORTHWHILE * (processes + 1):
                return False
            place.beside = beside.Beside()
        if place.beside.does(task):
            return True
        place.close()
        # What this one could not do the next could not, either.
        place.further = False
        return False
