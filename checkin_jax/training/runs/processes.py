"""Processes that share a run: how they find each other, what they tell each other, and how they end together.

Words go through JAX's coordinator, which process 0 houses, not through collectives: those of a CPU give up where one
process is half a minute later than another.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn, cast

import jax
import numpy as np
from jax._src import distributed  # its client alone can wait for longer than half a minute

PATIENCE = 600  # seconds that processes wait for each other before a run begins
SILENCE = 30.0  # seconds without a sign after which a process counts as dead
_BEAT = 3.0
# Seconds that process 0 outlives a failure: the others lose the coordinator with it, and JAX would end them.
_LINGER = 3.0
_MEETINGS = itertools.count(1)
_ENDED = "ended"
# Of what JAX says before it ends a process because the coordinator has gone.
_LOST = (
    b"Polled an error from coordination service",
    b"Terminating process because the JAX distributed service",
)


def join(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Makes this process one of several, before anything of JAX has run; for programs, since failures end it.

    A process that comes late is waited for, ten minutes long. From then on one that gives no sign for half a minute
    ends all others, each with one line on standard error and exit code 2 (0 where all was done). Where process 0 is
    killed they learn it from JAX, which may, rarely, be quicker to end them itself, by SIGABRT and a page of its own.

    Args:
      coordinator: host:port of process 0; "auto" where JAX finds it and the numbers by itself (Slurm, Open MPI,
        Kubernetes, cloud TPU).
      num_processes, process_id: how many there are, and which one this is; None with "auto".

    Raises:
      ValueError: JAX finds no cluster here, or numbers that make no sense.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    joined = threading.Event()

    def waiting() -> None:
        if not joined.wait(PATIENCE):
            _end(f"another process has not come within {PATIENCE} s")

    threading.Thread(target=waiting, daemon=True).start()
    where = None if coordinator == "auto" else coordinator
    try:
        jax.distributed.initialize(where, num_processes, process_id, initialization_timeout=2 * PATIENCE)
    except ValueError as error:
        found = "JAX finds no cluster here" if where is None else str(error)
        raise ValueError(
            f"coordinator={coordinator!r}, num_processes={num_processes}, process_id={process_id}: {found}; expected "
            "HOST:PORT of process 0, the number of processes and that of this one, from 0"
        ) from error
    finally:
        joined.set()
    if distributed.global_state.process_id:
        _say_of_a_lost_coordinator()
    _watch()


def leave(code: Any) -> NoReturn:
    """Ends this process; where it is one of several at once, since at a proper exit JAX would wait for the others."""
    joined = "jax" in sys.modules and distributed.global_state.client is not None
    if not joined or code in (0, None):
        sys.exit(code)
    if distributed.global_state.process_id == 0:
        time.sleep(_LINGER)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


class Meeting:
    """What the processes of one run tell each other before its first round; one alone says nothing and hears itself.

    Every process makes one a run, in the same order.
    """

    def __init__(self) -> None:
        self._name = f"checkin-jax run {next(_MEETINGS)}"
        self._client = distributed.global_state.client if jax.process_count() > 1 else None

    def gathered(self, text: str) -> list[str]:
        """What every process says, by number; waits for all.

        Raises:
          TimeoutError: one has not come.
        """
        self._say(f"{jax.process_index()} of all", text)
        if self._client is None:
            return [text]
        return [self._heard(f"{process} of all") for process in range(jax.process_count())]

    def tell(self, text: str) -> None:
        """Tells the others, who `listen`; for process 0, once."""
        self._say("first", text)

    def listen(self) -> str:
        """What process 0 tells; waits for it.

        Raises:
          TimeoutError: it has told nothing.
        """
        return self._heard("first")

    def _say(self, key: str, text: str) -> None:
        if self._client is not None:
            self._client.key_value_set(f"{self._name} {key}", text)

    def _heard(self, key: str) -> str:
        try:
            return cast(Any, self._client).blocking_key_value_get(f"{self._name} {key}", 1_000 * PATIENCE)
        except jax.errors.JaxRuntimeError as error:
            raise TimeoutError(
                f"another process has not come within {PATIENCE} s, or has failed: {error}"
            ) from error


def say(message: str) -> None:
    """Tells the user one line on standard error, after the program's name."""
    name = Path(sys.argv[0]).name
    # Who types Python has no program.
    name = "checkin-jax" if name in ("", "-c") else name
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def of_first(tree: Any) -> Any:
    """The arrays of process 0 in every process, bit for bit; elsewhere only their shapes count.

    Raises:
      ConnectionError: another process has failed.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    # As bytes: a sum over processes would lose the sign of a zero.
    raw = [np.frombuffer(leaf.tobytes(), np.uint8) for leaf in leaves]
    try:
        raw = multihost_utils.broadcast_one_to_all(raw)
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"another process failed before the first round: {error}") from error
    shaped = [
        np.frombuffer(np.asarray(one, np.uint8).tobytes(), leaf.dtype).reshape(leaf.shape)
        for one, leaf in zip(raw, leaves)
    ]
    return jax.tree.unflatten(structure, shaped)


def _watch() -> None:
    """Gives signs of life until the interpreter ends, and ends this process where another one gives none.

    At its end a process waits for the others, which may still write: JAX would wait minutes for one that has died.
    """
    state = distributed.global_state
    client, own = cast(Any, state.client), state.process_id
    others = set(range(state.num_processes)) - {own}
    ending, ended = threading.Event(), threading.Event()
    heard = dict.fromkeys(others, (time.monotonic(), ""))

    def key(process: int) -> str:
        return f"checkin-jax sign of {process}"

    def sign() -> None:
        for beat in itertools.count():
            if ending.wait(_BEAT):
                time.sleep(_BEAT / 10)
            said = _ENDED if ending.is_set() else str(beat)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone
                client.key_value_set(key(own), said, allow_overwrite=True)
            for process in others:
                with contextlib.suppress(jax.errors.JaxRuntimeError):  # or no sign was given yet
                    found = client.key_value_try_get(key(process))
                    if found != heard[process][1]:
                        heard[process] = time.monotonic(), found
            if said == _ENDED and all(words == _ENDED for _, words in heard.values()):
                ended.set()
                return

    def look() -> None:
        while not ended.wait(_BEAT):
            for process, (when, words) in heard.items():
                if words != _ENDED and time.monotonic() - when > SILENCE:
                    _end(
                        f"process {process} has given no sign for {SILENCE:.0f} s; this one ends, too",
                        code=0 if ending.is_set() else 2,
                    )

    def end() -> None:
        ending.set()
        ended.wait()

    for function in (sign, look):
        threading.Thread(target=function, daemon=True).start()
    atexit.register(end)


def _say_of_a_lost_coordinator() -> None:
    """Ends this process with one line where process 0 has died.

    JAX ends it, too, from a thread of its own, with a page on standard error that it then completes by the stack. So
    standard error leads through a pipe, and at the first words of that page the process is quicker. Python's own
    goes past the pipe.
    """
    real = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    sys.stderr = os.fdopen(real, "w", buffering=1, errors="replace", closefd=False)

    def read() -> None:
        while words := os.read(reader, 65536):
            if any(sign in words for sign in _LOST):
                _end("process 0 has died; this one ends, too")
            os.write(real, words)

    threading.Thread(target=read, daemon=True).start()
    atexit.register(os.dup2, real, 2)


def _end(message: str, code: int = 2) -> NoReturn:
    """Ends the process from a thread: the main one may wait for a collective that will never return."""
    say(message)
    os._exit(code)
