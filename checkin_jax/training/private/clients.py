"""What a client computes from its records before clipping: a gradient, or the outcome of several local steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from checkin_jax import _validate
from checkin_jax.training.private import layers
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.private.rows import Rows, float32

Parameters = Any  # a pytree of floating-point arrays
GRADIENTS = ("auto", "layers", "general")


@dataclasses.dataclass(frozen=True)
class ClientUpdate:
    """Any function of one client's records, in place of the gradient of a loss.

    Attributes:
      function: `function(parameters, images (r, ...), labels (r,))`, a pytree like the parameters, or one
        array with as many entries. The server moves against it, as against a gradient. Pure, and equal to
        itself from call to call: a new function compiles anew.
    """

    function: Callable[[Parameters, jax.Array, jax.Array], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LocalSteps:
    loss: Loss
    learning_rate: float
    steps: int
    batch: int | None

    def __call__(self, parameters: Parameters, images: jax.Array, labels: jax.Array) -> Parameters:
        batch = len(images) if self.batch is None else self.batch
        if len(images) % batch:
            raise ValueError(f"batch={batch}: expected a divisor of the {len(images)} records of a client")
        batches = [x.reshape(-1, batch, *x.shape[1:]) for x in (images, labels)]

        def step(local: Parameters, i: jax.Array) -> tuple[Parameters, None]:
            chosen = [x[i % len(x)] for x in batches]
            gradient = jax.grad(_mean(self.loss))(local, *chosen)
            return jax.tree.map(lambda p, g: p - self.learning_rate * g, local, gradient), None

        final, _ = jax.lax.scan(step, parameters, jnp.arange(self.steps, dtype=jnp.int32))
        return jax.tree.map(jnp.subtract, parameters, final)


def local_steps(loss: Loss, *, learning_rate: float, steps: int, batch: int | None = None) -> ClientUpdate:
    """Federated averaging: gradient steps on the client's own records; the update is start minus end.

    With a server learning rate of 1 over the number of clients the new model is the mean of the clients'.
    What is clipped, and hence private, is the whole difference, however many steps it took.

    Args:
      loss: the scalar loss of one record.
      learning_rate: of the client's steps, > 0.
      steps: number of steps, >= 1.
      batch: records of one step, a divisor of the client's number of records (checked when used); step i
        takes the i-th slice of consecutive records, round and round. None takes all records every step.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    return ClientUpdate(
        _LocalSteps(
            loss=loss,
            learning_rate=_validate.real(0, 1e30, open_low=True, learning_rate=learning_rate),
            steps=_validate.integer(1, steps=steps),
            batch=None if batch is None else _validate.integer(1, batch=batch),
        )
    )


def update_rows(
    update: Loss | ClientUpdate, parameters: Parameters, images: jax.Array, labels: jax.Array, gradients: str
) -> Rows:
    """The updates of a microbatch of clients, one row each.

    Args:
      update: a loss of one record, which stands for the gradient of its mean over the client's records, or
        a `ClientUpdate`.
      parameters: pytree of floating-point arrays.
      images, labels: (m, r, ...), r records a client.
      gradients: "layers" differentiates a loss layer by layer (see `layers.refusal`), "general" by
        `jax.vmap(jax.grad(loss))`, which any loss allows; "auto" takes the first where it can.

    Returns:
      m float32 rows, in the order of `jax.tree.leaves(parameters)`, whatever the parameters' own precision.

    Raises:
      ValueError: "layers" for a loss or an update that does not allow it.
      TypeError: an update of other than real floating-point numbers.
    """
    if isinstance(update, ClientUpdate):
        if gradients == "layers":
            raise ValueError("gradients='layers': expected a loss, not a ClientUpdate")
        function = update.function
    elif gradients == "layers" or (
        gradients == "auto" and layers.refusal(update, parameters, images[0, 0], labels[0, 0]) is None
    ):
        return layers.gradient_rows(update, parameters, images, labels)
    elif images.shape[1] == 1:
        function, images, labels = jax.grad(update), images[:, 0], labels[:, 0]
    else:
        function = jax.grad(_mean(update))
    rows = jax.vmap(function, (None, 0, 0))(parameters, images, labels)
    flat = [float32(x).reshape(len(images), -1) for x in jax.tree.leaves(rows)]
    return Rows.of(jnp.concatenate(flat, axis=1))


def _mean(loss: Loss) -> Loss:
    """The mean loss of several records."""

    def mean(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(parameters, images, labels))

    return mean
