"""Builders of bounds for clients of unequal check-in rates; as in `theorems`, they read facts of a unit.

A bound is for a target of the unit's rate, and holds for all lower rates: its pool is the smallest of any client of at
most this rate. Proofs: docs/theory_rates.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from checkin_jax.accounting.bounds.full_participation import CutMessages
from checkin_jax.accounting.bounds.interface import (
    Lines,
    LocalGaussian,
    LocalMessages,
    Minimum,
    UnitBound,
    Values,
    Witness,
    minimum,
    revealed,
)
from checkin_jax.accounting.bounds.messages.gaussian_cover import serves
from checkin_jax.accounting.bounds.messages.subsampling import (
    SubsampledGaussian,
    SubsampledMessages,
    averaged,
)
from checkin_jax.accounting.bounds.profiles import MOST_HIDDEN_MU, GaussianProfile, one_message, profile_of
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.occupied_slots import OccupiedGame, OccupiedHidden, UnequalOccupied
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool, Others, PoolSizes
from checkin_jax.accounting.bounds.unequal.pooled_clients import (
    AlwaysPresentOthers,
    HiddenWithColluders,
    PooledClones,
)
from checkin_jax.accounting.bounds.unequal.sampled_profile import (
    PooledGaussian,
    TwoLawUnequal,
    UnequalGaussian,
    UnequalHidden,
)
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows.contention import in_weighted_slots, redrawn_weights
from checkin_jax.numerics import few_steps
from checkin_jax.numerics.counts import occupancy, redrawn
from checkin_jax.numerics.staged_clones import Steps
from checkin_jax.protocols import UnequalSlotChoices
from checkin_jax.rates import CheckInRates, RateLimits, Rates

# Rates of pools that are tried besides the largest one, if fewer than _ENOUGH_ABSENT members are absent at that.
_THETAS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97)
_ENOUGH_ABSENT, _MOST_THETAS = 100.0, 3
# The largest mu at which T**h gains enough for its time.
_MOST_COVERED_MU = 2.0
# Witnesses drop slots beyond a number; the probability that more are occupied is this share of the target's being used.
_SELDOM = 5e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """The population of a target client, with unequal rates.

    Attributes:
      rate: upper bound on g, the probability that the target's message arrives.
      everybody: rates of all clients, the target's included; None if only limits are known.
      others: rates of the others; if only limits are known, those of one fleet within them.
      limits: bounds on unknown rates; None if the rates are known.
    """

    rate: float
    everybody: Rates | None
    others: Rates
    limits: RateLimits | None
    neg_log_tail: float

    @property
    def theirs(self) -> Others:
        """Rates of the others, for witnesses."""
        return Others(self.others.values, self.others.counts)

    def weights(self, theta: float) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of membership in the pool, and their counts, for the worst target of at most this rate."""
        assert self.everybody is not None
        rates, counts = self.everybody.values, self.everybody.counts.copy()
        members = pool_cover.weights(rates, theta)
        counts[np.argmax(np.where(rates <= self.rate, members, -1.0))] -= 1.0
        return members, counts

    def pool(self, theta: float, places: Sequence[float] = pool_cover.PLACES) -> PoolSizes:
        """Law of the pool's size n', stochastically from below; places: as in `pool_cover.cut`."""
        if self.limits is not None:
            return pool_cover.limited(self.limits.expected_check_ins / theta, self.neg_log_tail, places)
        return pool_cover.sum_of(*self.weights(theta), self.neg_log_tail, places)

    def present(self) -> PoolSizes:
        """Law of the number of other participants, stochastically from below."""
        if self.limits is not None:
            return pool_cover.limited(self.limits.expected_check_ins, self.neg_log_tail)
        return pool_cover.sum_of(self.others.values, self.others.counts, self.neg_log_tail)

    def expected(self, num_clients: int) -> float:
        """Expected number of all clients' messages, from above; a slower client has faster others."""
        if self.everybody is not None:
            most = float(self.everybody.values @ self.everybody.counts)
        else:
            assert self.limits is not None
            most = num_clients * self.limits.largest
        return most * (1.0 + 1e-12)

    @property
    def always_present(self) -> float:
        """Number of others with check-in rate 1."""
        return 0.0 if self.limits is not None else float(self.others.counts[self.others.values == 1.0].sum())

    @property
    def many_absent(self) -> bool:
        """True if enough members of the pool at the others' largest rate are absent."""
        if self.limits is not None:
            return (1.0 - self.limits.largest) * self.limits.weight >= _ENOUGH_ABSENT
        top = float(self.others.values.max())
        return top < 1.0 and (1.0 - top) * float(np.dot(*self.weights(top))) >= _ENOUGH_ABSENT

    @property
    def thetas(self) -> list[float]:
        """Rates of pools that are worth trying, the most promising first; none if all others have rate 1."""
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
            # Minus the inverse variance of the loss, reduced if fewer than some tens of members are absent.
            size = known[theta]
            return -theta * size * -np.expm1(-(1.0 - theta) * size / 20.0)

        return sorted(known, key=worth)[:_MOST_THETAS]

    @functools.cached_property
    def pools(self) -> list[tuple[float, PoolSizes]]:
        """The pool of each of these rates."""
        return [(theta, self.pool(theta)) for theta in self.thetas]


def population_of(
    unit: Unit, num_clients: int, unequal_rates: CheckInRates | None, arrival_prob: float
) -> Population | None:
    """The target's population; None if there is no other client or rates are equal."""
    rate, mass = unit.rate, unit.neg_log_tail
    if isinstance(unequal_rates, RateLimits):
        limits = unequal_rates.thinned(arrival_prob)
        # One fleet within the limits: all others have the same rate.
        rate_of_others = np.asarray([limits.common_rate_of_others(rate, num_clients)])
        return Population(rate, None, Rates(rate_of_others, [num_clients - 1]), limits, mass)
    if not isinstance(unequal_rates, Rates):
        return None
    others = unequal_rates.others(unequal_rates.fastest(unit.client_rate))
    if others is None:
        return None
    return Population(rate, unequal_rates.thinned(arrival_prob), others.thinned(arrival_prob), None, mass)


def covering_population(unit: Unit) -> Population | None:
    """The target's population in the unit's `unequal_cover`; None without one."""
    cover = unit.unequal_cover
    return None if cover is None else population_of(unit, *cover)


def covers(unit: Unit) -> list[ClientPool]:
    """Pools of the unit's population, the most promising first; none where rates are equal."""
    found = covering_population(unit)
    return [] if found is None else [ClientPool(found.rate, *each, found.theirs) for each in found.pools]


def least(bounds: Iterable[UnitBound]) -> UnitBound:
    """The least of bounds of one kind, with the witnesses of the first."""
    first, *more = bounds
    return minimum([first, *more], first.witnesses) if more else first


@dataclasses.dataclass(frozen=True, eq=False)
class CutUnequal(CutMessages):
    """T2'h of messages of a known profile, whose laws are cut; for a client of this rate, and slower ones.

    Attributes:
      of_pure: the bound on eps0-LDP messages. use_prob: upper bound on the client's rate.
      others: expected number of any client's others' messages, from above.
    """

    of_pure: Callable[[float], UnitBound]
    use_prob: float
    alone: LocalGaussian | LocalMessages
    others: float
    neg_log_tail: float

    name = "clones"

    def clones(self, epsilon0: float) -> UnitBound:
        return self.of_pure(epsilon0)


def widest_pool(unit: Unit, places: Sequence[float] = pool_cover.PLACES) -> ClientPool | None:
    """The most promising pool, of at least the target's rate, as staged games need; None without one.

    places: of its sizes, as in `pool_cover.cut`.
    """
    found = covering_population(unit)
    if found is None or not found.thetas:
        return None
    theta = max(found.thetas[0], found.rate)
    if theta == 1.0:
        return None
    # The played game costs the same for any number of sizes.
    few = float(found.theirs.trials.mean) <= few_steps.MOST
    size = found.pool(theta, pool_cover.FINER if few else places)
    return ClientPool(found.rate, theta, size, found.theirs)


def s(unit: Unit) -> UnitBound | None:
    """Needs: unequal rates, some of them 1 or nearly 1; eps0-LDP messages."""
    found = covering_population(unit)
    if found is None or unit.epsilon0 is None or (found.always_present == 0.0 and found.many_absent):
        return None
    return PooledClones(
        ClientPool(found.rate, 1.0, found.present(), found.theirs), unit.epsilon0, unit.neg_log_tail
    )


def t1m(unit: Unit) -> UnitBound | None:
    """Needs: others of rate 1, and others of lower rates; eps0-LDP messages, none depending on another of its round."""
    found = covering_population(unit)
    if found is None or unit.epsilon0 is None or unit.protocol.unequal_averaged_slot_choices is not None:
        return None
    if found.always_present == 0.0 or not found.thetas:
        return None
    first, sure = covers(unit)[0], found.always_present
    return AlwaysPresentOthers(first, unit.epsilon0, unit.neg_log_tail, always_present=sure)


def r3c(unit: Unit) -> UnitBound | None:
    """Needs: slots that all show a message, some of colluding clients; a privacy profile; a record replaced."""
    known, mu = unit.protocol.known_slots, unit.randomizer.gaussian_mu
    if known is None or not unit.replaced:
        return None
    if mu is not None and mu > MOST_HIDDEN_MU:
        return None
    profile, neg_log_tail = profile_of(unit.randomizer), unit.neg_log_tail
    found: list[UnitBound] = [HiddenWithColluders(*known[:3], profile, neg_log_tail)]
    window = unit.protocol.sliding_window
    if window:
        levels = redrawn.beside_colluders(known.number, window, neg_log_tail, known.colluding)
    else:
        levels = redrawn.in_common_slots(known.others, *known[:2], neg_log_tail, known.colluding)
    if levels is not None:
        found.append(
            in_weighted_slots(*known[:2], redrawn_weights(known.number, levels), profile, neg_log_tail)
        )
    return least(found)


def slots_shown(choices: UnequalSlotChoices, found: Population, used: float) -> tuple[int, float]:
    """A number of common slots that is rarely exceeded by the occupied ones, and a lower bound on the target's use.

    use_prob: lower bound on the probability that the target is used. Empty slots are filled with messages of others, a
    post-processing where they are visible.
    """
    with np.errstate(divide="ignore"):
        free = float(found.theirs.counts @ np.log1p(-found.theirs.rates / choices.num_slots))
    busy = -math.expm1(free) + math.exp(free) * found.rate / choices.num_slots
    # Occupied slots are negatively associated: Chernoff's bounds of independent slots hold for their number.
    mean, seldom, most = choices.num_slots * busy, _SELDOM * used, min(choices.num_slots, choices.num_clients)
    far = occupancy.deviation(mean * (1.0 - busy), -math.log(seldom))
    number = math.ceil(mean * (1.0 + 1e-12) + far)
    return (number, used - seldom) if number < most else (most, used)


def choosing_population(unit: Unit) -> Population | None:
    """The target's population in common slots that use one client each, a record being replaced; None without any."""
    choices = unit.protocol.unequal_used_slot_choices
    if choices is None or unit.slots is None or not unit.replaced:
        return None
    return population_of(unit, choices.num_clients, choices.unequal_rates, 1.0)


def _occupying_pools(found: Population) -> list[tuple[float, PoolSizes]]:
    """Rates of pools in common slots, and laws of their sizes; at rate 1 the participants are revealed."""
    # Clients of rate 1 are cover only if the participants are revealed.
    revealed = found.always_present > 0.0 or not found.thetas
    pools_of = [(theta, found.pool(theta)) for theta in found.thetas[:1]]
    return pools_of + ([(1.0, found.present())] if revealed else [])


def t2_prime_h(unit: Unit) -> UnitBound | None:
    """Needs: common slots that use one client each; unequal rates; a record replaced.

    Messages of a known profile are observed singly.
    """
    choices, shown, mass = unit.protocol.unequal_used_slot_choices, unit.slots, unit.neg_log_tail
    found = choosing_population(unit)
    if choices is None or shown is None or found is None:
        return None
    shown_slots, pools_of = slots_shown(choices, found, shown.use_prob_lower), _occupying_pools(found)

    def clones(epsilon0: float) -> UnitBound:
        return least(
            UnequalOccupied(found.rate, theta, pool, choices.num_slots, shown_slots, epsilon0, mass)
            for theta, pool in pools_of
        )

    if unit.epsilon0 is not None:
        return clones(unit.epsilon0)
    if unit.sums_noise:
        return None
    others = min(found.expected(choices.num_clients), choices.num_slots)
    return CutUnequal(clones, found.rate, one_message(unit.randomizer), others, mass)


def occupied_games(unit: Unit, steps: Steps) -> list[OccupiedGame]:
    """T2'h of these steps, for every pool, where `t2_prime_h` applies."""
    choices, found = unit.protocol.unequal_used_slot_choices, choosing_population(unit)
    if choices is None or found is None:
        return []
    games = [
        OccupiedGame(found.rate, theta, pool, choices.num_slots, steps, unit.neg_log_tail)
        for theta, pool in _occupying_pools(found)
    ]
    return [game for game in games if game.gains]


def g1h(unit: Unit) -> UnitBound | None:
    """Needs: unequal rates; for sums, Gaussian noise that adds up."""
    mu = unit.randomizer.gaussian_mu
    if mu is None and unit.epsilon0 is not None:
        return None  # T1h is never above G1h for eps0-LDP messages
    counted = counted_messages(unit, 1.0 if mu is None else mu, unit.sums_noise)
    if counted is None or mu is not None:
        return counted
    message = profile_of(unit.randomizer)
    return SubsampledMessages(counted, unit.rate, lambda number: message)


def counted_messages(unit: Unit, mu: float, summed: bool) -> UnequalGaussian | PooledGaussian | None:
    """G1h for Gaussian messages of this mu, or for their sum; None where rates do not differ."""
    found = covering_population(unit)
    if found is None:
        return None
    exact = UnequalGaussian(found.rate, found.theirs, mu, summed, unit.neg_log_tail)
    if found.limits is None:
        return exact
    # Other fleets within the limits may leak more than `found.others`.
    return PooledGaussian(exact, found.limits.largest, found.pool(found.limits.largest))


def t_star_h(unit: Unit) -> UnitBound | None:
    """Needs: unequal rates; single messages observed, with a profile better than the worst for its epsilon0."""
    mu, mass = unit.randomizer.gaussian_mu, unit.neg_log_tail
    if unit.sums_noise or unit.worst_of_its_kind or (mu is not None and mu > MOST_HIDDEN_MU):
        return None
    profile = profile_of(unit.randomizer)
    choices, chosen = unit.protocol.unequal_used_slot_choices, choosing_population(unit)
    if choices is not None and chosen is not None:
        return least(
            OccupiedHidden(chosen.rate, theta, pool, choices.num_slots, profile, mass)
            for theta, pool in _occupying_pools(chosen)
        )
    found = covering_population(unit)
    if found is None or not found.thetas:
        return None
    sums = () if mu is None else UnequalGaussian(found.rate, found.theirs, mu, True, mass).witnesses
    return least(UnequalHidden(found.rate, theta, pool, profile, mass, sums) for theta, pool in found.pools)


def t_two_h(unit: Unit) -> UnitBound | None:
    """Needs: as T*h in a sample of clients; Gaussian messages, none depending on another of its round."""
    mu, found, mass = unit.randomizer.gaussian_mu, covering_population(unit), unit.neg_log_tail
    if mu is None or mu > _MOST_COVERED_MU or found is None or unit.sums_noise or not found.thetas:
        return None
    if unit.protocol.unequal_averaged_slot_choices is not None:
        return None
    theta, pool = found.pools[0]
    if not serves(theta * float(pool.masses @ pool.sizes), mu):
        return None
    sums = UnequalGaussian(found.rate, found.theirs, mu, True, mass).witnesses
    # T*h tries the other pools, too.
    includes = ("T*h",) if len(found.pools) == 1 else ()
    return TwoLawUnequal(found.rate, theta, pool, GaussianProfile(mu), mass, sums, includes)


def g4h(unit: Unit, mu: float) -> SubsampledGaussian | None:
    """Needs: averaged slots of which only sums are observed; unequal rates. For messages of this mu."""
    choices, mass = unit.protocol.unequal_averaged_slot_choices, unit.neg_log_tail
    found = covering_population(unit)
    if choices is None or found is None:
        return None
    if found.limits is not None:
        co_occupants = pool_cover.limited(found.limits.expected_check_ins / choices.num_slots, mass)
    else:
        co_occupants = pool_cover.sum_of(found.others.values / choices.num_slots, found.others.counts, mass)
    return averaged(*choices[:2], found.rate, mu, mass, co_occupants)


# A product in float64.
_ROUNDING = 1e-15


@dataclasses.dataclass(frozen=True, eq=False)
class Reported:
    """`rate` times a bound on the round in which the client reports. Certified.

    Attributes:
      bound: of the round in which the client reports. rate: upper bound on the probability that it reports, in (0, 1].
    """

    bound: UnitBound
    rate: float

    @property
    def largest_loss(self) -> float:
        return self.bound.largest_loss

    @property
    def name(self) -> str:
        return self.bound.name

    @property
    def sharp(self) -> bool:
        return getattr(self.bound, "sharp", False)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return tuple(ReportedWitness(self, each, self.rate) for each in self.bound.witnesses)

    def upper(self, loss: np.ndarray) -> Values:
        return np.minimum(self.rate * np.asarray(self.bound.upper(loss)) * (1.0 + _ROUNDING), 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class ReportedWitness:
    """A witness of the round in which the client reports; whether it reports is seen."""

    grid_bound: UnitBound
    reported: Witness
    rate: float

    @property
    def name(self) -> str:
        return self.reported.name

    @property
    def symmetric(self) -> bool:
        return self.reported.symmetric

    @property
    def revealed(self) -> float:
        return self.rate * revealed(self.reported) * (1.0 - _ROUNDING)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        def sent(lines: Lines) -> Lines:
            apart, mass = (np.asarray(part) for part in lines)
            return self.rate * apart * (1.0 - _ROUNDING), self.rate * mass * (1.0 + _ROUNDING)

        forward, backward = self.reported.lower(loss)
        return sent(forward), sent(backward)


def reported(bound: UnitBound, rate: float) -> UnitBound:
    """The bound on a round whose client reports with probability `rate` at most, from one on its round if it does."""
    if isinstance(bound, Minimum):
        found = minimum([reported(each, rate) for each in bound.bounds])
        witnesses = tuple(ReportedWitness(found, each, rate) for each in bound.witnesses)
        return dataclasses.replace(found, witnesses=witnesses)  # type: ignore[type-var]
    return Reported(bound, rate)
