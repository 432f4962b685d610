"""Start of the command `checkin`: from its imports on Ctrl-C ends the process without a traceback.

Garbage collection is off during import and at exit; the final collection would take 0.3 s.
"""

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_command() -> bool:
    """True if this process is `checkin` or `python -m checkin_jax`, and this is its main thread."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    module = sys.orig_argv[1:3] == ["-m", "checkin_jax"]
    return (name == "checkin" or module) and threading.current_thread() is threading.main_thread()


def end_at_once() -> None:
    """Restores the operating system's handling of SIGINT if nobody else has set a handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def interruptible() -> None:
    """Restores Python's handling of SIGINT after `end_at_once`, which gives a hidden cursor back."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def imported() -> Iterator[None]:
    """Context in which the command collects garbage among new objects; without effect in other processes."""
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
