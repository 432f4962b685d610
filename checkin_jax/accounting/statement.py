"""Texts of guarantees: one line, a statement of several lines, and a table for notebooks."""

from __future__ import annotations

import abc
import html
import re
from collections.abc import Iterable
from typing import NoReturn

from checkin_jax._rounding import bracket, down, up
from checkin_jax.protocols import REPLACE
from checkin_jax.randomizers import Randomizer


def without_parentheses(against: str) -> str:
    """An adversary's words without parentheses."""
    return re.sub(r" \([^()]*\)", "", against)


def table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
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
    def _attacked(self) -> list[tuple[str, str]]:
        """Names and texts of the attack terms."""

    @property
    @abc.abstractmethod
    def _view_words(self) -> str:
        """The view, or views, for the first line of the statement."""

    @property
    @abc.abstractmethod
    def _about(self) -> list[tuple[str, str]]:
        """Names and texts of the statement above the attack terms."""

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
        return table(self.headline, [*self._about, *self._rests_on])
