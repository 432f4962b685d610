"""What one message gives away by itself, whatever the two inputs: the profiles that T* makes rounds of.

`delta(loss)` is the largest hockey-stick divergence at e^loss, loss >= 0, between the laws of a message for any two
inputs, in any order. It must be a true profile: nonincreasing, convex in e^loss, at most 1. Call inside
`jax.enable_x64(True)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from checkin_jax import _validate
from checkin_jax.kernels import gaussian

TINY = 1e-304
# The largest mu that T* gains at: beyond, messages have hardly any noise.
MOST_MU = 16.0


class Profile(Protocol):
    """What one message gives away: see the module."""

    @property
    def name(self) -> str: ...

    @property
    def top(self) -> float:
        """The largest loss, or infinity."""
        ...

    def delta(self, loss: np.ndarray) -> np.ndarray:
        """D at e^loss, loss >= 0, any shape; relative error below 5e-12."""
        ...


@dataclasses.dataclass(frozen=True)
class GaussianProfile:
    """Gaussian noise: mu is the sensitivity under replacement (twice the clipping norm) over the noise's deviation."""

    mu: float

    name = "Gaussian"
    top = math.inf

    def __post_init__(self) -> None:
        _validate.real(0.0, 40.0, open_low=True, mu=self.mu)

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return np.exp(gaussian.log_profile(self.mu, loss)) + TINY


@dataclasses.dataclass(frozen=True)
class LaplaceProfile:
    """Laplace noise in one dimension: epsilon0 is the sensitivity under replacement over the noise's scale."""

    epsilon0: float

    name = "Laplace"

    def __post_init__(self) -> None:
        _validate.real(0.0, 50.0, open_low=True, epsilon0=self.epsilon0)

    @property
    def top(self) -> float:
        return self.epsilon0

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return -np.expm1(0.5 * np.minimum(np.asarray(loss) - self.epsilon0, 0.0))


@dataclasses.dataclass(frozen=True)
class ApproximateLDP:
    """Any (epsilon0, delta0)-LDP randomizer: delta0 + (1 - delta0) (p - c)_+ / (p + 1) [Kairouz, Oh, Viswanath 2015].

    With delta0 = 0, any epsilon0-LDP randomizer; T* is then T1.
    """

    epsilon0: float
    delta0: float = 0.0

    name = "(epsilon0, delta0)-LDP"

    def __post_init__(self) -> None:
        _validate.real(0.0, 50.0, open_low=True, epsilon0=self.epsilon0)
        _validate.real(0.0, 1.0, open_high=True, delta0=self.delta0)

    @property
    def top(self) -> float:
        return math.inf if self.delta0 > 0 else self.epsilon0

    def delta(self, loss: np.ndarray) -> np.ndarray:
        room = -np.expm1(np.minimum(np.asarray(loss) - self.epsilon0, 0.0)) / (1.0 + math.exp(-self.epsilon0))
        return self.delta0 + (1.0 - self.delta0) * room


@dataclasses.dataclass(frozen=True)
class KnownProfile:
    """A privacy profile given as a function of the loss; refused where samples show that it is none.

    Args:
      function: D at e^loss for an array of losses >= 0 in nats, relative error below 5e-12: an upper bound on the
        hockey-stick divergence between the laws of a message for any two inputs, in both orders.
      top: the largest loss, where the function is zero from there on; else infinity.

    Raises:
      ValueError: some value is not in [0, 1], or the function increases or is not convex in e^loss.
    """

    function: Callable[[np.ndarray], np.ndarray]
    top: float = math.inf
    name: str = "given profile"

    def __post_init__(self) -> None:
        _validate.real(0.0, math.inf, open_low=True, top=self.top)
        end = min(self.top, 60.0)
        losses = np.concatenate([[0.0], end * np.geomspace(1e-9, 1.0, 1025)])
        value = np.asarray(self.function(losses))
        if value.shape != losses.shape or not np.all((value >= 0) & (value <= 1)):
            raise ValueError("function: expected values in [0, 1], one for each loss")
        # What float64 may do to the differences of values that are right to 5e-12.
        slack = 1e-11 * value[:-1]
        falls = (value[:-1] - value[1:] + slack) / np.expm1(np.diff(losses)) / np.exp(losses[:-1])
        least = (
            np.maximum((value[:-1] - value[1:] - slack), 0.0)
            / np.expm1(np.diff(losses))
            / np.exp(losses[:-1])
        )
        if np.any(np.diff(value) > slack):
            raise ValueError("function: a privacy profile does not increase")
        if np.any(falls[:-1] < least[1:]):
            raise ValueError("function: a privacy profile is convex in e^loss")
        if math.isfinite(self.top) and value[-1] > 0:
            raise ValueError(f"top={self.top!r}: expected the function to be zero there, not {value[-1]!r}")

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return np.asarray(self.function(np.asarray(loss)), dtype=np.float64)
