"""What is audited: a protocol, a mechanism and how it is computed; and a small protocol in place of a large one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting.bounds.dispatch import check_protocol, check_randomizer
from checkin_jax.protocols import (
    AveragedUpdates,
    CheckInProtocol,
    FixedWindow,
    Shuffle,
    ShuffledCheckIn,
    SlidingWindow,
)
from checkin_jax.randomizers import MAX_EPSILON0, Gaussian, PureLDP, Randomizer
from checkin_jax.training.config import MICROBATCH_UNIT, SIMULATE, TrainingConfig
from checkin_jax.training.private.mechanisms import MIN_EPSILON0, central_limit_multiplier
from checkin_jax.training.private.step import Mechanism
from checkin_jax.training.schedules.schedule import Plan

# A protocol is small where it has no more clients than this, and one unit of it is no more.
MOST_CLIENTS, MOST_MESSAGES, MOST_ROUNDS = 8, 64, 16
# The stand-in: as few clients as can hide each other, half of whom check in; enough units for an epsilon of one.
CLIENTS, SLOTS, LEAST_RATE, LEAST_UNITS, MOST_UNITS = 3, 2, 0.5, 2, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing to audit.

    Attributes:
      protocol, randomizer: as accounted for.
      clip_norm: C in [1e-6, 1e6].
      simulate: how sums are drawn in the view "aggregate": "aggregate" or "messages".

    Raises:
      ValueError, TypeError: an attribute outside its range; simulate="central-limit", which is not the mechanism.
    """

    protocol: CheckInProtocol
    randomizer: Randomizer
    clip_norm: float = 0.1
    simulate: str = "aggregate"

    def __post_init__(self) -> None:
        check_protocol(self.protocol)
        check_randomizer(self.randomizer)
        if isinstance(self.randomizer, PureLDP):
            # What the trainer realises it by needs some room.
            _validate.real(MIN_EPSILON0, MAX_EPSILON0, epsilon0=self.randomizer.epsilon0)
        if _validate.choice(SIMULATE, simulate=self.simulate) == "central-limit":
            raise ValueError(
                "simulate='central-limit': expected 'aggregate' or 'messages'; a simulation is no mechanism to audit"
            )
        object.__setattr__(self, "clip_norm", self.mechanism.clip_norm)

    @classmethod
    def of(cls, config: TrainingConfig) -> Setting:
        """That of a run."""
        return cls(
            protocol=config.protocol,
            randomizer=config.randomizer,
            clip_norm=config.clip_norm,
            simulate=config.simulate,
        )

    @property
    def plan(self) -> Plan:
        """The rounds."""
        return Plan(protocol=self.protocol)

    @property
    def mechanism(self) -> Mechanism:
        """What happens to the updates of a round."""
        return Mechanism(
            clip_norm=self.clip_norm,
            randomizer=self.randomizer,
            simulate=self.simulate,
            microbatch=MICROBATCH_UNIT,
        )

    @property
    def sum_multiplier(self) -> float:
        """Standard deviation, over the clip norm, of one message in a coordinate of a sum; of l2 messages about."""
        if isinstance(self.randomizer, Gaussian):
            return self.randomizer.noise_multiplier
        return central_limit_multiplier(self.randomizer.epsilon0)

    @property
    def messages_per_unit(self) -> float:
        """Expected number of messages in one unit of the protocol."""
        number, rate = self.plan.check_ins
        return number * rate * self.plan.rounds_per_unit

    def repeated(self, units: int) -> Setting:
        """The same with so many units of the protocol."""
        return dataclasses.replace(self, protocol=self.protocol.repeated(units))

    def units_within(self, rounds: int, messages: float) -> int:
        """How many units, of those there are, have at most so many rounds, and messages as expected; maybe none."""
        affordable = messages / max(self.messages_per_unit, 1e-300)
        return int(min(rounds // self.plan.rounds_per_unit, affordable, self.protocol.repeats))

    def small(self) -> Setting:
        """Itself where it is small, or its first units; else a protocol of its kind with few clients in its place.

        The randomizer is the same. Few clients, who check in often, make leaks large beside the statistical error,
        and the certified bounds tight; the less one message tells the more units there are.
        """
        units = self.units_within(MOST_ROUNDS, MOST_MESSAGES)
        if units and self.protocol.num_clients <= MOST_CLIENTS:
            return self.repeated(units)
        fewer = _fewer_clients(self.protocol)
        setting = dataclasses.replace(self, protocol=fewer)
        setting = setting.repeated(min(_units(self.randomizer), self.protocol.repeats))
        return setting.repeated(setting.units_within(MOST_ROUNDS, MOST_MESSAGES))

    def exposure(self, client: int) -> np.ndarray:
        """(rounds of a unit,): the chance that a given message of a round is this client's, given their number."""
        protocol, plan = self.protocol, self.plan
        if isinstance(protocol, ShuffledCheckIn | Shuffle | AveragedUpdates):
            return np.full(plan.rounds_per_unit, 1.0 / protocol.num_clients)
        if isinstance(protocol, FixedWindow):
            used = 1.0 - self.empty if self._dummies else 1.0
            return np.full(plan.rounds_per_unit, used / protocol.num_clients)
        # The client's window, over all slots of the pass, of which the first window - 1 are not used.
        slots = np.arange(plan.slots_per_unit) + protocol.window - 1
        inside = (slots >= client) & (slots < client + protocol.window)
        starts = np.arange(plan.rounds_per_unit) * plan.minibatch
        shares = np.add.reduceat(inside, starts) / np.diff(np.append(starts, plan.slots_per_unit))
        return shares * (1.0 - self.empty) / protocol.window

    @property
    def empty(self) -> float:
        """The chance that a slot which shows one client's message has none to show; 0 without such slots."""
        protocol = self.protocol
        if isinstance(protocol, FixedWindow):
            return math.pow(1.0 - protocol.check_in_prob / protocol.num_slots, protocol.num_clients)
        if isinstance(protocol, SlidingWindow):
            return math.pow(1.0 - 1.0 / protocol.window, protocol.window)
        return 0.0

    @property
    def dummies(self) -> float:
        """The chance that a message is a dummy's."""
        return self.empty if self._dummies else 0.0

    @property
    def _dummies(self) -> bool:
        return not (isinstance(self.protocol, FixedWindow) and self.protocol.empty_slots == "visible")


def _fewer_clients(protocol: CheckInProtocol) -> CheckInProtocol:
    n = min(CLIENTS, protocol.num_clients)
    if isinstance(protocol, SlidingWindow):
        fewer = SlidingWindow(
            num_clients=min(n + 1, protocol.num_clients), window=min(SLOTS, protocol.window)
        )
        return dataclasses.replace(fewer, minibatch=min(protocol.minibatch, fewer.slots_shown))
    if isinstance(protocol, Shuffle):
        return Shuffle(num_clients=n)
    rate = max(LEAST_RATE, protocol.check_in_prob)
    fewer = dataclasses.replace(protocol.repeated(1), num_clients=n, check_in_prob=rate)
    if isinstance(fewer, ShuffledCheckIn):
        return fewer
    slots = min(SLOTS, fewer.num_slots)
    if isinstance(fewer, FixedWindow):
        return dataclasses.replace(fewer, num_slots=slots, minibatch=min(fewer.minibatch, slots))
    return dataclasses.replace(fewer, num_slots=slots)


def _units(randomizer: Randomizer) -> int:
    """As many as bring the messages of one client to a few standard deviations."""
    tells = randomizer.mu if isinstance(randomizer, Gaussian) else 2.0 * math.tanh(randomizer.epsilon0 / 2.0)
    return int(min(MOST_UNITS, max(LEAST_UNITS, math.ceil(1.0 / tells**2))))
