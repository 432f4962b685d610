"""Which theorem serves clients whose check-in rates differ: builders that read facts of a unit, as `bounds.families`.

Every bound is for a client of the unit's rate and holds for all slower ones: the pool that stands in for it is that of
the client, at most as fast, who has the smallest. Proofs: docs/theory_rates.md.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from checkin_jax.accounting.bounds.full_participation import AveragedGaussian
from checkin_jax.accounting.bounds.hexagon import UnequalStaged
from checkin_jax.accounting.bounds.interface import UnitBound, least
from checkin_jax.accounting.bounds.profiles import MOST_HIDDEN_MU, profile_of
from checkin_jax.accounting.bounds.unequal.always_present import AmongPresent, AmongSure, SlotsWithColluders
from checkin_jax.accounting.bounds.unequal.named_mechanisms import UnequalOneBit, UnequalSteps
from checkin_jax.accounting.bounds.unequal.occupied_slots import UnequalOccupied
from checkin_jax.accounting.bounds.unequal.pooled_clients import Others, UnequalPureLDP
from checkin_jax.accounting.bounds.unequal.sampled_profile import UnequalHidden
from checkin_jax.accounting.bounds.unequal.unequal_sums import (
    PooledGaussian,
    UnequalGaussian,
    UnequalMessages,
)
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.numerics.counts import occupancy, pools
from checkin_jax.numerics.counts.pools import Pool
from checkin_jax.numerics.staged_clones import AnyMessage, Steps
from checkin_jax.protocols import CrowdThrows
from checkin_jax.rates import CheckInRates, RateLimits, Rates

# Rates of pools that are tried beside the others' largest one, where fewer members than this are absent.
_THETAS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97)
_ENOUGH_ABSENT, _MOST_THETAS = 100.0, 3
# Lower ends forget, in this share of the cases in which the client is used, that unusually many slots are occupied.
_SELDOM = 5e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Company:
    """A client among clients with rates of their own.

    Attributes:
      rate: g, at most, with which the client's message arrives.
      everybody: all clients' rates, the client's too; None where limits alone are known.
      others: the others' rates; with limits alone, those of one fleet within them.
      limits: what is known where rates are not.
    """

    rate: float
    everybody: Rates | None
    others: Rates
    limits: RateLimits | None
    log_inverse_mass: float

    @property
    def theirs(self) -> Others:
        """The others, for instances."""
        return Others(self.others.values, self.others.counts)

    def weights(self, theta: float) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities to be a member of the pool, and how many have each: of a slower client's others at worst."""
        assert self.everybody is not None
        rates, counts = self.everybody.values, self.everybody.counts.copy()
        members = pools.weights(rates, theta)
        counts[np.argmax(np.where(rates <= self.rate, members, -1.0))] -= 1.0
        return members, counts

    def pool(self, theta: float) -> Pool:
        """The law of n', from below."""
        if self.limits is not None:
            return pools.limited(self.limits.expected_check_ins / theta, self.log_inverse_mass)
        return pools.sum_of(*self.weights(theta), self.log_inverse_mass)

    def present(self) -> Pool:
        """How many others come, from below."""
        if self.limits is not None:
            return pools.limited(self.limits.expected_check_ins, self.log_inverse_mass)
        return pools.sum_of(self.others.values, self.others.counts, self.log_inverse_mass)

    @property
    def sure(self) -> float:
        """How many of the others always come."""
        return 0.0 if self.limits is not None else float(self.others.counts[self.others.values == 1.0].sum())

    @property
    def many_absent(self) -> bool:
        """Whether enough of the others, all in the pool at their largest rate, are absent."""
        if self.limits is not None:
            return (1.0 - self.limits.largest) * self.limits.weight >= _ENOUGH_ABSENT
        top = float(self.others.values.max())
        return top < 1.0 and (1.0 - top) * float(np.dot(*self.weights(top))) >= _ENOUGH_ABSENT

    @property
    def thetas(self) -> list[float]:
        """Rates of pools that are worth trying, the most promising first; none where all others always come."""
        if self.limits is not None:
            return [self.limits.largest]
        fresh = self.others.values[self.others.values < 1.0]
        if not fresh.size:
            return []
        top = float(fresh.max())
        known = {top: float(np.dot(*self.weights(top)))}
        if (1.0 - top) * known[top] < _ENOUGH_ABSENT:
            low = float(fresh.min())
            known |= {x: float(np.dot(*self.weights(x))) for x in (low, *_THETAS) if low <= x < top}

        def worth(theta: float) -> float:
            # The inverse of the variance of the loss, and some tens of absent members.
            size = known[theta]
            return -theta * size * -np.expm1(-(1.0 - theta) * size / 20.0)

        return sorted(known, key=worth)[:_MOST_THETAS]


def company(unit: Unit, coins: CheckInRates | None, num_clients: int, kept: float) -> Company | None:
    """The client meant among the others; None where there is nobody else or rates do not differ."""
    rate, mass = unit.rate, unit.log_inverse_mass
    if isinstance(coins, RateLimits):
        limits = coins.thinned(kept)
        # One fleet within the limits: all others with the same rate.
        alike = np.asarray([limits.expected_check_ins / (num_clients - 1)])
        return Company(rate, None, Rates(alike, [num_clients - 1]), limits, mass)
    if not isinstance(coins, Rates):
        return None
    others = coins.others(coins.fastest(unit.client_rate))
    return None if others is None else Company(rate, coins.thinned(kept), others.thinned(kept), None, mass)


def crowd(unit: Unit) -> Company | None:
    """The client meant among the clients of the unit's crowd; None where there is none."""
    return (
        None
        if unit.crowd is None
        else company(unit, unit.crowd.coins, unit.crowd.num_clients, unit.crowd.kept)
    )


def t1h(unit: Unit) -> UnitBound | None:
    """Needs: clients whose rates differ, averaged slots or not; eps0-LDP messages; not all others come always."""
    found = crowd(unit)
    if found is None or unit.epsilon0 is None:
        return None
    bounds = [
        UnequalPureLDP(
            found.rate, theta, found.pool(theta), unit.epsilon0, unit.log_inverse_mass, found.theirs
        )
        for theta in found.thetas
    ]
    if len(bounds) <= 1:
        return bounds[0] if bounds else None
    return least(bounds, bounds[0].instances)


def with_step(unit: Unit, law: equal_steps.Law, name: str) -> UnitBound | None:
    """T1h with another dominating step. Needs: as T1h."""
    found = crowd(unit)
    if found is None or unit.epsilon0 is None:
        return None
    mass = unit.log_inverse_mass
    bounds = [
        UnequalSteps(found.rate, theta, found.pool(theta), unit.epsilon0, law, mass, name)
        for theta in found.thetas
    ]
    return least(bounds, ()) if bounds else None


def b0h(unit: Unit) -> UnitBound | None:
    """Needs: as T1h; messages of one bit and public coins, none of which depends on another of its round."""
    found, differ = crowd(unit), unit.randomizer.one_bit
    if found is None or not unit.epsilon0 or differ is None or unit.protocol.averaged_crowd is not None:
        return None
    if not found.thetas:
        return None
    theta = found.thetas[0]
    pool = found.pool(theta)
    return UnequalOneBit.of(found.rate, theta, pool, unit.epsilon0, differ, unit.log_inverse_mass)


def t1h_plus(unit: Unit) -> UnitBound | None:
    """Needs: as T1h, and about 80 messages a round; mechanisms with laws of their own have these."""
    if unit.epsilon0 is None or unit.randomizer.step_set is not None:
        return None
    return staged(unit, AnyMessage(unit.epsilon0))


def staged(unit: Unit, steps: Steps) -> UnequalStaged | None:
    """T1h+ with these steps; messages of one bit, none of which depends on another, have B0h."""
    found = crowd(unit)
    if found is None or not found.thetas:
        return None
    if unit.randomizer.one_bit == 1.0 and unit.protocol.averaged_crowd is None:
        return None
    # Proved for pools at least as fast as the client.
    theta = max(found.thetas[0], found.rate)
    if theta >= 1.0:
        return None
    bound = UnequalStaged(found.rate, theta, found.pool(theta), steps, unit.log_inverse_mass)
    return bound if bound.gains else None


def s(unit: Unit) -> UnitBound | None:
    """Needs: clients whose rates differ, some of whom come nearly always; eps0-LDP messages."""
    found = crowd(unit)
    if found is None or unit.epsilon0 is None or (found.sure == 0.0 and found.many_absent):
        return None
    return AmongPresent(found.rate, found.present(), unit.epsilon0, unit.log_inverse_mass, found.theirs)


def t1m(unit: Unit) -> UnitBound | None:
    """Needs: others who always come, and others who do not; eps0-LDP messages, none of which depends on another."""
    found = crowd(unit)
    if found is None or unit.epsilon0 is None or unit.protocol.averaged_crowd is not None:
        return None
    if found.sure == 0.0 or not found.thetas:
        return None
    theta = found.thetas[0]
    law = found.pool(theta)
    return AmongSure(found.rate, theta, law, found.sure, unit.epsilon0, unit.log_inverse_mass, found.theirs)


def t2c(unit: Unit) -> UnitBound | None:
    """Needs: slots that all show a message, some of them of clients who collude; eps0-LDP messages."""
    known = unit.protocol.known_slots
    if known is None or unit.epsilon0 is None or not unit.replaced:
        return None
    return SlotsWithColluders(*known, unit.epsilon0, unit.log_inverse_mass)


def slots_shown(throws: CrowdThrows, found: Company, used: float) -> tuple[int, float]:
    """As many common slots as are hardly ever occupied, and at least the probability that the client is in them.

    used: that it is used at all, from below. Slots that are not occupied are filled up with messages of others: less
    than what is seen where empty ones are visible.
    """
    with np.errstate(divide="ignore"):
        free = float(found.theirs.counts @ np.log1p(-found.theirs.rates / throws.num_slots))
    busy = -math.expm1(free) + math.exp(free) * found.rate / throws.num_slots
    # Occupied slots are negatively associated: no further from their mean than independent ones.
    mean, seldom, most = throws.num_slots * busy, _SELDOM * used, min(throws.num_slots, throws.num_clients)
    far = occupancy.deviation(mean * (1.0 - busy), -math.log(seldom))
    number = math.ceil(mean * (1.0 + 1e-12) + far)
    return (number, used - seldom) if number < most else (most, used)


def t2_prime_h(unit: Unit) -> UnitBound | None:
    """Needs: common slots that show one client each, of clients whose rates differ; eps0-LDP messages."""
    throws, shown = unit.protocol.used_crowd, unit.slots
    if throws is None or shown is None or unit.epsilon0 is None or not unit.replaced:
        return None
    found = company(unit, throws.coins, throws.num_clients, 1.0)
    if found is None:
        return None
    seen = slots_shown(throws, found, shown.seen)
    told = (throws.num_slots, seen, unit.epsilon0, unit.log_inverse_mass)
    # Those who always come are cover if who comes is revealed, and only then.
    revealed = found.sure > 0.0 or not found.thetas
    pools_of = [(theta, found.pool(theta)) for theta in found.thetas[:1]]
    pools_of += [(1.0, found.present())] if revealed else []
    bounds = [UnequalOccupied(found.rate, theta, pool, *told) for theta, pool in pools_of]
    return bounds[0] if len(bounds) == 1 else least(bounds, bounds[0].instances)


def g1h(unit: Unit) -> UnitBound | None:
    """Needs: clients whose rates differ; for sums, Gaussian noise that adds up."""
    found, mu, mass = crowd(unit), unit.randomizer.gaussian_mu, unit.log_inverse_mass
    if found is None:
        return None
    if mu is None and unit.epsilon0 is not None:
        return None  # pure messages have T1h, which is never above
    exact = UnequalGaussian(found.rate, found.theirs, 1.0 if mu is None else mu, unit.sums_noise, mass)
    counted: UnequalGaussian | PooledGaussian = exact
    if found.limits is not None:
        # Other fleets within the limits tell more than the one that is at hand.
        counted = PooledGaussian(exact, found.limits.largest, found.pool(found.limits.largest))
    return UnequalMessages(counted, found.rate, profile_of(unit.randomizer)) if mu is None else counted


def t_star_h(unit: Unit) -> UnitBound | None:
    """Needs: clients whose rates differ; single messages in sight, whose profile is not the worst of its epsilon0."""
    found, mu = crowd(unit), unit.randomizer.gaussian_mu
    if found is None or not found.thetas or unit.sums_noise or unit.worst_of_its_kind:
        return None
    if unit.protocol.averaged_crowd is not None or (mu is not None and mu > MOST_HIDDEN_MU):
        return None
    theta, mass, profile = found.thetas[0], unit.log_inverse_mass, profile_of(unit.randomizer)
    pool = found.pool(theta)
    sums = () if mu is None else UnequalGaussian(found.rate, found.theirs, mu, True, mass).instances
    return UnequalHidden(found.rate, theta, pool, profile, mass, sums)


def g4h(unit: Unit) -> UnitBound | None:
    """Needs: averaged slots whose single messages nobody sees; Gaussian noise; clients whose rates differ."""
    throws, mu, found = unit.protocol.averaged_crowd, unit.randomizer.gaussian_mu, crowd(unit)
    if throws is None or mu is None or found is None or unit.view != "aggregate":
        return None
    if found.limits is not None:
        there = pools.limited(found.limits.expected_check_ins / throws.num_slots, unit.log_inverse_mass)
    else:
        there = pools.sum_of(
            found.others.values / throws.num_slots, found.others.counts, unit.log_inverse_mass
        )
    return AveragedGaussian(*throws[:2], found.rate, mu, unit.log_inverse_mass, there)
