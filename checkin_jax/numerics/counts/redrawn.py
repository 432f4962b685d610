"""T2d: shares of a client's message in its window's slots if the label of its own slot is drawn anew.

Every client has a key; a slot shows the client with the smallest one. Given the labels of all other slots the target
would be shown in slot s with probability W_s <= (1 - e^(-G))/G, G the sum of 1/(1 + S_i) over the clients i that may
be in s and are drawn nowhere else, S_i the sum of 1 - key drawn over the other slots of i's window. In a slot with a
colluder, if an honest client is there, W_s <= 1/G. Tails of these sums are Chernoff's, by negative association
[docs/theory_hexagon.md, section 5]. NumPy float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax.numerics.counts import chernoff, occupancy

# Error of a logarithm of a moment, at most, for each of the factors.
_ERROR = 2e-14
# Arguments of moments, relative to sqrt(x / m), and the largest; numbers of exponents x.
_ARGUMENTS, _MOST_ARGUMENT, _EXPONENTS = np.geomspace(0.5, 8.0, 60), 0.4, 90
# Levels: -log of the mass beyond.
_LEVELS = (0.7, 1.2, 2.0, 3.2, 5.0, 8.0, 12.0, 18.0, 26.0)
# Mean excesses allowed, in units of m^(-1/2); numbers of bounds on a share.
_EXCESS, _SHARES = np.geomspace(0.01, 2.0, 24), 1500
# Fewest heavy slots, whose steps have stages, and fewest clients for which the tails are small.
_FEWEST, SMALLEST = 34.0, 400
# Largest load of common slots: beyond, nearly all show an honest message, and T2' is as small.
_MOST_LOAD = 20.0


class Redrawn(NamedTuple):
    """Levels: masses of the labels; the target's share is `heavy` in `whole` slots, `share` in others, else 0.

    A level is as large as the largest of its cells: T from below and the number of slots of this share, from above,
    both [levels, cells]. heavy, whole: [levels]; without colluders `heavy` is 1. lost: mass of the labels at no level,
    times the largest sum of shares that it may have.
    """

    masses: np.ndarray
    shares: np.ndarray
    totals: np.ndarray
    numbers: np.ndarray
    heavy: np.ndarray
    whole: np.ndarray
    lost: float


def _largest(log_moment: Callable[[np.ndarray], np.ndarray], factors: float, x: np.ndarray) -> np.ndarray:
    """Numbers that a sum exceeds with probability e^-x at most; log_moment: of the sum, `factors` factors."""
    t = np.minimum(_ARGUMENTS * np.sqrt(x[:, None] / factors), _MOST_ARGUMENT)
    return ((log_moment(t) + factors * _ERROR + x[:, None]) / t).min(axis=1)


def _key_left(t: np.ndarray, rate: float) -> np.ndarray:
    """log E e^(t (1 - E)), E the smaller of 1 and an exponential variable of this rate."""
    more = np.where(rate + t == 0.0, 1e-300, rate + t)
    return np.log1p(rate * np.expm1(more) / more) - rate


class _Tails(NamedTuple):
    """Bounds at every exponent x: each holds but for probability e^-x.

    fewest, most: number of the clients in L_s. low, high: S_i.
    """

    x: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _tails(window: int, largest: float, colluding: int = 0) -> _Tails | None:
    """Tails if so many of the clients that may be in a slot collude; None for too many."""
    m, honest = float(window), window - 1.0 - colluding
    x = np.geomspace(0.25, largest, _EXPONENTS)
    if honest < 1.0:
        return None
    # Probability that a client is drawn in another slot, from above and from below.
    often, seldom = ((1.0 - m) * np.expm1(n * np.log1p(-1.0 / m)) / n for n in (honest, m))
    if often * np.expm1(_MOST_ARGUMENT) > _MOST_ARGUMENT:
        return None
    # The 2 m slots in which one of L_s may be drawn count as alike.
    drawn = _largest(lambda t: 2.0 * m * np.log1p(0.5 * honest / m * often * np.expm1(t)), 2.0 * m, x)
    least = -_largest(lambda t: 2.0 * (m - 1.0) * np.log1p(0.5 * seldom * np.expm1(-t)), 2.0 * m, x)
    high = _largest(lambda t: (m - 1.0) * _key_left(t, -m * np.log1p(-1.0 / m)), m, x)
    low = -_largest(lambda t: (m - 1.0) * _key_left(-t, honest / m), m, x)
    return _Tails(x, honest - drawn, m - 1.0 - least, low, high)


def _share(number: np.ndarray) -> np.ndarray:
    """(1 - e^-x)/x."""
    return -np.expm1(-number) / number


def excesses(window: int, tails: _Tails, shares: np.ndarray) -> np.ndarray:
    """E(W_s - a)_+ from above at every share a."""
    kept = tails.fewest >= 1.0
    x, fewest, high = tails.x[kept], tails.fewest[kept], tails.high[kept]
    reached = np.minimum(np.maximum.accumulate(_share(fewest / (1.0 + high))) * (1.0 + 1e-13), 1.0)
    beyond = np.minimum(np.exp(-x) * (1.0 + (window - 1.0) / fewest), 1.0)
    ends = np.maximum(np.append(reached, 1.0), shares[:, None])
    return (np.maximum(ends[:, 0] - shares, 0.0) + np.diff(ends) @ beyond) * (1.0 + 1e-12)


def shortfalls(window: int, tails: _Tails, shares: np.ndarray) -> np.ndarray:
    """E(a - W_s)_+ from above at every share a."""
    kept = (tails.fewest >= 1.0) & (tails.low > 0.0)
    x, fewest, most, low = (each[kept] for each in (tails.x, tails.fewest, tails.most, tails.low))
    # A tangent of (1 - e^-x)/x is below it.
    slope, ratio = 2.0 * np.exp(-1.0) - 1.0, most / low
    reached = np.minimum.accumulate(_share(np.ones(1)) + slope * (ratio - 1.0)) * (1.0 - 1e-13)
    beyond = np.minimum(np.exp(-x) * (2.0 + (window - 1.0) / fewest), 1.0)
    ends = np.minimum(reached, shares[:, None])
    near = np.maximum(shares - ends[:, 0], 0.0) - np.diff(ends) @ beyond[:-1]
    return (near + shares * min(window * np.exp(-x[-1]), 1.0)) * (1.0 + 1e-12)


def _bounded(shares: np.ndarray, means: np.ndarray, size: float, masses: np.ndarray) -> np.ndarray:
    """The first share, level by level, whose mean excess is at most size times mass (Markov); NaN if there is none."""
    enough = means[None, :] <= size * masses[:, None]
    return np.where(enough.any(axis=1), shares[np.argmax(enough, axis=1)], np.nan)


def redrawn(slots: int, window: int, neg_log_tail: float, cells: int, colluding: int = 0) -> Redrawn | None:
    """Levels for `slots` successive slots of a window, all other clients being there; None for small windows.

    Args:
      neg_log_tail: the lost mass is about exp(-neg_log_tail). cells: of each level.
      colluding: number of all colluders, from above. One may be in each of these slots; none of them hides anybody,
        wherever it is.
    """
    tails = (
        _tails(window, 2.0 * np.log(window) + neg_log_tail + 20.0, colluding) if window >= SMALLEST else None
    )
    if tails is None:
        return None
    m, use, known = float(window), slots / window, min(colluding, slots)
    others, honest = slots - known, m - 1.0 - colluding
    exponents = np.array([*(each for each in _LEVELS if each < neg_log_tail), neg_log_tail])
    # Each event of a level has this probability.
    events = 7.0 if known else 3.0
    seldom, unit = np.exp(-exponents) / events, 1.0 / np.sqrt(m)

    def keys(t: np.ndarray) -> np.ndarray:
        return slots * (t + _key_left(-t, honest / m))

    drawn = _largest(keys, float(slots), exponents + np.log(events)) / slots
    beside = _shown_beside(tails, known, window, honest, exponents + np.log(events))
    if not np.isfinite(beside.share).all():
        return None
    middle = -np.expm1(-1.0)
    away = np.geomspace(0.01 * unit, middle, _SHARES)
    low, high = middle - away, middle + away[away < 1.0 - middle]
    excess, shortfall = excesses(window, tails, high), shortfalls(window, tails, low)
    least = [_bounded(low, shortfall, size * unit, seldom) - size * unit for size in _EXCESS]
    lowest = np.nanmax(np.stack([np.zeros(seldom.size), *least]), axis=0)

    beyond, best = np.append(1.0, np.exp(-exponents)), None
    masses = -np.diff(beyond)
    for size in _EXCESS * unit:
        share = _bounded(high, excess, size, seldom)
        if not np.isfinite(share).all():
            continue
        ones = size / (1.0 - share) * (1.0 + 1e-12)
        whole = np.ceil(others * ones) + beside.most
        # The mean share is in one of the cells.
        edges = np.linspace(lowest, share + size, cells + 1, axis=1)
        totals = 1.0 + (others * edges[:, :-1] + (beside.least - slots * drawn)[:, None]) / m
        totals = totals - 1e-13 * (1.0 + use)
        numbers = np.ceil(others * (edges[:, 1:] - ones[:, None]) / share[:, None] * (1.0 + 1e-13))
        whole, numbers = np.maximum(whole, _FEWEST), np.maximum(numbers, 0.0)
        if totals.min() < 0.3 or (others * ones).max() > 0.5 * slots:
            continue
        lost = float(beyond[-1]) * (1.0 + float(beside.share[-1]) if known else 1.0)
        found = Redrawn(masses, share, totals, numbers, beside.share, whole, lost)
        if best is None or spread(found, slots) < spread(best, slots):
            best = found
    return best


def in_common_slots(
    others: int, slots: int, prob: float, neg_log_tail: float, colluding: int
) -> Redrawn | None:
    """Levels of one cell for common slots with colluders; None where none are known.

    Shares depend on the labels by two sums: of names, and of keys. So all slots but the heavy ones have the same bound.

    Args:
      others: number of honest clients besides the target. prob: of each of them to take part.
      neg_log_tail: the lost mass is about exp(-neg_log_tail). colluding: number of colluders, each in its own slot.
    """
    known = min(colluding, slots)
    if not 0 < known < slots or not 0 < others * prob <= _MOST_LOAD * slots:
        return None
    m, each = float(slots), prob / slots
    exponents = np.array([*(level for level in _LEVELS if level < neg_log_tail), neg_log_tail])
    # Each of six events of a level has this probability.
    seldom = exponents + np.log(6.0)
    mean, variance = occupancy.moments(float(others), m, prob)
    away = np.array([occupancy.deviation(variance, level) for level in seldom]) + 1e-12 * mean
    named = np.minimum(np.ceil(mean + away), min(others, slots))
    fewest, most = others - named, others - np.maximum(np.floor(mean - away), 0.0) + 1.0
    # Sums of 1 - key over all slots, the time that others do not take part counted likewise.
    absent, often = m * (1.0 - prob) / prob, -others * np.log1p(-each)
    keys = np.maximum(-_largest(lambda t: m * _key_left(-t, others * each), m, seldom), 0.0)
    high = absent + np.minimum(_largest(lambda t: m * _key_left(t, often), m, seldom), named)
    low = np.maximum(absent + keys - 1.0, 0.0) * (1.0 - 1e-13)
    if fewest[-1] < 1.0:
        return None
    share = np.minimum(_share(fewest / (1.0 + high)) * (1.0 + 1e-13), 1.0)
    heavy = np.maximum((1.0 + high) / fewest * (1.0 + 1e-13), share)
    shown = -np.expm1(-often)
    whole = chernoff.most(float(known), min(shown * (1.0 + 1e-12), 1.0), seldom)
    least = chernoff.fewest(float(known), shown * (1.0 - 1e-12), seldom) * low / most
    even = _share(most / np.maximum(low, 1e-300)) * (1.0 - 1e-9)
    totals = 1.0 + each * ((m - known) * even + least - m + keys) - 1e-12
    if totals.min() < 0.3:
        return None
    beyond = np.append(1.0, np.exp(-exponents))
    numbers = np.full((exponents.size, 1), m - known)
    lost = float(beyond[-1] * (1.0 + heavy[-1]))
    return Redrawn(-np.diff(beyond), share, totals[:, None], numbers, heavy, np.maximum(whole, _FEWEST), lost)


class _ShownBeside(NamedTuple):
    """Slots with a colluder in which an honest client is shown, level by level.

    most: their number, from above. share: the target's in each, from above, 1 at least. least: sum of the target's
    shares there, from below.
    """

    most: np.ndarray
    share: np.ndarray
    least: np.ndarray


def _shown_beside(
    tails: _Tails, known: int, window: int, honest: float, exponents: np.ndarray
) -> _ShownBeside:
    """Bounds each of which fails with probability e^-exponent at most; known: number of slots with a colluder."""
    if not known:
        return _ShownBeside(0.0 * exponents, np.ones(exponents.size), 0.0 * exponents)
    m = float(window)
    often, seldom = (-np.expm1(n * np.log1p(-1.0 / m)) for n in (m, honest))
    most = _largest(lambda t: known * np.log1p(often * np.expm1(t)), float(known), exponents)
    least = -_largest(lambda t: known * np.log1p(seldom * np.expm1(-t)), float(known), exponents)
    # In every slot, and for each of the clients that may be there.
    at = np.searchsorted(tails.x, exponents + np.log(known * (m + 1.0)))
    with np.errstate(divide="ignore"):
        share = np.where(tails.fewest > 0.0, (1.0 + tails.high) / tails.fewest, np.inf)[at]
    lowest = np.maximum(tails.low, 0.0)[at] / tails.most[at] * (1.0 - 1e-13)
    return _ShownBeside(
        np.minimum(np.ceil(most), known),
        np.maximum(share * (1.0 + 1e-13), 1.0),
        np.maximum(least, 0.0) * lowest,
    )


def spread(found: Redrawn, slots: int) -> float:
    """Variance of the sum of the steps over that of `slots` of weight one, in units of T."""
    whole = np.square(found.heavy) * found.whole
    squares = whole[:, None] + np.square(found.shares)[:, None] * found.numbers
    return float(found.masses @ (squares / np.square(found.totals)).max(axis=1)) / slots + found.lost
