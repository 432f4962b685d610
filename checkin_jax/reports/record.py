"""The record of a run, a ledger or a plan: the only source of every page about it.

The questions are those of "How to DP-fy ML" [PHK23] (facts to report beside epsilon) and of NIST SP 800-226
[NDL25] (the layers below it). The deployer declares the facts that no program can know; a page leaves blanks
for the rest.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import up
from checkin_jax._serialize import finite
from checkin_jax._version import __version__
from checkin_jax.accounting.attack import AttackTerms
from checkin_jax.accounting.guarantee import RateRow, StatedGuarantee, without_parentheses
from checkin_jax.reports.declarations import QUESTIONS, Deployment, Digest, identity

TRUSTED = {
    "local": "the client's own device alone",
    "messages": "the clients' devices and the shuffler, which removes names and order, or, of slots, whoever draws "
    "their clients and dummies",
    "aggregate": "the clients' devices and the server or secure aggregation that adds the messages up",
}
PROTECTED = "one client, with all records it holds"
TUNING = (
    "choosing the model, its settings or one of several runs by looking at these clients' data: every such run has a "
    "privacy loss of its own"
)
NOT_COVERED = (
    TUNING,
    "preparing, selecting or labelling the data",
    "other releases about the same clients, before or after this one",
    "leaks of devices, servers and networks beside the messages: timing, sizes, logs, faults",
)
ACCOUNTING = "brackets of epsilon from composed privacy profiles, with every rounding on the safe side"
# Answers that need an assumption, if they are all.
EVERY = "every answer"
# Prior beliefs in the table of beliefs.
PRIORS = (0.01, 0.1, 0.5)
# Above this factor a page says that hardly any protection is left.
_MOST_FACTOR = 1_000.0
# Largest epsilon of the tiers of [PHK23], section 5.2, and their names there.
_TIERS = ((1.0, "strong"), (10.0, "reasonable"))
_WEAKEST_TIER = "weak to none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise:
    """Guarantees of one run under one kind of message.

    Attributes:
      name: the kind of message, on a page about several; else empty.
      guarantees: by view, or under "as composed" if units are observed in different views; the view without
        trust first.
    """

    name: str = ""
    guarantees: Mapping[str, StatedGuarantee]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Last:
    """Figures of the last statement about the same subject.

    Attributes:
      made: its ISO date. delta: its delta.
      epsilon: kind of message (empty if there is only one), view, and upper end of epsilon; None: no finite
        bound.
      steps: its steps of the mechanism, of a ledger the entries. run: its clients, rounds and rates in words.
      declared: its declarations by name.
    """

    made: str
    delta: float
    epsilon: tuple[tuple[str, str, float | None], ...]
    steps: tuple[str, ...] = ()
    run: str = ""
    declared: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture as inline SVG, its title, and a caption; without a picture the caption stands alone."""

    title: str
    caption: str
    svg: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a page beyond the questions: paragraphs, a table, names and values, and figures.

    The table has column heads, and rows of cells; a cell is a text, and its own note below it.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[tuple[str, str], ...], ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """Facts about a run, a ledger or a plan.

    Attributes:
      kind: "run", "ledger" or "plan".
      title: of the page. lead: a sentence below it.
      state: warnings that come first: nothing has run yet, or the run has not ended.
      promises: at least one.
      target: the epsilon wanted and its view; None: there is no target.
      left: sentence on the remainder of the target in the view that may be relied on; empty: not known.
      last: figures of the last statement about the same subject; None: not given.
      rounds: number of rounds or windows; 0: not counted here.
      clients: number of clients; None: not known.
      clients_at_once: `clients` is the largest number that takes part in a round; there may be more in all.
      unit: the unit of privacy, as far as a program knows.
      mechanism: operations on the data, a sentence each.
      covered: accesses to the data that the figures are about.
      ran: by view, for a run that ended early, the guarantees of the rounds that ran; the promises are then those of
        all planned rounds.
      by_rate: view -> brackets by check-in rate of the promises, if rates differ.
      protocol: the run, its rounds in words; empty: title and lead.
      data: name of the data; empty: `source` or the title.
      records_per_client, clip_norm: None: not known, or one of several.
      ended: True if the run has ended; None: the subject is no run.
      tuning, evaluation: statements of the run's own files about these; None: nothing.
      released: results that leave the protected part.
      randomness: source of the secret bits; None: not known here.
      audit: findings of an audit, as in audit.json; None: there was none.
      run_by: what trains.
      sections: further sections, after the questions.
      files: files that the page was made of.
      source: name of the file or folder that the page is about.
      deployment: declarations of the deployer.
      made: the day.
    """

    kind: str = "run"
    title: str
    lead: str
    last: Last | None = None
    rounds: int = 0
    state: tuple[str, ...] = ()
    promises: tuple[Promise, ...]
    target: tuple[float, str] | None = None
    left: str = ""
    clients: int | None = None
    clients_at_once: bool = False
    unit: str
    mechanism: tuple[str, ...]
    covered: tuple[str, ...]
    ran: Mapping[str, StatedGuarantee] = dataclasses.field(default_factory=dict)
    by_rate: Mapping[str, Sequence[RateRow]] = dataclasses.field(default_factory=dict)
    protocol: tuple[str, str] | None = None
    data: str = ""
    records_per_client: int | None = None
    clip_norm: float | None = None
    ended: bool | None = None
    tuning: str | None = None
    evaluation: str | None = None
    released: tuple[str, ...] = ()
    randomness: str | None = None
    audit: Mapping[str, Any] | None = None
    run_by: str
    sections: tuple[Section, ...] = ()
    files: tuple[Digest, ...] = ()
    source: str = ""
    deployment: Deployment = dataclasses.field(default_factory=Deployment)
    made: datetime.date = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).date()
    )

    @property
    def stated(self) -> tuple[StatedGuarantee, ...]:
        """Guarantees of all promises."""
        return tuple(g for promise in self.promises for g in promise.guarantees.values())

    @property
    def applies(self) -> str | None:
        """Key of the guarantees that apply, as declared; None: undeclared, or not in the record."""
        view = self.deployment.view
        return view if view in self.promises[0].guarantees else None

    def relied_on(self, promise: Promise) -> StatedGuarantee | None:
        """The guarantee that may be relied on; None: there is none."""
        return promise.guarantees.get(reliable_view(promise.guarantees, self.deployment))

    @property
    def chosen(self) -> str | None:
        """Name of the declared kind of message, if the promises are of several; None: undeclared.

        Raises:
          ValueError: the declaration is not the first words of one of them, or of one that a run or a ledger has.
        """
        said, names = self.deployment.message, [each.name for each in self.promises]
        if said is None:
            return None
        several = any(names)
        if not several:
            names = sorted({each.description for g in self.stated for each in g.randomizers})
        found = [name for name in names if name.startswith(said)]
        found = [name for name in found if name == said] or found
        if not found or (several and len(found) > 1):
            raise _validate.error(f"the first words of one of {', '.join(map(repr, names))}", message=said)
        return found[0] if several else None

    @property
    def theorems(self) -> tuple[str, ...]:
        """Distinct theorems behind the upper ends, one sentence each."""
        return tuple(dict.fromkeys(each for g in self.stated for each in g.theorems))

    @property
    def assumptions(self) -> dict[str, str]:
        """Distinct assumptions and the answers that need each, those of every answer first."""
        return needed_by([(promise.name, promise.guarantees) for promise in self.promises])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Distinct warnings of all guarantees."""
        return tuple(dict.fromkeys(each for g in self.stated for each in g.warnings))

    @property
    def terms(self) -> str:
        """All a decision rests on beside files: declarations without it, delta, figures, the software's version."""
        said = dataclasses.asdict(dataclasses.replace(self.deployment, decision=None))
        figures = [
            [promise.name, view, repr(g.lower), repr(g.epsilon)]
            for promise in self.promises
            for view, g in promise.guarantees.items()
        ]
        return json.dumps([said, self.stated[0].delta, figures, __version__], sort_keys=True)

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes since the last statement beside epsilon, a sentence each; empty without one."""
        if self.last is None:
            return ()
        last, now = self.last, {each: each.rstrip(".") for each in self.mechanism}
        new = [each for each in now if each not in last.steps]
        # A removed entry keeps its words, and more follow.
        gone = [
            each for each in last.steps if not any(one.startswith(each.rstrip(".")) for one in now.values())
        ]
        said = dataclasses.asdict(self.deployment)
        differ = [name for name, value in said.items() if _listed(value) != _listed(last.declared.get(name))]
        delta, run = self.stated[0].delta, self.protocol[1] if self.protocol else last.run
        return (
            *(
                f"{each.name}: {told}"
                for each in self.judged
                if len(self.judged) > 1
                for told in self._compared(each)
            ),
            *([f"Delta was {last.delta!r} and is {delta!r}."] if last.delta != delta else []),
            *([f"The run then: {last.run}; now: {run}."] if last.run not in ("", run) else []),
            *(f"New: {each}" for each in new),
            *(f"No longer there: {each}" for each in gone),
            *([f"Declared anew: {', '.join(differ)}."] if differ else []),
        )

    @property
    def blanks(self) -> dict[str, str]:
        """Questions that the deployer has not answered: key of [deployment], and name on the page."""
        asked = {
            "audit": self.audit is None,
            "message": len(self.promises) > 1,
            "num_clients": self.clients_at_once,
        }
        return {
            key: name
            for key, name in QUESTIONS.items()
            if asked.get(key, True) and getattr(self.deployment, key) is None
        }

    @property
    def version(self) -> str:
        """Identity of the files, declarations and terms."""
        return identity(self.files, self.terms)

    @property
    def judged(self) -> tuple[Promise, ...]:
        """The promise of the declared message; all of them if none is declared."""
        chosen = self.chosen
        return tuple(each for each in self.promises if chosen in (None, each.name))

    def meets(self, g: StatedGuarantee | None) -> bool | None:
        """True if a guarantee meets the target; None: there is no target."""
        return None if self.target is None else g is not None and g.epsilon <= self.target[0]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Sentences on the target, epsilon and the last statement."""
        promise, *more = self.judged
        if more:
            return self._count_of_messages
        relied_on = self.relied_on(promise)
        return (
            *self._on_target(promise),
            *([self.left] if self.left and self.meets(relied_on) else []),
            *(() if relied_on is None else (self._at_most(relied_on),)),
            *self._compared(promise),
        )

    @property
    def _count_of_messages(self) -> tuple[str, ...]:
        if self.target is None:
            return ()
        found, total = [], len(self.judged)
        for view in self._views_of_target(self.judged[0]):
            names = [each.name for each in self.judged if self.meets(each.guarantees.get(view))]
            listed = f" ({'; '.join(names)})" if 0 < len(names) < total else ""
            found.append(f"{len(names)} in view {view}{listed}")
        return (
            f"Of {total} kinds of message, these meet the target, epsilon at most {up(self.target[0])}: "
            f"{', '.join(found)}.",
        )

    def _views_of_target(self, promise: Promise) -> tuple[str, ...]:
        """The view that applies, then the target's; every view if it is not known which applies."""
        if self.applies is None or self.target is None:
            return tuple(promise.guarantees)
        return tuple(dict.fromkeys((self.applies, self.target[1])))

    def _on_target(self, promise: Promise) -> tuple[str, ...]:
        if self.target is None:
            return ("No target was set.",)
        epsilon, _ = self.target
        found = (
            f"{'' if self.meets(promise.guarantees.get(each)) else 'not '}met in view {each}"
            for each in self._views_of_target(promise)
        )
        by = f" by {promise.name}" if len(self.promises) > 1 else ""
        return (f"The target, epsilon at most {up(epsilon)}, is {', '.join(found)}{by}.",)

    def _at_most(self, g: StatedGuarantee) -> str:
        whom = without_parentheses(g.against)
        if not np.isfinite(g.epsilon):
            return f"No finite epsilon is proved against {whom}."
        told = f"Epsilon is at most {number(g.epsilon, up)} at delta {g.delta!r} against {whom}"
        if g.delta * (self.clients_in_all or 0) >= 1.0:
            return f"{told}. Delta is not below one over the number of clients: no tier of [PHK23] applies."
        return f"{told}: {tier(g.epsilon)} in the tiers of [PHK23]."

    def _compared(self, promise: Promise) -> tuple[str, ...]:
        if self.last is None:
            return ()
        view = self.applies or "local"
        before = [end for *key, end in self.last.epsilon if key == [promise.name, view]]
        if not before:
            return (f"Not in the last statement, of {self.last.made}.",)
        was = "had no finite bound" if before[0] is None else f"was at most {up(before[0], 4)}"
        told = f"Last time, on {self.last.made}, epsilon {was} at delta {self.last.delta!r}."
        g = promise.guarantees.get(view)
        if g is not None and g.delta != self.last.delta:
            told += f" At another delta than {g.delta!r}, it does not compare."
        elif before[0] is not None and g is not None:
            told += f" It is {'larger' if g.epsilon > before[0] else 'not larger'} now."
        return (told,)

    @property
    def relying(self) -> str:
        """Sentence on the view that applies, and on who has to be trusted in it."""
        said, view = self.deployment, self.applies
        if view is None:
            unknown = (
                "The deployer has not declared which adversary there is ([deployment] view)"
                if said.view is None
                else f"View {said.view} is declared, and has no figures here"
            )
            if "local" not in self.promises[0].guarantees:
                return f"{unknown}: no figure may be relied on, as each trusts somebody."
            return f"{unknown}: only view local may be relied on, where a client trusts its own device alone."
        told = f"View {view} applies here, {said.operator or 'the deployer'} declares"
        if view in TRUSTED:
            told += f", and needs trust in {TRUSTED[view]}"
            told += "" if view == "local" else f"; {said.trusted or 'nobody has said yet who that is'}"
        return f"{told}."

    @property
    def confirmed(self) -> str:
        """Sentence on how many assumptions are declared as checked, and by whom: of the declared kind of message."""
        answers = [each.guarantees for each in self.promises if self.chosen in (None, each.name)]
        needed = {text for views in answers for g in views.values() for text in g.assumptions}
        every = self.assumptions
        checks = [found for text, found in zip(every, self.deployment.checks(every)) if text in needed]
        names = dict.fromkeys(each.by for found in checks for each in found)
        by = f", by {', '.join(names)}" if names else ""
        return f"{sum(map(bool, checks))} of {len(checks)} assumptions are declared as checked{by}."

    @property
    def decided(self) -> str:
        """Sentences on the decision that is declared; empty without one."""
        if (made := self.deployment.decision) is None:
            return ""
        told = f"Decision: {made.outcome} by {made.by}{made.on and f', {made.on}'}."
        told += f" {sentence(made.reason)}" if made.reason else ""
        if not made.version:
            return told + " It does not say which version it was about."
        other = made.version != self.version
        return told + f" It was about version {made.version}, which is not this one." * other

    def in_short(self, *, attack: bool) -> tuple[str, ...]:
        """Sentences for a decider, the verdict first.

        attack: True to include the beliefs of an adversary.
        """
        found = [(each.name, beliefs(self.relied_on(each))) for each in self.judged if attack]
        return (
            *self.verdicts,
            *(
                sentence(
                    f"{name and f'{name}: '}a suspicion of {', '.join(map(percent, ends))} that a client holds one "
                    f"record and not another becomes at most {', '.join(map(percent, ends.values()))}, except with "
                    f"probability {self.stated[0].delta!r}"
                )
                for name, ends in found
                if ends
            ),
            self.relying,
            self.confirmed,
            "Still blank in [deployment]: "
            f"{', '.join(f'{name} ({key})' for key, name in self.blanks.items()) or 'nothing'}.",
            self.decided or "Decision: none is declared yet ([deployment.decision]).",
            f"This is version {self.version}.",
        )

    @property
    def clients_in_all(self) -> int | None:
        """Declared number of clients, or else the recorded one; None if neither is known.

        Raises:
          ValueError: the declared number is below the number that takes part at once.
        """
        declared = self.deployment.num_clients
        if declared is not None and self.clients is not None and declared < self.clients:
            raise ValueError(
                f"[deployment] num_clients={declared}: expected {self.clients} or more, as many take part at once"
            )
        return self.clients if declared is None else declared


def _listed(value: Any) -> Any:
    """A declared value, its tuples as the lists of JSON; None if it is empty."""
    return list(value) or None if isinstance(value, tuple | list) else value


def reliable_view(guarantees: Mapping[str, object], deployment: Deployment) -> str:
    """View whose guarantee may be relied on: the declared one if recorded, else the one without trust."""
    declared = deployment.view
    return declared if declared is not None and declared in guarantees else "local"


def needed_by(answers: Sequence[tuple[str, Mapping[str, StatedGuarantee]]]) -> dict[str, str]:
    """Assumptions, those of every answer first, and the answers that need each, in words.

    answers: kind of message, and guarantees by view.
    """
    found = {}
    texts = dict.fromkeys(each for _, views in answers for g in views.values() for each in g.assumptions)
    for text in texts:
        views = {
            name: " and ".join(view for view, g in each.items() if text in g.assumptions)
            for name, each in answers
        }
        if all(text in g.assumptions for _, each in answers for g in each.values()):
            whom = EVERY
        elif len(set(views.values())) == 1:
            whom = f"view {next(iter(views.values()))}"
        else:
            whom = "; ".join(f"{name}, view {seen}" for name, seen in views.items() if seen)
        found[text] = whom
    return dict(sorted(found.items(), key=lambda each: (each[1] != EVERY, each[1])))


def number(value: float, cut: Callable[[float, int], str]) -> str:
    """An end of epsilon to four digits, rounded by `cut`."""
    return cut(value, 4) if np.isfinite(value) else "no finite bound"


def factor(epsilon: float) -> str:
    """Largest factor e^epsilon between odds, rounded up; in words beyond 1,000."""
    if not np.isfinite(epsilon):
        return "no finite bound"
    if epsilon > np.log(_MOST_FACTOR):
        return f"above {_MOST_FACTOR:,.0f}: hardly any protection"
    return up(float(np.exp(epsilon)), 3)


def tier(epsilon: float) -> str:
    """Tier of epsilon in [PHK23], section 5.2."""
    return next((name for most, name in _TIERS if epsilon <= most), _WEAKEST_TIER)


def percent(belief: float) -> str:
    """A belief in [0, 1] as a percentage, rounded up."""
    return f"{up(100.0 * belief, 3)}%"


def beliefs(relied_on: StatedGuarantee | None) -> dict[float, float]:
    """Upper ends of an adversary's posterior belief, by its prior belief; empty without attack terms."""
    terms = attack_terms(relied_on)
    return {} if terms is None else {prior: terms.posterior(prior).upper for prior in PRIORS}


def attack_terms(stated: StatedGuarantee | None) -> AttackTerms | None:
    """Attack terms of a guarantee; None if it has none."""
    return getattr(stated, "attack", None)


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def plain_rows(rows: Sequence[RateRow]) -> list[dict[str, Any]]:
    """Rows as plain values for JSON; infinities become None."""
    return [
        finite({"client_rate": row.client_rate, "epsilon_lower": row.lower, "epsilon": row.epsilon})
        for row in rows
    ]
