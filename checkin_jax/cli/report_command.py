"""`checkin budget`, `report` and `statement`: a run, a ledger or a plan as numbers, as a page, as a filed statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from checkin_jax._files import replacing
from checkin_jax.cli import ledger_command, plan
from checkin_jax.cli.ledger_command import LedgerBudget
from checkin_jax.cli.options import BoundsOption, JsonOption, bounds_of
from checkin_jax.cli.pages import check_folder, check_free, say, write_page
from checkin_jax.cli.parsing import UsageError

if TYPE_CHECKING:
    from checkin_jax.reports.declared import Deployment
    from checkin_jax.reports.record import Record
    from checkin_jax.training.reports.recorded import RecordedRun


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
        if self.run_dir.is_file():
            expected = "checkin budget is for the folder of a run, or a ledger (.json)"
            if self.run_dir.suffix == ".toml":
                expected = f"{expected}; a plan's answers are checkin plan {self.run_dir}"
            raise UsageError(f"{self.run_dir}: {expected}")
        self.show(budget_of(recorded.read(self.run_dir), account))


@dataclasses.dataclass(kw_only=True)
class _DeclaredOptions(BoundsOption):
    """What a page or a statement is made of, beside its subject.

    Attributes:
      deployment: TOML file with the table [deployment], what the deployer declares; left out: deployment.toml in the
        run's folder, or the plan itself.
      delta: delta of a ledger's guarantee, in [1e-300, 1]; the ledger's own when left out. Runs and plans have their
        own.
      last: the last statement about a ledger or a plan, in JSON: it is said what changed.
    """

    deployment: Path | None = None
    delta: float | None = None
    last: Path | None = None

    def declared(self) -> Deployment | None:
        """The deployer's declarations; None where no file of them is named."""
        from checkin_jax.reports import declared

        return None if self.deployment is None else declared.read(self.deployment)

    def run_in(self, subject: Path) -> RecordedRun:
        """The run in a folder; UsageError where an option of other subjects is given."""
        from checkin_jax.training.reports import recorded

        for name, usual in (("delta", None), ("bounds", "best"), ("last", None)):
            if getattr(self, name) != usual:
                raise UsageError(f"--{name} goes with a ledger{' or a plan' * (name != 'delta')}")
        return recorded.read(subject)

    def record_of(self, subject: Path, *, attack: bool = False) -> Callable[[], Record]:
        """Reads a ledger or a plan; returns what accounts for it and makes its record.

        attack: with an attacker's terms of a ledger in every view.
        """
        said, bounds = self.declared(), bounds_of(self.bounds)
        if subject.suffix == ".json":
            return ledger_command.recorded(subject, self.delta, bounds, said, self.last, attack=attack)
        if subject.suffix != ".toml":
            raise UsageError(f"{subject}: expected the folder of a run, a ledger (.json) or a plan (.toml)")
        if self.delta is not None:
            raise UsageError("--delta is given by the plan: leave it out")
        return plan.recorded(subject, bounds, said, self.last)


@dataclasses.dataclass(kw_only=True)
class LedgerReport(_DeclaredOptions):
    """Writes one HTML page about a ledger: what it promises, what guidelines ask, who checked what.

    What a file of declarations may hold is said by checkin report --help.

    Attributes:
      ledger: the file.
      out: where the page goes; left out: beside the file, with .html after its name. A page about something else stays.
    """

    examples: ClassVar[tuple[str, ...]] = ("fleet.json --delta 1e-8 --deployment deployment.toml",)

    ledger: Path = dataclasses.field(kw_only=False)
    out: Path | None = None

    def run(self) -> None:
        """Accounts for everything in the ledger and writes the page."""
        bounds = bounds_of(self.bounds)
        made = ledger_command.recorded(self.ledger, self.delta, bounds, self.declared(), self.last)
        write_page(self.ledger, self.out, made, self.deployment)


@dataclasses.dataclass(kw_only=True)
class ReportPage(_DeclaredOptions):
    """Writes one HTML page about a run, a ledger or a plan: what it promises, what guidelines ask, who checked what.

    A table [deployment] in a TOML file declares what no program can know: view, message, num_clients, client, tuning,
    evaluation, other_releases, released_to, operator, contact, purpose, trusted, data, security, side_channels, audit,
    code, utility; and [[deployment.checked]] with assumption (its first words), by and on.

    Attributes:
      subject: folder of a run (one that was killed or goes on will do), a ledger (.json) or a plan (.toml).
      out: where the page goes; left out: report.html in the run's folder, or beside the file, with .html after its
        name. A page about something else stays.
      attack: of a run also what an attacker can do: rates, beliefs and the trade-off curve; takes a few seconds more.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits",
        "fleet.json --delta 1e-8 --deployment deployment.toml --out fleet.html",
        "fleet.toml",
    )

    subject: Path = dataclasses.field(kw_only=False)
    out: Path | None = None
    attack: bool = False

    def run(self) -> None:
        """Reads the subject, accounts for it and writes the page."""
        if not self.subject.exists():
            raise UsageError(f"{self.subject}: there is no such folder or file")
        if self.subject.is_dir():
            self._of_run()
        elif self.attack:
            raise UsageError("--attack goes with the folder of a run")
        else:
            write_page(self.subject, self.out, self.record_of(self.subject), self.deployment)

    def _of_run(self) -> None:
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import run_page

        said, run = self.declared(), self.run_in(self.subject)
        out = self.subject / "report.html" if self.out is None else self.out
        check_free(out, self.subject, self.deployment)
        if not run.metrics:
            raise UsageError(f"{self.subject}: no round was logged; there is nothing to report")
        print(run_page.write(run, out, account, attack=self.attack, deployment=said))


@dataclasses.dataclass(kw_only=True)
class Statement(_DeclaredOptions):
    """Writes the statement to file of a run, a ledger or a plan: unit, epsilon, delta, mu, who is trusted, what is not
    covered, and which questions are still blank.

    Attributes:
      subject: folder of a run (one that was killed or goes on will do), a ledger (.json) or a plan (.toml).
      format: text; json: the versioned record (its schema is in the documentation); registry: the answers that a
        registry of deployments wants; model-card: a section in Markdown; html: the page of checkin report.
      out: where it goes; standard output when left out.
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
        from checkin_jax.reports import formats
        from checkin_jax.training.reports import run_page, statement

        said, run = self.declared(), self.run_in(self.subject)
        if not run.rounds:
            raise UsageError(f"{self.subject}: no round was logged; there is nothing to state")
        _ = run.audit  # before any work: is it whole, and of this run?
        if self.format == "html":
            return lambda: run_page.build(run, account, deployment=said)
        how: dict[str, Any] = {"attack": not self.no_attack, "deployment": said}
        return lambda: formats.FORMATS[self.format](statement.record(run, account, **how))

    def _of_file(self) -> Callable[[], str]:
        from checkin_jax.reports import formats, render

        attack = not self.no_attack
        made = self.record_of(self.subject, attack=attack)
        if self.format == "html":
            return lambda: render.page(made())
        return lambda: formats.FORMATS[self.format](formats.plain(made(), attack=attack))
