"""Bounds on one application of dp_accounting's own events, but for random allocation; other events are refused.

A central event has a trusted server. Its records are clients, each with one value of norm at most 1 in units of the
sensitivity, as the event's documentation says. Replacing a value then moves a sum by at most 2.
"""

from __future__ import annotations

import math

import dp_accounting
from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalPureLDP, UnitBound
from checkin_jax.accounting.bounds.profiles import MOST_SHIFT
from checkin_jax.accounting.interop.central_mechanisms import (
    GaussianNoise,
    LaplaceNoise,
    Noise,
    Sampled,
    SampledReplaced,
)
from checkin_jax.protocols import REPLACE

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
        return SampledReplaced(noise, rate) if relation == REPLACE else Sampled(noise, rate)
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
