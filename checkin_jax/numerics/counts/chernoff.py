"""Quantiles of binomial laws from Chernoff's bound. NumPy float64."""

from __future__ import annotations

import numpy as np

from checkin_jax.kernels import binomial

_HALVINGS = 80


def fewest(number: np.ndarray | float, prob: float, exponents: np.ndarray) -> np.ndarray:
    """Whole v with Pr[Bin(number, prob) < v] <= exp(-exponent); broadcasts."""
    number, exponents = np.broadcast_arrays(np.asarray(number, dtype=np.float64), exponents)
    low = _seldom(number, prob, exponents, np.full(number.shape, -1.0))
    return np.where(number > 0.0, np.floor(low) + 1.0, 0.0)


def most(number: np.ndarray | float, prob: float, exponents: np.ndarray) -> np.ndarray:
    """Whole v with Pr[Bin(number, prob) > v] <= exp(-exponent); broadcasts.

    The bound also holds for sums of negatively associated indicators of this probability.
    """
    number, exponents = np.broadcast_arrays(np.asarray(number, dtype=np.float64), exponents)
    return np.minimum(np.ceil(_seldom(number, prob, exponents, number)), number)


def _seldom(number: np.ndarray, prob: float, exponents: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Point between the mean and `end` from which on Chernoff's bound is at most exp(-exponent)."""
    seldom, often = end, number * prob
    for _ in range(_HALVINGS):
        # No whole number lies between them.
        if np.all((np.ceil(seldom) == np.ceil(often)) & (np.floor(seldom) == np.floor(often))):
            break
        middle = 0.5 * (seldom + often)
        enough = np.asarray(binomial.log_chernoff(middle, np.maximum(number, 1.0), prob)) <= -exponents
        seldom, often = np.where(enough, middle, seldom), np.where(enough, often, middle)
    return seldom
