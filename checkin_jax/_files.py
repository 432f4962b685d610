"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes the name `path` once it is whole and on the disk; nothing is left of a failure.

    A kill leaves `.NAME.tmp`, which the next write of that name replaces.

    Args:
      shared: other processes may write this name at the same time: each has a temporary file of its own,
        `.NAME.PID.tmp`, and a kill leaves it for good.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f".{path.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
