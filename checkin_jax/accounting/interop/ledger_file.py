"""The state of an accountant as plain data, and ledger files: one JSON object a line, appended and never changed.

The first line has the schema and the neighboring relation. Every further line is an entry, the removal of an entry, or
the target. Each line ends with the SHA-256 of itself and of the previous hash, so that changed, lost or moved lines are
detected. Files of `CheckInAccountant.state_dict()`, one JSON object, are read, too, and converted at the first
addition.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attr
from dp_accounting import DpEvent

from checkin_jax import _files, _validate
from checkin_jax._files import naming, object_of, replacing
from checkin_jax._serialize import from_plain, to_plain
from checkin_jax._version import __version__
from checkin_jax.accounting.account import MIN_DELTA
from checkin_jax.accounting.bounds.select import has_identical_units
from checkin_jax.accounting.interop import allocated_epochs
from checkin_jax.accounting.interop.central_mechanisms import KINDS
from checkin_jax.accounting.interop.composed_guarantee import in_words
from checkin_jax.accounting.interop.events import CheckInDpEvent, unit_event
from checkin_jax.protocols import MAX_ROUNDS, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer

# Raised whenever the meaning of a saved field changes; other versions are refused.
STATE_SCHEMA = 3


def plain_run(unit: CheckInDpEvent, count: int) -> dict[str, Any]:
    """A run as plain values, for JSON: its unit, and the number of its repetitions."""
    described = {"protocol": to_plain(unit.protocol), "randomizer": to_plain(unit.randomizer)}
    return {**described, "view": unit.view, "count": count}


def state_of(
    runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], non_private: bool, relation: str
) -> dict[str, Any]:
    """A ledger as plain values: its entries of check-ins, and of other events."""
    named = {"schema": STATE_SCHEMA, "version": __version__, "neighboring_relation": relation}
    return {**named, "non_private": non_private, "ledger": runs, "central": others}


_EVENTS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        *KINDS,
        allocated_epochs.RandomAllocationDpEvent,
        allocated_epochs.UnfinishedAllocationDpEvent,
    )
}


def event_to_plain(event: DpEvent) -> dict[str, Any]:
    """Kind and fields of a central event, for JSON."""
    fields = {field.name: getattr(event, field.name) for field in attr.fields(type(event))}
    return {
        "kind": type(event).__name__,
        **{name: _plain_value(name, value) for name, value in fields.items()},
    }


def _plain_value(name: str, value: Any) -> Any:
    if isinstance(value, DpEvent):
        return event_to_plain(value)
    if not isinstance(value, int | float):
        raise _validate.error("a DpEvent: functions and distributions are not saved", **{name: value})
    return value


def event_from_plain(plain: Any) -> DpEvent:
    """The event from `event_to_plain`'s values.

    Raises:
      ValueError: unknown kind, or other fields than those of its kind.
    """
    if not isinstance(plain, Mapping) or plain.get("kind") not in _EVENTS:
        raise _validate.error(f"a kind out of {', '.join(_EVENTS)}", event=plain)
    kind = _EVENTS[plain["kind"]]
    fields = {name: value for name, value in plain.items() if name != "kind"}
    names = {field.name for field in attr.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"{kind.__name__} with fields {sorted(map(str, fields))}: expected {sorted(names)}")
    return kind(
        **{
            name: event_from_plain(value) if isinstance(value, Mapping) else value
            for name, value in fields.items()
        }
    )


def save_state(
    counts: Mapping[CheckInDpEvent, int],
    others: Mapping[DpEvent, int],
    non_private: bool,
    neighboring_relation: str,
) -> dict[str, Any]:
    """The ledger as plain values, for JSON."""
    runs = [plain_run(event, count) for event, count in counts.items()]
    more = [{"event": event_to_plain(event), "count": count} for event, count in others.items()]
    return state_of(runs, more, non_private, neighboring_relation)


def load_state(
    state: Mapping[str, Any], neighboring_relation: str
) -> tuple[dict[CheckInDpEvent, int], dict[DpEvent, int], bool]:
    """(counts, counts of central events, non_private) from `save_state`'s values; nothing is guessed.

    Raises:
      ValueError, TypeError: another schema version or neighboring relation, a missing or unknown field, or a value
        out of its range.
    """
    if not isinstance(state, Mapping):
        raise _validate.type_error("a mapping made by state_dict", state=state)
    wanted = {"schema", "version", "neighboring_relation", "non_private", "ledger", "central"}
    if set(state) != wanted:
        raise ValueError(f"state with keys {sorted(map(str, state))}: expected {sorted(wanted)}")
    if type(state["schema"]) is not int or state["schema"] != STATE_SCHEMA:
        raise _validate.error(
            f"{STATE_SCHEMA}; saved by version {state['version']!r}", schema=state["schema"]
        )
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
        event = event_from_plain(other["event"])
        others[event] += _validate.integer(1, MAX_ROUNDS, count=other["count"])
    return counts, others, state["non_private"]


# Raised whenever the meaning of a line changes; other versions are refused. Schema 3 is that of `state_dict`.
SCHEMA = 4
RELATIONS = {"replace-one": "REPLACE_ONE", "add-or-remove-one": "ADD_OR_REMOVE_ONE"}
_REPLACE = RELATIONS["replace-one"]
# Kinds of lines, and their fields besides kind and hash.
_START, _ENTRY, _REMOVAL, _TARGET = "ledger", "entry", "removal", "target"
_FIELDS = {
    _START: {"schema", "version", "neighboring_relation"},
    _ENTRY: {"id", "on", "note", "by", "added", "ran"},
    _REMOVAL: {"id", "on", "note", "by"},
    _TARGET: {"delta", "epsilon"},
}
_HASH = "sha256"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """The removal of an entry: ISO date (UTC), reason, and author."""

    on: str
    note: str
    by: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a ledger.

    Attributes:
      id: number of the entry, from 1, never reused.
      on: ISO date of the run; None if the file has no dates.
      note: remark of the author. by: the author. added: ISO date of the addition, UTC.
      ran: the run as plain values, as one event in a saved accountant.
      removed: its removal; None if it counts.
    """

    id: int
    on: str | None
    note: str
    by: str
    added: str | None
    ran: Mapping[str, Any]
    removed: Removal | None = None

    @property
    def unit(self) -> tuple[CheckInDpEvent, int] | None:
        """(unit, number of compositions) of check-ins; None for other events."""
        counts, _, _ = load_state(_state([self], _REPLACE), _REPLACE)
        return next(iter(counts.items()), None)

    @property
    def runs(self) -> tuple[tuple[CheckInProtocol, Randomizer], ...]:
        """The run in the form of `PrivateRun.before`; empty for other events."""
        if (found := self.unit) is None:
            return ()
        unit, count = found
        if has_identical_units(unit.protocol):
            return ((unit.protocol.repeated(count), unit.randomizer),)
        return ((unit.protocol, unit.randomizer),) * count

    @property
    def num_rounds(self) -> int:
        """Number of rounds, or windows; 0 for other events."""
        if (found := self.unit) is None:
            return 0
        unit, count = found
        return unit.protocol.num_units * count

    @property
    def description(self) -> str:
        """The run in words: clients, rounds, messages and view."""
        if (found := self.unit) is not None:
            return in_words(*found)
        return (
            f"{self.ran['count']:,} x {self.ran['event']}" if "event" in self.ran else "a non-private event"
        )

    @property
    def told(self) -> str:
        """The run in words, its note, and its removal."""
        note, gone = f" ({self.note})" if self.note else "", self.removed
        if gone is None:
            return f"{self.description}{note}"
        reason = f" ({gone.note})" if gone.note else ""
        return f"{self.description}{note}; removed on {gone.on} by {gone.by}{reason}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """The contents of a ledger's file.

    Attributes:
      path: the file.
      neighboring_relation: "REPLACE_ONE" or "ADD_OR_REMOVE_ONE".
      delta, epsilon: the target; None if none was recorded.
      entries: all entries, removed ones included, in the order of addition.
      torn: True if the last line is incomplete; it does not count.
    """

    path: Path
    neighboring_relation: str = _REPLACE
    delta: float | None = None
    epsilon: float | None = None
    entries: tuple[Entry, ...] = ()
    torn: bool = False

    @property
    def counted(self) -> tuple[Entry, ...]:
        """Entries without the removed ones."""
        return tuple(each for each in self.entries if each.removed is None)

    @property
    def rounds_a_week(self) -> float | None:
        """Rounds a week from the first day of counted entries to the last; None if these are no week apart."""
        days = [datetime.date.fromisoformat(each.on) for each in self.counted if each.on is not None]
        if not days or len(days) < len(self.counted) or (span := (max(days) - min(days)).days) < 7:
            return None
        later = sum(each.num_rounds for each, day in zip(self.counted, days) if day > min(days))
        return later * 7 / span

    @property
    def repeated(self) -> tuple[tuple[int, int], ...]:
        """Numbers of counted entries that are the same run on the same day, in pairs; both count."""
        seen: dict[str, int] = {}
        pairs = []
        for each in self.counted:
            key = f"{each.on} {_canonical(each.ran)}"
            if key in seen:
                pairs.append((seen[key], each.id))
            seen[key] = each.id
        return tuple(pairs)

    @property
    def state(self) -> dict[str, Any]:
        """Counted entries, as an argument of `CheckInAccountant.load_state_dict`."""
        return _state(self.counted, self.neighboring_relation)

    @property
    def before(self) -> tuple[tuple[CheckInProtocol, Randomizer], ...]:
        """Counted runs, as an argument of `account(before=...)` and `PrivateRun.before`, whose view applies.

        Raises:
          ValueError: a counted entry is no run of check-ins, or the relation is not replace-one.
        """
        if self.neighboring_relation != _REPLACE:
            raise ValueError(f"{self.path}: expected a ledger of the neighboring relation replace-one")
        pairs: list[tuple[CheckInProtocol, Randomizer]] = []
        for each in self.counted:
            if not each.runs:
                raise ValueError(
                    f"{self.path}: entry {each.id}: expected a run of check-ins, not {each.description}"
                )
            pairs += each.runs
        return tuple(pairs)


def today() -> str:
    """Today's ISO date, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def read(path: Path) -> Ledger:
    """Reads a ledger file.

    Raises:
      ValueError: no ledger, another schema, or a damaged file; with path and line.
      OSError: the file cannot be read.
    """
    with naming(path):
        content = path.read_bytes()
    return _parsed(path, content)[0]


def add(
    path: Path,
    event: CheckInDpEvent,
    count: int,
    *,
    on: str | None = None,
    note: str = "",
    by: str,
    neighboring_relation: str = _REPLACE,
    delta: float | None = None,
    epsilon: float | None = None,
) -> tuple[Ledger, Entry | None]:
    """Appends an entry to a file; a missing file is created.

    Args:
      event, count: the run: one unit and its number of repetitions, or a log and 1.
      on: ISO date of the run. Default: today.
      note, by: as of `Entry`.
      neighboring_relation: of the file.
      delta, epsilon: the target, which a file records once.

    Returns:
      The ledger with the entry, and the last earlier entry that may be the same run, or None: with the same
      parameters, and the same date unless one was left out.

    Raises:
      ValueError: another relation or target than the file's; no date; or as `read`.
      BlockingIOError: another process held the lock too long. OSError: the file cannot be written.
    """
    ran, day = plain_run(event, count), today() if on is None else _validate.day(on=on)
    kept = {"on": day, "note": note, "by": by, "added": today(), "ran": ran}
    earlier: Entry | None = None

    def lines(found: Ledger) -> list[dict[str, Any]]:
        nonlocal earlier
        same = (each for each in reversed(found.counted) if _canonical(each.ran) == _canonical(ran))
        # Months of equal logs, whose dates are given, are no run twice.
        earlier = next((each for each in same if on is None or each.on in (None, day)), None)
        kept_target = target(found, delta, epsilon)
        changed = kept_target != {"delta": found.delta, "epsilon": found.epsilon}
        aims = [{"kind": _TARGET, **kept_target}] if changed else []
        return [*aims, {"kind": _ENTRY, "id": len(found.entries) + 1, **kept}]

    return _appended(path, neighboring_relation, lines), earlier


def remove(path: Path, number: int, *, note: str = "", by: str) -> Ledger:
    """Appends the removal of an entry; the entry itself stays in the file.

    Raises:
      ValueError: no such entry, or one already removed; or as `read`. OSError: as `add`, or the file is missing.
    """
    read(path)

    def lines(found: Ledger) -> list[dict[str, Any]]:
        known = {each.id: each for each in found.entries}
        if number not in known:
            raise ValueError(f"{path}: entry {number}: expected one of 1 to {len(known)}")
        gone = known[number].removed
        if gone is not None:
            raise ValueError(f"{path}: entry {number} was removed on {gone.on} by {gone.by}")
        return [{"kind": _REMOVAL, "id": number, "on": today(), "note": note, "by": by}]

    return _appended(path, None, lines)


def target(found: Ledger, delta: float | None, epsilon: float | None) -> dict[str, float | None]:
    """The target of a file after recording this one.

    Raises:
      ValueError, TypeError: a target outside its range, or another than the file's.
    """
    if delta is not None:
        delta = _validate.real(MIN_DELTA, 1, delta=delta)
    if epsilon is not None:
        epsilon = _validate.real(0, math.inf, "()", target_epsilon=epsilon)
    for name, value, kept in (("delta", delta, found.delta), ("target_epsilon", epsilon, found.epsilon)):
        if None not in (value, kept) and value != kept:
            raise ValueError(f"{name}={value!r}: expected {kept!r}, which {found.path} keeps")
    return {
        "delta": found.delta if delta is None else delta,
        "epsilon": found.epsilon if epsilon is None else epsilon,
    }


class _Tail(NamedTuple):
    """End of the complete lines of a file: offset, and hash of the last line; empty for a saved accountant."""

    end: int
    hash: str


def _appended(path: Path, relation: str | None, lines: Callable[[Ledger], list[dict[str, Any]]]) -> Ledger:
    """Appends lines to the file, atomically; a saved accountant is converted into a file of lines.

    relation: of a new file, and required of an existing one unless None. lines: of the ledger so far.
    """
    with replacing(path, _files.PATIENCE) as stream:
        content = path.read_bytes() if path.exists() else b""
        if content:
            found, tail = _parsed(path, content)
            if relation not in (None, found.neighboring_relation):
                raise ValueError(
                    f"neighboring_relation={relation!r}: expected {found.neighboring_relation!r}, as {path} has it"
                )
        else:
            found, tail = Ledger(path=path, neighboring_relation=relation or _REPLACE), _Tail(0, "")
        more = lines(found)
        if not tail.hash:
            start = {"kind": _START, "schema": SCHEMA, "version": __version__}
            start |= {"neighboring_relation": found.neighboring_relation}
            kept = [
                {"kind": _ENTRY} | {name: getattr(each, name) for name in sorted(_FIELDS[_ENTRY])}
                for each in found.entries
            ]
            more = [start, *kept, *more]
        whole = content[: tail.end] + _chained(more, tail.hash)
        stream.write(whole)
    return _parsed(path, whole)[0]


def _state(entries: Iterable[Entry], relation: str) -> dict[str, Any]:
    """State of an accountant with these entries."""
    ran = [each.ran for each in entries]
    runs, others = ([each for each in ran if name in each] for name in ("protocol", "event"))
    return state_of(runs, others, not all(ran), relation)


def _canonical(line: Mapping[str, Any]) -> str:
    return json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _next_hash(line: Mapping[str, Any], last: str) -> str:
    return hashlib.sha256(f"{last}\n{_canonical(line)}".encode()).hexdigest()


def _chained(lines: Iterable[Mapping[str, Any]], last: str) -> bytes:
    out = []
    for line in lines:
        last = _next_hash(line, last)
        out.append(json.dumps({**line, _HASH: last}, allow_nan=False))
    return "".join(f"{each}\n" for each in out).encode()


def _parsed(path: Path, content: bytes) -> tuple[Ledger, _Tail]:
    """The ledger of a file's content, and the end of its complete lines."""
    first, newline, _ = content.partition(b"\n")
    try:
        lined = object_of(first.decode("utf-8")).get("kind") == _START
    except ValueError:
        lined = False
    if not lined:
        return _saved_accountant(path, content), _Tail(0, "")
    if not newline:
        raise ValueError(f"{path}: line 1: damaged: the line does not end")
    *whole, rest = content.split(b"\n")
    found, last = Ledger(path=path, torn=bool(rest)), ""
    for number, text in enumerate(whole, 1):
        try:
            line = _line(text, number)
            hashed = line.pop(_HASH)
            last = _next_hash(line, last)
            if hashed != last:
                raise ValueError("its hash is not that of this line after the lines before it")
            found = _after(found, line)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: line {number}: damaged: {error}") from error
    try:
        load_state(_state(found.entries, found.neighboring_relation), found.neighboring_relation)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return found, _Tail(len(content) - len(rest), last)


def _line(text: bytes, number: int) -> dict[str, Any]:
    line = object_of(text.decode("utf-8"))
    kind = _validate.choice(tuple(_FIELDS), kind=line.get("kind"))  # type: ignore[arg-type]
    if set(line) != {"kind", _HASH, *_FIELDS[kind]}:
        raise ValueError(f"keys {_validate.shown(sorted(line))}: expected {sorted(_FIELDS[kind])}")
    if (kind == _START) != (number == 1):
        raise _validate.error("in line 1 only", kind=kind)
    return line


def _after(found: Ledger, line: Mapping[str, Any]) -> Ledger:
    fields = {name: value for name, value in line.items() if name != "kind"}
    if line["kind"] == _START:
        if fields["schema"] != SCHEMA:
            raise ValueError(
                f"schema={fields['schema']!r}: expected {SCHEMA}; saved by version {fields['version']!r}"
            )
        relation = _validate.choice(
            tuple(RELATIONS.values()), neighboring_relation=fields["neighboring_relation"]
        )
        return dataclasses.replace(found, neighboring_relation=relation)
    if line["kind"] == _TARGET:
        return dataclasses.replace(found, **target(Ledger(path=found.path), **fields))
    number = _validate.integer(1, MAX_ROUNDS, id=fields["id"])
    if line["kind"] == _ENTRY:
        if number != len(found.entries) + 1:
            raise ValueError(f"id={number}: expected {len(found.entries) + 1}")
        return dataclasses.replace(found, entries=(*found.entries, Entry(**fields)))
    if number > len(found.entries):
        raise ValueError(f"id={number}: expected one of 1 to {len(found.entries)}")
    entries = list(found.entries)
    removed = Removal(**{name: value for name, value in fields.items() if name != "id"})
    entries[number - 1] = dataclasses.replace(entries[number - 1], removed=removed)
    return dataclasses.replace(found, entries=tuple(entries))


def _saved_accountant(path: Path, content: bytes) -> Ledger:
    """The ledger from a file of `CheckInAccountant.state_dict()`; its entries have no dates and no names."""
    try:
        state = object_of(content.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no ledger: {error if content.strip() else 'an empty file'}") from error
    relation = state.get("neighboring_relation")
    if relation is None:
        raise ValueError(
            f"{path}: no ledger: expected a file made by checkin ledger add, or from CheckInAccountant.state_dict()"
        )
    if relation not in RELATIONS.values():
        raise ValueError(
            f"{path}: no ledger: neighboring_relation={_validate.shown(relation)}: expected "
            f"{' or '.join(RELATIONS.values())}"
        )
    try:
        load_state(state, relation)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: no ledger: {error}") from error
    ran = [*state["ledger"], *state["central"], *([{}] if state["non_private"] else ())]
    unknown = {"on": None, "note": "", "by": "unknown", "added": None}
    entries = (Entry(id=number, ran=each, **unknown) for number, each in enumerate(ran, 1))
    return Ledger(path=path, neighboring_relation=relation, entries=tuple(entries))
