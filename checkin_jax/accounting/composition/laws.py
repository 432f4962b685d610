"""Laws of a unit's privacy loss, rounded up, from the upper bounds on its two profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkin_jax.accounting.bounds.interface import Minimum, UnitBound, Values, is_asymmetric, upper_sides
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.numerics import convex


def sides_above(one: UnitBound, losses: np.ndarray) -> tuple[pld.Side, pld.Side]:
    """Sides of P||Q and Q||P on knots 0 = l_0 < l_1 < ..., lowered by each other; one object if undirected."""
    return _sides(losses, *upper_sides(one, losses))


def _sides(losses: np.ndarray, forward: Values, backward: Values) -> tuple[pld.Side, pld.Side]:
    symmetric = backward is forward
    forward, backward = convex.lowered(losses, np.asarray(forward), np.asarray(backward))
    plus = pld.side_upper(host(losses), host(forward))
    return plus, plus if symmetric else pld.side_upper(host(losses), host(backward))


def laws_above(one: UnitBound, losses: np.ndarray) -> list[pld.Atoms]:
    """Laws of the loss as P||Q and, if `one` is asymmetric, as Q||P."""
    return _laws(losses, sides_above(one, losses), is_asymmetric(one))


def laws_of_some(one: Minimum, which: Sequence[int], losses: np.ndarray) -> list[pld.Atoms]:
    """`laws_above` by some of the bounds of a `Minimum`."""
    values = one.values(losses)[list(which)].min(axis=0)
    return _laws(losses, _sides(losses, values[0], values[-1]), one.asymmetric)


def _laws(losses: np.ndarray, sides: tuple[pld.Side, pld.Side], asymmetric: bool) -> list[pld.Atoms]:
    orders = [sides, sides[::-1]] if asymmetric else [sides]
    return [pld.join(host(losses), *each, True) for each in orders]
