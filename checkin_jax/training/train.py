"""The training loop: draw who checks in, sum their privatised updates, divide by a public number, step.

The divisor is never a number that the protocol keeps to itself (see `Plan.divisor`). The ledger counts a round, and a
window as a whole, before its result is used, so it can never count too few.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import _validate
from checkin_jax.randomizers import Gaussian
from checkin_jax.training.config import MICROBATCH_UNIT, TrainingConfig
from checkin_jax.training.examples import networks
from checkin_jax.training.examples.data import Dataset
from checkin_jax.training.model import initial, model
from checkin_jax.training.private import clients, mechanisms
from checkin_jax.training.private.clients import ClientUpdate
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.private.step import Mechanism, buffer_capacity, round_sum
from checkin_jax.training.reports.report import Report, make_report
from checkin_jax.training.reports.spent import Spent
from checkin_jax.training.runs.session import INTERRUPTED, Session
from checkin_jax.training.schedules import draws
from checkin_jax.training.schedules.draws import DUMMY, DrawnRecords, EntropySource, Stream
from checkin_jax.training.schedules.schedule import Draw
from checkin_jax.training.server import State, server

# Rounds that are begun before the result of an earlier one is known: enough to keep a device busy.
AHEAD = 2
OnRound = Callable[[dict[str, Any]], None]
OnModel = Callable[[jax.Array], None]


class RoundError(RuntimeError):
    """A round whose sum was not computed: a device or another process failed, or memory was short."""


class _Round(NamedTuple):
    """A round under way: its line of metrics so far, the state after it, and its sum where it is evaluated."""

    line: dict[str, Any]
    after: State
    total: jax.Array | None
    evaluated: bool


def train(
    config: TrainingConfig,
    dataset: Dataset,
    run_dir: str | Path,
    on_round: OnRound | None = None,
    *,
    checkpoint_every: int = 0,
    keep_checkpoints: int = 2,
    resume: bool = False,
    mesh: jax.sharding.Mesh | None = None,
    on_model: OnModel | None = None,
    entropy: EntropySource | None = None,
) -> Report:
    """Runs the protocol on a data set and leaves a complete run directory.

    Formal guarantees: each round's participants, messages and noise follow `config.protocol` and
    `config.randomizer` (unless `simulate` is "central-limit"), so `account` of the same two objects is
    about this run. Results depend on clients' records only through the round sums. A run that was killed and
    resumed leaves the same bits in parameters.npz and metrics.jsonl as one that was not; rounds that it repeats are
    the same releases again and are counted once.

    Args:
      config: what to run.
      dataset: 28x28 or 8x8 images; client i holds the same records for the whole run (see `client_records`).
      run_dir: a folder that does not exist yet or is empty, unless `resume`.
      on_round: called after every round with its metrics line: round, check_ins (messages that arrived, dummies
        included), window (where the protocol has windows) and, at evaluations, accuracy, epsilon, epsilon_lower, view
        and method (the report's figures in view "messages" over what has begun; see `Spent` where evaluations are
        many), update_norm and noise_norm (l2 norms of the released update, and expected of the noise in it; the norm
        of no client's own update is ever recorded). Its result is known by then: a round is logged once it is real.
      checkpoint_every: rounds between checkpoints; 0: none. While the run lasts they hold its entropy, which must
        stay secret (see `checkpoints`); they are deleted when it has finished.
      keep_checkpoints: how many of the last ones are kept.
      resume: go on with the run in `run_dir` from its last whole checkpoint; where none has begun, begin it.
      mesh: the clients of a round are sharded over its one axis, see `round_sum`. With several processes every one
        calls this function with the same arguments, and the first one alone writes.
      on_model: called with the flat parameters before the first round and after every round.
      entropy: where the run's 128 secret bits come from, in place of the operating system: a function of a number of
        bytes that returns so many, as os.urandom does. Its quality is assumed, and the report says so. A run that is
        taken up again goes on with the bits in its checkpoint.

    Returns:
      The report, also written to run_dir. On KeyboardInterrupt the loop ends and the report covers the rounds whose
      results were logged; if there are none, the interrupt is raised again. Such a run may be resumed.

    Raises:
      ValueError, TypeError: an argument outside its range; no network for this image size.
      EntropyError, a kind of ValueError: `entropy` returned too few bytes or no random ones.
      ResumeError, a kind of ValueError: the run to be resumed is another one or has finished, or its checkpoints are
        gone.
      RoundError: a round could not be computed. What was logged is real.
      FileExistsError, BlockingIOError, OSError: the run directory is in use or cannot be written. What was saved
        before stays.
    """
    every = _validate.integer(0, checkpoint_every=checkpoint_every)
    keep = _validate.integer(1, keep_checkpoints=keep_checkpoints)
    if entropy is not None:
        draws.source_name(entropy)
        if config.seed is not None:
            raise ValueError(
                f"entropy: expected None with seed={config.seed}, which is all the run draws from"
            )
    plan = config.plan
    network = dataset.image_side, config.pool_stride, config.activation
    size, unravel, loss, accuracy = model(*network, dataset.max_value)
    start, update = server(config)
    capacity = buffer_capacity(*plan.check_ins, MICROBATCH_UNIT)
    mechanism = Mechanism.of(config)
    # Not more at once than a round is likely to have: absent clients of a microbatch cost as much as present ones.
    mechanism = dataclasses.replace(mechanism, microbatch=min(mechanism.clients_at_once, capacity))
    first_averaged = plan.num_rounds - int(config.averaging * plan.num_rounds)
    with (
        Session(
            config, dataset, run_dir, every=every, keep=keep, resume=resume, mesh=mesh, source=entropy
        ) as session,
        Spent(config) as spent,
    ):
        state = session.begin(start(jnp.zeros((size,), jnp.float32)))
        if state is None:
            state = start(initial(*network, draws.jax_key(session.entropy, Stream.INITIAL_PARAMETERS)))
            session.checkpoint(state)
        state, images, labels, *test = jax.device_put(
            (state, dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels),
            None if mesh is None else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()),
        )
        held = draws.client_records(
            session.entropy, config.protocol.num_clients, len(dataset.train_labels), config.records_per_client
        )
        draw, noise_key = Draw(plan, session.entropy), draws.jax_key(session.entropy, Stream.NOISE)
        spent.prepare(session.rounds)
        if on_model is not None:
            on_model(state.flat)
        contribution, stopped, seen = _contribution(config, loss), None, state
        under_way: collections.deque[_Round] = collections.deque()

        def settle(done: _Round) -> None:
            """Waits for a round, and only then logs it and shows its result; it is counted before."""
            nonlocal seen
            jax.block_until_ready(done.after)
            session.rounds = done.line["round"]
            seen, line = done.after, done.line
            if done.evaluated:
                session.tested = session.rounds, float(accuracy(seen.average, *test))
                line |= _norms(config, done) | {"accuracy": session.tested[1]} | spent.line(session.rounds)
            session.log(line)
            if on_round is not None:
                on_round(line)
            if on_model is not None:
                on_model(seen.flat)
            session.checkpoint(seen)

        try:
            for index in range(session.rounds, plan.num_rounds):
                if session.reached(config.target_accuracy):
                    stopped = f"reached accuracy {config.target_accuracy:g}"
                    break
                chosen, rounds, total = draw.clients(index), index + 1, None
                if len(chosen):  # nobody checked in: no message, no step
                    total = round_sum(
                        mechanism,
                        contribution,
                        unravel(state.flat),
                        images,
                        labels,
                        _records(held, chosen),
                        draws.round_key(noise_key, index),
                        capacity=capacity,
                        mesh=mesh,
                    )
                    averaged = max(0, rounds - first_averaged)
                    state = update(state, total, plan.divisor(len(chosen)), averaged)
                line: dict[str, Any] = {"round": rounds, "check_ins": len(chosen)}
                if plan.slots_per_unit > 1:
                    line["window"] = plan.units(rounds)
                evaluated = rounds % config.eval_every == 0 or rounds == plan.num_rounds
                under_way.append(_Round(line, state, total if evaluated else None, evaluated))
                while len(under_way) > (0 if evaluated else AHEAD):
                    settle(under_way.popleft())
        except KeyboardInterrupt:
            # What is under way has been shown to nobody, and is dropped.
            if not session.rounds:
                raise
            stopped = INTERRUPTED
        except jax.errors.JaxRuntimeError as error:
            raise RoundError(
                f"round {session.rounds + 1} could not be computed: {str(error).strip().splitlines()[0]}"
            ) from error
        seconds = session.seconds
        tested, final = session.tested
        report = make_report(
            config,
            dataset=dataset.name,
            num_records=len(dataset.train_labels),
            accuracy=final if tested == session.rounds else float(accuracy(seen.average, *test)),
            rounds=session.rounds,
            seconds=seconds,
            stopped=stopped,
            entropy=session.source,
            known=spent.known(),
        )
        session.finish(report, networks.named_arrays(unravel(seen.average)))
    return report


def _contribution(config: TrainingConfig, loss: Loss) -> Loss | ClientUpdate:
    """What a client computes from its records; `round_sum` takes a loss for its mean gradient over them."""
    if config.local_learning_rate is None:
        return loss
    return clients.local_steps(loss, learning_rate=config.local_learning_rate, steps=config.local_steps)


def _norms(config: TrainingConfig, done: _Round) -> dict[str, Any]:
    """The l2 norm of a released update, None if it is not finite, and the norm that its noise is expected to have."""
    if done.total is None:
        return {}
    messages = done.line["check_ins"]
    divisor = config.plan.divisor(messages)
    norm, size = float(jnp.linalg.norm(done.total)) / divisor, done.total.size
    if isinstance(config.randomizer, Gaussian):
        noise = config.randomizer.noise_multiplier * config.clip_norm * math.sqrt(size)
    else:
        noise = mechanisms.l2_message_norm(size, config.clip_norm, config.randomizer.epsilon0)
    noise *= math.sqrt(messages) / divisor
    return {"update_norm": norm if math.isfinite(norm) else None, "noise_norm": noise}


def _records(held: np.ndarray | DrawnRecords, chosen: np.ndarray) -> np.ndarray:
    """The records of the chosen clients, a row of DUMMY where a client is DUMMY."""
    present = chosen != DUMMY
    if present.all():
        return held[chosen]
    records = np.full((len(chosen), *held.shape[1:]), DUMMY, np.int32)
    records[present] = held[chosen[present]]
    return records
