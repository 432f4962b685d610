"""Central events under our neighboring relations: bounds on their units, and their plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import UnitBound
from checkin_jax.accounting.interop import allocated_epochs
from checkin_jax.accounting.interop.central_mechanisms import KINDS, bound_of

_KINDS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        *KINDS,
        allocated_epochs.RandomAllocationDpEvent,
        allocated_epochs.UnfinishedAllocationDpEvent,
    )
}
ASSUMED = "each record of a central event belongs to one client, the same client in every event; its server is trusted"
DRAWN = (
    "which steps or samples a record is in is drawn by fresh chance, independently of the data and of the other "
    "records, and nobody but the server learns it"
)
CLIPPED = "a record adds a value of norm at most 1 to a sum, in the unit in which noise_multiplier is given"
GIVEN = "the given profile or distribution bounds a step with a record against the same step without it"
STOPPED = "an epoch that ends before its last step ends there whatever its steps show"


def assumed(events: Iterable[DpEvent]) -> tuple[str, ...]:
    """Assumptions about these central events, one sentence each; empty without events."""
    found: list[str] = []
    for event in events:
        found.append(ASSUMED)
        step: Any = event
        while hasattr(step, "event"):
            found += (
                [DRAWN, STOPPED]
                if isinstance(step, allocated_epochs.UnfinishedAllocationDpEvent)
                else [DRAWN]
            )
            step = step.event
        if isinstance(step, dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent):
            found.append(CLIPPED)
        elif not isinstance(step, DpEvent):
            found.append(GIVEN)
    return tuple(dict.fromkeys(found))


def units_of(event: DpEvent, relation: str, mass: float = 31.0) -> list[tuple[UnitBound, int]]:
    """(bound, count) pairs whose composition bounds one application of a central event.

    mass: -log of the mass that a unit may drop, see `interface.neg_log_tail`; used by random allocation only.

    Raises:
      ValueError: as `bound_of`.
    """
    epoch = allocated_epochs.epoch_of(event)
    if epoch is not None:
        return epoch.units(relation, mass)
    return [(bound_of(event, relation), 1)]


def units_in(event: DpEvent) -> int:
    """Number of units of one application of a central event."""
    epoch = allocated_epochs.epoch_of(event)
    return 1 if epoch is None else epoch.number


def noiseless(event: Any) -> bool:
    """True if a sum is released without noise, also after sampling or allocation."""
    while hasattr(event, "event"):
        event = event.event
    noisy = isinstance(event, dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent)
    return noisy and event.noise_multiplier == 0


def to_plain(event: DpEvent) -> dict[str, Any]:
    """Kind and fields of an event that `bound_of` takes, for JSON."""
    fields = {field.name: getattr(event, field.name) for field in attr.fields(type(event))}
    return {
        "kind": type(event).__name__,
        **{name: _plain_value(name, value) for name, value in fields.items()},
    }


def _plain_value(name: str, value: Any) -> Any:
    if isinstance(value, DpEvent):
        return to_plain(value)
    if not isinstance(value, int | float):
        raise _validate.error("a DpEvent: functions and distributions are not saved", **{name: value})
    return value


def from_plain(plain: Any) -> DpEvent:
    """The event from `to_plain`'s values.

    Raises:
      ValueError: unknown kind, or other fields than those of its kind.
    """
    if not isinstance(plain, Mapping) or plain.get("kind") not in _KINDS:
        raise _validate.error(f"a kind out of {', '.join(_KINDS)}", event=plain)
    kind = _KINDS[plain["kind"]]
    fields = {name: value for name, value in plain.items() if name != "kind"}
    names = {field.name for field in attr.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"{kind.__name__} with fields {sorted(map(str, fields))}: expected {sorted(names)}")
    return kind(
        **{name: from_plain(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
    )
