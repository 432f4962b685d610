"""An instant stand-in for the accountant, where a test is not about numbers of privacy."""

from __future__ import annotations

from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import REPLACE

_FACTORS = {"local": 3e-3, "messages": 2e-3, "aggregate": 1e-3}


def quick_account(
    protocol, randomizer, *, delta, view="messages", bounds="best", neighboring_relation=REPLACE
) -> Guarantee:
    """A guarantee that grows with the rounds and differs from view to view, of no meaning."""
    epsilon = _FACTORS[view] * protocol.repeats
    common = {"delta": delta, "view": view, "method": "none", "lower_method": "none", "assumptions": ()}
    about = {"protocol": protocol, "randomizer": randomizer, "neighboring_relation": neighboring_relation}
    return Guarantee(epsilon=epsilon, lower=epsilon / 2, **about, **common)
