"""A function as a flat list of primitive operations, to be inspected and evaluated with replacements."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

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
    every = frozenset(names(closed.jaxpr))
    return Operations(tuple(listed), constants, tuple(given), tuple(results), every, bool(closed.effects))


def names(jaxpr: Any) -> Iterator[str]:
    """Names of all operations of a trace, including those within loops and branches."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from names(inner)
