"""A statement of a run, a ledger or a plan for filing: one versioned record, and its formats.

The fields are those of the Differential Privacy Deployments Registry, NIST SP 800-226 and "How to DP-fy ML".
Facts that no guarantee covers are recorded as not covered. The schema is docs/statement.schema.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkin_jax import _validate
from checkin_jax._files import naming
from checkin_jax._serialize import finite
from checkin_jax._version import __version__
from checkin_jax.accounting.attack import AttackTerms
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.accounting.interop.composed_guarantee import LedgerGuarantee
from checkin_jax.accounting.stated import Stated
from checkin_jax.randomizers import Randomizer
from checkin_jax.reports import evidence, render
from checkin_jax.reports.declared import Deployment
from checkin_jax.reports.record import ACCOUNTING, NOT_COVERED, TRUSTED, TUNING, Last, Record

# Increased whenever the meaning of a field changes.
SCHEMA = 2
_AS_ENTRIES = "as the view of each entry says"


def plain(subject: Record, *, attack: bool = True) -> dict[str, Any]:
    """Statement of a ledger or a plan as plain values for JSON; infinities become None.

    Args:
      subject: the record of its page.
      attack: adds an attacker's terms, mu among them, where they are known; null without.
    """
    first = subject.stated[0]
    randomizers = {each.words for g in subject.stated for each in _randomizers(g)}
    return {
        "schema": SCHEMA,
        "subject": subject.kind,
        "made": subject.made.isoformat(),
        "tool": {"name": "checkin-jax", "version": __version__},
        "data": {"name": subject.source or subject.title, "clients": subject.clients},
        "unit": {
            "protected": "one client, with all records it holds",
            "records_per_client": None,
            "adjacency": first.neighboring_relation,
            "in_words": first.compared,
            "time": "everything in the ledger" if subject.kind == "ledger" else "the whole run",
        },
        "mechanism": {
            "protocol": subject.title,
            "in_words": subject.lead,
            "randomizer": "; ".join(sorted(randomizers)) or "that of a trusted server",
            "steps": list(subject.mechanism),
            "clip_norm": None,
            "rounds": subject.rounds,
            "ended": None,
        },
        "guarantees": [
            guarantee(each, view, attack=attack, message=promise.name or None, met=promise.met)
            for promise in subject.promises
            for view, each in promise.guarantees.items()
        ],
        "guarantees_of_all_planned_rounds": [],
        **declarations(subject.deployment, subject.blanks),
        "target": None
        if subject.target is None
        else {"epsilon": subject.target[0], "view": subject.target[1]},
        "last": None if subject.last is None else dataclasses.asdict(subject.last),
        "accounting": {
            "in_words": ACCOUNTING,
            "software": f"checkin-jax {__version__}",
            "run_by": "nobody yet" if subject.kind == "plan" else "whoever trains",
        },
        "audit": None,
        "tuning": {"covered": False, "in_words": TUNING, "stated": subject.deployment.tuning},
        "releases": list(subject.released),
        "notes": [*subject.state, *subject.also],
        "not_covered": list(NOT_COVERED),
    }


def _randomizers(g: Stated) -> list[Randomizer]:
    if isinstance(g, LedgerGuarantee):
        return [unit.randomizer for unit, _ in g.units]
    return [g.randomizer] if isinstance(g, Guarantee) else []


def declarations(said: Deployment, blanks: tuple[str, ...]) -> dict[str, Any]:
    """The deployer's declarations by name, and the unanswered questions."""
    declared = dataclasses.asdict(said)
    return {"declared": {**declared, "checked": list(declared["checked"])}, "blanks": list(blanks)}


def guarantee(
    g: Stated, view: str, *, attack: bool, message: str | None = None, met: bool | None = None
) -> dict[str, Any]:
    """Plain values of a guarantee in one view. message: kind of message. met: true if the target is met."""
    terms: AttackTerms | None = None
    if attack:
        terms = g.attack if isinstance(g, Guarantee) else getattr(g, "terms", None)
    return finite(
        {
            "message": message,
            "met": met,
            "view": view,
            "against": g.against,
            "trusted": TRUSTED.get(view, _AS_ENTRIES),
            "epsilon": g.epsilon,
            "epsilon_lower": g.lower,
            "delta": g.delta,
            "validity": g.validity,
            "method": g.method,
            "theorems": list(g.theorems),
            "assumptions": list(g.assumptions),
            "warnings": list(g.warnings),
            "attack": None if terms is None else terms.as_dict(),
            "by_rate": [],
        }
    )


def last_of(path: Path) -> Last:
    """Figures of an earlier statement in JSON.

    Raises:
      ValueError: it is not such a statement. OSError: it cannot be read.
    """
    with naming(path):
        content = path.read_bytes()
    try:
        values = json.loads(content.decode("utf-8"))
        told = guaranteed_of(values)
        ends = {(each["message"] or "", each["view"]): each["epsilon"] for each in told}
        found = Last(
            made=values["made"],
            delta=told[0]["delta"],
            epsilon=tuple((*key, end) for key, end in ends.items()),
        )
        datetime.date.fromisoformat(found.made)
        for *_, end in found.epsilon:
            if end is not None:
                _validate.real(0.0, float("inf"), epsilon=end)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(
            f"{path}: expected a statement made by checkin statement --format json: {error!r}"
        ) from error
    return found


def guaranteed_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Guarantees to quote: those of all planned rounds if fewer ran."""
    return values["guarantees_of_all_planned_rounds"] or values["guarantees"]


def as_json(values: dict[str, Any]) -> str:
    """The record as JSON."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def as_text(values: dict[str, Any]) -> str:
    """Plain text: each heading with its sentences."""
    return _sentences(values, title="Statement of differential privacy", heading="", gap="", item="  ")


def as_model_card(values: dict[str, Any]) -> str:
    """A section of a model card, in Markdown."""
    return _sentences(values, title="## Differential privacy", heading="### ", gap="\n", item="* ")


def _sentences(values: dict[str, Any], **marks: str) -> str:
    quoted = guaranteed_of(values)
    return (
        render.templates()
        .get_template("statement.txt")
        .render(
            values=values,
            quoted=quoted,
            verdicts={each["message"]: each["met"] for each in quoted}.items(),
            audited=evidence.audited(values["audit"]),
            **marks,
        )
    )


def as_registry(values: dict[str, Any]) -> str:
    """Answers for an entry in a registry of deployments, as JSON; null for facts that a run does not know."""
    unit = values["unit"]
    entry = {
        "deployment": {
            "name": None if values["subject"] == "run" else values["data"]["name"],
            "data_curator": values["declared"]["operator"],
            "intended_use": values["declared"]["purpose"],
            "data_product": "a machine learning model"
            if values["subject"] == "run"
            else "results of all listed runs",
            "data_set": values["data"]["name"],
        },
        "dp_flavors": [
            {
                "name": "approximate differential privacy",
                "model": {"view": each["view"], "trusted": each["trusted"], "adversary": each["against"]},
                "unit_of_privacy": f"{unit['protected']}, {unit['time']}",
                "adjacency": f"{unit['adjacency']}: {unit['in_words']}",
                "epsilon": each["epsilon"],
                "delta": each["delta"],
                "mu": each["attack"] and each["attack"]["mu"]["upper"],
            }
            for each in guaranteed_of(values)
        ],
        "accounting": {**values["accounting"], "post_processing": values["releases"]},
        "implementation": values["mechanism"],
        "parameter_selection": values["tuning"],
        "limitations": values["not_covered"],
        "statement": values,
    }
    return json.dumps(entry, indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {
    "text": as_text,
    "json": as_json,
    "registry": as_registry,
    "model-card": as_model_card,
}
