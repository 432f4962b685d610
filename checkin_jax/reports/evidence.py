"""Evidence behind a page: hashes of its source files, their common identity, and the findings of an audit."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from checkin_jax._files import naming, read_object, replacing, undamaged
from checkin_jax._rounding import down, up

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
