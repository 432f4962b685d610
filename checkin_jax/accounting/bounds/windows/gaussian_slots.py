"""Builders for messages in slots that use one client each (R1, R1', R2, R3, T2r, G3, G3'), and their witnesses.

A builder reads facts of a unit, and returns None where a hypothesis fails. A `Reduction` of a window, or of its sums,
leaves one message in a uniform one of m equal and independent Gaussian terms. In the view "aggregate" sums of
`minibatch` successive slots are observed. A sum of b Gaussian messages is Gaussian. A client moves its mean by at most
mu/sqrt(b) standard deviations, in whichever of its slots. The contributions of several slots of one sum are at most
comonotone. Proofs: docs/theory_allocation.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from checkin_jax.accounting.bounds.full_participation import AllCut
from checkin_jax.accounting.bounds.interface import LocalMessages, UnitBound, Witness, minimum
from checkin_jax.accounting.bounds.messages.equal_records import (
    SMALL_MU,
    LabelsAtOneRecord,
    opposite_gaussians,
)
from checkin_jax.accounting.bounds.messages.largest_message import largest_in_slots, singles_matter
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.messages.subsampling import loaded_slot, sometimes
from checkin_jax.accounting.bounds.profiles import (
    MOST_HIDDEN_MU,
    GaussianProfile,
    LabelProfile,
    Profile,
    of_sums,
    one_message,
    profile_of,
)
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import summed_rivals, window_witnesses
from checkin_jax.accounting.bounds.windows.common_slots import CommonWindow, few_empty
from checkin_jax.accounting.bounds.windows.contention import CLEARLY_LESS, in_weighted_slots, rivalled
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture, TwoKinds, TwoSteps
from checkin_jax.accounting.bounds.windows.one_of_slots import (
    LEAST_MU,
    MOST_LATTICE_MU,
    ButForRareEvent,
    OneOfSlots,
    gaussian_among_others,
    gaussian_in_slots,
)
from checkin_jax.accounting.bounds.windows.removed_client import RemovedClient, fair_coin
from checkin_jax.numerics.counts import occupancy
from checkin_jax.protocols import Slots

# With visible slots a witness ignores the event, of probability exp(-_SELDOM), that unusually few are occupied.
_SELDOM = 7.0
# From so many slots on, and so many for each of k labels, or e^epsilon0 of them, own-laws replaces R3 against rivals.
_OWN_LAWS, _EACH_LABEL = 256, 64
# Rounding above this share of delta costs a witness more than contours do.
_MATTERS = 1e-3

# With visible slots, sums count as full if a slot is empty with probability below this share of exp(17 - mass).
_NEVER = 1e-3
# Numbers of used clients are told apart if that lowers the deviation by this factor.
_FEWER = 0.97


class Reduction(NamedTuple):
    """A reduction: the target is in a uniform one of `number` equal terms, with probability `use_prob`.

    mu: shift of a term. failure_prob: probability of a public event in which the reduction fails. left: (share of the
    target's slots, mu) of slots that are in no equal term. levels: if not empty, (number, mass) of a public number of
    terms, at most `number`, to which the probability of use is proportional.
    """

    number: int
    use_prob: float
    mu: float
    failure_prob: float = 0.0
    left: tuple[tuple[float, float], ...] = ()
    levels: tuple[tuple[int, float], ...] = ()

    @property
    def deviation(self) -> float:
        """Standard deviation of the likelihood ratio, in units of that of one term."""
        share = sum(number * mass for number, mass in self.levels) / self.number if self.levels else 1.0
        return self.use_prob * math.sqrt(share / self.number)


def _sums(unit: Unit, summed: bool) -> tuple[int, int]:
    """Numbers of slots in an observed sum, and in the last one if that is shorter, else 0."""
    size = unit.sum_size if summed else 1
    return size, unit.slots.total % size if unit.slots is not None else 0


def hidden_reductions(unit: Unit, mu: float, summed: bool = True) -> list[Reduction]:
    """Reductions with hidden dummies: the target is equally likely in each of its slots, whatever the others do.

    The first one uses the sums themselves. If sums and window are not aligned, a second one uses equal parts of them.
    There are none if dummies are visible.

    Args:
      summed: True if the noise of a sum adds up; else single slots count, of which sums are a post-processing.
    """
    slots = unit.slots
    if slots is None or not slots.hidden:
        return []
    size, short = _sums(unit, summed)
    if size == 1:
        return [Reduction(slots.number, slots.use_prob, mu)]
    # Fewer, fuller sums are the worst case.
    over = (slots.number - min(short, slots.number)) % size
    left = [(over, size), (min(short, slots.number), short)]
    whole = (slots.number - sum(count for count, _ in left)) // size
    shares = tuple((count / slots.number, mu / math.sqrt(of)) for count, of in left if count)
    found = [Reduction(whole, slots.use_prob, mu / math.sqrt(size), left=shares)]
    if shares:
        # A sum is a post-processing of parts that divide its noise, one of which holds the target.
        part = math.gcd(size, slots.number)
        if not unit.common_slots and short:
            part = 1
        found.append(Reduction(slots.number // part, slots.use_prob, mu / math.sqrt(part)))
    return found


@functools.lru_cache(maxsize=64)
def displacing_reductions(unit: Unit, mu: float, summed: bool = True) -> tuple[Reduction, ...]:
    """Reductions of common windows: the target displaces a used client; none if all clients are used.

    Colluding clients subtract their own messages from a sum.
    """
    choices, neg_log_tail = unit.protocol.used_slot_choices, unit.neg_log_tail
    if choices is None or not unit.replaced:
        return ()
    n, m, prob = choices
    size, short = _sums(unit, summed)
    most, rest = occupancy.most(n, m, prob, neg_log_tail)
    if size > 1 and not (unit.slots is not None and unit.slots.hidden):
        # An empty slot brings no noise.
        empty = occupancy.many_empty(n, m, prob, 1)
        if empty > _NEVER * math.exp(17.0 - neg_log_tail):
            size, short = 1, 0
        else:
            rest += empty
    if size == 1:
        numbers, lost = occupancy.levels(n, m, prob, neg_log_tail, True)
        first = Reduction(most, most / n, mu, rest)
        few = first._replace(levels=tuple(numbers), failure_prob=lost, number=max(numbers[-1][0], 1))
        few = few._replace(use_prob=few.number / n)
        found = [few if few.deviation < _FEWER * first.deviation else first]
        return tuple(way for way in found if way.use_prob < 1.0)
    whole = -(-min(most, m - short) // size)
    places = whole * size + short
    found = [Reduction(whole, places / n, mu / math.sqrt(size), rest)]
    if short:
        found[0] = found[0]._replace(left=((short / places, mu / math.sqrt(short)),))
        part = math.gcd(size, m)
        number = -(-most // part)
        found.append(Reduction(number, number * part / n, mu / math.sqrt(part), rest))
    return tuple(way for way in found if way.use_prob < 1.0)


def _ways(unit: Unit) -> list[Reduction]:
    """Reductions for Gaussian messages: hidden dummies, and, if a record is replaced, displaced clients."""
    mu = unit.randomizer.gaussian_mu
    return [] if mu is None else [*hidden_reductions(unit, mu), *displacing_reductions(unit, mu)]


def _hides_empty(unit: Unit) -> bool:
    return unit.slots is not None and unit.slots.hidden


def r1(unit: Unit) -> UnitBound | None:
    """Needs: Gaussian messages in slots, not one for every client for sure; or, in R1', hidden dummies.

    A record is replaced, or in R1' a client added or removed.
    """
    ways = _ways(unit)
    if not ways:
        return None
    if not unit.replaced:
        alone = _alone(unit)
        return _with_left(ways[0], alone(ways[0].mu) if ways[0].number else None, alone)
    first = min(ways, key=lambda way: (way.mu, way.use_prob))
    one = sometimes(first.use_prob, first.mu, first.failure_prob) if first.number else None
    return _with_left(first, one)


def r2(unit: Unit) -> UnitBound | None:
    """Needs: as R1; a mu in the range of the kernels."""
    mu, neg_log_tail = unit.randomizer.gaussian_mu, unit.neg_log_tail
    if not unit.replaced or mu is None:
        return None
    steps: list[tuple[Reduction, float, UnitBound]] = []
    for way in hidden_reductions(unit, mu):
        if way.number and LEAST_MU <= way.mu <= MOST_LATTICE_MU:
            spread = max(_spread(0.5 * way.mu), 0.5 * _spread(way.mu))
            pair = gaussian_among_others(way.number, way.use_prob, way.mu, neg_log_tail)
            steps.append((way, spread, TwoSteps(pair)))
    for way in displacing_reductions(unit, mu):
        if LEAST_MU <= way.mu <= MOST_LATTICE_MU:
            pair = gaussian_in_slots(way.number, way.use_prob, way.mu, neg_log_tail)
            steps.append((way._replace(levels=()), _spread(way.mu), TwoSteps(pair, way.failure_prob)))
    return _narrowest(steps)


def r3(unit: Unit) -> UnitBound | None:
    """Needs: messages in slots, a record replaced; a privacy profile, or Gaussian noise where slots are summed.

    T2r: a client is added or removed, dummies are hidden.
    """
    mu = unit.randomizer.gaussian_mu
    if not unit.replaced:
        return _removed(unit)
    if unit.slots is None and unit.protocol.used_slot_choices is None:
        return None
    if mu is None:
        return _r3_of_profile(unit)
    ways = _ways(unit)
    if not ways and mu <= MOST_HIDDEN_MU:
        return _apart(unit)
    if not _hides_empty(unit):
        # A sum with an empty slot has less noise, which the `rest` of R3 does not count.
        ways = [way for way in ways if way.mu == mu]
    return _narrowest(
        [
            (
                way,
                _spread(way.mu),
                _hidden_slots(unit, way, GaussianProfile(way.mu)),
            )
            for way in ways
            if way.number and way.mu <= MOST_HIDDEN_MU
        ]
    )


def _r3_of_profile(unit: Unit) -> UnitBound | None:
    """R3 for the randomizer's profile; with visible slots only for randomizers without laws of their own."""
    randomizer = unit.randomizer
    if unit.worst_of_its_kind:
        return None
    if randomizer.kary is not None and not _rivals(unit):
        return None
    if not _hides_empty(unit) and randomizer.step_set is not None:
        return None
    ways = [*hidden_reductions(unit, 1.0, False), *displacing_reductions(unit, 1.0, False)]
    if not ways:
        return _apart(unit)
    way = min(ways, key=lambda way: way.deviation)
    return _hidden_slots(unit, way, profile_of(unit.randomizer))


def r3_of_sums(unit: Unit) -> UnitBound | None:
    """Needs: sums of slots with hidden dummies, a record replaced; messages of independent bits."""
    slots, profile = unit.slots, of_sums(unit.randomizer, unit.neg_log_tail)
    if slots is None or profile is None or unit.randomizer.gaussian_mu is not None:
        return None
    if not (unit.replaced and unit.summed_slots and slots.hidden):
        return None

    def among(number: int, use_prob: float, failure_prob: float, mu: float) -> HiddenSlots:
        return HiddenSlots(number, use_prob, profile(round(mu**-2)), unit.neg_log_tail, failure_prob)

    found = [
        _with_left(
            way,
            among(way.number, way.use_prob, way.failure_prob, way.mu) if way.number else None,
            functools.partial(among, 1, way.use_prob, way.failure_prob),
        )
        for way in (*hidden_reductions(unit, 1.0), *displacing_reductions(unit, 1.0))
    ]
    return _smallest(found)


def _removed(unit: Unit) -> UnitBound | None:
    """T2r for the randomizer's profile, if that is not zero; Gaussian messages have allocation."""
    shown = unit.slots
    if shown is None or not shown.hidden or unit.randomizer.gaussian_mu is not None or unit.epsilon0 == 0.0:
        return None
    common = unit.protocol.used_slot_choices is not None
    coin = fair_coin(unit.randomizer) if shown.contested else 0.0
    facts = *shown[:2], profile_of(unit.randomizer), unit.neg_log_tail, *shown.loads, common
    known, window = RemovedClient(*facts, coin), unit.protocol.sliding_window
    anew = RemovedClient(*facts, window=window)
    clearly_less = window is not None and anew.gains and anew.variance < CLEARLY_LESS * known.variance
    return minimum([known, anew]) if clearly_less else known


def _rivals(unit: Unit) -> bool:
    """True if the target's rivals for slots, all of which show a message, are counted by R3.

    The mechanism's own laws are sharper where enough messages show each label.
    """
    slots, randomizer = unit.slots, unit.randomizer
    if slots is None or not (slots.hidden and slots.loads[0]):
        return False
    if randomizer.kary is not None:
        return unit.protocol.used_slot_choices is None and slots.number < _EACH_LABEL * randomizer.kary
    if randomizer.step_set is None:
        return True
    return slots.number < max(_OWN_LAWS, _EACH_LABEL * math.exp(randomizer.largest_loss))


def _hidden_slots(unit: Unit, way: Reduction, profile: Profile) -> UnitBound:
    """R3 of a reduction, against the rivals in single slots all of which show a message."""
    slots, neg_log_tail = unit.slots, unit.neg_log_tail
    if way.levels:
        return PublicMixture(
            (
                *(
                    (mass, HiddenSlots(number, way.use_prob * number / way.number, profile, neg_log_tail))
                    for number, mass in way.levels
                    if number
                ),
                (way.failure_prob, LocalMessages(1.0, profile)),
            )
        )
    whole = HiddenSlots(way.number, way.use_prob, profile, neg_log_tail, way.failure_prob)
    if slots is None or not _rivals(unit):
        return whole
    if (way.number, way.use_prob, way.failure_prob) != (slots.number, slots.use_prob, 0.0):
        return whole
    window = unit.protocol.sliding_window
    events = rivalled(slots.number, *slots.loads, neg_log_tail, window)
    return in_weighted_slots(slots.number, way.use_prob, events, profile, neg_log_tail)


def g2_apart(unit: Unit) -> AllCut | None:
    """Needs: visible empty slots; at least as many slots as clients, each of which may have one to itself."""
    slots, choices, neg_log_tail = unit.slots, unit.protocol.used_slot_choices, unit.neg_log_tail
    if slots is None or slots.hidden or choices is None or not unit.replaced or choices.num_clients == 1:
        return None
    if displacing_reductions(unit, 1.0, unit.randomizer.gaussian_mu is not None):
        return None
    return AllCut(choices.num_clients, one_message(unit.randomizer), neg_log_tail)


def _apart(unit: Unit) -> UnitBound | None:
    """R3 if every client may have a slot to itself; the event that all have is bounded by G2, or is negligible."""
    everybody, choices, neg_log_tail = (
        g2_apart(unit),
        unit.protocol.used_slot_choices,
        unit.neg_log_tail,
    )
    if everybody is None or choices is None:
        return None
    n, profile = choices.num_clients, profile_of(unit.randomizer)
    _, every = occupancy.all_apart(*choices)
    small = every < math.exp(-neg_log_tail)
    hidden = HiddenSlots(n - 1, (n - 1) / n, profile, neg_log_tail, every if small else 0.0)
    return hidden if small else PublicMixture(((1.0, hidden), (every, everybody)))


def g3(unit: Unit) -> UnitBound | None:
    """Needs: as R1'; a mu in the range of the kernels. Without other clients in the slots the pair is exact."""
    slots, neg_log_tail = unit.slots, unit.neg_log_tail
    if slots is None or unit.replaced:
        return None
    found: list[UnitBound] = []
    for way in _ways(unit):
        if way.number and slots.num_rivals == 0 and LEAST_MU <= 0.5 * way.mu <= MOST_LATTICE_MU:
            pair = gaussian_in_slots(way.number, way.use_prob, 0.5 * way.mu, neg_log_tail)
            found.append(_with_left(way, pair, _alone(unit)))
        elif way.number and slots.num_rivals and LEAST_MU <= way.mu <= MOST_LATTICE_MU:
            shared = gaussian_among_others(way.number, way.use_prob, way.mu, neg_log_tail)
            found.append(_with_left(way, shared, _alone(unit)))
            if (
                unit.protocol.used_slot_choices is not None
                and slots.num_rivals < way.number
                and 0.5 * way.mu >= LEAST_MU
            ):
                # The others are in at most `slots.num_rivals` terms; in each other term the target replaces a dummy.
                free, used = way.number - slots.num_rivals, way.use_prob / way.number
                by_itself = gaussian_in_slots(free, used * free, 0.5 * way.mu, neg_log_tail)
                others = gaussian_among_others(
                    slots.num_rivals, used * slots.num_rivals, way.mu, neg_log_tail
                )
                found.append(_with_left(way, TwoKinds(by_itself, others), _alone(unit)))
    return _smallest(found)


def g3_prime(unit: Unit) -> UnitBound | None:
    """Needs: as G3; common windows in which the others occupy nearly all slots."""
    choices, neg_log_tail = unit.protocol.used_slot_choices, unit.neg_log_tail
    if choices is None or unit.replaced or choices.num_clients == 1:
        return None
    ways, mu = _ways(unit), unit.randomizer.gaussian_mu
    if ways and mu is not None and all(way.number != choices.num_slots for way in ways):
        # Sums are a post-processing of the slots, whose empty ones are counted.
        ways.append(Reduction(choices.num_slots, choices.prob, mu))
    found: list[UnitBound] = []
    for way in ways:
        if way.number and LEAST_MU <= way.mu <= MOST_LATTICE_MU:
            crowded = few_empty(CommonWindow(*choices, way.mu, neg_log_tail), way.number)
            if len(crowded.parts) > 1:
                found.append(_with_left(way, crowded, _alone(unit)))
    return _smallest(found)


def _smallest(found: list[UnitBound]) -> UnitBound | None:
    if len(found) <= 1:
        return found[0] if found else None
    return minimum(found)


def _narrowest(made: list[tuple[Reduction, float, UnitBound]]) -> UnitBound | None:
    """The smaller of the narrowest of (reduction, spread of one term, bound) with and without shares left."""
    found = []
    for left in (False, True):
        known = [each for each in made if bool(each[0].left) == left]
        if known:
            way, _, whole = min(known, key=lambda each: each[0].deviation * each[1])
            found.append(_with_left(way, whole))
    return _smallest(found)


def _alone(unit: Unit) -> Callable[[float], UnitBound]:
    """R1' as a function of the mu of one term."""
    slots, neg_log_tail = unit.protocol.slots, unit.neg_log_tail
    if slots is None:
        raise ValueError(f"protocol={unit.protocol!r}: expected one with slots")
    facts = slots.shown, slots.use_prob / slots.shown, slots.num_rivals, slots.rival_prob
    return functools.partial(loaded_slot, *facts, neg_log_tail=neg_log_tail)


def _with_left(
    way: Reduction, whole: UnitBound | None, alone: Callable[[float], UnitBound] | None = None
) -> UnitBound:
    """Mixture of `whole`, for the equal terms, and of `alone`, by default R1, for each remaining share of the slots."""
    if alone is None:
        alone = functools.partial(sometimes, way.use_prob, rest=way.failure_prob)
    if whole is not None and not way.left:
        return whole
    kept = 1.0 - math.fsum(share for share, _ in way.left)
    parts = [(share, alone(mu)) for share, mu in way.left]
    return PublicMixture((*(((kept, whole),) if whole is not None else ()), *parts))


def _spread(mu: float) -> float:
    """Standard deviation of the likelihood ratio of one message."""
    return math.sqrt(math.expm1(min(mu * mu, 600.0)))


def witnesses(unit: Unit, slots: Slots, mu: float) -> tuple[Witness, ...]:
    """Witnesses with all other clients at one record, for either neighboring relation.

    For sums of slots: whole sums alone, of a client whose window begins with one.
    """
    return (*_largest_in_slots(unit, slots, mu), *_in_exchangeable_slots(unit, slots, mu))


def _largest_in_slots(unit: Unit, slots: Slots, mu: float) -> list[Witness]:
    """The witness of the largest message, where the view shows single messages, and these matter."""
    shown = slots.hidden and unit.sum_size == 1
    if not shown or not singles_matter(slots.number, mu, unit.neg_log_tail - 17.0):
        return []
    return [largest_in_slots(slots.number, slots.use_prob_lower, slots.empty_prob, mu, unit.replaced)]


def _in_exchangeable_slots(unit: Unit, slots: Slots, mu: float) -> tuple[Witness, ...]:
    size, neg_log_tail, choices = (
        unit.sum_size,
        unit.neg_log_tail,
        unit.protocol.used_slot_choices,
    )
    mu /= math.sqrt(size)
    number = max(slots.number // size, 1)
    # A sum longer than the window contains the window.
    used_lower = slots.use_prob_lower * min(number * size / slots.number, 1.0)
    if choices is not None:
        if not slots.hidden:
            return _visible_witnesses(*choices, size, used_lower, mu, neg_log_tail)
        # Others at distance mu occupy all slots, except with the negligible probability `empty`.
        empty = occupancy.many_empty(choices.num_clients - 1, choices.num_slots, choices.prob, 1)
        if (
            empty < 1e-3 * math.exp(17.0 - neg_log_tail)
            and used_lower > empty
            and LEAST_MU <= mu <= MOST_LATTICE_MU
        ):
            return (
                ButForRareEvent(
                    gaussian_in_slots(number, used_lower - empty, mu, neg_log_tail), empty, False
                ),
            )
    found: list[Witness] = []
    # All others and the dummies are at zero.
    if LEAST_MU <= 0.5 * mu <= MOST_LATTICE_MU:
        found.append(gaussian_in_slots(number, used_lower, 0.5 * mu, neg_log_tail))
    # Scale of the grids, evaluated once.
    grid_bound = gaussian_in_slots(number, used_lower, mu, neg_log_tail)
    if unit.replaced:
        found += _opposite_records(grid_bound, mu)
    throws = None if size > 1 or not LEAST_MU <= mu <= MOST_LATTICE_MU else window_witnesses.throws(unit)
    if throws is not None and throws.exact() is not None:
        found.append(window_witnesses.CompetingGaussian(grid_bound, throws, mu, unit.replaced))
    else:
        found += summed_rivals.of_gaussians(unit, mu * math.sqrt(size))
    return tuple(found)


def _opposite_records(alone: OneOfSlots, mu: float) -> list[Witness]:
    """Witnesses of a record replaced by the opposite one, with all others and the dummies at zero.

    One uses the law of a sum over the slots. Where its rounding matters, another uses contours, which are looser for
    few messages.
    """
    number, neg_log_tail = alone.slots, alone.neg_log_tail
    found: list[Witness] = []
    if mu > MOST_LATTICE_MU:
        return found
    if mu >= LEAST_MU and number <= window_witnesses.MOST_OPPOSITE:
        found.append(window_witnesses.OppositeGaussian(alone, number, alone.use_prob, mu))
    rounded = window_witnesses.opposite_rounding(number) > _MATTERS * math.exp(17.0 - neg_log_tail)
    if mu >= SMALL_MU and (rounded or not found):
        law = opposite_gaussians(mu, neg_log_tail)
        messages = HiddenSlots(number, alone.use_prob, LabelProfile(law), neg_log_tail)
        found.append(LabelsAtOneRecord(messages, law))
    return found


def _visible_witnesses(
    n: int, m: int, prob: float, size: int, used_lower: float, mu: float, neg_log_tail: float
) -> tuple[Witness, ...]:
    if not LEAST_MU <= mu <= MOST_LATTICE_MU:
        return ()
    if size > 1:
        # Post-processing: noise is added for each empty slot, and their places are dropped.
        return (gaussian_in_slots(m // size, used_lower, mu, neg_log_tail),)
    found: list[Witness] = []
    apart, _ = occupancy.all_apart(n, m, prob)
    if apart > 1e-3:
        found.append(ButForRareEvent(gaussian_in_slots(n, 1.0, mu, neg_log_tail), 1.0 - apart, True))
    # Post-processing: all but `least` of the occupied slots are dropped.
    fewest = occupancy.least(n, m, prob, _SELDOM)
    if fewest >= 1:
        pair = gaussian_in_slots(fewest, fewest / n, mu, neg_log_tail)
        found.append(ButForRareEvent(pair, math.exp(-_SELDOM), True))
    return tuple(found)
