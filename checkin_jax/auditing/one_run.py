"""One run with many canaries, whose records are chosen by independent fair coins, and guesses of these coins.

This is privacy auditing with one training run [SNJ23]. Canaries have orthogonal updates, so that they do not
disturb each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import logsumexp

from checkin_jax.auditing import scores
from checkin_jax.auditing.scores import one_run_lower
from checkin_jax.auditing.trials import OVERSHOOT, SUM_DIMENSION, Round, Stage, units_within
from checkin_jax.training.draws import DUMMY
from checkin_jax.training.run import PrivateRun

MOST_CANARIES, FEWEST_CANARIES = 500, 20
# Limits of a run; of a longer protocol the first units are run, and accounted for.
MOST_ROUNDS, MOST_MESSAGES, MOST_CLIENTS = 1_000, 2e5, 10_000_000
ALL_MESSAGES_AT_ONCE = 2e7  # most numbers in memory for one round
# Guesses are made for this share of the canaries, those with the largest absolute scores.
PARTS = (1.0, 0.3, 0.1)


def affordable(run: PrivateRun, view: str) -> PrivateRun | None:
    """The first units of the protocol within the limits; None if one unit exceeds them or clients are too
    few.
    """
    units = units_within(run, MOST_ROUNDS, MOST_MESSAGES)
    clients = run.protocol.num_clients
    if not units or not FEWEST_CANARIES <= clients <= MOST_CLIENTS:
        return None
    if view != "aggregate" and _most_at_once(run) * FEWEST_CANARIES > ALL_MESSAGES_AT_ONCE:
        return None
    return run.repeated(units)


def coins_and_scores(run: PrivateRun, view: str, entropies: Iterator[int]) -> tuple[np.ndarray, np.ndarray]:
    """Runs the protocol once; returns coins (canaries,), +-1, and scores (1, canaries), large for coin +1."""
    n = run.protocol.num_clients
    most = MOST_CANARIES if view == "aggregate" else int(ALL_MESSAGES_AT_ONCE / _most_at_once(run))
    number = min(n, MOST_CANARIES, most)
    canaries = np.linspace(0, n - 1, number).astype(np.int64)
    coins = np.random.default_rng(next(entropies)).integers(2, size=number) * 2 - 1
    axes = OVERSHOOT * run.clip_norm * np.eye(number, max(number, SUM_DIMENSION), dtype=np.float32)
    records = np.concatenate([axes, -axes, np.zeros_like(axes[:1])])
    held = np.full(n, 2 * number)
    held[canaries] = np.arange(number) + np.where(coins > 0, 0, number)
    stage = Stage(run, records, messages=view != "aggregate", totals=view == "aggregate")
    if view == "local":
        seen = _own(run, canaries, stage.rounds(next(entropies), held))
    else:
        seen = _hidden(run, canaries, stage.rounds(next(entropies), held))
    return coins, seen[None]


def lower(coins: np.ndarray, scores: np.ndarray, delta: float, error: float) -> tuple[float, int, int]:
    """Best lower bound over `PARTS` and attacks; number of guesses, and of correct ones.

    Args:
      coins: (canaries,), +-1.
      scores: (attacks, canaries), positive ones guess +1.
      delta: of the bound.
      error: upper bound on the probability that the bound is wrong.
    """
    found, each = [], error / (len(PARTS) * len(scores))
    for row in scores:
        clearest = np.argsort(-np.abs(row), kind="stable")
        for part in PARTS:
            guessed = clearest[: int(part * len(coins))]
            correct = int(np.sum(np.where(row[guessed] > 0, 1, -1) == coins[guessed]))
            bound = one_run_lower(len(coins), len(guessed), correct, delta, each)
            found.append((bound, len(guessed), correct))
    return max(found)


def _most_at_once(run: PrivateRun) -> float:
    """Number of messages of a round that is rarely exceeded."""
    return 2.0 * run.schedule.expected_messages + 40.0


def _hidden(run: PrivateRun, canaries: np.ndarray, rounds: Iterator[Round]) -> np.ndarray:
    """Scores if messages have no names, or only their sums are observed."""
    exposure = np.array([run.schedule.exposure(int(client)) for client in canaries])
    seen = [(len(one.clients), _log_ratios(run, one, len(canaries))) for one in rounds]
    either = scores.hidden(exposure, np.array([k for k, _ in seen]), np.stack([r for _, r in seen], axis=-1))
    return either[0] - either[1]


def _log_ratios(run: PrivateRun, one: Round, number: int) -> np.ndarray:
    """Log of a round's summed likelihood ratios of either record to none, (2, canaries); -inf without messages."""
    k, mechanism, clip_norm = len(one.clients), run.mechanism, run.clip_norm
    if not k:
        return np.full((2, number), -np.inf)
    if one.total is not None:
        along = one.total[:number].astype(np.float64) / clip_norm
        variance = k * mechanism.noise_multiplier**2
        return np.stack([(along - 0.5) / variance, (-along - 0.5) / variance]) + np.log(k)
    assert one.messages is not None
    along = one.messages[:, :number].astype(np.float64)
    none = mechanism.log_likelihood(along, 0.0)
    ratios = (mechanism.log_likelihood(along, update) - none for update in (clip_norm, -clip_norm))
    return np.stack([logsumexp(ratio, axis=0) for ratio in ratios])


def _own(run: PrivateRun, canaries: np.ndarray, rounds: Iterator[Round]) -> np.ndarray:
    """Scores if messages have names."""
    number_of = np.full(run.protocol.num_clients, -1)
    number_of[canaries] = np.arange(len(canaries))
    total = np.zeros(len(canaries))
    for one in rounds:
        assert one.messages is not None
        which = np.where(one.clients == DUMMY, -1, number_of[one.clients])
        row = np.flatnonzero(which >= 0)
        along = one.messages[row, which[row]].astype(np.float64)
        np.add.at(total, which[row], scores.message_log_ratio(run, along))
    return total
