"""Client updates before clipping: a gradient, or the outcome of several local steps."""

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
Records = Any  # a pytree of arrays with one leading axis, of records


@dataclasses.dataclass(frozen=True)
class ClientUpdate:
    """Any function of one client's records, in place of the gradient of a loss.

    Attributes:
      function: `function(parameters, records, weights)`, a pytree like the parameters, or one array with as many
        entries. `records` are the client's own, with a leading axis of r; `weights` (r,) add up to one and are zero
        for places that hold no record of its own. The server moves against it, as against a gradient. Pure, and
        equal to itself from call to call: a new function compiles anew.
    """

    function: Callable[[Parameters, Records, jax.Array], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LocalSteps:
    loss: Loss
    learning_rate: float
    steps: int
    batch: int | None

    def __call__(self, parameters: Parameters, records: Records, weights: jax.Array) -> Parameters:
        batch = len(weights) if self.batch is None else self.batch
        if len(weights) % batch:
            raise ValueError(f"batch={batch}: expected a divisor of the {len(weights)} records of a client")
        batches = jax.tree.map(lambda x: x.reshape(-1, batch, *x.shape[1:]), (records, weights))
        number = len(weights) // batch

        def step(local: Parameters, i: jax.Array) -> tuple[Parameters, None]:
            chosen, weight = jax.tree.map(lambda x: x[i % number], batches)
            share = jnp.sum(weight)
            weight = weight / jnp.where(share > 0, share, jnp.ones_like(share))
            gradient = jax.grad(mean_loss(self.loss))(local, chosen, weight)
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
    update: Loss | ClientUpdate, parameters: Parameters, records: Records, weights: jax.Array, gradients: str
) -> Rows:
    """The updates of a microbatch of clients, one row each.

    Args:
      update: a loss of one record, which stands for the gradient of its mean over the client's records, or
        a `ClientUpdate`.
      parameters: pytree of floating-point arrays.
      records: pytree of arrays (m, r, ...), r records a client.
      weights: (m, r), of each record in its client's mean.
      gradients: see `Performance`.

    Returns:
      m float32 rows, in the order of `jax.tree.leaves(parameters)`, whatever the parameters' own precision.

    Raises:
      ValueError: "layers" for a loss or an update that does not allow it, see `layers.plan`.
      TypeError: an update of other than real floating-point numbers.
    """
    each: tuple[Any, ...] = records, weights
    if isinstance(update, ClientUpdate):
        if gradients == "layers":
            raise ValueError("gradients='layers': expected a loss, not a ClientUpdate")
        function = update.function
    else:
        if gradients != "general":
            plan = layers.plan(update, parameters, jax.tree.map(lambda x: x[0, 0], records))
            if plan.refusal is None:
                return layers.gradient_rows(plan, parameters, records, weights)
            if gradients == "layers":
                raise ValueError(f"gradients cannot be taken layer by layer: {plan.refusal}")
        function = jax.grad(update)
        if weights.shape[1] == 1:
            each = (jax.tree.map(lambda x: x[:, 0], records),)
        else:
            function = jax.grad(mean_loss(update))
    rows = jax.vmap(lambda each: function(parameters, *each))(each)
    flat = [float32(x).reshape(len(weights), -1) for x in jax.tree.leaves(rows)]
    return Rows.of(jnp.concatenate(flat, axis=1))


def mean_loss(loss: Loss) -> Callable[[Parameters, Records, jax.Array], jax.Array]:
    """The weighted mean loss of several records."""

    def mean(parameters: Parameters, records: Records, weights: jax.Array) -> jax.Array:
        return jnp.sum(weights * jax.vmap(loss, (None, 0))(parameters, records).astype(jnp.float32))

    return mean
