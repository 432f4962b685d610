"""Self-contained HTML pages: one style for screen, phone, dark mode and paper, without external resources.

The templates, glossary.toml and references.toml beside this file have the words; `record` has the facts. Keys such as
[SCI] have their full references on a page, those of docs/references.md.

Statements for filing are formats of one versioned record, whose schema is docs/statement.schema.json. The fields are
those of the Differential Privacy Deployments Registry, NIST SP 800-226 and "How to DP-fy ML". Facts that no guarantee
covers are recorded as not covered.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import html
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from checkin_jax import _validate
from checkin_jax._files import read_object
from checkin_jax._rounding import counted, down, up
from checkin_jax._serialize import finite
from checkin_jax._version import __version__
from checkin_jax.accounting.guarantee import RateRow, StatedGuarantee
from checkin_jax.reports import declarations, record
from checkin_jax.reports.record import (
    ACCOUNTING,
    NOT_COVERED,
    PROTECTED,
    TRUSTED,
    TUNING,
    Figure,
    Last,
    Record,
    attack_terms,
    plain_rows,
)

# Colours of figures that follow the page's theme, and their names in its style.
_THEMED = {"#123a6b": "var(--deep)", "#dddddd": "var(--rule)", "#000000": "currentColor"}
# Marker of a page's subject in its head, and the number of leading characters that contain it.
_SOURCE, _END, _HEAD = '<meta name="checkin-source" content="', '">', 4_000


@functools.cache
def templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("checkin_jax.reports"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "trusted": record.TRUSTED,
        "not_covered": record.NOT_COVERED,
        "every": record.EVERY,
        "questions": declarations.QUESTIONS,
        "accounting": record.sentence(record.ACCOUNTING),
        "glossary": GLOSSARY,
        "software": f"checkin-jax {__version__}",
    }
    environment.filters |= {
        "at_most": lambda value: record.number(value, up),
        "at_least": lambda value: record.number(value, down),
        "up": up,
        "down": down,
        "bracket": _bracket,
        "thousands": "{:,}".format,
        "counted": counted,
        "factor": record.factor,
        "percent": record.percent,
        "sentence": record.sentence,
        "beliefs": record.beliefs,
        "audited": declarations.audited,
        "safe_svg": Markup,
    }
    environment.tests["finite"] = math.isfinite
    return environment


def text(name: str, **given: Any) -> str:
    """A text by the template of this name, without the last end of line."""
    return templates().get_template(name).render(**given).removesuffix("\n")


def _bracket(values: Mapping[str, Any], upper: str = "epsilon", lower: str = "epsilon_lower") -> str:
    if values[upper] is None:
        return f"no finite bound (at least {down(math.inf if values[lower] is None else values[lower])})"
    return f"at most {up(values[upper])} (at least {down(values[lower])})"


def page(subject: Record) -> str:
    """HTML page about a run, a ledger or a plan.

    Raises:
      ValueError: a declared check matches no assumption, or another declaration does not match the record.
    """
    checks = subject.deployment.checks(subject.assumptions)
    return (
        templates()
        .get_template("page.html")
        .render(
            subject=subject,
            said=subject.deployment,
            first=subject.stated[0],
            chosen=subject.chosen,
            clients=subject.clients_in_all,
            checked=list(zip(subject.assumptions.items(), checks)),
            stated=list(split(subject.theorems)),
            cited=cited,
            words=words_of_pages(),
        )
    )


def source_of(path: Path) -> str:
    """Subject of the page in a file; empty if the file does not exist or is not such a page."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as stream:
        _, found, rest = stream.read(_HEAD).partition(_SOURCE)
    return html.unescape(rest.partition(_END)[0]) if found else ""


def figure(drawn: Any, title: str, caption: str) -> Figure:
    """A figure of matplotlib as inline SVG whose text, grid and dark colour follow the page's theme."""
    stream = io.StringIO()
    drawn.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, name in _THEMED.items():
        svg = svg.replace(color, name)
    return Figure(title=title, caption=caption, svg=svg)


# Pointer to the page with a sentence and a proof for each name.
GLOSSARY = "Every name in a sentence, and where it is proved: docs/glossary.md."


def split(theorems: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Distinct (name, sentence) pairs of statements such as "clones: ..."."""
    for theorem in dict.fromkeys(theorems):
        name, _, sentence = theorem.partition(": ")
        yield name, sentence


_KEY = re.compile(r"\[(\w+)\]")


def cited(texts: Iterable[str]) -> dict[str, str]:
    """Entries of all keys in square brackets in the texts, in order of keys."""
    keys = {key for text in texts for key in _KEY.findall(text)}
    return {key: entry for key, entry in references().items() if key in keys}


@functools.cache
def references() -> dict[str, str]:
    """Full references by key, those of docs/references.md without links and italics."""
    return _toml("references.toml")


def words_of_pages() -> dict[str, str]:
    """Words of a page of which its reader may know none, each with its explanation."""
    return _toml("glossary.toml")["pages"]


def glossary() -> dict[str, str]:
    """All words of glossary.toml, each with its explanation; those of pages first."""
    return {word: text for table in _toml("glossary.toml").values() for word, text in table.items()}


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((files("checkin_jax.reports") / name).read_text(encoding="utf-8"))


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
    template = templates().get_template("statement.txt")
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
