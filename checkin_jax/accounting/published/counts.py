"""Sizes of the runs into which Bin(n, gamma), the number of messages, is cut for sums over k; settings in batches."""

from __future__ import annotations

import math

import numpy as np

from checkin_jax.kernels import host
from checkin_jax.kernels.binomial import LOG_INVERSE_MASS

# Windows of up to these sizes are summed value by value; longer ones in _CELLS runs, or in as many as the largest size.
WINDOWS = (256, 4096, 32768)
_CELLS = 4096


def window(n: float, gamma: float, windows: tuple[int, ...] = WINDOWS) -> tuple[int, bool]:
    """Size for `binomial.runs`, and True if all of its runs are single values."""
    variance, third = n * gamma * (1.0 - gamma), LOG_INVERSE_MASS / 3.0
    radius = third + math.sqrt(third * third + 2.0 * variance * LOG_INVERSE_MASS) if variance > 0 else 0.0
    # Two values more, since floor and ceil may round elsewhere when compiled.
    need = min(n, math.ceil(n * gamma + radius)) - max(0.0, math.floor(n * gamma - radius)) + 3.0
    fitting = next((size for size in windows if need <= size), None)
    return (min((_CELLS, *windows[-1:])), False) if fitting is None else (fitting, True)


def bernstein_radius(n: np.ndarray, gamma: np.ndarray, mass: np.ndarray | float) -> np.ndarray:
    """t with P[|Bin(n, gamma) - n gamma| > t] <= 2 e^-mass."""
    return mass / 3 + np.sqrt(mass * mass / 9 + 2 * n * gamma * (1 - gamma) * mass)


def grouped(
    ns: np.ndarray, gammas: np.ndarray, windows: tuple[int, ...] = WINDOWS
) -> dict[tuple[int, bool], np.ndarray]:
    """(size, single) of `window` -> indices of the settings."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for index, (n, gamma) in enumerate(zip(ns.tolist(), gammas.tolist())):
        groups.setdefault(window(n, gamma, windows), []).append(index)
    return {key: np.array(members) for key, members in groups.items()}


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
