"""The first import of the package: while the command `checkin` imports the rest, Ctrl-C ends it without a traceback.

Nor does it look for garbage then, or when it ends: what is imported is none, and Python's last look takes .3 s.
"""

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_command() -> bool:
    """Whether this process is `checkin` or `python -m checkin_jax`, and this its main thread."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    module = sys.orig_argv[1:3] == ["-m", "checkin_jax"]
    return (name == "checkin" or module) and threading.current_thread() is threading.main_thread()


def end_at_once() -> None:
    """Leaves SIGINT to the operating system where nobody else has taken it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def imported() -> Iterator[None]:
    """Collects garbage within, of what is made within; the process may end after it. Elsewhere: nothing."""
    if not is_command():
        yield
        return
    gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        gc.freeze()


if is_command():
    end_at_once()
    gc.disable()
