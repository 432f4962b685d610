"""Processes beside this one, for rows that the host evaluates: the interpreter's lock lets one thread at a time do so.

Each is a fresh interpreter that imports this package and nothing of the calling program, so that scripts need no guard.
What cannot be sent there, or comes back as an error, is evaluated in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import jax

from checkin_jax.kernels.execution.devices import float64

_PROGRAM = "import sys; sys.path[:] = {path!r}; from checkin_jax.sweeps.processes import beside; beside.serve({number})"


@dataclasses.dataclass(frozen=True)
class Portable:
    """A task that may be run by another process: take(function(*arguments)); both must be importable there."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    take: Callable[[Any], None]

    def __call__(self) -> None:
        self.take(self.function(*self.arguments))


def trim() -> None:
    """Gives memory that tables and compilers have freed back to the system: glibc would keep more than half of it."""
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


def possible() -> bool:
    """Whether this system lets a process be started with a pipe of ours."""
    return os.name == "posix" and bool(sys.executable)


class Beside:
    """One such process; `close` ends it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        program = _PROGRAM.format(path=[entry or os.getcwd() for entry in sys.path], number=theirs.fileno())
        keeps = bool(jax.config.values["jax_enable_compilation_cache"])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": str(keeps)},
            )

    def does(self, task: Portable) -> bool:
        """Runs the task there; False where that was impossible, and nothing has been taken."""
        try:
            self._pipe.send((task.function, task.arguments))
            done, answer = self._pipe.recv()
        # What pickle raises depends on the object; a process that has died ends the pipe.
        except Exception:
            return False
        if done:
            task.take(answer)
        return done

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()


def serve(number: int) -> None:
    """Answers calls that come by the pipe of this number until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has started this process ends it
    with Connection(number) as pipe, float64():
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                return
            except Exception:  # no module of that name here
                pipe.send((False, None))
                continue
            pipe.send(_tried(function, arguments))
            trim()


def _tried(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception:  # this process's caller will meet it, too
        return False, None
