"""Scores of attacks, larger in the first of two worlds than in the second, and exact lower bounds on epsilon from them.

The adversaries know all else. The first column is the log likelihood ratio under the intended mechanism (sums of l2
messages are treated as normal). The other columns detect faults: noise shared by several messages or rounds. Bounds
from many runs or from one run hold for all scores; better scores make them larger. They are in nats and not rounded.
Their error is statistical, and stated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from checkin_jax import _validate
from checkin_jax.auditing.trials import Trials
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.training.run import PrivateRun

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


def of_messages(run: PrivateRun, canary: int, trials: Trials) -> np.ndarray:
    """Scores (runs, 5) of an adversary who observes every message without its name.

    Columns: log likelihood ratio; sum along v; largest distance of a message from the median of its round;
    largest message along v; distance of messages from those of the round before.
    """
    assert trials.messages is not None
    along, present = trials.messages[..., 0], _present(trials)
    first = message_log_ratio(run, along)
    # Relative to the density of a message of another client or of a dummy.
    dummies = run.schedule.dummies
    other = np.zeros_like(along)
    if dummies:
        other = np.logaddexp(np.log1p(-dummies), np.log(dummies) + message_log_ratio(run, along, 0.0))
    ratios = [np.where(present, r - other, -np.inf) for r in (first, np.zeros_like(first))]
    scores = hidden(run.schedule.exposure(canary), trials.counts, logsumexp(ratios, axis=-1))
    masked = np.where(present[..., None], trials.messages, np.nan)
    spread = np.zeros(len(along))
    several = trials.counts >= 2
    if several.any():
        rounds = masked[several]
        distance = np.linalg.norm(rounds - np.nanmedian(rounds, axis=1, keepdims=True), axis=-1)
        farthest = np.zeros(several.shape)
        farthest[several] = np.nanmax(distance, axis=1)
        spread = farthest.max(axis=1)
    largest = np.where(present, along, -np.finfo(np.float32).max).max(axis=(1, 2))
    columns = [scores[0] - scores[1], along.sum(axis=(1, 2)), spread, largest, _unlike_before(trials)]
    return np.stack(columns, axis=1)


def of_totals(run: PrivateRun, canary: int, trials: Trials) -> np.ndarray:
    """Scores (runs, 3) of an adversary who observes the sum of each round.

    Columns: log likelihood ratio; sum along v; spread over rounds of the noise implied by the second world.
    """
    assert trials.totals is not None
    along, counts = trials.totals[..., 0], trials.counts
    clip_norm = run.clip_norm
    if run.mechanism.groups_clients:  # the others hold vectors orthogonal to v
        rest, shifts = 0.0 * counts, (clip_norm, -clip_norm)
    else:
        rest, shifts = -clip_norm * counts * (1.0 - run.schedule.dummies), (2.0 * clip_norm, 0.0)
    variance = np.maximum(counts, 1) * (run.mechanism.noise_multiplier * clip_norm) ** 2
    ratios = []
    for shift in shifts:
        ratio = ((along - rest) * shift - shift**2 / 2.0) / variance + np.log(np.maximum(counts, 1))
        ratios.append(np.where(counts > 0, ratio, -np.inf))
    scores = hidden(run.schedule.exposure(canary), counts, np.stack(ratios))
    noise = (along - rest) / np.sqrt(variance)
    top = np.where(counts > 0, noise, -np.inf).max(axis=1)
    bottom = np.where(counts > 0, noise, np.inf).min(axis=1)
    spread = np.where((counts > 0).any(axis=1), top - bottom, 0.0)
    return np.stack([scores[0] - scores[1], along.sum(axis=1), spread], axis=1)


def of_own(run: PrivateRun, trials: Trials) -> np.ndarray:
    """Scores (runs, 2) of an adversary who observes the canary by name: log likelihood ratio; largest along
    v.
    """
    assert trials.messages is not None
    assert trials.place is not None
    sent = trials.place >= 0
    place = np.maximum(trials.place, 0)[..., None]
    along = np.take_along_axis(trials.messages[..., 0], place, axis=2)[..., 0]
    ratio = np.where(sent, message_log_ratio(run, along), 0.0)
    largest = np.where(sent, along, -np.finfo(np.float32).max).max(axis=1)
    return np.stack([ratio.sum(axis=1), largest], axis=1)


def message_log_ratio(run: PrivateRun, along: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Log density of a message of record share v (a dummy's is 0) minus that of record -v, by its component along v."""
    mechanism, clip_norm = run.mechanism, run.clip_norm
    return mechanism.log_likelihood(along, share * clip_norm) - mechanism.log_likelihood(along, -clip_norm)


def hidden(exposure: np.ndarray, counts: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Log likelihood ratio of clients hidden among the messages against absent ones, (...).

    Args:
      exposure: (..., rounds of a unit), as of `Schedule.exposure`.
      counts: (..., rounds), messages of each round.
      ratios: (..., rounds), log of the sum of likelihood ratios of a round's messages if one is the client's; -inf: no
        message.
    """
    units = *ratios.shape[:-1], -1, exposure.shape[-1]
    share = np.tile(exposure, ratios.shape[-1] // exposure.shape[-1])
    present = np.sum(np.broadcast_to(counts * share, ratios.shape).reshape(units), axis=-1)
    with np.errstate(divide="ignore"):  # certainly absent, or certainly present
        log_absent = np.log(np.maximum(1.0 - present, 0.0))
        together = logsumexp((ratios + np.log(share)).reshape(units), axis=-1)
    return np.sum(np.logaddexp(log_absent, together), axis=-1)


def _unlike_before(trials: Trials) -> np.ndarray:
    """Largest distance of a message from the nearest one of the round before, (runs,).

    Every message of the smaller of the two rounds is compared. If both rounds have the same noise, place by
    place, all distances between messages of equal records are zero.
    """
    assert trials.messages is not None
    present, farthest = _present(trials), np.zeros(len(trials.counts))
    for later in range(1, trials.counts.shape[1]):
        both = [(trials.messages[:, r], present[:, r], trials.counts[:, r]) for r in (later - 1, later)]
        swap = both[0][2] > both[1][2]
        few, many = (
            [np.where(swap.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(both[i], both[1 - i])]
            for i in (1, 0)
        )
        distance = np.linalg.norm(few[0][:, :, None] - many[0][:, None], axis=-1)
        nearest = np.where(many[1][:, None], distance, np.inf).min(axis=2)
        farthest = np.maximum(farthest, np.where(few[1], nearest, 0.0).max(axis=1))
    return farthest


def _present(trials: Trials) -> np.ndarray:
    """True for existing messages, (runs, rounds, most)."""
    assert trials.messages is not None
    return np.arange(trials.messages.shape[2]) < trials.counts[..., None]
