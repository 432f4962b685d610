"""The two engines that kernels run on: NumPy for what one setting needs once, XLA for what is worth compiling.

Kernels are written once, against `xp` and the loops below. Inside a trace of JAX these are JAX's. A kernel that is
`hosted` runs in NumPy wherever it is called on arrays of the host, so that a single setting compiles nothing for it;
sweeps trace the same code. Error counts of bounds cover both engines (tests/bounds/test_engines.py).
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose parts are imported when they are used: scipy.special takes a tenth of a second
from jax import Array
from jax.core import Tracer

# Multiplications, of real numbers and of complex ones, that OpenBLAS does not share out among threads.
_SMALL_PRODUCT = {"f": 1 << 18, "c": 1 << 15}
# Fewer terms of a product are not added at a time.
_FEW_TERMS = 16
# A step of Newton's that is shorter than this is the last: the next one would be about its square.
_NEWTON = 1e-5
# Halvings whose middles are looked at together.
_AHEAD = 3
# Numbers of a block that stays in the cache from one operation to the next.
_IN_CACHE = 1 << 15


class _Here(threading.local):
    """Whether this thread is inside a kernel that runs in NumPy."""

    numpy = False


_HERE = _Here()


def on_host() -> bool:
    """Whether this is inside a kernel that runs in NumPy."""
    return _HERE.numpy


def _reduced(ufunc: np.ufunc) -> Callable[..., Any]:
    """What numpy's own function of an array, an axis and more gives, which takes longer to call than to add up."""

    def reduce(values: Any, axis: Any = None, **more: Any) -> Any:
        return ufunc.reduce(values, axis, **more)

    return reduce


_REDUCED = {"sum": _reduced(np.add), "max": _reduced(np.maximum), "min": _reduced(np.minimum)}


class _Namespace:
    """The functions of `jax.numpy`, or of numpy inside a kernel that runs there."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ours, theirs = _REDUCED.get(name) or getattr(np, name), getattr(jnp, name)
        if not callable(theirs) or isinstance(ours, type):
            found = ours
        else:

            def found(*args: Any, **kwargs: Any) -> Any:
                return (ours if _HERE.numpy else theirs)(*args, **kwargs)

        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import jax.numpy as xp
else:
    xp = _Namespace()


def traced(*arguments: Any) -> bool:
    """Whether JAX is tracing a function of these."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments))


def hosted(*, static: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function a kernel that runs in NumPy unless JAX traces it; there it is jitted, `static` arguments apart.

    Float64 in and out; numbers that overflow, vanish or are no numbers go through without a warning, as on XLA.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        jitted = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _HERE.numpy:
                return function(*args, **kwargs)
            if traced(args, kwargs):
                return jitted(*args, **kwargs)
            return _run(function, args, kwargs)

        return call

    return decorate


def _of_host(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, jax.Array) else value


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Inside, functions are JAX's again."""
    before, _HERE.numpy = _HERE.numpy, False
    try:
        yield
    finally:
        _HERE.numpy = before


def run(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """What a kernel that is not decorated gives, in NumPy."""
    return _run(kernel, arguments, {})


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = jax.tree.map(_of_host, (args, kwargs))
    before, _HERE.numpy = _HERE.numpy, True
    try:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)
    finally:
        _HERE.numpy = before


def fori_loop(lower: int, upper: int, body: Callable[[Any, Any], Any], start: Any) -> Any:
    """`jax.lax.fori_loop`."""
    if not _HERE.numpy:
        return jax.lax.fori_loop(lower, upper, body, start)
    for i in range(lower, upper):
        start = body(i, start)
    return start


def while_loop(unsure: Callable[[Any], Any], body: Callable[[Any], Any], start: Any) -> Any:
    """`jax.lax.while_loop`."""
    if not _HERE.numpy:
        return jax.lax.while_loop(unsure, body, start)
    while unsure(start):
        start = body(start)
    return start


def placed(values: Array, at: Array, value: Array) -> Array:
    """`values` but for `value` at one place."""
    if not _HERE.numpy:
        return values.at[at].set(value)
    values = np.array(values)  # type: ignore[assignment]
    values[at] = value  # type: ignore[index]
    return values


def crossing(value: Callable[[Any], tuple[Any, Any]], low: Any, high: Any, halvings: int) -> Any:
    """Where a value that increases is zero, as near as `halvings` of (low, high) give it; an end if it is nowhere.

    value: gives the value and its slope (or NaN), by which NumPy takes fewer steps than halvings: Newton's.
    """
    if not _HERE.numpy:
        return halved(lambda at: ~(value(at)[0] < 0), low, high, halvings)
    width, top = (high - low) * 0.5**halvings, high
    middle = 0.5 * (low + high)
    while high - low > width:
        here, slope = value(middle)
        low, high = (middle, high) if here < 0 else (low, middle)
        step = -here / slope
        middle = middle + step
        if low < middle < high:
            if abs(step) < _NEWTON:
                return middle
        elif middle >= high == top:
            # Once: there may be no zero at all.
            middle, top = high, math.nan
        else:
            middle = 0.5 * (low + high)
    return 0.5 * (low + high)


def halved(beyond: Callable[[Any], Any], low: Any, high: Any, halvings: int) -> Any:
    """Where `beyond` begins to hold, by so many halvings of (low, high); an end if it holds everywhere or nowhere.

    beyond: takes arrays; NumPy asks for the middles of _AHEAD halvings at once.
    """
    if not _HERE.numpy:

        def halve(_: int, ends: tuple[Any, Any]) -> tuple[Any, Any]:
            low, high = ends
            middle = 0.5 * (low + high)
            held = beyond(middle)
            return xp.where(held, low, middle), xp.where(held, middle, high)

        low, high = fori_loop(0, halvings, halve, (low, high))
        return 0.5 * (low + high)
    parts = 2**_AHEAD
    for _ in range(0, halvings, _AHEAD):
        step = (high - low) / parts
        held, first, last = beyond(low + step * np.arange(1.0, parts)), 0, parts
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (first, middle) if held[middle - 1] else (middle, last)
        low, high = low + step * first, low + step * last
    return 0.5 * (low + high)


def product(rows: Array, matrix: Array) -> Array:
    """rows [..., any, k] times matrices [..., k, any]."""
    if not _HERE.numpy:
        return rows @ matrix
    # Small products stay in this thread: starting others takes longer, and much longer where other work goes on.
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


def dots(rows: Array, vector: Array) -> Array:
    """rows [..., k] times a real vector [k]; row by row, since OpenBLAS shares larger tables out among threads."""
    return np.vecdot(rows, vector) if _HERE.numpy else rows @ vector  # type: ignore[return-value]


def vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.vmap` over the leading axis of every argument; in NumPy one by one."""
    if not _HERE.numpy:
        return jax.vmap(function)

    def over(*columns: Any) -> Any:
        if all(isinstance(column, np.ndarray) for column in columns):
            return _stacked([function(*row) for row in zip(*columns)])
        leaves, tree = jax.tree.flatten(columns)
        rows = [
            function(*jax.tree.unflatten(tree, [leaf[i] for leaf in leaves])) for i in range(len(leaves[0]))
        ]
        return _stacked(rows)

    return over


def _stacked(rows: list[Any]) -> Any:
    if isinstance(rows[0], np.ndarray):
        return np.stack(rows)
    return jax.tree.map(lambda *parts: np.stack(parts), *rows)


def one_by_one(function: Callable[..., Any], rows: Any, batch: int) -> Any:
    """`jax.lax.map` over the leading axis of all leaves of rows, `batch` at a time; in NumPy each by itself."""
    if not _HERE.numpy:
        return jax.lax.map(function, rows, batch_size=batch)
    return vmap(function)(rows)


def by_rows(
    function: Callable[..., Array], rows: tuple[Array, ...], across: int, wanted: Array | None = None
) -> Array:
    """What a function gives for arrays of as many rows each, itself row by row; `across` numbers are behind a row.

    In NumPy some rows at a time, which stay in the cache, and those alone that are `wanted`; the others are zero.
    """
    if not _HERE.numpy:
        return function(*rows)
    place = np.arange(len(rows[0])) if wanted is None else np.flatnonzero(wanted)
    found, some = np.zeros(len(rows[0])), max(_IN_CACHE // across, 1)
    for start in range(0, len(place), some):
        here = place[start : start + some]
        found[here] = function(*(row[here] for row in rows))
    return found  # type: ignore[return-value]


def largest_from_here(values: Array, axis: int = -1) -> Array:
    """Of every one of `values` and all after it along the axis the largest."""
    if not _HERE.numpy:
        return jax.lax.cummax(values, axis=axis % values.ndim, reverse=True)
    if axis % values.ndim == values.ndim - 1:
        return np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]  # type: ignore[return-value]
    # Along other axes `accumulate` takes one number at a time.
    found = np.moveaxis(np.array(values), axis, 0)
    for row, after in zip(found[-2::-1], found[:0:-1]):
        np.maximum(row, after, out=row)
    return np.moveaxis(found, 0, axis)  # type: ignore[return-value]


def smallest_so_far(values: Array) -> Array:
    """The smallest of `values` so far, along the first axis."""
    return np.minimum.accumulate(values) if _HERE.numpy else jax.lax.cummin(values, axis=0)  # type: ignore[return-value]


def logsumexp(values: Array, axis: int, keepdims: bool = False) -> Array:
    """`jax.scipy.special.logsumexp` along one axis."""
    if not _HERE.numpy:
        return jax.scipy.special.logsumexp(values, axis=axis, keepdims=keepdims)
    peak = np.max(values, axis=axis, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    total = np.log(np.sum(np.exp(values - peak), axis=axis, keepdims=True)) + peak
    return total if keepdims else np.squeeze(total, axis=axis)


def added_up(index: Array, weights: Array, size: int) -> Array:
    """Row by row a vector of `size` into which weights [rows, any] are added at whole index in [0, size)."""
    if _HERE.numpy:
        return np.stack([np.bincount(i, w, minlength=size) for i, w in zip(index, weights)])  # type: ignore[return-value]
    return jax.vmap(lambda i, w: jnp.zeros(size).at[i].add(w))(index, weights)


def complex_of(real: Array, imaginary: Array) -> Array:
    """real + i imaginary, float64."""
    if not _HERE.numpy:
        return jax.lax.complex(real, imaginary)
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), dtype=np.complex128)
    out.real, out.imag = real, imaginary
    return out  # type: ignore[return-value]


def rfft(values: Array) -> Array:
    """The discrete Fourier transform of real rows."""
    return np.fft.rfft(values, axis=-1) if _HERE.numpy else jnp.fft.rfft(values, axis=-1)  # type: ignore[return-value]


def irfft(values: Array, size: int) -> Array:
    """The real rows of this size, a power of two, that have the transforms `values`."""
    return np.fft.irfft(values, n=size, axis=-1) if _HERE.numpy else jnp.fft.irfft(values, n=size, axis=-1)  # type: ignore[return-value]


def leading_bits(value: Array) -> Array:
    """The value rounded to 24 bits."""
    if not _HERE.numpy:
        return jax.lax.reduce_precision(value, exponent_bits=11, mantissa_bits=23)
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.rint(mantissa * 2.0**24) * 2.0**-24, exponent)  # type: ignore[return-value]


def log_ndtr(x: Array) -> Array:
    """log of the standard normal distribution function."""
    if not _HERE.numpy:
        return jax.scipy.special.log_ndtr(x, series_order=10)
    return scipy.special.log_ndtr(x)


def erfcx(x: Array) -> Array:
    """e^{x^2} erfc(x), x up to 25 or so: beyond, XLA flushes erfc to zero."""
    return scipy.special.erfcx(x) if _HERE.numpy else jnp.exp(jnp.square(x)) * jax.scipy.special.erfc(x)


def ndtr(x: Array) -> Array:
    """The standard normal distribution function."""
    return scipy.special.ndtr(x) if _HERE.numpy else jax.scipy.special.ndtr(x)


def ndtri(share: Array) -> Array:
    """Quantiles of the standard normal law."""
    return scipy.special.ndtri(share) if _HERE.numpy else jax.scipy.special.ndtri(share)
