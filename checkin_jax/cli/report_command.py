"""`checkin budget`, `report` and `statement`: a run, a ledger or a plan as numbers, as a page, as a filed statement."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro

from checkin_jax._files import replacing
from checkin_jax.cli import ledger_command, plan
from checkin_jax.cli.ledger_command import LedgerBudget, LedgerReport
from checkin_jax.cli.options import Job, UsageError, bounds_of
from checkin_jax.cli.pages import check_free, page_of, say

if TYPE_CHECKING:
    from checkin_jax.reports.declared import Deployment
    from checkin_jax.reports.record import Record


@dataclasses.dataclass(kw_only=True)
class SpentBudget:
    """Shows what a run or a ledger has spent and what is left, while it goes on or after; writes nothing."""

    examples: ClassVar[tuple[str, ...]] = ("runs/digits", "year.json")

    run_dir: tyro.conf.Positional[Path]
    """Folder of the run, or a ledger (.json)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def prepare(self) -> Job:
        """Reads the ledger; the job accounts for it and prints."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.budget import budget_of
        from checkin_jax.training.reports import recorded

        if self.run_dir.is_file() and self.run_dir.suffix == ".json":
            return LedgerBudget(ledger=self.run_dir, json=self.json).prepare()
        _refuse_files(self.run_dir, "budget")
        run = recorded.read(self.run_dir)

        def job() -> None:
            found = budget_of(run, account)
            if self.json:
                print(json.dumps(found.as_dict(), allow_nan=False))
            else:
                say(str(found))

        return job


@dataclasses.dataclass(kw_only=True)
class ReportPage:
    """Writes one HTML page about a run, a ledger or a plan: what it promises, what guidelines ask, who checked what.

    A table [deployment] in a TOML file declares what no program can know: view, message, num_clients, client, tuning,
    evaluation, other_releases, released_to, operator, contact, purpose, trusted, data, security, side_channels, audit,
    code, utility; and [[deployment.checked]] with assumption (its first words), by and on.
    """

    heading: ClassVar[str] = "output"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits",
        "fleet.json --delta 1e-8 --deployment deployment.toml --out fleet.html",
        "fleet.toml",
    )

    subject: tyro.conf.Positional[Path]
    """Folder of a run (one that was killed or goes on will do), a ledger (.json) or a plan (.toml)."""
    out: Path | None = None
    """Where the page goes; left out: report.html in the run's folder, or beside the file, with .html after its name. A
    page about something else stays."""
    deployment: Path | None = None
    """TOML file with the table [deployment]; left out: deployment.toml in the run's folder, or the plan itself."""
    delta: float | None = None
    """Delta of a ledger's guarantee; 1e-6 when left out. Runs and plans have their own."""
    bounds: str | None = None
    """Bounds for a ledger or a plan: best (when left out), fast, or words: clones,hexagon."""
    last: Path | None = None
    """The last statement about a ledger or a plan, in JSON: the page says what changed."""
    attack: bool = False
    """Of a run also what an attacker can do: rates, beliefs and the trade-off curve; takes a few seconds more."""

    def prepare(self) -> Job:
        """Reads the subject; the job accounts for it and writes the page."""
        from checkin_jax.reports import declared

        deployment = None if self.deployment is None else declared.read(self.deployment)
        if not self.subject.exists():
            raise UsageError(f"{self.subject}: there is no such folder or file")
        if not self.subject.is_file():
            return self._of_run(deployment)
        if self.attack:
            raise UsageError("--attack goes with the folder of a run")
        job_of = {".json": self._of_ledger, ".toml": self._of_plan}.get(self.subject.suffix)
        if job_of is None:
            raise UsageError(
                f"{self.subject}: expected the folder of a run, a ledger (.json) or a plan (.toml)"
            )
        return job_of(deployment)

    def _of_run(self, deployment: Deployment | None) -> Job:
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import recorded, run_page

        for name in ("delta", "bounds", "last"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name} goes with a ledger{' or a plan' * (name != 'delta')}")
        run = recorded.read(self.subject)
        out = self.subject / "report.html" if self.out is None else self.out
        check_free(out, self.subject, self.deployment)
        if not run.metrics:
            raise UsageError(
                f"run_dir={str(self.subject)!r}: no round was logged; there is nothing to report"
            )

        def job() -> None:
            try:
                print(run_page.write(run, out, account, attack=self.attack, deployment=deployment))
            except ValueError as error:  # declarations that fit nothing
                raise UsageError(str(error)) from error

        return job

    def _of_ledger(self, _: Deployment | None) -> Job:
        given: dict[str, Any] = {"delta": self.delta, "bounds": self.bounds}
        given = {name: value for name, value in given.items() if value is not None}
        given |= {"out": self.out, "deployment": self.deployment, "last": self.last}
        report = LedgerReport(ledger=self.subject, **given)
        return report.prepare()

    def _of_plan(self, deployment: Deployment | None) -> Job:
        from checkin_jax.cli.plan import recorded

        if self.delta is not None:
            raise UsageError("--delta is given by the plan: leave it out")
        made = recorded(self.subject, bounds_of(self.bounds or "best"), deployment, self.last)
        return page_of(self.subject, self.out, made, self.deployment)


def _refuse_files(subject: Path, command: str) -> None:
    """Refuses a file where the folder of a run, or a ledger, is meant."""
    if not subject.is_file():
        return
    serves = f"; a plan's answers are checkin plan {subject}" if subject.suffix == ".toml" else ""
    raise UsageError(f"{subject}: checkin {command} is for the folder of a run, or a ledger (.json){serves}")


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
            made: Callable[[], Record] = ledger_command.recorded(
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
