"""What the server does with a round's sum: post-processing, which costs no privacy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import numpy as np
import optax

from checkin_jax.training.config import TrainingConfig


class State(NamedTuple):
    """The model as one flat vector, the optimizer's state, and the running average of the parameters."""

    flat: jax.Array
    optimizer: optax.OptState
    average: jax.Array


class Server(NamedTuple):
    """The server's two functions.

    Attributes:
      start: flat parameters -> the first state.
      update: (state, sum of messages, divisor, rounds averaged so far or 0) -> the next state.
    """

    start: Callable[[jax.Array], State]
    update: Callable[[State, jax.Array, float, int], State]


def server(config: TrainingConfig) -> Server:
    """The server of a run: gradient steps with momentum and decay on the mean message, and the average."""
    rate = config.learning_rate
    if config.decay == "linear":
        rate = optax.linear_schedule(config.learning_rate, 0.0, config.plan.num_rounds)
    optimizer = optax.sgd(rate, momentum=config.momentum or None)

    @jax.jit
    def apply(state: State, total: jax.Array, scale: np.float32, weight: np.float32) -> State:
        updates, optimizer_state = optimizer.update(total * scale, state.optimizer, state.flat)
        flat = state.flat + cast(jax.Array, updates)
        return State(flat, optimizer_state, state.average + weight * (flat - state.average))

    def update(state: State, total: jax.Array, divisor: float, averaged: int) -> State:
        return apply(state, total, np.float32(1.0 / divisor), np.float32(1.0 / max(1, averaged)))

    return Server(lambda flat: State(flat, optimizer.init(flat), flat), update)
