"""Per-client gradients from what each layer reads and what flows back into it, one matrix product a layer.

For a layer out = rows(x) matrix(kernel) + bias the gradient of one record is rows(x)^T times the cotangent
of `out`. So a loss whose parameters are used by such layers only is differentiated with respect to the
layers' outputs instead, all records of a microbatch at once; nothing of the size of the parameters is formed
per record where a record has one row. Whether a loss is of this kind is read off its trace: see `refusal`.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from checkin_jax.training.private.rows import Block, Layout, Rows, float32

Loss = Callable[[Any, Any], jax.Array]  # (parameters, one record) -> scalar


def affine(x: jax.Array, kernel: jax.Array, bias: jax.Array, layout: Layout | None = None) -> jax.Array:
    """x matrix(kernel) + bias over the last axis of x; the operation that per-client gradients see.

    Args:
      x: (..., p).
      kernel, bias: parameter arrays, handed over as they are: an array computed from them is not recognised.
      layout: a permutation of the kernel's entries into a matrix (p, q); None if it is one already.

    Returns:
      (..., q).
    """
    trace = _TRACE.get()
    return _product(x, kernel, bias, layout) if trace is None else trace.layer(x, kernel, bias, layout)


def refusal(loss: Loss, parameters: Any, record: Any) -> str | None:
    """Why this loss cannot be differentiated layer by layer; None if it can.

    It can if every parameter array is the kernel or the bias of exactly one call of `affine`, is used
    nowhere else, and no such call happens inside a transformation (vmap, scan, jit ...) within the loss.

    Args:
      loss: the scalar loss of one record.
      parameters, record: pytrees of arrays or of their shapes; nothing is computed.
    """
    return _probe(loss, parameters, record)[1]


def gradient_rows(loss: Loss, parameters: Any, records: Any, weights: jax.Array) -> Rows:
    """Every client's gradient of the weighted mean loss over its records, equal to `jax.vmap(jax.grad(...))`.

    Args:
      loss: the scalar loss of one record.
      parameters: pytree of floating-point arrays.
      records: pytree of arrays (m, r, ...), r a client.
      weights: (m, r), of each record in its client's mean.

    Returns:
      m float32 rows, in the order of `jax.tree.leaves(parameters)`.

    Raises:
      ValueError: the loss is not of the right kind; says why.
    """
    clients, each = weights.shape
    calls, reason = _probe(loss, parameters, jax.tree.map(lambda x: x[0, 0], records))
    if reason is not None:
        raise ValueError(f"gradients cannot be taken layer by layer: {reason}")

    def traced(shifts: list[jax.Array], record: Any) -> Any:
        leaves = jax.tree.leaves(parameters)
        trace = _Trace(leaves, leaves, shifts)
        with trace.active():
            value = loss(parameters, record)
        return value, [call.x for call in trace.calls]

    shifts = [jnp.zeros(call.out.shape, call.out.dtype) for call in calls]
    flat = jax.tree.map(lambda x: x.reshape(clients * each, *x.shape[2:]), records)
    cotangents, inputs = jax.vmap(jax.grad(traced, has_aux=True), (None, 0))(shifts, flat)
    blocks: dict[int, Block] = {}
    for call, x, cotangent in zip(calls, inputs, cotangents):
        x, cotangent = float32(x), float32(cotangent)
        x = x.reshape(clients, -1, x.shape[-1])
        if each > 1:
            cotangent = cotangent.reshape(clients, each, -1) * weights[:, :, None]
        cotangent = cotangent.reshape(clients, -1, call.out.shape[-1])
        bias = jnp.sum(cotangent, axis=1)
        if x.shape[1] == 1:
            factors = x[:, 0], bias
        else:
            factors = (jnp.einsum("mtp,mtq->mpq", x, cotangent).reshape(clients, -1),)
        blocks[call.kernel] = Block(factors, call.kernel_shape, call.layout)
        blocks[call.bias] = Block((bias,), bias.shape[1:])
    return Rows(tuple(blocks[i] for i in range(len(blocks))))


@dataclasses.dataclass
class _Call:
    """One call of `affine`: its places among the parameter arrays, what it read, what it returned."""

    kernel: int
    bias: int
    kernel_shape: tuple[int, ...]
    layout: Layout | None
    x: jax.Array
    out: jax.Array


@dataclasses.dataclass
class _Trace:
    """Calls of `affine` during one trace of a loss.

    Attributes:
      given: the parameter arrays as the loss sees them, recognised by identity.
      used: the arrays to compute with in their place.
      shifts: added to the outputs, one a call, so that they can be differentiated; None adds nothing.
    """

    given: list[jax.Array]
    used: list[jax.Array]
    shifts: list[jax.Array] | None = None
    calls: list[_Call] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        token = _TRACE.set(self)
        try:
            yield
        finally:
            _TRACE.reset(token)

    def layer(self, x: jax.Array, kernel: jax.Array, bias: jax.Array, layout: Layout | None) -> jax.Array:
        i, j = self._place(kernel), self._place(bias)
        if i is None or j is None:
            return _product(x, kernel, bias, layout)
        out = _product(x, self.used[i], self.used[j], layout)
        if self.shifts is not None:
            out = out + self.shifts[len(self.calls)]
        self.calls.append(_Call(i, j, kernel.shape, layout, x, out))
        return out

    def _place(self, array: jax.Array) -> int | None:
        return next((i for i, leaf in enumerate(self.given) if leaf is array), None)


_TRACE: contextvars.ContextVar[_Trace | None] = contextvars.ContextVar("layers traced", default=None)


def _product(x: jax.Array, kernel: jax.Array, bias: jax.Array, layout: Layout | None) -> jax.Array:
    out = x @ (kernel if layout is None else layout(kernel))
    # Leading unit axes, so that the addition promotes no rank.
    return out + bias.reshape((1,) * (out.ndim - 1) + bias.shape)


def _probe(loss: Loss, parameters: Any, record: Any) -> tuple[list[_Call], str | None]:
    """The layers a loss calls, and why they do not account for its whole gradient (None if they do)."""
    leaves, structure = jax.tree.flatten(parameters)
    calls: list[_Call] = []

    def traced(given: list[jax.Array], used: list[jax.Array], record: Any) -> Any:
        trace = _Trace(given, used)
        with trace.active():
            value = loss(structure.unflatten(given), record)
        calls[:] = trace.calls
        return value, [call.x for call in trace.calls]

    closed = jax.make_jaxpr(traced)(leaves, leaves, record)
    jaxpr = closed.jaxpr
    # To the outer trace the arrays of a transformation within the loss are foreign: constants, yet no values.
    foreign = {id(x) for x, value in zip(jaxpr.constvars, closed.consts) if isinstance(value, Tracer)}
    if any(id(x) in foreign for x in jaxpr.outvars):
        return calls, "a layer is called inside a transformation within the loss"
    named = sorted(place for call in calls for place in (call.kernel, call.bias))
    if named != list(range(len(leaves))):
        return (
            calls,
            f"of {len(leaves)} parameter arrays, layers use {len(set(named))} in {len(named)} places",
        )
    read = {id(x) for equation in jaxpr.eqns for x in equation.invars} | {id(x) for x in jaxpr.outvars}
    if any(id(x) in read for x in jaxpr.invars[: len(leaves)]):
        return calls, "a parameter array is used outside layers, too"
    return calls, None
