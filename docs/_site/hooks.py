"""What the pages of the site have beyond Markdown. Nothing here needs JavaScript or a request.

Formulae become MathML; the first mention of a bound on a page leads to the glossary, whose words are those of
`checkin explain`; the changelog and the options of the command are pages, made from CHANGELOG.md and from the parser;
the version stands in the header.
"""

from __future__ import annotations

import html as text
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from cyclopts.docs import generate_markdown_docs
from latex2mathml.converter import convert_to_element
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from checkin_jax import __version__
from checkin_jax.cli import APP
from checkin_jax.reports.render import glossary

ROOT = Path(__file__).parents[2]

# As pymdownx.arithmatex leaves them, with the bracket, comma or hyphen beside a formula in a line.
FORMULA = re.compile(
    r'(?P<before>\(?)<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>'
    r"(?P<after>[^\s<]*)",
    re.DOTALL,
)
# Signs of a formula in a line that a phone has room for.
NARROW = 30
# Set tight, and limits above and below in a display.
TIGHT, LARGE = {"/", "…", "(", ")", "[", "]", "|", "‖", "∗"}, {"∑", "∏", "max", "sup"}
PRIMES = {"′", "″"}
# Behind these a sign belongs to the number after it.
BEFORE_SIGNS = {"=", "≤", "≥", "<", ">", "(", "[", ",", ";", "∈", "/", ":"}
FUNCTIONS = {"log", "exp", "sin", "cos", "tanh", "log1p"}
# An entry of the glossary: its anchor, the name, the sentence.
ENTRY = re.compile(r'^\* <a id="([\w-]+)"></a>\*\*(.+?)\*\*: (.*) \(', re.MULTILINE)
# The sentence in the place of its words.
WORDS = "The site has them here, `checkin explain` prints them, and `checkin_jax/reports/glossary.toml` keeps them."
# Factors of the site's search: how much a hit on a page counts, by the section of the menu.
BOOSTS = {"Learn": 8.0, "Do": 2.0, "Proofs": 0.1}
# Words of everyday use.
AMBIGUOUS = {"clones", "hexagon", "profile", "everybody", "subsampling", "allocation"}
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CODE = re.compile(r"<code>[\w/.]{24,}</code>")
# From so many on, a table's rows are cards on a phone.
COLUMNS = 3
# A page, as docstrings name it.
PAGE = re.compile(r"\bdocs/(\w+)\.md\b")
# Markdown that became text: an item of a list, or a formula in a block of code.
UNREAD = re.compile(r"^(?:\*|\d+\.) .*|\$\S[^$\n]*\$", re.MULTILINE)
# Text of these is left alone.
KEPT = re.compile(r"<(/?)(a|code|pre|math|h[1-6])\b")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The version beside the name."""
    config.site_name = f"{config.site_name} {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Two pages that nobody writes by hand."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2]
    opening = "# Changes\n\nWhat changed from release to release, and what did each repair mean for you?\n"
    files.append(File.generated(config, "changelog.md", content=opening + changes))
    files.append(File.generated(config, "options.md", content=_options()))
    return files


def _options() -> str:
    """Every command and option, as the parser has them."""
    opening = "What can every command be told? These are the words of `checkin COMMAND --help`."
    head = f"# Options of the command\n\n{opening} [The command](command.md) shows it at work.\n\n"
    body = generate_markdown_docs(APP, generate_toc=False).partition("\n## ")[2]
    return f"{head}## {body}"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The glossary with the words that `checkin explain` knows, the changes here, the factor in the search."""
    if page.ancestors:
        page.meta["search"] = {"boost": BOOSTS.get([*page.ancestors][-1].title or "", 1.0)}
    words = "\n".join(f"* **{word}**: {sentences}" for word, sentences in glossary().items())
    return markdown.replace(WORDS, words).replace("](../CHANGELOG.md)", "](changelog.md)")


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Formulae of a page as MathML, and theorems linked. The build stops at what cannot be read."""
    if unread := UNREAD.search(html):
        raise PluginError(f"{page.file.src_uri}: Markdown that is not read as such: {unread[0][:80]}")
    html = TABLE.sub(_cards, FORMULA.sub(lambda found: _formula(**found.groupdict()), html))
    return html if page.file.src_uri == "glossary.md" else _linked(html, page)


def _cards(found: re.Match[str]) -> str:
    """A table whose cells know their columns, for phones (style.css); long names of files and functions may break."""
    table = CODE.sub(lambda code: re.sub(r"(?<=[/_])(?=\w)(?!code>)", "<wbr>", code[0]), found[0])
    heads = [
        re.sub(r"<[^>]*>", "", head).strip() for head in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)
    ]
    if len(heads) < COLUMNS:
        return table
    head, _, body = table.partition("<tbody>")
    rows: list[str] = []
    for row in body.split("<tr>"):
        cells = row.split("<td")
        marked = [f'<td data-label="{label}"{cell}' for label, cell in zip(heads, cells[1:])]
        rows.append(cells[0] + "".join(marked))
    return head.replace("<table>", '<table class="cards">') + "<tbody>" + "<tr>".join(rows)


def _linked(html: str, page: Page) -> str:
    """The first mention of each bound with its sentence, leading to the glossary."""
    entries = ENTRY.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    known = {
        name.replace("\\", ""): (anchor, sentence.replace("\\", "")) for anchor, name, sentence in entries
    }
    mention = _mentions(known.keys() - AMBIGUOUS)
    up = "../" * page.url.rstrip("/").count("/") + ("../" if page.url.strip("/") else "")
    done: set[str] = set()

    def link(found: re.Match[str]) -> str:
        name = found[1]
        if name in done:
            return name
        done.add(name)
        anchor, sentence = known[name]
        return f'<a class="theorem" href="{up}glossary/#{anchor}" title="{text.escape(sentence)}">{name}</a>'

    depth = 0
    parts = re.split(r"(<[^>]*>)", html)
    for i, part in enumerate(parts):
        if tag := KEPT.match(part):
            depth += -1 if tag[1] else 1
        elif depth == 0 and not part.startswith("<"):
            part = PAGE.sub(rf'<a href="{up}\1/">\1</a>', part)
            parts[i] = mention.sub(link, part) if "<a " not in part else part
    return "".join(parts)


def _mentions(names: Iterable[str]) -> re.Pattern[str]:
    """Pattern of these names as whole words: own-laws in "own-laws, PLD", but not in "laws"."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<![\w*'+.-])({'|'.join(map(re.escape, longest_first))})(?![\w*+]|'(?!s\b)|\()")


def _formula(before: str, tag: str, open: str, tex: str, after: str) -> str:
    display = open == "["
    tex = text.unescape(tex).strip()
    try:
        element = convert_to_element(tex, display="block" if display else "inline")
    except Exception as error:
        raise PluginError(f"no formula: {tex}") from error
    for parent in list(element.iter()):
        _mend(parent, display)
    written = ElementTree.tostring(element, encoding="unicode")
    if "\\" in written or "<mi>&amp;</mi>" in written:
        raise PluginError(f"unknown command in the formula {tex}")
    if display:
        return f'{before}<div class="formula">{written}</div>{after}'
    if len(re.sub(r"<[^>]*>", "", written)) > NARROW:
        return f'<span class="wide">{before}{written}{after}</span>'
    # No line ends between a formula and what is beside it.
    return f'<span class="unbroken">{before}{written}{after}</span>' if before or after else written


def _mend(parent: Element, display: bool) -> None:
    """Names in one piece, signs spaced as in print, limits of sums where a display has them."""
    parts = list(parent)
    if len(parts) > 1 and all(part.tag == "mi" and part.get("mathvariant") == "normal" for part in parts):
        name = Element("mi")
        name.text = "".join(part.text or "" for part in parts)
        parent[:] = [name]
    if (
        display
        and parent.tag in ("msub", "msubsup")
        and parts[0].text
        and text.unescape(parts[0].text) in LARGE
    ):
        parent.tag = {"msub": "munder", "msubsup": "munderover"}[parent.tag]
    # The font's is raised by itself, and would be a speck.
    if parent.tag == "msup" and text.unescape(parts[1].text or "") in PRIMES:
        parent.tag = "mrow"
    mended: list[Element] = []
    for part in list(parent):
        part.text = text.unescape(part.text) if part.text else part.text
        if part.text == "*":  # in the middle of a line, so that it can be raised
            part.text = "∗"
        elif part.text == "~":
            part.tag, part.text = "mo", "∼"
        elif part.text == ";":
            part.tag = "mo"
        elif part.text == "∞":
            part.tag = "mi"
        elif part.text == ":" and mended and mended[-1].text == "=":
            mended[-1].text = "=:"
            continue
        signed = part.text in ("−", "+") and (not mended or mended[-1].text in BEFORE_SIGNS)
        if part.tag == "mo" and (part.text in TIGHT or signed):
            part.set("lspace", "0")
            part.set("rspace", "0")
        elif part.tag == "mo" and part.text and part.text.isalpha() and len(part.text) > 1:
            part.set("lspace", "0.1em")
            part.set("rspace", "0.1em")
        if mended and mended[-1].text in FUNCTIONS and part.text != "(":
            mended.append(Element("mspace", width="0.17em"))
        mended.append(part)
    if len(mended) != len(parent) or parts != mended:
        parent[:] = mended
