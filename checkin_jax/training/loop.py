"""The training loop: draw who checks in, sum their privatised gradients, divide by the expected count, step.

The only divisor is the public expected count num_clients * rate, never the realised one. The ledger counts
a round before its result is used, so it can never count too few.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from checkin_jax.accounting import account
from checkin_jax.training import networks, schedule
from checkin_jax.training.config import TrainingConfig
from checkin_jax.training.data import Dataset
from checkin_jax.training.report import Report, make_report
from checkin_jax.training.run_directory import RunDirectory
from checkin_jax.training.schedule import Stream
from checkin_jax.training.step import Loss, Mechanism, buffer_capacity, round_sum

OnRound = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class _State:
    """The model as one flat vector, the optimizer's state, and the running average of the parameters."""

    flat: jax.Array
    optimizer: optax.OptState
    average: jax.Array


def train(
    config: TrainingConfig, dataset: Dataset, run_dir: str | Path, on_round: OnRound | None = None
) -> Report:
    """Runs the protocol on a data set and leaves a complete run directory.

    Formal guarantees: each round's participants, messages and noise follow `config.protocol` and
    `config.randomizer` (unless `simulate` is "central-limit"), so `account` of the same two objects is
    about this run. Results depend on clients' records only through the round sums.

    Args:
      config: what to run.
      dataset: 28x28 or 8x8 images; client i holds one record for the whole run (see `client_records`).
      run_dir: a folder that does not exist yet or is empty.
      on_round: called after every round with its metrics line: round, check_ins and, at evaluations,
        accuracy, epsilon and epsilon_lower (view "messages", over the rounds so far).

    Returns:
      The report, also written to run_dir. On KeyboardInterrupt the loop ends and the report covers the
      rounds that ran; if none did, the interrupt is raised again.

    Raises:
      ValueError, FileExistsError: no network for this image size; the run directory is in use.
    """
    entropy = schedule.fresh_entropy() if config.seed is None else config.seed
    protocol = config.protocol
    network = dataset.image_side, config.pool_stride, config.activation
    initial_key = schedule.jax_key(entropy, Stream.INITIAL_PARAMETERS)
    flat = ravel_pytree(_parameters(*network, initial_key)[0])[0]
    unravel, loss, accuracy = _compiled(*network, dataset.max_value)
    images, labels = jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels)
    test = jnp.asarray(dataset.test_images), jnp.asarray(dataset.test_labels)
    records = schedule.client_records(entropy, protocol.num_clients, len(dataset.train_labels))
    mechanism = Mechanism.of(config)
    capacity = buffer_capacity(protocol.num_clients, protocol.rate, config.microbatch)
    noise_key = schedule.jax_key(entropy, Stream.NOISE)
    update, optimizer_state = _make_update(config, flat)
    state = _State(flat, optimizer_state, flat)
    first_averaged = protocol.num_rounds - int(config.averaging * protocol.num_rounds)

    rounds, stopped, tested = 0, None, (0, 0.0)
    started = time.perf_counter()
    with RunDirectory(run_dir) as folder:
        folder.write_json(
            "config.json", {**config.as_dict(), "dataset": dataset.name, "jax": jax.__version__}
        )
        try:
            for index in range(protocol.num_rounds):
                chosen = records[schedule.participants(entropy, protocol, index)]
                rounds = index + 1
                if len(chosen):  # nobody checked in: no message, no step
                    key = jax.random.fold_in(noise_key, index)
                    total = round_sum(
                        mechanism, loss, unravel(state.flat), images, labels, chosen, key, capacity=capacity
                    )
                    state = update(state, total, max(0, rounds - first_averaged))
                line: dict[str, Any] = {"round": rounds, "check_ins": len(chosen)}
                if rounds % config.eval_every == 0 or rounds == protocol.num_rounds:
                    tested = rounds, float(accuracy(state.average, *test))
                    line |= {"accuracy": tested[1], **_epsilon_so_far(config, rounds)}
                folder.log(line)
                if on_round is not None:
                    on_round(line)
                if tested[0] == rounds and tested[1] >= (config.target_accuracy or 2.0):
                    if rounds < protocol.num_rounds:
                        stopped = f"reached accuracy {config.target_accuracy:g}"
                    break
        except KeyboardInterrupt:
            if not rounds:
                raise
            stopped = "interrupted"
        seconds = time.perf_counter() - started
        final = tested[1] if tested[0] == rounds else float(accuracy(state.average, *test))
        report = make_report(
            config,
            dataset=dataset.name,
            num_records=len(dataset.train_labels),
            accuracy=final,
            rounds=rounds,
            seconds=seconds,
            stopped=stopped,
        )
        folder.write_arrays("parameters.npz", networks.named_arrays(unravel(state.average)))
        folder.write_json("report.json", report.as_dict())
        folder.write_text("report.txt", str(report))
    return report


def _parameters(side: int, pool_stride: int, activation: str, key: jax.Array) -> tuple[Any, Any]:
    """Initial parameters, and the function that applies them."""
    return networks.functional(networks.build(side, key, pool_stride=pool_stride, activation=activation))


@functools.cache
def _compiled(
    side: int, pool_stride: int, activation: str, max_value: int
) -> tuple[Callable[[jax.Array], Any], Loss, Callable[..., jax.Array]]:
    """Unravelling, loss and test accuracy of one network; cached, so that further runs do not recompile."""
    # Only shapes matter here, so any key will do.
    structure, apply = _parameters(side, pool_stride, activation, jax.random.key(0))
    unravel = jax.jit(ravel_pytree(structure)[1])

    def logits(parameters: Any, image: jax.Array) -> jax.Array:
        return apply(parameters, image.astype(jnp.float32)[..., None] * (1.0 / max_value))

    def loss(parameters: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        return networks.cross_entropy(logits(parameters, image), label.astype(jnp.int32))

    @jax.jit
    def accuracy(flat: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
        parameters = unravel(flat)
        guesses = jax.lax.map(lambda image: jnp.argmax(logits(parameters, image)), images, batch_size=100)
        return jnp.mean((guesses == labels.astype(guesses.dtype)).astype(jnp.float32))

    return unravel, loss, accuracy


def _make_update(
    config: TrainingConfig, flat: jax.Array
) -> tuple[Callable[[_State, jax.Array, int], _State], optax.OptState]:
    """The post-processing of a round's sum: `update(state, sum, rounds averaged so far or 0)`."""
    rounds = config.protocol.num_rounds
    rate = config.learning_rate
    if config.decay == "linear":
        rate = optax.linear_schedule(config.learning_rate, 0.0, rounds)
    optimizer = optax.sgd(rate, momentum=config.momentum or None)
    expected = config.protocol.num_clients * config.protocol.rate

    @jax.jit
    def apply(
        flat: jax.Array, state: optax.OptState, average: jax.Array, total: jax.Array, weight: np.float32
    ) -> tuple[jax.Array, optax.OptState, jax.Array]:
        updates, state = optimizer.update(total * (1.0 / expected), state, flat)
        flat = flat + cast(jax.Array, updates)
        return flat, state, average + weight * (flat - average)

    def update(state: _State, total: jax.Array, averaged: int) -> _State:
        weight = np.float32(1.0 / max(1, averaged))
        return _State(*apply(state.flat, state.optimizer, state.average, total, weight))

    return update, optimizer.init(flat)


def _epsilon_so_far(config: TrainingConfig, rounds: int) -> dict[str, Any]:
    """The bracket of epsilon in view "messages" over the rounds so far, for the metrics."""
    so_far = dataclasses.replace(config.protocol, num_rounds=rounds)
    guarantee = account(so_far, config.randomizer, delta=config.delta, view="messages").as_dict()
    return {"epsilon": guarantee["epsilon"], "epsilon_lower": guarantee["lower"]}
