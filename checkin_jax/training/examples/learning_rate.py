"""A first guess at the learning rate; tuning it on the data that is protected would itself cost privacy."""

from __future__ import annotations

import math

from checkin_jax import _validate
from checkin_jax.randomizers import Gaussian, Randomizer
from checkin_jax.training.private.mechanisms import central_limit_multiplier
from checkin_jax.training.schedules.schedule import Plan

TYPICAL = 0.15


def suggested_learning_rate(plan: Plan, randomizer: Randomizer, clip_norm: float) -> float:
    """learning_rate * clip_norm = 0.15 sqrt(B/T) / z, for linear decay.

    B messages are expected a round, T rounds are planned, and z is the standard deviation of one message's noise in
    clip norms. While nearly all clients are clipped only learning_rate * clip_norm matters, and the noise that T such
    steps add up to is then the same for all settings. Found on MNIST; a rule of thumb, no guarantee of anything.

    Raises:
      ValueError, TypeError: clip_norm is not above 0; epsilon0 below 1e-5.
    """
    clip_norm = _validate.real(0, 1e30, open_low=True, clip_norm=clip_norm)
    number, rate = plan.check_ins
    if isinstance(randomizer, Gaussian):
        noise = randomizer.noise_multiplier
    else:
        noise = central_limit_multiplier(randomizer.epsilon0)
    return TYPICAL * math.sqrt(number * rate / plan.num_rounds) / noise / clip_norm
