"""Bounds on dp_accounting's own events under our neighboring relations; other events are refused.

A central event has a trusted server. Its records are clients, each with one value of norm at most 1 in units of the
sensitivity, as the event's documentation says. Replacing a value then moves a sum by at most 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from checkin_jax import _validate
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalPureLDP, UnitBound
from checkin_jax.accounting.bounds.profiles import MOST_SHIFT
from checkin_jax.accounting.interop import allocation
from checkin_jax.accounting.interop.central_mechanisms import (
    EpsilonDelta,
    GaussianNoise,
    LaplaceNoise,
    Noise,
    Sampled,
    SampledReplaced,
)
from checkin_jax.protocols import REPLACE

# None in versions of dp_accounting without it.
_EPSILON_DELTA: Any = getattr(dp_accounting.dp_event, "EpsilonDeltaDpEvent", None)
_KINDS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        dp_accounting.GaussianDpEvent,
        dp_accounting.LaplaceDpEvent,
        dp_accounting.RandomizedResponseDpEvent,
        dp_accounting.PoissonSampledDpEvent,
        allocation.RandomAllocationDpEvent,
        _EPSILON_DELTA,
    )
    if kind is not None
}
ASSUMED = "each record of a central event belongs to one client, the same client in every event; its server is trusted"
_MOST_NOISE, _LEAST_RATE = 1e6, 1e-9


def units_of(event: DpEvent, relation: str, mass: float = 31.0) -> list[tuple[UnitBound, int]]:
    """(bound, count) pairs whose composition bounds one application of a central event.

    mass: -log of the mass that a unit may drop, see `interface.neg_log_tail`; used by random allocation only.

    Raises:
      ValueError: as `bound_of`.
    """
    if allocation.allocated(event) is not None:
        return allocation.units_of(event, relation, mass)
    return [(bound_of(event, relation), 1)]


def bound_of(event: DpEvent, relation: str) -> UnitBound:
    """The bound on one application of a central event under a relation of `protocols.RELATIONS`.

    Exact for Gaussian and Laplace noise, randomized response and (epsilon, delta), and for Poisson sampling under
    add-or-remove. Under replace-one Poisson sampling has separate upper and lower bounds.

    Raises:
      ValueError: no bound is known for this event or relation, with the reason; or a parameter outside its range.
    """
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        noise = _noise(event.event)
        rate = _validate.real(_LEAST_RATE, 1, sampling_probability=event.sampling_probability)
        return SampledReplaced(noise, rate) if relation == REPLACE else Sampled(noise, rate)
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return LocalGaussian(1.0, (2.0 if relation == REPLACE else 1.0) * _noise(event).shift)
    if isinstance(event, dp_accounting.LaplaceDpEvent):
        return Sampled(_noise(event).times(2.0 if relation == REPLACE else 1.0), 1.0)
    if isinstance(event, dp_accounting.RandomizedResponseDpEvent):
        return _response(event, relation)
    if _EPSILON_DELTA is not None and isinstance(event, _EPSILON_DELTA):
        stated: Any = event
        epsilon = _validate.real(0, 600, epsilon=stated.epsilon)
        return EpsilonDelta(epsilon, _validate.real(0, 1, "[)", delta=stated.delta))
    raise ValueError(_why(event))


def _noise(event: DpEvent) -> Noise:
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
    if kept <= share:
        return EpsilonDelta(0.0, 0.0)
    return LocalPureLDP(kept + share, math.log(kept / share))


def _why(event: DpEvent) -> str:
    name = type(event).__name__
    if "Replacement" in name or "Truncated" in name or "Fixed" in name:
        return f"{name}: its sampling is under another relation (or size known); Poisson sampling is accepted"
    if name in ("ZCDpEvent", "SingleEpochTreeAggregationDpEvent", "RepeatAndSelectDpEvent"):
        return f"{name}: only Renyi divergences of it are known, and composition here wants a whole privacy profile"
    return (
        f"no bound is known for {name}: accepted are {', '.join(_KINDS)}, compositions of them, and check-ins"
    )


def noiseless(event: Any) -> bool:
    """True if a sum is released without noise, also after sampling or allocation."""
    while hasattr(event, "event"):
        event = event.event
    noisy = isinstance(event, dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent)
    return noisy and event.noise_multiplier == 0


def to_plain(event: DpEvent) -> dict[str, Any]:
    """Kind and fields of an event that `bound_of` takes, for JSON."""
    fields = {field.name: getattr(event, field.name) for field in attr.fields(type(event))}
    return {
        "kind": type(event).__name__,
        **{name: to_plain(value) if isinstance(value, DpEvent) else value for name, value in fields.items()},
    }


def from_plain(plain: Any) -> DpEvent:
    """The event from `to_plain`'s values.

    Raises:
      ValueError: unknown kind, or other fields than those of its kind.
    """
    if not isinstance(plain, Mapping) or plain.get("kind") not in _KINDS:
        raise _validate.error(f"a kind out of {', '.join(_KINDS)}", event=plain)
    kind = _KINDS[plain["kind"]]
    fields = {name: value for name, value in plain.items() if name != "kind"}
    names = {field.name for field in attr.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"{kind.__name__} with fields {sorted(map(str, fields))}: expected {sorted(names)}")
    return kind(
        **{name: from_plain(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
    )
