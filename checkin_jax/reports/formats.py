"""A statement of a run, a ledger or a plan for filing: one versioned record, and its formats.

The fields are those of the Differential Privacy Deployments Registry, NIST SP 800-226 and "How to DP-fy ML".
Facts that no guarantee covers are recorded as not covered. The schema is docs/statement.schema.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkin_jax import _validate
from checkin_jax._files import read_object
from checkin_jax._serialize import finite
from checkin_jax._version import __version__
from checkin_jax.accounting.guarantee import RateRow, StatedGuarantee
from checkin_jax.reports import render
from checkin_jax.reports.record import (
    ACCOUNTING,
    NOT_COVERED,
    PROTECTED,
    TRUSTED,
    TUNING,
    Last,
    Record,
    attack_terms,
    plain_rows,
)

# Increased whenever the meaning of a field changes.
SCHEMA = 3
_AS_ENTRIES = "as the view of each entry says"


def plain(subject: Record, *, attack: bool = True) -> dict[str, Any]:
    """Statement of a run, a ledger or a plan as plain values for JSON; infinities become None.

    Args:
      subject: the record of its page.
      attack: adds an attacker's terms, mu among them, where they are known; null without.

    Raises:
      ValueError: a declaration that does not fit the subject: a check of no assumption, or too few clients.
    """
    assumptions, said = subject.assumptions, subject.deployment
    checks = said.checks(assumptions)
    first = subject.stated[0]
    randomizers = {each.description for g in subject.stated for each in g.randomizers}
    protocol, in_words = subject.protocol or (subject.title, subject.lead)
    quoted = [
        guarantee(
            each,
            view,
            attack=attack,
            of=(promise.name, subject.meets(each)),
            by_rate=subject.by_rate.get(view, ()),
        )
        for promise in subject.promises
        for view, each in promise.guarantees.items()
    ]
    ran = [
        guarantee(each, view, attack=False, of=("", subject.meets(each)))
        for view, each in subject.ran.items()
    ]
    return {
        "schema": SCHEMA,
        "subject": subject.kind,
        "made": subject.made.isoformat(),
        "in_short": list(subject.in_short(attack=attack)),
        "tool": {"name": "checkin-jax", "version": __version__},
        "data": {"name": subject.data or subject.source or subject.title, "clients": subject.clients_in_all},
        "unit": {
            "protected": PROTECTED,
            "records_per_client": subject.records_per_client,
            "adjacency": first.neighboring_relation,
            "in_words": first.compared,
            "time": "everything in the ledger" if subject.kind == "ledger" else "the whole run",
        },
        "mechanism": {
            "protocol": protocol,
            "in_words": in_words,
            "randomizer": "; ".join(sorted(randomizers)) or "that of a trusted server",
            "steps": list(subject.mechanism),
            "clip_norm": subject.clip_norm,
            "rounds": subject.rounds,
            "ended": subject.ended,
        },
        "guarantees": ran or quoted,
        "guarantees_of_all_planned_rounds": quoted if ran else [],
        "declared": dataclasses.asdict(said) | {"checked": list(map(dataclasses.asdict, said.checked))},
        "blanks": list(subject.blanks),
        "target": None
        if subject.target is None
        else {"epsilon": subject.target[0], "view": subject.target[1]},
        "assumptions": [
            {"assumption": each, "needed_by": whom, "checked": [dataclasses.asdict(check) for check in found]}
            for (each, whom), found in zip(assumptions.items(), checks)
        ],
        "last": subject.last and _last(subject.last, subject.changes),
        "accounting": {
            "in_words": ACCOUNTING,
            "software": f"checkin-jax {__version__}",
            "run_by": subject.run_by,
        },
        "audit": subject.audit and _audit(subject.audit),
        "tuning": {
            "covered": False,
            "in_words": TUNING,
            "stated": subject.tuning or subject.deployment.tuning,
        },
        "releases": list(subject.released),
        "notes": list(subject.state),
        "not_covered": [*NOT_COVERED, *([subject.evaluation] if subject.evaluation else [])],
    }


def _last(last: Last, changes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "made": last.made,
        "delta": last.delta,
        "epsilon": list(map(list, last.epsilon)),
        "changes": list(changes),
    }


def _audit(found: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of audit.json that a statement quotes."""
    wanted = ("test", "view", "delta", "audit_lower", "evidence")
    return {
        **{name: found[name] for name in ("date", "version", "passed", "confidence")},
        "findings": [
            {name: each[name] for name in wanted} | {"certified": {"epsilon": each["certified"]["epsilon"]}}
            for each in found["findings"]
        ],
    }


def guarantee(
    g: StatedGuarantee,
    view: str,
    *,
    attack: bool,
    of: tuple[str, bool | None] = ("", None),
    by_rate: Sequence[RateRow] = (),
) -> dict[str, Any]:
    """Plain values of a guarantee in one view.

    Args:
      attack: adds attack terms.
      of: kind of message, or an empty text; and whether the target is met, None without one.
      by_rate: brackets by check-in rate.
    """
    message, met = of
    terms = attack_terms(g) if attack else None
    return finite(
        {
            "message": message or None,
            "met": met,
            "view": view,
            "trusted": TRUSTED.get(view, _AS_ENTRIES),
            "epsilon_lower": g.lower,
            **{name: getattr(g, name) for name in ("against", "epsilon", "delta", "validity", "method")},
            **{name: list(getattr(g, name)) for name in ("theorems", "assumptions", "warnings")},
            "attack": None if terms is None else terms.as_dict(),
            "by_rate": plain_rows(by_rate),
        }
    )


def last_of(path: Path, kind: str) -> Last:
    """Figures of an earlier statement in JSON about a subject of this kind.

    Raises:
      ValueError: it is not such a statement, or one about another kind of subject. OSError: it cannot be read.
    """
    try:
        values = read_object(path)
        told = guaranteed_of(values)
        ends = {(each["message"] or "", each["view"]): each["epsilon"] for each in told}
        found = Last(
            made=values["made"],
            delta=told[0]["delta"],
            epsilon=tuple((*key, end) for key, end in ends.items()),
            steps=tuple(map(str, values["mechanism"]["steps"])),
            run=str(values["mechanism"]["in_words"]),
            declared=dict(values["declared"]),
        )
        about = values["subject"]
        datetime.date.fromisoformat(found.made)
        for *_, end in found.epsilon:
            if end is not None:
                _validate.real(0.0, float("inf"), epsilon=end)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path}: expected a statement made by checkin statement --format json") from error
    if about != kind:
        raise ValueError(f"{path}: expected a statement about a {kind}, not about a {about}")
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
    """A section of a model card, in Markdown; declared HTML is shown as it was written."""
    text = _sentences(values, title="## Differential privacy", heading="### ", gap="\n", item="* ")
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", text)


def _sentences(values: dict[str, Any], **marks: str) -> str:
    template = render.templates().get_template("statement.txt")
    return template.render(values=values, quoted=guaranteed_of(values), **marks)


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
