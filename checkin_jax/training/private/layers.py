"""Per-client gradients from each layer's input and cotangent, with one matrix product per layer.

For a layer out = read(x) matrix(kernel), the gradient of one record is read(x)^T times the cotangent of
`out`. So a loss is differentiated with respect to the outputs of such layers, for all records of a microbatch
at once. If a record has one row, nothing of the size of the kernel is formed per record. For a table only the
lines in use are formed. All other parameter arrays, and those used more than once, are differentiated
directly in the same pass: biases, scales of normalisations, tied embeddings, parameters in loops. The trace
of the loss determines the case, for any framework: layers are recognised by the operation on a parameter array.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from checkin_jax.training.private.per_client_gradients import (
    Block,
    ClientVectors,
    Layout,
    TableBlock,
    float32,
)

# Calls that are compiled separately; their operations are listed in their place.
_INLINED = ("jit", "pjit")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One primitive operation.

    Attributes:
      equation: as JAX traced it.
      reads, writes: numbers of the values that the equation reads and writes.
      within: the trace that contains it.
    """

    equation: JaxprEqn
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    within: Jaxpr

    @property
    def name(self) -> str:
        """Name of the primitive, such as "dot_general"."""
        return self.equation.primitive.name

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        given = {x: value for x, value in zip(self.equation.invars, inputs) if not isinstance(x, Literal)}
        alone = self.within.replace(
            constvars=[], invars=[*given], outvars=self.equation.outvars, eqns=[self.equation]
        )
        return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*given.values())


@dataclasses.dataclass(frozen=True)
class Operations:
    """Operations of a function on numbered values, each written once.

    Attributes:
      listed: operations in their order.
      constants: values that no operation writes.
      arguments, results: numbers of the leaves of both.
      names: of all operations, including those within calls, loops and branches.
      effects: true if the function has side effects.
    """

    listed: tuple[Operation, ...]
    constants: Mapping[int, Any]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    names: frozenset[str]
    effects: bool

    def __call__(
        self, arguments: Sequence[Any], instead: Mapping[int, Callable[..., jax.Array]]
    ) -> list[Any]:
        """Results of the function with `instead[i]` in place of operation i, which must write one value."""
        values = {**self.constants, **dict(zip(self.arguments, arguments))}
        for i, operation in enumerate(self.listed):
            inputs = [values[number] for number in operation.reads]
            outputs = [instead[i](*inputs)] if i in instead else operation(*inputs)
            values.update(zip(operation.writes, outputs))
        return [values[number] for number in self.results]


def operations(function: Callable[..., Any], *arguments: Any) -> Operations:
    """Operations of a function for these arguments, pytrees of arrays or of shapes; nothing is computed."""
    closed = jax.make_jaxpr(function)(*arguments)
    numbers, constants, listed = itertools.count(), {}, []

    def constant(value: Any) -> int:
        number = next(numbers)
        constants[number] = value
        return number

    def enter(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        # A trace may be entered several times; its names then stand for different values.
        known: dict[Var, int] = dict(zip(jaxpr.constvars, map(constant, consts)))
        known |= dict(zip(jaxpr.invars, inputs))

        def read(x: Any) -> int:
            return constant(x.val) if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            reads = tuple(map(read, equation.invars))
            if equation.primitive.name in _INLINED:
                inner = equation.params["jaxpr"]
                writes = tuple(enter(inner.jaxpr, inner.consts, reads))
            else:
                writes = tuple(next(numbers) for _ in equation.outvars)
                listed.append(Operation(equation, reads, writes, jaxpr))
            known |= dict(zip(equation.outvars, writes))
        return [read(x) for x in jaxpr.outvars]

    given = [next(numbers) for _ in closed.jaxpr.invars]
    results = enter(closed.jaxpr, closed.consts, given)
    every = frozenset(primitive_names(closed.jaxpr))
    return Operations(tuple(listed), constants, tuple(given), tuple(results), every, bool(closed.effects))


def primitive_names(jaxpr: Any) -> Iterator[str]:
    """Names of all operations of a trace, including those within loops and branches."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitive_names(inner)


# (parameters, one record) -> scalar, or (parameters, one record, key) -> scalar
Loss = Callable[..., jax.Array]
# Operations that a trace does not fully describe: random numbers, and functions with their own batching rule.
_UNCLEAR = ("random_", "rng_", "threefry", "custom_vmap_call", "custom_partitioning")


@dataclasses.dataclass(frozen=True)
class Product:
    """out = read(x) matrix(kernel), the only use of one parameter array.

    Attributes:
      layout: from the parameter array to the matrix (p, q).
      matrix: from the kernel, as the operation receives it, to the matrix.
      read: from x to the left factor (t, p) of the product.
      finish: from (t, q) to the output of the operation.
      side: place of the kernel among the two inputs.
      out: shape and type of the product (t, q).
      options: precision and type of the product.
    """

    layout: Layout
    matrix: Layout
    read: Callable[[jax.Array], jax.Array]
    finish: Callable[[jax.Array], jax.Array]
    side: int
    out: jax.ShapeDtypeStruct
    options: dict[str, Any]

    def compute(self, *inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The left factor (t, p), and the product (t, q)."""
        read, kernel = self.read(inputs[1 - self.side]), self.matrix(inputs[self.side])
        return read, jax.lax.dot_general(read, kernel, (((1,), (0,)), ((), ())), **self.options)

    def block(self, read: jax.Array, back: jax.Array, shape: tuple[int, ...]) -> Block:
        """Gradients of m clients from (m, t, p) and (m, t, q).

        For clients with several rows the gradients are written out, so that the norm is that of the numbers
        in the sum. A norm from products of rows with rows (t, t) would be cheaper, but could be too small if
        rows cancel.
        """
        # A record's whole numbers may stand in a product as they are.
        read, back, layout = read.astype(jnp.float32), float32(back), self.layout
        if read.shape[1] == 1:
            factors = read[:, 0], back[:, 0]
        elif read.shape[2] > back.shape[2]:
            # On CPUs such products are twice as fast if the longer axis comes last.
            factors = (jnp.einsum("mtq,mtp->mqp", back, read).reshape(len(read), -1),)
            layout = layout.then(("transpose", (1, 0)))
        else:
            factors = (jnp.einsum("mtp,mtq->mpq", read, back).reshape(len(read), -1),)
        return Block(factors, shape, layout)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """out[i] = table[places[i]], the only use of one parameter array.

    Attributes:
      operation: the one in the trace.
      lines: of the table.
      clamps: true if places beyond the table read its first or last line; else their gradient is zero.
      out: shape and type of the lines read (t, w).
      shape: of the operation's output.
    """

    operation: Callable[..., Any]
    lines: int
    clamps: bool
    out: jax.ShapeDtypeStruct
    shape: tuple[int, ...]

    def compute(self, *inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Places (t,) and the lines at these places (t, w)."""
        places = inputs[1].reshape(-1)
        low, high = (0, self.lines - 1) if self.clamps else (-1, self.lines)
        # Clipped in the indices' own type, so that a large index is not wrapped into the table.
        places = jnp.clip(places, *(jnp.asarray(_within(x, places.dtype), places.dtype) for x in (low, high)))
        return places.astype(jnp.int32), self.operation(*inputs)[0].reshape(self.out.shape)

    def finish(self, out: jax.Array) -> jax.Array:
        return out.reshape(self.shape)

    def block(self, read: jax.Array, back: jax.Array, shape: tuple[int, ...]) -> TableBlock:
        """Gradients of m clients from (m, t) places and (m, t, w)."""
        return TableBlock.of(read, float32(back), shape)


@dataclasses.dataclass(frozen=True)
class Layer:
    """Parameter array number `leaf`, the number of the only operation that reads it, and its kind."""

    leaf: int
    operation: int
    kind: Product | Lookup


def layers(listed: Operations, leaves: int) -> list[Layer]:
    """Parameter arrays (the first `leaves` arguments) whose only reader is one operation of a known kind.

    An array may be reshaped, transposed and rounded before, if every value on the way is read once and none
    is a result. So the function depends on the array through that operation only.
    """
    times = Counter(number for operation in listed.listed for number in operation.reads)
    times.update(listed.results)
    ways = {number: (leaf, Layout()) for leaf, number in enumerate(listed.arguments[:leaves])}
    found = []
    for index, operation in enumerate(listed.listed):
        sides = [side for side, number in enumerate(operation.reads) if number in ways]
        if len(sides) != 1 or times[operation.reads[sides[0]]] != 1:
            continue
        (side,) = sides
        leaf, layout = ways[operation.reads[side]]
        steps = _moves(operation.equation)
        if steps is not None:
            ways[operation.writes[0]] = leaf, layout.then(*steps)
            continue
        kind = None
        if operation.name in _PRODUCTS:
            kind = _PRODUCTS[operation.name](operation.equation, side, layout)
        elif operation.name == "gather" and side == 0 and not layout.steps:
            kind = _lookup(operation.equation, operation)
        if kind is not None:
            found.append(Layer(leaf, index, kind))
    return found


def _moves(equation: JaxprEqn) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Layout steps of an operation that permutes or rounds all entries of its input; None for any other."""
    out, params = _aval(equation.outvars[0]), equation.params
    if len(equation.invars) != 1 or not jnp.issubdtype(out.dtype, jnp.floating):
        return None
    name = equation.primitive.name
    if name == "transpose":
        return (("transpose", tuple(params["permutation"])),)
    if name in ("convert_element_type", "copy"):
        return ()
    reshapes = (
        name == "squeeze"
        or (name == "reshape" and params["dimensions"] is None)
        or (name == "broadcast_in_dim" and out.size == _aval(equation.invars[0]).size)
    )
    return (("reshape", tuple(out.shape)),) if reshapes else None


def _dense(equation: JaxprEqn, side: int, layout: Layout) -> Product | None:
    """A matrix product over any axes of both inputs, without batch axes."""
    (contracted, batch), params = equation.params["dimension_numbers"], equation.params
    if any(batch) or not _plain(params):
        return None
    kernel, x = (_aval(equation.invars[i]).shape for i in (side, 1 - side))
    summed, over = contracted[side], contracted[1 - side]
    kept = [i for i in range(len(kernel)) if i not in summed]
    left = [i for i in range(len(x)) if i not in over]
    t, p = math.prod(x[i] for i in left), math.prod(kernel[i] for i in summed)
    q = math.prod(kernel[i] for i in kept)
    shape = tuple(x[i] for i in left) + tuple(kernel[i] for i in kept)
    matrix = (("transpose", (*summed, *kept)), ("reshape", (p, q)))

    def read(x: jax.Array) -> jax.Array:
        return x.transpose((*left, *over)).reshape(t, p)

    def finish(out: jax.Array) -> jax.Array:
        # The axes of the left input come first.
        axes = range(len(shape))
        return out.reshape(shape).transpose((*axes,) if side else (*axes[len(left) :], *axes[: len(left)]))

    return _product(equation, layout, matrix, read, finish, side, (t, q))


def _convolution(equation: JaxprEqn, side: int, layout: Layout) -> Product | None:
    """A convolution with any number of axes, strides and dilation, as an unfolding and one matrix product.

    Strides that divide the kernel are first moved into the channels, block by block, so that fewer slices are
    cut. On CPUs this is faster than XLA's own convolution within a loop, forwards and backwards.
    """
    params = equation.params
    plain = (
        side == 1
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(x == 1 for x in params["lhs_dilation"])
        and _plain(params)
    )
    if not plain:
        return None
    numbers = params["dimension_numbers"]
    x_axes, kernel_axes = ((spec[0], *spec[2:], spec[1]) for spec in (numbers.lhs_spec, numbers.rhs_spec))
    image = [_aval(equation.invars[0]).shape[i] for i in x_axes]
    features, *sides, channels = (_aval(equation.invars[1]).shape[i] for i in kernel_axes)
    out_axes = numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]
    shape = tuple(_aval(equation.outvars[0]).shape[i] for i in out_axes)
    strides, dilation, padding = params["window_strides"], params["rhs_dilation"], params["padding"]
    blocks = [s if d == 1 and k % s == 0 else 1 for k, s, d in zip(sides, strides, dilation)]
    steps = [s // b for s, b in zip(strides, blocks)]
    taps = [k // b for k, b in zip(sides, blocks)]
    n, places = len(sides), shape[1:-1]
    # Length read on each axis, in blocks: from the first tap at the first place to the last tap at the last.
    lengths = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(places, steps, taps, dilation)]
    kept = [
        (low, length * b - size - low, 0)
        for (low, _), length, b, size in zip(padding, lengths, blocks, image[1:])
    ]

    def in_blocks(sizes: list[int]) -> tuple[int, ...]:
        return tuple(itertools.chain.from_iterable(zip(sizes, blocks)))

    # Axes of blocks, then axes within blocks.
    apart = (*range(0, 2 * n, 2), *range(1, 2 * n, 2))
    matrix = (
        ("transpose", (*kernel_axes[1:], kernel_axes[0])),
        ("reshape", (*in_blocks(taps), channels, features)),
        ("transpose", (*apart, 2 * n, 2 * n + 1)),
        ("reshape", (math.prod(sides) * channels, features)),
    )
    depth = math.prod(blocks) * channels

    def read(x: jax.Array) -> jax.Array:
        x = jax.lax.pad(x.transpose(x_axes), jnp.zeros((), x.dtype), [(0, 0, 0), *kept, (0, 0, 0)])
        x = x.reshape(image[0], *in_blocks(lengths), channels)
        x = x.transpose((0, *(i + 1 for i in apart), 2 * n + 1)).reshape(image[0], *lengths, depth)
        slices = []
        for tap in itertools.product(*map(range, taps)):
            first = [i * d for i, d in zip(tap, dilation)]
            last = [f + (o - 1) * s + 1 for f, o, s in zip(first, places, steps)]
            slices.append(jax.lax.slice(x, (0, *first, 0), (image[0], *last, depth), (1, *steps, 1)))
        return jnp.concatenate(slices, axis=-1).reshape(math.prod(shape[:-1]), len(slices) * depth)

    def finish(out: jax.Array) -> jax.Array:
        return out.reshape(shape).transpose([out_axes.index(i) for i in range(n + 2)])

    return _product(equation, layout, matrix, read, finish, side, (math.prod(shape[:-1]), features))


_PRODUCTS = {"dot_general": _dense, "conv_general_dilated": _convolution}


def _lookup(equation: JaxprEqn, operation: Callable[..., Any]) -> Lookup | None:
    """A gather of whole lines of a table by their number."""
    table, indices = map(_aval, equation.invars)
    out, params = _aval(equation.outvars[0]), equation.params
    numbers = params["dimension_numbers"]
    rest = len(table.shape) - 1
    whole = (
        numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
        and not numbers.operand_batching_dims
        and not numbers.start_indices_batching_dims
        and tuple(params["slice_sizes"]) == (1, *table.shape[1:])
        and tuple(numbers.offset_dims) == tuple(range(out.ndim - rest, out.ndim))
    )
    if not whole or 0 in table.shape:
        return None
    width = math.prod(table.shape[1:])
    lines = jax.ShapeDtypeStruct((indices.size, width), out.dtype)
    clamps = params["mode"] == jax.lax.GatherScatterMode.CLIP
    return Lookup(operation, table.shape[0], clamps, lines, tuple(out.shape))


def _product(
    equation: JaxprEqn,
    layout: Layout,
    matrix: tuple[tuple[str, tuple[int, ...]], ...],
    read: Callable[[jax.Array], jax.Array],
    finish: Callable[[jax.Array], jax.Array],
    side: int,
    shape: tuple[int, int],
) -> Product:
    options = {name: equation.params[name] for name in ("precision", "preferred_element_type")}
    out = jax.ShapeDtypeStruct(shape, _aval(equation.outvars[0]).dtype)
    return Product(layout.then(*matrix), Layout(matrix), read, finish, side, out, options)


def _plain(params: dict[str, Any]) -> bool:
    """True if both inputs are treated alike and no sharding of the product is given."""
    precision = params["precision"]
    alike = not isinstance(precision, tuple) or precision[0] == precision[1]
    return alike and params.get("out_sharding") is None


def _aval(x: Any) -> Any:
    """Shape and type of an input or output of an equation."""
    return x.aval


def _within(number: int, dtype: Any) -> int:
    limits = jnp.iinfo(dtype)
    return max(int(limits.min), min(number, int(limits.max)))


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
