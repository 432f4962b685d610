"""One update vector per client, stored as computed, with the operations that mechanisms need.

The gradient of a dense layer for one record is an outer product; writing it out costs more than everything
else. `ClientVectors` stores such blocks as two factors, and for tables only the lines in use. Clipping, sums and inner
products never expand them. All numbers are float32, in full precision on every device: the accelerators'
lower default precision would let a row count for more than its norm.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

# Squares of components below 1e-19 underflow; this addition to the norms of factors covers them.
_LOST_SQUARES = 1e-30


def float32(x: jax.Array) -> jax.Array:
    """The numbers as float32. In a shorter format a row would be rounded after its norm was computed.

    Raises:
      TypeError: not real floating-point numbers.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"update of type {x.dtype}: expected floating-point numbers")
    return x.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A permutation of an array's entries by reshapes and transpositions; equal if its steps are equal."""

    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __call__(self, array: jax.Array) -> jax.Array:
        for kind, numbers in self.steps:
            array = array.reshape(numbers) if kind == "reshape" else array.transpose(numbers)
        return array

    def then(self, *steps: tuple[str, tuple[int, ...]]) -> Layout:
        """The layout followed by these steps."""
        return Layout((*self.steps, *steps))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
    """The part of every row that belongs to one parameter array.

    Attributes:
      factors: (values (m, n),) or (left (m, p), right (m, q)), which stand for the matrices left right^T.
      shape: of the parameter array.
      layout: from the array to the matrix in whose order the factors are stored; None for the array's own
        order.
    """

    factors: tuple[jax.Array, ...]
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    layout: Layout | None = dataclasses.field(default=None, metadata={"static": True})

    def __len__(self) -> int:
        return len(self.factors[0])

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """Arrays that determine the coordinates."""
        return self.factors

    @property
    def size(self) -> int:
        """Entries of the parameter array."""
        return math.prod(self.shape)

    def squared_norms(self) -> jax.Array:
        """Squared norms of the rows, (m,)."""
        squares = [jnp.sum(factor * factor, axis=-1) for factor in self.factors]
        if len(squares) == 1:
            return squares[0]
        return (squares[0] + _LOST_SQUARES) * (squares[1] + _LOST_SQUARES)

    def gram(self) -> jax.Array:
        """Inner products of all pairs of rows, (m, m)."""
        first, *others = (matmul(factor, factor.T) for factor in self.factors)
        return functools.reduce(jnp.multiply, others, first)

    def dot(self, vector: jax.Array) -> jax.Array:
        """Inner products of every row with a vector (size,) in the order of the array, (m,)."""
        if self.layout is not None:
            vector = self.layout(vector.reshape(self.shape))
        if len(self.factors) == 1:
            return matmul(self.factors[0], vector.reshape(-1))
        left, right = self.factors
        return jnp.sum(matmul(left, vector.reshape(left.shape[-1], right.shape[-1])) * right, axis=-1)

    def combine(self, weights: jax.Array) -> jax.Array:
        """Sum of the rows times their weights (m,), in the order of the array, (size,)."""
        if len(self.factors) == 1:
            return self._ordered(matmul(weights, self.factors[0]))
        left, right = self.factors
        return self._ordered(matmul(left.T, weights[:, None] * right))

    def matrix(self) -> jax.Array:
        """Rows written out in the order of the array, (m, size)."""
        values = self.factors[0]
        if len(self.factors) == 2:
            left, right = self.factors
            values = left[:, :, None] * right[:, None, :]
        return jax.vmap(self._ordered)(values.reshape(len(values), self.size))

    def scaled(self, factors: jax.Array, keep: jax.Array) -> Block:
        """Rows times `factors` (m,); rows with False in `keep` become zero, even if they are not finite."""
        *others, last = (jnp.where(keep[:, None], x, jnp.zeros_like(x)) for x in self.factors)
        return dataclasses.replace(self, factors=(*others, last * factors[:, None]))

    def _ordered(self, values: jax.Array) -> jax.Array:
        """From the order of the factors to that of the array."""
        if self.layout is None:
            return values.reshape(-1)
        # The transpose of a permutation is its inverse.
        like = jax.ShapeDtypeStruct(self.shape, values.dtype)
        matrix = values.reshape(jax.eval_shape(self.layout, like).shape)
        return jax.linear_transpose(self.layout, like)(matrix)[0].reshape(-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableBlock:
    """The part of every row that belongs to a table; only the lines that a client reads are stored.

    Attributes:
      places: (m, n) int32 lines of the table, distinct in each row; the number of lines means none.
      values: (m, n, w) float32, values of a row there; zero where there is no line.
      shape: (lines, ...) of the parameter array, w entries per line.
    """

    places: jax.Array
    values: jax.Array
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, places: jax.Array, values: jax.Array, shape: tuple[int, ...]) -> TableBlock:
        """Sums the values of equal places; places beyond the table are dropped."""
        lines = shape[0]
        places = jnp.where((places >= 0) & (places < lines), places, jnp.full_like(places, lines))
        order = jnp.argsort(places, axis=1)
        places = jnp.take_along_axis(places, order, axis=1)
        values = jnp.take_along_axis(values, order[:, :, None], axis=1)
        starts = jnp.diff(places, axis=1, prepend=-1) != 0
        index = jnp.broadcast_to(jnp.arange(places.shape[1], dtype=jnp.int32), places.shape)
        first = jax.lax.cummax(jnp.where(starts, index, jnp.zeros_like(index)), axis=1)
        values = jax.vmap(lambda first, values: jnp.zeros_like(values).at[first].add(values))(first, values)
        real = starts & (places < lines)
        return cls(
            jnp.where(real, places, jnp.full_like(places, lines)),
            jnp.where(real[:, :, None], values, jnp.zeros_like(values)),
            shape,
        )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """Arrays that determine the coordinates."""
        return (self.values,)

    @property
    def size(self) -> int:
        """Entries of the parameter array."""
        return math.prod(self.shape)

    def squared_norms(self) -> jax.Array:
        """Squared norms of the rows, (m,)."""
        return jnp.sum(self.values * self.values, axis=(1, 2))

    def gram(self) -> jax.Array:
        """Inner products of all pairs of rows, (m, m)."""
        one = jnp.ones((1,), jnp.float32)

        def column(places: jax.Array, values: jax.Array) -> jax.Array:
            return self.dot(TableBlock(places[None], values[None], self.shape).combine(one))

        # One row at a time is written out.
        return jax.lax.map(lambda row: column(*row), (self.places, self.values)).T

    def dot(self, vector: jax.Array) -> jax.Array:
        """Inner products of every row with a vector (size,) in the order of the array, (m,)."""
        table = vector.reshape(self.shape[0], -1)
        return jnp.sum(table.at[self.places].get(mode="fill", fill_value=0.0) * self.values, axis=(1, 2))

    def combine(self, weights: jax.Array) -> jax.Array:
        """Sum of the rows times their weights (m,), in the order of the array, (size,)."""
        width = self.values.shape[-1]
        table = jnp.zeros((self.shape[0], width), jnp.float32)
        values = (self.values * weights[:, None, None]).reshape(-1, width)
        return table.at[self.places.reshape(-1)].add(values, mode="drop").reshape(-1)

    def matrix(self) -> jax.Array:
        """Rows written out in the order of the array, (m, size)."""
        one = jnp.ones((1,), jnp.float32)
        return jax.vmap(lambda row: row.combine(one))(jax.tree.map(lambda x: x[:, None], self))

    def scaled(self, factors: jax.Array, keep: jax.Array) -> TableBlock:
        """Rows times `factors` (m,); rows with False in `keep` become zero, even if they are not finite."""
        values = jnp.where(keep[:, None, None], self.values, jnp.zeros_like(self.values))
        return dataclasses.replace(self, values=values * factors[:, None, None])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClientVectors:
    """m vectors of dimension d, one per client, in blocks of consecutive coordinates."""

    blocks: tuple[Block | TableBlock, ...]

    @classmethod
    def of(cls, matrix: jax.Array) -> ClientVectors:
        """The rows of a matrix (m, d)."""
        return cls((Block((matrix,), (matrix.shape[-1],)),))

    def __len__(self) -> int:
        return len(self.blocks[0])

    @property
    def dimension(self) -> int:
        return sum(block.size for block in self.blocks)

    def norms(self) -> jax.Array:
        """Euclidean norms (m,)."""
        return jnp.sqrt(sum((block.squared_norms() for block in self.blocks), jnp.float32(0.0)))

    def gram(self) -> jax.Array:
        """Inner products of all pairs of rows, (m, m)."""
        return sum((block.gram() for block in self.blocks), jnp.float32(0.0))

    def dot(self, vector: jax.Array) -> jax.Array:
        """Inner products of every row with a vector (d,), (m,)."""
        ends = [sum(block.size for block in self.blocks[: i + 1]) for i in range(len(self.blocks))]
        pieces = jnp.split(vector, ends[:-1])
        return sum((block.dot(piece) for block, piece in zip(self.blocks, pieces)), jnp.float32(0.0))

    def combine(self, weights: jax.Array) -> jax.Array:
        """Sum of the rows times their weights (m,); (d,). All rows must be finite."""
        return jnp.concatenate([block.combine(weights) for block in self.blocks])

    def matrix(self) -> jax.Array:
        """Rows written out, (m, d)."""
        return jnp.concatenate([block.matrix() for block in self.blocks], axis=1)

    def scaled(self, factors: jax.Array, keep: jax.Array) -> ClientVectors:
        """Rows times `factors` (m,); rows with False in `keep` become zero, even if they are not finite."""
        return ClientVectors(tuple(block.scaled(factors, keep) for block in self.blocks))

    def grouped(self, groups: int) -> ClientVectors:
        """The rows with leading axes (groups, m / groups), for a map over groups."""
        return jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), self)


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Matrix product in full float32 on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
