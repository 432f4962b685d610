"""The deployer's declarations about a run, facts that no program can know, from a table of a TOML file; and evidence.

The evidence behind a page: hashes of its source files, their common identity, and the findings of an audit.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from checkin_jax import _validate
from checkin_jax._files import checked_table, naming, read_object, read_toml, replacing, undamaged
from checkin_jax._rounding import down, up
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
    made = tuple(Checked(**texts) for texts in checks)
    for each in made:
        if begun := re.match(r"\d{4}-\d{2}-\d{2}", each.on):
            _validate.day(on=begun[0])
    return Deployment(**{**found, "checked": made})


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


AUDIT = "audit.json"
_DIGITS = 16


class Digest(NamedTuple):
    """The SHA-256 of a file's bytes, in hexadecimal digits."""

    name: str
    sha256: str


def digests(paths: Iterable[Path]) -> tuple[Digest, ...]:
    """Hashes of the existing files among the paths; OSError, with the name, if one cannot be read."""
    found = []
    for path in paths:
        if path.is_file():
            with naming(path), path.open("rb") as file:
                found.append(Digest(path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return tuple(found)


def identity(files: Sequence[Digest], terms: str = "") -> str:
    """Sixteen digits of the SHA-256 of the files' names and hashes, independent of their folder, and of the terms."""
    text = "".join(f"{each.name} {each.sha256}\n" for each in files) + terms
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def keep_audit(folder: Path, found: dict[str, Any]) -> Path:
    """Writes an audit's findings with today's date (UTC) atomically into the run's folder;
    returns the path.
    """
    out = folder / AUDIT
    dated = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **found}
    with replacing(out) as stream:
        stream.write(f"{json.dumps(dated, indent=1, allow_nan=False)}\n".encode())
    return out


def audit_of(folder: Path) -> dict[str, Any] | None:
    """Findings of the last audit of a run; None: there was none.

    Raises:
      ValueError: the file is damaged. OSError: it cannot be read.
    """
    path = folder / AUDIT
    if not path.is_file():
        return None
    found = read_object(path)
    with undamaged(path):
        texts, numbers = [found["version"]], [found["confidence"]]
        for each in found["findings"]:
            texts += [each[name] for name in ("test", "view", "evidence")]
            epsilon = each["certified"]["epsilon"]
            numbers += [each["delta"], each["audit_lower"], 0.0 if epsilon is None else epsilon]
        for kind, values in ((str, texts), (int | float, numbers), (bool, [found["passed"]])):
            if not all(isinstance(value, kind) for value in values):
                raise ValueError("expected the findings of an audit")
        datetime.date.fromisoformat(found["date"])
    return found


def audited(found: dict[str, Any] | None) -> tuple[str, ...]:
    """Findings returned by `audit_of`, one sentence each; empty without an audit."""
    if found is None:
        return ()
    verdict = (
        "no attack proved more than is certified, which is no proof of privacy"
        if found["passed"]
        else "VIOLATION: an attack proved that more leaks than is certified, or clients are not where the protocol "
        "puts them"
    )
    return (
        f"The code of checkin-jax {found['version']} was attacked by checkin audit on {found['date']}: {verdict} "
        f"(confidence {found['confidence']:g}).",
        *(
            f"{each['test']}, view {each['view']}: epsilon at least {down(each['audit_lower'], 4)}, certified at most "
            f"{'infinity' if each['certified']['epsilon'] is None else up(each['certified']['epsilon'], 4)}, at delta "
            f"{each['delta']!r} ({each['evidence']})."
            for each in found["findings"]
        ),
    )
