"""Witnesses of a unit: concrete pairs of data sets, under a mechanism that its description includes.

Every other client, and the dummy of every empty slot, holds one record, the best of those tried. The target holds
either of two. The view is reduced to labels, or parts of it are dropped: both are post-processing. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import THIRD_RECORD, Clones
from checkin_jax.accounting.bounds.interface import (
    LocalGaussian,
    LocalLabels,
    LocalPureLDP,
    Minimum,
    UnitBound,
    Witness,
)
from checkin_jax.accounting.bounds.label_pairs import label_sum
from checkin_jax.accounting.bounds.messages.cover import Occupied, Shuffled, StepCover, UniformSlot
from checkin_jax.accounting.bounds.messages.equal_records import (
    SMALL_MU,
    AtOneRecord,
    GaussianAtOneRecord,
    LabelsAtOneRecord,
    MessagesByNumber,
    Numbers,
    bits_at_one_record,
    laplace_at_one_record,
    numbers_seen,
)
from checkin_jax.accounting.bounds.messages.largest_message import largest_average
from checkin_jax.accounting.bounds.messages.one_step_bounds import FAIR_BITS, fair_bits
from checkin_jax.accounting.bounds.messages.profile_cover import (
    HiddenMessages,
    HiddenMixture,
    HiddenSlots,
    mixtures,
)
from checkin_jax.accounting.bounds.profiles import (
    MOST_SHIFT,
    GaussianProfile,
    LabelProfile,
    Profile,
    one_message,
)
from checkin_jax.accounting.bounds.unequal import populations
from checkin_jax.accounting.bounds.unequal.occupied_slots import UnequalOccupied
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.accounting.bounds.unequal.unequal_witness import UnequalMessagesOfOne, unequal_labels
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import gaussian_slots, summed_rivals
from checkin_jax.accounting.bounds.windows.contention import win_prob
from checkin_jax.accounting.bounds.windows.small_windows import SmallWindow
from checkin_jax.accounting.bounds.windows.window_witnesses import MOST_COUNTED, CompetingBits, throws
from checkin_jax.numerics.counts import chernoff, occupancy
from checkin_jax.protocols import REPLACE, SlotChoices, Slots
from checkin_jax.randomizers import BINARY, TERNARY, KaryResponse, LabelLaws

# From _FEW messages on the _TRIED laws of largest variance are tried, and those with _NEARLY as much.
_FEW, _TRIED, _NEARLY = 300.0, 2, 0.7
# So many messages have about normal counts of bits.
_FEW_COUNTED = 1300.0
# -log of the probabilities that fewer messages are shown in colluders' slots.
_SHOWN = np.array([0.1, 0.35, 0.8, 1.6, 3.0, 6.0, 12.0])
# Blocks of slots beside the middle ones; -log of the probability that more messages are shown there.
_BLOCKS, _SELDOM = 60, 6.0
# Gauss' rule, which is below integrals of functions all of whose derivatives are positive.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)
# Largest share of occupied slots up to which messages are counted by clients, not by occupied slots.
_SHARED = 0.1
# Mass below which nobody shows a label; log of the least mass that matters, relative to the negligible one.
_NEVER, _MATTERS = 1e-18, 10.0


def of_unit(
    unit: Unit, bounds: Sequence[UnitBound], trusted: Sequence[UnitBound] = ()
) -> tuple[Witness, ...]:
    """Witnesses that the randomizer included, one a name: those of the bounds, and those of its label laws.

    trusted: bounds on `trusting(unit)`, whose witnesses are taken if that is another unit.
    """
    included, mu = unit.randomizer.included_mechanisms, unit.randomizer.gaussian_mu
    honest = trusting(unit)
    own = bounds if honest is unit else trusted
    if honest.slots is not None and mu is not None:
        # Witnesses whose messages are all used do not apply to slots, which use one message each.
        every = list(gaussian_slots.witnesses(honest, honest.slots, mu))
    else:
        every = _of_responses(honest, own)
    every += _of_gaussians(honest) if mu is not None else _of_labels(honest)
    every += _of_summed_noise(honest) + _of_lone_messages(honest)
    beside = _beside_colluders(honest, unit.protocol.num_colluding) if honest is not unit else []
    if (
        honest.slots is not None
        and honest.slots.hidden
        and mu is None
        and not unit.randomizer.dummy_may_equal_any_record
    ):
        return (
            *_fair(honest, own),
            *_among_fair_coins(honest),
            *_among_opposite_bits(honest),
            *beside,
        )  # the others put dummies at a record
    every += beside
    kept = {}
    for each in every:
        known = getattr(each, "needs", None) in (None, *included)
        if known and (_singles_observed(honest) or not getattr(each, "single", False)):
            kept.setdefault(each.name, each)
    return tuple(kept.values()) or _fair(honest, own)


def trusting(unit: Unit) -> Unit:
    """The unit without collusion, if slots have colluders: they stay away from the target's slots.

    Beside Gaussian messages in sliding windows, and where rivals compete, they do as the others do.
    """
    protocol = unit.protocol
    if unit.slots is not None or not protocol.num_colluding:
        return unit
    clients = protocol.honest if unit.common_slots else protocol.num_clients
    trusting = dataclasses.replace(protocol, num_clients=clients, num_colluding=0)  # type: ignore[call-arg]
    found = dataclasses.replace(unit, protocol=trusting)
    window, shown = trusting.sliding_window, found.slots
    if shown is None:
        return unit
    if window is None or unit.randomizer.gaussian_mu is not None:
        return found
    return dataclasses.replace(found, least_used=_used_if_deserted(shown, window, protocol.num_colluding))


def _beside_colluders(unit: Unit, colluding: int) -> list[Witness]:
    """Witnesses of a sliding window most of whose other clients collude: the target's message in a shared slot.

    A colluder is in every slot that no honest client reaches, and the others are where the target is not. The adversary
    knows their messages, so a different one in such a slot is the target's, drawn half of the time. Slots that honest
    clients reach are dropped: these are the last to meet the target's window on either side, each of them in one slot
    more than the one before. In common slots `_foreign_messages`.
    """
    shown, randomizer = unit.slots, unit.randomizer
    if shown is None or not unit.replaced or unit.protocol.unequal_used_slot_choices is not None:
        return []
    if unit.protocol.used_slot_choices is not None:
        return _foreign_messages(unit, unit.protocol.used_slot_choices, colluding)
    if shown.num_rivals == 0 or unit.summed_slots:
        return []
    among = _among_honest(unit, colluding) if shown.shown == 1.0 else []
    honest = max(min(2 * shown.num_rivals, unit.protocol.num_clients - 1) - colluding, 0)
    if honest >= shown.number or (honest and shown.shown < 1.0):
        return among
    rate = 0.5 * shown.use_prob * (1.0 - honest / shown.number) * (1.0 - 1e-12)
    bound = one_message(randomizer, rate)
    if isinstance(bound, LocalGaussian):
        return [bound, *among]
    if randomizer.messages_differ and BINARY in randomizer.included_mechanisms:
        return [LocalPureLDP(rate, randomizer.largest_loss), *among]
    laws = [law for law in randomizer.label_laws if not (randomizer.messages_differ and law.revealed)]
    if BINARY in randomizer.included_mechanisms:
        laws.append(_binary(randomizer.largest_loss))
    if not randomizer.messages_differ:
        laws = list(map(_unlike_theirs, laws))
    return [*(LocalLabels(bound, rate, _named_beside(law)) for law in laws), *among]


def _among_honest(unit: Unit, colluding: int) -> list[Witness]:
    """Witnesses of a sliding window whose neighbours collude: the target's message among the honest ones shown there.

    The nearest clients collude, one in each of the middle slots. An honest message there is not the colluder's, and the
    adversary adds messages of the others' record until they are as many as there rarely are.
    """
    randomizer, mass, window = unit.randomizer, unit.neg_log_tail, unit.observed_slots
    mu = randomizer.gaussian_mu
    if mu is not None:
        if not SMALL_MU <= mu <= MOST_SHIFT:
            return []
        messages = HiddenSlots(*shown_in_the_middle(window, colluding, 1.0), GaussianProfile(mu), mass)
        return [GaussianAtOneRecord(messages, messages, mu)]
    found = []
    for law, told in _told(unit):
        number, rate = shown_in_the_middle(window, colluding, told)
        if rate > 0.0:
            messages = HiddenSlots(number, rate, LabelProfile(law), mass)
            found.append(LabelsAtOneRecord(messages, law._replace(name=f"{law.name} among honest ones")))
    return found


def shown_in_the_middle(window: int, colluding: int, told: float) -> tuple[int, float]:
    """A number that is rarely exceeded by the honest messages told apart in the middle slots of a window, and a lower
    bound on the probability that they are no more, and one of them is the target's.

    The nearest clients on either side collude, so that the fewest honest clients may be in the middle slots, and one
    more in each slot after these. An honest message is told from a colluder's with probability `told`.
    """
    m, (slots, honest) = float(window), _honest_beyond(window, colluding)
    # A colluder in every slot.
    kept = np.cumsum(slots) <= colluding
    kept[0], slots[0] = True, min(slots[0], float(colluding))
    slots, honest = slots[kept], honest[kept, None]
    # The others are drawn against the target and a colluder.
    lost = (0.5 - 0.5 * _NODES) / m
    target = (0.5 * _WEIGHTS * (0.5 + 0.5 * _NODES)) @ np.exp(honest * np.log1p(-lost)).T * (1.0 - 1e-12)
    shown = 1.0 - np.array([win_prob(int(each), 1.0 / m) for each in honest[:, 0]]) * (1.0 - 3e-12)
    slots, rate, number = (np.cumsum(slots * each) for each in (1.0, told * target / m, told * shown))
    most = 1.0 + np.array(
        [
            float(chernoff.most(each, min(mean / each, 1.0), np.array(_SELDOM)))
            for each, mean in zip(slots, number)
        ]
    )
    rate = np.maximum(rate * (1.0 - 1e-12) - slots / m * math.exp(-_SELDOM), 0.0)
    best = int(np.argmax(np.square(rate) / most))
    return int(most[best]), float(rate[best])


def _honest_beyond(window: int, colluding: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of slots of a window, from the middle ones on, and of honest clients that may be in each, from above.

    The nearest clients on either side collude.
    """
    m, fewest = float(window), max(window - 1.0 - colluding, 0.0)
    middle = min(abs(m - 1.0 - colluding) + 1.0, m)
    sides = math.ceil(0.5 * (m - middle))
    beyond = np.unique(np.floor(np.append(0.0, np.geomspace(1e-3, 1.0, _BLOCKS)) * sides))
    slots = np.append(middle, 2.0 * np.diff(beyond))
    # Sides may differ by one slot.
    slots[-1] -= slots.sum() - m
    return slots, fewest + beyond


def _used_if_deserted(shown: Slots, window: int, absent: int) -> float:
    """Least probability that the target's message is used, if so many nearest neighbours are in none of its slots."""
    if shown.number < window:
        return 0.0
    number, honest = _honest_beyond(window, absent)
    won = np.array([win_prob(int(each), 1.0 / window) for each in honest])
    return float(number @ won) / window * (1.0 - 1e-11)


def _shown_by_honest(slots: int, honest: int, prob: float, told: float = 1.0) -> list[tuple[int, float]]:
    """(number, weight) of a law stochastically below the number of slots that show an honest client's message.

    Every slot has one colluder, and each honest client with this probability, in one slot at most. An honest message
    counts with probability `told`.
    """
    seen = (1.0 - win_prob(honest, prob)) * told
    if seen <= 0.0:
        return []
    # Slots are negatively associated: Chernoff's bounds of independent ones hold, and that on no message at all.
    none = -slots * math.log1p(-seen) * (1.0 - 1e-12)
    levels = np.sort(np.append(_SHOWN, none))[::-1]
    fewest = np.maximum(chernoff.fewest(float(slots), seen, levels), levels <= none)
    fewest = np.maximum.accumulate(fewest)
    reached = np.append(-np.expm1(-levels), 0.0)
    return [(int(number), float(weight)) for number, weight in zip(fewest, -np.diff(reached))]


def _told_apart(law: LabelLaws) -> tuple[LabelLaws, float]:
    """Laws of a message that differs from a colluder's, and the probability that it does.

    Colluders send the label that tells least, or either of two at random. The adversary passes over some messages, so
    that this probability is the same under both records.
    """
    other, apart = np.asarray(law.other, dtype=np.float64), law.difference
    unlike = np.full(2, 0.5) if apart.size == 2 else _labels_not_sent(apart).astype(np.float64)
    ups, downs = (float(np.sum(np.maximum(side * apart, 0.0) * unlike)) for side in (1.0, -1.0))
    least = min(ups, downs)
    unlike = unlike * np.where(apart > 0.0, least / max(ups, 1e-300), least / max(downs, 1e-300))
    told = float(np.sum(other * unlike))
    if told <= 0.0:
        return law, 0.0
    # A label of no probability under either record, and one that is never told, are left out.
    kept = (unlike > 0.0) & (other > 0.0)
    share = unlike[kept] / told * (1.0 - 1e-12)
    other, apart = other[kept], apart[kept]
    differing = LabelLaws((other + apart) * share, other * share, law.name, None, apart * share)
    return differing, told * (1.0 - 1e-9)


def _foreign_messages(unit: Unit, choices: SlotChoices, colluding: int) -> list[Witness]:
    """Witnesses of the honest clients' common slots with hidden dummies, a colluder in as many of them as there are.

    A message there that is not the colluder's is an honest client's. All honest clients are equally likely to have
    sent it. The other slots are not looked at.
    """
    randomizer, mass, honest = unit.randomizer, unit.neg_log_tail, choices.num_clients
    if unit.summed_slots or honest < 2:
        return []
    slots, each = min(colluding, choices.num_slots), choices.prob / choices.num_slots
    mu = randomizer.gaussian_mu
    if mu is not None:
        if not SMALL_MU <= mu <= MOST_SHIFT:
            return []
        numbers, profile = _shown_by_honest(slots, honest, each), GaussianProfile(mu)
        return _by_number(numbers, honest, profile, mass, lambda found: GaussianAtOneRecord(found, found, mu))
    return [
        witness
        for law, share in _told(unit)
        for witness in _by_number(
            _shown_by_honest(slots, honest, each, share),
            honest,
            LabelProfile(law),
            mass,
            functools.partial(LabelsAtOneRecord, laws=law),
        )
    ]


def _told(unit: Unit) -> list[tuple[LabelLaws, float]]:
    """Laws of an honest message in a colluder's slot, and the probability that it is told from the colluder's."""
    randomizer = unit.randomizer
    laws = [law for law in randomizer.label_laws if not law.revealed]
    if BINARY in randomizer.included_mechanisms:
        laws.append(_binary(randomizer.largest_loss))
    # By names of their own: `of_unit` keeps one witness a name.
    told = [(_named_beside(law), 1.0) for law in laws if not law.of_sums]
    if not randomizer.messages_differ:
        told = [_told_apart(law) for law, _ in told if law.others is None]
    return told


def _named_beside(law: LabelLaws) -> LabelLaws:
    return law._replace(name=f"{law.name}, in a colluder's slot")


def _binary(epsilon0: float) -> LabelLaws:
    """Binary randomized response, rounded so that both probabilities are from below."""
    often, seldom = 1.0 / (1.0 + math.exp(-epsilon0)), 1.0 / (1.0 + math.exp(epsilon0))
    both = np.array([often, seldom]) * (1.0 - 1e-14)
    apart = math.tanh(0.5 * epsilon0) * (1.0 - 1e-14)
    return LabelLaws(both, both[::-1], "binary randomized response", None, np.array([apart, -apart]))


def _labels_not_sent(apart: np.ndarray) -> np.ndarray:
    """True for all labels but the one that tells least, which colluders send."""
    return np.arange(apart.size) != int(np.argmin(np.abs(apart)))


def _unlike_theirs(law: LabelLaws) -> LabelLaws:
    """The laws without the label that tells least, which every colluder sends; its mass is missing."""
    told = _labels_not_sent(law.difference)
    target, other, apart = (np.where(told, part, 0.0) for part in (law.target, law.other, law.difference))
    return LabelLaws(target, np.maximum(other, 1e-300), law.name, None, apart)


def _singles_observed(unit: Unit) -> bool:
    """True if the view determines all messages up to order, directly or by their sum and number."""
    if unit.view != "aggregate" or (unit.slots is not None and unit.slots.minibatch == 1):
        return True
    # One bit in one dimension: its sum, and the number of messages, which is observed except in slots.
    return unit.randomizer.sum_reveals_counts or (unit.randomizer.fair_coin_at_zero and unit.slots is None)


def _step_cover(unit: Unit) -> StepCover | None:
    """Cover of the target's message, for witnesses."""
    cover, choices, shown = unit.cover, unit.protocol.used_slot_choices, unit.slots
    if cover is not None:
        return Shuffled(*cover)
    if shown is None:
        return None
    if shown.hidden:
        return UniformSlot(unit.observed_slots, shown.use_prob, shown.use_prob_lower)
    return Occupied(*choices) if choices is not None else None


def _fair(unit: Unit, bounds: Sequence[UnitBound]) -> tuple[Witness, ...]:
    """The witness of fair bits among zero updates and dummies, if the randomizer attains it."""
    step_cover, epsilon0 = _step_cover(unit), unit.epsilon0
    if not unit.randomizer.fair_coin_at_zero or not unit.replaced or step_cover is None or epsilon0 is None:
        return ()
    if not bounds:
        return ()
    usual = fair_bits(bounds[0], step_cover, epsilon0, unit.neg_log_tail)
    if not any(isinstance(each, SmallWindow) for each in bounds):
        return (usual,)
    # Few messages have few losses: the grid of T2 by itself may fit them better than that of the smallest bound.
    return (usual, dataclasses.replace(usual, grid_bound=copy.copy(bounds[0])))


def _among_fair_coins(unit: Unit) -> list[Witness]:
    """The witness of a client added to fair bits, which are zero updates and dummies."""
    if not unit.randomizer.fair_coin_at_zero or unit.replaced or unit.epsilon0 is None:
        return []
    often = 1.0 / (1.0 + math.exp(-unit.epsilon0))
    apart = 0.5 * math.tanh(0.5 * unit.epsilon0)
    law = LabelLaws(
        np.array([often, 1.0 - often]),
        np.array([0.5, 0.5]),
        FAIR_BITS,
        None,
        np.array([apart, -apart]),
    )
    return _of_law(unit, law)


def _among_opposite_bits(unit: Unit) -> list[Witness]:
    """The witness of one bit among opposite ones in slots, a fair one in each empty slot."""
    if not unit.randomizer.fair_coin_at_zero or unit.epsilon0 is None:
        return []
    found, mass = throws(unit), unit.neg_log_tail
    if found is None or found.num_slots > MOST_COUNTED or found.bounded(mass) is None:
        return list(summed_rivals.of_bits(unit))
    return [CompetingBits(found, unit.epsilon0, mass, unit.replaced)]


def _of_summed_noise(unit: Unit) -> list[Witness]:
    """The witness of counts of bits, or sums of Laplace noise, where only sums are seen.

    The number of messages of a sample is seen with their sum. All observed slots show one each.
    """
    epsilon0, scales = unit.randomizer.bit_epsilon0, unit.randomizer.laplace_scales
    if _singles_observed(unit):
        return []
    population, cover, shown = populations.covering_population(unit), unit.cover, unit.slots
    if shown is not None:
        number, used = float(unit.observed_slots), shown.use_prob_lower * (1.0 - 1e-12)
        numbers, epsilon0 = Numbers(*np.array([[number], [used], [1.0]])), None
    elif cover is not None:
        others = Others(np.array([cover.rate]), np.array([cover.num_clients - 1.0]))
        numbers = numbers_seen(cover.rate, others, unit.neg_log_tail)
    elif population is not None:
        numbers = numbers_seen(population.rate, population.theirs, unit.neg_log_tail)
    else:
        return []
    if epsilon0 is not None and float(numbers.number.max(initial=0.0)) <= _FEW_COUNTED:
        return [bits_at_one_record(numbers, epsilon0)]
    return [] if scales is None else [laplace_at_one_record(numbers, scales)]


def _lone_messages(clients: int, slots: int, prob: float) -> list[tuple[int, float]]:
    """(number, weight) of a law stochastically below the number of messages that are alone in a slot.

    Each client checks in with this probability, and draws one of the slots. A client more changes the number by one at
    most, so that Doob's martingale has steps of at most 1 + prob, of total variance n prob [Fre75].
    """
    step, taking_part = 1.0 + prob, clients * prob
    alone = taking_part * math.exp((clients - 1.0) * math.log1p(-prob / slots)) if prob < slots else 0.0
    far = [step * occupancy.deviation(taking_part / step**2, level) for level in _SHOWN[::-1]]
    least = [max(math.ceil((alone - each) * (1.0 - 1e-12)), 0) for each in far]
    return list(zip(least, (-np.diff(np.append(-np.expm1(-_SHOWN[::-1]), 0.0))).tolist()))


def _of_lone_messages(unit: Unit) -> list[Witness]:
    """Witnesses of averaged slots: the messages alone in theirs, any of the clients' as likely as another's."""
    choices, randomizer = unit.protocol.averaged_slot_choices, unit.randomizer
    if choices is None or not unit.replaced or _singles_observed(unit) or randomizer.gaussian_mu is not None:
        return []
    numbers = _lone_messages(*choices)
    found = []
    for law in _promising(unit, [law for law in randomizer.label_laws if not (law.of_sums or law.revealed)]):
        named = law._replace(name=f"{law.name}, alone in a slot")
        of_slots = functools.partial(LabelsAtOneRecord, laws=named)
        found += _by_number(numbers, choices.num_clients, LabelProfile(law), unit.neg_log_tail, of_slots)
    return found


def _of_responses(unit: Unit, bounds: Sequence[UnitBound]) -> list[Witness]:
    """Witnesses of the bounds, without those that reveal the number of occupied slots if dummies hide it."""
    included, shown, epsilon0 = unit.randomizer.included_mechanisms, unit.slots, unit.epsilon0
    kept_bounds, hidden, slots_alone = list(bounds), [], None
    if shown is not None and shown.hidden and epsilon0 is not None:
        hidden = [each for each in bounds if _of_occupied(each)]
        kept_bounds = [each for each in bounds if each not in hidden]
        if unit.observed_slots != shown.number:
            kept_bounds = []
        if not any(isinstance(each, Clones) for each in kept_bounds) and (hidden or not kept_bounds):
            observed = UniformSlot(unit.observed_slots, shown.use_prob, shown.use_prob_lower)
            slots_alone = Clones(observed, epsilon0, unit.neg_log_tail, unit.relation != REPLACE)
            kept_bounds.append(slots_alone)
    found = [witness for each in kept_bounds for witness in each.witnesses]
    if TERNARY not in included and BINARY in included:
        # The bounds do not try binary randomized response where 3-ary leaks more.
        found += [each.binary() for each in kept_bounds if isinstance(each, Clones | UnequalOccupied)]
    if not hidden:
        return found
    # Grids are made from the bound that is used.
    return [
        dataclasses.replace(each, grid_bound=hidden[0]) if each.grid_bound is slots_alone else each  # type: ignore[type-var]
        for each in found
    ]


def _of_occupied(bound: UnitBound) -> bool:
    """True for clones in occupied slots, or the least of such bounds: their witnesses reveal the number of slots."""
    if isinstance(bound, Minimum):
        return all(map(_of_occupied, bound.bounds))
    occupied = isinstance(bound, Clones) and isinstance(bound.cover, Occupied)
    return occupied or isinstance(bound, UnequalOccupied)


def _of_labels(unit: Unit) -> list[Witness]:
    """Witnesses with all other clients at one record, observed through labels."""
    laws = [
        law
        for law in unit.randomizer.label_laws
        # Under add-or-remove the second record is that of all others.
        if unit.relation == REPLACE or law.others is None
        # Laws of sums serve only where single messages are not observed.
        if _singles_observed(unit) != law.of_sums
    ]
    included, epsilon0 = unit.randomizer.included_mechanisms, unit.epsilon0
    if TERNARY in included and epsilon0 and populations.covering_population(unit) is not None:
        ternary = KaryResponse(epsilon0=epsilon0, num_values=3)
        laws += [law._replace(name=THIRD_RECORD) for law in ternary.label_laws if law.others is not None]
    hidden = _promising(unit, [law for law in laws if not law.revealed])
    found = [witness for law in hidden for witness in _of_law(unit, law)]
    seen = _seen_prob(unit)
    if seen > 0.0:
        # A label that nobody else shows is as good as a name.
        alone = one_message(unit.randomizer, seen)
        found += [LocalLabels(alone, seen, law) for law in laws if law.revealed]
    return found


def _seen_prob(unit: Unit) -> float:
    """Lower bound on the probability that the view shows the target's message; zero where none is known."""
    population, shown = populations.covering_population(unit), unit.slots
    if shown is not None:
        return shown.use_prob_lower
    if population is not None:
        return population.rate * (1.0 - 1e-12)
    return 0.0 if unit.cover is None else unit.cover.rate


def _promising(unit: Unit, laws: Sequence[LabelLaws]) -> list[LabelLaws]:
    """`promising` laws for about as many messages as the unit shows."""
    cover, population, shown = unit.cover, populations.covering_population(unit), unit.slots
    number = 0.0
    if cover is not None:
        number = cover.num_clients * cover.rate
    elif population is not None:
        number = float(population.theirs.trials.mean)
    elif shown is not None:
        number = float(shown.number)
    return promising(number, laws, unit.neg_log_tail)


def promising(number: float, laws: Sequence[LabelLaws], neg_log_tail: float) -> list[LabelLaws]:
    """For many messages, the laws of largest variance, and those with rare, large losses; else all laws."""
    if number < _FEW or len(laws) < 2:
        return list(laws)
    variances = [_variance(law) for law in laws]
    most = sorted(variances)[-_TRIED:]
    best = max(_NEARLY * most[-1], most[0])
    return [law for law, variance in zip(laws, variances) if variance >= best or _is_shown(law, neg_log_tail)]


def _variance(law: LabelLaws) -> float:
    """Variance of a step, without labels that the others never show."""
    apart, others = _steps(law)
    positive = others > _NEVER
    return float(np.sum(np.square(apart[positive]) / others[positive]))


def _steps(law: LabelLaws) -> tuple[np.ndarray, np.ndarray]:
    return law.difference, np.asarray(law.other if law.others is None else law.others)


def _is_shown(law: LabelLaws, neg_log_tail: float) -> bool:
    """True if labels that the others never show reveal the record with a probability that matters."""
    apart, others = _steps(law)
    return float(np.sum(apart[(others <= _NEVER) & (apart > 0.0)])) > math.exp(_MATTERS - neg_log_tail)


def _of_law(unit: Unit, law: LabelLaws) -> list[Witness]:
    """Witnesses of messages of this law, for the unit's cover."""
    mass, profile = unit.neg_log_tail, LabelProfile(law)
    population, step_cover = populations.covering_population(unit), _step_cover(unit)
    if population is not None:
        return [unequal_labels(population.rate, population.theirs, mass, law)]
    if isinstance(step_cover, Shuffled):
        messages = HiddenMessages(step_cover.num_clients, step_cover.rate, profile, mass)
        return _also_by_scores(LabelsAtOneRecord(messages, law))
    if isinstance(step_cover, UniformSlot):
        if step_cover.use_prob_lower <= math.exp(-mass):
            return []
        slots = HiddenSlots(step_cover.slots, step_cover.use_prob_lower, profile, mass)
        return _also_by_scores(LabelsAtOneRecord(slots, law))
    if isinstance(step_cover, Occupied):
        return _in_occupied_slots(step_cover, profile, mass, functools.partial(LabelsAtOneRecord, laws=law))
    shown = _shown(unit)
    return (
        [] if shown is None else _also_by_scores(LabelsAtOneRecord(HiddenSlots(*shown, profile, mass), law))
    )


def _also_by_scores(messages: LabelsAtOneRecord) -> list[Witness]:
    """The witness by contours, and by the sum of its scores where contours miss rare large steps."""
    exact = label_sum(messages, messages.messages.neg_log_tail)
    if exact is None or not exact.has_rare_steps:
        return [messages]
    exact = dataclasses.replace(exact, name=f"{exact.name}, by scores")
    return [messages, exact] if exact.largest_loss > 0.0 else [messages]


def _in_occupied_slots(
    step_cover: Occupied,
    profile: Profile,
    mass: float,
    of_messages: Callable[[HiddenMessages | HiddenMixture], AtOneRecord],
) -> list[Witness]:
    """The witness of the messages in occupied slots.

    If at most k of m slots are ever occupied, every client that sends finds an empty one with probability 1 - k/m at
    least, whatever the others do. The adversary drops messages until it is exactly that: a shuffled check-in at this
    share of the rate.
    """
    clients, slots, prob = step_cover.num_clients, step_cover.num_slots, step_cover.prob
    shared = float(chernoff.most(float(clients), prob, np.array([mass]))[0]) / slots
    numbers = occupancy.levels(clients, slots, prob, mass, False)[0]
    all_told_apart = max(number for number, _ in numbers) < len(numbers)
    if clients * prob > _FEW or shared > _SHARED or all_told_apart:
        return _by_number(numbers, clients, profile, mass, of_messages)
    messages = HiddenMessages(clients, prob * (1.0 - shared) * (1.0 - 1e-15), profile, mass)
    return [MessagesByNumber(((np.ones(1), np.ones(1), of_messages(messages)),), math.exp(-mass))]


def _by_number(
    numbers: Sequence[tuple[int, float]],
    clients: int,
    profile: Profile,
    mass: float,
    of_slots: Callable[[HiddenMessages | HiddenMixture], AtOneRecord],
) -> list[Witness]:
    """The witness of the messages of equally likely clients, by their number; some messages are dropped.

    numbers: (number, weight) of a law stochastically below the number of messages.
    """
    seen = [(number, weight) for number, weight in numbers if number > 0 and weight > 0.0]
    if not seen:
        return []
    number, weight = np.array(seen, dtype=np.float64).T
    weight *= 1.0 - 2e-9
    parts = mixtures(weight, number, number / clients, profile, mass)
    return [MessagesByNumber(tuple((weight[here], weight[here], of_slots(one)) for here, one in parts))]


def _shown(unit: Unit) -> tuple[int, float] | None:
    """`populations.slots_shown` of common slots with visible empty ones and unequal rates; None for others."""
    choices, shown = unit.protocol.unequal_used_slot_choices, unit.slots
    if choices is None or shown is None or not unit.replaced:
        return None
    population = populations.population_of(unit, choices.num_clients, choices.unequal_rates, 1.0)
    return None if population is None else populations.slots_shown(choices, population, shown.use_prob_lower)


def _of_gaussians(unit: Unit) -> list[Witness]:
    """Witnesses of Gaussian messages, all others at one of the two records.

    For unequal rates, averages of slots, and few messages in visible slots.
    """
    mu, mass = unit.randomizer.gaussian_mu, unit.neg_log_tail
    if mu is None or not SMALL_MU <= mu <= MOST_SHIFT:
        return []
    population = populations.covering_population(unit)
    if population is not None:
        return [UnequalMessagesOfOne(population.rate, population.theirs, mass, mu)]
    averaged = unit.protocol.averaged_slot_choices
    if averaged is not None and unit.view == "aggregate" and unit.replaced:
        return [largest_average(*averaged, mu, mass)]
    if unit.slots is None or unit.slots.hidden or unit.summed_slots:
        return []
    shown, choices, profile = _shown(unit), unit.protocol.used_slot_choices, GaussianProfile(mu)
    if shown is not None:
        messages = HiddenSlots(*shown, profile, mass)
        return [GaussianAtOneRecord(messages, messages, mu)]
    # Where many are occupied, the rare event that fewer are costs less than a sum for every number.
    if choices is None or not unit.replaced or choices.num_clients * choices.prob > _FEW:
        return []
    return _in_occupied_slots(
        Occupied(*choices), profile, mass, lambda messages: GaussianAtOneRecord(messages, messages, mu)
    )
