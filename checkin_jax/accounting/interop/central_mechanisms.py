"""Bounds on mechanisms of a trusted server: additive noise, and Poisson sampling before it; `bound_of` dp_accounting's
events, each with values of norm at most 1 in units of the sensitivity, as its documentation says.

The server adds each client's value v, of norm at most 1, into a sum, and noise N to the sum. Under add-or-remove the
pair is exactly P = (1-q) N + q N(v) with the client, Q = N without it, in either order [ZDW22]. Under replace-one v
becomes v', a shift of at most 2; with Poisson sampling Theorem 2 of [BBG18] is the upper bound. Call inside
`float64()`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import scipy
from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import (
    AsymmetricBound,
    Lines,
    LocalGaussian,
    LocalPureLDP,
    OwnWitness,
    UnitBound,
    Witness,
    minimum,
)
from checkin_jax.accounting.bounds.profiles import MOST_SHIFT, GaussianProfile
from checkin_jax.accounting.bounds.windows.mixtures import TwoSteps
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.protocols import REPLACE

# Relative rounding, upwards: profiles are accurate to 5e-12, and a few operations follow.
_SLACK = 1e-10
# Profiles are evaluated at losses reduced by this share, against the rounding of losses.
_EARLIER = 1e-13


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """N(0, 1) and N(shift, 1)."""

    shift: float

    largest_loss = math.inf

    def profile(self, loss: np.ndarray) -> np.ndarray:
        """Upper bound on H of the translate against the law, in either order; loss >= 0, or infinite."""
        finite = np.isfinite(loss)
        return np.where(finite, GaussianProfile(self.shift).delta(np.where(finite, loss, 0.0)), 0.0)

    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        """Log density ratio at x of the translate over the law; nondecreasing."""
        return self.shift * (x - 0.5 * self.shift)

    def tail(self, x: np.ndarray, shift: float) -> np.ndarray:
        """Mass beyond x of the law translated by `shift`."""
        return scipy.special.ndtr(shift - x)

    def times(self, factor: float) -> GaussianNoise:
        """The law with `factor` times the shift."""
        return GaussianNoise(factor * self.shift)


@dataclasses.dataclass(frozen=True)
class LaplaceNoise:
    """The Laplace law of scale 1 and its translate by `shift`, the worst direction for the 1-norm.

    Methods as of `GaussianNoise`.
    """

    shift: float

    @property
    def largest_loss(self) -> float:
        return self.shift

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return np.maximum(-np.expm1(0.5 * np.minimum(loss - self.shift, 0.0)), 0.0)

    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        return np.abs(x) - np.abs(x - self.shift)

    def tail(self, x: np.ndarray, shift: float) -> np.ndarray:
        away = 0.5 * np.exp(-np.abs(x - shift))
        return np.where(x >= shift, away, 1.0 - away)

    def times(self, factor: float) -> LaplaceNoise:
        return LaplaceNoise(factor * self.shift)


# A symmetric, log-concave law on the line, and its translate by `shift`.
Noise = GaussianNoise | LaplaceNoise


def _sampled_losses(loss: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses of a pair for P||Q and for Q||P (infinite if there is none), and the latter's weight, after sampling."""
    forward = loss if rate == 1.0 else _amplified(loss, rate)
    weight = rate - (1.0 - rate) * np.expm1(np.minimum(loss, 700.0))
    some = weight > 0.0
    backward = np.where(some, loss + math.log(rate) - np.log(np.where(some, weight, 1.0)), np.inf)
    return forward, np.maximum(backward, 0.0), weight


def sampled_sides(
    forward: Callable[[np.ndarray], np.ndarray],
    backward: Callable[[np.ndarray], np.ndarray],
    rate: float,
    loss: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds on both profiles of P = (1-rate) Q + rate P' against Q, from those of P' against Q; rounded up.

    forward, backward: H(P'||Q) and H(Q||P') at losses >= 0, or infinite, where they may be zero.
    """
    ahead, back, weight = _sampled_losses(np.asarray(loss, dtype=np.float64), rate)
    first = rate * forward(ahead * (1.0 - _EARLIER))
    # The weight has an error of 1e-15; below 1e-13 the profile is bounded by the weight.
    known = weight > _EARLIER
    earlier = back * (1.0 - _EARLIER) - 1e-15 / np.where(known, weight, 1.0)
    inside = backward(np.where(known, np.maximum(earlier, 0.0), np.inf))
    second = np.where(known, (weight + 1e-15) * inside, np.where(weight < -_EARLIER, 0.0, 2.0 * _EARLIER))
    return first * (1.0 + _SLACK) + 1e-303, second * (1.0 + _SLACK) + 1e-303


@dataclasses.dataclass(frozen=True)
class Sampled(OwnWitness, AsymmetricBound):
    """Poisson sampling: a client's value of norm 1 is in a noisy sum with probability `rate`; add-or-remove. Exact."""

    noise: Noise
    rate: float

    name = "additive noise after Poisson sampling, a client added or removed (exact)"
    symmetric = False

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        a, q = self.noise.largest_loss, self.rate
        if a > 600.0 or q == 1.0:
            return a
        ends = math.log1p(q * math.expm1(a)), -math.log1p(q * math.expm1(-a))
        return max(ends) * (1.0 + 1e-12)

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return sampled_sides(self.noise.profile, self.noise.profile, self.rate, loss)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward, _ = _sampled_losses(np.asarray(loss, dtype=np.float64), self.rate)
        q = self.rate
        near, far = _masses(self.noise, forward)
        other_near, other_far = _masses(self.noise, backward)
        return (
            _lines(q * near, q * far, far),
            _lines(q * other_near, q * other_far, (1.0 - q) * other_near + q * other_far),
        )


@dataclasses.dataclass(frozen=True)
class SampledReplaced:
    """Poisson sampling, replace-one: at most q ((1-b) H of a shift of 1 + b H of a shift of 2) [BBG18]."""

    noise: Noise
    rate: float

    name = "additive noise after Poisson sampling, a client replaced"

    @property
    def largest_loss(self) -> float:
        a = self.noise.times(2.0).largest_loss
        if a > 600.0:
            return math.inf if math.isinf(a) else a
        return math.log1p(self.rate * math.expm1(a)) * (1.0 + 1e-12)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return (Opposite(self, self.noise, self.rate),)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        inner = loss if self.rate == 1.0 else _amplified(loss, self.rate)
        share = np.exp(np.minimum(loss - inner, 0.0))
        at = inner * (1.0 - _EARLIER)
        one, two = self.noise.profile(at), self.noise.times(2.0).profile(at)
        return self.rate * ((1.0 - share) * one + share * two) * (1.0 + _SLACK) + 1e-303


@dataclasses.dataclass(frozen=True)
class Opposite:
    """Witness: values v and -v, all other clients at 0; the events are sums beyond a threshold."""

    grid_bound: UnitBound
    noise: Noise
    rate: float

    name = "additive noise, v against -v"
    symmetric = True

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        loss, q = np.asarray(loss, dtype=np.float64), self.rate
        low = np.zeros_like(loss)
        high = low + (loss + math.log(1.0 / q) + 40.0) / self.noise.shift + self.noise.shift

        def ratio(x: np.ndarray) -> np.ndarray:
            both = self.noise.log_ratio(x), self.noise.log_ratio(-x)
            if q == 1.0:
                return both[0] - both[1]
            plus, minus = (np.logaddexp(math.log1p(-q), math.log(q) + each) for each in both)
            return plus - minus

        reached = ratio(high) > loss
        _, high = bisected(lambda x: ratio(x) <= loss, low, high, 60)
        near, none, far = (self.noise.tail(high, by * self.noise.shift) for by in (1.0, 0.0, -1.0))
        first, second = q * near + (1.0 - q) * none, q * far + (1.0 - q) * none
        difference, mass = _lines(first, second, second)
        lines = np.where(reached, difference, 0.0), np.where(reached, mass, 0.0)
        return lines, lines


def sampled_replaced(noise: Noise, rate: float) -> UnitBound:
    """Poisson sampling, replace-one: the smaller of [BBG18] and two steps at each loss."""
    one = SampledReplaced(noise, rate)
    return one if rate == 1.0 else minimum([one, TwoSteps(Sampled(noise, rate))], one.witnesses)


def _amplified(loss: np.ndarray, rate: float) -> np.ndarray:
    """log(1 + (e^loss - 1) / rate), rounded down."""
    small = np.minimum(loss, 30.0)
    inner = np.where(loss < 30.0, np.log1p(np.expm1(small) / rate), loss - math.log(rate))
    return np.where(loss < 30.0, inner, inner + np.log1p(-(1.0 - rate) * np.exp(-loss))) * (1.0 - 1e-15)


def _masses(noise: Noise, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masses of the event {privacy loss > loss} under the translate and under the law; 0 if it is empty."""
    some = (loss < noise.largest_loss) & np.isfinite(loss)
    at = np.where(some, loss, 0.0)
    if isinstance(noise, LaplaceNoise):
        x = 0.5 * (at + noise.shift)
    else:
        x = at / noise.shift + 0.5 * noise.shift
    return np.where(some, noise.tail(x, noise.shift), 0.0), np.where(some, noise.tail(x, 0.0), 0.0)


def _lines(near: np.ndarray, far: np.ndarray, mass: np.ndarray) -> Lines:
    return np.maximum((near - far) - 1e-13 * near, 0.0), mass * (1.0 + 1e-13)


KINDS: tuple[type[DpEvent], ...] = (
    dp_accounting.GaussianDpEvent,
    dp_accounting.LaplaceDpEvent,
    dp_accounting.RandomizedResponseDpEvent,
    dp_accounting.PoissonSampledDpEvent,
)
_MOST_NOISE, LEAST_RATE = 1e6, 1e-9


def bound_of(event: DpEvent, relation: str) -> UnitBound:
    """The bound on one application of a central event under a relation of `protocols.RELATIONS`.

    Exact for Gaussian and Laplace noise, randomized response, and for Poisson sampling under
    add-or-remove. Under replace-one Poisson sampling has separate upper and lower bounds.

    Raises:
      ValueError: no bound is known for this event or relation, with the reason; or a parameter outside its range.
    """
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        noise = noise_of(event.event)
        rate = _validate.real(LEAST_RATE, 1, sampling_probability=event.sampling_probability)
        return sampled_replaced(noise, rate) if relation == REPLACE else Sampled(noise, rate)
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return LocalGaussian(1.0, (2.0 if relation == REPLACE else 1.0) * noise_of(event).shift)
    if isinstance(event, dp_accounting.LaplaceDpEvent):
        return Sampled(noise_of(event).times(2.0 if relation == REPLACE else 1.0), 1.0)
    if isinstance(event, dp_accounting.RandomizedResponseDpEvent):
        return _response(event, relation)
    raise ValueError(_why(event))


def noise_of(event: DpEvent) -> Noise:
    """Noise of a sum of values of norm at most 1, in units of the noise's scale."""
    if isinstance(event, dp_accounting.GaussianDpEvent):
        least = 2.0 / MOST_SHIFT
        return GaussianNoise(
            1.0 / _validate.real(least, _MOST_NOISE, noise_multiplier=event.noise_multiplier)
        )
    if isinstance(event, dp_accounting.LaplaceDpEvent):
        return LaplaceNoise(1.0 / _validate.real(0.01, _MOST_NOISE, noise_multiplier=event.noise_multiplier))
    raise ValueError(
        f"Poisson sampling of {type(event).__name__}: expected GaussianDpEvent or LaplaceDpEvent after the sampling"
    )


def _response(event: dp_accounting.RandomizedResponseDpEvent, relation: str) -> UnitBound:
    if relation != REPLACE:
        raise ValueError(
            "RandomizedResponseDpEvent needs neighboring_relation='replace-one': it has no absent client"
        )
    values = _validate.integer(2, 2**31, num_buckets=event.num_buckets)
    share = _validate.real(0, 1, "(]", noise_parameter=event.noise_parameter) / values
    kept = 1.0 - event.noise_parameter + share
    return LocalPureLDP(kept + share, math.log(kept / share))


def _why(event: DpEvent) -> str:
    name = type(event).__name__
    if "Replacement" in name or "Truncated" in name or "Fixed" in name:
        return f"{name}: its sampling is under another relation (or size known); Poisson sampling is accepted"
    if name in ("ZCDpEvent", "SingleEpochTreeAggregationDpEvent", "RepeatAndSelectDpEvent"):
        return f"{name}: only Renyi divergences of it are known, and composition here wants a whole privacy profile"
    return (
        f"no bound is known for {name}: accepted are {', '.join(kind.__name__ for kind in KINDS)}, "
        "random allocations and compositions of them, and check-ins"
    )


def noiseless(event: Any) -> bool:
    """True if a sum is released without noise, also after sampling or allocation."""
    while hasattr(event, "event"):
        event = event.event
    noisy = isinstance(event, dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent)
    return noisy and event.noise_multiplier == 0
