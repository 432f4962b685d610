"""Linear programmes for the laws of `two_laws`: the least W_X and W_Y with which mixtures are above all triples.

Nothing rests on how well they are solved.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import scipy.optimize
import scipy.sparse


def bends(knots: np.ndarray) -> Any:
    """By how much a function on the knots falls faster before each inner knot than after it, for four functions."""
    gaps, sparse = np.diff(knots), cast(Any, scipy.sparse)
    rows = sparse.diags(
        [1.0 / gaps[:-1], -1.0 / gaps[:-1] - 1.0 / gaps[1:], 1.0 / gaps[1:]],
        [0, 1, 2],
        (gaps.size - 1, gaps.size + 1),
    )
    # In units of the gaps, so that rows are of size one.
    return scipy.sparse.kron(
        scipy.sparse.eye(4), scipy.sparse.diags(np.minimum(gaps[:-1], gaps[1:])) @ rows
    ).tocsr()


def _least(
    cost: np.ndarray,
    above: Any,
    value: np.ndarray,
    bounds: list[tuple[float, float | None]],
) -> np.ndarray:
    """About the least cost @ x with above @ x >= value."""
    found = scipy.optimize.linprog(cost, A_ub=-above, b_ub=-value, bounds=bounds)
    return np.zeros(cost.size) if found.x is None else found.x


class Problem(NamedTuple):
    """X and Y (transforms at all places), weights of the places, and second differences that must not be negative."""

    first: np.ndarray
    second: np.ndarray
    weight: np.ndarray
    bends: Any

    def shares(self, value: np.ndarray) -> np.ndarray:
        """lambda of every triple, as it is where the same W is added to X and Y; the least W, by weight."""
        rows, places = value.shape
        above = scipy.sparse.hstack(
            [
                scipy.sparse.kron(np.ones((rows, 1)), scipy.sparse.eye(places)),
                scipy.sparse.kron(scipy.sparse.eye(rows), np.reshape(self.first - self.second, (-1, 1))),
            ]
        )
        convex = scipy.sparse.hstack([self.bends, scipy.sparse.csr_matrix((self.bends.shape[0], rows))])
        least = _least(
            np.concatenate([self.weight, np.zeros(rows)]),
            scipy.sparse.vstack([above, convex]).tocsr(),
            np.concatenate([(value - self.second).ravel(), -self.bends @ self.first]),
            [(0.0, None)] * places + [(0.0, 1.0)] * rows,
        )
        return np.clip(least[places:], 0.0, 1.0)

    def added(self, value: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What to add to X and to Y, with these lambda: the least of both, by weight, so that both stay convex."""
        places, share = value.shape[1], shares[:, None]
        above = scipy.sparse.hstack(
            [
                scipy.sparse.kron(scipy.sparse.csr_matrix(part), scipy.sparse.eye(places))
                for part in (share, 1.0 - share)
            ]
        )
        lacking = value - share * self.first - (1.0 - share) * self.second
        binding = (lacking > 0).ravel()
        convex = scipy.sparse.block_diag([self.bends, self.bends])
        least = _least(
            np.concatenate([self.weight, self.weight]),
            scipy.sparse.vstack([above.tocsr()[binding], convex]).tocsr(),
            np.concatenate([lacking.ravel()[binding], -self.bends @ self.first, -self.bends @ self.second]),
            [(0.0, None)] * (2 * places),
        )
        return np.maximum(least[:places], 0.0), np.maximum(least[places:], 0.0)
