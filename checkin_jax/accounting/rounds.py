"""One round as the composer sees it: profile bounds from above and from below, with their names.

Each class answers two questions about one round of a protocol, for losses l >= 0 in nats: `upper(l)`, a proven
bound on the hockey-stick divergence at e^l in both directions; and `lower(l)`, for P||Q and for Q||P, the pair
(P(A) - Q(A), Q(A)) of a set A near {loss > l} of a concrete instance. Call inside `jax.enable_x64(True)`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, Self

import numpy as np
from jax import Array

from checkin_jax.kernels import binomial, check_in, check_in_gaussian, host, signs
from checkin_jax.kernels.check_in import ROUNDING

Values = Array | np.ndarray
Lines = tuple[Values, Values]


class Round(Protocol):
    """What the composer needs to know of one round."""

    @property
    def top(self) -> float:
        """The largest loss, or infinity."""
        ...

    @property
    def symmetric(self) -> bool:
        """Whether the pair of the lower bound is the same in both directions."""
        ...

    @property
    def instance(self) -> Round:
        """The round whose `lower` is to be composed: usually this one."""
        ...

    @property
    def names(self) -> tuple[str, str]:
        """Theorem behind the upper and the lower bound."""
        ...

    def upper(self, loss: np.ndarray) -> Values: ...

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]: ...


class _OwnInstance:
    """For rounds whose lower bound is composed from themselves."""

    @property
    def instance(self) -> Self:
        return self


# Points, in standard deviations, over which the number of absent is spread, by how much that matters.
_SPREADS = ((1e-4, (0.8, 1.7, 2.7, 3.8, 5.0, 6.5)), (6e-6, (2.2, 4.5)))


def _bucket_count(mean: float) -> int:
    """Buckets that keep their part of the error in epsilon near 0.04%, from a short ladder (each compiles once)."""
    wanted = 3600.0 / math.sqrt(max(mean, 1.0))
    return next((size for size in (16, 64, 128) if size >= wanted), 256)


@dataclasses.dataclass(frozen=True)
class ShuffledPureLDP(_OwnInstance):
    """Shuffled check-in of eps0-LDP messages, messages (or aggregate) view: T1 above, L1 below."""

    num_clients: int
    rate: float
    epsilon0: float
    log_inverse_mass: float

    names = ("T1", "L1 (3-ary randomized response, all others at a third record)")
    symmetric = True

    @property
    def top(self) -> float:
        return self.epsilon0

    def _mixture(self, upper: bool) -> tuple[check_in.Buckets, Array, Array, tuple[int, bool]]:
        n, rate, epsilon0, mass = (
            host(v) for v in (self.num_clients, self.rate, self.epsilon0, self.log_inverse_mass)
        )
        law = (check_in.upper_law if upper else check_in.lower_law)(n, rate, epsilon0)
        mean = self.num_clients * float(law.special)
        largest = min(mean + float(binomial.bernstein_radius(host(mean), mass)) + 2.0, self.num_clients)
        plan = signs.plan(largest, self.log_inverse_mass)
        if self.num_clients <= check_in.SMALL:
            return check_in.buckets_exact(law), epsilon0, mass, plan
        buckets = _bucket_count(mean)
        if not upper:
            return check_in.buckets_lower(law, mass, buckets), epsilon0, mass, plan
        # What the spread of the absent adds goes as gamma (1 - gamma) / n.
        drift = self.rate * (1.0 - self.rate) / self.num_clients
        offsets = next((points for least, points in _SPREADS if drift > least), ())
        return check_in.buckets_upper(law, mass, buckets, offsets), epsilon0, mass, plan

    def upper(self, loss: np.ndarray) -> Array:
        mix, epsilon0, mass, plan = self._mixture(True)
        return check_in.profile_upper(mix, loss, epsilon0, mass, plan)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        mix, epsilon0, mass, plan = self._mixture(False)
        lines = check_in.lines_lower(mix, loss, epsilon0, mass, plan)
        return lines, lines


@dataclasses.dataclass(frozen=True)
class ShuffledGaussian:
    """Shuffled check-in of Gaussian messages: G1 above; below, the sum with all others at one record.

    The sum is a post-processing of the messages, so its lower bound holds for both views.
    """

    num_clients: int
    rate: float
    mu: float
    summed: bool
    log_inverse_mass: float

    symmetric = False
    top = math.inf

    @property
    def instance(self) -> Round:
        return self if self.summed else dataclasses.replace(self, summed=True)

    @property
    def names(self) -> tuple[str, str]:
        view = "noise of the sum" if self.summed else "subsampling"
        return f"G1 ({view})", "subsampled Gaussian sum, all others at one record"

    def _arguments(self) -> tuple[Array, Array, Array, Array, int]:
        buckets = _bucket_count(self.num_clients * self.rate)
        n, rate, mu, mass = (host(v) for v in (self.num_clients, self.rate, self.mu, self.log_inverse_mass))
        return n, rate, mu, mass, buckets

    def upper(self, loss: np.ndarray) -> Array:
        mix = check_in_gaussian.buckets_upper(*self._arguments(), self.summed)
        return check_in_gaussian.profile_upper(mix, loss)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        mix = check_in_gaussian.buckets_lower(*self._arguments(), self.summed)
        return check_in_gaussian.lines_lower(mix, loss, False), check_in_gaussian.lines_lower(mix, loss, True)


@dataclasses.dataclass(frozen=True)
class LocalPureLDP(_OwnInstance):
    """One client's own messages, seen with its name: randomized response, sent with probability rate. Exact."""

    rate: float
    epsilon0: float

    names = ("the randomizer's own law, sent at the check-in rate", "binary randomized response (exact)")
    symmetric = True

    @property
    def top(self) -> float:
        return self.epsilon0

    def upper(self, loss: np.ndarray) -> Values:
        # (p - c)_+ / (p + 1), divided through by p.
        room = np.maximum(-np.expm1(loss - self.epsilon0), 0.0) / (1.0 + math.exp(-self.epsilon0))
        return self.rate * room * (1.0 + ROUNDING)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        inside = loss < self.epsilon0
        p_mass = self.rate / (1.0 + math.exp(-self.epsilon0))
        difference = np.where(inside, p_mass * -math.expm1(-self.epsilon0) * (1.0 - ROUNDING), 0.0)
        lines = difference, np.where(inside, p_mass * math.exp(-self.epsilon0), 0.0)
        return lines, lines


@dataclasses.dataclass(frozen=True)
class LocalGaussian(_OwnInstance):
    """One client's own Gaussian messages, seen with its name, sent with probability rate. Exact."""

    rate: float
    mu: float

    names = ("the Gaussian mechanism, sent at the check-in rate", "the Gaussian mechanism (exact)")
    symmetric = True
    top = math.inf

    def _mixture(self) -> check_in_gaussian.GaussianBuckets:
        # A participation rate of one, seen with probability `rate`.
        mu, one, rate = (host([value]) for value in (self.mu, 1.0, self.rate))
        return check_in_gaussian.GaussianBuckets(mu, one, rate, host(0.0))

    def upper(self, loss: np.ndarray) -> Array:
        return check_in_gaussian.profile_upper(self._mixture(), loss)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        lines = check_in_gaussian.lines_lower(self._mixture(), loss, False)
        return lines, lines
