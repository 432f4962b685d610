"""From Renyi divergences to (epsilon, delta): [CKS20] in mpmath."""

from collections.abc import Sequence

import mpmath as mp

DIGITS = 50


def epsilon_at_order(order: float, rdp: float, delta: float) -> mp.mpf:
    """At one order > 1: rdp + [log(1/delta) + (l-1) log(1 - 1/l) - log l] / (l-1); may be negative."""
    with mp.workdps(DIGITS):
        l, divergence, mass = mp.mpf(order), mp.mpf(rdp), mp.mpf(delta)
        gap = l - 1
        return divergence + (-mp.log(mass) + gap * mp.log(gap / l) - mp.log(l)) / gap


def epsilon_from_rdp(orders: Sequence[float], rdp: Sequence[float], delta: float) -> mp.mpf:
    """The smallest of the orders' epsilons, at least 0."""
    return max(mp.mpf(0), min(epsilon_at_order(order, value, delta) for order, value in zip(orders, rdp)))
