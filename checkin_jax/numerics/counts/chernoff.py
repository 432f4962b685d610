"""Quantiles of binomial laws from Chernoff's bound, and of sums of negatively associated indicators. NumPy float64."""

from __future__ import annotations

import numpy as np

from checkin_jax.kernels import binomial

_HALVINGS, _BISECTIONS = 80, 24
# Up to so many indicators the law of their independent copies is listed.
_LISTED = 4096
# Relative error of sums of these probabilities, at most.
_ROUNDED = 1e-10


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


def exceeded(number: int, prob: float, exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole v, one for each of the increasing exponents, and upper bounds on Pr[V > v] of at most exp(-exponent).

    V is a sum of `number` negatively associated indicators of probability at most `prob`, in [0, 1]. With B a sum of
    independent ones, E(V - k)_+ <= E(B - k)_+, hence Pr[V > v] <= E(B - k)_+ / (v + 1 - k) for every k <= v
    [docs/theory.md, 6]. More than 4,096 indicators have Chernoff's bound.
    """
    limit = most(float(number), prob, exponents)
    if number > _LISTED or not 0.0 < prob < 1.0:
        return limit, np.exp(-exponents)
    counts = np.arange(number + 1.0)
    masses = np.exp(np.asarray(binomial.log_pmf(counts, float(number), prob)))
    # Pr[B > k], then E(B - k)_+, for k = 0, 1, ...
    beyond = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
    excess = np.cumsum(beyond[::-1])[::-1] * (1.0 + _ROUNDED)
    values = counts[int(number * prob) : int(limit[-1]) + 1]
    apart = values[:, None] + 1.0 - counts[None, :]
    bounds = np.where(apart > 0.0, excess / np.maximum(apart, 1.0), 1.0).min(axis=1)
    # The last value has Chernoff's bound at least.
    bounds[-1] = min(bounds[-1], np.exp(-exponents[-1]))
    first = np.argmax(bounds[None, :] <= np.exp(-exponents)[:, None], axis=1)
    return values[first], bounds[first]


def enough(least: np.ndarray, number: float, exponent: float) -> np.ndarray:
    """Probabilities p with Pr[Bin(number, p) < least] <= exp(-exponent), rounded up; 1 where least is `number`."""
    low, high = least / number, np.ones(least.shape)
    counts = np.arange(min(number, _LISTED) + 1.0)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if number > _LISTED:
            log_prob = np.asarray(binomial.log_chernoff(least - 1.0, number, middle))
        else:
            masses = np.exp(np.asarray(binomial.log_pmf(counts, number, middle[:, None])))
            fewer = np.where(counts < least[:, None], masses, 0.0).sum(axis=1)
            log_prob = np.log(fewer * (1.0 + _ROUNDED) + 1e-300)
        low, high = (
            np.where(log_prob <= -exponent, low, middle),
            np.where(log_prob <= -exponent, middle, high),
        )
    return high


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
