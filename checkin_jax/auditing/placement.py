"""Tests of the places of clients: places among the messages of a round, rounds of a unit, units of a run.

A schedule promises three laws. Given that a client sends one of the k messages of a round, its place is
uniform. Given that a client is used in a unit, the round follows `Schedule.exposure`. Units are independent.

Each law is tested by a likelihood ratio: a law estimated from pilot runs over the promised law, multiplied
over fresh runs. Under the promised law the ratio has mean 1, so by Markov's inequality it reaches 1/error
with probability at most `error`, for any pilot runs. Noise plays no role, so a faulty order is detected even
if noisy messages would hide it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from checkin_jax._serialize import finite
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.draws import DUMMY
from checkin_jax.training.run import PrivateRun

PLACES, ROUNDS, UNITS = "places of a round", "rounds of a unit", "units of a run"
MOST_RUNS = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """One test of the place of a client.

    Attributes:
      test: "places of a round", "rounds of a unit" or "units of a run".
      protocol: the protocol that was drawn.
      client: the client with the worst pilot runs.
      log_ratio: log likelihood of the fresh runs under the law estimated from pilot runs, minus that under
        the promised law; infinite if an outcome has promised probability 0.
      limit: the test refutes the promised law from this log ratio on: log of 1 over the error allowed to this
        test.
      runs: number of fresh runs.
    """

    test: str
    protocol: CheckInProtocol
    client: int
    log_ratio: float
    limit: float
    runs: int

    @property
    def passed(self) -> bool:
        """True if the promised law was not refuted."""
        return self.log_ratio < self.limit

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("test", "client", "log_ratio", "limit", "runs", "passed")
        return finite({name: getattr(self, name) for name in names})

    def __str__(self) -> str:
        return (
            f"{'pass' if self.passed else 'VIOLATION'}: {self.test}, client {self.client} of "
            f"{self.protocol.num_clients:,}, in {self.runs:,} runs: likelihood ratio e^{self.log_ratio:.1f} of a law "
            f"estimated from other runs over the promised law (a violation from e^{self.limit:.1f} on)"
        )


class _Seen(NamedTuple):
    """One observation: its law, its outcome 0, 1, ..., and the promised probability of each outcome."""

    law: Hashable
    outcome: int
    promised: tuple[float, ...]


class DrawnRuns(NamedTuple):
    """places: (runs, rounds, clients), -1 for clients that send nothing; counts: (runs, rounds),
    of messages.
    """

    places: np.ndarray
    counts: np.ndarray


_Looks = Callable[[PrivateRun, DrawnRuns, int], list[_Seen]]


def tests(run: PrivateRun, runs: int, entropies: Iterator[int], error: float) -> list[Placement]:
    """Three tests on a small run, half of `runs` for pilots; each is wrong with probability at
    most `error`.

    A round of several slots of a window is tested slot by slot.
    """
    protocol: Any = run.protocol
    if getattr(protocol, "minibatch", 1) > 1:
        run = dataclasses.replace(run, protocol=dataclasses.replace(protocol, minibatch=1))
    half = max(1, min(runs, MOST_RUNS) // 2)
    pilot, fresh = (drawn(run, half, entropies) for _ in range(2))
    found = []
    for test, looks in TESTS.items():
        clients = range(run.protocol.num_clients)
        pilots = [looks(run, pilot, client) for client in clients]
        suspect = max(clients, key=lambda client: _log_ratio(pilots[client], pilots[client]))
        ratio = _log_ratio(pilots[suspect], looks(run, fresh, suspect))
        found.append(
            Placement(
                test=test,
                protocol=run.protocol,
                client=suspect,
                log_ratio=ratio,
                limit=-math.log(error),
                runs=half,
            )
        )
    return found


def drawn(run: PrivateRun, number: int, entropies: Iterator[int]) -> DrawnRuns:
    """Senders of every message of every round, for this number of runs; no messages."""
    rounds = run.schedule.num_rounds
    places = np.full((number, rounds, run.protocol.num_clients), -1)
    counts = np.zeros((number, rounds), np.int64)
    for i in range(number):
        clients = run.schedule.draw(next(entropies))
        for index in range(rounds):
            chosen = clients(index)
            counts[i, index] = len(chosen)
            sent = np.flatnonzero(chosen != DUMMY)
            places[i, index, chosen[sent]] = sent
    return DrawnRuns(places, counts)


def _log_ratio(pilot: list[_Seen], fresh: list[_Seen]) -> float:
    """Log likelihood of fresh observations under laws estimated from pilots, minus that under
    promised laws.

    The estimate consists of the pilot counts, plus the promised probabilities with the weight of one run per
    outcome. So no possible outcome has probability zero.
    """
    counts: dict[Hashable, np.ndarray] = {}
    for one in pilot:
        counts.setdefault(one.law, np.zeros(len(one.promised)))[one.outcome] += 1.0
    total = 0.0
    for one in fresh:
        promised = one.promised[one.outcome]
        if promised == 0.0:
            return math.inf
        seen, size = counts.get(one.law, np.zeros(len(one.promised))), len(one.promised)
        suggested = (seen[one.outcome] + size * promised) / (seen.sum() + size)
        total += math.log(suggested / promised)
    return total


def _places(run: PrivateRun, drawn: DrawnRuns, client: int) -> list[_Seen]:
    """Places of the client among the k messages of a round, for each k; with hidden dummies a slot has one message."""
    places, counts = drawn.places[..., client], drawn.counts
    if run.schedule.dummies > 0 and (counts != 1).any():
        return [_Seen("a slot's messages", 1, (1.0, 0.0))]
    sent = (places >= 0) & (counts > 1)
    pairs = zip(counts[sent].tolist(), places[sent].tolist())
    return [_Seen(count, place, (1.0 / count,) * count) for count, place in pairs]


def _rounds(run: PrivateRun, drawn: DrawnRuns, client: int) -> list[_Seen]:
    """Rounds of a unit that contain the client; none if a unit is a round."""
    exposure = run.schedule.exposure(client)
    if len(exposure) == 1 or not exposure.sum():
        return []
    promised = tuple((exposure / exposure.sum()).tolist())
    sent = drawn.places[..., client].reshape(-1, len(exposure)) >= 0
    return [_Seen(None, int(np.argmax(unit)), promised) for unit in sent if unit.sum() == 1]


def _units(run: PrivateRun, drawn: DrawnRuns, client: int) -> list[_Seen]:
    """Outcome for each unit: it resembles the next unit of its own run, or rather that of another run.

    If units are independent, two runs may be exchanged from some unit on. The likelier pairing is then either
    one with equal probability, for any rates.
    """
    length = run.schedule.rounds_per_unit
    number = len(drawn.places) // 2 * 2
    units = drawn.places[:number, :, client].reshape(number, -1, length)
    first, second = units[::2], units[1::2]

    def alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.all(one[:, :-1] == other[:, 1:], axis=-1).astype(int)

    own = alike(first, first) + alike(second, second)
    crossed = alike(first, second) + alike(second, first)
    pairs = [(mine, others) for mine, others in zip(own.flat, crossed.flat) if mine != others]
    return [_Seen(None, int(mine > others), (0.5, 0.5)) for mine, others in pairs]


TESTS: dict[str, _Looks] = {PLACES: _places, ROUNDS: _rounds, UNITS: _units}
