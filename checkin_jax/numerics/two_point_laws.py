r"""Two laws X, Y whose mixtures dominate the term of every other client's Gaussian message in convex order.

Let mu be the largest distance of two records over the noise's standard deviation, with records in a ball of
radius mu/2. For c >= 1 let d = (z - 1) - c (z' - 1) be the centred term of a client at y
(`kernels.messages.two_point_sums`), X its law for y = x', and Y its law for y = x. `dominating` gives
functions V_X and V_Y on knots such that for all y, x, x' in the ball, in any dimension, there is a lambda in
[0, 1] with

    E(d - k)_+ <= lambda V_X(k) + (1 - lambda) V_Y(k)   at every knot k, and likewise for -d.

V_X is E(X - k)_+ for a slightly larger mu, plus W_X(k); V_Y likewise. X and Y alone do not suffice. W_X and
W_Y come from linear programmes over finitely many triples, each of which dominates a cell of triples. They
are then raised until every cell is covered, so the result is valid for any output of the programmes
[docs/evaluation.md].
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import scipy

from checkin_jax import _compiled
from checkin_jax._files import replacing
from checkin_jax.kernels import gaussian_profile, host
from checkin_jax.kernels.execution import devices
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages import two_point_sums

Table = TypeVar("Table", bound=tuple)
# Files that were not read for this many days are removed.
_KEPT_DAYS = 90


def disk_cache(table: type[Table]) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """Decorator that caches a function of numbers in memory and on disk; it returns `table`, a named tuple of arrays.

    The file name is a hash of the package's sources, library versions, platform and arguments, so that a table of
    another version is never read.
    """

    def decorate(function: Callable[..., Table]) -> Callable[..., Table]:
        lock = threading.Lock()

        @functools.wraps(function)
        def call(*numbers: float) -> Table:
            with lock:  # threads wait for the one that makes the table
                return get(*numbers)

        @functools.lru_cache(maxsize=64)
        def get(*numbers: float) -> Table:
            folder = _compiled.folder("tables")
            if folder is None:
                return function(*numbers)
            name = (
                f"{function.__module__}.{function.__qualname__}{numbers} {_surroundings(devices.host_cpu())}"
            )
            path = folder / sha256(name.encode()).hexdigest()
            found = _read(path, table)
            if found is None:
                found = function(*numbers)
                _write(path, found)
            return found

        return call

    return decorate


@functools.cache
def _surroundings(device: Any) -> str:
    """Sources, versions and platform that a table depends on."""
    package = Path(_compiled.__file__).parent
    sources = sha256()
    for folder in ("kernels", "numerics"):
        for source in sorted((package / folder).rglob("*.py")):
            sources.update(source.read_bytes())
    releases = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION")]
    place = device.platform, device.device_kind
    return repr((sources.hexdigest(), releases, sys.version_info[:2], flags, place))


def _read(path: Path, table: type[Table]) -> Table | None:
    """Table of this file; None if the file is missing or damaged."""
    try:
        os.utime(path)
        with path.open("rb") as file, np.load(file) as arrays:  # whose format has a checksum of each
            return table(*(arrays[name] for name in arrays.files))
    except Exception:  # missing or damaged: computed again and replaced
        return None


def _write(path: Path, found: tuple) -> None:
    """Writes the table atomically; does nothing on failure."""
    with contextlib.suppress(OSError):
        with replacing(path) as file:
            np.savez(file, *found)
        for old in path.parent.iterdir():
            with contextlib.suppress(OSError):  # another process has removed the file
                if old.stat().st_mtime < time.time() - _KEPT_DAYS * 86_400:
                    old.unlink()


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


# Range of mu, and the nodes in c between which V is linear.
LEAST_MU, MOST_MU = 0.02, 3.0
C_NODES = (1.0, 1.04, 1.15, 1.5)
# Relative increase of mu for X and Y. The triples that dominate cells need it.
_RAISED = 0.002
# Numbers of knots up to three standard deviations, and beyond.
_BODY, _TAIL = 28, 44
# Triples per batch.
_CHUNK = 64
# Degrees: the grid of the first programme, and the first cells' half width; then how often cells are halved.
# A cell is halved if it lacks more than _EXCESS variances after W is raised by the factor _FREE.
_GRID, _CELL, _HALVINGS = 7.5, 1.875, 3
_EXCESS, _FREE = 0.004, 1.05
# Weight of the larger ratio's exponent against the smaller one's when cells are covered.
_WEIGHT = 30.0
# Bisections for the best lambda.
_BISECTIONS = 12
# Rounds in which triples are added to the programme, and triples added per round.
_ROUNDS, _ADDED = 3, 60
# Relative rounding error of V, with a wide margin.
_ROUNDING = 1e-10


class TwoLaws(NamedTuple):
    """V on knots from 0, for X and for Y, at two values of c; linear in c between them.

    knots: [knots]. right, left: bounds on E(d - k)_+ and on E(-d - k)_+, [2 values of c, 2 laws, knots].
    """

    knots: np.ndarray
    right: np.ndarray
    left: np.ndarray


def knots_of(mu: float, knot_range: float) -> np.ndarray:
    """Knots from 0 to the likelihood ratio of a message at `knot_range` standard deviations."""
    body = 3.0 * math.sqrt(math.expm1(mu * mu))
    end = max(math.expm1(mu * knot_range + 0.5 * mu * mu), 1.5 * body)
    return np.concatenate([[0.0], np.geomspace(0.01, 1.0, _BODY)[:-1] * body, np.geomspace(body, end, _TAIL)])


def of_ends(mu: float, c: float, knots: np.ndarray) -> np.ndarray:
    """E(d - k)_+ and E(-d - k)_+ of X and Y, rounded up; [2 sides, 2 laws, knots]."""

    def profile(loss: np.ndarray) -> np.ndarray:
        with float64():
            return np.exp(np.asarray(gaussian_profile.log_profile(mu, loss)))

    def above(k: np.ndarray) -> np.ndarray:
        return profile(np.log1p(k))

    def below(k: np.ndarray) -> np.ndarray:
        left = np.maximum(1.0 - k, 1e-300)
        return np.where(k < 1.0, left * profile(-np.log(left)), 0.0)

    up, down = above(knots), below(knots)
    up_other, down_other = c * above(knots / c), c * below(knots / c)
    return np.stack([np.stack([up, down_other]), np.stack([down, up_other])]) * (1.0 + _ROUNDING)


def cover(a: np.ndarray, b: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Gram matrices (in units of mu^2) that dominate those of triangles with angles within `half`
    of (a, b).

    Angles at x and at x' in radians, of triangles of circumradius 1/2: |x - y| = sin b, |x' - y| = sin a.

    Returns:
      [cells, 3]: entries 11, 12, 22.
    """
    sin_a, sin_b, square = np.sin(a), np.sin(b), np.square(half)
    middle = np.stack([sin_b * sin_b, -sin_a * sin_b * np.cos(a + b), sin_a * sin_a], axis=-1)
    # Weighted moduli of symmetric matrices: D^-1 |D S D| D^-1 dominates S and -S for every diagonal D > 0.
    ratio = np.sqrt((1.0 + _WEIGHT * sin_b**4) / (1.0 + _WEIGHT * sin_a**4))

    def modulus(first: np.ndarray, off: np.ndarray, second: np.ndarray) -> np.ndarray:
        first, second = first * ratio, second / ratio
        root = np.abs(first * second - off * off)
        entries = first * first + off * off, off * (first + second), second * second + off * off
        size = np.sqrt(np.maximum(entries[0] + entries[2] + 2.0 * root, 1e-300))
        return np.stack(
            [(entries[0] + root) / size / ratio, entries[1] / size, (entries[2] + root) / size * ratio], -1
        )

    none = np.zeros_like(a)
    by_a = modulus(none, -sin_b * np.cos(2.0 * a + b), np.sin(2.0 * a))
    by_b = modulus(np.sin(2.0 * b), -sin_a * np.cos(a + 2.0 * b), none)
    # Bounds on second derivatives: 2 on the diagonal; 2, 2 and (mixed) 1 off it.
    rest = np.stack([square * (1.0 + 3.0 / ratio), none, square * (1.0 + 3.0 * ratio)], axis=-1)
    # Makes the matrix positive definite, and covers all rounding.
    least = np.asarray([1e-9, 0.0, 1e-9])
    return middle + half[:, None] * (by_a + by_b) + rest + least


def _transforms(mu: float, cs: tuple[float, float], knots: np.ndarray, grams: np.ndarray) -> np.ndarray:
    """Both transforms of every triple at both c; [triples, 2 c 2 sides knots]."""
    count = len(grams)
    padded = np.concatenate([grams, np.repeat(grams[-1:], -count % _CHUNK, axis=0)]) * (
        mu * mu * (1.0 + 1e-12)
    )
    chunks = padded.reshape(-1, _CHUNK, 3)
    parts = []
    with float64():
        for c in cs:
            found = [two_point_sums.transforms_upper(host(chunk), host(c), host(knots)) for chunk in chunks]
            parts.append(
                np.concatenate([np.concatenate([np.asarray(v) for v in pair], axis=1) for pair in found])
            )
    return np.concatenate(parts, axis=1)[:count]


class _Fit(NamedTuple):
    """Best lambda of every triple, its deficits [triples, places], and their weighted sum."""

    shares: np.ndarray
    needed: np.ndarray
    excess: np.ndarray


def _fit(value: np.ndarray, first: np.ndarray, second: np.ndarray, weight: np.ndarray) -> _Fit:
    """Best lambda by bisection, as the weighted deficit is convex in lambda; in batches for the CPU cache."""
    apart = first - second
    slope, found = weight * apart, []
    for start in range(0, len(value), _CHUNK):
        over = value[start : start + _CHUNK] - second
        low, high = np.zeros(len(over)), np.ones(len(over))
        for _ in range(_BISECTIONS):
            share = 0.5 * (low + high)
            falls = (over > share[:, None] * apart) @ slope > 0
            low, high = np.where(falls, share, low), np.where(falls, high, share)
        share = 0.5 * (low + high)
        needed = np.maximum(over - share[:, None] * apart, 0.0)
        found.append((share, needed, needed @ weight))
    return _Fit(*map(np.concatenate, zip(*found)))


def _halved(a: np.ndarray, b: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    half = 0.5 * half
    signs = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))
    return (
        np.concatenate([a + s * half for s, _ in signs]),
        np.concatenate([b + s * half for _, s in signs]),
        np.tile(half, 4),
    )


def _acute(a: np.ndarray, b: np.ndarray, half: np.ndarray) -> np.ndarray:
    """True for cells with a triangle whose angle at y is not obtuse."""
    return a + b + 2.0 * half >= 0.5 * math.pi - 1e-9


def _places(spacing: float, first: float) -> tuple[np.ndarray, np.ndarray]:
    at = np.radians(np.arange(first, 90.0 + 1e-9, spacing))
    a, b = np.meshgrid(at, at)
    return a.ravel(), b.ravel()


@disk_cache(TwoLaws)
def dominating(mu: float, knot_range: float, interval: int) -> TwoLaws:
    """V_X and V_Y for c between C_NODES[interval] and the next node.

    Args:
      mu: in [LEAST_MU, MOST_MU]. knot_range: standard deviations of a message that the knots cover.
      interval: 0, 1 or 2.
    """

    cs = C_NODES[interval], C_NODES[interval + 1]
    knots = knots_of(mu, knot_range)
    ends = np.stack([of_ends(mu * (1.0 + _RAISED), c, knots) for c in cs])
    first, second = (ends[:, :, law].ravel() for law in (0, 1))
    gaps = np.diff(knots)
    variance = math.expm1(mu * mu)
    weight = (np.append(gaps, 0.0) + np.append(0.0, gaps)) * (1.0 + knots / (3.0 * math.sqrt(variance)))
    weight = np.tile(weight, 4) / (2.0 * variance)
    problem = LinearProgram(first, second, weight, bends(knots))
    get = functools.partial(_transforms, mu, cs, knots)

    a, b = _places(_GRID, 0.0)
    kept = _acute(a, b, np.zeros_like(a))
    value = get(cover(a[kept], b[kept], np.full(kept.sum(), 1e-3)))
    added = problem.added(value, problem.shares(value))

    a, b = _places(2.0 * _CELL, _CELL)
    half = np.full(a.shape, math.radians(_CELL))
    kept = _acute(a, b, half)
    a, b, half = a[kept], b[kept], half[kept]
    leaves: list[np.ndarray] = []
    for halvings in range(_HALVINGS + 1):
        value = get(cover(a, b, half))
        fit = _fit(value, first + _FREE * added[0], second + _FREE * added[1], weight)
        open_ = (fit.excess > _EXCESS) & (halvings < _HALVINGS)
        leaves.append(value[~open_])
        if not open_.any():
            break
        a, b, half = _halved(a[open_], b[open_], half[open_])
        kept = _acute(a, b, half)
        a, b, half = a[kept], b[kept], half[kept]

    value = np.concatenate(leaves)
    fit = _fit(value, first + added[0], second + added[1], weight)
    hardest = np.zeros(len(value), dtype=bool)
    for _ in range(_ROUNDS):
        order = np.argsort(-fit.excess)[:_ADDED]
        hardest[order[fit.excess[order] > 1e-4]] = True
        if not hardest.any():
            break
        added = problem.added(value[hardest], fit.shares[hardest])
        fit = _fit(value, first + added[0], second + added[1], weight)
    # The largest remaining deficit is added to both, so that all cells are covered for any output of the
    # programmes.
    both = np.stack([part.reshape(2, 2, -1) for part in (first + added[0], second + added[1])], axis=2)
    both = (both + fit.needed.max(axis=0).reshape(2, 2, 1, -1)) * (1.0 + _ROUNDING)
    return TwoLaws(knots, both[:, 0], both[:, 1])
