"""`checkin ledger`: one guarantee for several runs of the same clients, from a file that records every addition."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from checkin_jax import _validate
from checkin_jax._rounding import counted, down
from checkin_jax._serialize import finite
from checkin_jax.cli.accounting import MORE, named
from checkin_jax.cli.options import (
    QUICK,
    BoundsOption,
    JsonOption,
    Relation,
    RunOptions,
    View,
    bounds_of,
    run_of,
)
from checkin_jax.cli.programs import UsageError, option
from checkin_jax.cli.terminal import columns, say, terminal_width
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.protocols.rounds import MAX_LOG_ROUNDS
from checkin_jax.randomizers import Randomizer

if TYPE_CHECKING:
    from checkin_jax.accounting.interop.accountant import CheckInAccountant
    from checkin_jax.accounting.interop.composed_guarantee import LedgerGuarantee
    from checkin_jax.accounting.interop.ledger_file import Ledger as LedgerFile
    from checkin_jax.reports.declarations import Deployment
    from checkin_jax.reports.record import Record

# Delta for a ledger without one.
_DELTA = 1e-6
_NO_DELTA = f"the ledger keeps no delta, so {_DELTA:g} is used; checkin ledger add --delta records one"


@dataclasses.dataclass(kw_only=True)
class WhoOptions:
    """Author and remark of a change to a ledger.

    Attributes:
      note: remark, such as the team or site; not part of a summary.
      by: author of the change. Default: the name of the user.
    """

    note: str = ""
    by: str | None = None

    @property
    def who(self) -> str:
        """Name of the author."""
        if self.by is not None:
            return self.by
        try:
            return getpass.getuser()
        except (OSError, KeyError):  # a container without a user database
            return "unknown"


@dataclasses.dataclass(kw_only=True)
class LedgerAdd(RunOptions, WhoOptions):
    """Adds a run to a ledger, the file of all runs in which the same clients took part; a missing file is created.

    Lines are appended and never changed; several processes may add at once.

    Attributes:
      ledger: the file.
      view: what the adversary sees of this run: messages without names, sums only (aggregate), or a client's own
        messages with its name (local).
      neighboring_relation: which data sets are compared; the same for the whole file.
      on: date of the run, such as 2026-06-30. Default: today.
      delta: delta of the whole ledger; the file keeps the first one given.
      target_epsilon: limit for the epsilon of the whole ledger; the file keeps the first one given.
      trained: folder of a training run, instead of a protocol and its messages; all planned rounds count.

    Examples:
      checkin ledger add fleet.json --num-clients 60000 --check-in-prob 0.1 --num-rounds 1000 --epsilon0 2
      checkin ledger add year.json --availability june.csv --epsilon0 4 --on 2026-06-30 --delta 1e-8 --target-epsilon 1
    """

    ledger: Path = dataclasses.field(kw_only=False)
    view: View = "messages"
    neighboring_relation: Relation = "replace-one"
    on: str | None = None
    delta: float | None = None
    target_epsilon: float | None = None
    trained: Annotated[Path | None, Parameter(name="--run")] = None

    def _ran(self) -> tuple[tuple[CheckInProtocol, Randomizer], ...]:
        """Earlier runs of the same clients that the run counts, and last the run to add.

        Raises:
          UsageError: --run together with other options of a run.
        """
        if self.trained is None:
            return ((self.build_protocol(), self.build_randomizer()),)
        for name in self.given():
            raise UsageError(f"{option(name)} is given by --run {self.trained}: leave it out")
        found = run_of("--run", self.trained)
        own = found.run.schedule.so_far(found.rounds_within_budget), found.run.randomizer
        return (*found.run.before, own)

    def run(self) -> None:
        """Adds the run to the file."""
        from checkin_jax.accounting.bounds.select import check_relation, has_identical_units
        from checkin_jax.accounting.interop import ledger_file
        from checkin_jax.accounting.interop.events import unit_event

        *before, (protocol, randomizer) = self._ran()
        event = unit_event(protocol, randomizer, view=self.view)
        check_relation(protocol, self.view, self.neighboring_relation)
        if self.on is not None:
            _validate.day(on=self.on)
        relation = ledger_file.RELATIONS[self.neighboring_relation]
        kept = _read(self.ledger) if self.ledger.exists() else ledger_file.Ledger(path=self.ledger)
        if kept.entries and kept.neighboring_relation != relation:
            raise UsageError(
                f"{self.ledger}: its entries are of another neighboring relation than {self.neighboring_relation}"
            )
        ledger_file.target(kept, self.delta, self.target_epsilon)

        found, earlier = ledger_file.add(
            self.ledger,
            event,
            protocol.num_units if has_identical_units(protocol) else 1,
            on=self.on,
            note=self.note,
            by=self.who,
            neighboring_relation=relation,
            delta=self.delta,
            epsilon=self.target_epsilon,
        )
        last = found.entries[-1]
        run = f"{protocol.description}; {randomizer.description}; view {self.view!r}"
        notes = (f"note: {note}" for note in _accountant(found).notes)
        say(f"added to {self.ledger} as entry {last.id}: {run}", *notes)
        if earlier is not None:
            when = f" of {earlier.on}" if earlier.on else ""
            say(
                f"warning: entry {earlier.id}{when} is the same run; if it was added twice: checkin ledger remove "
                f"{self.ledger} {last.id}"
            )
        for missing, its in _without(before, found):
            say(
                f"warning: {self.trained} came after {missing.in_words}, {its.description}, of the same clients: no "
                f"entry of {self.ledger} that counts is this run; add it, too"
            )


def _without(
    before: Iterable[tuple[CheckInProtocol, Randomizer]], found: LedgerFile
) -> list[tuple[CheckInProtocol, Randomizer]]:
    """Earlier runs that are no counted entry of a ledger, the last entry apart, which is the run that came after."""
    kept = [pair for each in found.counted[:-1] for pair in each.runs]
    missing = []
    for pair in before:
        if pair in kept:
            kept.remove(pair)
        else:
            missing.append(pair)
    return missing


@dataclasses.dataclass(kw_only=True)
class LedgerList(JsonOption):
    """Lists the entries of a ledger, including removed ones: number, date, run and author.

    Attributes:
      ledger: the file.

    Examples:
      checkin ledger list fleet.json
    """

    ledger: Path = dataclasses.field(kw_only=False)

    def run(self) -> None:
        """Prints the entries."""
        found = _read(self.ledger)
        if self.json:
            entries = [
                {**dataclasses.asdict(each), "description": each.description, "num_rounds": each.num_rounds}
                for each in found.entries
            ]
            target = {"delta": found.delta, "target_epsilon": found.epsilon}
            print(json.dumps({**target, "entries": entries}, allow_nan=False))
            return
        rows = [(str(each.id), each.on or "unknown", each.by, each.told) for each in found.entries]
        say(columns([("entry", "on", "by", "run"), *rows], " ", (5, 10, 8), terminal_width()))


@dataclasses.dataclass(kw_only=True)
class LedgerRemove(WhoOptions):
    """Removes an entry from a ledger, such as a run that was added twice; the file keeps both entry and removal.

    Attributes:
      ledger: the file.
      entry: number of the entry, as checkin ledger list prints it.

    Examples:
      checkin ledger remove fleet.json 3 --note 'added twice'
    """

    ledger: Path = dataclasses.field(kw_only=False)
    entry: int = dataclasses.field(kw_only=False)

    def run(self) -> None:
        """Removes the entry."""
        from checkin_jax.accounting.interop import ledger_file

        _read(self.ledger)

        found = ledger_file.remove(self.ledger, self.entry, note=self.note, by=self.who)
        gone = found.entries[self.entry - 1]
        say(
            f"removed from {self.ledger}: entry {gone.id}, {gone.description}",
            f"entries that count: {len(found.counted)}",
        )


@dataclasses.dataclass(kw_only=True)
class LedgerShow(JsonOption, BoundsOption):
    """Prints the guarantee of all runs of a ledger together, and the remainder of its target; writes nothing.

    Attributes:
      ledger: the file, made by checkin ledger add or from `CheckInAccountant.state_dict()`.
      delta: delta of the guarantee, in [1e-300, 1]. Default: the ledger's own.
      attack: also print attack terms: true positive rates, advantage, mu, posterior beliefs; doubles the time.
      verbose: also print the full statement: every run, who is protected from whom, theorems and assumptions. --json
        has it anyway.

    Examples:
      checkin ledger show fleet.json
      checkin ledger show fleet.json --json
    """

    ledger: Path = dataclasses.field(kw_only=False)
    delta: float | None = None
    attack: bool = False
    verbose: bool = False

    def run(self) -> None:
        """Accounts for everything in the file."""
        found = _read(self.ledger)
        delta, noted = _delta(found, self.delta)
        accountant = _accountant(found, bounds_of(self.bounds))
        if self.bounds == "fast":
            noted = [*noted, QUICK]

        g = _guarantee(found, accountant, delta, attack=self.attack)
        left = _left(found, accountant, delta)
        if self.json:
            target = {"target_epsilon": found.epsilon, "rounds_left": left, "weeks_left": _weeks(found, left)}
            print(json.dumps({**g.as_dict(), **target}, allow_nan=False))
        elif self.verbose:
            say(g.statement(attack=self.attack), *_left_words(found, left), *named(g))
        else:
            terms = () if g.attack is None else (f"{name}: {text}" for name, text in g.attack.lines)
            notes = [f"note: {note}" for note in (*g.warnings, *noted)]
            entries = [f"{each.id}, {each.on or 'no date'}: {each.told}" for each in found.counted]
            say(g.headline, *_left_words(found, left), "", *entries, *terms, *notes, "", MORE)


def _delta(found: LedgerFile, asked: float | None) -> tuple[float, list[str]]:
    """(delta, notes about it) of a guarantee."""
    from checkin_jax.accounting.account import MIN_DELTA

    if asked is None:
        return (_DELTA, [_NO_DELTA]) if found.delta is None else (found.delta, [])
    delta = _validate.real(MIN_DELTA, 1, delta=asked)
    other = found.delta not in (None, delta)
    return delta, [f"the ledger's own delta is {found.delta!r}"] if other else []


def _guarantee(
    found: LedgerFile, accountant: CheckInAccountant, delta: float, *, attack: bool
) -> LedgerGuarantee:
    """Guarantee of a ledger; UsageError for an empty ledger, or bounds that do not apply."""
    if not found.counted:
        raise UsageError(f"{found.path}: no entry that counts: expected a run that was not removed")
    try:
        return accountant.guarantee(delta, attack=attack)
    except ValueError as error:
        raise UsageError(f"{found.path}: {error}") from error


def _left(
    found: LedgerFile, accountant: CheckInAccountant, delta: float, view: str | None = None
) -> int | None:
    """Number of further rounds like those of the last run within the target; None without a target or such a run.

    view: of these rounds; None: the last run's own.
    """
    runs = [each.unit for each in found.counted if each.unit is not None]
    if found.epsilon is None or not runs:
        return None
    last, _ = runs[-1]
    target = {"target_epsilon": found.epsilon, "target_delta": delta}
    return accountant.rounds_left(last.protocol, last.randomizer, view=view or last.view, **target)


def _left_words(found: LedgerFile, left: int | None) -> list[str]:
    if left is None or found.epsilon is None:
        return []
    last = next(each for each in reversed(found.counted) if each.unit is not None)
    weeks = _weeks(found, left)
    whole = f"{down(left / max(last.num_rounds, 1), 3)} times its {counted(last.num_rounds, 'round')}"
    if weeks is not None:
        many = down(weeks, 3) if weeks < 100.0 else f"{math.floor(weeks):,}"
        whole = f"or {many} weeks at {found.rounds_a_week:.4g} rounds a week, as the entries' days tell"
    # No log has more rounds, so that no more of them were tried.
    least = "at least " if left >= MAX_LOG_ROUNDS else ""
    rounds = f"{least}{counted(left, 'round')}"
    return [f"left of epsilon {found.epsilon:g} for runs like entry {last.id}: {rounds}, {whole}"]


def _weeks(found: LedgerFile, left: int | None) -> float | None:
    """Weeks that so many rounds take at the rate of the entries; None if their days do not tell it."""
    pace = found.rounds_a_week
    return None if left is None or not pace else left / pace


def print_budget(path: Path, *, as_json: bool) -> None:
    """Prints the epsilon that a ledger has spent, and the remainder, without notes or names: `checkin budget`."""
    from checkin_jax.accounting.guarantee import without_parentheses
    from checkin_jax.reports import render
    from checkin_jax.reports.record import beliefs

    found = _read(path)
    delta, notes = _delta(found, None)
    accountant = _accountant(found)
    g = _guarantee(found, accountant, delta, attack=True)
    # Views that differ are named where it says against whom.
    notes = [*(each for each in g.warnings if each not in accountant.notes), *notes]
    left = _left(found, accountant, delta)
    days = sorted(each.on for each in found.counted if each.on is not None)
    believed = beliefs(g)
    told: dict[str, Any] = {
        "runs": len(found.counted),
        "rounds": sum(each.num_rounds for each in found.counted),
        "first": days[0] if days else None,
        "last": days[-1] if days else None,
        "against": g.against,
        "delta": g.delta,
        "target_epsilon": found.epsilon,
        "spent": g.epsilon,
        "left": None if found.epsilon is None else max(found.epsilon - g.epsilon, 0.0),
        "rounds_left": left,
        "weeks_left": _weeks(found, left),
        "beliefs": {f"{prior:g}": most for prior, most in believed.items()},
    }
    if as_json:
        print(json.dumps(finite(told), allow_nan=False))
        return
    about = {"told": told, "g": g, "believed": believed, "notes": notes, "left": _left_words(found, left)}
    say(render.text("ledger_budget.txt", against=without_parentheses(g.against), **about))


def recorded(
    path: Path,
    delta: float | None,
    bounds: str | tuple[str, ...],
    deployment: Deployment | None,
    *,
    attack: bool = False,
) -> Record:
    """Reads a ledger, accounts for it and builds the record of its page and statement.

    attack: True to include attack terms of every view; else only of the view that may be relied on.
    """
    from checkin_jax.reports import declarations, subjects
    from checkin_jax.reports.record import sentence

    kept = _read(path)
    delta, notes = _delta(kept, delta)
    found, others = in_views(kept, bounds)
    said = declarations.Deployment() if deployment is None else deployment
    relied_on = said.view or "local"
    views = {each.unit[0].view for each in kept.counted if each.unit is not None}
    # The remainder of the target is that of the view that may be relied on.
    trusted = {declarations.COMPOSED: found, **others}.get(relied_on, found if views == {relied_on} else None)
    view = None if relied_on == declarations.COMPOSED else relied_on
    left = None if trusted is None else _left(kept, trusted, delta, view)
    made = subjects.of_ledger(
        path.stem,
        found.guarantee(delta, attack=delta < 1 and (attack or relied_on not in others)),
        {
            view: each.guarantee(delta, attack=delta < 1 and (attack or view == relied_on))
            for view, each in others.items()
        },
        ledger=kept,
        deployment=said,
    )
    return dataclasses.replace(
        made,
        left="".join(map(sentence, _left_words(kept, left))),
        state=(*made.state, *map(sentence, notes)),
        files=declarations.digests([path]),
    )


def _read(path: Path) -> LedgerFile:
    """Reads a ledger file; UsageError if it is none. An incomplete last line is reported."""
    from checkin_jax.accounting.interop import ledger_file

    if path.suffix == ".toml":
        raise UsageError(f"{path}: a ledger is a JSON file; is it a plan? Then: checkin plan {path}")
    found = ledger_file.read(path)
    if found.torn:
        say(
            f"{path}: the last line is incomplete and does not count; look which run it was, and add it again",
            to=sys.stderr,
        )
    return found


def _accountant(
    found: LedgerFile, bounds: str | tuple[str, ...] = "best", view: str | None = None
) -> CheckInAccountant:
    """Accountant of all counted entries of a ledger; view: replaces the view of every entry.

    Raises:
      ValueError: the neighboring relation has no bound in the view.
    """
    from checkin_jax.accounting.interop.accountant import CheckInAccountant, NeighboringRelation, any_views

    state = found.state
    if view is not None:
        state["ledger"] = [{**each, "view": view} for each in state["ledger"]]
    accountant = CheckInAccountant(NeighboringRelation[found.neighboring_relation], bounds=bounds)
    with any_views():  # that they differ is printed with the ledger's other notes
        accountant.load_state_dict(state)
    return accountant


def in_views(
    found: LedgerFile, bounds: str | tuple[str, ...]
) -> tuple[CheckInAccountant, dict[str, CheckInAccountant]]:
    """(accountant, others): the ledger, and for every other view with a bound the ledger with all entries in it.

    `others` is empty if the ledger has events of a trusted server.
    """
    whole, others = _accountant(found, bounds), {}
    state = found.state
    if state["central"] or state["non_private"]:
        return whole, {}
    for view in VIEWS:
        if any(each["view"] != view for each in state["ledger"]):
            with contextlib.suppress(ValueError):  # the relation has no bound in this view
                others[view] = _accountant(found, bounds, view)
    return whole, others
