"""Rounds that are units: shuffled check-in, plain shuffling, and check-in among available clients."""

from __future__ import annotations

import functools

import numpy as np

from checkin_jax.protocols import Shuffle, ShuffledCheckIn
from checkin_jax.protocols.availability import AvailabilityLog, AvailableCheckIn
from checkin_jax.training.schedules import draws, heterogeneous
from checkin_jax.training.schedules.schedule import (
    FEW_CLIENTS,
    LEAST_RATE,
    Clients,
    Schedule,
    more_often,
    register_schedule,
)

# Rounds of the log in the audit's stand-in.
_FEW_ROUNDS = 16


@register_schedule(ShuffledCheckIn, Shuffle)
class Rounds(Schedule):
    """Rounds of all clients who check in; the sum is divided by the expected number."""

    protocol: ShuffledCheckIn | Shuffle

    @property
    def check_ins(self) -> tuple[int, float]:
        """Number of clients, and the protocol's rate or the mean of the rates."""
        number = self.protocol.num_clients
        return number, self.protocol.rate if self.fleet is None else self.fleet.expected / number

    def draw(self, entropy: int) -> Clients:
        """See `draws.participants`, and `heterogeneous.participants` for unequal rates."""
        if self.fleet is not None:
            return functools.partial(heterogeneous.participants, entropy, self.fleet)
        return functools.partial(draws.participants, entropy, self.protocol)

    @property
    def description(self) -> str:
        """Rates and expected number of messages."""
        number, rate = self.check_ins
        unequal_rates = self.protocol.unequal_rates
        how = f"rate {rate:.6g}"
        if unequal_rates is not None:
            how = f"rates {unequal_rates.span}, each client its own"
        return f"checking in at {how}: about {number * rate:,.0f} a round"

    def fewer_clients(self) -> ShuffledCheckIn | Shuffle:
        """A few clients, with rates of at least one half."""
        fewer = super().fewer_clients()
        return more_often(fewer) if type(fewer) is ShuffledCheckIn else fewer


@register_schedule(AvailableCheckIn)
class AvailableRounds(Schedule):
    """Rounds t of those of the first n_t clients who check in; sums are divided by their mean number.

    So client 0 is available in every round, like the client of the guarantee, and the last one only in the
    largest rounds. With a divisor per round the few messages of a small round would have more weight than
    others.
    """

    protocol: AvailableCheckIn

    @property
    def _log(self) -> AvailabilityLog:
        rounds = self.protocol.num_rounds
        log = self.protocol.log
        return AvailabilityLog(log.available[:rounds], log.coin[:rounds] * self.protocol.arrival_prob)

    @property
    def check_ins(self) -> tuple[int, float]:
        """Largest number of available clients, and a client's mean rate over these clients and the log."""
        number = self.protocol.num_clients
        return number, float(np.mean(self._log.available * self._log.coin)) / number

    def draw(self, entropy: int) -> Clients:
        """See `draws.participants_of`: the available clients follow from their number, which is public."""
        log = self._log

        def clients(index: int) -> np.ndarray:
            number, coin = int(log.available[index]), float(log.coin[index])
            return draws.participants_of(entropy, number, coin, index)

        return clients

    @property
    def drawn_at_once(self) -> float:
        """Messages of the largest round."""
        return float(np.max(self._log.available * self._log.coin))

    @property
    def description(self) -> str:
        """Number of available clients, and expected numbers of messages."""
        log = self._log
        number, rate = self.check_ins
        return (
            f"{int(log.available.min()):,} to {int(log.available.max()):,} of them available: about "
            f"{number * rate:,.0f} a round"
        )

    def exposure(self, client: int) -> np.ndarray:
        """Share of rounds in which this client is available, over their mean number of available clients."""
        there = self._log.available[self._log.available > client]
        return np.array([there.size / self._log.available.size / there.mean()])

    def fewer_clients(self) -> AvailableCheckIn:
        """A few clients, some of them unavailable at times, with rates of at least one half."""
        log = self.protocol.log
        some = np.unique(np.linspace(0, log.available.size - 1, _FEW_ROUNDS).astype(int))
        available = np.maximum(np.rint(FEW_CLIENTS * log.available[some] / log.available.max()), 1.0)
        coin = np.minimum(log.coin[some] * max(1.0, LEAST_RATE / log.coin.max()), 1.0)
        return AvailableCheckIn(
            log=AvailabilityLog(available, coin), num_rounds=1, drop_out_prob=self.protocol.drop_out_prob
        )
