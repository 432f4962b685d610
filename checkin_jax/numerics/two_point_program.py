"""Linear programmes for `two_point_laws`: the smallest W_X and W_Y whose mixtures dominate given triples.

No bound depends on how accurately they are solved.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import scipy.optimize
import scipy.sparse


def bends(knots: np.ndarray) -> Any:
    """Second differences at the inner knots as a sparse matrix, for four functions on the knots."""
    gaps, sparse = np.diff(knots), cast(Any, scipy.sparse)
    rows = sparse.diags(
        [1.0 / gaps[:-1], -1.0 / gaps[:-1] - 1.0 / gaps[1:], 1.0 / gaps[1:]],
        [0, 1, 2],
        (gaps.size - 1, gaps.size + 1),
    )
    # Scaled by the gaps, so that entries are of order one.
    return scipy.sparse.kron(
        scipy.sparse.eye(4), scipy.sparse.diags(np.minimum(gaps[:-1], gaps[1:])) @ rows
    ).tocsr()


def _least(
    cost: np.ndarray, above: Any, value: np.ndarray, bounds: list[tuple[float, float | None]]
) -> np.ndarray:
    """Approximate minimiser of cost @ x subject to above @ x >= value."""
    found = scipy.optimize.linprog(cost, A_ub=-above, b_ub=-value, bounds=bounds)
    return np.zeros(cost.size) if found.x is None else found.x


class LinearProgram(NamedTuple):
    """Transforms of X and Y, weights of the places, and second differences, which must stay nonnegative."""

    first: np.ndarray
    second: np.ndarray
    weight: np.ndarray
    bends: Any

    def shares(self, value: np.ndarray) -> np.ndarray:
        """lambda of every triple if one W is added to both X and Y and its weighted sum is minimal."""
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
        """(W_X, W_Y) of the smallest weighted sum for these lambda, such that both transforms stay convex."""
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
