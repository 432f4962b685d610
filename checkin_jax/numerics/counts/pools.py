"""Number n' of other clients that can hide the target (T1h), from partial knowledge of the check-in rates.

A coin of rate x is, with probability w = min(x / theta, (1-x) / (1-theta)), a coin of rate theta; otherwise
the client is surely absent or surely present (splitting lemma, docs/theory_rates.md). The pool consists of
the clients of the first case, and n' is their number. A stochastic lower bound on n' gives an upper bound on
the divergence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax.kernels import binomial, host
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.numerics.counts.poisson_binomial import SumLaw

# Values of n' besides 0 and the least that matters, in standard deviations from the mean; more where they cost little.
PLACES, FINER = (-3.1, -1.9, -1.1, -0.4, 0.3, 1.2), tuple(np.linspace(-4.0, 4.0, 41).tolist())
# Factor that rounds computed weights down.
_DOWN = 1.0 - 1e-15


class PoolSizes(NamedTuple):
    """Values of n' and their probabilities, or a law stochastically below n'; [values]."""

    sizes: np.ndarray
    masses: np.ndarray

    @property
    def mean(self) -> float:
        """Mean of the law."""
        return float(self.sizes @ self.masses)


def weights(rates: np.ndarray, theta: float) -> np.ndarray:
    """Probability that a client of each rate is in the pool, rounded down."""
    members = np.where(rates <= theta, rates / theta, (1.0 - rates) / (1.0 - theta))
    return np.where(rates == theta, 1.0, np.clip(members * _DOWN, 0.0, 1.0))


def sum_of(
    members: np.ndarray,
    counts: np.ndarray | None,
    neg_log_tail: float,
    places: Sequence[float] = PLACES,
) -> PoolSizes:
    """Lower law of the number of independent events that occur, with these probabilities, `counts` times
    each.
    """
    of = poisson_binomial.trials(members, counts)
    if of.number == 0:
        return certain(of.sure)
    return cut(poisson_binomial.law(of, neg_log_tail), of.mean, of.variance, places=places)


def certain(size: float) -> PoolSizes:
    """Point mass of n' at `size`."""
    return PoolSizes(np.array([float(size)]), np.ones(1))


def limited(weight: float, neg_log_tail: float, places: Sequence[float] = PLACES) -> PoolSizes:
    """Law below n' if only a lower bound `weight` on the sum of the others' weights w_j is known.

    n' is stochastically at least min(Poisson(weight), floor(weight)) [Hoeffding 1956, Theorem 4].
    """
    weight = weight * _DOWN
    if weight < 1.0:
        return certain(0.0)
    law = poisson_binomial.poisson_law(weight, neg_log_tail)
    return cut(law, weight, weight, math.floor(weight), places)


def cut(
    law: SumLaw,
    mean: float,
    variance: float,
    most: float = math.inf,
    places: Sequence[float] = PLACES,
) -> PoolSizes:
    """Law on few values stochastically below the given one: every value moves to the next lower selected value.

    places: of the values selected, in standard deviations from the mean.
    """
    index = np.arange(law.values.size)
    usable = index[law.values <= most]
    if usable.size == 0:
        return certain(0.0)
    if usable.size < len(places) + 2 and law.stride == 1.0:
        kept = usable
    else:
        wanted = mean + math.sqrt(variance) * np.asarray(places)
        at = np.searchsorted(law.values[usable], wanted)
        kept = np.unique(np.concatenate([[0], np.clip(at, 0, usable.size - 1)]))
    # Pr[n' < value], rounded up; the top run of the law is not needed.
    under = np.concatenate([[law.below], law.below + np.cumsum(law.run_upper)])[kept]
    under = np.minimum(np.append(under, 1.0), 1.0)
    under[-1] = 1.0
    sizes = np.concatenate([[0.0], law.values[kept]])
    masses = np.diff(np.concatenate([[0.0], np.maximum.accumulate(under)]))
    return PoolSizes(sizes, masses)


class Runs:
    """A law cut into runs of values, with bounds on their masses and on those of the runs shifted down by
    one.

    first, last: values of the sum plus one, [runs]. lower, upper: of the sum in [first - 1, last - 1].
    next_upper, next_lower: of the sum in [first, last].
    """

    def __init__(self, law: SumLaw, buckets: int) -> None:
        size, stride = law.lower.size, law.stride
        mean = float(law.run_upper @ np.arange(float(size)))
        deviation = np.sqrt(max(float(law.run_upper @ np.square(np.arange(float(size)) - mean)), 1e-300))
        ends = binomial.edges(host(0.0), host(size - 1.0), host(mean), host(deviation), buckets)
        start, stop = (np.asarray(end).astype(np.int64) for end in ends)
        kept = (stop >= start) & (start < size)
        start, stop = start[kept], np.minimum(stop[kept], size - 1)
        self._start = start
        self.lower = np.add.reduceat(law.run_lower, start)
        self.upper = np.add.reduceat(law.run_upper, start)
        self.first = law.first + stride * start + 1.0
        self.last = np.append(self.first[1:] - 1.0, law.last + 1.0)
        # Shifted by one: the value after the last enters, the first leaves.
        entering = np.append(law.upper[start[1:]], law.above)
        self.next_upper = np.maximum(self.upper + entering - law.lower[start], 0.0)
        entering = np.append(law.lower[start[1:]], 0.0)
        self.next_lower = np.maximum(self.lower + entering - law.upper[start], 0.0)

    def ratios(self, law: SumLaw) -> tuple[np.ndarray, np.ndarray]:
        """Bounds (above, below) on Pr[T = k] / Pr[T = k-1] for all k of each run; infinity and 0 if unknown.

        The ratio decreases in k (Newton): it is at most its value at the first k and at least that at the
        last one, which chords bound.
        """
        start, after = self._start, np.append(self._start[1:], law.lower.size)
        low, high = np.append(law.lower, 0.0), np.append(law.upper, math.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            if law.stride == 1.0:
                above, below = high[start + 1] / low[start], low[after] / high[after - 1]
                # Zero beyond the last value.
                above = np.where(start + 1 < law.lower.size, above, math.inf if law.above else 0.0)
                below = np.where(after < law.lower.size, below, 0.0)
            else:
                above = np.where(start > 0, (high[start] / low[start - 1]) ** (1.0 / law.stride), math.inf)
                beyond = np.minimum(after + 1, law.lower.size)
                below = np.where(
                    beyond < law.lower.size, (low[beyond] / high[np.minimum(after, law.lower.size)]), 0.0
                )
                below = below ** (1.0 / law.stride)
        return np.where(np.isnan(above), math.inf, above), np.where(np.isnan(below), 0.0, below)
