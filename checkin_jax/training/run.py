"""Settings that determine the privacy of a run; used by private step, trainer, reports and audit."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from checkin_jax import _validate
from checkin_jax._serialize import to_plain
from checkin_jax._suggest import ByName, legal
from checkin_jax.accounting.account import check_pairs
from checkin_jax.accounting.bounds.select import check_protocol, check_randomizer
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer
from checkin_jax.training.private.mechanism import Mechanism, mechanism_of
from checkin_jax.training.schedules import Schedule, schedule_of

# Each number takes some twenty bytes, and each message its time: a round of this size takes hours.
MOST_DRAWN = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateRun(ByName):
    """A private run: protocol, randomizer, clipping and delta, which determine its guarantee.

    The server's use of the sums (optimizer, learning-rate schedule, averages) is post-processing and costs no
    privacy; `Performance` has the settings that affect speed only.

    Attributes:
      protocol: who checks in, and how often; its class has a schedule (`register_schedule`).
      randomizer: mechanism of the clients' updates; its class has a mechanism (`register_mechanism`).
        Gaussian is federated DP-SGD. L2Mechanism is LDP-SGD. PureLDP is implemented by the l2 mechanism, and
        accounted for as the worst case.
      clip_norm: C in [1e-6, 1e6], l2 norm to which every client's update is scaled down.
      simulate: how the server's sum is drawn: "aggregate" (exact law, cheap) or "messages" (every message
        drawn).
      delta: of the reported guarantees, in (0, 1).
      target_epsilon: > 0; training ends before the round that would make epsilon at delta exceed it. None: no
        budget.
      target_view: view of the target: "messages" (default), "aggregate" or "local".
      before: earlier runs on the same clients' records, as pairs of protocol and randomizer; every figure of
        this run includes them. Changes of parameters between runs must not depend on results: see
        docs/theory_filters.md.

    Raises:
      TypeError: a protocol without a schedule, or a randomizer without a mechanism; the message says what to
        register.
      ValueError, TypeError: an argument outside its range, or an impossible combination.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    clip_norm: float = 0.1
    simulate: str = "aggregate"
    delta: float = 1e-6
    target_epsilon: float | None = None
    target_view: str = "messages"
    before: tuple[tuple[CheckInProtocol, Randomizer], ...] = ()

    _legal = legal(
        delta=(_validate.real, 0, 1, "()"),
        target_epsilon=(_validate.optional, _validate.real, 0, math.inf, "()"),
        target_view=(_validate.choice, VIEWS),
    )

    def __post_init__(self) -> None:
        _ = self.schedule  # raises TypeError if there is none
        object.__setattr__(self, "clip_norm", self.mechanism.clip_norm)
        super().__post_init__()
        before = tuple((check_protocol(one), check_randomizer(its)) for one, its in check_pairs(self.before))
        object.__setattr__(self, "before", before)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """Schedule of the rounds, registered for the protocol's class."""
        return schedule_of(self.protocol)

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """Mechanism that implements the randomizer."""
        return mechanism_of(self.randomizer, clip_norm=self.clip_norm, simulate=self.simulate)

    def repeated(self, units: int) -> PrivateRun:
        """This run with `units` units of the protocol."""
        return dataclasses.replace(self, protocol=self.protocol.repeated(units))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; protocol and randomizer include the names of their classes."""
        out = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("protocol", "randomizer"):
            out[name] = to_plain(out[name])
        out["before"] = [
            {"protocol": to_plain(protocol), "randomizer": to_plain(randomizer)}
            for protocol, randomizer in self.before
        ]
        return out


def check_trainable(run: PrivateRun) -> PrivateRun:
    """The run itself, if its rounds can be drawn. A larger run can be audited by a stand-in.

    Raises:
      ValueError: too many clients or slots at once. TypeError: not a PrivateRun.
    """
    drawn = _validate.instance(PrivateRun, run=run).schedule.drawn_at_once
    if drawn > MOST_DRAWN:
        raise ValueError(
            f"protocol={_validate.shown(run.protocol)}: expected at most {MOST_DRAWN:g} clients or slots drawn at "
            f"once (check-ins of a round, slots of a window), got about {drawn:.3g}"
        )
    return run
