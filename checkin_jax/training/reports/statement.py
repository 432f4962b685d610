"""A run's statement for a file: one versioned record, and the same as text, registry entry, model card or page.

The fields are those that the Differential Privacy Deployments Registry, NIST SP 800-226 and "How to DP-fy ML" ask for;
what no guarantee covers is in the record, as not covered. Its schema is docs/statement.schema.json.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from typing import Any

from checkin_jax._plain import finite
from checkin_jax._rounding import down, up
from checkin_jax._version import __version__
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee, RateRow
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import POST_PROCESSING, AccountFn, by_rate, every_view, plain_rows

# Raised whenever the meaning of a field changes.
SCHEMA = 1
TRUSTED = {
    "local": "nobody but the client's own device",
    "messages": "the devices, and whoever removes names and order from the messages (a shuffler)",
    "aggregate": "the devices, and whoever adds the messages up (a server, or secure aggregation)",
}
NOT_COVERED = (
    "choosing the model, its settings or a run among several by looking at these clients' data: every such run adds up",
    "preparing, selecting or labelling the data",
    "metrics: they were measured on a public test set, which no guarantee here protects",
    "anything else that was released about the same clients, before or after",
    "what devices, servers and networks leak besides the messages: timing, sizes, logs, faults",
)
_RELEASED = "the model after every round, and so its final parameters"


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
            "protected": "one client, with all records it holds",
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
            "in_words": "brackets of epsilon: composed privacy profiles, every rounding on the safe side",
            "software": f"checkin-jax {__version__}",
            "run_by": f"checkin-jax {run.about.get('version', 'unknown')}",
        },
        "tuning": {"covered": False, "in_words": NOT_COVERED[0], "stated": run.about.get("tuning")},
        "releases": [_RELEASED, POST_PROCESSING],
        "notes": list(run.report["notes"]) if run.report else ["this run has not ended, or was killed"],
        "not_covered": list(NOT_COVERED),
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


def _bracket(values: dict[str, Any], upper: str = "epsilon", lower: str = "epsilon_lower") -> str:
    if values[upper] is None:
        return f"no finite bound (at least {down(values[lower] or 0.0)})"
    return f"at most {up(values[upper])} (at least {down(values[lower])})"


def sections(values: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Headings and sentences of a record of `record`; what all formats for people are made of."""
    unit, mechanism = values["unit"], values["mechanism"]
    guaranteed, assumed = [], []
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
        ("Guarantees", guaranteed),
        ("Assumed", list(dict.fromkeys(assumed))),
        ("Accounting", [f"{values['accounting']['in_words']} ({values['accounting']['software']})."]),
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


_STYLE = """:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;
padding:0 1rem;overflow-wrap:anywhere}h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.1rem;margin:2rem 0 .4rem}
p,ul{margin:.4rem 0}ul{padding-left:1.2rem}li{margin:.4rem 0}table{border-collapse:collapse;width:100%;margin:.6rem 0;
overflow-wrap:normal}th,td{text-align:left;vertical-align:top;padding:.4rem .8rem .4rem 0;border-bottom:1px solid #8886}
td b{font-size:1.15rem;white-space:nowrap}small{opacity:.75}"""


def _html_table(values: dict[str, Any]) -> str:
    """Epsilon of every view, its lower end and who is trusted: what is read first."""
    rows = ""
    for each in values["guarantees"]:
        upper = "no finite bound" if each["epsilon"] is None else up(each["epsilon"], 4)
        least = f"at least {down(each['epsilon_lower'] or 0.0, 4)}, at delta {each['delta']!r}"
        rows += (
            f"<tr><td>{html.escape(each['view'])}<td><b>{upper}</b><br><small>{least}</small>"
            f"<td>{html.escape(each['trusted'])}"
        )
    return f"<table><tr><th>View<th>Epsilon, at most<th>Who has to be trusted{rows}</table>"


def as_html(values: dict[str, Any]) -> str:
    """One page that loads nothing."""
    parts = []
    for head, lines in sections(values):
        many = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        text = f"<ul>{many}</ul>" if len(lines) > 1 else f"<p>{html.escape(''.join(lines))}</p>"
        parts.append(f"<h2>{head}</h2>{_html_table(values) if head == 'Guarantees' else ''}{text}")
    title = "Statement of differential privacy"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>\n"
    )


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
    "html": as_html,
}
