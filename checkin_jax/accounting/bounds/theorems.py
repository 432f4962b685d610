"""Builders of bounds on a unit: each reads facts, and returns None where a hypothesis of its theorem fails.

A new theorem needs a class for its bound, a builder, and a row in `table.BOUNDS`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds import profiles
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.full_participation import (
    AllCut,
    BesideDummies,
    HiddenBesideDummies,
    beside_others_dummies,
)
from checkin_jax.accounting.bounds.hexagon import CutRatios, StagedClones
from checkin_jax.accounting.bounds.interface import (
    LocalGaussian,
    LocalLabels,
    LocalMessages,
    LocalPureLDP,
    Minimum,
    UnitBound,
    minimum,
)
from checkin_jax.accounting.bounds.messages.cover import NotAll, Occupied, Shuffled, StepCover, UniformSlot
from checkin_jax.accounting.bounds.messages.gaussian_cover import (
    TwoLawBesideDummies,
    TwoLawMessages,
    gains,
    serves,
)
from checkin_jax.accounting.bounds.messages.one_step_bounds import (
    KaryBound,
    OneBitCheckIn,
    TotalVariationBound,
)
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages
from checkin_jax.accounting.bounds.messages.subsampling import (
    ShuffledGaussian,
    Subsampled,
    SubsampledMessages,
    averaged,
)
from checkin_jax.accounting.bounds.profiles import (
    MOST_HIDDEN_MU,
    MessageProfile,
    Profile,
    one_message,
    profile_of,
    without_dummies,
)
from checkin_jax.accounting.bounds.unequal import pool_cover, populations
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.accounting.bounds.unequal.pooled_clients import PooledClones
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import gaussian_slots
from checkin_jax.accounting.bounds.windows.averaged_slots import HiddenAverages
from checkin_jax.accounting.bounds.windows.contention import (
    Contested,
    LabelledSlots,
    WeightedSlots,
)
from checkin_jax.accounting.bounds.windows.removed_client import fair_coin
from checkin_jax.accounting.bounds.windows.small_windows import (
    MOST_GAUSSIAN,
    MOST_MU,
    MOST_SMALL,
    PlayedWindow,
    SmallWindow,
    SmallWindowRemoved,
)
from checkin_jax.numerics.staged_clones import AnyMessage, Steps, fair_share
from checkin_jax.numerics.step_laws import OwnSteps, fair_bit_epsilon0, left_epsilon0
from checkin_jax.protocols import ADD_OR_REMOVE, Cover, Slots
from checkin_jax.randomizers import BINARY, MAX_EPSILON0, OneBit, PureLDP, Randomizer

# G2 is tried separately from this rate on; below, T* includes it.
_NEARLY_ALL = 0.5
# Td: share of delta at which ratios are cut, and the largest; least total variation, as a share of the worst one's.
_CUT, _MOST_CUT, _NEAR_WORST = 1e-3, 0.1, 0.7
# The same for messages with a largest loss: the cut is below this share of it.
_RARELY_BEYOND = 0.9
# Of T2+ and T2d the one whose variance is larger by more than this factor is not evaluated.
_NEAR_LEAST = 1.15
# Variance of a fair bit's step, relative to the largest, below which T2+ counts fair bits in sliding windows.
_FAIR_MATTERS = 0.9
# G4: slots in which bits and Laplace noise are summed, at most.
_FEW_SUMMED = 16
# T*'h: sizes of pools, in standard deviations.
_SIZES = (-30.0, -24.0, -20.0, -17.0, -14.0, -12.0, -10.0, *np.linspace(-8.0, 4.0, 49).tolist())
# E+: -log of the probability of no dummy, beyond log(n/p); the largest share of dummies, in units of 1/p.
_FEW_PER_CLONE, _MOST_DUMMIES = 3.0, 0.5
# The same for messages of a known profile: -log of the probability of no dummy, below neg_log_tail, and its least.
_COMPOSED, _FEWEST_DUMMIES = 17.0, 6.0
# Beside weak noise: price of delta over the number of units, in logarithms of a number of clients.
_SHARE_OF_DELTA = 0.01


def clones(unit: Unit) -> UnitBound | None:
    """Needs: eps0-LDP messages, in one of three cases.

    T1: a sample of clients, or averaged slots, whose loads do not depend on the data. T1h: that at unequal rates; a
    client besides the target has a rate below 1. T2: slots that all show a message (hidden dummies); either relation.
    """
    epsilon0, mass, shown = unit.epsilon0, unit.neg_log_tail, unit.slots
    if epsilon0 is None:
        return None
    if unit.cover is not None:
        return Clones(Shuffled(*unit.cover), epsilon0, mass)
    if shown is not None and shown.hidden:
        return Clones(_slot_cover(shown), epsilon0, mass, unit.relation == ADD_OR_REMOVE)
    pools = populations.covers(unit)
    return populations.least(PooledClones(pool, epsilon0, mass) for pool in pools) if pools else None


def hexagon(unit: Unit) -> UnitBound | None:
    """Needs: as `clones`, a rate below 1; no laws of the mechanism's own, which are sharper.

    T2+: clients that choose slots independently, about two a slot at most; some hundred slots, or few.
    T2' and T2'h: as `t2_prime`.
    """
    if not unit.epsilon0 or unit.randomizer.step_set is not None:
        return None
    sample, steps = _sample(unit), AnyMessage(unit.epsilon0)
    if sample is not None:
        return _staged(unit, sample, steps)
    return _least_of([_weighted(unit, steps) or _in_small_window(unit, steps), *_occupied(unit, steps)])


def _occupied(unit: Unit, steps: Steps) -> list[UnitBound | None]:
    """T2' and T2'h of these steps."""
    equal = [_staged(unit, each, steps) for each in _step_covers(unit, Occupied)]
    return [*equal, *populations.occupied_games(unit, steps)]


def _sample(unit: Unit) -> Shuffled | ClientPool | None:
    """Cover of the target by other clients in its sample."""
    return populations.widest_pool(unit) if unit.cover is None else Shuffled(*unit.cover)


def _staged(unit: Unit, step_cover: StepCover, steps: Steps) -> UnitBound | None:
    bound = StagedClones(step_cover, steps, unit.neg_log_tail)
    return bound if bound.gains else None


@functools.lru_cache(maxsize=16)
def own_steps(randomizer: Randomizer) -> OwnSteps | None:
    laws = randomizer.step_set
    return None if laws is None else OwnSteps(randomizer.largest_loss, laws, randomizer.profile)


def own_laws(unit: Unit) -> UnitBound | None:
    """Needs: a mechanism that declares the laws of its steps; a rate below 1, or slots."""
    if not unit.epsilon0 or unit.randomizer.step_set is None:
        return None
    steps, sample, averaged = own_steps(unit.randomizer), _sample(unit), _averaged(unit)
    assert steps is not None
    found = [_labelled(unit, steps)]
    if found == [None]:
        found += [
            _weighted(unit, steps),
            _in_small_window(unit, steps),
            *(_staged(unit, each, steps) for each in _step_covers(unit, UniformSlot)),
        ]
    # t_k is smaller where all rates are equal.
    found += populations.occupied_games(unit, steps) if unit.randomizer.kary else _occupied(unit, steps)
    # B0 is smaller for messages of one bit, t_k for k-ary randomized response.
    sharper = unit.randomizer.kary is not None or (unit.randomizer.one_bit is not None and not averaged)
    if isinstance(sample, ClientPool):
        sharper = unit.randomizer.one_bit == 1.0 and not averaged
    if sample is not None and sample.rate < 1.0 and not (sharper and sample.many(unit.neg_log_tail)):
        found.append(_staged(unit, sample, steps))
    return _least_of(found)


def _least_of(found: Sequence[UnitBound | None]) -> UnitBound | None:
    """The minimum of those bounds that there are; None if there are none."""
    bounds = [each for each in found if each is not None]
    return bounds[0] if len(bounds) == 1 else minimum(bounds) if bounds else None


def _averaged(unit: Unit) -> bool:
    """True if slots are averaged, whose messages may depend on others of the window."""
    protocol = unit.protocol
    return protocol.averaged_slot_choices is not None or protocol.unequal_averaged_slot_choices is not None


def _known(unit: Unit) -> bool:
    """True if theorems for this mechanism are sharper than those for its epsilon0 or its profile."""
    return unit.randomizer.kary is not None or unit.randomizer.one_bit == 1.0


def _step_covers(unit: Unit, *kinds: type) -> list[StepCover]:
    """Covers of the target under replacement, restricted to `kinds` if any is given."""
    if not unit.replaced:
        return []
    found: list[StepCover] = []
    protocol, shown = unit.protocol, unit.slots
    if protocol.cover is not None:
        found.append(Shuffled(*protocol.cover))
    if shown is not None and shown.hidden:
        found.append(_slot_cover(shown))
    if protocol.used_slot_choices is not None:
        found.append(Occupied(*protocol.used_slot_choices))
    return [each for each in found if not kinds or isinstance(each, kinds)]


def _slot_cover(shown: Slots) -> UniformSlot:
    """Cover of one message a slot, where the target may not be drawn against its rivals."""
    return Contested(*shown[:3], *shown.loads) if shown.loads[0] else UniformSlot(*shown[:3])


def _each(unit: Unit, made: Callable[[StepCover], UnitBound]) -> UnitBound | None:
    """The smallest of the bounds made from the covers of the target."""
    if unit.epsilon0 is None or unit.epsilon0 == 0.0:
        return None
    # Witnesses are those of the first cover: hidden dummies count as messages there.
    covers = _step_covers(unit) or populations.covers(unit)
    return populations.least(map(made, covers)) if covers else None


def total_variation(unit: Unit) -> UnitBound | None:
    """Needs: eps0-LDP messages whose total variation is below that of binary randomized response."""
    beta, epsilon0 = unit.randomizer.total_variation, unit.epsilon0
    if epsilon0 is None or beta >= math.tanh(0.5 * epsilon0) * (1.0 - 1e-9) or _known(unit) or beta <= 0.0:
        return None
    return _each(unit, lambda step_cover: TotalVariationBound(step_cover, epsilon0, beta, unit.neg_log_tail))


def t_k(unit: Unit) -> UnitBound | None:
    """Needs: k-ary randomized response."""
    values, epsilon0 = unit.randomizer.kary, unit.epsilon0
    if values is None or epsilon0 is None:
        return None
    return _each(unit, lambda step_cover: KaryBound(step_cover, epsilon0, values, unit.neg_log_tail))


def b0(unit: Unit) -> UnitBound | None:
    """Needs: one-bit messages in a sample of clients at a rate below 1, none depending on another of its round."""
    differ, epsilon0 = unit.randomizer.one_bit, unit.epsilon0
    if differ is None or not epsilon0 or _averaged(unit):
        return None
    if unit.cover is not None:
        cover: Shuffled | ClientPool | None = Shuffled(*unit.cover) if unit.cover.rate < 1.0 else None
    else:
        cover = next(iter(populations.covers(unit)), None)
    return None if cover is None else OneBitCheckIn(cover, epsilon0, unit.neg_log_tail, differ)


def _of_few_slots(unit: Unit) -> int | None:
    """Number of slots of a sliding window whose loads' law is known; None for other units."""
    window = unit.protocol.sliding_window
    mu = unit.randomizer.gaussian_mu
    most = MOST_SMALL if mu is None or mu > MOST_MU else MOST_GAUSSIAN
    return None if window is None or unit.slots is None or not 1 < window <= most else window


def small_window(unit: Unit) -> UnitBound | None:
    """Needs: a sliding window of few slots; a privacy profile, not zero. Either neighboring relation."""
    window, mu = _of_few_slots(unit), unit.randomizer.gaussian_mu
    if window is None or unit.epsilon0 == 0.0:
        return None
    if mu is not None and mu > MOST_HIDDEN_MU:
        return None
    message = profile_of(unit.randomizer)
    if unit.replaced:
        return SmallWindow(window, message, unit.neg_log_tail)
    return SmallWindowRemoved(window, message, unit.neg_log_tail, fair_coin(unit.randomizer))


def _in_small_window(unit: Unit, steps: Steps) -> UnitBound | None:
    window = _of_few_slots(unit)
    if window is None:
        return None
    played = PlayedWindow(window, steps, unit.neg_log_tail)
    return played if played.gains else None


def _weighted(unit: Unit, steps: Steps) -> UnitBound | None:
    shown, known = unit.slots, unit.protocol.known_slots
    if known is not None and unit.replaced:
        facts = *known[:2], steps, unit.neg_log_tail, known.others
        window = unit.protocol.sliding_window
        beside = WeightedSlots(*facts, window=window, colluding=known.colluding)
        return beside if beside.gains else None
    rivals, chance = (0, 0.0) if shown is None else shown.loads
    if shown is None or not shown.hidden or not 0.0 < rivals * chance <= 2.0 * (1.0 - chance):
        return None
    window = unit.protocol.sliding_window
    facts = *shown[:2], steps, unit.neg_log_tail, rivals, chance
    fair = fair_dummies(unit) and (not window or fair_share(steps) < _FAIR_MATTERS)
    revealed = WeightedSlots(*facts, fair_dummies=fair)
    found = [revealed, *([WeightedSlots(*facts, window)] if window else [])]
    found = [each for each in found if each.gains]
    least = min((each.variance for each in found), default=0.0)
    kept = [each for each in found if each.variance <= _NEAR_LEAST * least]
    return _least_of(kept)


def fair_dummies(unit: Unit) -> bool:
    """True if slots of clients at equal rates show one-bit messages, by their own laws, and dummies are fair bits."""
    one_bit = unit.randomizer.one_bit is not None and unit.randomizer.fair_coin_at_zero
    own = unit.randomizer.step_set is not None
    equal = unit.protocol.used_slot_choices is not None or unit.protocol.sliding_window is not None
    return one_bit and own and equal


def t2_plus_plus(unit: Unit) -> UnitBound | None:
    """Needs: as T2+; common slots, equal rates. Either neighboring relation."""
    if not unit.epsilon0 or unit.randomizer.step_set is not None:
        return None
    return _labelled(unit, AnyMessage(unit.epsilon0))


def _labelled(unit: Unit, steps: Steps) -> UnitBound | None:
    shown, choices = unit.slots, unit.protocol.used_slot_choices
    if shown is None or not shown.hidden or choices is None or choices.num_clients < 2:
        return None
    labelled = LabelledSlots(*choices, steps, unit.neg_log_tail, fair_dummies(unit))
    return labelled if labelled.gains else None


def t_delta(unit: Unit) -> UnitBound | None:
    """Needs: messages that are nearly eps0-LDP, with a profile near the worst for this eps0; as `hexagon`."""
    cut = _cut(unit)
    if cut is None:
        return None
    epsilon0, delta0 = cut
    pure = dataclasses.replace(unit, randomizer=PureLDP(epsilon0=epsilon0))
    builders = hexagon, t2_plus_plus
    found = [
        CutRatios(each, epsilon0, delta0, unit.rate)
        for each in (build(pure) for build in builders)
        if each is not None
    ]
    return _least_of(found)


def _cut(unit: Unit, left: Profile | None = None) -> tuple[float, float] | None:
    """(eps0, delta0) of nearly eps0-LDP messages with a profile near the worst one; None for other messages.

    left: profile of the messages without dummies, if these are left out.
    """
    if unit.worst_of_its_kind or unit.randomizer.gaussian_mu is not None or unit.view == "local":
        return None
    message = profile_of(unit.randomizer) if left is None else left
    apart, certain = message.delta(np.array([0.0, MAX_EPSILON0]))
    # The cost over all units is then a small share of delta, or a moderate one if messages show their record.
    share = math.exp(17.0 - unit.neg_log_tail) / unit.rate
    one = AllCut(1, LocalMessages(1.0, message), unit.neg_log_tail)
    epsilon0 = one.cut(-math.log(max(_CUT * share, (1.0 + 1e-6) * certain)))
    if certain > _MOST_CUT * share or epsilon0 is None or apart < _NEAR_WORST * math.tanh(0.5 * epsilon0):
        return None
    # Else the bounds on eps0-LDP messages serve.
    if unit.epsilon0 is not None and epsilon0 > _RARELY_BEYOND * unit.epsilon0:
        return None
    return epsilon0, float(message.delta(np.array([epsilon0]))[0])


def t2_prime(unit: Unit) -> UnitBound | None:
    """Needs: common slots that use one client each; eps0-LDP messages; a record replaced. At unequal rates T2'h."""
    choices, epsilon0 = unit.protocol.used_slot_choices, unit.epsilon0
    if choices is None:
        return populations.t2_prime_h(unit)
    if not unit.replaced or epsilon0 is None:
        return None
    return Clones(Occupied(*choices), epsilon0, unit.neg_log_tail)


def t_star(unit: Unit) -> UnitBound | None:
    """Needs: a sample of clients at a rate below 1; a privacy profile better than the worst for its epsilon0."""
    cover, randomizer = unit.cover, unit.randomizer
    if cover is None or cover.rate >= 1.0 or unit.sums_noise or unit.worst_of_its_kind or _known(unit):
        return None
    mu = randomizer.gaussian_mu
    if mu is not None and mu > MOST_HIDDEN_MU:
        return None  # T* gains nothing beyond
    everybody = AllCut(cover.num_clients, one_message(randomizer), unit.neg_log_tail)
    return HiddenMessages(*cover, profile_of(randomizer), unit.neg_log_tail, everybody)


def t_star_averages(unit: Unit) -> UnitBound | None:
    """Needs: averaged slots at a rate below 1, of which only averages are seen; Gaussian noise, or bits."""
    choices, mu = unit.protocol.averaged_slot_choices, unit.randomizer.gaussian_mu
    alone, summed = _in_its_slot(unit), profiles.of_sums(unit.randomizer, unit.neg_log_tail)
    if alone is None or summed is None or (mu is not None and mu > MOST_HIDDEN_MU):
        return None
    if choices is not None:
        slots, others, prob = choices.num_slots, pool_cover.certain(choices.num_clients - 1.0), choices.prob
    else:
        unequal, pool = unit.protocol.unequal_averaged_slot_choices, populations.widest_pool(unit, _SIZES)
        if unequal is None or pool is None:
            return None
        slots, others, prob = unequal.num_slots, pool.size, pool.theta
    if prob >= 1.0:
        return None
    ratio = min(unit.rate / prob * (1.0 + 1e-15), 1.0)
    hidden = HiddenAverages(others, slots, prob, ratio, summed, alone, unit.neg_log_tail)
    return hidden if hidden.gains else None


def t_two(unit: Unit) -> UnitBound | None:
    """Needs: as T*; Gaussian messages, none depending on another of its round; some messages. At unequal rates T**h."""
    cover, mu = unit.cover, unit.randomizer.gaussian_mu
    if cover is None:
        return populations.t_two_h(unit)
    if mu is None or unit.sums_noise or unit.protocol.averaged_slot_choices is not None:
        return None
    if not gains(*cover, mu):
        return None
    everybody = AllCut(cover.num_clients, one_message(unit.randomizer), unit.neg_log_tail)
    return TwoLawMessages(*cover, profile_of(unit.randomizer), unit.neg_log_tail, everybody)


def g1(unit: Unit) -> UnitBound | None:
    """Needs: a sample of clients; for sums, Gaussian noise that adds up. At unequal rates G1h."""
    cover, mu = unit.cover, unit.randomizer.gaussian_mu
    if cover is None:
        return populations.g1h(unit)
    if mu is None:
        # T1 is never above G1 for eps0-LDP messages.
        if unit.epsilon0 is not None:
            return None
        message = MessageProfile(unit.randomizer)
        counted = ShuffledGaussian(*cover, 1.0, False, unit.neg_log_tail)
        return SubsampledMessages(counted, cover.rate, lambda number: message)
    if cover.rate >= 1.0 and not unit.sums_noise:
        return None  # nothing is subsampled
    return ShuffledGaussian(*cover, mu, unit.sums_noise, unit.neg_log_tail)


def message_sums(unit: Unit) -> UnitBound | None:
    """Needs: a sample of clients, of whose messages only sum and number are seen; bits, or Laplace noise."""
    profile = profiles.of_sums(unit.randomizer, unit.neg_log_tail)
    if profile is None or unit.sums_noise or unit.view != "aggregate" or not unit.protocol.summed:
        return None
    if unit.cover is None:
        counted: Subsampled | None = populations.counted_messages(unit, 1.0, True)
    else:
        counted = ShuffledGaussian(*unit.cover, 1.0, True, unit.neg_log_tail)
    if counted is None:
        return None
    return SubsampledMessages(counted, unit.rate, profile, cheap=unit.randomizer.laplace_scales is not None)


def g2(unit: Unit) -> UnitBound | None:
    """Needs: a profile, and a rate of 1/2 or more (the bound is for rate 1); or visible slots for each client."""
    if unit.worst_of_its_kind or _known(unit) or unit.randomizer.step_set is not None:
        return None
    if unit.slots is not None:
        return gaussian_slots.g2_apart(unit)
    cover = unit.cover
    if cover is None or cover.rate < _NEARLY_ALL or unit.sums_noise:
        return None
    everybody = AllCut(cover.num_clients, one_message(unit.randomizer), unit.neg_log_tail)
    # At a smaller rate the bound holds, but the witnesses for rate 1 do not.
    return everybody if cover.rate == 1.0 else Minimum((everybody,))


def e_plus(unit: Unit) -> UnitBound | None:
    """Needs: a profile; all clients send, or may well do so. One bit depends on no other of its round.

    A mechanism that declares the laws of its steps has its own.
    """
    cover, randomizer = unit.cover, unit.randomizer
    if cover is None or unit.epsilon0 == 0.0 or randomizer.kary is not None or unit.sums_noise:
        return None
    if unit.epsilon0 is None:
        return _profile_beside_dummies(unit, cover)
    return _beside_dummies(unit, cover, _FEW_PER_CLONE + math.log(cover.num_clients) - unit.epsilon0)


class _Dummies(NamedTuple):
    """Dummies among the messages of a cover.

    share: of a client's messages. rate: probability that a client sends a message that is none. none_prob: of none at
    all and all clients sending.
    """

    share: float
    rate: float
    none_prob: float

    @classmethod
    def of(cls, cover: Cover, rarely: float) -> _Dummies:
        """So many that there are none, and all clients send, with probability e^-rarely; share 0 if none are needed."""
        # The rounded rate decides, as it is raised to the number of clients.
        rate = math.exp(-rarely / cover.num_clients)
        none_prob = math.exp(cover.num_clients * math.log(rate))
        return cls(
            max((cover.rate - rate) / cover.rate, 0.0) * (1.0 + 1e-12), rate, none_prob * (1.0 + 1e-12)
        )


def _profile_beside_dummies(unit: Unit, cover: Cover) -> UnitBound | None:
    """E+ for messages of a known profile."""
    mu, clients, mass = unit.randomizer.gaussian_mu, cover.num_clients, unit.neg_log_tail
    if mu is not None and mu > MOST_HIDDEN_MU:
        return None
    fixed = unit.protocol.averaged_slot_choices is None
    for rarely in (max(mass - _COMPOSED, _FEWEST_DUMMIES), _FEWEST_DUMMIES):
        share, rate, none_prob = _Dummies.of(cover, rarely)
        left = without_dummies(profile_of(unit.randomizer), clients, share) if share > 0.0 else None
        if left is not None:
            everybody = AllCut(clients, LocalMessages(1.0, left), mass)
            if (cut := _cut(unit, left)) is not None:
                pure = StagedClones(NotAll(clients, rate), AnyMessage(cut[0]), mass)
                if pure.gains:
                    return BesideDummies(CutRatios(pure, *cut, 1.0), everybody, none_prob)
            two_laws = fixed and mu is not None and serves(clients, mu)
            hidden = TwoLawBesideDummies if two_laws else HiddenBesideDummies
            return hidden(clients, rate, left, mass, everybody)
    return None


def e_plus_of_others(unit: Unit) -> UnitBound | None:
    """Needs: all clients send, or may well do so; no slots are averaged. No message depends on another of its round."""
    cover, mu = unit.cover, unit.randomizer.gaussian_mu
    if cover is None or unit.epsilon0 is not None or unit.sums_noise or _averaged(unit):
        return None
    if (mu is not None and mu > MOST_HIDDEN_MU) or cover.rate < _Dummies.of(cover, _FEWEST_DUMMIES).rate:
        return None
    profile = profile_of(unit.randomizer)
    # A mean loss a round, for many rounds; and a share of delta, for few.
    prices = profiles.mean_loss(profile), _SHARE_OF_DELTA * math.exp(min(unit.neg_log_tail - 17.0, 700.0))
    alone = one_message(unit.randomizer)
    return _least_of(beside_others_dummies(cover.num_clients, profile, alone, unit.neg_log_tail, prices))


def _beside_dummies(unit: Unit, cover: Cover, rarely: float) -> UnitBound | None:
    """E+ with dummies so rare that there are none with probability exp(-rarely)."""
    clients, randomizer, mass = cover.num_clients, unit.randomizer, unit.neg_log_tail
    share, rate, none_prob = _Dummies.of(cover, rarely)
    if share <= 0.0 or share * math.exp(randomizer.largest_loss) > _MOST_DUMMIES:
        return None
    fewer, everybody = NotAll(clients, rate), Shuffled(clients, 1.0)
    differ, own = randomizer.one_bit, own_steps(randomizer)
    if own is not None and not own.narrow(math.inf):
        return None  # A is as good
    if differ is None:
        steps: Steps = (
            AnyMessage(left_epsilon0(randomizer.largest_loss, share)) if own is None else own.without(share)
        )
    else:
        # A dummy is a fair bit.
        epsilon0 = fair_bit_epsilon0(randomizer.largest_loss, share)
        bits = OneBit(epsilon0=epsilon0, differ=differ)
        steps = OwnSteps(epsilon0, bits.step_set, bits.profile)
    if differ is not None and unit.protocol.averaged_slot_choices is None:
        hidden: UnitBound = OneBitCheckIn(fewer, steps.epsilon0, mass, differ)
    else:
        hidden = StagedClones(fewer, steps, mass)
        if not hidden.gains:
            return None
    apart = (randomizer.total_variation or 1.0) / (1.0 - share)
    all_sent = TotalVariationBound(everybody, steps.epsilon0, min(apart, 1.0), mass)
    return BesideDummies(hidden, all_sent, none_prob)


def g4(unit: Unit) -> UnitBound | None:
    """Needs: averaged slots of which only sums are observed; a record replaced. At unequal rates G4h.

    Gaussian noise; or bits or Laplace noise in few slots, since bounds on messages are smaller in many.
    """
    protocol = unit.protocol
    choices = protocol.averaged_slot_choices or protocol.unequal_averaged_slot_choices
    if choices is None or (unit.randomizer.gaussian_mu is None and choices.num_slots > _FEW_SUMMED):
        return None
    return _in_its_slot(unit)


def _in_its_slot(unit: Unit) -> UnitBound | None:
    """G4, or G4h, in any number of slots."""
    choices, mu = unit.protocol.averaged_slot_choices, unit.randomizer.gaussian_mu
    summed = profiles.of_sums(unit.randomizer, unit.neg_log_tail)
    if not unit.replaced or unit.view != "aggregate" or summed is None:
        return None
    shift = 1.0 if mu is None else mu
    if choices is None:
        counted = populations.g4h(unit, shift)
    else:
        counted = averaged(*choices, shift, unit.neg_log_tail)
    if counted is None or mu is not None:
        return counted
    return SubsampledMessages(counted, unit.rate, summed)


def local(unit: Unit) -> UnitBound:
    """The local-view bound; needs nothing."""
    rate, randomizer = unit.rate, unit.randomizer
    if BINARY in randomizer.included_mechanisms:
        return LocalPureLDP(rate, randomizer.largest_loss)
    bound = one_message(randomizer, rate)
    if isinstance(bound, LocalGaussian):
        return bound
    # Other clients do not matter in the local view.
    known = [each for each in randomizer.label_laws if each.others is None]
    laws = tuple(LocalLabels(bound, rate, each, follows) for each in known for follows in (False, True))
    return dataclasses.replace(bound, witnesses=laws)
