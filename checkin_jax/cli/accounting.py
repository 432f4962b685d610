"""`checkin epsilon`, `verify`, `calibrate`, `compare`, `flower-check`: epsilon of a run, or of Flower's message."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from checkin_jax import _validate
from checkin_jax._files import in_folder, replacing
from checkin_jax._rounding import down, up
from checkin_jax._serialize import finite
from checkin_jax._suggest import how_to_install
from checkin_jax.cli.options import (
    GUARANTEE,
    OUTPUT,
    QUICK,
    GuaranteeOptions,
    JsonOption,
    RunOptions,
    bounds_of,
)
from checkin_jax.cli.programs import UsageError
from checkin_jax.cli.terminal import columns, say, terminal_width
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.protocols.protocol import FIRST_VALUES
from checkin_jax.randomizers import Gaussian, PureLDP

if TYPE_CHECKING:
    from checkin_jax.accounting.calibration import Calibration
    from checkin_jax.accounting.compare import ComparedBound
    from checkin_jax.accounting.guarantee import Guarantee, RateRow, StatedGuarantee

_WHO = "somebody who sees "
MORE = "Who is protected, by which theorems, under which assumptions: see --verbose"
NAMES = "Names of bounds, with links to their proofs: docs/glossary.md"


def named(*told: StatedGuarantee) -> tuple[str, ...]:
    """Lines below statements: references for the names in them."""
    return ("", NAMES) if any(g.theorems for g in told) else ()


@dataclasses.dataclass(kw_only=True)
class _Question(RunOptions, GuaranteeOptions, JsonOption):
    """A run and its requested guarantee.

    Attributes:
      verbose: also print full statements: who is protected from whom, theorems and assumptions. --json has them anyway.
    """

    verbose: Annotated[bool, OUTPUT] = False

    def asked(self) -> dict[str, Any]:
        """Arguments of `account` besides protocol and randomizer."""
        return {
            "delta": self.delta,
            "view": self.view or "messages",
            "bounds": bounds_of(self.bounds),
            "neighboring_relation": self.neighboring_relation,
            "client_rate": self.client_rate,
        }

    def in_views(self, answer: Guarantee, views: Iterable[str]) -> dict[str, Guarantee | str]:
        """The answer, and the same run in other views: a guarantee, or a line with the reason why there is none."""
        from checkin_jax.accounting.account import account

        found: dict[str, Guarantee | str] = {answer.view: answer}
        for view in views:
            try:
                others: dict[str, Any] = {**self.asked(), "view": view}
                found.setdefault(view, account(answer.protocol, answer.randomizer, **others))
            except ValueError:
                if isinstance(answer.bounds, str):
                    raise
                # The requested bounds do not apply in this view.
                found[view] = f"{view:<10} none of the requested bounds applies"
        return found

    def views_of(self, protocol: CheckInProtocol) -> tuple[str, ...]:
        """Views in which the neighboring relation has a bound."""
        relation = self.neighboring_relation
        return tuple(
            view for view in VIEWS if relation == REPLACE or protocol.refuses(relation, view) is None
        )


@dataclasses.dataclass(kw_only=True)
class Epsilon(_Question):
    """Prints the epsilon of a run in every view, both ends.

    Attributes:
      by_rate: with unequal rates: also print a table of epsilon by rate.
      attack: also print attack terms: true positive rates, advantage, mu, posterior beliefs; doubles the time.
      certificate: also write the certificate of the first line's epsilon to this file, for checkin verify.

    Examples:
      checkin epsilon --num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --epsilon0 2
      checkin epsilon --num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --epsilon0 2 --certificate claim.json
      checkin epsilon --num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --noise-multiplier 2 --view aggregate
      checkin epsilon --protocol fixed-window --num-clients 1e5 --num-slots 1e4 --epsilon0 1 --verbose
    """

    by_rate: Annotated[bool, OUTPUT] = False
    attack: Annotated[bool, OUTPUT] = False
    certificate: Annotated[Path | None, OUTPUT] = None

    def run(self) -> None:
        """Prints the answer, and the other views below it."""
        from checkin_jax.accounting.account import account
        from checkin_jax.accounting.certificate import certificate

        protocol, randomizer = self.build_protocol(), self.build_randomizer()
        if self.by_rate and protocol.unequal_rates is None:
            raise UsageError("--by-rate goes with --rates or --largest-rate")
        if self.certificate is not None:
            in_folder(certificate=self.certificate)
        answer = account(protocol, randomizer, **self.asked())
        try:
            self._print(protocol, answer)
        finally:  # whoever reads the output may have closed the pipe
            if self.certificate is not None:
                text = json.dumps(certificate(answer), allow_nan=False)
                with replacing(self.certificate) as file:
                    file.write(text.encode())

    def _print(self, protocol: CheckInProtocol, answer: Guarantee) -> None:
        shown = self.views_of(protocol)
        # Views whose statement, attack terms or JSON is requested.
        wanted = shown if self.view is None else (self.view,)
        if not self.json:
            say(answer.headline)
        found = self.in_views(answer, wanted if self.json else shown)
        told = {view: g for view, g in found.items() if view in wanted and not isinstance(g, str)}
        tables = {view: g.by_rate() if self.by_rate else () for view, g in told.items()}
        if self.json:
            plain = {view: g.as_dict(attack=self.attack) for view, g in told.items()}
            for view, table in tables.items():
                plain[view] |= {"by_rate": [finite(row._asdict()) for row in table]} if table else {}
            print(json.dumps(plain, allow_nan=False))
            return
        print("", _views(found.values()), sep="\n")
        if self.verbose:
            texts = (f"{g.statement(attack=self.attack)}{_by_rate(tables[v])}" for v, g in told.items())
            say("", "\n\n".join(texts), *named(*told.values()))
            return
        below = "\n".join(_notes(answer, attack=self.attack)) + _by_rate(tables[answer.view])
        say("", *([below.lstrip("\n"), ""] if below else []), MORE)


@dataclasses.dataclass(kw_only=True)
class Verify:
    """Re-checks certificates by a program that shares no code with the accountant: one line for each file.

    The line has the epsilon and delta that were checked, and everything taken on trust, or the step that does not hold.
    Exit code 0: every file is verified, given what its line takes on trust; 1: a file is refuted; 2: none is, but one
    is no certificate, or too large to be checked.

    Attributes:
      files: certificates that checkin epsilon --certificate wrote.
      verbose: also print the claim in words, and each step that was checked.

    Examples:
      checkin verify claim.json
      checkin verify claims/*.json --verbose
    """

    computing: ClassVar[str] = "checking; a certificate takes seconds, a large one a minute ..."

    files: tuple[Path, ...] = dataclasses.field(kw_only=False)
    verbose: Annotated[bool, OUTPUT] = False

    def run(self) -> None:
        """Prints the lines in the order of the files."""
        try:
            from checkin_jax import verify
        except ModuleNotFoundError as error:
            if error.name != "flint":
                raise
            raise UsageError(f"verify needs python-flint: {how_to_install('verify')}") from None
        refuted, unchecked = False, []
        for path in dict.fromkeys(self.files):
            try:
                with open(path, "rb") as file:
                    claim = verify.read(file.read(verify.MOST_BYTES + 1))
                steps, trusted = verify.check(claim)
            except OSError as error:
                unchecked.append(f"{path}: not checked: {error.strerror}")
            except verify.Malformed as error:
                unchecked.append(f"{path}: not checked: {error}")
            except verify.Refuted as error:
                refuted = True
                say(f"{path}: refuted: {error}")
            else:
                epsilon, delta = up(float(claim.epsilon), 9), float(claim.delta)
                lower = "" if claim.below is None else f" and >= {down(float(claim.lower), 9)}"
                say(
                    f"{path}: epsilon <= {epsilon} at delta {delta!r}{lower} verified; "
                    f"taken on trust: {'; '.join(trusted)}"
                )
                if self.verbose:
                    say(*(f"  {step}" for step in steps))
        unread = "; ".join(unchecked)
        if refuted:
            if unread:
                print(unread, file=sys.stderr)
            sys.exit(1)
        if unread:
            raise UsageError(unread)


def _by_rate(table: Sequence[RateRow]) -> str:
    """Epsilon by rate in columns; empty without rows."""
    head = ["", "  by rate    lower      epsilon"] if table else []
    rows = [f"  {row.client_rate:<10.5g} {down(row.lower):<10} {up(row.epsilon)}" for row in table]
    return "\n".join([*head, *rows])


@dataclasses.dataclass(kw_only=True)
class Calibrate(_Question):
    """Finds the extreme value of one variable that meets a target epsilon or advantage.

    Attributes:
      target_epsilon: largest epsilon allowed, > 0.
      target_advantage: instead of epsilon: largest true minus false positive rate of any attack, in (0, 1).
      free: the variable; the largest feasible value is found (the smallest noise multiplier, number of clients, or
        window), so its own option is left out. With an availability log also cycles, the number of repetitions of the
        log; check-in-prob is then the log's largest coin, and the other coins are scaled with it.

    Examples:
      checkin calibrate --num-clients 60000 --check-in-prob 0.1 --epsilon0 2 --target-epsilon 1 --free num-rounds
      checkin calibrate --num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --target-epsilon 1
        --free noise-multiplier --view aggregate
    """

    target_epsilon: float | None = None
    target_advantage: float | None = None
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

    def run(self) -> None:
        """Prints the value, and its guarantees in the requested view and in the others."""
        from checkin_jax.accounting.calibration import calibrate

        name = self.free.replace("-", "_")
        protocol = self.build_protocol(**{name: FIRST_VALUES[name]} if name in FIRST_VALUES else {})
        if (self.target_epsilon is None) == (self.target_advantage is None):
            raise UsageError("expected one of --target-epsilon and --target-advantage")
        randomizer = self._searched(name)
        found: Calibration = calibrate(
            protocol,
            randomizer,
            target_epsilon=self.target_epsilon,
            target_advantage=self.target_advantage,
            free=None if isinstance(randomizer, type) else name,
            **self.asked(),
        )
        g, attack = found.guarantee, self.target_advantage is not None
        if self.json:
            values = {"name": found.name, "value": found.value, "at_end": found.at_end}
            print(json.dumps({**values, "guarantee": g.as_dict(attack=attack)}, allow_nan=False))
            return
        rounds = f" ({g.protocol.num_units:,} rounds)" if found.name == "cycles" else ""
        say(f"{found.found}{rounds}", g.headline)
        found_in = self.in_views(g, self.views_of(protocol)).values()
        print("", _views(found_in), sep="\n")
        if self.verbose:
            say("", g.statement(attack=attack), *named(g))
        else:
            below = _notes(g, attack=attack)
            say("", *([*below, ""] if below else []), MORE)

    def _searched(self, name: str) -> Any:
        """The randomizer, or its class if its parameter is the variable of this name."""
        if name not in ("epsilon0", "noise_multiplier"):
            if getattr(self, name, None) is not None and name in (*FIRST_VALUES, "cycles"):
                raise UsageError(f"--free {self.free} leaves no room for --{self.free}")
            return self.build_randomizer()
        if self.epsilon0 is not None or self.noise_multiplier is not None:
            raise UsageError(f"--free {self.free} leaves no room for --epsilon0 or --noise-multiplier")
        mechanism = (self.mechanism, self.num_values, self.total_variation, self.differ) != (None,) * 4
        if name == "epsilon0":
            given = dataclasses.replace(self, epsilon0=1.0)
            return given.build_randomizer() if mechanism else PureLDP
        if mechanism:
            raise UsageError("--mechanism and --total-variation go with --epsilon0")
        return Gaussian


@dataclasses.dataclass(kw_only=True)
class Compare(RunOptions, JsonOption):
    """Compares all bounds on a run in the view "messages": certified, published, and invalid ones (marked).

    Attributes:
      delta: delta of the run, in [1e-300, 1).

    Examples:
      checkin compare --num-clients 60000 --check-in-prob 0.1 --num-rounds 6800 --epsilon0 2
      checkin compare --protocol averaged-updates --num-clients 1000 --num-slots 100 --epsilon0 1
    """

    delta: Annotated[float, GUARANTEE] = 1e-6

    def run(self) -> None:
        """Prints the certified answer, then the table."""
        from checkin_jax.accounting.account import MIN_DELTA, account
        from checkin_jax.accounting.compare import beside

        protocol, randomizer = self.build_protocol(), self.build_randomizer()
        delta = _validate.real(MIN_DELTA, 1, "[)", delta=self.delta)
        answer = account(protocol, randomizer, delta=delta)
        if not self.json:  # published bounds take longer than the answer
            say(answer.headline)
        rows = beside(answer)
        if self.json:
            print(json.dumps([finite(dataclasses.asdict(row)) for row in rows], allow_nan=False))
        else:
            print("", _table(rows), sep="\n")


@dataclasses.dataclass(kw_only=True)
class FlowerCheck(JsonOption):
    """Prints the privacy of one message of Flower's LocalDpMod; flwr need not be installed.

    Attributes:
      clipping_norm: the mod's argument: norm to which an update is clipped.
      sensitivity: the mod's argument, which it does not derive from the clipping norm.
      epsilon: the mod's argument: the claimed epsilon.
      delta: the mod's argument, in (0, 1).

    Examples:
      checkin flower-check --clipping-norm 1 --sensitivity 1 --epsilon 8 --delta 1e-6
    """

    clipping_norm: float
    sensitivity: float
    epsilon: float
    delta: float

    def run(self) -> None:
        """Prints the privacy of one message."""
        from checkin_jax.flower.local_dp_mod import local_dp_worth

        given = dataclasses.asdict(self)
        del given["json"]
        self.show(local_dp_worth(**given))


def _table(rows: Sequence[ComparedBound]) -> str:
    """Rows in columns, invalid bounds last; below them each source and remark once."""
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
    width = terminal_width()
    parts = [columns(shown, " ", (13, 10), width), *(["", columns(below, " ", width=width)] if below else [])]
    return "\n".join(parts)


def _views(guarantees: Iterable[Guarantee | str]) -> str:
    """Columns: view, both ends of epsilon, and what the adversary sees; or the text of a view without an answer."""
    from checkin_jax.accounting.guarantee import without_parentheses

    rows: list[tuple[str, ...]] = [("view", "at least", "epsilon <=", "against somebody who sees")]
    for each in guarantees:
        if isinstance(each, str):
            rows.append((each,))
            continue
        seen = without_parentheses(each.against).removeprefix(_WHO)
        rows.append((each.view, down(each.lower, 5), up(each.epsilon, 5), seen))
    return columns(rows, " ", (10, 10, 10), terminal_width())


def _notes(guarantee: Guarantee, *, attack: bool = False) -> list[str]:
    """Lines that belong to the numbers: clients covered, attack terms if requested, and warnings."""
    rows = [*guarantee.covers, *(guarantee.attack.lines if attack else ())]
    quick = [f"note: {QUICK}"] if guarantee.bounds == "fast" else []
    return [
        *(f"  {name:<10} {text}" for name, text in rows),
        *quick,
        *(f"warning: {each}" for each in guarantee.warnings),
    ]
