"""Tails of binomial and Poisson laws by Chernoff's bound, and of sums of negatively associated indicators.

NumPy float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.kernels import binomial
from checkin_jax.kernels.execution.backend import bisected

_HALVINGS, _BISECTIONS = 80, 24
# Up to so many indicators the law of their independent copies is listed.
_LISTED = 4096
# Relative error of sums of these probabilities, at most.
_ROUNDED = 1e-10
# Share by which a guessed quantile is raised.
_NEARER = 1e-8
# Relative error of the logarithm of a binomial probability, at most; numbers of successive ones that are summed.
_LOG_PMF, _SUMMED = 1e-12, 2.0 ** np.arange(1, 21)
# Within so many standard deviations of the mean scipy's Poisson probabilities are used, with this margin for their
# error, which grows quickly beyond; there Chernoff's bound is.
POISSON_NEAR, POISSON_MARGIN = 4.25, 1e-6


def levels(exponents: Sequence[float], neg_log_tail: float) -> np.ndarray:
    """Those of the increasing exponents that are below neg_log_tail, which is the last level."""
    return np.array([*(each for each in exponents if each < neg_log_tail), neg_log_tail])


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


def enough(least: np.ndarray, number: float, exponents: np.ndarray) -> np.ndarray:
    """Probabilities p with Pr[Bin(number, p) < least] <= exp(-exponent), rounded up; [exponents, least].

    They are 1 where least is `number`.
    """
    counts, exponents = np.arange(min(number, _LISTED) + 1.0), exponents[:, None]

    def rare(prob: np.ndarray) -> np.ndarray:
        if number > _LISTED:
            log_prob = np.asarray(binomial.log_chernoff(least - 1.0, number, prob))
        else:
            masses = np.exp(np.asarray(binomial.log_pmf(counts, number, prob[..., None])))
            fewer = np.where(counts < least[:, None], masses, 0.0).sum(axis=-1)
            log_prob = np.log(fewer * (1.0 + _ROUNDED) + 1e-300)
        return log_prob <= -exponents

    high = np.ones((exponents.size, least.size))
    low = least / number * high
    if number <= _LISTED:
        # Scipy's quantile has no proven error, so that it is a guess.
        rest = scipy.special.betaincinv(number - least + 1.0, np.maximum(least, 1.0), np.exp(-exponents))
        guess = np.clip(np.where(least > 0.0, 1.0 - rest * (1.0 - _NEARER), low), low, high)
        if rare(guess).all():
            return guess
    return bisected(lambda prob: ~rare(prob), low, high, _BISECTIONS)[1]


def log_at_least(least: np.ndarray, number: float, prob: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of bounds on Pr[Bin(number, prob) >= least] from below and above, for whole least in [1, number].

    Successive probabilities fall by a ratio that falls itself: a geometric sum of some, and one of all where the first
    ratio is below 1. Broadcasts.
    """
    at = np.asarray(binomial.log_pmf(least, number, prob))
    slack = _LOG_PMF * np.maximum(1.0, np.abs(np.where(np.isfinite(at), at, 0.0)))
    odds = prob / (1.0 - prob)

    def ratio(count: np.ndarray) -> np.ndarray:
        return np.maximum(number - count, 0.0) / (count + 1.0) * odds

    first = ratio(least) * (1.0 + _LOG_PMF)
    above = np.where(first < 1.0, at + slack - np.log1p(-np.minimum(first, 1.0 - 1e-9)), 0.0)
    some = np.ones(at.shape)
    for count in _SUMMED:
        last = np.minimum(ratio(least + count), 1.0 - 1e-9) * (1.0 - _LOG_PMF)
        some = np.maximum(some, -np.expm1(count * np.log(np.maximum(last, 1e-300))) / (1.0 - last))
    return at - slack + np.log(some) * (1.0 - _LOG_PMF), np.minimum(above, 0.0)


def poisson_tail(count: np.ndarray | float, mean: np.ndarray | float) -> np.ndarray:
    """Chernoff's bound on the tail of a Poisson law from this count on, away from its mean; broadcasts."""
    apart = (count - mean) / mean
    # The logarithm of count / mean; its factor is zero where that is.
    ratio = np.log1p(np.maximum(apart, 1e-15 - 1.0))
    return np.exp(-mean * ((1.0 + apart) * ratio - apart) * (1.0 - 1e-6))


def more_than(number: np.ndarray | float, means: np.ndarray) -> np.ndarray:
    """Pr[M > number] from above, M Poisson of means at most `number`: Chernoff's bound, or less where that is known."""
    near = number - means <= POISSON_NEAR * np.sqrt(means)
    known = np.where(near, scipy.special.pdtrc(number, means) * (1.0 + POISSON_MARGIN), 1.0)
    return np.minimum(known, poisson_tail(number + 1.0, means))


def at_most(number: np.ndarray | float, means: np.ndarray) -> np.ndarray:
    """Pr[M <= number] from below, M Poisson; broadcasts. Zero if the number is far below the mean."""
    below = scipy.special.pdtr(number, means) * (1.0 - POISSON_MARGIN)
    below = np.where(means - number <= POISSON_NEAR * np.sqrt(means), below, 0.0)
    return np.where(number >= means, 1.0 - more_than(np.maximum(number, means), means), below)


def fewer_than(number: np.ndarray | float, means: np.ndarray) -> np.ndarray:
    """Pr[M < number] from above, M Poisson of means at least `number`, both positive."""
    near = means - number <= POISSON_NEAR * np.sqrt(means)
    known = np.where(near, scipy.special.pdtr(number - 1.0, means) * (1.0 + POISSON_MARGIN), 1.0)
    return np.minimum(known, poisson_tail(number - 1.0, means))


def _seldom(number: np.ndarray, prob: float, exponents: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Point between the mean and `end` from which on Chernoff's bound is at most exp(-exponent)."""
    seldom, often = end, number * prob
    for _ in range(_HALVINGS):
        # No whole number lies between them.
        if np.all(np.ceil(np.maximum(seldom, often)) - np.floor(np.minimum(seldom, often)) <= 1.0):
            break
        middle = 0.5 * (seldom + often)
        enough = np.asarray(binomial.log_chernoff(middle, np.maximum(number, 1.0), prob)) <= -exponents
        seldom, often = np.where(enough, middle, seldom), np.where(enough, often, middle)
    return seldom
