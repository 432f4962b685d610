"""Stop-loss transforms of the term a - c b, where a and b are likelihood ratios of two opposite Gaussian
records over zero.

With nu = mu/2 and W standard normal, a = e^{nu W - nu^2/2} and b = e^{-nu W - nu^2/2}. The records are mu
apart, each mu/2 from the dummy that they replace. This pair is the worst one in the ball
[docs/theory_allocation.md, section 2a]. NumPy float64.
"""

from __future__ import annotations

import numpy as np
import scipy

# Relative error of ndtr, of the rounding of its argument, and of the level as a sum (relative to its parts).
_NDTR, _ARGUMENT, _LEVEL = 2e-14, 1e-15, 4e-16


def transform(mu: float, c: np.ndarray | float, k: np.ndarray, below: bool) -> np.ndarray:
    """Upper bound on E(d - k)_+, or on E(-d - k)_+ if `below`, for d = (a - 1) - c (b - 1) and k >= 0.

    Args:
      mu: > 0. c: >= 1, broadcast against k.
    """
    nu, level = 0.5 * mu, (1.0 - c - k) if below else (1.0 - c + k)
    # a - c b = level at W = at, from the positive root u = e^{nu W} of u^2 - q u - c.
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
