"""Published bounds on shuffled check-in, from Renyi divergences to epsilon, for columns of settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from checkin_jax import _validate
from checkin_jax.accounting import published
from checkin_jax.accounting.published import approximate, formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.protocols import MAX_CLIENTS, MAX_ROUNDS
from checkin_jax.randomizers import MAX_EPSILON0
from checkin_jax.sweeps.results import Question, Results, refusal

DEFAULT_ORDERS = tuple(
    dict.fromkeys([*range(2, 33), *np.rint(np.geomspace(32, 256, 25)).astype(int).tolist()])
)
# Settings per call; of an accelerator.
_BATCH, _AT_ONCE = 16, 512
_THEOREMS = {
    "theorem-2": published.theorem_2,
    "theorem-3": published.theorem_3,
    "theorem-3-sharper": published.theorem_3_sharper,
    # Single values of the number of messages up to 4,096 of them, beyond that as many runs: at most 1e-5
    # larger.
    "theorem-1": functools.partial(published.theorem_1, most_values=4096, truncation=False),
    "theorem-1-smaller": functools.partial(published.theorem_1_smaller, truncation=False),
    "subsampling-only": published.subsampling_only,
    "theorem-2-repaired": published.theorem_2_repaired,
}
BOUNDS = (*_THEOREMS, "strong-composition")


def parts(inputs: Mapping[str, np.ndarray], index: np.ndarray, platform: str) -> list[np.ndarray]:
    """The rows `index`, grouped by bound, as many of them together as this platform takes."""
    given = OneRate.of(inputs)
    with np.errstate(invalid="ignore"):
        spread = given.num_clients * given.rate * (1.0 - given.rate)
    # Sums over windows of equal size come together.
    index = index[np.argsort(spread[index], kind="stable")]
    found, size = [], _BATCH if platform == "cpu" else _AT_ONCE
    for bound in np.unique(inputs["bound"][index]).tolist():
        rows = index[inputs["bound"][index] == bound]
        found += [rows[start : start + size] for start in range(0, len(rows), size)]
    return found


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
        columns = [part[rows] for part in (given.num_clients, given.rate, given.epsilon0)]
        times = {"num_rounds": given.num_rounds[rows], "delta": delta[rows]}
        results.attempt(rows, functools.partial(_epsilon, bound, question.orders, columns, times))


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


def _epsilon(
    bound: str, orders: tuple[int, ...], columns: list[np.ndarray], times: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Results of one bound for columns of settings, by the functions of `accounting.published`."""
    if bound == "strong-composition":
        found, order = published.strong_composition(*columns, **times), np.inf
        label = found.label
    else:
        one: PublishedBound = _THEOREMS[bound](*columns, orders)
        label = f"{one.label}, RDP"
        if one.direction == "lower":
            one = dataclasses.replace(one, direction="upper", validity="estimate")
        found, order = approximate.epsilon_and_order(one, orders, **times)
    return {
        # Messages that say nothing, of which orders would give more.
        "epsilon": np.where(columns[2] == 0.0, 0.0, found.value),
        "optimal_order": order,
        "method": label,
        "validity": found.validity,
    }


def check_orders(orders: Any) -> tuple[int, ...]:
    """Distinct whole orders from 2 to 4096. Raises ValueError or TypeError otherwise."""
    return tuple(dict.fromkeys(formula.whole_orders(orders).astype(int).tolist()))
