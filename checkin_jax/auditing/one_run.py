"""One run with many canaries, whose records are chosen by independent fair coins, and guesses of these coins.

This is privacy auditing with one training run [SNJ23]. Canaries have orthogonal updates, so that they do not
disturb each other.

A run of training itself is attacked in view "aggregate". The attacker observes the model after every round, hence every
round's update. It knows all records except those of the canaries. The trajectory serves to guess their coins.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.auditing import scores
from checkin_jax.auditing.scores import one_run_lower
from checkin_jax.auditing.trials import OVERSHOOT, SUM_DIMENSION, Round, Stage, units_within
from checkin_jax.training.draws import DUMMY
from checkin_jax.training.loop import train
from checkin_jax.training.model import Dataset, Model
from checkin_jax.training.private import clients, mechanism
from checkin_jax.training.private.clients import Records
from checkin_jax.training.private.layers import Loss
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


MOST_TRAINED_CANARIES, OTHERS = 100, 100
NOISE = 1.0, 1e-6  # variances that the attacker assumes, over the intended variance
# Limits of the run; of a longer protocol the first units are run.
MOST_TRAINED_ROUNDS, MOST_TRAINED_MESSAGES = 100, 5e4
MOST_BYTES = 1e9  # most bytes of the records of all clients


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedRun(ByName):
    """A run of training to attack.

    Attributes:
      run: the settings that determine its privacy.
      model, dataset: of the training; single records are dealt out to clients, without regard to owners.
      alternative: records -> the records that canaries may hold instead, such as the same with another label.
      learning_rate: of the audit's plain gradient steps, so that parameters move about as far as in training.

    Raises:
      ValueError, TypeError: learning_rate outside its range.
    """

    run: PrivateRun
    model: Model
    dataset: Dataset
    alternative: Callable[[Records], Records]
    learning_rate: float = 1.0

    _legal = legal(learning_rate=(_validate.real, 0, 1e30, "(]"))


def affordable_training(trained: TrainedRun) -> TrainedRun | None:
    """The audited run: plain steps on one record per client, over the first units of the
    protocol; or None.

    The guarantee does not depend on the server's use of the sums, or on how a client computes its update.
    """
    run = trained.run
    units, n = units_within(run, MOST_TRAINED_ROUNDS, MOST_TRAINED_MESSAGES), run.protocol.num_clients
    leaves = jax.tree.leaves(trained.dataset.records)
    if not units or n < FEWEST_CANARIES or n * max(leaf.nbytes / len(leaf) for leaf in leaves) > MOST_BYTES:
        return None
    return dataclasses.replace(trained, run=run.repeated(units))


def coins_and_scores_of_training(
    trained: TrainedRun, entropies: Iterator[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Trains once; returns the canaries' coins (canaries,), +-1, and scores, large if the coin looks like +1.

    Scores are (attacks, canaries), one row for each of `NOISE`.
    """
    run, model = trained.run, trained.model
    rng = np.random.default_rng(next(entropies))
    n = run.protocol.num_clients
    chosen = rng.integers(len(trained.dataset), size=n)
    records = jax.tree.map(lambda x: np.asarray(x)[chosen], trained.dataset.records)
    number = min(n, MOST_TRAINED_CANARIES)
    coins = rng.integers(2, size=number) * 2 - 1
    # Each record i has one holder, determined by the entropy.
    either = _part(records, slice(number)), trained.alternative(_part(records, slice(number)))
    held = jax.tree.map(
        lambda one, other: np.where((coins > 0).reshape(-1, *(1,) * (one.ndim - 1)), one, other), *either
    )
    known = _part(records, slice(number, number + OTHERS))
    records = jax.tree.map(lambda x, own: np.concatenate([own, x[number:]]), records, held)
    gradients = functools.partial(_clipped, model.loss, run.clip_norm)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))[1]
    counts: list[int] = []
    last: list[np.ndarray] = []
    scores = np.zeros((len(NOISE), number))

    def on_model(current: Any) -> None:
        last.append(np.asarray(ravel_pytree(current)[0], np.float64))
        if len(last) == 1:
            return
        before, after = last.pop(0), last[0]
        if not counts[-1]:
            return
        parameters = unravel(jnp.asarray(before, jnp.float32))
        total = (before - after) * (run.schedule.divisor(counts[-1]) / trained.learning_rate)
        one, other = (gradients(parameters, each) for each in either)
        variance = counts[-1] * (run.mechanism.noise_multiplier * run.clip_norm) ** 2
        for row, share in zip(scores, NOISE):
            row += _evidence(total, counts[-1], n, one, other, gradients(parameters, known), share * variance)

    with tempfile.TemporaryDirectory(prefix="checkin-audit-") as folder:
        train(
            run,
            dataclasses.replace(model, metrics=None),
            Dataset(records=records, name=trained.dataset.name),
            Path(folder) / "run",
            optimizer=optax.sgd(trained.learning_rate),
            eval_every=run.schedule.num_rounds,
            on_round=lambda line: counts.append(line["check_ins"]),
            on_model=on_model,
            seed=next(entropies),
        )
    return coins, scores


def _part(records: Records, which: slice) -> Records:
    return jax.tree.map(lambda x: x[which], records)


def _evidence(
    total: np.ndarray,
    count: int,
    num_clients: int,
    one: np.ndarray,
    other: np.ndarray,
    rest: np.ndarray,
    variance: float,
) -> np.ndarray:
    """Log likelihood ratios of a round's sum, (canaries,), in a normal model.

    The contribution of canaries that checked in is known up to a sign. The contribution of all clients varies
    with who checked in; its directions distinguish it from the signs.

    Args:
      total: (d,), the sum of `count` messages of `num_clients` clients.
      one, other: (canaries, d), the gradients of each canary under either label.
      rest: (sample, d), gradients of some of the others.
      variance: of the noise in each coordinate of the sum.
    """
    rate = count / num_clients
    middle, difference = (one + other) / 2.0, one - other
    each = (num_clients - len(one)) / max(1, len(rest))  # clients represented by one of the sample
    expected = rate * (middle.sum(axis=0) + each * rest.sum(axis=0))
    spread = math.sqrt(rate * (1.0 - rate))
    varies = np.concatenate(
        [spread * middle, math.sqrt(rate) / 2.0 * difference, spread * math.sqrt(each) * rest]
    )
    # The inverse covariance (Woodbury), applied to the deviation from the mean.
    unexpected = total - expected
    small = varies @ varies.T + variance * np.eye(len(varies))
    whitened = (unexpected - varies.T @ np.linalg.solve(small, varies @ unexpected)) / variance
    return difference @ whitened


def _clipped(loss: Loss, clip_norm: float, parameters: Any, records: Records) -> np.ndarray:
    each = jax.tree.map(lambda x: x[:, None], records)
    return np.asarray(_clipped_rows(loss, clip_norm, parameters, each), np.float64)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _clipped_rows(loss: Loss, clip_norm: float, parameters: Any, records: Records) -> jax.Array:
    number = len(jax.tree.leaves(records)[0])
    weights = jnp.ones((number, 1), jnp.float32)
    # Clients' own coins are unknown to the attacker, who uses other ones.
    coins = jax.random.split(jax.random.key(0), number)
    rows = clients.update_rows(loss, parameters, records, weights, "auto", coins)
    return mechanism.clip(rows, clip_norm).matrix()
