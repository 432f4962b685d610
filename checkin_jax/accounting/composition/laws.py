"""Laws of a unit's privacy loss: rounded up, from the bounds on its profiles, and down, from events of a witness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.interface import Minimum, UnitBound, Values, is_asymmetric, upper_sides
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.numerics import convex

# Events of less mass count with this one.
_LEAST_MASS = 1e-300


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


def side_below(difference: Values, far_mass: Values) -> tuple[Array, pld.Side]:
    """Losses and the side of the highest of the lines P(A) - c Q(A) at every c >= 1; A: events.

    difference, far_mass: P(A) - Q(A), rounded down, and Q(A), rounded up, [events].
    """
    apart, mass = np.asarray(difference), np.maximum(np.asarray(far_mass), _LEAST_MASS)
    known = apart > 0.0
    order = np.lexsort((apart[known], mass[known]))
    apart, mass = (np.append(0.0, part[known][order]) for part in (apart, mass))
    # Events of more mass that are less apart are below others everywhere, and so are all within the hull.
    rising = np.append(True, apart[1:] > np.maximum.accumulate(apart)[:-1])
    apart, mass = apart[rising], mass[rising]
    last = np.append(mass[1:] > mass[:-1], True)
    apart, mass = apart[last], mass[last]
    corners = convex.hull(mass, -apart)
    gained, far = np.diff(apart[corners])[::-1], np.diff(mass[corners])[::-1]
    losses = np.append(0.0, np.log1p(gained / far))
    return host(losses), pld.Side(host(gained + far), host(far), host(apart[-1]), host(0.0))


def law_below(ahead: tuple[Array, pld.Side], behind: tuple[Array, pld.Side]) -> pld.Atoms:
    """Law of the loss under P from `side_below` of P||Q and of Q||P."""
    return pld.join(ahead[0], ahead[1], behind[1], False, behind[0])
