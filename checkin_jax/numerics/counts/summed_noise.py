"""Privacy profile of a sum of Laplace messages: the noise of all of them hides one [docs/theory_mechanisms.md, 7].

The sum X of k Laplace variables of scale 1 is the difference of two gamma variables. Of 2 k exponential times in turn
i are left on one side with probability w_i when the other side is done, so that X > x has the probability
sum_{j < k} (w_{j+1} + ... + w_k) e^-x x^j/j!, x >= 0. For many terms the density, a Bessel function of the order
k - 1/2, is evaluated by Debye's expansion and integrated. NumPy float64.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used

# More terms have Debye's expansion. Thresholds below twice the length of the interval, and above it.
_FEW_TERMS, _NEAR, _FAR = 256, 120, 500
# Nodes of a panel, and panels beyond the last threshold.
_NODES, _MORE = 8, 40
# Largest epsilon0 for which sums tell less than messages do.
MOST_SCALES = 50.0
# -log of the least tail, relative error of tails and densities, and least relative distance of knots.
_BEYOND, ERROR, _APART = 75.0, 1e-11, 1e-10


class Thresholds(NamedTuple):
    """Thresholds of a sum moved by epsilon0, or not, from epsilon0/2 on: likelihood ratios, and tails of either law."""

    ratios: np.ndarray
    moved: np.ndarray
    still: np.ndarray


class HalfLines(NamedTuple):
    """Events {X > s} of a sum X, moved by epsilon0 or not, s from epsilon0/2 on.

    Likelihood ratios at s, increasing; the difference of the probabilities, from below; both of them, from above.
    """

    ratios: np.ndarray
    apart: np.ndarray
    moved: np.ndarray
    still: np.ndarray


def laplace_sum(number: int, epsilon0: float) -> tuple[np.ndarray, np.ndarray]:
    """(losses, upper bounds on the profile at them) of a sum of k Laplace messages of an interval.

    Between losses the profile is below its chord in e^loss. It is zero at the last one, epsilon0.

    Args:
      number: k, from 1. epsilon0: length of the interval in scales of the noise.
    """
    ratios, moved, still = thresholds(number, epsilon0)
    # Half-lines are the best events. A ratio that is a little off has nearly the same best threshold.
    values = moved - ratios * still + ERROR * (moved + 2.0 * ratios * np.append(1.0, still[:-1]))
    return np.append(np.log(ratios), epsilon0), np.append(values, 0.0)


def half_lines(number: int, epsilon0: float) -> HalfLines:
    """Half-lines of a sum of k Laplace messages; arguments as of `laplace_sum`."""
    ratios, moved, still = thresholds(number, epsilon0)
    less, more = 1.0 - ERROR, 1.0 + ERROR
    return HalfLines(ratios, np.maximum(less * moved - more * still, 0.0), more * moved, more * still)


@functools.lru_cache(maxsize=512)
def thresholds(number: int, epsilon0: float) -> Thresholds:
    """Thresholds of increasing ratios; number: k. Relative errors are at most `ERROR`."""
    d, farthest = epsilon0, 1.2 * math.sqrt(4.0 * number * _BEYOND) + _BEYOND + epsilon0
    at = np.concatenate([np.linspace(0.5 * d, 2.0 * d, _NEAR), np.linspace(2.0 * d, farthest, _FAR)[1:]])
    law = _few if number <= _FEW_TERMS else _many
    (log_moved, more), (log_still, beyond) = law(number, at - d), law(number, at)
    with np.errstate(over="ignore", invalid="ignore"):
        ratios = np.where(more > math.exp(-_BEYOND), np.exp(log_moved - log_still), np.inf)
    ratios[0] = 1.0
    best = np.maximum.accumulate(ratios)
    increasing = (best[1:] > best[:-1] * (1.0 + _APART)) & (ratios[1:] < np.exp(d) * (1.0 - _APART))
    # However short the interval is, there is the knot at loss zero.
    kept = np.append(True, increasing)
    return Thresholds(ratios[kept], more[kept], beyond[kept])


def _few(number: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(logarithm of the density at x, probability of more than x) of few terms."""
    left, logs = np.arange(1.0, number + 1.0), scipy.special.gammaln
    weights = np.exp(
        logs(2.0 * number - left)
        - logs(float(number))
        - logs(number - left + 1.0)
        - (2.0 * number - left) * np.log(2.0)
    )
    far, j = np.abs(x)[:, None], left - 1.0
    poisson = np.exp(scipy.special.xlogy(j, far) - far - logs(left))
    tail = poisson @ np.cumsum(weights[::-1])[::-1]
    with np.errstate(divide="ignore"):
        return np.log(poisson @ weights), np.where(x < 0.0, 1.0 - tail, tail)


def _many(number: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`_few` of many terms; x: increasing, the last one so far out that little is beyond."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    ends = np.append(x, x[-1] + (x[-1] - x[-2]) * np.arange(1.0, _MORE + 1.0))
    half = 0.5 * np.diff(ends)
    inside = np.exp(_log_density(number, ends[:-1, None] + half[:, None] * (1.0 + nodes)))
    return _log_density(number, x), np.cumsum((half * (inside @ weights))[::-1])[::-1][: x.size]


def _log_density(number: int, x: np.ndarray) -> np.ndarray:
    """Logarithm of (|x|/2)^nu K_nu(|x|) / (sqrt(pi) Gamma(k)), nu = k - 1/2, for many terms [Olv54].

    Olver's bound on the remainder of four terms, the same for all x, is below 2e-13 [DLMF 10.41(iii)]; of three terms
    of Stirling's series less is left.
    """
    order = number - 0.5
    root = np.hypot(1.0, x / order)
    t, v = 1.0 / root, 1.0 / order
    t2, rise = t * t, np.square(x / order) / (1.0 + root)
    u4 = 4465125.0 - t2 * (94121676.0 - t2 * (349922430.0 - t2 * (446185740.0 - t2 * 185910725.0)))
    u3 = 30375.0 - t2 * (369603.0 - t2 * (765765.0 - t2 * 425425.0))
    u2, u1 = 81.0 - t2 * (462.0 - t2 * 385.0), 3.0 - 5.0 * t2
    vt = v * t
    series = -vt * (u1 / 24.0 - vt * (u2 / 1152.0 - vt * (u3 / 414720.0 - vt * u4 / 39813120.0)))
    at_zero = v * (1.0 / 24.0 - v * v * (7.0 / 2880.0 - v * v * 31.0 / 40320.0))
    falls = order * (rise - np.log1p(0.5 * rise)) + 0.5 * np.log(root)
    return at_zero - 0.5 * math.log(4.0 * math.pi * order) - falls + np.log1p(series)
