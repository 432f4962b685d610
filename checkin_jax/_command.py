"""The first import of the package: while the command `checkin` imports the rest, Ctrl-C ends it without a traceback."""

import signal
import sys
import threading
from pathlib import Path


def end_at_once() -> None:
    """Leaves SIGINT to the operating system if this process is the command and nobody else has taken it."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    module = sys.orig_argv[1:3] == ["-m", "checkin_jax"]
    if (name != "checkin" and not module) or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


end_at_once()
