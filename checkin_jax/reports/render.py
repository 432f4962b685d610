"""Self-contained HTML pages: one style for screen, phone, dark mode and paper, without external resources.

The templates, glossary.toml and references.toml beside this file have the words; `record` has the facts. Names of
bounds on a page link to their sentences, and keys such as [SCI] to full references, those of docs/references.md.
"""

from __future__ import annotations

import functools
import html
import io
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from checkin_jax._rounding import counted, down, up
from checkin_jax._version import __version__
from checkin_jax.reports import declarations, record
from checkin_jax.reports.record import Figure, Record

# Colours of figures that follow the page's theme, and their names in its style.
_THEMED = {"#123a6b": "var(--deep)", "#dddddd": "var(--rule)", "#000000": "currentColor"}
# Numbers that must not be broken over lines, such as "1e-06" and "3-ary", outside of code and pictures.
_TIED = re.compile(
    r"(<(style|script|title|svg|pre|code)\b.*?</\2>|<[^>]*>)|(?<![\w.&#;+-])(\d[\d.]*(?:e-\d+|-[A-Za-z]{2,4}))\b",
    re.DOTALL,
)
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
        "linked": lambda text, stated: Markup(linked(text, stated)),
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
    written = (
        templates()
        .get_template("page.html")
        .render(
            subject=subject,
            said=subject.deployment,
            first=subject.stated[0],
            chosen=subject.chosen,
            clients=subject.clients_in_all,
            checked=list(zip(subject.assumptions.items(), subject.deployment.checks(subject.assumptions))),
            stated=list(split(subject.theorems)),
            cited=cited,
            words=words_of_pages(),
        )
    )
    return tied(written)


def tied(page: str) -> str:
    """HTML in which numbers with a unit or an exponent are not broken over lines."""
    return _TIED.sub(lambda found: found[1] or f'<span class="number">{found[3]}</span>', page)


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


def mentions(names: Iterable[str]) -> re.Pattern[str]:
    """Pattern of these names as whole words: own-laws in "own-laws, PLD", but not in "laws"."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<![\w*'+.-])({'|'.join(map(re.escape, longest_first))})(?![\w*+]|'(?!s\b)|\()")


def linked(text: str, theorems: Iterable[str]) -> str:
    """HTML text in which names of these bounds link to their items."""
    shown = html.escape(text, quote=False)
    names = [name for name, _ in split(theorems)]
    if not names:
        return shown
    return mentions(names).sub(lambda found: f'<a href="#{quote(found[1])}">{found[1]}</a>', shown)


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
