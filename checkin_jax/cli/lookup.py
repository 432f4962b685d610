"""`checkin explain` and `checkin bench`: explanations of words; published values beside certified brackets."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from checkin_jax._rounding import down, up
from checkin_jax._suggest import did_you_mean
from checkin_jax._tables import columns, markdown, terminal_width
from checkin_jax.cli.options import OUTPUT, TableOptions
from checkin_jax.cli.pages import check_folder, say
from checkin_jax.cli.parsing import UsageError

if TYPE_CHECKING:
    from checkin_jax.accounting.published_values import PublishedValue


def glossary() -> dict[str, str]:
    """Words of words.toml, each with its explanation."""
    return tomllib.loads((files("checkin_jax.cli") / "words.toml").read_text(encoding="utf-8"))


@dataclasses.dataclass
class Explain:
    """Explains a word (epsilon, view, RDP) or a bound in a statement (hexagon).

    Attributes:
      term: the word; an unknown word lists all of them.
    """

    examples: ClassVar[tuple[str, ...]] = ("epsilon", "shuffler", "hexagon")

    term: str

    def run(self) -> None:
        """Prints the explanation of the word."""
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


@dataclasses.dataclass(kw_only=True)
class Bench(TableOptions):
    """Prints published values of epsilon beside the certified brackets of the same runs, which are computed now.

    Attributes:
      table: name of one table. Default: all tables, which takes half a minute.
      out: also write the rows to this .csv or .parquet file.
    """

    examples: ClassVar[tuple[str, ...]] = ("koskela-figure-3", "--out literature.parquet", "--markdown")

    table: str | None = dataclasses.field(default=None, kw_only=False)
    out: Annotated[Path | None, OUTPUT] = None

    def run(self) -> None:
        """Prints each table with its source."""
        from checkin_jax.accounting.published_values import literature, tables
        from checkin_jax.sweeps.tables import arrow, check, write

        if self.out is not None:
            check_folder(check(out=self.out))
        found = []
        for name in tables() if self.table is None else [self.table]:
            values = literature(name)
            found += values
            if not self.json:
                table = tables()[name]
                shown = _beside(values)
                rows = markdown(shown) if self.markdown else columns(shown, width=terminal_width())
                source = f"{table.source}; {table.artefact}; {table.obtained}."
                say(f"{name}: {table.title}", source, *([table.remark] if table.remark else []), "", rows, "")
        records = [dataclasses.asdict(value) | {"verdict": value.verdict} for value in found]
        if self.json:
            print(json.dumps(records, allow_nan=False))
        if self.out is not None:
            filled = {name: np.array([record[name] for record in records]) for name in records[0]}
            write(self.out, iter([arrow(filled, len(records))]))


def _beside(values: Sequence[PublishedValue]) -> list[tuple[str, ...]]:
    """Columns, headings first; the ratio is the published value over the certified end on its side."""
    heads = ("published", "at least", "epsilon <=", "ratio", "verdict", "delta", "bound", "setting")
    rows = []
    for value in values:
        ours = value.epsilon if value.direction == "upper" else value.lower
        side = "<=" if value.direction == "upper" else ">="
        rows.append(
            (
                f"{side} {value.published:.5g}",
                down(value.lower, 5),
                up(value.epsilon, 5),
                f"{value.published / ours:.3f}" if ours > 0.0 else "",
                value.verdict,
                f"{value.delta:g}",
                value.bound,
                value.setting,
            )
        )
    return [heads, *rows]
