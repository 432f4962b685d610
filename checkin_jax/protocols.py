"""Check-in protocols as frozen public descriptions.

A protocol says what everybody may know: how many clients there are, with what probability a device
checks in, for how many rounds. Who did check in is sensitive and never a field here.
"""

from __future__ import annotations

import dataclasses

from checkin_jax import _validate

MAX_CLIENTS = 10**12
MAX_ROUNDS = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn:
    """Shuffled check-in [SCI]: each round every client flips a coin, privatises and sends to a shuffler.

    Assumes (the guarantee fails without them): every client has the same check-in rate; every client of
    a round uses the same randomizer and keeps no state of its own; dropping out does not depend on the
    data; nobody but the client learns WHO checked in (how many did may be public).

    Attributes:
      num_clients: n, from 1 to 1e12. A lower bound on the true number is safe.
      check_in_prob: the coin, in (0, 1], one for all clients. An upper bound on that common rate is safe; rates that
        differ between clients are not covered by their maximum.
      num_rounds: T, from 1 to 1e9.
      drop_out_prob: probability in [0, 1) that a client whose coin says yes drops out before sending.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_clients: int
    check_in_prob: float
    num_rounds: int = 1
    drop_out_prob: float = 0.0

    def __post_init__(self) -> None:
        n = _validate.integer(1, MAX_CLIENTS, num_clients=self.num_clients)
        prob = _validate.real(0, 1, open_low=True, check_in_prob=self.check_in_prob)
        rounds = _validate.integer(1, MAX_ROUNDS, num_rounds=self.num_rounds)
        drop = _validate.real(0, 1, open_high=True, drop_out_prob=self.drop_out_prob)
        for name, value in zip(
            ("num_clients", "check_in_prob", "num_rounds", "drop_out_prob"), (n, prob, rounds, drop)
        ):
            object.__setattr__(self, name, value)

    @property
    def rate(self) -> float:
        """gamma: the probability that a given client's message arrives in a given round."""
        return self.check_in_prob * (1.0 - self.drop_out_prob)
