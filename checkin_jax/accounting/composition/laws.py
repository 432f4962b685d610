"""Laws of a unit's privacy loss from above, made of the bounds on both of its profiles."""

from __future__ import annotations

import numpy as np

from checkin_jax.accounting.bounds.unit import Directed, UnitBound, upper_sides
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.numerics import convex


def sides_above(one: UnitBound, losses: np.ndarray) -> tuple[pld.Side, pld.Side]:
    """P||Q and Q||P on knots 0 = l_0 < l_1 < ..., lowered by each other; one object where `one` is not directed."""
    forward, backward = upper_sides(one, losses)
    alike = backward is forward
    forward, backward = convex.lowered(losses, np.asarray(forward), np.asarray(backward))
    plus = pld.side_upper(host(losses), host(forward))
    return plus, plus if alike else pld.side_upper(host(losses), host(backward))


def laws_above(one: UnitBound, losses: np.ndarray) -> list[pld.Atoms]:
    """The laws of the loss as P||Q and, where `one` is directed, as Q||P."""
    plus, minus = sides_above(one, losses)
    orders = [(plus, minus), (minus, plus)] if isinstance(one, Directed) else [(plus, minus)]
    return [pld.join(host(losses), *sides, True) for sides in orders]
