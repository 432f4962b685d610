"""What is audited: the private run itself where it is small, and a small one in its place where it is large."""

from __future__ import annotations

import dataclasses
import math

from checkin_jax import _validate
from checkin_jax.training.run import PrivateRun

# A protocol is small where it has no more clients than this, and one unit of it is no more.
MOST_CLIENTS, MOST_MESSAGES, MOST_ROUNDS = 8, 64, 16
# Units of the stand-in: enough for an epsilon of one.
LEAST_UNITS, MOST_UNITS = 2, 8


def check_auditable(run: PrivateRun) -> PrivateRun:
    """The run itself.

    Raises:
      TypeError, ValueError: no PrivateRun, or one with simulate="central-limit", which is not the mechanism.
    """
    if _validate.instance(PrivateRun, run=run).simulate == "central-limit":
        raise ValueError(
            "simulate='central-limit': expected 'aggregate' or 'messages'; a simulation is no mechanism to audit"
        )
    return run


def units_within(run: PrivateRun, rounds: int, messages: float) -> int:
    """The largest number of units within a budget of rounds and expected messages; 0 if one unit exceeds it."""
    schedule = run.schedule
    number, rate = schedule.check_ins
    affordable = messages / max(number * rate * schedule.rounds_per_unit, 1e-300)
    return int(min(rounds // schedule.rounds_per_unit, affordable, run.protocol.repeats))


def small(run: PrivateRun) -> PrivateRun:
    """The run where it is small, or its first units; else a protocol of its kind with few clients in its place.

    The randomizer is the same. Few clients, who check in often, make leaks large beside the statistical error,
    and the certified bounds tight; the less one message tells the more units there are.
    """
    units = units_within(run, MOST_ROUNDS, MOST_MESSAGES)
    if units and run.protocol.num_clients <= MOST_CLIENTS:
        return run.repeated(units)
    tells = min(MOST_UNITS, max(LEAST_UNITS, math.ceil(1.0 / run.mechanism.distance**2)))
    fewer = dataclasses.replace(run, protocol=run.schedule.fewer_clients())
    fewer = fewer.repeated(min(tells, run.protocol.repeats))
    return fewer.repeated(units_within(fewer, MOST_ROUNDS, MOST_MESSAGES))
