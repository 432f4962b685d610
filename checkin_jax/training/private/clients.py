"""Client updates before clipping: a gradient, or the result of several local steps.

A loss, or the function of a `ClientUpdate`, may take a key for the client's own coins, such as those of
dropout. The law of a message given its record is then a mixture over coins that no other message uses, so
every guarantee holds.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from checkin_jax import _validate
from checkin_jax.training.private import layers
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.private.per_client_gradients import ClientVectors, float32

Parameters = Any  # a pytree of floating-point arrays
Records = Any  # a pytree of arrays with one leading axis, of records


def takes_key(update: Loss | ClientUpdate) -> bool:
    """True if a loss, or the function of an update, takes a key: one further argument without a default."""
    function, others = (update.function, 3) if isinstance(update, ClientUpdate) else (update, 2)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function implemented in C
        return False
    return not _accepts(signature, others) and _accepts(signature, others + 1)


def _accepts(signature: inspect.Signature, number: int) -> bool:
    try:
        signature.bind(*[None] * number)
    except TypeError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class ClientUpdate:
    """A function of one client's records that replaces the gradient of a loss.

    Attributes:
      function: `function(parameters, records, weights)`, a pytree like the parameters, or one array with as
        many entries. `records` are the client's own, with a leading axis of r. `weights` (r,) sum to one and
        are zero for places without a record. The server steps against the result, as against a gradient. The
        function is pure and the same object in all calls, since a new function compiles anew. A function of
        four arguments, `function(parameters, records, weights, key)`, also receives the client's key of the
        round.
    """

    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LocalSteps:
    """Start minus end of a client's steps. Equal settings are equal objects, so they compile once."""

    loss: Loss
    learning_rate: float
    steps: int
    batch: int | None

    def __call__(
        self, parameters: Parameters, records: Records, weights: jax.Array, key: jax.Array
    ) -> Parameters:
        batch = len(weights) if self.batch is None else self.batch
        if len(weights) % batch:
            raise ValueError(f"batch={batch}: expected a divisor of the {len(weights)} records of a client")
        batches = jax.tree.map(lambda x: x.reshape(-1, batch, *x.shape[1:]), (records, weights))
        number = len(weights) // batch
        keyed = takes_key(self.loss)

        def step(local: Parameters, i: jax.Array) -> tuple[Parameters, None]:
            chosen, weight = jax.tree.map(lambda x: x[i % number], batches)
            share = jnp.sum(weight)
            weight = weight / jnp.where(share > 0, share, jnp.ones_like(share))
            own = (jax.random.fold_in(key, i),) if keyed else ()
            gradient = jax.grad(mean_loss(self.loss))(local, chosen, weight, *own)
            return jax.tree.map(lambda p, g: p - self.learning_rate * g, local, gradient), None

        final, _ = jax.lax.scan(step, parameters, jnp.arange(self.steps, dtype=jnp.int32))
        return jax.tree.map(jnp.subtract, parameters, final)


def local_steps(loss: Loss, *, learning_rate: float, steps: int, batch: int | None = None) -> ClientUpdate:
    """Federated averaging: gradient steps on the client's own records; the update is start minus end.

    With a server learning rate of 1 over the number of clients, the new model is the mean of the clients'
    models. The whole difference is clipped, and hence private, for any number of steps.

    Args:
      loss: the scalar loss of one record, `loss(parameters, record)` or `loss(parameters, record, key)`.
      learning_rate: of the client's steps, > 0.
      steps: number of steps, >= 1.
      batch: records per step, a divisor of the client's number of records (checked at use). Step i takes the
        i-th slice of consecutive records, cyclically. None uses all records in every step.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    return ClientUpdate(
        _LocalSteps(
            loss=loss,
            learning_rate=_validate.real(0, 1e30, "(]", learning_rate=learning_rate),
            steps=_validate.integer(1, steps=steps),
            batch=_validate.optional(_validate.integer, 1, batch=batch),
        )
    )


def update_rows(
    update: Loss | ClientUpdate,
    parameters: Parameters,
    records: Records,
    weights: jax.Array,
    gradients: str,
    keys: jax.Array | None = None,
) -> ClientVectors:
    """Updates of a microbatch of clients, one per row.

    Args:
      update: a loss of one record, whose update is the gradient of its mean over the client's records, or a
        `ClientUpdate`.
      parameters: pytree of floating-point arrays.
      records: pytree of arrays (m, r, ...), r records per client.
      weights: (m, r), of each record in its client's mean.
      gradients: see `Performance`.
      keys: (m,), one per client, used nowhere else; required if `takes_key(update)`.

    Returns:
      m float32 rows, in the order of `jax.tree.leaves(parameters)`, for parameters of any precision.

    Raises:
      ValueError: "layers" for a loss or an update that does not allow it, see `layers.plan`.
      TypeError: an update that is not real floating-point numbers.
    """
    keyed = takes_key(update)
    if isinstance(update, ClientUpdate):
        if gradients == "layers":
            raise ValueError("gradients='layers': expected a loss, not a ClientUpdate")
        function = update.function
    else:
        if keyed and gradients == "layers":
            raise ValueError("gradients='layers': expected a loss of two arguments, not one that takes a key")
        if not keyed and gradients != "general":
            plan = layers.plan(update, parameters, jax.tree.map(lambda x: x[0, 0], records))
            if plan.refusal is None:
                return layers.gradient_rows(plan, parameters, records, weights)
            if gradients == "layers":
                raise ValueError(f"gradients cannot be taken layer by layer: {plan.refusal}")
        function = jax.grad(mean_loss(update) if weights.shape[1] > 1 else _single_loss(update))
    each = (records, weights, keys) if keyed else (records, weights)
    rows = jax.vmap(lambda each: function(parameters, *each))(each)
    flat = [float32(x).reshape(len(weights), -1) for x in jax.tree.leaves(rows)]
    return ClientVectors.of(jnp.concatenate(flat, axis=1))


def mean_loss(loss: Loss) -> Callable[..., jax.Array]:
    """Weighted mean loss of a client's records, (parameters, records, weights) -> scalar.

    For a loss that takes a key it is also a function of the client's key; each record has its own key, by its
    place in the row.
    """

    def mean(parameters: Parameters, records: Records, weights: jax.Array, *key: jax.Array) -> jax.Array:
        own = [_record_keys(one, len(weights)) for one in key]
        losses = jax.vmap(loss, (None, *[0] * (1 + len(own))))(parameters, records, *own)
        return jnp.sum(weights * losses.astype(jnp.float32))

    return mean


def _single_loss(loss: Loss) -> Callable[..., jax.Array]:
    """Loss of a client's only record, in the form of `mean_loss`."""

    def single(parameters: Parameters, records: Records, weights: jax.Array, *key: jax.Array) -> jax.Array:
        own = [_record_keys(one, 1) for one in key]
        return loss(parameters, *jax.tree.map(lambda x: x[0], (records, *own)))

    return single


def _record_keys(key: jax.Array, number: int) -> jax.Array:
    """(number,): a key for each record of a client, by its place in the client's row."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(number, dtype=jnp.int32))
