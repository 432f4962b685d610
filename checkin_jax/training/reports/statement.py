"""Statement of a run for a file, as plain values; `checkin_jax.reports.formats` writes it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from checkin_jax._version import __version__
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee, RateRow
from checkin_jax.reports import declared, formats
from checkin_jax.reports.declared import Deployment
from checkin_jax.reports.record import ACCOUNTING, NOT_COVERED, TUNING
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import POST_PROCESSING, AccountFn, figures, plain_rows

METRICS = "metrics: they were measured on a public test set, which no guarantee here protects"
_NOT_COVERED = (*NOT_COVERED[:2], METRICS, *NOT_COVERED[2:])
PROTECTED = "one client, with all records it holds"
RELEASED = "the model after every round, and so its final parameters"


def record(
    run: RecordedRun,
    account_fn: AccountFn = account,
    *,
    attack: bool = True,
    deployment: Deployment | None = None,
) -> dict[str, Any]:
    """Statement of a run as plain values for JSON; infinities become None.

    Args:
      run: of at least one round.
      account_fn: the accountant.
      attack: adds an attacker's terms, mu among them, in every view; null without.
      deployment: declarations of the deployer; None: those of deployment.toml in the run's folder, if it
        exists.

    Raises:
      ValueError: no round was logged.
    """
    if not run.rounds:
        raise ValueError(f"run_dir={str(run.path)!r}: no round was logged; there is nothing to state")
    private = run.run
    whole = private.schedule.so_far(run.rounds_within_budget)
    found, planned, rates = figures(private, run.rounds, run.rounds_within_budget, account_fn)
    held = run.about.get("records_per_client")
    said = run.deployment if deployment is None else deployment

    def stated(g: Guarantee, attack: bool, rows: Sequence[RateRow]) -> dict[str, Any]:
        return formats.guarantee(g, g.view, attack=attack) | {"by_rate": plain_rows(rows)}

    return {
        "schema": formats.SCHEMA,
        "subject": "run",
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "tool": {"name": "checkin-jax", "version": __version__},
        "data": {"name": str(run.about.get("dataset", "unknown data")), "clients": whole.num_clients},
        "unit": {
            "protected": PROTECTED,
            "records_per_client": held if isinstance(held, int) else None,
            "adjacency": found["messages"].neighboring_relation,
            "in_words": found["messages"].compared,
            "time": "the whole run",
        },
        "mechanism": {
            "protocol": whole.title,
            "in_words": private.schedule.so_far(run.rounds).what,
            "randomizer": private.randomizer.words,
            "steps": [],
            "clip_norm": private.clip_norm,
            "rounds": run.rounds,
            "ended": run.report is not None,
        },
        # An attacker's terms and brackets by rate are those of the quoted figures.
        "guarantees": [
            stated(each, attack and not planned, () if planned else rates.get(view, ()))
            for view, each in found.items()
        ],
        "guarantees_of_all_planned_rounds": [
            stated(each, attack, rates.get(view, ())) for view, each in planned.items()
        ],
        **formats.declarations(said, declared.blanks(said)),
        "target": None
        if private.target_epsilon is None
        else {"epsilon": private.target_epsilon, "view": private.target_view},
        "last": None,
        "accounting": {
            "in_words": ACCOUNTING,
            "software": f"checkin-jax {__version__}",
            "run_by": f"checkin-jax {run.about.get('version', 'unknown')}",
        },
        "audit": run.audit and _audit(run.audit),
        "tuning": {"covered": False, "in_words": TUNING, "stated": run.about.get("tuning")},
        "releases": [RELEASED, POST_PROCESSING],
        "notes": list(run.report["notes"]) if run.report else ["this run has not ended, or was killed"],
        "not_covered": list(_NOT_COVERED),
    }


def _audit(found: dict[str, Any]) -> dict[str, Any]:
    """Fields of audit.json that a statement quotes."""
    wanted = ("test", "view", "delta", "audit_lower", "evidence")
    return {
        **{name: found[name] for name in ("date", "version", "passed", "confidence")},
        "findings": [
            {name: each[name] for name in wanted} | {"certified": {"epsilon": each["certified"]["epsilon"]}}
            for each in found["findings"]
        ],
    }
