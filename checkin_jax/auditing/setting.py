"""The protocol that is audited: the private run itself if it is small, else a small stand-in."""

from __future__ import annotations

import dataclasses
import math

from checkin_jax.training.run import PrivateRun

# A protocol is small if it and its units are within these numbers.
MOST_CLIENTS, MOST_MESSAGES, MOST_ROUNDS = 8, 64, 16
# Units of the stand-in: enough for an epsilon of one.
LEAST_UNITS, MOST_UNITS = 2, 8


def units_within(run: PrivateRun, rounds: int, messages: float) -> int:
    """Largest number of units within a budget of rounds and expected messages; 0 if one unit exceeds it."""
    schedule = run.schedule
    number, rate = schedule.check_ins
    affordable = messages / max(number * rate * schedule.rounds_per_unit, 1e-300)
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
