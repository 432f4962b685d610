"""Numbers that binomial laws seldom exceed or fall short of, by Chernoff's bound. Host code, numpy float64."""

from __future__ import annotations

import numpy as np

from checkin_jax.kernels import binomial

_HALVINGS = 80


def fewest(number: np.ndarray | float, prob: float, exponents: np.ndarray) -> np.ndarray:
    """v with Pr[Bin(number, prob) < v] <= exp(-exponent), whole numbers; broadcast."""
    number, exponents = np.broadcast_arrays(np.asarray(number, dtype=np.float64), exponents)
    low = _seldom(number, prob, exponents, np.full(number.shape, -1.0))
    return np.where(number > 0.0, np.floor(low) + 1.0, 0.0)


def most(number: np.ndarray | float, prob: float, exponents: np.ndarray) -> np.ndarray:
    """v with Pr[Bin(number, prob) > v] <= exp(-exponent), whole numbers; broadcast.

    Sums of negatively associated indicators of this probability are no heavier, by the same bound.
    """
    number, exponents = np.broadcast_arrays(np.asarray(number, dtype=np.float64), exponents)
    return np.minimum(np.ceil(_seldom(number, prob, exponents, number)), number)


def _seldom(number: np.ndarray, prob: float, exponents: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The point between `end`, at or beyond the last number, and the mean from which on the bound is small enough."""
    seldom, often = end, number * prob
    for _ in range(_HALVINGS):
        # No whole number is left between them.
        if np.all((np.ceil(seldom) == np.ceil(often)) & (np.floor(seldom) == np.floor(often))):
            break
        middle = 0.5 * (seldom + often)
        enough = np.asarray(binomial.log_chernoff(middle, np.maximum(number, 1.0), prob)) <= -exponents
        seldom, often = np.where(enough, middle, seldom), np.where(enough, often, middle)
    return seldom
