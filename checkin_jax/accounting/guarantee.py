"""`Guarantee`, the result of `account`: a bracket, its run, its theorems and assumptions; and texts of guarantees.

A text is one line, a statement of several lines, or a table for notebooks.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import html
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from checkin_jax import _validate
from checkin_jax._rounding import bracket, down, up
from checkin_jax._serialize import finite, shown_plain
from checkin_jax._version import __version__
from checkin_jax.accounting.attack import AttackTerms, Ends, attack_terms
from checkin_jax.accounting.bounds.select import BEST, whole_run
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.protocols import RELATIONS, REPLACE, CheckInProtocol
from checkin_jax.randomizers import Randomizer


def without_parentheses(against: str) -> str:
    """An adversary's words without parentheses."""
    return re.sub(r" \([^()]*\)", "", against)


def html_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """HTML: a line and, folded below it, a table of names and texts."""
    cells = "".join(
        f"<tr><td style='text-align:left;vertical-align:top'>{html.escape(name)}</td>"
        f"<td style='text-align:left;white-space:normal'>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<details><summary><b>{html.escape(caption)}</b></summary><table>{cells}</table></details>"


class StatedGuarantee(abc.ABC):
    """Base of brackets for epsilon at one delta, with their statements in words."""

    epsilon: float
    lower: float
    delta: float
    validity: str
    neighboring_relation: str
    method: str
    lower_method: str
    theorems: tuple[str, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    @abc.abstractmethod
    def compared(self) -> str:
        """Neighboring data sets in words."""

    @property
    @abc.abstractmethod
    def against(self) -> str:
        """The adversary in words."""

    @property
    @abc.abstractmethod
    def randomizers(self) -> tuple[Randomizer, ...]:
        """Randomizers of the messages."""

    @property
    @abc.abstractmethod
    def _view_words(self) -> str:
        """The view, or views, for the first line of the statement."""

    @property
    @abc.abstractmethod
    def _protected(self) -> list[tuple[str, str]]:
        """Names and texts of the first lines: who is protected."""

    @property
    def _randomized(self) -> list[tuple[str, str]]:
        """Names and texts of the lines about messages."""
        return []

    @property
    def _about(self) -> list[tuple[str, str]]:
        """Names and texts of the statement above the attack terms."""
        return [
            *self._protected,
            ("against", self.against),
            ("adjacency", f"{self.neighboring_relation}: {self.compared}"),
            *self._randomized,
            ("bracket", f"{down(self.lower)} <= epsilon <= {up(self.epsilon)} at delta = {self.delta!r}"),
            ("upper end", self.method),
            ("lower end", self.lower_method),
        ]

    @property
    def _attacked(self) -> Sequence[tuple[str, str]]:
        """Names and texts of the attack terms."""
        terms: AttackTerms | None = getattr(self, "attack", None)
        return () if terms is None else terms.lines

    @property
    def _rests_on(self) -> list[tuple[str, str]]:
        """Names and texts below the attack terms: theorems, assumptions and warnings."""
        return [
            *(("theorem", each) for each in self.theorems),
            *(("assumes", each) for each in self.assumptions),
            *(("warning", each) for each in self.warnings),
        ]

    @property
    def headline(self) -> str:
        """One line: both ends to five digits, rounded outwards, adversary, delta, and the relation if not replace."""
        delta = repr(self.delta).replace("e-0", "e-")
        ends = f"epsilon <= {up(self.epsilon, 5)} (at least {down(self.lower, 5)})"
        relation = "" if self.neighboring_relation == REPLACE else f", {self.neighboring_relation}"
        return f"{ends} against {without_parentheses(self.against)}, delta {delta}{relation}"

    def statement(self, *, attack: bool = False) -> str:
        """The guarantee in words, line by line; attack: True to include the attack terms."""
        rows = [*self._about, *(self._attacked if attack else ()), *self._rests_on]
        first = (
            f"({up(self.epsilon)}, {self.delta!r})-differential privacy, {self.validity}, {self._view_words}"
        )
        return "\n".join([first, *(f"  {name:<10} {text}" for name, text in rows)])

    def __str__(self) -> str:
        return self.statement()

    def __repr__(self) -> str:
        ends = f"{down(self.lower)} <= epsilon <= {up(self.epsilon)} at delta = {self.delta!r}"
        return f"<{type(self).__name__}: {ends}, {self._view_words}, {self.validity}>"

    def __float__(self) -> NoReturn:
        raise TypeError("a guarantee is no number: expected its .epsilon (the upper end) or its .lower")

    def __format__(self, spec: str) -> str:
        """Both ends, rounded outwards: f"{g:.4}" is "1.355 <= epsilon <= 1.361"; the statement without a format.

        Raises:
          ValueError: a format that is no number of significant digits.
        """
        return bracket(self.lower, self.epsilon, spec) if spec else str(self)

    def _repr_html_(self) -> str:
        return html_table(self.headline, [*self._about, *self._rests_on])


def assumptions(
    protocol: CheckInProtocol, randomizer: Randomizer, view: str, neighboring_relation: str
) -> tuple[str, ...]:
    """Assumptions of a guarantee in this view, those of the randomizer included."""
    return (*protocol.assumed(view, neighboring_relation), *randomizer.assumptions)


def relation_of(neighboring_relation: Any) -> str:
    """Name, of RELATIONS, of a relation given by name or as dp_accounting's NeighboringRelation.

    Raises:
      ValueError: any other relation.
    """
    name = getattr(neighboring_relation, "name", neighboring_relation)
    if isinstance(name, str):
        name = name.lower().replace("_", "-")
    return _validate.choice(RELATIONS, neighboring_relation=name)


class RateRow(NamedTuple):
    """lower <= epsilon for clients of check-in rates up to `client_rate`."""

    client_rate: float
    lower: float
    epsilon: float

    def __format__(self, spec: str) -> str:
        return bracket(self.lower, self.epsilon, spec) if spec else str(self)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Guarantee(StatedGuarantee):
    """(epsilon, delta)-differential privacy of a whole run, as a bracket.

    Attributes:
      epsilon: upper end in nats, rounded up; proven if `validity` is "certified".
      lower: lower end in nats, rounded down; no valid bound for this protocol and randomizer is below it.
      delta: the delta of both ends.
      view: "local", "messages" or "aggregate": the adversary's view.
      neighboring_relation: "replace-one": data sets differ in one client's record. "add-or-remove-one": one client
        is present or absent; if absent, its slot shows another client's message or a dummy.
      validity: "certified", "published", "estimate" or "invalid"; `account` returns "certified" only.
      method: the bounds without which the upper end would be larger, and the numerical method.
      lower_method: the witnesses of the lower end.
      protocol, randomizer: the run.
      theorems: word, statement and reference of each bound that was tried; the attack terms use them, too.
      optimal_order: Renyi order, if the upper end comes from RDP; else None.
      numerical_error: bound on all truncation and round-off in delta, included in epsilon.
      client_rate: with unequal check-in rates, the largest rate of the clients covered; else None.
      assumptions: conditions under which the statement holds.
      warnings: warnings to the reader.
      before: earlier runs on the same records, included in epsilon.
      bounds: the choice of bounds, see `account`.

    `attack` and the properties made from it are computed on first use, in about the time of `account`.
    """

    epsilon: float
    lower: float
    delta: float
    view: str
    method: str
    lower_method: str
    protocol: CheckInProtocol
    randomizer: Randomizer
    assumptions: tuple[str, ...]
    theorems: tuple[str, ...] = ()
    neighboring_relation: str = REPLACE
    validity: str = "certified"
    optimal_order: float | None = None
    numerical_error: float = 0.0
    warnings: tuple[str, ...] = ()
    client_rate: float | None = None
    before: tuple[tuple[CheckInProtocol, Randomizer], ...] = ()
    bounds: str | tuple[str, ...] = BEST
    # `account` of the same run, as a function of `client_rate`.
    asked: Callable[..., Guarantee] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def randomizers(self) -> tuple[Randomizer, ...]:
        """Randomizers of the messages: one, where a ledger may have several."""
        return (self.randomizer,)

    @functools.cached_property
    def attack(self) -> AttackTerms:
        """Attack terms with both ends certified, from the run's whole privacy profile."""
        chosen = (self.protocol, self.randomizer, self.view, self.delta)
        how = {"relation": self.neighboring_relation, "client_rate": self.client_rate, "before": self.before}
        run = whole_run(*chosen, bounds=self.bounds, **how)
        found = Bracket(self.lower, self.epsilon, self.method)
        return attack_terms(run.units, self.delta, found, run.local_caps)

    @property
    def advantage(self) -> Ends:
        """Largest true minus false positive rate of any attack, see `AttackTerms.advantage`."""
        return self.attack.advantage

    @property
    def mu(self) -> Ends:
        """Least mu of Gaussian differential privacy up to delta, see `AttackTerms.mu`."""
        return self.attack.mu

    def tpr(self, fpr: float) -> Ends:
        """Largest true positive rate of any attack at this false positive rate, see `AttackTerms.tpr`."""
        return self.attack.tpr(fpr)

    def posterior(self, prior: float) -> Ends:
        """Largest posterior belief of an attacker with this prior, see `AttackTerms.posterior`."""
        return self.attack.posterior(prior)

    def at_rate(self, client_rate: float) -> Guarantee:
        """The guarantee for clients of check-in rates up to this one, if rates are unequal.

        Raises:
          ValueError, TypeError: no client has such a rate, or all rates are equal.
        """
        if self.asked is None:
            raise ValueError("no rates to choose from: expected a guarantee that `account` returned")
        return self.asked(client_rate=client_rate)

    def by_rate(self, rates: Sequence[float] | None = None) -> tuple[RateRow, ...]:
        """Table of brackets by check-in rate, in increasing order.

        Args:
          rates: check-in rates. Default: the smallest, the nine deciles over the clients, and the largest; with
            `RateLimits` the largest, halved up to five times.

        Raises:
          ValueError, TypeError: no client has such a rate, or all rates are equal.
        """
        unequal_rates = self.protocol.unequal_rates
        if unequal_rates is None:
            raise ValueError("no table by rate: all clients have the same check-in rate")
        chosen = sorted(
            {unequal_rates.fastest(rate) for rate in (unequal_rates.examples if rates is None else rates)}
        )
        found = [self.at_rate(rate) for rate in chosen]
        return tuple(RateRow(rate, g.lower, g.epsilon) for rate, g in zip(chosen, found))

    @property
    def against(self) -> str:
        """The adversary in the protocol's words."""
        return self.protocol.observed(self.view)

    @property
    def compared(self) -> str:
        """Neighboring data sets in the protocol's words."""
        return self.protocol.compared(self.neighboring_relation)

    def as_dict(self, *, attack: bool = False) -> dict[str, Any]:
        """Plain values for JSON; infinities become None.

        attack: True to include `attack`.
        """
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "asked"}
        out["protocol"], out["randomizer"] = shown_plain(self.protocol), shown_plain(self.randomizer)
        out["before"] = [
            {"protocol": shown_plain(protocol), "randomizer": shown_plain(randomizer)}
            for protocol, randomizer in self.before
        ]
        out["against"], out["compared"] = self.against, self.compared
        out["version"] = __version__
        if attack:
            out["attack"] = self.attack.as_dict()
        return finite(out)

    @property
    def _view_words(self) -> str:
        return f"view {self.view!r}"

    @property
    def covers(self) -> list[tuple[str, str]]:
        """Line of the statement about the clients covered; empty if all check-in rates are equal."""
        unequal_rates = self.protocol.unequal_rates
        if unequal_rates is None or self.client_rate is None:
            return []
        limit = f"check-in rates up to {self.client_rate:.6g}"
        if self.client_rate == unequal_rates.fastest():
            return [("covers", f"all clients: {limit}")]
        return [("covers", f"clients with {limit}; faster clients are not covered")]

    @property
    def _protected(self) -> list[tuple[str, str]]:
        p = self.protocol
        return [
            ("protects", f"one client's record among {p.num_clients:,}, {p.description}"),
            *self.covers,
        ]

    @property
    def _randomized(self) -> list[tuple[str, str]]:
        return [
            ("randomizer", self.randomizer.description),
            *(
                ("and before", f"{one.num_clients:,} clients {one.description}, {its.description}")
                for one, its in self.before
            ),
        ]
