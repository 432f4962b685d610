"""Clients with unequal check-in rates, each with its own coin, at a cost proportional to participants.

Trust model: that of `draws`. Clients are numbered in the order of `Rates`: those of the first value come
first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkin_jax.protocols import AveragedUpdates, FixedWindow
from checkin_jax.rates import Rates
from checkin_jax.training.schedules.draws import DUMMY, Stream, generator


class _Octave(NamedTuple):
    """Groups of clients with rates within a factor of two of the largest, `top`; [groups].

    rates: of each group. first: number of its first client. ends: number of clients of this and earlier
    groups.
    """

    top: float
    rates: np.ndarray
    first: np.ndarray
    ends: np.ndarray


class Fleet:
    """Clients with the rates at which their messages arrive.

    Args:
      rates: in (0, 1], with the number of clients of each.

    Attributes:
      num_clients: number of clients. expected: expected number of messages per round.
    """

    def __init__(self, rates: Rates) -> None:
        values, counts = rates.values, rates.counts.astype(np.int64)
        self._values, self._counts, self._ends = values, counts, np.cumsum(counts)
        self.num_clients, self.expected = rates.num_clients, rates.expected_check_ins
        octave = np.floor(-np.log2(values)).astype(np.int64)
        self._octaves = []
        for which in np.unique(octave):
            mine = np.flatnonzero(octave == which)
            ends, first = np.cumsum(counts[mine]), self._ends[mine] - counts[mine]
            self._octaves.append(_Octave(float(values[mine].max()), values[mine], first, ends))

    def rate_of(self, client: int) -> float:
        return float(self._values[np.searchsorted(self._ends, client, side="right")])

    def all_absent(self, share: float) -> float:
        """Probability that no message arrives, if each is also thinned with probability `share` in (0, 1]."""
        with np.errstate(divide="ignore"):  # clients of rate 1
            return float(np.exp(self._counts @ np.log1p(-share * self._values)))

    def present(self, rng: np.random.Generator) -> np.ndarray:
        """Participants: each client with its own rate, independently, in random order; (k,)
        int64, distinct.

        Among clients within a factor of two, a binomial number is drawn at their largest rate, and each is
        then thinned by the ratio of its own rate to that rate. The cost is proportional to the number of
        participants, not of clients.
        """
        parts = []
        for each in self._octaves:
            size = int(each.ends[-1])
            picked = int(rng.binomial(size, each.top))
            places = rng.choice(size, size=picked, replace=False, shuffle=False)
            group = np.searchsorted(each.ends, places, side="right")
            stays = rng.random(picked) * each.top < each.rates[group]
            places, group = places[stays], group[stays]
            starts = np.concatenate([[0], each.ends[:-1]])
            parts.append(each.first[group] + places - starts[group])
        return rng.permutation(np.concatenate(parts))


def participants(entropy: int, fleet: Fleet, round_index: int) -> np.ndarray:
    """Clients whose messages arrive in one round of shuffled check-in at unequal rates.

    Formal guarantees: every client is present with its own rate, independently of the others and of other
    rounds; they are in uniformly random order; the result depends on the arguments only.

    Returns:
      (k,) int64, sensitive; k may be 0.
    """
    return fleet.present(generator(entropy, Stream.PARTICIPANTS, round_index))


def fixed_window(entropy: int, protocol: FixedWindow, fleet: Fleet, window_index: int) -> np.ndarray:
    """`draws.fixed_window` for clients with unequal rates.

    Returns:
      (num_slots,) int64, sensitive; clients are distinct, DUMMY in empty slots.
    """
    rng = generator(entropy, Stream.PARTICIPANTS, window_index)
    clients = fleet.present(rng)
    slots = np.full(protocol.num_slots, DUMMY, np.int64)
    # In random order, the last client to claim a slot is a uniform one.
    slots[rng.integers(protocol.num_slots, size=len(clients))] = clients
    return slots


def averaged_updates(
    entropy: int, protocol: AveragedUpdates, fleet: Fleet, window_index: int
) -> tuple[np.ndarray, np.ndarray]:
    """`draws.averaged_updates` for clients with unequal rates."""
    rng = generator(entropy, Stream.PARTICIPANTS, window_index)
    clients = fleet.present(rng)
    picked = rng.integers(protocol.num_slots, size=len(clients))
    ends = np.cumsum(np.bincount(picked, minlength=protocol.num_slots))
    return clients[np.argsort(picked, kind="stable")], ends
