"""Saving and loading of the composed events as plain data, under a schema version."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax._serialize import from_plain, to_plain
from checkin_jax._version import __version__
from checkin_jax.accounting.interop import central
from checkin_jax.accounting.interop.events import CheckInDpEvent, ProtocolUnit, to_unit, unit_event
from checkin_jax.protocols import MAX_ROUNDS, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer

# Raised whenever the meaning of a saved field changes; other versions are refused.
SCHEMA = 3


def entry(unit: ProtocolUnit, count: int) -> dict[str, Any]:
    """A run as plain values, for JSON: its unit, and the number of its repetitions."""
    described = {"protocol": to_plain(unit.protocol), "randomizer": to_plain(unit.randomizer)}
    return {**described, "view": unit.view, "count": count}


def state_of(
    runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], non_private: bool, relation: str
) -> dict[str, Any]:
    """A ledger as plain values: its entries of check-ins, and of other events."""
    named = {"schema": SCHEMA, "version": __version__, "neighboring_relation": relation}
    return {**named, "non_private": non_private, "ledger": runs, "central": others}


def save(
    counts: Mapping[CheckInDpEvent, int],
    others: Mapping[DpEvent, int],
    non_private: bool,
    neighboring_relation: str,
) -> dict[str, Any]:
    """The ledger as plain values, for JSON."""
    runs = [entry(to_unit(event), count) for event, count in counts.items()]
    more = [{"event": central.to_plain(event), "count": count} for event, count in others.items()]
    return state_of(runs, more, non_private, neighboring_relation)


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
    for run in state["ledger"]:
        expected = {"protocol", "randomizer", "view", "count"}
        if not isinstance(run, Mapping) or set(run) != expected:
            keys = sorted(map(str, run)) if isinstance(run, Mapping) else run
            raise ValueError(f"ledger entry {_validate.shown(keys)}: expected {sorted(expected)}")
        view = _validate.choice(VIEWS, view=run["view"])
        # Fields that did not exist when the entry was written have their defaults, which change nothing.
        protocol = from_plain(run["protocol"], CheckInProtocol, complete=False)
        randomizer = from_plain(run["randomizer"], Randomizer, complete=False)
        event = unit_event(protocol, randomizer, view)
        if event.protocol != protocol:
            raise _validate.error("a single unit; `count` says how many", protocol=run["protocol"])
        counts[event] += _validate.integer(1, MAX_ROUNDS, count=run["count"])
    for other in state["central"]:
        if not isinstance(other, Mapping) or set(other) != {"event", "count"}:
            raise ValueError(f"central entry {_validate.shown(other)}: expected ['count', 'event']")
        event = central.from_plain(other["event"])
        others[event] += _validate.integer(1, MAX_ROUNDS, count=other["count"])
    return counts, others, state["non_private"]
