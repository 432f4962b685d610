"""One line on standard error once a computation has taken a few seconds, on terminals and elsewhere."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator

PATIENCE = 5.0  # seconds
# Whether a computation around this one has its own line, or was asked for none.
_inside = contextvars.ContextVar("inside", default=False)


@contextlib.contextmanager
def going_on(what: str, verbose: bool = True) -> Iterator[None]:
    """Says `checkin: WHAT` on standard error after PATIENCE seconds within, once; nested ones say nothing.

    Args:
      what: the computation, and why it may take a while.
      verbose: False: nothing is said, here and in what is called within.
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
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # nobody reads it, or there is no such stream
        print(f"checkin: {what}", file=sys.stderr, flush=True)
