"""Cache of slow tables, in memory and on disk (`checkin_jax._compiled`).

The file name is a hash of the package's sources, library versions, platform and arguments, so that a table of
another version is never read.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from checkin_jax import _compiled
from checkin_jax._files import replacing
from checkin_jax.kernels.execution import devices

Table = TypeVar("Table", bound=tuple)
# Files that were not read for this many days are removed.
_KEPT_DAYS = 90


def disk_cache(table: type[Table]) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """Decorator that caches a function of numbers which returns `table`, a named tuple of arrays."""

    def decorate(function: Callable[..., Table]) -> Callable[..., Table]:
        lock = threading.Lock()

        @functools.wraps(function)
        def call(*numbers: float) -> Table:
            with lock:  # threads wait for the one that makes the table
                return get(*numbers)

        @functools.lru_cache(maxsize=64)
        def get(*numbers: float) -> Table:
            folder = _compiled.folder("tables")
            if folder is None:
                return function(*numbers)
            name = (
                f"{function.__module__}.{function.__qualname__}{numbers} {_surroundings(devices.host_cpu())}"
            )
            path = folder / sha256(name.encode()).hexdigest()
            found = _read(path, table)
            if found is None:
                found = function(*numbers)
                _write(path, found)
            return found

        return call

    return decorate


@functools.cache
def _surroundings(device: Any) -> str:
    """Sources, versions and platform that a table depends on."""
    package = Path(_compiled.__file__).parent
    sources = sha256()
    for folder in ("kernels", "numerics"):
        for source in sorted((package / folder).rglob("*.py")):
            sources.update(source.read_bytes())
    releases = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION")]
    place = device.platform, device.device_kind
    return repr((sources.hexdigest(), releases, sys.version_info[:2], flags, place))


def _read(path: Path, table: type[Table]) -> Table | None:
    """Table of this file; None if the file is missing or damaged."""
    try:
        os.utime(path)
        with path.open("rb") as file, np.load(file) as arrays:  # whose format has a checksum of each
            return table(*(arrays[name] for name in arrays.files))
    except Exception:  # missing or damaged: computed again and replaced
        return None


def _write(path: Path, found: tuple) -> None:
    """Writes the table atomically; does nothing on failure."""
    with contextlib.suppress(OSError):
        with replacing(path) as file:
            np.savez(file, *found)
        for old in path.parent.iterdir():
            with contextlib.suppress(OSError):  # another process has removed the file
                if old.stat().st_mtime < time.time() - _KEPT_DAYS * 86_400:
                    old.unlink()
