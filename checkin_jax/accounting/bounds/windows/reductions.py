"""Where one client's message may be: ways to look at its slots, or at their sums, as equal and independent terms.

In the view "aggregate" the server shows sums of `minibatch` successive slots. A sum of b Gaussian messages is one
Gaussian whose mean a client moves by mu/sqrt(b) standard deviations at most, wherever in it the client is; what several
slots of one sum contribute adds up to at most the sum of comonotone terms. Proof: docs/theory_allocation.md, section 5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from checkin_jax.accounting.bounds.windows.few_empty_slots import some_empty
from checkin_jax.numerics.counts import occupancy
from checkin_jax.protocols import Slots, Throws

# Visible slots: sums count as whole where a slot is empty with no more than this, as a share of exp(17 - mass).
_NEVER = 1e-3


class Sums(NamedTuple):
    """What leaves the server: sums of `size` successive slots, the last one of `short` if that is not 0."""

    size: int
    short: int


class Way(NamedTuple):
    """The client is in one of `number` equal terms, with probability `used` in all; mu: the shift of a term.

    rest: the probability of a public event in which this is not so, counted as lost.
    left: (share of the client's slots, mu) of those that are in no such term; the equal terms have what remains.
    """

    number: int
    used: float
    mu: float
    rest: float = 0.0
    left: tuple[tuple[float, float], ...] = ()


def sums_of(slots: Slots, view: str) -> Sums:
    """The sums that the adversary sees: of one slot each but in the view "aggregate"."""
    size = slots.minibatch if view == "aggregate" else 1
    return Sums(size, slots.total % size)


def hidden_ways(slots: Slots, common: bool, sums: Sums, mu: float) -> list[Way]:
    """Dummies hidden: the client is in each of its slots with the same probability, whatever the others do.

    common: whether all clients have the same slots. The first looks at the sums themselves; another one, where sums and
    client do not begin and end together, at equal parts of them.
    """
    size, short = sums
    if size == 1:
        return [Way(slots.number, slots.used, mu)]
    # A client's slots fill whole sums, or more of them less: the fewer the worse.
    over = (slots.number - min(short, slots.number)) % size
    left = [(over, size), (min(short, slots.number), short)]
    whole = (slots.number - sum(count for count, _ in left)) // size
    shares = tuple((count / slots.number, mu / math.sqrt(of)) for count, of in left if count)
    found = [Way(whole, slots.used, mu / math.sqrt(size), left=shares)]
    if shares:
        # A sum of b is as good as parts that divide its noise, the client in one of them.
        part = math.gcd(size, slots.number)
        if not common and short:
            part = 1
        found.append(Way(slots.number // part, slots.used, mu / math.sqrt(part)))
    return found


def placed_ways(throws: Throws, hidden: bool, sums: Sums, mu: float, log_inverse_mass: float) -> list[Way]:
    """Common windows: the client takes the place of one of the others that are used, if not all clients are."""
    n, m, prob = throws
    size, short = sums
    most, rest = occupancy.most(n, m, prob, log_inverse_mass)
    if size > 1 and not hidden:
        # Only messages that are there bring noise.
        empty = some_empty(n + 1, m, prob)
        if empty > _NEVER * math.exp(17.0 - log_inverse_mass):
            size, short = 1, 0
        else:
            rest += empty
    whole = -(-min(most, m - short) // size)
    places = whole * size + short
    found = [Way(whole, places / n, mu / math.sqrt(size), rest)]
    if short:
        found[0] = found[0]._replace(left=((short / places, mu / math.sqrt(short)),))
        part = math.gcd(size, m)
        number = -(-most // part)
        found.append(Way(number, number * part / n, mu / math.sqrt(part), rest))
    return [way for way in found if way.used < 1.0]
