"""Start of the package, whose names are imported on first use, and of the command `checkin`.

From the command's imports on Ctrl-C ends the process without a traceback. Its garbage collection is off during import
and at exit; the final collection would take 0.3 s.
"""

import ast
import gc
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are those that its stub `__init__.pyi` imports.

    Args:
      package: its `__name__`.
      file: its `__file__`.
    """
    known = vars(sys.modules[package])
    places: dict[str, str] = {}
    parts = package.split(".")
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            above = ".".join(parts[: len(parts) + 1 - node.level])
            place = f"{above}.{node.module}" if node.module else above
            places |= dict.fromkeys((alias.name for alias in node.names), place)

    def load(name: str) -> Any:
        if name not in places:
            from checkin_jax._suggest import did_you_mean

            hint = did_you_mean(name, places)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        place = places[name]
        inside = importlib.import_module(place)
        is_member = place != package and hasattr(inside, name)
        known[name] = getattr(inside, name) if is_member else importlib.import_module(f"{place}.{name}")
        return known[name]

    return load, lambda: sorted({*known, *places})


if is_command():
    end_at_once()
    gc.disable()
