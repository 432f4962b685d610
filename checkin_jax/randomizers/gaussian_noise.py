"""`Gaussian`: clipped updates plus Gaussian noise."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import up
from checkin_jax._variables import FreeVariable
from checkin_jax.randomizers.randomizer import MAX_EPSILON0, Randomizer

# Added to profiles that underflow, on the safe side.
_TINY = 1e-304


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian(Randomizer):
    """Gaussian messages: each client clips its update to norm C and adds N(0, (noise_multiplier C)^2 I).

    Replacing a record moves the clipped update by at most 2C, so one message is a Gaussian mechanism with
    mu = 2 / noise_multiplier (not 1 / noise_multiplier, which is the add-or-remove figure).

    Attributes:
      noise_multiplier: noise standard deviation over the clip norm, per client and coordinate, > 0.

    Raises:
      ValueError, TypeError: noise_multiplier not a finite positive number.
    """

    noise_multiplier: float

    variable = FreeVariable("noise_multiplier", 1e-4, 1e9, -1.0)

    def __post_init__(self) -> None:
        value = _validate.real(0, math.inf, "()", noise_multiplier=self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", value)

    messages_differ = True

    @property
    def mu(self) -> float:
        """Replacement sensitivity over noise standard deviation of one message: 2 / noise_multiplier."""
        return 2.0 / self.noise_multiplier

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def description(self) -> str:
        return f"Gaussian noise of {up(self.noise_multiplier)} clip norms per message"

    @property
    def largest_loss(self) -> float:
        return math.inf

    def profile(self, loss: np.ndarray) -> np.ndarray:
        from checkin_jax.kernels import gaussian_profile
        from checkin_jax.kernels.execution.devices import float64

        with float64():
            return np.exp(gaussian_profile.log_profile(self.mu, np.asarray(loss, dtype=np.float64))) + _TINY

    @classmethod
    def from_local(cls, *, epsilon0: float, delta0: float) -> Gaussian:
        """Least noise with which one message is (epsilon0, delta0)-LDP, by the exact Gaussian profile.

        The returned noise is rounded up: the message's delta at epsilon0 never exceeds delta0.

        Raises:
          ValueError, TypeError: epsilon0 not in [0, 50] or delta0 not in (0, 1); or both are so small that no noise
            multiplier below 2e9 meets them.
        """
        from checkin_jax.kernels import gaussian_profile

        epsilon0 = _validate.real(0, MAX_EPSILON0, epsilon0=epsilon0)
        delta0 = _validate.real(0, 1, "()", delta0=delta0)
        mu = gaussian_profile.largest_mu(epsilon0, delta0)
        if not mu:
            raise ValueError(
                f"epsilon0={epsilon0!r}, delta0={delta0!r}: expected larger ones, which a noise below 2e9 meets"
            )
        return cls(noise_multiplier=2.0 / mu)
