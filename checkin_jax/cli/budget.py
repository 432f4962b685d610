"""`checkin budget`: what a run has spent of its epsilon, and what is left, from its folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import tyro

from checkin_jax.cli.options import Job


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
