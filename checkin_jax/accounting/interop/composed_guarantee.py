"""The guarantee of a ledger: the composition of all events in a `CheckInAccountant`, and its statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from checkin_jax._serialize import finite
from checkin_jax._version import __version__
from checkin_jax.accounting.attack import AttackTerms
from checkin_jax.accounting.guarantee import StatedGuarantee
from checkin_jax.accounting.interop.allocated_epochs import UnfinishedAllocationDpEvent
from checkin_jax.accounting.interop.events import CheckInDpEvent
from checkin_jax.protocols import REPLACE
from checkin_jax.randomizers import Randomizer

# Words for central events; the data sets are those of a ledger without check-ins.
_CENTRAL = "somebody who sees the outputs of a trusted server"
_ONE_RECORD = {REPLACE: "data sets that differ in one client's record"}
SETTLED = "which units there are, and how many of each, did not depend on any output of theirs"
_ONE_CLIENT = "data sets with and without one client"
ASSUMED = "each record of a central event belongs to one client, the same client in every event; its server is trusted"
DRAWN = (
    "which steps or samples a record is in is drawn by fresh chance, independently of the data and of the other "
    "records, and nobody but the server learns it"
)
CLIPPED = "a record adds a value of norm at most 1 to a sum, in the unit in which noise_multiplier is given"
GIVEN = "the given profile or distribution bounds a step with a record against the same step without it"
STOPPED = "an epoch that ends before its last step ends there whatever its steps show"


def assumed_of_central(events: Iterable[DpEvent]) -> tuple[str, ...]:
    """Assumptions about these central events, one sentence each; empty without events."""
    found: list[str] = []
    for event in events:
        found.append(ASSUMED)
        step: Any = event
        while hasattr(step, "event"):
            found += [DRAWN, STOPPED] if isinstance(step, UnfinishedAllocationDpEvent) else [DRAWN]
            step = step.event
        if isinstance(step, dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent):
            found.append(CLIPPED)
        elif not isinstance(step, DpEvent):
            found.append(GIVEN)
    return tuple(dict.fromkeys(found))


def notes_of(units: Sequence[CheckInDpEvent], with_central: bool) -> tuple[str, ...]:
    """Notes to the reader of a ledger: views and populations, if units differ in them.

    with_central: True if the ledger has central events.
    """
    observed = dict.fromkeys((unit.view, unit.protocol.observed(unit.view)) for unit in units)
    out = []
    if len({view for view, _ in observed}) > 1:
        whom = "; ".join(f"{view!r}: {words}" for view, words in observed)
        out.append(
            f"units have different views; epsilon holds against one adversary who has all of them: {whom}"
        )
    if with_central and units:
        out.append(ASSUMED)
    sizes = sorted({unit.protocol.num_clients for unit in units})
    if len(sizes) > 1:
        out.append(
            f"units cover {len(sizes):,} populations, of {sizes[0]:,} to {sizes[-1]:,} clients; epsilon is for a "
            "client in all of them, and other clients are protected at least as well"
        )
    return tuple(out)


def in_words(unit: CheckInDpEvent, count: int) -> str:
    """One kind of unit in words: clients, number, messages and view."""
    protocol = unit.protocol
    if protocol.num_units == 1:
        run = protocol.repeated(count).in_words
    else:  # a log, which may have been composed several times
        run = protocol.in_words + f", {count:,} times" * (count > 1)
    return f"{run}; {unit.randomizer.description}; view {unit.view!r}"


def composed_words(
    units: Iterable[tuple[CheckInDpEvent, int]], events: Iterable[tuple[DpEvent, int]]
) -> tuple[str, ...]:
    """Lines for the kinds of unit: clients, number, messages and view; and for dp_accounting's own events."""
    return (
        *(in_words(unit, count) for unit, count in units),
        *(f"{count:,} x {event!r}" for event, count in events),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LedgerGuarantee(StatedGuarantee):
    """(epsilon, delta)-differential privacy of everything in a ledger, as a bracket.

    Attributes:
      epsilon: upper end in nats, rounded up; proven.
      lower: lower end in nats, rounded down; no valid bound for the same events is below it.
      delta: the delta of both ends.
      neighboring_relation: "replace-one" or "add-or-remove-one".
      validity: "certified".
      units: each kind of unit of check-ins, and its count.
      central: each of dp_accounting's own events, and its count.
      method, lower_method: methods of the two ends.
      theorems, assumptions, warnings: as in `Guarantee`.
      attack: attack terms; None unless requested.
    """

    epsilon: float
    lower: float
    delta: float
    neighboring_relation: str
    units: tuple[tuple[CheckInDpEvent, int], ...]
    central: tuple[tuple[DpEvent, int], ...]
    method: str
    lower_method: str
    validity: str = "certified"
    theorems: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    attack: AttackTerms | None = None

    @property
    def randomizers(self) -> tuple[Randomizer, ...]:
        """Randomizers of the check-ins; central events have none."""
        return tuple(unit.randomizer for unit, _ in self.units)

    @property
    def against(self) -> str:
        """The adversary in the protocols' words; one adversary has all views."""
        observed = dict.fromkeys(unit.protocol.observed(unit.view) for unit, _ in self.units)
        if self.central:
            observed[_CENTRAL] = None
        first, *others = observed or (_CENTRAL,)
        return "; and of other units ".join(
            [first, *(each.removeprefix("somebody who sees ") for each in others)]
        )

    @property
    def compared(self) -> str:
        """Neighboring data sets in words."""
        relation = self.neighboring_relation
        texts = dict.fromkeys(unit.protocol.compared(relation) for unit, _ in self.units)
        return "; ".join(texts) or _ONE_RECORD.get(relation, _ONE_CLIENT)

    @property
    def composed(self) -> tuple[str, ...]:
        """Lines for the kinds of unit: clients, number, messages and view."""
        return composed_words(self.units, self.central)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities become None."""
        kept = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("units", "central", "attack")
        }
        kept |= {"composed": self.composed, "against": self.against, "compared": self.compared}
        if self.attack is not None:
            kept["attack"] = self.attack.as_dict()
        return finite(kept | {"version": __version__})

    @property
    def _view_words(self) -> str:
        views = dict.fromkeys(unit.view for unit, _ in self.units)
        return (
            f"view{'s' * (len(views) > 1)} {' and '.join(map(repr, views))}" if views else "a trusted server"
        )

    @property
    def _protected(self) -> list[tuple[str, str]]:
        return [
            ("protects", "one client's record in everything that was composed"),
            *(("composed", each) for each in self.composed),
        ]
