"""The command `checkin`: epsilon, calibrate, compare and sweep account, train runs one, report shows a run.

Bad input ends with exit code 2 and one line on standard error. The subcommands import what they need when
they run, so that accounting does not load the training stack. What XLA compiles is kept between runs of the
command (the library itself keeps nothing), see `keep_compiled`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import tyro

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.cli.accounting import Calibrate, Compare, Epsilon
from checkin_jax.cli.audit import Audit
from checkin_jax.cli.options import UsageError
from checkin_jax.cli.report import ReportPage
from checkin_jax.cli.sweep import Sweep
from checkin_jax.cli.training import Train

Command = (
    Annotated[Epsilon, tyro.conf.subcommand("epsilon")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[ReportPage, tyro.conf.subcommand("report")]
    | Annotated[Audit, tyro.conf.subcommand("audit")]
)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of `checkin`: exit code 2 and one line on standard error on bad input.

    Compiled kernels are kept on disk for the next run, see `keep_compiled`.
    """
    args = list(sys.argv[1:] if args is None else args)
    if args == ["--version"]:
        print(f"checkin-jax {__version__}")
        return
    command = _parse(args)
    try:
        job = command.prepare()
    except ModuleNotFoundError as error:
        if error.name in ("flax", "optax"):
            _refuse(f"training needs {error.name}: install checkin-jax[train]")
        if error.name not in ("matplotlib", "pyarrow"):
            raise
        _refuse(str(error))
    except (ValueError, TypeError, OSError) as error:
        _refuse(str(error))
    keep_compiled()
    try:
        job()
    except (OSError, UsageError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def keep_compiled() -> None:
    """Turns on JAX's compilation cache, in $XDG_CACHE_HOME/checkin-jax/xla (~/.cache where that is unset).

    JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, or the
    settings of the same name in jax.config, come first. Where the folder cannot be written nothing is kept.
    """
    import jax

    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"] or settings["jax_compilation_cache_dir"] is not None:
        return
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of XDG folders: a relative one is to be ignored.
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "checkin-jax" / "xla"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return
    # What is in there is run as it is: a folder that others own or may write to is none of ours.
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not _is_private(folder):
        return
    # A full disk or a damaged file costs a compilation, no more.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _is_private(folder: Path) -> bool:
    """Whether only this user may write there; always true where users have no numbers."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


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
