"""`checkin ledger add`, `show` and `report`: several runs of the same clients as one guarantee, from a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from checkin_jax import _validate
from checkin_jax._files import hold, naming, replacing
from checkin_jax.cli.accounting import MORE, named
from checkin_jax.cli.options import QUICK, JsonOption, Relation, RunOptions, View, bounds_of
from checkin_jax.cli.pages import say, write_page
from checkin_jax.cli.parsing import UsageError
from checkin_jax.protocols import VIEWS

if TYPE_CHECKING:
    from checkin_jax.accounting.interop.accountant import CheckInAccountant

_RELATIONS = {"replace-one": "REPLACE_ONE", "add-or-remove-one": "ADD_OR_REMOVE_ONE"}


@dataclasses.dataclass(kw_only=True)
class LedgerAdd(RunOptions):
    """Adds a run to a ledger: a file with all that the same clients took part in; it is made if it is not there.

    Attributes:
      ledger: the file.
      view: what the adversary sees of this run: messages without names, sums only (aggregate), or a client's own
        messages with its name (local).
      neighboring_relation: which data sets are compared: one choice for the whole file.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "fleet.json --num-clients 60000 --check-in-prob 0.1 --num-rounds 1000 --epsilon0 2",
    )

    ledger: Path = dataclasses.field(kw_only=False)
    view: View = "messages"
    neighboring_relation: Relation = "replace-one"

    def run(self) -> None:
        """Adds the run to the file."""
        from checkin_jax.accounting.bounds.choice import check_relation
        from checkin_jax.accounting.interop.events import to_event

        protocol, randomizer = self.build_protocol(), self.build_randomizer()
        event = to_event(protocol, randomizer, view=self.view)
        check_relation(protocol, self.view, self.neighboring_relation)
        name = _RELATIONS[self.neighboring_relation]
        if self.ledger.exists():
            _read(self.ledger, name)

        with _alone(self.ledger):
            # As it is now: another process may have added to it.
            latest = _read(self.ledger, name) if self.ledger.exists() else _accountant(name)
            with _told_below():
                latest.compose(event)
            with replacing(self.ledger) as file:
                text = json.dumps(latest.state_dict(), indent=1, allow_nan=False)
                file.write(f"{text}\n".encode())
        added = f"added to {self.ledger}: {protocol.what}; {randomizer.words}; view {self.view!r}"
        say(added, *(f"note: {note}" for note in latest.notes))


@dataclasses.dataclass(kw_only=True)
class LedgerShow(JsonOption):
    """Shows what all runs of a ledger promise together, both ends; writes nothing.

    Attributes:
      ledger: the file, made by checkin ledger add or from `CheckInAccountant.state_dict()`.
      delta: delta of the guarantee, in [1e-300, 1].
      bounds: theorems to use: best (all that apply), fast (those of a few hundredths of a second), or labels: T1,T1+.
      attack: also say what an attacker can do: rates, advantage, mu, beliefs; takes about as long again.
      verbose: also print the whole statement: every run, who is protected from whom, theorems and assumptions.
    """

    examples: ClassVar[tuple[str, ...]] = ("fleet.json --delta 1e-6", "fleet.json --json")

    ledger: Path = dataclasses.field(kw_only=False)
    delta: float = 1e-6
    bounds: str = "best"
    attack: bool = False
    verbose: bool = False

    def run(self) -> None:
        """Accounts for everything in the file."""
        from checkin_jax.accounting.account import MIN_DELTA

        delta = _validate.real(MIN_DELTA, 1, delta=self.delta)
        state = _state(self.ledger)
        accountant = _loaded(self.ledger, state, state.get("neighboring_relation"), bounds_of(self.bounds))

        try:
            found = accountant.guarantee(delta, attack=self.attack)
        except ValueError as error:  # an empty ledger, labels of theorems that do not apply
            raise UsageError(f"{self.ledger}: {error}") from error
        if self.json:
            print(json.dumps(found.as_dict(), allow_nan=False))
        elif self.verbose:
            say(found.statement(attack=self.attack), *named(found))
        else:
            terms = () if found.terms is None else (f"{name}: {text}" for name, text in found.terms.lines)
            noted = [f"note: {note}" for note in found.warnings]
            noted += [f"note: {QUICK}"] if self.bounds == "fast" else []
            say(found.headline, "", *found.composed, *terms, *noted, "", MORE)


@dataclasses.dataclass(kw_only=True)
class LedgerReport:
    """Writes one HTML page about a ledger: what it promises, what guidelines ask, who checked what.

    What a file of declarations may hold is said by checkin report --help.

    Attributes:
      ledger: the file.
      out: where the page goes; left out: beside the file, with .html after its name. A page about something else stays.
      deployment: TOML file with the table [deployment]: what the deployer declares.
      delta: delta of the guarantee, in [1e-300, 1].
      bounds: theorems to use: best (all that apply), fast (those of a few hundredths of a second), or labels: T1,T1+.
    """

    examples: ClassVar[tuple[str, ...]] = ("fleet.json --delta 1e-8 --deployment deployment.toml",)

    ledger: Path = dataclasses.field(kw_only=False)
    out: Path | None = None
    deployment: Path | None = None
    delta: float = 1e-6
    bounds: str = "best"

    def run(self) -> None:
        """Accounts for everything in the ledger and writes the page."""
        from checkin_jax.accounting.account import MIN_DELTA
        from checkin_jax.reports import declared, evidence, subjects
        from checkin_jax.reports.declared import Deployment
        from checkin_jax.reports.record import Record

        deployment = Deployment() if self.deployment is None else declared.read(self.deployment)
        delta = _validate.real(MIN_DELTA, 1, delta=self.delta)
        found, others = _in_views(self.ledger, bounds_of(self.bounds))
        relied_on = deployment.view or "local"

        def made() -> Record:
            return subjects.of_ledger(
                self.ledger.stem,
                found.guarantee(delta, attack=delta < 1 and relied_on not in others),
                {
                    view: each.guarantee(delta, attack=delta < 1 and view == relied_on)
                    for view, each in others.items()
                },
                files=evidence.digests([self.ledger]),
                source=self.ledger.resolve().name,
                deployment=deployment,
            )

        write_page(self.ledger, self.out, made, self.deployment)


def _accountant(relation: str, bounds: str | tuple[str, ...] = "best") -> CheckInAccountant:
    from checkin_jax.accounting.interop.accountant import CheckInAccountant, NeighboringRelation

    return CheckInAccountant(NeighboringRelation[relation], bounds=bounds)


def _state(path: Path) -> dict[str, Any]:
    """What the file says; UsageError unless that is an object of JSON."""
    try:
        with naming(path):
            state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: no ledger: {error}") from error
    if not isinstance(state, dict):
        raise UsageError(f"{path}: no ledger: {_validate.shown(state)} is no object")
    return state


def _loaded(path: Path, state: dict[str, Any], relation: Any, bounds: Any = "best") -> CheckInAccountant:
    wrong = None
    if "neighboring_relation" not in state:
        wrong = "expected a file made by checkin ledger add, or from CheckInAccountant.state_dict()"
    elif relation not in _RELATIONS.values():
        wrong = (
            f"neighboring_relation={_validate.shown(relation)}: expected {' or '.join(_RELATIONS.values())}"
        )
    if wrong is not None:
        raise UsageError(f"{path}: no ledger: {wrong}")
    accountant = _accountant(relation, bounds)
    try:
        with _told_below():
            accountant.load_state_dict(state)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}: no ledger: {error}") from error
    return accountant


def _in_views(
    path: Path, bounds: str | tuple[str, ...]
) -> tuple[CheckInAccountant, dict[str, CheckInAccountant]]:
    """The ledger of a file, and view -> the same as if all of it were seen in that view, for those views that have a
    bound and are not the ledger's own; none of them where a trusted server's events are in it.

    Raises:
      UsageError: it is no ledger.
    """
    state = _state(path)
    relation = state.get("neighboring_relation")
    whole, others = _loaded(path, state, relation, bounds), {}
    entries = state["ledger"]
    if state["central"] or state["non_private"]:
        return whole, {}
    for view in VIEWS:
        if any(entry["view"] != view for entry in entries):
            seen = {**state, "ledger": [{**entry, "view": view} for entry in entries]}
            with contextlib.suppress(UsageError):  # the relation has no bound in this view
                others[view] = _loaded(path, seen, relation, bounds)
    return whole, others


def _read(path: Path, relation: str) -> CheckInAccountant:
    return _loaded(path, _state(path), relation)


@contextlib.contextmanager
def _told_below() -> Iterator[None]:
    """That views differ is printed with the ledger's other notes."""
    from checkin_jax.accounting.interop.accountant import MixedViewsWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MixedViewsWarning)
        yield


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process of this command changes the file meanwhile."""
    if path.is_dir():
        raise UsageError(f"{path}: expected a file, not a folder")
    lock = path.with_name(f".{path.name}.lock")
    with naming(path, lock):
        held = hold(lock, str(path))
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        held.close()
