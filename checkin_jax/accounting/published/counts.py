"""The law of the number of messages K ~ Bin(n, gamma), cut into runs with bounded masses, for sums over k."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.elementary import log1p

# The window holds all but 2 e^-60 of the law; the runs of the two tails hold the rest.
_LOG_INVERSE_MASS = 60.0
_TAIL_RUNS = 128
# Windows of up to these sizes are summed value by value; longer ones in _CELLS runs, or in as many as the largest size.
WINDOWS = (256, 4096, 32768)
_CELLS = 4096


class Runs(NamedTuple):
    """Runs of values of K ~ Bin(n, gamma) covering all of 0..n, each array of shape [runs].

    Attributes:
      first, last: float64 whole numbers, 0 <= first <= last <= n.
      log_upper, log_lower: bounds on the log probability of the run (equal for single values; the tails' lower bound is
        -inf).
    """

    first: Array
    last: Array
    log_upper: Array
    log_lower: Array


class Window(NamedTuple):
    """The cut of a setting's law: `size` single values from `low` on, or `size` runs if not `single`."""

    low: float
    size: int
    single: bool


def window(n: float, gamma: float, windows: tuple[int, ...] = WINDOWS) -> Window:
    """The smallest of the windows that hold all but 2 e^-60 of the law; computed on the host."""
    variance, third = n * gamma * (1.0 - gamma), _LOG_INVERSE_MASS / 3.0
    radius = third + math.sqrt(third * third + 2.0 * variance * _LOG_INVERSE_MASS) if variance > 0 else 0.0
    low = max(0.0, math.floor(n * gamma - radius))
    need = min(n, math.ceil(n * gamma + radius)) - low + 1.0
    for size in windows:
        if need <= size:
            # A larger window extends further up, or down to 0.
            return Window(max(0.0, min(low, n + 1.0 - size)), size, True)
    return Window(low, min((_CELLS, *windows[-1:])), False)


def runs(n: Array, gamma: Array, low: Array, size: int, single: bool) -> Runs:
    """The law in the window from `window`, then 128 runs for each tail; size and single are static."""
    if single:
        first = low + jnp.arange(size, dtype=jnp.float64)
        log_mass = binomial.log_pmf(first, n, gamma)
        first = jnp.minimum(first, n)  # values beyond n have no mass
        window = Runs(first, first, log_mass, log_mass)
    else:
        cut = binomial.cells(n, gamma, jnp.float64(_LOG_INVERSE_MASS), size)
        window = Runs(cut.first, cut.last, jnp.log(cut.mass_upper), jnp.log(cut.mass_lower))
    # Buckets without mass may lie beyond the window's ends.
    used = window.log_upper > -jnp.inf
    below = _below(n, gamma, jnp.min(jnp.where(used, window.first, n)) - 1.0)
    above = _above(n, gamma, jnp.max(jnp.where(used, window.last, 0.0)) + 1.0)
    return Runs(*(jnp.concatenate(parts) for parts in zip(window, below, above)))


def _edges(low: Array, high: Array) -> Array:
    """Whole edges from low to high + 1 in geometric progression, repeated where the runs are empty."""
    steps = jnp.arange(_TAIL_RUNS + 1, dtype=jnp.float64) / _TAIL_RUNS
    edges = jnp.round(low * ((high + 1.0) / low) ** steps)
    return edges.at[0].set(low).at[-1].set(high + 1.0)


def _tail(first: Array, last: Array, log_mass: Array) -> Runs:
    log_mass = jnp.where(last >= first, log_mass, -jnp.inf)
    return Runs(first, jnp.maximum(first, last), log_mass, jnp.full_like(log_mass, -jnp.inf))


def _above(n: Array, gamma: Array, start: Array) -> Runs:
    """Runs from start to n; P[K >= a] <= pmf(a) / (1 - pmf(a+1)/pmf(a)), by log-concavity, beyond the mode."""
    edges = _edges(jnp.minimum(start, n), n)
    first, last = edges[:-1], edges[1:] - 1.0
    ratio = (n - first) / (first + 1.0) * gamma / jnp.maximum(1.0 - gamma, 1e-300)
    log_mass = binomial.log_pmf(first, n, gamma) - log1p(-jnp.where(start <= n, ratio, 0.0))
    return _tail(first, last, jnp.where(start <= n, log_mass, -jnp.inf))


def _below(n: Array, gamma: Array, end: Array) -> Runs:
    """Runs from 1 to end, as `_above`; K = 0 contributes no loss to any sum and is left out."""
    edges = _edges(jnp.ones_like(end), jnp.maximum(end, 1.0))
    first, last = edges[:-1], edges[1:] - 1.0
    ratio = last / (n - last + 1.0) * (1.0 - gamma) / gamma
    log_mass = binomial.log_pmf(last, n, gamma) - log1p(-jnp.where(end >= 1, ratio, 0.0))
    return _tail(first, last, jnp.where(end >= 1, log_mass, -jnp.inf))


def grouped(
    ns: np.ndarray, gammas: np.ndarray, windows: tuple[int, ...] = WINDOWS
) -> dict[tuple[int, bool], tuple[np.ndarray, np.ndarray]]:
    """(size, single) -> indices of the settings, and the lows of their windows."""
    groups: dict[tuple[int, bool], tuple[list[int], list[float]]] = {}
    for index, (n, gamma) in enumerate(zip(ns.tolist(), gammas.tolist())):
        low, size, single = window(n, gamma, windows)
        members, lows = groups.setdefault((size, single), ([], []))
        members.append(index)
        lows.append(low)
    return {key: (np.array(members), np.array(lows)) for key, (members, lows) in groups.items()}


def in_batches(
    kernel, settings: list[np.ndarray], *shared, sizes: tuple[int, ...] = (1, 16)
) -> list[np.ndarray]:
    """kernel(*settings of a batch, *shared) for all batches, joined on the host; the kernel itself maps over settings.

    Batches have one of the given sizes, so that only these are compiled; the last is padded with its first setting.
    """
    count = len(settings[0])
    size = next((s for s in sizes if count <= s), sizes[-1])
    parts = []
    for start in range(0, count, size):
        index = np.arange(start, start + size)
        index = np.where(index < count, index, start)
        out = kernel(*(host(column[index]) for column in settings), *shared)
        out = out if isinstance(out, tuple) else (out,)
        parts.append([np.asarray(array)[: count - start] for array in out])
    return [np.concatenate(arrays) for arrays in zip(*parts)]
