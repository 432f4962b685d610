"""One run of training itself, with its model and canary records; the trajectory serves to guess
their coins.

The test is that of `one_run`, in view "aggregate". The attacker observes the model after every round, hence
every round's update. It knows all records except those of the canaries, each of which is one of two by its
own coin.
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

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.auditing.one_run import FEWEST_CANARIES
from checkin_jax.auditing.trials import units_within
from checkin_jax.training.loop import train
from checkin_jax.training.model import Dataset, Model
from checkin_jax.training.private import clients, mechanism
from checkin_jax.training.private.clients import Records
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.run import PrivateRun

MOST_CANARIES, OTHERS = 100, 100
NOISE = 1.0, 1e-6  # variances that the attacker assumes, over the intended variance
# Limits of the run; of a longer protocol the first units are run.
MOST_ROUNDS, MOST_MESSAGES = 100, 5e4
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


def affordable(trained: TrainedRun) -> TrainedRun | None:
    """The audited run: plain steps on one record per client, over the first units of the
    protocol; or None.

    The guarantee does not depend on the server's use of the sums, or on how a client computes its update.
    """
    run = trained.run
    units, n = units_within(run, MOST_ROUNDS, MOST_MESSAGES), run.protocol.num_clients
    leaves = jax.tree.leaves(trained.dataset.records)
    if not units or n < FEWEST_CANARIES or n * max(leaf.nbytes / len(leaf) for leaf in leaves) > MOST_BYTES:
        return None
    return dataclasses.replace(trained, run=run.repeated(units))


def coins_and_scores(trained: TrainedRun, entropies: Iterator[int]) -> tuple[np.ndarray, np.ndarray]:
    """Trains once; returns the canaries' coins (canaries,), +-1, and scores, large if the coin looks like +1.

    Scores are (attacks, canaries), one row for each of `NOISE`.
    """
    run, model = trained.run, trained.model
    rng = np.random.default_rng(next(entropies))
    n = run.protocol.num_clients
    chosen = rng.integers(len(trained.dataset), size=n)
    records = jax.tree.map(lambda x: np.asarray(x)[chosen], trained.dataset.records)
    number = min(n, MOST_CANARIES)
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
