"""Bounds and instances for Gaussian messages in slots (A_fix, A_sldw), under either neighboring relation."""

from __future__ import annotations

import math
from typing import NamedTuple

from checkin_jax.accounting.bounds import unit
from checkin_jax.accounting.bounds.allocation import (
    LEAST_MU,
    MOST_MU,
    AllocationGaussian,
    MostlyGaussian,
    OccupiedAllocationGaussian,
    OneStep,
    SharedSlotsGaussian,
    TwoSteps,
    some_empty,
)
from checkin_jax.accounting.bounds.hidden import HiddenSlots
from checkin_jax.accounting.bounds.profiles import MOST_MU as MOST_PROFILE_MU
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.numerics import occupancy
from checkin_jax.protocols import FixedWindow, SlidingWindow

# Visible slots: exp(-_SELDOM) of the law of how many are occupied is left out of instances.
_SELDOM = 7.0


class Slots(NamedTuple):
    """Where a client's message may be: in `number` slots, with probability `used` if it could always be seen there.

    seen: the probability that it is in one of them after all when all others do their worst.
    """

    number: int
    used: float
    seen: float


def slots_of(protocol: FixedWindow | SlidingWindow) -> Slots:
    """The slots of one client's window that the server outputs."""
    if isinstance(protocol, SlidingWindow):
        window = protocol.window
        # All of the window for most clients when n >= 2 m - 1.
        slots = min(window, protocol.num_clients - window + 1)
        # A slot's other clients are Bin(m - 1, 1/m) in number.
        alone = -math.expm1(window * math.log1p(-1.0 / window)) if window > 1 else 1.0
        return Slots(slots, slots / window, slots / window * alone * (1.0 - 1e-12))
    n, m, prob = protocol.num_clients, protocol.num_slots, protocol.check_in_prob
    mean, _ = occupancy.moments(float(n), float(m), prob)
    return Slots(m, prob, min(mean / n * (1.0 - 1e-12), prob))


def added(protocol: FixedWindow | SlidingWindow, mu: float, mass: float) -> unit.Round:
    """Adding or removing a client, dummies hidden: G3, and G3' for common windows."""
    slots = slots_of(protocol)
    if not LEAST_MU <= mu <= MOST_MU:
        return OneStep(slots.used, mu)
    instances = _instances(protocol, slots, mu, mass)
    shared = SharedSlotsGaussian(slots.number, slots.used, mu, mass)
    if isinstance(protocol, FixedWindow):
        crowded = OccupiedAllocationGaussian(protocol.num_clients, slots.number, slots.used, mu, mass)
        if crowded.gains:
            return unit.LeastDirected((crowded, shared), instances)
    return unit.LeastDirected((shared,), instances)


def replaced(protocol: FixedWindow | SlidingWindow, mu: float, mass: float, tight: bool) -> unit.Round:
    """Replacing a record: R1; if tight R2 and R3 too, which take about a second; never above the local bound."""
    slots, local = slots_of(protocol), unit.LocalGaussian(protocol.rate, mu)
    known = LEAST_MU <= mu <= MOST_MU
    # Slots, rate, and the probability that they do not serve, of all ways to look at it that are open.
    ways: list[tuple[int, float, float]] = []
    steps: list[tuple[float, TwoSteps]] = []
    if isinstance(protocol, SlidingWindow) or protocol.empty_slots == "dummy":
        ways.append((slots.number, slots.used, 0.0))
        pair = SharedSlotsGaussian(slots.number, slots.used, mu, mass)
        spread = max(_spread(0.5 * mu), 0.5 * _spread(mu))
        steps.append((slots.used * spread / math.sqrt(slots.number), TwoSteps(pair)))
    if isinstance(protocol, FixedWindow):
        # The client takes the place of one of the others that are used, if not all clients are.
        most, rest = occupancy.most(protocol.num_clients, slots.number, slots.used, mass)
        used = most / protocol.num_clients
        if used < 1.0:
            ways.append((most, used, rest))
            pair = AllocationGaussian(most, used, mu, mass)
            steps.append((used * _spread(mu) / math.sqrt(most), TwoSteps(pair, rest)))
    if not ways:
        return unit.NoGain(local)
    _, used, rest = min(ways, key=lambda way: way[1])
    bounds: list[unit.Round] = [OneStep(used, mu, rest)]
    if tight and known:
        bounds.append(min(steps, key=lambda step: step[0])[1])
    if tight and mu <= MOST_PROFILE_MU:
        number, used, rest = min(ways, key=lambda way: way[1] / math.sqrt(way[0]))
        bounds.append(HiddenSlots(number, used, GaussianProfile(mu), mass, rest))
    return unit.Least((*bounds, local), _instances(protocol, slots, mu, mass) if known else ())


def _spread(mu: float) -> float:
    """Standard deviation of a message's likelihood ratio."""
    return math.sqrt(math.expm1(min(mu * mu, 600.0)))


def _instances(
    protocol: FixedWindow | SlidingWindow, slots: Slots, mu: float, mass: float
) -> tuple[unit.Instance, ...]:
    """All others at one record, the client's own in place of it or not; these serve both neighboring relations."""
    found: list[unit.Instance] = []
    if isinstance(protocol, FixedWindow):
        n = protocol.num_clients
        if protocol.empty_slots == "visible":
            # Seen, and all of them but so many forgotten.
            least = occupancy.least(n, slots.number, slots.used, _SELDOM)
            if least < 1:
                return ()
            return (MostlyGaussian(AllocationGaussian(least, least / n, mu, mass), math.exp(-_SELDOM), True),)
        # All slots occupied by others at distance mu, if that can be relied on.
        empty = some_empty(n, slots.number, slots.used)
        if empty < 1e-3 * math.exp(17.0 - mass) and slots.seen > empty:
            pair = AllocationGaussian(slots.number, slots.seen - empty, mu, mass)
            return (MostlyGaussian(pair, empty, False),)
    # The others' records, and the dummies, are zero.
    if 0.5 * mu >= LEAST_MU:
        found.append(AllocationGaussian(slots.number, slots.seen, 0.5 * mu, mass))
    return tuple(found)
