"""Entry points of programs: errors in one line, closed output pipes, and processes that end together."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from checkin_jax import _validate
from checkin_jax._compiled import keep_compiled
from checkin_jax._files import near_file
from checkin_jax._optional import how_to_install
from checkin_jax.cli.pages import say
from checkin_jax.cli.parsing import application, parsed

# Errors about the other packages name them themselves.
_TRAINING, _OTHERS = ("flax", "optax"), ("orbax", "matplotlib", "pyarrow")
# Exit code of a process ended by SIGPIPE.
_BROKEN_PIPE = 128 + 13


def program(what: type[Any] | Callable[..., object], main: Callable[..., object] | None = None) -> None:
    """Runs a program from its command line; bad input ends it with one line and exit code 2.

    Compiled programs are kept for the next run, as by the command.

    Args:
      what: the class of the program's options, or a function of them.
      main: called with the options; None if `what` is the function.
    """
    name = Path(sys.argv[0]).name
    app = application(name, version_flags=())
    app.default(what)

    def job() -> None:
        asked = parsed(app, sys.argv[1:])
        keep_compiled()
        found = asked()
        if main is not None and found is not None:
            main(found)

    guarded(name, job)


def guarded(name: str, job: Callable[[], None], told: Callable[[str], str] = str) -> None:
    """Runs a job; an error of the user ends the process with one line on standard error and exit code 2.

    If the reader of the output closes the pipe, the process ends silently with exit code 141. Processes that share a
    run end together.

    Args:
      name: of the program, printed before the line.
      job: the job.
      told: rewrites the line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that a terminal cannot print are replaced
            stream.reconfigure(errors="replace")
    try:
        try:
            job()
        except BrokenPipeError:
            raise
        except (ValueError, OSError, MemoryError, ModuleNotFoundError) as error:
            _refuse(name, told(_words(error)))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        _close_output()
        if isinstance(error, BrokenPipeError):
            sys.exit(_BROKEN_PIPE)
        _refuse(name, _words(error))
    except KeyboardInterrupt:
        _leave(130)
    except SystemExit as ended:
        broken = isinstance(ended.__context__, BrokenPipeError)  # which rich ends with exit code 1
        _leave(_BROKEN_PIPE if broken else ended.code)


def _words(error: Exception) -> str:
    """The error in words, without a file error's number; raised again if it is not an error of the user."""
    if isinstance(error, ModuleNotFoundError):
        if error.name in _TRAINING:
            return f"training needs {error.name}: {how_to_install('train')}"
        if error.name not in _OTHERS:
            raise error
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        near = near_file(Path(error.filename)) if isinstance(error, FileNotFoundError) else ""
        return f"{error.filename}: {error.strerror}{near}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error or 'fewer clients or slots a round need less'}"
    return str(error)


def _refuse(name: str, line: str) -> NoReturn:
    """Ends the process with one line; long words are truncated, and a terminal gets it wrapped."""
    say(f"{name}: {' '.join(map(_validate.cut, line.split()))}", to=sys.stderr)
    sys.exit(2)


def _close_output() -> None:
    """Discards buffered output, so that the interpreter does not fail to flush it at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _leave(code: Any) -> NoReturn:
    if "jax" in sys.modules:
        from checkin_jax.training.runs.processes import leave

        leave(code)
    sys.exit(code)
