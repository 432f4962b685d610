"""The server's update from a round's sum: post-processing, which costs no privacy; a first guess at its learning rate.

Tuning the learning rate on the protected data would itself cost privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from checkin_jax import _validate
from checkin_jax.training.private.clients import Parameters
from checkin_jax.training.run import PrivateRun


class State(NamedTuple):
    """The parameters, the optimizer's state, and the running average of the parameters in float32."""

    parameters: Parameters
    optimizer: optax.OptState
    average: Parameters


class Server(NamedTuple):
    """The server's two functions.

    Attributes:
      start: parameters -> the first state.
      update: (state, sum of messages, divisor, rounds averaged so far or 0) -> the next state.
    """

    start: Callable[[Parameters], State]
    update: Callable[[State, jax.Array, float, int], State]


def server(optimizer: optax.GradientTransformation) -> Server:
    """Steps of any optax optimizer with the mean message as gradient, and the average of the parameters."""

    def start(parameters: Parameters) -> State:
        # Copies: no two leaves of a state may share one array.
        average = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), parameters)
        return State(parameters, optimizer.init(parameters), average)

    @jax.jit
    def apply(state: State, total: jax.Array, scale: np.float32, weight: np.float32) -> State:
        gradient = unflatten(total * scale, state.parameters)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.parameters)
        parameters = jax.tree.map(lambda p, u: p + u.astype(p.dtype), state.parameters, updates)
        average = jax.tree.map(
            lambda a, p: a + weight * (p.astype(jnp.float32) - a), state.average, parameters
        )
        return State(parameters, optimizer_state, average)

    def update(state: State, total: jax.Array, divisor: float, averaged: int) -> State:
        return apply(state, total, np.float32(1.0 / divisor), np.float32(1.0 / max(1, averaged)))

    return Server(start, update)


def check_optimizer(optimizer: optax.GradientTransformation, shapes: Parameters) -> None:
    """Refuses, before any round, an optimizer that needs more than a gradient.

    Raises:
      TypeError: not an optax transformation, or one that needs more than gradient, state and parameters.
    """
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise _validate.type_error("an optax transformation", optimizer=optimizer)
    start, update = server(optimizer)
    total = jax.ShapeDtypeStruct((sum(leaf.size for leaf in jax.tree.leaves(shapes)),), jnp.float32)
    state = jax.eval_shape(start, shapes)
    try:
        after = jax.eval_shape(lambda state, total: update(state, total, 1.0, 1), state, total)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"optimizer: cannot step on gradient, state and parameters alone: {error}") from error
    if jax.tree.map(lambda x: (x.shape, x.dtype), after) != jax.tree.map(lambda x: (x.shape, x.dtype), state):
        raise TypeError("optimizer: a step changes the shapes or types of parameters or of its state")


def averaged(state: State) -> Parameters:
    """The average as parameters, in their own precision, for evaluation and saving."""
    return jax.tree.map(lambda a, p: a.astype(p.dtype), state.average, state.parameters)


def unflatten(vector: jax.Array, like: Parameters) -> Parameters:
    """A vector in the order of `jax.tree.leaves(like)` in the structure, shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    pieces = jnp.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    shaped = [piece.reshape(leaf.shape).astype(leaf.dtype) for piece, leaf in zip(pieces, leaves)]
    return jax.tree.unflatten(structure, shaped)


TYPICAL = 0.15
# Descriptions, for reports, of how settings were chosen.
BY_RULE = (
    "learning rate by a rule of thumb from the settings of the run alone; the rule was found on MNIST by looking at "
    "test accuracies"
)
NOT_STATED = (
    "how optimizer and settings were chosen was not stated; choosing them by looking at runs on these clients' records "
    "costs privacy that is not counted here"
)


def suggested_learning_rate(run: PrivateRun, rounds: int | None = None) -> float:
    """Suggests a learning rate by learning_rate * clip_norm = 0.15 sqrt(B/T) / z, for SGD with
    linear decay.

    B is the expected number of messages per round, and z is the standard deviation of one message's noise in clip
    norms. While nearly all clients are clipped only learning_rate * clip_norm matters, and the total noise of T such
    steps is the same for all settings. A rule of thumb, found on MNIST, without any guarantee.

    Args:
      run: the settings.
      rounds: T. Default: all of the run.
    """
    steps = math.sqrt(run.schedule.expected_messages / (rounds or run.schedule.num_rounds))
    return TYPICAL * steps / run.mechanism.noise_multiplier / run.clip_norm
