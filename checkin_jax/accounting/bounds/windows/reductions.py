"""Reductions of a window, or of its sums, to one message in a uniform one of m equal and independent Gaussian terms.

In the view "aggregate" sums of `minibatch` successive slots are observed. A sum of b Gaussian messages is Gaussian. A
client moves its mean by at most mu/sqrt(b) standard deviations, in whichever of its slots. The contributions of several
slots of one sum are at most comonotone. Proof: docs/theory_allocation.md, 5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from checkin_jax.numerics.counts import occupancy
from checkin_jax.protocols import SlotChoices, Slots

# With visible slots, sums count as full if a slot is empty with probability below this share of exp(17 - mass).
_NEVER = 1e-3
# Numbers of used clients are told apart if that lowers the deviation by this factor.
_FEWER = 0.97


class Sums(NamedTuple):
    """Observed sums of `size` successive slots, the last one of `short` if that is not 0."""

    size: int
    short: int


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


def sums_of(slots: Slots, view: str) -> Sums:
    """Sums that the adversary observes: single slots, except in the view "aggregate"."""
    size = slots.minibatch if view == "aggregate" else 1
    return Sums(size, slots.total % size)


def hidden_reductions(slots: Slots, common: bool, sums: Sums, mu: float) -> list[Reduction]:
    """Reductions with hidden dummies: the target is equally likely in each of its slots, whatever the others do.

    common: True if all clients have the same slots. The first reduction uses the sums themselves. If sums and window
    are not aligned, a second one uses equal parts of them.
    """
    size, short = sums
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
        if not common and short:
            part = 1
        found.append(Reduction(slots.number // part, slots.use_prob, mu / math.sqrt(part)))
    return found


def displacing_reductions(
    choices: SlotChoices, hidden: bool, sums: Sums, mu: float, neg_log_tail: float
) -> list[Reduction]:
    """Reductions of common windows: the target displaces a used client; none if all clients are used."""
    n, m, prob = choices
    size, short = sums
    most, rest = occupancy.most(n, m, prob, neg_log_tail)
    if size > 1 and not hidden:
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
        return [way for way in found if way.use_prob < 1.0]
    whole = -(-min(most, m - short) // size)
    places = whole * size + short
    found = [Reduction(whole, places / n, mu / math.sqrt(size), rest)]
    if short:
        found[0] = found[0]._replace(left=((short / places, mu / math.sqrt(short)),))
        part = math.gcd(size, m)
        number = -(-most // part)
        found.append(Reduction(number, number * part / n, mu / math.sqrt(part), rest))
    return [way for way in found if way.use_prob < 1.0]
