"""Scores that are larger in the first of two worlds than in the second, for adversaries who know all else.

The first column is the log likelihood ratio under the intended mechanism (sums of l2 messages are treated as
normal). The other columns detect faults: noise shared by several messages or rounds. Every score gives valid
bounds.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from checkin_jax.auditing.trials import Trials
from checkin_jax.training.run import PrivateRun


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
