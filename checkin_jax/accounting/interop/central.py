"""Bounds on dp_accounting's own events under our neighboring relations; other events are refused.

A central event has a trusted server. Its records are clients, each with one value of norm at most 1 in units of the
sensitivity, as the event's documentation says. Replacing a value then moves a sum by at most 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import UnitBound
from checkin_jax.accounting.interop import allocation

# None in versions of dp_accounting without it.
_EPSILON_DELTA: Any = getattr(dp_accounting.dp_event, "EpsilonDeltaDpEvent", None)
_KINDS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        dp_accounting.GaussianDpEvent,
        dp_accounting.LaplaceDpEvent,
        dp_accounting.RandomizedResponseDpEvent,
        dp_accounting.PoissonSampledDpEvent,
        allocation.RandomAllocationDpEvent,
        _EPSILON_DELTA,
    )
    if kind is not None
}
ASSUMED = "each record of a central event belongs to one client, the same client in every event; its server is trusted"
_MOST_NOISE, _LEAST_RATE = 1e6, 1e-9


def units_of(event: DpEvent, relation: str, mass: float = 31.0) -> list[tuple[UnitBound, int]]:
    """(bound, count) pairs whose composition bounds one application of a central event.

    mass: -log of the mass that a unit may drop, see `interface.neg_log_tail`; used by random allocation only.

    Raises:
      ValueError: as `bound_of`.
    """
    if allocation.allocated(event) is not None:
        return allocation.units_of(event, relation, mass)
    return [(bound_of(event, relation), 1)]


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
        **{name: to_plain(value) if isinstance(value, DpEvent) else value for name, value in fields.items()},
    }


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
