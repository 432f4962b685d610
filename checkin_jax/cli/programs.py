"""Programs from their command line: bad input in one line, output that nobody reads any more, processes that share."""

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
from checkin_jax._optional import how_to_install
from checkin_jax.cli.pages import say
from checkin_jax.cli.parsing import application, parsed

# Errors name what is missing of the others by themselves.
_TRAINING, _OTHERS = ("flax", "optax"), ("orbax", "matplotlib", "pyarrow")
# Exit code, as if by SIGPIPE.
_BROKEN_PIPE = 128 + 13


def program(what: type[Any] | Callable[..., object], main: Callable[..., object] | None = None) -> None:
    """Runs a program from its command line; bad input ends it with one line and exit code 2.

    What XLA compiles is kept for the next run, as by the command.

    Args:
      what: the class of the program's options, or a function of them.
      main: called with the options; None where `what` is the function.
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
    """Runs a job; what is the user's to mend ends the process with one line on standard error and exit code 2.

    Where whoever reads the output has enough of it, the process ends in silence, with exit code 141; processes that
    share a run end together.

    Args:
      name: of the program, before the line.
      job: the job.
      told: rewrites the line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # letters that a terminal lacks are no reason to fail
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
    """The error in words, a file's without its number; it is raised again where it is not the user's to mend."""
    if isinstance(error, ModuleNotFoundError):
        if error.name in _TRAINING:
            return f"training needs {error.name}: {how_to_install('train')}"
        if error.name not in _OTHERS:
            raise error
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error or 'fewer clients or slots a round need less'}"
    return str(error)


def _refuse(name: str, line: str) -> NoReturn:
    """Ends with one line, whatever was typed: long words are cut; a terminal has it broken between words."""
    say(f"{name}: {' '.join(map(_validate.cut, line.split()))}", to=sys.stderr)
    sys.exit(2)


def _close_output() -> None:
    """What is still in the buffer goes nowhere, so that the interpreter has nothing to complain about at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _leave(code: Any) -> NoReturn:
    if "jax" in sys.modules:
        from checkin_jax.training.runs.processes import leave

        leave(code)
    sys.exit(code)
