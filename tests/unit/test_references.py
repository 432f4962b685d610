"""Every citation leads to docs/references.md, every entry there is cited, and nothing points outside the repository."""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

from checkin_jax.accounting.bounds.table import BOUNDS
from checkin_jax.reports.render import references

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "references.md"
SOURCES = [
    *sorted(
        path
        for folder in ("checkin_jax", "accountants", "benchmarks", "tests", "train")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != Path(__file__).name
    ),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path != PAGE),
    *sorted((ROOT / "tests").rglob("*.md")),
]
# [BBG18], and the two papers that are reproduced.
KEY = r"\[((?:[A-Z][A-Za-z]{1,4}\d\d)|SCI|RCI)\]"
# "Feldman, McMillan, Talwar (2021)", "Erlingsson et al. 2019", "Steinke, Nasr and Jagielski, 2023".
NAME = r"\b[A-Z][A-Za-z]*[a-z](?:-[A-Z][a-z]+)?"
AUTHORS = re.compile(rf"({NAME}(?:(?:, | and ){NAME})*(?: et al\.)?),? \(?((?:19|20)\d\d)\b(?!\.\d)")
# Words with a capital that stand before a year and are no authors.
NOT_AUTHORS = {"NeurIPS"}
OUTSIDE = re.compile(r"\bTHEORY\b|\bDESIGN\b|\bREVIEW\b|\bSTYLE\.md|/work/|/tmp/|\.\./shared")


@functools.cache
def words(path: Path) -> str:
    """The prose of a file in one line: of Python its comments and strings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token.string[1:] for token in tokens if token.type == tokenize.COMMENT]
        nodes = ast.walk(ast.parse(text))
        strings = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        text = "\n".join([*comments, *strings])
    return " ".join(text.split())


def entries() -> dict[str, str]:
    """The entry of every key."""
    parts = re.split(r"^\* \*\*\[(\w+)\]\*\*", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {key: " ".join(entry.split()) for key, entry in zip(parts[1::2], parts[2::2], strict=True)}


def named(text: str) -> set[tuple[str, str]]:
    """Authors and year of the citations by name."""
    return {
        (who, year) for who, year in AUTHORS.findall(text) if not set(re.findall(NAME, who)) & NOT_AUTHORS
    }


def keys_of(who: str, year: str, known: dict[str, str]) -> list[str]:
    """The entries of that year that begin with the first author and name all others."""
    people = re.findall(NAME, who.removesuffix(" et al."))
    return [
        key
        for key, entry in known.items()
        if entry.startswith(people[0])
        and f"({year})" in entry
        and all(re.search(rf"\b{person}\b", entry.partition(f"({year})")[0]) for person in people)
    ]


def test_the_page_is_in_order():
    known = entries()
    text = PAGE.read_text(encoding="utf-8")
    assert len(known) == len(re.findall(r"^\* ", text, re.MULTILINE)), "every entry has a key of its own"
    assert list(known) == sorted(known, key=str.lower)
    for key, entry in known.items():
        year = re.search(r"\((\d{4})\)", entry)
        assert year, key
        assert re.fullmatch(r".*\*[^*]+\.\*.*\.", entry), f"{key}: authors (year). *Title.* Where."
        assert not key[-2:].isdigit() or key[-2:] == year[1][-2:], key


def test_pages_cite_in_full_what_the_page_has():
    """A page is read where this documentation is not: its sources are the same entries without links and italics."""
    known = entries()
    for key, entry in references().items():
        plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", known[key]).replace("*", "")
        assert entry == plain
    stated = " ".join(f"{bound.statement} {bound.reference}" for bound in BOUNDS)
    assert set(re.findall(KEY, stated)) <= references().keys()


def test_every_key_leads_to_an_entry_and_every_entry_is_cited():
    known = entries()
    cited: set[str] = set()
    for path in SOURCES:
        if not path.exists():
            continue
        text = words(path)
        found = set(re.findall(KEY, text))
        assert found <= known.keys(), (path, found - known.keys())
        cited |= found
        for who, year in named(text):
            keys = keys_of(who, year, known)
            assert keys, f"{path}: {who} ({year}) is not in docs/references.md"
            cited.update(keys)
    assert known.keys() == cited, f"cited nowhere: {known.keys() - cited}"


def test_nothing_is_cited_by_a_label_of_notes():
    """P1 to P14 were labels of notes that nobody has: papers are cited by their own numbers."""
    for path in SOURCES:
        if path.exists() and "tests" not in path.parts:
            assert not re.search(r"\bP\d{1,2}\b(?!\()", words(path)), path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("as Feldman, McMillan, Talwar (2021), Theorem 3.8", [("Feldman, McMillan, Talwar", "2021")]),
        ("(Erlingsson et al. 2019)", [("Erlingsson et al.", "2019")]),
        ("Steinke, Nasr and Jagielski, 2023", [("Steinke, Nasr and Jagielski", "2023")]),
        ("in 2,000 rounds of 2048 clients", []),
    ],
)
def test_citations_by_name_are_found(text, found):
    assert named(text) == set(found)


def test_nothing_points_outside_the_repository():
    for path in SOURCES:
        if path.exists():
            assert not OUTSIDE.search(words(path)), path
