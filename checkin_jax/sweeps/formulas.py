"""Published bounds on shuffled check-in, from Renyi divergences to epsilon, for columns of settings."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

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
# Settings per kernel call: a few MB of weights, which fit into the CPU cache; and of slow bounds on accelerators.
_BATCH, _SLOW_BATCH, _AT_ONCE = 1024, 16, 512

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


def parts(
    question: Question, inputs: Mapping[str, np.ndarray], index: np.ndarray, platform: str
) -> list[np.ndarray]:
    """The rows `index`, grouped by bound, in the batch size of its kernel on this platform."""
    given = OneRate.of(inputs)
    with np.errstate(invalid="ignore"):
        spread = given.num_clients * given.rate * (1.0 - given.rate)
    found = []
    for bound in np.unique(inputs["bound"][index]).tolist():
        rows, size = index[inputs["bound"][index] == bound], _size(question, bound)
        if size == _SLOW_BATCH:
            # Sums over windows of equal size come together.
            rows = rows[np.argsort(spread[rows], kind="stable")]
            size = size if platform == "cpu" else _AT_ONCE
        found += [rows[start : start + size] for start in range(0, len(rows), size)]
    return found


def _size(question: Question, bound: str) -> int:
    """Batch size of this bound's kernel."""
    fast = bound in _LABELS and max(question.orders) <= closed_forms.MAX_ORDER
    return _BATCH if fast else _SLOW_BATCH


class OneRate(NamedTuple):
    """eps0-LDP messages of clients at one rate, a column [rows] for each argument."""

    num_clients: np.ndarray
    check_in_prob: np.ndarray
    drop_out_prob: np.ndarray
    num_rounds: np.ndarray
    epsilon0: np.ndarray

    @classmethod
    def of(cls, inputs: Mapping[str, np.ndarray]) -> OneRate:
        """The columns among `inputs`, or the arguments' defaults."""
        left_out = {"check_in_prob": 1.0, "drop_out_prob": 0.0, "num_rounds": 1.0}
        count = len(inputs["num_clients"])
        return cls(
            *(
                np.asarray(
                    inputs[name] if name in inputs else np.full(count, left_out[name]), dtype=np.float64
                )
                for name in cls._fields
            )
        )

    @property
    def rate(self) -> np.ndarray:
        """Probability that a given client's message arrives in a given round."""
        return self.check_in_prob * (1.0 - self.drop_out_prob)

    @property
    def legal(self) -> np.ndarray:
        """True where all arguments are in their ranges, [rows]."""
        coin, gone, epsilon0 = self.check_in_prob, self.drop_out_prob, self.epsilon0
        good = _whole(self.num_clients, MAX_CLIENTS) & _whole(self.num_rounds, MAX_ROUNDS)
        good &= (coin > 0) & (coin <= 1) & (gone >= 0) & (gone < 1)
        return good & (epsilon0 >= 0) & (epsilon0 <= MAX_EPSILON0)


def fill(question: Question, inputs: Mapping[str, np.ndarray], results: Results) -> None:
    """Fills in the results of rows with one bound."""
    given, delta, bound = OneRate.of(inputs), np.asarray(inputs["delta"], np.float64), str(inputs["bound"][0])
    good = given.legal & (delta > 0) & (delta < 1) & (bound in BOUNDS)
    for row in np.flatnonzero(~good):
        results.errors[row] = _fault(question, {name: values[row].item() for name, values in inputs.items()})
    rows = np.flatnonzero(good)
    if rows.size:
        parts = given.num_clients, given.rate, given.epsilon0, given.num_rounds, delta
        columns = [part[rows] for part in parts]
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
