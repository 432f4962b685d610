"""Saving and loading of the composed events as plain data, under a schema version."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax._serialize import from_plain, to_plain
from checkin_jax._version import __version__
from checkin_jax.accounting.interop import central
from checkin_jax.accounting.interop.events import CheckInDpEvent, to_unit, unit_event
from checkin_jax.protocols import MAX_ROUNDS, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer

# Raised whenever the meaning of a saved field changes; other versions are refused.
SCHEMA = 3


def save(
    counts: Mapping[CheckInDpEvent, int],
    others: Mapping[DpEvent, int],
    non_private: bool,
    neighboring_relation: str,
) -> dict[str, Any]:
    """The ledger as plain values, for JSON."""
    entries = []
    for event, count in counts.items():
        unit = to_unit(event)
        entries.append(
            {"protocol": to_plain(unit.protocol), "randomizer": to_plain(unit.randomizer)}
            | {"view": unit.view, "count": count}
        )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "neighboring_relation": neighboring_relation,
        "non_private": non_private,
        "ledger": entries,
        "central": [{"event": central.to_plain(event), "count": count} for event, count in others.items()],
    }


def load(
    state: Mapping[str, Any], neighboring_relation: str
) -> tuple[dict[CheckInDpEvent, int], dict[DpEvent, int], bool]:
    """(counts, counts of central events, non_private) from `save`'s values; nothing is guessed.

    Raises:
      ValueError, TypeError: another schema version or neighboring relation, a missing or unknown field, or a value
        out of its range.
    """
    if not isinstance(state, Mapping):
        raise _validate.type_error("a mapping made by state_dict", state=state)
    wanted = {"schema", "version", "neighboring_relation", "non_private", "ledger", "central"}
    if set(state) != wanted:
        raise ValueError(f"state with keys {sorted(map(str, state))}: expected {sorted(wanted)}")
    if type(state["schema"]) is not int or state["schema"] != SCHEMA:
        raise _validate.error(f"{SCHEMA}; saved by version {state['version']!r}", schema=state["schema"])
    if state["neighboring_relation"] != neighboring_relation:
        raise _validate.error(f"{neighboring_relation!r}", neighboring_relation=state["neighboring_relation"])
    if not isinstance(state["non_private"], bool):
        raise _validate.type_error("True or False", non_private=state["non_private"])
    for name in ("ledger", "central"):
        if not isinstance(state[name], list):
            raise TypeError(f"{name}={_validate.shown(state[name])}: expected a list of entries")
    counts, others = collections.Counter[CheckInDpEvent](), collections.Counter[DpEvent]()
    for entry in state["ledger"]:
        expected = {"protocol", "randomizer", "view", "count"}
        if not isinstance(entry, Mapping):
            raise ValueError(f"ledger entry {_validate.shown(entry)}: expected {sorted(expected)}")
        if set(entry) != expected:
            keys = _validate.shown(sorted(map(str, entry)))
            raise ValueError(f"ledger entry with keys {keys}: expected {sorted(expected)}")
        view = _validate.choice(VIEWS, view=entry["view"])
        # Fields that did not exist when the entry was written have their defaults, which change nothing.
        protocol = from_plain(entry["protocol"], CheckInProtocol, complete=False)
        randomizer = from_plain(entry["randomizer"], Randomizer, complete=False)
        event = unit_event(protocol, randomizer, view)
        if event.protocol != protocol:
            raise _validate.error("a single unit; `count` says how many", protocol=entry["protocol"])
        counts[event] += _validate.integer(1, MAX_ROUNDS, count=entry["count"])
    for entry in state["central"]:
        if not isinstance(entry, Mapping) or set(entry) != {"event", "count"}:
            raise ValueError(f"central entry {_validate.shown(entry)}: expected ['count', 'event']")
        event = central.from_plain(entry["event"])
        others[event] += _validate.integer(1, MAX_ROUNDS, count=entry["count"])
    return counts, others, state["non_private"]
