"""The command `checkin`: epsilon, calibrate, compare and sweep account, train runs one, budget and report show a run.

Bad input ends with exit code 2 and one line on standard error. The subcommands import what they need when
they run, so that accounting does not load the training stack. What XLA compiles is kept between runs of the
command (the library itself keeps the accountant's programs only), see `keep_compiled`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import tyro

from checkin_jax import _validate
from checkin_jax._compiled import keep_compiled
from checkin_jax._extras import how_to_install
from checkin_jax._version import __version__
from checkin_jax.cli.accounting import Calibrate, Compare, Epsilon
from checkin_jax.cli.audit import Audit
from checkin_jax.cli.budget import SpentBudget
from checkin_jax.cli.flower import FlowerCheck
from checkin_jax.cli.interrupts import AtOnce
from checkin_jax.cli.options import UsageError
from checkin_jax.cli.report import ReportPage, Statement
from checkin_jax.cli.sweep import Sweep
from checkin_jax.cli.training import Train

Command = (
    Annotated[Epsilon, tyro.conf.subcommand("epsilon")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[SpentBudget, tyro.conf.subcommand("budget")]
    | Annotated[ReportPage, tyro.conf.subcommand("report")]
    | Annotated[Statement, tyro.conf.subcommand("statement")]
    | Annotated[Audit, tyro.conf.subcommand("audit")]
    | Annotated[FlowerCheck, tyro.conf.subcommand("flower-check")]
)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of `checkin`: exit code 2 and one line on standard error on bad input.

    Compiled kernels are kept on disk for the next run, see `keep_compiled`. Ctrl-C and SIGTERM end the command at once,
    with exit code 130 or 143; training sums up first, see `Interrupts`. Where whoever reads the output has enough of
    it, the command ends in silence, with exit code 141.
    """
    args = list(sys.argv[1:] if args is None else args)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # letters that a terminal lacks are no reason to fail
            stream.reconfigure(errors="replace")
    try:
        try:
            _run(args)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _close_output()
        sys.exit(128 + 13)  # as if by SIGPIPE
    except OSError as error:
        _close_output()
        _refuse(str(error))


def _run(args: list[str]) -> None:
    if args == ["--version"]:
        print(f"checkin-jax {__version__}")
        return
    with AtOnce():
        command = _parse(args)
        try:
            job = command.prepare()
        except ModuleNotFoundError as error:
            if error.name in ("flax", "optax"):
                _refuse(f"training needs {error.name}: {how_to_install('train')}")
            if error.name not in ("matplotlib", "pyarrow"):
                raise
            _refuse(str(error))
        except (ValueError, TypeError, OSError) as error:
            _refuse(str(error))
        keep_compiled()
    with contextlib.nullcontext() if isinstance(command, Train) else AtOnce(getattr(command, "kept", "")):
        try:
            job()
        except BrokenPipeError:
            raise
        except (OSError, UsageError) as error:
            _refuse(str(error))
        except KeyboardInterrupt:
            sys.exit(130)


def _close_output() -> None:
    """What is still in the buffer goes nowhere, so that the interpreter has nothing to complain about at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _parse(args: list[str]) -> Command:
    """tyro's parser, its boxed errors cut down to one line."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                Command,  # type: ignore[arg-type]
                prog="checkin",
                description="Check-in privacy: account for a protocol, or train under it. Compiled kernels are "
                "kept in $XDG_CACHE_HOME/checkin-jax/xla (by default ~/.cache), which makes the next run start "
                "fast; JAX_COMPILATION_CACHE_DIR names another folder.",
                args=args,
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.FlagCreatePairsOff,
                ),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        _refuse(_one_line(errors.getvalue()))


def _one_line(boxed: str) -> str:
    """The first section of tyro's boxed error, without title and box, as one line that is cut where it is long."""
    lines = [line.strip("│ ") for line in boxed.splitlines()[1:]]
    section = itertools.takewhile(lambda line: not line.startswith(("─", "╰")), lines)
    # Where the output is no terminal the box is drawn with hyphens.
    words = " ".join(line for line in section if line).split()
    text = " ".join(word for word in words if word.strip("-"))
    return _validate.cut(text, 500) + " (see checkin --help)"


def _refuse(message: str) -> NoReturn:
    """Ends with one line, whatever was typed: long words are cut."""
    print(f"checkin: {' '.join(map(_validate.cut, message.split()))}", file=sys.stderr)
    sys.exit(2)
