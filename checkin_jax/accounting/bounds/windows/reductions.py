"""Reductions of a window, or of its sums, to one message in a uniform one of m equal and independent Gaussian terms.

In the view "aggregate" sums of `minibatch` successive slots are observed. A sum of b Gaussian messages is Gaussian. A
client moves its mean by at most mu/sqrt(b) standard deviations, in whichever of its slots. The contributions of several
slots of one sum are at most comonotone. Proof: docs/theory_allocation.md, 5.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.numerics.counts import occupancy

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
