"""Several processes of one run: connecting them, exchanging settings, and ending all if one fails.

JAX's coordinator in process 0 does the waiting, since collectives on a CPU fail if one process is half a minute late.
It also detects dead processes, by JAX's own heartbeats.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

PATIENCE = 600  # seconds that processes wait for each other, before a run begins and when it has ended
SILENCE = 30  # seconds without a heartbeat after which JAX takes a process for dead
# Seconds that process 0 outlives a failure: the others lose the coordinator with it, and JAX would end them.
_LINGER = 3.0
_GATHERINGS = itertools.count(1)
_BEFORE = "failed before the first round"


def join(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Connects this process to the others of a run; to be called before any other use of JAX.

    A late process is waited for, for at most ten minutes. If a process dies during a round, the others fail in that
    round. If a process stops responding, or process 0 has ended, JAX may end the others by SIGABRT (exit code 134) with
    its own message.

    Args:
      coordinator: host:port of process 0; "auto" if JAX can find it and the numbers (Slurm, Open MPI, Kubernetes,
        cloud TPU).
      num_processes, process_id: number of processes, and this one's number from 0; None with "auto".

    Raises:
      ValueError: JAX finds no cluster here, no HOST:PORT, or impossible numbers.
      TimeoutError: another process has not connected.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    where = None if coordinator == "auto" else coordinator
    try:
        if where is not None and not _is_address(where):
            raise ValueError("no HOST:PORT")
        with _failures_of_others(TimeoutError, f"has not connected within {PATIENCE} s"):
            jax.distributed.initialize(
                where,
                num_processes,
                process_id,
                initialization_timeout=PATIENCE,
                heartbeat_timeout_seconds=SILENCE,
                shutdown_timeout_seconds=PATIENCE,
            )
    except ValueError as error:
        found = "JAX finds no cluster here" if where is None else str(error)
        raise ValueError(
            f"coordinator={coordinator!r}, num_processes={num_processes}, process_id={process_id}: {found}; expected "
            "HOST:PORT of process 0, the number of processes and that of this one, from 0"
        ) from error


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


@contextlib.contextmanager
def _failures_of_others(kind: type[Exception], words: str) -> Iterator[None]:
    """Turns a failure of another process into an error of this kind."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise kind(f"another process {words}: {error}") from error


def leave(code: Any) -> NoReturn:
    """Ends this process; after a failure immediately, since a normal exit of JAX waits for the other processes."""
    joined = "jax" in sys.modules and jax.distributed.is_initialized()
    if not joined or code in (0, None):
        sys.exit(code)
    if jax.process_index() == 0:
        time.sleep(_LINGER)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def gathered(text: str) -> list[str]:
    """Texts of all processes of a run, in the order of their numbers. It waits for all of them.

    All processes have to call it equally often, before the first round.

    Raises:
      TimeoutError: a process has not connected. ConnectionError: one has failed.
    """
    if jax.process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils
    from orbax.checkpoint import multihost

    with _failures_of_others(TimeoutError, f"has not connected within {PATIENCE} s, or has failed"):
        multihost.get_barrier_sync_fn()(
            key=f"checkin-jax gathering {next(_GATHERINGS)}", timeout_ms=1_000 * PATIENCE
        )
    said = np.frombuffer(text.encode(), np.uint8)
    with _failures_of_others(ConnectionError, _BEFORE):
        sizes = np.ravel(multihost_utils.process_allgather(np.array([said.size], np.int32)))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: said.size] = said
        rows = np.reshape(multihost_utils.process_allgather(padded), (len(sizes), -1))
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes)]


def say(message: str) -> None:
    """Prints one line on standard error, after the program's name."""
    name = Path(sys.argv[0]).name
    # Interactive sessions have no program name.
    name = "checkin-jax" if name in ("", "-c") else name
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def of_first(tree: Any) -> Any:
    """Arrays of process 0, bit for bit; in other processes only the shapes of `tree` are used.

    Raises:
      ConnectionError: another process has failed.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    # As bytes: a sum over processes would lose the sign of a zero.
    raw = [np.frombuffer(leaf.tobytes(), np.uint8) for leaf in leaves]
    with _failures_of_others(ConnectionError, _BEFORE):
        raw = multihost_utils.broadcast_one_to_all(raw)
    shaped = [
        np.frombuffer(np.asarray(one, np.uint8).tobytes(), leaf.dtype).reshape(leaf.shape)
        for one, leaf in zip(raw, leaves)
    ]
    return jax.tree.unflatten(structure, shaped)
