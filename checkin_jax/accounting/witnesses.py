"""Lower ends of a unit: concrete pairs of data sets under a mechanism that its description covers.

Every other client, and the dummy of every empty slot, holds one record, the best one that is tried; the client meant
holds either of two. What the view shows is looked at through labels, or forgotten in part: each is a post-processing.
Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import OccupiedPureLDP, ShuffledPureLDP, SlotsPureLDP
from checkin_jax.accounting.bounds.interface import (
    Instance,
    LocalGaussian,
    LocalLabels,
    LocalMessages,
    LocalPureLDP,
    UnitBound,
)
from checkin_jax.accounting.bounds.messages.cover import Hiding, Occupied, Shuffled, Slots
from checkin_jax.accounting.bounds.messages.equal_records import (
    SMALL_MU,
    GaussianMessages,
    LabelMessages,
    MessagesByNumber,
)
from checkin_jax.accounting.bounds.messages.one_bit_bounds import FairBits
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages, HiddenSlots
from checkin_jax.accounting.bounds.profiles import MOST_SHIFT, GaussianProfile, LabelProfile, profile_of
from checkin_jax.accounting.bounds.unequal import populations
from checkin_jax.accounting.bounds.unequal.occupied_slots import UnequalOccupied
from checkin_jax.accounting.bounds.unequal.pooled_clients import AmongOthers
from checkin_jax.accounting.bounds.unequal.unequal_witness import UnequalMessagesOfOne
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import gaussian_slots
from checkin_jax.numerics.counts import occupancy
from checkin_jax.protocols import REPLACE
from checkin_jax.randomizers import BINARY, TERNARY, LabelLaws

# Of so many messages laws are told apart by their variance; so many are tried that are nearly as good.
_FEW, _TRIED, _NEARLY = 300.0, 2, 0.7
# Labels that nobody shows, and what matters a little, in nats above what does not.
_NEVER, _MATTERS = 1e-18, 10.0

_Occupied = OccupiedPureLDP | UnequalOccupied
_Responses = ShuffledPureLDP | SlotsPureLDP | _Occupied


def instances(unit: Unit, bounds: Sequence[UnitBound]) -> tuple[Instance, ...]:
    """Lower ends that the randomizer attains: of those that bounds come with, each once; and of its label laws."""
    attains, mu = unit.randomizer.attains, unit.randomizer.gaussian_mu
    seen = _as_others(unit)
    if seen.slots is not None and mu is not None:
        # Those of messages that all come through say nothing of slots, which use one each.
        every = list(gaussian_slots.instances(seen, seen.slots, mu))
    else:
        every = _of_responses(seen, bounds if seen is unit else ())
    every += _of_gaussians(seen) if mu is not None else _of_labels(seen)
    beside = _beside_colluders(seen, unit.protocol.num_colluding) if seen is not unit else []
    if seen.slots is not None and seen.slots.hidden and mu is None and not unit.randomizer.dummy_anywhere:
        return (*_fair(seen, bounds), *beside)  # all others put the dummies at a record
    every += beside
    kept = {}
    for each in every:
        known = getattr(each, "needs", None) in (None, *attains)
        if known and (_singles_told(seen) or not getattr(each, "single", False)):
            kept.setdefault(each.name, each)
    return tuple(kept.values()) or _fair(seen, bounds)


def _as_others(unit: Unit) -> Unit:
    """Where clients collude in slots: colluders who do as the others do, and an adversary who does not ask them."""
    if unit.slots is not None or not unit.protocol.num_colluding:
        return unit
    alike = dataclasses.replace(unit, protocol=dataclasses.replace(unit.protocol, num_colluding=0))  # type: ignore[call-arg]
    return unit if alike.slots is None else alike


def _beside_colluders(unit: Unit, colluding: int) -> list[Instance]:
    """A sliding window all of whose other clients collude, and the client's message where it shares its slot.

    They know which message of theirs is in a slot; if another one is there it is the client's, unless the two may be
    equal. Slots of which none of them is a part are forgotten.
    """
    shown, randomizer = unit.slots, unit.randomizer
    if not randomizer.messages_differ:
        return []
    if shown is None or unit.protocol.used_throws is not None or unit.protocol.used_crowd is not None:
        return []
    if colluding < 2 * shown.others or shown.others == 0 or unit.summed_slots:
        return []
    alone = shown.used * math.exp(shown.others * math.log1p(-shown.pick)) * (1.0 + 1e-12)
    rate = shown.seen - alone
    if not rate > 0.0:
        return []
    if randomizer.gaussian_mu is not None:
        return [LocalGaussian(rate, randomizer.gaussian_mu)]
    if BINARY in randomizer.attains:
        return [LocalPureLDP(rate, randomizer.largest_loss)]
    bound = LocalMessages(rate, profile_of(randomizer))
    return [LocalLabels(bound, rate, law) for law in randomizer.label_laws if law.others is None]


def _slots_told(unit: Unit) -> int:
    """How many slots' messages the view shows, in any order: the client's, and those that are summed with them."""
    shown = unit.slots
    assert shown is not None
    size = shown.minibatch if unit.view == "aggregate" else 1
    return min(-(-shown.number // size) * size, shown.total)


def _singles_told(unit: Unit) -> bool:
    """True if the view shows all messages, in any order: as they are, or by their sum and their number."""
    if unit.view != "aggregate" or (unit.slots is not None and unit.slots.minibatch == 1):
        return True
    # One bit in one dimension: the sum, and how many there are, which is seen but in slots.
    return unit.randomizer.sums_tell or (unit.randomizer.fair_at_zero and unit.slots is None)


def _hiding(unit: Unit) -> Hiding | None:
    """Where the client's message hides."""
    cover, throws, shown = unit.cover, unit.protocol.used_throws, unit.slots
    if cover is not None:
        return Shuffled(*cover)
    if shown is None:
        return None
    if shown.hidden:
        return Slots(_slots_told(unit), shown.used, shown.seen)
    return Occupied(*throws) if throws is not None else None


def _fair(unit: Unit, bounds: Sequence[UnitBound]) -> tuple[Instance, ...]:
    """Fair bits among updates of zero and dummies, where only these are an instance."""
    hiding, epsilon0 = _hiding(unit), unit.epsilon0
    if not unit.randomizer.fair_at_zero or not unit.replaced or hiding is None or epsilon0 is None:
        return ()
    return (FairBits(bounds[0], hiding, epsilon0, unit.log_inverse_mass),) if bounds else ()


def _of_responses(unit: Unit, bounds: Sequence[UnitBound]) -> list[Instance]:
    """The bounds' own instances; not those that show how many slots are occupied, where dummies hide it."""
    attains, shown, epsilon0 = unit.randomizer.attains, unit.slots, unit.epsilon0
    seen, hidden, slots_alone = list(bounds), [], None
    if shown is not None and shown.hidden and epsilon0 is not None:
        hidden = [each for each in bounds if isinstance(each, _Occupied)]
        seen = [each for each in bounds if each not in hidden]
        if _slots_told(unit) != shown.number:
            seen = []
        if not any(isinstance(each, SlotsPureLDP) for each in seen) and (hidden or not seen):
            told = (_slots_told(unit), shown.used, shown.seen, epsilon0, unit.log_inverse_mass)
            slots_alone = SlotsPureLDP(*told, removal=unit.relation != REPLACE)
            seen.append(slots_alone)
    found = [instance for each in seen for instance in each.instances]
    if TERNARY not in attains and BINARY in attains:
        # Where 3-ary randomized response leaks more, binary is not tried by itself.
        found += [each.binary() for each in seen if isinstance(each, _Responses)]
        found += [instance for each in seen if isinstance(each, AmongOthers) for instance in each.binary()]
    if not hidden:
        return found
    # Grids are made from the bound that is used.
    return [
        dataclasses.replace(each, scale=hidden[0]) if each.scale is slots_alone else each  # type: ignore[type-var]
        for each in found
    ]


def _of_labels(unit: Unit) -> list[Instance]:
    """All other clients at one record, seen through labels."""
    laws = [
        law
        for law in unit.randomizer.label_laws
        # A client that is not there leaves its place to the record of all others.
        if unit.relation == REPLACE or law.others is None
        # What sums tell, single messages tell, too, and mostly more.
        if _singles_told(unit) != law.of_sums
    ]
    return [instance for law in _promising(unit, laws) for instance in _of_law(unit, law)]


def _promising(unit: Unit, laws: Sequence[LabelLaws]) -> list[LabelLaws]:
    """Of many messages, the laws of the largest variance, and those with losses that are rare and large."""
    cover, company, shown = unit.cover, populations.crowd(unit), unit.slots
    number = 0.0
    if cover is not None:
        number = cover.num_clients * cover.rate
    elif company is not None:
        number = float(company.theirs.trials.mean)
    elif shown is not None:
        number = float(shown.number)
    if number < _FEW or len(laws) < 2:
        return list(laws)
    variances = [_variance(law) for law in laws]
    most = sorted(variances)[-_TRIED:]
    best = max(_NEARLY * most[-1], most[0])
    return [
        law
        for law, variance in zip(laws, variances)
        if variance >= best or _is_shown(law, unit.log_inverse_mass)
    ]


def _variance(law: LabelLaws) -> float:
    """Of a step, without labels that nobody else ever shows."""
    apart, others = _steps(law)
    seen = others > _NEVER
    return float(np.sum(np.square(apart[seen]) / others[seen]))


def _steps(law: LabelLaws) -> tuple[np.ndarray, np.ndarray]:
    apart = np.asarray(law.target) - np.asarray(law.other) if law.apart is None else np.asarray(law.apart)
    return apart, np.asarray(law.other if law.others is None else law.others)


def _is_shown(law: LabelLaws, log_inverse_mass: float) -> bool:
    """True if the record is shown by labels that nobody else ever shows, and often enough to matter."""
    apart, others = _steps(law)
    return float(np.sum(apart[(others <= _NEVER) & (apart > 0.0)])) > math.exp(_MATTERS - log_inverse_mass)


def _of_law(unit: Unit, law: LabelLaws) -> list[Instance]:
    """Messages of this law, wherever the client's message hides."""
    mass, profile = unit.log_inverse_mass, LabelProfile(law)
    company, hiding = populations.crowd(unit), _hiding(unit)
    if company is not None:
        return [UnequalMessagesOfOne(company.rate, company.theirs, mass, law)]
    if isinstance(hiding, Shuffled):
        return [
            LabelMessages(HiddenMessages(hiding.num_clients, hiding.rate, profile, mass), law),
        ]
    if isinstance(hiding, Slots):
        return [LabelMessages(HiddenSlots(hiding.slots, hiding.seen, profile, mass), law)]
    if isinstance(hiding, Occupied):
        return _by_number(hiding, law, mass)
    shown = _shown(unit)
    return [] if shown is None else [LabelMessages(HiddenSlots(*shown, profile, mass), law)]


def _by_number(hiding: Occupied, law: LabelLaws, mass: float) -> list[Instance]:
    """Messages of as many occupied slots as there are, some of which are forgotten."""
    clients, profile = hiding.num_clients, LabelProfile(law)
    few, _ = occupancy.levels(clients, hiding.num_slots, hiding.prob, mass, False)
    parts = tuple(
        (weight * (1.0 - 2e-9), LabelMessages(HiddenSlots(number, number / clients, profile, mass), law))
        for number, weight in few
        if number > 0 and weight > 0.0
    )
    return [MessagesByNumber(parts)] if parts else []


def _shown(unit: Unit) -> tuple[int, float] | None:
    """Common slots of clients of unequal rates, empty ones visible, as `builders.slots_shown` has them."""
    throws, shown = unit.protocol.used_crowd, unit.slots
    if throws is None or shown is None or not unit.replaced:
        return None
    company = populations.company(unit, throws.coins, throws.num_clients, 1.0)
    return None if company is None else populations.slots_shown(throws, company, shown.seen)


def _of_gaussians(unit: Unit) -> list[Instance]:
    """Gaussian messages where rates differ: all others at one of the two records."""
    mu, mass = unit.randomizer.gaussian_mu, unit.log_inverse_mass
    if mu is None or not SMALL_MU <= mu <= MOST_SHIFT:
        return []
    company = populations.crowd(unit)
    if company is not None:
        return [UnequalMessagesOfOne(company.rate, company.theirs, mass, mu)]
    shown = None if unit.slots is None or unit.slots.hidden else _shown(unit)
    if shown is None or unit.summed_slots:
        return []
    messages = HiddenSlots(*shown, GaussianProfile(mu), mass)
    return [GaussianMessages(messages, messages, mu)]
