"""What has been composed, as plain data: the accountant's memory, saved and restored under a schema version."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from checkin_jax import _validate
from checkin_jax._version import __version__
from checkin_jax.accounting.guarantee import VIEWS
from checkin_jax.accounting.interop.events import Unit, UnitDpEvent, to_unit, unit_event
from checkin_jax.protocols import MAX_ROUNDS, PROTOCOLS
from checkin_jax.randomizers import Gaussian, PureLDP

# Raised whenever the meaning of a saved field changes; other versions are refused, never guessed at.
SCHEMA = 2


def save(counts: Mapping[UnitDpEvent, int], non_private: bool, neighboring_relation: str) -> dict[str, Any]:
    """The ledger as plain values, for JSON."""
    entries = []
    for event, count in counts.items():
        unit = to_unit(event)
        entries.append(
            {"protocol": _plain(unit.protocol), "randomizer": _plain(unit.randomizer)}
            | {"view": unit.view, "count": count}
        )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "neighboring_relation": neighboring_relation,
        "non_private": non_private,
        "ledger": entries,
    }


def load(state: Mapping[str, Any], neighboring_relation: str) -> tuple[dict[UnitDpEvent, int], bool]:
    """(counts, non_private) from `save`'s values; nothing is guessed.

    Raises:
      ValueError, TypeError: another schema version or neighboring relation, a missing or unknown field, or a value
        out of its range.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state={_validate.shown(state)}: expected a mapping made by state_dict")
    wanted = {"schema", "version", "neighboring_relation", "non_private", "ledger"}
    if set(state) != wanted:
        raise ValueError(f"state with keys {sorted(map(str, state))}: expected {sorted(wanted)}")
    if type(state["schema"]) is not int or state["schema"] != SCHEMA:
        raise ValueError(
            f"schema={state['schema']!r}: expected {SCHEMA}; saved by version {state['version']!r}"
        )
    if state["neighboring_relation"] != neighboring_relation:
        raise ValueError(
            f"neighboring_relation={state['neighboring_relation']!r}: expected {neighboring_relation!r}"
        )
    if not isinstance(state["non_private"], bool):
        raise TypeError(f"non_private={state['non_private']!r}: expected True or False")
    if not isinstance(state["ledger"], list):
        raise TypeError(f"ledger={state['ledger']!r}: expected a list of entries")
    counts: dict[UnitDpEvent, int] = {}
    for entry in state["ledger"]:
        expected = {"protocol", "randomizer", "view", "count"}
        if not isinstance(entry, Mapping):
            raise ValueError(f"ledger entry {_validate.shown(entry)}: expected {sorted(expected)}")
        if set(entry) != expected:
            keys = _validate.shown(sorted(map(str, entry)))
            raise ValueError(f"ledger entry with keys {keys}: expected {sorted(expected)}")
        view = _validate.choice(VIEWS, view=entry["view"])
        protocol = _built(entry["protocol"], PROTOCOLS)
        randomizer = _built(entry["randomizer"], (PureLDP, Gaussian))
        if protocol.repeats != 1:
            raise ValueError(f"protocol={entry['protocol']!r}: expected a single unit; `count` says how many")
        event = unit_event(Unit(protocol, randomizer, view))
        counts[event] = counts.get(event, 0) + _validate.integer(1, MAX_ROUNDS, count=entry["count"])
    return counts, state["non_private"]


def _plain(value: Any) -> dict[str, Any]:
    return {"kind": type(value).__name__, **dataclasses.asdict(value)}


def _built(plain: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(plain, Mapping):
        raise TypeError(f"{_validate.shown(plain)}: expected a mapping with the kind and its fields")
    fields = dict(plain)
    kind: Any = {each.__name__: each for each in kinds}.get(str(fields.pop("kind", "")))
    if kind is None:
        raise ValueError(
            f"kind={plain.get('kind')!r}: expected one of {', '.join(k.__name__ for k in kinds)}"
        )
    names = {field.name for field in dataclasses.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"{kind.__name__} with fields {sorted(fields)}: expected {sorted(names)}")
    return kind(**fields)
