"""Exact lower confidence bounds on epsilon from the scores of an attack, by many runs or by one run.

Trust model: none. A lower bound holds for all scores; better scores make it larger. All bounds are in nats
and not rounded. Their error is statistical, and stated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from checkin_jax import _validate
from checkin_jax.kernels.execution.backend import bisected

MOST_COINS = 10**6


class Rule(NamedTuple):
    """An attack with a yes-or-no answer: the score in one column is at or beyond a threshold.

    Attributes:
      column: of the scores.
      threshold: of the score.
      above: True: yes for scores >= threshold; False: yes for scores <= threshold.
      first: True if yes means the first of the two worlds.
    """

    column: int
    threshold: float
    above: bool
    first: bool

    def counts(self, first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
        """Numbers of correct and of wrong positive answers."""
        right, wrong = (first, second) if self.first else (second, first)
        return self._yes(right), self._yes(wrong)

    def _yes(self, scores: np.ndarray) -> int:
        column = scores[:, self.column]
        return int(np.sum(column >= self.threshold if self.above else column <= self.threshold))


class Bounds:
    """One-sided confidence bounds of [CP34] on a probability, for every number of successes in `trials`.

    Args:
      trials: >= 1.
      error: upper bound on the probability that one of the two bounds is wrong, in (0, 1).

    Attributes:
      low, high: (trials + 1,), each wrong with probability at most error / 2.
    """

    def __init__(self, trials: int, error: float) -> None:
        _validate.integer(1, trials=trials)
        _validate.real(0, 1, "()", error=error)
        k = np.arange(trials + 1)
        self.low = np.concatenate([[0.0], stats.beta.ppf(error / 2, k[1:], trials - k[1:] + 1)])
        self.high = np.concatenate([stats.beta.isf(error / 2, k[:-1] + 1, trials - k[:-1]), [1.0]])

    def epsilon(self, right: np.ndarray, wrong: np.ndarray, delta: float) -> np.ndarray:
        """Lower bound on epsilon: log((low[right] - delta) / high[wrong]), at least 0.

        Under (epsilon, delta)-differential privacy every event has P(event) <= e^epsilon Q(event) + delta.
        """
        excess = np.maximum(self.low[right] - delta, 1e-300)
        return np.maximum(0.0, np.log(excess) - np.log(self.high[wrong]))


def best_rule(first: np.ndarray, second: np.ndarray, delta: float, bounds: Bounds) -> tuple[float, Rule]:
    """Rule with the largest lower bound on these runs, over all columns, thresholds, sides and roles.

    The maximised bound is not valid, since the rule was selected on the same runs: evaluate the rule on other
    runs.

    Args:
      first, second: (runs, columns), the scores of independent runs in two neighbouring worlds.
      delta: in [0, 1].
      bounds: for `runs` trials.

    Raises:
      ValueError: scores that are NaN, or of different shapes.
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"scores of shapes {first.shape} and {second.shape}: expected (runs, columns) twice")
    if np.isnan(first).any() or np.isnan(second).any():
        raise ValueError("scores: expected numbers, got NaN")
    best = -1.0, Rule(0, math.inf, True, True)
    for column in range(first.shape[1]):
        a, b = np.sort(first[:, column]), np.sort(second[:, column])
        thresholds = np.unique(np.concatenate([a, b]))
        for above in (True, False):
            if above:
                yes = [len(x) - np.searchsorted(x, thresholds, "left") for x in (a, b)]
            else:
                yes = [np.searchsorted(x, thresholds, "right") for x in (a, b)]
            for role in (True, False):
                right, wrong = yes if role else yes[::-1]
                found = bounds.epsilon(right, wrong, delta)
                top = int(np.argmax(found))
                if found[top] > best[0]:
                    best = float(found[top]), Rule(column, float(thresholds[top]), above, role)
    return best


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of `correct` right guesses in one (epsilon, delta)-private run.

    Corollary 5.4 of [SNJ23]: every canary's record is one of two by its own fair coin, and `guesses` of the
    coins are guessed from the output. With q = 1 / (1 + e^-epsilon) and B binomial,

        Pr[B(r, q) >= v] + 2 m delta max_i Pr[v > B(r, q) >= v - i] / i.

    Args:
      canaries: m in [1, 1e6].
      guesses: r in [0, m], chosen before the run.
      correct: v in [0, r].
      epsilon, delta: of the hypothesis.

    Returns:
      A number in [0, 1].
    """
    _validate.integer(1, MOST_COINS, canaries=canaries)
    _validate.integer(0, canaries, guesses=guesses)
    _validate.integer(0, guesses, correct=correct)
    epsilon = _validate.real(0, math.inf, epsilon=epsilon)
    _validate.real(0, 1, delta=delta)
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, chance))
    if not correct or not delta:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(correct - np.arange(1, correct + 1), guesses, chance))
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(below / np.arange(1, correct + 1))))


def one_run_lower(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """Largest epsilon that `one_run_p_value` refutes at level `error`; 0 if it refutes none.

    Args:
      error: upper bound on the probability that the true epsilon is below the result; in (0, 1).
    """
    _validate.real(0, 1, "()", error=error)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) < error

    low, high = 0.0, 1.0
    if not refuted(low):
        return low
    while refuted(high):
        low, high = high, 2.0 * high  # ends: once the probability rounds to one, nothing is refuted
    return float(bisected(refuted, low, high, 40)[0])
