"""Tables that take seconds to make: held by the process, and kept on the disk for the next one.

They lie beside the accountant's programs (`checkin_jax._compiled`), under a name that is made from the sources that
they come from, releases, platform and arguments, so that no other version's table is ever used.
"""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import numpy as np

from checkin_jax import _compiled
from checkin_jax.kernels.execution import ahead, devices

Table = TypeVar("Table", bound=tuple)


def kept(table: type[Table]) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """Keeps what a function of numbers returns, a named tuple of arrays of the type `table`."""

    def decorate(function: Callable[..., Table]) -> Callable[..., Table]:
        @functools.lru_cache(maxsize=64)
        def held(*_: float) -> tuple[threading.Lock, list[Table]]:
            return threading.Lock(), []

        @functools.wraps(function)
        def call(*numbers: float) -> Table:
            lock, found = held(*numbers)
            with lock:
                if not found:
                    found.append(get(*numbers))
            return found[0]

        def get(*numbers: float) -> Table:
            name = f"{function.__module__}.{function.__qualname__}{numbers}"
            rests_on = ahead.surroundings(devices.in_use(), "kernels", "numerics")
            place = sha256(f"{name} {rests_on}".encode()).hexdigest()
            found = _read(place, table)
            if found is None:
                found = function(*numbers)
                _write(place, found)
            return found

        return call

    return decorate


def _read(place: str, table: type[Table]) -> Table | None:
    content = _compiled.read(place)
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content)) as arrays:
            return table(*(arrays[name] for name in arrays.files))
    except Exception:  # something else under its name: it is made anew, and replaced
        return None


def _write(place: str, found: tuple) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, *found)
    _compiled.write(place, buffer.getvalue())
