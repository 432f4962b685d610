"""`checkin budget`, `report` and `statement`: what a run's folder says, as numbers, one HTML page, and for a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from checkin_jax.cli.ledger import LedgerBudget, LedgerReport
from checkin_jax.cli.options import QUICK, JsonOption, bounds_of
from checkin_jax.cli.pages import check_free, say, write_page
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

        for name in ("delta", "bounds"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name} goes with a ledger{' or a plan' * (name == 'bounds')}")
        run = recorded.read(self.subject)
        out = self.subject / "report.html" if self.out is None else self.out
        check_free(out, self.subject, self.deployment)
        if not run.metrics:
            raise UsageError(f"{self.subject}: no round was logged; there is nothing to report")
        print(run_page.write(run, out, account, attack=self.attack, deployment=deployment))

    def _of_ledger(self) -> None:
        given = {"delta": self.delta, "bounds": self.bounds}
        given = {name: value for name, value in given.items() if value is not None}
        LedgerReport(ledger=self.subject, out=self.out, deployment=self.deployment, **given).run()

    def _of_plan(self, deployment: Deployment | None) -> None:
        from checkin_jax.cli import plan
        from checkin_jax.reports import evidence, subjects
        from checkin_jax.reports.record import sentence

        if self.delta is not None:
            raise UsageError("--delta is given by the plan: leave it out")
        wanted, bounds = plan.read(self.subject), bounds_of(self.bounds or "best")

        def made() -> Record:
            return subjects.of_plan(
                self.subject.stem,
                wanted.protocol,
                plan.answers(wanted, bounds),
                target=None if wanted.epsilon is None else (wanted.epsilon, wanted.view),
                notes=[sentence(QUICK)] if bounds == "fast" else [],
                files=evidence.digests([self.subject]),
                source=self.subject.resolve().name,
                deployment=deployment or wanted.deployment,
            )

        write_page(self.subject, self.out, made, self.deployment)


@dataclasses.dataclass(kw_only=True)
class Statement:
    """Prints the statement to file: unit, adjacency, epsilon, delta, mu, who is trusted, and what is not covered.

    Attributes:
      run_dir: folder of the run; one that was killed or goes on will do.
      format: text; json: the versioned record (its schema is in the documentation); registry: the answers that a
        registry of deployments wants; model-card: a section in Markdown. `checkin report` writes a page.
      no_attack: leave out mu and other terms of an attacker's, which take a few seconds.
    """

    examples: ClassVar[tuple[str, ...]] = ("runs/digits", "runs/digits --format model-card")

    run_dir: Path = dataclasses.field(kw_only=False)
    format: Literal["text", "json", "registry", "model-card"] = "text"
    no_attack: bool = False

    def run(self) -> None:
        """Reads the run, accounts for it and prints the statement."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import recorded, statement

        _refuse_files(self.run_dir, "statement")
        run = recorded.read(self.run_dir)
        if not run.rounds:
            raise UsageError(f"{self.run_dir}: no round was logged; there is nothing to state")
        _ = run.audit  # before any work: is it whole, and of this run?
        record = statement.record(run, account, attack=not self.no_attack)
        written = statement.FORMATS[self.format](record)
        if self.format == "text":
            say(written.removesuffix("\n"))
        else:
            print(written, end="")


def _refuse_files(subject: Path, command: str) -> None:
    """Refuses a ledger or a plan where the folder of a run is meant, and says what serves it."""
    if not subject.is_file():
        return
    serves = {
        ".json": f"a ledger's are checkin ledger show {subject} --verbose, and checkin report {subject}, a page",
        ".toml": f"a plan's are checkin plan {subject}, and checkin report {subject}, a page",
    }.get(subject.suffix, "")
    raise UsageError(
        f"{subject}: checkin {command} is for the folder of a run that was trained here; {serves}".rstrip(
            "; "
        )
    )
