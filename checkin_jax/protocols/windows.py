"""Random check-ins [RCI]: protocols whose unit is a window of slots, one of which each client picks."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import counted
from checkin_jax.protocols.protocol import (
    ADD_OR_REMOVE,
    EPOCHS,
    OF_ROUNDS,
    ONE_RECORD,
    PROB,
    REPLACE,
    SAME_RANDOMIZER,
    UNCOUNTED,
    UNSEEN_BUT_COUNTED,
    UNSEEN_UNCOUNTED,
    CheckInProtocol,
    Cover,
    KnownSlots,
    SlotChoices,
    Slots,
    UnequalCover,
    UnequalSlotChoices,
    Words,
    highest,
)
from checkin_jax.randomizers.randomizer import FreeVariable
from checkin_jax.rates import CheckInRates, RateLimits, Rates

_ONE_RECORD_OR_CLIENT = {
    **ONE_RECORD,
    ADD_OR_REMOVE: "data sets with and without one client; without it, its slot shows another client's message or the "
    "dummy, while the number of slots and the windows of the others are unchanged",
}

_UNSEEN_SLOTS = "independently of its earlier slots and of the other clients, and nobody learns which"
_DRAWN = (
    "the client whose message a slot uses is drawn uniformly among those in it, independently of all data, and nobody "
    "learns who was drawn"
)
_DUMMIES = "an empty slot's dummy update is drawn by the same randomizer and cannot be recognised"
_FEWER = "there are no more clients than the stated number; a lower bound on it is not enough"
_SEEN_BY_NAME = "an adversary who sees names sees whether a client takes part"


def _of_used_messages(minibatch: int, gaps: bool = False) -> dict[str, str]:
    """Adversaries of windows whose slots use one message each. gaps: True if empty slots are visible."""
    seen = "which slots are empty and " if gaps else ""
    if minibatch == 1:
        made = f"somebody who sees {seen}any function of the messages used in the slots, and no other message"
    else:
        made = (
            f"somebody who sees {seen}the sums of the messages used in {minibatch:,} successive slots each, and no "
            "single message"
        )
    return {
        "local": OF_ROUNDS["local"],
        "messages": f"somebody who sees {seen}the message used in each slot, in the order of the slots and without "
        "names, and no other message",
        "aggregate": made,
    }


def _summed(minibatch: int) -> str:
    """Summation of successive slots, in words; empty without it."""
    return "" if minibatch == 1 else f", the messages of {minibatch:,} successive slots summed"


def left_empty(clients: float, prob: float) -> float:
    """Probability, rounded up, that a slot has none of so many clients, each there with this probability."""
    if prob >= 1.0:
        return float(clients == 0)
    return min(math.exp(clients * math.log1p(-prob)) * (1.0 + 1e-9), 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSlots(CheckInProtocol):
    """Base of windows of common slots: each client takes part with a probability and picks a slot uniformly."""

    num_clients: int
    num_slots: int
    check_in_prob: float | Rates | RateLimits = 1.0
    num_epochs: int = 1
    num_colluding: int = 0

    _unit = "num_epochs"

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        # num_slots is not searched: epsilon decreases in it for many slots, and increases for many clients.
        return (EPOCHS,) if isinstance(self.check_in_prob, CheckInRates) else (PROB, EPOCHS, self._clients)

    @property
    def rate(self) -> float:
        """p_0: probability that a given client takes part in a given window; the largest one if rates differ."""
        return highest(self.check_in_prob)

    @property
    def _slot_choices(self) -> SlotChoices | None:
        return SlotChoices(self.honest, self.num_slots, self.rate) if self.unequal_rates is None else None

    @property
    def _unequal_slot_choices(self) -> UnequalSlotChoices | None:
        if self.unequal_rates is None:
            return None
        return UnequalSlotChoices(self.num_clients, self.num_slots, self.unequal_rates)

    @property
    def _chance(self) -> tuple[str, ...]:
        """Assumptions about participation."""
        unequal = self.unequal_rates
        return (
            "every client takes part with the same probability" if unequal is None else unequal.description,
            *self._coins,
            f"every client that takes part picks its slot uniformly from the same window, {_UNSEEN_SLOTS}",
        )

    @property
    def _taking_part(self) -> str:
        """Probability of participation, in words."""
        if self.unequal_rates is not None:
            return f"taking part with probabilities {self.unequal_rates.span}"
        return f"taking part with probability {self.rate:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedWindow(CommonSlots):
    """Random check-ins with a fixed window, A_fix [RCI]: each client picks one of m slots; a slot uses one client.

    A client takes part with probability `check_in_prob` and picks one of the `num_slots` slots uniformly. In each slot
    the server uses the message of one uniformly drawn client of that slot. Later slots may depend on earlier outputs.
    Combining the messages of several slots is post-processing.

    Assumes: nobody learns which clients checked in, nor to which slots, and with hidden dummies nobody learns their
    number. If empty slots are visible, the number of messages may be public.

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound is safe, except for Gaussian messages and `L2Mechanism` with hidden
        dummies, which need the exact n: more clients leave fewer empty slots.
      num_slots: number of slots (m), from 1 to 1e12.
      check_in_prob: p_0, in (0, 1], one for all clients; or `Rates`, `RateLimits` where they differ; drop-out
        independent of the data included. With hidden dummies p_0 itself: what T2++, and for Gaussian messages G3', G5,
        G7 and R4, state does not hold of clients who take part less often, or is not proved to. So with visible
        ones for sums of Gaussian messages, to which an empty slot adds no noise.
      num_epochs: how many times the whole window is run, each client throwing anew; from 1 to 1e9.
      num_colluding: how many clients may be in league with the adversary, from 0 to num_clients - 1; an upper bound
        is safe.
      empty_slots: whether an empty slot sends a dummy or is visible. "dummy": it outputs R(0), drawn by the same
        randomizer, which nobody can tell from a client's message; "visible": which slots were empty may be seen
        (skipped slots are seen).
      minibatch: number of successive slots whose messages the server sums (b), from 1 to num_slots. Nobody sees a
        single message. It matters only in the view "aggregate". The last sum of a window has the remaining slots.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    empty_slots: Literal["dummy", "visible"] = "dummy"
    minibatch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(1, self.slots_shown, minibatch=self.minibatch)

    @property
    def slots_shown(self) -> int:
        """Number of slots of one window whose messages the server uses: all."""
        return self.num_slots

    title = "random check-ins with a fixed window (A_fix)"

    @property
    def used_slot_choices(self) -> SlotChoices | None:
        """Independent uniform choices of slots of the window by all clients."""
        return self._slot_choices

    @property
    def unequal_used_slot_choices(self) -> UnequalSlotChoices | None:
        """Independent uniform choices of slots of the window by all clients."""
        return self._unequal_slot_choices

    @property
    def known_slots(self) -> KnownSlots | None:
        """Slots of the window if clients collude; each colluding client is in at most one slot."""
        if not self.num_colluding or self.empty_slots == "visible":
            return None
        return KnownSlots(self.num_slots, self.rate, self.num_colluding, self.honest - 1)

    @property
    def slots(self) -> Slots | None:
        """Slots of the window; None if clients collude, since they recognise their own messages."""
        return self.slots_of(None)

    def slots_of(self, client_rate: float | None) -> Slots | None:
        if self.num_colluding:
            return None
        n, m, prob = self.num_clients, self.num_slots, self.rate_of(client_rate)
        common = self._slot_choices is not None
        largest, total = self._others(prob)
        if not common:
            seen = self._used_lower(prob, largest, total)
        else:
            from checkin_jax.numerics.counts import occupancy

            seen = occupancy.moments(float(n), float(m), prob)[0] / n
        seen = min(seen * (1.0 - 1e-12), prob)
        rivals, hidden = self.rate / m, self.empty_slots == "dummy"
        # The mean of log(1 - a_j) is at most the logarithm at the mean.
        empty = left_empty(n - 1, total / (m * (n - 1.0))) if n > 1 else 1.0
        fewest = None if common else self._fewest(prob)
        contested = common or (fewest is not None and fewest[0] > 0)
        return Slots(m, prob, seen, n - 1, rivals, 1.0, hidden, m, self.minibatch, contested, empty, fewest)

    def _fewest(self, prob: float) -> tuple[int, float] | None:
        """N and q, for unequal rates: the others of a client of this rate that are in a slot are at least Bin(N, q).

        Clients are put together until -log of the probability that none of them is in the slot reaches a limit.
        """
        unequal_rates, m = self.unequal_rates, float(self.num_slots)
        if isinstance(unequal_rates, RateLimits):
            most, total = unequal_rates.largest, unequal_rates.expected_check_ins / m
        else:
            others = unequal_rates.others(prob) if isinstance(unequal_rates, Rates) else None
            if others is None:
                return None
            most, total = others.largest, 0.0
            if most < m:
                total = -float(others.counts @ np.log1p(-others.values / m))
        if not most < m:
            return None
        # Put together, one client may be too many; the more are, the larger is the variance that is lost.
        one = -math.log1p(-most / m)
        limit = one * max(round(math.sqrt(2.0 / one)), 1)
        return math.floor(total * (1.0 - 1e-12) / (limit + one)), -math.expm1(-limit) * (1.0 - 1e-12)

    def _others(self, prob: float) -> tuple[float, float]:
        """Largest rate and sum of the rates of the others of a client of this rate; (0, 0) if there are none.

        For limits one fleet within them: all others at the same rate. The others of a slower client include the fastest
        client.
        """
        unequal_rates, number = self.unequal_rates, self.num_clients - 1
        if isinstance(unequal_rates, Rates):
            others = unequal_rates.others(prob)
            return (0.0, 0.0) if others is None else (others.largest, others.expected_check_ins)
        limits = isinstance(unequal_rates, RateLimits)
        largest = unequal_rates.common_rate_of_others(prob, self.num_clients) if limits else self.rate
        return largest, largest * number

    def _used_lower(self, prob: float, largest: float, total: float) -> float:
        """Lower bound, for unequal rates, on the probability that the message of a client of this rate is used.

        Client j is in the same slot with probability a_j = p_j/m, independently. E 1/(1 + number of such clients) is
        the integral of prod (1 - a_j u) over u in [0, 1]. Each factor is at least (1 - a u)^(a_j/a), a the largest a_j.
        """
        if not total:
            return prob
        most = largest / self.num_slots
        power = total / largest + 1.0
        return -prob * math.expm1(power * math.log1p(-most)) / (most * power) if most < 1 else prob / power

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        if neighboring_relation == REPLACE:
            return None
        if self.unequal_rates is not None:
            return "no bound is known for clients with different rates"
        if self.num_colluding:
            return "no bound is known where clients collude"
        if view == "local":
            return _SEEN_BY_NAME
        if self.empty_slots == "visible":
            return "if empty slots are visible, the absence of a client that is alone in its slot is seen"
        return None

    @property
    def _words(self) -> Words:
        gaps = self.empty_slots == "visible"
        return Words(_of_used_messages(self.minibatch, gaps), ONE_RECORD if gaps else _ONE_RECORD_OR_CLIENT)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""
        if self.empty_slots == "visible":
            return (*self._chance, _DRAWN, *SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, *self.trusting)
        if self.all_send:
            chance = ("every client takes part in every window, and none drops out", *self._chance[1:])
            return (*chance, _DRAWN, *SAME_RANDOMIZER, UNCOUNTED, *self.trusting, _DUMMIES)
        return (*self._chance, _DRAWN, *SAME_RANDOMIZER, UNSEEN_UNCOUNTED, *self.trusting, _DUMMIES)

    @property
    def all_send(self) -> bool:
        # Of visible empty slots the rate is an upper bound, which permits drop-outs.
        return self.empty_slots == "dummy" and self.unequal_rates is None and self.rate == 1.0

    @property
    def description(self) -> str:
        """The run in words."""
        return (
            f"over {counted(self.num_epochs, 'window')} of {self.num_slots:,} slots, "
            f"one client used per slot{_summed(self.minibatch)}, {self._taking_part}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlidingWindow(CheckInProtocol):
    """Random check-ins with sliding windows, A_sldw [RCI]: client j picks a slot from {j, ..., j + window - 1}.

    The server uses one uniformly drawn client of each slot from the window-th to the n-th: n - window + 1 updates. An
    empty slot outputs R(0), drawn by the same randomizer and indistinguishable from a message. Nobody learns which
    clients checked in, nor their number, nor which slots they picked.

    Attributes:
      num_clients: n, from 1 to 1e12. An upper bound is safe, a lower bound is not. Every index up to the true number is
        a client that picks a slot.
      window: length m of each client's window, from 1 to num_clients.
      num_epochs: number of passes over the clients; from 1 to 1e9.
      minibatch: number of successive slots whose messages the server sums (b), from 1 to n - window + 1. Nobody sees a
        single message. It matters only in the view "aggregate". The last sum of a pass has the remaining slots.
      num_colluding: number of clients that collude with the adversary, from 0 to num_clients - 1; an upper bound is
        safe.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    window: int
    num_epochs: int = 1
    minibatch: int = 1
    num_colluding: int = 0

    _unit = "num_epochs"
    title = "random check-ins with sliding windows (A_sldw)"

    @property
    def variables(self) -> tuple[FreeVariable, ...]:
        # num_clients is not searched: epsilon increases in it, since more clients fill more of a window. One sum must
        # remain.
        longest = self.num_clients - self.minibatch + 1
        return (EPOCHS, FreeVariable("window", 1, longest, -0.6, True))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""
        # More clients would show more slots of a window, up to all of them.
        fewer = (_FEWER,) if self.num_clients < 2 * self.window - 1 else ()
        return (
            f"every client picks its slot uniformly from its own window, {_UNSEEN_SLOTS}; no client drops out",
            *fewer,
            _DRAWN,
            *SAME_RANDOMIZER,
            UNCOUNTED,
            _DUMMIES,
            *self.trusting,
        )

    @property
    def all_send(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(1, self.num_clients, window=self.window)
        _validate.integer(1, self.slots_shown, minibatch=self.minibatch)

    @property
    def slots_shown(self) -> int:
        """Number of slots of one pass whose messages the server uses, from the window-th to the n-th slot."""
        return self.num_clients - self.window + 1

    @property
    def sliding_window(self) -> int | None:
        """Length of the windows."""
        return self.window

    @property
    def known_slots(self) -> KnownSlots | None:
        """Slots of one client's window; each colluding client is in at most one of them."""
        if not self.num_colluding:
            return None
        number = min(self.window, self.slots_shown)
        return KnownSlots(number, number / self.window, self.num_colluding)

    @property
    def slots(self) -> Slots | None:
        """Slots of one client's window that the server outputs: all m slots for most clients if n >= 2 m - 1."""
        if self.num_colluding:
            return None
        window, total = self.window, self.slots_shown
        number = min(window, total)
        used = number / window
        # The number of other clients in a slot is Bin(m - 1, 1/m).
        alone = -math.expm1(window * math.log1p(-1.0 / window)) if window > 1 else 1.0
        seen = used * alone * (1.0 - 1e-12)
        rivals, empty = 1.0 / window, left_empty(window - 1, 1.0 / window)
        return Slots(number, used, seen, window - 1, rivals, used, True, total, self.minibatch, True, empty)

    def refuses(self, neighboring_relation: str, view: str) -> str | None:
        if neighboring_relation == REPLACE:
            return None
        if self.num_colluding:
            return "no bound is known where clients collude"
        return _SEEN_BY_NAME if view == "local" else None

    @property
    def _words(self) -> Words:
        return Words(_of_used_messages(self.minibatch), _ONE_RECORD_OR_CLIENT)

    @property
    def description(self) -> str:
        """The run in words."""
        return (
            f"over {counted(self.num_epochs, 'pass', 'passes')} of {self.slots_shown:,} slots "
            f"with sliding windows of {self.window:,}, one client used per slot{_summed(self.minibatch)}"
        )


_OF_AVERAGES = {
    "local": OF_ROUNDS["local"],
    "messages": "somebody who sees every privatised message of every slot, shuffled within the slot, without names "
    "(an untrusted aggregator behind a trusted shuffler)",
    "aggregate": "somebody who sees only the average of the messages of each slot, and how many they are "
    "(a trusted server or secure aggregation)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragedUpdates(CommonSlots):
    """Averaged updates, A_avg [RCI]: each client picks one of m slots; all clients of a slot are averaged.

    Empty slots are skipped. Later slots may depend on earlier outputs. Since loads do not depend on the data, and
    nobody learns who picked which slot, this is adaptive shuffling of all clients, so the guarantee does not depend on
    the number of slots.

    Attributes:
      num_clients: number of clients (n), from 1 to 1e12. A lower bound is safe.
      num_slots: number of slots (m), from 1 to 1e12.
      check_in_prob: p_0, in (0, 1], the probability that a client's message arrives, the same for all clients; or
        `Rates`, `RateLimits` if it differs. An upper bound is safe, except for averages of Gaussian messages (view
        "aggregate"), whose noise adds up.
      num_epochs: number of repetitions of the window, with new random slots; from 1 to 1e9.
      num_colluding: number of clients that collude with the adversary, from 0 to num_clients - 1; an upper bound is
        safe.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    title = "random check-ins with averaged updates (A_avg)"

    @property
    def cover(self) -> Cover | None:
        """Sample of all clients, each with the probability of taking part; loads do not matter."""
        return Cover(self.honest, self.rate) if self.unequal_rates is None else None

    @property
    def unequal_cover(self) -> UnequalCover | None:
        """Sample of all clients, each with its own probability of taking part."""
        return None if self.unequal_rates is None else UnequalCover(self.num_clients, self.unequal_rates, 1.0)

    @property
    def averaged_slot_choices(self) -> SlotChoices | None:
        """Independent uniform choices of slots of the window by all clients."""
        return self._slot_choices

    @property
    def unequal_averaged_slot_choices(self) -> UnequalSlotChoices | None:
        """Independent uniform choices of slots of the window by all clients."""
        return self._unequal_slot_choices

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantees, one sentence each."""
        return (*self._chance, *SAME_RANDOMIZER, UNSEEN_BUT_COUNTED, *self.trusting)

    @property
    def _words(self) -> Words:
        return Words(_OF_AVERAGES, ONE_RECORD)

    @property
    def description(self) -> str:
        """The run in words."""
        return (
            f"over {counted(self.num_epochs, 'window')} of {self.num_slots:,} slots, "
            f"all clients of a slot averaged, {self._taking_part}"
        )
