"""Parts of a self-contained HTML page: one style for screen, phone, dark mode and paper; nothing is loaded."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

# Colours of figures that have to change with the page, and what they are called in its style.
_THEMED = {"#123a6b": "var(--deep)", "#dddddd": "var(--rule)", "#000000": "currentColor"}
STYLE = """
:root{color-scheme:light dark;--text:#1b1f24;--soft:#57606a;--rule:#d8dee4;--back:#fff;--code:#f6f8fa;
--deep:#123a6b;--warn:#fff4e5;--edge:#d9822b;--mark:#e8f0fb}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9aa5b1;--rule:#3a424c;--back:#14181d;--code:#1d232a;
--deep:#79b0f2;--warn:#33270f;--edge:#d9822b;--mark:#1c2f4a}}
body{font:17px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:46rem;margin:2rem auto;
padding:0 1rem;overflow-wrap:break-word}
h1{line-height:1.2;margin-bottom:.2rem}h2{margin-top:2.2rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{margin:1.4rem 0 .3rem;font-size:1.05rem}p,ul{margin:.5rem 0}ul{padding-left:1.2rem}
.sub,small,figcaption{color:var(--soft)}.sub{margin-top:0}figure{margin:1rem 0}
figure svg{width:100%;height:auto;fill:currentColor}figcaption{font-size:.9rem}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td p{margin:0 0 .3rem}.number{white-space:nowrap}.pairs td:first-child{width:28%;padding-right:1rem}
tr.applies{background:var(--mark)}
tr.applies td:first-child,.cards tr.applies{padding-left:.5rem}
code{font-size:.9em;overflow-wrap:anywhere}
.blank{display:inline-block;min-width:9rem;border-bottom:1px solid var(--soft)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--code);padding:.8rem;font-size:.82rem}
.warn{background:var(--warn);border-left:4px solid var(--edge);padding:.5rem .8rem}
@media(max-width:30rem){body{font-size:15px;margin-top:1rem}th,td{padding:.3rem .45rem .3rem 0}
table.cards,.cards tbody,.cards tr,.cards td{display:block}.cards td:first-child{width:auto}
.cards tr.heads{display:none}
.cards tr{border-bottom:1px solid var(--rule);padding:.4rem 0}.cards td,.cards tr.applies td{border:0;padding:.1rem 0}
.cards td[data-head]:not([data-head=""])::before{content:attr(data-head) ": ";color:var(--soft)}}
@media print{:root{color-scheme:light;--text:#000;--soft:#444;--rule:#bbb;--back:#fff;--code:#fff;--deep:#123a6b;
--warn:#fff;--mark:#eee}body{max-width:none;margin:0;padding:0;font-size:10.5pt}h2{margin-top:1.2rem;padding-top:.6rem}
h1,h2,h3,h3+p,h2+p:has(+.wide){break-after:avoid}tr,figure,.warn{break-inside:avoid}
.pairs tr{break-inside:auto}.pairs td p{break-inside:avoid}
.figures{display:grid;grid-template-columns:1fr 1fr;gap:0 1.5rem}.figures section{break-inside:avoid}
pre{border:1px solid var(--rule);font-size:8.5pt}
p,li{orphans:3;widows:3}tr.applies{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
@page{margin:16mm}
"""
# What stays on one line, "1e-06" and "3-ary", outside of what is no running text.
_TIED = re.compile(
    r"(<(style|script|title|svg|pre|code)\b.*?</\2>|<[^>]*>)|(?<![\w.&#;+-])(\d[\d.]*(?:e-\d+|-[A-Za-z]{2,4}))\b",
    re.DOTALL,
)
# How a page says what it is about, and how many of its first characters hold that.
_SOURCE, _END, _HEAD = '<meta name="checkin-source" content="', '">', 4_000
BLANK = '<span class="blank">&nbsp;</span>'


def document(title: str, sections: Iterable[str], source: str = "") -> str:
    """The whole page: `sections` are HTML, empty ones left out; `title` is text, and so is `source`, the name of the
    file or folder that it is about."""
    written = "\n".join(section for section in sections if section)
    tied = _TIED.sub(lambda found: found[1] or f'<span class="number">{found[3]}</span>', written)
    about = f"{_SOURCE}{html.escape(source, quote=True)}{_END}" if source else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'{about}<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f"{tied}\n</body></html>\n"
    )


def source_of(path: Path) -> str:
    """What the page in a file is about, as `document` was told; empty where the file is no such page, or not there."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as stream:
        _, found, rest = stream.read(_HEAD).partition(_SOURCE)
    return html.unescape(rest.partition(_END)[0]) if found else ""


def section(title: str, *parts: str, level: int = 2) -> str:
    """A heading (text), and parts (HTML) below it; nothing where all parts are empty."""
    below = "".join(parts)
    return f"<h{level}>{html.escape(title)}</h{level}>{below}" if below else ""


def paragraphs(texts: Iterable[str]) -> str:
    """Texts, a paragraph each."""
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def answer(texts: Iterable[str | None], declared: Sequence[tuple[str, str | None]] = ()) -> str:
    """Paragraphs of what is known, and what is declared, or room for it, under its name."""
    known = paragraphs(text for text in texts if text)
    lines = [
        f"<p><small>{html.escape(name)}:</small> {BLANK if text is None else html.escape(text)}</p>"
        for name, text in declared
    ]
    return known + "".join(lines)


def sentence(text: str) -> str:
    """A text that begins with a capital and ends with a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def warnings(texts: Iterable[str]) -> str:
    """Texts that must not be overlooked."""
    return "".join(f'<p class="warn">{html.escape(text)}</p>' for text in texts)


def bullets(texts: Iterable[str]) -> str:
    """Texts as a list."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    applies: int | None = None,
    cards: bool = False,
    pairs: bool = False,
) -> str:
    """A table under `heads` (text), without a line of them where all are empty; its cells are HTML.

    numbers: columns that are not broken. applies: the row that is marked. cards: on a phone a card for each row, with
    its heads before the cells, in place of columns. pairs: the first column is a name of the second.
    """
    named = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    # In a head of its own, so that paper has it on top of every page.
    top = f'<thead><tr class="heads">{named}</tr></thead>' if any(heads) else ""
    out = []
    for i, row in enumerate(rows):
        cells = []
        for j, cell in enumerate(row):
            kind = ' class="number"' if j in numbers else ""
            told = (
                f' data-head="{html.escape(heads[j] if j else "", quote=True)}"'
                if cards and not pairs
                else ""
            )
            cells.append(f"<td{kind}{told}>{cell}</td>")
        marked = ' class="applies"' if i == applies else ""
        out.append(f"<tr{marked}>{''.join(cells)}</tr>")
    kinds = " ".join(["cards"] * cards + ["pairs"] * pairs)
    return f'<div class="wide"><table class="{kinds}">{top}<tbody>{"".join(out)}</tbody></table></div>'


class Drawn(Protocol):
    """A figure that can be written, such as matplotlib's."""

    def savefig(self, fname: Any, *, format: str, transparent: bool, metadata: dict[str, Any]) -> None:
        """Writes the figure."""
        ...


def picture(drawn: Drawn, title: str, caption: str) -> str:
    """A figure as inline SVG that takes its text, grid and dark colour from the page, with a caption below."""
    stream = io.StringIO()
    drawn.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for color, name in _THEMED.items():
        text = text.replace(color, name)
    return (
        f"<figure role='img' aria-label='{html.escape(title, quote=True)}'>{text}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
