"""A run's statement for a file: one versioned record, and the same as text, registry entry or model card.

The fields are those that the Differential Privacy Deployments Registry, NIST SP 800-226 and "How to DP-fy ML" ask for;
what no guarantee covers is in the record, as not covered. Its schema is docs/statement.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from checkin_jax._plain import finite
from checkin_jax._rounding import down, up
from checkin_jax._version import __version__
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee, RateRow
from checkin_jax.reports import evidence, theorems
from checkin_jax.reports.record import ACCOUNTING, NOT_COVERED, TRUSTED, TUNING
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import POST_PROCESSING, AccountFn, by_rate, every_view, plain_rows

# Raised whenever the meaning of a field changes.
SCHEMA = 1
METRICS = "metrics: they were measured on a public test set, which no guarantee here protects"
_NOT_COVERED = (*NOT_COVERED[:2], METRICS, *NOT_COVERED[2:])
GUARANTEES, THEOREMS = "Guarantees", "Theorems"
PROTECTED = "one client, with all records it holds"
RELEASED = "the model after every round, and so its final parameters"


def record(run: RecordedRun, account_fn: AccountFn = account, *, attack: bool = True) -> dict[str, Any]:
    """The statement of a run as plain values for JSON; infinities as None.

    Args:
      run: of at least one round.
      account_fn: the accountant.
      attack: with an attacker's terms, mu among them, in every view; null without.

    Raises:
      ValueError: no round was logged.
    """
    if not run.rounds:
        raise ValueError(f"run_dir={str(run.path)!r}: no round was logged; there is nothing to state")
    private = run.run
    protocol = private.schedule.so_far(run.rounds)
    found = every_view(private, protocol, account_fn=account_fn)
    whole = private.schedule.so_far(run.rounds_within_budget)
    planned = every_view(private, whole, account_fn=account_fn) if protocol.repeats < whole.repeats else {}
    rates = by_rate(private, whole if planned else protocol, planned or found, account_fn=account_fn)
    held = run.about.get("records_per_client")
    return {
        "schema": SCHEMA,
        "tool": {"name": "checkin-jax", "version": __version__},
        "data": {"name": str(run.about.get("dataset", "unknown data")), "clients": protocol.num_clients},
        "unit": {
            "protected": PROTECTED,
            "records_per_client": held if isinstance(held, int) else None,
            "adjacency": found["messages"].neighboring_relation,
            "in_words": found["messages"].compared,
            "time": "the whole run",
        },
        "mechanism": {
            "protocol": whole.title,
            "in_words": protocol.what,
            "randomizer": private.randomizer.words,
            "clip_norm": private.clip_norm,
            "rounds": run.rounds,
            "ended": run.report is not None,
        },
        # Of an attacker's terms, and by rate, those of the figures that are to be quoted.
        "guarantees": [
            _guarantee(each, attack and not planned, () if planned else rates.get(view, ()))
            for view, each in found.items()
        ],
        "guarantees_of_all_planned_rounds": [
            _guarantee(each, attack, rates.get(view, ())) for view, each in planned.items()
        ],
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


def _guarantee(g: Guarantee, attack: bool, rates: Sequence[RateRow] = ()) -> dict[str, Any]:
    about = {
        "view": g.view,
        "against": g.against,
        "trusted": TRUSTED[g.view],
        "epsilon": g.epsilon,
        "epsilon_lower": g.lower,
        "delta": g.delta,
        "validity": g.validity,
        "method": g.method,
        "theorems": list(g.theorems),
        "assumptions": list(g.assumptions),
        "warnings": list(g.warnings),
        "attack": g.attack.as_dict() if attack else None,
        "by_rate": plain_rows(rates),
    }
    return finite(about)


def _audit(found: dict[str, Any]) -> dict[str, Any]:
    """What of audit.json a statement quotes."""
    wanted = ("test", "view", "delta", "audit_lower", "evidence")
    return {
        **{name: found[name] for name in ("date", "version", "passed", "confidence")},
        "findings": [
            {name: each[name] for name in wanted} | {"certified": {"epsilon": each["certified"]["epsilon"]}}
            for each in found["findings"]
        ],
    }


def _bracket(values: dict[str, Any], upper: str = "epsilon", lower: str = "epsilon_lower") -> str:
    if values[upper] is None:
        return f"no finite bound (at least {down(values[lower] or 0.0)})"
    return f"at most {up(values[upper])} (at least {down(values[lower])})"


def sections(values: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Headings and sentences of a record of `record`; what all formats for people are made of."""
    unit, mechanism = values["unit"], values["mechanism"]
    guaranteed, assumed, proved = [], [], []
    planned, ran = values["guarantees_of_all_planned_rounds"], values["guarantees"]
    for each in planned or ran:
        text = f"View {each['view']!r}, against {each['against']}: epsilon {_bracket(each)} at delta {each['delta']!r}"
        text += f", {each['validity']}; trusted: {each['trusted']}. Method: {each['method']}."
        if each["attack"]:
            mu, gain = each["attack"]["mu"], each["attack"]["advantage"]
            text += f" Advantage of the best attack {_bracket(gain, 'upper', 'lower')}; "
            text += f"mu {_bracket(mu, 'upper', 'lower')}, but for {mu['delta']!r}."
        for row in each["by_rate"]:
            text += f" Clients of check-in rates up to {row['client_rate']:.6g}: epsilon {_bracket(row)}."
        guaranteed.append(text)
        assumed += [*each["assumptions"], *each["warnings"]]
        proved += each["theorems"]
    if planned:  # they hold however the moment of ending was chosen, and come first
        only = f"{mechanism['rounds']:,} rounds that ran, right only if no result had a part in ending there"
        guaranteed.insert(0, "Over all rounds that were to run, which is what to quote:")
        guaranteed.append(f"Over the {only}:")
        guaranteed += [f"View {each['view']!r}: epsilon {_bracket(each)}." for each in ran]
    records = unit["records_per_client"]
    stated = [f"Stated: {values['tuning']['stated']}."] if values["tuning"]["stated"] else []
    return [
        ("Data", [f"{values['data']['name']}, {values['data']['clients']:,} clients."]),
        (
            "Unit of privacy",
            [
                f"{unit['protected']}{'' if records is None else f' ({records:,} each)'}, over {unit['time']}.",
                f"Adjacency {unit['adjacency']}: {unit['in_words']}.",
            ],
        ),
        (
            "Mechanism",
            [
                f"{mechanism['protocol']}: {values['data']['clients']:,} clients, {mechanism['in_words']}.",
                f"{mechanism['randomizer']}; clip norm {mechanism['clip_norm']:g}; {mechanism['rounds']:,} rounds.",
            ],
        ),
        (GUARANTEES, guaranteed),
        *([(THEOREMS, [*dict.fromkeys(proved), theorems.GLOSSARY])] if proved else ()),
        ("Assumed", list(dict.fromkeys(assumed))),
        ("Accounting", [f"{values['accounting']['in_words']} ({values['accounting']['software']})."]),
        ("Audit", list(evidence.audited(values["audit"])) or ["No audit of this run is known here."]),
        ("Released", values["releases"]),
        ("Tuning", [*stated, f"Not covered: {values['tuning']['in_words']}."]),
        ("Notes", values["notes"] or ["None."]),
        ("Not covered", values["not_covered"]),
    ]


def as_json(values: dict[str, Any]) -> str:
    """The record itself."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def as_text(values: dict[str, Any]) -> str:
    """Plain text, a heading and its sentences at a time."""
    parts = (f"{head}\n" + "\n".join(f"  {line}" for line in lines) for head, lines in sections(values))
    return "Statement of differential privacy\n\n" + "\n\n".join(parts) + "\n"


def as_model_card(values: dict[str, Any]) -> str:
    """A section for a model card, in Markdown."""
    parts = (f"### {head}\n\n" + "\n".join(f"* {line}" for line in lines) for head, lines in sections(values))
    return "## Differential privacy\n\n" + "\n\n".join(parts) + "\n"


def as_registry(values: dict[str, Any]) -> str:
    """The answers that an entry in a registry of deployments wants, as JSON; what a run cannot know is null."""
    unit = values["unit"]
    entry = {
        "deployment": {
            "name": None,
            "data_curator": None,
            "intended_use": None,
            "data_product": "a machine learning model",
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
            for each in values["guarantees_of_all_planned_rounds"] or values["guarantees"]
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
