"""Processes that share a run: how they find each other, what they tell each other, and how they end together.

JAX's coordinator, which process 0 houses, does the waiting: collectives of a CPU give up where one process is half a
minute later than another. It also notices processes that have died, by JAX's own heartbeats.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

PATIENCE = 600  # seconds that processes wait for each other, before a run begins and when it has ended
SILENCE = 30  # seconds without a heartbeat after which JAX takes a process for dead
# Seconds that process 0 outlives a failure: the others lose the coordinator with it, and JAX would end them.
_LINGER = 3.0
_GATHERINGS = itertools.count(1)


def join(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Makes this process one of several, before anything of JAX has run; for programs, since failures end it.

    A process that comes late is waited for, ten minutes long. Where one dies during a round the others fail in that
    round. Where one falls silent, or process 0 has ended, JAX may end the others by SIGABRT (exit code 134) with a page
    of its own.

    Args:
      coordinator: host:port of process 0; "auto" where JAX finds it and the numbers by itself (Slurm, Open MPI,
        Kubernetes, cloud TPU).
      num_processes, process_id: how many there are, and which one this is; None with "auto".

    Raises:
      ValueError: JAX finds no cluster here, or numbers that make no sense.
      TimeoutError: another process has not come.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    where = None if coordinator == "auto" else coordinator
    try:
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
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(f"another process has not come within {PATIENCE} s: {error}") from error


def leave(code: Any) -> NoReturn:
    """Ends this process; after a failure at once, since at a proper exit JAX would wait for the other processes."""
    joined = "jax" in sys.modules and jax.distributed.is_initialized()
    if not joined or code in (0, None):
        sys.exit(code)
    if jax.process_index() == 0:
        time.sleep(_LINGER)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def gathered(text: str) -> list[str]:
    """The texts of all processes of a run, by process number; waits for all. Of one process alone its own.

    Every process calls it equally often, before the first round.

    Raises:
      TimeoutError: a process has not come. ConnectionError: one has failed.
    """
    if jax.process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils
    from orbax.checkpoint import multihost

    try:
        multihost.get_barrier_sync_fn()(
            key=f"checkin-jax gathering {next(_GATHERINGS)}", timeout_ms=1_000 * PATIENCE
        )
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(
            f"another process has not come within {PATIENCE} s, or has failed: {error}"
        ) from error
    said = np.frombuffer(text.encode(), np.uint8)
    try:
        sizes = np.ravel(multihost_utils.process_allgather(np.array([said.size], np.int32)))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: said.size] = said
        rows = np.reshape(multihost_utils.process_allgather(padded), (len(sizes), -1))
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"another process failed before the first round: {error}") from error
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes)]


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
