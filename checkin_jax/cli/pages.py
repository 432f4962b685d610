"""What commands write: lines on standard output, pages about a ledger or a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from checkin_jax._files import replacing
from checkin_jax._tables import broken, terminal_width
from checkin_jax.cli.options import Job, UsageError

if TYPE_CHECKING:
    from checkin_jax.disclosure.checklist import Disclosure


def say(*lines: str) -> None:
    """Prints lines at once, broken between words where a terminal is narrower."""
    width = terminal_width()
    print(*(broken(line, width) for line in lines), sep="\n", flush=True)


def page_of(subject: Path, out: Path | None, made: Callable[[], Disclosure]) -> Job:
    """The job of writing the page about a file, beside it where `out` is None."""
    # With all of the file's name: a plan and its ledger may differ in nothing but the suffix.
    out = subject.with_name(f"{subject.name}.html") if out is None else out

    def job() -> None:
        from checkin_jax.disclosure import checklist

        with replacing(out) as stream:
            try:
                stream.write(checklist.build(made()).encode())
            # What only accounting can tell: an empty ledger, checks of nothing.
            except ValueError as error:
                raise UsageError(f"{subject}: {error}") from error
        print(out)

    return job
