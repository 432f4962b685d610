"""`checkin budget`, `report` and `statement`: a run, a ledger or a plan as numbers, as a page, as a filed statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from checkin_jax._files import replacing
from checkin_jax.cli import ledger, plan
from checkin_jax.cli.ledger import LedgerBudget, LedgerReport
from checkin_jax.cli.options import JsonOption, bounds_of
from checkin_jax.cli.pages import check_folder, check_free, say, write_page
from checkin_jax.cli.parsing import UsageError

if TYPE_CHECKING:
    from checkin_jax.reports.declared import Deployment
    from checkin_jax.reports.record import Record


@dataclasses.dataclass(kw_only=True)
class SpentBudget(JsonOption):
    """Shows what a run or a ledger has spent and what is left, while it goes on or after; writes nothing.

    Attributes:
      run_dir: folder of the run, or a ledger (.json).
    """

    examples: ClassVar[tuple[str, ...]] = ("runs/digits", "year.json")

    run_dir: Path = dataclasses.field(kw_only=False)

    def run(self) -> None:
        """Reads the ledger, accounts for it and prints."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.budget import budget_of
        from checkin_jax.training.reports import recorded

        if self.run_dir.is_file() and self.run_dir.suffix == ".json":
            LedgerBudget(ledger=self.run_dir, json=self.json).run()
            return
        _refuse_files(self.run_dir, "budget")
        self.show(budget_of(recorded.read(self.run_dir), account))


@dataclasses.dataclass(kw_only=True)
class ReportPage:
    """Writes one HTML page about a run, a ledger or a plan: what it promises, what guidelines ask, who checked what.

    A table [deployment] in a TOML file declares what no program can know: view, message, num_clients, client, tuning,
    evaluation, other_releases, released_to, operator, contact, purpose, trusted, data, security, side_channels, audit,
    code, utility; and [[deployment.checked]] with assumption (its first words), by and on.

    Attributes:
      subject: folder of a run (one that was killed or goes on will do), a ledger (.json) or a plan (.toml).
      out: where the page goes; left out: report.html in the run's folder, or beside the file, with .html after its
        name. A page about something else stays.
      deployment: TOML file with the table [deployment]; left out: deployment.toml in the run's folder, or the plan
        itself.
      delta: delta of a ledger's guarantee; 1e-6 when left out. Runs and plans have their own.
      bounds: bounds for a ledger or a plan: best (when left out), fast, or words: clones,hexagon.
      last: the last statement about a ledger or a plan, in JSON: the page says what changed.
      attack: of a run also what an attacker can do: rates, beliefs and the trade-off curve; takes a few seconds more.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits",
        "fleet.json --delta 1e-8 --deployment deployment.toml --out fleet.html",
        "fleet.toml",
    )

    subject: Path = dataclasses.field(kw_only=False)
    out: Path | None = None
    deployment: Path | None = None
    delta: float | None = None
    bounds: str | None = None
    last: Path | None = None
    attack: bool = False

    def run(self) -> None:
        """Reads the subject, accounts for it and writes the page."""
        from checkin_jax.reports import declared

        deployment = None if self.deployment is None else declared.read(self.deployment)
        if not self.subject.exists():
            raise UsageError(f"{self.subject}: there is no such folder or file")
        if self.subject.is_dir():
            self._of_run(deployment)
        elif self.attack:
            raise UsageError("--attack goes with the folder of a run")
        elif self.subject.suffix == ".json":
            self._of_ledger()
        elif self.subject.suffix == ".toml":
            self._of_plan(deployment)
        else:
            raise UsageError(
                f"{self.subject}: expected the folder of a run, a ledger (.json) or a plan (.toml)"
            )

    def _of_run(self, deployment: Deployment | None) -> None:
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import recorded, run_page

        for name in ("delta", "bounds", "last"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name} goes with a ledger{' or a plan' * (name != 'delta')}")
        run = recorded.read(self.subject)
        out = self.subject / "report.html" if self.out is None else self.out
        check_free(out, self.subject, self.deployment)
        if not run.metrics:
            raise UsageError(f"{self.subject}: no round was logged; there is nothing to report")
        print(run_page.write(run, out, account, attack=self.attack, deployment=deployment))

    def _of_ledger(self) -> None:
        given: dict[str, Any] = {"delta": self.delta, "bounds": self.bounds}
        given = {name: value for name, value in given.items() if value is not None}
        given |= {"out": self.out, "deployment": self.deployment, "last": self.last}
        LedgerReport(ledger=self.subject, **given).run()

    def _of_plan(self, deployment: Deployment | None) -> None:
        if self.delta is not None:
            raise UsageError("--delta is given by the plan: leave it out")
        made = plan.recorded(self.subject, bounds_of(self.bounds or "best"), deployment, self.last)
        write_page(self.subject, self.out, made, self.deployment)


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

    Attributes:
      subject: folder of a run (one that was killed or goes on will do), a ledger (.json) or a plan (.toml).
      format: text; json: the versioned record (its schema is in the documentation); registry: the answers that a
        registry of deployments wants; model-card: a section in Markdown; html: the page of checkin report.
      out: where it goes; standard output when left out.
      deployment: TOML file with the table [deployment]; left out: deployment.toml in the run's folder, or the plan
        itself.
      delta: delta of a ledger's guarantee; the ledger's own when left out.
      bounds: bounds for a ledger or a plan: best (all that apply), fast, or words: clones,hexagon.
      last: the last statement about a ledger or a plan, in JSON: this one says what changed.
      no_attack: leave out mu and other terms of an attacker's, which take a few seconds.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits --format model-card",
        "year.json --deployment deployment.toml --format html --out year.html",
        "fleet.toml --format json --out 2026.json",
    )

    subject: Path = dataclasses.field(kw_only=False)
    format: Literal["text", "json", "registry", "model-card", "html"] = "text"
    out: Path | None = None
    deployment: Path | None = None
    delta: float | None = None
    bounds: str = "best"
    last: Path | None = None
    no_attack: bool = False

    def run(self) -> None:
        """Reads the subject, accounts for it and writes the statement."""
        if not self.subject.exists():
            raise UsageError(f"{self.subject}: there is no such folder or file")
        if self.out is not None:
            check_folder(self.out)
            if self.format == "html":
                check_free(self.out, self.subject, self.deployment)
        written = self._of_run() if self.subject.is_dir() else self._of_file()
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
            raise UsageError(f"{self.subject}: no round was logged; there is nothing to state")
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
