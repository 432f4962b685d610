"""Runs of the trainer's own rounds on canary clients, whose updates are vectors chosen by the auditor.

The "model" is linear: the gradient of a record's loss is the record. So schedule, clipping, noise, keys and
sums are those of a training run; only the network is replaced. A large protocol has a small stand-in (`small`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax.auditing.placement import drawn
from checkin_jax.training import draws
from checkin_jax.training.draws import DUMMY, Stream
from checkin_jax.training.private.mechanism import GROUP
from checkin_jax.training.private.step import Performance, buffer_capacity, round_messages, round_sum
from checkin_jax.training.run import PrivateRun

OVERSHOOT = 3.0  # norm of every record over the clip norm, so that clipping takes effect
DIMENSION = 4
# Sums of l2 messages are drawn by groups only in at least 80 dimensions with different updates.
SUM_DIMENSION = 96
PILOT = 100
_PERFORMANCE = Performance(microbatch=GROUP)


class Round(NamedTuple):
    """One round as its adversaries observe it.

    Attributes:
      clients: (k,) senders of the messages; DUMMY for a dummy's.
      messages: (k, d), or None if not requested.
      total: (d,) their sum, drawn according to `run.simulate`; None if not requested.
    """

    clients: np.ndarray
    messages: np.ndarray | None
    total: np.ndarray | None


class Stage:
    """The trainer's rounds on fixed records.

    Args:
      run: the run.
      records: (number, d) float32, the possible updates before clipping.
      messages, totals: which of them to draw.
    """

    def __init__(self, run: PrivateRun, records: np.ndarray, *, messages: bool, totals: bool) -> None:
        self._schedule, self._mechanism = run.schedule, run.mechanism
        self._arguments = (
            _linear,
            jnp.zeros((records.shape[1],), jnp.float32),
            jnp.asarray(records, jnp.float32),
        )
        self._messages, self._totals = messages, totals
        self._rows = buffer_capacity(*self._schedule.check_ins)

    def rounds(self, entropy: int, held: np.ndarray) -> Iterator[Round]:
        """Rounds of one run; `held` (n,) is the index of every client's record."""
        clients, noise_key = self._schedule.draw(entropy), draws.jax_key(entropy, Stream.NOISE)
        for index in range(self._schedule.num_rounds):
            chosen = clients(index)
            records = np.where(chosen == DUMMY, DUMMY, held[chosen]).astype(np.int32)
            rest = *self._arguments, records, draws.round_key(noise_key, index)
            messages = total = None
            if self._messages:
                messages = round_messages(self._mechanism, *rest, capacity=self._rows)
            if self._totals:
                total = np.asarray(
                    round_sum(self._mechanism, *rest, capacity=self._rows, performance=_PERFORMANCE)
                )
            yield Round(chosen, messages, total)


@dataclasses.dataclass(frozen=True)
class Trials:
    """Independent runs that differ in their randomness only.

    Attributes:
      counts: (runs, rounds), messages of each round.
      messages: (runs, rounds, most, d), zero beyond the count; None if not drawn.
      place: (runs, rounds), index of the canary's message, -1 if it sent none; None if not drawn.
      totals: (runs, rounds, d); None if not drawn.
    """

    counts: np.ndarray
    messages: np.ndarray | None
    place: np.ndarray | None
    totals: np.ndarray | None


def two_worlds(
    run: PrivateRun, runs: int, entropies: Iterator[int], *, messages: bool, totals: bool
) -> tuple[int, Trials, Trials]:
    """Runs in two neighbouring worlds: one client, the canary, holds +v in the first and -v in the second.

    The adversary knows the others' records. They are -v as well, which hides the canary of the second world.
    If sums are drawn by groups of clients (`Mechanism.groups_clients`), they are orthogonal to v and to each
    other.

    Returns:
      The canary's number, and `runs` runs in each world.
    """
    # Guarantees hold for every client; this one checks in most often.
    canary = int(np.argmax((drawn(run, PILOT, entropies).places >= 0).sum(axis=(0, 1))))
    spread = totals and run.mechanism.groups_clients
    n = run.protocol.num_clients
    dimension = max(SUM_DIMENSION, n) if spread else DIMENSION
    unit = OVERSHOOT * run.clip_norm * np.eye(dimension, dtype=np.float32)
    records = np.concatenate([unit, -unit[:1]])  # +v, orthogonal ones, -v
    stage = Stage(run, records, messages=messages, totals=totals)
    opposite = len(records) - 1
    held = np.arange(n) % (dimension - 1) + 1 if spread else np.full(n, opposite)
    worlds = []
    for record in (0, opposite):
        held = held.copy()
        held[canary] = record
        worlds.append(_collect([list(stage.rounds(next(entropies), held)) for _ in range(runs)], canary))
    return canary, worlds[0], worlds[1]


def _collect(runs: list[list[Round]], canary: int) -> Trials:
    counts = np.array([[len(r.clients) for r in one] for one in runs])
    messages = place = totals = None
    if runs[0][0].messages is not None:
        dimension = runs[0][0].messages.shape[1]
        messages = np.zeros((*counts.shape, max(1, counts.max()), dimension))
        place = np.full(counts.shape, -1)
        for i, one in enumerate(runs):
            for j, r in enumerate(one):
                messages[i, j, : len(r.clients)] = r.messages
                found = np.flatnonzero(r.clients == canary)
                place[i, j] = found[0] if len(found) else -1
    if runs[0][0].total is not None:
        totals = np.array([[r.total for r in one] for one in runs], np.float64)
    return Trials(counts, messages, place, totals)


def _linear(parameters: jax.Array, record: jax.Array) -> jax.Array:
    """A loss whose gradient is the record."""
    return jnp.sum(parameters * record)


# A protocol is small if it and its units are within these numbers.
MOST_CLIENTS, MOST_MESSAGES, MOST_ROUNDS = 8, 64, 16
# Units of the stand-in: enough for an epsilon of one.
LEAST_UNITS, MOST_UNITS = 2, 8


def units_within(run: PrivateRun, rounds: int, messages: float) -> int:
    """Largest number of units within a budget of rounds and expected messages; 0 if one unit exceeds it."""
    schedule = run.schedule
    affordable = messages / max(schedule.expected_messages * schedule.rounds_per_unit, 1e-300)
    return int(min(rounds // schedule.rounds_per_unit, affordable, run.protocol.num_units))


def small(run: PrivateRun) -> PrivateRun:
    """The run if it is small, or its first units; otherwise a protocol of its kind with few clients.

    The randomizer is the same. With few clients who check in often, leaks are large compared with the
    statistical error, and certified bounds are tight. The less one message reveals, the more units there are.
    """
    units = units_within(run, MOST_ROUNDS, MOST_MESSAGES)
    if units and run.protocol.num_clients <= MOST_CLIENTS:
        return run.repeated(units)
    tells = min(MOST_UNITS, max(LEAST_UNITS, math.ceil(1.0 / run.mechanism.distance**2)))
    fewer = dataclasses.replace(run, protocol=run.schedule.fewer_clients())
    fewer = fewer.repeated(min(tells, run.protocol.num_units))
    return fewer.repeated(units_within(fewer, MOST_ROUNDS, MOST_MESSAGES))
