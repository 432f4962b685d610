"""One run of training itself, network and all, with canary records; how many of their labels the trajectory betrays.

The test is that of `one_run`, in the view "aggregate": the attacker sees the model after every round, hence every
round's update, and knows all records but the labels of the canaries, each of which is one of two by a coin of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax.auditing.one_run import FEWEST_CANARIES
from checkin_jax.auditing.setting import Setting
from checkin_jax.training.config import TrainingConfig
from checkin_jax.training.examples.data import Dataset
from checkin_jax.training.examples.networks import NUM_CLASSES
from checkin_jax.training.model import model
from checkin_jax.training.private import clients, mechanisms
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.train import train

MOST_CANARIES, OTHERS = 100, 100
NOISE = 1.0, 1e-6  # variances the attacker may suppose, over the variance meant
# What the run may cost; of a longer protocol the first units are run.
MOST_ROUNDS, MOST_MESSAGES = 100, 5e4
MOST_BYTES = 1e9  # of the images of all clients


def affordable(config: TrainingConfig, dataset: Dataset) -> TrainingConfig | None:
    """The run that is audited: plain steps on one record a client, over the first units of the protocol; or None.

    What the server does with the sums, and how a client comes by its update, changes nothing in what is promised.
    """
    units = Setting.of(config).units_within(MOST_ROUNDS, MOST_MESSAGES)
    n = config.protocol.num_clients
    if not units or n < FEWEST_CANARIES or n * dataset.image_side**2 > MOST_BYTES:
        return None
    protocol = config.protocol.repeated(units)
    config = dataclasses.replace(
        config,
        protocol=protocol,
        decay="constant",
        momentum=0.0,
        averaging=0.0,
        target_accuracy=None,
        records_per_client=1,
        local_steps=1,
        local_learning_rate=None,
    )
    return dataclasses.replace(config, eval_every=config.plan.num_rounds)


def coins_and_scores(
    config: TrainingConfig, dataset: Dataset, entropies: Iterator[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Trains once; (canaries,) the coins, +-1, and how much the trajectory looks like +1 for each.

    The latter is (attacks, canaries), a row for each of `NOISE`.
    """
    rng = np.random.default_rng(next(entropies))
    n = config.protocol.num_clients
    chosen = rng.integers(len(dataset.train_labels), size=n)
    images, labels = dataset.train_images[chosen], dataset.train_labels[chosen]
    number = min(n, MOST_CANARIES)
    coins = rng.integers(2, size=number) * 2 - 1
    # Record i is held by one client, nobody but the entropy knows which.
    either = np.stack([labels[:number], (labels[:number] + 1) % NUM_CLASSES])
    labels[:number] = np.where(coins > 0, either[0], either[1])
    everybody = dataclasses.replace(
        dataset,
        train_images=images,
        train_labels=labels,
        test_images=dataset.test_images[:1],
        test_labels=dataset.test_labels[:1],
    )
    _, unravel, loss, _ = model(dataset.image_side, config.pool_stride, config.activation, dataset.max_value)
    gradients = functools.partial(_clipped, loss, config.clip_norm)
    known = slice(number, number + OTHERS)
    plan, multiplier = config.plan, Setting.of(config).sum_multiplier
    counts: list[int] = []
    last: list[np.ndarray] = []
    scores = np.zeros((len(NOISE), number))

    def on_model(flat: jax.Array) -> None:
        last.append(np.asarray(flat, np.float64))
        if len(last) == 1:
            return
        before, after = last.pop(0), last[0]
        if not counts[-1]:
            return
        parameters = unravel(jnp.asarray(before, jnp.float32))
        total = (before - after) * (plan.divisor(counts[-1]) / config.learning_rate)
        one, other = (gradients(parameters, images[:number], label) for label in either)
        rest = gradients(parameters, images[known], labels[known])
        variance = counts[-1] * (multiplier * config.clip_norm) ** 2
        for row, share in zip(scores, NOISE):
            row += _evidence(total, counts[-1], n, one, other, rest, share * variance)

    with tempfile.TemporaryDirectory(prefix="checkin-audit-") as folder:
        seeded = dataclasses.replace(config, seed=next(entropies))
        train(
            seeded,
            everybody,
            Path(folder) / "run",
            lambda line: counts.append(line["check_ins"]),
            on_model=on_model,
        )
    return coins, scores


def _evidence(
    total: np.ndarray,
    count: int,
    num_clients: int,
    one: np.ndarray,
    other: np.ndarray,
    rest: np.ndarray,
    variance: float,
) -> np.ndarray:
    """(canaries,): the log likelihood ratios of a round's sum, were everything normal.

    What canaries that checked in add is known but for a sign; that of all clients varies with who checked in, which is
    told apart from signs by its directions.

    Args:
      total: (d,), the sum of `count` messages of `num_clients` clients.
      one, other: (canaries, d), the gradients of each canary under either label.
      rest: (sample, d), gradients of some of the others.
      variance: of the noise in each coordinate of the sum.
    """
    rate = count / num_clients
    middle, difference = (one + other) / 2.0, one - other
    each = (num_clients - len(one)) / max(1, len(rest))  # clients that one of the sample stands for
    expected = rate * (middle.sum(axis=0) + each * rest.sum(axis=0))
    spread = math.sqrt(rate * (1.0 - rate))
    varies = np.concatenate(
        [spread * middle, math.sqrt(rate) / 2.0 * difference, spread * math.sqrt(each) * rest]
    )
    # The inverse covariance (Woodbury), applied to what is unexpected.
    unexpected = total - expected
    small = varies @ varies.T + variance * np.eye(len(varies))
    whitened = (unexpected - varies.T @ np.linalg.solve(small, varies @ unexpected)) / variance
    return difference @ whitened


def _clipped(
    loss: Loss, clip_norm: float, parameters: Any, images: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """(records, d): the clipped gradient of each record."""
    return np.asarray(
        _clipped_rows(loss, clip_norm, parameters, images[:, None], labels[:, None]), np.float64
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _clipped_rows(
    loss: Loss, clip_norm: float, parameters: Any, images: jax.Array, labels: jax.Array
) -> jax.Array:
    rows = clients.update_rows(loss, parameters, images, labels, "auto")
    return mechanisms.clip(rows, clip_norm).matrix()
