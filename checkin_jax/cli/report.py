"""`checkin budget`, `report` and `statement`: what a run's folder says, as numbers, one HTML page, and for a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal

import tyro

from checkin_jax.cli.options import Job, UsageError


@dataclasses.dataclass(kw_only=True)
class SpentBudget:
    """Shows what a run has spent in every view and what is left, while it goes on or after; writes nothing."""

    run_dir: tyro.conf.Positional[Path]
    """Folder of the run."""
    json: bool = False
    """Print one JSON object instead of text."""

    def prepare(self) -> Job:
        """Reads the ledger; the job accounts for it and prints."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.budget import budget_of
        from checkin_jax.training.reports import recorded

        run = recorded.read(self.run_dir)

        def job() -> None:
            found = budget_of(run, account)
            print(json.dumps(found.as_dict(), allow_nan=False) if self.json else found)

        return job


@dataclasses.dataclass(kw_only=True)
class ReportPage:
    """Writes one self-contained HTML page about a run: its promise, accuracy and epsilon over rounds, check-ins."""

    run_dir: tyro.conf.Positional[Path]
    """Folder of the run; one that was killed or goes on will do."""
    out: Path | None = None
    """Where the page goes; left out: report.html in the run's folder."""

    attack: bool = False
    """Also what an attacker can do: rates, beliefs and the trade-off curve; takes a few seconds more."""

    def prepare(self) -> Job:
        """Reads the run; the job accounts for it and writes the page."""
        from checkin_jax import plotting
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import html_report, recorded

        run = recorded.read(self.run_dir)
        plotting.check(Path("picture.svg"))  # before any work: is there anything to draw with?
        out = self.run_dir / "report.html" if self.out is None else self.out
        if not run.metrics:
            raise UsageError(
                f"run_dir={str(self.run_dir)!r}: no round was logged; there is nothing to report"
            )

        def job() -> None:
            print(html_report.write(run, out, account, attack=self.attack))

        return job


@dataclasses.dataclass(kw_only=True)
class Statement:
    """Prints the statement to file: unit, adjacency, epsilon, delta, mu, who is trusted, and what is not covered."""

    run_dir: tyro.conf.Positional[Path]
    """Folder of the run; one that was killed or goes on will do."""
    format: Literal["text", "json", "registry", "model-card", "html"] = "text"
    """text; json: the versioned record (its schema is in the documentation); registry: the answers that a registry of
    deployments wants; model-card: a section in Markdown; html: one page."""
    attack: bool = True
    """Also mu and other terms of an attacker's, which takes a few seconds more."""

    def prepare(self) -> Job:
        """Reads the run; the job accounts for it and prints the statement."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.reports import recorded, statement

        run = recorded.read(self.run_dir)
        if not run.rounds:
            raise UsageError(f"run_dir={str(self.run_dir)!r}: no round was logged; there is nothing to state")

        def job() -> None:
            print(statement.FORMATS[self.format](statement.record(run, account, attack=self.attack)), end="")

        return job
