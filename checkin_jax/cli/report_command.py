"""`checkin budget`, `report` and `statement`: numbers, a page, or a statement about a run, a ledger or a plan."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from checkin_jax._files import replacing
from checkin_jax.cli import ledger_command, plan
from checkin_jax.cli.options import QUICK, BoundsOption, JsonOption, bounds_of, check_free, check_inputs
from checkin_jax.cli.programs import UsageError
from checkin_jax.cli.terminal import say

if TYPE_CHECKING:
    from checkin_jax.reports.declarations import Deployment
    from checkin_jax.reports.record import Record
    from checkin_jax.training.reports.recorded import RecordedRun


def _found(subject: Path) -> None:
    """Raises FileNotFoundError if there is no such folder or file."""
    if not subject.exists():
        raise FileNotFoundError(errno.ENOENT, "no such folder or file", str(subject))


@dataclasses.dataclass(kw_only=True)
class SpentBudget(JsonOption):
    """Prints the epsilon that a run (finished or not) or a ledger has spent, and the remainder; writes nothing.

    Attributes:
      run_dir: folder of the run, or a ledger (.json).

    Examples:
      checkin budget runs/digits
      checkin budget year.json
    """

    run_dir: Path = dataclasses.field(kw_only=False)

    def run(self) -> None:
        """Reads the ledger, accounts for it and prints."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.budget import budget_of
        from checkin_jax.training.reports import recorded

        _found(self.run_dir)
        if self.run_dir.is_file() and self.run_dir.suffix == ".json":
            ledger_command.print_budget(self.run_dir, as_json=self.json)
            return
        if self.run_dir.is_file():
            expected = "checkin budget is for the folder of a run, or a ledger (.json)"
            if self.run_dir.suffix == ".toml":
                expected = f"{expected}; a plan's answers are checkin plan {self.run_dir}"
            raise UsageError(f"{self.run_dir}: {expected}")
        self.show(budget_of(recorded.read(self.run_dir), account))


@dataclasses.dataclass(kw_only=True)
class _DeclaredOptions(BoundsOption):
    """Inputs of a page or statement besides its subject.

    Attributes:
      deployment: TOML file with the table [deployment], the deployer's declarations. Default: deployment.toml in the
        run's folder, or the plan itself.
      delta: delta of a ledger's guarantee, in [1e-300, 1]. Default: the ledger's own. Runs and plans have their own.
      last: previous statement about this ledger or plan, in JSON; changes since then are listed.
    """

    deployment: Path | None = None
    delta: float | None = None
    last: Path | None = None

    def run_in(self, subject: Path) -> RecordedRun:
        """The run in a folder; UsageError if an option for other subjects is given."""
        from checkin_jax.training.reports import recorded

        for name, usual in (("delta", None), ("bounds", "best"), ("last", None)):
            if getattr(self, name) != usual:
                raise UsageError(f"--{name} goes with a ledger{' or a plan' * (name != 'delta')}")
        return recorded.read(subject)

    def record_of(self, subject: Path, said: Deployment | None, *, attack: bool = False) -> Record:
        """Reads a ledger or a plan, accounts for it and builds its record.

        attack: True to include attack terms of a ledger in every view.
        """
        from checkin_jax.reports import render
        from checkin_jax.reports.record import sentence

        kind = {".json": "ledger", ".toml": "plan"}.get(subject.suffix)
        if kind is None:
            raise UsageError(f"{subject}: expected the folder of a run, a ledger (.json) or a plan (.toml)")
        if kind == "plan" and self.delta is not None:
            raise UsageError("--delta is given by the plan: leave it out")
        bounds = bounds_of(self.bounds)
        try:
            last = None if self.last is None else render.last_of(self.last, kind)
        except ValueError as error:
            raise UsageError(f"--last {error}") from error
        if kind == "ledger":
            made = ledger_command.recorded(subject, self.delta, bounds, said, attack=attack)
        else:
            made = plan.recorded(subject, bounds, said)
        state = (*made.state, sentence(QUICK)) if bounds == "fast" else made.state
        return dataclasses.replace(made, last=last, state=state, source=subject.resolve().name)


@dataclasses.dataclass(kw_only=True)
class ReportPage(_DeclaredOptions):
    """Writes an HTML page about a run, a ledger or a plan: guarantees, questions of guidelines, checked assumptions.

    A table [deployment] in a TOML file declares facts that no program can know: view, message, num_clients, client,
    tuning, evaluation, other_releases, released_to, operator, contact, purpose, trusted, data, security, side_channels,
    audit, code, utility; [[deployment.checked]] with assumption (its first words), by and on; and, once decided,
    [deployment.decision] with outcome (accepted, refused, accepted on conditions), by, on, reason and version.

    Attributes:
      subject: folder of a run (also an unfinished one), a ledger (.json) or a plan (.toml).
      out: file of the page. Default: report.html in the run's folder, or beside the file, with .html after its name.
        Pages about other subjects are not replaced.

    Examples:
      checkin report runs/digits
      checkin report fleet.json --delta 1e-8 --deployment deployment.toml --out fleet.html
      checkin report fleet.toml
    """

    subject: Path = dataclasses.field(kw_only=False)
    out: Path | None = None

    def run(self) -> None:
        """Reads the subject, accounts for it and writes the page."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.subject.is_dir():
            usual = self.subject / "report.html"
        else:  # with the suffix, so that a ledger and a plan of the same name have different pages
            usual = self.subject.with_name(f"{self.subject.name}.html")
        Statement(**given | {"format": "html", "out": self.out or usual}).run()


@dataclasses.dataclass(kw_only=True)
class Statement(_DeclaredOptions):
    """Writes a statement for filing about a run, a ledger or a plan: unit, epsilon, delta, mu, trusted parties, gaps,
    and open questions.

    Attributes:
      subject: folder of a run (also an unfinished one), a ledger (.json) or a plan (.toml).
      format: text; json: the versioned record (its schema is in the documentation); registry: the answers for a
        registry of deployments; model-card: a section in Markdown; html: the page of checkin report.
      out: output file. Default: standard output.

    Examples:
      checkin statement runs/digits --format model-card
      checkin statement year.json --deployment deployment.toml --format html --out year.html
      checkin statement fleet.toml --format json --out 2026.json
    """

    subject: Path = dataclasses.field(kw_only=False)
    format: Literal["text", "json", "registry", "model-card", "html"] = "text"
    out: Path | None = None

    def run(self) -> None:
        """Reads the subject, accounts for it and writes the statement."""
        from checkin_jax.reports import declarations

        _found(self.subject)
        if self.out is not None:
            check = check_free if self.format == "html" else check_inputs
            check(self.out, self.subject, self.deployment, self.last)
        said = None if self.deployment is None else declarations.read(self.deployment)
        try:
            text = self._of_run(said) if self.subject.is_dir() else self._of_file(said)
        except UsageError:
            raise
        except ValueError as error:  # some errors, such as that of an empty ledger, do not name the file
            named = "" if str(self.subject) in str(error) else f"{self.subject}: "
            raise UsageError(f"{named}{error}") from error
        if self.out is not None:
            with replacing(self.out) as stream:
                stream.write(text.encode())
            print(self.out)
        elif self.format == "text":
            say(text.removesuffix("\n"))
        else:
            print(text, end="")

    def _of_run(self, said: Deployment | None) -> str:
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import run_page

        run = self.run_in(self.subject)
        if self.format == "html":
            return run_page.build(run, account, deployment=said)
        return self._written(run_page.of_run(run, account, deployment=said))

    def _of_file(self, said: Deployment | None) -> str:
        from checkin_jax.reports import render

        if self.format == "html":
            return render.page(self.record_of(self.subject, said))
        return self._written(self.record_of(self.subject, said, attack=True))

    def _written(self, subject: Record) -> str:
        from checkin_jax.reports import render

        return render.FORMATS[self.format](render.plain(subject))
