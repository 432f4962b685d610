"""Leases on blocks, as files in a folder that is the only thing that several processes share."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
import uuid
from pathlib import Path


@functools.cache
def _host() -> str:
    """Name of the machine and, on Linux, of its process namespace, in which process numbers are unique."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


class Claims:
    """Leases of this process in a folder, renewed while they are held; use as a context manager.

    A lease is a file NAME.claim.0 that is created exclusively. It is stale if its process has ended (on this
    host), or if it was not renewed for `lease` seconds by the file system's clock. Whoever creates
    NAME.claim.1 then takes it over, and so on.

    Args:
      folder: an existing folder visible to all processes.
      lease: seconds after which a lease that is not renewed is stale; it is renewed five times as often.
    """

    def __init__(self, folder: Path, lease: float) -> None:
        self._folder, self._lease = folder, lease
        self._clock = folder / f".clock.{uuid.uuid4().hex}"
        self._held: dict[str, Path] = {}
        self._over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Claims:
        self._renewing.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._renewing.join()
        with contextlib.suppress(OSError):
            self._clock.unlink(missing_ok=True)

    def take(self, name: str) -> bool:
        """True if this process now holds the lease.

        Raises:
          FileNotFoundError: the folder is gone.
        """
        generation = 0
        while True:
            path = self._folder / f"{name}.claim.{generation}"
            try:
                file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                generation += 1
                if (self._folder / f"{name}.claim.{generation}").exists() or self._stale(path):
                    continue
                return False
            with os.fdopen(file, "w") as stream:
                json.dump({"host": _host(), "process": os.getpid(), "lease": self._lease}, stream)
            self._held[name] = path
            return True

    def drop(self, name: str) -> None:
        """Ends renewal of a lease whose work is done; the file stays."""
        self._held.pop(name, None)

    def _stale(self, path: Path) -> bool:
        try:
            written, text = path.stat().st_mtime, path.read_text()
            self._clock.touch()
            age = self._clock.stat().st_mtime - written
        except FileNotFoundError:  # the folder is gone, which the next attempt reports
            return False
        try:
            owner = json.loads(text)
            lease, ended = float(owner["lease"]), owner["host"] == _host() and _ended(owner["process"])
        except (ValueError, KeyError, TypeError):  # not written yet, or never
            lease, ended = self._lease, False
        return ended or age > lease

    def _renew(self) -> None:
        while not self._over.wait(0.2 * self._lease):
            for path in list(self._held.values()):
                with contextlib.suppress(OSError):
                    os.utime(path)


def _ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    with contextlib.suppress(OSError, IndexError):  # other systems have no such file
        # A zombie keeps its number until its parent waits for it.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False
