"""Published bounds on shuffled check-in, from Renyi divergences to epsilon, for columns of settings."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from checkin_jax import _validate
from checkin_jax.accounting import published
from checkin_jax.accounting.published import composition, formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import closed_forms, host
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import MAX_CLIENTS, MAX_ROUNDS
from checkin_jax.randomizers import MAX_EPSILON0
from checkin_jax.sweeps.results import Question, Results, refusal

DEFAULT_ORDERS = tuple(
    dict.fromkeys([*range(2, 33), *np.rint(np.geomspace(32, 256, 25)).astype(int).tolist()])
)
# Settings per kernel call: a few MB of weights, which fit into the CPU cache.
_BATCH, _SLOW_BATCH = 1024, 16

_SLOW = {
    # Single values of the number of messages up to 4,096 of them, beyond that as many runs: at most 1e-5
    # larger.
    "theorem-1": functools.partial(published.theorem_1, most_values=4096, truncation=False),
    "theorem-1-smaller": functools.partial(published.theorem_1_smaller, truncation=False),
    "subsampling-only": published.subsampling_only,
    "theorem-2-repaired": published.theorem_2_repaired,
}
BOUNDS = ("theorem-2", "theorem-3", "theorem-3-sharper", *_SLOW, "strong-composition")
_LABELS = {
    "theorem-2": ("Theorem 2, RDP", "invalid"),
    "theorem-3": ("Theorem 3, RDP", "estimate"),
    "theorem-3-sharper": ("Theorem 3, sharper, RDP", "estimate"),
}
Parts = list[np.ndarray]


def parts(question: Question, inputs: Mapping[str, np.ndarray], index: np.ndarray) -> list[np.ndarray]:
    """The rows `index`, grouped by bound, in the batch size of its kernel."""
    n, coin, gone, *_ = _described(inputs)
    with np.errstate(invalid="ignore"):
        spread = n * coin * (1.0 - gone) * (1.0 - coin * (1.0 - gone))
    found = []
    for bound in np.unique(inputs["bound"][index]).tolist():
        rows, size = index[inputs["bound"][index] == bound], _size(question, bound)
        if size == _SLOW_BATCH:
            # Sums over windows of equal size come together.
            rows = rows[np.argsort(spread[rows], kind="stable")]
        found += [rows[start : start + size] for start in range(0, len(rows), size)]
    return found


def _size(question: Question, bound: str) -> int:
    """Batch size of this bound's kernel."""
    fast = bound in _LABELS and max(question.orders) <= closed_forms.MAX_ORDER
    return _BATCH if fast else _SLOW_BATCH


def _described(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """n, check-in probability, drop-out probability, rounds, epsilon0, delta of every row."""
    count = len(inputs["bound"])
    left_out = {"check_in_prob": 1.0, "drop_out_prob": 0.0, "num_rounds": 1.0}
    names = ("num_clients", "check_in_prob", "drop_out_prob", "num_rounds", "epsilon0", "delta")
    return [
        np.asarray(inputs[name] if name in inputs else np.full(count, left_out[name]), dtype=np.float64)
        for name in names
    ]


def fill(question: Question, inputs: Mapping[str, np.ndarray], results: Results) -> None:
    """Fills in the results of rows with one bound."""
    clients, coin, gone, rounds, epsilon0, delta = _described(inputs)
    bound = str(inputs["bound"][0])
    good = _whole(clients, MAX_CLIENTS) & _whole(rounds, MAX_ROUNDS)
    good &= (coin > 0) & (coin <= 1) & (gone >= 0) & (gone < 1)
    good &= (epsilon0 >= 0) & (epsilon0 <= MAX_EPSILON0) & (delta > 0) & (delta < 1)
    good &= bound in BOUNDS
    for row in np.flatnonzero(~good):
        results.errors[row] = _fault(question, {name: values[row].item() for name, values in inputs.items()})
    rows = np.flatnonzero(good)
    if rows.size:
        columns = [part[rows] for part in (clients, coin * (1.0 - gone), epsilon0, rounds, delta)]
        size = _size(question, bound)
        one = _closed if size == _BATCH else _slow
        with float64():
            results.attempt(rows, functools.partial(one, bound, question.orders, columns, size))


def _whole(values: np.ndarray, largest: float) -> np.ndarray:
    return (values >= 1) & (values <= largest) & (values == np.floor(values))


def _fault(question: Question, given: Mapping[str, Any]) -> str:
    """Error of a setting: that of its constructors, of delta or of bound."""

    def check() -> None:
        question.protocol(**{name: given[name] for name in question.fields if name in given})
        _validate.real(0, MAX_EPSILON0, epsilon0=given["epsilon0"])
        _validate.real(0, 1, "()", delta=given["delta"])
        _validate.choice(BOUNDS, bound=given["bound"])

    return refusal(check)


@functools.cache
def _tables(orders: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Orders, C(order, j) and log(j Gamma(j/2)) for j = 2, 3, ...."""
    lam = np.array(orders, dtype=np.float64)
    degrees = np.arange(2.0, max(orders) + 1.0)
    binomials = np.asarray(scipy.special.comb(lam[:, None], degrees[None, :]))
    return lam, binomials, np.log(degrees) + np.asarray(scipy.special.gammaln(0.5 * degrees))


def _closed(bound: str, orders: tuple[int, ...], parts: Parts, size: int) -> dict[str, Any]:
    """Theorems 2 and 3; batches are padded to one compiled size."""
    count = len(parts[0])
    n, gamma, epsilon0, rounds, delta = (host(np.pad(part, (0, size - count), mode="edge")) for part in parts)
    # At epsilon0 = 0 epsilon is 0, which logarithms would not give.
    silent = np.asarray(epsilon0) == 0.0
    common = (n, gamma, host(np.where(silent, 1.0, epsilon0)), rounds, host(np.log(delta)))
    lam, binomials, log_gamma = _tables(orders)
    if bound == "theorem-2":
        found = closed_forms.theorem_2(*common, lam, binomials, log_gamma)
    else:
        found = closed_forms.theorem_3(*common, lam, sharper=bound == "theorem-3-sharper")
    epsilon, order = (np.asarray(part) for part in found)
    label, validity = _LABELS[bound]
    return {
        "epsilon": np.where(silent, 0.0, epsilon)[:count],
        "optimal_order": np.where(silent, lam[0], order)[:count],
        "method": label,
        "validity": validity,
    }


def _slow(bound: str, orders: tuple[int, ...], parts: Parts, size: int) -> dict[str, Any]:
    """The functions of `accounting.published`, which take columns."""
    n, gamma, epsilon0, rounds, delta = parts
    if bound == "strong-composition":
        found = published.strong_composition(n, gamma, epsilon0, num_rounds=rounds, delta=delta)
        return {
            "epsilon": found.value,
            "optimal_order": np.inf,
            "method": found.label,
            "validity": found.validity,
        }
    theorem = {**_SLOW, "theorem-2": published.theorem_2}.get(bound)
    if theorem is None:
        raise ValueError(f"orders: {bound} takes orders up to {closed_forms.MAX_ORDER} here")
    one: PublishedBound = theorem(n, gamma, epsilon0, orders)
    found, order = composition.epsilon_and_order(one, orders, num_rounds=rounds, delta=delta)
    return {
        "epsilon": found.value,
        "optimal_order": order,
        "method": f"{one.label}, RDP",
        "validity": one.validity,
    }


def check_orders(orders: Any) -> tuple[int, ...]:
    """Distinct whole orders from 2 to 4096. Raises ValueError or TypeError otherwise."""
    return tuple(dict.fromkeys(formula.whole_orders(orders).astype(int).tolist()))
