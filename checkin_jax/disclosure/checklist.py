"""The page about a run, whoever trained: what it promises, what guidelines ask and who answers, who checked what.

The questions are those of "How to DP-fy ML" [PHK23] (what to report beside epsilon) and of NIST SP 800-226 [NDL25] (the
layers below it). What a program cannot know is the deployer's to declare; where nothing is declared the page leaves
room for a pen.
"""

from __future__ import annotations

import dataclasses
import datetime
import html
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._version import __version__
from checkin_jax.accounting.stated import Stated, in_short
from checkin_jax.disclosure import page, theorems
from checkin_jax.disclosure.declared import Deployment
from checkin_jax.disclosure.evidence import Digest, identity
from checkin_jax.disclosure.references import cited

TRUSTED = {
    "local": "nobody but the client's own device",
    "messages": "the devices, and whoever removes names and order from the messages (a shuffler)",
    "aggregate": "the devices, and whoever adds the messages up (a server, or secure aggregation)",
}
TUNING = (
    "choosing the model, its settings or a run among several by looking at these clients' data: every such run adds "
    "up"
)
NOT_COVERED = (
    TUNING,
    "preparing, selecting or labelling the data",
    "anything else that was released about the same clients, before or after",
    "what devices, servers and networks leak besides the messages: timing, sizes, logs, faults",
)
ACCOUNTING = "brackets of epsilon: composed privacy profiles, every rounding on the safe side"
_FLOATS = (
    "The figures of this page are safe: computed in IEEE float64, with all truncation and round-off bounded and "
    "counted on the safe side. They are those of messages of real numbers. A device that draws its noise in floating "
    "point sends numbers whose lowest bits may tell more [Mir12]; nothing here accounts for that."
)
_UTILITY = "Clipping and noise cost accuracy, most where people are few. No figure of this page is by group."
_BOTH, _DPFY, _NIST = "[PHK23] [NDL25]", "[PHK23]", "[NDL25]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise:
    """Guarantees of one run under one kind of message.

    Attributes:
      name: the kind of message, where a page is about several; else empty.
      note: what is to be said beside the name.
      guarantees: by view, or under "as composed" where units are seen in different views; who trusts nobody first.
    """

    name: str = ""
    note: str = ""
    guarantees: Mapping[str, Stated]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disclosure:
    """What a page says about a run.

    Attributes:
      title: of the page. lead: a sentence below it.
      state: what must not be overlooked: that nothing has run yet, or that the run has not ended.
      promises: at least one.
      clients: how many there are; None: not known.
      clients_at_once: that is how many take part in a round, at most: there may be more of them in all.
      unit: what is protected, as far as a program knows.
      mechanism: what is done to the data, a sentence each.
      covered: accesses to the data that the figures are about.
      tuning, evaluation: what the run's own files say of these; None: nothing.
      released: what leaves the protected part.
      randomness: where secret bits came from; None: not known here.
      audit: what an audit found, a sentence each.
      software: versions, a sentence.
      files: what the page was made of.
      source: name of the file or folder that the page is about.
      deployment: what the deployer declares.
      made: the day.
    """

    title: str
    lead: str
    state: tuple[str, ...] = ()
    promises: tuple[Promise, ...]
    clients: int | None = None
    clients_at_once: bool = False
    unit: str
    mechanism: tuple[str, ...]
    covered: tuple[str, ...]
    tuning: str | None = None
    evaluation: str | None = None
    released: tuple[str, ...] = ()
    randomness: str | None = None
    audit: tuple[str, ...] = ()
    software: str = f"checkin-jax {__version__}"
    files: tuple[Digest, ...] = ()
    source: str = ""
    deployment: Deployment = dataclasses.field(default_factory=Deployment)
    made: datetime.date = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).date()
    )

    @property
    def stated(self) -> tuple[Stated, ...]:
        """All guarantees."""
        return tuple(g for promise in self.promises for g in promise.guarantees.values())

    @property
    def applies(self) -> str | None:
        """Key of the guarantees that apply, as the deployer declares; None: undeclared, or they are not here."""
        view = self.deployment.view
        return view if view in self.promises[0].guarantees else None

    @property
    def chosen(self) -> str | None:
        """Name of the kind of message that the deployer declares to be used; None: undeclared.

        Raises:
          ValueError: the declaration is not the first words of one of them.
        """
        said, names = self.deployment.message, [each.name for each in self.promises]
        if said is not None and not any(names):
            raise ValueError(f"message={_validate.shown(said)}: goes with a plan, which may have several")
        found = [name for name in names if said is not None and name.startswith(said)]
        found = [name for name in found if name == said] or found
        if said is not None and len(found) != 1:
            raise ValueError(
                f"message={_validate.shown(said)}: expected the first words of one of {', '.join(map(repr, names))}"
            )
        return found[0] if found else None

    @property
    def theorems(self) -> tuple[str, ...]:
        """Behind the upper ends, in a sentence each: once each."""
        return tuple(dict.fromkeys(each for g in self.stated for each in g.theorems))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantees that may apply: once each."""
        return tuple(dict.fromkeys(each for g in self.stated for each in g.assumptions))


def build(
    disclosure: Disclosure,
    *,
    promised: Iterable[str] = (),
    shown: Iterable[str] = (),
    below: Iterable[str] = (),
) -> str:
    """The page.

    promised: HTML below the promises. shown: sections after the checklist, such as figures. below: sections at the end.

    Raises:
      ValueError: a declared check fits none of the assumptions.
    """
    sections = [
        f"<h1>{html.escape(disclosure.title)}</h1>"
        f'<p class="sub">{html.escape(_lead(disclosure))}</p>{page.warnings(disclosure.state)}',
        _promises(disclosure, promised),
        _asked(disclosure),
        _assumed(disclosure),
        _signed(disclosure),
        *shown,
        _theorems(disclosure),
        _files(disclosure),
        *below,
    ]
    return page.document(disclosure.title, sections, disclosure.source)


def _lead(d: Disclosure) -> str:
    """The answer in a sentence: against the declared adversary, else against each; where the page is about one kind of
    message."""
    only, *others = d.promises
    if others:
        return d.lead
    found = only.guarantees
    chosen = list(found) if d.applies is None else [d.applies]
    told = [
        f"epsilon at most {number(found[view].epsilon, up)} at delta {found[view].delta!r} against "
        f"{in_short(found[view].against)}"
        for view in chosen
    ]
    return f"{d.lead}: {'; '.join(told)}"


def number(value: float, cut: Callable[[float, int], str]) -> str:
    """An end of epsilon to four digits, rounded by `cut`."""
    return cut(value, 4) if np.isfinite(value) else "no finite bound"


def _promise_table(promise: Promise, applies: str | None) -> str:
    """Both ends of epsilon, delta and the factor against each adversary; the declared view is marked."""
    rows = []
    for view, g in promise.guarantees.items():
        here = "<br><b>applies here, as declared</b>" if view == applies else ""
        rows.append(
            (
                f"{html.escape(g.against)}<br><small>view {html.escape(view)}</small>{here}",
                number(g.epsilon, up),
                html.escape(repr(g.delta)),
                number(g.lower, down),
                up(np.exp(g.epsilon), 3) if g.epsilon < 700 else "no finite bound",
            )
        )
    heads = ("against", "epsilon at most", "at delta", "no less than", "factor at most")
    views = list(promise.guarantees)
    marked = views.index(applies) if applies in views else None
    return page.table(heads, rows, numbers=range(1, 5), applies=marked, cards=True)


def _promises(d: Disclosure, more: Iterable[str]) -> str:
    first, view = d.stated[0], d.deployment.view
    wrong = [] if view in (None, d.applies) else [f"View {view} is declared, and has no figures here."]
    if d.applies is None:
        safe = (
            "only the first line may be relied on: it trusts nobody."
            if "local" in d.promises[0].guarantees
            else "none of these lines may be relied on: each trusts somebody."
        )
        if view is None:
            wrong.append(f"Which of these adversaries there is has not been declared. Until it is, {safe}")
        else:
            wrong.append(f"Without them {safe}")
        which = []
    else:
        who = d.deployment.operator or "the deployer"
        trusted = f": {TRUSTED[d.applies]} must be trusted" if d.applies in TRUSTED else ""
        which = [f"View {d.applies} applies here, {who} declares{trusted}."]
    told = (
        f"<p>Compared are {html.escape(first.compared)}. "
        "Had any one client held another record, whatever can be concluded from what the adversary saw would have "
        "been concluded with nearly the same probability: at most the factor below, but for a chance of "
        f"{up(first.delta, 3)}. No analysis could promise less than the lower end for all randomizers of this "
        "kind.</p>"
    )
    tables = [
        (f"<h3>{html.escape(each.name)}</h3>" if each.name else "")
        + page.paragraphs([each.note] if each.note else [])
        + _promise_table(each, d.applies)
        for each in d.promises
    ]
    in_all = d.deployment.num_clients
    if in_all is not None and first.delta * in_all >= 1.0 > first.delta * (d.clients or 0):
        wrong.append(
            f"Delta is not below 1 in {in_all:,}, as many clients as there are in all: publishing the record of one of "
            "them at random would be within it."
        )
    says = page.warnings(wrong) + page.paragraphs(which)
    notes = page.warnings(dict.fromkeys(each for g in d.stated for each in g.warnings))
    return page.section("What is promised", told, says, *tables, notes, *more)


def _asked(d: Disclosure) -> str:
    """The questions, by whom they are asked, and the answers."""
    said, first = d.deployment, d.stated[0]
    epsilons = [
        page.sentence(
            f"{f'{each.name}, ' if each.name else ''}view {view}: epsilon at most {number(g.epsilon, up)} (no less "
            f"than {number(g.lower, down)}) at delta {g.delta!r}, against {in_short(g.against)}"
        )
        for each in d.promises
        for view, g in each.guarantees.items()
        if d.applies in (None, view)
    ]
    message = ("The message that is chosen", d.chosen)
    chosen = [message] if len(d.promises) > 1 else []
    in_all = [("Clients in all", None if said.num_clients is None else f"{said.num_clients:,}")]
    methods = dict.fromkeys(
        f"<p>{html.escape(f'{each.name}, view' if each.name else 'View')} {view}, upper end: "
        f"{theorems.linked(g.method, d.theorems)}; lower end: "
        f"{html.escape(g.lower_method)}.</p>"
        for each in d.promises
        for view, g in each.guarantees.items()
    )
    checks = said.checks(d.assumptions)
    done = sum(map(bool, checks))
    held = f"{done} of {len(checks)} have been checked by somebody who says so; they are below."
    compared = f"{first.neighboring_relation}: {first.compared}."
    audit = [*d.audit, *([said.audit] if said.audit else [])]
    rows = [
        (
            "Who is protected (the unit of privacy)?",
            _BOTH,
            page.answer([d.unit], [("A client is", said.client)]),
        ),
        ("Which data sets are compared (adjacency)?", _BOTH, page.answer([compared])),
        (
            "Who has to be trusted (central, local, shuffled)?",
            _BOTH,
            page.answer(
                [
                    f"View {view}: {trusted}."
                    for view, trusted in TRUSTED.items()
                    if said.view not in TRUSTED or said.view == view
                ],
                [("The view that applies", said.view), ("Who that is", said.trusted)],
            ),
        ),
        (
            "Which epsilon, at which delta?",
            _BOTH,
            page.answer([*epsilons, _among(d)], in_all if d.clients_at_once else []),
        ),
        ("What is done to the data?", _BOTH, page.answer(d.mechanism, chosen)),
        ("Which accesses to the data are covered?", _DPFY, page.answer(d.covered)),
        (
            "Which are not covered?",
            _DPFY,
            page.bullets(NOT_COVERED)
            + page.answer(
                [d.tuning, d.evaluation],
                [
                    ("Tuning", said.tuning),
                    ("Evaluation", said.evaluation),
                    ("Other releases about the same clients", said.other_releases),
                ],
            ),
        ),
        ("What is released, and to whom?", _DPFY, page.answer(d.released, [("To whom", said.released_to)])),
        (
            "How was it accounted for?",
            _DPFY,
            page.answer([page.sentence(ACCOUNTING)])
            + "".join(methods)
            + page.answer([f"Software: {d.software}."]),
        ),
        ("Do the assumptions hold?", _BOTH, page.answer([held])),
        (
            "Does the program keep the mathematics?",
            _BOTH,
            page.answer(
                [_FLOATS, d.randomness, *(audit or ["No audit of this run is known here."])],
                [*([] if audit else [("Audit", None)]), ("Where the code can be read", said.code)],
            ),
        ),
        (
            "How good is the result, and for whom (utility, bias)?",
            _NIST,
            page.answer([_UTILITY], [("Utility and bias", said.utility)]),
        ),
        (
            "What else might leak (side channels, security, collection)?",
            _NIST,
            page.answer(
                ["No guarantee on this page covers it."],
                [
                    ("Side channels", said.side_channels),
                    ("Security and access", said.security),
                    ("What a record holds, how it is collected", said.data),
                ],
            ),
        ),
        (
            "Who answers for this?",
            _NIST,
            page.answer(
                [], [("Operator", said.operator), ("Contact", said.contact), ("Purpose", said.purpose)]
            ),
        ),
    ]
    cells = [
        (f"{html.escape(question)}<br><small>{html.escape(by)}</small>", answer)
        for question, by, answer in rows
    ]
    return page.section(
        "What has to be disclosed",
        page.paragraphs(
            ["A line is what no program can know and nobody has declared: it is the deployer's to fill in."]
        ),
        page.table(("what is asked", "answer"), cells, cards=True, pairs=True),
    )


def _among(d: Disclosure) -> str | None:
    """Delta against the number of clients; None where that is not known."""
    number, delta = d.deployment.num_clients or d.clients, d.stated[0].delta
    if number is None:
        return None
    if d.clients is not None and number < d.clients:
        raise ValueError(f"num_clients={number}: expected {d.clients} or more, as many take part at once")
    counted = " that take part in one round at most" if d.clients_at_once and number == d.clients else ""
    return f"Delta times {number:,} clients{counted} is {up(delta * number, 3)}; it should be well below 1."


def _assumed(d: Disclosure) -> str:
    """What must hold, and room for who checked it."""
    rows = [
        (
            html.escape(text),
            "<br>".join(html.escape(f"{each.by}{f', {each.on}' if each.on else ''}") for each in who)
            or page.BLANK,
        )
        for text, who in zip(d.assumptions, d.deployment.checks(d.assumptions))
    ]
    told = "The figures are false where one of these is. None of them can be seen in the data or in this program."
    return page.section(
        "What it assumes, and who checked",
        f"<p>{told}</p>",
        page.table(("must hold", "checked by, on"), rows, cards=True),
    )


def _theorems(d: Disclosure) -> str:
    """Theorems behind the upper ends in a sentence each, and the sources in full."""
    sources = cited([*d.theorems, _FLOATS, _BOTH])
    return page.section(
        "Why it may be believed",
        theorems.listed(d.theorems),
        page.paragraphs([theorems.GLOSSARY] if d.theorems else ()),
        "<h3>Sources</h3>",
        page.bullets(f"[{key}] {entry}" for key, entry in sources.items()),
    )


def _files(d: Disclosure) -> str:
    """Which run this is: day, name, versions, hashes."""
    rows = [("made on", html.escape(d.made.isoformat())), ("software", html.escape(d.software))]
    if d.files:
        rows.insert(
            0, ("run", f"<code>{identity(d.files)}</code><br><small>the SHA-256 of what follows</small>")
        )
        rows += [(html.escape(each.name), f"<code>{each.sha256}</code>") for each in d.files]
    return page.section("Which run this is", page.table(("", ""), rows, pairs=True))


def _signed(d: Disclosure) -> str:
    line = " ".join(
        f'<span class="number">{each} {page.BLANK}</span>' for each in ("Name", "Date", "Signature")
    )
    return page.section("Filed by", page.answer([d.deployment.operator]), f"<p>{line}</p>")
