"""Stop-loss transforms of a term a - c b, a and b the likelihood ratios of two opposite Gaussian records over zero.

With nu = mu/2 and W standard normal, a = e^{nu W - nu^2/2} and b = e^{-nu W - nu^2/2}: the records are at distance mu,
each at mu/2 from the dummy whose place they take. No other two records in that ball do worse
[docs/theory_allocation.md, section 2a]. Host code, numpy float64.
"""

from __future__ import annotations

import numpy as np
import scipy

# Relative error of each of the three terms, at w: of ndtr itself, and of its argument's rounding; and of the sum that
# the level is, relative to its parts.
_NDTR, _ARGUMENT, _LEVEL = 2e-14, 1e-15, 4e-16


def transform(mu: float, c: np.ndarray | float, k: np.ndarray, below: bool) -> np.ndarray:
    """E(d - k)_+ of d = (a - 1) - c (b - 1), or E(-d - k)_+ if `below`; k >= 0, rounded up.

    Args:
      mu: > 0. c: >= 1, broadcast against k.
    """
    nu, level = 0.5 * mu, (1.0 - c - k) if below else (1.0 - c + k)
    # a - c b = level at W = at, by the root of u^2 - q u - c, u = e^{nu W}, that is positive.
    q = level * np.exp(0.5 * nu * nu)
    root = np.sqrt(q * q + 4.0 * c)
    positive = 0.5 * (np.abs(q) + root)
    at = np.log(np.where(q >= 0.0, positive, c / positive)) / nu
    side = -1.0 if below else 1.0
    beyond = scipy.special.ndtr(-side * at)
    terms = (
        scipy.special.ndtr(side * (nu - at)),
        -c * scipy.special.ndtr(side * (-nu - at)),
        -level * beyond,
    )
    wrong = (_NDTR + _ARGUMENT * np.square(np.abs(at) + nu)) * sum(np.abs(term) for term in terms)
    wrong += _LEVEL * (c + k) * beyond
    return np.maximum(side * sum(terms), 0.0) + wrong
