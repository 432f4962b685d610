"""A strategy for flwr: rounds of shuffled check-in that end with the budget.

Trust model: see `client`; the strategy uses nothing of a reply but its arrays, and of those only the sum.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax._extras import how_to_install
from checkin_jax._rounding import up
from checkin_jax.accounting.account import account
from checkin_jax.protocols import Shuffle, ShuffledCheckIn
from checkin_jax.randomizers import Randomizer
from checkin_jax.training.budget import rounds_within
from checkin_jax.training.run import PrivateRun


def strategy(
    protocol: ShuffledCheckIn | Shuffle,
    randomizer: Randomizer,
    *,
    delta: float,
    view: str,
    target_epsilon: float | None = None,
    learning_rate: float = 1.0,
) -> Any:
    """A flwr `Strategy` for clients that run `ClientMod` with the same randomizer, rate and number of rounds.

    In each round it asks every node; those that check in answer. The new arrays are the old ones plus learning_rate
    times the sum of the messages over the EXPECTED number of messages: nothing is divided by how many came. Clients
    are asked for nothing else; evaluate with `evaluate_fn` of flwr's `start`. Metrics of a round: its messages,
    and epsilon so far, certified.

    It halts on the budget: as many rounds are run as keep epsilon at delta within target_epsilon, which is found before
    the first round and depends on no output; flwr's PrivacyBudgetExhausted is raised before any further one.

    Args:
      protocol: num_clients is how many nodes there are, at least; num_rounds the most rounds that are run.
      randomizer: of the clients' mod.
      delta: that epsilon is stated for, in (0, 1).
      view: "local", "messages" or "aggregate": who epsilon is against. The SuperLink sees names, hence "local", unless
        it is trusted to forget them.
      target_epsilon: nats; None runs all rounds.
      learning_rate: of the server, above 0.

    Raises:
      ImportError: flwr is not installed. TypeError, ValueError: an argument outside its range, or not even one round
        fits.
    """
    if not isinstance(protocol, ShuffledCheckIn | Shuffle):
        raise TypeError(f"protocol={_validate.shown(protocol)}: expected ShuffledCheckIn or Shuffle")
    rate = _validate.real(0, math.inf, open_low=True, open_high=True, learning_rate=learning_rate)
    run = PrivateRun(
        protocol=protocol, randomizer=randomizer, delta=delta, target_epsilon=target_epsilon, target_view=view
    )
    return _kind()(run, rounds_within(run), rate)


@functools.cache
def _kind() -> type:
    """The class, made once flwr is there."""
    try:
        from flwr.app import (  # pyright: ignore[reportMissingImports]
            Array,
            ArrayRecord,
            Message,
            MessageType,
            MetricRecord,
            RecordDict,
        )
        from flwr.serverapp.exception import PrivacyBudgetExhausted  # pyright: ignore[reportMissingImports]
        from flwr.serverapp.strategy import Strategy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"flwr is not installed: {how_to_install('flower')}") from error
    log = logging.getLogger("flwr")

    class CheckInStrategy(Strategy):
        """See `strategy`.

        Attributes:
          run: protocol, randomizer and budget.
          num_rounds: how many rounds fit.
        """

        def __init__(self, run: PrivateRun, num_rounds: int, learning_rate: float) -> None:
            self.run, self.num_rounds, self.learning_rate = run, num_rounds, learning_rate
            self._arrays: Any = None

        def epsilon(self, rounds: int) -> float:
            """Certified, after so many rounds, in the view of the budget."""
            protocol = self.run.protocol.repeated(rounds)
            return account(
                protocol, self.run.randomizer, delta=self.run.delta, view=self.run.target_view
            ).epsilon

        def summary(self) -> None:
            """Logs what is guaranteed."""
            run = self.run
            protocol = run.protocol.repeated(self.num_rounds)
            for line in str(
                account(protocol, run.randomizer, delta=run.delta, view=run.target_view)
            ).splitlines():
                log.info("\t%s", line)

        def start(self, grid: Any, initial_arrays: Any, num_rounds: int | None = None, **options: Any) -> Any:
            """flwr's `start`, ended by the budget; num_rounds None: all rounds that fit."""
            rounds = self.num_rounds if num_rounds is None else min(num_rounds, self.num_rounds)
            if num_rounds is not None and num_rounds > rounds:
                log.info("halts after round %d of %d: the budget of epsilon", rounds, num_rounds)
            return super().start(grid, initial_arrays, rounds, **options)

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
            """A message to every node; raises PrivacyBudgetExhausted after the last round that fits."""
            if server_round > self.num_rounds:
                raise PrivacyBudgetExhausted(
                    f"round {server_round} would exceed epsilon {self.run.target_epsilon!r} at delta {self.run.delta!r}"
                )
            nodes, expected = list(grid.get_node_ids()), self.run.protocol.num_clients
            if len(nodes) < expected:
                raise ValueError(
                    f"{len(nodes)} nodes are connected: expected num_clients={expected} at least"
                )
            self._arrays = arrays
            config["server-round"] = server_round
            content = RecordDict({"arrays": arrays, "config": config})
            return [
                Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node) for node in nodes
            ]

        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
            """The old arrays and learning_rate times sum over the expected number of messages."""
            came = [
                each.content
                for each in replies
                if not each.has_error() and len(each.content.array_records) == 1
            ]
            old = self._arrays
            sums = [np.asarray(each, dtype=np.float64) for each in old.to_numpy_ndarrays()]
            step = self.learning_rate / self.run.schedule.divisor(len(came))
            for content in came:
                record = next(iter(content.array_records.values()))
                for total, part in zip(sums, record.to_numpy_ndarrays(), strict=True):
                    total += step * part
            new = {
                key: Array(total.astype(before.dtype))
                for key, total, before in zip(old.keys(), sums, old.to_numpy_ndarrays(), strict=True)
            }
            spent = self.epsilon(server_round)
            log.info(
                "%d messages; epsilon %s of %s at delta %g",
                len(came),
                up(spent),
                self.run.target_epsilon,
                self.run.delta,
            )
            return ArrayRecord(new), MetricRecord({"messages": len(came), "epsilon": spent})

        def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
            """Asks nobody: what clients would say of their data is not accounted for."""
            return []

        def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> None:
            """Nothing."""

    return CheckInStrategy
