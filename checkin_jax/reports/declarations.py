"""The deployer's declarations about a run, facts that no program can know, from a table of a TOML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checkin_jax import _validate
from checkin_jax._files import checked_table, read_toml
from checkin_jax.protocols import VIEWS
from checkin_jax.protocols.protocol import MAX_CLIENTS

# Stands for the views of a ledger's entries, if these differ.
COMPOSED = "as composed"
# File of declarations in a run's folder.
FILE = "deployment.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A declaration that an assumption was checked.

    Attributes:
      assumption: its first words, as printed on the page, enough to identify it.
      by: who checked it.
      on: date of the check, optionally with the method.
    """

    assumption: str
    by: str
    on: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about a statement, as a deployer declares it.

    Attributes:
      outcome: "accepted", "refused" or "accepted on conditions".
      by: who decided. on: date.
      reason: of a refusal, or the conditions.
      version: version of the page that was decided about.
    """

    outcome: str
    by: str
    on: str = ""
    reason: str = ""
    version: str = ""


OUTCOMES = ("accepted", "refused", "accepted on conditions")


def _asked(words: str) -> Any:
    """A field of `Deployment` that a page asks for in these words."""
    return dataclasses.field(default=None, metadata={"asked": words})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """The deployer's declarations, one sentence each; None: undeclared, which the page says, leaving a blank.

    Attributes:
      operator: who deploys the run and is responsible for the page. contact: address for questions.
      purpose: use of the result.
      view: "local", "messages" or "aggregate": the adversary of the deployment; "as composed": for each run
        of a ledger the view that the ledger states.
      trusted: the party that removes names, or adds up messages.
      message: first words of the kind of message in use; only a plan of several leaves it open.
      num_clients: total number of clients, if it exceeds the number that takes part at once.
      client: what one client is: a person, an account, a device; and whether a person may be several clients.
      data: content of a client's record, and its collection.
      tuning: how settings were chosen, and on whose data.
      evaluation: the data on which the result was measured.
      other_releases: other past and future releases about the same clients.
      released_to: recipients of the result.
      security: who can read the contents of devices and servers.
      side_channels: measures about timing, sizes, logs and faults.
      audit: scope, method and findings of an audit.
      code: where the code of clients and server can be read.
      utility: quality of the result, also for small groups of people.
      checked: checks of assumptions.
      decision: what was decided about the statement.
    """

    operator: str | None = _asked("Operator")
    contact: str | None = _asked("Contact")
    purpose: str | None = _asked("Purpose")
    view: str | None = _asked("View that applies")
    trusted: str | None = _asked("Who is trusted")
    message: str | None = _asked("Message in use")
    num_clients: int | None = _asked("Clients in all")
    client: str | None = _asked("What a client is")
    data: str | None = _asked("What a record holds")
    tuning: str | None = _asked("Tuning")
    evaluation: str | None = _asked("Evaluation")
    other_releases: str | None = _asked("Other releases")
    released_to: str | None = _asked("Recipients")
    security: str | None = _asked("Security and access")
    side_channels: str | None = _asked("Side channels")
    audit: str | None = _asked("Audit")
    code: str | None = _asked("Where the code is")
    utility: str | None = _asked("Utility and bias")
    checked: tuple[Checked, ...] = ()
    decision: Decision | None = None

    def checks(self, assumptions: Iterable[str]) -> list[tuple[Checked, ...]]:
        """The checks of each assumption; empty: not checked.

        Raises:
          ValueError: a check whose words begin no assumption, or several.
        """
        listed = list(assumptions)
        found: list[list[Checked]] = [[] for _ in listed]
        for each in self.checked:
            fits = [i for i, one in enumerate(listed) if one.startswith(each.assumption)]
            fits = [i for i in fits if listed[i] == each.assumption] or fits
            if len(fits) != 1:
                how_many = f"{len(fits)} assumptions begin" if fits else "no assumption begins"
                raise ValueError(
                    f"checked: {how_many} {_validate.shown(each.assumption)}: expected the first words of one"
                )
            found[fits[0]].append(each)
        return [tuple(each) for each in found]


# Declarations by key, as a page names them.
QUESTIONS = {
    field.name: field.metadata["asked"] for field in dataclasses.fields(Deployment) if field.metadata
}
_OTHERS = ("checked", "decision", "num_clients")
_TEXTS = tuple(name for name in QUESTIONS if name not in _OTHERS)
_NAME = "deployment"


def of_table(table: Any) -> Deployment:
    """Declarations of a table [deployment], as read from TOML.

    Raises:
      ValueError, TypeError: an unknown name, or a value that is not text; the message names it.
    """
    known = (*_TEXTS, *_OTHERS)
    for name, value in checked_table(_NAME, table, known).items():
        if name in _TEXTS and (not isinstance(value, str) or not value.strip()):
            raise TypeError(f"[{_NAME}] {name}={_validate.shown(value)}: expected a text")
    if "view" in table:
        _validate.choice((*VIEWS, COMPOSED), view=table["view"])
    found: dict[str, Any] = dict(table)
    if "num_clients" in table:
        found["num_clients"] = _validate.integer(1, MAX_CLIENTS, num_clients=table["num_clients"])
    rows = table.get("checked", [])
    if not isinstance(rows, list):
        raise TypeError(f"[{_NAME}] checked={_validate.shown(rows)}: expected [[{_NAME}.checked]]")
    if "decision" in table:
        found["decision"] = _decision(table["decision"])
    checks = (_texts(f"[{_NAME}.checked]", row, Checked, ("assumption", "by")) for row in rows)
    return Deployment(**{**found, "checked": tuple(Checked(**texts) for texts in checks)})


def _decision(table: Any) -> Decision:
    found = Decision(**_texts(f"{_NAME}.decision", table, Decision, ("outcome", "by")))
    _validate.choice(OUTCOMES, outcome=found.outcome)
    if found.outcome != OUTCOMES[0] and not found.reason:
        raise ValueError(f"[{_NAME}.decision] outcome={found.outcome!r} needs a reason")
    if found.on:
        _validate.day(on=found.on)
    return found


def _texts(name: str, table: Any, kind: type, needed: tuple[str, ...]) -> dict[str, str]:
    """Values of a table as texts; ValueError, with the name of the table, where a needed one is missing."""
    names = [field.name for field in dataclasses.fields(kind)]
    return {key: str(value) for key, value in checked_table(name, table, names, needed).items()}


def read(path: Path) -> Deployment:
    """Declarations in a TOML file with the table [deployment]; other tables are allowed.

    Raises:
      ValueError: not TOML, no such table, or a wrong name or value; the message names the file.
      OSError: it cannot be read.
    """
    tables = read_toml(path)
    try:
        if _NAME not in tables:
            raise ValueError(f"expected a table [{_NAME}]")
        return of_table(tables[_NAME])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
