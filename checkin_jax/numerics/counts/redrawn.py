"""T2d: shares of a client's message in its window's slots if the label of its own slot is drawn anew.

Every client has a key; a slot shows the client with the smallest one. Given the labels of all other slots the target
would be shown in slot s with probability W_s <= (1 - e^(-G))/G, G the sum of 1/(1 + S_i) over the clients i that may
be in s and are drawn nowhere else, S_i the sum of 1 - key drawn over the other slots of i's window. Tails of these
sums are Chernoff's, by negative association [docs/theory_hexagon.md, section 5]. NumPy float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Error of a logarithm of a moment, at most, for each of the factors.
_ERROR = 2e-14
# Arguments of moments, relative to sqrt(x / m), and numbers of exponents x.
_ARGUMENTS, _EXPONENTS = np.geomspace(0.5, 8.0, 60), 90
# Levels: -log of the mass beyond.
_LEVELS = (0.7, 1.2, 2.0, 3.2, 5.0, 8.0, 12.0, 18.0, 26.0)
# Mean excesses allowed, in units of m^(-1/2); numbers of bounds on a share.
_EXCESS, _SHARES = np.geomspace(0.01, 2.0, 24), 1500
# Fewest slots of weight one whose steps have stages, and fewest clients for which the tails are small.
_FEWEST, SMALLEST = 34.0, 400


class Redrawn(NamedTuple):
    """Levels: masses of the labels; the target's share is 1 in `whole` slots, `share` in some others, 0 in the rest.

    A level is as large as the largest of its cells: T from below and the number of slots of this share, from above,
    both [levels, cells]. lost: mass of the labels at no level. All levels have the same `whole`.
    """

    masses: np.ndarray
    shares: np.ndarray
    totals: np.ndarray
    numbers: np.ndarray
    whole: float
    lost: float


def _mean_log(y: np.ndarray) -> np.ndarray:
    """Integral of log(1 + y u) over u in [0, 1]."""
    return (1.0 + 1.0 / y) * np.log1p(y) - 1.0


def _largest(log_moment: Callable[[np.ndarray], np.ndarray], factors: float, x: np.ndarray) -> np.ndarray:
    """Numbers that a sum exceeds with probability e^-x at most; log_moment: of the sum, `factors` factors."""
    t = np.minimum(_ARGUMENTS * np.sqrt(x[:, None] / factors), 0.4)
    return ((log_moment(t) + factors * _ERROR + x[:, None]) / t).min(axis=1)


def _key_left(t: np.ndarray, rate: float) -> np.ndarray:
    """log E e^(t (1 - E)), E the smaller of 1 and an exponential variable of this rate; t > -rate."""
    none = np.exp(-rate)
    return np.log(rate * (np.exp(t) - none) / (rate + t) + none)


class _Tails(NamedTuple):
    """Bounds at every exponent x: each holds but for probability e^-x.

    fewest, most: number of the clients in L_s. low, high: S_i.
    """

    x: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _tails(window: int, largest: float) -> _Tails:
    m = float(window)
    x = np.geomspace(0.25, largest, _EXPONENTS)
    filled, full = -np.expm1((m - 1.0) * np.log1p(-1.0 / m)), -np.expm1(m * np.log1p(-1.0 / m))
    crowded = _largest(lambda t: 2.0 * m * _mean_log(m / (m - 1.0) * filled * np.expm1(t)), 2.0 * m, x)
    alone = -_largest(lambda t: 2.0 * (m - 2.0) * _mean_log((m - 2.0) / m * full * np.expm1(-t)), 2.0 * m, x)
    high = _largest(lambda t: (m - 1.0) * _key_left(t, -m * np.log1p(-1.0 / m)), m, x)
    low = -_largest(lambda t: (m - 1.0) * _key_left(-t, (m - 1.0) / m), m, x)
    return _Tails(x, m - 1.0 - crowded, m - 1.0 - alone, low, high)


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


def redrawn(slots: int, window: int, neg_log_tail: float, cells: int) -> Redrawn | None:
    """Levels for `slots` successive slots of a window, all other clients being there; None for small windows.

    Args:
      neg_log_tail: the lost mass is about exp(-neg_log_tail). cells: of each level.
    """
    if window < SMALLEST:
        return None
    m, use = float(window), slots / window
    exponents = np.array([*(each for each in _LEVELS if each < neg_log_tail), neg_log_tail])
    thirds, unit = np.exp(-exponents) / 3.0, 1.0 / np.sqrt(m)
    tails = _tails(window, 2.0 * np.log(m) + neg_log_tail + 20.0)

    def keys(t: np.ndarray) -> np.ndarray:
        return slots * (t + _key_left(-t, (m - 1.0) / m))

    drawn = _largest(keys, float(slots), exponents + np.log(3.0)) / slots
    middle = -np.expm1(-1.0)
    away = np.geomspace(0.01 * unit, middle, _SHARES)
    low, high = middle - away, middle + away[away < 1.0 - middle]
    excess, shortfall = excesses(window, tails, high), shortfalls(window, tails, low)
    least = [_bounded(low, shortfall, size * unit, thirds) - size * unit for size in _EXCESS]
    lowest = np.nanmax(np.stack([np.zeros(thirds.size), *least]), axis=0)

    beyond, best = np.append(1.0, np.exp(-exponents)), None
    masses = -np.diff(beyond)
    for size in _EXCESS * unit:
        share = _bounded(high, excess, size, thirds)
        if not np.isfinite(share).all():
            continue
        ones = size / (1.0 - share) * (1.0 + 1e-12)
        whole = max(np.ceil(slots * float(ones[-1])), _FEWEST)
        # The mean share is in one of the cells.
        edges = np.linspace(lowest, share + size, cells + 1, axis=1)
        totals = (1.0 + use * (edges[:, :-1] - drawn[:, None])) * (1.0 - 1e-13)
        numbers = np.ceil(slots * (edges[:, 1:] - ones[:, None]) / share[:, None] * (1.0 + 1e-13))
        if totals.min() < 0.3 or whole > 0.5 * slots:
            continue
        found = Redrawn(masses, share, totals, np.maximum(numbers, 0.0), float(whole), float(beyond[-1]))
        if best is None or spread(found, slots) < spread(best, slots):
            best = found
    return best


def spread(found: Redrawn, slots: int) -> float:
    """Variance of the sum of the steps over that of `slots` of weight one, in units of T."""
    squares = found.whole + np.square(found.shares)[:, None] * found.numbers
    return float(found.masses @ (squares / np.square(found.totals)).max(axis=1)) / slots + found.lost
