"""`PublishedBound`, the value of a published formula; checks of its arguments, and runs of the number of messages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.kernels import host
from checkin_jax.kernels.binomial import LOG_INVERSE_MASS

# Names of works as in docs/references.md.
SCI = "Liew, Hasegawa, Takahashi (2022), Shuffled Check-in, arXiv 2206.03151 v1"
RCI = (
    "Balle, Kairouz, McMahan, Thakkar, Thakurta (2020), Privacy Amplification via Random Check-Ins, "
    "arXiv 2007.06605"
)
GDD = "Girgis, Data, Diggavi (2021), Renyi Differential Privacy of the Subsampled Shuffle Model"
FMT = "Feldman, McMillan, Talwar (2021), Hiding Among the Clones"
BBG = "Balle, Barthe, Gaboardi (2018), Privacy Amplification by Subsampling"
EFM = "Erlingsson, Feldman, Mironov, Raghunathan, Talwar, Thakurta (2019), Amplification by Shuffling"
FMT23 = "Feldman, McMillan, Talwar (2023), Stronger Privacy Amplification by Shuffling"
BBGN = "Balle, Bell, Gascon, Nissim (2019), The Privacy Blanket of the Shuffle Model"
WPL = "Wang, Peng, Li et al. (2024), Privacy Amplification via Shuffling: Unified, Simplified, and Tightened"
KOV = "Kairouz, Oh, Viswanath (2015), The Composition Theorem for Differential Privacy"

MAX_CLIENTS = 1e12
MAX_EPSILON0 = 50.0
MAX_ORDER = 4096
MAX_ROUNDS = 1e9

# Legal values of arguments: the interval, its ends, and True for whole numbers.
_NUMBER, _SHARE, _FAILURE = (1, MAX_CLIENTS, "[]", True), (0, 1, "(]", False), (0, 1, "()", False)
_LEGAL = {
    **dict.fromkeys(("num_clients", "num_slots", "units"), _NUMBER),
    **dict.fromkeys(("rate", "check_in_prob", "norm"), _SHARE),
    **dict.fromkeys(("delta", "delta1", "delta2", "beta", "slack", "shuffle_delta", "tail_delta"), _FAILURE),
    "num_messages": (0, MAX_CLIENTS, "[]", True),
    "num_rounds": (1, MAX_ROUNDS, "[]", True),
    "epsilon0": (0, MAX_EPSILON0, "[]", False),
    "delta0": (0, 1, "[)", False),
    "spread": (0, 1, "[]", False),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublishedBound:
    """A formula of a paper, evaluated.

    Attributes:
      value: float64 array of the broadcast shape of the arguments ([..., orders] for Renyi divergences), rounded to the
        safe side unless `validity` is "invalid". No NaN; infinite where the formula gives nothing.
      label: theorem, lemma or approach, as numbered in its paper.
      source: the paper.
      validity: "published" (proved in its paper), "certified" (also proved or checked here), "estimate" (neither
        bound) or "invalid" (known not to be a bound; kept for reproduction, never chosen by `account`).
      reason: one line: why the bound is invalid, or a remark.
      quantity: meaning and unit of `value`.
      direction: "upper", "lower" or "exact".
      truncation_error: `value` is within this of the formula as printed, same shape (truncated or bucketed sums);
        0.0 when the formula is closed.
      delta: delta of an approximate guarantee, if it differs from the argument.
    """

    value: np.ndarray
    label: str
    source: str
    quantity: str
    validity: str = "published"
    reason: str = ""
    direction: str = "upper"
    truncation_error: np.ndarray | float = 0.0
    delta: np.ndarray | None = None

    def __post_init__(self) -> None:
        if np.isnan(self.value).any():
            raise FloatingPointError(f"{self.label}: not a number")


def renyi(value: np.ndarray, label: str, source: str = SCI, **more: Any) -> PublishedBound:
    """The bound on the Renyi divergence of a round, nats, with these values."""
    quantity = "Renyi divergence of a round, nats"
    return PublishedBound(value=value, label=label, source=source, quantity=quantity, **more)


def arguments(**given: ArrayLike) -> list[np.ndarray]:
    """Arguments as float64 arrays of their common shape, each checked to have legal values.

    An argument without legal values here is an array that the caller has checked. Whole floats such as 1e9 are whole.

    Raises:
      ValueError: with the argument, the first bad value and the legal ones; or with the shapes that do not broadcast.
      TypeError: not real numbers.
    """
    checked = {
        name: _checked(name, value, *_LEGAL[name]) if name in _LEGAL else np.asarray(value)
        for name, value in given.items()
    }
    try:
        return list(np.broadcast_arrays(*checked.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in checked.items())
        raise ValueError(f"shapes do not broadcast: {shapes}") from None


def reals(low: float, high: float, ends: str = "[]", **value: ArrayLike) -> np.ndarray:
    """The one keyword's array as float64, checked to lie in the interval; the array form of `_validate.real`.

    Raises:
      ValueError: with the argument, the first bad value and the interval; NaN is in no interval.
      TypeError: not real numbers.
    """
    ((name, given),) = value.items()
    return _checked(name, given, low, high, ends, False)


def _checked(name: str, given: ArrayLike, low: float, high: float, ends: str, whole: bool) -> np.ndarray:
    interval = _validate.interval(low, high, ends)
    try:
        array = np.asarray(given)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}={_validate.shown(given)}: expected real numbers in {interval}")
    array = array.astype(np.float64)
    good = _validate.lies_in(array, low, high, ends)
    if whole:
        good &= array == np.floor(array)
    if not good.all():
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"{name}={float(array[~good].flat[0])!r}: expected {expected} in {interval}")
    return array


def whole_orders(orders: ArrayLike | Sequence[int]) -> np.ndarray:
    """Whole Renyi orders from 2 to 4096, shape [orders]."""
    found = _checked("orders", orders, 2, MAX_ORDER, "[]", True)
    return _listed(found, f"whole numbers in [2, {MAX_ORDER}]")


def real_orders(low: float, high: float, orders: ArrayLike) -> np.ndarray:
    """Renyi orders in [low, high], finite and above 1, shape [orders]."""
    ends = f"{'(' if low == 1.0 else '['}{')' if high == np.inf else ']'}"
    found = reals(low, high, ends, orders=orders)
    return _listed(found, f"numbers in {_validate.interval(low, high, ends)}")


def _listed(orders: np.ndarray, expected: str) -> np.ndarray:
    if orders.ndim != 1 or orders.size == 0:
        raise _validate.error(f"a list of {expected}", orders=orders.tolist())
    return orders


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
