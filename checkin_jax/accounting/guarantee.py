"""The record every accountant returns: a bracket, what it is about, and why it may be believed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._version import __version__
from checkin_jax.protocols import CheckInProtocol, FixedWindow, SlidingWindow
from checkin_jax.randomizers import Gaussian, Randomizer

VIEWS = ("local", "messages", "aggregate")
REPLACE, ADD_OR_REMOVE = RELATIONS = ("replace-one", "add-or-remove-one")

_ADVERSARY = {
    "local": "somebody who sees every message of the client together with its name",
    "messages": "somebody who sees every privatised message of every round, shuffled, without names "
    "(an untrusted aggregator behind a trusted shuffler)",
    "aggregate": "somebody who sees only the sum of the messages of each round "
    "(a trusted server or secure aggregation)",
}

_ADVERSARY_OF_SLOTS = {
    "local": _ADVERSARY["local"],
    "messages": "somebody who sees the message used in each slot, in the order of the slots and without names, and no "
    "other message",
    "aggregate": "somebody who sees what is made of the messages used in the slots, and no other message",
}

_COMPARED = {
    REPLACE: "data sets that differ in one client's record",
    ADD_OR_REMOVE: "one client is there or not; without it its slot shows another client's message or the dummy, and "
    "the number of slots and the windows of the others stay",
}

# In place of the last one where slots are summed.
_ADVERSARY_OF_SUMS = (
    "somebody who sees the sums of the messages used in {:,} successive slots each, and no single message"
)

LOCAL_ASSUMPTIONS = ("when a client checks in does not depend on anybody's data",)


def relation_of(neighboring_relation: Any) -> str:
    """The name, of RELATIONS, of a relation given by name or as dp_accounting's NeighboringRelation.

    Raises:
      ValueError: any other relation.
    """
    name = getattr(neighboring_relation, "name", neighboring_relation)
    if isinstance(name, str):
        name = name.lower().replace("_", "-")
    return _validate.choice(RELATIONS, neighboring_relation=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of a whole run, as a bracket.

    Attributes:
      epsilon: upper end in nats, rounded up; a proven guarantee when `validity` is "certified".
      lower: no analysis of this protocol with such a randomizer can promise less; rounded down.
      delta: the delta both ends are stated at.
      view: "local", "messages" or "aggregate": what the adversary sees.
      neighboring_relation: "replace-one": data sets that differ in one client's record; "add-or-remove-one": one client
        is there or not, and without it its slot shows another client's message or the dummy.
      validity: "certified", "published", "estimate" or "invalid"; `account` returns certified only.
      method: theorem and numerical method of the upper end.
      lower_method: the same for the lower end.
      protocol, randomizer: what was accounted for.
      optimal_order: Renyi order, when the upper end comes from RDP; None otherwise.
      numerical_error: bound on all truncation and round-off in delta, already inside epsilon.
      assumptions: what must hold for the statement to be true.
      warnings: what a careful reader should be told.
    """

    epsilon: float
    lower: float
    delta: float
    view: str
    method: str
    lower_method: str
    protocol: CheckInProtocol
    randomizer: Randomizer
    assumptions: tuple[str, ...]
    neighboring_relation: str = REPLACE
    validity: str = "certified"
    optimal_order: float | None = None
    numerical_error: float = 0.0
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities as None with the key kept, never as a number."""
        out = dataclasses.asdict(self)
        out["protocol"] = {"kind": type(self.protocol).__name__, **dataclasses.asdict(self.protocol)}
        out["randomizer"] = {"kind": type(self.randomizer).__name__, **dataclasses.asdict(self.randomizer)}
        out["version"] = __version__
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in out.items()}

    def __str__(self) -> str:
        p, r = self.protocol, self.randomizer
        if isinstance(r, Gaussian):
            what = f"Gaussian noise of {r.noise_multiplier:.6g} clip norms per message"
        else:
            what = f"{r.epsilon0:.6g}-LDP messages"
        against = _ADVERSARY[self.view]
        if isinstance(p, FixedWindow | SlidingWindow):
            against = _ADVERSARY_OF_SLOTS[self.view]
            if self.view == "aggregate" and p.minibatch > 1:
                against = _ADVERSARY_OF_SUMS.format(p.minibatch)
        lines = [
            f"({up(self.epsilon)}, {self.delta!r})-differential privacy, {self.validity}, view {self.view!r}",
            f"  protects   one client's record among {p.num_clients:,}, {p.what}",
            f"  against    {against}",
            f"  adjacency  {self.neighboring_relation}: {_COMPARED[self.neighboring_relation]}",
            f"  randomizer {what}",
            f"  bracket    {down(self.lower)} <= epsilon <= {up(self.epsilon)} at delta = {self.delta!r}",
            f"  upper end  {self.method}",
            f"  lower end  {self.lower_method}",
        ]
        lines += [f"  assumes    {a}" for a in self.assumptions]
        lines += [f"  warning    {w}" for w in self.warnings]
        return "\n".join(lines)
