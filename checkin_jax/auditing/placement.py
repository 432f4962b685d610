"""Where clients stand: places among the messages of a round, rounds of a unit, units of a run.

A schedule promises three laws. Given that a client sends one of the k messages of a round, its place is uniform. Given
that it is used in a unit, the round follows `Schedule.exposure`. Units are independent.

Each is tested by a likelihood ratio: the law that pilot runs suggest over the law that is promised, multiplied over
fresh runs. Where the promise holds the ratio has mean 1, so by Markov's inequality it reaches 1/error with a
probability of at most `error`, whatever the pilot runs suggested. No noise is in the way: a faulty order is seen even
where messages would hide it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.schedules.draws import DUMMY

PLACES, ROUNDS, UNITS = "places of a round", "rounds of a unit", "units of a run"
MOST_RUNS = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """One test of where a client stands.

    Attributes:
      test: "places of a round", "rounds of a unit" or "units of a run".
      protocol: what was drawn.
      client: the one whose pilot runs looked worst.
      log_ratio: log of the likelihood of what was seen under the law that pilot runs suggest, over that promised;
        infinite where what was seen is promised never to happen.
      limit: log of the ratio from which the promise counts as broken: 1 over the error allowed to this test.
      runs: fresh runs that were looked at.
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
        """Returns plain values for JSON."""
        return {
            "test": self.test,
            "client": self.client,
            "log_ratio": self.log_ratio if math.isfinite(self.log_ratio) else None,
            "limit": self.limit,
            "runs": self.runs,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        return (
            f"{'pass' if self.passed else 'VIOLATION'}: {self.test}, client {self.client} of "
            f"{self.protocol.num_clients:,}, in {self.runs:,} runs: e^{self.log_ratio:.1f} times as likely under the "
            f"law that other runs suggest as under the one promised (a violation from e^{self.limit:.1f})"
        )


class _Seen(NamedTuple):
    """One observation: which law it follows, its outcome 0, 1, ..., and the promised probability of each outcome."""

    law: Hashable
    outcome: int
    promised: tuple[float, ...]


class _Runs(NamedTuple):
    """places: (runs, rounds, clients), -1 where a client sends nothing; counts: (runs, rounds), messages of a round."""

    places: np.ndarray
    counts: np.ndarray


_Looks = Callable[[PrivateRun, _Runs, int], list[_Seen]]


def tests(run: PrivateRun, runs: int, entropies: Iterator[int], error: float) -> list[Placement]:
    """The three tests on a small run, half of `runs` for pilots; each is wrong with probability at most `error`.

    A round that takes several slots of a window is looked at slot by slot.
    """
    protocol: Any = run.protocol
    if getattr(protocol, "minibatch", 1) > 1:
        run = dataclasses.replace(run, protocol=dataclasses.replace(protocol, minibatch=1))
    half = max(1, min(runs, MOST_RUNS) // 2)
    pilot, fresh = (_drawn(run, half, entropies) for _ in range(2))
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


def _drawn(run: PrivateRun, number: int, entropies: Iterator[int]) -> _Runs:
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
    return _Runs(places, counts)


def _log_ratio(pilot: list[_Seen], fresh: list[_Seen]) -> float:
    """Log likelihood of fresh observations under the laws of the pilot ones, over the promised laws.

    A law that the pilot runs suggest is their counts and, weighing as much as one run for each outcome, what is
    promised: so no outcome that may happen is given probability zero.
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


def _places(run: PrivateRun, drawn: _Runs, client: int) -> list[_Seen]:
    """Among the k messages of a round that holds the client's, for each k."""
    places, counts = drawn.places[..., client], drawn.counts
    sent = (places >= 0) & (counts > 1)
    pairs = zip(counts[sent].tolist(), places[sent].tolist())
    return [_Seen(count, place, (1.0 / count,) * count) for count, place in pairs]


def _rounds(run: PrivateRun, drawn: _Runs, client: int) -> list[_Seen]:
    """Among the rounds of a unit in one of which the client is; none where a unit is a round."""
    exposure = run.schedule.exposure(client)
    if len(exposure) == 1 or not exposure.sum():
        return []
    promised = tuple((exposure / exposure.sum()).tolist())
    sent = drawn.places[..., client].reshape(-1, len(exposure)) >= 0
    return [_Seen(None, int(np.argmax(unit)), promised) for unit in sent if unit.sum() == 1]


def _units(run: PrivateRun, drawn: _Runs, client: int) -> list[_Seen]:
    """Whether a unit resembles the next one of its own run, or rather that of another run.

    Of two runs what happened from some unit on may be exchanged if units are independent: the likelier pairing is
    then that of either side with equal chances, whatever the rates.
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
