"""Gaussian messages in slots: one client's message in one of m slots that cannot be told apart.

`AllocationGaussian` (G3) is a concrete pair: adding or removing a client (dummies hidden), both directions.
`OccupiedAllocationGaussian` (G3') counts the other clients as well. `ReplacedGaussian` (R1, R2) is for the
replacement of a record, for which the worse direction of G3 is NOT a bound. `AveragedGaussian` (G4) is for averaged
slots, aggregate view. mu is the largest shift of one slot's mean over the noise's standard deviation:
2 / noise_multiplier when another client's update may be displaced. Proofs: docs/theory_allocation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import numpy as np
from jax import Array

from checkin_jax.accounting.rounds import Instance, Lines, Round, bucket_count
from checkin_jax.kernels import allocation, binomial, check_in_gaussian, host, lognormal
from checkin_jax.kernels.check_in import ROUNDING

_CELLS = jax.jit(binomial.cells, static_argnames="buckets")
# Splits of epsilon into two steps that are tried.
_SPLITS = 48


@dataclasses.dataclass(frozen=True)
class AllocationGaussian:
    """G3: P = (1-rho) N(0, I) + (rho/m) sum_i N(mu e_i, I) against Q = N(0, I), exact but for rounding.

    The dominating pair of A_fix (used = p_0) and A_sldw (used = 1) with Gaussian messages under add-or-remove, an
    empty slot's dummy being hidden [random allocation: Feldman, Shenfeld 2025]. Valid for adaptive randomizers.

    Attributes:
      slots: m >= 1. Above `allocation.MAX_SLOTS` the upper end is that of so many slots, and there is no lower one.
      used: rho in (0, 1], the probability that the client's message is in one of them.
      mu: in [1e-6, 100].
      log_inverse_mass: profiles are followed down to about exp(-log_inverse_mass).
    """

    slots: int
    used: float
    mu: float
    log_inverse_mass: float

    name = "G3"
    symmetric = False
    top = math.inf

    @property
    def instances(self) -> tuple[Instance, ...]:
        return (self,)

    @property
    def scale(self) -> Round:
        return self

    @functools.cached_property
    def _above(self) -> tuple[allocation.Profile, allocation.Profile]:
        forward, backward = (
            allocation.profile(self.mu, self.slots, self.log_inverse_mass, reverse, True)
            for reverse in (False, True)
        )
        return forward, backward

    @functools.cached_property
    def _below(self) -> tuple[allocation.Profile, allocation.Profile]:
        forward, backward = (
            allocation.profile(self.mu, self.slots, self.log_inverse_mass, reverse, False)
            for reverse in (False, True)
        )
        return forward, backward

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds on H(P||Q) and on H(Q||P) at e^loss, loss >= 0."""
        flat = np.ravel(loss)
        forward, backward = (
            allocation.profile_upper(each, self.mu, self.used, flat).reshape(np.shape(loss))
            for each in self._above
        )
        return forward, backward

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return np.maximum(*self.upper_sides(loss))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = (
            allocation.lines_lower(each, self.used, np.asarray(loss)) for each in self._below
        )
        return forward, backward


def _log_below(trials: float, prob: float, count: float) -> float:
    """log of Chernoff's bound on Pr[Bin(trials, prob) <= count]; -inf if that cannot be."""
    if count < 0:
        return -math.inf
    share = count / trials
    if share >= prob:
        return 0.0
    if prob == 1.0:
        return -math.inf
    first = share * math.log(share / prob) if share > 0 else 0.0
    return -trials * (first + (1.0 - share) * (math.log1p(-share) - math.log1p(-prob)))


@dataclasses.dataclass(frozen=True)
class OccupiedAllocationGaussian:
    """G3': G3 where n - 1 other clients compete for the slots, sharper for n p_0 >> m. Add-or-remove, dummies hidden.

    For any N_0, H <= (1 - pi) H[rho = min(p_0, p_0 m / (N_0 + 1))] + pi H[rho = p_0], where pi bounds the probability
    that a slot is empty or that fewer than N_0 others take part. A_fix only: windows must be common.

    Attributes:
      num_clients: n, the client that is added or removed included. slots, prob: m and p_0.
      mu, log_inverse_mass: as in `AllocationGaussian`.
    """

    num_clients: int
    slots: int
    prob: float
    mu: float
    log_inverse_mass: float

    name = "G3'"
    top = math.inf
    instances: tuple[Instance, ...] = ()

    @functools.cached_property
    def _parts(self) -> tuple[AllocationGaussian, AllocationGaussian | None, float]:
        """The pair with the smaller rho, the one with p_0 for the rest, and pi."""
        every = AllocationGaussian(self.slots, self.prob, self.mu, self.log_inverse_mass)
        others = float(self.num_clients - 1)
        if others == 0:
            return every, None, 0.0
        slack = (
            math.sqrt(2.0 * others * self.prob * (self.log_inverse_mass + 1.0)) if self.prob < 1.0 else 0.0
        )
        least = max(math.floor(others * self.prob - slack), 0)
        used = min(self.prob, self.prob * self.slots / (least + 1.0))
        log_empty = math.log(self.slots)
        log_empty += others * math.log1p(-self.prob / self.slots) if self.prob < self.slots else -math.inf
        rest = math.exp(min(log_empty, 0.0)) + math.exp(_log_below(others, self.prob, least - 1.0))
        if rest >= 1.0 or used == self.prob:
            return every, None, 0.0
        return dataclasses.replace(every, used=used), every, rest * (1.0 + 1e-9)

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds on H(P||Q) and on H(Q||P) at e^loss, loss >= 0."""
        often, seldom, rest = self._parts
        forward, backward = often.upper_sides(loss)
        if seldom is not None:
            first, second = seldom.upper_sides(loss)
            forward, backward = forward + rest * first, backward + rest * second
        return forward, backward

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return np.maximum(*self.upper_sides(loss))


@dataclasses.dataclass(frozen=True)
class ReplacedGaussian:
    """Replacement of one client's record, Gaussian messages in slots: the smallest of R1, R2 and `others`; symmetric.

    R1: subsampling, rho delta_G(mu, log(1 + (c - 1)/rho)). R2: two steps through the world in which the client is never
    used, min over e1 + e2 = eps of H_e1(P||Q) + e^e1 H_e2(Q||P) with G3's pair.

    Attributes:
      slots: m (the window's length for A_sldw).
      used: rho of both: `replaced_rate` says which is valid.
      two_steps: whether R2 applies: the dummies are hidden, or n > m.
      mu, log_inverse_mass: as in `AllocationGaussian`.
      others: further bounds on the same unit, valid in both directions.
      instances: concrete pairs below.
    """

    slots: int
    used: float
    two_steps: bool
    mu: float
    log_inverse_mass: float
    others: tuple[Round, ...] = ()
    instances: tuple[Instance, ...] = ()

    top = math.inf

    @property
    def name(self) -> str:
        return " and ".join(["R1", *(["R2"] if self.two_steps else []), *(each.name for each in self.others)])

    @functools.cached_property
    def _pair(self) -> AllocationGaussian:
        return AllocationGaussian(self.slots, self.used, self.mu, self.log_inverse_mass)

    def _one_step(self, loss: np.ndarray) -> np.ndarray:
        stretched = np.minimum(np.expm1(np.minimum(loss, 700.0)) / self.used, 1e300)
        return (
            self.used * lognormal.time_value(self.mu, 1.0 + stretched * (1.0 - ROUNDING)) * (1.0 + ROUNDING)
        )

    def _two_steps(self, loss: np.ndarray) -> np.ndarray:
        first = loss[:, None] * np.linspace(0.0, 1.0, _SPLITS)[None, :]
        # The second step rounded down, which raises the bound.
        second = np.maximum(loss[:, None] - first - 1e-15 * loss[:, None], 0.0)
        there, _ = self._pair.upper_sides(first)
        _, back = self._pair.upper_sides(second)
        with np.errstate(over="ignore"):
            bound = there + np.exp(np.minimum(first, 700.0)) * back
        return np.min(bound, axis=1) * (1.0 + ROUNDING)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        flat = np.ravel(np.asarray(loss, dtype=np.float64))
        best = self._one_step(flat)
        if self.two_steps:
            best = np.minimum(best, self._two_steps(flat))
        for each in self.others:
            best = np.minimum(best, np.asarray(each.upper(flat)))
        return best.reshape(np.shape(loss))


def replaced_rate(
    num_clients: int, slots: int, prob: float, hidden: bool, sliding: bool
) -> tuple[float, bool]:
    """(rho, whether R2 applies) for `ReplacedGaussian`.

    hidden: an empty slot's dummy cannot be told from a message: then rho = p_0 (1 if sliding). With n > m and common
    windows the client displaces one of at most m of the others, so rho = m / n whatever the dummies are.
    """
    rate = (1.0 if sliding else prob) if hidden else 1.0
    if sliding or num_clients <= slots:
        return rate, hidden
    return min(rate, slots / num_clients), True


@dataclasses.dataclass(frozen=True)
class AveragedGaussian:
    """G4: A_avg with Gaussian noise, aggregate view, replacement: p_0 E delta_G(mu / sqrt(k), eps), symmetric.

    k - 1 ~ Bin(n - 1, p_0 / m) is how many others share the slot; everything but the noise is revealed.

    Attributes:
      num_clients, num_slots, prob: n, m and p_0. mu: 2 / noise_multiplier.
    """

    num_clients: int
    num_slots: int
    prob: float
    mu: float
    log_inverse_mass: float

    name = "G4"
    top = math.inf
    instances: tuple[Instance, ...] = ()

    @functools.cached_property
    def _mixture(self) -> check_in_gaussian.GaussianBuckets:
        others, rate = float(self.num_clients - 1), self.prob / self.num_slots
        mass = host(self.log_inverse_mass)
        cut = _CELLS(host(others), host(rate), mass, buckets=bucket_count(others * rate))
        first = np.minimum(np.asarray(cut.first), others) + 1.0
        weight = self.prob * np.asarray(cut.mass_upper)
        return check_in_gaussian.GaussianBuckets(
            host(self.mu / np.sqrt(first)),
            host(np.ones_like(first)),
            host(weight),
            host(self.prob * float(cut.tail)),
        )

    def upper(self, loss: np.ndarray) -> Array:
        return check_in_gaussian.profile_upper(self._mixture, loss)
