"""`checkin statement`: what a run, a ledger or a plan promises, in the formats in which it is filed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro

from checkin_jax._files import replacing
from checkin_jax.cli import ledger, plan
from checkin_jax.cli.options import Job, UsageError, bounds_of
from checkin_jax.cli.pages import check_free, say

if TYPE_CHECKING:
    from checkin_jax.reports.record import Record


@dataclasses.dataclass(kw_only=True)
class Statement:
    """Writes the statement to file of a run, a ledger or a plan: unit, epsilon, delta, mu, who is trusted, what is not
    covered, and which questions are still blank.
    """

    heading: ClassVar[str] = "output"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits --format model-card",
        "year.json --deployment deployment.toml --format html --out year.html",
        "fleet.toml --format json --out 2026.json",
    )

    subject: tyro.conf.Positional[Path]
    """Folder of a run (one that was killed or goes on will do), a ledger (.json) or a plan (.toml)."""
    format: Literal["text", "json", "registry", "model-card", "html"] = "text"
    """text; json: the versioned record (its schema is in the documentation); registry: the answers that a registry of
    deployments wants; model-card: a section in Markdown; html: the page of checkin report."""
    out: Path | None = None
    """Where it goes; standard output when left out."""
    deployment: Path | None = None
    """TOML file with the table [deployment]; left out: deployment.toml in the run's folder, or the plan itself."""
    delta: float | None = None
    """Delta of a ledger's guarantee; the ledger's own when left out."""
    bounds: str = "best"
    """Bounds for a ledger or a plan: best (all that apply), fast, or words: clones,hexagon."""
    last: Path | None = None
    """The last statement about a ledger or a plan, in JSON: this one says what changed."""
    no_attack: bool = False
    """Leave out mu and other terms of an attacker's, which take a few seconds."""

    def prepare(self) -> Job:
        """Reads the subject; the job accounts for it and writes the statement."""
        if not self.subject.exists():
            raise UsageError(f"{self.subject}: there is no such folder or file")
        if self.out is not None and self.format == "html":
            check_free(self.out, self.subject, self.deployment)
        written = self._of_run() if self.subject.is_dir() else self._of_file()

        def job() -> None:
            try:
                text = written()
            except ValueError as error:  # what only accounting can tell, and declarations that fit nothing
                raise UsageError(f"{self.subject}: {error}") from error
            if self.out is not None:
                with replacing(self.out) as stream:
                    stream.write(text.encode())
                print(self.out)
            elif self.format == "text":
                say(text.removesuffix("\n"))
            else:
                print(text, end="")

        return job

    def _of_run(self) -> Callable[[], str]:
        from checkin_jax.accounting.account import account
        from checkin_jax.reports import declared, formats
        from checkin_jax.training.reports import recorded, run_page, statement

        for name, usual in (("delta", None), ("bounds", "best"), ("last", None)):
            if getattr(self, name) != usual:
                raise UsageError(f"--{name} goes with a ledger{' or a plan' * (name != 'delta')}")
        said = None if self.deployment is None else declared.read(self.deployment)
        run = recorded.read(self.subject)
        if not run.rounds:
            raise UsageError(f"run_dir={str(self.subject)!r}: no round was logged; there is nothing to state")
        _ = run.audit  # before any work: is it whole, and of this run?
        if self.format == "html":
            return lambda: run_page.build(run, account, deployment=said)
        how: dict[str, Any] = {"attack": not self.no_attack, "deployment": said}
        return lambda: formats.FORMATS[self.format](statement.record(run, account, **how))

    def _of_file(self) -> Callable[[], str]:
        from checkin_jax.reports import declared, formats, render

        said = None if self.deployment is None else declared.read(self.deployment)
        bounds = bounds_of(self.bounds)
        if self.subject.suffix == ".json":
            made: Callable[[], Record] = ledger.recorded(
                self.subject, self.delta, bounds, said, self.last, attack=not self.no_attack
            )
        elif self.subject.suffix == ".toml":
            if self.delta is not None:
                raise UsageError("--delta is given by the plan: leave it out")
            made = plan.recorded(self.subject, bounds, said, self.last)
        else:
            raise UsageError(
                f"{self.subject}: expected the folder of a run, a ledger (.json) or a plan (.toml)"
            )
        if self.format == "html":
            return lambda: render.page(made())
        return lambda: formats.FORMATS[self.format](formats.plain(made(), attack=not self.no_attack))
