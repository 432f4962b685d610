"""Sums of Laplace messages: subsampling (G1) from above, and a witness.

Given its random variance, which a gamma law has, a sum of Laplace variables is Gaussian. In the witness the others and
the dummies are at one end of the interval, the target at either; the adversary adds up all that is seen, and adds
Laplace noise of its own up to a fixed number of terms. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.accounting.bounds.interface import Lines, OwnEvents, Witness
from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian
from checkin_jax.accounting.bounds.profiles import MOST_SHIFT
from checkin_jax.kernels import ROUNDING
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff

# Thresholds of the sum; cells of the sum's random variance on either side of its mean.
_THRESHOLDS, _CELLS = 600, 200
# From so many terms on, the gamma law is evaluated within so many standard deviations; beyond, Chernoff's bound.
_MANY, _CENTRE = 200, 4.4
# Relative errors of masses of cells, and of normal tails.
_MASSES, _TAILS = 1e-8, 1e-14
# The least share of its mean to which the random variance may fall for a bound to be worth its evaluation.
_LEAST_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class ShuffledLaplaceSum:
    """G1 for the sum of a sample's Laplace messages, and their number. Symmetric.

    Given a variance 2 v k or more, k messages hide one as Gaussian ones of the variance 2 v each do.

    Attributes:
      num_clients, rate: n and gamma. epsilon0: length of the interval in scales of the noise.
      neg_log_tail: -log of the negligible mass.
    """

    num_clients: int
    rate: float
    epsilon0: float
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    name = "subsampling"

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    @functools.cached_property
    def _share(self) -> float:
        """v, with Pr[Gamma(k) < v k] <= exp(-neg_log_tail) for all numbers k that are not as rare."""
        fewest = float(chernoff.fewest(self.num_clients, self.rate, np.array([self.neg_log_tail]))[0])
        low, _ = bisected(lambda v: fewest * (v - 1.0 - math.log(v)) >= self.neg_log_tail, 0.0, 1.0, 60)
        return float(low) * (1.0 - 1e-12)

    @property
    def gains(self) -> bool:
        """True if the variance is nearly known, and the shift in the range of the kernels."""
        return self._share >= _LEAST_SHARE and self._mu <= MOST_SHIFT

    @property
    def _mu(self) -> float:
        return self.epsilon0 / math.sqrt(2.0 * self._share) * (1.0 + ROUNDING)

    @functools.cached_property
    def _gaussian(self) -> ShuffledGaussian:
        return ShuffledGaussian(self.num_clients, self.rate, self._mu, True, self.neg_log_tail)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        rare = 2.0 * math.exp(-self.neg_log_tail) * (1.0 + ROUNDING)
        return np.where(loss >= self.epsilon0, 0.0, np.asarray(self._gaussian.upper(loss)) + rare)


@dataclasses.dataclass(frozen=True, eq=False)
class LaplaceSum(OwnEvents):
    """A sum of k Laplace variables of scale 1, moved by epsilon0 with probability q, against one that is not moved.

    Attributes:
      number: k. use_prob: q, from below. epsilon0: length of the interval. neg_log_tail: -log of the negligible mass.
    """

    number: float
    use_prob: float
    epsilon0: float
    neg_log_tail: float

    name = "the sum of Laplace messages, all others at one end of the interval"

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        return self.epsilon0

    @functools.cached_property
    def _variances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges of cells of Gamma(k), and masses of the cells from below and from above; [cells]."""
        special, k = scipy.special, self.number
        far = max(9.0, math.sqrt(2.0 * self.neg_log_tail)) + 1.0
        if k < _MANY:
            tails = special.ndtr(-np.linspace(0.0, far, _CELLS + 1))
            low, high = special.gammaincinv(k, tails[::-1]), special.gammainccinv(k, tails[1:])
            below, above = special.gammainc(k, low), special.gammaincc(k, high)
        else:
            centre = np.linspace(0.0, _CENTRE, _CELLS + 1)
            low, high = k - math.sqrt(k) * centre[::-1], k + math.sqrt(k) * centre[1:]
            below, above = special.gammainc(k, low), special.gammaincc(k, high)
        masses = np.concatenate([np.diff(below), -np.diff(above, prepend=special.gammaincc(k, low[-1]))])
        edges = np.concatenate([low, high])
        least, most = masses * (1.0 - _MASSES), masses * (1.0 + _MASSES)
        if k < _MANY:
            # The last cell is unbounded.
            rest, beyond, first = np.array([above[-1]]), np.array([math.inf]), below[0]
        else:
            beyond = k * np.exp(
                np.linspace(math.log(edges[-1] / k), 3.0 * far / math.sqrt(k) + 3.0, 2 * _CELLS)
            )
            rest, first = np.exp(-k * (beyond / k - 1.0 - np.log(beyond / k))), below[0]
            beyond = np.append(beyond[1:], math.inf)
        edges = np.concatenate([[0.0], edges, beyond])
        most = np.concatenate([[first], most, rest * (1.0 + _MASSES)])
        least = np.concatenate([[0.0], least, np.zeros(rest.size)])
        return edges, least, most

    @functools.cached_property
    def _events(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(P(A) - Q(A) from below, Q(A) from above) of {sum > s}, and the same with P and Q exchanged for {sum < s}."""
        edges, least, most = self._variances
        near, far = (np.sqrt(2.0 * part)[:, None] for part in (edges[:-1], edges[1:]))
        deviation = math.sqrt(2.0 * self.number)
        last = max(1.2 * deviation * math.sqrt(2.0 * self.neg_log_tail), self.neg_log_tail)
        s = np.linspace(-4.0 * deviation, last + self.epsilon0, _THRESHOLDS)

        def tail(s: np.ndarray) -> np.ndarray:
            # It grows with the variance where s > 0, and falls elsewhere.
            return most @ scipy.special.ndtr(-s / np.where(s > 0.0, far, np.maximum(near, 1e-300)))

        known = least > 0.0
        moved, still = (scipy.special.ndtr(-place / near[known]) for place in (s - self.epsilon0, s))
        # A density e^(-u^2 / 2 v^2) / v is at least near / far times that of the near edge.
        apart = least[known] @ ((near / far)[known] * np.maximum(moved - still - _TAILS * moved, 0.0))
        apart *= self.use_prob * (1.0 - _MASSES)
        # The mirror image about epsilon0 / 2: Q(A) is the tail at s - epsilon0, P(A) is less by `apart`.
        other = np.maximum(tail(s - self.epsilon0) * (1.0 + _TAILS) - apart, 0.0)
        return (apart, np.minimum(tail(s) * (1.0 + _TAILS), 1.0)), (apart, np.minimum(other, 1.0))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = self._events
        return convex.best_event(*forward, loss), convex.best_event(*backward, loss)
