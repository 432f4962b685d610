"""One line on standard error after a computation has taken a few seconds, on terminals and elsewhere."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator

PATIENCE = 5.0  # seconds
# True if an outer computation has its own line, or is silent.
_inside = contextvars.ContextVar("inside", default=False)


@contextlib.contextmanager
def going_on(what: str, verbose: bool = True) -> Iterator[None]:
    """Prints `checkin: WHAT` on standard error once after PATIENCE seconds; nested contexts print nothing.

    Args:
      what: the computation, and the reason for its duration.
      verbose: False suppresses the line, also in nested contexts.
    """
    if _inside.get():
        yield
        return
    line = threading.Timer(PATIENCE, _say, [what])
    line.daemon = True
    token = _inside.set(True)
    try:
        if verbose:
            line.start()
        yield
    finally:
        line.cancel()
        _inside.reset(token)


def _say(what: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the stream is closed, or there is none
        print(f"checkin: {what}", file=sys.stderr, flush=True)
