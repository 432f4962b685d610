"""A strategy for flwr 1.42: rounds of shuffled check-in that end with the budget of epsilon.

Trust model: that of `checkin_jax.flower.ClientMod`. The strategy reads the arrays of replies only, and uses their sum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
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

import checkin_jax as cj
from checkin_jax.training import PrivateRun
from checkin_jax.training.budget import rounds_within

LOG = logging.getLogger("flwr")


class CheckInStrategy(Strategy):
    """A flwr `Strategy` for clients that run `ClientMod` with the randomizer, rate and number of rounds of `run`.

    Each round asks every node; the nodes that check in answer. The new arrays are the old ones plus learning_rate times
    the sum of the messages over the EXPECTED number of messages: no division by the number that came. Clients are asked
    for nothing else; evaluate with `evaluate_fn` of flwr's `start`. Metrics of a round: its messages, and the certified
    epsilon so far. The number of rounds that fit is found before the first round and depends on no output.

    Args:
      run: protocol, randomizer, delta, target_epsilon (None runs all rounds) and target_view.
      learning_rate: of the server, above 0.
    """

    def __init__(self, run: PrivateRun, *, learning_rate: float = 1.0) -> None:
        self.run, self.num_rounds, self.learning_rate = run, rounds_within(run), learning_rate
        self._arrays: Any = None

    def guarantee(self, rounds: int) -> cj.Guarantee:
        """Certified guarantee after `rounds` rounds, in the view of the budget."""
        run = self.run
        return cj.account(
            run.protocol.repeated(rounds), run.randomizer, delta=run.delta, view=run.target_view
        )

    def summary(self) -> None:
        """Logs the guarantee of all rounds."""
        for line in str(self.guarantee(self.num_rounds)).splitlines():
            LOG.info("\t%s", line)

    def start(self, grid: Any, initial_arrays: Any, num_rounds: int | None = None, **options: Any) -> Any:
        """flwr's `start`, ended by the budget; num_rounds None: all rounds that fit."""
        rounds = self.num_rounds if num_rounds is None else min(num_rounds, self.num_rounds)
        if num_rounds is not None and num_rounds > rounds:
            LOG.info("halts after round %d of %d: the last one that is accounted for", rounds, num_rounds)
        return super().start(grid, initial_arrays, rounds, **options)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """A message to every node; raises PrivacyBudgetExhausted after the last round that fits."""
        run = self.run
        if server_round > self.num_rounds:
            raise PrivacyBudgetExhausted(
                f"round {server_round}: only {self.num_rounds} are accounted for "
                f"(target_epsilon={run.target_epsilon!r} at delta {run.delta!r})"
            )
        nodes, expected = list(grid.get_node_ids()), run.protocol.num_clients
        if len(nodes) < expected:
            raise ValueError(f"{len(nodes)} nodes are connected: expected num_clients={expected} at least")
        self._arrays = arrays
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node) for node in nodes]

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """The old arrays plus learning_rate times the sum of messages over the expected number of messages."""
        came = [
            each.content for each in replies if not each.has_error() and len(each.content.array_records) == 1
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
        spent = self.guarantee(server_round).epsilon
        LOG.info(
            "%d messages; epsilon %.4g of %s at delta %g",
            len(came),
            spent,
            self.run.target_epsilon,
            self.run.delta,
        )
        return ArrayRecord(new), MetricRecord({"messages": len(came), "epsilon": spent})

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """No messages: replies about clients' data would not be accounted for."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> None:
        """None."""
