"""Programs beside the command, such as those of accountants/ and train/: their options, and errors of one line."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from checkin_jax._compiled import keep_compiled
from checkin_jax.cli.options import UsageError, parsed


def program(what: type[Any] | Callable[..., object], main: Callable[..., object] | None = None) -> None:
    """Runs a program from its command line; what is the user's to mend ends it with one line and exit code 2.

    What XLA compiles is kept for the next run, as by the command.

    Args:
      what: the class of the program's options, or a function of them.
      main: called with the options; None where `what` is the function.
    """
    name = Path(sys.argv[0]).name
    try:
        options = parsed(_options_of(what) if main is None else what, sys.argv[1:], prog=name)
    except UsageError as error:
        _refuse(f"{error} (see {name} --help)")
    if main is not None:
        options = functools.partial(main, options)
    try:
        keep_compiled()
        options()
    except ModuleNotFoundError as error:
        if error.name not in ("flax", "optax", "orbax", "matplotlib", "pyarrow"):
            raise
        _refuse(str(error))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        _refuse(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        _leave(130)
    except SystemExit as ended:
        _leave(ended.code)


def _options_of(function: Callable[..., object]) -> Callable[..., Callable[[], object]]:
    """A function with the same options that puts the call off until the whole line has been understood."""

    @functools.wraps(function)
    def later(*args: Any, **options: Any) -> Callable[[], object]:
        return functools.partial(function, *args, **options)

    return later


def _refuse(message: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).name}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    _leave(2)


def _leave(code: Any) -> NoReturn:
    """Ends the process; processes that share a run end together."""
    if "checkin_jax.training.runs.processes" in sys.modules:
        from checkin_jax.training.runs.processes import leave

        leave(code)
    sys.exit(code)
