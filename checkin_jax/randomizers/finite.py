"""Mechanisms with finitely many records and messages, given by their matrix of probabilities."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import down
from checkin_jax._suggest import legal
from checkin_jax.randomizers.randomizer import MAX_EPSILON0, LabelLaws, Randomizer
from checkin_jax.randomizers.step_sets import FiniteSteps, StepSet

# Largest difference of a row's sum from 1; rows are divided by their sums.
_SUM = 1e-9
# Most different rows; most different rows for which all steps are listed (each ordered pair with each third record).
_MOST_RECORDS, _MOST_LISTED = 64, 16
# Number of steps of largest variance that are tried as lower ends.
_WITNESSES = 4


def _rows(probabilities: Any) -> tuple[tuple[float, ...], ...]:
    """Checks the matrix; returns it as tuples of floats."""
    try:
        table = np.asarray(probabilities, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"probabilities={_validate.shown(probabilities)}: expected a matrix of numbers, a row for every record"
        ) from None
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError(
            f"probabilities: expected [records, messages], at least two of either, got the shape {table.shape}"
        )
    if not np.all((table >= 0.0) & (table <= 1.0)):
        at = tuple(int(i) for i in np.argwhere(~((table >= 0.0) & (table <= 1.0)))[0])
        raise ValueError(f"probabilities[{at[0]}][{at[1]}]={table[at].item()!r}: expected a number in [0, 1]")
    for i, row in enumerate(table):
        if abs(math.fsum(row) - 1.0) > _SUM:
            raise ValueError(
                f"probabilities[{i}]: expected a row that sums to 1 within {_SUM:g}, not {math.fsum(row)!r}"
            )
    never, ever = (table == 0.0).any(axis=0), (table > 0.0).any(axis=0)
    if (never & ever).any():
        column = int(np.argmax(never & ever))
        raise ValueError(
            f"probabilities: message {column} is possible for some records and impossible for others, so that its "
            "likelihood ratio has no bound; expected all zero or none in a column (ApproximateLDP and KnownProfile "
            "take such mechanisms)"
        )
    return tuple(tuple(float(value) for value in row) for row in table)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FiniteMechanism(Randomizer):
    """Any mechanism given by its matrix: the probabilities of all messages for every record.

    Examples: k-ary response with any prior, subset selection, a quantised mechanism. Names of messages do not matter.
    In sums, messages are one-hot vectors. A dummy is the message of some record. Upper ends hold for all choices of
    records; lower ends are attained by records of the matrix.

    Attributes:
      probabilities: [records, messages], at least two of each; a nested sequence or an array, stored as tuples. Rows
        sum to 1 within 1e-9, and are divided by their sums. A message is possible for all records or for none. There
        are from 2 to 64 different rows. With more than 16 the steps of the mechanism are not listed, and only bounds by
        its profile apply.

    Raises:
      ValueError, TypeError: anything else; or a likelihood ratio above e^50, or unbounded.
    """

    probabilities: Any

    sum_reveals_counts = True
    dummy_may_equal_any_record = True

    _legal = legal(probabilities=(_rows,))

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self._exact) < 2:
            raise ValueError("probabilities: expected two different rows; all rows are equal")
        if len(self._exact) > _MOST_RECORDS:
            raise ValueError(
                f"probabilities: expected at most {_MOST_RECORDS} different rows, got {len(self._exact)}"
            )
        if self.epsilon0 > MAX_EPSILON0:
            raise ValueError(
                f"probabilities: expected likelihood ratios up to e^{MAX_EPSILON0:g}, "
                f"the largest is e^{self.epsilon0:.6g}"
            )

    @functools.cached_property
    def _numbered(self) -> dict[tuple[Fraction, ...], int]:
        """Different rows, divided by their sums and without impossible messages, and the first record with each row."""
        used = [any(column) for column in zip(*self.probabilities, strict=True)]
        found: dict[tuple[Fraction, ...], int] = {}
        for record, row in enumerate(self.probabilities):
            exact = [Fraction(value) for value in row]
            total = sum(exact)
            shares = tuple(value / total for value, kept in zip(exact, used, strict=True) if kept)
            found.setdefault(shares, record)
        return found

    @property
    def _exact(self) -> tuple[tuple[Fraction, ...], ...]:
        return tuple(self._numbered)

    @functools.cached_property
    def epsilon0(self) -> float:
        """The largest log likelihood ratio in nats, rounded up by a few units in the last place."""
        largest = max(max(column) / min(column) for column in zip(*self._exact, strict=True))
        if largest > sys.float_info.max:
            return math.inf
        # log1p keeps the digits of a ratio near 1.
        return math.log1p(float(largest - 1)) * (1.0 + 2.0**-50)

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    @property
    def description(self) -> str:
        records, messages = len(self.probabilities), len(self.probabilities[0])
        size = f"{records:,} records and {messages:,} messages"
        return f"{down(self.epsilon0)}-LDP messages of a given mechanism of {size}"

    @functools.cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Differences of the rows of all ordered pairs of records, and the second rows; [pairs, messages]."""
        pairs = list(itertools.permutations(self._exact, 2))
        apart = [[float(a - b) for a, b in zip(*pair, strict=True)] for pair in pairs]
        return np.array(apart), np.array([[float(b) for b in second] for _, second in pairs])

    def profile(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        above = np.expm1(np.minimum(loss, self.epsilon0)).ravel()
        apart, second = self._pairs
        # One column at a time, since a matrix of pairs and losses is large.
        found = np.zeros((len(apart), above.size))
        for difference, other in zip(apart.T, second.T, strict=True):
            moved = other[:, None] * above
            error = 2.0**-51 * (np.abs(difference)[:, None] + moved)
            value = difference[:, None] - moved
            found += np.where(value > -error, np.maximum(value, 0.0) + error, 0.0)
        value = np.minimum(found.max(axis=0), 1.0).reshape(loss.shape)
        return np.where(loss >= self.epsilon0, 0.0, value)

    @functools.cached_property
    def step_set(self) -> StepSet | None:  # type: ignore[override]
        """Steps for every ordered pair of the target's records and every record of another client."""
        rows = self._exact
        if len(rows) > _MOST_LISTED:
            return None
        laws = [(a, b, h) for a, b in itertools.permutations(rows, 2) for h in rows]

        def each(value: Any) -> np.ndarray:
            return np.array([[float(value(*atom)) for atom in zip(*law, strict=True)] for law in laws])

        return FiniteSteps(
            each(lambda a, b, h: (a - b) / h), each(lambda a, b, h: (b - h) / h), each(lambda a, b, h: h)
        )

    @functools.cached_property
    def label_laws(self) -> tuple[LabelLaws, ...]:  # type: ignore[override]
        """Pairs of the target's records, with the record of all others: of the largest variance of a step, or loss."""
        exact, names = self._exact, list(self._numbered.values())
        rows = np.array([[float(value) for value in row] for row in exact])
        found = []
        for i, j in itertools.combinations(range(len(rows)), 2):
            variances = np.sum(np.square(rows[i] - rows[j]) / rows, axis=1)
            found += [(float(variance), i, j, y) for y, variance in enumerate(variances)]
        laws = []
        ranked = sorted(found, reverse=True)
        # Under add-or-remove, the record of all others takes the place of the removed client's.
        of_two = next(each for each in ranked if each[3] in each[1:3])
        # The largest loss counts where few messages hide the record, or none.
        logs = np.log(rows)
        losses = np.max(logs[:, None] - logs[None], axis=-1)
        first, second = np.unravel_index(np.argmax(losses), losses.shape)
        revealing = next(each for each in ranked if {*each[1:3]} == {first, second} and each[3] == second)
        for _, i, j, y in dict.fromkeys([*ranked[:_WITNESSES], of_two, revealing]):
            # The pair is used in both orders.
            x, other = (j, i) if y == i else (i, j)
            difference = np.array([float(a - b) for a, b in zip(exact[x], exact[other], strict=True)])
            name = f"record {names[x]} against record {names[other]}, all others at record {names[y]}"
            laws.append(LabelLaws(rows[x], rows[other], name, None if y == other else rows[y], difference))
        return tuple(laws)
