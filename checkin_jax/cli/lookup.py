"""`checkin explain`, `bench` and `figure`: explanations of words; values of the literature; figures by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from checkin_jax._files import ending, in_folder
from checkin_jax._rounding import down, up
from checkin_jax._suggest import did_you_mean
from checkin_jax.cli.options import OUTPUT, JsonOption
from checkin_jax.cli.programs import UsageError
from checkin_jax.cli.terminal import columns, say, terminal_width
from checkin_jax.protocols import RELATIONS, VIEWS

if TYPE_CHECKING:
    from checkin_jax.accounting.compare import PublishedValue
    from checkin_jax.sweeps.figures import NamedFigure


@dataclasses.dataclass
class Explain:
    """Explains a word (epsilon, view, RDP) or a bound in a statement (hexagon).

    Attributes:
      term: the word or words; an unknown one lists all of them.

    Examples:
      checkin explain epsilon
      checkin explain noise multiplier
      checkin explain hexagon
    """

    term: tuple[str, ...]

    def run(self) -> None:
        """Prints the explanation of the word."""
        from checkin_jax.accounting.bounds.table import BOUNDS
        from checkin_jax.reports.render import glossary

        words = glossary()
        bounds = {bound.word: f"{bound.statement}. Proof: {bound.reference}." for bound in BOUNDS}
        known, asked = {**words, **bounds}, " ".join(self.term).strip()
        # Values of options, which statements print, stand for what they are values of.
        values: dict[str, str] = {**dict.fromkeys(VIEWS, "view"), **dict.fromkeys(RELATIONS, "adjacency")}
        plain = _plain(values.get(asked, asked))
        found = [f"{name}: {text}" for name, text in known.items() if _plain(name) == plain]
        if not found:
            raise UsageError(
                f"no word {asked}: expected the name of a bound or one of {', '.join(words)}"
                f"{did_you_mean(asked, known)}"
            )
        say(*found)


def _plain(word: str) -> str:
    """The word as it is compared: as options, arguments and statements write it."""
    return word.strip("-").replace("_", " ").replace("-", " ").lower()


@dataclasses.dataclass(kw_only=True)
class Bench(JsonOption):
    """Prints published values of epsilon beside the certified brackets of the same runs, which are computed now.

    Attributes:
      table: name of one table. Default: all tables, which takes half a minute.
      out: also write the rows to this .csv or .parquet file.

    Examples:
      checkin bench koskela-figure-3
      checkin bench --out literature.parquet
    """

    table: str | None = dataclasses.field(default=None, kw_only=False)
    out: Annotated[Path | None, OUTPUT] = None

    def run(self) -> None:
        """Prints each table with its source."""
        from checkin_jax.accounting.compare import literature, tables
        from checkin_jax.sweeps.tables import check, write_rows

        if self.out is not None:
            in_folder(out=check(out=self.out))
        found = {name: literature(name) for name in (tables() if self.table is None else [self.table])}
        records = [
            dataclasses.asdict(value) | {"verdict": value.verdict}
            for values in found.values()
            for value in values
        ]
        if self.out is not None:  # before printing: whoever reads the output may close the pipe
            write_rows(self.out, records)
        if self.json:
            print(json.dumps(records, allow_nan=False))
            return
        for name, values in found.items():
            table, rows = tables()[name], columns(_beside(values), width=terminal_width())
            source = f"{table['source']}; {table['artefact']}; {table['obtained']}."
            remark = [table["remark"]] if table["remark"] else []
            say(f"{name}: {table['title']}", source, *remark, "", rows, "")


@dataclasses.dataclass(kw_only=True)
class FigureCommand:
    """Draws a figure of the papers, computed now; without a name it lists them all.

    Attributes:
      name: name of the figure.
      out: .pdf, .svg or .png file to write; an SVG follows the page's theme.
      data: also write the numbers that are shown to this .csv file.
      source: of figures of training: a folder of run directories, or the CSV that --data wrote of such runs.

    Examples:
      checkin figure
      checkin figure random-check-ins-figure-2 --out figure_2.pdf --data figure_2.csv
      checkin figure shuffled-check-in-figure-3 --source runs/curves --out figure_3.pdf
    """

    name: str | None = dataclasses.field(default=None, kw_only=False)
    out: Annotated[Path | None, OUTPUT] = None
    data: Annotated[Path | None, OUTPUT] = None
    source: Path | None = None

    @property
    def computing(self) -> str:
        """The line of a drawing that goes on for long."""
        from checkin_jax.sweeps.figures import FIGURES

        seconds = f"about {FIGURES[self.name].seconds} s" if self.name in FIGURES else "seconds"
        return f"drawing {self.name}, which takes {seconds} on two cores, and longer the first time ..."

    def run(self) -> None:
        """Writes the figure, and prints its place; or prints the list."""
        from checkin_jax import plotting
        from checkin_jax.sweeps.figures import FIGURES, write

        if self.name is None:
            rows = [(name, f"{each.seconds}", each.description) for name, each in FIGURES.items()]
            say(columns([("figure", "seconds", "shows"), *rows], width=terminal_width()))
            return
        if self.name not in FIGURES:
            raise UsageError(
                f"no figure {self.name}: expected one of {', '.join(FIGURES)}{did_you_mean(self.name, FIGURES)}"
            )
        chosen = FIGURES[self.name]
        if self.out is None:
            raise UsageError(f"--out is needed: a .pdf, .svg or .png file for {self.name}")
        out = plotting.check(out=self.out)
        if self.data is not None:
            in_folder(data=ending((".csv",), data=self.data))
        write(chosen, out, self.data, **self._given(chosen))
        say(str(out), *([] if self.data is None else [str(self.data)]))

    def _given(self, chosen: NamedFigure) -> dict[str, Any]:
        """The arguments of the figure: points, source, or none."""
        if self.source is not None and not chosen.source:
            raise UsageError(f"--source: expected none, as {self.name} shows no runs of training")
        if not chosen.source:
            return {"points": chosen.points}
        if self.source is None:
            raise UsageError(f"--source is needed: runs of training, or their CSV, for {self.name}")
        return {"source": _evaluations(self.source)}


def _evaluations(source: Path) -> list[dict[str, Any]]:
    """Evaluations of runs in a folder, or in a CSV; UsageError where there are none."""
    from checkin_jax.sweeps.tables import load
    from checkin_jax.training.reports import recorded

    if source.is_dir():
        return recorded.evaluations(source)
    if not source.exists():
        raise UsageError(f"--source {source}: no such folder or file")
    table = load(source).columns
    wanted = ("setting", "run", "round", "accuracy", "view", "epsilon", "delta")
    missing = [name for name in wanted if name not in table]
    if missing:
        raise UsageError(
            f"--source {source}: no column {missing[0]}; expected the table of runs that --data writes"
        )
    return [dict(zip(table, row)) for row in zip(*(column.tolist() for column in table.values()))]


def _beside(values: Sequence[PublishedValue]) -> list[tuple[str, ...]]:
    """Columns, headings first; the ratio is the published value over the certified end on its side."""
    heads = ("published", "at least", "epsilon <=", "ratio", "verdict", "delta", "bound", "setting")
    rows = []
    for value in values:
        side, ours = ("<=", value.epsilon) if value.direction == "upper" else (">=", value.lower)
        ratio = f"{value.published / ours:.3f}" if ours > 0.0 else ""
        ends = f"{side} {value.published:.5g}", down(value.lower, 5), up(value.epsilon, 5)
        rows.append((*ends, ratio, value.verdict, f"{value.delta:g}", value.bound, value.setting))
    return [heads, *rows]
