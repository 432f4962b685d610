"""Check-in schedules as `BatchSelectionStrategy` of jax_privacy, if that package is installed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from checkin_jax._suggest import how_to_install
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.schedules.draws import DUMMY, ENTROPY_BYTES
from checkin_jax.training.schedules.schedule import schedule_of


def batch_selection(protocol: CheckInProtocol) -> Any:
    """Rounds of a protocol as a jax_privacy `BatchSelectionStrategy`, with the same law as in the trainer.

    Formal guarantees of its `batch_iterator`: batch r holds, in random order, the distinct clients of round r
    of the protocol, as described by `Schedule.draw`. Batches have no dummies and may be empty. Records are
    clients: num_examples has to be the protocol's num_clients.

    A schedule does not determine the noise. With jax_privacy's noise, which a server adds to each sum, rounds
    of ShuffledCheckIn are Poisson-sampled (`PoissonSampledDpEvent(rate, ...)`), and windows of
    AveragedUpdates with full participation are a `RandomAllocationDpEvent`. `account` is about messages with
    the clients' own noise.

    Args:
      protocol: one that can be trained; its fields are public.

    Raises:
      ImportError: jax_privacy is not installed. TypeError, ValueError: no schedule is known for the protocol.
    """
    schedule_of(protocol)
    return _kind()(protocol)


@functools.cache
def _kind() -> type:
    """The class, created on first use, since it needs jax_privacy."""
    try:
        from jax_privacy import batch_selection as theirs  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"jax_privacy is not installed: {how_to_install('jax-privacy')}") from error

    @dataclasses.dataclass(frozen=True)
    class CheckInSelection(theirs.BatchSelectionStrategy):
        """Rounds of a check-in protocol, see `batch_selection`.

        Attributes:
          protocol: public.
        """

        protocol: Any

        def batch_iterator(
            self, num_examples: int, rng: np.random.Generator | int | None = None
        ) -> Iterator[np.ndarray]:
            """Yields the clients of each round, 1D; sensitive.

            rng: secret; None draws from the operating system.

            Raises:
              ValueError: num_examples is not the protocol's number of clients.
            """
            if num_examples != self.protocol.num_clients:
                raise ValueError(
                    f"num_examples={num_examples!r}: expected {self.protocol.num_clients}, one a client"
                )
            secret = np.random.default_rng(rng).bytes(ENTROPY_BYTES)
            schedule = schedule_of(self.protocol)
            rounds = map(schedule.draw(int.from_bytes(secret, "big")), range(schedule.num_rounds))
            dtype = np.min_scalar_type(-num_examples)
            return (clients[clients != DUMMY].astype(dtype) for clients in rounds)

    return CheckInSelection
