"""`checkin epsilon`, `calibrate`, `compare` and `flower-check`: epsilon of a run, or of one message of Flower's."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._serialize import finite
from checkin_jax._tables import columns, markdown, terminal_width
from checkin_jax.accounting.stated import in_short
from checkin_jax.cli.options import (
    QUICK,
    GuaranteeOptions,
    Job,
    OutputOptions,
    RunOptions,
    UsageError,
    bounds_of,
)
from checkin_jax.cli.pages import picture, say
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Gaussian, PureLDP

if TYPE_CHECKING:
    from checkin_jax.accounting.calibration import Calibration
    from checkin_jax.accounting.compare import ComparedBound
    from checkin_jax.accounting.guarantee import Guarantee, RateRow
    from checkin_jax.accounting.stated import Stated

_WHO = "somebody who sees "
MORE = "Who is protected, by which theorems, under which assumptions: --verbose"
NAMES = "What the names of bounds mean, and where they are proved: docs/glossary.md"
# Where the search begins for a variable whose value was left out.
_START = {"check_in_prob": 0.1, "num_rounds": 100, "num_epochs": 1, "window": 1}


def named(*told: Stated) -> tuple[str, ...]:
    """Lines below statements: where to read what the names in them mean."""
    return ("", NAMES) if any(g.theorems for g in told) else ()


@dataclasses.dataclass(kw_only=True)
class Epsilon(RunOptions, GuaranteeOptions, OutputOptions):
    """Tells how private a run is: epsilon in every view, both ends."""

    heading: ClassVar[str] = "output"
    examples: ClassVar[tuple[str, ...]] = (
        "--num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --epsilon0 2",
        "--num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --noise-multiplier 2 --view aggregate",
        "--protocol fixed-window --num-clients 1e5 --num-slots 1e4 --epsilon0 1 --verbose",
    )

    by_rate: bool = False
    """Where rates differ: also a table of epsilon by rate."""
    attack: bool = False
    """Also say what an attacker can do: rates, advantage, mu, beliefs; takes about as long again."""
    trade_off: Path | None = None
    """Also draw true against false positive rates to this PNG or SVG, with a CSV beside it; wants the extra plots."""

    def prepare(self) -> Job:
        """Checks the arguments; the job prints the answer, and the other views beside it."""
        from checkin_jax import plotting
        from checkin_jax.accounting.account import MIN_DELTA, account
        from checkin_jax.accounting.bounds.select import check_relation

        protocol = self.build_protocol()
        randomizer = self.build_randomizer()
        delta = _validate.real(MIN_DELTA, 1, delta=self.delta)  # as `account` does, before any work
        bounds = bounds_of(self.bounds)
        asked = self.view or "messages"
        check_relation(protocol, asked, self.neighboring_relation)
        protocol.rate_of(self.client_rate)
        if self.by_rate and protocol.coins is None:
            raise UsageError("--by-rate goes with --rates or --largest-rate")
        out = picture("--trade-off", self.trade_off)
        shown = _views_of(protocol, self.neighboring_relation, asked)
        # Those whose statement, attack terms or JSON is wanted.
        wanted = shown if self.view is None else (asked,)

        def job() -> None:
            try:
                answer = account(
                    protocol,
                    randomizer,
                    delta=delta,
                    view=asked,
                    bounds=bounds,
                    neighboring_relation=self.neighboring_relation,
                    client_rate=self.client_rate,
                )
            except ValueError as error:  # words of bounds that do not apply
                raise UsageError(str(error)) from error
            if not self.json:
                say(answer.headline)
            others = (view for view in (wanted if self.json else shown) if view != asked)
            found = {asked: answer} | {view: _in_view(answer, view) for view in others}
            told = {view: g for view, g in found.items() if view in wanted and not isinstance(g, str)}
            if out is not None:
                drawn, rows = plotting.trade_off({view: g.attack for view, g in told.items()})
                plotting.save(drawn, out, rows)
            tables = {view: g.by_rate() if self.by_rate else () for view, g in told.items()}
            if self.json:
                plain = {
                    view: g.as_dict(attack=self.attack) | _rows(tables[view]) for view, g in told.items()
                }
                print(json.dumps(plain, allow_nan=False))
                return
            print("", _views(found.values(), in_markdown=self.markdown), sep="\n")
            if self.verbose:
                texts = (f"{g.statement(attack=self.attack)}{_by_rate(tables[v])}" for v, g in told.items())
                say("", "\n\n".join(texts), *named(*told.values()))
                return
            below = "\n".join(_notes(answer, attack=self.attack)) + _by_rate(tables[asked])
            say("", *([below.lstrip("\n"), ""] if below else []), MORE)

        return job


def _rows(table: Sequence[RateRow]) -> dict[str, Any]:
    """Epsilon by rate for JSON, where it is asked for."""
    return {"by_rate": [finite(row._asdict()) for row in table]} if table else {}


def _by_rate(table: Sequence[RateRow]) -> str:
    """Epsilon by rate in columns, where it is asked for."""
    head = ["", "  by rate    lower      epsilon"] if table else []
    rows = [f"  {row.client_rate:<10.5g} {down(row.lower):<10} {up(row.epsilon)}" for row in table]
    return "\n".join([*head, *rows])


@dataclasses.dataclass(kw_only=True)
class Calibrate(RunOptions, GuaranteeOptions, OutputOptions):
    """Finds the value of one variable that just meets a target epsilon or advantage, on the feasible side."""

    heading: ClassVar[str] = "target"
    examples: ClassVar[tuple[str, ...]] = (
        "--num-clients 60000 --check-in-prob 0.1 --epsilon0 2 --target-epsilon 1 --free num-rounds",
        "--num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --target-epsilon 1 --free noise-multiplier "
        "--view aggregate",
    )

    target_epsilon: float | None = None
    """The epsilon to meet, > 0."""
    target_advantage: float | None = None
    """In place of an epsilon: true minus false positive rate of the best attack, in (0, 1)."""
    free: Literal[
        "epsilon0",
        "noise-multiplier",
        "check-in-prob",
        "num-rounds",
        "cycles",
        "num-epochs",
        "num-clients",
        "window",
    ]
    """The variable: the largest that is feasible (the smallest noise multiplier, number of clients, window). Of a log
    also cycles, how often its rounds are run; its check-in-prob is the largest coin, and scales the others."""

    def prepare(self) -> Job:
        """Checks the arguments; the job prints the value and what holds at it, in every view."""
        from checkin_jax.accounting.account import MIN_DELTA
        from checkin_jax.accounting.bounds.select import check_relation
        from checkin_jax.accounting.calibration import calibrate

        view = self.view or "messages"
        name = self.free.replace("-", "_")
        protocol = self.build_protocol(**_START)
        check_relation(protocol, view, self.neighboring_relation)
        protocol.rate_of(self.client_rate)
        views = _views_of(protocol, self.neighboring_relation, view)
        if (self.target_epsilon is None) == (self.target_advantage is None):
            raise UsageError("expected one of --target-epsilon and --target-advantage")
        if self.target_epsilon is not None:
            _validate.real(0, math.inf, open_low=True, open_high=True, target_epsilon=self.target_epsilon)
        if self.target_advantage is not None:
            _validate.real(0, 1, open_low=True, open_high=True, target_advantage=self.target_advantage)
        delta, bounds = _validate.real(MIN_DELTA, 1, delta=self.delta), bounds_of(self.bounds)
        randomizer: Any = {"epsilon0": PureLDP, "noise_multiplier": Gaussian}.get(name)
        if randomizer is None:
            randomizer = self.build_randomizer()
            if not hasattr(protocol, name):
                raise UsageError(f"--free {self.free} is not a variable of --protocol {self.protocol}")
            if name in _START and getattr(self, name) is not None:
                raise UsageError(f"--free {self.free} leaves no room for --{self.free}")
        elif self.epsilon0 is not None or self.noise_multiplier is not None:
            raise UsageError(f"--free {self.free} leaves no room for --epsilon0 or --noise-multiplier")
        elif name != "epsilon0" and (self.mechanism is not None or self.total_variation is not None):
            raise UsageError("--mechanism and --total-variation go with --epsilon0")
        elif any(each is not None for each in (self.mechanism, self.num_values, self.total_variation)):
            given = dataclasses.replace(self, epsilon0=1.0)
            randomizer, name = given.build_randomizer(), "epsilon0"

        def job() -> None:
            try:
                found = calibrate(
                    protocol,
                    randomizer,
                    target_epsilon=self.target_epsilon,
                    target_advantage=self.target_advantage,
                    delta=delta,
                    view=view,
                    bounds=bounds,
                    neighboring_relation=self.neighboring_relation,
                    client_rate=self.client_rate,
                    free=None if isinstance(randomizer, type) else name,
                )
            except ValueError as error:  # no value meets the target, which only the search can tell
                raise UsageError(str(error)) from error
            if self.json:
                plain = found.guarantee.as_dict(attack=self.target_advantage is not None)
                values = {"name": found.name, "value": found.value, "guarantee": plain}
                print(json.dumps(values, allow_nan=False))
            else:
                self._print(found, views)

        return job

    def _print(self, found: Calibration, views: Sequence[str]) -> None:
        """The value, what it promises in the view asked for, and then in the others."""
        g, attack = found.guarantee, self.target_advantage is not None
        rounds = f" ({g.protocol.repeats:,} rounds)" if found.name == "cycles" else ""
        say(f"{found.name} = {found.value:.10g}{rounds}", g.headline)
        rows = [g if view == g.view else _in_view(g, view) for view in views]
        print("", _views(rows, in_markdown=self.markdown), sep="\n")
        if self.verbose:
            say("", g.statement(attack=attack), *named(g))
        else:
            say("", *_notes(g, attack=attack), MORE)


@dataclasses.dataclass(kw_only=True)
class Compare(RunOptions):
    """Compares all bounds on a run in the view "messages": certified, published and invalid ones, which are marked."""

    heading: ClassVar[str] = "output"
    examples: ClassVar[tuple[str, ...]] = (
        "--num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --epsilon0 2",
        "--protocol averaged-updates --num-clients 1000 --num-slots 100 --epsilon0 1 --out bounds.svg",
    )

    delta: float = 1e-6
    """Delta of the run, in [1e-300, 1)."""
    delta0: float | None = None
    """With Gaussian messages: published bounds take them as (epsilon0, delta0)-LDP; n^-1.5 when left out."""
    out: Path | None = None
    """Also draw the bounds to this PNG or SVG, with a CSV beside it; wants the extra plots."""
    json: bool = False
    """Print one JSON array instead of a table."""
    markdown: bool = False
    """Print the table in Markdown."""

    def prepare(self) -> Job:
        """Checks the arguments; the job prints the certified answer, and then the table."""
        from checkin_jax import plotting
        from checkin_jax.accounting.account import MIN_DELTA, account
        from checkin_jax.accounting.compare import beside

        protocol = self.build_protocol()
        out = picture("--out", self.out)
        randomizer = self.build_randomizer()
        delta = _validate.real(MIN_DELTA, 1, open_high=True, delta=self.delta)
        delta0 = self.delta0
        if delta0 is not None:
            delta0 = _validate.real(0, 1, open_low=True, open_high=True, delta0=delta0)

        def job() -> None:
            answer = account(protocol, randomizer, delta=delta)
            if not self.json:  # published bounds take longer than the answer
                say(answer.headline)
            rows = beside(answer, delta0=delta0)
            if out is not None:
                plotting.save(plotting.comparison(rows), out, [dataclasses.asdict(row) for row in rows])
            if self.json:
                print(json.dumps([_plain(row) for row in rows], allow_nan=False))
                return
            print("", _table(rows, in_markdown=self.markdown), sep="\n")

        return job


@dataclasses.dataclass(kw_only=True)
class FlowerCheck:
    """Tells what one message of Flower's LocalDpMod is worth; flwr need not be installed."""

    examples: ClassVar[tuple[str, ...]] = ("--clipping-norm 1 --sensitivity 1 --epsilon 8 --delta 1e-6",)

    clipping_norm: float
    """As given to the mod: the norm that an update is clipped to."""
    sensitivity: float
    """As given to the mod, which takes it apart from the clip."""
    epsilon: float
    """As given to the mod: what is claimed."""
    delta: float
    """As given to the mod, in (0, 1)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def prepare(self) -> Job:
        """Checks the arguments and works it out; the job prints."""
        from checkin_jax.flower.local_dp_mod import local_dp_worth

        found = local_dp_worth(
            clipping_norm=self.clipping_norm,
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            delta=self.delta,
        )

        def job() -> None:
            if self.json:
                print(json.dumps(found.as_dict(), allow_nan=False))
            else:
                say(str(found))

        return job


def _plain(row: ComparedBound) -> dict[str, Any]:
    """A row for JSON; infinity as None with the key kept, never as a number."""
    values = dataclasses.asdict(row)
    return {**values, "epsilon": values["epsilon"] if math.isfinite(values["epsilon"]) else None}


def _table(rows: Sequence[ComparedBound], *, in_markdown: bool) -> str:
    """Rows in columns, invalid bounds last; sources and remarks, which are long, once each below."""
    notes: dict[str, int] = {}
    lines = []
    for row in rows:
        numbers = [
            notes.setdefault(text, len(notes) + 1)
            for text in (*row.source.split("; "), row.reason)
            if text and text != "checkin-jax"
        ]
        marks = "".join(f"[{number}]" for number in numbers)
        epsilon = f">= {down(row.epsilon, 5)}" if row.direction == "lower" else f"<= {up(row.epsilon, 5)}"
        lines.append((epsilon, row.validity, f"{row.method} {marks}".rstrip()))
    lines.sort(key=lambda line: line[1] == "invalid")
    shown = [("epsilon", "validity", "bound"), *lines]
    below = [(f"[{number}]", text) for text, number in notes.items()]
    if in_markdown:
        return "\n".join([markdown(shown), "", *(f"* {mark} {text}" for mark, text in below)])
    width = terminal_width()
    parts = [columns(shown, " ", (13, 10), width), *(["", columns(below, " ", width=width)] if below else [])]
    return "\n".join(parts)


def _views_of(protocol: CheckInProtocol, relation: str, asked: str) -> tuple[str, ...]:
    """The views in which this neighboring relation has a bound, `asked` first."""
    known = [view for view in VIEWS if relation == REPLACE or protocol.refuses(relation, view) is None]
    return (asked, *(view for view in known if view != asked))


def _in_view(answer: Guarantee, view: str) -> Guarantee | str:
    """The same run in another view, or a line that says why there is no answer.

    Numbers and words are those of `account` at the same delta, by the same choice of theorems.
    """
    from checkin_jax.accounting.account import account

    try:
        return account(
            answer.protocol,
            answer.randomizer,
            delta=answer.delta,
            view=view,
            bounds=answer.bounds,
            neighboring_relation=answer.neighboring_relation,
            client_rate=answer.client_rate,
        )
    except ValueError:
        if isinstance(answer.bounds, str):
            raise
        # Words of bounds that do not apply here.
        return f"{view:<10} none of the bounds asked for applies"


def _views(guarantees: Iterable[Guarantee | str], *, in_markdown: bool = False) -> str:
    """Columns of view, both ends of epsilon and what is seen; a text stands for a view that has no answer."""
    rows: list[tuple[str, ...]] = [("view", "at least", "epsilon <=", "against somebody who sees")]
    for each in guarantees:
        if isinstance(each, str):
            rows.append((each,))
            continue
        seen = in_short(each.against).removeprefix(_WHO)
        rows.append((each.view, down(each.lower, 5), up(each.epsilon, 5), seen))
    return markdown(rows) if in_markdown else columns(rows, " ", (10, 10, 10), terminal_width())


def _notes(guarantee: Guarantee, *, attack: bool = False) -> list[str]:
    """What must be read beside the numbers: whom they cover, an attacker's terms where asked for, and warnings."""
    rows = [*guarantee.covers, *(guarantee.attack.lines if attack else ())]
    quick = [f"note: {QUICK}"] if guarantee.bounds == "fast" else []
    return [
        *(f"  {name:<10} {text}" for name, text in rows),
        *quick,
        *(f"warning: {each}" for each in guarantee.warnings),
    ]
