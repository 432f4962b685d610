"""Names of theorems on a page: each leads to its sentence on the same page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from urllib.parse import quote

# Where each name has a sentence and a proof.
GLOSSARY = "Every name in a sentence, and where it is proved: docs/glossary.md."


def mentions(names: Iterable[str]) -> re.Pattern[str]:
    """Matches these names where they stand by themselves: T1 in "T1, PLD", not in "T1+", "T1h" or "BT1"."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<![\w*'+.-])({'|'.join(map(re.escape, longest_first))})(?![\w*+]|'(?!s\b)|\()")


def listed(theorems: Iterable[str]) -> str:
    """Statements such as "T1: ..." as a list in HTML, to which `linked` leads."""
    items = []
    for name, sentence in _split(theorems):
        shown = html.escape(name)
        items.append(f'<li id="{shown}"><b>{shown}</b>: {html.escape(sentence)}</li>')
    return f"<ul>{''.join(items)}</ul>" if items else ""


def linked(text: str, theorems: Iterable[str]) -> str:
    """A text in HTML whose mentions of these theorems lead to `listed`."""
    shown = html.escape(text, quote=False)
    names = [name for name, _ in _split(theorems)]
    if not names:
        return shown
    return mentions(names).sub(lambda found: f'<a href="#{quote(found[1])}">{found[1]}</a>', shown)


def _split(theorems: Iterable[str]) -> Iterable[tuple[str, str]]:
    for theorem in dict.fromkeys(theorems):
        name, _, sentence = theorem.partition(": ")
        yield name, sentence
