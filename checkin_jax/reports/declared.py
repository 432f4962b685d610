"""What whoever deploys a run declares about it: all that no program can know, from a table of a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from checkin_jax import _validate
from checkin_jax._files import naming
from checkin_jax._suggest import did_you_mean
from checkin_jax.protocols import VIEWS
from checkin_jax.protocols.protocol import MAX_CLIENTS

# The views that a ledger's own entries name, where they differ.
COMPOSED = "as composed"
# The file of declarations in a run's folder.
FILE = "deployment.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """Somebody's word that an assumption holds.

    Attributes:
      assumption: its first words, as the page prints them: so many that no other begins with them.
      by: who checked it.
      on: when, and how, if that is to be said.
    """

    assumption: str
    by: str
    on: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """The deployer's declarations, a sentence each; None: not declared, which the page says and leaves room for.

    Attributes:
      operator: who deploys the run and answers for this page. contact: where to ask.
      purpose: what the result is for.
      view: "local", "messages" or "aggregate": which adversary there is; "as composed": of each run of a ledger the
        one that the ledger names.
      trusted: who it is that removes names, or adds up.
      message: first words of the kind of message that is used, where a plan has several.
      num_clients: how many clients there are in all, where more of them take part than at once.
      client: what one client is: a person, an account, a device; and whether somebody may be several.
      data: what a client's record holds, and how it is collected.
      tuning: how settings were chosen, and on whose data.
      evaluation: which data measured the result.
      other_releases: what else was or will be released about the same clients.
      released_to: who gets the result.
      security: who can read what devices and servers hold.
      side_channels: what was done about timing, sizes, logs and faults.
      audit: what was audited, how, and what was found.
      code: where the code that runs can be read, on clients and on the server.
      utility: how good the result is, for groups of few people, too.
      checked: who checked which assumption.
    """

    operator: str | None = None
    contact: str | None = None
    purpose: str | None = None
    view: str | None = None
    trusted: str | None = None
    message: str | None = None
    num_clients: int | None = None
    client: str | None = None
    data: str | None = None
    tuning: str | None = None
    evaluation: str | None = None
    other_releases: str | None = None
    released_to: str | None = None
    security: str | None = None
    side_channels: str | None = None
    audit: str | None = None
    code: str | None = None
    utility: str | None = None
    checked: tuple[Checked, ...] = ()

    def checks(self, assumptions: Iterable[str]) -> list[tuple[Checked, ...]]:
        """Who checked each assumption; empty: nobody.

        Raises:
          ValueError: a check that begins as none of the assumptions does, or as several do.
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


def blanks(said: Deployment) -> tuple[str, ...]:
    """Names of the questions that nobody has answered, but for those that not every subject has."""
    names = (field.name for field in dataclasses.fields(said))
    asked = (name for name in names if name not in ("checked", "message", "num_clients"))
    return tuple(name.replace("_", " ") for name in asked if getattr(said, name) is None)


_OTHERS = ("checked", "num_clients")
_TEXTS = tuple(field.name for field in dataclasses.fields(Deployment) if field.name not in _OTHERS)
_NAME = "deployment"


def of_table(table: Any) -> Deployment:
    """The declarations of a table [deployment], as tomllib reads it.

    Raises:
      ValueError, TypeError: a name that is none, or a value that is no text; it is named.
    """
    known = (*_TEXTS, *_OTHERS)
    for name, value in _mapping(_NAME, table, known).items():
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
    return Deployment(**{**found, "checked": tuple(map(_checked, rows))})


def _checked(row: Any) -> Checked:
    names = tuple(field.name for field in dataclasses.fields(Checked))
    texts = {name: str(value) for name, value in _mapping(f"[{_NAME}.checked]", row, names).items()}
    for name in ("assumption", "by"):
        if not texts.get(name, "").strip():
            raise ValueError(f"[[{_NAME}.checked]] needs {name}")
    return Checked(**texts)


def _mapping(name: str, table: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(table, dict):
        raise TypeError(f"expected a table [{name}]")
    for key in table:
        if key not in known:
            raise ValueError(f"[{name}] has no {key}{did_you_mean(key, known)}")
    return table


def read(path: Path) -> Deployment:
    """The declarations in a TOML file that has the table [deployment], and perhaps others.

    Raises:
      ValueError: no TOML, no such table, or a name or value that is wrong; the file is named.
      OSError: it cannot be read.
    """
    with naming(path):
        content = path.read_bytes()
    try:
        tables = tomllib.loads(content.decode("utf-8"))
        if _NAME not in tables:
            raise ValueError(f"expected a table [{_NAME}]")
        return of_table(tables[_NAME])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
