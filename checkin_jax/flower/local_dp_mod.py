"""Exact privacy of one message of Flower's `LocalDpMod(clipping_norm, sensitivity, epsilon, delta)`.

The mod clips a client's update to `clipping_norm` and adds Gaussian noise of standard deviation `sensitivity sqrt(2
ln(1.25 / delta)) / epsilon`, which does not depend on the clipping norm. Replacing a client's data moves the clipped
update by up to two clip norms; replacing it by zeros, by up to one. The exact privacy profile of the Gaussian mechanism
is a function of this shift in standard deviations. The classical formula is proved only for epsilon <= 1.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy.special

from checkin_jax import _validate
from checkin_jax._serialize import finite
from checkin_jax.accounting.bounds.interface import LocalGaussian
from checkin_jax.accounting.bounds.profiles import MOST_SHIFT, GaussianProfile
from checkin_jax.accounting.composition import compose
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.randomizers import Gaussian
from checkin_jax.reports import render

_SLACK = 1e-9


@dataclasses.dataclass(frozen=True)
class LocalDpWorth:
    """One message of a `LocalDpMod`, by the exact profile of the Gaussian mechanism; all figures are rounded up.

    Attributes:
      clipping_norm, sensitivity, epsilon, delta: the setting.
      noise_std: standard deviation of the noise of every coordinate.
      noise_multiplier: the same in clip norms: the message is one of `Gaussian(noise_multiplier)`.
      epsilon_replaced: epsilon at delta under replacement of the client's data, that is, local differential privacy.
      epsilon_zero: epsilon at delta between the client's update and a zero update.
      delta_replaced: delta at the claimed epsilon under replacement.
      honest: the randomizer with the least noise that has the claimed (epsilon, delta); None if there is none.
    """

    clipping_norm: float
    sensitivity: float
    epsilon: float
    delta: float
    noise_std: float
    noise_multiplier: float
    epsilon_replaced: float
    epsilon_zero: float
    delta_replaced: float
    honest: Gaussian | None

    validity = "certified"

    @property
    def holds(self) -> bool:
        """True if the message has the claimed epsilon and delta."""
        return self.epsilon_replaced <= self.epsilon

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        out = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        out["honest"] = None if self.honest is None else self.honest.noise_multiplier
        return finite(out | {"holds": self.holds, "validity": self.validity})

    def __str__(self) -> str:
        return render.text("local_dp.txt", worth=self)


def local_dp_worth(*, clipping_norm: float, sensitivity: float, epsilon: float, delta: float) -> LocalDpWorth:
    """Certified privacy of one message of `LocalDpMod(clipping_norm, sensitivity, epsilon, delta)`.

    Assumes flwr's formula for the noise (flwr 1.42), and independent normal noise.

    Args:
      clipping_norm: above 0.
      sensitivity: at least 0; the mod does not derive it from the clipping norm.
      epsilon: above 0.
      delta: in (0, 1).

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.

    Examples:
      >>> from checkin_jax.flower import local_dp_worth
      >>> worth = local_dp_worth(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
      >>> worth.holds, round(worth.epsilon_replaced, 2)
      (False, 1.61)
    """
    clip = _validate.real(0, math.inf, "()", clipping_norm=clipping_norm)
    moved = _validate.real(0, math.inf, "[)", sensitivity=sensitivity)
    epsilon = _validate.real(0, math.inf, "()", epsilon=epsilon)
    delta = _validate.real(0, 1, "()", delta=delta)
    std = moved * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    multiplier = std / clip
    replaced, zero = (_epsilon(shift / multiplier, delta) if multiplier else math.inf for shift in (2.0, 1.0))
    try:
        honest = Gaussian.from_local(epsilon0=epsilon, delta0=delta)
    except ValueError:
        honest = None
    claimed = _delta(2.0 / multiplier, epsilon) if multiplier else 1.0
    return LocalDpWorth(clip, moved, epsilon, delta, std, multiplier, replaced, zero, claimed, honest)


def _epsilon(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with this shift, rounded up."""
    if not math.isfinite(mu):
        return math.inf
    # Upper bound on epsilon: delta(eps) = Phi(mu/2 - eps/mu) - ... without its second term.
    simple = 0.5 * mu * mu - mu * float(scipy.special.ndtri(delta))
    found = max(simple, 0.0) * (1.0 + _SLACK)
    if mu > MOST_SHIFT or not mu:
        return found
    return min(found, compose.upper_end([(LocalGaussian(1.0, mu), 1)], delta).upper)


def _delta(mu: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism with this shift at epsilon, rounded up."""
    if mu > MOST_SHIFT:
        return min(float(scipy.special.ndtr(0.5 * mu - epsilon / mu)) * (1.0 + _SLACK), 1.0)
    if not mu:
        return 0.0
    with float64():
        return min(float(GaussianProfile(mu).delta(np.asarray([epsilon]))[0]) * (1.0 + _SLACK), 1.0)
