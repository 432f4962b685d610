"""Output of commands: lines on standard streams, and pages about a ledger or a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from checkin_jax import _validate
from checkin_jax._tables import broken, terminal_width
from checkin_jax.cli.parsing import UsageError


def say(*lines: str, to: TextIO | None = None) -> None:
    """Prints lines at once, on standard output by default, wrapped to the width of a terminal."""
    width = terminal_width(to)
    print(*(broken(line, width) for line in lines), sep="\n", flush=True, file=to)


def check_folder(out: Path, option: str = "--out") -> None:
    """Raises UsageError unless `out` is a file in an existing folder."""
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{option} {out}: expected a file in an existing folder")


def check_inputs(out: Path, *inputs: Path | None) -> None:
    """Raises UsageError unless `out` is a file in an existing folder, and none of the inputs."""
    check_folder(out)
    for read in inputs:
        if read is not None and out.exists() and read.exists() and out.samefile(read):
            raise UsageError(f"--out {out}: that file is an input of the page")


def check_free(out: Path, subject: Path, *inputs: Path | None) -> None:
    """Raises UsageError if `out` is an input of the page, or a page about another run, ledger or plan."""
    from checkin_jax.reports import render

    check_inputs(out, subject, *inputs)
    about = render.source_of(out)
    own = subject / "report.html"  # a run's own page is always replaced
    if out.is_file() and not about and out != own:
        raise UsageError(
            f"{out} exists and was not written by checkin report; choose another --out or delete it"
        )
    if about not in ("", subject.resolve().name):
        raise UsageError(
            f"{out}: is a page about {_validate.shown(about)}; choose another --out or delete it"
        )


def picture(option: str, path: Path | None) -> Path | None:
    """Path of the picture that an option names, checked as by `plotting.check`.

    Raises:
      UsageError: its ending or its folder is wrong. ModuleNotFoundError: matplotlib is not installed.
    """
    from checkin_jax import plotting

    try:
        return None if path is None else plotting.check(path)
    except ValueError as error:
        raise UsageError(f"{option} {path}: {str(error).partition(': ')[2]}") from error
