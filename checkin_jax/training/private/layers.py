"""Per-client gradients from what each layer reads and what flows back into it, one matrix product a layer.

For a layer out = read(x) matrix(kernel) the gradient of one record is read(x)^T times the cotangent of `out`. So a loss
is differentiated with respect to the outputs of such layers, all records of a microbatch at once, and nothing of the
size of the kernel is formed per record where a record has one row; of a table only the lines that were looked up are.
Parameter arrays used in any other way, or more than once, are differentiated directly in the same pass: biases, scales
of normalisations, tied embeddings, whatever stands in a loop. What is used how is read off the trace of the loss, for
which it makes no difference where its layers come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from checkin_jax.training.private.jaxpr import Operations, names, operations
from checkin_jax.training.private.layer_patterns import Layer, layers
from checkin_jax.training.private.per_client_gradients import Block, Rows, TableBlock, float32

# (parameters, one record) -> scalar, or (parameters, one record, key) -> scalar
Loss = Callable[..., jax.Array]
# Operations of which a trace does not say all: random numbers, and functions with rules of their own for many clients.
_UNCLEAR = ("random_", "rng_", "threefry", "custom_vmap_call", "custom_partitioning")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the gradient of a loss is taken: `listed` is the loss, `found` its arrays with a layer of their own.

    `refusal` says why it is not taken layer by layer; None if it is.
    """

    listed: Operations
    found: tuple[Layer, ...]
    refusal: str | None


def plan(loss: Loss, parameters: Any, record: Any) -> Plan:
    """Looks for layers in the trace of a loss; nothing is computed.

    There are some if a parameter array is read by exactly one matrix product, convolution or lookup, and nowhere else.
    A loss that draws random numbers, speaks to the host, or holds functions with rules of their own for many clients is
    refused as a whole.

    Args:
      loss: the scalar loss of one record.
      parameters, record: pytrees of arrays or of their shapes.
    """
    listed = operations(loss, parameters, record)
    unclear = sorted(
        {name for name in _all(listed) if name.startswith(_UNCLEAR) or name.endswith("callback")}
    )
    found = tuple(layers(listed, len(jax.tree.leaves(parameters))))
    refusal = None
    if unclear or listed.effects:
        refusal = f"the loss does more than compute: {', '.join(unclear) or 'effects'}"
    elif not found:
        refusal = "no parameter array is read by one matrix product, convolution or lookup, and nowhere else"
    return Plan(listed, found, refusal)


def gradient_rows(plan: Plan, parameters: Any, records: Any, weights: jax.Array) -> Rows:
    """Every client's gradient of the weighted mean loss over its records, equal to `jax.vmap(jax.grad(...))`.

    Args:
      plan: of the loss, with `refusal` None, made where it is used.
      parameters: pytree of floating-point arrays.
      records: pytree of arrays (m, r, ...), r a client.
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
        # What all records of a client read is on one axis.
        number, ends = each * layer.kind.out.shape[0], len(lead) + 2
        read, back = (x.reshape(clients, number, *x.shape[ends:]) for x in (read, back))
        blocks[layer.leaf] = layer.kind.block(read, back, leaves[layer.leaf].shape)
    values = iter(direct)
    for i, leaf in enumerate(leaves):
        if i not in own:
            blocks[i] = Block((float32(next(values)).reshape(clients, -1),), leaf.shape)
    return Rows(tuple(blocks[i] for i in range(len(blocks))))


def _all(listed: Operations) -> Iterator[str]:
    """Names of all operations, those within loops and branches among them."""
    for operation in listed.listed:
        yield operation.name
        yield from names(operation.within.replace(eqns=[operation.equation]))
