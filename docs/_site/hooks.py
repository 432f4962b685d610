"""What the pages of the site have beyond Markdown: formulae as MathML, without JavaScript and without requests."""

from __future__ import annotations

import html as text
import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element
from mkdocs.exceptions import PluginError

# As pymdownx.arithmatex leaves them, with the bracket, comma or hyphen beside a formula in a line.
FORMULA = re.compile(
    r'(?P<before>\(?)<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>'
    r"(?P<after>[^\s<]*)",
    re.DOTALL,
)
# Letters of a formula in a line that a phone has room for.
NARROW = 60
# Set tight, and limits above and below in a display.
TIGHT, LARGE = {"/", "…", "(", ")", "[", "]", "|", "‖"}, {"∑", "∏", "max", "sup"}
# Behind these a sign belongs to the number after it.
BEFORE_SIGNS = {"=", "≤", "≥", "<", ">", "(", "[", ",", ";", "∈", "/", ":"}
FUNCTIONS = {"log", "exp", "sin", "cos", "tanh", "log1p"}


def on_page_content(html: str, **_: object) -> str:
    """Formulae of a page as MathML; the build stops at one that cannot be read."""
    return FORMULA.sub(lambda found: _formula(**found.groupdict()), html)


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
    if len(tex) > NARROW:
        return f'{before}<span class="wide">{written}</span>{after}'
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
    mended: list[Element] = []
    for part in list(parent):
        part.text = text.unescape(part.text) if part.text else part.text
        if part.text == "~":
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
