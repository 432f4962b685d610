"""`DeviceBudget`: the budget that one device keeps over weeks and several jobs, from its own check-ins alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.composition.renyi import rdp
from checkin_jax.accounting.interop.accountant import CheckInAccountant, any_views
from checkin_jax.accounting.interop.events import CheckInDpEvent, to_unit
from checkin_jax.protocols import MAX_CLIENTS, MAX_ROUNDS, Shuffle
from checkin_jax.randomizers import Randomizer

# Orders among which one is fixed, minus 1.
_ORDERS = 1.0 + np.geomspace(1e-3, 1e7, 20_001)
# Round-off of sums of divergences, and of the budget.
_SLACK = 1e-9


class DeviceBudget:
    """Filter of one device: epsilon at target_delta of all messages that it lets pass is at most target_epsilon.

    The device counts the messages that it sent. It may choose jobs, randomizers and rounds by everything that the
    adversary has seen: the Renyi divergences of one order, fixed at the start, add up to at most `budget`
    (docs/theory_filters.md, F3 and F4). Having sent is no secret here, so the device's own coins hide nothing.

    Assumes: no choice depends on the device's record, nor on its own messages of batches; a message with `min_reports`
    above 1 is in a shuffled batch with at least so many honest messages of the same randomizer, its own included; any
    other message is seen with its name.

    Attributes:
      target_epsilon, target_delta: the promise, in nats; of everything that the device ever sends.
      order: Renyi order > 1.
      budget: largest divergence of this order that fits the promise, rounded down.
      ledger: the messages sent, as a `CheckInAccountant`. Its smaller `get_epsilon` holds only if no choice depended on
        anything that was seen.

    Examples:
      >>> import checkin_jax as cj
      >>> device = cj.DeviceBudget(target_epsilon=1.0, target_delta=1e-8)
      >>> message = cj.PureLDP(epsilon0=2.0)
      >>> device.may_send(message), device.may_send(message, min_reports=10_000)
      (False, True)
      >>> device.send(message, min_reports=10_000)
      >>> 0.0 < device.spent < 0.1
      True
    """

    @named
    def __init__(
        self, *, target_epsilon: float, target_delta: float, state: Mapping[str, Any] | None = None
    ) -> None:
        """An empty budget, or that of an earlier `state_dict()`, with the same targets.

        Other targets have another order, and F3 fixes the order before the first message.

        Raises:
          TypeError, ValueError: target_epsilon is not in (0, inf), target_delta not in (0, 1); a state of other targets
            or of another schema, or with anything but messages of a device.
        """
        self.target_epsilon = _validate.real(0, math.inf, "()", target_epsilon=target_epsilon)
        self.target_delta = _validate.real(0, 1, "()", target_delta=target_delta)
        self.order, self.budget = _largest(self.target_epsilon, self.target_delta)
        self.ledger = CheckInAccountant()
        if state is None:
            return
        if not isinstance(state, Mapping) or set(state) != {"target_epsilon", "target_delta", "ledger"}:
            raise _validate.error("one made by `DeviceBudget.state_dict`", state=state)
        for name in ("target_epsilon", "target_delta"):
            if state[name] != getattr(self, name):
                raise _validate.error(f"{state[name]!r}, that of state", **{name: getattr(self, name)})
        with any_views():
            self.ledger.load_state_dict(state["ledger"])
        others = self.ledger._central or self.ledger._non_private
        if others or any(each != _event(each.randomizer, each.protocol.num_clients) for each in self._counts):
            raise _validate.error("messages that a DeviceBudget let pass", state=state)

    def state_dict(self) -> dict[str, Any]:
        """Targets and messages as plain values (JSON)."""
        return {
            "target_epsilon": self.target_epsilon,
            "target_delta": self.target_delta,
            "ledger": self.ledger.state_dict(),
        }

    @property
    def _counts(self) -> Mapping[CheckInDpEvent, int]:
        return self.ledger._counts

    @property
    def spent(self) -> float:
        """Share of the budget that is spent, in [0, 1]; a promise about the messages so far is the target's alone."""
        return math.fsum(count * self._share(event) for event, count in self._counts.items())

    @property
    def left(self) -> float:
        """Share of the budget that is left, in [0, 1]."""
        return max(1.0 - self.spent, 0.0)

    @named
    def may_send(self, randomizer: Randomizer, *, min_reports: int = 1, count: int = 1) -> bool:
        """True if so many further messages fit into the budget; nothing is recorded.

        Args:
          randomizer: eps0-LDP or Gaussian messages, as of `rdp`.
          min_reports: least number of honest messages in the shuffled batch, its own included; 1: no batch.
          count: number of messages, each in a round of its own.

        Raises:
          TypeError, ValueError: an argument outside its range, or a randomizer whose divergences are not known.
        """
        count = _validate.integer(1, MAX_ROUNDS, count=count)
        return self.spent + count * self._share(_event(randomizer, min_reports)) <= 1.0

    @named
    def send(self, randomizer: Randomizer, *, min_reports: int = 1, count: int = 1) -> None:
        """Records messages, before the device sends them.

        Raises:
          ValueError: they do not fit into the budget; nothing is recorded, and they must not be sent.
          TypeError, ValueError: as `may_send`.
        """
        if not self.may_send(randomizer, min_reports=min_reports, count=count):
            raise ValueError(
                f"count={count!r} of {randomizer.description}: expected messages within the budget, "
                f"of which {100.0 * self.left:.3g}% is left"
            )
        with (
            any_views()
        ):  # messages with names and messages of batches are counted together, as the class says
            self.ledger.compose(_event(randomizer, min_reports), count)

    def _share(self, event: CheckInDpEvent) -> float:
        return _divergence(event, self.order) / self.budget * (1.0 + _SLACK)


def _event(randomizer: Randomizer, min_reports: int) -> CheckInDpEvent:
    """The round of one message that is sent for sure."""
    batch = Shuffle(num_clients=_validate.integer(1, MAX_CLIENTS, min_reports=min_reports))
    event = CheckInDpEvent(batch, randomizer, "messages" if batch.num_clients > 1 else "local")
    to_unit(event)
    return event


@functools.lru_cache(maxsize=256)
def _divergence(event: CheckInDpEvent, order: float) -> float:
    """Renyi divergence of the round of one message, both directions, rounded up."""
    return float(rdp(event.protocol, event.randomizer, [order], view=event.view)[0])


def _largest(epsilon: float, delta: float) -> tuple[float, float]:
    """The order at which most messages fit, whose divergences are about proportional to it, and its budget.

    [CKS20], Proposition 12, solved for the divergence.
    """
    t = _ORDERS - 1.0
    budgets = (
        epsilon * (1.0 - _SLACK) - (-math.log(delta) + t * np.log1p(-1.0 / _ORDERS) - np.log(_ORDERS)) / t
    )
    # Beyond epsilon, which a divergence of any order implies, nothing more is claimed.
    budgets = np.minimum(budgets, epsilon) * (1.0 - _SLACK)
    best = int(np.argmax(budgets / _ORDERS))
    if not budgets[best] > 0.0:
        raise _validate.error(f"a larger one at target_delta={delta!r}", target_epsilon=epsilon)
    return float(_ORDERS[best]), float(budgets[best])
