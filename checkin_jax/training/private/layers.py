"""Per-client gradients from each layer's input and cotangent, with one matrix product per layer.

For a layer out = read(x) matrix(kernel), the gradient of one record is read(x)^T times the cotangent of
`out`. So a loss is differentiated with respect to the outputs of such layers, for all records of a microbatch
at once. If a record has one row, nothing of the size of the kernel is formed per record. For a table only the
lines in use are formed. All other parameter arrays, and those used more than once, are differentiated
directly in the same pass: biases, scales of normalisations, tied embeddings, parameters in loops. The trace
of the loss determines the case, for any framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from checkin_jax.training.private.jaxpr import Operations, operations
from checkin_jax.training.private.layer_patterns import Layer, layers
from checkin_jax.training.private.per_client_gradients import Block, ClientVectors, TableBlock, float32

# (parameters, one record) -> scalar, or (parameters, one record, key) -> scalar
Loss = Callable[..., jax.Array]
# Operations that a trace does not fully describe: random numbers, and functions with their own batching rule.
_UNCLEAR = ("random_", "rng_", "threefry", "custom_vmap_call", "custom_partitioning")


@dataclasses.dataclass(frozen=True)
class GradientMethod:
    """Method for the gradient of a loss: `listed` is the loss, `found` its arrays that are layers.

    `refusal` is the reason for not differentiating layer by layer; None if it is done.
    """

    listed: Operations
    found: tuple[Layer, ...]
    refusal: str | None


def plan(loss: Loss, parameters: Any, record: Any) -> GradientMethod:
    """Finds layers in the trace of a loss; nothing is computed.

    A parameter array is a layer if exactly one matrix product, convolution or lookup reads it, and nothing
    else does. A loss is refused as a whole if it draws random numbers, communicates with the host, or
    contains functions with their own batching rule.

    Args:
      loss: the scalar loss of one record.
      parameters, record: pytrees of arrays or of their shapes.
    """
    listed = operations(loss, parameters, record)
    unclear = sorted(
        {name for name in listed.names if name.startswith(_UNCLEAR) or name.endswith("callback")}
    )
    found = tuple(layers(listed, len(jax.tree.leaves(parameters))))
    refusal = None
    if unclear or listed.effects:
        refusal = f"the loss does more than compute: {', '.join(unclear) or 'effects'}"
    elif not found:
        refusal = "no parameter array is read by one matrix product, convolution or lookup, and nowhere else"
    return GradientMethod(listed, found, refusal)


def gradient_rows(plan: GradientMethod, parameters: Any, records: Any, weights: jax.Array) -> ClientVectors:
    """Every client's gradient of the weighted mean loss over its records, equal to `jax.vmap(jax.grad(...))`.

    Args:
      plan: of the loss, with `refusal` None, made in the same process.
      parameters: pytree of floating-point arrays.
      records: pytree of arrays (m, r, ...), r per client.
      weights: (m, r), of each record in its client's mean.

    Returns:
      m float32 rows, in the order of `jax.tree.leaves(parameters)`.
    """
    clients, each = weights.shape
    leaves = jax.tree.leaves(parameters)
    own = {layer.leaf for layer in plan.found}

    def loss(shifts: list[jax.Array], rest: list[jax.Array], record: list[jax.Array]) -> Any:
        reads: dict[int, jax.Array] = {}

        def shifted(layer: Layer, shift: jax.Array) -> Callable[..., jax.Array]:
            def compute(*inputs: jax.Array) -> jax.Array:
                reads[layer.leaf], out = layer.kind.compute(*inputs)
                return layer.kind.finish(out + shift)

            return compute

        others = iter(rest)
        given = [leaf if i in own else next(others) for i, leaf in enumerate(leaves)]
        instead = {layer.operation: shifted(layer, shift) for layer, shift in zip(plan.found, shifts)}
        (value,) = plan.listed([*given, *record], instead)
        return value, [reads[layer.leaf] for layer in plan.found]

    def client(
        shifts: list[jax.Array], rest: list[jax.Array], held: list[jax.Array], weights: jax.Array
    ) -> Any:
        if each == 1:
            return loss(shifts, rest, [x[0] for x in held])
        values, reads = jax.vmap(loss, (0, None, 0))(shifts, rest, held)
        return jnp.sum(weights * values.astype(jnp.float32)), reads

    lead = () if each == 1 else (each,)
    shifts = [jnp.zeros((*lead, *layer.kind.out.shape), layer.kind.out.dtype) for layer in plan.found]
    rest = [leaf for i, leaf in enumerate(leaves) if i not in own]
    gradient = jax.vmap(jax.grad(client, (0, 1), has_aux=True), (None, None, 0, 0))
    (backs, direct), reads = gradient(shifts, rest, jax.tree.leaves(records), weights)

    blocks: dict[int, Block | TableBlock] = {}
    for layer, read, back in zip(plan.found, reads, backs):
        # The inputs of all records of a client share one axis.
        number, ends = each * layer.kind.out.shape[0], len(lead) + 2
        read, back = (x.reshape(clients, number, *x.shape[ends:]) for x in (read, back))
        blocks[layer.leaf] = layer.kind.block(read, back, leaves[layer.leaf].shape)
    values = iter(direct)
    for i, leaf in enumerate(leaves):
        if i not in own:
            blocks[i] = Block((float32(next(values)).reshape(clients, -1),), leaf.shape)
    return ClientVectors(tuple(blocks[i] for i in range(len(blocks))))
