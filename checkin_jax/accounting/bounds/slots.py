"""Bounds and instances for Gaussian messages in slots (A_fix, A_sldw), under either neighboring relation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from checkin_jax.accounting.bounds.everybody import ShuffledEverybody
from checkin_jax.accounting.bounds.hidden import HiddenSlots
from checkin_jax.accounting.bounds.mixtures import LoadedSlot, Mixture, TwoKinds
from checkin_jax.accounting.bounds.profiles import MOST_MU as MOST_PROFILE_MU
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.ways import (
    Sums,
    Way,
    hidden_ways,
    others_of,
    placed_ways,
    slots_of,
    sums_of,
)
from checkin_jax.numerics import occupancy
from checkin_jax.protocols import FixedWindow, SlidingWindow

# Visible slots: exp(-_SELDOM) of the law of how many are occupied is left out of instances.
_SELDOM = 7.0


def added(protocol: FixedWindow | SlidingWindow, mu: float, mass: float, view: str) -> unit.Round:
    """Adding or removing a client, dummies hidden: G3 and R1', and G3' for common windows.

    Where nobody else can be in its slots the client's message takes the place of a dummy, and the pair is known.
    """
    slots, sums = slots_of(protocol), sums_of(protocol, view)
    others, pick = others_of(protocol)
    # The client picks a slot that is shown with probability `shown`, and is in it with probability `prob`.
    shown, prob = (1.0, slots.used) if isinstance(protocol, FixedWindow) else (slots.used, 1.0)

    def alone(mu: float) -> unit.Round:
        return LoadedSlot(shown, prob, others, pick, mu, mass)

    bounds: list[unit.Round] = []
    ways = hidden_ways(protocol, sums, mu)
    for way in ways:
        whole: list[unit.Round] = []
        if way.number and others == 0 and LEAST_MU <= 0.5 * way.mu <= MOST_MU:
            whole.append(AllocationGaussian(way.number, way.used, 0.5 * way.mu, mass))
        elif way.number and others and LEAST_MU <= way.mu <= MOST_MU:
            if isinstance(protocol, FixedWindow):
                n = protocol.num_clients
                crowded = OccupiedAllocationGaussian(n, slots.number, prob, way.mu, mass, way.number)
                whole += [crowded] if crowded.gains else []
            whole.append(SharedSlotsGaussian(way.number, way.used, way.mu, mass))
            if isinstance(protocol, FixedWindow) and others < way.number and 0.5 * way.mu >= LEAST_MU:
                # The others are in so many terms at most; elsewhere a dummy makes place.
                free, used = way.number - others, way.used / way.number
                alone_there = AllocationGaussian(free, used * free, 0.5 * way.mu, mass)
                whole.append(TwoKinds(alone_there, SharedSlotsGaussian(others, used * others, way.mu, mass)))
        bounds += [_with_left(way, one, alone) for one in whole]
    bounds.append(_with_left(ways[0], alone(ways[0].mu) if ways[0].number else None, alone))
    return unit.LeastDirected(tuple(bounds), _instances(protocol, sums, mu, mass))


def replaced(
    protocol: FixedWindow | SlidingWindow, mu: float, mass: float, view: str, tight: bool
) -> unit.Round:
    """Replacing a record: R1; if tight R2 and R3 too, which take about a second; never above the local bound.

    Where empty slots are visible and each client may have one to itself: G2, and R3 where not all of them have.
    """
    local, sums = unit.LocalGaussian(protocol.rate, mu), sums_of(protocol, view)
    instances = _instances(protocol, sums, mu, mass)
    ways: list[Way] = []
    steps: list[tuple[Way, float, TwoSteps]] = []
    if isinstance(protocol, SlidingWindow) or protocol.empty_slots == "dummy":
        for way in hidden_ways(protocol, sums, mu):
            ways.append(way)
            if way.number:
                spread = max(_spread(0.5 * way.mu), 0.5 * _spread(way.mu))
                pair = SharedSlotsGaussian(way.number, way.used, way.mu, mass)
                steps.append((way, spread, TwoSteps(pair)))
    if isinstance(protocol, FixedWindow):
        for way in placed_ways(protocol, sums, mu, mass):
            ways.append(way)
            pair = AllocationGaussian(way.number, way.used, way.mu, mass)
            steps.append((way, _spread(way.mu), TwoSteps(pair, way.rest)))
    if not ways:
        assert isinstance(protocol, FixedWindow)
        return _apart(protocol, mu, mass, tight, local, instances)

    first = min(ways, key=lambda way: (way.mu, way.used))
    one = OneStep(first.used, first.mu, first.rest) if first.number else None
    bounds: list[unit.Round] = [_with_left(first, one, _one_step(first))]
    for left in (False, True) if tight else ():
        known = [step for step in steps if bool(step[0].left) == left and LEAST_MU <= step[0].mu <= MOST_MU]
        if known:
            way, _, two = min(known, key=lambda step: step[0].used * step[1] / math.sqrt(step[0].number))
            bounds.append(_with_left(way, two, _one_step(way)))
        here = [way for way in ways if way.number and bool(way.left) == left and way.mu <= MOST_PROFILE_MU]
        if here:
            way = min(here, key=lambda way: way.used * _spread(way.mu) / math.sqrt(way.number))
            hidden = HiddenSlots(way.number, way.used, GaussianProfile(way.mu), mass, way.rest)
            bounds.append(_with_left(way, hidden, _one_step(way)))
    return unit.Least((*bounds, local), instances)


def _apart(
    protocol: FixedWindow,
    mu: float,
    mass: float,
    tight: bool,
    local: unit.LocalGaussian,
    instances: Sequence[unit.Instance],
) -> unit.Round:
    """Empty slots visible, n <= m: all clients may be used, each in a slot of its own."""
    n = protocol.num_clients
    if n == 1:
        return local
    everybody = ShuffledEverybody(n, mu, mass)
    bounds: list[unit.Round] = [everybody]
    if tight and mu <= MOST_PROFILE_MU:
        _, every = occupancy.all_apart(n, protocol.num_slots, protocol.check_in_prob)
        small = every < math.exp(-mass)
        used = (n - 1) / n
        hidden = HiddenSlots(n - 1, used, GaussianProfile(mu), mass, every if small else 0.0)
        bounds.append(hidden if small else Mixture(((1.0, hidden), (every, everybody))))
    return unit.Least((*bounds, local), tuple(instances))


def _one_step(way: Way) -> Callable[[float], unit.Round]:
    return lambda mu: OneStep(way.used, mu, way.rest)


def _with_left(way: Way, whole: unit.Round | None, alone: Callable[[float], unit.Round]) -> unit.Round:
    """The bound for the equal terms, and the bound for one term of another mu for the slots that are left."""
    if not way.left:
        assert whole is not None
        return whole
    kept = 1.0 - math.fsum(share for share, _ in way.left)
    parts = [(share, alone(mu)) for share, mu in way.left]
    return Mixture((*(((kept, whole),) if whole is not None else ()), *parts))


def _spread(mu: float) -> float:
    """Standard deviation of a message's likelihood ratio."""
    return math.sqrt(math.expm1(min(mu * mu, 600.0)))


def _instances(
    protocol: FixedWindow | SlidingWindow, sums: Sums, mu: float, mass: float
) -> tuple[unit.Instance, ...]:
    """All others at one record, the client's own in place of it or not; these serve both neighboring relations.

    Of sums: of whole ones alone, in the window of a client whose window begins with one.
    """
    slots, size = slots_of(protocol), sums.size
    mu /= math.sqrt(size)
    number = max(slots.number // size, 1)
    # A sum that is longer than a window has all of it.
    seen = slots.seen * min(number * size / slots.number, 1.0)
    if isinstance(protocol, FixedWindow):
        n, m, prob = protocol.num_clients, protocol.num_slots, protocol.check_in_prob
        if protocol.empty_slots == "visible":
            return _visible_instances(n, m, prob, size, seen, mu, mass)
        # All slots occupied by others at distance mu, if that can be relied on.
        empty = some_empty(n, m, prob)
        if empty < 1e-3 * math.exp(17.0 - mass) and seen > empty and LEAST_MU <= mu <= MOST_MU:
            return (MostlyGaussian(AllocationGaussian(number, seen - empty, mu, mass), empty, False),)
    # The others' records, and the dummies, are zero.
    if LEAST_MU <= 0.5 * mu <= MOST_MU:
        return (AllocationGaussian(number, seen, 0.5 * mu, mass),)
    return ()


def _visible_instances(
    n: int, m: int, prob: float, size: int, seen: float, mu: float, mass: float
) -> tuple[unit.Instance, ...]:
    if not LEAST_MU <= mu <= MOST_MU:
        return ()
    if size > 1:
        # Noise is added for the slots that are empty, and which they are is forgotten.
        return (AllocationGaussian(m // size, seen, mu, mass),)
    found: list[unit.Instance] = []
    apart, _ = occupancy.all_apart(n, m, prob)
    if apart > 1e-3:
        found.append(MostlyGaussian(AllocationGaussian(n, 1.0, mu, mass), 1.0 - apart, True))
    # Seen, and all of them but so many forgotten.
    least = occupancy.least(n, m, prob, _SELDOM)
    if least >= 1:
        pair = AllocationGaussian(least, least / n, mu, mass)
        found.append(MostlyGaussian(pair, math.exp(-_SELDOM), True))
    return tuple(found)
