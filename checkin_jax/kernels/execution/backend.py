"""Array functions that return the kind of array that they get: NumPy's, or JAX's (traced or not).

Kernels are written with `xp` and the loops below. NumPy evaluates a single setting without compiling. Kernels that are
compiled, or that users differentiate, use the same functions; those of laws and losses, and upper bounds of hidden
messages, run in NumPy only. Error bounds cover both (tests/bounds/test_engines.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts are imported on first use: scipy.special takes a tenth of a second
from jax import Array

# Largest products (real "f", complex "c"; number of multiplications) that OpenBLAS computes in one thread.
_SMALL_PRODUCT = {"f": 1 << 18, "c": 1 << 15}
# Fewest terms of a product that are summed per batch.
_FEW_TERMS = 16
# Newton's method stops after a step shorter than this, since the next one would be about its square.
_NEWTON = 1e-5
# Numbers of a block that stays in the CPU cache.
_IN_CACHE = 1 << 15


# Decorator: overflow, underflow and NaN give no warnings, as in XLA.
quietly: Callable[[Callable[..., Any]], Callable[..., Any]] = np.errstate(all="ignore")
# Types that are never JAX arrays, and the usual ones, which are told apart faster.
_NUMPY = (np.ndarray, np.generic, float, int)
_USUAL = frozenset({np.ndarray, np.float64, float, int})


def of_jax(*values: Any) -> bool:
    """True if a value, or an element of a tuple or list, is a JAX array, traced or not."""
    for value in values:
        if isinstance(value, _NUMPY):
            continue
        if isinstance(value, (tuple, list)):
            if of_jax(*value):
                return True
        elif isinstance(value, Array):
            return True
    return False


def holds(condition: Any) -> bool:
    """True if the condition is a NumPy array that is true everywhere; False for JAX arrays."""
    return not of_jax(condition) and bool(np.all(condition))


class _Namespace:
    """The functions of `jax.numpy` if an argument is a JAX array, else those of NumPy."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ours, theirs = getattr(np, name), getattr(jnp, name)
        if not callable(theirs) or isinstance(ours, type):
            found = ours
        else:

            def found(*args: Any, **kwargs: Any) -> Any:
                for arg in args:
                    if type(arg) not in _USUAL and of_jax(arg):
                        return theirs(*args, **kwargs)
                return ours(*args, **kwargs)

        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import jax.numpy as xp
else:
    xp = _Namespace()


def scan(step: Callable[[Any, Any], Any], start: Any, rows: Any) -> Any:
    """The last state of step(state, row), over the rows of the leading axis of every array of the tuple `rows`."""
    if of_jax(start, rows):
        return jax.lax.scan(lambda state, row: (step(state, row), None), start, rows)[0]
    for row in zip(*rows):
        start = step(start, row)
    return start


def states(step: Callable[[Any, Any], Any], start: Any, rows: Any) -> Any:
    """All states of `scan` after each row, along a leading axis; a state is an array or a tuple of arrays."""
    if of_jax(start, rows):
        return jax.lax.scan(lambda state, row: (step(state, row),) * 2, start, rows)[1]
    found = []
    for row in zip(*rows):
        start = step(start, row)
        found.append(start)
    return tuple(map(np.stack, zip(*found))) if isinstance(start, tuple) else np.stack(found)


def mixed(shares: Array, rows: Array) -> Array:
    """Real shares [..., any, rows] times complex rows [..., rows, any], in real arithmetic."""
    if of_jax(shares, rows):
        return complex_of(shares @ jnp.real(rows), shares @ jnp.imag(rows))
    return product(shares, rows.view(np.float64)).view(np.complex128)  # type: ignore[return-value]


def times_each(values: Array, points: Array) -> Array:
    """Products of all values [...] and points [points]; [..., points]."""
    return values[..., None] * xp.reshape(points, (*(1,) * xp.ndim(values), -1))


def nonzero(values: Array) -> tuple[Array, Array]:
    """Indices along both axes of the numbers that are not zero; of all numbers under JAX."""
    if of_jax(values):
        rows, across = jnp.indices(values.shape)
        return rows.ravel(), across.ravel()
    return np.nonzero(values)  # type: ignore[return-value]


def binned(place: Array, values: Array, count: int) -> Array:
    """Sums of the values at each place, [count]."""
    if of_jax(place, values):
        return jnp.zeros(count).at[place.ravel()].add(values.ravel())
    return np.bincount(place.ravel(), values.ravel(), count)  # type: ignore[return-value]


def crossing(value: Callable[[Any], tuple[Any, Any]], low: Any, high: Any, halvings: int) -> Any:
    """Zero of an increasing function in (low, high), as accurate as `halvings` bisections; an end if there is none.

    value: returns the function and its slope (or NaN), for Newton steps. At most four steps a halving: the width may be
    below the spacing of floats, and slopes may be wrong.
    """
    if of_jax(low, high):
        return _crossing_traced(value, low, high, halvings)
    width, top = (high - low) * 0.5**halvings, high
    middle = 0.5 * (low + high)
    for _ in range(4 * halvings):
        if not high - low > width:
            break
        here, slope = value(middle)
        low, high = (middle, high) if here < 0 else (low, middle)
        step = -here / slope
        middle = middle + step
        if low < middle < high:
            if abs(step) < _NEWTON:
                return middle
        elif middle >= high == top:
            # Only once, since there may be no zero.
            middle, top = high, math.nan
        else:
            middle = 0.5 * (low + high)
    return 0.5 * (low + high)


def _crossing_traced(value: Callable[[Any], tuple[Any, Any]], low: Any, high: Any, halvings: int) -> Any:
    """`crossing` for JAX arrays."""
    width, most = (high - low) * 0.5**halvings, 4 * halvings

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, middle, top, _, steps = state
        here, slope = value(middle)
        low, high = jnp.where(here < 0, middle, low), jnp.where(here < 0, high, middle)
        step = -here / slope
        newton = middle + step
        inside, past = (low < newton) & (newton < high), (newton >= high) & (high == top)
        middle = jnp.where(inside, newton, jnp.where(past, high, 0.5 * (low + high)))
        near = inside & (jnp.abs(step) < _NEWTON)
        return low, high, middle, jnp.where(past, jnp.nan, top), near, steps + 1

    start = low, high, 0.5 * (low + high), high, jnp.asarray(False), jnp.asarray(0)
    low, high, middle, _, near, _ = jax.lax.while_loop(
        lambda state: ~state[4] & (state[5] < most) & (state[1] - state[0] > width), body, start
    )
    return jnp.where(near, middle, 0.5 * (low + high))


def bisected(before: Callable[[Any], Any], low: Any, high: Any, halvings: int) -> tuple[Any, Any]:
    """Ends of (low, high), numbers or arrays, after bisections; before: true left of the place that is sought."""
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        left = before(middle)
        low, high = xp.where(left, middle, low), xp.where(left, high, middle)
    return low, high


def product(rows: Array, matrix: Array) -> Array:
    """rows [..., any, k] times matrices [..., k, any]."""
    if of_jax(rows, matrix):
        return rows @ matrix
    # Small products stay in this thread, since starting threads takes longer, especially on a busy machine.
    (count, inner), across = rows.shape[-2:], matrix.shape[-1]
    most = _SMALL_PRODUCT[matrix.dtype.kind]
    some = most // (count * across)
    if some >= min(inner, _FEW_TERMS):
        # Nearly square parts are the fastest.
        found = rows[..., :some] @ matrix[..., :some, :]
        for start in range(some, inner, some):
            found = found + rows[..., start : start + some] @ matrix[..., start : start + some, :]
        return found
    most //= inner * across
    some = next((size for size in (64, 32, 16, 8, 4, 2) if size <= most and count % size == 0), 1)
    found = rows.reshape(*rows.shape[:-2], -1, some, inner) @ matrix[..., None, :, :]
    return found.reshape(*found.shape[:-3], count, across)


def vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.vmap` over the leading axis of every argument; a loop in NumPy."""

    def over(*columns: Any) -> Any:
        if of_jax(*columns):
            return jax.vmap(function)(*columns)
        leaves, tree = jax.tree.flatten(columns)
        rows = [
            function(*jax.tree.unflatten(tree, [leaf[i] for leaf in leaves])) for i in range(len(leaves[0]))
        ]
        return jax.tree.map(lambda *parts: xp.stack(parts), *rows)

    return over


def in_turn(function: Callable[..., Any], rows: tuple[Any, ...]) -> Any:
    """`vmap(function)(*rows)`, under JAX by a loop: XLA keeps its arguments and results.

    Others it may compile and evaluate anew for each use.
    """
    return jax.lax.map(lambda row: function(*row), rows) if of_jax(rows) else vmap(function)(*rows)


def unstacked(values: Any) -> list[Any]:
    """The parts of the leading axis of every array."""
    count = len(jax.tree.leaves(values)[0])
    return [jax.tree.map(operator.itemgetter(i), values) for i in range(count)]


def by_rows(
    function: Callable[..., Array], rows: tuple[Array, ...], across: int, wanted: Array | None = None
) -> Array:
    """Applies a row-wise function to arrays with equally many rows; `across`: numbers that it needs per row.

    In NumPy by blocks of rows that fit into the CPU cache, and only for rows that are `wanted`; others are zero.
    """
    if of_jax(*rows):
        found = function(*rows)
        return found if wanted is None else jnp.where(wanted, found, 0.0)
    place = np.arange(len(rows[0])) if wanted is None else np.flatnonzero(wanted)
    found, some = np.zeros(len(rows[0])), max(_IN_CACHE // across, 1)
    for start in range(0, len(place), some):
        here = place[start : start + some]
        found[here] = function(*(row[here] for row in rows))
    return found  # type: ignore[return-value]


def largest_from_here(values: Array, axis: int = -1) -> Array:
    """Maximum of each value and all later ones along the axis."""
    if of_jax(values):
        return jax.lax.cummax(values, axis % values.ndim, reverse=True)
    if axis % values.ndim == values.ndim - 1:
        return np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]  # type: ignore[return-value]
    # Along other axes `accumulate` is slow.
    found = np.moveaxis(np.array(values), axis, 0)
    for row, after in zip(found[-2::-1], found[:0:-1]):
        np.maximum(row, after, out=row)
    return np.moveaxis(found, 0, axis)  # type: ignore[return-value]


def logsumexp(values: Array, axis: int, keepdims: bool = False) -> Array:
    """log of the sum of exponentials along one axis; under JAX its derivatives are finite where all values are -inf."""
    if of_jax(values):
        peak = jax.lax.stop_gradient(jnp.max(values, axis=axis, keepdims=True))
        peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
        total = jnp.sum(jnp.exp(values - peak), axis=axis, keepdims=True)
        none = total == 0
        found = jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1.0, total))) + peak
        return found if keepdims else jnp.squeeze(found, axis=axis)
    peak = np.max(values, axis=axis, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    total = np.log(np.sum(np.exp(values - peak), axis=axis, keepdims=True)) + peak
    return total if keepdims else np.squeeze(total, axis=axis)


def complex_of(real: Array, imaginary: Array) -> Array:
    """real + i imaginary, float64."""
    if of_jax(real, imaginary):
        return jax.lax.complex(real, imaginary)
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), dtype=np.complex128)
    out.real, out.imag = real, imaginary
    return out  # type: ignore[return-value]


def irfft(values: Array, size: int) -> Array:
    """Inverse of the Fourier transform of real rows of this size, a power of two."""
    return jnp.fft.irfft(values, n=size, axis=-1) if of_jax(values) else np.fft.irfft(values, n=size, axis=-1)  # type: ignore[return-value]


def leading_bits(value: Array) -> Array:
    """The value rounded to 24 bits."""
    if of_jax(value):
        return jax.lax.reduce_precision(value, exponent_bits=11, mantissa_bits=23)
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.rint(mantissa * 2.0**24) * 2.0**-24, exponent)  # type: ignore[return-value]


def ndtri(share: Array) -> Array:
    """Quantiles of the standard normal law."""
    return jax.scipy.special.ndtri(share) if of_jax(share) else scipy.special.ndtri(share)
