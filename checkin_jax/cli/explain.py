"""`checkin explain`: a word, or the name of a bound, in two sentences."""

from __future__ import annotations

import dataclasses
import tomllib
from importlib.resources import files
from typing import ClassVar

from checkin_jax._suggest import did_you_mean
from checkin_jax.cli.pages import say
from checkin_jax.cli.parsing import UsageError


def glossary() -> dict[str, str]:
    """The words of words.toml, and the sentences about each of them."""
    return tomllib.loads((files("checkin_jax.cli") / "words.toml").read_text(encoding="utf-8"))


@dataclasses.dataclass
class Explain:
    """Explains a word (epsilon, view, RDP) or a bound in a statement (hexagon).

    Attributes:
      term: the word; without one that is known, all of them are listed.
    """

    examples: ClassVar[tuple[str, ...]] = ("epsilon", "shuffler", "hexagon")

    term: str

    def run(self) -> None:
        """Prints the sentences about the word."""
        from checkin_jax.accounting.bounds.table import BOUNDS

        words = glossary()
        bounds = {bound.word: f"{bound.statement}. Proof: {bound.reference}." for bound in BOUNDS}
        known = {**words, **bounds}
        plain = self.term.strip().replace("_", " ").lower()
        found = [f"{name}: {text}" for name, text in known.items() if name.lower() == plain]
        if not found:
            raise UsageError(
                f"no word {self.term}: expected the name of a bound or one of {', '.join(words)}"
                f"{did_you_mean(self.term, known)}"
            )
        say(*found)
