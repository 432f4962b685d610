"""Privacy profile of a sum of Laplace messages: the noise of all of them hides one [docs/theory_mechanisms.md, 7].

The sum X of k Laplace variables of scale 1 is the difference of two gamma variables. Of 2 k exponential times in turn
i are left on one side with probability w_i when the other side is done, so that X > x has the probability
sum_{j < k} (w_{j+1} + ... + w_k) e^-x x^j/j!, x >= 0. NumPy float64.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used

# More terms count as so many. Thresholds below twice the length of the interval, and above it.
MOST_TERMS, _NEAR, _FAR = 256, 120, 500
# Largest epsilon0 for which sums tell less than messages do.
MOST_SCALES = 50.0
# -log of the least tail, relative error of tails and densities, and least relative distance of knots.
_BEYOND, ERROR, _APART = 75.0, 1e-11, 1e-8


class Thresholds(NamedTuple):
    """Thresholds of a sum moved by epsilon0, or not, from epsilon0/2 on: likelihood ratios, and tails of either law."""

    ratios: np.ndarray
    moved: np.ndarray
    still: np.ndarray


def laplace_sum(number: int, epsilon0: float) -> tuple[np.ndarray, np.ndarray]:
    """(losses, upper bounds on the profile at them) of a sum of k Laplace messages of an interval.

    Between losses the profile is below its chord in e^loss. It is zero at the last one, epsilon0.

    Args:
      number: k, from 1. epsilon0: length of the interval in scales of the noise.
    """
    ratios, moved, still = thresholds(min(number, MOST_TERMS), epsilon0)
    # Half-lines are the best events. A ratio that is a little off has nearly the same best threshold.
    values = moved - ratios * still + ERROR * (moved + 2.0 * ratios * np.append(1.0, still[:-1]))
    return np.append(np.log(ratios), epsilon0), np.append(values, 0.0)


@functools.lru_cache(maxsize=512)
def thresholds(number: int, epsilon0: float) -> Thresholds:
    """Thresholds of increasing ratios; number: k, at most `MOST_TERMS`. Relative errors are at most `ERROR`."""
    k, d = number, epsilon0
    left = np.arange(1.0, k + 1.0)
    logs = scipy.special.gammaln
    weights = np.exp(
        logs(2.0 * k - left) - logs(float(k)) - logs(k - left + 1.0) - (2.0 * k - left) * np.log(2.0)
    )
    farthest = 1.2 * np.sqrt(4.0 * k * _BEYOND) + _BEYOND + d
    at = np.concatenate([np.linspace(0.5 * d, 2.0 * d, _NEAR), np.linspace(2.0 * d, farthest, _FAR)[1:]])

    def law(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(density at x, probability of more than x)."""
        far, j = np.abs(x)[:, None], left - 1.0
        poisson = np.exp(scipy.special.xlogy(j, far) - far - logs(left))
        tail = poisson @ np.cumsum(weights[::-1])[::-1]
        return poisson @ weights, np.where(x < 0.0, 1.0 - tail, tail)

    (moved, more), (still, beyond) = law(at - d), law(at)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(more > np.exp(-_BEYOND), moved / still, np.inf)
    ratios[0] = 1.0
    best = np.maximum.accumulate(ratios)
    increasing = (best[1:] > best[:-1] * (1.0 + _APART)) & (ratios[1:] < np.exp(d) * (1.0 - _APART))
    # However short the interval is, there is the knot at loss zero.
    kept = np.append(True, increasing)
    return Thresholds(ratios[kept], more[kept], beyond[kept])
