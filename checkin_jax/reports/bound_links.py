"""Links from names of bounds on a page to their sentences on the same page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

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
